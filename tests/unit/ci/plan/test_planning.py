import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from ci_repository import CI_TOML, IMPORT, inventory, repository

from parity.ci.docs import with_tables
from parity.ci.loading import load_config
from parity.ci.model import Event
from parity.ci.plan.encode import as_text, job_outputs, to_json
from parity.ci.plan.planning import Request, make_plan
from parity.ci.policy.changes import Changes
from parity.ci.policy.select import Asked
from parity.cli.main import main
from parity.errors import ConfigError

FILES = {
    f"tests/hw/test_{at:02}.py": IMPORT
    + f'register_cuda_ci({100 + at}, "h100-4", labels=["fsdp"])\n'
    + 'register_ci_gate(metric_key="train/grad_norm")\n'
    for at in range(12)
} | {
    "tests/unit/test_small.py": "",
    "tests/hw/test_long.py": IMPORT
    + 'register_rocm_ci(4000, "mi300-4", labels=["long"])\n'
    + 'register_ci_cases(table="long_cases.py")\n',
    "tests/hw/long_cases.py": 'CASES = [Case(name="a", devices=8, tp=2, cp=2)]\n',
}
ALL = Request(Event("workflow_dispatch"))


def plan(tmp_path, request=ALL, *, files=FILES, toml=CI_TOML):
    found = inventory(tmp_path, files, toml=toml)
    return make_plan(request, load_config(tmp_path), found)


def test_every_registration_is_planned_once_or_skipped_with_a_reason(tmp_path):
    found = inventory(tmp_path, FILES)
    made = plan(tmp_path, Request(Event("pull_request", labels=("run-ci-long",))))

    told = Counter(test.registration.test_id for test in made.tests)
    told.update(skipped.registration.test_id for skipped in made.skipped)
    assert told == Counter(each.test_id for each in found.registrations)
    assert all(skipped.reason.text for skipped in made.skipped)


def test_a_plan_carries_timeouts_gates_and_fitted_cases(tmp_path):
    made = plan(tmp_path)

    long = made.suite("mi300-4").tests[0]
    assert long.timeout_s == 1.25 * 4000
    assert [(case.devices, case.cp, case.dp) for case in long.cases] == [(4, 2, 1)]
    short = made.suite("h100-4").tests[0]
    assert short.timeout_s == 1800
    assert [gate.metric_key for gate in short.gates] == ["train/grad_norm"]


def test_equal_input_gives_equal_text_whatever_lies_around(tmp_path):
    texts = set()
    for name, order in (("a", list(FILES)), ("b", list(FILES)[::-1])):
        root = tmp_path / name
        root.mkdir()
        made = plan(root, files={path: FILES[path] for path in order})
        texts.add(to_json(made, load_config(root)))

    assert len(texts) == 1


def test_shards_are_balanced(tmp_path):
    loads = [shard.est_time_s for shard in plan(tmp_path).suite("h100-4").shards]

    assert sum(loads) == sum(range(100, 112))
    assert max(loads) - min(loads) <= 1


def test_a_suite_can_be_spread_over_other_shards(tmp_path):
    made = plan(tmp_path, replace(ALL, asked=Asked(suite="h100-4"), shard_count=5))

    assert [suite.suite for suite in made.suites] == ["h100-4"]
    assert len(made.suites[0].shards) == 5


def test_a_rerun_of_one_file_takes_one_shard(tmp_path):
    made = plan(tmp_path, replace(ALL, asked=Asked(files=["tests/hw/test_03.py"])))

    assert [test.path for test in made.tests] == ["tests/hw/test_03.py"]
    assert len(made.suites[0].shards) == 1
    assert not [each for each in made.warnings if "nothing to run" in each]


