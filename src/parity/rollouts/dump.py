"""Every episode of a run on disk: episodes/step_00000012.jsonl, strict JSON, one a line.

`EpisodeDump` writes on a thread of its own from a bounded queue; `read` reads a file back.
Invariants: `write` returns within `max_wait_s` whatever the disk does and never raises for it;
what could not be written is counted and told, at most once a minute; a file appears whole or
not at all, and a step that a resumed run takes again replaces the file of the earlier try.
"""

import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Self

from parity.errors import DataError
from parity.observe.encode import dumps, loads
from parity.rollouts import dump_line
from parity.types import Episode, Group, Scored, Split, Task, Unscored

MAX_QUEUED_STEPS = 8
_QUIET_S = 60.0
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DumpStats:
    """Episodes by what became of them, and values inside them that can't be encoded."""

    written: int = 0
    dropped: int = 0  # the queue was full
    failed: int = 0  # the disk or the encoder refused
    lost_values: int = 0


@dataclass(frozen=True, slots=True)
class _Job:
    path: Path
    step: int
    split: Split
    groups: tuple[Group, ...]
    advantages: Mapping[str, float | None]

    @property
    def num_episodes(self) -> int:
        return sum(len(group.episodes) for group in self.groups)


class EpisodeDump:
    """Writes the episodes of steps and evaluations into one folder, in the background."""

    def __init__(
        self, dir: Path, *, max_queued_steps: int = MAX_QUEUED_STEPS, max_wait_s: float = 0.5
    ) -> None:
        """`dir` is the `episodes/` folder; it is made with the first file."""
        self._dir = dir
        self._max_wait_s = max_wait_s
        self._queue: queue.Queue[_Job | None] = queue.Queue(max_queued_steps)
        self._lock = threading.Lock()
        self._counts = Counter[str]()
        self._told_at: float | None = None
        self._seen: set[Path] = set()
        self._is_closed = False
        self._thread = threading.Thread(target=self._work, name="episode-dump", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def stats(self) -> DumpStats:
        """What was written and lost so far."""
        with self._lock:
            return DumpStats(**self._counts)

    def write(
        self,
        step: int,
        groups: Sequence[Group],
        *,
        split: Split = "train",
        advantages: Mapping[str, float | None] | None = None,
    ) -> bool:
        """Queue the episodes of one step (or evaluation); False if they were dropped.

        Args:
            split: `train` writes step_N.jsonl, `eval` writes eval_N.jsonl.
            advantages: by episode id; None or absent where there is none.
        """
        name = f"{'step' if split == 'train' else 'eval'}_{step:08d}.jsonl"
        job = _Job(self._dir / name, step, split, tuple(groups), advantages or {})
        try:
            if self._is_closed:
                raise queue.Full
            self._queue.put(job, timeout=self._max_wait_s)
        except queue.Full:
            why = "closed" if self._is_closed else "queue_full"
            self._count("dropped", job.num_episodes, why)
            return False
        return True

    def close(self, *, timeout_s: float = 30.0) -> None:
        """Write what is queued, for at most `timeout_s`; the rest is counted as dropped."""
        if self._is_closed:
            return
        self._is_closed = True
        deadline = time.monotonic() + timeout_s
        try:
            self._queue.put(None, timeout=timeout_s)
        except queue.Full:
            _logger.warning("event=dump_unfinished waited_s=%s", timeout_s)
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            while not self._queue.empty():
                job = self._queue.get_nowait()
                if job is not None:
                    self._count("dropped", job.num_episodes, "closing took too long")

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            try:
                self._write(job)
            except Exception as error:  # noqa: BLE001 - an optional output can't stop the run
                self._count("failed", job.num_episodes, f"{type(error).__name__}: {error}")

    def _write(self, job: _Job) -> None:
        lost = Counter[str]()
        found = chain.from_iterable(self._lines(job, group, lost) for group in job.groups)
        lines = [line for line in found if line is not None]
        self._dir.mkdir(parents=True, exist_ok=True)
        partial = job.path.with_suffix(".partial")
        before = job.path.read_text("ascii") if job.path in self._seen else ""
        partial.write_text(before + "".join(lines), "ascii")
        partial.replace(job.path)
        self._seen.add(job.path)
        self._count("written", len(lines))
        if lost:
            self._count("lost_values", lost.total(), lost.most_common(1)[0][0])

    def _lines(self, job: _Job, group: Group, lost: Counter[str]) -> Generator[str | None]:
        """One per sibling: the short way where every value is plain, or else the long one."""
        head: str | None = None
        with suppress(Exception):  # what is wrong, the long way says
            head = _head(job, group)
        for sibling, episode in enumerate(group.episodes):
            short: str | None = None
            if head is not None and episode.task is group.task:
                with suppress(Exception):
                    short = dump_line.line(head, _own(job, episode, sibling), _arrays(episode))
            yield short if short is not None else self._line(job, group, sibling, lost)

    def _line(self, job: _Job, group: Group, sibling: int, lost: Counter[str]) -> str | None:
        """One episode as a line; None where it breaks even the record around its values."""
        try:
            return dumps(_record(job, group, sibling), lost) + "\n"
        except Exception as error:  # noqa: BLE001 - a malformed episode costs only itself
            self._count("failed", 1, f"{type(error).__name__}: {error}")
            return None

    def _count(self, what: str, number: int, reason: str | None = None) -> None:
        """Count, and warn about what has a reason at a limited rate."""
        with self._lock:
            self._counts[what] += number
            now = time.monotonic()
            is_due = self._told_at is None or now - self._told_at >= _QUIET_S
            if reason is None or not is_due:
                return
            self._told_at = now
            totals = dict(self._counts)
        _logger.warning("event=episode_dump_%s totals=%s reason=%s", what, totals, reason)


def read(path: Path) -> Iterator[dict[str, object]]:
    """The episodes of one file, in order, as `EpisodeDump` was given them.

    Raises DataError with the line number for a line that can't be read.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                episode = loads(line)
            except DataError as error:
                raise DataError(f"{path}:{number}: {error}") from error
            if not isinstance(episode, dict):
                raise DataError(f"{path}:{number}: holds no episode; it must be a JSON object.")
            yield {str(key): value for key, value in episode.items()}


def _record(job: _Job, group: Group, sibling: int) -> dict[str, object]:
    """One line: the episode with its place in the run, reward or reason, and tokens."""
    episode = group.episodes[sibling]
    arrays = {name: list(values) for name, values in _arrays(episode).items()}
    return {**_shared(job, group, episode.task), **_own(job, episode, sibling), **arrays}


def _head(job: _Job, group: Group) -> str | None:
    """What the lines of a group begin with; None where a value of it isn't plain."""
    lost = Counter[str]()
    text = dumps(_shared(job, group, group.task), lost)
    return None if lost else text.removesuffix("}")


def _shared(job: _Job, group: Group, task: Task) -> dict[str, object]:
    return {
        "step": job.step,
        "split": job.split,
        "group": group.index,
        "task_id": task.task_id,
        "prompt": task.question,
        "messages": None
        if task.messages is None
        else [{"role": message.role, "content": message.content} for message in task.messages],
        "expected": task.answer,
        "num_prompt_tokens": len(task.tokens),
    }


def _own(job: _Job, episode: Episode, sibling: int) -> dict[str, object]:
    return {
        "sibling": sibling,
        "episode_id": episode.episode_id,
        "response": episode.response,
        **_reward(episode),
        "advantage": job.advantages.get(episode.episode_id),
        "finish_reason": episode.finish_reason,
        "num_response_tokens": episode.num_response_tokens,
        "num_trained_tokens": sum(episode.loss_mask),
    }


def _arrays(episode: Episode) -> dict[str, tuple[float, ...]]:
    return {
        "tokens": episode.tokens,
        "loss_mask": episode.loss_mask,
        "logprobs": episode.logprobs,
        "versions": episode.versions,
    }


def _reward(episode: Episode) -> dict[str, object]:
    """Value, parts, and what the grader said where there is no value."""
    result = episode.reward
    if isinstance(result, Scored):
        return {"reward": result.value, "reward_parts": dict(result.parts), "outcome": "scored"}
    outcome = "unscored" if isinstance(result, Unscored) else "grader_failed"
    return {"reward": None, "reward_parts": {}, "outcome": outcome, "reason": result.reason}
