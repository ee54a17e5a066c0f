"""`parity ci run` and `parity ci gate` on a repository of their own, as a user starts them."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree as ET

import psutil
import pytest

from parity.cli.main import main

CI = """
schema = 1
[project]
roots = ["checks"]
[backends.cpu]
description = "any machine, with pytest"
accelerator = false
command = ["{python}", "-m", "pytest", "-q", "-p", "no:cacheprovider", "{file}"]
env = { PYTEST_DISABLE_PLUGIN_AUTOLOAD = "1" }
[suites.small]
description = "small scripts"
backend = "cpu"
runner = ["any"]
timeout_s = 20
job_timeout_minutes = 10
[suites.idle]
description = "nothing is registered here"
backend = "cpu"
runner = ["any"]
timeout_s = 20
job_timeout_minutes = 10
[labels]
rare = "only when asked for"
[scopes.none]
rank = 0
[cadences.regular]
[cadences.nightly]
cron = ["0 2 * * *"]
fail_fast = false
writes_history = true
[events.push]
cadence = "regular"
scope = "none"
[events.schedule]
scope = "none"
writes_history = true
[run]
retry_wait_s = 0.1
[run.infrastructure]
"lost connection" = "Connection reset by peer"
[gates]
min_history = 2
[gates.defaults."train/loss"]
rel_up = 0.5
abs_up = 0.1
rel_down = 0.5
abs_down = 0.1
"""
# For tests of which the runner doesn't matter: a script starts in a third of pytest's time.
PYTEST = '["{python}", "-m", "pytest", "-q", "-p", "no:cacheprovider", "{file}"]'
SCRIPT = '["{python}", "{file}"]'
HEAD = "from parity.ci.register import register_ci_gate, register_cpu_ci\n"
CALL = "register_cpu_ci(est_time={est}, suite='small'{more})\n"
GATE = "register_ci_gate(metric_key='train/loss', mode='enforced', hard_max=5.0)\n"
TESTS = {
    "pass": (1, "def test_a(): pass\ndef test_b(): pass\n"),
    "assertion": (2, "def test_a():\n    loss = 0.31\n    assert loss < 0.3\n"),
    "hang": (
        1.0,
        "import subprocess, time\ndef test_a():\n"
        "    subprocess.Popen(['sleep', '607'], start_new_session=True)\n    time.sleep(600)\n",
    ),
    "crash": (3, "import ctypes\ndef test_a(): ctypes.string_at(0)\n"),
    "infrastructure": (
        4,
        "from pathlib import Path\ndef test_a():\n    seen = Path(__file__ + '.seen')\n"
        "    if not seen.exists():\n        seen.touch()\n"
        "        raise ConnectionError('Connection reset by peer')\n",
    ),
    "gate": (
        5,
        GATE + "from pathlib import Path\nfrom parity.ci.gates.record import record_metric\n"
        "def test_a():\n"
        "    value = float(Path('loss.txt').read_text())\n"
        "    assert record_metric('train/loss', value, step=1)\n",
    ),
    "empty": (6, "def helper(): pass\n"),
}  # fmt: skip


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    leases = f'[run]\nlease_dir = "{tmp_path}/leases"'
    (tmp_path / "ci.toml").write_text(CI.replace("[run]", leases))
    (tmp_path / "checks").mkdir()
    (tmp_path / "loss.txt").write_text("1.0")
    for name, (est, body) in TESTS.items():
        more = ", labels=['rare']" if name == "hang" else ""
        text = HEAD + CALL.format(est=est, more=more) + body
        (tmp_path / "checks" / f"test_{name}.py").write_text(text)
    return tmp_path


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "parity.cli.main", "ci", *words]


def variables() -> dict[str, str]:
    """Ours, without what a CI service or another run has set."""
    dropped = ("GITHUB_", "PARITY_CI_", "PYTEST_")
    return {k: v for k, v in os.environ.items() if not k.startswith(dropped)}


def parity(root: Path, *words: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*words),
        cwd=root,
        env=variables(),
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


def scripts(root: Path) -> None:
    """Run the tests of the repository as plain scripts."""
    text = (root / "ci.toml").read_text()
    assert PYTEST in text
    (root / "ci.toml").write_text(text.replace(PYTEST, SCRIPT))
    for path in root.glob("*/test_*.py"):
        path.write_text(f"{path.read_text()}\ntest_a()\n")


class Here:
    """The same command in this process, which saves its start."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root, self._capsys = root, capsys

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        self._capsys.readouterr()
        code = main(["ci", *words])
        captured = self._capsys.readouterr()
        return subprocess.CompletedProcess(words, code, captured.out, captured.err)


