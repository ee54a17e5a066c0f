"""Every fact of every platform that ships, written out: none is inherited by accident."""

import pytest

from parity.platforms.cpu import CpuPlatform
from parity.platforms.cuda import CudaPlatform
from parity.platforms.facts import Facts
from parity.platforms.npu import NpuPlatform
from parity.platforms.platform import FACT_METHODS, FACT_NAMES, ROLES, Platform
from parity.platforms.rocm import RocmPlatform
from parity.platforms.visibility.compose import Rules

NOSET = "RAY_EXPERIMENTAL_NOSET_"
GOLDEN = {
    CpuPlatform: {
        "name": "cpu",
        "vendor": "cpu",
        "device_type": "cpu",
        "precedence": 0,
        "torch_plugins": (),
        "is_default_build": False,
        "smi_tools": (),
        "count_sources": (),
        "variable_prefixes": (),
        "device_nodes": (),
        "visibility": None,
        "collective_backends": ("gloo",),
        "ray_resource": None,
        "has_thread_budget": True,
        "has_graph_capture": False,
        "has_bf16_reduce": True,
    },
    CudaPlatform: {
        "name": "cuda",
        "vendor": "nvidia",
        "device_type": "cuda",
        "precedence": 10,
        "torch_plugins": (),
        "is_default_build": True,
        "smi_tools": ("nvidia-smi",),
        "count_sources": ("nvidia-driver",),
        "variable_prefixes": ("CUDA_", "NVIDIA_", "NCCL_"),
        "device_nodes": ("/dev/nvidia[0-9]*", "/dev/nvidiactl", "/dev/dxg"),
        "visibility": Rules(
            outer=None,
            inner=("CUDA_VISIBLE_DEVICES",),
            needs_ascending_ids=False,
            hides_after_negative=True,
            is_empty_ambiguous=False,
            nothing="-1",
        ),
        "collective_backends": ("nccl", "flagcx"),
        "ray_resource": "GPU",
        "has_thread_budget": False,
        "has_graph_capture": True,
        "has_bf16_reduce": True,
    },
    RocmPlatform: {
        "name": "rocm",
        "vendor": "amd",
        "device_type": "cuda",
        "precedence": 50,
        "torch_plugins": (),
        "is_default_build": False,
        "smi_tools": ("amd-smi", "rocm-smi"),
        "count_sources": ("kfd",),
        "variable_prefixes": (
            "HIP_",
            "ROCR_",
            "GPU_",
            "HSA_",
            "ROCM_",
            "CUDA_",
            "NCCL_",
            "RCCL_",
        ),
        "device_nodes": ("/dev/kfd", "/dev/dri/renderD*"),
        "visibility": Rules(
            outer="ROCR_VISIBLE_DEVICES",
            inner=("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
            needs_ascending_ids=False,
            hides_after_negative=True,
            is_empty_ambiguous=True,
            nothing="-1",
        ),
        "collective_backends": ("nccl", "flagcx"),
        "ray_resource": "GPU",
        "has_thread_budget": False,
        "has_graph_capture": True,
        "has_bf16_reduce": True,
    },
    NpuPlatform: {
        "name": "npu",
        "vendor": "huawei",
        "device_type": "npu",
        "precedence": 100,
        "torch_plugins": ("torch_npu",),
        "is_default_build": False,
        "smi_tools": ("npu-smi",),
        "count_sources": (),
        "variable_prefixes": ("ASCEND_", "HCCL_", "VLLM_ASCEND_", "TASK_QUEUE_", "NCCL_"),
        "device_nodes": ("/dev/davinci[0-9]*", "/dev/davinci_manager"),
        "visibility": Rules(
            outer=None,
            inner=("ASCEND_RT_VISIBLE_DEVICES",),
            needs_ascending_ids=True,
            hides_after_negative=False,
            is_empty_ambiguous=False,
            nothing="",
        ),
        "collective_backends": ("hccl", "flagcx"),
        "ray_resource": "NPU",
        "has_thread_budget": False,
        "has_graph_capture": True,
        "has_bf16_reduce": True,
    },
}
PORTS = {"HCCL_HOST_SOCKET_PORT_RANGE": "auto", "HCCL_NPU_SOCKET_PORT_RANGE": "auto"}
EVERY_AMD = {"HSA_NO_SCRATCH_RECLAIM": "1", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
LEGACY = {"HSA_ENABLE_IPC_MODE_LEGACY": "1"}
CUMEM = {"NCCL_CUMEM_ENABLE": "0"}
DEFAULTS = {
    (CpuPlatform, "driver"): {},
    (CpuPlatform, "trainer"): {},
    (CpuPlatform, "rollout"): {},
    (CudaPlatform, "driver"): {},
    (CudaPlatform, "trainer"): {},
    (CudaPlatform, "rollout"): CUMEM,
    (RocmPlatform, "driver"): EVERY_AMD,
    (RocmPlatform, "trainer"): {**EVERY_AMD, **LEGACY},
    (RocmPlatform, "rollout"): {**EVERY_AMD, **LEGACY, **CUMEM, "SGLANG_USE_AITER": "1"},
    (NpuPlatform, "driver"): {},
    (NpuPlatform, "trainer"): PORTS,
    (NpuPlatform, "rollout"): {
        **PORTS,
        **CUMEM,
        "VLLM_ASCEND_AUTO_DETECT_QUANTIZATION": "0",
        "VLLM_ASCEND_ENABLE_NZ": "0",
    },
}
NOSETS = {
    CpuPlatform: (),
    CudaPlatform: (f"{NOSET}CUDA_VISIBLE_DEVICES",),
    RocmPlatform: (f"{NOSET}CUDA_VISIBLE_DEVICES", f"{NOSET}HIP_VISIBLE_DEVICES"),
    NpuPlatform: (f"{NOSET}ASCEND_RT_VISIBLE_DEVICES",),
}
RAY_OPTIONS = {
    CpuPlatform: {},
    CudaPlatform: {"num_gpus": 2},
    RocmPlatform: {"num_gpus": 2},
    NpuPlatform: {"resources": {"NPU": 2}},
}
IPC = {CpuPlatform: False, CudaPlatform: True, RocmPlatform: True, NpuPlatform: None}
VARIABLES = {
    CpuPlatform: (),
    CudaPlatform: ("CUDA_VISIBLE_DEVICES",),
    RocmPlatform: ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
    NpuPlatform: ("ASCEND_RT_VISIBLE_DEVICES",),
}


@pytest.mark.parametrize("kind", GOLDEN)
def test_every_fact_is_the_one_that_is_written_here(kind: type[Platform]):
    assert GOLDEN[kind].keys() == set(FACT_NAMES)
    assert {name: getattr(kind, name) for name in FACT_NAMES} == GOLDEN[kind]


@pytest.mark.parametrize("kind", GOLDEN)
def test_every_fact_is_stated_in_the_platforms_own_class(kind: type[Platform]):
    assert {*FACT_NAMES, *FACT_METHODS} <= vars(kind).keys()


@pytest.mark.parametrize("kind", GOLDEN)
@pytest.mark.parametrize("role", ROLES)
def test_the_variables_of_a_role_are_the_ones_that_are_written_here(kind, role):
    found = kind().defaults(role, {})
    assert {each.name: each.value for each in found} == DEFAULTS[kind, role]
    assert all(len(each.reason) > 20 for each in found)


@pytest.mark.parametrize("kind", GOLDEN)
def test_what_ray_is_told_is_written_here(kind: type[Platform]):
    assert kind().ray_noset_variables("2.60.0") == NOSETS[kind]
    assert kind().ray_options(2) == RAY_OPTIONS[kind]
    assert kind().ray_options(0) == {}
    assert kind().visibility_variables == VARIABLES[kind]
    assert kind().collective_backend == GOLDEN[kind]["collective_backends"][0]


@pytest.mark.parametrize("kind", GOLDEN)
def test_device_ipc_without_any_facts_is_what_is_written_here(kind: type[Platform]):
    assert kind().ipc_support(Facts()).is_supported is IPC[kind]


def test_amd_alone_gets_amd_variables():
    for kind in GOLDEN:
        names = {each.name for role in ROLES for each in kind().defaults(role, {})}
        assert ({*EVERY_AMD, *LEGACY, "SGLANG_USE_AITER"} <= names) is (kind is RocmPlatform)
        assert any(name.startswith(("HSA_", "RAY_ACCEL_")) for name in names) is (
            kind is RocmPlatform
        )


def test_a_setting_of_the_engine_is_copied_where_the_user_made_it():
    (copied,) = [
        each
        for each in NpuPlatform().defaults("rollout", {"VLLM_ASCEND_TASK_QUEUE_ENABLE": "2"})
        if each.name == "TASK_QUEUE_ENABLE"
    ]
    assert (copied.value, copied.source) == ("2", "VLLM_ASCEND_TASK_QUEUE_ENABLE")


def test_a_platform_that_leaves_a_fact_to_its_parent_cannot_be_defined():
    with pytest.raises(TypeError, match=r"Lazy doesn't say built_for, capability, collective_b"):

        class Lazy(CudaPlatform):
            name = "lazy"
            vendor = "lazy"
