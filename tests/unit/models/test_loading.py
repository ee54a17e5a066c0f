import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file

from parity.config.schema import TinyModelConfig
from parity.errors import CheckpointError, ConfigError, UnsupportedError
from parity.models.config import ModelConfig
from parity.models.loading import load_model, load_tokenizer, vocab_size
from parity.models.tiny import character_tokenizer, make_tiny, save_tiny

SMALL = TinyModelConfig(
    hidden_size=16,
    intermediate_size=32,
    num_layers=2,
    num_heads=2,
    num_key_value_heads=1,
    head_dim=8,
    max_length=64,
)
UP = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    save_tiny(SMALL, 5, folder)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "copy"))


def load(folder: Path, **changes: object):
    return load_model(ModelConfig(path=str(folder), **changes), dtype="float32", device="cpu")


def edit_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def edit_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_model_comes_back_with_every_weight(saved: Path) -> None:
    model = load(saved)
    made, _ = make_tiny(SMALL, 5)
    state = model.state_dict()
    assert state.keys() == made.state_dict().keys()
    assert all(torch.equal(state[name], tensor) for name, tensor in made.state_dict().items())
    assert not model.training
    assert model.config._attn_implementation == "sdpa"
    assert vocab_size(model.config) == 100


def test_a_trained_model_stays_so_when_its_files_are_written_again(folder: Path) -> None:
    model = load_model(ModelConfig(path=str(folder)), dtype="float32", device="cpu")
    tied = model.get_input_embeddings().weight is model.get_output_embeddings().weight
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    trained = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for path in folder.glob("*.safetensors"):
        path.write_bytes(path.read_bytes())
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, trained[name]), name
    assert tied == (model.get_input_embeddings().weight is model.get_output_embeddings().weight)


def test_dtype_and_attention_are_taken_from_the_run_file(saved: Path) -> None:
    config = ModelConfig(path=str(saved), attention="eager")
    model = load_model(config, dtype="bfloat16", device=torch.device("cpu"))
    assert model.dtype == torch.bfloat16
    assert model.config._attn_implementation == "eager"
    with pytest.raises(ConfigError, match="dtype is 'fp32'; it must be one of float32"):
        load_model(config, dtype="fp32", device="cpu")


def test_loading_says_nothing_and_leaves_the_log_level(saved: Path, capfd) -> None:
    from transformers.utils import logging

    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    load(saved)
    assert capfd.readouterr() == ("", "")
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before


def test_a_missing_weight_is_an_error_and_never_random(folder: Path) -> None:
    edit_weights(folder, lambda weights: weights.pop(UP))
    with pytest.raises(CheckpointError, match=rf"1 missing keys, the first of them {UP}"):
        load(folder)


def test_an_unknown_weight_is_an_error(folder: Path) -> None:
    edit_weights(folder, lambda weights: weights.update({"score.weight": torch.zeros(2)}))
    with pytest.raises(CheckpointError, match=r"1 unexpected keys, .* score\.weight"):
        load(folder)


def test_a_weight_of_another_shape_is_an_error(folder: Path) -> None:
    edit_weights(folder, lambda weights: weights.update({"model.norm.weight": torch.zeros(2)}))
    with pytest.raises(CheckpointError, match="can't be loaded"):
        load(folder)


def test_an_untied_head_without_weights_is_an_error(folder: Path) -> None:
    edit_config(folder, tie_word_embeddings=False)
    with pytest.raises(CheckpointError, match=r"1 missing keys.*lm_head\.weight"):
        load(folder)


def test_a_head_that_is_tied_only_in_words_is_an_error(folder: Path) -> None:
    head = torch.ones(100, 16)
    edit_weights(folder, lambda weights: weights.update({"lm_head.weight": head}))
    with pytest.raises(CheckpointError, match="tie_word_embeddings=true"):
        load(folder)
    edit_config(folder, tie_word_embeddings=False)
    assert torch.equal(load(folder).state_dict()["lm_head.weight"], head)


