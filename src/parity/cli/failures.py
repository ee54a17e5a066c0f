"""How a command ends: exit codes, and one sentence on stderr instead of a traceback.

0 done; 1 the run failed; 2 what the command was given can't be used (command line, run file, data,
reward), as was found before anything was trained; 3 nothing to do; 70 a bug of Parity, whose
traceback is kept in a file; 130 interrupted (Ctrl-C).
Used by `main.py`. Invariant: nothing that a command raises leaves `guarded`.
"""

import errno
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from pathlib import Path
from typing import TypeVar, cast

import typer

from parity.config import environment
from parity.errors import ParityError, is_refused_input

DONE, FAILED, UNUSABLE, BUG, INTERRUPTED = 0, 1, 2, 70, 130
Command = TypeVar("Command", bound=Callable[..., int])
CRASH_FILE = "crash.txt"
REFUSALS_OF_A_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}
_OUTPUT_DIR: ContextVar[Path | None] = ContextVar("output_dir", default=None)


def keep_crashes_in(output_dir: Path) -> None:
    """Say where the run folder of this command is, or will be made, for a crash report."""
    _OUTPUT_DIR.set(output_dir)


def tells_interrupts(command: Command) -> Command:
    """The command, with one line where Ctrl-C ends it; a run that stops in good order says more."""

    @wraps(command)
    def wrapped(*arguments: object, **options: object) -> int:
        try:
            return command(*arguments, **options)
        except KeyboardInterrupt:
            return _tell("interrupted.", INTERRUPTED)

    return cast("Command", wrapped)


def guarded(command: Callable[[], object]) -> int:
    """The exit code of a command, after telling on stderr what went wrong, if anything did."""
    begun_s = time.time()
    try:
        result = command()
    except (typer.TyperException, typer.Abort, ParityError) as error:
        return _refused(error)
    except SystemExit as error:
        result = error.code
    except BaseException as error:  # noqa: BLE001 the supervisor: a bug must not look like another end
        if isinstance(error, OSError) and error.errno in REFUSALS_OF_A_DISK:
            return _disk_refused(error)
        return _tell("interrupted.", INTERRUPTED) if _is_stop(error) else _bug(error, begun_s)
    return result if isinstance(result, int) else DONE


def _is_stop(error: BaseException) -> bool:
    """Whether it says that we were told to stop; asyncio is asked only where somebody uses it."""
    if isinstance(error, KeyboardInterrupt):
        return True
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and isinstance(error, asyncio.CancelledError)


def _refused(error: Exception) -> int:
    if environment.shows_traceback():
        traceback.print_exception(error)
    if isinstance(error, typer.TyperException):
        return _tell(f"{error.format_message()} `parity --help` shows how.", UNUSABLE)
    if isinstance(error, typer.Abort):
        return _tell("stopped: there is no more input to read.", FAILED)
    return _tell(str(error), UNUSABLE if is_refused_input(error) else FAILED)


def _disk_refused(error: OSError) -> int:
    if environment.shows_traceback():
        traceback.print_exception(error)
    output_dir = _OUTPUT_DIR.get()
    place = error.filename or (f"something in {output_dir}" if output_dir else "a file")
    return _tell(
        f"{place} can't be written ({error.strerror}). Free disk space and run this command again;"
        " where a run had begun, `parity resume` goes on from its newest checkpoint.",
        FAILED,
    )


def _tell(message: str, code: int) -> int:
    typer.echo(f"parity: {message}", err=True)
    return code


def _bug(error: BaseException, begun_s: float) -> int:
    text = "".join(traceback.format_exception(error))
    place = _write_crash(f"{' '.join(sys.argv)}\n\n{text}", begun_s)
    if environment.shows_traceback():
        typer.echo(text, err=True)
    last = traceback.extract_tb(error.__traceback__)[-1]
    return _tell(
        f"{type(error).__name__}: {error} (at {Path(last.filename).name}:{last.lineno})."
        f" This is a bug of Parity; please report it with {place or 'the traceback above'}.",
        BUG,
    )


def _write_crash(text: str, begun_s: float) -> Path | None:
    """Keep the report in the run folder, or in a temporary one; None where no disk takes it."""
    for choose in (lambda: _crash_path(begun_s), _temporary_path):
        try:
            place = choose()
            place.write_text(text, encoding="utf-8")
        except OSError:
            continue
        return place
    typer.echo(text, err=True)
    return None


def _temporary_path() -> Path:
    return Path(tempfile.mkdtemp(prefix="parity-crash-")) / CRASH_FILE


def _crash_path(begun_s: float) -> Path:
    """In the run folder that this command made or went on with, else among temporary files."""
    output_dir = _OUTPUT_DIR.get()
    if output_dir is not None and output_dir.is_dir():
        candidates = [output_dir, *output_dir.iterdir()]
        runs = [c for c in candidates if (c / "run.json").is_file()]
        touched = [c for c in runs if c == output_dir or c.stat().st_mtime >= begun_s - 1.0]
        if touched:
            return max(touched, key=lambda c: c.stat().st_mtime) / CRASH_FILE
    return Path(tempfile.mkdtemp(prefix="parity-crash-")) / CRASH_FILE
