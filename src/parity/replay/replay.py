"""`parity replay`: the recorded groups go to a trainer again, and every number is compared.

The trainer begins with the run's starting weights, or with the checkpoint nearest before the
first step that is wanted. Each step is computed with the configuration and the thread count of
the process that took it (`starts.jsonl`); where a resume came in between, the trainer's state
goes from one trainer to the next through a folder, as it did in the run. Loss, gradient norm
and the step's other numbers are compared with metrics.jsonl, weights with every kept checkpoint
and the export. On the CPU with the recorded software all of them are equal, bit for bit.
"""

import logging
import tempfile
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import torch

from parity.errors import ConfigError
from parity.folder import RunFolder
from parity.launch import prepare
from parity.replay.comparing import Break, different_tensors, first_different
from parity.replay.recorded import (
    PayloadError,
    Recorded,
    RecordedWeights,
    recorded_numbers,
    recorded_steps,
    recorded_weights,
    surviving_checkpoints,
)
from parity.roles import load, make_trainer
from parity.starts import ProcessStart, read, software, start_of
from parity.training.checkpoint import Checkpoint
from parity.training.trainer import Trainer


@dataclass(kw_only=True)
class Replay:
    """What was computed again, and where it first differs."""

    first: int
    last: int  # that was asked for
    begins: str  # with which weights
    reached: int | None = None  # the last step that was computed; None: none was
    num_steps: int = 0  # whose numbers were compared
    num_unrecorded: int = 0  # steps without a line in metrics.jsonl
    num_tensors: int = 0
    compared: list[str] = field(default_factory=list[str])  # weights, as users call them
    number: Break | None = None
    tensor: Break | None = None
    fault: str | None = None  # a payload that isn't what was written
    notes: list[str] = field(default_factory=list[str])

    @property
    def is_equal(self) -> bool:
        """Whether nothing differs, and something was compared."""
        is_broken = self.number is not None or self.tensor is not None or self.fault is not None
        return not is_broken and (self.num_steps > 0 or self.num_tensors > 0)


@dataclass(frozen=True, slots=True)
class _Plan:
    """Which steps, from where, against what."""

    steps: range
    checkpoint: Checkpoint | None  # None: the starting weights
    checkpoints: Sequence[Checkpoint]  # all that are kept, by step
    numbers: Mapping[int, Mapping[str, float | None]]
    weights: Sequence[RecordedWeights]
    starts: Sequence[ProcessStart]


def replay(folder: RunFolder, *, first: int | None = None, last: int | None = None) -> Replay:
    """Compute steps `first` to `last` (None: all) again.

    It ends at the first recorded weights that differ, or at a damaged payload. Raises
    ConfigError for steps that weren't taken or whose payloads are gone, LedgerError,
    CheckpointError and DataError where the run folder can't be read.
    """
    if folder.info().kind != "train":
        raise ConfigError(f"{folder.path} is no train run; only train runs are computed again.")
    starts = read(folder.path)
    with recorded_steps(folder) as recorded:
        plan = _plan(folder, recorded, starts, first=first, last=last)
        found = Replay(
            first=plan.steps[0],
            last=plan.steps[-1],
            begins="the starting weights"
            if plan.checkpoint is None
            else f"the checkpoint of step {plan.checkpoint.step}",
        )
        if first is not None and first != plan.steps[0]:
            found.notes.append(
                f"there is no checkpoint of step {first - 1}, so the steps before {first} are"
                f" computed too; {_kept(plan.checkpoints)}"
            )
        with _without_warnings():
            _compute(plan, recorded, found)
    return found


@contextmanager
def _without_warnings() -> Generator[None]:
    """Leave out what the trainer warned of in the run already."""
    trainer = logging.getLogger("parity.training")
    level = trainer.level
    trainer.setLevel(logging.ERROR)
    try:
        yield
    finally:
        trainer.setLevel(level)


def _plan(
    folder: RunFolder,
    recorded: Recorded,
    starts: Sequence[ProcessStart],
    *,
    first: int | None,
    last: int | None,
) -> _Plan:
    newest = recorded.last_step
    begin, end = first or 1, newest if last is None else last
    checkpoints = surviving_checkpoints(folder, recorded)
    if not 1 <= begin <= end <= newest:
        asked = {"--from": first, "--until": last}
        words = " ".join(f"{name} {step}" for name, step in asked.items() if step is not None)
        raise ConfigError(
            f"{folder.name} took steps 1 to {newest}; {words or 'no step'} isn't within;"
            f" {_kept(checkpoints)}."
        )
    before = [each for each in checkpoints if each.step < begin]
    checkpoint = before[-1] if before else None
    steps = range(1 if checkpoint is None else checkpoint.step + 1, end + 1)
    lost = [step for step in recorded.lost_steps() if step in steps]
    if lost:
        raise ConfigError(_too_old(folder, lost, checkpoints, newest, starts[-1]))
    return _Plan(
        steps=steps,
        checkpoint=checkpoint,
        checkpoints=checkpoints,
        numbers=recorded_numbers(folder, starts),
        weights=recorded_weights(folder, checkpoints, first=steps[0], last=end),
        starts=starts,
    )


