"""The driver's decision reaches other processes, and each checks it against its own facts."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
from unit.platforms.made_facts import make
from unit.platforms.test_detect import AMD, HVD, NV, TABLE, random_facts

from parity.errors import ConfigError, UnsupportedError
from parity.platforms.decision import VARIABLE, Decision, from_variable
from parity.platforms.detect import decide
from parity.platforms.verify import differences, verify


def test_a_decision_survives_its_variable():
    for facts in [*(row[0] for row in TABLE), *map(random_facts, range(50))]:
        decision = decide(facts)
        assert from_variable(decision.to_variable()) == decision
    assert from_variable({}) is None
    assert from_variable({VARIABLE: ""}) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda plain: plain.pop("vendor"),
        lambda plain: plain.update(odd=1),
        lambda plain: plain.update(source="guess"),
        lambda plain: plain.update(is_built_for="yes"),
        lambda plain: plain.update(devices=[1.5]),
        lambda plain: plain.update(devices=[True]),
        lambda plain: plain.update(reasons="one"),
        lambda plain: plain.update(platform=3),
    ],
)
def test_a_variable_that_holds_something_else_is_refused(change):
    plain = decide(make("cpu")).to_json()
    change(plain)
    with pytest.raises(ConfigError, match=f"{VARIABLE} can't be read"):
        from_variable({VARIABLE: json.dumps(plain)})
    with pytest.raises(ConfigError, match="must be an object"):
        Decision.from_json([])
    with pytest.raises(ConfigError, match="Unset it"):
        from_variable({VARIABLE: "{"})


AMD_DRIVER = decide(make("hip"))  # a head node without a device
NVIDIA_DRIVER = decide(make("cuda", smi=NV))


@pytest.mark.parametrize(
    ("decision", "facts", "needs_device"),
    [
        (AMD_DRIVER, make("hip", smi=AMD), True),
        (AMD_DRIVER, make("hip"), True),  # nobody could list devices: the runtime says
        (AMD_DRIVER, make("hip"), False),
        (AMD_DRIVER, make("cpu"), False),
        (AMD_DRIVER, make("hip", smi=AMD, **{HVD: "-1"}), False),
        (NVIDIA_DRIVER, make("cuda", counts={"nvidia-driver": 1}), True),
        (decide(make("cuda", PARITY_PLATFORM="cpu")), make("cpu"), True),
        (decide(make("cpu", PARITY_PLATFORM="rocm")), make("hip", smi=AMD), True),
    ],
)
def test_processes_that_fit_the_decision_pass(decision, facts, needs_device):
    assert differences(decision, facts, needs_device=needs_device) == ()


@pytest.mark.parametrize(
    ("decision", "facts", "needs_device", "message"),
    [
        (AMD_DRIVER, make("cuda", smi=NV), True, "driver chose rocm .*built for ROCm.*here"),
        (AMD_DRIVER, make("cuda", smi=NV), False, "torch 2.13.0 is built for CUDA 13.0"),
        (AMD_DRIVER, make("cpu"), True, "isn't built for amd devices; install a ROCm build"),
        (AMD_DRIVER, make("hip", smi=AMD, **{HVD: "-1"}), True, "variables hide every device"),
        (AMD_DRIVER, make("hip", counts={"kfd": 0}), True, "there is no device here"),
        (NVIDIA_DRIVER, make("hip", smi=AMD), True, "driver chose cuda"),
        (
            replace(AMD_DRIVER, platform="xpu9"),
            make("hip"),
            True,
            "platform xpu9, which isn't here; known: cpu",
        ),
        (replace(AMD_DRIVER, vendor="odd"), make("hip"), True, "install the same versions"),
        (
            AMD_DRIVER,
            make("hip", smi=AMD, HIP_VISIBLE_DEVICES="0", CUDA_VISIBLE_DEVICES="1"),
            True,
            "contradict each other",
        ),
    ],
)
def test_processes_that_do_not_fit_say_what_differs(decision, facts, needs_device, message):
    with pytest.raises(UnsupportedError, match=message):
        verify(decision, facts, needs_device=needs_device)


ADOPT = """
import sys
from parity.platforms.verify import adopt
platform = adopt(needs_device=True)
print(platform.name, "torch" in sys.modules)
"""


def run(code: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    return subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_real_process_takes_the_decision_or_ends_with_the_reason():
    done = run(ADOPT, **decide(make("cpu")).to_variable())
    assert done.stdout.split() == ["cpu", "False"], done.stderr
    done = run(ADOPT, **AMD_DRIVER.to_variable())
    assert done.returncode != 0
    assert "the driver chose rocm" in done.stderr
    done = run(ADOPT, **{VARIABLE: ""})
    assert "was to take the driver's decision on the platform, and has none" in done.stderr


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a": ' + "9" * 5000 + "}", "NaN"])
def test_a_forged_decision_is_one_sentence(text: str):
    with pytest.raises(ConfigError, match=f"{VARIABLE} can't be read"):
        from_variable({VARIABLE: text})


@pytest.mark.parametrize("devices", [[0, 0], [1, "1"], ["GPU-a", "GPU-a"]])
def test_a_decision_that_names_a_device_twice_is_refused(devices):
    plain = decide(TABLE[0][0]).to_json()
    with pytest.raises(ConfigError, match="must name every device once"):
        Decision.from_json({**plain, "devices": devices})
