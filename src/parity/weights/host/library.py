"""The folder of the `disk` transport: what lies where, and how it changes.

    objects/<digest>.safetensors     tensors or deltas, named by their own content
    versions/00000005.json           one announced version: manifest, digests, base, objects
    receipts/00000005-<id>/<name>    what a receiver says of it
    live.json                        the version that counts, and nothing else does
    .writer                          locked by the one that publishes

Everything appears by rename, complete or not at all, so any number of readers may look at any
time, over a network mount too. Objects are written first and removed last.
"""

import contextlib
import json
import logging
import os
import re
import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path

import xxhash

from parity.errors import TransferError
from parity.types import Json
from parity.weights.manifest import Manifest
from parity.weights.session import wire

_FOLDERS = ("objects", "versions", "receipts")
_SIGN_S = 2.0
_READ_BYTES = 2**20
_UNFINISHED = re.compile(r"\..+\.[0-9a-f]{8}")  # the temporary names of `write_whole`
log = logging.getLogger(__name__)
_DIGEST = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class VersionFile:
    """One version as the folder describes it."""

    publication: str  # tells a second try of a version from the first
    manifest: Manifest
    digests: dict[str, str]
    encoding: str  # full, xor or overwrite
    base: int | None  # the version that a delta is against; None: full
    objects: tuple[str, ...]
    where: dict[str, int] = field(default_factory=dict[str, int])  # object that holds a tensor
    verify: str = "digests"
    commit_timeout_s: float = 3600.0

    @property
    def version(self) -> int:
        """Its number."""
        return self.manifest.version


