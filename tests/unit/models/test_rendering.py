import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import GenerationConfig, PreTrainedTokenizerFast

from parity.errors import ConfigError, DataError
from parity.models.rendering import (
    Renderer,
    check_vocabulary,
    eos_token_ids,
    read_chat_template,
)
from parity.models.tiny import ALPHABET, EOS, character_tokenizer
from parity.types import Message, Task

CHAT = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
STRICT = (
    "{% if messages[0].role != 'user' %}{{ raise_exception('user must be first') }}{% endif %}"
    "{{ messages[0].content }}"
)
TINY = character_tokenizer(max_length=512)


def byte_tokenizer(*, has_bos: bool, pad: str = "<pad>") -> PreTrainedTokenizerFast:
    """A byte-level tokenizer with merges, like those of real models."""
    letters = pre_tokenizers.ByteLevel.alphabet()
    special = ["<s>", "</s>", "<pad>", "<|end|>"]
    vocabulary = {token: index for index, token in enumerate([*special, *sorted(letters), "he"])}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[("h", "e")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    if has_bos:
        backend.post_processor = TemplateProcessing(
            single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        eos_token="</s>",
        pad_token=pad,
        additional_special_tokens=["<|end|>"],
    )


def chat(*contents: str) -> Task:
    return Task(task_id="chat/1", messages=tuple(Message("user", text) for text in contents))


def test_a_plain_prompt_is_sent_as_it_is() -> None:
    assert Renderer(TINY).render(Task(task_id="t", prompt="a b\n")) == tuple(TINY.encode("a b\n"))


def test_a_beginning_of_text_token_comes_once_and_the_end_never() -> None:
    tokenizer = byte_tokenizer(has_bos=True)
    renderer = Renderer(tokenizer)
    bare = tuple(tokenizer.encode("hey", add_special_tokens=False))
    assert renderer.render(Task(task_id="t", prompt="hey")) == (0, *bare)
    assert renderer.render(Task(task_id="t", prompt="<s>hey")) == (0, *bare)
    without = Renderer(byte_tokenizer(has_bos=False))
    assert without.render(Task(task_id="t", prompt="hey")) == bare


def test_chat_messages_go_through_the_template_with_the_opening_of_an_answer() -> None:
    renderer = Renderer(TINY, chat_template=CHAT)
    task = Task(task_id="t", messages=(Message("system", "be brief"), Message("user", "2+2?")))
    expected = "<system>be brief</system><user>2+2?</user><assistant>"
    assert renderer.render(task) == tuple(TINY.encode(expected))


def test_the_template_adds_no_second_beginning_of_text() -> None:
    renderer = Renderer(byte_tokenizer(has_bos=True), chat_template="{{ bos_token }}" + CHAT)
    assert renderer.render(chat("hey"))[:2].count(0) == 1
    assert 1 not in renderer.render(chat("hey"))


def test_a_template_file_is_the_same_as_its_text(tmp_path) -> None:
    path = tmp_path / "chat.jinja"
    path.write_text(CHAT)
    assert read_chat_template(str(path)) == CHAT
    from_file = Renderer(TINY, chat_template=str(path)).render(chat("x"))
    assert from_file == Renderer(TINY, chat_template=CHAT).render(chat("x"))


def test_chat_without_a_template_is_refused_with_the_options() -> None:
    renderer = Renderer(TINY)
    assert not renderer.has_chat_template
    with pytest.raises(ConfigError) as caught:
        renderer.render(chat("hello"))
    for option in ("model.chat_template=", "tasks.chat=false", "model.tokenizer"):
        assert option in str(caught.value)


def test_a_template_that_is_no_jinja_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigError, match="syntax error in line 1"):
        Renderer(TINY, chat_template="{% for m in messages %}{{ m.content }}")


