import logging
import math
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from parity.errors import ConfigError, UnsupportedError
from parity.observe.trackers.tracker import Tracker
from parity.observe.tracking import QUIET_S, Trackers


class Recorder(Tracker):
    """Keeps what it is given; raises what it is told to."""

    def __init__(self) -> None:
        super().__init__(Path(), "project", "run")
        self.rows: list[tuple[int, dict[str, float | None]]] = []
        self.starts = 0
        self.is_finished = False
        self.start_error: Exception | None = None
        self.log_error: Exception | None = None
        self.finish_error: Exception | None = None

    def start(self, config) -> None:
        self.starts += 1
        if self.start_error is not None:
            raise self.start_error

    def log(self, step, metrics) -> None:
        if self.log_error is not None:
            raise self.log_error
        self.rows.append((step, dict(metrics)))

    def finish(self) -> None:
        if self.finish_error is not None:
            raise self.finish_error
        self.is_finished = True


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def failures(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if "tracker_failed" in r.getMessage()]


def test_a_failing_tracker_costs_the_others_nothing_and_warns_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    good, bad, clock = Recorder(), Recorder(), Clock()
    bad.log_error = OSError("disk full")
    trackers = Trackers({"bad": bad, "good": good}, clock=clock)
    trackers.start({})
    for step in range(10):
        trackers.log(step, {"train/loss": 1.0})
    assert len(good.rows) == 10
    assert len(failures(caplog)) == 1
    assert "tracker=bad" in failures(caplog)[0]
    assert "disk full" in failures(caplog)[0]
    clock.now = QUIET_S
    trackers.log(10, {"train/loss": 1.0})
    assert len(failures(caplog)) == 2
    assert "failures=10" in failures(caplog)[1]


def test_an_error_that_cannot_tell_its_message_is_survived(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class BrokenError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no message")

    bad = Recorder()
    bad.log_error = BrokenError()
    trackers = Trackers({"bad": bad})
    trackers.start({})
    trackers.log(1, {"train/loss": 1.0})
    assert len(failures(caplog)) == 1


def test_a_missing_package_ends_the_start_and_closes_what_was_opened() -> None:
    good, missing = Recorder(), Recorder()
    missing.start_error = UnsupportedError("pip install it")
    with pytest.raises(UnsupportedError, match="pip install"):
        Trackers({"good": good, "missing": missing}).start({})
    assert good.is_finished


def test_an_unsupported_error_later_does_not_end_the_run() -> None:
    bad = Recorder()
    trackers = Trackers({"bad": bad})
    trackers.start({})
    bad.log_error = bad.finish_error = UnsupportedError("went away")
    trackers.log(1, {"train/loss": 1.0})
    trackers.finish()


def test_a_failed_start_is_tried_again_after_a_minute() -> None:
    tracker, clock = Recorder(), Clock()
    tracker.start_error = ConnectionError("no network")
    trackers = Trackers({"remote": tracker}, clock=clock)
    trackers.start({"seed": 1})
    trackers.log(1, {"train/loss": 1.0})
    assert (tracker.starts, tracker.rows) == (1, [])
    tracker.start_error = None
    clock.now = QUIET_S
    trackers.log(2, {"train/loss": 2.0})
    assert tracker.starts == 2
    assert [step for step, _ in tracker.rows] == [2]


def test_a_tracker_that_never_started_is_not_finished() -> None:
    tracker = Recorder()
    tracker.start_error = ConnectionError("no network")
    trackers = Trackers({"remote": tracker})
    trackers.start({})
    trackers.finish()
    assert not tracker.is_finished


def test_values_arrive_as_finite_floats_or_none() -> None:
    tracker = Recorder()
    trackers = Trackers({"one": tracker})
    trackers.start({})
    trackers.log(
        1,
        {
            "train/loss": math.nan,
            "train/grad_norm": math.inf,
            "train/entropy": np.float32(0.5),
            "train/tokens": torch.tensor(3),
            "train/ppo_kl": None,
            "train/step_s": "slow",  # type: ignore[dict-item]
            "plugin/vector": torch.ones(2),
        },
    )
    ((_, row),) = tracker.rows
    assert row == {
        "train/loss": None,
        "train/grad_norm": None,
        "train/entropy": 0.5,
        "train/tokens": 3.0,
        "train/ppo_kl": None,
        "train/step_s": None,
        "plugin/vector": None,
    }
    assert all(value is None or type(value) is float for value in row.values())


def test_odd_names_and_values_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    tracker = Recorder()
    trackers = Trackers({"one": tracker})
    trackers.start({})
    for step in range(3):
        trackers.log(step, {"train/los": 1.0, "train/loss": math.nan})
    told = [record.getMessage() for record in caplog.records]
    assert len([text for text in told if "undeclared_metric name=train/los " in text]) == 1
    assert len([text for text in told if "unknown_metric name=train/loss value=nan" in text]) == 1
    assert tracker.rows[2] == (2, {"train/los": 1.0, "train/loss": None})


def test_a_tracker_that_never_ends_cannot_hold_up_the_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    release = threading.Event()

    class Stuck(Recorder):
        def finish(self) -> None:
            release.wait(30)

    good = Recorder()
    trackers = Trackers({"stuck": Stuck(), "good": good})
    trackers.start({})
    trackers.finish(timeout_s=0.05)
    release.set()
    assert good.is_finished
    assert "tracker_unfinished tracker=stuck" in caplog.text


def test_trackers_are_built_by_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trackers = Trackers.of(["jsonl"], run_dir=tmp_path, project="p", run_name="r")
    with caplog.at_level(logging.WARNING):
        trackers.start({"seed": 0})
        trackers.log(1, {"train/loss": 0.5})
        trackers.finish()
    assert (tmp_path / "metrics.jsonl").exists()
    assert not caplog.records


def test_an_unknown_tracker_is_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Did you mean 'jsonl'"):
        Trackers.of(["jsonll"], run_dir=tmp_path, project="p", run_name="r")
