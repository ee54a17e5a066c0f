"""Which tensors of a model's files become which of its weights, known before any is read.

Used by `streaming.py`. transformers' own tables rename and convert (an expert's matrices are
stacked, say); they are run here on shapes alone, so that every fault has its name before the
first byte of a weight is read. Invariant: every weight has exactly one source, or the plan
names it as missing, or gives a reason to load the model whole.
"""

import copy
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    SkipParameters,
    WeightConverter,
    WeightRenaming,
    dot_natural_key,
    rename_source_key,
)

COMPARED_BYTES = 2**24  # of two tensors that must be equal, at a time


@dataclass(frozen=True, slots=True)
class Stored:
    """One tensor of the files."""

    path: Path
    shape: tuple[int, ...]

    @classmethod
    def read(cls, files: Sequence[Path]) -> dict[str, "Stored"]:
        """Every tensor of the files by key; where two files have a key, the later one counts."""
        found: dict[str, Stored] = {}
        for path in files:
            with safe_open(path, framework="pt") as file:
                for key in file.keys():  # noqa: SIM118 (no mapping)
                    found[key] = cls(path, tuple(file.get_slice(key).get_shape()))
        return found


@dataclass(frozen=True, slots=True)
class Direct:
    """A weight that is one tensor of the files as it is."""

    name: str
    key: str

    @property
    def names(self) -> tuple[str, ...]:
        """The weight."""
        return (self.name,)


@dataclass(frozen=True, slots=True)
class Converted:
    """Weights that are computed from tensors of the files."""

    names: tuple[str, ...]  # what is taken of the result
    first: str
    converter: WeightConverter
    keys: tuple[tuple[str, str], ...]  # (key, the converter's pattern that it matched)

    def make(self, model: PreTrainedModel, read: Callable[[str], Tensor]) -> dict[str, Tensor]:
        """The result, whole, by the names of weights."""
        converter = copy.deepcopy(self.converter)
        for key, pattern in self.keys:
            delayed = cast("torch.Future[Tensor]", lambda key=key: read(key))
            converter.add_tensor(self.first, key, pattern, delayed)  # pyright: ignore[reportArgumentType]
        errors: dict[str, str] = {}
        info = SimpleNamespace(missing_keys=set(model.state_dict()), conversion_errors=errors)
        made = converter.convert(self.first, model=model, config=model.config, loading_info=info)  # pyright: ignore[reportArgumentType]
        if errors:
            raise ValueError("; ".join(errors.values()))
        found = cast("dict[str, Tensor | list[Tensor]]", made)
        return {n: each[0] if isinstance(each, list) else each for n, each in found.items()}


Source = Direct | Converted


@dataclass(frozen=True, slots=True)
class Plan:
    """Where every weight comes from, what doesn't fit, and why none of it may be used."""

    stored: Mapping[str, Stored]
    sources: tuple[Source, ...]
    faults: Mapping[str, Sequence[str]]  # kind, as in transformers' report -> names
    reason: str | None  # to load the model whole instead

    @classmethod
    def of(cls, model: PreTrainedModel, stored: Mapping[str, Stored]) -> "Plan":
        """The plan for a model, from its shapes and those of the files."""
        weights = model.state_dict(keep_vars=True)
        try:
            sources, unexpected = _sources(model, weights, stored)
            shapes = _shapes(model, sources, stored)
        except (SkipParameters, ValueError, RuntimeError, NotImplementedError, KeyError) as error:
            return cls(stored, (), {}, f"its weights can't be planned ({error})")
        missing, doubled = _count(weights, shapes)
        report = SimpleNamespace(missing_keys=set(missing), unexpected_keys=set(unexpected))
        model._adjust_missing_and_unexpected_keys(report)  # pyright: ignore
        reason = None
        if made_up := set(missing) - report.missing_keys:
            reason = f"{min(made_up)} isn't stored but made by transformers"
        for kept, other in doubled:
            if reason is None and not _are_equal(kept, other, sources, stored):
                reason = f"{kept} and {other} are tied, but stored with other values"
        wrong = [
            f"{name} (is {list(shape)}, must be {list(weights[name].shape)})"
            for name, shape in shapes.items()
            if shape != tuple(weights[name].shape)
        ]
        faults = {
            "missing_keys": sorted(report.missing_keys),
            "unexpected_keys": sorted(report.unexpected_keys),
            "mismatched_keys": sorted(wrong),
        }
        return cls(stored, _once(sources, {other for _, other in doubled}), faults, reason)


