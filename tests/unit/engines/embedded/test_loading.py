"""A publication fills staging memory exactly once per tensor, tied names included."""

import pytest
import torch

from parity.engines.embedded.loading import Publication
from parity.errors import TransferError
from parity.weights.manifest import Manifest

EXPECTED = {"embed": (4, 2), "head": (4, 2), "norm": (3,)}
EMBED, NORM = torch.arange(8.0).view(4, 2), torch.ones(3)


def tied() -> dict[str, torch.Tensor]:
    shared = torch.zeros(4, 2)
    return {"embed": shared, "head": shared, "norm": torch.zeros(3)}


def untied() -> dict[str, torch.Tensor]:
    return {name: torch.zeros(shape) for name, shape in EXPECTED.items()}


def publication(
    destinations: dict[str, torch.Tensor],
    tensors: list[tuple[str, torch.Tensor]],
    aliases: tuple[tuple[str, str], ...] = (),
) -> Publication:
    manifest = Manifest.of(1, tensors, aliases)
    return Publication(manifest, expected=EXPECTED, destinations=destinations)


def test_an_alias_of_tied_names_is_one_copy() -> None:
    destinations = tied()
    sent = [("embed", EMBED), ("norm", NORM)]
    found = publication(destinations, sent, aliases=(("head", "embed"),))
    found.take(iter(sent))
    found.check_complete()
    assert torch.equal(destinations["head"], EMBED)
    assert torch.equal(destinations["norm"], NORM)


def test_an_alias_of_names_that_the_engine_keeps_apart_fills_both() -> None:
    destinations = untied()
    sent = [("embed", EMBED), ("norm", NORM)]
    found = publication(destinations, sent, aliases=(("head", "embed"),))
    found.take(sent)
    found.check_complete()
    assert torch.equal(destinations["head"], EMBED)
    assert torch.equal(destinations["embed"], EMBED)


def test_tied_names_that_are_both_sent_must_be_equal() -> None:
    sent = [("embed", EMBED), ("head", EMBED.clone()), ("norm", NORM)]
    equal = publication(tied(), sent)
    equal.take(sent)
    equal.check_complete()
    unequal = publication(tied(), sent)
    unequal.take(sent[:1])
    with pytest.raises(TransferError, match="tied"):
        unequal.take([("head", EMBED + 1)])


def test_dtypes_are_converted_and_strided_tensors_copied_in_order() -> None:
    destinations = untied()
    strided = torch.arange(8.0, dtype=torch.float64).view(2, 4).t()
    sent = [("embed", strided), ("head", EMBED.bfloat16()), ("norm", NORM.half())]
    publication(destinations, sent).take(sent)
    assert torch.equal(destinations["embed"], strided.float())
    assert torch.equal(destinations["head"], EMBED)


def test_a_destination_may_have_more_dimensions_than_the_tensor() -> None:
    memory = torch.zeros(2, 2, 2)
    destinations = untied() | {"embed": memory.transpose(0, 1)}
    sent = [("embed", EMBED), ("head", EMBED), ("norm", NORM)]
    publication(destinations, sent).take(sent)
    assert torch.equal(memory, EMBED.view(2, 2, 2).transpose(0, 1))


@pytest.mark.parametrize(
    "alias",
    [("head", "nowhere"), ("unknown", "embed"), ("norm", "embed"), ("embed", "embed")],
)
def test_aliases_that_lead_nowhere_are_refused(alias: tuple[str, str]) -> None:
    sent = [("embed", EMBED), ("norm", NORM)]
    with pytest.raises(TransferError):
        publication(tied(), sent, aliases=(("head", "embed"), alias))


def test_an_alias_of_another_shape_is_refused() -> None:
    sent = [("embed", EMBED), ("head", EMBED)]
    with pytest.raises(TransferError, match="shape"):
        publication(tied(), sent, aliases=(("norm", "embed"),))


def test_a_manifest_that_lists_a_tensor_twice_is_refused() -> None:
    sent = [("embed", EMBED), ("embed", EMBED), ("head", EMBED), ("norm", NORM)]
    with pytest.raises(TransferError, match="twice"):
        publication(untied(), sent)


def test_what_is_missing_is_named() -> None:
    sent = [("embed", EMBED), ("head", EMBED), ("norm", NORM)]
    found = publication(untied(), sent)
    found.take(sent[:1])
    with pytest.raises(TransferError, match=r"2 of 3 .*\['head', 'norm'\]"):
        found.check_complete()
