from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from parity.config.schema import TinyModelConfig
from parity.errors import ConfigError
from parity.models.tiny import (
    ALPHABET,
    SPECIAL_TOKENS,
    character_tokenizer,
    check_shape,
    make_tiny,
    save_tiny,
)

SMALL = TinyModelConfig(
    hidden_size=16,
    intermediate_size=32,
    num_layers=2,
    num_heads=2,
    num_key_value_heads=1,
    head_dim=8,
    max_length=64,
)
TOKENIZER = character_tokenizer(max_length=64)


@settings(max_examples=50, deadline=None)
@given(st.text(alphabet=ALPHABET, max_size=80))
def test_text_survives_encoding_and_decoding(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


@pytest.mark.parametrize("text", ["<eos>", "<pad> <unk>", " don't , you . ", "\n\n a  b\n", ""])
def test_text_that_looks_special_survives_too(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert len(ids) == len(text)
    assert TOKENIZER.decode(ids, skip_special_tokens=True) == text


def test_ids_are_special_tokens_first_and_no_text_makes_one() -> None:
    assert TOKENIZER.convert_tokens_to_ids(list(SPECIAL_TOKENS)) == [0, 1, 2, 3]
    assert (TOKENIZER.pad_token_id, TOKENIZER.eos_token_id) == (0, 1)
    assert (TOKENIZER.bos_token_id, TOKENIZER.unk_token_id) == (2, 3)
    assert sorted(TOKENIZER.encode(ALPHABET)) == list(range(4, 100))
    assert TOKENIZER.encode("\t\u00e9\u2028") == [3, 3, 3]
    assert TOKENIZER.chat_template is None


def test_the_same_seed_gives_the_same_weights_and_another_seed_others() -> None:
    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    first, second, other = make_tiny(SMALL, 1)[0], make_tiny(SMALL, 1)[0], make_tiny(SMALL, 2)[0]
    assert torch.equal(torch.random.get_rng_state(), before)
    name = "model.layers.1.mlp.up_proj.weight"
    assert torch.equal(first.state_dict()[name], second.state_dict()[name])
    assert not torch.equal(first.state_dict()[name], other.state_dict()[name])


def test_a_tiny_model_is_saved_and_loaded_as_ordinary_files(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    save_tiny(SMALL, 3, folder)
    model, tokenizer = make_tiny(SMALL, 3)
    read = AutoModelForCausalLM.from_pretrained(folder)
    read_tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = torch.tensor([read_tokenizer.encode("3+4=")])
    assert ids.tolist() == [tokenizer.encode("3+4=")]
    assert torch.equal(read(ids).logits, model(ids).logits)
    assert read.dtype == torch.float32
    assert read.generation_config.eos_token_id == 1
    assert read.config.tie_word_embeddings
    assert read.lm_head.weight is read.model.embed_tokens.weight
    assert read.config.vocab_size == len(read_tokenizer) == 100
    assert read_tokenizer.decode(read_tokenizer.encode(ALPHABET * 2)) == ALPHABET * 2


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="isn't an empty folder"):
        save_tiny(SMALL, 0, tmp_path)
    assert (tmp_path / "config.json").read_text() == "{}"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_layers": 0}, "num_layers is 0"),
        ({"num_heads": 3, "num_key_value_heads": 2}, "must divide"),
        ({"head_dim": 7}, "head_dim is 7"),
    ],
)
def test_impossible_shapes_are_refused(change: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_shape(replace(SMALL, **change))
