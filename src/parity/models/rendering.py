"""Turns tasks into the ids that the engine receives, and answers back into text.

Used by the task stream (which measures prompts with it), SFT and evaluation. Invariants:
there is one path from a task to its ids, so what is measured is what is sent; ids that an
engine sampled are only ever decoded for people and graders, never encoded again. Neither
torch nor transformers is imported here.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from jinja2 import TemplateError, TemplateSyntaxError

from parity.errors import ConfigError, DataError
from parity.registry import known
from parity.types import Message, Task

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedTokenizerBase


class Renderer:
    """Prompts to ids and ids to text, with one tokenizer and one chat template."""

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        *,
        chat_template: str | None = None,
        eos_tokens: Sequence[str] = (),
    ) -> None:
        """Prepare both ways.

        Args:
            chat_template: Jinja text or a file path; None takes the tokenizer's own.
            eos_tokens: `model.eos_tokens`; the first one ends an answer in a chat.

        Raises ConfigError for a template with a syntax error and for an unknown token.
        """
        self._tokenizer = tokenizer
        self._template = read_chat_template(chat_template)
        self._chat_eos = _ids_of(tokenizer, eos_tokens)[:1]
        self._plain_prefix = _plain_prefix(tokenizer)
        if self.has_chat_template:
            self._check_syntax()

    @property
    def has_chat_template(self) -> bool:
        """Whether tasks with chat messages can be rendered."""
        return bool(self._template or self._tokenizer.chat_template)

    def render(self, task: Task) -> tuple[int, ...]:
        """The ids exactly as the engine receives them; at least one.

        A plain prompt is encoded as it stands, with the beginning-of-text token in front where
        the tokenizer puts one before plain text, and no other special token. (A special token
        that the prompt spells out is encoded as that token.) Chat messages go through the chat
        template, which ends with the opening of the assistant's turn.

        Raises ConfigError for chat messages without a template, and DataError for a task that
        the template or the tokenizer refuses.
        """
        if (task.prompt is None) == (task.messages is None):
            raise DataError(f"{task.task_id}: a task needs either a prompt or messages, not both.")
        try:
            if task.messages is not None:
                ids = self._render_chat(task.messages)
            else:
                ids = self._render_plain(task.prompt or "")
        except TemplateError as error:
            raise DataError(f"{task.task_id}: the chat template refuses it: {error}") from error
        except (TypeError, UnicodeError) as error:  # for example half of a surrogate pair
            raise DataError(f"{task.task_id}: the tokenizer refuses it: {error}") from error
        if not ids:
            raise DataError(f"{task.task_id}: its prompt has no tokens; a prompt can't be empty.")
        return tuple(ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of sampled ids, without special tokens, every space kept."""
        text = self._tokenizer.decode(
            list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        assert isinstance(text, str), "decoding one sequence gives one text"
        return text

    def encode_answer(self, task: Task, text: str) -> tuple[int, ...]:
        """The ids of an answer as an engine would have sampled it: the text, then its end.

        The answer is encoded apart from the prompt, so the prompt keeps its ids.
        """
        ids = self._tokenizer.encode(text, add_special_tokens=False)
        return (*ids, self._eos(is_chat=task.messages is not None))

    def check(self, vocabulary: int) -> None:
        """Refuse a tokenizer with ids beyond the model's vocabulary."""
        check_vocabulary(self._tokenizer, vocabulary)

    def _render_plain(self, prompt: str) -> list[int]:
        ids = self._tokenizer.encode(prompt, add_special_tokens=False)
        has_prefix = ids[: len(self._plain_prefix)] == self._plain_prefix
        return ids if has_prefix else self._plain_prefix + ids

    def _render_chat(self, messages: Sequence[Message]) -> list[int]:
        if not self.has_chat_template:
            raise ConfigError(
                "the tasks are chat messages, but the tokenizer has no chat template; set"
                " model.chat_template=FILE, or tasks.chat=false to send plain prompts, or"
                " model.tokenizer to one that has a template."
            )
        ids = self._tokenizer.apply_chat_template(
            [{"role": message.role, "content": message.content} for message in messages],
            chat_template=self._template,
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
        )
        return cast("list[int]", ids)

    def _check_syntax(self) -> None:
        """Let the template see one message; it may refuse that, but it must be Jinja."""
        try:
            self._render_chat([Message("user", "a")])
        except TemplateSyntaxError as error:
            raise ConfigError(
                f"the chat template has a syntax error in line {error.lineno}: {error.message};"
                " correct it or set model.chat_template."
            ) from error
        except TemplateError:  # what it thinks of a real conversation is told for each task
            return

    def _eos(self, *, is_chat: bool) -> int:
        if is_chat and self._chat_eos:
            return self._chat_eos[0]
        eos = self._tokenizer.eos_token_id
        if not isinstance(eos, int):
            raise ConfigError(
                "the tokenizer has no end-of-text token, so no answer can end; set model.tokenizer"
                " to one that has it."
            )
        return eos


def eos_token_ids(
    generation: "GenerationConfig | None",
    tokenizer: "PreTrainedTokenizerBase",
    *,
    eos_tokens: Sequence[str] = (),
) -> frozenset[int]:
    """Every id that ends an answer: the model's, the tokenizer's and `model.eos_tokens`.

    An id stays in even where it is the padding token too. Raises ConfigError where there is
    none, or where one of `eos_tokens` isn't a token.
    """
    found = set(_ids_of(tokenizer, eos_tokens))
    for ids in (generation.eos_token_id if generation else None, tokenizer.eos_token_id):
        several = ids if isinstance(ids, list) else [ids]
        found.update(int(token) for token in several if token is not None)
    if not found:
        raise ConfigError(
            "neither the model's generation config nor the tokenizer names an end-of-text token,"
            " so no answer could end; set model.eos_tokens."
        )
    return frozenset(found)


def check_vocabulary(tokenizer: "PreTrainedTokenizerBase", vocabulary: int) -> None:
    """Refuse a tokenizer that can produce an id which the model has no embedding for."""
    largest = max(tokenizer.get_vocab().values())
    if largest >= vocabulary:
        raise ConfigError(
            f"the tokenizer's largest id is {largest}, but the model's vocabulary has"
            f" {vocabulary} entries; set model.tokenizer to the one that belongs to the model."
        )


def read_chat_template(template: str | None) -> str | None:
    """The Jinja text that `model.chat_template` means: itself, or what the file holds."""
    if template is None or "{" in template or "\n" in template:
        return template
    try:
        return Path(template).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"model.chat_template is {template!r}, which is neither Jinja text nor a readable"
            f" UTF-8 file ({error})."
        ) from error


def _ids_of(tokenizer: "PreTrainedTokenizerBase", tokens: Sequence[str]) -> list[int]:
    """The ids of tokens given as text."""
    if not tokens:
        return []
    vocabulary = tokenizer.get_vocab()
    for token in tokens:
        if token not in vocabulary:
            names = sorted(tokenizer.all_special_tokens)
            raise ConfigError(
                f"model.eos_tokens has {token!r}, which isn't a token of the tokenizer; special"
                f" ones {known(token, names)}"
            )
    return [vocabulary[token] for token in tokens]


def _plain_prefix(tokenizer: "PreTrainedTokenizerBase") -> list[int]:
    """The beginning-of-text id where the tokenizer puts it before plain text, else nothing."""
    bare = tokenizer.encode("a", add_special_tokens=False)
    full = tokenizer.encode("a", add_special_tokens=True)
    bos = tokenizer.bos_token_id
    return [bos] if isinstance(bos, int) and full[:1] == [bos] and bare[:1] != [bos] else []
