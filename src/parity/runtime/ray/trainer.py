"""The trainer's ranks as actors, and the driver's view of them as one trainer.

    driver                              rank 0 .. n-1 (a process each)
    RemoteTrainer.step(samples)   ->    Trainer.step on all, in step; each says the same
    .save .load .export           ->    all together, into a folder that all see
    RankTransfer (transfer.py)    ->    stage, commit or abort: rank 0 sends, the others take part

Calls of a `RemoteTrainer` block, and come one at a time (`Runtime.in_trainer`). Invariant: every
rank gets every call, in the same order; after an error the trainer is of no more use.
"""

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import ray
import torch
from torch import distributed as dist
from transformers import PreTrainedTokenizerBase

from parity.config.schema import TrainConfig
from parity.models.loading import DTYPES
from parity.models.parameters import named_weights
from parity.roles import load, make_trainer
from parity.runtime.ray.calls import Calls
from parity.runtime.ray.packed import PackedSamples, pack, unpack
from parity.runtime.ray.publication import Publication, Way
from parity.runtime.ray.role import Actor, enter, telling
from parity.runtime.ray.setting import Role
from parity.training.parallel.fsdp import ShardedRanks
from parity.training.parallel.ranks import Ranks
from parity.training.trainer import Trainer
from parity.types import Sample, StepReport
from parity.weights.host.endpoints import RunDirectory
from parity.weights.transfer import PublishReport, Weights


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where the ranks of a trainer meet."""

    rank: int
    size: int
    path: str | None  # of a file store, where all are on one host
    address: str | None = None  # host:port of a store at rank 0 else


class TrainerRank:
    """One rank; its methods are called by the driver, one at a time."""

    def __init__(self, role: Role, config: TrainConfig) -> None:
        self.platform, self.device, self.relay = enter(role)
        self._config = config
        self._trainer: Trainer | None = None
        self._tokenizer: PreTrainedTokenizerBase | None = None
        self._publication: Publication | None = None
        self._directory: RunDirectory | None = None

    @telling
    def make_directory(self, run_id: str) -> str:
        """Make the private directory where processes of this host meet."""
        self._directory = RunDirectory.create(run_id)
        return str(self._directory.path)

    @telling
    def free_address(self) -> str:
        """An address of this host at which nobody listens now, for rank 0."""
        host = ray.util.get_node_ip_address()
        with socket.socket() as probe:
            probe.bind((host, 0))
            return f"{host}:{probe.getsockname()[1]}"

    @telling
    def open(self, meeting: Meeting) -> int:
        """Meet the other ranks, load the model, make the trainer; steps taken, 0."""
        ranks = self._meet(meeting)
        model, self._tokenizer = load(self._config, self.device)
        trainer = make_trainer(self._config, model, device=self.device, ranks=ranks)
        self._trainer = trainer
        return trainer.step_index

    @telling
    def step(self, packed: PackedSamples) -> tuple[StepReport, int]:
        """One optimizer step; its report, and how many were taken."""
        report = self.trainer.step(unpack(packed))
        return report, self.trainer.step_index

    @telling
    def logprobs_of(self, packed: PackedSamples) -> list[list[float]]:
        """Per sample its log-probs under the current weights."""
        return [values.tolist() for values in self.trainer.logprobs_of(unpack(packed))]

    @telling
    def save(self, path: str) -> None:
        """Write this rank's part of the training state."""
        self.trainer.save(Path(path))

    @telling
    def load(self, path: str) -> int:
        """Go on from a saved state; steps taken."""
        self.trainer.load(Path(path))
        return self.trainer.step_index

    @telling
    def export(self, path: str) -> None:
        """Take part in the Hugging Face export."""
        assert self._tokenizer is not None, "open comes first"
        self.trainer.export(Path(path), self._tokenizer)

    @telling
    def stage(self, way: Way, version: int) -> None:
        """Send the weights to the engines and have them verified; the other ranks take part."""
        trainer = self.trainer
        weights = Weights(named_weights(trainer.model), trainer.aliases())
        if self._publication is None:
            is_sender = not dist.is_initialized() or dist.get_rank() == 0
            self._publication = Publication(is_sender=is_sender, config=self._config.weights)
        self._publication.stage(way, weights, version)

    @telling
    def commit(self) -> PublishReport | None:
        """Make what was staged live; rank 0 says what was moved."""
        return self.publication.commit()

    @telling
    def abort(self, reason: str) -> None:
        """Forget what was staged."""
        self.publication.abort(reason)

    @telling
    def close(self) -> None:
        """Give sockets and memory back."""
        if self._publication is not None:
            self._publication.close()
        if dist.is_initialized():
            dist.destroy_process_group()
        if self._directory is not None:
            self._directory.close()

    @property
    def trainer(self) -> Trainer:
        """The trainer, once it is open."""
        assert self._trainer is not None, "open comes first"
        return self._trainer

    @property
    def publication(self) -> Publication:
        """What publishes, once something was staged."""
        assert self._publication is not None, "stage comes first"
        return self._publication

    def _meet(self, meeting: Meeting) -> Ranks | None:
        parallel = self._config.trainer.parallel
        if meeting.size == 1 and not parallel.cpu_offload:
            return None
        timeout = timedelta(seconds=self._config.placement.collective_timeout_s)
        if meeting.path is not None:
            store = dist.FileStore(  # pyright: ignore[reportPrivateImportUsage]
                meeting.path, meeting.size
            )
        else:
            assert meeting.address is not None, "ranks of several hosts need an address"
            host, _, port = meeting.address.rpartition(":")
            store = dist.TCPStore(  # pyright: ignore[reportPrivateImportUsage]
                host, int(port), meeting.size, is_master=meeting.rank == 0, timeout=timeout
            )
        backend = self.platform.collective_backend
        if self.device.type != "cpu":
            backend = f"cpu:gloo,{self.device.type}:{backend}"  # checkpoints talk on the host
        dist.init_process_group(
            backend, store=store, rank=meeting.rank, world_size=meeting.size, timeout=timeout
        )
        dtype: torch.dtype = DTYPES[self._config.trainer.dtype]
        return ShardedRanks(parallel, device=self.device, dtype=dtype)


