"""Names that were meant to be others are found; the many that aren't ours are left alone."""

import pytest

from parity.platforms.tables.ray_variables import known_names
from parity.platforms.visibility.names import misspelt, without_effect

LISTS = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
NAMES = (*LISTS, *known_names())


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("CUDA_VISIBLE_DEVICE", "CUDA_VISIBLE_DEVICES"),
        ("CUDA_VISBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
        ("HIP_VISIBLE_DEVISES", "HIP_VISIBLE_DEVICES"),
        ("ROCR_VISIBLE_DEVICE", "ROCR_VISIBLE_DEVICES"),
        ("cuda_visible_devices", "CUDA_VISIBLE_DEVICES"),
        ("PARITY_PLATFROM", "PARITY_PLATFORM"),
        ("PARITY_PLUGIN", "PARITY_PLUGINS"),
        (
            "RAY_EXPERIMENTAL_NOSET_HIP_VISIBLE_DEVICE",
            "RAY_EXPERIMENTAL_NOSET_HIP_VISIBLE_DEVICES",
        ),
    ],
)
def test_a_misspelt_name_is_answered_with_the_nearest(name: str, meant: str):
    (said,) = misspelt({name: "0"}, NAMES)
    assert said == f"{name} is set, and nothing reads it; did you mean {meant}?"


def test_a_noset_name_that_never_existed_is_reported_without_a_guess_that_is_far_off():
    (said,) = misspelt({"RAY_EXPERIMENTAL_NOSET_XYZ": "1"}, NAMES)
    assert said.startswith("RAY_EXPERIMENTAL_NOSET_XYZ is set, and ")


@pytest.mark.parametrize(
    "name",
    [
        *NAMES,
        "CUDA_HOME",
        "CUDA_LAUNCH_BLOCKING",
        "CUDA_DEVICE_MAX_CONNECTIONS",
        "CUDA_DEVICE_ORDER",
        "CUDA_MODULE_LOADING",
        "HIP_PLATFORM",
        "NVIDIA_VISIBLE_DEVICES",
        "NVIDIA_DRIVER_CAPABILITIES",
        "ASCEND_HOME_PATH",
        "ASCEND_VISIBLE_DEVICES",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO",
        "VISIBLE_DEVICES",
        "PARITY_RUNS_DIR",
        "PARITY_TRACEBACK",
        "PARITY_SOMETHING_ELSE",
    ],
)
def test_known_names_and_names_of_others_are_left_alone(name: str):
    assert misspelt({name: "0"}, NAMES) == ()


def test_lists_of_another_platform_have_no_effect_and_are_said():
    said = without_effect({"HIP_VISIBLE_DEVICES": "1"}, LISTS[:1], LISTS, "cuda")
    assert said == ("HIP_VISIBLE_DEVICES=1 is set, and has no effect on platform cuda.",)
    assert without_effect({"CUDA_VISIBLE_DEVICES": "1"}, LISTS[:1], LISTS, "cuda") == ()
