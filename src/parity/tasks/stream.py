"""The endless, seeded order in which a run draws its tasks, rendered and measured.

Used by the driver (training) and by evaluation (`held_out`). A prompt is measured as the
ids that are sent. Invariant: what comes next is a function of the source, the range, the
seed and `position` alone, so a stream built again with the same position goes on exactly.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from parity.errors import ConfigError, DataError, SourceError
from parity.models.rendering import Renderer
from parity.tasks.config import PromptsConfig
from parity.tasks.source import TaskSource
from parity.types import Task

TASKS_PER_HELD_OUT = 4  # at most one task in so many is held out

logger = logging.getLogger(__name__)


class TaskStream:
    """Rendered tasks without end, epoch by epoch."""

    def __init__(
        self,
        source: TaskSource,
        *,
        renderer: Renderer,
        prompts: PromptsConfig,
        seed: int,
        first: int = 0,
        last: int | None = None,
        position: int = 0,
    ) -> None:
        """Draw from indices [first, last) of the source.

        Args:
            last: one past the last index; None: the end of the source.
            position: tasks drawn before, passed-over ones included.
        """
        self._source, self._renderer, self._prompts = source, renderer, prompts
        self._seed = seed
        self._indices = range(first, source.size if last is None else last)
        if not 0 <= first < self._indices.stop <= source.size:
            raise ConfigError(
                f"tasks {first} to {self._indices.stop} were asked for, but the source has"
                f" {source.size}; at least one task is needed."
            )
        if position < 0:
            raise ConfigError(f"position is {position}; it must be >= 0.")
        self._position = position
        self._epoch, self._order = -1, list[int]()
        self._long: set[int] = set()  # indices passed over in this run
        self._bad: set[int] = set()  # the same, of tasks that can't be used

    @property
    def position(self) -> int:
        """Tasks drawn so far, passed-over ones included: the whole state of the stream."""
        return self._position

    @property
    def epoch(self) -> int:
        """The epoch that the next task belongs to, from 0."""
        return self._position // len(self._indices)

    def epoch_of(self, position: int) -> int:
        """The epoch of the task at a position, from 0."""
        return position // len(self._indices)

    @property
    def skipped(self) -> list[int]:
        """The distinct tasks passed over in this run, by index."""
        return sorted(self._long | self._bad)

    @property
    def num_skipped(self) -> int:
        """How many distinct tasks were passed over in this run."""
        return len(self._long | self._bad)

    def remember(self, skipped: Sequence[int]) -> None:
        """Count what earlier processes of the run had passed over, so that the caps hold for all.

        Each is judged again, by the source and the policy of now. Raises DataError as `next` does.
        """
        for index in skipped:
            if index in self._indices:
                self._fitting(index)

    def __iter__(self) -> Iterator[Task]:
        return self

    def __next__(self) -> Task:
        """The next task that fits, with its `tokens`.

        A task that can't be used is passed over where the source's policy says so, one that is
        too long where `prompts.on_long` does. Raises DataError where they don't, where they have
        come to their caps, and where no task is left. The stream stays where it is then, so a
        resumed run draws the same task again.
        """
        while True:
            task = self._fitting(self._index_at(self._position))
            self._position += 1
            if task is not None:
                return task

    def at(self, position: int) -> Task:
        """The rendered task that is, or was, drawn at a position; the stream stays where it is."""
        return self._render(self._index_at(position))

    def refuse(self, error: DataError) -> None:
        """The task that came last can't be used after all; raises where the policy is to stop."""
        index = self._index_at(self._position - 1)
        self._source.pass_over(index, error)
        self._add_bad(index)

    def _fitting(self, index: int) -> Task | None:
        """The rendered task; None where it is counted as one that is passed over."""
        task = _usable(self._source, index, self._renderer)
        if task is None:
            self._add_bad(index)
        elif len(task.tokens) > self._prompts.max_prompt_tokens:
            self._pass_over(index, task)
            return None
        return task

    def _add_bad(self, index: int) -> None:
        self._bad.add(index)
        self._check_left("too long or can't be used")

    def _check_left(self, why: str) -> None:
        if len(self._bad | self._long) == len(self._indices):
            raise DataError(f"no task is left: every one is {why}")

    def _render(self, index: int) -> Task:
        return _rendered(self._source, index, self._renderer)

    def _index_at(self, position: int) -> int:
        epoch, place = divmod(position, len(self._indices))
        if not self._prompts.shuffle:
            return self._indices[place]
        if epoch != self._epoch:
            self._order = self._source.order(self._indices, self._seed, epoch)
            self._epoch = epoch
        return self._order[place]

    def _pass_over(self, index: int, task: Task) -> None:
        """Count a task that is too long under the policy."""
        said = _too_long(task, self._prompts)
        if self._prompts.on_long == "stop":
            raise DataError(said)
        if index in self._long:
            return
        self._long.add(index)
        if len(self._long) == len(self._indices):
            raise DataError(f"every task is too long, for example {said}")
        self._check_left(f"too long or can't be used, for example {said}")
        if len(self._long) > self._prompts.max_long:
            raise DataError(
                f"more than prompts.max_long={self._prompts.max_long} tasks are too long, for"
                f" example {said}"
            )
        if len(self._long) == 1:
            logger.warning("a task is passed over: %s", said)


