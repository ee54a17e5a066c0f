"""The optimizer of a run; used by `trainer.py`.

Only matrices decay: norms, biases and other vectors are left alone. The moments exist from
the start (zeros, step 0), so a checkpoint has the same tensors before and after the first
step, and a step that is refused leaves nothing behind.
"""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.optim import AdamW

from parity.training.config import AdamWConfig

MOMENTS = ("step", "exp_avg", "exp_avg_sq")  # what AdamW keeps per parameter


def build_adamw(parameters: Iterable[tuple[str, Tensor]], config: AdamWConfig) -> AdamW:
    """AdamW over the named trainable parameters, each of them once.

    The fused implementation is one pass over memory: about 3.5 times faster than `foreach`
    on a CPU (1.5 against 5.1 ms for 1.65 M parameters), and the fast one on accelerators.
    """
    trained = [parameter for _, parameter in parameters if parameter.requires_grad]
    matrices = [parameter for parameter in trained if parameter.ndim >= 2]
    vectors = [parameter for parameter in trained if parameter.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    optimizer = AdamW(
        [group for group in groups if group["params"]],
        lr=config.lr,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        fused=True,
    )
    for parameter in trained:
        optimizer.state[parameter] = {
            "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
            "exp_avg": torch.zeros_like(parameter, memory_format=torch.preserve_format),
            "exp_avg_sq": torch.zeros_like(parameter, memory_format=torch.preserve_format),
        }
    return optimizer


def set_learning_rate(optimizer: AdamW, rate: float) -> None:
    """Use `rate` from the next step on, in every group."""
    for group in optimizer.param_groups:
        group["lr"] = rate
