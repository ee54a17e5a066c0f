"""Limits of this machine and process that bite during a run, each with what Parity needs.

Invariant: nothing raises; a limit that can't be read is None and no finding. Free and total are
both shown for shared memory, because a folder that is too small looks free when it is empty.
"""

import os
import resource
import tempfile
from pathlib import Path

from parity.config.threads import available_cores
from parity.doctor.report import Finding, Limit

SHM = Path("/dev/shm")
MIN_SHM_BYTES = 2 * 2**30  # a double buffer of weights; containers get 64 MiB unless told
MIN_OPEN_FILES = 4096  # Ray, sockets and data files of one node
MIN_LOCKED_BYTES = 2**30  # pinned buffers and RDMA
MAX_SOCKET_PATH = 107  # bytes; sockaddr_un holds 108 with the final zero
AREA = "limits"
Found = tuple[Limit, list[Finding]]


def examine(omp_threads: int | None, *, has_accelerator: bool) -> tuple[list[Limit], list[Finding]]:
    """All limits; `omp_threads` is OMP_NUM_THREADS, None where it isn't set."""
    found = [
        shared_memory(SHM),
        open_files(*_soft_and_hard(resource.RLIMIT_NOFILE)),
        locked_memory(_soft_and_hard(resource.RLIMIT_MEMLOCK)[0], has_accelerator=has_accelerator),
        socket_path(Path(tempfile.gettempdir()), os.getuid()),
        threads(available_cores(), os.cpu_count(), omp_threads),
    ]
    return [limit for limit, _ in found], [each for _, findings in found for each in findings]


def shared_memory(folder: Path, min_bytes: int = MIN_SHM_BYTES) -> Found:
    """Free and total bytes of the folder behind POSIX shared memory."""
    needed = f"{_size(min_bytes)} free, for weights between processes"
    try:
        stat = os.statvfs(folder)
    except OSError as error:
        reason = error.strerror or str(error)
        finding = Finding(
            "warning",
            AREA,
            f"{folder} can't be read ({reason}), so weights can't go through shared memory.",
            f"mount a tmpfs on {folder}, as in `docker run --shm-size=16g`.",
        )
        return Limit("shared memory", None, needed, None), [finding]
    if not os.access(folder, os.W_OK | os.X_OK):
        finding = Finding(
            "warning",
            AREA,
            f"{folder} can't be written, so weights can't go through shared memory.",
            f"mount {folder} for writing, or give this user the right to.",
        )
        return Limit("shared memory", f"{folder} is read-only", needed, False), [finding]
    free, total = stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize
    value = f"{_size(free)} free of {_size(total)} in {folder}"
    if free >= min_bytes:
        return Limit("shared memory", value, needed, True), []
    if total < min_bytes:
        remedy = "make it larger, as in `docker run --shm-size=16g` or a larger tmpfs."
    else:
        remedy = f"remove what is left in {folder} by processes that are gone."
    finding = Finding("warning", AREA, f"{value}; Parity needs {needed}.", remedy)
    return Limit("shared memory", value, needed, False), [finding]


def open_files(soft: int | None, hard: int | None, minimum: int = MIN_OPEN_FILES) -> Found:
    """Files and sockets that one process may have open (`ulimit -n`)."""
    needed = f"{minimum:,}"
    if soft is None or soft >= minimum:
        value = "unlimited" if soft is None else f"{soft:,}"
        return Limit("open files", value, needed, True), []
    ways = f"ulimit -n {minimum}" if hard is None or hard >= minimum else "a higher hard limit"
    finding = Finding(
        "warning",
        AREA,
        f"a process may have {soft:,} files open; Parity needs {needed} on a node with Ray.",
        f"set {ways} in the shell or service that starts Parity.",
    )
    return Limit("open files", f"{soft:,}", needed, False), [finding]


def locked_memory(
    soft: int | None, *, has_accelerator: bool, minimum: int = MIN_LOCKED_BYTES
) -> Found:
    """Memory that can't be swapped (`ulimit -l`); only accelerators and RDMA need it."""
    value = "unlimited" if soft is None else _size(soft)
    needed = _size(minimum) if has_accelerator else "nothing without an accelerator"
    if soft is None or soft >= minimum or not has_accelerator:
        return Limit("locked memory", value, needed, True), []
    finding = Finding(
        "warning",
        AREA,
        f"a process may lock {value} of memory; RDMA and pinned buffers need {needed}.",
        "set `ulimit -l unlimited` (docker: `--ulimit memlock=-1`).",
    )
    return Limit("locked memory", value, needed, False), [finding]


def socket_path(folder: Path, user: int) -> Found:
    """The longest path of a socket that Parity makes below the temporary folder."""
    path = folder / f"parity-{user}" / ("0" * 12) / "99999-99999.sock"
    length = len(os.fsencode(path))
    value, needed = f"{length} bytes below {folder}", f"at most {MAX_SOCKET_PATH} bytes"
    if length <= MAX_SOCKET_PATH:
        return Limit("socket path", value, needed, True), []
    finding = Finding(
        "warning",
        AREA,
        f"sockets below {folder} would have paths of {length} bytes; the system takes {needed}.",
        "set TMPDIR to a short folder that only you can write; until then Parity uses /tmp.",
    )
    return Limit("socket path", value, needed, False), [finding]


def threads(usable: int, installed: int | None, omp_threads: int | None) -> Found:
    """CPU threads against the cores that this process may use."""
    said = "OMP_NUM_THREADS is unset" if omp_threads is None else f"OMP_NUM_THREADS={omp_threads}"
    there = "" if installed is None or installed == usable else f" of {installed}"
    value = f"{usable}{there} cores, {said}"
    needed = "one thread per core at most"
    if omp_threads is not None and omp_threads > usable:
        finding = Finding(
            "warning",
            AREA,
            f"OMP_NUM_THREADS={omp_threads} on {usable} cores: threads that wait for a core cost"
            " more than they give.",
            f"set OMP_NUM_THREADS={usable} or less, or unset it: Parity shares the cores itself.",
        )
        return Limit("threads", value, needed, False), [finding]
    return Limit("threads", value, needed, True), []


def _soft_and_hard(which: int) -> tuple[int | None, int | None]:
    """Both limits; None is unlimited."""
    soft, hard = resource.getrlimit(which)
    return _finite(soft), _finite(hard)


def _finite(limit: int) -> int | None:
    return None if limit == resource.RLIM_INFINITY else limit


def _size(size_bytes: int) -> str:
    """Bytes as people read them: three digits and the unit."""
    power = min(4, max(0, size_bytes.bit_length() - 1) // 10)
    size = size_bytes / 1024**power
    unit = ("bytes", "KiB", "MiB", "GiB", "TiB")[power]
    return f"{size:.0f} {unit}" if power == 0 or size >= 100 else f"{size:.1f} {unit}"
