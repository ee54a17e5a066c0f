import pytest
import torch
from safetensors import SafetensorError
from torch.distributed.checkpoint import FileSystemReader
from transformers import AutoModelForCausalLM
from unit.training.tiny import policy_objective, ragged_samples, tiny_model, tiny_trainer

from parity.errors import CheckpointError
from parity.models.tiny import character_tokenizer
from parity.training.config import AdamWConfig, ScheduleConfig

SETTINGS = {
    "optimizer": AdamWConfig(lr=1e-2, weight_decay=0.1),
    "schedule": ScheduleConfig(shape="cosine", warmup_steps=2),
}


def new_trainer(model=None):
    return tiny_trainer(model, objective=policy_objective(kl=0.1), **SETTINGS)


def comparable(report):
    return {name: v for name, v in report.metrics.items() if name != "train/step_s"}


@pytest.mark.parametrize("family", ["qwen3", "llama"])
@pytest.mark.parametrize("steps_before", [0, 2])
def test_a_resumed_trainer_goes_on_bit_for_bit(tmp_path, family, steps_before):
    batches = [ragged_samples(seed=seed) for seed in range(5)]
    straight = new_trainer(tiny_model(family))
    for batch in batches[:steps_before]:
        straight.step(batch)
    torch.manual_seed(123)
    straight.save(tmp_path)
    random_number = torch.rand(())
    resumed = new_trainer(tiny_model(family))  # starts from the starting weights, as a run does
    resumed.load(tmp_path)
    assert torch.equal(torch.rand(()), random_number)
    assert resumed.step_index == steps_before
    for batch in batches[steps_before:]:
        assert comparable(straight.step(batch)) == comparable(resumed.step(batch))
    assert straight._tensors().keys() == resumed._tensors().keys()
    for name, tensor in straight._tensors().items():
        assert torch.equal(tensor, resumed._tensors()[name]), name
    for (name, one), (_, other) in zip(
        straight.named_weights(), resumed.named_weights(), strict=True
    ):
        assert torch.equal(one, other), name


def test_a_resumed_trainer_keeps_ties_and_optimizes_what_it_loaded(tmp_path):
    trainer = new_trainer()
    trainer.step(ragged_samples())
    trainer.save(tmp_path)
    trainer.load(tmp_path)
    assert trainer.model.lm_head.weight is trainer.model.model.embed_tokens.weight
    before = trainer.model.lm_head.weight.detach().clone()
    trainer.step(ragged_samples())
    assert not torch.equal(before, trainer.model.lm_head.weight)


def test_the_folder_is_a_hugging_face_model_beside_a_distributed_checkpoint(tmp_path):
    trainer = new_trainer()
    trainer.step(ragged_samples())
    trainer.save(tmp_path)
    assert (tmp_path / "model.safetensors").is_file()
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).state_dict()
    for name, tensor in trainer.model.state_dict().items():
        assert torch.equal(loaded[name], tensor), name
    stored = FileSystemReader(tmp_path / "trainer").read_metadata().state_dict_metadata
    assert "step_index" in stored
    assert "optimizer.model.embed_tokens.weight.exp_avg_sq" in stored
    assert "random.host" in stored


def test_a_checkpoint_of_another_model_is_refused_and_changes_nothing(tmp_path):
    new_trainer().save(tmp_path)
    for other in (tiny_model("llama"), tiny_model("gpt2")):
        trainer = new_trainer(other)
        before = [tensor.clone() for _, tensor in trainer.named_weights()]
        with pytest.raises(CheckpointError, match="doesn't fit this run"):
            trainer.load(tmp_path)
        for old, (_, new) in zip(before, trainer.named_weights(), strict=True):
            assert torch.equal(old, new)


def test_a_checkpoint_without_its_trainer_part_is_refused(tmp_path):
    trainer = new_trainer()
    trainer.save(tmp_path)
    (tmp_path / "trainer" / ".metadata").unlink()
    with pytest.raises(CheckpointError, match="can't be read"):
        trainer.load(tmp_path)


def test_saving_and_loading_say_nothing(tmp_path, capfd, recwarn):
    trainer = new_trainer()
    trainer.save(tmp_path)
    trainer.load(tmp_path)
    assert capfd.readouterr() == ("", "")
    assert [str(w.message) for w in recwarn if "distributed" in str(w.message)] == []


@pytest.mark.parametrize(
    "error",
    [
        SafetensorError("Error while serializing: I/O error: No space left (os error 28)"),
        OSError(28, "No space left"),
    ],
)
def test_a_full_disk_is_one_sentence_of_an_export(tmp_path, monkeypatch, error):
    trainer = new_trainer()

    def full(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(type(trainer.model), "save_pretrained", full)
    with pytest.raises(CheckpointError, match=r"can't be written to .*No space left.*Free disk"):
        trainer.export(tmp_path / "model", character_tokenizer(max_length=64))


def test_an_export_is_a_plain_hugging_face_folder(tmp_path):
    trainer = new_trainer()
    tokenizer = character_tokenizer(max_length=64)
    trainer.export(tmp_path / "export", tokenizer)
    files = {path.name for path in (tmp_path / "export").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= files
    assert "trainer" not in files
    AutoModelForCausalLM.from_pretrained(tmp_path / "export")
