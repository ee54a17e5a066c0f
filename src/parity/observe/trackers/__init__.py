"""Trackers by name; `tracker.py` is the contract."""

from parity.registry import Registry

TRACKERS = Registry(
    "trackers",
    {
        "jsonl": "parity.observe.trackers.jsonl:JsonlTracker",
        "tensorboard": "parity.observe.trackers.tensorboard:TensorboardTracker",
        "wandb": "parity.observe.trackers.wandb:WandbTracker",
        "mlflow": "parity.observe.trackers.mlflow:MlflowTracker",
        "trackio": "parity.observe.trackers.trackio:TrackioTracker",
    },
)
