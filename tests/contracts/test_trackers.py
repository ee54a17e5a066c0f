"""Every tracker keeps the contract; packages that aren't installed are played by fakes."""

import importlib
import json
import sys
from pathlib import Path

import pytest

from parity.errors import UnsupportedError
from parity.observe.trackers import TRACKERS
from parity.observe.trackers.jsonl import read_rows
from parity.observe.trackers.tracker import Tracker

CONFIG = {"seed": 0, "rollouts": {"group_size": 8, "note": None}, "names": ["a", "b"]}
PACKAGES = {
    "tensorboard": "torch.utils.tensorboard",
    "wandb": "wandb",
    "mlflow": "mlflow",
    "trackio": "trackio",
}

FAKES = {
    "wandb": """
LOG = []  # (run id, step, metrics)
STARTS = []

class Run:
    def __init__(self, run_id):
        self.id, self.is_open = run_id, True
    def define_metric(self, name, *, step_metric=None, hidden=None):
        pass
    def log(self, data, step=None):
        assert self.is_open and step is None
        step = data.pop("step")
        LOG.append((self.id, step, data))
    def finish(self):
        self.is_open = False

def init(*, project, name, id, resume, dir, config):
    assert resume == "allow" and id
    STARTS.append((project, name, id, config))
    return Run(id)
""",
    "trackio": """
LOG = []
STARTS = []

class Run:
    def __init__(self, name):
        self.name, self.is_open = name, True
    def log(self, metrics, step=None):
        assert self.is_open
        LOG.append((self.name, step, metrics))
    def finish(self):
        self.is_open = False

def init(*, project, name, config, resume, embed):
    assert resume == "allow"
    STARTS.append((project, name, name, config))
    return Run(name)
""",
    "mlflow": """
import types
LOG = []
STARTS = []
RUNS = {}
EXPERIMENTS = {}

class entities:
    class Metric:
        def __init__(self, key, value, timestamp, step):
            assert isinstance(value, float), value
            self.key, self.value, self.step = key, value, step
    class Param:
        def __init__(self, key, value):
            assert isinstance(value, str)
            self.key, self.value = key, value

class MlflowClient:
    def get_experiment_by_name(self, name):
        found = EXPERIMENTS.get(name)
        return found and types.SimpleNamespace(experiment_id=found)
    def create_experiment(self, name):
        EXPERIMENTS[name] = str(len(EXPERIMENTS) + 1)
        return EXPERIMENTS[name]
    def create_run(self, experiment_id, run_name):
        run_id = f"run{len(RUNS)}"
        RUNS[run_id] = "RUNNING"
        STARTS.append((experiment_id, run_name, run_id, {}))
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id=run_id))
    def update_run(self, run_id, status):
        assert run_id in RUNS
        RUNS[run_id] = status
        STARTS.append((None, None, run_id, {}))
    def log_batch(self, run_id, metrics=(), params=(), synchronous=True):
        assert RUNS[run_id] == "RUNNING" and len(params) <= 100
        if metrics:
            assert not synchronous
            LOG.append((run_id, metrics[0].step, {m.key: m.value for m in metrics}))
    def set_terminated(self, run_id):
        RUNS[run_id] = "FINISHED"

def flush_async_logging():
    pass
""",
}


@pytest.fixture(autouse=True)
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "fake_packages"
    folder.mkdir()
    for name, source in FAKES.items():
        (folder / f"{name}.py").write_text(source)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(folder))
    yield
    for name in FAKES:
        sys.modules.pop(name, None)


def build(name: str, run_dir: Path) -> Tracker:
    kind = TRACKERS.load(name)
    assert isinstance(kind, type) and issubclass(kind, Tracker)
    return kind(run_dir, "project", "run")


def logged(name: str, run_dir: Path) -> list[tuple[int, str, float]]:
    """What arrived, as (step, metric, value)."""
    if name == "jsonl":
        return [
            (int(row["step"]), key, value)
            for row in read_rows(run_dir)
            for key, value in row.items()
            if key != "step" and value is not None
        ]
    if name == "tensorboard":
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(str(run_dir / "tensorboard")).Reload()
        return [
            (event.step, tag, event.value)
            for tag in events.Tags()["scalars"]
            for event in events.Scalars(tag)
        ]
    if name not in FAKES:
        pytest.skip(f"no way to read back what {name} took")
    module = importlib.import_module(name)
    return [(step, key, value) for _, step, row in module.LOG for key, value in row.items()]


@pytest.mark.parametrize("name", TRACKERS.names())
def test_known_values_arrive_and_unknown_ones_are_never_zero(name: str, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    tracker = build(name, run_dir)
    tracker.start(CONFIG)
    tracker.log(1, {"train/loss": 0.5, "eval/accuracy": None})
    tracker.log(2, {"train/loss": 0.25, "rollout/raw_reward": 0.0})
    tracker.finish()
    assert sorted(logged(name, run_dir)) == [
        (1, "train/loss", 0.5),
        (2, "rollout/raw_reward", 0.0),
        (2, "train/loss", 0.25),
    ]


@pytest.mark.parametrize("name", TRACKERS.names())
def test_a_resumed_run_goes_on_and_may_log_a_step_again(name: str, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    for value in (1.0, 2.0):
        tracker = build(name, run_dir)
        tracker.start(CONFIG)
        tracker.log(3, {"train/loss": value})
        tracker.finish()
    assert (3, "train/loss", 2.0) in logged(name, run_dir)
    if name in FAKES:
        module = importlib.import_module(name)
        assert len({run_id for _, _, run_id, _ in module.STARTS}) == 1
        assert len(module.STARTS) == 2


@pytest.mark.parametrize("name", TRACKERS.names())
def test_a_step_may_be_logged_twice_with_other_metrics(name: str, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    tracker = build(name, run_dir)
    tracker.start(CONFIG)
    tracker.log(1, {"train/loss": 0.5})
    tracker.log(1, {"eval/accuracy": 0.25})
    tracker.finish()
    assert sorted(logged(name, run_dir)) == [(1, "eval/accuracy", 0.25), (1, "train/loss", 0.5)]


@pytest.mark.parametrize("name", TRACKERS.names())
def test_finish_is_harmless_without_a_start_and_twice(name: str, tmp_path: Path) -> None:
    tracker = build(name, tmp_path / "run")
    tracker.finish()
    tracker.start(CONFIG)
    tracker.finish()
    tracker.finish()


@pytest.mark.parametrize("name", TRACKERS.names())
def test_logging_before_the_start_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="start"):
        build(name, tmp_path / "run").log(1, {"train/loss": 0.5})


@pytest.mark.parametrize("name", PACKAGES)
def test_a_missing_package_is_named_with_the_way_to_install_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, PACKAGES[name], None)
    with pytest.raises(UnsupportedError, match=r"pip install .*" + name):
        build(name, tmp_path / "run").start(CONFIG)


def test_mlflow_params_are_flat_texts(tmp_path: Path) -> None:
    from parity.observe.trackers.mlflow import _flat

    assert dict(_flat(CONFIG, "")) == {
        "seed": "0",
        "rollouts.group_size": "8",
        "rollouts.note": "null",
        "names": json.dumps(["a", "b"]),
    }