def _sources(
    model: PreTrainedModel, weights: Mapping[str, Tensor], stored: Mapping[str, Stored]
) -> tuple[list[Source], set[str]]:
    """What the tensors of the files become, and the names of those that become nothing."""
    table = get_model_conversion_mapping(model)
    renamings = [each for each in table if isinstance(each, WeightRenaming)]
    converters = [each for each in table if isinstance(each, WeightConverter)]
    by_pattern = {pattern: each for each in converters for pattern in each.source_patterns}
    known = dict(weights)
    groups: dict[str, list[tuple[str, str]]] = defaultdict(list)
    sources: list[Source] = []
    unexpected: set[str] = set()
    for key in sorted(stored, key=dot_natural_key):
        prefix = model.base_model_prefix
        name, pattern = rename_source_key(key, renamings, converters, prefix, known)
        if name not in known and key in known:
            name, pattern = rename_source_key(key, [], [], prefix, known)
        if name not in known:
            unexpected.add(name)
        elif pattern is None:
            sources.append(Direct(name, key))
        else:
            groups[name].append((key, pattern))
    for first, keys in groups.items():
        drawn = Converted((), first, by_pattern[keys[0][1]], tuple(keys))
        names = tuple(drawn.make(model, _on_meta(stored)))
        unexpected |= {name for name in names if name not in known}
        taken = tuple(name for name in names if name in known)
        sources.append(Converted(taken, first, drawn.converter, drawn.keys))
    used = [each for each in table if each.was_used()]
    model._weight_conversions = used  # pyright: ignore  (an export writes the layout that was read)
    return sources, unexpected


def _shapes(
    model: PreTrainedModel, sources: Sequence[Source], stored: Mapping[str, Stored]
) -> dict[str, tuple[int, ...]]:
    """The shape of every weight that the files give; ValueError where two give the same."""
    found: dict[str, tuple[int, ...]] = {}
    for source in sources:
        if twice := sorted(found.keys() & set(source.names)):
            raise ValueError(f"several tensors of its files become {twice[0]}")
        if isinstance(source, Direct):
            found[source.name] = stored[source.key].shape
        else:
            made = source.make(model, _on_meta(stored))
            found |= {name: tuple(made[name].shape) for name in source.names}
    return found


def _on_meta(stored: Mapping[str, Stored]) -> Callable[[str], Tensor]:
    return lambda key: torch.empty(stored[key].shape, device="meta")


def _count(
    weights: Mapping[str, Tensor], found: Mapping[str, object]
) -> tuple[list[str], list[tuple[str, str]]]:
    """Weights that nothing gives; pairs of names of one tied weight that are both given."""
    names_of: dict[int, list[str]] = defaultdict(list)
    for name, tensor in weights.items():
        names_of[id(tensor)].append(name)
    missing: list[str] = []
    doubled: list[tuple[str, str]] = []
    for names in names_of.values():
        given = [name for name in names if name in found]
        missing += [] if given else names[:1]
        doubled += [(given[0], other) for other in given[1:]]
    return missing, doubled


def _once(sources: Sequence[Source], dropped: set[str]) -> tuple[Source, ...]:
    """The sources without those of names that go by another one."""
    return tuple(each for each in sources if not (set(each.names) & dropped))


def _are_equal(
    one: str, other: str, sources: Sequence[Source], stored: Mapping[str, Stored]
) -> bool:
    """Whether two tensors of the files hold the same numbers; looked at in pieces."""
    keys = {source.name: source.key for source in sources if isinstance(source, Direct)}
    if one not in keys or other not in keys:
        return False
    a, b = stored[keys[one]], stored[keys[other]]
    if a.shape != b.shape:
        return False
    with safe_open(a.path, framework="pt") as left, safe_open(b.path, framework="pt") as right:
        if not a.shape:
            return torch.equal(left.get_tensor(keys[one]), right.get_tensor(keys[other]))
        rows = max(1, COMPARED_BYTES // max(1, 8 * torch.Size(a.shape[1:]).numel()))
        first, second = left.get_slice(keys[one]), right.get_slice(keys[other])
        return all(
            torch.equal(first[at : at + rows], second[at : at + rows])
            for at in range(0, a.shape[0], rows)
        )
