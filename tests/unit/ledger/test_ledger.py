"""The driver's side: what can't be true is refused, and what was queued is on the disk."""

import sqlite3
from contextlib import closing
from pathlib import Path

import fakes
import pytest
from unit.ledger.simulation import CONFIG, Setup, Simulation

from parity.errors import CheckpointError, ConfigError
from parity.ledger.audit import audit
from parity.ledger.config import LedgerConfig
from parity.ledger.ledger import Counts, Ledger, Mark
from parity.ledger.recovery import create_ledger, resume_ledger
from parity.ledger.schema import DATABASE, LedgerError, reading
from parity.types import Scored, Unscored


@pytest.fixture
def ledger(tmp_path: Path):
    with create_ledger(tmp_path / "ledger", max_lag=0.5, config=CONFIG) as made:
        yield made


def issue(ledger: Ledger, index: int, size: int = 1) -> int:
    return ledger.issued(index, task=fakes.task(index), position=index, epoch=0, size=size)


def generate(ledger: Ledger, index: int, *, version: int = 0, size: int = 1) -> None:
    episode = fakes.episode(fakes.task(index), 8, 9, version=version)
    ledger.generated(index, [episode] * size)
    ledger.scored(index, [Scored(1.0)] * size)


def admit(ledger: Ledger, index: int, *, version: int = 0) -> None:
    issue(ledger, index)
    generate(ledger, index, version=version)
    ledger.admitted(index)


def rows(dir: Path, query: str) -> list[tuple]:
    with reading(dir / DATABASE) as connection:
        return connection.execute(query).fetchall()


def test_a_life_is_written_as_it_was_told(ledger: Ledger, tmp_path: Path):
    issue(ledger, 0, size=3)
    task = fakes.task(0)
    episodes = [fakes.episode(task, 3), fakes.episode(task, 8, 9), fakes.episode(task, 7)]
    ledger.generated(0, episodes, sampling_attempts=(2, 0, 0))
    ledger.scored(0, [Unscored("no answer"), Scored(1.0), Scored(0.1, {"exact": 0.3})])
    ledger.admitted(0)
    issue(ledger, 1)
    ledger.ended(1, "failed", reason="no_scored_episode", detail="the grader died")
    issue(ledger, 2)
    ledger.trained(1, version=0, advantages={0: [None, 0.5, -0.5]})
    assert ledger.counts == Counts(issued=3, trained=1, dropped=0, failed=1)
    assert ledger.counts.in_flight == 1
    ledger.flush()
    dir = tmp_path / "ledger"
    assert rows(dir, "SELECT * FROM conservation") == [(3, 1, 0, 1, 1)]
    assert rows(dir, "SELECT state, reason, num_groups FROM losses") == [
        ("failed", "no_scored_episode", 1)
    ]
    assert rows(
        dir, "SELECT sibling, sampling_attempt, sampled_tokens, min_version, outcome FROM episodes"
    ) == [(0, 2, 1, 0, "unscored"), (1, 0, 2, 0, "scored"), (2, 0, 1, 0, "scored")]
    assert rows(dir, "SELECT results FROM scored") == [
        (
            '[{"outcome":"unscored","reason":"no answer"},1.0,'
            '{"outcome":"scored","parts":{"exact":0.3},"value":0.1}]',
        )
    ]
    assert rows(dir, "SELECT step, version, oldest, newest FROM ages") == [(1, 0, 0, 0)]
    assert audit(dir).holds


def train_twice(ledger: Ledger) -> None:
    admit(ledger, 0)
    ledger.trained(1, version=0, advantages={0: [0.0]})
    ledger.trained(2, version=0, advantages={0: [0.0]})


def train_too_old(ledger: Ledger) -> None:
    admit(ledger, 0, version=0)
    ledger.trained(1, version=2, advantages={0: [0.0]})


def train_from_the_future(ledger: Ledger) -> None:
    admit(ledger, 0, version=3)
    ledger.trained(1, version=2, advantages={0: [0.0]})


def train_unadmitted(ledger: Ledger) -> None:
    issue(ledger, 0)
    generate(ledger, 0)
    ledger.trained(1, version=0, advantages={0: [0.0]})


def skip_a_step(ledger: Ledger) -> None:
    admit(ledger, 0)
    ledger.trained(2, version=0, advantages={0: [0.0]})


def skip_a_group(ledger: Ledger) -> None:
    issue(ledger, 1)


def issue_twice(ledger: Ledger) -> None:
    issue(ledger, 0)
    issue(ledger, 0)


def generate_twice(ledger: Ledger) -> None:
    issue(ledger, 0)
    generate(ledger, 0)
    generate(ledger, 0)


def score_first(ledger: Ledger) -> None:
    issue(ledger, 0)
    ledger.scored(0, [Scored(1.0)])


def score_twice(ledger: Ledger) -> None:
    issue(ledger, 0)
    generate(ledger, 0)
    ledger.scored(0, [Scored(1.0)])


def admit_unscored(ledger: Ledger) -> None:
    issue(ledger, 0)
    ledger.generated(0, [fakes.episode(fakes.task(0), 8)])
    ledger.admitted(0)


