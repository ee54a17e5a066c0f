"""FSDP2: every parameter is spread over a mesh of ranks, gathered while it is used.

    mesh            replicate x shard = world
    replicate = 1   fully sharded
    shard = 1       every rank holds everything (DDP by another name)
    both > 1        hybrid: gathers stay inside a shard group, gradients go across

Micro-batches carry weights over the whole batch, so gradients are summed over ranks, not
averaged: the sum is the gradient of the batch whatever the number of ranks (FSDP2's own
division is switched off). Source: Zhao et al. 2023, "PyTorch FSDP".
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor, distribute_tensor

from parity.errors import ConfigError
from parity.training.config import ParallelConfig
from parity.training.parallel.ranks import Ranks, host_copy


class ShardedRanks(Ranks):
    """The ranks of the default process group, which must exist."""

    def __init__(self, config: ParallelConfig, *, device: torch.device, dtype: torch.dtype) -> None:
        """Arrange the ranks; `dtype` is the one that gathered parameters are computed in."""
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._config = config
        self._device = device
        self._dtype = dtype
        self._mesh = build_mesh(config, device_type=device.type)
        self._host_mesh: DeviceMesh | None = None
        self._writers: dist.ProcessGroup | None = None

    def shard(self, scorer: nn.Module, *, model: nn.Module) -> None:
        """Spread layer by layer; what is outside of all layers goes with the scorer."""
        spread = partial(
            fully_shard,
            mesh=self._mesh,
            mp_policy=MixedPrecisionPolicy(
                param_dtype=None if self._dtype == torch.float32 else self._dtype,
                reduce_dtype=torch.float32,
                cast_forward_inputs=False,
            ),
            offload_policy=self._offload_policy(),
        )
        for layer in layers_of(model):
            spread(layer)
        spread(scorer)
        for module in scorer.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(enable=True)

    def allocate(self, scorer: nn.Module) -> None:
        """Memory for the parts of parameters, and for buffers that files hold."""
        rests_on = torch.device("cpu") if self._config.cpu_offload else self._device

        def memory_of(tensor: Tensor) -> Tensor:
            if not tensor.is_meta:
                return tensor
            device = rests_on if isinstance(tensor, DTensor) else self._device
            return torch.empty_like(tensor, device=device)

        # What `to_empty` does, but for what has memory: it keeps tied parameters one.
        scorer._apply(memory_of)  # pyright: ignore[reportPrivateUsage]

    def rest(self, scorer: nn.Module) -> None:
        """Layers have given up theirs after the pass; the scorer's own part stays until now."""
        if isinstance(scorer, FSDPModule):
            scorer.reshard()

    def _offload_policy(self) -> OffloadPolicy:
        if not self._config.cpu_offload:
            return OffloadPolicy()
        return CPUOffloadPolicy(pin_memory=self._device.type != "cpu")

    def add(self, values: Tensor) -> Tensor:
        """All-reduced over every rank, on the host."""
        sent = values.to(self._device)
        dist.all_reduce(sent)
        return sent.cpu()

    def whole(self, tensor: Tensor) -> Tensor:
        """Gathered from all ranks; each of them must ask for it."""
        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    def spread(self, tensor: Tensor, *, like: Tensor) -> Tensor:
        """Cut on this rank; nothing travels."""
        if not isinstance(like, DTensor):
            return tensor
        return distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None)

    def save(self, folder: Path, tensors: Mapping[str, Tensor]) -> None:
        """Every rank writes what it holds."""
        save(dict(tensors), checkpoint_id=folder)

    def stage(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copies of this rank's parts, on a mesh of hosts laid out as the one of devices."""
        if self._host_mesh is None:  # made here, where all ranks are: `write` is in any thread
            names = self._mesh.mesh_dim_names
            self._host_mesh = init_device_mesh("cpu", self._mesh.shape, mesh_dim_names=names)
            group = dist.new_group(backend="gloo")
            assert isinstance(group, dist.ProcessGroup), "every rank is in it"
            self._writers = group
        return {name: self._staged(tensor, self._host_mesh) for name, tensor in tensors.items()}

    def _staged(self, tensor: Tensor, mesh: DeviceMesh) -> Tensor:
        if not isinstance(tensor, DTensor):
            return host_copy(tensor)
        return DTensor.from_local(
            host_copy(tensor.to_local()),
            mesh,
            tensor.placements,
            run_check=False,
            shape=tensor.shape,
            stride=tensor.stride(),
        )

    def write(self, folder: Path, staged: Mapping[str, Tensor]) -> None:
        """Every rank writes its part; they meet in a group that nothing else uses."""
        assert self._writers is not None, "stage comes first"
        save(dict(staged), checkpoint_id=folder, process_group=self._writers)

    def load(self, folder: Path, tensors: Mapping[str, Tensor]) -> None:
        """Every rank reads what it holds, from whatever ranks wrote."""
        load(dict(tensors), checkpoint_id=folder)


def build_mesh(config: ParallelConfig, *, device_type: str) -> DeviceMesh:
    """The mesh of all ranks; ConfigError where the sizes don't multiply to their number."""
    size = dist.get_world_size()
    replicate, shard = mesh_shape(config, size)
    if replicate == 1:
        return init_device_mesh(device_type, (shard,), mesh_dim_names=("shard",))
    return init_device_mesh(device_type, (replicate, shard), mesh_dim_names=("replicate", "shard"))


def mesh_shape(config: ParallelConfig, size: int) -> tuple[int, int]:
    """(replicate, shard) for `size` ranks."""
    if size % config.replicate or config.shard not in (None, size // config.replicate):
        raise ConfigError(
            f"trainer.parallel wants replicate={config.replicate} x shard={config.shard}, but"
            f" there are {size} trainer ranks; replicate x shard must be {size} (shard=null takes"
            " what is left)."
        )
    return config.replicate, size // config.replicate


def layers_of(model: nn.Module) -> list[nn.Module]:
    """The blocks that are gathered one at a time: those that the model says mustn't be split.

    A model that says nothing is taken apart at its longest list of modules.
    """
    names = cast("list[str] | None", getattr(model, "_no_split_modules", None)) or []
    blocks = [module for module in model.modules() if type(module).__name__ in names]
    if blocks:
        return blocks
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    longest = max(lists, key=len, default=None)
    return list(longest) if longest is not None else []
