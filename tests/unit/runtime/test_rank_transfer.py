"""Publications from ranks to replicas that die, hang, are new, or break it."""

import asyncio
from collections.abc import Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from fake_engines import FakeEngine, run_jumping

pytest.importorskip("ray")

from parity.engines.router import Router
from parity.errors import DeadlineError, RoleError, TransferError
from parity.runtime.ray.publication import Way
from parity.runtime.ray.transfer import RankTransfer
from parity.weights.transfer import PublishReport, Weights

NOTHING = Weights(())


class Proxy(FakeEngine):
    """A fake engine with what the driver's view of a process has beside."""

    name = ""

    @property
    def is_lost(self) -> bool:
        return self.mode == "dead"


@dataclass
class Method:
    """A method of an actor."""

    remote: Callable[..., object]


@dataclass
class FakeTrainer:
    """A trainer of one rank that publishes to fake engines; `breaks` says at whom it fails."""

    engines: list[Proxy]
    staged: list[tuple[int, ...]] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    breaks: dict[int, Exception] = field(default_factory=dict)
    breaks_commit: dict[int, Exception] = field(default_factory=dict)
    version: int = 0

    def __post_init__(self) -> None:
        self.stage, self.commit = Method(self._stage), Method(self._commit)
        self.abort = Method(self._abort)
        self.ranks = {"trainer-0": self}
        self.calls = self

    async def gather(self, asked, what: str, *, deadline_s: float):
        return {name: await answer for name, answer in asked.items()}

    async def _stage(self, way: Way, version: int) -> None:
        self.staged.append(way.replicas)
        self.version = version
        await asyncio.sleep(1)
        for number in way.replicas:
            if number in self.breaks:
                raise self.breaks[number]
            if self.engines[number].mode != "well":
                raise DeadlineError(f"receiver {number} didn't answer")

    async def _commit(self) -> PublishReport:
        for number in self.staged[-1]:
            if number not in self.breaks_commit:
                self.engines[number].live = self.version
        for number in self.staged[-1]:
            if number in self.breaks_commit:
                raise self.breaks_commit[number]
        return PublishReport(self.version, 1)

    async def _abort(self, reason: str) -> None:
        self.aborted.append(reason)


class FakeRevival:
    """Says who waits."""

    def __init__(self, *newcomers: int) -> None:
        self._newcomers = newcomers

    def newcomers(self) -> tuple[int, ...]:
        return self._newcomers


class FakeRouter:
    """Knows who serves."""

    def __init__(self, engines: list[Proxy], *serving: int) -> None:
        self.replicas = {
            one.name: "serving" if number in serving else "it left"
            for number, one in enumerate(engines)
        }

    async def switch(self, commit, *, version: int) -> None:
        await commit()

    @asynccontextmanager
    async def publication(self):
        yield


def made(*serving: int, newcomers: tuple[int, ...] = ()) -> tuple[FakeTrainer, RankTransfer]:
    engines = [Proxy() for _ in range(3)]
    for number, engine in enumerate(engines):
        engine.name = f"engine-{number}"
    trainer = FakeTrainer(engines)
    way = Way("zmq_ipc", "/nowhere", (0, 1, 2))
    transfer = RankTransfer(trainer, way, engines=engines, timeout_s=60.0)
    transfer.router = FakeRouter(engines, *serving)
    transfer.revival = FakeRevival(*newcomers)
    return trainer, transfer


def publish(transfer: RankTransfer, version: int = 5) -> None:
    async def once() -> None:
        report = await transfer.publish(NOTHING, version=version, switch=lambda commit: commit())
        assert report.version == version

    run_jumping(once())


def test_newcomers_take_part_beside_those_that_serve() -> None:
    trainer, transfer = made(0, 2, newcomers=(1,))
    publish(transfer)
    assert trainer.staged == [(0, 1, 2)]
    assert [engine.live for engine in trainer.engines] == [5, 5, 5]


@pytest.mark.parametrize("error", [TransferError("another shape"), DeadlineError("no answer")])
def test_a_newcomer_that_breaks_a_publication_is_left_out_of_it(error: Exception, caplog) -> None:
    trainer, transfer = made(0, 2, newcomers=(1,))
    trainer.breaks[1] = error
    publish(transfer)
    assert trainer.staged == [(0, 1, 2), (0, 2)]
    assert trainer.aborted == [str(error)]
    assert [engine.live for engine in trainer.engines] == [5, 0, 5]
    assert "event=publication_begins_again version=5 engines=(0, 2) without=(1,)" in caplog.text


def test_a_replica_that_hangs_or_dies_before_the_commit_is_left_out() -> None:
    for mode in ("hung", "dead"):
        trainer, transfer = made(0, 1, 2)
        trainer.engines[1].fall(mode)
        if mode == "hung":
            trainer.engines[1].check = never
        publish(transfer)
        assert trainer.staged[-1] == (0, 2)
        assert len(trainer.staged) == (2 if mode == "hung" else 1)


async def never() -> int:
    await asyncio.sleep(1e5)
    return 0


def test_an_error_that_isnt_a_replicas_fault_ends_the_publication() -> None:
    trainer, transfer = made(0, 1, 2)
    trainer.breaks[0] = TransferError("the manifest doesn't fit")
    with pytest.raises(TransferError, match="doesn't fit"):
        publish(transfer)
    assert len(trainer.staged) == 1
    trainer, transfer = made(0, 2, newcomers=(1,))
    trainer.breaks[0] = RoleError("trainer-0 died")
    with pytest.raises(RoleError, match="trainer-0"):
        publish(transfer)
    assert len(trainer.staged) == 1
    trainer, transfer = made(newcomers=(1,))
    with pytest.raises(TransferError, match="no engine is left"):
        publish(transfer)


def test_a_newcomer_and_a_serving_replica_that_both_break_it_are_both_left_out() -> None:
    trainer, transfer = made(0, 2, newcomers=(1,))
    trainer.breaks[1] = TransferError("another shape")
    trainer.engines[2].mode = "dead"
    publish(transfer)
    assert trainer.staged == [(0, 1), (0,)]


def test_a_newcomer_that_breaks_the_commit_doesnt_break_it_for_those_that_serve() -> None:
    async def commits() -> None:
        trainer, transfer = made(0, 1, 2)
        await transfer.publish(NOTHING, version=5, switch=lambda commit: commit())
        serving = {one.name: one for one in trainer.engines if one.name != "engine-1"}
        transfer.router = router = Router(serving)
        transfer.revival = FakeRevival(1)
        trainer.breaks_commit[1] = TransferError("receiver 1-0: its process died")
        report = await transfer.publish(NOTHING, version=6, switch=lambda commit: commit())
        assert report.version == router.version == 6
        assert [engine.live for engine in trainer.engines] == [6, 5, 6]
        assert trainer.staged[-1] == (0, 1, 2)
        await router.close()

    run_jumping(commits())