def _too_old(
    folder: RunFolder,
    lost: Sequence[int],
    checkpoints: Sequence[Checkpoint],
    newest: int,
    start: ProcessStart,
) -> str:
    kept = start.train_config.ledger.payload_steps
    gone = (
        f"the payloads of {len(lost)} steps, {lost[0]} to {lost[-1]}, are gone"
        f" (ledger.payload_steps={kept})"
    )
    usable = [each.step for each in checkpoints if lost[-1] <= each.step < newest]
    if usable:
        return f"{gone}; try `parity replay {folder.name} --from {usable[0] + 1}`."
    return (
        f"{gone}, and no kept checkpoint stands between them and the end ({_kept(checkpoints)});"
        " the next run can be computed again with ledger.payload_steps=null."
    )


def _kept(checkpoints: Sequence[Checkpoint]) -> str:
    """Where a replay can begin, beside the starting weights."""
    steps = [str(each.step) for each in checkpoints]
    return f"checkpoints are kept of steps {', '.join(steps)}" if steps else "no checkpoint is kept"


def _compute(plan: _Plan, recorded: Recorded, found: Replay) -> None:
    """Trainer after trainer, as the run had process after process."""
    with tempfile.TemporaryDirectory(prefix="parity-replay-") as scratch:
        begin = None if plan.checkpoint is None else plan.checkpoint.path
        for number, (start, steps) in enumerate(_by_process(plan)):
            found.notes += _differing_software(start, found.notes)
            with _trainer(start) as (trainer, pool):
                if begin is not None:
                    pool.submit(trainer.load, begin).result()
                assert trainer.step_index == steps[0] - 1, "the weights aren't of the step before"
                if not all(_step(plan, recorded, found, trainer, pool, step) for step in steps):
                    return
                begin = Path(scratch) / f"state-{number}"
                pool.submit(trainer.save, begin).result()


def _by_process(plan: _Plan) -> list[tuple[ProcessStart, list[int]]]:
    """Runs of steps, each with the process that took them."""
    known: list[tuple[ProcessStart, int]] = []
    for step in plan.steps:
        start = start_of(plan.starts, step)
        assert start is not None, f"starts.jsonl has no process that could have taken step {step}"
        known.append((start, step))
    return [
        (start, [step for _, step in pairs])
        for start, pairs in groupby(known, key=lambda pair: pair[0])
    ]


@contextmanager
def _trainer(start: ProcessStart) -> Generator[tuple[Trainer, ThreadPoolExecutor]]:
    """The trainer as it was, with the starting weights, in a thread with its thread count."""
    config = start.train_config
    platform, _, _ = prepare(config, max_lag=config.rollouts.max_lag)
    device = platform.device(0)
    model, _ = load(config, device)
    with ThreadPoolExecutor(
        max_workers=1, initializer=torch.set_num_threads, initargs=(start.trainer_threads,)
    ) as pool:
        yield pool.submit(make_trainer, config, model, device=device).result(), pool


def _step(
    plan: _Plan,
    recorded: Recorded,
    found: Replay,
    trainer: Trainer,
    pool: ThreadPoolExecutor,
    step: int,
) -> bool:
    """One step and its comparisons; False where there is no use in going on."""
    try:
        samples = recorded.samples(step)
    except PayloadError as fault:
        found.fault = str(fault)
        return False
    report = pool.submit(trainer.step, samples).result()
    found.reached = step
    numbers = plan.numbers.get(step)
    if numbers is None:
        found.num_unrecorded += 1
    else:
        found.num_steps += 1
        found.number = found.number or first_different(step, report.metrics, numbers)
    for weights in (each for each in plan.weights if each.step == step):
        live = dict(trainer.named_weights())
        num_compared, different = different_tensors(
            step, weights.label, weights.path, live, trainer.aliases()
        )
        found.num_tensors += num_compared
        found.compared.append(weights.label)
        if different:
            found.tensor = different[0]
            found.notes.append(f"{len(different)} of {num_compared} tensors differ there")
            return False
    return True


def _differing_software(start: ProcessStart, known: Sequence[str]) -> list[str]:
    """What isn't as it was when the steps were taken; equality isn't promised then."""
    here = software()
    notes = [
        f"the run was on {name} {was}, this is {here.get(name, 'nothing')}; bits may differ"
        for name, was in start.software.items()
        if here.get(name) != was
    ]
    if start.platform != "cpu":
        notes.append(f"the run was on {start.platform}; equal bits are promised on the CPU only")
    return [note for note in notes if note not in known]
