"""The shell completes recipes, runs, keys and the words that a key may take."""

import pytest

from parity.cli.main import main


@pytest.fixture
def complete(monkeypatch: pytest.MonkeyPatch, capsys):
    """What zsh is offered for a command line, as bare words."""

    def run(line: str) -> list[str]:
        monkeypatch.setenv("_PARITY_COMPLETE", "complete_zsh")
        monkeypatch.setenv("_TYPER_COMPLETE_ARGS", line)
        assert main([]) == 0
        found = capsys.readouterr().out.split("((", 1)
        lines = found[1].splitlines() if len(found) == 2 else []
        return [text.split('"')[1] for text in lines if text.startswith('"')]

    return run


def test_recipes(complete):
    assert complete("parity train quick") == ["quickstart", "quickstart_sync"]
    assert "sft_quickstart" in complete("parity config ")
    assert complete("parity train zzz") == []


def test_keys_with_the_names_that_have_them(complete):
    assert complete("parity train quickstart rollouts.max_l") == ["rollouts.max_lag="]
    assert "tasks.path=" in complete("parity train quickstart seed=1 tasks.")


def test_keys_of_the_schema_that_the_command_takes(complete):
    assert complete("parity sft sft_quickstart tiny_model.num_l") == ["tiny_model.num_layers="]
    assert complete("parity sft sft_quickstart rollouts.") == []
    assert complete("parity config sft_quickstart batch") == ["batch_size="]
    assert complete("parity train quickstart tiny_model.") == []


def test_words_of_a_closed_set(complete):
    assert complete("parity train quickstart correction.level=") == [
        "correction.level=auto",
        "correction.level=off",
        "correction.level=token",
        "correction.level=sequence",
    ]
    assert complete("parity train quickstart tasks.chat=t") == ["tasks.chat=true"]
    assert complete("parity train quickstart optimizer.lr=") == []


def test_runs(complete, make_run):
    make_run("mine-1")
    assert complete("parity show ") == ["mine-1", "latest"]
    assert complete("parity resume mi") == ["mine-1"]
