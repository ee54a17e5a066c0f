import ast

import pytest
from ci_repository import IMPORT, TODAY, inventory, repository
from hypothesis import given
from hypothesis import strategies as st

from parity.ci.case_table import load_cases, read_cases
from parity.ci.cases import Case
from parity.ci.registry.calls import CallReader
from parity.ci.registry.outline import outline
from parity.errors import ConfigError

NAMES = ["register_cuda_ci", "register_ci_gate"]
LINES = [
    'register_cuda_ci(60, "h100-4", labels=["fsdp"])',
    "from parity.ci.register import register_cuda_ci",
    "from parity.ci.register import (\n    register_cuda_ci,\n    register_ci_gate,\n)",
    "from parity.ci.register import register_cuda_ci as other",
    'register_cuda_ci(\n    60,  # a ")" in a comment\n    "h(100",\n)',
    "register_cuda_ci(1, 'a'); register_ci_gate(metric_key='m')",
    "x = '''\nregister_cuda_ci(1, 2)\n'''",
    'y = r"\\" + \'"\'  # register_cuda_ci(',
    "if x:\n    register_cuda_ci(1, 'a')",
    "z = [\nregister_cuda_ci(1, 'a'),\n]",
    "register_ci_gate(metric_key='m') \\\n    if x else None",
    "w = 1 + \\\nregister_cuda_ci(1, 'a')",
    'f = f"{x} register_cuda_ci {y}"',
    "@register_cuda_ci\ndef g():\n    '''register_ci_gate()'''",
    'h = """a"b""" + "#"',
    "m.register_cuda_ci(1, 'a')",
    "",
]


def outcome(text):
    reader = CallReader("tests/test_x.py", NAMES)
    return reader.read(ast.parse(text)), reader.problems


@given(st.lists(st.sampled_from(LINES), max_size=6))
def test_the_outline_says_what_the_whole_text_says(lines):
    text = "\n".join(lines) + "\n"

    short = outline(text)

    if short is not None:
        assert outcome(short) == outcome(text)


def test_the_outline_holds_only_what_registers():
    text = f'"""Doc."""\n{IMPORT}import torch\n\nregister_cuda_ci(\n    1,\n)\nx = 1\n'

    assert outline(text) == f"\n{IMPORT}\n\nregister_cuda_ci(\n    1,\n)"


def test_a_quote_inside_an_f_string_needs_the_whole_text():
    assert outline('x = f"{y["a"]}"\nregister_cuda_ci(1, "a")\n') is None


FILES = {
    "tests/unit/test_small.py": "def test_one(): ...\n",
    "tests/hw/test_step.py": IMPORT
    + 'register_cuda_ci(est_time=600, suite="h100-4", labels=["fsdp", "long"])\n'
    + 'register_npu_ci(900.5, "npu-8", labels=["fsdp"], nightly=True)\n'
    + 'register_ci_gate(metric_key="train/grad_norm", rel_up=0.5, backends=["cuda"])\n'
    + 'register_ci_cases(table="step_cases.py")\n',
    "tests/hw/test_amd_step.py": IMPORT
    + 'register_rocm_ci(60, "mi300-4", labels=["fsdp"], disabled={"reason": "hangs",'
    + ' "issue": "https://example.com/o/r/issues/7", "owner": "@a", "expires": "2026-06-01"})\n'
    + 'register_ci_cases(table="step_cases.py")\n',
    "tests/hw/step_cases.py": "from parity.ci.cases import Case\n"
    + 'CASES = [Case(name="a", devices=8, tp=2, cp=2, pp=2, ep=4, at={4: {"ep": 2}})]\n',
    ".venv/test_hidden.py": "",
}


def test_a_file_says_where_it_runs_on_several_backends(tmp_path):
    found = inventory(tmp_path, FILES)

    assert [file.path for file in found.files] == [
        "tests/hw/test_amd_step.py",
        "tests/hw/test_step.py",
        "tests/unit/test_small.py",
    ]
    cuda, npu = found.files[1].registrations
    assert (cuda.backend, cuda.suite, cuda.est_time_s) == ("cuda", "h100-4", 600.0)
    assert (cuda.labels, cuda.nightly, cuda.line) == (("fsdp", "long"), False, 2)
    assert (npu.est_time_s, npu.nightly) == (900.5, True)
    (gate,) = found.files[1].gates
    assert gate.applies_to("cuda")
    assert not gate.applies_to("npu")
    (small,) = found.files[2].registrations
    assert (small.suite, small.is_implicit) == ("cpu-fast", True)


def test_a_disabled_test_holds_through_its_last_day(tmp_path):
    off = inventory(tmp_path, FILES).files[0].registrations[0].disabled

    assert off is not None
    assert off.expires == TODAY


