"""`collective`: broadcast from trainer rank 0 to engines in one process group of torch.distributed.

Messages and answers are values in the group's key-value store, so an engine can refuse without
leaving the others alone in a collective call; only buckets are broadcast, and of a bucket only
the bytes that are filled. The backend is the platform's (`platform.collective_backend`): where
it works on a device, the buckets are there, and a bucket counts as complete when the device
has finished it, not when it is queued.

A receiver that refused still joins the broadcasts that were announced before the sender knew:
the group stays usable. A broadcast that fails or passes its deadline leaves the group in an
unknown state; then every later publication is refused until a new group is made. So is a
publication while a member is known to be dead (`session/meeting.py`, which makes groups).
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from datetime import timedelta

import torch
from torch import distributed

from parity.errors import DeadlineError, ParityError, TransferError
from parity.weights.config import WeightsConfig
from parity.weights.session import wire
from parity.weights.session.deadline import Deadline
from parity.weights.session.link_transfer import LinkTransfer
from parity.weights.session.responder import Responder
from parity.weights.session.sender import NUM_SLOTS, Answers, Link
from parity.weights.session.store import Store

_ROOT = 0
_LOOK_S = 0.002
_LOOK_IDLE_S = 0.05
_CLOSE_TIMEOUT_S = 10.0
_LAST_ANSWER_S = 1.0
log = logging.getLogger(__name__)


class Group:
    """One process's place in the process group, and the store beside it."""

    def __init__(
        self,
        group: "distributed.ProcessGroup | None",
        store: distributed.Store,  # pyright: ignore[reportPrivateImportUsage]
        *,
        rank: int,
        size: int,
        names: Sequence[str] = (),
        device: torch.device | None = None,
        synchronize: Callable[[], None] | None = None,
    ) -> None:
        """
        Args:
            group: of the platform's backend; rank 0 is the sender. None: `begin` brings it.
            store: any that all ranks reach; keys begin with `parity-weights/`.
            rank: of this process in the group.
            size: ranks of the group.
            names: of the ranks, in errors; none: their numbers.
            device: where buckets are; None: host.
            synchronize: waits until the device is done (`platform.synchronize`); None on hosts.
        """
        self.rank, self.size = rank, size
        self.device = torch.device("cpu") if device is None else device
        self.broken: str | None = None
        self._group = group
        self._store = distributed.PrefixStore(  # pyright: ignore[reportPrivateImportUsage]
            "parity-weights/", store
        )
        self._synchronize = synchronize
        self._names = tuple(names) or tuple(f"rank {number}" for number in range(size))

    def name(self, rank: int) -> str:
        """What errors call a rank."""
        return self._names[rank]

    def begin(self, group: "distributed.ProcessGroup") -> None:
        """The group is made."""
        self._group = group

    def is_lost(self, rank: int) -> bool:
        """Whether somebody told that this rank died."""
        return self.look(f"lost/{rank}") is not None

    def check_lost(self) -> None:
        """Raise TransferError where a rank is known to be dead."""
        lost = [self.name(rank) for rank in range(self.size) if self.is_lost(rank)]
        if lost:
            raise TransferError(f"{' and '.join(lost)} died; make a new process group.")

    def close(self) -> None:
        """Leave the group: whoever is in a broadcast with this rank gets an error."""
        group, self._group = self._group, None
        self.broken = self.broken or "it was closed"
        if group is not None:
            group.abort()

    def put(self, key: str, message: Mapping[str, object]) -> None:
        """Leave a message."""
        with _reaching():
            self._store.set(key, wire.encode(message))  # pyright: ignore[reportArgumentType]

    def look(self, key: str) -> wire.Message | None:
        """A message, if it is there."""
        with _reaching():
            return wire.decode(self._store.get(key)) if self._store.check([key]) else None

    def forget(self, key: str) -> None:
        """Remove a message that everyone has read."""
        with _reaching():
            self._store.delete_key(key)

    def broadcast(self, tensor: torch.Tensor) -> "distributed.Work":
        """Begin to send (rank 0) or receive a tensor."""
        if self.broken is not None:
            raise TransferError(f"the process group can't be used any more: {self.broken}")
        assert self._group is not None, "begin comes first"
        options = distributed.BroadcastOptions()
        options.rootRank = _ROOT
        return self._group.broadcast([tensor], options)

    def finish(self, work: "distributed.Work", timeout_s: float) -> None:
        """Wait until it is complete on the device; a failure breaks the group."""
        try:
            work.wait(timedelta(seconds=max(timeout_s, 0.001)))
            if self._synchronize is not None:
                self._synchronize()
        except (RuntimeError, ValueError) as error:
            self.broken = " ".join(str(error).split())[:200]
            raise TransferError(
                f"a broadcast failed or passed its deadline in phase buckets ({self.broken}); "
                "another rank died or hangs. Make a new process group."
            ) from error


