"""The store of complete checkpoints of a run; one owner writes, anyone may read.

    DIR/step_00000012/            complete: what the writers left, and COMPLETE.json
    DIR/.tmp_step_00000013/       being written, or left behind by a killed run
    DIR/.old_step_00000012/       a complete one while its successor of the same step moves in

COMPLETE.json is written last and lists every file with size and digest, then one rename
publishes the folder. So whatever is killed at whatever point, the newest complete
checkpoint from before is still there, and a partial one is never taken for complete.
Steps are numbers: step 10 is newer than step 9. What is kept is counted on the disk.
"""

import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from parity.errors import CheckpointError
from parity.types import Json

logger = logging.getLogger(__name__)

MARKER = "COMPLETE.json"
_NAME = re.compile(r"(\.old_)?step_(\d+)")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One complete checkpoint."""

    path: Path
    step: int
    state: Mapping[str, Json]  # what the driver stored beside the files


class CheckpointStore:
    """Saves, lists and prunes the checkpoints in one folder."""

    def __init__(self, dir: Path, keep: int) -> None:
        """`keep` (>= 1) newest complete checkpoints stay."""
        assert keep >= 1, f"keep is {keep}"
        self._dir = dir
        self._keep = keep

    def save(
        self,
        step: int,
        write: Callable[[Path], None],
        state: Mapping[str, Json],
        *,
        published: Callable[[], None] = lambda: None,
    ) -> Path:
        """Publish a checkpoint of `step`: what `write` puts into the folder it is given.

        A failure of `write`, or of the disk, leaves every older checkpoint as it was and no
        partial folder. Older ones are pruned when the new one is complete.

        Args:
            step: optimizer steps taken, >= 0.
            write: fills an empty folder; what it raises comes through, OSError apart.
            state: stored in the marker, so it becomes visible with the files.
            published: called when the new one is complete and before older ones are removed.

        Raises CheckpointError where the disk refuses.
        """
        final = self._dir / f"step_{step:08d}"
        partial = self._dir / f".tmp_{final.name}"
        old = self._dir / f".old_{final.name}"
        try:
            self._sweep()
            partial.mkdir(parents=True)
            write(partial)
            _seal(partial, step, state)
            if final.exists():
                final.rename(old)
            partial.rename(final)
            _sync(self._dir)
        except OSError as error:
            raise CheckpointError(
                f"the checkpoint of step {step} can't be written to {self._dir} ({error}); the"
                " older ones are unchanged. Free disk space or set output.dir."
            ) from error
        finally:
            if not final.exists() and old.exists():
                old.rename(final)
            shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
        published()
        self._prune(step)
        logger.info("event=checkpoint_saved step=%d path=%s", step, final)
        return final

    def complete(self) -> list[Checkpoint]:
        """Every checkpoint with a readable marker, by step; files aren't looked at."""
        found: dict[int, Checkpoint] = {}
        for path in self._folders():
            marker = _read_marker(path)
            if isinstance(marker, str):
                continue
            if marker.step not in found or not path.name.startswith("."):
                found[marker.step] = Checkpoint(path, marker.step, marker.state)
        return [found[step] for step in sorted(found)]

    def newest(self) -> Checkpoint | None:
        """The newest checkpoint whose files are all as they were written; None without one.

        Damaged ones are passed over with a warning that says what is wrong.
        """
        for path in sorted(self._folders(), key=_order, reverse=True):
            marker = _read_marker(path)
            fault = marker if isinstance(marker, str) else marker.fault(path)
            if fault is not None:
                logger.warning("event=checkpoint_skipped path=%s reason=%s", path, fault)
                continue
            assert not isinstance(marker, str)
            return Checkpoint(path, marker.step, marker.state)
        return None

    def is_empty(self) -> bool:
        """Whether none was ever published, whole or damaged."""
        return not self._folders()

    def _folders(self) -> list[Path]:
        """Published folders, and those that were about to be replaced."""
        if not self._dir.is_dir():
            return []
        return [path for path in self._dir.iterdir() if _NAME.fullmatch(path.name)]

    def _sweep(self) -> None:
        """Remove what killed runs left; put back a checkpoint whose replacement never came."""
        if not self._dir.is_dir():
            return
        for partial in self._dir.glob(".tmp_step_*"):
            shutil.rmtree(partial)
        for old in self._dir.glob(".old_step_*"):
            final = old.with_name(old.name.removeprefix(".old_"))
            if final.exists():
                shutil.rmtree(old)
            else:
                old.rename(final)

    def _prune(self, step: int) -> None:
        """Of the complete ones up to `step`, remove all but the newest; later ones stay.

        Later ones are there where a run went on from an older checkpoint.
        """
        upto = [checkpoint for checkpoint in self.complete() if checkpoint.step <= step]
        for checkpoint in upto[: -self._keep]:
            grave = self._dir / f".tmp_{checkpoint.path.name}"
            try:
                checkpoint.path.rename(grave)
                shutil.rmtree(grave)
            except OSError as error:
                logger.warning(
                    "event=checkpoint_not_pruned path=%s reason=%s", checkpoint.path, error
                )


@dataclass(frozen=True, slots=True)
class _Marker:
    """What COMPLETE.json says."""

    step: int
    state: Mapping[str, Json]
    files: Mapping[str, tuple[int, str]]  # relative path -> size in bytes, SHA-256

    def fault(self, folder: Path) -> str | None:
        """What isn't as it was written; None where everything is."""
        for name, (size_bytes, digest) in self.files.items():
            path = folder / name
            if not path.is_file():
                return f"{name} is missing"
            if path.stat().st_size != size_bytes:
                return f"{name} has {path.stat().st_size} bytes instead of {size_bytes}"
            if _digest(path) != digest:
                return f"{name} has other contents than were written"
        return None


def _seal(folder: Path, step: int, state: Mapping[str, Json]) -> None:
    """Bring everything to the disk, then the marker, then the folders."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in paths:
        _sync(path)
    files = {
        path.relative_to(folder).as_posix(): [path.stat().st_size, _digest(path)] for path in paths
    }
    marker = folder / MARKER
    record = {"step": step, "state": dict(state), "files": files}
    marker.write_text(json.dumps(record, indent=1, allow_nan=False), encoding="ascii")
    _sync(marker)
    for directory in [*(path for path in folder.rglob("*") if path.is_dir()), folder]:
        _sync(directory)


def _read_marker(folder: Path) -> _Marker | str:
    """The marker of a folder, or why it can't be used."""
    try:
        record = cast("dict[str, Json]", json.loads((folder / MARKER).read_text("ascii")))
        files = cast("dict[str, list[Json]]", record["files"])
        return _Marker(
            step=int(cast("int", record["step"])),
            state=cast("dict[str, Json]", record["state"]),
            files={n: (int(cast("int", s)), str(d)) for n, (s, d) in files.items()},
        )
    except FileNotFoundError:
        return f"{MARKER} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{MARKER} can't be read ({type(error).__name__}: {error})"


def _order(path: Path) -> tuple[int, bool]:
    """By step, and the published folder after the one it replaces."""
    match = _NAME.fullmatch(path.name)
    assert match is not None, path
    return int(match[2]), match[1] is None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    """Wait until a file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
