"""The values that move between the parts of a run.

Shape letters, the same everywhere: G groups, N siblings of a group, L tokens of one
sample, R rows of a micro-batch, T trained tokens (flat), V vocabulary, H hidden.

All values are frozen and plain Python (no torch), so that graders, the command line
and tests can import them at no cost. Tensors begin in `training/packing.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
Split = Literal["train", "eval"]
FinishReason = Literal["stop", "length", "abort"]
MAX_REWARD = 1e20  # magnitude of a reward; beyond it float32 losses overflow
NO_VERSION = -1  # version of a token that no engine sampled (prompt, tool output)


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Task:
    """One prompt with what is needed to judge an answer.

    Exactly one of `prompt` (plain text, sent as it is) and `messages` (chat, sent
    through the chat template) is set. `tokens` is empty until the task was rendered;
    afterwards it holds the ids exactly as the engine receives them.
    """

    task_id: str
    prompt: str | None = None
    messages: tuple[Message, ...] | None = None
    answer: str | None = None
    columns: Mapping[str, Json] = field(default_factory=dict[str, Json])
    tokens: tuple[int, ...] = ()

    @property
    def question(self) -> str:
        """The text a person would call the question: the prompt or the last message."""
        if self.prompt is not None:
            return self.prompt
        return self.messages[-1].content if self.messages else ""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How one completion is sampled. `top_k=0` and `top_p=1.0` are off.

    `temperature=0` is greedy. `seed` makes the completion a function of weights, prompt
    and seed alone, whatever else the engine is decoding beside it; `None` asks the engine
    to choose one. Tokens in `stop_token_ids` end the completion and are kept as its last
    token; a `stop` string ends it after the token that completes the string.
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Completion:
    """What an engine sampled for one prompt; the three tuples have one entry per token.

    `logprobs` are natural-log probabilities of the sampled tokens under the softmax of
    logits / temperature, before top-p and top-k, under the version stamped beside them
    (temperature 0: of the untempered logits).
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    finish_reason: FinishReason
    prompt_version: int = NO_VERSION  # version the prompt was prefilled under


@dataclass(frozen=True, slots=True)
class Scored:
    """A reward that was computed: a finite number, and its named parts where it has any."""

    value: float
    parts: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True)
class Unscored:
    """The answer can't be graded, which is not a wrong answer: never enters a mean."""

    reason: str


@dataclass(frozen=True, slots=True)
class GraderFailure:
    """Engine or grader broke (crash, time-out, exception); `retryable` if a new try may help.

    `lost_process`: the grader process was lost at this answer, perhaps by the doing of one
    before it, so another try belongs into a process of its own.
    """

    reason: str
    retryable: bool = True
    lost_process: bool = False


RewardResult = Scored | Unscored | GraderFailure


@dataclass(frozen=True, slots=True)
class Answer:
    """What a grader sees of an episode: plain text and data, no tokens."""

    task_id: str
    question: str
    response: str
    expected: str | None
    columns: Mapping[str, Json]
    is_truncated: bool
    split: Split = "train"


@dataclass(frozen=True, slots=True)
class Episode:
    """One attempt at a task: token ids as sent and sampled, and what it was worth.

    The four tuples have L entries: prompt, then everything that followed. `loss_mask` is
    True on sampled tokens; `logprobs` is 0.0 and `versions` is NO_VERSION elsewhere.
    """

    episode_id: str
    task: Task
    tokens: tuple[int, ...]
    loss_mask: tuple[bool, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    response: str
    finish_reason: FinishReason
    reward: RewardResult

    @property
    def num_response_tokens(self) -> int:
        """Tokens that followed the prompt."""
        return len(self.tokens) - len(self.task.tokens)


@dataclass(frozen=True, slots=True)
class Group:
    """The N sibling episodes of one task, in sibling order."""

    task: Task
    episodes: tuple[Episode, ...]
    index: int  # position in the order of issue, from 0; unique within a run

    @property
    def rewards(self) -> tuple[float | None, ...]:
        """Per sibling its value, or None where there is none."""
        results = (episode.reward for episode in self.episodes)
        return tuple(r.value if isinstance(r, Scored) else None for r in results)


@dataclass(frozen=True, slots=True)
class Sample:
    """The trainable form of an episode; the tuples have L entries each.

    `group` ties siblings together; what any samples of a batch have in common at their
    beginnings is computed once (`training/packing.py`).
    """

    group: int
    tokens: tuple[int, ...]
    loss_mask: tuple[bool, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    advantages: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one optimizer step did: metric name -> value (names from `observe/names.py`).

    `is_applied` is False where the step was skipped (nothing to train on).
    """

    step: int
    metrics: Mapping[str, float]
    is_applied: bool = True
