"""SFT examples: styles, masks, repeatability."""

import random
from collections import Counter

import pytest

from parity.algorithms.objective import SftObjective
from parity.config.schema import AnswerStyle, TinyModelConfig
from parity.errors import DataError
from parity.models.rendering import Renderer
from parity.models.tiny import character_tokenizer, make_tiny
from parity.sft import example, transformed, with_common_prefixes
from parity.training.config import AdamWConfig, ScheduleConfig, TrainerConfig
from parity.training.trainer import Trainer
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
    assert sample.num_prompt_tokens == 4
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


def test_a_common_beginning_is_shared_without_changing_the_numbers() -> None:
    texts = ["say this: ab", "say this: cd", "say that: ef", "x", *["say this: gh"] * 6]
    samples = [
        example(
            Task(
                task_id=text,
                prompt=text,
                answer=text[-1],
                tokens=RENDERER.render(Task(task_id=text, prompt=text)),
            ),
            number,
            RENDERER,
            (AnswerStyle(),),
            random.Random(0),
        )
        for number, text in enumerate(texts)
    ]
    tied = with_common_prefixes(samples)
    assert [s.tokens for s in tied] == [s.tokens for s in samples]
    assert [s.loss_mask for s in tied] == [s.loss_mask for s in samples]
    assert [s.num_prompt_tokens for s in tied] == [0] * 8 + [12] * 2
    tied = with_common_prefixes(samples[4:])
    assert {s.num_prompt_tokens for s in tied} == {12}
    assert len({s.group for s in tied}) == 1
    model, _ = make_tiny(TinyModelConfig(num_layers=2, hidden_size=32), seed=0)
    trainer = Trainer(
        model,
        objective=SftObjective(),
        optimizer=AdamWConfig(lr=1e-3),
        schedule=ScheduleConfig(),
        config=TrainerConfig(),
        total_steps=1,
        temperature=1.0,
        device=model.device,
    )
    for alone, shared in zip(
        trainer.logprobs_of(samples),
        trainer.logprobs_of(with_common_prefixes(samples)),
        strict=True,
    ):
        assert alone.tolist() == pytest.approx(shared.tolist(), abs=1e-5)
