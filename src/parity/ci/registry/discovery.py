"""Finds the test files of a repository and reads them all: `collect`.

Used by the plan. Invariant: a file that looks like a test, or that registers itself, is either in
the inventory or named in the error; none is passed over.
"""

import gc
import os
import threading
from collections.abc import Iterator, Sequence
from datetime import date
from fnmatch import fnmatchcase
from functools import partial

from parity.ci.config import Config
from parity.ci.globs import expands
from parity.ci.model import Inventory, TestFile
from parity.ci.registry import outline
from parity.ci.registry.arguments import is_below
from parity.ci.registry.problems import Problem, RegistrationError
from parity.ci.registry.reading import read_test
from parity.ci.registry.whole import whole_problems, with_cases
from parity.ci.text import read_python
from parity.config.threads import available_cores
from parity.errors import ParityError

Found = tuple[TestFile | None, list[Problem]]
FILES_PER_PROCESS, CHUNK = 1_000, 250
SKIPPED = ("node_modules", "build", "dist", "venv")  # outside of the folders of tests


class ReadingError(ParityError):
    """The files of a repository couldn't be read to their end."""


def collect(config: Config, today: date) -> Inventory:
    """Every registered test file. Raises RegistrationError that names every problem found."""
    files: list[TestFile] = []
    problems: list[Problem] = []
    for root in config.project.roots:
        if not (config.root / root).is_dir():
            line = config.path.name
            problems.append(Problem(line, 1, f"project.roots names {root}, which is no folder."))
    for file, found in read_all(sorted(python_files(config)), config, today):
        problems.extend(found)
        if file is not None:
            files.append(file)
    files, found = with_cases(files, config)
    problems.extend(found)
    problems.extend(whole_problems(files, config))
    if problems:
        raise RegistrationError(problems)
    return Inventory(tuple(files))


def python_files(config: Config) -> Iterator[tuple[str, bool]]:
    """Every .py file of the repository, and whether it is a link; hidden and excluded ones not."""
    root = str(config.root)
    pending = [""]
    while pending:
        folder = pending.pop()
        with os.scandir(os.path.join(root, folder)) as entries:  # noqa: PTH118 per-entry speed
            for entry in entries:
                path = f"{folder}/{entry.name}" if folder else entry.name
                if entry.name.startswith(".") or _is_excluded(path, config):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    if not _is_made(entry, path, config):
                        pending.append(path)
                elif entry.name.endswith(".py"):
                    yield path, entry.is_symlink()


def _is_made(entry: "os.DirEntry[str]", path: str, config: Config) -> bool:
    """Whether a folder holds what tools made. A folder of tests may be called `dist` or `build`."""
    if entry.name == "__pycache__" or os.path.exists(f"{entry.path}/pyvenv.cfg"):  # noqa: PTH110 speed
        return True
    roots = config.project.roots
    is_of_tests = any(path.startswith(f"{root.rstrip('/')}/") for root in roots)
    return entry.name in SKIPPED and not is_of_tests


def _is_excluded(path: str, config: Config) -> bool:
    return any(expands(glob, path) or expands(glob, f"{path}/") for glob in config.project.exclude)


def read_all(
    paths: Sequence[tuple[str, bool]], config: Config, today: date, *, processes: int | None = None
) -> list[Found]:
    """Each file read, in the order of `paths`; by several processes where there are many.

    `processes`: how many; None: from the cores at hand and the number of files, and one where
    this process has threads, whose locks a forked one would inherit.
    """
    if processes is None:
        wanted = min(available_cores(), len(paths) // FILES_PER_PROCESS)
        processes = max(1, wanted) if threading.active_count() == 1 else 1
    read = partial(_some, config=config, today=today)
    if processes == 1:
        return read(paths)
    # These take a tenth of a second to import, which a small repository needn't wait for.
    from concurrent.futures import ProcessPoolExecutor  # noqa: PLC0415
    from concurrent.futures.process import BrokenProcessPool  # noqa: PLC0415
    from multiprocessing import get_context  # noqa: PLC0415

    chunks = [paths[at : at + CHUNK] for at in range(0, len(paths), CHUNK)]
    try:
        with ProcessPoolExecutor(processes, mp_context=get_context("fork")) as pool:
            return [found for chunk in pool.map(read, chunks) for found in chunk]
    except BrokenProcessPool:
        raise ReadingError(
            f"one of the {processes} processes that read the {len(paths):,} files was killed; is"
            " the machine short of memory? Plan again."
        ) from None


def _some(paths: Sequence[tuple[str, bool]], *, config: Config, today: date) -> list[Found]:
    was_on = gc.isenabled()
    gc.disable()  # syntax trees have no cycles, and are many
    try:
        return [_one(path, config, today, is_link=is_link) for path, is_link in paths]
    finally:
        if was_on:
            gc.enable()


def _one(path: str, config: Config, today: date, *, is_link: bool) -> Found:
    if not path.isprintable():
        text = "has a name with characters that can't be printed; rename it."
        return None, [Problem(ascii(path), 1, text)]
    name = path.rpartition("/")[2]
    is_named = any(fnmatchcase(name, pattern) for pattern in config.project.patterns)
    is_inside = any(is_below(path, root) for root in config.project.roots)
    if not is_inside:
        return None, [_outside(path, config)] if is_named else []
    text, problem = _text(config, path, is_link=is_link)
    if text is None:
        return None, [problem] if problem is not None and is_named else []
    if is_named:
        read = read_test(text, path, config, today)
        return read.file, list(read.problems)
    line = outline.first_call(text) if outline.mentions(text) else 0
    return None, [_unnamed(path, line, config)] if line else []


def _outside(path: str, config: Config) -> Problem:
    roots = ", ".join(config.project.roots)
    text = (
        f"is a test outside the folders of tests ({roots}); move it, or name it in"
        " project.exclude of ci.toml."
    )
    return Problem(path, 1, text)


def _unnamed(path: str, line: int, config: Config) -> Problem:
    patterns = ", ".join(config.project.patterns)
    text = (
        f"registers itself, but its name matches none of {patterns}; it would never run. Rename it."
    )
    return Problem(path, line, text)


def _text(config: Config, path: str, *, is_link: bool) -> tuple[str | None, Problem | None]:
    if is_link:
        return None, Problem(path, 1, "is a symbolic link; a test must be a file of its own.")
    try:
        return read_python(config.root / path), None
    except (OSError, ValueError) as error:
        return None, Problem(path, 1, f"can't be read as UTF-8 text ({error}).")
