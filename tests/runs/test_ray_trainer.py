"""A trainer in another process computes what one in this process does."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

pytest.importorskip("ray")

from ray_actors import TIMEOUT_S, Actors

from parity.config.schema import TrainConfig
from parity.roles import load, make_trainer
from parity.runtime.ray.calls import Calls
from parity.runtime.ray.trainer import RanksMeeting, RemoteTrainer
from parity.types import Sample


def sample(group: int, length: int) -> Sample:
    generator = torch.Generator().manual_seed(100 * group + length)
    tokens = torch.randint(3, 20, (length,), generator=generator).tolist()
    return Sample(
        group=group,
        tokens=tuple(tokens),
        loss_mask=(False, False) + (True,) * (length - 2),
        logprobs=(-1.0,) * length,
        versions=(0,) * length,
        advantages=(1.0 if length % 2 else -1.0,) * length,
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_logprobs_equal_a_local_trainers_bit_for_bit_before_and_after_a_step(
    config_of: Callable[..., TrainConfig], tmp_path: Path
) -> None:
    config = config_of("runtime=ray")
    samples = [sample(group, length) for group in range(3) for length in (5, 8, 9)]
    torch.set_num_threads(1)
    model, _ = load(config, torch.device("cpu"))
    local = make_trainer(config, model, device=torch.device("cpu"))
    actors = Actors(tmp_path / "actors", config)
    try:
        ranks = {"trainer-0": actors.by_role["trainer"]}
        calls = Calls(str(tmp_path))
        opening = {"trainer-0": ranks["trainer-0"].open.remote(RanksMeeting(0, 1, path=None))}
        calls.wait(opening, "load the model", deadline_s=TIMEOUT_S)
        remote = RemoteTrainer(ranks, calls, config)
        for _ in range(2):
            ours, theirs = local.logprobs_of(samples), remote.logprobs_of(samples)
            assert len(ours) == len(theirs) == len(samples)
            for mine, other in zip(ours, theirs, strict=True):
                assert mine.abs().sum() > 0
                assert torch.equal(mine.double(), other.double())
            assert remote.step(samples).step == local.step(samples).step
    finally:
        actors.close()
