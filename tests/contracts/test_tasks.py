"""What every task source must do, whatever it reads."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from parity.models.rendering import Renderer
from parity.models.tiny import character_tokenizer
from parity.tasks.config import FileConfig, PromptsConfig, ReasoningGymConfig
from parity.tasks.jsonl import JsonlSource
from parity.tasks.parquet import ParquetSource
from parity.tasks.reasoning_gym import ReasoningGymSource
from parity.tasks.source import TaskSource
from parity.tasks.stream import TaskStream, held_out, split

SIZE = 23
RENDERER = Renderer(character_tokenizer(max_length=4096))
RECORDS = [
    {"prompt": f"{n} + {n}?" + " " * (n % 3), "answer": str(2 * n), "level": n % 2, "tags": ["sum"]}
    for n in range(SIZE)
]


def reasoning_gym(dataset: str) -> Callable[[Path], TaskSource]:
    config = ReasoningGymConfig(dataset=dataset, size=SIZE)
    return lambda folder: ReasoningGymSource(config, seed=7)


def jsonl(folder: Path) -> TaskSource:
    path = folder / "tasks.jsonl"
    if not path.exists():
        path.write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    return JsonlSource(FileConfig(path=str(path), chat=False), seed=7)


def rows(folder: Path) -> TaskSource:
    path = folder / "tasks.parquet"
    if not path.exists():
        parquet.write_table(pyarrow.Table.from_pylist(RECORDS), path, row_group_size=5)
    return ParquetSource(FileConfig(name="parquet", path=str(path), chat=False), seed=7)


SOURCES = {
    "spell_backward": reasoning_gym("spell_backward"),
    "chain_sum": reasoning_gym("chain_sum"),
    "list_functions": reasoning_gym("list_functions"),  # draws from the global random state
    "jsonl": jsonl,
    "parquet": rows,
}


@pytest.fixture(scope="module", params=SOURCES)
def make(request: pytest.FixtureRequest, tmp_path_factory) -> Callable[[], TaskSource]:
    """Makes the source anew, as another process would; its file is written once."""
    folder = tmp_path_factory.mktemp(request.param)
    return lambda: SOURCES[request.param](folder)


@pytest.fixture(scope="module")
def source(make: Callable[[], TaskSource]) -> TaskSource:
    return make()


def test_an_index_is_the_same_task_in_every_instance_and_order(make) -> None:
    one, two = make(), make()
    forwards = [one.task(index) for index in range(one.size)]
    backwards = [two.task(index) for index in reversed(range(two.size))]
    assert forwards == backwards[::-1]
    assert [one.task(index) for index in range(one.size)] == forwards


def test_ids_are_unique_and_one_line(source: TaskSource) -> None:
    ids = [source.task(index).task_id for index in range(source.size)]
    assert len(set(ids)) == source.size == SIZE
    assert all(task_id.strip() == task_id and task_id.isprintable() for task_id in ids)


def test_a_task_is_whole_and_not_rendered(source: TaskSource) -> None:
    for index in range(source.size):
        task = source.task(index)
        assert (task.prompt is None) != (task.messages is None)
        assert task.question.strip()
        assert task.answer is None or isinstance(task.answer, str)
        assert task.tokens == ()


def test_columns_survive_strict_json(source: TaskSource) -> None:
    for index in range(source.size):
        columns = dict(source.task(index).columns)
        assert json.loads(json.dumps(columns, allow_nan=False)) == columns
        json.dumps(columns, ensure_ascii=False).encode("utf-8")


def test_an_index_outside_is_an_error(source: TaskSource) -> None:
    for index in (-1, source.size):
        with pytest.raises(IndexError):
            source.task(index)


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, SIZE - 1), st.integers(1, SIZE), st.integers(0, 9), st.integers(0, 9))
def test_the_order_is_a_seeded_permutation(
    source: TaskSource, first: int, length: int, seed: int, epoch: int
) -> None:
    indices = range(first, min(SIZE, first + length))
    order = source.order(indices, seed, epoch)
    assert sorted(order) == list(indices)
    assert order == source.order(indices, seed, epoch)
    assert all(type(index) is int for index in order)


def test_another_seed_or_epoch_is_another_order(source: TaskSource) -> None:
    indices = range(source.size)
    orders = {tuple(source.order(indices, seed, epoch)) for seed in (0, 1) for epoch in (0, 1)}
    assert len(orders) == 4


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2 * SIZE), st.integers(0, 3), st.integers(1, 12))
def test_a_stream_resumed_at_any_position_equals_the_unbroken_one(
    make, source: TaskSource, before: int, seed: int, more: int
) -> None:
    # A limit that some, not all, prompts pass.
    lengths = sorted(len(RENDERER.render(source.task(index))) for index in range(3))
    prompts = PromptsConfig(max_prompt_tokens=lengths[1])
    unbroken = TaskStream(source, renderer=RENDERER, prompts=prompts, seed=seed)
    for _ in range(before):
        next(unbroken)
    resumed = TaskStream(
        make(), renderer=RENDERER, prompts=prompts, seed=seed, position=unbroken.position
    )
    expected = [next(unbroken) for _ in range(more)]
    assert [next(resumed) for _ in range(more)] == expected
    assert resumed.position == unbroken.position
    assert all(0 < len(task.tokens) <= lengths[1] for task in expected)


def test_training_never_draws_a_held_out_task(source: TaskSource) -> None:
    train, evaluation = split(source, 4)
    prompts = PromptsConfig(max_prompt_tokens=4096)
    held = {
        task.task_id for task in held_out(source, evaluation, renderer=RENDERER, prompts=prompts)
    }
    stream = TaskStream(
        source, renderer=RENDERER, prompts=prompts, seed=0, first=train.start, last=train.stop
    )
    trained = {next(stream).task_id for _ in range(2 * len(train))}
    assert len(held) == 4
    assert len(trained) == len(train)
    assert not held & trained


def test_rendering_changes_nothing_but_the_tokens(source: TaskSource) -> None:
    stream = TaskStream(
        source,
        renderer=RENDERER,
        prompts=PromptsConfig(max_prompt_tokens=4096, shuffle=False),
        seed=0,
    )
    assert [replace(next(stream), tokens=()) for _ in range(source.size)] == [
        source.task(index) for index in range(source.size)
    ]
