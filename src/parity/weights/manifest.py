"""What a publication is going to bring: the inventory both ends must agree on.

The sender makes it in one pass over names, shapes and dtypes, before any byte moves. Digests
complete it at the end (`with_digests`), because they are computed from the bytes that were
really sent: reading everything once more beforehand would double the cost, and prove less.
"""

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from parity.errors import TransferError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    import torch

ROW_MAJOR = "row_major"


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor as it travels."""

    name: str
    shape: tuple[int, ...]
    dtype: str  # as `float32`
    layout: str = ROW_MAJOR  # the order of its elements on the wire
    is_buffer: bool = False  # not a parameter, but the forward pass depends on it
    digest: str | None = None  # xxh3-128 of its bytes in that order; None: not known (yet)

    @property
    def num_elements(self) -> int:
        """Elements of the tensor; 1 for a scalar."""
        number = 1
        for size in self.shape:
            number *= size
        return number


@dataclass(frozen=True, slots=True)
class Manifest:
    """The tensors of one version, and which names are the same storage (tied weights)."""

    version: int
    entries: tuple[TensorEntry, ...]
    aliases: tuple[tuple[str, str], ...] = ()  # (alias, name that is sent)
    skip: tuple[str, ...] = ()  # patterns of names that are left out on purpose
    skipped: tuple[str, ...] = ()  # the names that the sender left out because of them

    @classmethod
    def of(
        cls,
        version: int,
        tensors: "Iterable[tuple[str, torch.Tensor]]",
        aliases: "Sequence[tuple[str, str]]" = (),
        *,
        skip: tuple[str, ...] = (),
        buffers: "Collection[str]" = (),
        dtype_of: "Callable[[str, torch.Tensor], torch.dtype] | None" = None,
    ) -> "Manifest":
        """The manifest of named tensors.

        Args:
            version: what the engines will call it.
            tensors: each storage once; a sharded tensor counts with its global shape.
            aliases: further names of a storage, as (alias, name that is sent).
            skip: patterns of names to leave out.
            buffers: which names are buffers.
            dtype_of: in which dtype a tensor travels; None: in its own.
        """
        entries: list[TensorEntry] = []
        skipped: list[str] = []
        for name, tensor in tensors:
            if matches(name, skip):
                skipped.append(name)
                continue
            dtype = tensor.dtype if dtype_of is None else dtype_of(name, tensor)
            word = str(dtype).removeprefix("torch.")
            shape = tuple(int(size) for size in tensor.shape)
            entries.append(TensorEntry(name, shape, word, is_buffer=name in buffers))
        gone = {*skipped, *(alias for alias, _ in aliases if matches(alias, skip))}
        kept = tuple((a, n) for a, n in aliases if a not in gone and n not in gone)
        skipped += [alias for alias, name in aliases if alias in gone or name in gone]
        return cls(version, tuple(entries), kept, skip, tuple(skipped))

    def with_digests(self, digests: "Mapping[str, str]") -> "Manifest":
        """The same with the digests of the bytes that were sent."""
        entries = tuple(replace(each, digest=digests.get(each.name)) for each in self.entries)
        return replace(self, entries=entries)

    def check(
        self,
        expected: "Mapping[str, tuple[int, ...]]",
        *,
        dtypes: "Mapping[str, str] | None" = None,
    ) -> None:
        """Refuse what doesn't fit, all of a kind in one sentence.

        Args:
            expected: shape by name of what the receiver needs.
            dtypes: dtype by name, where the receiver takes no other.
        """
        self._check_itself()
        wanted = {name for name in expected if not matches(name, self.skip)}
        sent = {entry.name: entry for entry in self.entries}
        aliased = {alias for alias, _ in self.aliases}
        missing = sorted(wanted - sent.keys() - aliased)
        unknown = sorted((sent.keys() | aliased) - expected.keys())
        both = sent.keys() & expected.keys()
        shapes = sorted(n for n in both if sent[n].shape != tuple(expected[n]))
        shapes += sorted(
            alias
            for alias, name in self.aliases
            if alias in expected and name in sent and tuple(expected[alias]) != sent[name].shape
        )
        wrong = self._other_dtypes(sent, dtypes or {})
        if missing or unknown or shapes or wrong:
            raise TransferError(
                f"version {self.version} doesn't fit the engine's model: missing {missing[:5]}, "
                f"unknown {unknown[:5]}, other shape {shapes[:5]}, other dtype {wrong[:5]}; "
                "both sides must hold one model."
            )
        self._check_aliases()
        self._check_skip(expected)

    def _other_dtypes(
        self, sent: "Mapping[str, TensorEntry]", dtypes: "Mapping[str, str]"
    ) -> list[str]:
        """Names (aliases too) that come in another dtype than the receiver's, and which."""
        pairs = [(entry.name, entry) for entry in self.entries]
        pairs += [(alias, sent[name]) for alias, name in self.aliases if name in sent]
        return sorted(
            f"{name} ({entry.dtype}, not {dtypes[name]})"
            for name, entry in pairs
            if name in dtypes and dtypes[name] != entry.dtype
        )

    def _check_itself(self) -> None:
        """Refuse a manifest that contradicts itself, whoever receives it."""
        names = [entry.name for entry in self.entries]
        sent = set(names)
        if len(sent) != len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise TransferError(
                f"version {self.version} lists a tensor twice: {twice[:5]}; send each once."
            )
        layouts = sorted({e.layout for e in self.entries if e.layout != ROW_MAJOR})
        if layouts:
            raise TransferError(
                f"version {self.version} has tensors in the layouts {layouts}; this receiver "
                f"knows {ROW_MAJOR} only."
            )

    def _check_aliases(self) -> None:
        """Refuse an alias that leads nowhere, to two places, or that is sent itself."""
        sent = {entry.name for entry in self.entries}
        aliased: dict[str, str] = {}
        for alias, name in self.aliases:
            if name not in sent or alias in sent or aliased.setdefault(alias, name) != name:
                raise TransferError(
                    f"version {self.version} says that {alias} is the same as {name}; the first "
                    "must be a tensor that isn't sent and the second one that is."
                )

    def _check_skip(self, expected: "Collection[str]") -> None:
        """Refuse a pattern that matches nothing on either side: most likely a typing error."""
        names = {*expected, *self.skipped}
        idle = [pattern for pattern in self.skip if not any(fnmatchcase(n, pattern) for n in names)]
        if idle:
            raise TransferError(
                f"weights.skip has {idle}, which match no tensor of either side; correct or "
                "remove them."
            )


def matches(name: str, patterns: "Iterable[str]") -> bool:
    """Whether one of the shell patterns matches the whole name."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)
