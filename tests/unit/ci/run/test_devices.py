"""Leases between real processes, readiness and baseline with readings that are told."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from parity.ci.run.leases import LeaseError, Owner, holder, lease
from parity.ci.run.processes import MARKER
from parity.ci.run.readiness import (
    GIB,
    MIB,
    Baseline,
    Device,
    Need,
    ReadinessError,
    candidates,
    problem,
    wait_ready,
)
from parity.ci.run.telemetry import PlatformProbe, probe_of
from parity.errors import ConfigError
from parity.platforms import PLATFORMS
from parity.platforms.platform import Platform
from parity.platforms.telemetry.telemetry import Identity, Reading, Snapshot, Telemetry

OWNER = Owner("suite 1/2", 1, "here", f"here-1-{1:016x}", "2026-01-01T00:00:00Z")
HOLD = """
import json, sys, time
from pathlib import Path
from parity.ci.run.leases import Owner, lease
keys, count, folder = json.loads(sys.argv[1])
owner = Owner("other job", 4242, "there", "there-2-0123456789abcdef", "2026-01-01T00:00:00Z")
with lease(keys, count, owner, folder=Path(folder), timeout_s=5) as held:
    print(json.dumps(held.keys), flush=True)
    time.sleep(600)
"""


@contextmanager
def holding(keys: list[str], count: int, folder: Path) -> Iterator[subprocess.Popen[str]]:
    words = json.dumps([keys, count, str(folder)])
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, words], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.wait(10)


def test_two_jobs_never_share_a_device(tmp_path: Path) -> None:
    keys = ["gpu-a", "gpu-b", "gpu-c"]
    with holding(keys, 2, tmp_path):
        with lease(keys, 1, OWNER, folder=tmp_path, timeout_s=1) as held:
            assert held.keys == ("gpu-c",)
        with (
            pytest.raises(LeaseError, match="gpu-a: held by other job, pid 4242 on there"),
            lease(keys, 2, OWNER, folder=tmp_path, timeout_s=0.3),
        ):
            raise AssertionError("never here")
        with lease(keys, 1, OWNER, folder=tmp_path, timeout_s=1) as held:
            assert held.keys == ("gpu-c",)  # a failed try for two holds nothing back


def test_the_kernel_frees_what_a_killed_job_held_and_its_leftovers_are_ended(
    tmp_path: Path,
) -> None:
    with holding(["gpu-a"], 1, tmp_path) as job:
        environment = {MARKER: "there-2-0123456789abcdef.x.1", "PATH": "/usr/bin:/bin"}
        left = subprocess.Popen(["sleep", "600"], env=environment)
        stranger = subprocess.Popen(["sleep", "600"])
        try:
            while psutil.Process(left.pid).name() != "sleep":
                time.sleep(0.01)
            job.kill()
            job.wait(10)
            with lease(["gpu-a"], 1, OWNER, folder=tmp_path, timeout_s=5) as held:
                assert held.keys == ("gpu-a",)
                assert "left on device gpu-a by other job" in held.ended[0]
                assert holder("gpu-a", tmp_path) == OWNER
            assert left.wait(10) is not None
            assert stranger.poll() is None
        finally:
            for process in (left, stranger):
                process.kill()
                process.wait(10)
    assert holder("gpu-a", tmp_path) is None


def test_no_device_needs_no_lease_and_a_garbled_file_names_nobody(tmp_path: Path) -> None:
    (tmp_path / "gpu-a.lock").write_text("{garbage")
    with lease(["gpu-a"], 1, OWNER, folder=tmp_path, timeout_s=1) as held:
        assert held.ended == ()


def device(index: int = 0, **values: object) -> Device:
    known: dict[str, object] = {"used_bytes": 300 * MIB, "total_bytes": 80 * GIB, "holders": None}
    return Device(index, f"gpu-{index}", **{**known, **values})  # pyright: ignore


class Told:
    """A probe that answers from a list, the last answer for ever."""

    def __init__(self, *answers: Sequence[Device]) -> None:
        self._answers = list(answers)

    def devices(self) -> Sequence[Device]:
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]

    def variables(self, indices: Sequence[int]) -> Mapping[str, str]:
        return {"SEEN": ",".join(map(str, indices))}


NEED = Need(1, min_free_gib=40.0, max_used_mib=2048.0)
PROBLEMS = [
    (device(), None),
    (device(used_bytes=3 * GIB), "in use by somebody"),
    (device(total_bytes=24 * GIB), "23.7 GiB are free, and 40"),
    (device(total_bytes=None), "free memory can't be read"),
    (device(used_bytes=None), "neither its memory nor its users"),
    (device(holders=("pid 7 (python)",)), "in use by pid 7"),
    (device(holders=()), None),
]


@pytest.mark.parametrize(("found", "said"), PROBLEMS)
def test_what_makes_a_device_unfit(found: Device, said: str | None) -> None:
    why = problem(found, NEED)
    assert (why is None) if said is None else (why is not None and said in why)


def test_readiness_waits_for_memory_to_come_back() -> None:
    busy, free = [device(used_bytes=9 * GIB)], [device()]
    probe = Told(busy, busy, free)
    assert wait_ready(probe, ["gpu-0"], NEED, timeout_s=60, pause=lambda _: None) == free


def test_too_few_devices_is_an_error_that_tells_each() -> None:
    with pytest.raises(ReadinessError, match=r"2 usable devices are needed, and 1 were found"):
        candidates(Told([device()]), replace(NEED, count=2))
    with pytest.raises(ReadinessError, match="none is visible"):
        candidates(Told([]), NEED)


def test_usable_devices_are_preferred_and_the_leased_ones_must_be_so() -> None:
    both = Told([device(used_bytes=9 * GIB), device(1)])
    assert [d.index for d in candidates(both, NEED)] == [1, 0]
    assert wait_ready(both, ["gpu-1"], NEED, timeout_s=0) == [device(1)]
    with pytest.raises(ReadinessError, match="device 0: 9216 MiB are in use"):
        wait_ready(both, ["gpu-0"], NEED, timeout_s=0)
    with pytest.raises(ReadinessError):
        wait_ready(both, ["gpu-9"], NEED, timeout_s=0)


def test_memory_must_return_to_its_baseline() -> None:
    before, high = device(), device(used_bytes=5 * GIB)
    back = Baseline(Told([high], [high], [before]), [before], tolerance_mib=100)
    assert back.wait(timeout_s=60, pause=lambda _: None) is None
    leaks = Baseline(Told([high]), [before], tolerance_mib=100)
    assert leaks.wait(timeout_s=0) == "device 0 holds 4820 MiB more than before the test"
    blind = Baseline(Told([device(used_bytes=None)]), [before], tolerance_mib=100)
    assert "can't be read any more" in str(blind.wait(timeout_s=0))


class Readings(Telemetry):
    """Telemetry that is told."""

    source = "a tool"

    def __init__(self, snapshot: Snapshot | None) -> None:
        self._snapshot = snapshot

    def read(self) -> Snapshot:
        if self._snapshot is None:
            time.sleep(2)  # longer than the probe waits
            return Snapshot((), "too late for anybody")
        return self._snapshot


def reading(index: int, used_mib: int | None = 100, kind: str = "device") -> Reading:
    identity = Identity(f"uuid-{index}", index, kind)  # pyright: ignore[reportArgumentType]
    used = None if used_mib is None else used_mib * MIB
    return Reading(identity=identity, memory_used_bytes=used, memory_total_bytes=80 * GIB)


def probe(
    platform: str, snapshot: Snapshot | None, environment: Mapping[str, str]
) -> PlatformProbe:
    found = PLATFORMS.load(platform)
    assert isinstance(found, type)
    assert issubclass(found, Platform)
    return PlatformProbe(found, Readings(snapshot), environment, timeout_s=0.3)


EIGHT = Snapshot(tuple(reading(n) for n in range(8)))


def test_a_probe_sees_what_the_runner_may_use_and_narrows_it_for_the_tests() -> None:
    half = probe("rocm", EIGHT, {"HIP_VISIBLE_DEVICES": "4,5,6,7"})
    assert [(d.index, d.key) for d in half.devices()] == [(n, f"uuid-{n + 4}") for n in range(4)]
    assert half.variables([2, 1]) == {"HIP_VISIBLE_DEVICES": "5,6"}
    whole = probe("cuda", EIGHT, {})
    assert len(whole.devices()) == 8
    assert whole.variables([3]) == {"CUDA_VISIBLE_DEVICES": "3"}


def test_a_board_that_is_cut_up_isn_t_a_device() -> None:
    snapshot = Snapshot((reading(0, kind="board"), reading(0, None, kind="partition")))
    (part,) = probe("cuda", snapshot, {}).devices()
    assert part.used_bytes is None


def test_a_tool_that_fails_or_hangs_is_told() -> None:
    with pytest.raises(ReadinessError, match="a tool can't tell its devices: driver gone"):
        probe("cuda", Snapshot((), "driver gone"), {}).devices()
    with pytest.raises(ReadinessError, match="hasn't answered"):
        probe("cuda", None, {}).devices()
    with pytest.raises(ReadinessError, match="which this machine hasn't"):
        probe("cuda", EIGHT, {"CUDA_VISIBLE_DEVICES": "9"}).devices()


def test_an_unknown_platform_is_refused() -> None:
    with pytest.raises(ConfigError, match="platforms has no 'abacus'"):
        probe_of("abacus", {})
