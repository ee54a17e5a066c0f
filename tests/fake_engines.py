"""Engines without a model that live, die, hang and come back as a test says; a clock that jumps."""

import asyncio
import selectors
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from parity.engines.engine import Engine, EngineCapabilities, EngineStats
from parity.errors import EngineLostError, RequestError, TransferError
from parity.types import Completion

T = TypeVar("T")
Mode = Literal["well", "dead", "hung", "deaf"]
"""dead: everything raises; hung: nothing is answered, not even a cancellation; deaf: serves
requests and answers no check."""


USUAL = EngineCapabilities(updates_in_flight=True, is_seeded=True)


class JumpingSelector(selectors.DefaultSelector):
    """Never sleeps: an idle wait moves the clock on by what was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.num_in_threads = 0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:  # only another thread can wake the loop now
            return super().select(10.0)
        if self.num_in_threads:  # real time, until they are back
            return super().select(min(timeout, 0.05))
        found = super().select(0)
        if timeout > 0 and not found:
            self.now_s += timeout
        return found


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only while everybody waits."""

    def __init__(self) -> None:
        self.clock = JumpingSelector()
        super().__init__(self.clock)

    def time(self) -> float:
        return self.clock.now_s

    def run_in_executor(self, executor, func, *args):
        future = super().run_in_executor(executor, func, *args)
        self.clock.num_in_threads += 1
        future.add_done_callback(self._back)
        return future

    def _back(self, _) -> None:
        self.clock.num_in_threads -= 1

    def stand_still(self, seconds: float) -> None:
        """As if something had blocked the loop for so long."""
        self.clock.now_s += seconds


def run_jumping(main: Coroutine[Any, Any, T], *, within_s: float = 2e4) -> T:
    """Run on a jumping clock; fails where nothing but a wait without end is left."""

    async def bounded() -> T:
        async with asyncio.timeout(within_s):
            return await main

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(bounded())


def standing_still(seconds: float) -> None:
    """As if something had blocked the running loop for so long."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, JumpingLoop)
    loop.stand_still(seconds)


@dataclass(eq=False)
class FakeEngine(Engine):
    """Answers each request after `latency_s` with `num_tokens` tokens of its version."""

    live: int = 0  # the version that is served
    mode: Mode = "well"
    latency_s: float = 1.0
    num_tokens: int = 4
    fails: dict[str, Exception] = field(default_factory=dict)  # by call
    stamp: int | None = None  # of its tokens; None: the version that is served
    can: EngineCapabilities = USUAL
    longest: int = 100
    counters: bool = True
    began: list[tuple[str, int]] = field(default_factory=list)  # request id, version
    ended: list[str] = field(default_factory=list)
    seeds: list[int | None] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    is_paused: bool = False
    is_sleeping: bool = False
    is_closed: bool = False
    staged: int | None = None
    sampled: int = 0
    _running: dict[str, asyncio.Event] = field(default_factory=dict)
    _revived: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def capabilities(self) -> EngineCapabilities:
        return self.can

    @property
    def version(self) -> int:
        return self.live

    @property
    def max_length(self) -> int:
        return self.longest

    def stats(self) -> EngineStats:
        return EngineStats(
            sampled_tokens=self.sampled,
            decoded_rows=self.sampled if self.counters else None,
            busy_s=0.5 * self.sampled,
            running=len(self._running),
            is_asleep=self.is_sleeping,
        )

    def fall(self, mode: Mode) -> None:
        """Be this from now on; what runs meets it too."""
        self.mode = mode
        self._revived.set()
        self._revived = asyncio.Event()

    def come_back(self, *, version: int | None = None) -> None:
        """Well again, with nothing of what ran."""
        self.live = self.live if version is None else version
        self.fall("well")

    async def _meet(self, call: str) -> None:
        self.calls.append(call)
        await self._suffer()
        if call in self.fails:
            raise self.fails[call]

    async def _suffer(self) -> None:
        while self.mode == "hung":
            try:
                await self._revived.wait()
            except asyncio.CancelledError:
                if self.mode != "hung":
                    raise
        if self.mode == "dead" or self.is_closed:
            raise EngineLostError("the engine was closed or is dead")

    async def generate(self, tokens, sampling, *, request_id=None) -> Completion:
        name = str(request_id)
        if name in self._running:
            raise RequestError(f"request id {name!r} is in use")
        self.began.append((name, self.live))
        self.seeds.append(sampling.seed)
        await self._meet("generate")
        aborted = self._running[name] = asyncio.Event()
        try:
            return await self._sampled(aborted)
        finally:
            del self._running[name]
            self.ended.append(name)

    async def _sampled(self, aborted: asyncio.Event) -> Completion:
        stamps: list[int] = []
        for _ in range(self.num_tokens):
            falls = asyncio.ensure_future(self._revived.wait())
            aborts = asyncio.ensure_future(aborted.wait())
            try:
                await asyncio.wait(
                    {falls, aborts},
                    timeout=self.latency_s / self.num_tokens,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                while (self.is_paused or self.is_sleeping) and not aborted.is_set():
                    await asyncio.sleep(0.5)
            finally:
                falls.cancel()
                aborts.cancel()
            await self._suffer()
            if aborted.is_set():
                break
            stamps.append(self.live if self.stamp is None else self.stamp)
            self.sampled += 1
        return Completion(
            tokens=tuple(range(len(stamps))),
            logprobs=(-1.0,) * len(stamps),
            versions=tuple(stamps),
            finish_reason="abort" if aborted.is_set() else "stop",
        )

    async def abort(self, request_id: str) -> None:
        await self._meet("abort")
        if request_id in self._running:
            self._running[request_id].set()

    async def check(self) -> int:
        if self.mode == "deaf":
            await asyncio.sleep(1e5)
        await self._meet("check")
        return self.live

    async def pause(self) -> None:
        await self._meet("pause")
        self.is_paused = True

    async def resume(self) -> None:
        await self._meet("resume")
        self.is_paused = False

    async def sleep(self, level=1) -> None:
        await self._meet("sleep")
        self.is_sleeping = True

    async def wake(self) -> None:
        await self._meet("wake")
        self.is_sleeping = False

    async def drain(self) -> None:
        await self._meet("drain")
        while self._running:
            await asyncio.sleep(0.5)

    async def begin_load(self, manifest) -> None:
        await self._meet("begin_load")
        self.staged = manifest.version

    async def load(self, tensors) -> None:
        await self._meet("load")
        self.loaded += [name for name, _ in tensors]

    async def commit_load(self, version: int) -> None:
        await self._meet("commit_load")
        if self.staged != version:
            raise TransferError(f"version {version} can't be committed: {self.staged} is staged.")
        self.live, self.staged = version, None

    async def abort_load(self, reason: str) -> None:
        await self._meet("abort_load")
        self.staged = None

    async def close(self) -> None:
        self.calls.append("close")
        self.is_closed = True
        self.fall("dead")
