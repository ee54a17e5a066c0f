"""`reward.name=python`: your own function `(Answer, **arguments) -> value`.

`function` is "package.module:function", imported with the working directory on the path, or
"path/to/file.py:function". It may return a number (int, float, bool or a numpy scalar), None
(the answer can't be graded), a Scored, Unscored or GraderFailure, or a dict with `value` and,
if there are any, `parts` (name -> number, None for an absent one). Anything else, NaN and
infinities included, is a failure that names what was returned.
"""

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

from parity.errors import ConfigError, RewardError
from parity.registry import known
from parity.rewards.config import PythonRewardConfig
from parity.rewards.reward import Reward, checked, described, scored
from parity.types import Answer, GraderFailure, RewardResult, Scored, Unscored

_NO_VALUE = Unscored("the reward function returned None")


class PythonReward(Reward):
    """Calls a function."""

    def __init__(self, config: PythonRewardConfig) -> None:
        self._function = _load(config)
        self._arguments = dict(config.arguments)

    def score(self, answer: Answer) -> RewardResult:
        """What the function says."""
        returned = self._function(answer, **self._arguments)
        try:
            return _result(returned)
        except RewardError as error:
            return GraderFailure(str(error), retryable=False)


def _result(returned: object) -> RewardResult:
    match returned:
        case None:
            return _NO_VALUE
        case Scored() | Unscored() | GraderFailure():
            return checked(returned)
        case Mapping():
            return _from_mapping(returned)
        case _:
            return scored(returned, {})


def _from_mapping(returned: Mapping[object, object]) -> RewardResult:
    if "value" not in returned or not returned.keys() <= {"value", "parts"}:
        keys = ", ".join(sorted(ascii(key) for key in returned)[:20]) or "none"
        raise RewardError(
            f"a reward function returned a dict with the keys {keys}; it must have 'value' and may"
            " have 'parts'. Return the number to train on as 'value' and the others in 'parts'."
        )
    if returned["value"] is None:
        return _NO_VALUE
    parts = returned.get("parts", {})
    if isinstance(parts, Mapping):
        parts = {name: part for name, part in parts.items() if part is not None}
    return scored(returned["value"], parts)


def _load(config: PythonRewardConfig) -> Callable[..., object]:
    where, _, name = config.function.rpartition(":")
    module = _from_file(config.function, where) if where.endswith(".py") else _import(where)
    function = vars(module).get(name)
    if function is None:
        functions = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        raise ConfigError(
            f"reward.function is {config.function!r}, but there is no {name!r} in it;"
            f" {known(name, functions)}"
        )
    if not callable(function) or inspect.iscoroutinefunction(function):
        raise ConfigError(
            f"reward.function is {config.function!r}, which is {described(function)}; it must be a"
            " plain function that takes an Answer."
        )
    _check_arguments(config, function)
    return function


def _check_arguments(config: PythonRewardConfig, function: Callable[..., object]) -> None:
    try:
        signature = inspect.signature(function)
    except ValueError:  # some builtins have none
        return
    try:
        signature.bind(object(), **config.arguments)
    except TypeError as error:
        raise ConfigError(
            f"{config.function} is called with an answer and arguments={dict(config.arguments)},"
            f" but its signature is {signature} ({error}); change one of them."
        ) from error


def _import(module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"reward.function names the module {module!r}, which can't be imported from"
            f" {Path.cwd()} ({error}); correct the name, install the package, or give a path to a"
            " .py file."
        ) from error


def _from_file(function: str, where: str) -> ModuleType:
    path = Path(where).resolve()
    if not path.is_file():
        raise ConfigError(
            f"reward.function is {function!r}, but there is no file {path}; paths start from the"
            " working directory."
        )
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:8]
    name = f"parity_reward_{path.stem}_{digest}"  # unique, so that no other module is shadowed
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None, f"{path} isn't a Python file"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
