"""What a publication is going to bring: the inventory both ends must agree on."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from parity.errors import TransferError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import torch


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Name, shape and dtype (as `float32`) of one tensor."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The tensors of one version, and which names are the same storage (tied weights)."""

    version: int
    entries: tuple[TensorEntry, ...]
    aliases: tuple[tuple[str, str], ...] = ()  # (alias, name that is sent)

    @classmethod
    def of(
        cls,
        version: int,
        tensors: "Iterable[tuple[str, torch.Tensor]]",
        aliases: tuple[tuple[str, str], ...] = (),
    ) -> "Manifest":
        """The manifest of named tensors."""
        entries = tuple(
            TensorEntry(name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
            for name, tensor in tensors
        )
        return cls(version=version, entries=entries, aliases=aliases)

    def check(self, expected: "Mapping[str, tuple[int, ...]]") -> None:
        """Refuse missing, unknown and mis-shaped tensors, all of them in one sentence.

        Args:
            expected: shape by name of what the receiver needs.
        """
        sent = {entry.name: entry.shape for entry in self.entries}
        aliased = {alias for alias, _ in self.aliases}
        missing = sorted(expected.keys() - sent.keys() - aliased)
        unknown = sorted(sent.keys() - expected.keys())
        shapes = sorted(n for n in sent.keys() & expected.keys() if sent[n] != tuple(expected[n]))
        if missing or unknown or shapes:
            raise TransferError(
                f"version {self.version} doesn't fit the engine's model: missing {missing[:5]}, "
                f"unknown {unknown[:5]}, other shape {shapes[:5]}; both sides must hold one model."
            )