def test_a_conversation_that_the_template_refuses_names_the_task() -> None:
    renderer = Renderer(TINY, chat_template=STRICT)
    task = Task(task_id="file/7", messages=(Message("system", "x"),))
    with pytest.raises(DataError, match=r"file/7: the chat template refuses it: user must be"):
        renderer.render(task)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (Task(task_id="t/1"), "either a prompt or messages"),
        (Task(task_id="t/1", prompt="a", messages=(Message("user", "a"),)), "not both"),
        (Task(task_id="t/1", prompt=""), "no tokens"),
        (Task(task_id="t/1", prompt="a\ud800"), "the tokenizer refuses it"),
    ],
)
def test_an_unusable_task_is_refused_by_name(task: Task, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        Renderer(TINY, chat_template=CHAT).render(task)
    assert str(caught.value).startswith("t/1: ")


@settings(max_examples=50, deadline=None)
@given(st.text(alphabet=ALPHABET, max_size=40))
def test_decoding_keeps_every_space_and_drops_special_tokens(text: str) -> None:
    renderer = Renderer(TINY)
    assert renderer.decode((2, *TINY.encode(text), 1, 0)) == text


@settings(max_examples=30, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
def test_decoding_bytes_gives_the_text_back(text: str) -> None:
    tokenizer = byte_tokenizer(has_bos=True)
    ids = tokenizer.encode(text, add_special_tokens=False)
    if not any(token in text for token in ("<s>", "</s>", "<pad>", "<|end|>")):
        assert Renderer(tokenizer).decode(ids) == text


def test_another_spelling_of_a_word_decodes_alike_but_stays_another_spelling() -> None:
    tokenizer = byte_tokenizer(has_bos=False)
    one, two = tokenizer.encode("he"), tokenizer.convert_tokens_to_ids(["h", "e"])
    assert len(one) == 1
    assert Renderer(tokenizer).decode(two) == Renderer(tokenizer).decode(one) == "he"


def test_half_a_character_decodes_to_a_replacement_and_not_to_an_error() -> None:
    tokenizer = byte_tokenizer(has_bos=False)
    assert Renderer(tokenizer).decode(tokenizer.encode("\u00e9")[:1]) == "\ufffd"


def test_an_answer_ends_with_the_end_token() -> None:
    assert Renderer(TINY).encode_answer(Task(task_id="t", prompt="x"), "ab") == (
        *TINY.encode("ab"),
        1,
    )


def test_an_answer_in_a_chat_ends_with_the_turn_end() -> None:
    tokenizer = byte_tokenizer(has_bos=True)
    renderer = Renderer(tokenizer, chat_template=CHAT, eos_tokens=("<|end|>",))
    assert renderer.encode_answer(chat("hey"), "a")[-1] == 3
    assert renderer.encode_answer(Task(task_id="t", prompt="hey"), "a")[-1] == 1
    assert 0 not in renderer.encode_answer(chat("hey"), "a")


def test_padding_that_is_the_end_token_keeps_the_end() -> None:
    tokenizer = byte_tokenizer(has_bos=False, pad="</s>")
    assert tokenizer.pad_token_id == tokenizer.eos_token_id == 1
    assert eos_token_ids(None, tokenizer) == {1}
    answer = Renderer(tokenizer).encode_answer(Task(task_id="t", prompt="x"), "hey")
    assert answer.count(1) == 1
    assert answer[-1] == 1


@pytest.mark.parametrize(
    ("configured", "expected"), [(None, {1}), (1, {1}), (7, {1, 7}), ([7, 8], {1, 7, 8}), ([], {1})]
)
def test_every_end_token_of_the_model_and_the_tokenizer_counts(configured, expected) -> None:
    assert eos_token_ids(GenerationConfig(eos_token_id=configured), TINY) == expected


def test_further_end_tokens_come_from_the_run_file() -> None:
    tokenizer = byte_tokenizer(has_bos=False)
    assert eos_token_ids(None, tokenizer, eos_tokens=("<|end|>",)) == {1, 3}
    with pytest.raises(ConfigError, match=r"model\.eos_tokens has '<\|ende\|>'.*mean '<\|end\|>'"):
        eos_token_ids(None, tokenizer, eos_tokens=("<|ende|>",))
    with pytest.raises(ConfigError, match=r"model\.eos_tokens"):
        Renderer(tokenizer, eos_tokens=("<|ende|>",))


def test_a_model_whose_answers_could_never_end_is_refused() -> None:
    tokenizer = character_tokenizer(max_length=64)
    tokenizer.eos_token = None
    with pytest.raises(ConfigError, match="no answer could end"):
        eos_token_ids(GenerationConfig(), tokenizer)
    with pytest.raises(ConfigError, match="no end-of-text token"):
        Renderer(tokenizer).encode_answer(Task(task_id="t", prompt="x"), "a")


def test_the_vocabulary_must_hold_every_id() -> None:
    check_vocabulary(TINY, 100)
    Renderer(TINY).check(128)
    with pytest.raises(ConfigError, match="largest id is 99, but the model's vocabulary has 99"):
        Renderer(TINY).check(99)
    assert TINY.convert_tokens_to_ids(EOS) == 1
