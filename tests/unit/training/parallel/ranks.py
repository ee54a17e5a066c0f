"""One trainer rank of `test_fsdp.py`, in a process of its own.

A job says {"rank", "size", "store", "replicate", "shard", "steps", "case", "out", ...}; rank 0
writes the full weights, and the metrics of the last step beside them.
"""

import json
from datetime import timedelta
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import distributed as dist
from unit.training.tiny import ragged_samples, sample, tiny_model, tiny_trainer

from parity.training.config import AdamWConfig, ParallelConfig, TrainerConfig
from parity.training.parallel.fsdp import ShardedRanks

CPU = torch.device("cpu")


def batch(case: str, step: int):
    if case == "one_sample":  # the other ranks have nothing
        return [sample([1, 2, 3], [4, 5, 6], advantage=1.0)]
    if case == "idle":  # every second step has no advantage at all
        samples = ragged_samples(seed=step, has_holes=True)
        return samples if step % 2 == 0 else [sample([1, 2], [3], advantage=0.0), *samples]
    return ragged_samples(seed=step, num_groups=5, has_holes=True)


def trainer_of(job: dict, ranks: ShardedRanks | None):
    model = tiny_model("qwen3", tie_word_embeddings=job.get("tied", True))
    config = TrainerConfig(
        max_tokens_per_micro_batch=job.get("max_tokens", 16384),
        prefix_sharing=job.get("sharing", "auto"),
        gradient_checkpointing=job.get("gradient_checkpointing", False),
        max_grad_norm=0.5,
    )
    return tiny_trainer(
        model,
        optimizer=AdamWConfig(lr=1e-3, weight_decay=0.1, eps=1e-5),
        config=config,
        ranks=ranks,
    )


def run(job: dict) -> None:
    torch.set_num_threads(1)
    ranks = None
    if job["size"] > 1 or job.get("sharded"):
        store = dist.FileStore(job["store"], job["size"])
        dist.init_process_group(
            "gloo",
            store=store,
            rank=job["rank"],
            world_size=job["size"],
            timeout=timedelta(seconds=60),
        )
        parallel = ParallelConfig(
            replicate=job.get("replicate", 1),
            shard=job.get("shard"),
            cpu_offload=job.get("cpu_offload", False),
        )
        ranks = ShardedRanks(parallel, device=CPU, dtype=torch.float32)
    trainer = trainer_of(job, ranks)
    if "load" in job:
        trainer.load(Path(job["load"]))
    report = None
    for step in range(trainer.step_index, job["steps"]):
        report = trainer.step(batch(job["case"], step))
    if "save" in job:
        Path(job["save"]).mkdir(exist_ok=True)
        trainer.save(Path(job["save"]))
    weights = {name: tensor.clone() for name, tensor in trainer.named_weights()}
    weights["logprobs of all samples"] = torch.cat(trainer.logprobs_of(batch(job["case"], 0)))
    if job["rank"] == 0:
        save_file(weights, job["out"])
        Path(job["out"]).with_suffix(".json").write_text(json.dumps(dict(report.metrics)))
    if ranks is not None:
        dist.barrier()
        dist.destroy_process_group()
