"""The sending side of the transaction, over any link to receivers in other processes.

A transport brings a `Link`: messages to all receivers at once, numbered; their answers; and
two buffers that what `ship` sends is read from. Bucket k is packed while bucket k - 1 is on its
way or being stored; its buffer is free when every receiver has answered for bucket k - 2.
"""

import contextlib
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field

import torch

from parity.errors import ParityError, TransferError
from parity.weights.config import WeightsConfig
from parity.weights.content.bucket import Piece, plan
from parity.weights.content.digest import CACHED_BYTES, Digest
from parity.weights.content.outgoing import Outgoing
from parity.weights.content.ranges import copy_from, dtype_named
from parity.weights.session import wire
from parity.weights.session.deadline import Deadline
from parity.weights.transfer import PublishReport

NUM_SLOTS = 2
_ABORT_TIMEOUT_S = 2.0


@dataclass
class Answers:
    """What the receivers said to one message."""

    given: dict[str, wire.Message] = field(default_factory=dict[str, wire.Message])
    failed: dict[str, str] = field(default_factory=dict[str, str])  # reason by receiver

    def check(self) -> dict[str, wire.Message]:
        """The answers; raises TransferError with the receivers' own reasons."""
        if self.failed:
            reasons = [f"receiver {who}: {why}" for who, why in self.failed.items()]
            raise TransferError("; ".join(reasons))
        return self.given


class Link(ABC):
    """A sender's way to its receivers; used from one thread at a time."""

    @abstractmethod
    def connect(self, deadline: Deadline) -> None:
        """Reach every receiver and make the two buffers; raises where one isn't there."""

    @abstractmethod
    def buffer(self, slot: int) -> torch.Tensor:
        """Buffer 0 or 1: uint8 [bucket bytes], for packing."""

    def seal(self) -> None:
        """Return when what was packed may be announced; host memory needs nothing."""
        return

    @abstractmethod
    def send(self, message: Mapping[str, object], deadline: Deadline) -> int:
        """Send to every receiver; the number under which answers come."""

    @abstractmethod
    def ship(self, slot: int, filled: int, deadline: Deadline) -> None:
        """Move the first `filled` bytes of a buffer, after the message that announces them."""

    @abstractmethod
    def answers(self, number: int, deadline: Deadline, *, wait_for_all: bool = False) -> Answers:
        """Wait for the answers to a message and all before it; ends at the first failure.

        Args:
            number: of the message.
            deadline: of the wait.
            wait_for_all: go on after a failure until every receiver has answered or is dead.
        """

    @abstractmethod
    def close(self) -> None:
        """Give everything back; may be repeated."""


