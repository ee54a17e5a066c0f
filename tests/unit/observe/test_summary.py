import json
import math
from pathlib import Path

import pytest

import parity
from parity.errors import DataError
from parity.observe.summary import Summary, installed_versions


def test_a_summary_comes_back_as_it_was(tmp_path: Path) -> None:
    summary = Summary(
        status="stopped",
        reason="time limit",
        platform="cpu",
        steps=12,
        train_seconds=3.5,
        seconds={"train": 2.0, "generate": 3.0},
        eval_first=0.25,
        eval_last=None,
        tokens_per_s=math.nan,
    )
    summary.write(tmp_path / "run")
    found = Summary.read(tmp_path / "run")
    assert math.isnan(found.tokens_per_s or 0.0)
    assert found.eval_last is None
    assert {**vars_of(found), "tokens_per_s": 0} == {**vars_of(summary), "tokens_per_s": 0}


def vars_of(summary: Summary) -> dict[str, object]:
    return {name: getattr(summary, name) for name in Summary.__dataclass_fields__}


def test_the_file_is_strict_json_and_unknown_is_null(tmp_path: Path) -> None:
    path = Summary(status="finished", platform="cpu", steps=1).write(tmp_path)
    found = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert found["status"] == "finished"
    assert found["eval_first"] is None
    assert found["versions"]["parity"] == parity.__version__
    assert [file.name for file in tmp_path.iterdir()] == ["summary.json"]


def test_an_older_summary_is_replaced(tmp_path: Path) -> None:
    Summary(status="failed", reason="boom", platform="cpu", steps=1).write(tmp_path)
    Summary(status="finished", platform="cpu", steps=2).write(tmp_path)
    assert Summary.read(tmp_path).status == "finished"


@pytest.mark.parametrize("status", ["failed", "stopped"])
@pytest.mark.parametrize("reason", [None, ""])
def test_what_did_not_finish_says_why(status: str, reason: str | None) -> None:
    with pytest.raises(DataError, match="without a reason"):
        Summary(status=status, reason=reason, platform="cpu", steps=0)  # type: ignore[arg-type]


def test_an_unknown_status_is_refused() -> None:
    with pytest.raises(DataError, match="finished, failed, stopped"):
        Summary(status="done", platform="cpu", steps=0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "content", ['{"status": "finished"}', "[]", '{"status": "finished", "odd": 1}', "{", ""]
)
def test_a_broken_summary_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text(content)
    with pytest.raises(DataError):
        Summary.read(tmp_path)


def test_a_run_without_a_summary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="still going on or was killed"):
        Summary.read(tmp_path)


def test_versions_are_those_of_the_installed_packages() -> None:
    import platform

    import torch

    found = installed_versions()
    assert found["python"] == platform.python_version()
    assert (found["torch"] or "").split("+")[0] == torch.__version__.split("+")[0]
