"""The environment variables that Parity reads, one function each; nothing else reads any.

Used by the command line and the wiring, which pass the values on. Invariant: an unset or empty
variable is None or False, and a value that makes no sense is an error that names the variable.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from parity.errors import ConfigError


def _text(name: str) -> str | None:
    value = os.environ.get(name, "").strip()
    return value or None


def _is_on(name: str) -> bool:
    return (_text(name) or "0").lower() not in ("0", "false", "no", "off")


def platform() -> str | None:
    """PARITY_PLATFORM: the platform to use instead of detecting one."""
    return _text("PARITY_PLATFORM")


def runs_dir() -> Path | None:
    """PARITY_RUNS_DIR: where run folders are made and looked for, instead of ./runs."""
    value = _text("PARITY_RUNS_DIR")
    return None if value is None else Path(value).expanduser()


def is_color_off() -> bool:
    """NO_COLOR: any value switches colors off (no-color.org)."""
    return _text("NO_COLOR") is not None


def is_ci() -> bool:
    """CI: set by hosted CI services; no live display there."""
    return _is_on("CI")


def columns() -> int | None:
    """COLUMNS: the width of the terminal, where the shell says it."""
    value = _text("COLUMNS")
    return int(value) if value is not None and value.isdecimal() and int(value) > 0 else None


def omp_threads() -> int | None:
    """OMP_NUM_THREADS: the most CPU threads that a role may use (the first of a list)."""
    value = _text("OMP_NUM_THREADS")
    if value is None:
        return None
    first = value.split(",")[0].strip()
    if not first.isdecimal() or int(first) < 1:
        raise ConfigError(
            f"OMP_NUM_THREADS is {value!r}; it must be a number >= 1."
            " Unset it, or set it to the threads that each role may use."
        )
    return int(first)


def shows_traceback() -> bool:
    """PARITY_TRACEBACK=1: show where an error was raised, for debugging."""
    return _is_on("PARITY_TRACEBACK")


def ci_metrics_path() -> Path | None:
    """PARITY_CI_METRICS: where a test under `parity ci run` records its metrics."""
    value = _text("PARITY_CI_METRICS")
    return None if value is None else Path(value)


def ray_address() -> str | None:
    """RAY_ADDRESS: the cluster to join instead of starting one of our own."""
    return _text("RAY_ADDRESS")


def first_list(names: Sequence[str]) -> list[str] | None:
    """The entries of the first of these variables that is set, as in CUDA_VISIBLE_DEVICES=2,3."""
    text = next((value for name in names if (value := os.environ.get(name)) is not None), None)
    return None if text is None else [each.strip() for each in text.split(",") if each.strip()]


def set_unless_set(variables: Mapping[str, str]) -> None:
    """Set variables of this process and of those that it starts; the user's own values stay."""
    for name, value in variables.items():
        os.environ.setdefault(name, value)


def inherited(variables: Mapping[str, str], *, without: Sequence[str] = ()) -> dict[str, str]:
    """The variables of a process that we start: ours but `without`, and `variables` on top."""
    ours = {name: value for name, value in os.environ.items() if name not in without}
    return {**ours, **variables}
