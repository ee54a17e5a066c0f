"""PostgreSQL as a history store; imported by `stores.py` when a URL asks for it.

Tables are made only when asked to, so that CI needs no right to. Every wait has a deadline.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import cast
from urllib.parse import urlsplit

import psycopg

from parity.ci.gates.sql import Cursor, told

CONNECT_TIMEOUT_S = 10
STATEMENT_TIMEOUT_S = 30


class Postgres:
    """A server."""

    mark = "%s"

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._url = url
        self.name = f"postgresql://{parts.hostname or ''}{parts.path}"

    @contextmanager
    def connect(self) -> Generator[Cursor]:
        """A cursor in a transaction."""
        milliseconds = STATEMENT_TIMEOUT_S * 1000
        options = f"-c statement_timeout={milliseconds} -c lock_timeout={milliseconds}"
        with (
            told(self.name, (psycopg.Error,)),
            psycopg.connect(
                self._url, connect_timeout=CONNECT_TIMEOUT_S, options=options
            ) as connection,
            connection.cursor() as cursor,
        ):
            yield cast("Cursor", cursor)

    def has_tables(self, cursor: Cursor) -> bool:
        """Whether the tables exist."""
        cursor.execute("SELECT to_regclass('ci_marks')")
        return cursor.fetchall()[0][0] is not None