@contextlib.contextmanager
def _reaching() -> Generator[None]:
    """A store whose process is gone is an error of the transfer."""
    try:
        yield
    except RuntimeError as error:
        raise TransferError(
            f"the group's store can't be reached ({' '.join(str(error).split())[:200]}); the "
            "process that holds it ended. Make a new process group."
        ) from error


class CollectiveTransfer(LinkTransfer):
    """Publishes from rank 0 of a group to all of its other ranks."""

    def __init__(self, group: Group, config: WeightsConfig) -> None:
        super().__init__(CollectiveLink(group, config), config)


class CollectiveLink(Link):
    """Messages in the store, buckets by broadcast."""

    def __init__(self, group: Group, config: WeightsConfig) -> None:
        self._group = group
        self._config = config
        self._number = 0
        self._forgotten = 0
        self._buffers: list[torch.Tensor] = []
        self._works: dict[int, distributed.Work] = {}

    def connect(self, deadline: Deadline) -> None:
        """Make the buckets, and hear from every rank."""
        if self._group.broken is not None:
            raise TransferError(f"the process group can't be used any more: {self._group.broken}")
        if not self._buffers:
            size, device = self._config.bucket_bytes, self._group.device
            self._buffers = [
                torch.empty(size, dtype=torch.uint8, device=device) for _ in range(NUM_SLOTS)
            ]
        message = {"kind": "hello", "bucket_bytes": self._config.bucket_bytes}
        self.answers(self.send(message, deadline), deadline).check()

    def buffer(self, slot: int) -> torch.Tensor:
        """A bucket; waits until the broadcast from it is over."""
        work = self._works.pop(slot, None)
        if work is not None:
            self._group.finish(work, self._config.timeout_s)
        return self._buffers[slot]

    def send(self, message: Mapping[str, object], deadline: Deadline) -> int:
        """Leave it in the store for every rank."""
        self._number += 1
        self._group.put(f"message/{self._number}", message)
        return self._number

    def ship(self, slot: int, filled: int, deadline: Deadline) -> None:
        """Begin to broadcast what is filled."""
        self._works[slot] = self._group.broadcast(self._buffers[slot][:filled])

    def answers(self, number: int, deadline: Deadline, *, wait_for_all: bool = False) -> Answers:
        """Look for the answers of all ranks; a refusal of an earlier message shows here too."""
        answers = Answers()
        while True:
            for rank in range(1, self._group.size):
                self._look(rank, number, answers)
            names = [self._group.name(rank) for rank in range(1, self._group.size)]
            heard = answers.given.keys() | answers.failed.keys()
            waiting = [name for name in names if name not in heard]
            if not waiting or (answers.failed and not wait_for_all):
                if not waiting:
                    self._forget_up_to(number)
                return answers
            try:
                deadline.check(", ".join(waiting))
            except ParityError as error:
                if not wait_for_all:
                    raise
                answers.failed |= dict.fromkeys(waiting, str(error))
                continue
            time.sleep(min(_LOOK_S, deadline.slice_s))

    def _forget_up_to(self, number: int) -> None:
        """Remove messages that every rank has answered, which answers in order."""
        while self._forgotten < number:
            self._forgotten += 1
            self._group.forget(f"message/{self._forgotten}")
            for rank in range(1, self._group.size):
                self._group.forget(f"answer/{self._forgotten}/{rank}")

    def _look(self, rank: int, number: int, answers: Answers) -> None:
        name = self._group.name(rank)
        if name in answers.given or name in answers.failed:
            return
        answer = self._group.look(f"answer/{number}/{rank}")
        if answer is None:
            if self._group.is_lost(rank):
                answers.failed[name] = "its process died."
            return
        if answer.get("ok") is True:
            answers.given[name] = answer
        else:
            answers.failed[name] = wire.text(answer, "reason")

    def close(self) -> None:
        """Free the buckets and leave the group; the store belongs to whoever made it."""
        self._group.close()
        self._buffers, self._works = [], {}


