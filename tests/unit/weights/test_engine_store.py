"""An engine as a receiver's store: tensors that come in pieces are proven as it stored them."""

import asyncio
import threading
from collections.abc import Iterator

import pytest
import torch
from unit.weights import engine_peer

from parity.errors import TransferError
from parity.weights.content import digest
from parity.weights.content.bucket import plan
from parity.weights.content.digest import digest_of
from parity.weights.content.ranges import copy_from, dtype_named
from parity.weights.manifest import Manifest
from parity.weights.session import engine_store, reception
from parity.weights.session.engine_store import EngineStore
from parity.weights.session.reception import Reception

TIED = ("lm_head.weight", "model.embed_tokens.weight")


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    running = asyncio.new_event_loop()
    thread = threading.Thread(target=running.run_forever, daemon=True)
    thread.start()
    yield running
    running.call_soon_threadsafe(running.stop)
    thread.join(5)
    running.close()


def sent(
    store: EngineStore, tensors: dict[str, torch.Tensor], *, bucket: int, has_digests: bool = True
) -> Reception:
    """Everything loaded in buckets of this size, not yet verified."""
    manifest = Manifest.of(1, list(tensors.items()), (TIED,))
    begun = Reception(store, manifest, has_digests=has_digests)
    for pieces, filled in plan(manifest.entries, bucket):
        payload = torch.zeros(filled, dtype=torch.uint8)
        for piece in pieces:
            entry = manifest.entries[piece.tensor]
            dtype = dtype_named(entry.dtype)
            stop = piece.at + piece.count * dtype.itemsize
            copy_from(tensors[entry.name], piece.start, payload[piece.at : stop].view(dtype))
        begun.load(pieces, payload)
    return begun


@pytest.mark.parametrize("bucket", [64, 1024, 2**20])  # pieces of most tensors, of some, of none
@pytest.mark.parametrize("spoils", [False, True])
def test_digests_are_of_what_the_engine_stored(
    loop: asyncio.AbstractEventLoop, bucket: int, *, spoils: bool
):
    tensors = dict(engine_peer.model(2).state_dict())
    del tensors[TIED[0]]
    expected = {name: digest_of(tensor) for name, tensor in tensors.items()}
    engine = engine_peer.engine_of(engine_peer.model(1))
    engine.spoils = spoils
    begun = sent(EngineStore(engine, loop, timeout_s=20), tensors, bucket=bucket)
    if spoils:
        with pytest.raises(TransferError, match=r"digests of 1 tensors differ.*q_proj"):
            begun.verify(expected)
        begun.abort("spoiled")
        assert engine.version == 0
    else:
        begun.verify(expected)
        begun.commit(1)
        assert engine.version == 1


def test_without_verification_nothing_is_digested(
    loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_: object) -> str:
        raise AssertionError("a digest was computed")

    for module in (engine_store, reception):
        monkeypatch.setattr(module, "digest_of", refuse)
    monkeypatch.setattr(digest.Digest, "add", refuse)
    tensors = dict(engine_peer.model(2).state_dict())
    del tensors[TIED[0]]
    engine = engine_peer.engine_of(engine_peer.model(1))
    store = EngineStore(engine, loop, timeout_s=20)
    begun = sent(store, tensors, bucket=1024, has_digests=False)
    begun.verify(None)
    begun.commit(1)
    assert engine.version == 1
