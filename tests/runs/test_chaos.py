"""Roles and files are killed, frozen, slowed down and damaged at seeded points.

Every run recovers, or ends in bounded time with one sentence that says the truth; the audit
afterwards is clean, or names exactly the damage that was done to the ledger itself.
"""

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from runs.mortal import Command, Death, Ended, assert_clean, assert_finished, parity, words_of

from parity.ledger.audit import audit
from parity.observe.trackers.jsonl import read_rows

KILLED, DONE, FAILED, UNUSABLE, NOTHING_TO_DO = -9, 0, 1, 2, 3
SOON_S = 60.0  # the bound on every end here; most of it for a busy machine
WordsOf = Callable[..., list[str]]


@pytest.fixture
def words(tiny_dir: Path, tasks_path: Path) -> WordsOf:
    return lambda *more: words_of(tiny_dir, tasks_path, "run", *more)


@pytest.fixture
def broken(words: WordsOf, tmp_path: Path) -> Callable[[int], Path]:
    """A run killed at a seeded point after its first checkpoint."""

    def of(seed: int) -> Path:
        noise = random.Random(seed)
        place = noise.choice(["a step is computed", "a step is recorded", "weights are published"])
        ended = parity(*words(), cwd=tmp_path, death=Death(place, nth=noise.randint(3, 6)))
        assert ended.code == KILLED, ended
        return tmp_path / "runs" / "run"

    return of


def one_sentence(ended: Ended, code: int) -> str:
    """What the command said at its end: one line, no traceback, in bounded time."""
    assert ended.code == code, ended
    assert "Traceback" not in ended.said
    assert ended.seconds < SOON_S
    lines = [line for line in ended.said.splitlines() if line.startswith("parity: ")]
    assert len(lines) == 1, ended.said
    return lines[0]


def training(command: Command) -> psutil.Process:
    """The process, once its first step is reported."""
    metrics = command.cwd / "runs" / "run" / "metrics.jsonl"
    deadline_s = time.monotonic() + SOON_S
    while not (metrics.is_file() and "train/loss" in metrics.read_text()):
        assert command.process.exitcode is None, command.said()
        assert time.monotonic() < deadline_s, "no step came"
        time.sleep(0.01)
    return psutil.Process(command.pid)


def wardens(process: psutil.Process) -> list[psutil.Process]:
    """The parents of the grader processes."""
    found = [c for c in process.children() if "parity.rewards.worker" in " ".join(c.cmdline())]
    assert found, "there is no grader process"
    return found


def graders(process: psutil.Process) -> list[psutil.Process]:
    found = [child for warden in wardens(process) for child in warden.children()]
    assert found, "there is no grader process"
    return found


@pytest.mark.parametrize(("seed", "victims"), [(1, graders), (2, wardens)])
def test_a_killed_grader_is_replaced_and_the_run_finishes(
    words: WordsOf,
    tmp_path: Path,
    seed: int,
    victims: Callable[[psutil.Process], list[psutil.Process]],
) -> None:
    command = Command(words("steps=12"), tmp_path).start()
    process = training(command)
    time.sleep(random.Random(seed).uniform(0, 0.3))
    for victim in victims(process):
        victim.kill()
    assert command.end().code == DONE, command.said()
    assert_finished(tmp_path / "runs" / "run", steps=12)


def test_a_frozen_grader_costs_its_answers_and_the_run_finishes(
    words: WordsOf, tmp_path: Path
) -> None:
    more = words("steps=12", "grader.timeout_s=1", "rollouts.max_failed_share=0.9")
    command = Command(more, tmp_path).start()
    for grader in graders(training(command)):
        grader.suspend()
    assert command.end().code == DONE, command.said()
    folder = tmp_path / "runs" / "run"
    assert_clean(folder)
    rows = read_rows(folder / "metrics.jsonl")
    assert sum((row.get("rollout/failed_share") or 0) > 0 for row in rows) <= 6


