"""The process in front of a test that applies patches: `python -m parity.ci.patches`.

It checks every patch against the installed version, starts the test's own command with a start-up
file that watches imports in each Python process below it, and ends exactly as the command ended,
by the same exit code or signal. Invariant: nothing of the test runs when a patch doesn't fit.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import FrameType

from parity.ci.loading import load_config
from parity.ci.patches.declared import Patch, chosen
from parity.ci.patches.hook import APPLIED, PatchError, check_version
from parity.errors import ParityError

UNFIT = 66  # exit code where a patch doesn't fit; the test wasn't started
DECLARED, START = "patches.json", "sitecustomize.py"
# PYTHONPATH is extended by the shell: the variables of a run are read in one place of Parity only.
EXTEND_PATH = 'PYTHONPATH="$1${PYTHONPATH:+:$PYTHONPATH}"; export PYTHONPATH; shift; exec "$@"'
START_TEXT = '''\
"""Written by parity.ci.patches: applies the patches of a test in each of its Python processes."""
import os
import sys
from pathlib import Path

_folder = Path(__file__).parent
try:
    from parity.ci.patches.start import begin
    begin(_folder)
except BaseException as error:
    # Python goes on after a failed start-up file; a test without its patches must not.
    sys.stderr.write(f"parity: the patches can't be applied here: {error!r}\\n")
    sys.stderr.flush()
    os._exit(66)
'''


def wrapped(
    command: Sequence[str],
    patches: Sequence[Patch],
    *,
    root: Path,
    backend: str,
    python: str = sys.executable,
) -> tuple[str, ...]:
    """The command of a test with the wrapper in front; the command itself without patches.

    Args:
        command: what runs one test file.
        patches: those of `chosen`.
        root: the repository.
        backend: the backend of the test.
        python: the interpreter that runs the test, whose installed versions count.
    """
    if not patches:
        return tuple(command)
    names = [word for patch in patches for word in ("--patch", patch.name)]
    place = ("--root", str(root), "--backend", backend)
    return (python, "-m", "parity.ci.patches", *place, *names, "--", *command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command with patches; returns its exit code."""
    parser = argparse.ArgumentParser(prog="parity.ci.patches")
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--backend", required=True)
    parser.add_argument("--patch", action="append", required=True)
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(arguments)
    try:
        patches = chosen(load_config(options.root), options.patch, options.backend)
        versions = {patch.name: check_version(patch) for patch in patches}
    except (ParityError, PatchError) as error:
        _say(f"parity: {error}")
        return UNFIT
    for patch in patches:
        _say(f"patch {patch.name}: {patch.distribution} {versions[patch.name]}: {patch.why}")
    with tempfile.TemporaryDirectory(prefix="parity-patches-") as folder:
        write_start(Path(folder), patches, root=options.root)
        code = _run(["sh", "-c", EXTEND_PATH, "sh", folder, *options.command])
        counts = applied(Path(folder))
    for patch in patches:
        count = counts.get(patch.name, 0)
        done = f"applied in {count} process(es)" if count else f"{patch.module} wasn't imported"
        _say(f"patch {patch.name}: {done}")
    if code < 0:
        # End by the same signal, so that a crash is reported as a crash.
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def write_start(folder: Path, patches: Sequence[Patch], *, root: Path) -> None:
    """Write the start-up file and what it reads."""
    declared = [asdict(patch) for patch in patches]
    text = json.dumps({"root": str(root.resolve()), "patches": declared})
    (folder / DECLARED).write_text(text, encoding="utf-8")
    (folder / START).write_text(START_TEXT, encoding="utf-8")


def applied(folder: Path) -> Mapping[str, int]:
    """In how many processes each patch was applied."""
    path = folder / APPLIED
    processes: dict[str, set[int]] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        note = json.loads(line)
        processes.setdefault(note["patch"], set()).add(note["process"])
    return {name: len(found) for name, found in processes.items()}


def _run(command: Sequence[str]) -> int:
    child = subprocess.Popen(command)

    def forward(number: int, frame: FrameType | None) -> None:
        if child.poll() is None:
            child.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, forward)
    return child.wait()


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
