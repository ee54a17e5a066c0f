"""What the schedule gains and what Parity's own orchestration costs, with simulated work.

    python -m bench.schedule [--quick] [--json FILE]

The loop, buffer, group runner, issuer, ledger, dump and trackers are those of a run, wired by
`build.wire`; only the engine and the trainer are simulated: they sleep on the clock for as long
as their work would take, so nothing here needs a device, and a busy machine makes every number
worse. Grading is a function of this process.

    overlap       a step's answers take as long as a step's training, lengths are log-normal:
                  samples a second with max_lag=1 over max_lag=0
    orchestration 256 groups a step and 1 second of training, generating beside it in less: how
                  much longer than the trainer's second a step takes
    driver        answers and steps that take no time: episodes a second
    publication   zmq_ipc to 4 replicas over 1, each in a process of its own, whose device takes
                  1 GiB/s (it sleeps for as long). `copied` is the same ratio with replicas that
                  copy and verify every byte: four of them share the cores of this machine

Exit status 1 where a number is missed: 1.6, 5 %, 2000, 1.5.
"""

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import torch

from bench.weights import Tensors, at_once, empty_store, mixed_tensors
from parity.build import wire
from parity.config.compose import load_train
from parity.config.schema import TrainConfig
from parity.config.threads import ThreadPlan
from parity.engines.engine import Engine, EngineCapabilities, EngineStats
from parity.evaluation import Evaluator
from parity.folder import RunFolder
from parity.ledger.audit import audit
from parity.ledger.recovery import create_ledger
from parity.loop import train
from parity.models import heavy
from parity.observe.dashboard.quiet import QuietDisplay
from parity.observe.tracking import Trackers
from parity.parts import Parts
from parity.rollouts.dump import EpisodeDump
from parity.rollouts.generation import Generation
from parity.rollouts.group import EpisodeSetup
from parity.run import Progress
from parity.runtime.inline import InlineRuntime
from parity.tasks.source import TaskSource
from parity.types import (
    Answer,
    Completion,
    RewardResult,
    Sample,
    Sampling,
    Scored,
    StepReport,
    Task,
)
from parity.weights.config import WeightsConfig
from parity.weights.host.endpoints import RunDirectory
from parity.weights.manifest import TensorEntry
from parity.weights.session.store import StagedStore
from parity.weights.transfer import PublishReport, Switch, Transfer, Weights
from parity.weights.zmq_ipc import ZmqReceiver, ZmqTransfer

PROMPT = tuple(range(3, 23))
MEDIAN_TOKENS, SIGMA = 32, 0.5  # of an answer's length, log-normal
_NOISE = random.Random(0)
LENGTHS = [max(1, round(MEDIAN_TOKENS * _NOISE.lognormvariate(0.0, SIGMA))) for _ in range(10_007)]
GOALS = {"overlap": 1.6, "orchestration": 0.05, "driver": 2000.0, "publication": 1.5}


class Tasks(TaskSource):
    """Prompts that cost nothing."""

    @property
    def size(self) -> int:
        return 1_000_000

    def task(self, index: int) -> Task:
        return Task(task_id=f"task/{index}", prompt="p", answer="1")

    def order(self, indices: range, seed: int, epoch: int) -> list[int]:
        return list(indices)


class Plain:
    """Renders and decodes at no cost."""

    def render(self, task: Task) -> tuple[int, ...]:
        return PROMPT

    def decode(self, tokens: Sequence[int]) -> str:
        return "x" * len(tokens)


class Alternating:
    """Every other answer is right, whatever it says."""

    async def grade(self, answers: Sequence[Answer], *, alone: bool = False) -> list[RewardResult]:
        return [Scored(float(n % 2)) for n, _ in enumerate(answers)]


