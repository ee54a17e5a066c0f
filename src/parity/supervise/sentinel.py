"""The watchdog's watchdog: a tiny process for the one case in which no Python thread can run.

C code that never gives the interpreter's lock back stops every thread of a process, the
watchdog's too. So the watchdog sends a byte per tick to this process (it runs the file below by
itself, with the standard library alone), and when the bytes stay out for the limit, and the
other process isn't merely stopped, it writes the page and kills it: exit code 137.

`Sentinel` is the watchdog's end. The stacks come from faulthandler, which needs no lock: its
signal handler writes them into an open file that both processes have.
"""

import faulthandler
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress

BEAT, PATIENCE = b".", b"!"  # PATIENCE: the watchdog is busy ending the run itself
_PATIENCE_S = 150.0
_DUMP_SIGNAL = signal.SIGRTMIN + 9
_DUMP_S, _PY_SPY_S, _CLOSE_S = 2.0, 10.0, 5.0


class Sentinel:
    """Starts, feeds and ends the process."""

    def __init__(self, page_path: str, timeout_s: float) -> None:
        """`page_path` is where the page is written, `timeout_s` how long no thread may run."""
        self._stacks_fd = os.memfd_create("parity-stacks")
        faulthandler.register(_DUMP_SIGNAL, file=self._stacks_fd, all_threads=True)
        words = (str(os.getpid()), str(self._stacks_fd), page_path, str(timeout_s))
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, *words],
            stdin=subprocess.PIPE,
            pass_fds=(self._stacks_fd,),
            bufsize=0,
            start_new_session=True,  # Ctrl-C and Ctrl-Z are for the run
        )
        assert self._process.stdin is not None, "stdin is a pipe"
        self._beats = self._process.stdin
        os.set_blocking(self._beats.fileno(), False)

    def send(self, sign: bytes) -> None:
        """A sign of life; a sentinel that somebody killed is no reason to end a run."""
        with suppress(OSError):
            self._beats.write(sign)

    def close(self) -> None:
        """End it."""
        with suppress(OSError):
            self._beats.close()
        try:
            self._process.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        faulthandler.unregister(_DUMP_SIGNAL)
        os.close(self._stacks_fd)


def main(words: list[str]) -> None:
    """Wait for bytes on stdin until it closes, or until they stay out for too long."""
    pid, stacks_fd, page_path, timeout_s = int(words[0]), int(words[1]), words[2], float(words[3])
    step_s = min(1.0, timeout_s / 10)
    allowed_s, silent_s = timeout_s, 0.0
    while silent_s <= allowed_s:
        ready, _, _ = select.select([0], [], [], step_s)
        if ready:
            signs = os.read(0, 4096)
            if not signs:
                return
            allowed_s = _PATIENCE_S if PATIENCE in signs else allowed_s
            silent_s = 0.0
        elif _state(f"/proc/{pid}") not in ("T", "t"):  # stopped by a user or a debugger
            silent_s += step_s
    reason = (
        f"no Python thread of process {pid} ran for {silent_s:.0f} s: C code keeps the "
        f"interpreter's lock. The run was ended at {time.strftime('%Y-%m-%dT%H:%M:%S%z')}."
    )
    try:
        _write(page_path, f"{reason}\n\n{_stacks(pid, stacks_fd)}")
        _tell(f"parity: {reason} {page_path} has all stacks.\n")
    except OSError as error:
        _tell(f"parity: {reason} {page_path} can't be written: {error}\n{_stacks(pid, stacks_fd)}")
    os.kill(pid, signal.SIGKILL)


def _stacks(pid: int, stacks_fd: int) -> str:
    """What faulthandler, the kernel and py-spy say of the threads."""
    os.kill(pid, _DUMP_SIGNAL)
    time.sleep(_DUMP_S)
    size = os.fstat(stacks_fd).st_size
    parts = [
        "What to try",
        "-----------",
        "  * Below, the thread that doesn't wait for the lock holds it: the function at its top.",
        "  * Report it to the library that has this function; leave that library out meanwhile.",
        "",
        "Python stacks, innermost call first",
        "-----------------------------------",
        os.pread(stacks_fd, size, 0).decode(errors="replace"),
        "Threads, as the kernel sees them",
        "--------------------------------",
    ]
    with os.scandir(f"/proc/{pid}/task") as threads:
        folders = sorted((entry.path for entry in threads), key=lambda path: (len(path), path))
    for folder in folders:
        name, place = _read(f"{folder}/comm"), _read(f"{folder}/wchan")
        parts.append(f"  {folder.rpartition('/')[2]} {name}: {_state(folder)} {place}")
    program = shutil.which("py-spy")
    if program:
        with suppress(OSError, subprocess.SubprocessError):
            found = subprocess.run(
                [program, "dump", "--nonblocking", "--native", "--pid", str(pid)],
                capture_output=True,
                text=True,
                timeout=_PY_SPY_S,
                check=True,
            )
            parts += ["", "py-spy", "------", found.stdout]
    return "\n".join(parts) + "\n"


def _write(path: str, text: str) -> None:
    unfinished = f"{path}.part"
    with open(unfinished, "w", encoding="utf-8") as file:  # noqa: PTH123 pathlib is slow to import
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, path)  # noqa: PTH105 as above


def _tell(text: str) -> None:
    with suppress(OSError):
        os.write(2, text.encode())


def _state(folder: str) -> str:
    """One letter of the kernel's: R running, S sleeping, T stopped, ...; ? unknown."""
    return (_read(f"{folder}/stat").rpartition(") ")[2] or "?")[0]


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123 as above
            return file.read().strip()
    except OSError:
        return ""


if __name__ == "__main__":
    main(sys.argv[1:])