REFUSED = {
    "backend": (Asked(backend="cudo"), None, "'cuda'?"),
    "suite": (Asked(suite="h100-8"), None, "'h100-4'?"),
    "suite of another backend": (Asked(backend="cuda", suite="mi300-4"), None, "is of rocm"),
    "file": (Asked(files=["tests/hw/test_3.py"]), None, "no registered test"),
    "shards without a suite": (Asked(), 3, "with --suite"),
    "no shards": (Asked(suite="h100-4"), 0, ">= 1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_nobody_knows_is_refused(name, tmp_path):
    asked, shard_count, wanted = REFUSED[name]

    with pytest.raises(ConfigError, match=wanted.replace("?", r"\?")):
        plan(tmp_path, Request(Event("push"), asked=asked, shard_count=shard_count))


def test_unknown_changes_prune_nothing_and_are_warned_of(tmp_path):
    unknown = Changes(None, "the list is broken")

    made = plan(tmp_path, Request(Event("pull_request"), changes=unknown))

    assert made.tests
    assert "nothing is pruned: the list is broken." in made.warnings


def test_placeholder_estimates_and_empty_shards_are_warned_of(tmp_path):
    files = {
        f"tests/hw/test_{at}.py": IMPORT + 'register_npu_ci(600, "npu-8", labels=["fsdp"])'
        for at in range(3)
    }
    toml = CI_TOML.replace('"8npu"]', '"8npu"]\nshards = 4')

    warnings = " ".join(plan(tmp_path, files=files, toml=toml).warnings)

    assert "npu-8: 3 tests have the same estimate" in warnings
    made = plan(tmp_path, Request(Event("push", cadence="weekly")), files=files, toml=toml)
    assert "npu-8 has 3 tests for 4 shards; 1 of them" in " ".join(made.warnings)


def test_later_jobs_hear_of_suites_and_of_no_foreign_label(tmp_path):
    labels = ("run-ci-fsdp", "bypass-fail-fast", "bug\nsuites=[]")
    made = plan(tmp_path, Request(Event("pull_request", labels=labels)))

    outputs = job_outputs(made, load_config(tmp_path))

    assert json.loads(outputs["suites"]) == ["cpu-fast", "h100-4"]
    assert json.loads(outputs["labels"]) == ["bypass-fail-fast", "run-ci-fsdp"]
    assert outputs["fail_fast"] == "false"
    assert not any("\n" in value for value in outputs.values())


def test_the_text_shows_what_runs_and_why_the_rest_does_not(tmp_path):
    text = as_text(plan(tmp_path, Request(Event("pull_request"))), load_config(tmp_path))

    assert "tests/unit/test_small.py" in text
    assert "not run, labels: 13" in text
    assert "h100-4): none of its labels (fsdp) is in scope" in text


def test_the_command_prints_a_plan_and_writes_outputs(tmp_path, capsys):
    repository(tmp_path, FILES)
    changes = tmp_path / "changes"
    changes.write_bytes(b"M\0docs/a.md\0")
    words = ["ci", "plan", "--root", str(tmp_path), "--today", "2026-06-01", "--json"]
    words += ["--labels", '["run-ci-long", "bug"]', "--schedule", "", "--cadence", ""]
    words += ["--event", "pull_request", "--changed", str(changes)]

    assert main([*words, "--output", str(tmp_path / "out")]) == 0

    document = json.loads(capsys.readouterr().out)
    assert [suite["suite"] for suite in document["suites"]] == ["mi300-4"]
    assert document["policy"]["ignored"] == ["bug"]
    assert document["num_planned"] + document["num_skipped"] == 14
    assert 'suites=["mi300-4"]' in (tmp_path / "out").read_text()


def test_the_command_names_every_problem_and_fails(tmp_path, capsys):
    repository(tmp_path, {"tests/hw/test_a.py": "", "tests/hw/test_b.py": ""})

    assert main(["ci", "plan", "--root", str(tmp_path)]) == 2

    told = capsys.readouterr().err
    assert "tests/hw/test_a.py:1: has no registration" in told
    assert "tests/hw/test_b.py:1: has no registration" in told


@pytest.mark.parametrize(
    "words",
    [["--event", "nonsense"], ["--labels", "[1]"], ["--labels", "[bug"], ["--today", "today"],
     ["--file", "nowhere.py"], ["--suite", "x"], ["--shard-count", "2"]],
)  # fmt: skip
def test_a_wrong_option_is_refused(words, tmp_path, capsys):
    repository(tmp_path, {})

    assert main(["ci", "plan", "--root", str(tmp_path), *words]) == 2
    assert capsys.readouterr().err.startswith("parity: ")


def test_a_file_is_found_by_any_of_its_paths(tmp_path, capsys, monkeypatch):
    repository(tmp_path, FILES)
    monkeypatch.chdir(tmp_path / "tests")
    for path in (
        "hw/test_long.py",
        "tests/hw/test_long.py",
        str(tmp_path / "tests/hw/test_long.py"),
    ):
        assert main(["ci", "plan", "--root", "..", "--json", "--file", path]) == 0
        assert json.loads(capsys.readouterr().out)["num_planned"] == 1


def test_the_list_shows_every_registration(tmp_path, capsys):
    repository(tmp_path, FILES)

    assert main(["ci", "list", "--root", str(tmp_path), "--json", "--backend", "cuda"]) == 0

    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(rows) == 12
    assert rows[0]["gates"] == ["train/grad_norm"]
    assert main(["ci", "list", "--root", str(tmp_path), "--suite", "none"]) == 2


def test_audited_times_propose_and_write_literals(tmp_path, capsys):
    repository(tmp_path, FILES)
    row = {"path": "tests/hw/test_05.py", "backend": "cuda", "suite": "h100-4", "time_s": 1000}
    times = tmp_path / "times.jsonl"
    times.write_text(json.dumps(row))
    words = ["ci", "audit-times", str(times), "--root", str(tmp_path)]

    assert main(words) == 1
    assert "test_05.py:2: est_time 105 -> 1140" in capsys.readouterr().out
    assert main([*words, "--write"]) == 0
    assert main(words) == 0
    assert "register_cuda_ci(1140," in (tmp_path / "tests/hw/test_05.py").read_text()


PAGE = "# Page\n\n<!-- ci.toml: suites -->\nold\n<!-- ci.toml: end -->\n\nText.\n"


def test_tables_of_a_page_come_from_the_data_file(tmp_path, capsys):
    repository(tmp_path, {})
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    words = ["ci", "docs", str(page), "--root", str(tmp_path)]

    assert main([*words, "--check"]) == 1
    assert main(words) == 0
    assert main([*words, "--check"]) == 0

    text = page.read_text()
    assert "| `mi300-4` | 4 x MI300X | rocm | 4 |" in text
    assert text.endswith("<!-- ci.toml: end -->\n\nText.\n")
    assert "old" not in text
    capsys.readouterr()


@pytest.mark.parametrize("kind", ["suites", "labels", "cadences", "scopes", "events"])
def test_every_kind_of_table_has_rows(kind, tmp_path):
    config = repository(tmp_path, {})

    table = with_tables(PAGE.replace("suites", kind), config, name="page.md")

    lines = [line for line in table.splitlines() if line.startswith("|")]
    assert len(lines) > 4
    assert len({line.count("|") for line in lines}) == 1


@pytest.mark.parametrize("page", ["no block", PAGE.replace("suites", "nothing"),
                                  PAGE.replace("<!-- ci.toml: end -->", "")])  # fmt: skip
def test_a_page_without_a_sound_block_is_refused(page, tmp_path):
    with pytest.raises(ConfigError, match=r"page\.md"):
        with_tables(page, repository(tmp_path, {}), name="page.md")


def test_planning_loads_no_torch(tmp_path):
    repository(tmp_path, FILES)
    code = (
        "import sys; from parity.cli.main import main;"
        f" code = main(['ci', 'plan', '--root', {str(tmp_path)!r}, '--json']);"
        " assert not {'torch', 'numpy', 'transformers', 'ray', 'hydra'} & set(sys.modules);"
        " sys.exit(code)"
    )

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[4] / "src")},
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
