"""The trainer's side of the content: sharded tensors whole one at a time, dtypes by policy.

`Outgoing` walks the tensors once, in order. A DTensor is gathered when its turn comes and
dropped with the next one, so at most one whole tensor exists beside the shards. Gathering is
collective: every rank of the trainer must walk (`participate`), also where sending fails.
"""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

import torch
from torch.distributed.tensor import DTensor

from parity.weights.config import DtypeRule
from parity.weights.content.ranges import dtype_named
from parity.weights.manifest import Manifest, matches
from parity.weights.transfer import Weights


class DtypePolicy:
    """In which dtype each tensor travels; integers and booleans always in their own."""

    def __init__(self, default: str | None = None, rules: Sequence[DtypeRule] = ()) -> None:
        self._default = None if default is None else dtype_named(default)
        self._rules = [(rule.names, dtype_named(rule.dtype)) for rule in rules]

    def __call__(self, name: str, tensor: torch.Tensor) -> torch.dtype:
        """The dtype of a tensor on the wire."""
        if not tensor.is_floating_point():
            return tensor.dtype
        for pattern, dtype in self._rules:
            if fnmatchcase(name, pattern):
                return dtype
        return tensor.dtype if self._default is None else self._default


class Outgoing:
    """The tensors of one publication, each available once and in order."""

    def __init__(
        self,
        weights: Weights,
        *,
        version: int,
        skip: tuple[str, ...] = (),
        policy: DtypePolicy | None = None,
    ) -> None:
        self.manifest = Manifest.of(
            version,
            weights.tensors,
            weights.aliases,
            skip=skip,
            buffers=weights.buffers,
            dtype_of=policy,
        )
        self.canary = weights.canary
        self._sent = [(name, t) for name, t in weights.tensors if not matches(name, skip)]
        self._walk = self._whole_tensors()
        self._index = -1
        self._current: torch.Tensor | None = None

    def tensor(self, index: int) -> torch.Tensor:
        """The whole tensor number `index` of the manifest; the ones before are gone."""
        assert index >= self._index, "tensors are read in the manifest's order"
        while self._index < index:
            self._current = None
            self._current = next(self._walk)
            self._index += 1
        assert self._current is not None
        return self._current

    def drain(self) -> None:
        """Take part in what is left to gather, so that the other ranks don't wait for this one."""
        self._current = None
        if any(isinstance(tensor, DTensor) for _, tensor in self._sent[self._index + 1 :]):
            for _ in self._walk:
                pass

    def _whole_tensors(self) -> Iterator[torch.Tensor]:
        for _, tensor in self._sent:
            yield whole(tensor)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself, or all shards of it gathered (collective)."""
    tensor = tensor.detach()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def participate(weights: Weights, *, skip: tuple[str, ...] = ()) -> None:
    """What a trainer rank other than 0 does while rank 0 publishes the same weights."""
    for name, tensor in weights.tensors:
        if not matches(name, skip):
            whole(tensor)
