"""The two platforms of torch.cuda, against stand-ins for what torch says: no GPU is needed."""

from importlib.machinery import ModuleSpec

import pytest
import torch

from parity.errors import UnsupportedError
from parity.platforms import cuda, rocm
from parity.platforms.cuda import CudaPlatform
from parity.platforms.facts import Facts
from parity.platforms.rocm import RocmPlatform


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch):
    """Makes torch look like a build with devices."""

    def set_up(*, cuda=None, hip=None, capabilities=()):
        monkeypatch.setattr(torch.version, "cuda", cuda)
        monkeypatch.setattr(torch.version, "hip", hip)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(capabilities))
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(capabilities))
        monkeypatch.setattr(
            torch.cuda, "get_device_capability", lambda device: capabilities[device.index]
        )
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (5, 10 + device.index))

    return set_up


def test_each_platform_declines_the_build_of_the_other(pretend):
    pretend(hip="7.2", cuda="13.0", capabilities=[(9, 4)])
    with pytest.raises(UnsupportedError, match="install a CUDA build of torch"):
        CudaPlatform().require_usable()
    RocmPlatform().require_usable()
    pretend(cuda="13.0", capabilities=[(9, 0)])
    with pytest.raises(UnsupportedError, match="install a ROCm build of torch"):
        RocmPlatform().require_usable()
    CudaPlatform().require_usable()


def test_a_build_without_devices_is_refused(pretend):
    pretend(cuda="13.0")
    with pytest.raises(UnsupportedError, match="no usable nvidia device"):
        CudaPlatform().require_usable()
    pretend(hip="7.2")
    with pytest.raises(UnsupportedError, match="no usable amd device"):
        RocmPlatform().require_usable()


def test_devices_are_local_indexes(pretend, monkeypatch):
    pretend(cuda="13.0", capabilities=[(9, 0), (9, 0)])
    platform = CudaPlatform()
    assert platform.device(1) == torch.device("cuda", 1)
    with pytest.raises(UnsupportedError, match=r"device 2 was asked, and 2 are visible"):
        platform.device(2)
    memory = platform.memory(1)
    assert (memory.free_bytes, memory.total_bytes) == (5, 11)
    used = []
    monkeypatch.setattr(torch.cuda, "set_device", used.append)
    platform.set_device(1)
    with pytest.raises(UnsupportedError, match="device 7 was asked"):
        platform.set_device(7)
    assert used == [torch.device("cuda", 1)]


def test_bf16_needs_units_on_every_device(pretend):
    pretend(cuda="13.0", capabilities=[(9, 0), (8, 0)])
    assert CudaPlatform().fast_dtypes()[0] == "bfloat16"
    pretend(cuda="13.0", capabilities=[(9, 0), (7, 5)])
    assert CudaPlatform().fast_dtypes() == ("float16", "float32")
    assert RocmPlatform().fast_dtypes()[0] == "bfloat16"


def test_fp8_is_told_by_each_vendors_own_numbers(pretend):
    pretend(cuda="13.0", capabilities=[(8, 0), (8, 9), (9, 0), (10, 0)])
    assert [CudaPlatform().has_fp8(i) for i in range(4)] == [False, True, True, True]
    pretend(hip="7.2", capabilities=[(9, 0), (9, 4), (9, 5), (11, 0), (12, 0)])
    assert [RocmPlatform().has_fp8(i) for i in range(5)] == [False, True, True, False, True]


def test_mig_slices_have_no_ipc():
    facts = Facts(environment={"CUDA_VISIBLE_DEVICES": "MIG-1"})
    assert CudaPlatform().ipc_support(facts).is_supported is False
    assert CudaPlatform().ipc_support(Facts()).is_supported is True


def test_flagcx_is_an_option_where_its_package_is_installed(monkeypatch):
    with pytest.raises(UnsupportedError, match="needs the package flagcx, which isn't installed"):
        CudaPlatform().choose_collective("flagcx")
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: ModuleSpec(name, None, origin="here")
    )
    assert RocmPlatform().choose_collective("flagcx") == "flagcx"
    assert CudaPlatform().choose_collective() == "nccl"


def test_a_missing_collective_module_is_none():
    assert CudaPlatform().collective_module() is None


def test_the_drivers_files_count_gpus_and_a_folder_alone_counts_none(tmp_path, monkeypatch):
    monkeypatch.setattr(cuda, "DRIVER_GPUS", tmp_path / "gpus")
    assert CudaPlatform.count_devices() == {}
    for index in range(3):
        (tmp_path / f"gpus/0000:0{index}:00.0").mkdir(parents=True)
    assert CudaPlatform.count_devices() == {"nvidia-driver": 0}
    for index in range(2):
        file = tmp_path / f"gpus/0000:0{index}:00.0/information"
        file.write_text("Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 16\nGPU UUID: \t GPU-1\n")
    assert CudaPlatform.count_devices() == {"nvidia-driver": 2}


def test_nodes_of_the_topology_count_where_they_have_simd_units(tmp_path, monkeypatch):
    monkeypatch.setattr(rocm, "KFD_NODES", tmp_path / "nodes")
    assert RocmPlatform.count_devices() == {}
    texts = ["cpu_cores_count 96\nsimd_count 0\n", "cpu_cores_count 0\nsimd_count 1216\n", ""]
    for index, text in enumerate(texts):
        (tmp_path / f"nodes/{index}").mkdir(parents=True)
        (tmp_path / f"nodes/{index}/properties").write_text(text)
    assert RocmPlatform.count_devices() == {"kfd": 1}


def test_versions_are_read_from_the_vendors_files(tmp_path, monkeypatch):
    (tmp_path / "version").write_text("580.65.06\n")
    monkeypatch.setattr(cuda, "DRIVER_VERSION", tmp_path / "version")
    assert CudaPlatform.read_versions() == {"nvidia-driver": "580.65.06"}
    (tmp_path / "rocm").write_text("7.2.0-43\n")
    monkeypatch.setattr(rocm, "DRIVER_VERSION", tmp_path / "none")
    monkeypatch.setattr(rocm, "ROCM_VERSION", tmp_path / "rocm")
    assert RocmPlatform.read_versions() == {"rocm": "7.2.0"}
