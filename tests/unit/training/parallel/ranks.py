"""One trainer rank of `test_fsdp.py`, in a process of its own.

A job says {"rank", "size", "store", "replicate", "shard", "steps", "case", "out", ...}; rank 0
writes the full weights, and the metrics of the last step beside them. `measure` writes how much
private memory one rank needs to come by its part of a model.
"""

import gc
import json
import threading
from datetime import timedelta
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from unit.training.tiny import (
    policy_objective,
    ragged_samples,
    sample,
    tiny_model,
    tiny_trainer,
)

from parity.models.config import ModelConfig
from parity.models.loading import load_model
from parity.models.streaming import load_streamed
from parity.training.config import AdamWConfig, ParallelConfig, TrainerConfig
from parity.training.forward import Scorer, prepare_model
from parity.training.parallel.fsdp import ShardedRanks
from parity.training.trainer import Trainer

CPU = torch.device("cpu")


def batch(case: str, step: int):
    if case == "one_sample":  # the other ranks have nothing
        return [sample([1, 2, 3], [4, 5, 6], advantage=1.0)]
    if case == "idle":  # every second step has no advantage at all
        samples = ragged_samples(seed=step, has_holes=True)
        return samples if step % 2 == 0 else [sample([1, 2], [3], advantage=0.0), *samples]
    return ragged_samples(seed=step, num_groups=5, has_holes=True)


def trainer_of(job: dict, ranks: ShardedRanks | None):
    model, stream = tiny_model("qwen3", tie_word_embeddings=job.get("tied", True)), None
    if "model" in job:
        model, stream = model_of(job)
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
        objective=policy_objective(kl=job.get("kl", 0.0)),
        ranks=ranks,
        stream=stream,
    )


def write_beside_steps(trainer: Trainer, job: dict) -> None:
    """Write the state of now, twice in a row, while further steps are taken."""
    for name in ("first", "second"):
        folder = Path(job["save_beside"]) / name
        folder.mkdir(parents=True, exist_ok=True)
        writing = threading.Thread(target=trainer.stage(), args=(folder,))
        writing.start()
        for _ in range(2):
            trainer.step(batch(job["case"], trainer.step_index))
        writing.join(60)
        assert not writing.is_alive()


def model_of(job: dict):
    config = ModelConfig(path=job["model"])
    if job["is_streamed"]:
        return load_streamed(config, dtype="float32", device=CPU)
    return load_model(config, dtype="float32", device=CPU), None


def measure(job: dict) -> None:
    """Rank 0 of `size`; the others are made up: nothing travels while a model is read."""
    torch.set_num_threads(1)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=job["size"])
    ranks = ShardedRanks(ParallelConfig(), device=CPU, dtype=torch.float32)
    with PrivateMemory() as memory:
        model, stream = model_of(job)
        prepare_model(model, gradient_checkpointing=False, device=CPU)
        scorer = Scorer(model, config=TrainerConfig(), temperature=1.0, device=CPU)
        ranks.shard(scorer, model=model)
        if stream is not None:
            ranks.allocate(scorer)
            stream.fill(model)
    Path(job["out"]).write_text(json.dumps({"peak": memory.peak, "kept": memory.kept}))
    dist.destroy_process_group()


class PrivateMemory:
    """What the process has of its own (RssAnon) above what it had, looked at every millisecond."""

    def __enter__(self):
        self.peak, self._begin, self._stop = 0, self._now(), threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()
        gc.collect()
        self.kept = self._now() - self._begin

    def _watch(self):
        while not self._stop.wait(0.001):
            self.peak = max(self.peak, self._now() - self._begin)

    def _now(self) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) * 1024


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
    if "save_beside" in job:
        write_beside_steps(trainer, job)
    weights = {name: tensor.clone() for name, tensor in trainer.named_weights()}
    weights["logprobs of all samples"] = torch.cat(trainer.logprobs_of(batch(job["case"], 0)))
    if job["rank"] == 0:
        save_file(weights, job["out"])
        Path(job["out"]).with_suffix(".json").write_text(
            json.dumps(dict(report.metrics) if report else {})
        )
    if ranks is not None:
        dist.barrier()
        dist.destroy_process_group()
