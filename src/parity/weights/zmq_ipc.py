"""`zmq_ipc`: engines in other processes of this host; messages by ZeroMQ, bytes by shared memory.

    trainer (DEALER per receiver)                    engine (ROUTER at its own endpoint)
    hello                                   ->       who it is
    begin(manifest, path of two buckets)    ->       maps them, checks the manifest
    bucket(slot, pieces) x n                ->       stores, reads back; the slot is free again
    verify(digests)                         ->       compares
    commit(version) or abort(reason)        ->       serves it, or the old version

Every engine of the host reads the same two buckets: shared memory, or the trainer's device memory
where both sides were given a `DeviceMemory`. The name of the shared memory is removed
when all have mapped it, so not even kill -9 leaves memory behind. Each side holds a lock that
the other one looks at while it waits: a death is noticed at once, not at the deadline.
"""

import contextlib
import logging
import re
import secrets
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import zmq

from parity.errors import ParityError, TransferError
from parity.weights.config import WeightsConfig
from parity.weights.host.buckets import (
    DeviceMemory,
    DeviceOffer,
    HostOffer,
    Mapped,
    Offer,
    map_buckets,
)
from parity.weights.host.endpoints import RunDirectory, endpoint_name
from parity.weights.session import wire
from parity.weights.session.deadline import SLICE_S, Deadline
from parity.weights.session.link_transfer import LinkTransfer
from parity.weights.session.responder import Responder
from parity.weights.session.sender import NUM_SLOTS, Answers, Link
from parity.weights.session.store import Store

_CLOSE_TIMEOUT_S = 10.0
_FAREWELL_TIMEOUT_S = 2.0
_SENDER = re.compile(r"sender-[0-9a-f]{8}")
log = logging.getLogger(__name__)


class ZmqTransfer(LinkTransfer):
    """Publishes to receivers of this host, each named by (replica, node-local rank)."""

    def __init__(
        self,
        directory: RunDirectory,
        receivers: Sequence[tuple[int, int]],
        config: WeightsConfig,
        *,
        device: DeviceMemory | None = None,
    ) -> None:
        """`device`: where the buckets lie; None: in host memory."""
        names = [endpoint_name(replica, rank) for replica, rank in receivers]
        super().__init__(ZmqLink(directory, names, config, device), config)


