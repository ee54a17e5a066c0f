"""Both history stores, each empty; PostgreSQL is a real server where its binaries are installed."""

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from parity.ci.gates.sql import SqlHistory
from parity.ci.gates.stores import open_history

NOBODY = 65534


def postgres_bin() -> Path | None:
    """The folder of initdb: on PATH, or where Debian has it."""
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in folders if (folder / "initdb").is_file()), None)


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A server of our own on a free port of loopback; skipped where there are no binaries."""
    binaries = postgres_bin()
    if binaries is None:
        pytest.skip("PostgreSQL isn't installed (Debian: apt-get install postgresql)")
    pytest.importorskip("psycopg")
    # The server refuses to run as root, and its socket path must be short.
    user = [] if os.getuid() else ["setpriv", f"--reuid={NOBODY}", "--clear-groups", "--"]
    with tempfile.TemporaryDirectory(prefix="pg-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        if not os.getuid():
            os.chown(folder, NOBODY, -1)
        data = folder / "data"
        initdb = ["initdb", "-D", str(data), "-U", "ci", "-A", "trust", "-N", "--no-instructions"]
        call([*user, str(binaries / initdb[0]), *initdb[1:]], folder)
        with closing(socket.socket()) as sock:
            sock.bind(("127.0.0.1", 0))
            port = sock.getsockname()[1]
        options = f"-p {port} -h 127.0.0.1 -k {folder} -c fsync=off"
        control = [*user, str(binaries / "pg_ctl"), "-D", str(data), "-w", "-t", "30"]
        call([*control, "-l", str(folder / "log"), "-o", options, "start"], folder)
        try:
            yield f"postgresql://ci@127.0.0.1:{port}/postgres"
        finally:
            call([*control, "-m", "immediate", "stop"], folder)


def call(command: list[str], folder: Path) -> None:
    done = subprocess.run(
        command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(params=["sqlite", "postgres"])
def history(request: pytest.FixtureRequest, tmp_path: Path) -> SqlHistory:
    if request.param == "sqlite":
        return open_history(f"sqlite:////{tmp_path / 'history.db'}")
    return fresh(request.getfixturevalue("postgres_url"))


def fresh(url: str) -> SqlHistory:
    """The PostgreSQL store with empty tables."""
    import psycopg

    with psycopg.connect(url) as connection:
        connection.execute("DROP TABLE IF EXISTS ci_marks, ci_outcomes, ci_values, ci_runs")
    return open_history(url, create=True)
