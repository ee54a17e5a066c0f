from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from parity.observe.trackers.tensorboard import TensorboardTracker


def test_a_resumed_run_makes_tensorboard_forget_the_steps_it_takes_again(tmp_path: Path) -> None:
    for first, value in ((1, 0.0), (3, 1.0)):
        tracker = TensorboardTracker(tmp_path, "project", "run")
        tracker.start({"seed": 0})
        for step in range(first, first + 4):
            tracker.log(step, {"train/loss": value})
        tracker.finish()
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("train/loss")] == [
        (1, 0.0),
        (2, 0.0),
        (3, 1.0),
        (4, 1.0),
        (5, 1.0),
        (6, 1.0),
    ]
    assert "config/text_summary" in events.Tags()["tensors"]
