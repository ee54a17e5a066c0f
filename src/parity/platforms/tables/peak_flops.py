"""Dense matrix FLOP/s of device models by dtype, for model FLOP utilisation (MFU).

Figures are the vendors' own, without sparsity; where a data sheet only prints the sparse figure,
half of it. A model that isn't here has no peak (None), and so no MFU: a guess would look like a
measurement. A partition of a card (MIG, or a MI300 in CPX mode that says so in its name) is None
too. fp32 is the plain unit's figure; `tfloat32` is what torch uses with TF32 allowed.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

TERA = 1e12
FP8 = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
HALF = ("bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class Model:
    """Peaks of one model: dense TFLOP/s by dtype, and where they are printed."""

    pattern: str  # a regular expression that is searched in the device's name
    source: str
    half: float | None = None  # bfloat16 and float16
    fp8: float | None = None
    tfloat32: float | None = None
    float32: float | None = None
    has_bf16: bool = True

    def tera(self, dtype: str) -> float | None:
        """Dense TFLOP/s at a dtype; None where the data sheet has no figure for it."""
        if dtype == "bfloat16" and not self.has_bf16:
            return None
        if dtype in HALF:
            return self.half
        if dtype in FP8:
            return self.fp8
        return {"tfloat32": self.tfloat32, "float32": self.float32}.get(dtype)


H100 = "NVIDIA H100 Tensor Core GPU data sheet"
H200 = "NVIDIA H200 Tensor Core GPU data sheet"
A100 = "NVIDIA A100 Tensor Core GPU data sheet"
BLACKWELL = "NVIDIA HGX platform page (per GPU of 8)"
ADA = "NVIDIA Ada GPU architecture white paper"
MI200 = "AMD Instinct MI200 series data sheets (one of the two dies of a card)"

# The first pattern that is found counts, so the longer names of a family stand first.
NVIDIA = (
    Model(r"GB200", "NVIDIA GB200 NVL72 page (per GPU)", half=2500, fp8=5000, tfloat32=1250),
    Model(r"B200", BLACKWELL, half=2250, fp8=4500, tfloat32=1125, float32=75),
    Model(r"GH200", H100, half=989.4, fp8=1978.9, tfloat32=494.7, float32=66.9),
    Model(r"H200 NVL", H200, half=835.5, fp8=1670.5, tfloat32=417.5, float32=60),
    Model(r"H200", H200, half=989.4, fp8=1978.9, tfloat32=494.7, float32=66.9),
    Model(r"H100 NVL", H100, half=835.5, fp8=1670.5, tfloat32=417.5, float32=60),
    Model(r"H100 PCIe", H100, half=756.5, fp8=1513, tfloat32=378, float32=51.2),
    Model(r"H[18]00", H100, half=989.4, fp8=1978.9, tfloat32=494.7, float32=66.9),
    Model(r"H20\b", "NVIDIA H20 product brief", half=148, fp8=296, tfloat32=74, float32=44),
    Model(r"A[18]00", A100, half=312, tfloat32=156, float32=19.5),
    Model(r"A40\b", "NVIDIA A40 data sheet", half=149.7, tfloat32=74.8, float32=37.4),
    Model(r"A10\b", "NVIDIA A10 data sheet", half=125, tfloat32=62.5, float32=31.2),
    Model(r"L40S", "NVIDIA L40S data sheet", half=362.05, fp8=733, tfloat32=183, float32=91.6),
    Model(r"L40\b", "NVIDIA L40 data sheet", half=181.05, fp8=362, tfloat32=90.5, float32=90.5),
    Model(r"L4\b", "NVIDIA L4 data sheet", half=121, fp8=242.5, tfloat32=60, float32=30.3),
    Model(r"RTX 4090\b", ADA, half=165.2, fp8=330.3, tfloat32=82.6, float32=82.6),
    Model(r"V100.*PCIE", "NVIDIA V100 data sheet", half=112, float32=14, has_bf16=False),
    Model(r"V100.*SXM2", "NVIDIA V100 data sheet", half=125, float32=15.7, has_bf16=False),
    Model(r"T4\b", "NVIDIA T4 data sheet", half=65, float32=8.1, has_bf16=False),
)
AMD = (
    Model(
        r"MI355X",
        "AMD Instinct MI355X data sheet",
        half=2516.6,
        fp8=5033.2,
        float32=157.3,
    ),
    Model(r"MI350X", "AMD Instinct MI350X data sheet", half=2306.9, fp8=4613.7, float32=144.2),
    Model(
        r"MI325X",
        "AMD Instinct MI325X data sheet",
        half=1307.4,
        fp8=2614.9,
        tfloat32=653.7,
        float32=163.4,
    ),
    Model(
        r"MI300X",
        "AMD Instinct MI300X data sheet",
        half=1307.4,
        fp8=2614.9,
        tfloat32=653.7,
        float32=163.4,
    ),
    Model(
        r"MI300A",
        "AMD Instinct MI300A data sheet",
        half=980.6,
        fp8=1961.2,
        tfloat32=490.3,
        float32=122.6,
    ),
    Model(r"MI250X", MI200, half=191.5, float32=47.9),
    Model(r"MI250", MI200, half=181.0, float32=45.3),
    Model(r"MI210", "AMD Instinct MI210 data sheet", half=181.0, float32=45.3),
)
HUAWEI = (
    Model(r"910B3", "Huawei Atlas 800T A2 specification (313 TFLOP/s FP16 per NPU)", half=313),
    Model(r"910B4", "Huawei Atlas 800T A2 specification (280 TFLOP/s FP16 per NPU)", half=280),
)
MODELS: Mapping[str, tuple[Model, ...]] = {"nvidia": NVIDIA, "amd": AMD, "huawei": HUAWEI}
PARTITION = re.compile(r"\bMIG\b|\b(CPX|QPX|DPX)\b", re.IGNORECASE)


def find_model(vendor: str, device_name: str) -> Model | None:
    """The row of a device's name; None for an unknown model and for a part of a card."""
    if PARTITION.search(device_name):
        return None
    models = MODELS.get(vendor, ())
    return next((m for m in models if re.search(m.pattern, device_name, re.IGNORECASE)), None)


def peak_flops(vendor: str, device_name: str, dtype: str) -> float | None:
    """Dense FLOP/s of a device model at a torch dtype (`bfloat16`); None where it isn't known."""
    model = find_model(vendor, device_name)
    tera = None if model is None else model.tera(dtype)
    return None if tera is None else tera * TERA
