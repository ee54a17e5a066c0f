"""Calls that are put to every replica of a pool, and the switch to a new version.

One rule for all: a replica that fails alone leaves the pool and the call succeeds; where all
fail the call fails, those that don't answer their check leave, and the others stay as they are.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from parity.engines.config import RouterConfig
from parity.engines.engine import Engine
from parity.engines.pool.health import Health, other_version
from parity.engines.pool.pool import Pool
from parity.errors import TransferError

if TYPE_CHECKING:
    import torch

    from parity.weights.manifest import Manifest

log = logging.getLogger(__name__)
Question = Callable[[Engine], Coroutine[object, object, None]]
_PART_BYTES = 64 * 2**20  # of a publication that are taken from the trainer at once


class Together:
    """Asks all replicas at once."""

    def __init__(self, pool: Pool, health: Health, config: RouterConfig) -> None:
        self._pool = pool
        self._health = health
        self._timeout_s = config.call_timeout_s

    async def ask(self, what: str, question: Question, *, has_limit: bool = True) -> None:
        """Put a question to every replica; raises the first one's error where all fail.

        Args:
            has_limit: of time; without, the wait for a replica ends when that leaves the pool.
        """
        pool, asked = self._pool, list(self._pool.serving)
        if not asked:
            raise pool.nobody() from pool.cause
        timeout_s = self._timeout_s if has_limit else None
        answers = await asyncio.gather(
            *(one.ask(what, question(one.engine), timeout_s=timeout_s) for one in asked),
            return_exceptions=True,
        )
        pairs = zip(asked, answers, strict=True)
        failed = {one: error for one, error in pairs if isinstance(error, BaseException)}
        if len(failed) < len(asked):
            for one, error in failed.items():
                pool.leave(one, f"{what} failed: {error}", error)
            return
        checks = (self._health.is_alive(one, f"{what} failed ({failed[one]})") for one in asked)
        alive = await asyncio.gather(*checks)
        for one, is_alive in zip(asked, alive, strict=True):
            if is_alive:
                raise failed[one]
        raise pool.nobody() from failed[asked[0]]

    async def begin_load(self, manifest: "Manifest") -> None:
        """Begin a publication; while it lasts nobody joins."""
        pool, was_loading = self._pool, self._pool.is_loading
        pool.is_loading = True
        pool.touch()
        try:
            await self.ask("begin_load", lambda engine: engine.begin_load(manifest))
        except BaseException:
            pool.is_loading = was_loading
            pool.touch()
            raise

    async def load(self, tensors: "Iterable[tuple[str, torch.Tensor]]") -> None:
        """Every tensor into every replica, in parts; `tensors` is iterated in another thread."""
        parts = _parts(iter(tensors))
        part = await asyncio.to_thread(next, parts, None)
        while part is not None:
            await self.ask("load", partial(_load, part))
            part = await asyncio.to_thread(next, parts, None)

    async def abort_load(self, reason: str) -> None:
        """Every replica forgets what it took."""
        try:
            if self._pool.serving:
                await self.ask("abort_load", lambda engine: engine.abort_load(reason))
        finally:
            self._pool.is_loading = False
            self._pool.touch()

    async def switch(self, commit: Callable[[], Awaitable[None]], *, version: int) -> None:
        """Run `commit`, which makes `version` live in the replicas, and see who serves it.

        The version is the pool's as soon as one replica serves it; who doesn't then leaves, also
        where `commit` failed because of one of them. Where nobody serves it, everyone stays and
        the error of `commit` is raised. How long `commit` may take is its owner's to bound.
        """
        pool = self._pool
        if pool.is_switching:
            raise TransferError(
                f"version {version} can't be committed: version {pool.coming} is being committed."
            )
        if not pool.serving:
            raise pool.nobody() from pool.cause
        pool.is_switching, pool.coming = True, version
        pool.touch()
        failure: Exception | None = None
        found: list[int | str] | None = None
        try:
            try:
                await commit()
            except Exception as error:  # noqa: BLE001 (what the replicas serve now decides)
                failure = error
            is_live = any(one.engine.version == version for one in pool.serving)
            found = await self._health.versions(list(pool.serving))
            if is_live:
                pool.version = version
        finally:
            self._settle(version, found)
        if pool.version != version:
            raise failure or TransferError(
                f"version {version} was committed and no replica serves it ({found}); version "
                f"{pool.version} stays."
            )
        if failure is not None:
            log.warning("event=commit_partial version=%d reason=%r", version, str(failure))

    def _settle(self, version: int, found: list[int | str] | None) -> None:
        """The pool's version from what its replicas serve; the others leave."""
        pool = self._pool
        serving = list(pool.serving)
        if found is None or len(found) != len(serving):  # broken off, or somebody left meanwhile
            found = [one.engine.version for one in serving]
        if version in found:
            pool.version = version
        if pool.version == version:
            pool.is_loading = False
        pool.is_switching, pool.coming = False, pool.version
        for one, what in zip(serving, found, strict=True):
            if isinstance(what, str):
                pool.leave(one, f"its check after a commit failed: {what}")
            elif what != pool.version:
                pool.leave(one, other_version(what, pool.version))
        pool.touch()


def _parts(
    tensors: "Iterator[tuple[str, torch.Tensor]]",
) -> "Iterator[list[tuple[str, torch.Tensor]]]":
    """Lists of some bytes, and an empty one where there is nothing."""
    part: list[tuple[str, torch.Tensor]] = []
    size_bytes, is_empty = 0, True
    for name, tensor in tensors:
        part.append((name, tensor))
        size_bytes += tensor.nbytes
        if size_bytes >= _PART_BYTES:
            yield part
            part, size_bytes, is_empty = [], 0, False
    if part or is_empty:
        yield part


def _load(
    part: "list[tuple[str, torch.Tensor]]", engine: Engine
) -> Coroutine[object, object, None]:
    return engine.load(part)
