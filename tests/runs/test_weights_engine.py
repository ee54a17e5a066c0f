"""Weights of a trainer reach an engine in another process, and what it answers shows it."""

import asyncio
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel
from unit.weights import engine_peer
from unit.weights.ends import CONFIG, at_once

from parity.errors import ConfigError, TransferError
from parity.types import Completion, Sampling
from parity.weights.direct import DirectTransfer
from parity.weights.disk import DiskTransfer
from parity.weights.host.endpoints import RunDirectory
from parity.weights.session.canary import listen
from parity.weights.transfer import Transfer, Weights
from parity.weights.zmq_ipc import ZmqTransfer

TESTS = Path(__file__).parents[1]
PROMPT = (3, 1, 4, 1, 5)
GREEDY = Sampling(max_new_tokens=12, temperature=0.0)


class Remote:
    """The engine of another process, as far as `listen` uses one."""

    max_length = engine_peer.MAX_LENGTH

    def __init__(self, pipe) -> None:
        self._pipe = pipe

    def ask(self, *words):
        for word in words:
            self._pipe.send(word)
        assert self._pipe.poll(60), f"the engine's process doesn't answer {words}"
        return self._pipe.recv()

    async def generate(self, tokens: tuple[int, ...], sampling: Sampling) -> Completion:
        return self.ask("generate", (tokens, sampling))

    def answer(self) -> Completion:
        return asyncio.run(self.generate(PROMPT, GREEDY))


@pytest.fixture(scope="module")
def forks():
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(TESTS)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["unit.weights.engine_peer"])
    yield context
    os.environ.pop("PYTHONPATH") if before is None else os.environ.update(PYTHONPATH=before)


@contextmanager
def two_processes(forks, transport: str, tmp_path: Path) -> Iterator[tuple[Transfer, Remote]]:
    directory = RunDirectory.create(str(tmp_path)) if transport == "zmq_ipc" else None
    where = tmp_path / "weights" if directory is None else directory.path
    ours, theirs = forks.Pipe()
    process = forks.Process(
        target=engine_peer.serve, args=(transport, str(where), theirs), daemon=True
    )
    process.start()
    engine = Remote(ours)
    if directory is None:
        transfer: Transfer = DiskTransfer(where, ["engine"], CONFIG)
    else:
        transfer = ZmqTransfer(directory, [(0, 0)], CONFIG)
    try:
        assert engine.ask() == "ready"
        yield transfer, engine
        asyncio.run(transfer.close())
        assert engine.ask("end") == "closed"
    finally:
        process.kill()
        process.join(10)
        if directory is not None:
            directory.close()


def weights_of(model: PreTrainedModel) -> Weights:
    tied = "lm_head.weight"
    tensors = [(name, tensor) for name, tensor in model.state_dict().items() if name != tied]
    return Weights(tensors, aliases=((tied, "model.embed_tokens.weight"),))


def publish(transfer: Transfer, weights: Weights, version: int):
    return asyncio.run(transfer.publish(weights, version=version, switch=at_once))


@torch.no_grad()
def scores(model: PreTrainedModel, tokens: Sequence[int]) -> list[float]:
    """The trainer's log-prob of each token given those before it."""
    logits = model(input_ids=torch.tensor([list(tokens)])).logits[0, :-1]
    found = torch.log_softmax(logits.double(), -1).gather(-1, torch.tensor(tokens[1:]).unsqueeze(1))
    return [0.0, *found.squeeze(1).tolist()]


def hear(engine: Remote, model: PreTrainedModel) -> float:
    return asyncio.run(listen(engine, PROMPT, lambda tokens: scores(model, tokens)))


@pytest.mark.parametrize("transport", ["zmq_ipc", "disk"])
def test_an_engine_in_another_process_serves_what_was_published_and_nothing_that_was_refused(
    transport: str, tmp_path: Path, forks
):
    first, second = engine_peer.model(1), engine_peer.model(2)
    with two_processes(forks, transport, tmp_path) as (transfer, engine):
        before = engine.answer()
        report = publish(transfer, weights_of(first), 1)
        assert report.verified == "digests"
        served = engine.answer()
        assert set(served.versions) == {1}
        assert served.tokens != before.tokens
        assert hear(engine, first) < 1e-3
        with pytest.raises(TransferError, match=r"used differently"):
            hear(engine, second)

        lacking = replace(weights_of(second), tensors=weights_of(second).tensors[:-1])
        with pytest.raises(TransferError, match=r"missing \['model\.norm\.weight'\]"):
            publish(transfer, lacking, 2)
        assert engine.ask("spoil") == "spoil"
        with pytest.raises(TransferError, match=r"digests of 1 tensors differ.*q_proj"):
            publish(transfer, weights_of(second), 3)
        assert "digests of 1 tensors differ" in engine.ask("failures")[-1]
        assert engine.answer() == served
        assert hear(engine, first) < 1e-3

        publish(transfer, weights_of(second), 4)
        assert set(engine.answer().versions) == {4}
        assert hear(engine, second) < 1e-3


def test_direct_reads_back_what_the_engine_stored_and_keeps_what_is_skipped():
    first, second = engine_peer.model(1), engine_peer.model(2)

    async def scenario() -> None:
        engine = engine_peer.engine_of(first)
        transfer = DirectTransfer([engine], CONFIG)
        report = await transfer.publish(weights_of(first), version=1, switch=at_once)
        assert report.verified == "digests"
        served = await engine.generate(PROMPT, GREEDY)
        engine.spoils = True
        with pytest.raises(TransferError, match=r"other values .* in 1 of \d+ .*q_proj"):
            await transfer.publish(weights_of(second), version=2, switch=at_once)
        assert await engine.generate(PROMPT, GREEDY) == served
        with pytest.raises(TransferError, match="before begin_load"):
            engine.staged_weights()

        # Everything but the norms, which stay the first model's: in neither set of memory zeros.
        skipping = DirectTransfer([engine], replace(CONFIG, skip=("*norm.weight",)))
        mixed = engine_peer.model(2)
        norms = {k: t for k, t in first.state_dict().items() if k.endswith("norm.weight")}
        for tensor in norms.values():
            tensor.uniform_(0.5, 1.5)
        await transfer.publish(weights_of(first), version=3, switch=at_once)
        mixed.load_state_dict(norms, strict=False)
        for version in (4, 5):
            await skipping.publish(weights_of(second), version=version, switch=at_once)
            answer = await engine.generate(PROMPT, GREEDY)
            expected = scores(mixed, PROMPT + answer.tokens)[len(PROMPT) :]
            assert answer.logprobs == pytest.approx(expected, abs=1e-4)
        await engine.close()

    asyncio.run(scenario())


def test_a_runs_steps_say_what_their_publications_moved(config_of):
    import json

    from parity import launch

    config = config_of("steps=2")
    assert launch.train(config, recipe="finetune") == 0
    (path,) = Path(config.output.dir).glob("*/metrics.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    steps = [row for row in rows if "train/loss" in row]
    assert len(steps) == 2
    for row in steps:
        assert row["publish/bytes"] == row["publish/wire_bytes"] > 0
        assert row["publish/gigabytes_per_s"] > 0
        assert row["publish/verify_s"] > 0  # digests were compared
    with pytest.raises(ConfigError, match=r"weights\.transport is 'zmq_ipc' with runtime=inline"):
        config_of("weights.transport=zmq_ipc")
