"""Gates and runs of the tests in this folder."""

from datetime import UTC, datetime, timedelta

from parity.ci.gates.gate import Band, Gate
from parity.ci.gates.history import Measured, Run, Series
from parity.ci.gates.judge import Place
from parity.ci.model import GateMode, Steps

PLACE = Place("tests/test_train.py", "cpu", "fast")
BAND = Band(rel_up=0.5, abs_up=0.1, rel_down=0.5, abs_down=0.1)
START = datetime(2026, 1, 1, tzinfo=UTC)


def gate(
    metric: str = "grad_norm",
    *,
    steps: Steps = "last",
    band: Band | None = BAND,
    hard_min: float | None = None,
    hard_max: float | None = None,
    mode: GateMode = "enforced",
) -> Gate:
    return Gate(metric, steps, band, hard_min, hard_max, mode, "tests/test_train.py:1")


def run(number: int) -> Run:
    return Run(
        run_id=f"run-{number}",
        suite="fast",
        shard=0,
        backend="cpu",
        commit=f"{number:040d}",
        branch="main",
        cadence="nightly",
        started_at=START + timedelta(days=number),
    )


def measured(value: float, *, at: str = "last", metric: str = "grad_norm", trusted: bool = True):
    series = Series(PLACE.test, PLACE.backend, PLACE.suite, metric, at)
    return Measured(series, value, "pass" if trusted else "out of band", trusted)
