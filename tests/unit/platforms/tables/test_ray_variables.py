"""The table of no-set variables, against the accelerator managers of the Ray that is installed."""

import importlib
import importlib.resources
import os

import pytest

from parity.platforms.cpu import CpuPlatform
from parity.platforms.cuda import CudaPlatform
from parity.platforms.npu import NpuPlatform
from parity.platforms.platform import Platform
from parity.platforms.rocm import RocmPlatform
from parity.platforms.tables.ray_variables import (
    KNOWS_OVERRIDE_ON_ZERO,
    PREFIX,
    ROWS,
    known_names,
    noset_variables,
    parse_version,
)

CUDA, HIP, ROCR, ASCEND = (
    PREFIX + name
    for name in (
        "CUDA_VISIBLE_DEVICES",
        "HIP_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
        "ASCEND_RT_VISIBLE_DEVICES",
    )
)
# Read out of the wheels of these releases.
BY_VERSION = {
    "2.9.3": {"nvidia": CUDA},
    "2.30.0": {"nvidia": CUDA, "amd": ROCR, "npu": ASCEND},
    "2.40.0": {"nvidia": CUDA, "amd": ROCR, "npu": ASCEND},
    "2.44.1": {"nvidia": CUDA, "amd": ROCR, "npu": ASCEND},
    "2.45.0": {"nvidia": CUDA, "amd": HIP, "npu": ASCEND},
    "2.46.0": {"nvidia": CUDA, "amd": HIP, "npu": ASCEND},
    "2.50.0": {"nvidia": CUDA, "amd": HIP, "npu": ASCEND},
    "2.60.0": {"nvidia": CUDA, "amd": HIP, "npu": ASCEND},
}
# Platform -> module, class and resource of Ray's manager.
MANAGERS: dict[type[Platform], tuple[str, str]] = {
    CudaPlatform: ("nvidia_gpu", "NvidiaGPUAcceleratorManager"),
    RocmPlatform: ("amd_gpu", "AMDGPUAcceleratorManager"),
    NpuPlatform: ("npu", "NPUAcceleratorManager"),
}


@pytest.mark.parametrize("version", BY_VERSION)
def test_every_release_that_was_read_gets_exactly_the_names_that_it_reads(version: str):
    read = BY_VERSION[version]
    assert CudaPlatform().ray_noset_variables(version) == (CUDA,)
    amd = {CUDA, read["amd"]} if "amd" in read else {CUDA}
    assert set(RocmPlatform().ray_noset_variables(version)) == amd
    npu = (read["npu"],) if "npu" in read else ()
    assert NpuPlatform().ray_noset_variables(version) == npu
    assert CpuPlatform().ray_noset_variables(version) == ()


def test_where_the_version_is_unknown_every_name_is_given():
    for version in (None, "", "main"):
        assert RocmPlatform().ray_noset_variables(version) == (CUDA, HIP, ROCR)
        assert NpuPlatform().ray_noset_variables(version) == (ASCEND,)
    assert RocmPlatform().ray_noset_variables("3.0.0.dev0") == (CUDA, HIP)


def test_versions_are_compared_by_number():
    assert parse_version("2.9.3") == (2, 9)
    assert parse_version("2.60.0rc1") == (2, 60)
    assert parse_version("v2") is None
    with pytest.raises(KeyError):
        noset_variables(("NOT_A_LIST",), None)


def manager(kind: type[Platform]) -> tuple[object, object]:
    pytest.importorskip("ray", reason="Ray isn't installed (the extra `ray`)")
    module_name, class_name = MANAGERS[kind]
    module = importlib.import_module(f"ray._private.accelerators.{module_name}")
    return module, getattr(module, class_name)


@pytest.mark.parametrize("kind", MANAGERS)
def test_the_installed_ray_reads_the_names_of_the_table(kind: type[Platform]):
    import ray

    module, _ = manager(kind)
    constants = {v for v in vars(module).values() if isinstance(v, str) and v.startswith(PREFIX)}
    own = set(kind().ray_noset_variables(ray.__version__))
    assert constants <= own
    assert own - constants <= {CUDA}  # ROCm adds it for nodes that Ray takes for NVIDIA's
    assert own <= set(known_names())


@pytest.mark.parametrize("kind", MANAGERS)
def test_the_installed_ray_leaves_the_lists_alone_where_the_variables_are_set(kind, monkeypatch):
    import ray

    _, found = manager(kind)
    for row in ROWS:
        monkeypatch.delenv(row.visibility, raising=False)
        monkeypatch.delenv(row.noset, raising=False)
    (written,) = {kind.visibility.inner[0]}
    found.set_current_process_visible_accelerator_ids(["3"])
    assert os.environ[written] == "3"
    monkeypatch.delenv(written)
    for name in kind().ray_noset_variables(ray.__version__):
        monkeypatch.setenv(name, "1")
    found.set_current_process_visible_accelerator_ids(["3"])
    assert written not in os.environ


@pytest.mark.parametrize("kind", MANAGERS)
def test_the_resource_is_the_one_that_the_installed_ray_knows(kind: type[Platform]):
    _, found = manager(kind)
    assert found.get_resource_name() == kind.ray_resource


def test_every_noset_name_of_the_installed_ray_is_known():
    accelerators = pytest.importorskip("ray._private.accelerators")
    folder = importlib.resources.files(accelerators)
    for file in folder.iterdir():
        if file.name.endswith(".py"):
            module = importlib.import_module(f"ray._private.accelerators.{file.name[:-3]}")
            values = [v for v in vars(module).values() if isinstance(v, str)]
            assert {v for v in values if v.startswith(PREFIX) and v != PREFIX} <= set(known_names())


def test_the_installed_ray_knows_the_switch_for_actors_without_devices():
    accelerators = pytest.importorskip("ray._private.accelerators")
    import ray

    version = parse_version(ray.__version__)
    assert version is not None
    assert version >= KNOWS_OVERRIDE_ON_ZERO
    name = accelerators.RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO_ENV_VAR
    assert name in {each.name for each in RocmPlatform().defaults("driver", {})}