class SleepingEngine(Engine):
    """Decodes `slots` answers side by side, a token every `token_s` seconds (0: all at once).

    Publications come between two tokens, and every token has the version that was live then.
    """

    def __init__(self, *, slots: int, token_s: float) -> None:
        self._free, self._token_s = slots, token_s
        self._waiting: deque[asyncio.Future[None]] = deque()  # asyncio's semaphore searches them
        self._version, self._since = 0, 0.0
        self._sampled = 0

    @property
    def capabilities(self) -> EngineCapabilities:
        return EngineCapabilities(updates_in_flight=True, is_seeded=True)

    @property
    def version(self) -> int:
        return self._version

    @property
    def max_length(self) -> int:
        return 100_000

    def stats(self) -> EngineStats:
        return EngineStats(sampled_tokens=self._sampled)

    async def generate(
        self, tokens: tuple[int, ...], sampling: Sampling, *, request_id: str | None = None
    ) -> Completion:
        length = length_of(sampling.seed or 0)
        if self._free:
            self._free -= 1
        else:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            await turn
        begun, before = time.monotonic(), self._version
        await asyncio.sleep(length * self._token_s)
        while self._waiting and self._waiting[0].done():  # cancelled
            self._waiting.popleft()
        if self._waiting:
            self._waiting.popleft().set_result(None)
        else:
            self._free += 1
        num_old = length
        if self._version != before:  # at most one publication ago, or the bound is broken anyway
            share = (self._since - begun) / max(time.monotonic() - begun, 1e-9)
            num_old = min(length - 1, max(0, int(length * share)))
        self._sampled += length
        versions = (before,) * num_old + (self._version,) * (length - num_old)
        return Completion(tuple(range(7, 7 + length)), (-0.5,) * length, versions, "stop")

    def switch_to(self, version: int) -> None:
        self._version, self._since = version, time.monotonic()

    async def abort(self, request_id: str) -> None: ...

    async def pause(self) -> None: ...

    async def resume(self) -> None: ...

    async def drain(self) -> None: ...

    async def begin_load(self, manifest: object) -> None: ...

    async def load(self, tensors: object) -> None: ...

    async def commit_load(self, version: int) -> None:
        self.switch_to(version)

    async def abort_load(self, reason: str) -> None: ...

    async def close(self) -> None: ...


def length_of(seed: int) -> int:
    """The tokens of an answer: a function of its seed."""
    return LENGTHS[seed % len(LENGTHS)]


@dataclass
class SleepingTrainer:
    """Takes `step_s` seconds for a step."""

    step_s: float
    step_index: int = 0
    begun: list[float] = field(default_factory=list[float])  # of each step, on the clock
    num_samples: int = 0

    def step(self, samples: Sequence[Sample]) -> StepReport:
        self.begun.append(time.perf_counter())
        time.sleep(self.step_s)
        self.step_index += 1
        self.num_samples += len(samples)
        return StepReport(self.step_index, {"train/loss": 0.0, "train/grad_norm": 1.0})

    def weights(self) -> Weights:
        return Weights([])

    def save(self, path: Path) -> None: ...

    def load(self, path: Path) -> None: ...

    def export(self, path: Path, tokenizer: object) -> None: ...


class Announcement(Transfer):
    """A publication of nothing: the next version is live."""

    def __init__(self, engine: SleepingEngine) -> None:
        self._engine = engine

    async def publish(self, weights: Weights, *, version: int, switch: Switch) -> PublishReport:
        async def commit() -> None:
            self._engine.switch_to(version)

        await switch(commit)
        return PublishReport(version, 0)

    async def close(self) -> None: ...


@dataclass(frozen=True)
class Ran:
    """One simulated run, its first steps left out."""

    steps: int
    seconds_per_step: float  # from the begin of a step's training to the next one's
    cpu_s_per_step: float
    samples_per_s: float


def config_of(steps: int, groups: int, max_lag: int) -> TrainConfig:
    words = [f"steps={steps}", f"rollouts.groups_per_step={groups}", f"rollouts.max_lag={max_lag}"]
    return load_train("quickstart", [*words, "eval.every_steps=null", "display=none"])


