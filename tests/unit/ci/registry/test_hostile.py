"""Registrations that must be refused, each with file, line and reason."""

import pytest
from ci_repository import CI_TOML, IMPORT, inventory

from parity.ci.registry.problems import RegistrationError

PATH = "tests/hw/test_x.py"
GOOD = 'register_cuda_ci(60, "h100-4", labels=["fsdp"])\n'
OFF = 'register_cuda_ci(60, "h100-4", labels=["fsdp"], disabled={})\n'
REASON = '"reason": "hangs", "issue": "https://example.com/o/r/issues/7"'


def off(extra):
    return OFF.replace("{}", "{" + REASON + extra + "}")


# name: (text below the import, line, what the message must hold)
HOSTILE = {
    "no registration": ("x = 1\n", 1, ["no registration", "register_rocm_ci"]),
    "unknown label": ('register_cuda_ci(60, "h100-4", labels=["fsdq"])', 2, ["'fsdq'", "'fsdp'?"]),
    "label as on the pull request": (
        'register_cuda_ci(60, "h100-4", labels=["run-ci-fsdp"])', 2, ["run-ci-fsdp", "'fsdp'?"]),
    "label that isn't a string": (
        'register_cuda_ci(60, "h100-4", labels=[1])', 2, ["label 1 is unknown"]),
    "labels as one string": (
        'register_cuda_ci(60, "h100-4", labels="fsdp")', 2, ["must be a list"]),
    "label twice": (
        'register_cuda_ci(60, "h100-4", labels=["fsdp", "fsdp"])', 2, ["twice"]),
    "no labels on an accelerator": ('register_cuda_ci(60, "h100-4")', 2, ["at least one"]),
    "unknown suite": (
        'register_cuda_ci(\n    60, "h200-4",\n    labels=["fsdp"])', 3, ["'h200-4'", "h100-4"]),
    "suite of another backend": (
        'register_cuda_ci(60, "mi300-4", labels=["fsdp"])', 2, ["is of rocm"]),
    "no suite": ('register_cuda_ci(60, labels=["fsdp"])', 2, ["suite is missing"]),
    "unknown backend": ('register_tpu_ci(60, "x")', 2, ["register_tpu_ci is unknown"]),
    "unknown keyword": (
        'register_cuda_ci(60, "h100-4", labels=["fsdp"], retries=2)', 2, ["'retries'", "nightly"]),
    "keyword twice": ('register_cuda_ci(60, "h100-4", suite="h100-4", labels=["fsdp"])', 2,
                      ["suite twice"]),
    "too many positions": ('register_cuda_ci(60, "h100-4", ["fsdp"])', 2, ["by position"]),
    "name as a value": (
        'T = 60\nregister_cuda_ci(T, "h100-4", labels=["fsdp"])', 3, ["`T`", "literal"]),
    "arithmetic as a value": (
        'register_cuda_ci(60 * 60, "h100-4", labels=["fsdp"])', 2, ["`60 * 60`", "literal"]),
    "f-string as a value": (
        'register_cuda_ci(60, f"h100-{4}", labels=["fsdp"])', 2, ["literal"]),
    "star arguments": ('register_cuda_ci(*[60, "h100-4"], labels=["fsdp"])', 2, ["*"]),
    "double-star arguments": ('register_cuda_ci(60, "h100-4", **{})', 2, ["**"]),
    "estimate of zero": ('register_cuda_ci(0, "h100-4", labels=["fsdp"])', 2, ["> 0"]),
    "estimate below zero": ('register_cuda_ci(-5, "h100-4", labels=["fsdp"])', 2, ["-5", "> 0"]),
    "estimate that is infinite": (
        'register_cuda_ci(1e999, "h100-4", labels=["fsdp"])', 2, ["inf", "> 0"]),
    "estimate beyond floats": (
        f'register_cuda_ci({10**400}, "h100-4", labels=["fsdp"])', 2, ["> 0"]),
    "estimate as text": ('register_cuda_ci("60", "h100-4", labels=["fsdp"])', 2, ["'60'"]),
    "estimate that is true": ('register_cuda_ci(True, "h100-4", labels=["fsdp"])', 2, ["True"]),
    "no estimate": ('register_cuda_ci(suite="h100-4", labels=["fsdp"])', 2, ["est_time is missing"]),  # noqa: E501
    "nightly as a number": (
        'register_cuda_ci(60, "h100-4", labels=["fsdp"], nightly=1)', 2, ["True or False"]),
    "registered twice": (GOOD + GOOD, 3, ["twice", "line 2"]),
    "inside an if": ('if True:\n    register_cuda_ci(60, "h100-4", labels=["fsdp"])', 3,
                     ["inside another statement"]),
    "inside a function": ('def f():\n    ' + GOOD, 3, ["inside another statement"]),
    "inside brackets": ('x = [\n' + GOOD.strip() + '\n]', 3, ["inside another statement"]),
    "as a decorator": ('@register_cuda_ci(60, "h100-4")\ndef f(): ...', 2, ["inside another"]),
    "assigned": ("x = " + GOOD, 2, ["inside another statement"]),
    "aliased by a variable": ('r = register_cuda_ci\nr(60, "h100-4", labels=["fsdp"])', 2,
                              ["under another name"]),
    "aliased by an import": (
        'from parity.ci.register import register_cuda_ci as r\nr(60, "h100-4", labels=["fsdp"])',
        2, ["imported as r"]),
    "through a module": (
        'import parity.ci.register as m\nm.register_cuda_ci(60, "h100-4", labels=["fsdp"])', 3,
        ["m.register_cuda_ci", "bare name"]),
    "looked up by a string": (
        'import m\ngetattr(m, "register_cuda_ci")(60, "h100-4", labels=["fsdp"])', 1,
        ["no registration"]),
    "in a string only": ('x = """\n' + GOOD + '"""', 1, ["no registration"]),
    "in a comment only": ("# " + GOOD, 1, ["no registration"]),
    "defined in the file": ('def register_cuda_ci(*a, **k): ...\n' + GOOD, 2, ["is defined here"]),
    "chained": ('register_cuda_ci(60, "h100-4", labels=["fsdp"]).x', 2, ["inside another"]),
    "no Python": ("register_cuda_ci(60,, 1)", 2, ["isn't valid Python"]),
    "disabled by a text": (
        'register_cuda_ci(60, "h100-4", labels=["fsdp"], disabled="flaky")', 2, ["'flaky'", "owner"]),  # noqa: E501
    "disabled without an owner": (off(', "expires": "2026-07-01"'), 2, ["no owner"]),
    "disabled without an expiry": (off(', "owner": "@a"'), 2, ["no expires"]),
    "disabled without an issue": (
        OFF.replace("{}", '{"reason": "x", "owner": "@a", "expires": "2026-07-01"}'), 2, ["no issue"]),  # noqa: E501
    "disabled with an issue that is no link": (
        OFF.replace("{}", '{"reason": "x", "issue": "#7", "owner": "@a", "expires": "2026-07-01"}'), 2,  # noqa: E501
        ["'#7'", "link"]),
    "disabled and expired": (off(', "owner": "@a", "expires": "2026-05-31"'), 2,
                             ["expired on 2026-05-31", "@a"]),
    "disabled for too long": (off(', "owner": "@a", "expires": "2027-05-31"'), 2, ["90 days"]),
    "disabled until no day": (off(', "owner": "@a", "expires": "soon"'), 2, ["'soon'"]),
    "disabled with an unknown key": (
        off(', "owner": "@a", "expires": "2026-07-01", "until": "x"'), 2, ["'until'"]),
    "hardware branch": (
        GOOD + "import torch\nif torch.version.hip:\n    pass\n", 4, ["test_amd_<name>.py"]),
    "gate without a metric": (GOOD + "register_ci_gate(rel_up=0.5)", 3, ["metric_key is missing"]),
    "gate with a wrong number": (
        GOOD + 'register_ci_gate(metric_key="m", rel_up=-0.5)', 3, ["rel_up is -0.5"]),
    "gate with limits that cross": (
        GOOD + 'register_ci_gate(metric_key="m", hard_min=2, hard_max=1)', 3, ["above hard_max"]),
    "gate with an infinite limit": (
        GOOD + 'register_ci_gate(metric_key="m", hard_max=1e999)', 3, ["finite"]),
    "gate with an unknown mode": (
        GOOD + 'register_ci_gate(metric_key="m", mode="enforce")', 3, ["'enforced'?"]),
    "gate with an unknown keyword": (
        GOOD + 'register_ci_gate(metric_key="m", rel=1)', 3, ["'rel'", "rel_up"]),
    "gate by position": (GOOD + 'register_ci_gate("m")', 3, ["by position"]),
    "gate on steps that aren't": (
        GOOD + 'register_ci_gate(metric_key="m", steps=[1, 1])', 3, ["[1, 1]"]),
    "gate on a backend without a registration": (
        GOOD + 'register_ci_gate(metric_key="m", backends=["rocm"])', 3, ["'rocm'", "cuda"]),
    "gate twice": (
        GOOD + 'register_ci_gate(metric_key="m")\nregister_ci_gate(metric_key="m")', 4, ["twice"]),
    "unknown kind of call": (GOOD + 'register_ci_metric(metric_key="m")', 3, ["is unknown"]),
    "case table in another folder": (
        GOOD + 'register_ci_cases(table="../cases.py")', 3, ["same folder"]),
    "case table that isn't there": (GOOD + 'register_ci_cases(table="none_cases.py")', None,
                                    ["can't be read"]),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_registration_is_refused_with_file_line_and_reason(name, tmp_path):
    text, line, wanted = HOSTILE[name]

    with pytest.raises(RegistrationError) as error:
        inventory(tmp_path, {PATH: IMPORT + text})

    places = {(problem.path, problem.line) for problem in error.value.problems}
    if line is not None:
        assert (PATH, line) in places, str(error.value)
    for word in wanted:
        assert word in str(error.value)


# name: (files, file and line of the problem, what the message must hold)
REPOSITORIES = {
    "an accelerator in a CPU folder": (
        {"tests/unit/test_x.py": IMPORT + GOOD}, "tests/unit/test_x.py:2:", "tests/unit"),
    "a name that is never run": (
        {"tests/hw/step.py": IMPORT + GOOD}, "tests/hw/step.py:2:", "would never run"),
    "a test outside the roots": (
        {"src/test_x.py": IMPORT + GOOD}, "src/test_x.py:1:", "outside the folders"),
    "a name that isn't imported": ({PATH: GOOD}, f"{PATH}:1:", "isn't imported"),
    "two problems at once": (
        {PATH: "x = 1", "tests/hw/test_y.py": "y = 1"}, "tests/hw/test_y.py:1:", PATH),
    "bytes that aren't UTF-8": ({PATH: "\udcff"}, f"{PATH}:1:", "UTF-8"),
    "a variant on another backend": (
        {"tests/hw/test_amd_x.py": IMPORT + GOOD}, "tests/hw/test_amd_x.py:2:", "test_x.py"),
    "a variant without the shared table": (
        {PATH: IMPORT + GOOD,
         "tests/hw/test_amd_x.py": IMPORT + 'register_rocm_ci(9, "mi300-4", labels=["fsdp"])'},
        "tests/hw/test_amd_x.py:2:", "share its case table"),
    "an original that keeps its variant's backend": (
        {PATH: IMPORT + 'register_rocm_ci(9, "mi300-4", labels=["fsdp"])',
         "tests/hw/test_amd_x.py": IMPORT + 'register_rocm_ci(9, "mi300-4", labels=["fsdp"])'},
        f"{PATH}:2:", "keep one"),
    "an expert grid that doesn't fit": (
        {PATH: IMPORT + GOOD + 'register_ci_cases(table="x_cases.py")',
         "tests/hw/x_cases.py": 'CASES = [Case(name="a", devices=8, tp=2, cp=2, pp=2, ep=4)]'},
        f"{PATH}:2:", 'at={4: {"ep": 2}}'),
    "a dense grid that doesn't divide": (
        {PATH: IMPORT + GOOD + 'register_ci_cases(table="x_cases.py")',
         "tests/hw/x_cases.py": 'CASES = [\n Case(name="a", devices=8, tp=3)]'},
        "tests/hw/x_cases.py:2:", "dense grid"),
    "tensor and pipeline shards that don't fit": (
        {PATH: IMPORT + GOOD + 'register_ci_cases(table="x_cases.py")',
         "tests/hw/x_cases.py": 'CASES = [Case(name="a", devices=8, tp=4, pp=2)]'},
        f"{PATH}:2:", "tp*pp = 4*2"),
    "a case that isn't a literal": (
        {PATH: IMPORT + GOOD + 'register_ci_cases(table="x_cases.py")',
         "tests/hw/x_cases.py": 'CASES = [Case(name="a", devices=2 * 4)]'},
        "tests/hw/x_cases.py:1:", "literal"),
}  # fmt: skip


@pytest.mark.parametrize("name", REPOSITORIES)
def test_a_hostile_repository_is_refused_with_file_line_and_reason(name, tmp_path):
    files, place, wanted = REPOSITORIES[name]
    files = dict(files)
    if name == "bytes that aren't UTF-8":
        (tmp_path / "tests/hw").mkdir(parents=True)
        (tmp_path / files.popitem()[0]).write_bytes(b"\xff")

    with pytest.raises(RegistrationError) as error:
        inventory(tmp_path, files)

    told = [line for line in str(error.value).splitlines() if line.startswith(place)]
    assert told, str(error.value)
    assert wanted in str(error.value)


def test_a_symbolic_link_is_no_test(tmp_path):
    (tmp_path / "tests/hw").mkdir(parents=True)
    (tmp_path / "outside.py").write_text(IMPORT + GOOD)
    (tmp_path / PATH).symlink_to(tmp_path / "outside.py")

    with pytest.raises(RegistrationError, match="symbolic link"):
        inventory(tmp_path, {})


def test_a_root_that_is_no_folder_is_refused(tmp_path):
    with pytest.raises(RegistrationError, match="names nowhere"):
        inventory(tmp_path, {}, toml=CI_TOML.replace('["tests"]', '["tests", "nowhere"]'))
