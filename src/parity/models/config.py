"""What a run file may say about the model and its tokenizer (no torch here)."""

from dataclasses import dataclass
from typing import Literal, get_args

from parity import checks
from parity.errors import ConfigError

Attention = Literal["sdpa", "eager", "flash_attention_2"]


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Which causal language model is trained."""

    path: str | None = None  # folder or hub name; `parity://NAME` is a model that ships with Parity
    tokenizer: str | None = None  # folder or hub name; null: the model's own
    chat_template: str | None = None  # Jinja text or a file path; null: the tokenizer's own
    eos_tokens: tuple[str, ...] = ()  # further tokens that end an answer, e.g. `<|im_end|>`
    attention: Attention = "sdpa"
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        checks.one_of("attention", self.attention, get_args(Attention))
        if self.path is not None and not self.path.strip():
            raise ConfigError("path is empty; give a model folder or a hub name.")