def test_nothing_is_imported_or_run(tmp_path):
    text = IMPORT + 'register_cpu_ci(1, "cpu-fast")\nopen("trace", "w")\nraise SystemExit(3)\n'

    assert len(inventory(tmp_path, {"tests/hw/test_x.py": text}).files) == 1
    assert not (tmp_path / "trace").exists()


def test_a_marked_name_outside_of_a_condition_is_no_branch(tmp_path):
    text = IMPORT + 'register_cpu_ci(1, "cpu-fast")\nprint(torch.version.hip)\n'

    assert len(inventory(tmp_path, {"tests/hw/test_x.py": text}).files) == 1


def test_excluded_folders_are_not_searched(tmp_path):
    toml = (repository(tmp_path, {}).path).read_text()
    toml = toml.replace("[project]", '[project]\nexclude = ["vendor/**"]', 1)

    assert not inventory(tmp_path, {"vendor/a/test_x.py": ""}, toml=toml).files


def test_a_folder_of_tests_may_be_called_as_tools_call_theirs(tmp_path):
    text = IMPORT + 'register_cpu_ci(1, "cpu-fast")\n'
    names = ["tests/hw/dist/test_x.py", "tests/hw/build/test_x.py"]

    found = inventory(tmp_path, {**dict.fromkeys(names, text), "dist/test_y.py": ""}).files
    assert sorted(file.path for file in found) == sorted(names)


def test_a_case_gives_up_data_then_context_parallel_size():
    case = Case(name="a", devices=8, tp=2, pp=1, cp=2)
    assert case.dp == 2

    four = case.fit(4)
    assert (four.devices, four.tp, four.pp, four.cp, four.dp) == (4, 2, 1, 2, 1)
    two = case.fit(2)
    assert (two.tp, two.pp, two.cp, two.dp) == (2, 1, 1, 1)


def test_a_case_keeps_tensor_and_pipeline_shards():
    case = Case(name="a", devices=8, tp=2, pp=2, cp=2)

    four = case.fit(4)

    assert (four.tp, four.pp, four.cp, four.dp) == (2, 2, 1, 1)
    with pytest.raises(ConfigError, match="tp\\*pp"):
        case.fit(2)


def test_an_expert_grid_that_fits_eight_devices_may_not_fit_four():
    case = Case(name="a", devices=8, tp=2, pp=2, cp=2, ep=4)

    with pytest.raises(ConfigError, match=r'at=\{4: \{"ep": 2\}\}'):
        case.fit(4)
    assert Case(name="a", devices=8, tp=2, pp=2, ep=4, at={4: {"ep": 2}}).fit(4).ep == 2


def test_a_case_doesnt_grow():
    case = Case(name="a", devices=4, tp=2)

    assert case.fit(8) == case


sizes = st.sampled_from([1, 2, 3, 4, 8])


@given(tp=sizes, cp=sizes, pp=sizes, ep=sizes, etp=sizes, devices=sizes, fewer=sizes)
def test_a_fitted_case_divides_its_world_or_is_refused(tp, cp, pp, ep, etp, devices, fewer):
    try:
        case = Case(name="a", devices=devices, tp=tp, cp=cp, pp=pp, ep=ep, etp=etp)
        fitted = case.fit(fewer)
    except ConfigError:
        return

    assert fitted.devices <= max(fewer, devices)
    assert fitted.devices % (fitted.tp * fitted.cp * fitted.pp) == 0
    assert fitted.devices % (fitted.etp * fitted.ep * fitted.pp) == 0
    assert fitted.tp * fitted.cp * fitted.pp * fitted.dp == fitted.devices
    assert (fitted.tp, fitted.pp, fitted.ep, fitted.etp) == (tp, pp, ep, etp)
    assert cp % fitted.cp == 0


def test_tests_read_the_same_table_as_the_plan(tmp_path):
    repository(tmp_path, FILES)

    (case,) = load_cases(tmp_path / "tests/hw/step_cases.py", devices=4)

    assert (case.devices, case.ep, case.cp) == (4, 2, 1)


@pytest.mark.parametrize(
    "text",
    ["", "CASES = []", "CASES = make()", "CASES = [Case('a', devices=8)]", "CASES = [Case(**x)]",
     "CASES = [Case(name='a')]", "CASES = [Case(name='a', devices=True)]",
     "CASES = [Case(name='a', devices=8, xp=1)]", "CASES = [Case(name='a', devices=8, at=1)]",
     "CASES = [Case(name='a', devices=8, at={4: {'xp': 1}})]", "CASES = [Case(name='a', devices=0)]",  # noqa: E501
     "CASES = [Case(name='a', devices=8), Case(name='a', devices=8)]", "CASES = [",
     "CASES = [case(name='a', devices=8)]"],
)  # fmt: skip
def test_a_wrong_case_table_is_refused_with_its_line(text):
    with pytest.raises(ConfigError, match=r"^cases\.py:1: "):
        read_cases(text, "cases.py")