class ZmqLink(Link):
    """Sockets to the receivers, and the shared buckets."""

    def __init__(
        self,
        directory: RunDirectory,
        names: Sequence[str],
        config: WeightsConfig,
        device: DeviceMemory | None = None,
    ) -> None:
        self._directory = directory
        self._config = config
        self._device = device
        self._member = directory.member(f"sender-{secrets.token_hex(4)}")
        self._session = secrets.token_hex(8)
        self._context = zmq.Context(io_threads=1)
        self._poller = zmq.Poller()
        self._sockets: dict[str, zmq.Socket[bytes]] = {}
        # A context that the garbage collector finds waits forever for sockets it can't see any
        # more; so both are held here and closed together, whoever forgets `close`.
        self._end = weakref.finalize(self, _end_sockets, self._sockets, self._context)
        self._end.atexit = False
        for name in names:
            socket = self._sockets[name] = self._context.socket(zmq.DEALER)
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.RECONNECT_IVL, 20)
            socket.connect(directory.address(name))
            self._poller.register(socket, zmq.POLLIN)
        self._answered = dict.fromkeys(names, 0)
        self._number = 0
        self._first = 0  # message of this connection: answers to older ones are of no interest
        self._offer: Offer | None = None
        self._mapped_by: dict[str, str] = {}  # incarnation by receiver

    def connect(self, deadline: Deadline) -> None:
        """Ask who is there, and make new buckets where one of them hasn't mapped these."""
        number = self._first = self.send({"kind": "hello"}, deadline)
        answers = self.answers(number, deadline).check()
        found = {name: wire.text(answer, "incarnation") for name, answer in answers.items()}
        if self._offer is None or found != self._mapped_by:
            self._release()
            self._offer = self._new_offer()
            message = {"kind": "map", **self._offer.invitation()}
            self.answers(self.send(message, deadline), deadline).check()
            self._offer.accepted()
            self._mapped_by = found

    def _new_offer(self) -> Offer:
        size = NUM_SLOTS * self._config.bucket_bytes
        if self._device is not None:
            return DeviceOffer(self._device, size, list(self._sockets))
        return HostOffer(Path(self._config.shared_memory_dir), self._directory.tag, size)

    def buffer(self, slot: int) -> torch.Tensor:
        """One half of the memory that all see."""
        assert self._offer is not None, "connect comes first"
        size = self._config.bucket_bytes
        return self._offer.memory[slot * size : (slot + 1) * size]

    def seal(self) -> None:
        """Wait until the device has packed."""
        assert self._offer is not None, "connect comes first"
        self._offer.seal()

    def send(self, message: Mapping[str, object], deadline: Deadline) -> int:
        """Queue it at every socket; ZeroMQ's own queue never blocks so few messages."""
        self._number += 1
        framed = {
            **message,
            "number": self._number,
            "session": self._session,
            "sender": self._member.path.stem,
        }
        data = wire.encode(framed)
        for name, socket in self._sockets.items():
            try:
                socket.send(data, zmq.NOBLOCK)
            except zmq.Again:
                raise TransferError(
                    f"receiver {name} doesn't take messages in phase {deadline.phase}."
                ) from None
        return self._number

    def ship(self, slot: int, filled: int, deadline: Deadline) -> None:
        """Nothing: the receivers see the memory."""

    def answers(self, number: int, deadline: Deadline, *, wait_for_all: bool = False) -> Answers:
        """Wait for every receiver; one that died or refused ends the wait."""
        answers = Answers()
        while True:
            waiting = [
                name
                for name, answered in self._answered.items()
                if answered < number and name not in answers.failed
            ]
            if not waiting or (answers.failed and not wait_for_all):
                return answers
            if not self._receive(number, answers, deadline.slice_s):
                self._look_for_the_dead(waiting, answers, deadline)
                self._check_time(waiting, answers, deadline, wait_for_all=wait_for_all)

    def _check_time(
        self, waiting: Sequence[str], answers: Answers, deadline: Deadline, *, wait_for_all: bool
    ) -> None:
        late = [name for name in waiting if name not in answers.failed]
        if not late or (answers.failed and not wait_for_all):
            return
        try:
            deadline.check(", ".join(f"receiver {name}" for name in late))
        except ParityError as error:
            if not wait_for_all:
                raise
            answers.failed |= dict.fromkeys(late, str(error))

    def _receive(self, number: int, answers: Answers, wait_s: float) -> bool:
        ready = dict(self._poller.poll(int(wait_s * 1000) + 1))
        for name, socket in self._sockets.items():
            if socket not in ready:
                continue
            answer = wire.decode(b"".join(socket.recv_multipart(zmq.NOBLOCK)))
            if answer.get("session") != self._session:
                continue  # to a sender before this one
            found = wire.integer(answer, "number")
            if found < self._first:
                continue  # left in a queue for a receiver that died
            if found > self._number:
                raise TransferError(
                    f"receiver {name} answers message {found}; only {self._number} were sent."
                )
            self._answered[name] = max(self._answered[name], found)
            if answer.get("ok") is not True:
                # Whichever message it answers: later ones can't fare better.
                answers.failed.setdefault(name, wire.text(answer, "reason"))
            elif found == number:
                answers.given[name] = answer
        return bool(ready)

    def _look_for_the_dead(
        self, waiting: Sequence[str], answers: Answers, deadline: Deadline
    ) -> None:
        for name in waiting:
            has_been_there = name in self._mapped_by
            if has_been_there and not self._directory.is_alive(name):
                answers.failed[name] = f"its process died in phase {deadline.phase}."

    def close(self) -> None:
        """Close sockets, free the buckets, give the lock back."""
        self._release()
        self._end()
        self._member.release()

    def _release(self) -> None:
        if self._offer is not None:
            if self._offer.needs_farewell:
                # One that doesn't answer is dead or hangs, and its process's end lets go too.
                with contextlib.suppress(ParityError):
                    deadline = Deadline("unmap", _FAREWELL_TIMEOUT_S)
                    number = self.send({"kind": "unmap"}, deadline)
                    self.answers(number, deadline, wait_for_all=True)
            self._offer.close()
            self._offer = None
        self._mapped_by = {}


def _end_sockets(
    sockets: Mapping[str, "zmq.Socket[bytes]"], context: "zmq.Context[zmq.Socket[bytes]]"
) -> None:
    for socket in sockets.values():
        socket.close(linger=0)
    context.term()


