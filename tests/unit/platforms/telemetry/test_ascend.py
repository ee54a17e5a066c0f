"""Ascend chips are read from a real process that prints what npu-smi prints."""

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from unit.platforms import smi_samples as samples

from parity.platforms.telemetry.ascend import TOOL, AscendTelemetry
from parity.platforms.telemetry.telemetry import Snapshot


@pytest.fixture
def read(tmp_path: Path):
    """Reads through a fake npu-smi: `table` answers `info`, `ecc` answers `info -t ecc`."""

    def run(table: str | None, ecc: str = "exit 1", deadline_s: float = 10.0) -> Snapshot:
        if table is not None:
            (tmp_path / "table").write_text(table)
            path = tmp_path / "npu-smi"
            path.write_text(
                f"#!/bin/sh\nPATH={os.environ['PATH']}\n"
                f'if [ "$2" = -t ]; then {ecc}; else cat {tmp_path}/table; fi\n'
            )
            path.chmod(0o755)
        tool = replace(TOOL, folders=())
        environment = {"PATH": str(tmp_path)}
        return AscendTelemetry(deadline_s=deadline_s, environment=environment, tool=tool).read()

    return run


def test_chips_have_every_field_but_throttling(read, tmp_path: Path):
    (tmp_path / "ecc").write_text(samples.NPU_ECC)
    first, second = read(samples.NPU_TWO, f"cat {tmp_path}/ecc").readings
    assert (first.identity.key, first.identity.model) == ("0000:C1:00.0", "910B3")
    assert (first.utilization, first.power_w, first.temperature_c) == (0.37, 93.6, 40.0)
    assert first.memory_used_bytes == 61825 * 2**20
    assert (first.ecc_corrected, first.ecc_uncorrected) == (5, 1)
    assert first.throttle is None
    assert set(first.missing) == {"throttle"}
    assert second.utilization == 0.0


def test_an_ecc_question_that_fails_takes_nothing_else_along(read):
    first, _ = read(samples.NPU_TWO, "echo not supported; exit 3").readings
    assert first.power_w == 93.6
    assert (first.ecc_corrected, first.ecc_uncorrected) == (None, None)
    assert "status 3: not supported" in first.missing["ecc_corrected"]


def test_the_second_chip_of_a_card_has_no_power_of_its_own(read):
    first, second = read(samples.NPU_TWO_CHIPS).readings
    assert (first.power_w, second.power_w) == (182.4, None)
    assert first.identity.key != second.identity.key
    assert "power_w" in second.missing


def test_one_deadline_bounds_all_questions_together(read):
    begun = time.monotonic()
    first, second = read(samples.NPU_TWO, "exec sleep 60", deadline_s=1.0).readings
    assert time.monotonic() - begun < 10
    assert (first.power_w, first.ecc_corrected) == (93.6, None)
    assert "no time left" in second.missing["ecc_corrected"]


@pytest.mark.parametrize(("table", "said"), [(None, "isn't installed"), ("garbage", "no table")])
def test_without_a_table_there_is_a_reason(read, table: str | None, said: str):
    snapshot = read(table)
    assert snapshot.readings == ()
    assert said in (snapshot.problem or "")