def score_half(ledger: Ledger) -> None:
    issue(ledger, 0, size=2)
    ledger.generated(0, [fakes.episode(fakes.task(0), 8)] * 2)
    ledger.scored(0, [Scored(1.0)])


def end_twice(ledger: Ledger) -> None:
    issue(ledger, 0)
    ledger.ended(0, "dropped", reason="zero_spread")
    ledger.ended(0, "dropped", reason="zero_spread")


def end_without_reason(ledger: Ledger) -> None:
    issue(ledger, 0)
    ledger.ended(0, "dropped", reason="")


def another_sibling(ledger: Ledger) -> None:
    issue(ledger, 0)
    generate(ledger, 0, size=2)


@pytest.mark.parametrize(
    ("tell", "message"),
    [
        (train_twice, "group 0 isn't in flight"),
        (train_too_old, "versions 0 to 0, but version 2 may train on 1 to 2 only"),
        (train_from_the_future, "versions 3 to 3, but version 2"),
        (train_unadmitted, "without having been admitted"),
        (skip_a_step, "step 2 is trained, but the last one was 0"),
        (skip_a_group, "the next new one is 0"),
        (issue_twice, "issued a second time"),
        (generate_twice, "group 0 is generated a second time"),
        (score_first, "scored twice, or before its tokens"),
        (score_twice, "scored twice, or before its tokens"),
        (score_half, "group 0 has 2 siblings, not 1"),
        (admit_unscored, "admitted before its episodes are scored"),
        (end_twice, "group 0 isn't in flight"),
        (end_without_reason, "without a reason"),
        (another_sibling, "group 0 has 1 siblings, not 2"),
    ],
)
def test_what_cannot_be_true_is_refused(ledger: Ledger, tmp_path: Path, tell, message: str):
    with pytest.raises(LedgerError, match=message):
        tell(ledger)
    ledger.flush()
    assert audit(tmp_path / "ledger").holds


def test_a_second_writer_and_a_second_ledger_are_refused(ledger: Ledger, tmp_path: Path):
    with pytest.raises(LedgerError, match="another process writes"):
        resume_ledger(tmp_path / "ledger", None, max_lag=0, config=CONFIG)
    ledger.close()
    with pytest.raises(LedgerError, match="exists already"):
        create_ledger(tmp_path / "ledger", max_lag=0, config=CONFIG)
    resumed, _ = resume_ledger(tmp_path / "ledger", None, max_lag=0, config=CONFIG)
    resumed.close()


def test_an_unfinished_group_is_issued_again_as_another_attempt(ledger: Ledger, tmp_path: Path):
    admit(ledger, 0)
    issue(ledger, 1, size=2)
    ledger.generated(1, [fakes.episode(fakes.task(1), 8)] * 2)
    mark = ledger.mark(version=0, task_position=2)
    ledger.close()
    resumed, found = resume_ledger(tmp_path / "ledger", mark, max_lag=0.5, config=CONFIG)
    with resumed:
        assert [group.index for group in found.in_flight] == [0, 1]
        assert list(found.reusable) == [0]
        assert found.reusable[0].group(fakes.task(1)) is None  # the task isn't the same
        stored = found.reusable[0].group(fakes.task(0))
        assert stored is not None
        assert stored.rewards == (1.0,)
        with pytest.raises(LedgerError, match="was in flight before the resume"):
            resumed.admitted(1)
        resumed.reused(found.reusable[0])
        resumed.admitted(0)
        assert issue(resumed, 1, size=2) == 1
        generate(resumed, 1, size=2)
        resumed.admitted(1)
        resumed.trained(1, version=0, advantages={0: [0.0], 1: [0.0, 0.0]})
    assert audit(tmp_path / "ledger").holds
    assert rows(tmp_path / "ledger", "SELECT COUNT(*) FROM generated") == [(3,)]


def test_groups_past_the_bound_or_of_lost_weights_are_not_reused(tmp_path: Path):
    dir = tmp_path / "ledger"
    ledger = create_ledger(dir, max_lag=2, config=CONFIG)
    for index, version in enumerate((0, 1, 3, 4)):
        admit(ledger, index, version=version)
    ledger.close()
    # Of a run that stands at version 0, only what version 0 made is left.
    first, found = resume_ledger(dir, None, max_lag=2, config=CONFIG)
    first.close()
    assert list(found.reusable) == [0]
    start = Mark(step=3, version=3, task_position=0)
    other = create_ledger(tmp_path / "other", max_lag=2, config=CONFIG, start=start)
    for index, version in enumerate((0, 1, 3, 4)):
        admit(other, index, version=version)
    other.close()
    second, found = resume_ledger(tmp_path / "other", None, max_lag=2, config=CONFIG)
    second.close()
    assert list(found.reusable) == [1, 2]
    third, found = resume_ledger(tmp_path / "other", None, max_lag=0, config=CONFIG)
    third.close()
    assert list(found.reusable) == [2]


