"""A folder of versions that is full, damaged, littered, left by the dead, or behind its engines."""

import asyncio
import contextlib
import resource
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import zstandard
from unit.weights.ends import CONFIG, at_once, bits, disk_with, same, store_of

from parity.errors import ParityError, TransferError
from parity.weights.content import delta
from parity.weights.disk import DiskReceiver, DiskTransfer
from parity.weights.host.library import Library
from parity.weights.transfer import Weights

QUICK = replace(CONFIG, timeout_s=5.0)
NOISE = torch.Generator().manual_seed(0)


def odd(version: int) -> list[tuple[str, torch.Tensor]]:
    """NaNs with a payload, integers, booleans, nothing at all; a little changes each version."""
    nans = torch.tensor([0x7FC00000 + version, 0x7F800001, -1], dtype=torch.int32)
    grid = torch.arange(20_000.0)
    grid[version * 7 :: 1000] += version
    return [
        ("nans", nans.view(torch.float32)),
        ("grid", grid.view(200, 100)),
        ("steps", torch.tensor([version, -1, 2**62])),
        ("flags", torch.tensor([True, version % 2 == 0])),
        ("none", torch.empty(0, 3)),
    ]


def publish(transfer: DiskTransfer, version: int) -> None:
    asyncio.run(transfer.publish(Weights(odd(version)), version=version, switch=at_once))


def until(is_done: Callable[[], bool], what: Callable[[], object]) -> None:
    end = time.monotonic() + 10
    while not is_done():
        assert time.monotonic() < end, what()
        time.sleep(0.01)


@pytest.mark.parametrize("encoding", ["off", "xor", "overwrite"])
@pytest.mark.parametrize("room", [0, 100, 3_000, 30_000])
def test_a_full_disk_refuses_the_version_and_leaves_nothing(
    encoding: str, room: int, tmp_path: Path
):
    folder, store = tmp_path / "weights", store_of(odd(0))
    with disk_with(encoding)([store], QUICK, folder) as ends:
        for version in (1, 2):
            ends.publish(odd(version), version=version)
        before = {path for path in folder.rglob("*") if path.is_file()}
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
        try:
            fails = None
            ends.publish(odd(3), version=3)
        except ParityError as error:
            fails = str(error)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        if fails is None:
            assert room >= 3_000, "a full disk was not noticed"
            assert encoding != "off"
            assert same(store, odd(3))
        else:
            assert "File too large" in fails or "within 5 s in phase" in fails, fails
            until(lambda: store.version == 2, lambda: store.version)
            assert same(store, odd(2))
            left = {path for path in folder.rglob("*") if path.is_file()} - before
            assert not [path for path in left if "receipts" not in path.parts], left
        ends.publish(odd(4), version=4)
        assert same(store, odd(4))


def test_a_receipt_that_cannot_be_written_is_written_as_soon_as_it_can(tmp_path: Path):
    with disk_with("off")([store_of(odd(0))], QUICK, tmp_path) as ends:
        sign, tries = Library.sign, []

        def full(self, version, who, state, reason="") -> None:
            tries.append(state)
            if len(tries) % 3:
                raise TransferError("No space left on device")
            sign(self, version, who, state, reason)

        Library.sign = full
        try:
            ends.publish(odd(1), version=1)
        finally:
            Library.sign = sign
        assert tries == ["verified"] * 3 + ["committed"] * 3
        assert "No space left" in ends.failures()[0][-1]


def test_an_engine_that_is_ahead_of_the_folder_says_so(tmp_path: Path):
    store = store_of(odd(0), version=20)
    with disk_with("xor")([store], QUICK, tmp_path) as ends:
        with pytest.raises(TransferError, match="version 11 isn't newer than version 20"):
            ends.publish(odd(11), version=11)
        ends.publish(odd(21), version=21)
        assert same(store, odd(21))


def test_a_new_writer_removes_what_a_killed_one_had_not_finished(tmp_path: Path):
    transfer = DiskTransfer(tmp_path, [], QUICK)
    publish(transfer, 1)
    publish(transfer, 9)
    (tmp_path / "live.json").write_text('{"version": 1}')  # killed before 9 was live
    unfinished = [
        tmp_path / "versions/.00000002.json.0123abcd",
        tmp_path / ".live.json.0123abcd",
        tmp_path / f"objects/.{'0' * 32}.safetensors.0123abcd",
    ]
    for path in unfinished:
        path.write_text("half")
    asyncio.run(transfer.close())
    store = store_of(odd(0))
    with disk_with("xor")([store], QUICK, tmp_path) as ends:
        ends.publish(odd(2), version=2)  # lower than the one that was left
        assert same(store, odd(2))
    assert not any(path.exists() for path in unfinished)


