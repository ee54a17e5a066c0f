"""`direct`: trainer and engine share a process; the engine copies the tensors itself."""

import logging
import time

from parity.engines.engine import Engine
from parity.weights.manifest import Manifest
from parity.weights.transfer import Switch, Transfer, Weights

log = logging.getLogger(__name__)


class DirectTransfer(Transfer):
    """Publishes to engines of this process."""

    def __init__(self, engines: list[Engine]) -> None:
        self._engines = engines

    async def publish(self, weights: Weights, *, version: int, switch: Switch) -> None:
        """Make `version` live in every engine."""
        started = time.monotonic()
        manifest = Manifest.of(version, weights.tensors, weights.aliases)
        begun: list[Engine] = []
        try:
            for engine in self._engines:
                await engine.begin_load(manifest)
                begun.append(engine)
                await engine.load(weights.tensors)
            await switch(lambda: self._commit(version))
        except BaseException as error:
            for engine in begun:
                if engine.version < version:
                    await engine.abort_load(f"version {version}: {error}")
            raise
        log.debug("published version=%s seconds=%.3f", version, time.monotonic() - started)

    async def _commit(self, version: int) -> None:
        for engine in self._engines:
            await engine.commit_load(version)