def test_a_checkpoint_of_another_run_or_of_a_replaced_part_is_refused(tmp_path: Path):
    setup = Setup(steps=6, every_steps=2, keep=9)
    Simulation(tmp_path, setup).run()
    dir = tmp_path / "ledger"
    marks = [
        Mark(*row)
        for row in rows(
            dir, "SELECT step, version, ledger_seq, task_position, next_group FROM committed"
        )
    ]
    wrong = Mark(marks[0].step, 0, marks[0].seq - 4, 0, marks[0].next_group)
    with pytest.raises(CheckpointError, match="it is of another run"):
        resume_ledger(dir, wrong, max_lag=0, config=CONFIG)
    resumed, _ = resume_ledger(dir, marks[0], max_lag=0, config=CONFIG)
    resumed.close()
    with pytest.raises(CheckpointError, match="older checkpoint replaced"):
        resume_ledger(dir, marks[1], max_lag=0, config=CONFIG)
    again, found = resume_ledger(dir, marks[0], max_lag=0, config=CONFIG)
    again.close()
    assert found.mark.step == 2
    assert audit(dir).holds


def test_a_commit_that_a_kill_prevented_is_completed(ledger: Ledger, tmp_path: Path):
    admit(ledger, 0)
    ledger.trained(1, version=0, advantages={0: [0.0]})
    mark = ledger.mark(version=1, task_position=1)
    ledger.close()
    dir = tmp_path / "ledger"
    assert rows(dir, "SELECT COUNT(*) FROM committed") == [(0,)]
    for _ in range(2):
        resumed, _ = resume_ledger(dir, mark, max_lag=0.5, config=CONFIG)
        resumed.close()
        assert rows(dir, "SELECT step, ledger_seq FROM surviving_committed") == [(1, mark.seq)]
    assert audit(dir).committed_step == 1


def test_a_mark_comes_back_from_a_checkpoint_and_other_things_are_refused():
    mark = Mark(1, 2, 3, 4, 5)
    assert Mark.of(mark.as_json()) == mark
    for found in (None, 3, {}, {**mark.as_json(), "seq": "3"}):
        with pytest.raises(CheckpointError, match="place in the ledger"):
            Mark.of(found)


def test_payloads_go_when_neither_resume_nor_history_needs_them(tmp_path: Path):
    setup = Setup(steps=20, every_steps=2, max_lag=2, keep=1)
    Simulation(tmp_path, setup).run()
    found = audit(tmp_path / "ledger")
    assert found.holds
    kept = {int(path.stem) for path in (tmp_path / "ledger" / "payloads").iterdir()}
    ((retired, of),) = rows(tmp_path / "ledger", "SELECT COUNT(retired_at), COUNT(*) FROM segments")
    assert len(kept) == of - retired
    assert retired >= 5
    # The payloads of the last three steps, which `payload_steps` keeps, are all there.
    assert rows(
        tmp_path / "ledger",
        "SELECT COUNT(*) FROM generated g JOIN trained t USING (group_index) JOIN segments s"
        " USING (segment) WHERE t.step > 17 AND s.retired_at IS NOT NULL",
    ) == [(0,)]


def test_without_payloads_the_digests_are_still_there_and_nothing_is_reused(tmp_path: Path):
    dir = tmp_path / "ledger"
    ledger = create_ledger(dir, max_lag=1, config=LedgerConfig(payload_steps=0, linger_s=0.001))
    admit(ledger, 0)
    ledger.close()
    resumed, found = resume_ledger(dir, None, max_lag=1, config=CONFIG)
    resumed.close()
    assert not found.reusable
    assert not (dir / "payloads").exists()
    assert rows(dir, "SELECT segment, LENGTH(digest) FROM generated") == [(None, 16)]
    assert audit(dir).holds


def test_a_ledger_of_another_format_or_of_noise_is_refused(tmp_path: Path):
    path = tmp_path / DATABASE
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(LedgerError, match="has format 99"), reading(path):
        pass
    path.unlink()
    path.touch()
    with pytest.raises(LedgerError, match="killed while it made it"), reading(path):
        pass
    path.write_bytes(b"noise" * 1000)
    with pytest.raises(LedgerError, match="can't be read"), reading(path):
        pass
    with pytest.raises(LedgerError, match="there is no ledger"), reading(tmp_path / "none"):
        pass


def test_a_ledger_of_another_format_is_not_gone_on_with(ledger: Ledger, tmp_path: Path):
    ledger.close()
    with closing(sqlite3.connect(tmp_path / "ledger" / DATABASE)) as connection:
        connection.execute("PRAGMA user_version = 1")
    with pytest.raises(LedgerError, match="has format 1, this Parity reads 2"):
        resume_ledger(tmp_path / "ledger", None, max_lag=0, config=CONFIG)


@pytest.mark.parametrize(
    "wrong", [{"payload_steps": -1}, {"segment_mib": 0}, {"linger_s": 0.0}, {"max_wait_s": -1.0}]
)
def test_a_config_that_makes_no_sense_is_refused(wrong: dict[str, float]):
    with pytest.raises(ConfigError):
        LedgerConfig(**wrong)
