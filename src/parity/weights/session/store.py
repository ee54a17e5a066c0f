"""The receiving side's contract: where the tensors of a publication go, and what serves them.

A store has the weights that are served and, between `begin` and `commit` or `abort`, memory
aside for the next ones. `write` and `take` may be called from a thread of the receiver; only
`commit` changes what is served. `StagedStore` is the whole contract for anyone who has two sets
of tensors and a way to exchange them; engines plug in through it or through `engine_store.py`.
"""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

import torch

from parity.errors import TransferError
from parity.weights.content.digest import CACHED_BYTES, digest_of
from parity.weights.content.ranges import bytes_of, copy_from, copy_into
from parity.weights.manifest import Manifest, TensorEntry

Invalidate = Callable[[int], None]
Score = Callable[[Sequence[int]], Sequence[float]]


class Store(ABC):
    """Takes one publication at a time."""

    reads_back: bool  # `write` hands out what is stored, so digests prove more than the way here
    part_bytes: int | None = None  # most for one `write` that is read back at once; None: any

    @property
    @abstractmethod
    def version(self) -> int:
        """The version that is served."""

    @abstractmethod
    def begin(self, manifest: Manifest) -> None:
        """Begin; raises TransferError where the manifest doesn't fit. Served: unchanged."""

    @abstractmethod
    def write(self, entry: TensorEntry, start: int, flat: torch.Tensor) -> torch.Tensor:
        """Store elements `start` and on of a tensor; what is stored since the last call [m].

        A store that gathers hands out nothing (m = 0) until it has stored, and all of it then.
        `flat` [n] is on the host, contiguous, of the entry's dtype, and only valid during
        the call.
        """

    def take(self, entry: TensorEntry, tensor: torch.Tensor) -> torch.Tensor:
        """Store a whole tensor of any layout; what is stored now, in row-major order."""
        return self.write(entry, 0, tensor.detach().contiguous().view(-1))

    @abstractmethod
    def commit(self, version: int) -> None:
        """Serve the new weights and invalidate what was derived from the old ones."""

    @abstractmethod
    def abort(self, reason: str) -> None:
        """Forget what was written; the old version stays. May be called at any time."""

    def read(self, entry: TensorEntry) -> torch.Tensor:
        """The served tensor [n] on the host, a copy, of the entry's dtype (base of a delta)."""
        raise TransferError(f"this engine can't read {entry.name} back; set weights.delta=off.")

    def score(self, tokens: Sequence[int]) -> Sequence[float]:
        """Log-probs of a fixed sequence under the weights aside (see `canary.py`)."""
        raise TransferError(
            f"this engine can't score {len(tokens)} tokens with weights that it doesn't serve yet;"
            " set weights.verify=digests."
        )

    def served_digests(self) -> Mapping[str, str]:
        """Digest by name of what is served, read anew."""
        raise TransferError("this engine can't read its weights back; set weights.verify=off.")

    def overwrite(self) -> None:
        """Make the served weights useless, so that a publication that does nothing shows."""
        raise TransferError("this engine can't overwrite its weights, so it can't prove an update.")


