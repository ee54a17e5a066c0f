"""Device IPC, against a stand-in for the runtime's storages: both sides are released once."""

import json
from types import SimpleNamespace

import pytest
import torch

from parity.errors import TransferError, UnsupportedError
from parity.platforms.ipc import IpcHandle, StorageIpc

SHARED: dict[bytes, torch.UntypedStorage] = {}


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch):
    """Makes CPU storages shareable in the way of a device runtime, inside this process."""
    collected: list[str] = []
    opened: list[int] = []

    def share(storage):
        key = b"\x00\xff%d" % storage.data_ptr()
        SHARED[key] = storage
        return 3, key, storage.nbytes(), 0, b"/counter", 7, b"event", True

    def attach(index, memory, size_bytes, *rest):
        assert rest == (
            0,
            b"/counter",
            7,
            b"event",
            True,
        )
        opened.append(index)
        if index == 9:
            raise RuntimeError("invalid device ordinal\nmore")
        assert SHARED[memory].nbytes() == size_bytes
        return SHARED[memory]

    monkeypatch.setattr(torch.UntypedStorage, "_share_cpu_", share, raising=False)
    monkeypatch.setattr(
        torch.UntypedStorage, "_new_shared_cpu", staticmethod(attach), raising=False
    )
    module = SimpleNamespace(ipc_collect=lambda: collected.append("collected"))
    yield SimpleNamespace(ipc=StorageIpc("cpu", module), collected=collected, opened=opened)
    SHARED.clear()


def test_a_view_of_a_part_arrives_as_it_was_and_both_sides_are_released(runtime):
    whole = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    part = whole[1:3, ::2]
    with runtime.ipc.export(part) as handle:
        text = json.dumps(handle.to_json())
        with runtime.ipc.open(IpcHandle.from_json(json.loads(text)), 0) as view:
            assert torch.equal(view, part)
            view += 1
            kept = view
        assert runtime.collected == ["collected"]
    assert runtime.collected == ["collected"] * 2
    assert whole[1, 0] == 7  # the importer wrote into the exporter's memory
    assert kept.untyped_storage().nbytes() == 0


def test_the_importers_own_index_is_used_and_not_the_exporters(runtime):
    with runtime.ipc.export(torch.zeros(3)) as handle, runtime.ipc.open(handle, 0):
        assert runtime.opened == [0]  # the exporter's was 3


def test_both_sides_are_released_where_the_work_fails(runtime):
    ipc = runtime.ipc
    with (
        pytest.raises(KeyError),
        ipc.export(torch.zeros(3)) as handle,
        ipc.open(handle, 0),
    ):
        raise KeyError
    assert runtime.collected == ["collected"] * 2


def test_a_buffer_that_cannot_be_mapped_is_one_sentence(runtime):
    ipc = runtime.ipc
    with (
        ipc.export(torch.zeros(3)) as handle,
        pytest.raises(TransferError, match=r"device 9 can't map.*invalid device ordinal \("),
        ipc.open(handle, 9),
    ):
        pass


def test_tensors_and_handles_of_other_devices_are_refused(runtime):
    other = StorageIpc("cuda")
    with pytest.raises(UnsupportedError, match="must be on cuda"), other.export(torch.zeros(3)):
        pass
    with (
        runtime.ipc.export(torch.zeros(3)) as handle,
        pytest.raises(TransferError, match="is of a cpu device"),
        other.open(handle, 0),
    ):
        pass


@pytest.mark.parametrize(
    "change",
    [
        {"shape": "3"},
        {"shape": [1.5]},
        {"stride": None},
        {"memory": "not base64!"},
        {"memory": 4},
        {"size_bytes": True},
        {"first": "0"},
        {"needs_event": 1},
        {"odd": 1},
    ],
)
def test_a_handle_that_was_changed_is_refused(runtime, change):
    with runtime.ipc.export(torch.zeros(3)) as handle:
        plain = {**handle.to_json(), **change}
    with pytest.raises(TransferError, match="an IPC handle"):
        IpcHandle.from_json(plain)
    with pytest.raises(TransferError, match="other fields"):
        IpcHandle.from_json({})
