"""Makes a small Qwen3-style model and a character tokenizer, as ordinary Hugging Face files.

Used by `parity sft` (a model to start from without any download), by tests and by benches.
Nothing about it is special to the rest of Parity: it loads through `loading.py` like any
other model. Invariants: the same shape and seed give the same weights; for printable ASCII
and newlines `decode(encode(text)) == text`, whatever the text says, because the names of
the special tokens hold characters that no such text has.
"""

from pathlib import Path
from typing import Protocol

import torch
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from parity.errors import ConfigError
from parity.models.loading import quiet

ALPHABET = "\n" + "".join(chr(code) for code in range(0x20, 0x7F))
PAD, EOS, BOS, UNKNOWN = (f"\u27e8{name}\u27e9" for name in ("pad", "eos", "bos", "unk"))
SPECIAL_TOKENS = (PAD, EOS, BOS, UNKNOWN)  # ids 0, 1, 2, 3


class TinyShape(Protocol):
    """The numbers of a tiny model; `TinyModelConfig` of the run file is one."""

    @property
    def hidden_size(self) -> int:
        """Width of the residual stream."""
        ...

    @property
    def intermediate_size(self) -> int:
        """Width inside the feed-forward blocks."""
        ...

    @property
    def num_layers(self) -> int:
        """Transformer blocks."""
        ...

    @property
    def num_heads(self) -> int:
        """Query heads."""
        ...

    @property
    def num_key_value_heads(self) -> int:
        """Key and value heads; divides `num_heads`."""
        ...

    @property
    def head_dim(self) -> int:
        """Width of a head; even, because rotary embeddings turn pairs."""
        ...

    @property
    def max_length(self) -> int:
        """Prompt plus answer tokens."""
        ...


def make_tiny(shape: TinyShape, seed: int) -> tuple[Qwen3ForCausalLM, PreTrainedTokenizerFast]:
    """A float32 model with tied embeddings and random weights, and its tokenizer.

    The random state of the caller stays as it was.
    """
    check_shape(shape)
    tokenizer = character_tokenizer(max_length=shape.max_length)
    config = Qwen3Config(
        vocab_size=len(SPECIAL_TOKENS) + len(ALPHABET),
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_key_value_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=shape.max_length,
        tie_word_embeddings=True,
        pad_token_id=SPECIAL_TOKENS.index(PAD),
        eos_token_id=SPECIAL_TOKENS.index(EOS),
        bos_token_id=SPECIAL_TOKENS.index(BOS),
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    return model.float().eval(), tokenizer


def save_tiny(shape: TinyShape, seed: int, folder: Path) -> None:
    """Make a tiny model and write it and its tokenizer to `folder`, which must be new or empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} exists and isn't an empty folder; choose another.")
    model, tokenizer = make_tiny(shape, seed)
    with quiet():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def character_tokenizer(*, max_length: int) -> PreTrainedTokenizerFast:
    """A tokenizer with one id per printable ASCII character and newline; no chat template.

    Every other character becomes the unknown token. No special token is ever added to a text.
    """
    vocabulary = {token: index for index, token in enumerate((*SPECIAL_TOKENS, *ALPHABET))}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=UNKNOWN))
    backend.decoder = decoders.Fuse()  # pyright: ignore[reportAttributeAccessIssue]
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        eos_token=EOS,
        bos_token=BOS,
        unk_token=UNKNOWN,
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
    )


def check_shape(shape: TinyShape) -> None:
    """Refuse numbers that don't make a model, before torch makes something else of them."""
    sizes = {
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_layers": shape.num_layers,
        "num_heads": shape.num_heads,
        "num_key_value_heads": shape.num_key_value_heads,
        "head_dim": shape.head_dim,
        "max_length": shape.max_length,
    }
    for key, value in sizes.items():
        if value < 1:
            raise ConfigError(f"tiny_model.{key} is {value}; it must be >= 1.")
    if shape.num_heads % shape.num_key_value_heads:
        raise ConfigError(
            f"tiny_model.num_key_value_heads is {shape.num_key_value_heads}; it must divide"
            f" tiny_model.num_heads={shape.num_heads}."
        )
    if shape.head_dim % 2:
        raise ConfigError(f"tiny_model.head_dim is {shape.head_dim}; it must be even.")
