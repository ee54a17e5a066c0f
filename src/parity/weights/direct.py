"""`direct`: trainer and engine share a process; each byte is copied once, into memory aside.

Both ends are here: `DirectTransfer` drives an engine through its contract (`begin_load`, `load`,
`commit_load`), or a `Store` through the same `Reception` as every other transport.
"""

import contextlib
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping, Sequence

import torch

from parity.engines.engine import Engine
from parity.errors import TransferError, UnsupportedError
from parity.weights.config import Verify, WeightsConfig
from parity.weights.content.bucket import size_bytes
from parity.weights.content.digest import digest_of
from parity.weights.content.outgoing import DtypePolicy, Outgoing
from parity.weights.content.ranges import dtype_named
from parity.weights.manifest import Manifest
from parity.weights.session.canary import Canary
from parity.weights.session.deadline import in_thread
from parity.weights.session.reception import Reception
from parity.weights.session.staged import StagedWeights
from parity.weights.session.store import Store
from parity.weights.transfer import PublishReport, Switch, Transfer, Weights

_Item = tuple[int, str, torch.Tensor]  # place in the manifest, name, tensor
log = logging.getLogger(__name__)


class DirectTransfer(Transfer):
    """Publishes to engines and stores of this process."""

    def __init__(
        self, engines: Sequence[Engine | Store], config: WeightsConfig | None = None
    ) -> None:
        """
        Args:
            engines: what takes the weights.
            config: None: digests where an engine can show what it stored, else the inventory.

        Raises UnsupportedError where `weights.verify` asks for what an engine can't do.
        """
        self._config = WeightsConfig() if config is None else config
        self._policy = DtypePolicy(self._config.dtype, self._config.dtype_rules)
        verify = self._config.verify
        self._targets = [
            _StoreTarget(engine, verify)
            if isinstance(engine, Store)
            else _EngineTarget(engine, verify, is_asked_for=config is not None)
            for engine in engines
        ]

    async def publish(self, weights: Weights, *, version: int, switch: Switch) -> PublishReport:
        """Make `version` live in every engine."""
        config = self._config
        outgoing = Outgoing(weights, version=version, skip=config.skip, policy=self._policy)
        canary = _canary_of(outgoing, config.verify)
        seconds: dict[str, float] = {}
        begun: list[_Target] = []
        try:
            with _timed(seconds, "begin"):
                for target in self._targets:
                    await target.begin(outgoing.manifest)
                    begun.append(target)
            with _timed(seconds, "buckets"):
                await self._load(outgoing)
            with _timed(seconds, "verify"):
                for target in self._targets:
                    await target.verify(canary)
            with _timed(seconds, "commit"):
                await switch(lambda: self._commit(version))
        except BaseException as error:
            try:
                await _abort(begun, f"version {version}: {error}")
            finally:
                outgoing.drain()
            raise
        log.debug("event=published version=%s seconds=%s", version, seconds)
        size = size_bytes(outgoing.manifest.entries)
        verified = config.verify if all(t.verifies for t in self._targets) else "off"
        return PublishReport(version, size, seconds, verified)

    async def _load(self, outgoing: Outgoing) -> None:
        """Every tensor into every target; a gathered one exists until all have it."""
        if len(self._targets) == 1:
            await self._targets[0].load(_walk(outgoing))
            return
        for item in _walk(outgoing):
            for target in self._targets:
                await target.load(iter([item]))

    async def _commit(self, version: int) -> None:
        for number, target in enumerate(self._targets):
            try:
                await target.commit(version)
            except Exception as error:
                if number == 0:
                    raise
                raise TransferError(
                    f"version {version} isn't live everywhere (engine {number}: {error}). Engines "
                    f"{list(range(number))} serve it already."
                ) from error


class _Target(ABC):
    """One side of the publications of this process."""

    verifies: bool  # compares what was stored with what was read

    @abstractmethod
    async def begin(self, manifest: Manifest) -> None: ...

    @abstractmethod
    async def load(self, items: Iterator[_Item]) -> None: ...

    @abstractmethod
    async def verify(self, canary: Canary | None) -> None: ...

    @abstractmethod
    async def commit(self, version: int) -> None: ...

    @abstractmethod
    async def abort(self, reason: str) -> None: ...