async def ran(config: TrainConfig, engine: SleepingEngine, step_s: float, skip: int) -> Ran:
    """Train `config.steps` steps with the loop of every run; the ledger is audited."""
    async with AsyncExitStack() as stack:
        folder = RunFolder(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        ledger = create_ledger(
            folder.ledger_dir, max_lag=config.rollouts.max_lag, config=config.ledger
        )
        stack.enter_context(ledger)
        runtime = InlineRuntime(trainer_threads=1)
        stack.push_async_callback(runtime.close)
        trackers = Trackers.of(("jsonl",), run_dir=folder.path, project="bench", run_name="bench")
        trackers.start({})
        stack.callback(trackers.finish)
        trainer = SleepingTrainer(step_s)
        run = wire(
            config,
            parts_of(config, engine),
            folder=folder,
            trainer=trainer,
            runtime=runtime,
            transfer=Announcement(engine),
            ledger=ledger,
            recovery=None,
            reuses=True,
            progress=Progress(eval_first=0.0, last_eval_step=config.steps),
            display=QuietDisplay(),
            trackers=trackers,
            dump=stack.enter_context(EpisodeDump(folder.episodes_dir)),
        )
        cpu_s = time.process_time()
        await train(run)
        cpu_s = time.process_time() - cpu_s
        ledger.flush()
        found = audit(folder.ledger_dir)
        assert found.holds, [proof for proof in found.proofs if not proof.holds]
    times = trainer.begun[skip:]
    seconds = (times[-1] - times[0]) / (len(times) - 1)
    samples = trainer.num_samples / config.steps
    return Ran(config.steps, seconds, cpu_s / config.steps, samples / seconds)


def parts_of(config: TrainConfig, engine: SleepingEngine) -> Parts:
    plain = Plain()
    setup = EpisodeSetup(
        generation=Generation(engine, in_flight=config.rollouts.in_flight),
        grader=Alternating(),
        decode=plain.decode,
        sampling=config.sampling,
        stop_token_ids=(),
        seed=config.seed,
    )
    source = Tasks()
    return Parts(
        platform=None,  # pyright: ignore[reportArgumentType] - nothing asks a platform here
        device=torch.device("cpu"),
        threads=ThreadPlan(1, 1, "simulated"),
        model=None,
        tokenizer=plain,  # pyright: ignore[reportArgumentType]
        renderer=plain,  # pyright: ignore[reportArgumentType]
        engine=engine,
        setup=setup,
        train_tasks=(source, range(source.size)),
        evaluator=Evaluator(setup, tasks=(), temperature=1.0, samples_per_task=1),
    )


def overlap(*, steps: int, groups: int, step_s: float) -> dict[str, float]:
    """Samples a second at both lags; an engine whose wave of one step takes `step_s`."""
    config = config_of(steps, groups, 0)
    slots = groups * config.rollouts.group_size
    noise = random.Random(0)
    waves = [max(length_of(noise.getrandbits(60)) for _ in range(slots)) for _ in range(50)]
    token_s = step_s / (sum(waves) / len(waves))
    found: dict[int, Ran] = {}
    for lag in (0, 1):
        engine = SleepingEngine(slots=slots, token_s=token_s)
        found[lag] = asyncio.run(ran(config_of(steps, groups, lag), engine, step_s, skip=2))
    return {
        "lag0_samples_per_s": found[0].samples_per_s,
        "lag1_samples_per_s": found[1].samples_per_s,
        "ratio": found[1].samples_per_s / found[0].samples_per_s,
    }


def orchestration(*, steps: int, groups: int = 256, step_s: float = 1.0) -> dict[str, float]:
    """What a step takes beyond the trainer's time, with generation of 0.6 of it beside."""
    config = config_of(steps, groups, 1)
    slots = groups * config.rollouts.group_size
    noise = random.Random(0)
    longest = max(length_of(noise.getrandbits(60)) for _ in range(slots))
    engine = SleepingEngine(slots=slots, token_s=0.6 * step_s / longest)
    found = asyncio.run(ran(config, engine, step_s, skip=2))
    return {
        "seconds_per_step": found.seconds_per_step,
        "share": found.seconds_per_step / step_s - 1,
        "cpu_s_per_step": found.cpu_s_per_step,
        "episodes_per_step": slots,
    }


def driver(*, steps: int, groups: int) -> dict[str, float]:
    """Episodes a second where nothing takes time but the driver."""
    config = config_of(steps, groups, 1)
    engine = SleepingEngine(slots=10**6, token_s=0.0)
    found = asyncio.run(ran(config, engine, 0.0, skip=2))
    episodes = groups * config.rollouts.group_size
    return {
        "episodes_per_s": episodes / found.seconds_per_step,
        "cpu_us_per_episode": 1e6 * found.cpu_s_per_step / episodes,
    }


class Replica:
    """A receiving process."""

    def __init__(self, directory: RunDirectory, number: int, mib: int, gib_s: float) -> None:
        command = [sys.executable, "-m", "bench.schedule", "--serve", str(directory.path)]
        command += ["--replica", str(number), "--mib", str(mib), "--device-gib-s", str(gib_s)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def wait_ready(self) -> None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line == "ready\n", f"a replica said {line!r}"

    def end(self) -> None:
        self.process.communicate("end\n", timeout=30)


class DeviceStore(StagedStore):
    """Memory of a device that takes its time, and none of this machine's cores."""

    reads_back = False

    def __init__(self, tensors: Tensors, gib_s: float) -> None:
        empty = {name: torch.empty_like(tensor) for name, tensor in tensors}
        super().__init__(empty, {name: torch.empty_like(tensor) for name, tensor in tensors})
        self._bytes_s = gib_s * 2**30

    def write(self, entry: TensorEntry, start: int, flat: torch.Tensor) -> torch.Tensor:
        time.sleep(flat.numel() * flat.element_size() / self._bytes_s)
        return flat


def serve(where: Path, replica: int, mib: int, gib_s: float) -> None:
    """Be a replica until a line comes."""
    tensors = mixed_tensors(mib, seed=1)
    store = DeviceStore(tensors, gib_s) if gib_s else empty_store(tensors)
    receiver = ZmqReceiver(RunDirectory.join(where), store, replica=replica, local_rank=0)
    print("ready", flush=True)
    sys.stdin.readline()
    receiver.close()


async def publication(*, mib: int, repeats: int) -> dict[str, float]:
    """With devices, which is the number wanted, and with copies on these cores beside it."""
    simulated = await published(mib=mib, repeats=repeats, gib_s=1.0)
    copied = await published(mib=mib, repeats=repeats, gib_s=0.0)
    return {**simulated, **{f"copied_{name}": value for name, value in copied.items()}}


async def published(*, mib: int, repeats: int, gib_s: float) -> dict[str, float]:
    """The same weights to 1 and to 4 replicas, in turns, so that a busy moment hits both."""
    weights = Weights(mixed_tensors(mib, seed=0))
    seconds: dict[int, list[float]] = {1: [], 4: []}
    async with AsyncExitStack() as stack:
        transfers = {count: await transfer_to(count, mib, gib_s, stack) for count in seconds}
        for version in range(1, repeats + 2):
            for count, transfer in transfers.items():
                begun = time.perf_counter()
                await transfer.publish(weights, version=version, switch=at_once)
                seconds[count].append(time.perf_counter() - begun)
    one, four = (median(times[1:]) for times in seconds.values())  # the first ones warm up
    return {"one_s": one, "four_s": four, "ratio": four / one}


async def transfer_to(count: int, mib: int, gib_s: float, stack: AsyncExitStack) -> ZmqTransfer:
    """To so many new processes, all of them ready."""
    directory = RunDirectory.create(f"bench-{time.time_ns()}")
    stack.callback(directory.close)
    replicas = [Replica(directory, number, mib, gib_s) for number in range(count)]
    for replica in replicas:
        stack.callback(replica.end)
        replica.wait_ready()
    ends = [(number, 0) for number in range(count)]
    config = WeightsConfig(verify="off" if gib_s else "digests")
    transfer = ZmqTransfer(directory, ends, config)
    stack.push_async_callback(transfer.close)
    return transfer


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer steps and repeats")
    parser.add_argument("--only", choices=tuple(GOALS), help="one of the measurements")
    parser.add_argument("--mib", type=int, default=256, help="size of the published weights")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--replica", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--device-gib-s", type=float, default=0.0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with heavy.imports():  # the collector as `parity train` sets it
        pass
    if options.serve is not None:
        serve(options.serve, options.replica, options.mib, options.device_gib_s)
        return 0
    steps = 8 if options.quick else 20
    measurements = {
        "overlap": lambda: overlap(steps=steps, groups=32, step_s=1.0),
        "orchestration": lambda: orchestration(steps=steps),
        "driver": lambda: driver(steps=steps, groups=64),
        "publication": lambda: asyncio.run(
            publication(mib=options.mib, repeats=3 if options.quick else 7)
        ),
    }
    names = [options.only] if options.only else list(GOALS)
    found = {name: measurements[name]() for name in names}
    missed = show(found)
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    return int(missed)


def show(found: dict[str, dict[str, float]]) -> bool:
    """Print what was measured beside what is wanted; whether something is missed."""
    is_missed = False
    for name, numbers in found.items():
        goal = GOALS[name]
        key = {"orchestration": "share", "driver": "episodes_per_s"}.get(name, "ratio")
        value = numbers[key]
        is_met = value >= goal if name in ("overlap", "driver") else value < goal
        is_missed |= not is_met
        rest = "  ".join(f"{k} {v:.4g}" for k, v in numbers.items() if k != key)
        print(f"{name:<14} {value:>8.4g}  wanted {goal:g}  {'' if is_met else 'MISSED'}  {rest}")
    return is_missed


if __name__ == "__main__":
    sys.exit(main())