def test_a_process_that_is_frozen_and_slowed_down_finishes_all_the_same(
    words: WordsOf, tmp_path: Path
) -> None:
    command = Command(words(), tmp_path).start()
    training(command)
    noise = random.Random(3)
    for _ in range(8):
        os.kill(command.pid, signal.SIGSTOP)
        time.sleep(noise.uniform(0.02, 0.3))
        os.kill(command.pid, signal.SIGCONT)
        time.sleep(0.05)
        if command.process.exitcode is not None:
            break
    assert command.end().code == DONE, command.said()
    assert_finished(tmp_path / "runs" / "run")


@pytest.mark.parametrize("seed", [4])
def test_a_truncated_ledger_is_named_and_not_gone_on_with(
    broken: Callable[[int], Path], seed: int
) -> None:
    folder = broken(seed)
    database = folder / "ledger" / "ledger.sqlite"
    for end in ("-wal", "-shm"):
        database.with_name(database.name + end).unlink(missing_ok=True)
    size = database.stat().st_size
    os.truncate(database, random.Random(seed).randrange(200, max(201, size // 2)))
    said = one_sentence(parity("resume", str(folder), cwd=folder), FAILED)
    assert "ledger" in said
    ended = parity("audit", str(folder), cwd=folder)
    assert ended.code == FAILED
    assert "Traceback" not in ended.said


@pytest.mark.parametrize("seed", [5, 6])
def test_damaged_payloads_are_generated_again_and_the_audit_names_no_other_fault(
    broken: Callable[[int], Path], seed: int
) -> None:
    folder = broken(seed)
    noise = random.Random(seed)
    for path in (folder / "ledger" / "payloads").glob("*.seg"):
        content = bytearray(path.read_bytes())
        for _ in range(8):
            content[noise.randrange(len(content))] ^= 1 << noise.randrange(8)
        path.write_bytes(content)
    ended = parity("resume", str(folder), cwd=folder)
    assert ended.code == DONE, ended
    found = audit(folder / "ledger")
    assert {proof.name for proof in found.proofs if not proof.holds} <= {"payloads"}
    assert found.counts is not None
    assert found.counts.trained == 12
    rows = read_rows(folder / "metrics.jsonl")
    assert sum("train/loss" in row for row in rows) == 6


def test_a_torn_line_of_metrics_is_set_aside(broken: Callable[[int], Path]) -> None:
    folder = broken(7)
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 5, "attempt": 1, "train/lo')
    assert parity("resume", str(folder), cwd=folder).code == DONE
    assert_finished(folder)
    assert "train/lo" in (folder / "metrics.jsonl.torn").read_text()


def test_missing_and_damaged_run_files_are_named_in_one_sentence(
    broken: Callable[[int], Path],
) -> None:
    folder = broken(8)
    config = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(config[: len(config) // 2] + "\n\t: [")
    assert "config.yaml" in one_sentence(parity("resume", str(folder), cwd=folder), UNUSABLE)
    (folder / "config.yaml").write_text(config)
    info = (folder / "run.json").read_text()
    (folder / "run.json").unlink()
    for command in ("resume", "audit", "replay"):
        said = one_sentence(parity(command, str(folder), cwd=folder.parent), UNUSABLE)
        assert "run" in said
    (folder / "run.json").write_text(info)
    assert parity("resume", str(folder), cwd=folder).code == DONE
    assert_finished(folder)


@pytest.mark.parametrize("most_file_bytes", [12_000, 60_000])
def test_a_full_disk_ends_the_run_in_one_sentence_and_leaves_a_clean_audit(
    words: WordsOf, tmp_path: Path, most_file_bytes: int
) -> None:
    ended = parity(*words("steps=60"), cwd=tmp_path, most_file_bytes=most_file_bytes)
    said = one_sentence(ended, FAILED)
    assert "ledger" in said or "can't be written" in said or "File too large" in said
    folder = tmp_path / "runs" / "run"
    found = parity("audit", str(folder), cwd=tmp_path)
    assert found.code == DONE or "nothing had happened yet" in found.said, found
    after = parity("resume", str(folder), "steps=6", cwd=tmp_path)
    if after.code not in (DONE, NOTHING_TO_DO):  # such as: killed before it had a configuration
        one_sentence(after, after.code)
    assert_clean(folder)
