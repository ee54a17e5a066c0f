"""Peaks of models as torch names them; what isn't in a data sheet is None."""

import pytest

from parity.platforms.tables.peak_flops import MODELS, find_model, peak_flops


@pytest.mark.parametrize(
    ("vendor", "name", "dtype", "tera"),
    [
        ("nvidia", "NVIDIA H100 80GB HBM3", "bfloat16", 989.4),
        ("nvidia", "NVIDIA H100 80GB HBM3", "float8_e4m3fn", 1978.9),
        ("nvidia", "NVIDIA H100 PCIe", "bfloat16", 756.5),
        ("nvidia", "NVIDIA H100 NVL", "bfloat16", 835.5),
        ("nvidia", "NVIDIA H200", "bfloat16", 989.4),
        ("nvidia", "NVIDIA GH200 480GB", "bfloat16", 989.4),
        ("nvidia", "NVIDIA H20", "bfloat16", 148),
        ("nvidia", "NVIDIA A100-SXM4-80GB", "bfloat16", 312),
        ("nvidia", "NVIDIA A100-SXM4-80GB", "float32", 19.5),
        ("nvidia", "NVIDIA A100-SXM4-80GB", "float8_e4m3fn", None),
        ("nvidia", "NVIDIA B200", "bfloat16", 2250),
        ("nvidia", "NVIDIA GB200", "bfloat16", 2500),
        ("nvidia", "NVIDIA L4", "bfloat16", 121),
        ("nvidia", "NVIDIA L40", "bfloat16", 181.05),
        ("nvidia", "NVIDIA L40S", "bfloat16", 362.05),
        ("nvidia", "Tesla V100-SXM2-32GB", "float16", 125),
        ("nvidia", "Tesla V100-SXM2-32GB", "bfloat16", None),
        ("nvidia", "NVIDIA GeForce RTX 4090", "bfloat16", 165.2),
        ("nvidia", "NVIDIA GeForce RTX 4090 D", "int8", None),
        ("amd", "AMD Instinct MI300X", "bfloat16", 1307.4),
        ("amd", "AMD Instinct MI300X OAM", "float8_e4m3fnuz", 2614.9),
        ("amd", "AMD Instinct MI355X", "bfloat16", 2516.6),
        ("amd", "AMD Instinct MI250X", "float8_e4m3fn", None),
        ("huawei", "Ascend910B3", "float16", 313),
        ("nvidia", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "bfloat16", None),
        ("amd", "AMD Instinct MI300X CPX", "bfloat16", None),
        ("nvidia", "NVIDIA Something 9000", "bfloat16", None),
        ("amd", "NVIDIA H100 80GB HBM3", "bfloat16", None),
        ("cpu", "AMD EPYC 7763", "float32", None),
    ],
)
def test_a_model_has_the_figure_of_its_data_sheet(vendor, name, dtype, tera):
    found = peak_flops(vendor, name, dtype)
    assert found == (None if tera is None else pytest.approx(tera * 1e12))


def test_every_row_has_a_source_and_no_row_hides_behind_another():
    for vendor, models in MODELS.items():
        for model in models:
            assert model.source
            sample = model.pattern.replace(r"\b", "").replace(".*", "-")
            sample = sample.replace("[18]", "1")
            assert find_model(vendor, sample) is model, model.pattern


def test_a_narrower_type_is_never_slower():
    for models in MODELS.values():
        for model in models:
            steps = [model.float32, model.tfloat32, model.half, model.fp8]
            known = [each for each in steps if each is not None]
            assert known == sorted(known), model
