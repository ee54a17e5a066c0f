"""A shard of small scripts, each ending in its own way: everything is told as it was."""

import io
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import psutil
import pytest
from unit.ci.gates.cases import run as history_run

from parity.ci.gates.gate import GateSettings
from parity.ci.gates.history import Measured, Run, Series
from parity.ci.gates.judge import Judge
from parity.ci.gates.sql import SqlHistory
from parity.ci.gates.stores import open_history
from parity.ci.model import GateRegistration, PlannedTest, Reason, Registration, Skipped, Why
from parity.ci.run.attempt import Lane
from parity.ci.run.processes import adopting_orphans, marked
from parity.ci.run.readiness import Baseline, Device
from parity.ci.run.report import junit, results, summary
from parity.ci.run.result import FileResult, Outcome, ShardResult
from parity.ci.run.settings import RunSettings
from parity.ci.run.shard import Rules, run_tests

RECORD = "from parity.ci.gates.record import record_metric\n"
SCRIPTS = {
    "pass": f"{RECORD}print('fine')\nrecord_metric('loss', 1.01)\n",
    "assertion": "print('Connection reset by peer')\nassert 0.31 < 0.3, 'loss too high'\n",
    "hang": (
        "import subprocess, time\n"
        "subprocess.Popen(['sleep', '603'], start_new_session=True)\n"
        "print('hanging', flush=True)\ntime.sleep(600)\n"
    ),
    "crash": "import ctypes\nprint('about to crash', flush=True)\nctypes.string_at(0)\n",
    "infrastructure": (
        "from pathlib import Path\n"
        "if not Path('tried').exists():\n"
        "    Path('tried').touch()\n"
        "    raise ConnectionError('Connection reset by peer')\n"
        "print('second time')\n"
    ),
    "gate": f"{RECORD}record_metric('loss', 9.0)\n",
    "daemon": (
        "import subprocess\n"
        "subprocess.Popen(['sleep', '604'], start_new_session=True)\nprint('left one')\n"
    ),
}
GATE = GateRegistration(
    "x", 1, "loss", rel_up=0.5, abs_up=0.1, rel_down=0.5, abs_down=0.1, mode="enforced"
)


def planned(root: Path, name: str, *gates: GateRegistration, timeout_s: float = 60) -> PlannedTest:
    path = f"tests/test_{name}.py"
    (root / path).parent.mkdir(exist_ok=True)
    (root / path).write_text(SCRIPTS[name])
    return PlannedTest(Registration(path, 1, "cpu", "fast", 1.0), timeout_s, gates)


@pytest.fixture
def history(tmp_path: Path) -> SqlHistory:
    """Three trusted values of `loss` of every script."""
    found = open_history(str(tmp_path / "history.db"))
    for number in range(3):
        series = [Series(f"tests/test_{n}.py", "cpu", "fast", "loss", "last") for n in SCRIPTS]
        values = [Measured(each, 1.0, "pass", is_trusted=True) for each in series]
        found.write(history_run(number), values, [])
    return found


@pytest.fixture
def lane(tmp_path: Path, history: SqlHistory) -> Iterator[Lane]:
    patterns = {"lost connection": re.compile("Connection reset by peer")}
    found = Lane(
        root=tmp_path,
        output_dir=tmp_path / "out",
        command=["{python}", "{file}"],
        variables={},
        marker=f"test-shard-{time.monotonic_ns()}",
        settings=RunSettings(infrastructure=patterns, retry_wait_s=0.01),
        gates=GateSettings(),
        judge=Judge(history, limit=20, least=3),
        live=io.StringIO(),
        retries=1,
    )
    with adopting_orphans() as adopts:
        assert adopts
        yield found


ALL = Rules(continue_on_error=True)


def shard_of(files: list[FileResult], trouble: str | None = None, **values: object) -> ShardResult:
    return ShardResult("cpu", "fast", 0, 2, tuple(files), (), trouble=trouble, **values)  # pyright: ignore


