"""Whether two weights or two numbers are the same, bit for bit, and how far apart they are."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from parity.errors import CheckpointError

UNTIMED = ("train/loss", "train/grad_norm")  # named first where several numbers differ
TIMED = "train/step_s"


@dataclass(frozen=True, slots=True)
class Break:
    """Where the computed run leaves the recorded one."""

    step: int
    what: str  # the number or the tensor
    says: str  # both sides


def first_different(
    step: int, computed: Mapping[str, float], recorded: Mapping[str, float | None]
) -> Break | None:
    """The first number of a step that isn't the recorded one; times aren't compared."""
    names = [name for name in UNTIMED if name in computed or name in recorded]
    names += sorted(computed.keys() - {*UNTIMED, TIMED})
    for name in names:
        left, right = computed.get(name), recorded.get(name)
        if left != right and not (left != left and right != right):  # NaN is NaN here
            return Break(step, name, f"{_number(left)}, recorded {_number(right)}")
    return None


def different_tensors(
    step: int,
    label: str,
    path: Path,
    live: Mapping[str, Tensor],
    aliases: Sequence[tuple[str, str]],
) -> tuple[int, list[Break]]:
    """(tensors compared, those that differ) between live weights and a Hugging Face folder.

    Args:
        live: weights by name, each storage once.
        aliases: other names of tied weights: (name, name in `live`).

    Raises CheckpointError where the folder can't be read.
    """
    known = {name: name for name in live} | dict(aliases)
    seen: set[str] = set()
    found: list[Break] = []
    num_compared = 0
    for name, tensor in _stored(path):
        num_compared += 1
        if name not in known:
            found.append(Break(step, name, f"{label} has it, the computed model doesn't"))
            continue
        seen.add(known[name])
        says = _difference(live[known[name]].detach().cpu(), tensor)
        if says is not None:
            found.append(Break(step, name, f"{label}: {says}"))
    found += [
        Break(step, name, f"the computed model has it, {label} doesn't")
        for name in live
        if name not in seen
    ]
    return num_compared, found


def digest(tensor: Tensor) -> bytes:
    """BLAKE2b of the bytes."""
    flat = tensor.contiguous().reshape(-1).view(torch.uint8)
    return hashlib.blake2b(flat.numpy().data, digest_size=16).digest()


def _difference(computed: Tensor, recorded: Tensor) -> str | None:
    """In words; None where every bit is the same."""
    if (computed.shape, computed.dtype) != (recorded.shape, recorded.dtype):
        return (
            f"{list(computed.shape)} {computed.dtype} instead of"
            f" {list(recorded.shape)} {recorded.dtype}"
        )
    if digest(computed) == digest(recorded):
        return None
    distance = (computed.double() - recorded.double()).abs()
    count = int((distance != 0).sum())
    return (
        f"{count} of {distance.numel()} values differ, by {float(distance.max()):.3g} at most"
        f" (digest {digest(computed).hex()[:12]} instead of {digest(recorded).hex()[:12]})"
    )


def _stored(path: Path) -> Iterator[tuple[str, Tensor]]:
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise CheckpointError(
            f"{path} has no *.safetensors, as where several ranks wrote it; its weights can't be"
            " compared."
        )
    for file in files:
        try:
            with safe_open(file, framework="pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118 (it isn't a mapping)
                    yield name, tensors.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{file} can't be read ({error}); it is damaged.") from error


def _number(value: float | None) -> str:
    return "none" if value is None else repr(value)
