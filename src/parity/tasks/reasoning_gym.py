"""`tasks.name=reasoning_gym`: the procedural data sets of the reasoning-gym package.

A task is generated when it is asked for, from (data set, settings, seed, index) alone. Its
columns hold what its verifier needs in another process: `dataset`, `settings` and `entry`
(the record as JSON: tuples are lists, keys text). For `composite` they are those of the
inner data set that the task comes from. Two things to know about reasoning-gym: in most data
sets index i of seed s is index i - 1 of seed s + 1, so runs of neighbouring seeds see nearly
the same tasks in another order; and its package can only be imported as a whole (0.8 s).
"""

import dataclasses
import math
import random
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import cast

import numpy
from reasoning_gym import create_dataset
from reasoning_gym.composite import CompositeDataset, DatasetSpec
from reasoning_gym.dataset import ProceduralDataset
from reasoning_gym.factory import DATASETS

from parity.errors import ConfigError, DataError
from parity.registry import known
from parity.tasks.config import ReasoningGymConfig
from parity.tasks.source import TaskSource
from parity.types import Json, Message, Task

# Their tasks depend on Python's hash seed (they walk through sets), so that the same index
# is another task in every process. Measured with reasoning-gym 0.1.25 (see the test).
HASH_DEPENDENT = frozenset(
    {
        "codeio",
        "intermediate_integration",
        "isomorphic_strings",
        "knight_swap",
        "polynomial_multiplication",
        "ransom_note",
        "word_ladder",
    }
)
OWN_SETTINGS = ("seed", "size")  # the run file sets them elsewhere


class ReasoningGymSource(TaskSource):
    """Tasks of one data set of reasoning-gym."""

    def __init__(self, config: ReasoningGymConfig, seed: int) -> None:
        """Prepare the data set; raises ConfigError for a name or setting that it can't use."""
        self._config = config
        self._seed = seed
        with _seeded(f"{config.dataset}/{seed}"):
            self._dataset = _create(config, seed)

    @property
    def size(self) -> int:
        """Tasks in an epoch."""
        return self._config.size

    def task(self, index: int) -> Task:
        """The task of an index; the random state of the caller stays as it was."""
        if not 0 <= index < self.size:
            raise IndexError(f"tasks.size is {self.size}; there is no task {index}.")
        config = self._config
        task_id = f"reasoning_gym/{config.dataset}/{self._seed}/{index}"
        with _seeded(task_id):
            entry = cast("Mapping[str, object]", self._dataset[index])
        question, answer = entry.get("question"), entry.get("answer")
        if not isinstance(question, str) or not (answer is None or isinstance(answer, str)):
            raise DataError(f"{task_id}: the data set gave a question or answer that isn't text.")
        text = question + config.suffix
        messages = [Message("user", text)]
        if config.system is not None:
            messages.insert(0, Message("system", config.system))
        return Task(
            task_id=task_id,
            prompt=None if config.chat else text,
            messages=tuple(messages) if config.chat else None,
            answer=answer,
            columns=self._columns(entry),
        )

    def _columns(self, entry: Mapping[str, object]) -> dict[str, Json]:
        """What the verifier of the entry's own data set needs."""
        name, settings = self._config.dataset, dict(self._config.settings)
        if isinstance(self._dataset, CompositeDataset):
            metadata = cast("Mapping[str, object]", entry["metadata"])
            name = str(metadata["source_dataset"])
            specs = cast("Sequence[DatasetSpec]", self._dataset.config.datasets)
            inner = next(spec.config for spec in specs if spec.name == name)
            settings = {k: v for k, v in inner.items() if k not in OWN_SETTINGS}
        return {"dataset": name, "settings": settings, "entry": as_json(entry)}


def _create(config: ReasoningGymConfig, seed: int) -> ProceduralDataset:
    """The data set; every way in which it can refuse its settings is one sentence."""
    settings = dict(config.settings)
    _check_settings("tasks", config.dataset, settings)
    try:
        if config.dataset == "composite":
            settings["datasets"] = _specs(settings.get("datasets"))  # pyright: ignore[reportArgumentType]
        return create_dataset(config.dataset, size=config.size, seed=seed, **settings)
    except (AssertionError, ValueError, TypeError, LookupError, ArithmeticError) as error:
        keys = ", ".join(_setting_names(config.dataset))
        raise ConfigError(
            f"tasks.settings of {config.dataset} can't be used: {error}. Known settings: {keys}."
        ) from error


def _check_settings(place: str, name: str, settings: Mapping[str, Json]) -> None:
    """Refuse an unknown data set and unknown settings, each with the nearest name."""
    if name not in DATASETS:
        raise ConfigError(f"{place}.dataset is {name!r}; {known(name, sorted(DATASETS))}")
    if name in HASH_DEPENDENT and sys.flags.hash_randomization:
        raise ConfigError(
            f"{place}.dataset={name} gives other tasks in every process, because it depends on"
            " Python's hash seed; start with PYTHONHASHSEED=0 in the environment, or choose"
            " another data set."
        )
    names = _setting_names(name)
    for key in settings:
        if key in OWN_SETTINGS:
            raise ConfigError(f"{place}.settings.{key} can't be set here; use tasks.size and seed.")
        if key not in names:
            raise ConfigError(f"{place}.settings.{key} isn't known to {name}; {known(key, names)}")


def _specs(datasets: Json) -> list[DatasetSpec]:
    """The parts of a composite data set: `[{name, weight, config}]`."""
    if not isinstance(datasets, list) or not datasets:
        raise ConfigError("tasks.settings.datasets must be a list of {name, weight, config}.")
    specs: list[DatasetSpec] = []
    for number, item in enumerate(datasets):
        place = f"tasks.settings.datasets[{number}]"
        part = item if isinstance(item, dict) else {}
        name, weight, inner = part.get("name"), part.get("weight", 1.0), part.get("config", {})
        is_whole = part.keys() <= {"name", "weight", "config"} and isinstance(inner, dict)
        if not is_whole or not isinstance(name, str) or not isinstance(weight, int | float):
            raise ConfigError(f"{place} is {item!r}; it must be {{name, weight, config}}.")
        _check_settings(place, name, inner)  # pyright: ignore[reportArgumentType]
        specs.append(DatasetSpec(name=name, weight=float(weight), config=dict(inner)))  # pyright: ignore[reportArgumentType,reportCallIssue]
    return specs


def _setting_names(name: str) -> list[str]:
    """The settings of a data set that the run file may change."""
    fields = dataclasses.fields(DATASETS[name][1])
    return [field.name for field in fields if field.name not in OWN_SETTINGS]


@contextmanager
def _seeded(place: str) -> Generator[None]:
    """Fixed global random states inside (some data sets draw from them), the old ones after."""
    python_state, numpy_state = random.getstate(), numpy.random.get_state()
    random.seed(place)
    numpy.random.seed(random.getrandbits(32))
    try:
        yield
    finally:
        random.setstate(python_state)
        numpy.random.set_state(numpy_state)


def as_json(value: object) -> Json:
    """A record of a data set as JSON: tuples become lists, keys and odd values their text."""
    if isinstance(value, numpy.generic):
        value = cast("object", value.item())
    if value is None or isinstance(value, bool | int | str):
        return str(value) if type(value) is not str and isinstance(value, str) else value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        pairs = cast("Mapping[object, object]", value).items()
        return {str(key): as_json(item) for key, item in pairs}
    if isinstance(value, list | tuple):
        return [as_json(item) for item in cast("Sequence[object]", value)]
    return str(value)
