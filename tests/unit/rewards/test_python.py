from pathlib import Path

import pytest
from unit.rewards.answers import answer

from parity.errors import ConfigError
from parity.rewards.config import PythonRewardConfig
from parity.rewards.python import PythonReward
from parity.types import GraderFailure, Scored, Unscored

MODULE = "unit.rewards.answers"
FILE = str(Path(__file__).with_name("answers.py"))


@pytest.mark.parametrize(
    ("kind", "result"),
    [
        ("int", Scored(2.0)),
        ("bool", Scored(1.0)),
        ("float", Scored(0.5)),
        ("none", Unscored("the reward function returned None")),
        ("float32", Scored(0.5)),
        ("int64", Scored(3.0)),
        ("bool_", Scored(1.0)),
        ("fraction", Scored(0.25)),
        ("scored", Scored(1.5, {"a": 0.25})),
        ("unscored", Unscored("no")),
        ("failure", GraderFailure("later")),
        ("dict", Scored(1.0, {"a": 0.5})),
        ("dict none", Unscored("the reward function returned None")),
    ],
)
def test_value_is_accepted(kind, result):
    reward = PythonReward(PythonRewardConfig(function=f"{MODULE}:typed"))
    found = reward.score(answer(kind))
    assert found == result
    if isinstance(found, Scored):
        assert type(found.value) is float
        assert all(type(part) is float for part in found.parts.values())


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        ("text", "str '1.0'"),
        ("bytes", "bytes"),
        ("nan", "nan (float)"),
        ("inf", "-inf (float)"),
        ("numpy nan", "nan (float)"),
        ("numpy text", "str '1'"),
        ("array", "ndarray"),
        ("complex", "complex"),
        ("huge", "too large"),
        ("list", "list"),
        ("odd", "Odd"),
        ("scored text", "str '1'"),
        ("scored nan", "nan"),
        ("part nan", "part 'a' of a reward is nan"),
        ("part name", "named int 1"),
        ("parts list", "list"),
        ("no value", "the keys 'acc', 'score'"),
        ("more keys", "the keys 'acc', 'value'"),
        ("empty dict", "the keys none"),
    ],
)
def test_anything_else_is_a_failure_that_names_it(kind, named):
    reward = PythonReward(PythonRewardConfig(function=f"{MODULE}:typed"))
    result = reward.score(answer(kind))
    assert isinstance(result, GraderFailure)
    assert not result.retryable
    assert named in result.reason


@pytest.mark.parametrize("where", [MODULE, FILE])
def test_function_is_called_with_its_arguments(where):
    config = PythonRewardConfig(function=f"{where}:length", arguments={"scale": 2.0})
    assert PythonReward(config).score(answer("abc")) == Scored(6.0)


def test_file_is_found_from_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("def score(answer):\n    return 0.25\n")
    monkeypatch.chdir(tmp_path)
    reward = PythonReward(PythonRewardConfig(function="mine.py:score"))
    assert reward.score(answer("")) == Scored(0.25)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("no.such.module:f", "can't be imported"),
        ("no/such/file.py:f", "there is no file"),
        (f"{MODULE}:lenght", "Did you mean 'length'"),
        (f"{MODULE}:not_callable", "must be a plain function"),
        (f"{MODULE}:asynchronous", "must be a plain function"),
    ],
)
def test_function_that_cannot_be_called_is_refused_at_once(function, message):
    with pytest.raises(ConfigError, match=message):
        PythonReward(PythonRewardConfig(function=function))


@pytest.mark.parametrize("arguments", [{"scael": 2.0}, {"given": 1}])
def test_arguments_that_the_function_does_not_take_are_refused(arguments):
    with pytest.raises(ConfigError, match="signature"):
        PythonReward(PythonRewardConfig(function=f"{MODULE}:length", arguments=arguments))


def test_exception_of_the_function_is_left_to_the_grader_process():
    reward = PythonReward(PythonRewardConfig(function=f"{MODULE}:misbehave"))
    with pytest.raises(KeyError):
        reward.score(answer("raise"))