def test_each_end_is_told_truthfully_and_nothing_survives(lane: Lane) -> None:
    tests = [
        planned(lane.root, name, *((GATE,) if name in ("pass", "gate") else ()),
                timeout_s=1.5 if name == "hang" else 60)
        for name in SCRIPTS
    ]  # fmt: skip
    files, trouble = run_tests(tests, lane, ALL, baseline=None)
    assert trouble is None
    assert {f.path.removeprefix("tests/test_")[:-3]: f.outcome for f in files} == {
        "pass": Outcome.PASS,
        "assertion": Outcome.FAIL,
        "hang": Outcome.TIMEOUT,
        "crash": Outcome.CRASHED,
        "infrastructure": Outcome.PASS,
        "gate": Outcome.GATE,
        "daemon": Outcome.PASS,
    }
    by_name = {f.path.removeprefix("tests/test_")[:-3]: f for f in files}
    assert by_name["crash"].attempts[0].signal == "SIGSEGV"
    assert len(by_name["assertion"].attempts) == 1, "an assertion is never retried"
    assert len(by_name["gate"].attempts) == 1, "a gate failure is never retried"
    assert "AssertionError: loss too high" in by_name["assertion"].reason
    assert "9 is outside 0.5 to 1.5" in by_name["gate"].reason
    flaky = by_name["infrastructure"]
    assert flaky.is_flaky
    assert [a.outcome for a in flaky.attempts] == [Outcome.INFRASTRUCTURE, Outcome.PASS]
    assert "sleep 604" in by_name["daemon"].attempts[0].leftovers[0]
    assert not list(marked(lane.marker))
    sleeps = [p.info["cmdline"] for p in psutil.process_iter(["cmdline"])]
    assert ["sleep", "603"] not in sleeps
    assert ["sleep", "604"] not in sleeps

    shard = shard_of(files)
    assert shard.exit_code == 1
    assert shard.flake_rate == pytest.approx(1 / 3)
    check_reports(shard, lane)