class CollectiveReceiver:
    """Receives on one rank: a thread that serves one store until `close`."""

    def __init__(self, group: Group, store: Store) -> None:
        self._group = group
        self._responder = Responder(store, name=group.name(group.rank))
        self._buffers: list[torch.Tensor] = []
        self._is_closing = threading.Event()
        name = f"parity-weights-rank-{group.rank}"
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    @property
    def failures(self) -> Sequence[str]:
        """Why publications were aborted, newest last."""
        return tuple(self._responder.failures)

    def close(self) -> None:
        """End the thread, abort what is open, and leave the group.

        Raises TransferError where the thread doesn't end: what it still does would reach the
        store in the middle of a later publication.
        """
        self._is_closing.set()
        self._thread.join(_LAST_ANSWER_S)
        self._group.close()  # ends a broadcast in which it waits for the sender
        self._thread.join(_CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            raise TransferError(
                f"{self._group.name(self._group.rank)} is still busy with an earlier publication "
                f"after {_CLOSE_TIMEOUT_S:g} s; see its log."
            )

    def _serve(self) -> None:
        number = 1
        try:
            while not self._is_closing.is_set():
                message = self._group.look(f"message/{number}")
                if message is not None:
                    answer = self._answer(message)
                    self._group.put(f"answer/{number}/{self._group.rank}", answer)
                    number += 1
                elif self._responder.is_open:
                    if reason := self._responder.overdue():
                        self._responder.lost(reason)
                    time.sleep(_LOOK_S)
                else:
                    time.sleep(_LOOK_IDLE_S)
        except (RuntimeError, TransferError) as error:  # the store is gone: its owner has ended
            log.warning("event=weights_receiver_ended rank=%d reason=%r", self._group.rank, error)
        if self._responder.is_open:
            self._responder.lost("the engine was closed.")

    def _answer(self, message: wire.Message) -> wire.Message:
        try:
            if message.get("kind") == "hello":
                self._make_buffers(wire.integer(message, "bucket_bytes"))
                return {"ok": True}
            if message.get("kind") == "bucket":
                self._receive(message)  # also where the publication was refused already
        except (TransferError, DeadlineError) as error:
            self._responder.lost(str(error))
            return {"ok": False, "reason": str(error)}
        return self._responder.answer(message, self._payload)

    def _make_buffers(self, size: int) -> None:
        if not self._buffers or self._buffers[0].numel() != size:
            self._buffers = [
                torch.empty(size, dtype=torch.uint8, device=self._group.device)
                for _ in range(NUM_SLOTS)
            ]

    def _receive(self, message: wire.Message) -> None:
        payload = self._payload(wire.integer(message, "slot"), wire.integer(message, "filled"))
        self._group.finish(self._group.broadcast(payload), self._responder.timeout_s)

    def _payload(self, slot: int, filled: int) -> torch.Tensor:
        if not 0 <= slot < len(self._buffers) or not 0 <= filled <= self._buffers[slot].numel():
            raise TransferError(f"a bucket of {filled} bytes in slot {slot} is out of bounds.")
        return self._buffers[slot][:filled]
