"""Where a resume goes on, and what it says where it can't: the edges."""

import contextlib
import json
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from runs.mortal import Death, assert_clean, assert_finished, parity, words_of

from parity.launch import NOTHING_TO_DO, changes_rollouts
from parity.ledger.schema import DATABASE, reading
from parity.training.checkpoint import CheckpointStore

KILLED, FAILED = -9, 1
WordsOf = Callable[..., list[str]]


@pytest.fixture
def words(tiny_dir: Path, tasks_path: Path) -> WordsOf:
    return lambda *more: words_of(tiny_dir, tasks_path, "run", *more)


def steps_saved(folder: Path) -> list[int]:
    return [each.step for each in CheckpointStore(folder / "checkpoints", 1).complete()]


def ask(folder: Path, query: str) -> list[tuple[int, ...]]:
    with reading(folder / "ledger" / DATABASE) as connection:
        return [tuple(row) for row in connection.execute(query)]


def test_a_run_killed_before_its_first_checkpoint_begins_anew_with_what_it_recorded(
    words: WordsOf, tmp_path: Path
) -> None:
    ended = parity(*words(), cwd=tmp_path, death=Death("a step is recorded"))
    assert ended.code == KILLED, ended
    assert parity("resume", "run", cwd=tmp_path).code == 0
    assert_finished(tmp_path / "runs" / "run")


def test_a_reached_target_has_its_own_exit_code_and_changes_nothing(
    words: WordsOf, tmp_path: Path
) -> None:
    assert parity(*words("steps=2"), cwd=tmp_path).code == 0
    folder = tmp_path / "runs" / "run"
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    ended = parity("resume", "run", cwd=tmp_path)
    assert ended.code == NOTHING_TO_DO
    assert ended.said.startswith("nothing to do: run stands at step 2 and steps is 2.")
    after = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert after == before


def test_a_run_killed_before_its_export_still_has_something_to_do(
    words: WordsOf, tmp_path: Path
) -> None:
    death = Death("the model is exported")
    assert parity(*words("steps=2"), cwd=tmp_path, death=death).code == KILLED
    folder = tmp_path / "runs" / "run"
    assert steps_saved(folder) == [2]
    assert parity("resume", "run", cwd=tmp_path).code == 0
    assert_finished(folder, steps=2)
    assert parity("resume", "run", cwd=tmp_path).code == NOTHING_TO_DO