def check_reports(shard: ShardResult, lane: Lane) -> None:
    junit.write(shard, lane.output_dir / "junit.xml")
    suite = ET.parse(lane.output_dir / "junit.xml").getroot().find("testsuite")
    assert suite is not None
    counts = {key: suite.get(key) for key in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": "7", "failures": "2", "errors": "2", "skipped": "0"}
    kinds = {
        str(case.get("name"))[11:-3]: [child.tag for child in case if child.tag != "system-out"]
        for case in suite
    }
    assert kinds == {
        "pass": [],
        "assertion": ["failure"],
        "hang": ["error"],
        "crash": ["error"],
        "infrastructure": ["flakyError"],
        "gate": ["failure"],
        "daemon": [],
    }
    text = summary.summary(shard)
    assert text.startswith("### Failed: fast on cpu, shard 1 of 2")
    for said in (
        "3 pass, 1 fail, 1 timeout, 1 crashed by signal, 1 gate failure",
        "**1 passed only after a retry** (33% of the passes)",
        "`pass after a retry`",
        "| `tests/test_gate.py loss` | `last` | `enforced` | `out of band` | `9` | `0.5 .. 1.5` |",
        "`left behind: pid ",
        "    AssertionError: loss too high",
    ):
        assert said in text
    row = results.as_json(shard)
    assert row["exit_code"] == 1
    live = lane.live
    assert isinstance(live, io.StringIO)
    assert live.getvalue().count("::group::") == live.getvalue().count("::endgroup::") == 8


def test_a_failure_ends_the_shard_and_the_rest_says_why_it_didn_t_run(lane: Lane) -> None:
    tests = [planned(lane.root, name) for name in ("assertion", "pass")]
    files, _ = run_tests(tests, lane, Rules(continue_on_error=False), baseline=None)
    assert [f.outcome for f in files] == [Outcome.FAIL, Outcome.NOT_RUN]
    assert "tests/test_assertion.py ended before it (fail)" in files[1].reason
    assert shard_of(files).exit_code == 1


def test_without_retries_an_infrastructure_failure_stays_one(lane: Lane) -> None:
    tests = [planned(lane.root, "infrastructure")]
    files, _ = run_tests(tests, replace(lane, retries=0), ALL, baseline=None)
    assert [f.outcome for f in files] == [Outcome.INFRASTRUCTURE]
    assert files[0].attempts[0].cause == "lost connection"
    assert shard_of(files).exit_code == 75


def test_retries_end_and_every_attempt_is_kept(lane: Lane) -> None:
    SCRIPTS["always"] = "raise SystemExit(75)\n"
    try:
        test = planned(lane.root, "always")
    finally:
        del SCRIPTS["always"]
    files, _ = run_tests([test], replace(lane, retries=2), ALL, baseline=None)
    assert [a.outcome for a in files[0].attempts] == [Outcome.INFRASTRUCTURE] * 3
    assert not files[0].is_flaky


def test_a_shard_that_is_out_of_time_runs_nothing_more_and_fails(lane: Lane) -> None:
    tests = [planned(lane.root, name) for name in ("pass", "daemon")]
    files, trouble = run_tests(
        tests, lane, Rules(continue_on_error=True, timeout_s=0.5), baseline=None
    )
    assert [f.outcome for f in files] == [Outcome.NOT_RUN] * 2
    assert "0.5 s are over" in str(trouble)
    assert shard_of(files, trouble).exit_code == 75


def test_a_missing_program_is_infrastructure_and_isn_t_retried(lane: Lane) -> None:
    broken = replace(lane, command=["no-such-program", "{file}"])
    files, _ = run_tests([planned(lane.root, "pass")], broken, ALL, baseline=None)
    assert files[0].outcome is Outcome.INFRASTRUCTURE
    assert len(files[0].attempts) == 1
    assert "no-such-program can't be started" in files[0].reason


def test_a_gate_in_shadow_and_an_unreadable_record_fail_nothing_and_are_shown(lane: Lane) -> None:
    shadow = replace(GATE, mode="shadow")
    SCRIPTS["garbage"] = "import os\nopen(os.environ['PARITY_CI_METRICS'], 'w').write('garbage')\n"
    try:
        tests = [planned(lane.root, "gate", shadow), planned(lane.root, "garbage", shadow, GATE)]
    finally:
        del SCRIPTS["garbage"]
    files, _ = run_tests(tests, lane, ALL, baseline=None)
    assert [f.outcome for f in files] == [Outcome.PASS, Outcome.GATE]
    assert files[0].judgements[0].verdict == "out of band"
    assert [j.verdict for j in files[1].judgements] == ["unreadable record"] * 2


def test_only_the_record_of_the_passing_attempt_is_judged(lane: Lane) -> None:
    SCRIPTS["twice"] = (
        f"{RECORD}from pathlib import Path\nfirst = not Path('was').exists()\nPath('was').touch()\n"
        "record_metric('loss', 50.0 if first else 1.0)\nraise SystemExit(75 if first else 0)\n"
    )
    try:
        test = planned(lane.root, "twice", GATE)
    finally:
        del SCRIPTS["twice"]
    lane = replace(lane, judge=Judge(None, limit=20, least=3))
    files, _ = run_tests([test], lane, ALL, baseline=None)
    assert files[0].judgements[0].value == 1.0


class Leaky:
    """A device whose memory never comes back."""

    def devices(self) -> list[Device]:
        return [Device(0, "gpu-0", 50 * 1024**3, 80 * 1024**3, None)]

    def variables(self, indices: object) -> Mapping[str, str]:
        return {}


def test_memory_that_doesn_t_come_back_ends_the_shard(lane: Lane) -> None:
    before = [Device(0, "gpu-0", 0, 80 * 1024**3, None)]
    baseline = Baseline(Leaky(), before, tolerance_mib=100)
    lane = replace(lane, settings=replace(lane.settings, memory_settle_s=0.0))
    tests = [planned(lane.root, name) for name in ("pass", "daemon")]
    files, trouble = run_tests(tests, lane, ALL, baseline=baseline)
    assert [f.outcome for f in files] == [Outcome.PASS, Outcome.NOT_RUN]
    assert "device 0 holds 51200 MiB more than before the test tests/test_pass.py" in str(trouble)
    assert shard_of(files, trouble).exit_code == 75


def interrupting(lane: Lane) -> Callable[[float], None]:
    def pause(_: float) -> None:
        raise KeyboardInterrupt

    return pause


def test_when_told_to_stop_every_test_is_still_accounted_for(lane: Lane) -> None:
    lane = replace(lane, pause=interrupting(lane))
    tests = [planned(lane.root, name) for name in ("pass", "infrastructure", "daemon")]
    files, trouble = run_tests(tests, lane, ALL, baseline=None)
    assert [f.outcome for f in files] == [Outcome.PASS, Outcome.CANCELLED, Outcome.NOT_RUN]
    assert shard_of(files, trouble).exit_code == 130


def skip(path: str) -> Skipped:
    return Skipped(Registration(path, 1, "cpu", "fast", 1.0), Reason(Why.LABELS, "no label"))


def test_nothing_ran_is_a_failure_unless_every_reason_is_stated() -> None:
    nothing = ShardResult("cpu", "fast", 0, 1, (), ())
    assert nothing.exit_code == 3
    assert "no test is registered for the suite 'fast'" in summary.summary(nothing)
    assert replace(nothing, skipped=(skip("a.py"),)).exit_code == 0
    assert replace(nothing, allow_empty="no such tests yet").exit_code == 0
    file = FileResult("a.py", 1.0, 1.0, Outcome.SKIPPED, "all 2 tests in it skipped themselves")
    only_skips = replace(nothing, files=(file,))
    assert only_skips.exit_code == 3
    assert only_skips.flake_rate is None


def test_a_test_cannot_give_the_ci_service_commands(lane: Lane) -> None:
    SCRIPTS["commands"] = "print('::set-output name=x::y')\n"
    try:
        test = planned(lane.root, "commands")
    finally:
        del SCRIPTS["commands"]
    run_tests([test], lane, ALL, baseline=None)
    assert isinstance(lane.live, io.StringIO)
    lines = lane.live.getvalue().splitlines()
    token = next(line for line in lines if line.startswith("::stop-commands::"))[17:]
    assert lines.index(f"::stop-commands::{token}") < lines.index("::set-output name=x::y")
    assert lines.index("::set-output name=x::y") < lines.index(f"::{token}::")


def test_a_hostile_name_or_reason_stays_text_in_every_report(tmp_path: Path) -> None:
    file = FileResult("a.py", 1.0, 1.0, Outcome.FAIL, "x | `y` <b>\x1b[31m ]]> @everyone\nline 2")
    shard = shard_of([file], trouble="\x00bad")
    junit.write(shard, tmp_path / "junit.xml")
    assert "line 2" in (tmp_path / "junit.xml").read_text()
    ET.parse(tmp_path / "junit.xml")
    rows = [line for line in summary.summary(shard).splitlines() if line.startswith("| `a.py`")]
    assert len(rows) == 1
    assert rows[0].count("|") == 7
    results.write(shard, tmp_path / "results.json")


def test_the_run_leaves_no_module_of_torch(tmp_path: Path) -> None:
    import subprocess

    code = (
        "import sys, parity.ci.run.shard, parity.ci.run.telemetry, parity.ci.gates.stores\n"
        "import parity.ci.run.report.junit, parity.ci.gates.explain\n"
        "assert 'torch' not in sys.modules and 'psycopg' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_runs_of_the_history_have_unique_keys() -> None:
    one = history_run(1)
    assert isinstance(one, Run)
    assert one.key == "run-1/fast/0"