class Library:
    """The folder, for readers and for the writer."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def make(self) -> None:
        """Create the sub-folders."""
        try:
            for name in _FOLDERS:
                (self.path / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise TransferError(
                f"{self.path} can't be made ({error.strerror}); set weights.dir to a folder that "
                "can be written."
            ) from error

    def add_object(self, data: bytes) -> str:
        """Store bytes under their digest; a second time costs nothing."""
        digest = xxhash.xxh3_128_hexdigest(data)
        path = self.object_path(digest)
        if not _holds(path, digest):
            write_whole(path, data)
        return digest

    def recover(self) -> None:
        """What a new writer does first: remove what one that was killed had not finished."""
        for folder in (self.path, *(self.path / name for name in _FOLDERS)):
            for path in folder.glob(".*.*"):
                if _UNFINISHED.fullmatch(path.name):
                    path.unlink(missing_ok=True)
        live = self.live()
        for version in self.versions():
            if live is None or version > live:
                self.withdraw(version)

    def object_path(self, digest: str) -> Path:
        """Where an object lies; raises TransferError for what isn't a digest."""
        if _DIGEST.fullmatch(digest) is None:
            raise TransferError(f"{digest!r} isn't the name of an object.")
        return self.path / "objects" / f"{digest}.safetensors"

    def announce(self, version: VersionFile) -> None:
        """Let readers see a version whose objects are all there."""
        body: dict[str, object] = {
            "publication": version.publication,
            "manifest": wire.pack_manifest(version.manifest),
            "digests": version.digests,
            "encoding": version.encoding,
            "base": version.base,
            "objects": list(version.objects),
            "where": version.where,
            "verify": version.verify,
            "commit_timeout_s": version.commit_timeout_s,
        }
        write_whole(self._version_path(version.version), json.dumps(body).encode())

    def withdraw(self, version: int) -> None:
        """Take an announced version back."""
        self._version_path(version).unlink(missing_ok=True)

    def versions(self) -> list[int]:
        """The versions that are there, oldest first."""
        found = (self.path / "versions").glob("*.json")
        return sorted(int(path.stem) for path in found if path.stem.isdecimal())

    def read(self, version: int) -> VersionFile:
        """A version; raises TransferError where it isn't there or can't be read."""
        path = self._version_path(version)
        body = _read(path)
        if body is None:
            raise TransferError(f"{path} isn't there; version {version} was withdrawn or pruned.")
        try:
            base = body["base"]
            assert base is None or isinstance(base, int)
            objects, where = body["objects"], body["where"]
            assert isinstance(objects, list)
            assert isinstance(where, dict)
            return VersionFile(
                publication=wire.text(body, "publication"),
                manifest=wire.unpack_manifest(body["manifest"]),
                digests=wire.digests_of(body) or {},
                encoding=wire.text(body, "encoding"),
                base=base,
                objects=tuple(str(each) for each in objects),
                where={name: int(str(number)) for name, number in where.items()},
                verify=wire.text(body, "verify"),
                commit_timeout_s=wire.number(body, "commit_timeout_s"),
            )
        except (KeyError, AssertionError, ValueError) as error:
            raise TransferError(f"{path} can't be read ({error!r}).") from error

    def set_live(self, version: int) -> None:
        """Make a version the one that counts."""
        write_whole(self.path / "live.json", json.dumps({"version": version}).encode())

    def live(self) -> int | None:
        """The version that counts; None before the first."""
        body = _read(self.path / "live.json")
        return None if body is None else wire.integer(body, "version")

    def sign(self, version: VersionFile, who: str, state: str, reason: str = "") -> None:
        """A receiver's word on a version."""
        folder = self._receipts(version)
        body = json.dumps({"state": state, "reason": reason}).encode()
        end = time.monotonic() + _SIGN_S
        while True:
            try:
                write_whole(folder / f"{who}.json", body, aside=folder.parent)
                return
            except (TransferError, FileExistsError) as error:
                # The writer may just have withdrawn the version and be removing the folder.
                cause = error.__cause__ or error
                is_going = isinstance(cause, FileNotFoundError | FileExistsError)
                if not is_going or time.monotonic() > end:
                    raise

    def receipt(self, version: VersionFile, who: str) -> tuple[str, str] | None:
        """(state, reason) of a receiver; None while it has said nothing."""
        body = _read(self._receipts(version) / f"{who}.json")
        return None if body is None else (wire.text(body, "state"), wire.text(body, "reason"))

    def prune(self, keep: int) -> None:
        """Remove versions before the newest `keep` that no kept one is built on, and objects."""
        kept = set(self.versions()[-keep:]) | {v for v in (self.live(),) if v is not None}
        for version in sorted(kept):
            with contextlib.suppress(TransferError):
                kept |= set(self.chain(version))
        used: set[str] = set()
        for version in self.versions():
            if version not in kept:
                self.withdraw(version)
                continue
            try:
                used |= set(self.read(version).objects)
            except TransferError as error:
                log.warning("event=damaged_version_removed reason=%r", str(error))
                self.withdraw(version)
        for path in (self.path / "objects").glob("*.safetensors*"):
            if path.name.removesuffix(".safetensors") not in used and path.is_file():
                path.unlink(missing_ok=True)
        for folder in (self.path / "receipts").glob("*-*"):
            number = folder.name.partition("-")[0]
            if number.isdecimal() and int(number) not in kept and folder.is_dir():
                for path in folder.iterdir():
                    path.unlink(missing_ok=True)
                with contextlib.suppress(OSError):  # a receiver has signed again: next time
                    folder.rmdir()

    def chain(self, version: int) -> list[int]:
        """The versions to apply in order: a full one first, this one last."""
        chain = [version]
        while (base := self.read(chain[0]).base) is not None:
            if base >= chain[0]:
                raise TransferError(f"version {chain[0]} is a delta against version {base}.")
            chain.insert(0, base)
        return chain

    def _version_path(self, version: int) -> Path:
        return self.path / "versions" / f"{version:08d}.json"

    def _receipts(self, version: VersionFile) -> Path:
        return self.path / "receipts" / f"{version.version:08d}-{version.publication}"


def write_whole(path: Path, data: bytes, *, aside: Path | None = None) -> None:
    """Write a file so that it appears complete; raises TransferError where it can't be.

    `aside`: where it is written first, for a file whose own folder somebody may be removing: that
    one is made anew an instant before the rename, not before the slow part.
    """
    folder = path.parent if aside is None else aside
    temporary = folder / f".{path.name}.{secrets.token_hex(4)}"
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if aside is not None:
            path.parent.mkdir(exist_ok=True)
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise TransferError(f"{path} can't be written ({error.strerror}).") from error


def _holds(path: Path, digest: str) -> bool:
    """Whether the file is there and undamaged."""
    hashed = xxhash.xxh3_128()
    try:
        with path.open("rb") as file:
            while data := file.read(_READ_BYTES):
                hashed.update(data)
    except OSError:
        return False
    return hashed.hexdigest() == digest


def _read(path: Path) -> dict[str, Json] | None:
    try:
        body = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise TransferError(f"{path} can't be read ({error}).") from error
    if not isinstance(body, dict):
        raise TransferError(f"{path} holds a {type(body).__name__}, not an object.")
    return body