@pytest.mark.parametrize("content", [b"", b"abc", None])
def test_a_damaged_weight_file_is_an_error(folder: Path, content: bytes | None) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100] if content is None else content)
    with pytest.raises(CheckpointError, match="damaged weight file"):
        load(folder)


def test_a_missing_weight_file_is_an_error(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"no file named model\.safetensors"):
        load(folder)


def test_a_damaged_pickle_is_an_error(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"not a pickle")
    with pytest.raises(CheckpointError):
        load(folder)


def test_a_folder_without_config_is_an_error(folder: Path) -> None:
    (folder / "config.json").unlink()
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        load(folder)


@pytest.mark.parametrize("text", ["{", "[]", '{"hidden_size": 3}', '{"model_type": "unheard"}'])
def test_a_config_of_nothing_known_is_an_error(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(ConfigError, match="no config that can be used") as caught:
        load(folder)
    assert "\n" not in str(caught.value)


def test_a_model_that_generates_no_text_is_an_error(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "t5"}')
    with pytest.raises(ConfigError, match="'t5' model, which isn't a causal language model"):
        load(folder)


def test_foreign_code_is_not_run_and_not_asked_about(folder: Path) -> None:
    own = {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}
    edit_config(folder, model_type="foreign", auto_map=own)
    with pytest.raises(ConfigError, match=r"its own Python code.*model\.trust_remote_code=true"):
        load(folder)


def test_an_attention_that_is_not_installed_is_unsupported(saved: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"FlashAttention2.*model\.attention=sdpa"):
        load(saved, attention="flash_attention_2")


def test_a_hub_name_fails_at_once_without_a_hub(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match=r"no such folder in .*, the hub can't be reached"):
        load_model(ModelConfig(path="owner/name"), dtype="float32", device="cpu")
    with pytest.raises(ConfigError, match=r"owner/name': there is no such folder"):
        load_tokenizer(ModelConfig(path="x", tokenizer="owner/name"))


def test_a_tokenizer_larger_than_the_model_is_refused_before_the_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    tokenizer = character_tokenizer(max_length=64)
    tokenizer.add_tokens(["extra"])
    config = ModelConfig(path=str(folder))
    with pytest.raises(ConfigError, match="largest id is 100, but the model's vocabulary has 100"):
        load_model(config, dtype="float32", device="cpu", tokenizer=tokenizer)


def test_a_tokenizer_comes_from_its_own_folder_or_the_models(saved: Path, folder: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    with pytest.raises(ConfigError, match=r"no tokenizer files; set model\.tokenizer"):
        load_tokenizer(ModelConfig(path=str(folder)))
    tokenizer = load_tokenizer(ModelConfig(path=str(folder), tokenizer=str(saved)))
    assert tokenizer.encode("hi") == character_tokenizer(max_length=64).encode("hi")


def test_a_tokenizer_is_never_made_up(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match="no tokenizer that can be read"):
        load_tokenizer(ModelConfig(path=str(folder)))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "Qwen2Tokenizer"}')
    with pytest.raises(ConfigError, match="a tokenizer without a vocabulary"):
        load_tokenizer(ModelConfig(path=str(folder)))
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(ConfigError, match="no tokenizer that can be read"):
        load_tokenizer(ModelConfig(path=str(folder)))


def test_a_chat_template_of_the_run_file_is_saved_with_the_tokenizer(
    saved: Path, tmp_path: Path
) -> None:
    (tmp_path / "chat.jinja").write_text("{{ messages[0].content }}!")
    config = ModelConfig(path=str(saved), chat_template=str(tmp_path / "chat.jinja"))
    load_tokenizer(config).save_pretrained(tmp_path / "out")
    read = load_tokenizer(ModelConfig(path=str(tmp_path / "out")))
    assert read.chat_template == "{{ messages[0].content }}!"
    with pytest.raises(ConfigError, match="neither Jinja text nor a readable"):
        load_tokenizer(ModelConfig(path=str(saved), chat_template="no-such-file.jinja"))
