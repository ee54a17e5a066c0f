"""Bounds how far generation may run ahead of training, and accounts for every group.

A slot is taken when a group starts and given back when the weights trained on it are live
in the engines (or at once when the group is dropped). There are
`groups_per_step * steps_per_publish * (1 + max_lag)` slots. A group that started under
version v must be trained before publication v + ceil(max_lag) + 1; `take` gives out the
groups that finished first, but never so many young ones that an old one would miss that
bound: then it waits for the old one. So no token is older than `ceil(max_lag)` versions
when it is trained, nothing is dropped for being slow, and short answers aren't favoured.

With `max_lag = 0` groups are taken in the order of issue and a dropped group is replaced
only when all others have finished, which makes the phases strictly alternate and the run
reproducible. At every moment `issued = trained + dropped + in flight`.

Used from one event loop only; nothing here is thread-safe.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass

from parity.errors import TrainingError
from parity.rollouts.config import RolloutsConfig
from parity.types import Group

NO_SCORED_EPISODE = "no_scored_episode"


@dataclass(frozen=True, slots=True)
class Dropped:
    """A group that won't be trained, and why."""

    index: int
    reason: str
    detail: str = ""  # in words, for the error that ends a run


RunGroup = Callable[[], Coroutine[None, None, Group | Dropped]]


@dataclass(frozen=True, slots=True)
class Conservation:
    """What became of every group that was issued."""

    issued: int
    trained: int
    dropped: Mapping[str, int]
    in_flight: int

    @property
    def failed(self) -> int:
        """Groups among the dropped that hold no scored episode."""
        return self.dropped.get(NO_SCORED_EPISODE, 0)

    def check(self) -> None:
        """The law of conservation; a violation is a bug of ours."""
        accounted = self.trained + sum(self.dropped.values()) + self.in_flight
        assert self.issued == accounted, f"groups lost or invented: {self}"


@dataclass(slots=True)
class _Slot:
    index: int
    version: int  # engine version when the group started
    group: Group | None = None
    finished: int = -1  # rank in the order of finishing