class StagedStore(Store):
    """Two sets of tensors by name; the names of one may share memory (tied weights)."""

    reads_back = True

    def __init__(
        self,
        served: Mapping[str, torch.Tensor],
        staged: Mapping[str, torch.Tensor],
        *,
        version: int = 0,
        caches: Mapping[str, Invalidate] | None = None,
        score: Callable[[Mapping[str, torch.Tensor], Sequence[int]], Sequence[float]] | None = None,
    ) -> None:
        """
        Args:
            served: what is in use now.
            staged: the same names, shapes and dtypes in other memory.
            version: of the served tensors.
            caches: everything that depends on weights, by name; all are invalidated with the
                new version on a commit. One that fails undoes the commit.
            score: log-probs of tokens under a set of tensors, for the canary.
        """
        self._served = dict(served)
        self._staged = dict(staged)
        self._version = version
        self._caches = dict(caches or {})
        self._score = score
        self._manifest: Manifest | None = None
        self._targets: dict[str, list[torch.Tensor]] = {}
        self._repeats: set[str] = set()
        _check_apart(self._staged)
        is_on_host = all(tensor.is_cpu for tensor in self._staged.values())
        self.part_bytes = CACHED_BYTES if is_on_host else None

    @property
    def version(self) -> int:
        """The version that is served."""
        return self._version

    @property
    def served(self) -> Mapping[str, torch.Tensor]:
        """The tensors in use, by name."""
        return self._served

    def begin(self, manifest: Manifest) -> None:
        """Check names, shapes, dtypes and aliases against the staged tensors."""
        if self._manifest is not None:
            raise TransferError(
                f"version {manifest.version} can't begin: version {self._manifest.version} is "
                "under way; commit or abort it first."
            )
        if manifest.version <= self._version:
            raise TransferError(
                f"version {manifest.version} isn't newer than version {self._version}, which is "
                "served; versions must increase."
            )
        shapes = {name: tuple(tensor.shape) for name, tensor in self._staged.items()}
        dtypes = {name: str(t.dtype).removeprefix("torch.") for name, t in self._staged.items()}
        manifest.check(shapes, dtypes=dtypes)
        self._carry_over(manifest)
        self._lay_out(manifest)
        self._manifest = manifest

    def _carry_over(self, manifest: Manifest) -> None:
        """Skipped tensors keep their value in the new version too."""
        covered = {e.name for e in manifest.entries} | {alias for alias, _ in manifest.aliases}
        for name, tensor in self._staged.items():
            if name not in covered:
                tensor.copy_(self._served[name])

    def _lay_out(self, manifest: Manifest) -> None:
        """Which memory each sent tensor fills, and which fills memory that another one has."""
        targets = {entry.name: [self._staged[entry.name]] for entry in manifest.entries}
        for alias, name in manifest.aliases:
            if all(_place(self._staged[alias]) != _place(t) for t in targets[name]):
                targets[name].append(self._staged[alias])
        owners: dict[object, str] = {}
        repeats: set[str] = set()
        for name, tensors in targets.items():
            for tensor in tensors:
                if owners.setdefault(_place(tensor), name) != name:
                    repeats.add(name)
        self._targets, self._repeats = targets, repeats

    def write(self, entry: TensorEntry, start: int, flat: torch.Tensor) -> torch.Tensor:
        """Copy into staged memory, or compare where a tied name has filled it before."""
        targets = self._targets[entry.name]
        if entry.name in self._repeats:
            self._compare(entry, targets, start, flat)
        else:
            for target in targets:
                copy_into(target, start, flat)
        target = targets[0]
        if target.is_contiguous():
            return target.detach().view(-1)[start : start + flat.numel()]
        stored = torch.empty_like(flat)
        copy_from(target, start, stored)
        return stored

    def _compare(
        self, entry: TensorEntry, targets: Sequence[torch.Tensor], start: int, flat: torch.Tensor
    ) -> None:
        for target in targets:
            there = torch.empty_like(flat)
            copy_from(target, start, there)
            # Bytes, so that equal NaNs are equal.
            if not torch.equal(bytes_of(there), bytes_of(flat)):
                raise TransferError(
                    f"{entry.name} brings another value than the tensor that it is tied to; the "
                    "engine's model has one storage for both."
                )

    def take(self, entry: TensorEntry, tensor: torch.Tensor) -> torch.Tensor:
        """Copy a tensor of this process as it lies, once."""
        targets = self._targets[entry.name]
        if entry.name in self._repeats:
            self._compare(entry, targets, 0, tensor.detach().contiguous().view(-1).cpu())
        elif tensor.is_contiguous():
            for target in targets:
                copy_into(target, 0, tensor.detach().view(-1))
        else:
            for target in targets:
                target.copy_(tensor.detach().view(target.shape))
        return targets[0]

    def read(self, entry: TensorEntry) -> torch.Tensor:
        """A copy of the served tensor."""
        return self._served[entry.name].detach().cpu().contiguous().view(-1).clone()

    def commit(self, version: int) -> None:
        """Exchange the two sets; a cache that can't be invalidated undoes it."""
        if self._manifest is None or self._manifest.version != version:
            raise TransferError(f"version {version} can't be committed: it isn't under way.")
        before = self._version
        self._exchange(version)
        for name, invalidate in self._caches.items():
            try:
                invalidate(version)
            except Exception as error:  # undone and raised with the cache's name
                self._exchange(before)
                self._invalidate_again(name)
                raise TransferError(
                    f"version {version} isn't served: the cache {name} couldn't be invalidated "
                    f"({type(error).__name__}: {error})."
                ) from error
        self._manifest = None

    def _invalidate_again(self, broken: str) -> None:
        """After an undone commit: caches before the broken one may hold the new weights' values."""
        for name in itertools.takewhile(lambda each: each != broken, self._caches):
            self._caches[name](self._version)

    def _exchange(self, version: int) -> None:
        self._served, self._staged = self._staged, self._served
        self._version = version

    def abort(self, reason: str) -> None:
        """Forget the publication; the reason is of no use here."""
        self._manifest = None
        self._targets, self._repeats = {}, set()

    def score(self, tokens: Sequence[int]) -> Sequence[float]:
        """Log-probs under the staged tensors."""
        return super().score(tokens) if self._score is None else self._score(self._staged, tokens)

    def served_digests(self) -> Mapping[str, str]:
        """Digests of the served tensors."""
        return {name: digest_of(tensor) for name, tensor in self._served.items()}

    def overwrite(self) -> None:
        """Turn every bit of both sets over, so that neither holds what it held."""
        for tensors in (self._served, self._staged):
            for place in {_place(tensor): tensor for tensor in tensors.values()}.values():
                _turn_over(place)


def _turn_over(tensor: torch.Tensor) -> None:
    turned = bytes_of(tensor.detach().contiguous()).bitwise_not().view(tensor.dtype)
    tensor.copy_(turned.view(tensor.shape))


def _place(tensor: torch.Tensor) -> object:
    """Equal for tensors that are the same elements of the same memory."""
    if tensor.numel() == 0:
        return id(tensor)
    return (str(tensor.device), tensor.data_ptr(), tuple(tensor.shape), tensor.stride())


def _check_apart(tensors: Mapping[str, torch.Tensor]) -> None:
    """Refuse contiguous tensors that overlap without being the same: one would spoil the other."""
    spans = sorted(
        (tensor.data_ptr(), tensor.data_ptr() + tensor.numel() * tensor.element_size(), name)
        for name, tensor in tensors.items()
        if tensor.is_contiguous() and tensor.numel() and tensor.is_cpu
    )
    for (start, stop, name), (other_start, other_stop, other) in itertools.pairwise(spans):
        if other_start < stop and (start, stop) != (other_start, other_stop):
            raise TransferError(f"the staged tensors {name} and {other} overlap in memory.")
