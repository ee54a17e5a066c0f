"""One publication as its receiver sees it: begun, filled in order, verified, then one end.

Every transport drives a `Reception`; it alone decides whether a version may be committed.
Invariant: `commit` succeeds only after `verify`, and `verify` only where every announced
element was stored exactly once and, with digests, is what the sender read.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Literal

import torch

from parity.errors import TransferError
from parity.weights.content.bucket import Piece
from parity.weights.content.digest import Digest, digest_of
from parity.weights.content.ranges import dtype_named
from parity.weights.manifest import Manifest, TensorEntry
from parity.weights.session.canary import Canary
from parity.weights.session.store import Store

log = logging.getLogger(__name__)
State = Literal["open", "verified", "committed", "aborted"]


class Reception:
    """What has come of one manifest."""

    def __init__(self, store: Store, manifest: Manifest, *, has_digests: bool) -> None:
        """Begin at the store; raises TransferError where the manifest doesn't fit it."""
        self.manifest = manifest
        self.state: State = "open"
        self.reason: str | None = None  # why it was aborted
        self.size_bytes = 0
        self._store = store
        self._dtypes = [dtype_named(entry.dtype) for entry in manifest.entries]
        self._arrived = [0] * len(manifest.entries)
        self._digests = [Digest() for _ in manifest.entries] if has_digests else []
        self._whole: dict[str, str] = {}
        store.begin(manifest)

    def load(self, pieces: Sequence[Piece], payload: torch.Tensor) -> None:
        """Store the pieces of a bucket; `payload` uint8 [filled bytes] may be reused after it.

        Raises TransferError for pieces that aren't next of their tensor or aren't in the bucket.
        """
        self._must_be("open", "a bucket")
        for piece in pieces:
            entry = self._entry_of(piece)
            dtype = self._dtypes[piece.tensor]
            stop = piece.at + piece.count * dtype.itemsize
            if piece.at < 0 or stop > payload.numel() or piece.at % dtype.itemsize:
                raise TransferError(
                    f"version {self.manifest.version}: a piece of {entry.name} lies at bytes "
                    f"{piece.at} to {stop} of a bucket that has {payload.numel()}."
                )
            self._write(piece, payload[piece.at : stop].view(dtype))
            self._arrived[piece.tensor] += piece.count
            self.size_bytes += stop - piece.at

    def _write(self, piece: Piece, flat: torch.Tensor) -> None:
        """Store a piece; where it is read back, in parts that the processor's cache still has."""
        entry = self.manifest.entries[piece.tensor]
        if not self._digests:
            self._store.write(entry, piece.start, flat)
            return
        most = self._store.part_bytes
        step = flat.numel() if most is None else max(1, most // flat.element_size())
        for at in range(0, flat.numel(), step):
            stored = self._store.write(entry, piece.start + at, flat[at : at + step])
            self._digests[piece.tensor].add(stored)

    def take(self, index: int, tensor: torch.Tensor) -> None:
        """Store a whole tensor that is in this process."""
        self._must_be("open", "a tensor")
        entry = self.manifest.entries[index]
        if tuple(tensor.shape) != entry.shape or self._arrived[index]:
            raise TransferError(
                f"version {self.manifest.version} announced {entry.name} once with shape "
                f"{entry.shape} and brought shape {tuple(tensor.shape)}."
            )
        if tensor.dtype != self._dtypes[index]:
            raise TransferError(
                f"version {self.manifest.version} announced {entry.name} as {entry.dtype} and "
                f"brought {tensor.dtype}."
            )
        stored = self._store.take(entry, tensor)
        if self._digests:
            self._whole[entry.name] = digest_of(stored)
        self._arrived[index] = entry.num_elements
        self.size_bytes += entry.num_elements * self._dtypes[index].itemsize

    def verify(self, digests: Mapping[str, str] | None, canary: Canary | None = None) -> None:
        """Check that all came, and that it is what was sent.

        Raises TransferError for missing elements, a digest that differs or is missing, and
        a canary that sings another song.
        """
        self._must_be("open", "verify")
        self._check_complete()
        if digests is not None:
            self._check_digests(digests)
        if canary is not None:
            canary.check(self._store.score(canary.tokens))
        self.state = "verified"

    def commit(self, version: int) -> None:
        """Serve it."""
        self._must_be("verified", "commit")
        if version != self.manifest.version:
            raise TransferError(
                f"version {version} can't be committed: version {self.manifest.version} is "
                "under way."
            )
        self._store.commit(version)
        self.state = "committed"

    def abort(self, reason: str) -> None:
        """Forget it, once; a committed one stays. Raises nothing: the reason is what counts."""
        if self.state in ("open", "verified"):
            self.state, self.reason = "aborted", reason
            try:
                self._store.abort(reason)
            except Exception:  # a store that can't forget refuses the next one, with its reason
                version = self.manifest.version
                log.exception("event=abort_failed version=%d reason=%r", version, reason)

    def _entry_of(self, piece: Piece) -> TensorEntry:
        if not 0 <= piece.tensor < len(self._arrived):
            raise TransferError(
                f"version {self.manifest.version} brought tensor number {piece.tensor}; it "
                f"announced {len(self._arrived)}."
            )
        entry = self.manifest.entries[piece.tensor]
        stop = piece.start + piece.count
        if piece.start != self._arrived[piece.tensor] or not 0 < piece.count <= (
            entry.num_elements - piece.start
        ):
            raise TransferError(
                f"version {self.manifest.version} brought elements {piece.start} to {stop} of "
                f"{entry.name}, which has {entry.num_elements}; next is "
                f"{self._arrived[piece.tensor]}."
            )
        return entry

    def _check_complete(self) -> None:
        entries = zip(self.manifest.entries, self._arrived, strict=True)
        missing = sorted(each.name for each, arrived in entries if arrived != each.num_elements)
        if missing:
            raise TransferError(
                f"version {self.manifest.version} lacks {len(missing)} of {len(self._arrived)} "
                f"announced tensors, first {missing[:5]}; the old version stays."
            )

    def _check_digests(self, digests: Mapping[str, str]) -> None:
        found = dict(self._whole)
        for entry, digest in zip(self.manifest.entries, self._digests, strict=False):
            found.setdefault(entry.name, digest.value)
        names = [entry.name for entry in self.manifest.entries]
        wrong = [name for name in names if name not in digests or found.get(name) != digests[name]]
        if wrong:
            raise TransferError(
                f"version {self.manifest.version}: the digests of {len(wrong)} tensors differ "
                f"between what was read by the trainer and stored by the engine, first "
                f"{wrong[:5]}; the old version stays."
            )

    def _must_be(self, state: State, call: str) -> None:
        if self.state != state:
            raise TransferError(
                f"version {self.manifest.version} is {self.state}, so {call} is out of order."
            )
