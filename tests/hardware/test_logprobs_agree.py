"""The device's log-probs of fixed tokens agree with those of the CPU, which is the reference."""

from pathlib import Path

import torch
from hardware.device import torch_device

from parity.ci.gates.record import record_metric
from parity.ci.register import (
    register_ci_gate,
    register_cuda_ci,
    register_npu_ci,
    register_rocm_ci,
)
from parity.config.schema import TinyModelConfig
from parity.models.tiny import save_tiny

register_cuda_ci(est_time=40, suite="cuda-1", labels=["platform"])
register_rocm_ci(est_time=45, suite="rocm-1", labels=["platform"])
register_npu_ci(est_time=60, suite="npu-1", labels=["platform"])
register_ci_gate(metric_key="logprob_abs_diff_max", hard_min=0.0, hard_max=1e-3, mode="enforced")

SHAPE = TinyModelConfig(
    hidden_size=128,
    intermediate_size=256,
    num_layers=4,
    num_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    max_length=256,
)


def test_logprobs_of_the_device_agree_with_the_cpu(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    device = torch_device()
    folder = tmp_path / "tiny"
    save_tiny(SHAPE, seed=0, folder=folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, model.config.vocab_size, (8, 192), generator=generator)

    def logprobs(on: torch.device) -> torch.Tensor:
        with torch.no_grad():
            logits = model.to(on)(tokens.to(on)).logits[:, :-1].float()
            wanted = tokens[:, 1:, None].to(on)
            return logits.log_softmax(-1).gather(-1, wanted).squeeze(-1).cpu()

    difference = (logprobs(torch.device("cpu")) - logprobs(device)).abs().max().item()
    record_metric("logprob_abs_diff_max", difference)
    assert difference < 1e-3
