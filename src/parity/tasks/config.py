"""What a run file may say about tasks; one dataclass per source (no torch here)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from parity import checks
from parity.errors import ConfigError
from parity.types import Json

OnBad = Literal["stop", "skip"]


@dataclass(frozen=True, kw_only=True)
class ReasoningGymConfig:
    """`tasks.name=reasoning_gym`: a procedural data set of the reasoning-gym package."""

    name: Literal["reasoning_gym"] = "reasoning_gym"
    dataset: str = "spell_backward"  # data set name in reasoning-gym
    settings: Mapping[str, Json] = field(default_factory=dict[str, Json])  # its own options
    size: int = 100000  # distinct tasks in an epoch, >= 1
    system: str | None = None  # system message in front; only with chat=true
    chat: bool = False  # True: send as a chat message through the template
    suffix: str = ""  # text that ends a plain prompt

    def __post_init__(self) -> None:
        checks.at_least("size", self.size, 1)
        if self.system is not None and not self.chat:
            raise ConfigError("system is set but chat is false; set chat=true or system=null.")


@dataclass(frozen=True, kw_only=True)
class FileConfig:
    """`tasks.name=jsonl` or `parquet`: one record per task, every other column kept."""

    name: Literal["jsonl", "parquet"] = "jsonl"
    path: str | None = None  # file
    prompt_column: str = "prompt"  # text, or a list of {role, content} messages
    answer_column: str = "answer"  # expected answer, or absent
    id_column: str | None = None  # stable id; null: row number and digest of the record
    chat: bool | None = None  # text prompts become user messages; null: if there is a template
    system: str | None = None  # system message in front of chat prompts
    on_bad: OnBad = "stop"  # what an unusable record does
    max_bad: int = 100  # records that `skip` may pass over, >= 0

    def __post_init__(self) -> None:
        checks.one_of("on_bad", self.on_bad, get_args(OnBad))
        checks.at_least("max_bad", self.max_bad, 0)
        if self.system is not None and self.chat is False:
            raise ConfigError("system is set but chat is false; set chat=true or system=null.")


@dataclass(frozen=True, kw_only=True)
class PromptsConfig:
    """Which prompts are sent: their order and their length, measured as sent."""

    max_prompt_tokens: int = 1024  # longer ones are refused or skipped, >= 1
    on_long: OnBad = "skip"  # what a longer prompt does
    max_long: int = 1000  # tasks that `skip` may pass over in a run, >= 0
    shuffle: bool = True  # False: in the source's own order

    def __post_init__(self) -> None:
        checks.at_least("max_prompt_tokens", self.max_prompt_tokens, 1)
        checks.one_of("on_long", self.on_long, get_args(OnBad))
        checks.at_least("max_long", self.max_long, 0)
