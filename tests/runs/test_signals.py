"""SIGTERM and SIGINT in every phase of a run: a bounded end, the right exit code, a clean audit."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from runs.mortal import Death, assert_clean, assert_finished, parity, words_of

from parity.observe.summary import Summary

DONE, INTERRUPTED = 0, 130
SOON_S = 200.0  # start-up of a busy machine included; a wait that nobody ends takes longer
TERM, INT = signal.SIGTERM, signal.SIGINT
slow = pytest.mark.slow

# What the first signal does: breaks the start off, ends after the step at hand, or is too late.
BREAKS_OFF, ENDS_EARLY, TOO_LATE = "breaks off", "ends early", "too late"


@pytest.fixture
def run(tiny_dir: Path, tasks_path: Path, tmp_path: Path) -> Callable[[Death], tuple[int, Path]]:
    def of(death: Death) -> tuple[int, Path]:
        ended = parity(
            *words_of(tiny_dir, tasks_path, "run", "eval.every_steps=2"), cwd=tmp_path, death=death
        )
        assert "Traceback" not in ended.said
        assert "bug of Parity" not in ended.said
        assert ended.seconds < SOON_S
        return ended.code, tmp_path / "runs" / "run"

    return of


@pytest.mark.parametrize(
    ("place", "nth", "number", "effect"),
    [
        pytest.param("the tasks are read", 1, TERM, BREAKS_OFF, marks=slow),
        pytest.param("the ledger is made", 1, INT, BREAKS_OFF, marks=slow),
        pytest.param("an evaluation begins", 1, TERM, ENDS_EARLY, marks=slow),
        pytest.param("an evaluation begins", 2, INT, ENDS_EARLY, marks=slow),
        pytest.param("a request is sent", 12, TERM, ENDS_EARLY, marks=slow),
        pytest.param("a group is scored", 3, INT, ENDS_EARLY, marks=slow),
        ("a step is computed", 3, TERM, ENDS_EARLY),
        pytest.param("weights are published", 4, INT, ENDS_EARLY, marks=slow),
        pytest.param("the weights are saved", 1, TERM, ENDS_EARLY, marks=slow),
        pytest.param("the checkpoint is renamed", 1, INT, ENDS_EARLY, marks=slow),
        pytest.param("the model is exported", 1, TERM, TOO_LATE, marks=slow),
        pytest.param("the trackers are closed", 1, INT, TOO_LATE, marks=slow),
    ],
)
def test_a_first_signal_ends_in_good_order_and_the_run_resumes(
    run: Callable[[Death], tuple[int, Path]],
    place: str,
    nth: int,
    number: signal.Signals,
    effect: str,
) -> None:
    code, folder = run(Death(place, nth, number=number))
    summary = Summary.read(folder)
    if effect == TOO_LATE:
        assert (code, summary.status) == (DONE, "finished")
    else:
        assert (code, summary.status) == (INTERRUPTED, "stopped")
        assert summary.steps < 6
        if effect == ENDS_EARLY:
            assert summary.reason == number.name
            assert (folder / "model" / "model.safetensors").is_file()
        if place != "the tasks are read":
            assert_clean(folder)
        assert parity("resume", str(folder), cwd=folder.parent).code == DONE
    assert_finished(folder)
