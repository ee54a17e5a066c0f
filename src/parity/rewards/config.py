"""What a run file may say about rewards; one dataclass per reward (no torch here)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from parity import checks
from parity.errors import ConfigError
from parity.types import Json


@dataclass(frozen=True, kw_only=True)
class TaskRewardConfig:
    """`reward.name=reasoning_gym`: the task's own verifier, with the score it gives."""

    name: Literal["reasoning_gym"] = "reasoning_gym"
    exact_only: bool = True  # True: a partial score counts as 0; False: scores as they come
    strip: bool = True  # white space around the answer is removed first


@dataclass(frozen=True, kw_only=True)
class ExactRewardConfig:
    """`reward.name=exact`: 1.0 where the response equals the expected answer."""

    name: Literal["exact"] = "exact"
    strip: bool = True
    ignore_case: bool = False
    pattern: str | None = None  # regular expression whose last match (group 1) is the answer

    def __post_init__(self) -> None:
        if self.pattern is not None and _compiled(self.pattern).groups < 1:
            raise ConfigError(
                f"pattern is {self.pattern!r}, which has no group; put the answer in parentheses."
            )


@dataclass(frozen=True, kw_only=True)
class NumericRewardConfig:
    """`reward.name=numeric`: 1.0 where the last number of the response equals the answer."""

    name: Literal["numeric"] = "numeric"
    relative_tolerance: float = 1e-6
    absolute_tolerance: float = 1e-9

    def __post_init__(self) -> None:
        checks.at_least("relative_tolerance", self.relative_tolerance, 0.0)
        checks.at_least("absolute_tolerance", self.absolute_tolerance, 0.0)


@dataclass(frozen=True, kw_only=True)
class MathRewardConfig:
    """`reward.name=math`: 1.0 where `math-verify` finds the answers equal."""

    name: Literal["math"] = "math"


@dataclass(frozen=True, kw_only=True)
class FormatRewardConfig:
    """`reward.name=format`: 1.0 where the whole response matches a regular expression."""

    name: Literal["format"] = "format"
    pattern: str = r"(?s).*\\boxed\{.+\}.*"

    def __post_init__(self) -> None:
        _compiled(self.pattern)


@dataclass(frozen=True, kw_only=True)
class PythonRewardConfig:
    """`reward.name=python`: a function `(Answer) -> float | RewardResult` by import path."""

    name: Literal["python"] = "python"
    function: str = ""  # "package.module:function" or "path/to/file.py:function"
    arguments: Mapping[str, Json] = field(default_factory=dict[str, Json])  # keyword arguments

    def __post_init__(self) -> None:
        if ":" not in self.function:
            raise ConfigError(
                f"function is {self.function!r}; it must look like 'package.module:function'"
                " or 'path/to/file.py:function'."
            )


@dataclass(frozen=True, kw_only=True)
class SumRewardConfig:
    """`reward.name=sum`: weighted sum of other rewards; unscored if any part is.

    Each part is a reward section plus `weight` (any finite number, else 1) and `label`
    (unique, else the part's name), under which its unweighted value is reported.
    """

    name: Literal["sum"] = "sum"
    parts: tuple[Mapping[str, Json], ...] = ()

    def __post_init__(self) -> None:
        if not self.parts:
            raise ConfigError("parts is empty; give at least one reward with its weight.")
        labels = [label_of(part, index) for index, part in enumerate(self.parts)]
        for index, (label, part) in enumerate(zip(labels, self.parts, strict=True)):
            weight_of(part, index)
            if label in labels[:index]:
                raise ConfigError(
                    f"parts.{index}.label is {label!r}, as in an earlier part; labels must differ."
                )


def label_of(part: Mapping[str, Json], index: int) -> str:
    """The name under which a part of a sum is reported; `index` is its place, for messages."""
    name = part.get("name")
    if not isinstance(name, str):
        raise ConfigError(f"parts.{index}.name is {name!r}; it must be the name of a reward.")
    label = part.get("label", name)
    if not isinstance(label, str) or not label:
        raise ConfigError(f"parts.{index}.label is {label!r}; it must be a word.")
    return label


def weight_of(part: Mapping[str, Json], index: int) -> float:
    """The factor of a part of a sum; `index` is its place, for messages."""
    weight = part.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float):
        raise ConfigError(f"parts.{index}.weight is {weight!r}; it must be a number.")
    checks.is_finite(f"parts.{index}.weight", weight)
    return float(weight)


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ConfigError(
            f"pattern is {pattern!r}, which isn't a regular expression ({error}); correct it."
        ) from error


RewardConfig = (
    TaskRewardConfig
    | ExactRewardConfig
    | NumericRewardConfig
    | MathRewardConfig
    | FormatRewardConfig
    | PythonRewardConfig
    | SumRewardConfig
)


@dataclass(frozen=True, kw_only=True)
class GraderConfig:
    """The processes that run the reward."""

    processes: int = 1  # grader processes, >= 1
    timeout_s: float = 10.0  # hard bound for one answer; the process is killed after it, > 0
    memory_mib: int | None = 2048  # address-space limit of a grader process; null: none
    max_children: int | None = 256  # processes that a reward may have running; null: no limit

    def __post_init__(self) -> None:
        checks.at_least("processes", self.processes, 1)
        checks.above("timeout_s", self.timeout_s, 0.0)
        if self.memory_mib is not None:
            checks.at_least("memory_mib", self.memory_mib, 64)
        if self.max_children is not None:
            checks.at_least("max_children", self.max_children, 0)
