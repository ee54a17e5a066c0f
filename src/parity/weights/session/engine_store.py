"""An engine of this process as a store: what a receiver beside an engine hands its tensors to.

The engine gets whole tensors through `load`; a tensor that comes in several pieces is gathered
first, so one tensor exists twice meanwhile. Digests then prove the way to the engine, and where
it shows its staged memory (`StagedWeights` of `staged.py`) also what it stored.
"""

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

import torch

from parity.engines.engine import Engine
from parity.errors import DeadlineError, TransferError
from parity.weights.content.digest import digest_of
from parity.weights.content.ranges import copy_into, dtype_named
from parity.weights.manifest import Manifest, TensorEntry
from parity.weights.session.staged import StagedWeights
from parity.weights.session.store import Store

T = TypeVar("T")


class EngineStore(Store):
    """Calls an engine from a receiver's thread; the engine's event loop runs in another one."""

    def __init__(
        self, engine: Engine, loop: asyncio.AbstractEventLoop, *, timeout_s: float
    ) -> None:
        """
        Args:
            engine: what serves the weights.
            loop: in which the engine is used, running in another thread.
            timeout_s: longest time of one call.
        """
        self.reads_back = False
        self._stored = engine if isinstance(engine, StagedWeights) else None
        self._engine = engine
        self._loop = loop
        self._timeout_s = timeout_s
        self._gathering: dict[str, torch.Tensor] = {}

    @property
    def version(self) -> int:
        """The version that the engine serves."""
        return self._engine.version

    def begin(self, manifest: Manifest) -> None:
        """The engine checks the manifest against its model."""
        if manifest.version <= self.version:
            raise TransferError(
                f"version {manifest.version} isn't newer than version {self.version}, which is "
                "served; versions must increase."
            )
        self._gathering = {}
        self._call("begin_load", self._engine.begin_load(manifest))
        try:
            for entry in manifest.entries:
                if entry.num_elements == 0:  # no piece will come
                    self.take(entry, torch.empty(entry.shape, dtype=dtype_named(entry.dtype)))
        except BaseException as error:
            self.abort(str(error))  # nobody else knows that it has begun
            raise

    def write(self, entry: TensorEntry, start: int, flat: torch.Tensor) -> torch.Tensor:
        """Gather the pieces of a tensor, and load it when it is whole."""
        if flat.numel() == entry.num_elements:
            return self.take(entry, flat.view(entry.shape)).view(-1)
        if start == 0:
            self._gathering[entry.name] = torch.empty(entry.num_elements, dtype=flat.dtype)
        whole = self._gathering[entry.name]
        copy_into(whole, start, flat)
        if start + flat.numel() < entry.num_elements:
            return whole[:0]
        del self._gathering[entry.name]
        return self.take(entry, whole.view(entry.shape)).view(-1)

    def take(self, entry: TensorEntry, tensor: torch.Tensor) -> torch.Tensor:
        """Load a whole tensor, which the engine copies before this returns; what it stored.

        Where that is unknown or rounded to another dtype, what it was given.
        """
        self._call("load", self._engine.load([(entry.name, tensor)]))
        if self._stored is None:
            return tensor.detach().contiguous()  # proves the way here, no more
        stored = self._stored.staged_weights()[entry.name]
        if stored.dtype == tensor.dtype:
            return stored.detach().contiguous()
        if digest_of(stored) != digest_of(tensor.to(stored.dtype)):
            raise TransferError(f"the engine stored another value for {entry.name} than it got.")
        return tensor.detach().contiguous()

    def commit(self, version: int) -> None:
        """The engine serves it, and invalidates its own caches."""
        self._call("commit_load", self._engine.commit_load(version))

    def abort(self, reason: str) -> None:
        """The engine forgets it."""
        self._gathering = {}
        self._call("abort_load", self._engine.abort_load(reason))

    def _call(self, name: str, coroutine: Coroutine[object, object, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result(self._timeout_s)
        except TimeoutError:
            future.cancel()
            raise DeadlineError(
                f"the engine didn't end {name} within {self._timeout_s:g} s; see its log."
            ) from None