class Sender:
    """One publication on its way; `stage`, then `commit` or `abort`."""

    def __init__(self, link: Link, config: WeightsConfig, outgoing: Outgoing) -> None:
        self._link = link
        self._config = config
        self._outgoing = outgoing
        self._manifest = outgoing.manifest
        self._digests = [Digest() for _ in outgoing.manifest.entries]
        self._size_bytes = 0
        self._is_open = False
        self._seconds: dict[str, float] = {}
        self.cancelled = threading.Event()
        self.sent_digests: dict[str, str] = {}

    def stage(self) -> None:
        """Begin, send everything, and let every receiver verify; on any error all abort.

        Raises TransferError with a receiver's reason, DeadlineError naming the phase.
        """
        try:
            with self._phase("begin"):
                self._begin()
            with self._phase("buckets"):
                self._send_buckets()
            with self._phase("verify"):
                self._verify()
        except BaseException as error:
            self.abort(_reason(error))
            self._outgoing.drain()
            raise

    def commit(self) -> None:
        """Make every receiver serve it. Raises TransferError that says who serves what."""
        version = self._manifest.version
        with self._phase("commit"):
            deadline = self._deadline("commit")
            number = self._link.send({"kind": "commit", "version": version}, deadline)
            answers = self._link.answers(number, deadline, wait_for_all=True)
        self._is_open = False
        if answers.failed:
            reasons = "; ".join(f"receiver {who}: {why}" for who, why in answers.failed.items())
            live = f" Receivers {sorted(answers.given)} serve it already." if answers.given else ""
            raise TransferError(f"version {version} isn't live everywhere ({reasons}).{live}")

    def abort(self, reason: str) -> None:
        """Tell the receivers to forget it, as far as they can still be told."""
        if not self._is_open:
            return
        self._is_open = False
        # The first error is the one to report; a receiver that can't be told finds out itself.
        with contextlib.suppress(ParityError, OSError, RuntimeError):
            deadline = Deadline("abort", min(_ABORT_TIMEOUT_S, self._config.timeout_s))
            number = self._link.send({"kind": "abort", "reason": reason}, deadline)
            self._link.answers(number, deadline, wait_for_all=True)

    def report(self) -> PublishReport:
        """What was moved, and in which time."""
        version, seconds = self._manifest.version, dict(self._seconds)
        return PublishReport(version, self._size_bytes, seconds, self._config.verify)

    def _begin(self) -> None:
        canary = self._outgoing.canary if self._config.verify == "canary" else None
        if self._config.verify == "canary" and canary is None:
            raise TransferError(
                "weights.verify=canary needs log-probs of the trainer and none were given; "
                "pass Weights.canary or set weights.verify=digests."
            )
        message = {
            "kind": "begin",
            "manifest": wire.pack_manifest(self._manifest),
            "verify": self._config.verify,
            "canary": wire.pack_canary(canary),
            "timeout_s": self._config.timeout_s,
            "commit_timeout_s": self._config.commit_timeout_s,
        }
        self._link.connect(self._deadline("connect"))
        deadline = self._deadline("begin")
        self._is_open = True
        self._link.answers(self._link.send(message, deadline), deadline).check()

    def _send_buckets(self) -> None:
        numbers: list[int] = []
        entries = self._manifest.entries
        for index, (pieces, filled) in enumerate(plan(entries, self._config.bucket_bytes)):
            if index >= NUM_SLOTS:
                deadline = self._deadline("buckets")
                self._link.answers(numbers[index - NUM_SLOTS], deadline).check()
            slot = index % NUM_SLOTS
            self._pack(pieces, self._link.buffer(slot))
            self._link.seal()
            sent = wire.pack_pieces(pieces)
            message = {"kind": "bucket", "slot": slot, "filled": filled, "pieces": sent}
            deadline = self._deadline("buckets")
            numbers.append(self._link.send(message, deadline))
            self._link.ship(slot, filled, deadline)
        if entries:
            self._outgoing.tensor(len(entries) - 1)  # gathers what has no elements at the end
        if numbers:
            self._link.answers(numbers[-1], self._deadline("buckets")).check()

    def _pack(self, pieces: list[Piece], buffer: torch.Tensor) -> None:
        """Fill a bucket and digest what is in it, while it is in the processor's cache."""
        for piece in pieces:
            entry = self._manifest.entries[piece.tensor]
            dtype = dtype_named(entry.dtype)
            size = piece.count * dtype.itemsize
            flat = buffer[piece.at : piece.at + size].view(dtype)
            tensor = self._outgoing.tensor(piece.tensor)
            if tuple(tensor.shape) != entry.shape:
                raise TransferError(
                    f"{entry.name} has shape {tuple(tensor.shape)} and was announced with "
                    f"{entry.shape}; weights must stand still while they are published."
                )
            self._fill(piece, tensor, flat)
            self._size_bytes += size

    def _fill(self, piece: Piece, tensor: torch.Tensor, flat: torch.Tensor) -> None:
        if self._config.verify != "digests":
            copy_from(tensor, piece.start, flat)
            return
        step = max(1, CACHED_BYTES // flat.element_size())
        for at in range(0, flat.numel(), step):
            part = flat[at : at + step]
            copy_from(tensor, piece.start + at, part)
            self._digests[piece.tensor].add(part)

    def _verify(self) -> None:
        digests: dict[str, str] | None = None
        if self._config.verify == "digests":
            entries = zip(self._manifest.entries, self._digests, strict=True)
            digests = self.sent_digests = {entry.name: each.value for entry, each in entries}
        deadline = self._deadline("verify")
        number = self._link.send({"kind": "verify", "digests": digests}, deadline)
        self._link.answers(number, deadline).check()

    def _deadline(self, phase: str) -> Deadline:
        return Deadline(phase, self._config.timeout_s, cancelled=self.cancelled)

    @contextlib.contextmanager
    def _phase(self, name: str) -> Generator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self._seconds[name] = time.monotonic() - started


def _reason(error: BaseException) -> str:
    """An error as the other side shall report it."""
    return str(error) if isinstance(error, ParityError) else f"{type(error).__name__}: {error}"
