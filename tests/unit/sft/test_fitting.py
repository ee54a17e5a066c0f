"""SFT examples: styles, masks, repeatability."""

import random
from collections import Counter

import pytest

from parity.config.schema import AnswerStyle, TinyModelConfig
from parity.errors import DataError
from parity.models.rendering import Renderer
from parity.models.tiny import character_tokenizer
from parity.sft.fitting import example, transformed
from parity.types import Task

RENDERER = Renderer(character_tokenizer(max_length=TinyModelConfig().max_length))


def rendered(answer: str | None) -> Task:
    tokens = RENDERER.render(Task(task_id="t", prompt="say:"))
    return Task(task_id="t", prompt="say:", answer=answer, tokens=tokens)


@pytest.mark.parametrize(
    ("transform", "allowed"),
    [
        ("none", {"abc"}),
        ("reverse", {"cba"}),
        ("swap", {"bac", "acb"}),
        ("drop", {"bc", "ac", "ab"}),
        ("shuffle", {"abc", "acb", "bac", "bca", "cab", "cba"}),
    ],
)
def test_each_transform_gives_what_it_says(transform: str, allowed: set[str]) -> None:
    style = AnswerStyle(transform=transform)  # pyright: ignore
    found = {transformed("abc", style, random.Random(seed)) for seed in range(200)}
    assert found == allowed


@pytest.mark.parametrize("transform", ["swap", "drop", "shuffle", "reverse"])
def test_a_one_letter_answer_stays(transform: str) -> None:
    style = AnswerStyle(transform=transform)  # pyright: ignore
    assert transformed("a", style, random.Random(0)) == "a"


def test_only_the_answer_and_its_end_are_learnt() -> None:
    style = AnswerStyle(template="<{answer}>")
    sample = example(rendered("yes"), 3, RENDERER, (style,), random.Random(0))
    assert sample.loss_mask == (False,) * 4 + (True,) * 6
    assert RENDERER.decode(sample.tokens[4:]) == "<yes>"
    assert sample.tokens[:4] == rendered("yes").tokens


def test_styles_come_in_the_shares_of_their_weights() -> None:
    styles = (AnswerStyle(weight=3.0, template="{answer}"), AnswerStyle(template="no"))
    texts = Counter(
        RENDERER.decode(example(rendered("ab"), 0, RENDERER, styles, random.Random(n)).tokens[4:])
        for n in range(2000)
    )
    assert texts["ab"] / 2000 == pytest.approx(0.75, abs=0.04)


def test_a_task_without_an_answer_is_an_error_that_names_it() -> None:
    with pytest.raises(DataError, match=r"t: there is no answer.*answer_column"):
        example(rendered(None), 0, RENDERER, (AnswerStyle(),), random.Random(0))
