"""The record that tests write: by several processes, without losing or inventing a value."""

import math
import multiprocessing
from pathlib import Path

import numpy as np
import pytest

from parity.ci.gates.gate import GateSettings
from parity.ci.gates.record import Recorded, read_record, record_metric, record_metrics
from parity.ci.model import GateRegistration
from parity.ci.toml import Table
from parity.errors import ConfigError, DataError


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PARITY_CI_METRICS", str(tmp_path / "metrics.jsonl"))
    return tmp_path / "metrics.jsonl"


def test_what_is_recorded_is_read_back(path: Path) -> None:
    assert record_metric("train/grad_norm", 0.5, step=3)
    assert record_metrics({"a": 1, "b": np.float32(2.5)}, step=4)
    assert read_record(path) == [
        Recorded("train/grad_norm", 3, 0.5),
        Recorded("a", 4, 1.0),
        Recorded("b", 4, 2.5),
    ]


def test_outside_a_run_nothing_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PARITY_CI_METRICS", raising=False)
    assert not record_metric("a", 1.0)


def test_values_that_are_not_finite_survive_the_file(path: Path) -> None:
    for step, value in enumerate([math.nan, math.inf, -math.inf]):
        record_metric("a", value, step=step)
    values = [row.value for row in read_record(path)]
    assert math.isnan(values[0])
    assert values[1:] == [math.inf, -math.inf]
    assert "NaN" not in path.read_text()


@pytest.mark.parametrize("value", [None, "0.5", True])
def test_what_is_no_number_is_refused(path: Path, value: object) -> None:
    with pytest.raises(DataError, match="must be a number"):
        record_metric("a", value)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        '{"metric": "a"}',
        '{"metric": "a", "value": null}',
        '{"metric": "a", "value": "1.5"}',
        '{"metric": "", "value": 1}',
        '{"metric": "a", "value": 1, "step": 1.5}',
        '{"metric": "a", "value": true}',
        '{"metric": "a", "value": 0.5, "value": 5}',
    ],
)
def test_a_line_that_is_no_record_is_named(path: Path, line: str) -> None:
    path.write_text(f'{{"metric": "a", "value": 1}}\n{line}\n')
    with pytest.raises(DataError, match=r"metrics\.jsonl:2"):
        read_record(path)


@pytest.mark.parametrize(
    "line",
    ["[" * 5000, '{"metric": "a", "value": 1, "step": 1%s}' % ("0" * 40), '{"metric": "a"}\x85'],
)
def test_a_line_that_is_made_to_break_the_reader_is_named(path: Path, line: str) -> None:
    path.write_text(f"{line}\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"metrics\.jsonl:1"):
        read_record(path)


def test_a_number_beyond_all_floats_is_infinite_and_not_zero(path: Path) -> None:
    path.write_text('{"metric": "a", "value": -1%s}\n' % ("0" * 400))
    assert read_record(path)[0].value == -math.inf


def test_a_record_without_end_is_refused(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**30)  # a sparse one
    with pytest.raises(DataError, match="Record fewer"):
        read_record(path)


def test_a_record_of_another_language_may_leave_the_step_out_and_write_nan(path: Path) -> None:
    path.write_text('{"metric": "a", "value": NaN}\n')
    assert math.isnan(read_record(path)[0].value)


def write_many(number: int) -> None:
    for step in range(50):
        record_metric(f"process{number}/" + "x" * 5000, 1.0, step=step)


def test_lines_of_several_processes_never_mix(path: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=write_many, args=(n,)) for n in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
    assert len(set(read_record(path))) == 150


def registration(**values: object) -> GateRegistration:
    return GateRegistration("tests/test_a.py", 4, "loss", **values)  # pyright: ignore


def settings(text: str = "") -> GateSettings:
    return GateSettings.of(Table.parse(text, file="ci.toml"))


DEFAULTS = '[defaults."loss"]\nrel_up = 0.5\nabs_up = 0.1\nrel_down = 0.2\n'


def test_a_side_that_the_file_leaves_out_takes_the_defaults_of_the_metric() -> None:
    band = settings(DEFAULTS).gate(registration(rel_up=0.1)).band
    assert band is not None
    assert (band.rel_up, band.abs_up, band.rel_down, band.abs_down) == (0.1, 0.0, 0.2, 0.0)
    assert settings(DEFAULTS).gate(registration()).band is not None


@pytest.mark.parametrize("values", [{}, {"rel_up": 0.1}, {"abs_down": 1.0, "hard_max": 2.0}])
def test_a_gate_without_a_complete_band_or_a_bound_is_refused(values: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=r"tests/test_a\.py:4: the gate on 'loss' has"):
        settings().gate(registration(**values))


def test_a_hard_bound_alone_is_a_gate() -> None:
    assert settings().gate(registration(hard_max=2.0)).band is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("history_limit = 2", "more than history_limit"),
        ("bands = 1", "unknown"),
        ('[defaults."loss"]\nup = 1', "unknown"),
        ('[defaults."loss"]\nrel_up = -1', ">= 0"),
    ],
)
def test_a_wrong_section_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        settings(text)
