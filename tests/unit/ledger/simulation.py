"""A small run that keeps a ledger as a real one does, and can be killed at any write.

Tasks, answers and rewards are pure functions of seeds and weights; "weights" are a digest of
everything trained so far. With `max_lag=0` the whole run is a function of its seed, so a run
that was killed and resumed must end with the weights of one that wasn't.
"""

import hashlib
import json
import os
import random
import signal
from dataclasses import dataclass
from pathlib import Path

from parity.ledger import recovery, retention, writer
from parity.ledger.config import LedgerConfig
from parity.ledger.keys import sibling_seeds
from parity.ledger.ledger import Mark
from parity.ledger.stored import StoredGroup
from parity.types import Episode, GraderFailure, Group, Scored, Task, Unscored

CONFIG = LedgerConfig(payload_steps=3, linger_s=0.001)


@dataclass(frozen=True)
class Setup:
    """What a simulated run is a function of."""

    seed: int = 0
    steps: int = 6
    groups_per_step: int = 3
    size: int = 2
    max_lag: int = 0
    every_steps: int = 2  # checkpoints
    keep: int = 2


def task_at(position: int) -> Task:
    return Task(task_id=f"task/{position}", tokens=(7, position % 50, 9))


def episode_of(
    task: Task, index: int, sibling: int, *, seed: int, weights: tuple[str, ...], version: int
) -> Episode:
    """An answer sampled under one version, or begun under it and ended under the next."""
    draw = random.Random(f"{seed} {weights[version]}")
    versions = [version] * draw.randrange(1, 6)
    if len(weights) > version + 1:
        versions += [version + 1] * draw.randrange(0, 3)
    tokens = tuple(draw.randrange(70_000) for _ in versions)
    reward = draw.choice((Scored(0.0), Scored(1.0, {"exact": 0.1}), Scored(1.0), Unscored("odd")))
    if draw.random() < 0.05:
        reward = GraderFailure("broke")
    num = len(task.tokens)
    return Episode(
        episode_id=f"{index}/{sibling}",
        task=task,
        tokens=task.tokens + tokens,
        loss_mask=(False,) * num + (True,) * len(tokens),
        logprobs=(0.0,) * num + tuple(-draw.random() for _ in tokens),
        versions=(-1,) * num + tuple(versions),
        response="".join(chr(65 + token % 26) for token in tokens),
        finish_reason="stop",
        reward=reward,
    )