@dataclass(frozen=True, slots=True)
class LengthSurvey:
    """What measuring prompts ahead of a run found."""

    num_measured: int
    num_long: int
    longest_tokens: int
    longest_task_id: str


def split(source: TaskSource, eval_tasks: int) -> tuple[range, range]:
    """The indices that training draws from, and those held out at the end for evaluation.

    At most a quarter of the tasks is held out, at least one; fewer than asked for is logged.
    `eval_tasks=0` holds out none.
    """
    size = source.size
    if eval_tasks == 0:
        return range(size), range(0)
    if size < 2:
        raise ConfigError(
            f"the task source has {size} task, which can't be both trained on and held out; give"
            " at least 2 tasks, or set eval.tasks to another source."
        )
    held = min(eval_tasks, max(1, size // TASKS_PER_HELD_OUT))
    if held < eval_tasks:
        logger.warning(
            "%d tasks are held out for evaluation instead of %d: at most a quarter of %d",
            held,
            eval_tasks,
            size,
        )
    return range(size - held), range(size - held, size)


def held_out(
    source: TaskSource,
    indices: Sequence[int],
    *,
    renderer: Renderer,
    prompts: PromptsConfig,
) -> tuple[Task, ...]:
    """The rendered tasks of an evaluation, in the order of `indices`; the same at every call.

    Tasks that are too long or can't be used are passed over and logged under the policy `skip`;
    raises DataError under `stop`, and where none is left.
    """
    found = [_usable(source, index, renderer) for index in indices]
    tasks = [task for task in found if task is not None]
    long = [task for task in tasks if len(task.tokens) > prompts.max_prompt_tokens]
    if long and prompts.on_long == "stop":
        raise DataError(_too_long(long[0], prompts))
    if len(long) == len(tasks):
        said = f", for example {_too_long(long[0], prompts)}" if long else ""
        raise DataError(f"no task is left to evaluate on{said}.")
    if len(tasks) < len(found):
        logger.warning("%d of %d held-out tasks can't be used", len(found) - len(tasks), len(found))
    if long:
        said = _too_long(long[0], prompts)
        logger.warning("%d of %d held-out tasks are passed over: %s", len(long), len(tasks), said)
    return tuple(task for task in tasks if len(task.tokens) <= prompts.max_prompt_tokens)


def survey(
    source: TaskSource,
    indices: Sequence[int],
    *,
    renderer: Renderer,
    prompts: PromptsConfig,
    most: int | None = None,
) -> LengthSurvey:
    """Measure prompts before a run, so that a long one is known at the start.

    Args:
        most: how many tasks to measure, evenly spread over `indices`; None: all.

    Raises DataError under the policy `stop` for the first that can't be used or is too long.
    """
    num = len(indices) if most is None else min(most, len(indices))
    longest, longest_id, num_long = 0, "", 0
    for number in range(num):
        task = _usable(source, indices[number * len(indices) // num], renderer)
        if task is None:
            continue
        if len(task.tokens) > longest:
            longest, longest_id = len(task.tokens), task.task_id
        if len(task.tokens) > prompts.max_prompt_tokens:
            num_long += 1
            if prompts.on_long == "stop":
                raise DataError(_too_long(task, prompts))
    return LengthSurvey(num, num_long, longest, longest_id)


def _rendered(source: TaskSource, index: int, renderer: Renderer) -> Task:
    task = source.task(index)
    return replace(task, tokens=renderer.render(task))


def _usable(source: TaskSource, index: int, renderer: Renderer) -> Task | None:
    """The rendered task; None where it can't be used and the source's policy is to go on."""
    try:
        return _rendered(source, index, renderer)
    except SourceError:
        raise
    except DataError as error:
        source.pass_over(index, error)
        return None


def _too_long(task: Task, prompts: PromptsConfig) -> str:
    return (
        f"{task.task_id}: its prompt has {len(task.tokens)} tokens, but"
        f" prompts.max_prompt_tokens={prompts.max_prompt_tokens}"
    )
