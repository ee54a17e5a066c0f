"""Payload files: `payloads/00000001.seg` and on, records one after another, never changed.

A record is a header (magic, body size, event number, digest of the body) and a body. A file
that a killed process left may end in the middle of a record; no row of the database points
at such a tail, because rows are written after their records. A new process begins a new file.
"""

import hashlib
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from parity.ledger.schema import LedgerError

FOLDER = "payloads"
DIGEST_BYTES = 16
_HEADER = struct.Struct(f"<4sIQ{DIGEST_BYTES}s")
_MAGIC = b"PRL1"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record is, and the digest of its body."""

    segment: int
    position: int  # of its header, in bytes from the start of the file
    size_bytes: int  # header and body
    digest: bytes


def segment_path(dir: Path, segment: int) -> Path:
    """The file of a segment in a ledger folder."""
    return dir / FOLDER / f"{segment:08d}.seg"


def digest_of(body: bytes) -> bytes:
    """BLAKE2b of a body, 16 bytes."""
    return hashlib.blake2b(body, digest_size=DIGEST_BYTES).digest()


class SegmentFile:
    """One segment that is being written; `write` brings out what `append` gathered."""

    def __init__(self, dir: Path, segment: int) -> None:
        self.segment = segment
        self.size_bytes = 0
        path = segment_path(dir, segment)
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o644)
        self._folder = path.parent
        self._gathered = bytearray()
        self._is_named = False  # whether the folder's entry is on the disk

    def append(self, seq: int, body: bytes, digest: bytes) -> Place:
        """Add a record; its place is final, its bytes are in the file after `write`."""
        place = Place(self.segment, self.size_bytes, _HEADER.size + len(body), digest)
        self._gathered += _HEADER.pack(_MAGIC, len(body), seq, digest)
        self._gathered += body
        self.size_bytes += place.size_bytes
        return place

    def write(self) -> None:
        """Hand everything gathered to the operating system; raises OSError."""
        left = memoryview(bytes(self._gathered))
        self._gathered.clear()
        while left:
            left = left[os.write(self._descriptor, left) :]

    def sync(self) -> None:
        """Wait until everything written is on the disk."""
        os.fsync(self._descriptor)
        if not self._is_named:
            folder = os.open(self._folder, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
            self._is_named = True

    def close(self) -> None:
        """Give the file back."""
        os.close(self._descriptor)


def read_record(dir: Path, place: Place) -> bytes:
    """The body of a record.

    Raises LedgerError that says what is wrong with it: missing, cut off, or altered.
    """
    path = segment_path(dir, place.segment)
    try:
        with path.open("rb") as file:
            file.seek(place.position)
            record = file.read(place.size_bytes)
    except OSError as error:
        raise LedgerError(f"{path.name}: can't be read ({error.strerror})") from error
    if len(record) < place.size_bytes:
        raise LedgerError(f"{path.name}: ends inside the record at byte {place.position}")
    magic, size_bytes, _, digest = _HEADER.unpack_from(record)
    body = record[_HEADER.size :]
    if magic != _MAGIC or size_bytes != len(body):
        raise LedgerError(f"{path.name}: no record begins at byte {place.position}")
    if digest != place.digest or digest_of(body) != digest:
        raise LedgerError(
            f"{path.name}: the record at byte {place.position} isn't what was written (digest)"
        )
    return body


def whole_records(path: Path) -> Iterator[tuple[int, int]]:
    """(event number, end in bytes) of every whole record, up to a torn tail or damage."""
    with path.open("rb") as file:
        end = 0
        while len(header := file.read(_HEADER.size)) == _HEADER.size:
            magic, size_bytes, seq, digest = _HEADER.unpack(header)
            body = file.read(size_bytes) if magic == _MAGIC else b""
            if magic != _MAGIC or len(body) < size_bytes or digest_of(body) != digest:
                return
            end += _HEADER.size + size_bytes
            yield seq, end
