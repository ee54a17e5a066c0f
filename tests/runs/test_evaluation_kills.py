"""A run killed between an evaluation and the checkpoint of the same step evaluates once more.

The evaluation comes first, so no checkpoint says that it was made: the resumed run takes the step
again, and what the dead process told of it counts no more.
"""

import json
import signal
from pathlib import Path

import pytest
from runs.mortal import Death, assert_finished, parity, untimed, words_of

from parity.ledger.diff import compare
from parity.observe.trackers.jsonl import read_rows

SYNCHRONOUS = ("eval.every_steps=2", "rollouts.max_lag=0")


def evaluations(folder: Path) -> dict[str, list[str]]:
    """The dumped episodes of each evaluation, by file, without what depends on the process."""
    found = {}
    for path in sorted((folder / "episodes").glob("eval_*.jsonl")):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        found[path.name] = [f"{line['episode_id']} {line['tokens']}" for line in lines]
    return found


@pytest.mark.slow
def test_an_evaluation_that_is_made_again_is_told_once(
    tiny_dir: Path, tasks_path: Path, tmp_path: Path
) -> None:
    whole = words_of(tiny_dir, tasks_path, "whole", *SYNCHRONOUS)
    assert parity(*whole, cwd=tmp_path).code == 0
    killed = words_of(tiny_dir, tasks_path, "killed", *SYNCHRONOUS)
    assert (
        parity(*killed, cwd=tmp_path, death=Death("the state is taken", 2)).code == -signal.SIGKILL
    )
    folder, other = tmp_path / "runs" / "killed", tmp_path / "runs" / "whole"
    assert "eval/accuracy" in read_rows(folder)[-1], "it died after the evaluation of step 4"
    assert parity("resume", str(folder), cwd=tmp_path).code == 0
    assert_finished(folder)
    assert untimed(folder) == untimed(other)
    assert evaluations(folder) == evaluations(other)
    assert [row["step"] for row in read_rows(folder) if "eval/accuracy" in row] == [0, 2, 4, 6]
    assert compare(folder / "ledger", other / "ledger").first is None