def test_an_epoch_ends_within_a_step_and_the_resume_draws_the_next_one(
    tiny_dir: Path, tmp_path: Path
) -> None:
    tasks = tmp_path / "few.jsonl"
    tasks.write_text("".join(json.dumps({"prompt": c * 3, "answer": c}) + "\n" for c in "abcdef"))
    words = words_of(tiny_dir, tasks, "run", "rollouts.max_lag=0")
    death = Death("a step is recorded", nth=4)
    assert parity(*words, cwd=tmp_path, death=death).code == KILLED
    assert parity("resume", "run", cwd=tmp_path).code == 0
    folder = tmp_path / "runs" / "run"
    assert_finished(folder)
    drawn = ask(folder, "SELECT epoch, task FROM groups ORDER BY group_index")
    size = sum(epoch == 0 for epoch, _ in drawn)
    assert size % 2 == 1, "two groups a step, so an epoch ends within one"
    assert [epoch for epoch, _ in drawn] == [number // size for number in range(12)]
    assert len({task for epoch, task in drawn if epoch == 0}) == size
    assert {t for e, t in drawn if e == 0} == {t for e, t in drawn if e == 1}


def test_a_corrupt_newest_checkpoint_is_passed_over_and_the_ledger_agrees(
    words: WordsOf, tmp_path: Path
) -> None:
    death = Death("a step is computed", nth=5)
    assert parity(*words("checkpoint.keep=2"), cwd=tmp_path, death=death).code == KILLED
    folder = tmp_path / "runs" / "run"
    assert steps_saved(folder) == [2, 4]
    model = folder / "checkpoints" / "step_00000004" / "model.safetensors"
    content = bytearray(model.read_bytes())
    content[len(content) // 2] ^= 1
    model.write_bytes(content)
    ended = parity("resume", "run", cwd=tmp_path)
    assert ended.code == 0, ended
    assert "step_00000004 reason=model.safetensors has other contents" in ended.said
    assert_finished(folder)
    assert ask(folder, "SELECT step FROM branches") == [(0,), (2,)]
    assert ask(folder, "SELECT step FROM surviving_committed ORDER BY seq") == [(2,), (4,), (6,)]


def test_without_any_sound_checkpoint_the_resume_says_so(words: WordsOf, tmp_path: Path) -> None:
    assert parity(*words("steps=2"), cwd=tmp_path).code == 0
    folder = tmp_path / "runs" / "run"
    (folder / "checkpoints" / "step_00000002" / "COMPLETE.json").write_text("{")
    ended = parity("resume", "run", "steps=4", cwd=tmp_path)
    assert ended.code == FAILED
    assert "COMPLETE.json can't be read" in ended.said
    assert "parity: none of the checkpoints in" in ended.said
    assert_clean(folder)


def test_a_failing_save_leaves_the_older_checkpoint_and_a_clean_audit(
    words: WordsOf, tmp_path: Path
) -> None:
    assert parity(*words("steps=2", "checkpoint.keep=1"), cwd=tmp_path).code == 0
    folder = tmp_path / "runs" / "run"
    largest = max(path.stat().st_size for path in (folder / "checkpoints").rglob("*"))
    ended = parity("resume", "run", "steps=6", cwd=tmp_path, most_file_bytes=largest - 1)
    assert ended.code == FAILED, ended
    assert re.search(r"parity: the (checkpoint|trainer's state).* can't be written to", ended.said)
    assert steps_saved(folder) == [2]
    assert not list((folder / "checkpoints").glob(".tmp*"))
    assert_clean(folder)
    assert parity("resume", "run", "steps=6", cwd=tmp_path).code == 0
    assert_finished(folder)


def test_groups_that_fit_the_bound_are_reused_and_keep_their_place_in_the_lag_bound(
    words: WordsOf, tmp_path: Path
) -> None:
    more = words("rollouts.max_lag=2", "checkpoint.every_steps=1")
    death = Death("a step is computed", nth=3)
    assert parity(*more, cwd=tmp_path, death=death).code == KILLED
    folder = tmp_path / "runs" / "run"
    with contextlib.closing(sqlite3.connect(folder / "ledger" / DATABASE)) as connection:
        (before,) = connection.execute("SELECT COUNT(*) FROM issued").fetchone()
    assert before > 2 * 2, "the run never ran ahead, so the test shows nothing"
    assert parity("resume", "run", cwd=tmp_path).code == 0
    assert_finished(folder)
    ((reused,),) = ask(
        folder,
        "SELECT COUNT(*) FROM trained t WHERE step > 2 AND EXISTS (SELECT 1 FROM generated g"
        " WHERE g.group_index = t.group_index AND g.seq <="
        " (SELECT first_seq FROM branches WHERE branch = 2))",
    )
    assert reused >= 2, "the groups of the dead process were generated again"
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert max(row.get("rollout/lag_max", 0) for row in rows) <= 2
    assert max(row.get("buffer/in_flight", 0) for row in rows) <= 2 * 3


def test_groups_are_generated_again_where_the_sampling_changed(
    words: WordsOf, tmp_path: Path
) -> None:
    more = words("rollouts.max_lag=2", "checkpoint.every_steps=1")
    death = Death("a step is computed", nth=3)
    assert parity(*more, cwd=tmp_path, death=death).code == KILLED
    ended = parity("resume", "run", "sampling.max_new_tokens=4", cwd=tmp_path)
    assert ended.code == 0, ended
    folder = tmp_path / "runs" / "run"
    assert_finished(folder)
    longest = ask(
        folder,
        "SELECT MAX(sampled_tokens) FROM surviving_trained JOIN episodes"
        " USING (group_index, attempt) WHERE step > 2",
    )
    assert longest == [(4,)], "an answer of the old settings was trained"


@pytest.mark.parametrize(
    ("word", "changes"),
    [
        ("sampling.temperature=0.5", True),
        ("rollouts.group_size=2", True),
        ("+prompts.max_prompt_tokens=9", True),
        ("steps=20", False),
        ("optimizer.lr=1e-5", False),
        ("checkpoint.every_steps=3", False),
    ],
)
def test_overrides_that_change_what_a_group_is_are_known(word: str, *, changes: bool) -> None:
    assert changes_rollouts([word]) is changes
