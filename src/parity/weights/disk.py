"""`disk`: versions as safetensors in a folder that both sides see; any host, any vendor, any time.

    trainer                                     engine, at any distance
    objects, then versions/N.json (rename)  ->  fetches, stores aside, compares; signs a receipt
    waits for the receipts it was told of   <-  verified, or refused with a reason
    live.json (rename)                      ->  serves it; signs
                                                one that joins late begins with live.json

A version is full, or a delta against the one before (`content/delta.py`); a late joiner takes
the last full one and the deltas after it, tensor by tensor. An engine fetches while it goes on
generating; only the exchange of the two sets of weights needs its attention.
"""

import contextlib
import logging
import secrets
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path

import torch

from parity.errors import ParityError, TransferError
from parity.weights.config import WeightsConfig
from parity.weights.content import delta
from parity.weights.content.bucket import size_bytes
from parity.weights.content.digest import digest_of
from parity.weights.content.outgoing import DtypePolicy, Outgoing
from parity.weights.content.ranges import dtype_named
from parity.weights.host.endpoints import Lock
from parity.weights.host.library import Library, VersionFile
from parity.weights.host.objects import ObjectReader, ObjectWriter
from parity.weights.session.deadline import Deadline, in_thread
from parity.weights.session.reception import Reception
from parity.weights.session.store import Store
from parity.weights.transfer import PublishReport, Switch, Transfer, Weights

_LOOK_S = 0.02
_CLOSE_TIMEOUT_S = 10.0
log = logging.getLogger(__name__)


