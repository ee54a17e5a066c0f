import torch
from unit.training.tiny import tiny_model

from parity.training.config import AdamWConfig
from parity.training.optimizers import build_adamw, set_learning_rate


def test_only_matrices_decay_and_tied_weights_are_stepped_once():
    model = tiny_model()
    optimizer = build_adamw(model.named_parameters(), AdamWConfig(weight_decay=0.1))
    decaying, plain = optimizer.param_groups
    assert decaying["weight_decay"] == 0.1
    assert plain["weight_decay"] == 0.0
    assert all(p.ndim >= 2 for p in decaying["params"])
    assert all(p.ndim < 2 for p in plain["params"])
    count = sum(len(group["params"]) for group in optimizer.param_groups)
    assert count == len(list(model.parameters()))


def test_frozen_parameters_are_left_out():
    model = tiny_model()
    model.get_input_embeddings().weight.requires_grad_(False)
    optimizer = build_adamw(model.named_parameters(), AdamWConfig())
    assert model.get_input_embeddings().weight not in optimizer.state


def test_moments_that_exist_from_the_start_change_no_step():
    ours, torchs = (torch.nn.Linear(3, 2) for _ in range(2))
    torchs.load_state_dict(ours.state_dict())
    config = AdamWConfig(lr=0.1, weight_decay=0.0)
    optimizers = [
        build_adamw(ours.named_parameters(), config),
        torch.optim.AdamW(
            torchs.parameters(), lr=0.1, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0, fused=True
        ),
    ]
    for _ in range(3):
        for layer, optimizer in zip((ours, torchs), optimizers, strict=True):
            layer(torch.ones(1, 3)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert torch.equal(ours.weight, torchs.weight)
    assert torch.equal(ours.bias, torchs.bias)


def test_the_rate_is_set_in_every_group():
    optimizer = build_adamw(tiny_model().named_parameters(), AdamWConfig())
    set_learning_rate(optimizer, 0.25)
    assert [group["lr"] for group in optimizer.param_groups] == [0.25, 0.25]
