"""How many events a second the ledger takes, and what it costs a step of 256 episodes.

    python bench/ledger.py [--quick] [--json]

The same lives of the same groups (issued, generated, scored, admitted, trained; payloads
included) are recorded three times in one process: by the ledger; by plain SQLite, one
autocommitted INSERT per event; by appending one JSON line per event to a file. Repeats are
interleaved, the best one counts. CPU is that of the whole process, the ledger's own thread
included, so it is the cost on one core whatever else the machine does; wall ends when the
events are in the file (not synced: a checkpoint does that). Exit status 1 where the ledger
takes fewer than 20,000 events per CPU second at 32 tokens an answer.
"""

import argparse
import json
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from parity.ledger.config import LedgerConfig
from parity.ledger.recovery import create_ledger
from parity.types import Episode, Scored, Task

GROUPS, SIZE = 32, 8
EVENTS_PER_STEP = GROUPS * (SIZE * 2 + 3) + 1
REQUIRED_PER_S = 20_000
Steps = list[list[tuple[Task, list[Episode]]]]


@dataclass(frozen=True)
class Cost:
    """Of recording all steps once."""

    cpu_s: float
    wall_s: float
    size_bytes: int


def made(num_steps: int, num_tokens: int) -> Steps:
    """Groups whose answers have `num_tokens` tokens, with log-probs as float32 gives them."""
    logprobs = tuple(-(n % 64) / 64 for n in range(num_tokens))

    def episode(task: Task, sibling: int, version: int) -> Episode:
        num_prompt = len(task.tokens)
        return Episode(
            episode_id=f"{task.task_id}/{sibling}",
            task=task,
            tokens=task.tokens + tuple((sibling + 7 * n) % 30_000 for n in range(num_tokens)),
            loss_mask=(False,) * num_prompt + (True,) * num_tokens,
            logprobs=(0.0,) * num_prompt + logprobs,
            versions=(-1,) * num_prompt + (version,) * num_tokens,
            response="x" * num_tokens,
            finish_reason="stop",
            reward=Scored(float(sibling % 2)),
        )

    def group(index: int, version: int) -> tuple[Task, list[Episode]]:
        task = Task(task_id=f"task/{index}", tokens=tuple(range(20)))
        return task, [episode(task, sibling, version) for sibling in range(SIZE)]

    return [[group(step * GROUPS + n, step) for n in range(GROUPS)] for step in range(num_steps)]


def by_ledger(dir: Path, steps: Steps) -> None:
    with create_ledger(dir, max_lag=0, config=LedgerConfig()) as ledger:
        index = 0
        for version, groups in enumerate(steps):
            taken: dict[int, list[float | None]] = {}
            for task, episodes in groups:
                ledger.issued(index, task=task, position=index, epoch=0, size=SIZE)
                ledger.generated(index, episodes)
                ledger.scored(index, [episode.reward for episode in episodes])
                ledger.admitted(index)
                taken[index] = [0.5] * SIZE
                index += 1
            ledger.trained(version + 1, version=version, advantages=taken)
        ledger.flush(is_durable=False)


def records(steps: Steps) -> Iterator[dict[str, object]]:
    """The same events as plain records, for the rivals."""
    index = 0
    for version, groups in enumerate(steps):
        indices = range(index, index + len(groups))
        for task, episodes in groups:
            yield {"kind": "issued", "group": index, "task": task.task_id, "size": SIZE}
            for sibling, episode in enumerate(episodes):
                place = {"group": index, "sibling": sibling}
                yield {
                    "kind": "generated",
                    **place,
                    "tokens": episode.tokens,
                    "loss_mask": episode.loss_mask,
                    "logprobs": episode.logprobs,
                    "versions": episode.versions,
                    "response": episode.response,
                    "finish_reason": episode.finish_reason,
                }
                assert isinstance(episode.reward, Scored)
                yield {"kind": "scored", **place, "value": episode.reward.value}
            yield {"kind": "admitted", "group": index}
            index += 1
        yield {"kind": "step", "step": version + 1, "version": version}
        for group in indices:
            yield {"kind": "trained", "group": group, "step": version + 1}


def by_jsonl(dir: Path, steps: Steps) -> None:
    dir.mkdir()
    with (dir / "events.jsonl").open("w") as file:
        for record in records(steps):
            file.write(json.dumps(record) + "\n")
            file.flush()  # or a kill loses it


def by_autocommit(dir: Path, steps: Steps) -> None:
    dir.mkdir()
    connection = sqlite3.connect(dir / "events.sqlite", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("CREATE TABLE events (seq INTEGER PRIMARY KEY, kind TEXT, record TEXT)")
    for record in records(steps):
        values = (record["kind"], json.dumps(record))
        connection.execute("INSERT INTO events (kind, record) VALUES (?, ?)", values)
    connection.close()


WAYS: dict[str, Callable[[Path, Steps], None]] = {
    "ledger": by_ledger,
    "sqlite autocommit": by_autocommit,
    "jsonl append": by_jsonl,
}


def measured(record: Callable[[Path, Steps], None], steps: Steps) -> Cost:
    with tempfile.TemporaryDirectory() as name:
        dir = Path(name) / "record"
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        record(dir, steps)
        cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - wall_s
        size = sum(path.stat().st_size for path in dir.rglob("*") if path.is_file())
        return Cost(cpu_s, wall_s, size)


def best_of(steps: Steps, repeats: int) -> dict[str, Cost]:
    """Interleaved, so that a busy moment doesn't hit one way alone."""
    rounds = [{name: measured(way, steps) for name, way in WAYS.items()} for _ in range(repeats)]
    return {name: min((r[name] for r in rounds), key=lambda cost: cost.cpu_s) for name in WAYS}


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer steps and repeats")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    num_steps, repeats = (5, 2) if options.quick else (20, 5)
    events = num_steps * EVENTS_PER_STEP
    found = {n: best_of(made(num_steps, n), repeats) for n in (32, 512)}
    per_s = events / found[32]["ledger"].cpu_s
    if options.json:
        plain = {n: {name: asdict(c) for name, c in costs.items()} for n, costs in found.items()}
        print(json.dumps({"events": events, "events_per_cpu_s": per_s, "tokens": plain}))
        return int(per_s < REQUIRED_PER_S)
    print(f"{num_steps} steps of {GROUPS * SIZE} episodes, {events} events, best of {repeats}")
    print("tokens  way                events/CPU s  events/s  CPU ms/step  wall ms/step  MB/step")
    for tokens, costs in found.items():
        for name, cost in costs.items():
            print(
                f"{tokens:>6}  {name:<17}  {events / cost.cpu_s:>12,.0f}"
                f"  {events / cost.wall_s:>8,.0f}  {1000 * cost.cpu_s / num_steps:>11.1f}"
                f"  {1000 * cost.wall_s / num_steps:>12.1f}"
                f"  {cost.size_bytes / num_steps / 1e6:>7.2f}"
            )
    print(f"ledger: {per_s:,.0f} events per CPU second; wanted {REQUIRED_PER_S:,}")
    return int(per_s < REQUIRED_PER_S)


if __name__ == "__main__":
    sys.exit(main())
