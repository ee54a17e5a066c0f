"""The trainer's ranks as actors, and the driver's view of them as one trainer.

    driver                              rank 0 .. n-1 (a process each)
    RemoteTrainer.step(samples)   ->    Trainer.step on all, in step; each says the same
    .save .load .export           ->    all together, into a folder that all see
    RankTransfer (transfer.py)    ->    stage, commit or abort: rank 0 sends, the others take part

Calls of a `RemoteTrainer` block, and come one at a time (`Runtime.in_trainer`). Invariant: every
rank gets every call, in the same order; after an error the trainer is of no more use.
"""

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

import ray

from parity.models import heavy

with heavy.imports():  # an actor's process begins with this module
    import torch
    from torch import distributed as dist
    from transformers import PreTrainedTokenizerBase

    from parity.config.schema import TrainConfig
    from parity.errors import CheckpointError
    from parity.models.loading import DTYPES
    from parity.platforms.memory.resident import held_bytes
    from parity.roles import load, load_spread, make_trainer
    from parity.runtime.packed import PackedSamples, pack, unpack
    from parity.runtime.ray.calls import Calls
    from parity.runtime.ray.publication import Publication, Way
    from parity.runtime.ray.role import Actor, enter, given_device, telling
    from parity.runtime.ray.setting import Role
    from parity.training.parallel.fsdp import ShardedRanks
    from parity.training.parallel.ranks import Ranks
    from parity.training.trainer import Trainer
    from parity.types import Sample, StepReport
    from parity.weights.host.endpoints import RunDirectory
    from parity.weights.session.meeting import Meeting as EnginesMeeting
    from parity.weights.transfer import PublishReport, Weights

POLL_S = 0.2  # between two looks at ranks that write a checkpoint


@dataclass(frozen=True, slots=True)
class RanksMeeting:
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
        self._rest_dir = Path(role.rest_dir)
        self._trainer: Trainer | None = None
        self._tokenizer: PreTrainedTokenizerBase | None = None
        self._publication: Publication | None = None
        self._directory: RunDirectory | None = None
        self._engines_meet: EnginesMeeting | None = None
        self._write: Callable[[Path], None] | None = None
        self._writing: Future[None] | None = None
        self._writer = ThreadPoolExecutor(1, "checkpoint")

    @telling
    def device_id(self) -> str:
        """Ray's name of the device of this rank, for the engine that shares it."""
        return given_device(self.platform)

    @telling
    def make_directory(self, run_id: str) -> str:
        """Make the private directory where processes of this host meet."""
        self._directory = RunDirectory.create(run_id)
        return str(self._directory.path)

    @telling
    def meet_engines(self, *, is_one_host: bool) -> str:
        """Serve the store at which process groups with engines are made; its address."""
        self._engines_meet = EnginesMeeting(
            "127.0.0.1" if is_one_host else ray.util.get_node_ip_address()
        )
        return self._engines_meet.address

    @telling
    def free_address(self) -> str:
        """An address of this host at which nobody listens now, for rank 0."""
        host = ray.util.get_node_ip_address()
        with socket.socket() as probe:
            probe.bind((host, 0))
            return f"{host}:{probe.getsockname()[1]}"

    @telling
    def open(self, meeting: RanksMeeting) -> int:
        """Meet the other ranks, load the model, make the trainer; steps taken, 0."""
        ranks = self._meet(meeting)
        if ranks is None:
            (model, self._tokenizer), stream = load(self._config, self.device), None
        else:
            model, self._tokenizer, stream = load_spread(self._config, self.device)
        making = partial(make_trainer, self._config, model, device=self.device, ranks=ranks)
        self._trainer = making(stream=stream, rest_dir=self._rest_dir)
        return self._trainer.step_index

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
    def copy_state(self) -> None:
        """Copy this rank's part of the training state to the host, for `begin_write`."""
        self._write = self.trainer.stage()

    @telling
    def begin_write(self, path: str) -> None:
        """Write the copy in a thread of its own, with those of the other ranks."""
        assert self._write is not None, "copy_state comes first"
        write, self._write = self._write, None
        self._writing = self._writer.submit(write, Path(path))
        del write  # the copy goes with the thread's work

    @telling
    def has_written(self) -> bool:
        """Whether that has ended; raises what it raised."""
        assert self._writing is not None, "begin_write comes first"
        if self._writing.done():
            self._writing.result()
        return self._writing.done()

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
    def offload(self, *, keeps_weights: bool) -> None:
        """Give this rank's device up until `reload`; the weights may stay."""
        self.trainer.offload(keeps_weights=keeps_weights)

    @telling
    def reload(self) -> None:
        """Be as before `offload`, bit for bit."""
        self.trainer.reload()

    @telling
    def held_bytes(self) -> int:
        """Memory that this process holds on its device; of a CPU all that is resident."""
        return held_bytes(self.device)

    @telling
    def stage(self, way: Way, version: int) -> None:
        """Send the weights to the engines and have them verified; the other ranks take part."""
        weights = self.trainer.weights()
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

    def _meet(self, meeting: RanksMeeting) -> Ranks | None:
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

    def offload(self, *, keeps_weights: bool = False) -> None:
        """Let every rank give its device up until `reload`; the weights may stay."""
        self.calls.wait(
            {n: rank.offload.remote(keeps_weights=keeps_weights) for n, rank in self.ranks.items()},
            "give its device up",
            deadline_s=self._limits.step_timeout_s,
        )

    def reload(self) -> None:
        """Let every rank take its device back."""
        self.calls.wait(
            {name: rank.reload.remote() for name, rank in self.ranks.items()},
            "take its device back",
            deadline_s=self._limits.step_timeout_s,
        )

    def held_bytes(self) -> int:
        """Memory on its device of the rank that holds the most."""
        answers = self.calls.wait(
            {name: rank.held_bytes.remote() for name, rank in self.ranks.items()},
            "say what it holds",
            deadline_s=self._limits.step_timeout_s,
        )
        return max(answers.values())

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

    def stage(self) -> Callable[[Path], None]:
        """Every rank copies its part; the result has them write it while they take steps."""
        self.calls.wait(
            {name: rank.copy_state.remote() for name, rank in self.ranks.items()},
            f"copy the state of step {self.step_index}",
            deadline_s=self._limits.step_timeout_s,
        )
        return self._write

    def _write(self, path: Path) -> None:
        """Blocks until all ranks have written; in a thread beside the one that takes steps."""
        limits = self._limits
        patience_s = limits.step_timeout_s + limits.checkpoint_timeout_s  # a step may be under way
        what, where = f"write {path.name}", str(path.absolute())
        begin = {name: rank.begin_write.remote(where) for name, rank in self.ranks.items()}
        self.calls.wait(begin, what, deadline_s=patience_s)
        end_s = time.monotonic() + patience_s
        while time.monotonic() < end_s:
            asked = {name: rank.has_written.remote() for name, rank in self.ranks.items()}
            if all(self.calls.wait(asked, what, deadline_s=patience_s).values()):
                return
            time.sleep(POLL_S)
        raise CheckpointError(
            f"the trainer's ranks haven't written {path} within {patience_s:g} s; older checkpoints"
            " are unchanged. The disk may be slow or gone; raise supervise.checkpoint_timeout_s."
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
