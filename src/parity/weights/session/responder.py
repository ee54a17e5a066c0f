"""The receiving side of the transaction: answers a sender's messages, whatever carries them.

One publication at a time. Any error, of the protocol or of the engine, aborts the publication
and becomes the answer, so that the sender ends with the receiver's own reason. `failures` keeps
what went wrong for the receiver's own process.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping

import torch

from parity.errors import ParityError, TransferError
from parity.weights.session import wire
from parity.weights.session.reception import Reception
from parity.weights.session.store import Store

Payload = Callable[[int, int], torch.Tensor]
log = logging.getLogger(__name__)


class Responder:
    """Answers for one store."""

    def __init__(self, store: Store, *, name: str) -> None:
        self.store = store
        self.failures: deque[str] = deque(maxlen=16)  # newest last
        self._name = name
        self._reception: Reception | None = None
        self._ended = "no publication was begun."  # why there is none
        self._verifies = False
        self.timeout_s = 0.0
        self._commit_timeout_s = 0.0
        self._last = time.monotonic()

    @property
    def is_open(self) -> bool:
        """Whether a publication is under way."""
        return self._reception is not None

    def answer(self, message: wire.Message, payload: Payload) -> wire.Message:
        """Do what a message asks for.

        Args:
            message: of a sender, decoded.
            payload: gives the first `filled` bytes of buffer `slot`, for the kind `bucket`.
        """
        try:
            more = self._do(message, payload)
        except Exception as error:  # noqa: BLE001 - every error of an engine is the sender's too
            reason = str(error) if isinstance(error, ParityError) else f"{error!r}"
            self.lost(reason)
            more = {"ok": False, "reason": reason}
        self._last = time.monotonic()
        return {"ok": True, "version": self.store.version, **more}

    def overdue(self) -> str | None:
        """Why the sender of the open publication is given up; None while it has time."""
        if self._reception is None:
            return None
        is_verified = self._reception.state == "verified"
        limit_s = self._commit_timeout_s if is_verified else self.timeout_s
        if time.monotonic() - self._last < limit_s:
            return None
        phase = "commit" if is_verified else "buckets"
        return f"nothing came from the sender within {limit_s:g} s in phase {phase}."

    def lost(self, reason: str) -> None:
        """Abort what is under way; the old version stays."""
        reception, self._reception = self._reception, None
        self.failures.append(reason)
        self._ended = reason
        if reception is not None:
            version = reception.manifest.version
            log.warning(
                "event=publication_aborted receiver=%s version=%d reason=%r",
                self._name,
                version,
                reason,
            )
            reception.abort(reason)

    def _do(self, message: wire.Message, payload: Payload) -> Mapping[str, object]:
        kind = wire.kind_of(message)
        if kind == "begin":
            self._begin(message)
        elif kind == "bucket":
            filled = wire.integer(message, "filled")
            pieces = wire.unpack_pieces(message)
            self._open().load(pieces, payload(wire.integer(message, "slot"), filled))
        elif kind == "verify":
            digests = wire.digests_of(message)
            if self._verifies and digests is None:
                raise TransferError("the sender announced digests and sent none.")
            self._open().verify(digests, self._canary)
        elif kind == "commit":
            version = wire.integer(message, "version")
            self._open().commit(version)
            self._reception, self._ended = None, f"version {version} was committed already."
        elif kind == "abort":
            self.lost(wire.text(message, "reason"))
        elif kind == "overwrite":
            self.store.overwrite()
        elif kind == "prove":
            return {"digests": dict(self.store.served_digests())}
        return {}

    def _begin(self, message: wire.Message) -> None:
        if self._reception is not None:
            self.lost("another publication began before this one had ended.")
        self._verifies = wire.text(message, "verify") == "digests"
        self._canary = wire.unpack_canary(message.get("canary"))
        self.timeout_s = wire.number(message, "timeout_s")
        self._commit_timeout_s = wire.number(message, "commit_timeout_s")
        manifest = wire.unpack_manifest(message.get("manifest"))
        self._reception = Reception(self.store, manifest, has_digests=self._verifies)

    def _open(self) -> Reception:
        if self._reception is None:
            raise TransferError(self._ended)
        return self._reception
