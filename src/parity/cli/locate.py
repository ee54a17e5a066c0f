"""Finds run folders by what users call them; used by resume, show, runs, eval and completion."""

from pathlib import Path

from parity.config import environment
from parity.errors import ConfigError
from parity.folder import RunFolder
from parity.registry import known

LATEST = "latest"


def runs_dir(chosen: str | None) -> Path:
    """The folder of the runs: as chosen, else $PARITY_RUNS_DIR, else ./runs."""
    if chosen is not None:
        return Path(chosen).expanduser()
    return environment.runs_dir() or Path("runs")


def list_runs(parent: Path) -> list[RunFolder]:
    """The run folders in `parent`, newest first."""
    if not parent.is_dir():
        return []
    folders = [child for child in parent.iterdir() if (child / "run.json").is_file()]
    folders.sort(key=lambda child: ((child / "run.json").stat().st_mtime, child.name), reverse=True)
    return [RunFolder(child) for child in folders]


def find_run(word: str, parent: Path) -> RunFolder:
    """The run of that path, name, unique beginning of a name, or the newest for `latest`.

    `latest` passes over evaluations, which hold nothing to resume or to evaluate again.
    """
    as_path = Path(word).expanduser()
    if (as_path / "run.json").is_file():
        return RunFolder(as_path)
    found = list_runs(parent)
    if not found:
        raise ConfigError(
            f"there are no runs in {parent.absolute()}; `parity train quickstart` makes one, and"
            " --dir or PARITY_RUNS_DIR names another folder."
        )
    if word == LATEST:
        return next((run for run in found if not _is_evaluation(run)), found[0])
    matches = [run for run in found if run.name == word]
    matches = matches or [run for run in found if run.name.startswith(word)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        names = ", ".join(run.name for run in matches)
        raise ConfigError(f"{word!r} is the beginning of {len(matches)} runs: {names}; say more.")
    raise ConfigError(f"there is no run {word!r}; {known(word, [run.name for run in found])}")


def run_or_model(word: str, parent: Path) -> str:
    """The folder of the run that `word` means, or `word` itself where it means a model."""
    if Path(word).expanduser().exists():
        return word
    names = [run.name for run in list_runs(parent)]
    if word == LATEST or sum(name == word or name.startswith(word) for name in names) == 1:
        return str(find_run(word, parent).path)
    return word


def _is_evaluation(run: RunFolder) -> bool:
    try:
        return run.info().kind == "eval"
    except ConfigError:  # unreadable: not for this function to judge
        return False
