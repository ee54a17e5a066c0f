"""When a process group is made anew."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

pytest.importorskip("ray")

from parity.errors import TransferError
from parity.runtime.ray.circles import Circles
from parity.runtime.ray.publication import Way
from parity.runtime.ray.transfer import RankTransfer
from parity.weights.transfer import PublishReport, Weights


@dataclass(eq=False)
class Engine:
    name: str
    is_lost: bool = False
    joined: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)

    async def join(self, way: Way) -> None:
        self.joined.append((way.circle, way.replicas))

    async def check(self) -> int:
        return 0


async def publish(circles: Circles, *replicas: int, fails: bool = False) -> int:
    """The number of the group that a publication used."""
    async with circles.circle(Way("collective", "127.0.0.1:1", replicas)) as way:
        await asyncio.sleep(0)
        if fails:
            raise TransferError("it broke")
        return way.circle


def test_a_group_serves_until_a_member_changes_or_a_publication_fails():
    async def scenario() -> None:
        engines = [Engine("engine-0"), Engine("engine-1")]
        circles = Circles(engines)
        assert [await publish(circles, 0, 1) for _ in range(3)] == [1, 1, 1]
        assert await publish(circles, 0) == 2  # one left
        assert await publish(circles, 0, 1) == 3  # it came back
        engines[1] = Engine("engine-1")  # a new process in the same place
        assert await publish(circles, 0, 1) == 4
        assert engines[1].joined == [(4, (0, 1))]
        with pytest.raises(TransferError):
            await publish(circles, 0, 1, fails=True)
        assert await publish(circles, 0, 1) == 5
        assert [number for number, _ in engines[0].joined] == [1, 2, 3, 4, 5]

    asyncio.run(scenario())


@pytest.mark.parametrize("num_breaks", [1, 2])
def test_a_group_that_breaks_with_everyone_alive_is_made_anew_once(num_breaks: int):
    async def scenario() -> None:
        engines = [Engine("engine-0"), Engine("engine-1")]
        trainer = Breaking(num_breaks)
        way = Way("collective", "127.0.0.1:1", (0, 1))
        transfer = RankTransfer(trainer, way, engines=engines, timeout_s=60.0)
        publishing = transfer.publish(Weights(()), version=1, switch=lambda commit: commit())
        if num_breaks == 1:
            assert (await publishing).version == 1
        else:
            with pytest.raises(TransferError, match="it broke"):
                await publishing
        assert trainer.groups == [1, 2]

    asyncio.run(scenario())


class Breaking:
    """A trainer of one rank, whose group breaks some times."""

    def __init__(self, num_breaks: int) -> None:
        self._num_breaks = num_breaks
        self.groups: list[int] = []
        self.ranks, self.calls = {"trainer-0": self}, self
        self.stage, self.commit, self.abort = map(Method, (self._stage, self._commit, self._abort))

    async def gather(self, asked, what: str, *, deadline_s: float):
        return {name: await answer for name, answer in asked.items()}

    async def _stage(self, way: Way, version: int) -> None:
        self.groups.append(way.circle)
        if len(self.groups) <= self._num_breaks:
            raise TransferError("it broke")

    async def _commit(self) -> PublishReport:
        return PublishReport(1, 1)

    async def _abort(self, reason: str) -> None: ...


@dataclass
class Method:
    """A method of an actor."""

    remote: Callable[..., object]
