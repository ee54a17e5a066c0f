"""What the vendors' tools print, in the forms that differ; made up in the tools' own layout."""

import json

NVIDIA_TWO = (
    "GPU 0: NVIDIA H200 (UUID: GPU-11111111-aaaa-bbbb-cccc-000000000000)\n"
    "GPU 1: NVIDIA H200 (UUID: GPU-22222222-aaaa-bbbb-cccc-000000000000)\n"
)
NVIDIA_MIG = (
    "GPU 0: NVIDIA H200 (UUID: GPU-11111111-aaaa-bbbb-cccc-000000000000)\n"
    "  MIG 3g.71gb     Device  0: (UUID: MIG-aaaaaaaa-0000-5000-8000-000000000001)\n"
    "  MIG 3g.71gb     Device  1: (UUID: MIG-bbbbbbbb-0000-5000-8000-000000000002)\n"
    "GPU 1: NVIDIA H200 (UUID: GPU-22222222-aaaa-bbbb-cccc-000000000000)\n"
)
AMD_TWO = json.dumps(
    [
        {
            "gpu": number,
            "bdf": f"0000:{bus}:00.0",
            "uuid": f"{number}aff74a1-0000-1000-80ff-deadbeef0000",
            "kfd_id": 100 + number,
            "node_id": 2 + number,
            "partition_id": 0,
        }
        for number, bus in enumerate(("05", "26"))
    ]
)
AMD_CPX = json.dumps(
    [
        {
            "gpu": 8 * card + part,
            "bdf": f"0000:{bus}:00.{part}",
            "uuid": f"{card}aff74a1-0000-1000-80ff-deadbeef0000",
            "partition_id": part,
        }
        for card, bus in enumerate(("05", "26"))
        for part in range(8)
    ]
)
ROCM_TWO = json.dumps(
    {
        "card0": {
            "Unique ID": "0x719d230578348e8c",
            "PCI Bus": "0000:05:00.0",
            "Card Series": "AMD Instinct MI300X OAM",
        },
        "card1": {
            "Unique ID": "0x2b3c4d5e6f708192",
            "PCI Bus": "0000:26:00.0",
            "Card Series": "AMD Instinct MI300X OAM",
        },
        "system": {"Driver version": "6.12.12"},
    }
)
ROCM_CPX = "WARNING: AMD GPU device(s) is/are in a low-power state.\n" + json.dumps(
    {
        f"card{part}": {"Unique ID": "0x719d230578348e8c", "PCI Bus": "0000:05:00.0"}
        for part in range(8)
    }
)


def _npu_line(*cells: str) -> str:
    return "| {:<25} | {:<13} | {:<50} |\n".format(*cells)


_RULE = "+---------------------------+---------------+" + "-" * 52 + "+\n"
_HEAVY_RULE = _RULE.replace("-", "=")
_NPU_HEAD = (
    f"| {'npu-smi 25.3.rc1                 Version: 25.3.rc1':<94} |\n"
    + _RULE
    + _npu_line("NPU   Name", "Health", "Power(W)    Temp(C)           Hugepages-Usage(page)")
    + _npu_line("Chip", "Bus-Id", "AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)")
    + _HEAVY_RULE
)
NPU_TWO = (
    _NPU_HEAD
    + _npu_line("0     910B3", "OK", "93.6        40                0    / 0")
    + _npu_line("0", "0000:C1:00.0", "37          0    / 0          61825/ 65536")
    + _HEAVY_RULE
    + _npu_line("1     910B3", "Warning", "97.0        51                0    / 0")
    + _npu_line("0", "0000:01:00.0", "0           0    / 0          3162 / 65536")
    + _HEAVY_RULE
    + _RULE
    + "| NPU     Chip              | Process id    | Process name     | Process memory(MB) |\n"
    + _HEAVY_RULE
    + "| 0       0                 | 12345         | python           | 58000              |\n"
)
NPU_TWO_CHIPS = (  # a card with two chips: the second has no power of its own
    _NPU_HEAD.replace("| Chip       ", "| Chip  Phy-ID")
    + _npu_line("0     Ascend910", "OK", "182.4       38                0    / 0")
    + _npu_line("0     0", "0000:9D:00.0", "0           0    / 0          3122 / 65536")
    + _RULE
    + _npu_line("0     Ascend910", "OK", "-           38                0    / 0")
    + _npu_line("1     1", "0000:9F:00.0", "0           0    / 0          2884 / 65536")
    + _HEAVY_RULE
)
NPU_ECC = (
    "        NPU ID                                   : 0\n"
    "        Chip Count                               : 1\n\n"
    "        DDR Single Bit Error Count               : 2\n"
    "        DDR Double Bit Error Count               : 0\n"
    "        HBM Single Bit Error Count               : 3\n"
    "        HBM Double Bit Error Count               : 1\n"
    "        HBM Single Bit Aggregate Total Err Cnt   : 900\n"
    "        Chip ID                                  : 0\n"
)
