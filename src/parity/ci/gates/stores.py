"""History stores by URL: `sqlite:///path/to/history.db` (or a plain path) and `postgresql://...`.

A plain path or `sqlite:///` with three strokes is relative, with four it is absolute. Invariant: no
message shows a password.
"""

import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager
from importlib import import_module
from pathlib import Path
from typing import cast

from parity.ci.gates.history import HistoryError
from parity.ci.gates.sql import Cursor, Driver, SqlHistory, told
from parity.errors import UnsupportedError

TIMEOUT_S = 30  # for another writer's lock


class Sqlite:
    """A file; its folder is made, and the tables too."""

    mark = "?"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = f"sqlite:///{path}"

    @contextmanager
    def connect(self) -> Generator[Cursor]:
        """A cursor in a transaction."""
        with (
            told(self.name, (sqlite3.Error,)),
            closing(sqlite3.connect(self.path, timeout=TIMEOUT_S)) as connection,
            connection,
        ):
            connection.execute("PRAGMA foreign_keys = ON")
            yield cast("Cursor", connection.cursor())

    def has_tables(self, cursor: Cursor) -> bool:
        """Whether the tables exist."""
        cursor.execute("SELECT 1 FROM sqlite_master WHERE name = 'ci_marks'")
        return bool(cursor.fetchall())


def open_history(url: str, *, create: bool = False) -> SqlHistory:
    """The store behind a URL or a path, checked to be there.

    Raises HistoryError where it can't be reached, UnsupportedError without the driver.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or scheme == "sqlite":
        path = Path(rest.removeprefix("/") if separator else url).expanduser()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise HistoryError(f"{path.parent} can't be made ({error}); name another.") from error
        history, create = SqlHistory(Sqlite(path)), True
    elif scheme in ("postgresql", "postgres"):
        history = SqlHistory(_postgres(url))
    else:
        raise HistoryError(
            f"the history store has the scheme {scheme!r}; known are sqlite:///PATH, a plain PATH"
            " and postgresql://USER@HOST/DATABASE."
        )
    if create:
        history.create()
    history.check()
    return history


def _postgres(url: str) -> Driver:
    try:
        module = import_module("parity.ci.gates.postgres")
    except ImportError as error:
        raise UnsupportedError(
            f"a PostgreSQL history needs psycopg, which can't be imported ({error});"
            " install parity-rl[postgres], or use sqlite:///PATH."
        ) from error
    return module.Postgres(url)
