"""How the names of one model's weights map to another's: fused, renamed and tied tensors as data.

Used by engines that hold fewer, larger tensors than the trainer (query, key and value in one;
gate and up in one). `views` gives each of the trainer's names its region of the engine's memory,
so that a publication fills fused tensors without building them first. Invariant: the regions
of the trainer's names cover every engine tensor exactly once; anything else is refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from parity.errors import UnsupportedError

if TYPE_CHECKING:
    import torch

STAR = "*"


@dataclass(frozen=True, slots=True)
class Fused:
    """Tensors that lie one after the other along `dim` of one engine tensor.

    Names may hold one `*`, which stands for the same text in all of them (a layer's prefix).
    """

    target: str
    parts: tuple[str, ...]
    dim: int = 0


@dataclass(frozen=True, slots=True)
class Renamed:
    """A tensor that the engine calls by another name."""

    target: str
    part: str


@dataclass(frozen=True, slots=True)
class Tied:
    """A trainer's name that is no tensor of its own at the engine: it is `part` once more."""

    alias: str
    part: str


Rule = Fused | Renamed | Tied

# What engines of the vLLM and SGLang kind do with a decoder of the Llama family.
LLAMA_FUSED: tuple[Rule, ...] = (
    Fused("*.qkv_proj.weight", ("*.q_proj.weight", "*.k_proj.weight", "*.v_proj.weight")),
    Fused("*.qkv_proj.bias", ("*.q_proj.bias", "*.k_proj.bias", "*.v_proj.bias")),
    Fused("*.gate_up_proj.weight", ("*.gate_proj.weight", "*.up_proj.weight")),
    Fused("*.gate_up_proj.bias", ("*.gate_proj.bias", "*.up_proj.bias")),
)


class NameMapping:
    """Rules between the names of a trainer and those of an engine; other names are the same."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = tuple(rules)

    def views(
        self,
        engine: "Mapping[str, torch.Tensor]",
        trainer: Mapping[str, tuple[int, ...]],
    ) -> "dict[str, torch.Tensor]":
        """The region of the engine's memory that each of the trainer's tensors fills.

        Args:
            engine: tensors by the engine's names.
            trainer: shapes by the trainer's names; a fused part's size along `dim` is its own.

        Raises UnsupportedError for names without a counterpart, sizes that don't add up, and
        engine tensors that nothing, or more than one thing, would fill.
        """
        found: dict[str, torch.Tensor] = {}
        owners: dict[str, str] = {}
        tied: dict[str, str] = {}
        for name in trainer:
            if name in found:
                continue
            rule, stem = self._rule_for(name)
            if isinstance(rule, Tied):
                tied[name] = _fill(rule.part, stem)
                continue
            target = name if rule is None else _fill(rule.target, stem)
            parts = (name,) if not isinstance(rule, Fused) else _filled(rule.parts, stem)
            if owners.setdefault(target, name) != name:
                raise UnsupportedError(f"{name} and {owners[target]} both fill {target}.")
            dim = rule.dim if isinstance(rule, Fused) else 0
            found |= _regions(target, engine, parts, trainer, dim)
        found |= {alias: _owner(alias, part, found) for alias, part in tied.items()}
        if idle := sorted(engine.keys() - owners.keys()):
            raise UnsupportedError(
                f"the trainer has nothing for these tensors of the engine: {idle[:5]}; "
                "complete the name mapping."
            )
        return found

    def _rule_for(self, name: str) -> tuple[Rule | None, str]:
        """The first rule that names it, and what its star stands for."""
        for rule in self._rules:
            names = rule.parts if isinstance(rule, Fused) else (_source(rule),)
            for pattern in names:
                if fnmatchcase(name, pattern):
                    head, _, tail = pattern.partition(STAR)
                    return rule, name[len(head) : len(name) - len(tail)] if STAR in pattern else ""
        return None, ""


def _source(rule: Renamed | Tied) -> str:
    return rule.part if isinstance(rule, Renamed) else rule.alias


def _fill(pattern: str, stem: str) -> str:
    return pattern.replace(STAR, stem)


def _filled(patterns: Sequence[str], stem: str) -> tuple[str, ...]:
    return tuple(_fill(pattern, stem) for pattern in patterns)


def _owner(alias: str, part: str, found: "Mapping[str, torch.Tensor]") -> "torch.Tensor":
    if part not in found:
        raise UnsupportedError(f"{alias} is tied to {part}, which the trainer doesn't have.")
    return found[part]


def _regions(
    target: str,
    engine: "Mapping[str, torch.Tensor]",
    parts: Sequence[str],
    trainer: Mapping[str, tuple[int, ...]],
    dim: int,
) -> "dict[str, torch.Tensor]":
    """Neighbouring regions of one engine tensor, all of it."""
    missing = [part for part in parts if part not in trainer]
    if target not in engine or missing:
        raise UnsupportedError(
            f"{parts} should fill {target}: the engine has "
            f"{'it' if target in engine else 'no such tensor'} and the trainer lacks {missing}."
        )
    whole = engine[target]
    start = 0
    regions: dict[str, torch.Tensor] = {}
    for part in parts:
        shape = trainer[part]
        if len(parts) == 1:
            region = whole
        else:
            size = shape[dim] if dim < len(shape) else 0
            stop = start + size
            region = whole.narrow(dim, start, size) if stop <= whole.shape[dim] else whole
            start = stop
        if tuple(region.shape) != shape:
            raise UnsupportedError(
                f"{part} has shape {shape} and {target} has {tuple(whole.shape)}; the parts "
                f"{parts} don't fit side by side along dimension {dim}."
            )
        regions[part] = region
    if len(parts) > 1 and start != whole.shape[dim]:
        raise UnsupportedError(
            f"{parts} fill {start} of {whole.shape[dim]} rows of {target} (dimension {dim})."
        )
    return regions
