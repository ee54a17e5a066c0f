"""Each variable is typed; what makes no sense is an error that names it."""

from pathlib import Path

import pytest

from parity.config import environment
from parity.errors import ConfigError


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    names = "PARITY_PLATFORM PARITY_RUNS_DIR NO_COLOR CI COLUMNS OMP_NUM_THREADS PARITY_TRACEBACK"
    for name in names.split():
        monkeypatch.delenv(name, raising=False)


def test_nothing_set_is_none_or_false():
    assert environment.platform() is None
    assert environment.runs_dir() is None
    assert environment.columns() is None
    assert environment.omp_threads() is None
    assert not environment.is_color_off()
    assert not environment.is_ci()
    assert not environment.shows_traceback()


def test_set_values_are_typed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PARITY_PLATFORM", " cpu ")
    monkeypatch.setenv("PARITY_RUNS_DIR", "~/runs")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("OMP_NUM_THREADS", "4,2")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("CI", "true")
    monkeypatch.setenv("PARITY_TRACEBACK", "1")
    assert environment.platform() == "cpu"
    assert environment.runs_dir() == Path.home() / "runs"
    assert environment.columns() == 120
    assert environment.omp_threads() == 4
    assert environment.is_color_off()
    assert environment.is_ci()
    assert environment.shows_traceback()


@pytest.mark.parametrize("value", ["", "0", "false", "off", "no"])
def test_words_for_off_are_off(monkeypatch: pytest.MonkeyPatch, value: str):
    monkeypatch.setenv("CI", value)
    assert not environment.is_ci()


@pytest.mark.parametrize("value", ["0", "-1", "many", "1.5"])
def test_a_thread_count_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, value: str):
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    with pytest.raises(ConfigError, match="OMP_NUM_THREADS is"):
        environment.omp_threads()
