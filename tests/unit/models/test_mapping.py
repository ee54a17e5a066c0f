"""A name mapping is a partition: every trainer name has its own region, every engine byte one."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.errors import UnsupportedError
from parity.models.mapping import LLAMA_FUSED, Fused, NameMapping, Renamed, Tied

sizes = st.integers(min_value=1, max_value=5)


@settings(max_examples=40, deadline=None)
@given(
    layers=st.integers(1, 3),
    query=sizes,
    key=sizes,
    hidden=sizes,
    inner=sizes,
    has_bias=st.booleans(),
    order=st.randoms(use_true_random=False),
)
def test_what_is_written_by_trainer_names_is_the_concatenation_at_the_engine(
    layers: int, query: int, key: int, hidden: int, inner: int, has_bias, order
):
    trainer: dict[str, torch.Tensor] = {"model.embed.weight": torch.rand(7, hidden)}
    expected: dict[str, torch.Tensor] = {"model.embed.weight": trainer["model.embed.weight"]}
    for layer in range(layers):
        prefix = f"model.layers.{layer}"
        for fused, parts in (
            ("self_attn.qkv_proj", {"q": query, "k": key, "v": key}),
            ("mlp.gate_up_proj", {"gate": inner, "up": inner}),
        ):
            place, _, _ = fused.partition(".")
            for kind, tail in (("weight", (hidden,)), ("bias", ())):
                if kind == "bias" and not has_bias:
                    continue
                made = {
                    f"{prefix}.{place}.{part}_proj.{kind}": torch.rand(rows, *tail)
                    for part, rows in parts.items()
                }
                trainer |= made
                expected[f"{prefix}.{fused}.{kind}"] = torch.cat(list(made.values()))
    names = list(trainer)
    order.shuffle(names)
    engine = {name: torch.full_like(tensor, -1.0) for name, tensor in expected.items()}
    shapes = {name: tuple(trainer[name].shape) for name in names}
    views = NameMapping(LLAMA_FUSED).views(engine, shapes)
    assert views.keys() == trainer.keys()
    assert sum(view.numel() for view in views.values()) == sum(t.numel() for t in engine.values())
    for name, view in views.items():
        view.copy_(trainer[name])
    assert all(torch.equal(engine[name], tensor) for name, tensor in expected.items())


def test_names_are_renamed_tied_and_fused_along_other_dimensions():
    rules = (
        Renamed("transformer.wte", "embed"),
        Tied("head", "embed"),
        Fused("both", ("left", "right"), dim=1),
    )
    engine = {"transformer.wte": torch.zeros(4, 2), "both": torch.zeros(2, 5)}
    shapes = {"head": (4, 2), "embed": (4, 2), "right": (2, 3), "left": (2, 2)}
    views = NameMapping(rules).views(engine, shapes)
    assert views["head"] is views["embed"]
    views["right"].fill_(1)
    assert engine["both"].tolist() == [[0, 0, 1, 1, 1]] * 2


@pytest.mark.parametrize(
    ("shapes", "match"),
    [
        ({"a.q_proj.weight": (2, 3), "a.k_proj.weight": (1, 3)}, "lacks"),
        (
            {"a.q_proj.weight": (2, 3), "a.k_proj.weight": (1, 3), "a.v_proj.weight": (2, 3)},
            "don't fit",
        ),
        (
            {"a.q_proj.weight": (1, 3), "a.k_proj.weight": (1, 3), "a.v_proj.weight": (1, 3)},
            "fill 3 of 4 rows",
        ),
        ({}, "nothing for these"),
        ({"a.qkv_proj.weight": (4, 3), "other": (1,)}, "no such tensor"),
    ],
)
def test_a_mapping_that_does_not_add_up_is_refused(shapes: dict[str, tuple[int, ...]], match: str):
    engine = {"a.qkv_proj.weight": torch.zeros(4, 3)}
    with pytest.raises(UnsupportedError, match=match):
        NameMapping(LLAMA_FUSED).views(engine, shapes)
