"""Stand-ins for the vendors' libraries, which need their hardware to load or to answer."""

from types import ModuleType, SimpleNamespace

MIB = 2**20


class NvmlError(Exception):
    """What pynvml raises."""


class Gpu:
    """One NVIDIA GPU or slice; a field that is an exception is raised when it is asked."""

    def __init__(self, uuid: str, slices: tuple["Gpu | None", ...] = (), **answers: object) -> None:
        self.uuid = uuid
        self.slices = slices
        self.answers: dict[str, object] = {
            "uuid": uuid.encode(),
            "name": "NVIDIA H200",
            "pci": SimpleNamespace(busId=b"00000000:0F:00.0"),
            "utilization": SimpleNamespace(gpu=37, memory=5),
            "memory": SimpleNamespace(total=140 * 2**30, used=2 * 2**30, free=138 * 2**30),
            "power": 412_500,
            "temperature": 61,
            "corrected": 3,
            "uncorrected": 0,
            "throttle": 0,
            "mig": (1, 1) if slices else (0, 0),
            **answers,
        }


def nvml(*gpus: "Gpu | Exception", **changes: object) -> ModuleType:
    """A pynvml that sees these GPUs; `changes` replace attributes (None: takes them away)."""

    def field(name: str):
        def read(handle: Gpu, *_: object) -> object:
            answer = handle.answers[name]
            if isinstance(answer, Exception):
                raise answer
            return answer

        return read

    def by_index(index: int) -> Gpu:
        found = gpus[index]
        if isinstance(found, Exception):
            raise found
        return found

    def slice_of(handle: Gpu, place: int) -> Gpu:
        found = handle.slices[place]
        if found is None:
            raise NvmlError("Not Found")
        return found

    library = ModuleType("pynvml")
    attributes: dict[str, object] = {
        "NVMLError": NvmlError,
        "NVML_TEMPERATURE_GPU": 0,
        "NVML_VOLATILE_ECC": 0,
        "NVML_MEMORY_ERROR_TYPE_CORRECTED": 0,
        "NVML_MEMORY_ERROR_TYPE_UNCORRECTED": 1,
        "nvmlClocksThrottleReasonSwPowerCap": 4,
        "nvmlClocksThrottleReasonHwSlowdown": 8,
        "nvmlClocksThrottleReasonSwThermalSlowdown": 32,
        "nvmlClocksThrottleReasonHwThermalSlowdown": 64,
        "nvmlClocksThrottleReasonHwPowerBrakeSlowdown": 128,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: len(gpus),
        "nvmlDeviceGetHandleByIndex": by_index,
        "nvmlDeviceGetUUID": field("uuid"),
        "nvmlDeviceGetName": field("name"),
        "nvmlDeviceGetPciInfo": field("pci"),
        "nvmlDeviceGetUtilizationRates": field("utilization"),
        "nvmlDeviceGetMemoryInfo": field("memory"),
        "nvmlDeviceGetPowerUsage": field("power"),
        "nvmlDeviceGetTemperatureV": field("temperature"),
        "nvmlDeviceGetTemperature": field("temperature"),
        "nvmlDeviceGetTotalEccErrors": lambda handle, kind, _: field(
            ("corrected", "uncorrected")[kind]
        )(handle),
        "nvmlDeviceGetCurrentClocksEventReasons": field("throttle"),
        "nvmlDeviceGetCurrentClocksThrottleReasons": field("throttle"),
        "nvmlDeviceGetMigMode": field("mig"),
        "nvmlDeviceGetMaxMigDeviceCount": lambda handle: len(handle.slices),
        "nvmlDeviceGetMigDeviceHandleByIndex": slice_of,
        **changes,
    }
    for name, value in attributes.items():
        if value is not None:
            setattr(library, name, value)
    return library


class AmdSmiError(Exception):
    """What amdsmi raises."""


class Card:
    """One AMD processor; a field that is an exception is raised when it is asked."""

    def __init__(self, bus: str, uuid: str, partition: int | str = 0, **answers: object) -> None:
        self.answers: dict[str, object] = {
            "bdf": bus,
            "uuid": uuid,
            "kfd": {"current_partition_id": partition},
            "asic": {"market_name": "AMD Instinct MI300X"},
            "compute": "SPX",
            "memory_mode": "NPS1",
            "activity": {"gfx_activity": 88, "umc_activity": 10, "mm_activity": "N/A"},
            "vram": {"vram_total": 196592, "vram_used": 283},
            "power": {"current_socket_power": 540, "average_socket_power": "N/A"},
            "hotspot": 55,
            "edge": AmdSmiError("not supported"),
            "ecc": {"correctable_count": 1, "uncorrectable_count": 0},
            "violation": {"active_ppt_pwr": True, "active_socket_thrm": False},
            **answers,
        }


def amdsmi(*cards: Card, **changes: object) -> ModuleType:
    """An amdsmi that sees these processors; `changes` replace attributes (None: takes away)."""

    def field(name: str):
        def read(handle: Card, *_: object) -> object:
            answer = handle.answers[name]
            if isinstance(answer, Exception):
                raise answer
            return answer

        return read

    library = ModuleType("amdsmi")
    attributes: dict[str, object] = {
        "AmdSmiException": AmdSmiError,
        "AmdSmiTemperatureType": SimpleNamespace(HOTSPOT="hotspot", EDGE="edge"),
        "AmdSmiTemperatureMetric": SimpleNamespace(CURRENT=0),
        "amdsmi_init": lambda: None,
        "amdsmi_shut_down": lambda: None,
        "amdsmi_get_processor_handles": lambda: list(cards),
        "amdsmi_get_gpu_device_bdf": field("bdf"),
        "amdsmi_get_gpu_device_uuid": field("uuid"),
        "amdsmi_get_gpu_kfd_info": field("kfd"),
        "amdsmi_get_gpu_asic_info": field("asic"),
        "amdsmi_get_gpu_compute_partition": field("compute"),
        "amdsmi_get_gpu_memory_partition": field("memory_mode"),
        "amdsmi_get_gpu_activity": field("activity"),
        "amdsmi_get_gpu_vram_usage": field("vram"),
        "amdsmi_get_power_info": field("power"),
        "amdsmi_get_temp_metric": lambda handle, sensor, _: field(sensor)(handle),
        "amdsmi_get_gpu_total_ecc_count": field("ecc"),
        "amdsmi_get_violation_status": field("violation"),
        **changes,
    }
    for name, value in attributes.items():
        if value is not None:
            setattr(library, name, value)
    return library