class ZmqReceiver:
    """Receives in an engine's process: a thread that serves one store until `close`."""

    def __init__(
        self,
        directory: RunDirectory,
        store: Store,
        *,
        replica: int,
        local_rank: int,
        device: DeviceMemory | None = None,
    ) -> None:
        """`device`: the same physical one that the sender was given; None: host memory."""
        self._directory = directory
        self._device = device
        self._endpoint = directory.claim(replica, local_rank)
        self._context = zmq.Context(io_threads=1)
        try:
            self._socket = self._listen()
        except zmq.ZMQError as error:
            self._context.term()
            self._endpoint.release()
            raise TransferError(f"{self._endpoint.path} can't be bound ({error}).") from error
        self._incarnation = secrets.token_hex(8)
        self._responder = Responder(store, name=self._endpoint.name)
        self._sender = ""  # the lock of the sender of the open publication
        self._session = ""
        self._mapped: Mapped | None = None
        self._is_closing = threading.Event()
        name = f"parity-weights-{self._endpoint.name}"
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def _listen(self) -> "zmq.Socket[bytes]":
        socket = self._context.socket(zmq.ROUTER)
        try:
            socket.setsockopt(zmq.LINGER, 500)
            socket.setsockopt(zmq.MAXMSGSIZE, wire.MAX_BYTES)
            socket.bind(self._endpoint.address)
        except zmq.ZMQError:
            socket.close()
            raise
        return socket

    @property
    def failures(self) -> Sequence[str]:
        """Why publications were aborted, newest last."""
        return tuple(self._responder.failures)

    def close(self) -> None:
        """End the thread, abort what is open, remove socket and lock."""
        self._is_closing.set()
        self._thread.join(_CLOSE_TIMEOUT_S)
        self._endpoint.release()

    def _serve(self) -> None:
        try:
            looked = time.monotonic()
            while not self._is_closing.is_set():
                if self._socket.poll(int(SLICE_S * 1000)):
                    identity, *parts = self._socket.recv_multipart()
                    answer = wire.encode(self._answer(b"".join(parts)))
                    self._socket.send_multipart([identity, answer])
                    if time.monotonic() - looked < SLICE_S:
                        continue  # a flood of messages doesn't keep us from looking
                looked = time.monotonic()
                self._look_for_the_sender()
            if self._responder.is_open:
                self._responder.lost("the engine was closed.")
        except Exception:
            log.exception("event=weights_receiver_died receiver=%s", self._endpoint.name)
        finally:
            self._unmap()
            self._socket.close()
            self._context.term()
            self._endpoint.release()  # the sender sees a death of this thread as one of ours

    def _look_for_the_sender(self) -> None:
        if self._mapped is None and not self._responder.is_open:
            return
        if not self._directory.is_alive(self._sender):
            if self._responder.is_open:
                self._responder.lost("the sender's process died.")
            self._unmap()
        elif reason := self._responder.overdue():
            self._responder.lost(reason)

    def _answer(self, data: bytes) -> wire.Message:
        frame: wire.Message = {"session": "", "number": 0}
        try:
            message = wire.decode(data)
            frame = {
                "session": wire.text(message, "session"),
                "number": wire.integer(message, "number"),
            }
            more = self._admit(message) or self._answer_for_engine(message)
        except Exception as error:  # noqa: BLE001 - whatever a message brings, the engine goes on
            reason = str(error) if isinstance(error, ParityError) else repr(error)
            more = {"ok": False, "reason": reason}
        return {**frame, **more}

    def _answer_for_engine(self, message: wire.Message) -> wire.Message:
        answer = self._responder.answer(message, self._payload)
        if message.get("kind") == "bucket" and self._mapped is not None:
            self._mapped.settle()  # the answer says that the bucket may be packed anew
        return answer

    def _admit(self, message: wire.Message) -> wire.Message | None:
        """Messages about the connection; None where the message is about a publication."""
        kind, session = wire.text(message, "kind"), wire.text(message, "session")
        if kind == "hello":
            if self._responder.is_open and session != self._session:
                if self._directory.is_alive(self._sender):
                    reason = "another sender is publishing to this engine."
                    return {"ok": False, "reason": reason}
                self._responder.lost("the sender's process died.")
            sender = wire.text(message, "sender")
            if _SENDER.fullmatch(sender) is None:
                raise TransferError(f"{sender!r} isn't the name of a sender.")
            if session != self._session:
                # Another sender's buckets: that one has to map anew when it comes back.
                self._unmap()
                self._incarnation = secrets.token_hex(8)
            self._session, self._sender = session, sender
            return {"ok": True, "incarnation": self._incarnation}
        if session != self._session:
            who = "another sender has taken over this engine."
            new = "this engine began in the middle of the publication; the one before it is dead."
            return {"ok": False, "reason": who if self._session else new}
        if kind == "map":
            return self._map(message)
        if kind == "unmap":
            self._unmap()
            return {"ok": True}
        return None

    def _map(self, message: wire.Message) -> wire.Message:
        self._unmap()
        try:
            if not self._directory.is_alive(self._sender):
                raise TransferError("the sender's process died before its buckets were mapped.")
            self._mapped = map_buckets(message, self._endpoint.name, self._device)
        except ParityError as error:
            self._responder.lost(str(error))
            return {"ok": False, "reason": str(error)}
        return {"ok": True}

    def _unmap(self) -> None:
        mapped, self._mapped = self._mapped, None
        if mapped is not None:
            mapped.close()

    def _payload(self, slot: int, filled: int) -> torch.Tensor:
        if self._mapped is None:
            raise TransferError("a bucket came before its memory was mapped.")
        size = self._mapped.memory.numel() // NUM_SLOTS
        if not 0 <= slot < NUM_SLOTS or not 0 <= filled <= size:
            raise TransferError(f"a bucket of {filled} bytes in slot {slot} is out of bounds.")
        return self._mapped.memory[slot * size : slot * size + filled]
