"""Whatever happens to the replicas, and whenever: the promises of the router hold.

Random deaths, hangs, recoveries, joins, removals, pauses, publications, aborts and cancellations
on a clock that jumps. Every request ends exactly once and within a bound, no replica is given a
request while it serves another version than the pool, no answer mixes in a version that is not
of its time, and nothing of the router is left at the end.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any

from fake_engines import FakeEngine, run_jumping
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parity.engines.config import RouterConfig
from parity.engines.engine import Engine
from parity.engines.router import Router
from parity.errors import EngineError, ParityError
from parity.types import Completion, Sampling
from parity.weights.manifest import Manifest

CONFIG = RouterConfig(
    max_retries=2,
    sticky_slack=2,
    check_interval_s=1.0,
    check_timeout_s=2.0,
    stall_timeout_s=30.0,
    call_timeout_s=4.0,
    join_timeout_s=20.0,
)
SAMPLING = Sampling(max_new_tokens=8)
MOVES = (
    "request request request request die hang deafen revive revive revive renew break_abort "
    "mend mend join join remove "
    "pause resume publish misload switch lie abort cancel"
).split()
MOST_S = 400.0  # three tries, each ended by a check or a stall, and a joining, many times over


class Watched(FakeEngine):
    """Notes when it is given a request while it serves another version than the pool."""

    def __init__(self, world: "World", **settings: Any) -> None:
        super().__init__(**settings)
        self.world = world
        self.renewed_s = -1.0

    async def generate(self, tokens, sampling, *, request_id=None) -> Completion:
        # The try begins one turn after the choice; a switch or the test's hand may come between.
        router = self.world.router
        is_new = self.renewed_s == asyncio.get_running_loop().time()
        if self.live != router.version and not router._pool.is_switching and not is_new:
            self.world.wrong.append(f"{request_id} at {self.live}, pool at {router.version}")
        return await super().generate(tokens, sampling, request_id=request_id)


class World:
    """A router, its engines, and what has been done with them."""

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self.engines: dict[str, Watched] = {}
        for name in ("a", "b", "c"):
            self.engines[name] = Watched(self)
        self.router = Router(dict(self.engines), CONFIG, bring=self.bring)
        self.ends: dict[str, list[object]] = {}
        self.requests: dict[str, asyncio.Task[Completion]] = {}
        self.versions: dict[str, int] = {}
        self.others: list[asyncio.Task[None]] = []
        self.newest = 0
        self.publishing: asyncio.Task[None] | None = None

    async def bring(self, name: str, engine: Engine, version: int) -> None:
        assert isinstance(engine, FakeEngine)
        await engine._meet("bring")
        await asyncio.sleep(0.5)
        await engine._suffer()
        engine.live = version

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        async def quiet() -> None:
            try:
                await work
            except ParityError:
                return

        self.others.append(asyncio.create_task(quiet()))

    def some_engine(self, number: int) -> tuple[str, Watched]:
        names = sorted(self.engines)
        name = names[number % len(names)]
        return name, self.engines[name]

    def request(self, number: int) -> None:
        name = f"{number % 3}/{len(self.requests)}"
        self.versions[name] = self.router.version
        task = asyncio.create_task(self.router.generate((1, number % 3), SAMPLING, request_id=name))
        self.requests[name] = task
        task.add_done_callback(lambda done: self.ends.setdefault(name, []).append(done))

    def do(self, move: str, number: int) -> None:
        if move == "request":
            for _ in range(1 + number % 5):
                self.request(number)
        elif move in ("publish", "misload", "switch"):
            self.publish(move, self.some_engine(number)[0])
        elif move in ("pause", "resume"):
            self.begin(getattr(self.router, move)())
        elif move in ("abort", "cancel"):
            self.break_off(move, number)
        elif move in ("join", "remove"):
            self.change_pool(move, number)
        else:
            self.strike(move, self.some_engine(number)[1])

    def break_off(self, move: str, number: int) -> None:
        if not self.requests:
            return
        name = list(self.requests)[number % len(self.requests)]
        if move == "abort":
            self.begin(self.router.abort(name))
        else:
            self.requests[name].cancel()

    def change_pool(self, move: str, number: int) -> None:
        if move == "remove":
            self.router.remove(self.some_engine(number)[0], "removed by the test")
            return
        new = f"n{len(self.engines)}"
        self.engines[new] = Watched(self, live=number % 2 * self.router.version)
        self.begin(self.router.add(new, self.engines[new]))

    def strike(self, move: str, engine: "Watched") -> None:
        if move == "die":
            engine.fall("dead")
        elif move == "hang":
            engine.fall("hung")
        elif move == "deafen":
            engine.fall("deaf")
        elif move == "revive":
            engine.come_back()
        elif move == "renew":  # restarted from the first weights
            engine.come_back(version=0)
            engine.renewed_s = asyncio.get_running_loop().time()
        elif move == "break_abort":
            engine.fails = {"abort": ConnectionError("reset"), "pause": EngineError("no")}
        elif move == "mend":
            engine.fails, engine.stamp = {}, None
        else:
            assert move == "lie"
            engine.stamp = self.newest + 5

    def publish(self, move: str, name: str) -> None:
        """One publisher at a time, as the contract says."""
        if self.publishing is None or self.publishing.done():
            self.newest += 1
            work = self.switch(name) if move == "switch" else self.load(move)
            self.begin(work)
            self.publishing = self.others[-1]

    async def load(self, move: str) -> None:
        version = self.newest
        await self.router.begin_load(Manifest.of(version, []))
        try:
            await asyncio.sleep(0.7)
            await self.router.commit_load(version + (move == "misload"))
        except BaseException:
            await self.router.abort_load("the commit failed")
            raise

    async def switch(self, missed: str) -> None:
        """A transport that reaches everyone but one, whose failure it reports."""
        version = self.newest

        async def commit() -> None:
            for name, engine in list(self.engines.items()):
                if name != missed and engine.mode == "well":
                    engine.live = version
                await asyncio.sleep(0.2)
            if version % 2:
                raise ConnectionError(f"{missed} wasn't reached")

        await self.router.switch(commit, version=version)

    async def end(self) -> None:
        """Let it run out, then look at everything."""
        for engine in self.engines.values():
            engine.fails = {}
        self.begin(self.router.resume())
        if self.requests:
            _, open_ones = await asyncio.wait(self.requests.values(), timeout=MOST_S)
            assert not open_ones
        if self.others:
            _, open_others = await asyncio.wait(self.others, timeout=MOST_S)
            assert not open_others
        for engine in self.engines.values():
            engine.is_paused = False
        await asyncio.wait_for(self.router.drain(), MOST_S)

    def check(self) -> None:
        assert not self.wrong
        for other in self.others:
            assert other.cancelled() or not isinstance(other.exception(), AssertionError)
        for name, task in self.requests.items():
            assert self.ends[name] == [task]
            if task.cancelled():
                continue
            error = task.exception()
            if error is not None:
                assert isinstance(error, EngineError), error
                continue
            stamps = task.result().versions
            assert all(self.versions[name] <= stamp <= self.newest for stamp in stamps)
            assert task.result().finish_reason == "abort" or len(stamps) == 4


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(
    moves=st.lists(
        st.tuples(
            st.sampled_from(MOVES),
            st.integers(0, 20),
            st.sampled_from([0.0, 0.0, 0.1, 0.3, 1.0, 5.0]),
        ),
        min_size=30,
        max_size=70,
    )
)
def test_every_request_ends_once_and_by_its_version_whatever_happens(
    moves: list[tuple[str, int, float]],
) -> None:
    async def live() -> None:
        outside = asyncio.all_tasks()
        world = World()
        try:
            for move, number, pause_s in moves:
                world.do(move, number)
                await asyncio.sleep(pause_s)
            await world.end()
            world.check()
        finally:
            for engine in world.engines.values():
                engine.come_back()  # what hung lets go of its tasks
        await world.router.close()
        for engine in world.engines.values():  # those that were removed are the caller's
            engine.is_paused = False
            await engine.close()
        await asyncio.sleep(10)
        assert asyncio.all_tasks() == {asyncio.current_task(), *outside}
        assert world.router._requests.calls == {}

    run_jumping(live())
