"""What the tools print becomes devices that are never mixed up; no text makes a reader raise."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.platforms import smi_samples as samples

from parity.platforms.telemetry import smi_output

READERS = (
    smi_output.nvidia_list,
    smi_output.amd_list,
    smi_output.rocm_cards,
    smi_output.npu_devices,
)
TEXTS = [value for name, value in vars(samples).items() if name.isupper() and name[0] != "_"]


def test_nvidia_devices_are_listed_with_their_uuids():
    first, second = smi_output.nvidia_list(samples.NVIDIA_TWO) or ()
    assert (first.index, first.key, first.model) == (
        0,
        "GPU-11111111-aaaa-bbbb-cccc-000000000000",
        "NVIDIA H200",
    )
    assert second.index == 1


def test_a_card_in_mig_mode_counts_as_its_slices():
    found = smi_output.nvidia_list(samples.NVIDIA_MIG) or ()
    assert [device.key[:12] for device in found] == ["MIG-aaaaaaaa", "MIG-bbbbbbbb", "GPU-22222222"]
    assert {device.board for device in found[:2]} == {"GPU-11111111-aaaa-bbbb-cccc-000000000000"}
    assert found[2].board is None


def test_no_nvidia_device_is_a_list_without_any():
    assert smi_output.nvidia_list("No devices found.\n") == ()
    assert smi_output.nvidia_list("") is None


def test_partitions_of_an_amd_card_are_devices_of_one_board():
    found = smi_output.amd_list(samples.AMD_CPX) or ()
    assert len({device.key for device in found}) == 16
    assert [device.board for device in found] == ["0000:05:00"] * 8 + ["0000:26:00"] * 8
    assert all(device.board is None for device in smi_output.amd_list(samples.AMD_TWO) or ())


def test_partitions_that_share_everything_but_the_number_are_still_told_apart():
    found = smi_output.rocm_cards(samples.ROCM_CPX) or ()
    assert len({device.key for device in found}) == 8
    assert {device.board for device in found} == {"0000:05:00"}


def test_rocm_cards_are_listed_in_the_order_of_their_numbers():
    shuffled = json.dumps(dict(reversed(json.loads(samples.ROCM_TWO).items())))
    found = smi_output.rocm_cards(shuffled) or ()
    assert [(d.index, d.key, d.model) for d in found] == [
        (0, "0x719d230578348e8c", "AMD Instinct MI300X OAM"),
        (1, "0x2b3c4d5e6f708192", "AMD Instinct MI300X OAM"),
    ]


def test_npu_chips_are_listed_and_their_processes_are_not():
    found = smi_output.npu_devices(samples.NPU_TWO) or ()
    assert [(d.index, d.key, d.model) for d in found] == [
        (0, "0000:C1:00.0", "910B3"),
        (1, "0000:01:00.0", "910B3"),
    ]
    assert smi_output.npu_version(samples.NPU_TWO) == "25.3.rc1"


def test_the_table_of_npu_smi_is_read_field_by_field():
    first, second = smi_output.npu_rows(samples.NPU_TWO_CHIPS) or ()
    assert (first.npu, first.chip, first.power_w, first.temperature_c) == (0, 0, 182.4, 38.0)
    assert (second.npu, second.chip, second.power_w) == (0, 1, None)
    assert second.memory_used_bytes == 2884 * 2**20
    assert second.memory_total_bytes == 65536 * 2**20


def test_an_older_chip_has_ddr_where_it_has_no_hbm():
    old = samples.NPU_TWO.replace(
        "0    / 0          3162 / 65536", "1979 / 15039      0    / 0    "
    )
    (_, second) = smi_output.npu_rows(old) or ()
    assert second.memory_total_bytes == 15039 * 2**20


def test_ecc_counts_of_all_memory_are_added_and_aggregates_are_not():
    assert smi_output.npu_ecc(samples.NPU_ECC) == (5, 1)
    assert smi_output.npu_ecc("this chip has no ecc") == (None, None)


def test_a_table_cut_in_the_middle_is_no_table():
    end = samples.NPU_TWO.index("| 0                         | 0000:01")
    assert smi_output.npu_rows(samples.NPU_TWO[:end]) is None


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("text", ["", "\n", "segmentation fault", "{}", "[]", "null", "[[[", "\0"])
def test_what_no_tool_prints_is_no_list_of_devices(read, text: str):
    assert not read(text)


@given(
    st.sampled_from(READERS),
    st.sampled_from(TEXTS),
    st.integers(0, 2000),
    st.integers(0, 200),
    st.text(max_size=20),
)
def test_a_damaged_output_never_raises_and_never_gives_two_devices_one_key(
    read, text: str, at: int, cut: int, put: str
):
    found = read(text[:at] + put + text[at + cut :])
    assert found is None or len({device.key for device in found}) == len(found)