class Simulation:
    """One process of the run: new, or resumed from its newest checkpoint."""

    def __init__(self, dir: Path, setup: Setup, *, life: int = 0) -> None:
        self.dir, self.setup = dir, setup
        self.chance = random.Random(f"{setup.seed} {life}" if setup.max_lag else "any")
        self.weights: list[str] = ["start"]  # by version
        self.position = 0
        self.again: list[recovery.InFlight] = []
        self.stored: dict[int, StoredGroup] = {}
        self.waiting: dict[int, tuple[Task, int, int]] = {}  # index: task, attempt, start version
        self.finished: dict[int, Group] = {}
        self.num_reused = 0
        state = self.newest()
        ledger = dir / "ledger"
        if not ledger.exists() or not any(ledger.glob("*.sqlite")):
            self.ledger = recovery.create_ledger(ledger, max_lag=setup.max_lag, config=CONFIG)
            return
        mark = None if state is None else Mark.of(state["mark"])
        self.ledger, found = recovery.resume_ledger(
            ledger, mark, max_lag=setup.max_lag, config=CONFIG
        )
        self.again, self.stored = list(found.in_flight), dict(found.reusable)
        self.position = found.mark.task_position
        if state is not None:
            self.weights = list(state["weights"])

    @property
    def version(self) -> int:
        return len(self.weights) - 1

    def run(self) -> str:
        """To the end; the final weights."""
        with self.ledger:
            while self.version < self.setup.steps:
                self.step()
            return self.weights[-1]

    def step(self) -> None:
        setup = self.setup
        capacity = setup.groups_per_step * (1 + setup.max_lag)
        while len(self.finished) < setup.groups_per_step or not self.takes_oldest():
            while len(self.waiting) + len(self.finished) < capacity:
                self.begin()
            self.finish()
        taken = [self.finished.pop(i) for i in sorted(self.finished)[: setup.groups_per_step]]
        step = self.version + 1
        advantages = {
            g.index: [None if value is None else value - 0.5 for value in g.rewards] for g in taken
        }
        self.ledger.trained(step, version=self.version, advantages=advantages)
        data = repr(
            [(g.index, [(e.tokens, e.logprobs, e.reward) for e in g.episodes]) for g in taken]
        )
        self.weights.append(hashlib.sha256((self.weights[-1] + data).encode()).hexdigest()[:16])
        if step % setup.every_steps == 0:
            self.checkpoint(step)

    def takes_oldest(self) -> bool:
        """Whether the oldest groups are finished, so that none passes the lag bound."""
        oldest = sorted([*self.waiting, *self.finished])[: self.setup.groups_per_step]
        return all(index in self.finished for index in oldest)

    def begin(self) -> None:
        if self.again:
            group = self.again.pop(0)
            index, position, task = group.index, group.task_position, task_at(group.task_position)
            attempt = group.attempt
            is_new = False
        else:
            index, position = self.ledger.mark(version=0, task_position=0).next_group, self.position
            task, attempt, is_new = task_at(position), 0, True
            self.position += 1 + (position % 5 == 4)  # some tasks are passed over
        stored = self.stored.pop(index, None)
        group = None if stored is None else stored.group(task)
        if stored is None or group is None or is_new:
            attempt = self.ledger.issued(
                index, task=task, position=position, epoch=0, size=self.setup.size
            )
        if stored is not None and group is not None:
            self.ledger.reused(stored)
            self.num_reused += 1
            self.admit(group)
        else:
            self.waiting[index] = (task, attempt, self.version)

    def finish(self) -> None:
        """One waiting group is generated and scored, in any order where that may be."""
        if not self.waiting:
            return
        index = (
            self.chance.choice(sorted(self.waiting)) if self.setup.max_lag else min(self.waiting)
        )
        task, attempt, version = self.waiting.pop(index)
        seeds = sibling_seeds(
            self.setup.seed, task=index, num_siblings=self.setup.size, attempt=attempt
        )
        episodes = [
            episode_of(task, index, n, seed=seed, weights=tuple(self.weights), version=version)
            for n, seed in enumerate(seeds)
        ]
        self.ledger.generated(index, episodes, sampling_attempts=[attempt] * len(episodes))
        self.ledger.scored(index, [episode.reward for episode in episodes])
        self.admit(Group(task=task, episodes=tuple(episodes), index=index))

    def admit(self, group: Group) -> None:
        values = [value for value in group.rewards if value is not None]
        if not values:
            self.ledger.ended(group.index, "failed", reason="no_scored_episode")
        elif values == [0.0] * self.setup.size:
            self.ledger.ended(group.index, "dropped", reason="zero_spread")
        else:
            self.ledger.admitted(group.index)
            self.finished[group.index] = group

    def checkpoint(self, step: int) -> None:
        """As the real one: flush, write, fsync, rename, commit, then prune."""
        mark = self.ledger.mark(version=self.version, task_position=self.position)
        self.ledger.flush()
        folder = self.dir / "checkpoints"
        folder.mkdir(exist_ok=True)
        partial, final = folder / ".partial", folder / f"step_{step:08d}.json"
        with partial.open("w") as file:
            json.dump({"mark": mark.as_json(), "weights": self.weights}, file)
            file.flush()
            os.fsync(file.fileno())
        os.rename(partial, final)  # noqa: PTH104 (counted as a write)
        self.ledger.commit(mark)
        paths = sorted(folder.glob("step_*.json"))
        for old in paths[: -self.setup.keep]:
            os.unlink(old)  # noqa: PTH108
        oldest = paths[-self.setup.keep :][0]
        self.ledger.retire(oldest_checkpoint_step=int(oldest.stem.removeprefix("step_")))

    def newest(self) -> dict[str, object] | None:
        paths = sorted((self.dir / "checkpoints").glob("step_*.json"))
        return json.loads(paths[-1].read_text()) if paths else None


class Killer:
    """Kills this process (SIGKILL) at its write number `point`, in the middle where it has one.

    Writes are: system calls that write, sync, rename or unlink, and every SQL statement.
    """

    def __init__(self, point: int) -> None:
        self.left = point

    def arm(self) -> None:
        os.write = self.half(os.write)
        for name in ("fsync", "rename", "unlink"):
            setattr(os, name, self.before(getattr(os, name)))
        for module in (writer, recovery, retention):
            module.connect = self.traced(module.connect)

    def passes(self) -> bool:
        self.left -= 1
        return self.left == 0

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def half(self, write):
        def call(descriptor: int, data: bytes) -> int:
            if self.passes():
                write(descriptor, data[: len(data) // 2])
                self.die()
            return write(descriptor, data)

        return call

    def before(self, plain):
        def call(*arguments: object) -> object:
            if self.passes():
                self.die()
            return plain(*arguments)

        return call

    def traced(self, connect):
        def call(path: Path):
            connection = connect(path)
            connection.set_trace_callback(lambda _: self.die() if self.passes() else None)
            return connection

        return call


def play(dir: Path, setup: Setup, life: int, point: int | None) -> None:
    """The body of a child process."""
    if point is not None:
        Killer(point).arm()
    simulation = Simulation(dir, setup, life=life)
    weights = simulation.run()
    (dir / "end.json").write_text(json.dumps({"weights": weights, "reused": simulation.num_reused}))