class Buffer:
    """Groups between their start and the publication of the weights trained on them."""

    def __init__(self, config: RolloutsConfig, *, steps: int, version: int = 0) -> None:
        """`steps` is the number of optimizer steps still to come, `version` what is live now."""
        self._config = config
        self._bound = math.ceil(config.max_lag)
        self._is_synchronous = config.max_lag == 0
        self._version = version
        self._steps_left = steps
        self._steps_in_version = 0
        self._waiting: dict[int, _Slot] = {}  # started, not trained
        self._running: dict[int, asyncio.Task[Group | Dropped]] = {}
        self._held = 0  # slots of trained groups whose weights aren't live yet
        self._owed = 0  # synchronous: slots of dropped groups, free again after the wave
        self._issued = self._trained = self._finished = 0
        self._dropped: Counter[str] = Counter()
        self._drops_since_take = 0
        self._changed = asyncio.Event()
        self._failure: BaseException | None = None

    @property
    def version(self) -> int:
        """The version that groups start under now."""
        return self._version

    @property
    def counts(self) -> Conservation:
        """Where every issued group is."""
        return Conservation(self._issued, self._trained, dict(self._dropped), len(self._waiting))

    @property
    def num_ended(self) -> int:
        """Groups that ended so far, finished or dropped: a sign of life."""
        return self._finished + sum(self._dropped.values())

    @property
    def in_flight(self) -> tuple[int, ...]:
        """Indices of the groups that were issued but not trained, in the order of issue."""
        return tuple(sorted(self._waiting))

    async def slot(self) -> None:
        """Wait until one more group may start."""
        await self._until(self._has_room)

    def start(self, index: int, run_group: RunGroup, *, version: int | None = None) -> None:
        """Start the group `index`; call `slot` first.

        Args:
            version: of its oldest token where it has some already; None: the live one.
        """
        assert self._has_room(), "no free slot: await slot() before start()"
        self._issued += 1
        self._waiting[index] = _Slot(index, self._version if version is None else version)
        running = asyncio.create_task(run_group(), name=f"group-{index}")
        self._running[index] = running
        running.add_done_callback(lambda done: self._finish(index, done))

    async def take(self) -> list[Group]:
        """The groups of the next step, in the order of issue; waits until they are finished.

        Raises what a group raised, and TrainingError when too many were dropped in a row.
        """
        picked: list[_Slot] = []

        def is_ready() -> bool:
            picked[:] = self._pick()
            return bool(picked)

        await self._until(is_ready)
        groups: list[Group] = []
        for slot in sorted(picked, key=lambda slot: slot.index):
            assert slot.group is not None, "picked a group that isn't finished"
            groups.append(slot.group)
            del self._waiting[slot.index]
        self._held += len(groups)
        self._trained += len(groups)
        self._steps_in_version += 1
        self._steps_left -= 1
        self._drops_since_take = 0
        return groups

    def release(self, version: int) -> None:
        """Give back the slots of trained groups: `version`, trained on them, is live."""
        assert version > self._version, f"version {version} isn't newer than {self._version}"
        self._version = version
        self._steps_in_version = 0
        self._held = 0
        self._changed.set()

    async def close(self, reason: str) -> None:
        """Cancel what is in flight and count it as dropped for `reason`."""
        running = list(self._running.values())
        for group in running:
            group.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for index in list(self._waiting):
            self._drop(index, reason)

    async def failed(self) -> None:
        """Wait for a group to fail, and raise what it raised; ends by cancellation else."""
        await self._until(lambda: False)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while True:
            self._changed.clear()
            if self._failure is not None:
                raise self._failure
            if condition():
                return
            await self._changed.wait()

    def _has_room(self) -> bool:
        occupied = len(self._waiting) + self._held + self._owed
        still_needed = self._steps_left * self._config.groups_per_step
        return occupied < self._config.capacity and len(self._waiting) < still_needed

    def _finish(self, index: int, done: "asyncio.Task[Group | Dropped]") -> None:
        del self._running[index]
        self._changed.set()
        if done.cancelled():
            return
        error = done.exception()
        if error is not None:
            self._failure = self._failure or error
            return
        outcome = done.result()
        if isinstance(outcome, Dropped):
            self._drop(index, outcome.reason, outcome.detail)
        else:
            slot = self._waiting[index]
            slot.group, slot.finished = outcome, self._finished
            self._finished += 1
        if not self._running:
            self._owed = 0

    def _drop(self, index: int, reason: str, detail: str = "") -> None:
        del self._waiting[index]
        self._dropped[reason] += 1
        self._drops_since_take += 1
        if self._is_synchronous:
            self._owed += 1
        limit = self._config.max_drops_per_step
        if limit is None:
            limit = 20 * self._config.groups_per_step
        if self._drops_since_take > limit and self._failure is None:
            self._failure = TrainingError(too_many_drops(self._drops_since_take, reason, detail))

    def _pick(self) -> list[_Slot]:
        """The slots of the next step, or nothing while some that it needs aren't finished."""
        wanted = self._config.groups_per_step
        if self._is_synchronous:
            oldest = sorted(self._waiting.values(), key=lambda slot: slot.index)[:wanted]
            is_complete = len(oldest) == wanted and not self._running
            return oldest if is_complete and all(slot.group for slot in oldest) else []
        finished = [slot for slot in self._waiting.values() if slot.group is not None]
        if len(finished) < wanted:
            return []
        finished.sort(key=lambda slot: slot.finished)
        picked: list[_Slot] = []
        rest = finished  # of the finished, what isn't picked
        for deadline, required in self._required():
            early = [slot for slot in rest if slot.version + self._bound <= deadline]
            missing = required - sum(s.version + self._bound <= deadline for s in picked)
            if missing > len(early):
                return []
            if missing > 0:
                picked += early[:missing]
                taken = {slot.index for slot in picked}
                rest = [slot for slot in finished if slot.index not in taken]
        picked += rest[: wanted - len(picked)]
        return picked if len(picked) == wanted else []

    def _required(self) -> list[tuple[int, int]]:
        """Per deadline (last version a group may be trained at): how many this step must take.

        After this step, the groups due by a deadline must still fit into the steps before it.
        """
        per_step, per_version = self._config.groups_per_step, self._config.steps_per_publish
        steps_after = per_version - self._steps_in_version - 1
        due = Counter(slot.version + self._bound for slot in self._waiting.values())
        total, required = 0, list[tuple[int, int]]()
        for deadline in sorted(due):
            total += due[deadline]
            room = per_step * (per_version * (deadline - self._version) + steps_after)
            assert total - room <= per_step, f"{total} groups are due by version {deadline}"
            required.append((deadline, max(0, total - room)))
        return required


def too_many_drops(number: int, reason: str, detail: str) -> str:
    """The sentence that ends a run in which group after group was dropped."""
    if reason == NO_SCORED_EPISODE:
        return (
            f"{number} groups in a row have no answer that could be graded (last: {detail}); "
            "mend the reward, or the tasks it is given (tasks.answer_column names the expected "
            "answer of a file)."
        )
    return (
        f"{number} groups in a row were dropped ({reason}: all answers of a group have the same "
        "reward); the tasks are too easy or too hard for this model, so change them, or set "
        "rollouts.drop_zero_spread=false."
    )