class DiskTransfer(Transfer):
    """Publishes into a folder; `receivers` are the names whose receipts are waited for."""

    def __init__(self, path: Path, receivers: Sequence[str], config: WeightsConfig) -> None:
        """
        Args:
            path: the folder; made where it is missing, taken over where it is old.
            receivers: may be empty; others may read too, without being waited for.
            config: `verify=canary` isn't known here (UnsupportedError by the receivers).

        Raises TransferError where another living process publishes into the folder.
        """
        self._library = Library(path)
        self._library.make()
        self._lock = Lock(path / ".writer")
        self._library.recover()
        self._receivers = tuple(receivers)
        self._config = config
        self._policy = DtypePolicy(config.dtype, config.dtype_rules)
        self._base: dict[str, torch.Tensor] | None = None  # what the last version holds
        self._base_version: int | None = None
        self._since_full = 0
        self._cancelled = threading.Event()

    async def publish(self, weights: Weights, *, version: int, switch: Switch) -> PublishReport:
        """Make `version` live; the folder is as before where that fails."""
        seconds: dict[str, float] = {}
        skip = self._config.skip
        outgoing = Outgoing(weights, version=version, skip=skip, policy=self._policy)
        self._cancelled.clear()
        made, wire_bytes = await in_thread(lambda: self._stage(outgoing, seconds), self._cancelled)
        try:
            with _timed(seconds, "commit"):
                await switch(lambda: in_thread(lambda: self._commit(made), self._cancelled))
        except BaseException:
            if self._library.live() != version:
                self._take_back(version)
            raise
        self._library.prune(self._config.keep)
        size = size_bytes(outgoing.manifest.entries)
        return PublishReport(version, size, seconds, self._config.verify, wire_bytes)

    async def close(self) -> None:
        """Give the folder back; its versions stay for late joiners."""
        self._lock.release()
        self._base = None

    def _stage(self, outgoing: Outgoing, seconds: dict[str, float]) -> tuple[VersionFile, int]:
        version = outgoing.manifest.version
        live = self._library.live()
        if live is not None and version <= live:
            raise TransferError(
                f"version {version} isn't newer than version {live}, which is live in "
                f"{self._library.path}; set weights.dir to another folder."
            )
        try:
            with _timed(seconds, "buckets"):
                made, wire_bytes = self._write(outgoing)
                self._library.announce(made)
            with _timed(seconds, "verify"):
                self._wait_for(made, "verified")
        except BaseException:
            self._take_back(version)
            outgoing.drain()
            raise
        return made, wire_bytes

    def _commit(self, made: VersionFile) -> None:
        self._library.set_live(made.version)
        self._base_version = made.version
        self._since_full = 0 if made.base is None else self._since_full + 1
        self._wait_for(made, "committed")

    def _take_back(self, version: int) -> None:
        """Withdraw a version that didn't become live; the next one is full."""
        self._library.withdraw(version)
        self._base, self._base_version = None, None
        self._library.prune(self._config.keep)

    def _write(self, outgoing: Outgoing) -> tuple[VersionFile, int]:
        entries = outgoing.manifest.entries
        base, encoding = self._base_for(outgoing), self._config.delta
        if base is None or encoding == "off":
            base, self._base = None, {}
        assert self._base is not None
        keeps_base = self._config.delta != "off"
        writer = ObjectWriter(self._library)
        digests: dict[str, str] = {}
        for index, entry in enumerate(entries):
            tensor = outgoing.tensor(index).to("cpu", dtype_named(entry.dtype)).contiguous()
            digests[entry.name] = digest_of(tensor)
            if base is None:
                writer.add(entry.name, tensor)
            elif encoding != "off":
                packed = delta.encode(tensor.view(-1), base[entry.name], encoding)
                if packed is not None:
                    data = torch.frombuffer(bytearray(packed), dtype=torch.uint8)
                    writer.add(entry.name, data)
            if keeps_base:
                self._base[entry.name] = tensor.view(-1).clone()
        objects = writer.finish()
        made = VersionFile(
            publication=secrets.token_hex(4),
            manifest=outgoing.manifest,
            digests=digests,
            encoding="full" if base is None else encoding,
            base=None if base is None else self._base_version,
            objects=tuple(objects),
            where=writer.where,
            verify=self._config.verify,
            commit_timeout_s=self._config.commit_timeout_s,
        )
        return made, writer.size_bytes

    def _base_for(self, outgoing: Outgoing) -> Mapping[str, torch.Tensor] | None:
        """The tensors to write deltas against; None where a full version is due."""
        if self._base is None or self._base_version is None:
            return None
        if self._since_full + 1 >= self._config.full_every:
            return None
        base = self._library.read(self._base_version).manifest
        return self._base if base.entries == outgoing.manifest.entries else None

    def _wait_for(self, made: VersionFile, state: str) -> None:
        timeout_s = self._config.timeout_s
        deadline = Deadline(state, timeout_s, cancelled=self._cancelled)
        waiting = list(self._receivers)
        while waiting:
            for who in list(waiting):
                receipt = self._library.receipt(made, who)
                if receipt is None or receipt[0] not in (state, "refused"):
                    continue
                if receipt[0] == "refused":
                    raise TransferError(f"receiver {who}: {receipt[1]}")
                waiting.remove(who)
            if waiting:
                deadline.check(", ".join(f"receiver {who}" for who in waiting))
                time.sleep(min(_LOOK_S, deadline.slice_s))


