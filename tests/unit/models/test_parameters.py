import torch
from torch import nn

from parity.config.schema import TinyModelConfig
from parity.models.parameters import aliases_of, named_weights
from parity.models.tiny import make_tiny

SMALL = TinyModelConfig(
    hidden_size=16, intermediate_size=32, num_layers=1, num_heads=2, head_dim=8, max_length=64
)


class Module(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3, bias=False)
        self.second = nn.Linear(3, 3, bias=False)
        self.third = nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight
        self.third.weight = self.first.weight
        self.register_buffer("bias", torch.zeros(2))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)
        self.empty = nn.ParameterList([nn.Parameter(torch.zeros(0)), nn.Parameter(torch.zeros(0))])


def test_a_tied_weight_is_named_once_by_its_first_name() -> None:
    model, _ = make_tiny(SMALL, 0)
    names = [name for name, _ in named_weights(model)]
    assert aliases_of(model) == (("lm_head.weight", "model.embed_tokens.weight"),)
    assert names == [name for name in model.state_dict() if name != "lm_head.weight"]


def test_an_untied_model_has_no_aliases() -> None:
    model, _ = make_tiny(SMALL, 0)
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
    assert aliases_of(model) == ()
    assert len(named_weights(model)) == len(model.state_dict())


def test_names_and_aliases_cover_the_state_dict_exactly_once() -> None:
    module = Module()
    aliases = aliases_of(module)
    names = [name for name, _ in named_weights(module)]
    assert aliases == (("second.weight", "first.weight"), ("third.weight", "first.weight"))
    assert sorted(names + [alias for alias, _ in aliases]) == sorted(module.state_dict())
    assert names == ["bias", "first.weight", "empty.0", "empty.1"]


def test_weights_are_detached_views_without_copies() -> None:
    module = Module()
    weights = dict(named_weights(module))
    assert not weights["first.weight"].requires_grad
    assert weights["first.weight"].data_ptr() == module.first.weight.data_ptr()


def test_tying_through_shared_memory_counts_and_neighbouring_views_do_not() -> None:
    module = nn.Module()
    flat = torch.zeros(8)
    module.left = nn.Parameter(flat[:4])
    module.right = nn.Parameter(flat[4:])
    module.again = nn.Parameter(flat[:4])
    assert aliases_of(module) == (("again", "left"),)


def test_a_model_without_memory_keeps_its_ties() -> None:
    module = Module().to("meta")
    module.second.weight = module.first.weight
    assert ("second.weight", "first.weight") in aliases_of(module)
    assert "third.weight" in dict(named_weights(module))
