"""The issuer over a real ledger and a real stream: new groups, and those of a killed process."""

from pathlib import Path

import pytest

from parity.ledger.audit import audit
from parity.ledger.config import LedgerConfig
from parity.ledger.ledger import Ledger, Mark
from parity.ledger.recovery import create_ledger, resume_ledger
from parity.models.rendering import Renderer
from parity.models.tiny import character_tokenizer
from parity.rollouts.issuer import Issuer, Ticket
from parity.tasks.config import PromptsConfig
from parity.tasks.source import TaskSource
from parity.tasks.stream import TaskStream
from parity.types import NO_VERSION, Episode, Group, Scored, Task, Unscored

CONFIG = LedgerConfig()
SIZE = 2


class Numbers(TaskSource):
    """Ten tasks."""

    @property
    def size(self) -> int:
        return 10

    def task(self, index: int) -> Task:
        return Task(task_id=f"task/{index}", prompt="x" * (1 + index))


def stream(position: int = 0) -> TaskStream:
    renderer = Renderer(character_tokenizer(max_length=512))
    prompts = PromptsConfig(max_prompt_tokens=100)
    return TaskStream(Numbers(), renderer=renderer, prompts=prompts, seed=3, position=position)


def group_of(ticket: Ticket, *, version: int = 0) -> Group:
    task = ticket.task
    episodes = [
        Episode(
            episode_id=f"{task.task_id}/{sibling}",
            task=task,
            tokens=(*task.tokens, 5, 6 + sibling),
            loss_mask=(False,) * len(task.tokens) + (True, True),
            logprobs=(0.0,) * len(task.tokens) + (-0.5, -0.25),
            versions=(NO_VERSION,) * len(task.tokens) + (version, version),
            response="ab",
            finish_reason="stop",
            reward=Scored(float(sibling)),
        )
        for sibling in range(SIZE)
    ]
    return Group(task, tuple(episodes), ticket.index)


def finish(ledger: Ledger, group: Group) -> None:
    ledger.generated(group.index, group.episodes)
    ledger.scored(group.index, [episode.reward for episode in group.episodes])
    ledger.admitted(group.index)


def killed_after_three_groups(dir: Path) -> tuple[Mark, list[Ticket]]:
    """A process that trained group 0, finished group 1 and only issued group 2."""
    ledger = create_ledger(dir, max_lag=2, config=CONFIG)
    issuer = Issuer(stream(), ledger, group_size=SIZE)
    tickets = [issuer.next() for _ in range(3)]
    groups = [group_of(ticket) for ticket in tickets]
    for group in groups[:2]:
        finish(ledger, group)
    issuer.trained(1, version=0, groups=groups[:1], advantages=[(-1.0, 1.0)])
    mark = ledger.mark(version=1, task_position=issuer.position)
    ledger.flush()
    ledger.commit(mark)
    ledger.close()
    return mark, tickets


def test_new_groups_are_numbered_and_stand_in_the_ledger_as_the_stream_gave_them(tmp_path: Path):
    with create_ledger(tmp_path, max_lag=1, config=CONFIG) as ledger:
        issuer = Issuer(stream(), ledger, group_size=SIZE)
        tickets = [issuer.next() for _ in range(12)]  # into the second epoch
        assert ledger.counts.in_flight == 12
    plain = stream()
    assert [each.index for each in tickets] == list(range(12))
    assert [each.task.task_id for each in tickets] == [next(plain).task_id for _ in range(12)]
    assert all((each.attempt, each.recorded) == (0, None) for each in tickets)
    assert issuer.position == plain.position


def test_after_a_kill_open_groups_come_first_with_the_answers_that_were_made(tmp_path: Path):
    mark, before = killed_after_three_groups(tmp_path)
    ledger, recovery = resume_ledger(tmp_path, mark, max_lag=2, config=CONFIG)
    issuer = Issuer(stream(mark.task_position), ledger, group_size=SIZE, recovery=recovery)
    again = [issuer.next() for _ in range(3)]
    assert [each.index for each in again] == [1, 2, 3]
    assert [each.task.task_id for each in again[:2]] == [each.task.task_id for each in before[1:]]
    finished, open_one, new_one = again
    assert finished.recorded is not None
    assert finished.recorded.episodes == group_of(before[1]).episodes
    assert finished.oldest_version == 0
    assert (open_one.recorded, open_one.attempt) == (None, 1)  # issued a second time
    assert (new_one.recorded, new_one.attempt, new_one.oldest_version) == (None, 0, None)
    ledger.close()
    assert audit(tmp_path).holds


@pytest.mark.parametrize("change", ["settings", "size"])
def test_answers_made_under_other_settings_are_made_again(tmp_path: Path, change: str):
    mark, _ = killed_after_three_groups(tmp_path)
    ledger, recovery = resume_ledger(tmp_path, mark, max_lag=2, config=CONFIG)
    size = SIZE + 1 if change == "size" else SIZE
    issuer = Issuer(
        stream(mark.task_position),
        ledger,
        group_size=size,
        recovery=recovery,
        reuses=change == "size",
    )
    ticket = issuer.next()
    assert (ticket.index, ticket.attempt, ticket.recorded) == (1, 1, None)
    ledger.close()
    assert audit(tmp_path).holds


def test_an_answer_without_a_reward_is_trained_without_an_advantage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    told: dict[int, object] = {}
    with create_ledger(tmp_path, max_lag=1, config=CONFIG) as ledger:
        issuer = Issuer(stream(), ledger, group_size=SIZE)
        ticket = issuer.next()
        first, second = group_of(ticket).episodes
        object.__setattr__(second, "reward", Unscored("no number in it"))
        group = Group(ticket.task, (first, second), ticket.index)
        finish(ledger, group)
        plain = ledger.trained

        def trained(step: int, **facts: object) -> None:
            told.update(facts["advantages"])  # pyright: ignore
            plain(step, **facts)  # pyright: ignore

        monkeypatch.setattr(ledger, "trained", trained)
        issuer.trained(1, version=0, groups=[group], advantages=[(0.5, 9.0)])
    assert told == {0: [0.5, None]}
