"""Streamed weights against `from_pretrained`: same bits, same refusals."""

import json
import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import distributed as dist
from transformers import PreTrainedModel
from unit.models.families import FAMILIES, save_family

from parity.errors import CheckpointError
from parity.models.config import ModelConfig
from parity.models.loading import load_model
from parity.models.parameters import aliases_of
from parity.models.streaming import WeightStream, load_streamed
from parity.training.config import ParallelConfig, TrainerConfig
from parity.training.forward import Scorer, prepare_model
from parity.training.parallel.fsdp import ShardedRanks

CPU = torch.device("cpu")
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
UP = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture(scope="module")
def ranks() -> Iterator[ShardedRanks]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield ShardedRanks(ParallelConfig(), device=CPU, dtype=torch.float32)
    dist.destroy_process_group()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_family("qwen3, tied", tmp_path / "model", shard_size="1GB")
    return tmp_path / "model"


def streamed(folder: Path) -> tuple[PreTrainedModel, WeightStream | None]:
    return load_streamed(ModelConfig(path=str(folder)), dtype="float32", device=CPU)


def whole(folder: Path) -> PreTrainedModel:
    return load_model(ModelConfig(path=str(folder)), dtype="float32", device="cpu")


def filled(folder: Path, ranks: ShardedRanks) -> Scorer:
    """The scorer of a model that was spread before it had any memory."""
    model, stream = streamed(folder)
    assert stream is not None
    assert all(parameter.is_meta for parameter in model.parameters())
    prepare_model(model, gradient_checkpointing=False, device=CPU)
    scorer = Scorer(model, config=TrainerConfig(), temperature=1.0, device=CPU)
    ranks.shard(scorer, model=model)
    ranks.allocate(scorer)
    stream.fill(model)
    scorer.settle()
    ranks.rest(scorer)
    return scorer


def assert_same(scorer: Scorer, expected: PreTrainedModel, ranks: ShardedRanks) -> None:
    model = scorer.model
    found, state = model.state_dict(), expected.state_dict()
    assert list(found) == list(state)
    found = {name: ranks.whole(tensor) for name, tensor in found.items()}
    found |= dict(model.named_buffers())
    state |= dict(expected.named_buffers())
    assert found.keys() == state.keys()
    for name, tensor in state.items():
        assert found[name].dtype == tensor.dtype, name
        assert torch.equal(found[name], tensor), name
    assert aliases_of(model) == aliases_of(expected)
    assert model.config.to_dict() == expected.config.to_dict()
    assert model.generation_config.to_dict() == expected.generation_config.to_dict()
    lone = Scorer(expected, config=TrainerConfig(), temperature=1.0, device=CPU)
    assert scorer._uses_own_logits == lone._uses_own_logits


def edit(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_is_read_as_from_pretrained_reads_it(tmp_path, ranks, name):
    save_family(name, tmp_path)  # in several files
    assert (tmp_path / "model.safetensors.index.json").is_file()
    assert_same(filled(tmp_path, ranks), whole(tmp_path), ranks)


def test_a_bfloat16_file_becomes_float32_master_weights(tmp_path, ranks):
    save_family("llama", tmp_path, dtype=torch.bfloat16, shard_size="1GB")
    assert_same(filled(tmp_path, ranks), whole(tmp_path), ranks)


def test_an_export_has_the_tensors_that_were_read(tmp_path, ranks):
    save_family("mixtral", tmp_path / "from", shard_size="1GB")
    model = filled(tmp_path / "from", ranks).model
    tensors = {name: ranks.whole(tensor) for name, tensor in model.state_dict().items()}
    model.save_pretrained(tmp_path / "to", state_dict=tensors)
    before, after = (load_file(tmp_path / n / "model.safetensors") for n in ("from", "to"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda w: w.pop(UP), rf"1 missing keys, the first of them {UP}"),
        (lambda w: w.update({"score.weight": torch.zeros(2)}), r"1 unexpected keys, .* score\.w"),
        (
            lambda w: w.update({"model.norm.weight": torch.zeros(2)}),
            r"1 mismatched keys, .* model\.norm\.weight \(is \[2\], must be \[32\]\)",
        ),
        (lambda w: w.update({HEAD: torch.zeros(50, 32)}), "tie_word_embeddings=true"),
    ],
    ids=["missing", "unknown", "other shape", "tied in words"],
)
def test_weights_that_do_not_fit_are_refused_by_name(folder, change, sentence):
    edit(folder, change)
    with pytest.raises(CheckpointError, match=sentence):
        streamed(folder)


def test_an_untied_head_without_weights_is_refused(folder):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "tie_word_embeddings": False}))
    with pytest.raises(CheckpointError, match=r"1 missing keys.*lm_head\.weight"):
        streamed(folder)


def test_a_missing_expert_is_refused(tmp_path):
    save_family("mixtral", tmp_path, shard_size="1GB")
    edit(tmp_path, lambda w: w.pop(next(name for name in w if ".experts.2." in name)))
    with pytest.raises(CheckpointError, match=r"mismatched keys.*experts|can't be loaded"):
        streamed(tmp_path)


@pytest.mark.parametrize("both", [True, False])
def test_a_tied_weight_may_be_stored_twice_or_under_its_other_name(folder, ranks, both):
    def rename(weights: dict[str, torch.Tensor]) -> None:
        weights[HEAD] = weights[EMBEDDING].clone()
        if not both:
            del weights[EMBEDDING]

    edit(folder, rename)
    assert_same(filled(folder, ranks), whole(folder), ranks)


def test_a_damaged_file_is_an_error(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="damaged weight file"):
        streamed(folder)


def test_a_file_that_the_index_names_and_nobody_wrote_is_an_error(tmp_path):
    save_family("llama", tmp_path)
    next(tmp_path.glob("model-00002*")).unlink()
    with pytest.raises(CheckpointError, match="can't be loaded"):
        streamed(tmp_path)


def test_what_cannot_be_read_in_parts_is_loaded_whole_with_the_reason(folder, caplog):
    expected = whole(folder).state_dict()
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    with caplog.at_level(logging.WARNING, logger="parity"):
        model, stream = streamed(folder)
    assert stream is None
    assert "event=model_loaded_whole" in caplog.text
    assert "reason=it has no safetensors files" in caplog.text
    assert all(torch.equal(model.state_dict()[name], each) for name, each in expected.items())


def test_an_adapter_is_left_to_transformers(folder, caplog):
    shutil.copy(folder / "config.json", folder / "adapter_config.json")
    with caplog.at_level(logging.WARNING, logger="parity"):
        assert streamed(folder)[1] is None
    assert "reason=it is an adapter" in caplog.text