@pytest.fixture
def here(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Here:
    for name in set(os.environ) - set(variables()):
        monkeypatch.delenv(name)
    monkeypatch.chdir(repository)
    return Here(repository, capsys)


def outcomes(root: Path) -> dict[str, str]:
    row = json.loads((root / "ci-results" / "results.json").read_text())
    return {file["path"][12:-3]: file["outcome"] for file in row["files"]}


def test_a_shard_with_every_kind_of_end_is_reported_truthfully(repository: Path) -> None:
    words = ["run", "--suite", "small", "--match-all", "--continue-on-error", "--timeout", "8"]
    done = parity(repository, *words, "--groups", "--summary", "summary.md")
    assert done.returncode == 1, done.stdout + done.stderr
    assert outcomes(repository) == {
        "pass": "pass",
        "assertion": "fail",
        "hang": "timeout",
        "crash": "crashed by signal",
        "infrastructure": "pass",
        "gate": "pass",
        "empty": "fail",
    }
    row = json.loads((repository / "ci-results" / "results.json").read_text())
    files = {file["path"][12:-3]: file for file in row["files"]}
    assert files["infrastructure"]["is_flaky"]
    assert [a["cause"] for a in files["infrastructure"]["attempts"]] == ["lost connection", None]
    assert files["pass"]["attempts"][0]["counts"]["num_passed"] == 2
    assert len(files["assertion"]["attempts"]) == 1
    assert files["gate"]["judgements"][0]["verdict"] == "no history"
    assert "no test ran" in files["empty"]["reason"]
    assert row["flake_rate"] == pytest.approx(1 / 3)
    suite = ET.parse(repository / "ci-results" / "junit.xml").getroot()[0]
    counts = [suite.get(key) for key in ("tests", "failures", "errors", "skipped")]
    assert counts == ["7", "2", "2", "0"]
    assert "### Failed: small on cpu, shard 1 of 1" in (repository / "summary.md").read_text()
    assert done.stdout.count("::group::") == 8
    left = [p.info["cmdline"] for p in psutil.process_iter(["cmdline"])]
    assert ["sleep", "607"] not in left


def test_nightly_runs_on_main_write_history_and_a_jump_fails_the_gate(here: Here) -> None:
    scripts(here.root)
    night = [
        *("run", "--suite", "small", "--file", "checks/test_gate.py", "--event", "schedule"),
        *("--cadence", "nightly", "--commit", "c1", "--history", "sqlite:///history.db"),
    ]

    def run(loss: float, run_id: str, branch: str = "main") -> subprocess.CompletedProcess[str]:
        (here.root / "loss.txt").write_text(str(loss))
        return here(*night, "--run-id", run_id, "--branch", branch)

    elsewhere = run(1.0, "0", branch="topic")
    assert "only main writes history" in elsewhere.stdout
    for number in (1, 2):
        done = run(1.0 + number / 100, str(number))
        assert done.returncode == 0, done.stdout + done.stderr
        assert "`new series`" in done.stdout
        assert "1 values were added to the history" in done.stdout
    assert "`pass` | `1.05`" in run(1.05, "3").stdout
    again = run(1.05, "3")
    assert again.returncode == 75
    assert "a run is stored once" in again.stdout
    jump = run(3.0, "4")
    assert jump.returncode == 1
    assert outcomes(here.root) == {"gate": "gate failure"}
    assert "`out of band`" in jump.stdout

    asked = ["gate", "--history", "sqlite:///history.db", "--file", "checks/test_gate.py"]
    explained = here(*asked, "--explain")
    assert explained.returncode == 1
    for said in ("verdict    out of band, enforced", "value      3\n", "median of 3 trusted values",
                 "o trusted", "hard bound none to 5"):  # fmt: skip
        assert said in explained.stdout, explained.stdout + explained.stderr
    record = "ci-results/files/checks/test_gate.py/attempt-1/metrics.jsonl"
    judged = here(*asked, "--record", record)
    assert (judged.returncode, "out of band (enforced)" in judged.stdout) == (1, True)
    store = ["gate", "--history", "sqlite:///history.db"]
    marked = here(*store, "--mark-untrusted", "--run", "3", "--reason", "bad node")
    assert "1 values are untrusted now." in marked.stdout, marked.stderr
    assert "median of 2 trusted" in here(*asked, "--explain").stdout
    assert "0.0%  0 of 3  checks/test_gate.py" in here(*store, "--flakes").stdout


def test_nothing_ran_is_a_failure_without_a_reason(here: Here) -> None:
    done = here("run", "--suite", "idle")
    assert done.returncode == 3
    assert "no test is registered for the suite 'idle'" in done.stdout
    stated = here("run", "--suite", "idle", "--allow-empty", "not yet")
    assert stated.returncode == 0
    many = ["--shard-id", "8", "--shard-count", "9"]
    beyond = here("run", "--suite", "small", *many)
    assert beyond.returncode == 0
    assert "are in other shards of 9" in beyond.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--suite", "small", "--shard-count", "2"], "--shard-count is given alone"),
        (["--suite", "small", "--shard-id", "0"], "--shard-id is given alone"),
        (["--suite", "small", "--shard-id", "2", "--shard-count", "2"], "must be 0 to 1"),
        (["--suite", "smal"], "small"),
        (["--suite", "small", "--cadence", "hourly"], "unknown to ci.toml"),
        (["--suite", "small", "--patch", "none"], "--patch none"),
    ],
)
def test_a_wrong_command_line_runs_nothing(here: Here, words: list[str], said: str) -> None:
    done = here("run", *words)
    assert done.returncode == 2, done.stdout + done.stderr
    assert said in done.stderr
    assert not (here.root / "ci-results").exists()


