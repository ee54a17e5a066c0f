"""What the router costs: requests per second through it beside calling an engine directly.

    python bench/router.py [--requests 20000] [--json FILE]

One process, one event loop, engines that answer at once, so that nothing but the calls is
measured. Each way of calling gets the same tasks, and they take turns; the best of five repeats
counts. Seconds are those of the processor, which other work beside it changes little: what one
core that does nothing else would serve. `direct` is one task per request that calls the engine;
the ratio says how many direct calls a routed one costs.
"""

import argparse
import asyncio
import json
import os
import platform
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from parity.engines.config import RouterConfig
from parity.engines.engine import Engine, EngineCapabilities, EngineStats
from parity.engines.router import Router
from parity.types import Completion, Sampling

SAMPLING = Sampling(max_new_tokens=1, seed=0)
REPEATS = 5
IN_FLIGHT = 256
GROUP_SIZE = 8
TARGET_PER_S = 20_000


class NoEngine(Engine):
    """Answers at once."""

    answer = Completion((1,), (0.0,), (0,), "stop")

    @property
    def capabilities(self) -> EngineCapabilities:
        return EngineCapabilities(updates_in_flight=True, is_seeded=True)

    @property
    def version(self) -> int:
        return 0

    @property
    def max_length(self) -> int:
        return 1000

    def stats(self) -> EngineStats:
        return EngineStats()

    async def generate(
        self, tokens: tuple[int, ...], sampling: Sampling, *, request_id: str | None = None
    ) -> Completion:
        return self.answer

    async def abort(self, request_id: str) -> None: ...

    async def pause(self) -> None: ...

    async def resume(self) -> None: ...

    async def drain(self) -> None: ...

    async def begin_load(self, manifest: object) -> None: ...

    async def load(self, tensors: object) -> None: ...

    async def commit_load(self, version: int) -> None: ...

    async def abort_load(self, reason: str) -> None: ...

    async def close(self) -> None: ...


@dataclass
class Row:
    """One way of calling."""

    way: str
    requests_per_s: float
    times_direct: float = 1.0  # of the cost of a direct call


async def measure(engine: Engine, requests: int) -> float:
    """Requests per second with `IN_FLIGHT` tasks at a time, siblings side by side."""
    prompts = [tuple(range(group % 64, group % 64 + 64)) for group in range(requests // GROUP_SIZE)]
    generate: Callable[..., Awaitable[Completion]] = engine.generate
    begun = time.process_time()
    for first in range(0, requests, IN_FLIGHT):
        last = min(first + IN_FLIGHT, len(prompts) * GROUP_SIZE)
        tasks = [
            asyncio.create_task(  # pyright: ignore[reportArgumentType]
                generate(prompts[n // GROUP_SIZE], SAMPLING, request_id=f"request-{n}")
            )
            for n in range(first, last)
        ]
        await asyncio.gather(*tasks)
    return requests / (time.process_time() - begun)


async def compare(requests: int) -> list[Row]:
    ways: dict[str, Engine] = {"direct": NoEngine()}
    for count in (1, 4, 16, 64):
        engines = {f"replica-{n}": NoEngine() for n in range(count)}
        ways[f"router, {count} replicas"] = Router(engines, RouterConfig())
    best = dict.fromkeys(ways, 0.0)
    for _ in range(REPEATS):
        for way, engine in ways.items():
            best[way] = max(best[way], await measure(engine, requests))
    for engine in ways.values():
        await engine.close()
    return [Row(way, rate, best["direct"] / rate) for way, rate in best.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=20_000, help="of one repeat")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    rows = asyncio.run(compare(arguments.requests))
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, load {load:.1f} at start\n")
    print("| way | requests/s of one core | times a direct call | reaches 20,000/s |")
    print("|---|---:|---:|---|")
    for row in rows:
        reached = "yes" if row.requests_per_s >= TARGET_PER_S else "no"
        print(f"| {row.way} | {row.requests_per_s:,.0f} | {row.times_direct:.1f} | {reached} |")
    if arguments.json:
        facts = {"python": platform.python_version(), "cores": os.cpu_count(), "load": load}
        result = {"facts": facts, "rows": [asdict(row) for row in rows]}
        arguments.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