class _StoreTarget(_Target):
    def __init__(self, store: Store, verify: Verify) -> None:
        self._store = store
        self._has_digests = verify == "digests"
        self.verifies = verify != "off"

    async def begin(self, manifest: Manifest) -> None:
        self._digests: dict[str, str] = {}
        self._reception = Reception(self._store, manifest, has_digests=self._has_digests)

    async def load(self, items: Iterator[_Item]) -> None:
        cancelled = threading.Event()
        await in_thread(lambda: self._take(items, cancelled), cancelled)

    def _take(self, items: Iterator[_Item], cancelled: threading.Event) -> None:
        for index, name, tensor in items:
            if cancelled.is_set():
                return
            self._reception.take(index, tensor)
            if self._has_digests:
                self._digests[name] = digest_of(tensor)

    async def verify(self, canary: Canary | None) -> None:
        digests = self._digests if self._has_digests else None
        await in_thread(lambda: self._reception.verify(digests, canary), threading.Event())

    async def commit(self, version: int) -> None:
        self._reception.commit(version)

    async def abort(self, reason: str) -> None:
        self._reception.abort(reason)


class _EngineTarget(_Target):
    def __init__(self, engine: Engine, verify: Verify, *, is_asked_for: bool) -> None:
        self._engine = engine
        self._staged: StagedWeights | None = None
        if verify == "digests":
            self._staged = engine if isinstance(engine, StagedWeights) else None
            if self._staged is None and is_asked_for:
                raise UnsupportedError(
                    f"weights.verify=digests needs an engine that shows what it has stored, and "
                    f"{type(engine).__name__} has no staged_weights(); set weights.verify=off."
                )
        elif verify == "canary":
            raise UnsupportedError(
                "weights.verify=canary compares before the commit, with weights that aren't served"
                " yet, which an engine of this process can't score; set weights.verify=digests."
            )
        self.verifies = self._staged is not None

    async def begin(self, manifest: Manifest) -> None:
        self._digests: dict[str, str] = {}
        self._aliases = manifest.aliases
        await self._engine.begin_load(manifest)

    async def load(self, items: Iterator[_Item]) -> None:
        await self._engine.load(self._named(items))

    def _named(self, items: Iterator[_Item]) -> Iterator[tuple[str, torch.Tensor]]:
        stored = {} if self._staged is None else self._staged.staged_weights()
        for _, name, tensor in items:
            yield name, tensor
            if self._staged is not None:
                # An engine of another dtype stores the rounded value, and that is compared.
                wanted = stored[name].dtype if name in stored else tensor.dtype
                self._digests[name] = digest_of(tensor.to(wanted))

    async def verify(self, canary: Canary | None) -> None:
        if self._staged is not None:
            stored = self._staged.staged_weights()
            await in_thread(lambda: self._compare(stored), threading.Event())

    def _compare(self, stored: Mapping[str, torch.Tensor]) -> None:
        expected = dict(self._digests)
        for alias, name in self._aliases:
            # One that the engine has no storage of its own for is compared with its name.
            if alias in stored and stored[alias].data_ptr() != stored[name].data_ptr():
                expected[alias] = self._digests[name]
        wrong = sorted(
            name
            for name, digest in expected.items()
            if name not in stored or digest_of(stored[name]) != digest
        )
        if wrong:
            raise TransferError(
                f"the engine stored other values than the trainer holds in {len(wrong)} of "
                f"{len(expected)} tensors, first {wrong[:5]}; the old version stays."
            )

    async def commit(self, version: int) -> None:
        await self._engine.commit_load(version)

    async def abort(self, reason: str) -> None:
        await self._engine.abort_load(reason)


async def _abort(targets: Sequence[_Target], reason: str) -> None:
    """Abort all; one that can't doesn't keep the others, and the first error stays the one."""
    for target in targets:
        try:
            await target.abort(reason)
        except Exception:
            log.exception("event=abort_failed reason=%r", reason)


def _walk(outgoing: Outgoing) -> Iterator[_Item]:
    """The tensors in the dtype in which they travel."""
    for index, entry in enumerate(outgoing.manifest.entries):
        yield index, entry.name, outgoing.tensor(index).to(dtype_named(entry.dtype))


def _canary_of(outgoing: Outgoing, verify: Verify) -> Canary | None:
    if verify != "canary":
        return None
    if outgoing.canary is None:
        raise TransferError(
            "weights.verify=canary needs log-probs of the trainer and none were given; "
            "pass Weights.canary or set weights.verify=digests."
        )
    return outgoing.canary


@contextlib.contextmanager
def _timed(seconds: dict[str, float], phase: str) -> Generator[None]:
    started = time.monotonic()
    try:
        yield
    finally:
        seconds[phase] = time.monotonic() - started