def test_the_shards_of_a_suite_are_disjoint_and_complete(here: Here) -> None:
    found: list[str] = []
    for shard in ("0", "1"):
        words = ["--shard-id", shard, "--shard-count", "2", "--list-only", "--json"]
        row = json.loads(here("run", "--suite", "small", *words).stdout)
        found += [test["path"][12:-3] for test in row["run"]]
        assert [s["path"] for s in row["skipped"]] == ["checks/test_hang.py"]
    assert sorted(found) == sorted(set(TESTS) - {"hang"})


def test_told_to_stop_it_kills_the_test_writes_its_reports_and_says_130(repository: Path) -> None:
    words = ["run", "--suite", "small", "--match-all", "--file", "checks/test_hang.py"]
    process = subprocess.Popen(command(*words), cwd=repository, env=variables(),
                               stdout=subprocess.PIPE, text=True)  # fmt: skip
    sleeps = sleeping_below(process.pid)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130, out
    assert outcomes(repository) == {"hang": "cancelled"}
    assert not any(sleep.is_running() for sleep in sleeps)


def test_what_a_killed_run_left_is_ended_by_the_next_one_and_told(repository: Path) -> None:
    words = ["run", "--suite", "small", "--match-all", "--file", "checks/test_hang.py"]
    process = subprocess.Popen(
        command(*words), cwd=repository, env=variables(), stdout=subprocess.DEVNULL
    )
    sleeps = sleeping_below(process.pid)
    below = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait(10)
    assert all(each.is_running() for each in sleeps)
    (repository / "ci-results").rename(repository / "first")
    done = parity(repository, "run", "--suite", "small", "--file", "checks/test_pass.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("left by a job that was killed") == len(below)
    dead = psutil.STATUS_ZOMBIE
    assert not any(each.is_running() and each.status() != dead for each in below)


def test_a_run_without_room_for_its_results_fails_in_one_sentence(repository: Path) -> None:
    words = command("run", "--suite", "small", "--file", "checks/test_pass.py")
    # 2,000 bytes: room for nothing of what is to be written; a full disk says the same.
    limited = f"ulimit -f 2; exec {shlex.join(words)}"
    done = subprocess.run(
        ["bash", "-c", limited],
        cwd=repository,
        env={**variables(), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode in (1, 75), done.stdout + done.stderr
    assert "can't be written" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_a_test_that_removes_the_results_takes_none_from_the_others(here: Here) -> None:
    source = HEAD + CALL.format(est=1, more="") + "import shutil\n"
    source += "def test_a(): shutil.rmtree('ci-results')\n"
    (here.root / "checks" / "test_gate.py").write_text(source)
    files = ["--file", "checks/test_gate.py", "--file", "checks/test_pass.py"]
    done = here("run", "--suite", "small", "--continue-on-error", *files)
    assert done.returncode == 0, done.stdout + done.stderr
    assert outcomes(here.root) == {"gate": "pass", "pass": "pass"}


def test_no_line_of_a_test_is_a_command_for_the_service(here: Here) -> None:
    text = "\\r::set-output name=a::b ##[add-mask]c"
    source = HEAD + CALL.format(est=1, more="")
    source += f"def test_a():\n    print('::error::x')\n    raise ValueError('{text}')\n"
    (here.root / "checks" / "test_pass.py").write_text(source)
    done = here("run", "--suite", "small", "--file", "checks/test_pass.py", "--groups")
    assert done.returncode == 1
    stopped: str | None = None
    for line in re.split(r"[\r\n]+", done.stdout):
        shown = line.strip()
        if stopped is not None:
            stopped = None if shown == f"::{stopped}::" else stopped
        elif shown.startswith("::stop-commands::"):
            stopped = shown.removeprefix("::stop-commands::")
        else:
            assert not shown.startswith("::") or shown.startswith(("::group::", "::endgroup::"))
            assert "##[" not in shown
    assert stopped is None


def sleeping_below(pid: int) -> list[psutil.Process]:
    """The sleeps that a run has started, once there are any."""
    deadline = time.monotonic() + 60
    while not (
        found := [p for p in psutil.Process(pid).children(recursive=True) if p.name() == "sleep"]
    ):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def test_a_dead_history_store_costs_no_test_and_is_no_pass(repository: Path) -> None:
    url = "postgresql://ci:s3cret@127.0.0.1:1/ci"
    done = parity(repository, "run", "--suite", "small", "--history", url)
    assert done.returncode == 75
    assert set(outcomes(repository).values()) == {"not run"}
    assert "s3cret" not in done.stdout + done.stderr


DOCS = Path(__file__).parents[2] / "docs" / "hardware-ci.md"
STEP = """from parity.ci.gates.record import record_metric
from parity.ci.register import register_ci_gate, register_cpu_ci
register_cpu_ci(est_time=1.0, suite="fast")
register_ci_gate(metric_key="train/loss", mode="enforced")
def test_a(): assert record_metric("train/loss", 1.0)
"""


def documented() -> list[str]:
    """The command lines of the two sections about running and gates."""
    text = DOCS.read_text(encoding="utf-8")
    sections = text[text.index("## Run a shard") : text.index("## Use it in another repository")]
    return [line for line in sections.splitlines() if line.startswith("parity ci ")]


def test_the_documented_commands_work_as_they_are_written(here: Here) -> None:
    (here.root / "ci.toml").write_text(
        CI.replace("suites.small", "suites.fast").replace("checks", "tests")
    )
    shutil.rmtree(here.root / "checks")
    (here.root / "tests").mkdir()
    (here.root / "tests" / "test_step.py").write_text(STEP)
    scripts(here.root)
    nightly = "run --suite fast --event schedule --cadence nightly --branch main --commit c"
    words = [*nightly.split(), "--run-id", "123", "--history", "sqlite:///history.db"]
    assert here(*words).returncode == 0
    lines = documented()
    assert len(lines) == 9
    for line in lines:
        done = here(*shlex.split(line)[2:])
        assert done.returncode == 0, line + done.stdout + done.stderr
