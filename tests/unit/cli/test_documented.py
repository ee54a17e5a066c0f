"""Every command that the documents, the recipes and the help show can be run as it is written."""

import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest

from parity.cli.main import main
from parity.config import recipes
from parity.ledger.config import LedgerConfig
from parity.ledger.recovery import create_ledger
from parity.observe.trackers.jsonl import JsonlTracker

ROOT = Path(__file__).parents[3]
DOCUMENTS = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "docs" / "how-to" / "launch-on-a-cluster.md",
]
COMMANDS = ("main", "train", "sft", "evaluate", "resume", "runs", "show", "config", "doctor")
COMMANDS += ("launch", "launch.slurm", "launch.kuberay")
ERRORS_ON_PURPOSE = ("rollouts.maxlag=2", "tasks.path=x.jsonl")


def documented() -> list[str]:
    """Each line that shows a command, without the remark behind it."""
    texts = [path.read_text(encoding="utf-8") for path in DOCUMENTS]
    texts += [recipes.read(name).text for name in recipes.names()]
    texts += [import_module(f"parity.cli.{name}").EPILOG for name in COMMANDS]
    lines = (line.lstrip("#$ ") for text in texts for line in text.splitlines())
    shown = {re.split(r"\s{2,}|\s+#|\s>", line)[0] for line in lines if line.startswith("parity ")}
    known = {
        line for line in shown if not line.startswith("parity ci ")
    }  # tests/unit/ci runs those
    return sorted(line for line in known if not re.search(r"RECIPE|RUN\b|\[KEY", line))


def test_there_are_documented_commands():
    assert len(documented()) > 20


@pytest.mark.parametrize("line", documented())
def test_the_command_runs_as_it_is_written(
    line: str, launched, make_run, elsewhere: Path, capsys, monkeypatch
):
    for name in ("tasks.jsonl", "tasks.parquet", "mine.jsonl"):
        (elsewhere / name).write_text("")
    (elsewhere / "my-model").mkdir()
    (elsewhere / "mine.yaml").write_text("defaults: [quickstart]\n")
    for name in ("NAME", "quickstart-20260101-120000"):
        folder = make_run(name)
        (folder / "config.yaml").write_text("kind: train\nmodel: {path: org/model}\n")
        tracker = JsonlTracker(folder, "parity", name)
        tracker.start({})
        tracker.log(1, {"rollout/raw_reward": 0.5, "train/entropy": 1.0, "rollout/lag_mean": 0.0})
        tracker.finish()
        create_ledger(folder / "ledger", max_lag=1, config=LedgerConfig()).close()
    (elsewhere / "facts.json").write_text('{"torch": {"version": "2.9.1+cpu"}}')
    monkeypatch.setattr("parity.doctor.imports.try_torch", list)  # seconds; tests/runs try it
    code = main(shlex.split(line)[1:])
    expected = {2} if line.endswith(ERRORS_ON_PURPOSE) else {0}
    if line.startswith("parity doctor"):
        expected = {0, 1}  # a small machine has warnings
    assert code in expected, capsys.readouterr().err