def test_what_is_not_ours_in_the_folder_stays_and_hurts_nothing(tmp_path: Path):
    store = store_of(odd(0))
    with disk_with("xor")([store], replace(QUICK, keep=1), tmp_path) as ends:
        ends.publish(odd(1), version=1)
        litter = [tmp_path / "objects/README", tmp_path / "receipts/lost+found", tmp_path / "a-b"]
        litter += [tmp_path / "receipts/x-y", tmp_path / "versions/notes.json"]
        for path in litter:
            path.write_text("not ours")
        (tmp_path / "objects/folder.safetensors").mkdir()
        for version in (2, 3, 4):
            ends.publish(odd(version), version=version)
            assert same(store, odd(version))
        assert all(path.exists() for path in litter)


def test_a_damaged_version_file_does_not_stop_later_versions(tmp_path: Path):
    store = store_of(odd(0))
    with disk_with("xor")([store], QUICK, tmp_path) as ends:
        ends.publish(odd(1), version=1)
        ends.publish(odd(2), version=2)
        (tmp_path / "versions/00000001.json").write_bytes(b"{")
        for version in (3, 4, 5):
            with contextlib.suppress(ParityError):  # a new full version, at the latest
                ends.publish(odd(version), version=version)
        ends.publish(odd(6), version=6)
        assert same(store, odd(6))


def test_a_damaged_object_is_refused_and_written_anew_the_next_time(tmp_path: Path):
    transfer = DiskTransfer(tmp_path, [], replace(QUICK, delta="off"))
    publish(transfer, 1)
    (path,) = (tmp_path / "objects").iterdir()
    data = bytearray(path.read_bytes())
    data[-100] ^= 4
    path.write_bytes(data)
    store = store_of(odd(0))
    receiver = DiskReceiver(tmp_path, store, name="late", look_s=0.005)
    until(lambda: bool(receiver.failures), lambda: "a damaged object was taken")
    assert "digests of 1 tensors differ" in receiver.failures[-1]
    assert store.version == 0
    asyncio.run(transfer.publish(Weights(odd(1)), version=2, switch=at_once))  # the same content
    until(lambda: store.version == 2, lambda: receiver.failures)
    assert same(store, odd(1))
    receiver.close()
    asyncio.run(transfer.close())


def test_an_engine_survives_a_base_that_is_removed_while_it_reads(tmp_path: Path):
    transfer = DiskTransfer(tmp_path, [], replace(QUICK, keep=1, full_every=3))
    for version in (1, 2):
        publish(transfer, version)
    store = store_of(odd(0))
    take, versions = store.take, iter(range(3, 9))

    def pruned_meanwhile(entry, tensor):
        if (version := next(versions, None)) is not None:
            publish(transfer, version)
        return take(entry, tensor)

    store.take = pruned_meanwhile
    receiver = DiskReceiver(tmp_path, store, name="late", look_s=0.005)
    until(lambda: store.version == 8, lambda: receiver.failures)
    assert same(store, odd(8))
    receiver.close()
    asyncio.run(transfer.close())


@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
def test_a_delta_with_any_byte_changed_is_refused_or_harmless(encoding: str):
    """`decode` never crashes, never takes more memory than the tensor allows."""
    old = torch.arange(64.0)
    new = old.clone()
    new[5:9] = float("nan")
    good = delta.encode(new, old, encoding)
    assert good is not None
    assert bits(delta.decode(good, old, encoding)) == bits(new)
    for place in range(len(good)):
        for flip in (0x01, 0x80, 0xFF):
            bad = bytearray(good)
            bad[place] ^= flip
            try:
                found = delta.decode(bytes(bad), old, encoding)
            except TransferError:
                continue
            assert found.shape == old.shape
    for cut in range(len(good)):
        with pytest.raises(TransferError):
            delta.decode(good[:cut], old, encoding)


def test_a_delta_that_unpacks_to_more_than_it_says_is_refused_before_memory_is_taken():
    bomb = zstandard.ZstdCompressor().compress(bytes(50_000_000))
    old = torch.zeros(16)
    with pytest.raises(TransferError, match="says 64 bytes and its packed part says otherwise"):
        delta.decode((64).to_bytes(8, "little") + bomb, old, "xor")


@pytest.mark.parametrize("place", [0, 4, 9, 40, 100, -200, -1])
@pytest.mark.parametrize("encoding", ["off", "xor", "overwrite"])
def test_an_object_with_a_changed_byte_never_becomes_weights(
    encoding: str, place: int, tmp_path: Path
):
    transfer = DiskTransfer(tmp_path, [], replace(QUICK, delta=encoding))
    publish(transfer, 1)
    before = {path.name for path in (tmp_path / "objects").iterdir()}
    publish(transfer, 2)
    (path,) = [p for p in (tmp_path / "objects").iterdir() if p.name not in before]
    data = bytearray(path.read_bytes())
    data[place] ^= 0x55
    path.write_bytes(data)
    store = store_of(odd(0))
    receiver = DiskReceiver(tmp_path, store, name="late", look_s=0.005)
    until(lambda: bool(receiver.failures) or store.version == 2, lambda: "nothing")
    assert store.version == 0 or same(store, odd(2))
    publish(transfer, 3)
    if encoding == "off":
        until(lambda: store.version == 3, lambda: receiver.failures)
        assert same(store, odd(3))
    receiver.close()
    asyncio.run(transfer.close())