class DiskReceiver:
    """Follows a folder in an engine's process: a thread that serves one store until `close`."""

    def __init__(self, path: Path, store: Store, *, name: str, look_s: float = _LOOK_S) -> None:
        self._library = Library(path)
        self._store = store
        self._name = name
        self._look_s = look_s
        self._staged: tuple[VersionFile, Reception] | None = None
        self._staged_at = 0.0
        self._refused: set[str] = set()  # publications
        self._failures: list[str] = []
        self._unsigned: tuple[VersionFile, str, str] | None = None  # a receipt to be written
        self._is_closing = threading.Event()
        self._thread = threading.Thread(
            target=self._serve, name=f"parity-weights-{name}", daemon=True
        )
        self._thread.start()

    @property
    def failures(self) -> Sequence[str]:
        """Why publications were aborted, newest last."""
        return tuple(self._failures)

    def close(self) -> None:
        """End the thread and abort what is staged."""
        self._is_closing.set()
        self._thread.join(_CLOSE_TIMEOUT_S)

    def _serve(self) -> None:
        while not self._is_closing.wait(self._look_s):
            try:
                self._look()
            except Exception as error:  # noqa: BLE001 - recorded; the folder is looked at again
                self._fail(str(error) if isinstance(error, ParityError) else repr(error))
        self._drop("the engine was closed.")

    def _look(self) -> None:
        """Do what the folder asks for now."""
        self._sign_again()
        live = self._library.live()
        newer = [v for v in self._library.versions() if live is None or v > live]
        if live is not None and live > self._store.version:
            self._stage(live)
            self._commit(live)
        elif newer:
            self._stage(newer[-1])
        elif self._staged is not None:
            self._drop("the sender withdrew the version.")
        if self._staged is not None:
            waited_s = time.monotonic() - self._staged_at
            if waited_s > self._staged[0].commit_timeout_s:
                self._refuse(self._staged[0], "nothing came from the sender in phase commit.")

    def _stage(self, version: int) -> None:
        found = self._library.read(version)
        if found.publication in self._refused:
            return
        if self._staged is not None:
            if self._staged[0].publication == found.publication:
                return
            self._drop("another version was announced before this one was live.")
        try:
            reception = self._load(found)
        except Exception as error:  # noqa: BLE001 - every error of an engine is the sender's too
            self._refuse(found, str(error) if isinstance(error, ParityError) else repr(error))
            return
        self._staged, self._staged_at = (found, reception), time.monotonic()
        self._sign(found, "verified")

    def _load(self, found: VersionFile) -> Reception:
        """Store a version aside and verify it."""
        if found.verify == "canary":
            raise TransferError(
                "weights.verify=canary isn't known to the disk transport; set digests or off."
            )
        has_digests = found.verify == "digests"
        readers = self._readers(found)
        reception = Reception(self._store, found.manifest, has_digests=has_digests)
        try:
            for index, entry in enumerate(found.manifest.entries):
                tensor = None
                if readers[0].base is not None:
                    tensor = self._store.read(entry)
                for reader in readers:
                    tensor = reader.apply(entry.name, tensor)
                assert tensor is not None
                reception.take(index, tensor.view(entry.shape))
            reception.verify(found.digests if has_digests else None)
        except BaseException as error:
            reception.abort(str(error))
            raise
        return reception

    def _readers(self, found: VersionFile) -> "list[ObjectReader]":
        """What to apply in order: from the served weights on where they are the base."""
        chain = self._library.chain(found.version)
        if self._store.reads_back and self._store.version in chain[:-1]:
            chain = chain[chain.index(self._store.version) + 1 :]
        return [ObjectReader(self._library, self._library.read(version)) for version in chain]

    def _commit(self, version: int) -> None:
        if self._staged is None or self._staged[0].version != version:
            return
        found, reception = self._staged
        self._staged = None
        try:
            reception.commit(version)
        except Exception as error:  # noqa: BLE001 - as above
            reception.abort(str(error))
            self._refuse(found, str(error) if isinstance(error, ParityError) else repr(error))
            return
        self._sign(found, "committed")

    def _refuse(self, found: VersionFile, reason: str) -> None:
        self._refused.add(found.publication)
        self._drop(reason)
        self._fail(reason)
        self._sign(found, "refused", reason)

    def _sign(self, found: VersionFile, state: str, reason: str = "") -> None:
        """Leave a receipt; one that can't be written (a full disk) is tried at every look."""
        self._unsigned = (found, state, reason)
        try:
            self._library.sign(found, self._name, state, reason)
            self._unsigned = None
        except TransferError as error:
            self._fail(str(error))

    def _sign_again(self) -> None:
        if self._unsigned is not None:
            self._sign(*self._unsigned)

    def _drop(self, reason: str) -> None:
        if self._staged is not None:
            self._staged[1].abort(reason)
            self._staged = None
            self._fail(reason)

    def _fail(self, reason: str) -> None:
        if not self._failures or self._failures[-1] != reason:
            log.warning("event=publication_aborted receiver=%s reason=%r", self._name, reason)
            self._failures.append(reason)
            del self._failures[:-16]


@contextlib.contextmanager
def _timed(seconds: dict[str, float], phase: str) -> Generator[None]:
    started = time.monotonic()
    try:
        yield
    finally:
        seconds[phase] = time.monotonic() - started