class RemoteTrainer:
    """All ranks as one trainer; what `Trainer` is to the loop of one process."""

    def __init__(self, ranks: Mapping[str, Actor], calls: Calls, config: TrainConfig) -> None:
        self.step_index = 0
        self.ranks = ranks
        self.calls = calls
        self._limits = config.supervise

    def step(self, samples: Sequence[Sample]) -> StepReport:
        """One optimizer step on all ranks.

        Raises the error of the ranks where they refuse the step, RoleError where one is lost.
        """
        packed = ray.put(pack(samples))
        answers = self.calls.wait(
            {name: rank.step.remote(packed) for name, rank in self.ranks.items()},
            f"take step {self.step_index + 1}",
            deadline_s=self._limits.step_timeout_s,
        )
        report, self.step_index = next(iter(answers.values()))
        return report

    def logprobs_of(self, samples: Sequence[Sample]) -> list[torch.Tensor]:
        """Per sample the log-probs [L] under the current weights, 0.0 where not trained."""
        packed = ray.put(pack(samples))
        answers = self.calls.wait(
            {name: rank.logprobs_of.remote(packed) for name, rank in self.ranks.items()},
            "score samples",
            deadline_s=self._limits.step_timeout_s,
        )
        return [torch.tensor(values) for values in next(iter(answers.values()))]

    def weights(self) -> Weights:
        """None of them is in this process: the ranks publish what they hold."""
        return Weights(())

    def save(self, path: Path) -> None:
        """Every rank writes its part into the folder, which all must see."""
        where = str(path.absolute())
        self.calls.wait(
            {name: rank.save.remote(where) for name, rank in self.ranks.items()},
            f"save step {self.step_index}",
            deadline_s=self._limits.checkpoint_timeout_s,
        )

    def load(self, path: Path) -> None:
        """Go on from what `save` wrote, with however many ranks."""
        where = str(path.absolute())
        answers = self.calls.wait(
            {name: rank.load.remote(where) for name, rank in self.ranks.items()},
            f"load {path.name}",
            deadline_s=self._limits.checkpoint_timeout_s,
        )
        self.step_index = next(iter(answers.values()))

    def export(self, path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
        """Write a plain Hugging Face folder; the ranks have the tokenizer too."""
        del tokenizer
        where = str(path.absolute())
        self.calls.wait(
            {name: rank.export.remote(where) for name, rank in self.ranks.items()},
            "export the model",
            deadline_s=self._limits.checkpoint_timeout_s,
        )
