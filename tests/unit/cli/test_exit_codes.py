"""One rule for exit codes: 2 for what was given and can't be used, 1 for a run that failed."""

import asyncio
from pathlib import Path

import pytest

from parity import errors
from parity.cli.main import main

DOCUMENT = Path(__file__).parents[3] / "docs" / "configuration.md"
EARLY_AND_LATE = [
    (errors.ConfigError, 2, 1),
    (errors.UnsupportedError, 2, 1),
    (errors.DataError, 2, 1),
    (errors.SourceError, 2, 1),
    (errors.RewardError, 2, 1),
    (errors.EngineError, 1, 1),
    (errors.EngineLostError, 1, 1),
    (errors.TransferError, 1, 1),
    (errors.TrainingError, 1, 1),
    (errors.EvaluationError, 1, 1),
    (errors.CheckpointError, 1, 1),
    (errors.RoleError, 1, 1),
    (errors.DeadlineError, 1, 1),
]


@pytest.mark.parametrize(("kind", "early", "late"), EARLY_AND_LATE)
@pytest.mark.parametrize("command", ["train", "eval"])
def test_an_error_counts_by_its_kind_and_by_whether_training_had_begun(
    launched, capsys, command, kind, early, late
):
    for is_late, code in ((False, early), (True, late)):
        error = kind("it broke.")
        error.is_late = is_late
        launched.ending = error
        assert main([command, "quickstart"]) == code
        assert capsys.readouterr().err == "parity: it broke.\n"


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        (0, 0),
        (3, 3),
        (130, 130),
        (KeyboardInterrupt(), 130),
        (asyncio.CancelledError(), 130),
        (ZeroDivisionError("oh"), 70),
    ],
)
def test_the_other_ends(launched, ending, code: int):
    launched.ending = ending
    assert main(["train", "quickstart"]) == code


def test_the_codes_are_told_in_the_help_and_on_the_page(capsys):
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    page = DOCUMENT.read_text(encoding="utf-8").partition("## Exit codes")[2]
    for code in (0, 1, 2, 3, 70, 130):
        assert f" {code} " in shown
        assert f"| {code} |" in page
