import json
import logging
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.errors import ConfigError, DataError, SourceError
from parity.models.rendering import Renderer
from parity.models.tiny import character_tokenizer
from parity.tasks.config import FileConfig, PromptsConfig
from parity.tasks.jsonl import JsonlSource
from parity.tasks.source import TaskSource
from parity.tasks.stream import TaskStream, held_out, split, survey
from parity.types import Task

RENDERER = Renderer(character_tokenizer(max_length=512))
NO_LIMIT = PromptsConfig(max_prompt_tokens=100)


class Lengths(TaskSource):
    """Tasks whose prompts have the given lengths."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths

    @property
    def size(self) -> int:
        return len(self.lengths)

    def task(self, index: int) -> Task:
        return Task(task_id=f"task/{index}", prompt="x" * self.lengths[index])


def stream(lengths: list[int], prompts: PromptsConfig = NO_LIMIT, **options: int) -> TaskStream:
    options.setdefault("seed", 1)
    return TaskStream(Lengths(lengths), renderer=RENDERER, prompts=prompts, **options)


def drawn(tasks: TaskStream, count: int) -> list[int]:
    return [int(next(tasks).task_id.removeprefix("task/")) for _ in range(count)]


def test_tasks_come_rendered() -> None:
    task = next(stream([3]))
    assert task.tokens == RENDERER.render(task)
    assert len(task.tokens) == 3


def test_an_epoch_visits_every_task_of_the_range_once_and_the_next_in_another_order() -> None:
    tasks = stream([1] * 20, first=5, last=15)
    epochs = [drawn(tasks, 10) for _ in range(3)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(5, 15))] * 3
    assert epochs[0] != epochs[1] != epochs[2]
    assert (tasks.position, tasks.epoch) == (30, 3)


def test_the_order_is_the_seeds() -> None:
    assert drawn(stream([1] * 30, seed=4), 60) == drawn(stream([1] * 30, seed=4), 60)
    assert drawn(stream([1] * 30, seed=4), 60) != drawn(stream([1] * 30, seed=5), 60)


def test_without_shuffling_tasks_come_in_their_own_order() -> None:
    tasks = stream([1] * 6, PromptsConfig(shuffle=False), first=2, last=5)
    assert drawn(tasks, 7) == [2, 3, 4, 2, 3, 4, 2]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=12).filter(lambda lengths: min(lengths) <= 4),
    st.integers(0, 40),
    st.integers(0, 3),
)
def test_a_stream_built_again_goes_on_exactly(lengths: list[int], before: int, seed: int) -> None:
    prompts = PromptsConfig(max_prompt_tokens=4)
    unbroken = stream(lengths, prompts, seed=seed)
    drawn(unbroken, before)
    resumed = stream(lengths, prompts, seed=seed, position=unbroken.position)
    for _ in range(15):
        assert next(resumed) == next(unbroken)
        assert resumed.position == unbroken.position
    assert all(lengths[index] <= 4 for index in drawn(unbroken, 30))


def test_a_position_gives_its_task_again_without_moving_the_stream() -> None:
    tasks = stream([1] * 7)
    first = [next(tasks) for _ in range(10)]
    assert [tasks.at(position) for position in range(10)] == first
    assert tasks.position == 10
    assert next(tasks) == tasks.at(10)


def test_a_prompt_of_exactly_the_limit_fits() -> None:
    tasks = stream([4, 5, 4], PromptsConfig(max_prompt_tokens=4, shuffle=False))
    assert drawn(tasks, 4) == [0, 2, 0, 2]
    assert tasks.num_skipped == 1
    assert tasks.position == 6


def test_a_long_prompt_stops_with_its_name_and_length() -> None:
    prompts = PromptsConfig(max_prompt_tokens=4, on_long="stop", shuffle=False)
    tasks = stream([4, 5], prompts)
    next(tasks)
    with pytest.raises(DataError, match=r"task/1: its prompt has 5 tokens.*max_prompt_tokens=4"):
        next(tasks)


def test_skipping_ends_at_the_cap_and_counts_a_task_once() -> None:
    prompts = PromptsConfig(max_prompt_tokens=4, max_long=2, shuffle=False)
    tasks = stream([5, 6, 1], prompts)
    assert drawn(tasks, 9) == [2] * 9
    assert tasks.num_skipped == 2
    with pytest.raises(DataError, match=r"more than prompts\.max_long=2 tasks.*task/2: .*7 tokens"):
        next(stream([5, 6, 7, 1], prompts))


def test_what_an_earlier_process_passed_over_counts_under_the_cap() -> None:
    prompts = PromptsConfig(max_prompt_tokens=4, max_long=2, shuffle=False)
    lengths = [7, 1, 7, 1, 7, 1]
    before = stream(lengths, prompts)
    assert drawn(before, 2) == [1, 3]
    assert before.skipped == [0, 2]
    after = stream(lengths, prompts, position=before.position)
    after.remember(before.skipped)
    assert (after.skipped, after.position) == ([0, 2], before.position)
    with pytest.raises(DataError, match=r"more than prompts\.max_long=2 tasks"):
        next(after)


def test_what_an_earlier_process_passed_over_is_judged_by_the_policy_of_now() -> None:
    wider = PromptsConfig(max_prompt_tokens=7, max_long=0, shuffle=False)
    tasks = stream([7, 1, 9], wider, last=2)
    tasks.remember([0, 2, 5])  # one that fits now, and two of another range
    assert tasks.skipped == []
    strict = stream([7, 1], PromptsConfig(max_prompt_tokens=4, on_long="stop", shuffle=False))
    with pytest.raises(DataError, match="7 tokens"):
        strict.remember([0])


def test_records_that_were_met_bad_before_a_resume_count_under_the_cap(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"p{n}"}) + "\n" for n in range(8)))

    class Picky(Renderer):
        def render(self, task: Task) -> tuple[int, ...]:
            if task.prompt in ("p1", "p4"):
                raise DataError(f"{task.task_id}: odd")
            return super().render(task)

    def opened() -> TaskStream:
        source = JsonlSource(FileConfig(path=str(path), on_bad="skip", max_bad=1, chat=False))
        picky = Picky(character_tokenizer(max_length=512))
        prompts = PromptsConfig(max_prompt_tokens=9, shuffle=False)
        return TaskStream(source, renderer=picky, prompts=prompts, seed=0)

    before = opened()
    for _ in range(3):
        next(before)
    assert before.skipped == [1]
    after = opened()
    after.remember(before.skipped)
    with pytest.raises(DataError, match=r"more than tasks\.max_bad=1 records"):
        for _ in range(8):
            next(after)


def test_a_source_of_long_prompts_only_is_an_error_and_no_endless_loop() -> None:
    prompts = PromptsConfig(max_prompt_tokens=4, max_long=1000)
    for position in range(8):
        with pytest.raises(DataError, match="every task is too long, for example task/"):
            next(stream([5, 6, 7, 8, 1], prompts, last=4, position=position))


def test_an_error_of_the_source_comes_through() -> None:
    class Broken(Lengths):
        def task(self, index: int) -> Task:
            raise DataError(f"file:{index}: reason")

    with pytest.raises(DataError, match="file:0: reason"):
        next(TaskStream(Broken([1]), renderer=RENDERER, prompts=NO_LIMIT, seed=0))


@pytest.mark.parametrize("options", [{"first": 3}, {"last": 4}, {"first": 2, "last": 2}])
def test_a_range_outside_the_source_is_refused(options: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="the source has 3"):
        stream([1] * 3, **options)
    with pytest.raises(ConfigError, match="position is -1"):
        stream([1] * 3, position=-1)


@pytest.mark.parametrize(
    ("size", "asked", "held"),
    [(100_000, 128, 128), (20, 128, 5), (20, 3, 3), (7, 128, 1), (2, 1, 1), (3, 128, 1)],
)
def test_training_and_evaluation_never_share_a_task(
    size: int, asked: int, held: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        train, evaluation = split(Lengths([1] * size), asked)
    assert (len(train), len(evaluation)) == (size - held, held)
    assert train.stop == evaluation.start
    assert (train.start, evaluation.stop) == (0, size)
    assert ("are held out for evaluation" in caplog.text) == (held < asked)


def test_a_source_too_small_to_hold_out_anything_is_refused() -> None:
    with pytest.raises(ConfigError, match="has 1 task, which can't be both"):
        split(Lengths([1]), 1)
    assert split(Lengths([1]), 0) == (range(1), range(0))


def test_held_out_tasks_are_rendered_and_fixed() -> None:
    source = Lengths([1, 5, 2, 3])
    prompts = PromptsConfig(max_prompt_tokens=4)
    tasks = held_out(source, range(1, 4), renderer=RENDERER, prompts=prompts)
    assert [task.task_id for task in tasks] == ["task/2", "task/3"]
    assert [len(task.tokens) for task in tasks] == [2, 3]
    assert held_out(source, range(1, 4), renderer=RENDERER, prompts=prompts) == tasks
    with pytest.raises(DataError, match=r"no task is left to evaluate on, for example task/1"):
        held_out(source, range(1, 2), renderer=RENDERER, prompts=prompts)
    with pytest.raises(DataError, match="no task is left"):
        held_out(source, [], renderer=RENDERER, prompts=prompts)
    stop = PromptsConfig(max_prompt_tokens=4, on_long="stop")
    with pytest.raises(DataError, match=r"task/1: its prompt has 5 tokens"):
        held_out(source, range(1, 4), renderer=RENDERER, prompts=stop)


def test_a_survey_knows_the_longest_prompt_ahead() -> None:
    source = Lengths([1, 9, 2, 5])
    prompts = PromptsConfig(max_prompt_tokens=4)
    found = survey(source, range(4), renderer=RENDERER, prompts=prompts)
    assert (found.num_measured, found.num_long) == (4, 2)
    assert (found.longest_tokens, found.longest_task_id) == (9, "task/1")
    part = survey(source, range(4), renderer=RENDERER, prompts=prompts, most=2)
    assert (part.num_measured, part.longest_tokens) == (2, 2)
    stop = PromptsConfig(max_prompt_tokens=4, on_long="stop")
    with pytest.raises(DataError, match="task/1"):
        survey(source, range(4), renderer=RENDERER, prompts=stop)


PICKY = """{% for m in messages %}{% if 'bad' in m.content %}{{ raise_exception('no such role') }}
{% endif %}{{ m.content }}{% endfor %}"""
PICKY_RENDERER = Renderer(character_tokenizer(max_length=512), chat_template=PICKY)


def picky_source(path: Path, contents: list[str], **options: object) -> JsonlSource:
    """Records that all pass the pass over the file; the template refuses some of them."""
    path.write_text(
        "".join(json.dumps({"prompt": text, "answer": "x"}) + "\n" for text in contents)
    )
    return JsonlSource(FileConfig(path=str(path), chat=True, **options))


def picky_stream(source: JsonlSource, **options: int) -> TaskStream:
    prompts = PromptsConfig(max_prompt_tokens=100, shuffle=False)
    return TaskStream(source, renderer=PICKY_RENDERER, prompts=prompts, seed=1, **options)


def test_a_bad_record_met_late_is_passed_over_and_counted_once_under_skip(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "tasks.jsonl"
    source = picky_source(path, ["a", "bad", "c", "d"], on_bad="skip", max_bad=1)
    tasks = picky_stream(source)
    found = [next(tasks).question for _ in range(9)]
    assert found == ["a", "c", "d"] * 3
    assert tasks.position == 12
    assert tasks.num_skipped == 1
    assert caplog.text.count(f"{path}:2") == 1
    assert "no such role" in caplog.text
    again = picky_stream(picky_source(path, ["a", "bad", "c", "d"], on_bad="skip"), position=5)
    assert next(again).question == "c"


def test_a_bad_record_met_late_stops_with_its_place_and_is_drawn_again_after_a_resume(
    tmp_path: Path,
) -> None:
    path = tmp_path / "tasks.jsonl"
    tasks = picky_stream(picky_source(path, ["a", "bad", "c"]))
    next(tasks)
    with pytest.raises(DataError) as caught:
        next(tasks)
    said = str(caught.value)
    assert said.startswith(f"{path}:2: ")
    assert "no such role" in said
    assert "tasks.on_bad=skip" in said
    assert tasks.position == 1
    mended = picky_stream(picky_source(path, ["a", "b", "c"]), position=tasks.position)
    assert next(mended).question == "b"


def test_bad_records_beyond_the_cap_stop_those_of_the_first_pass_included(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    source = picky_source(path, ["a", "", "bad", "bad"], on_bad="skip", max_bad=2)
    tasks = picky_stream(source)
    assert next(tasks).question == "a"
    with pytest.raises(DataError, match=r"more than tasks.max_bad=2.*jsonl:2.*jsonl:3.*jsonl:4"):
        next(tasks)


def test_a_stream_without_any_usable_task_ends(tmp_path: Path) -> None:
    source = picky_source(tmp_path / "tasks.jsonl", ["bad", "bad"], on_bad="skip", max_bad=9)
    with pytest.raises(DataError, match="no task is left"):
        next(picky_stream(source))


def test_a_file_that_changed_is_no_bad_record(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    tasks = picky_stream(picky_source(path, ["a", "b"], on_bad="skip"))
    next(tasks)
    path.write_text(path.read_text() + '{"prompt": "c", "answer": "x"}\n')
    with pytest.raises(SourceError, match=r"jsonl:2: the file was changed"):
        next(tasks)
    path.unlink()
    with pytest.raises(SourceError, match=r"jsonl:2: .*No such file"):
        next(tasks)


@pytest.mark.parametrize("on_bad", ["stop", "skip"])
def test_the_survey_and_held_out_tasks_follow_the_policy(tmp_path: Path, on_bad: str) -> None:
    source = picky_source(tmp_path / "tasks.jsonl", ["a", "bad", "c"], on_bad=on_bad, max_bad=1)
    prompts = PromptsConfig(max_prompt_tokens=100)
    for look in (survey, held_out):
        if on_bad == "stop":
            with pytest.raises(DataError, match="jsonl:2: "):
                look(source, range(3), renderer=PICKY_RENDERER, prompts=prompts)
        else:
            look(source, range(3), renderer=PICKY_RENDERER, prompts=prompts)
    if on_bad == "skip":
        found = held_out(source, range(3), renderer=PICKY_RENDERER, prompts=prompts)
        assert [task.question for task in found] == ["a", "c"]


def test_a_task_that_its_user_refuses_follows_the_policy(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    tasks = picky_stream(picky_source(path, ["a", "b"], on_bad="skip"))
    next(tasks)
    tasks.refuse(DataError("there is no answer to learn from"))
    assert tasks.num_skipped == 1
    stops = picky_stream(picky_source(path, ["a", "b"]))
    next(stops)
    with pytest.raises(DataError, match=r"jsonl:1: there is no answer"):
        stops.refuse(DataError("there is no answer to learn from"))


def test_a_source_without_a_policy_of_its_own_stops() -> None:
    class Bad(Lengths):
        def task(self, index: int) -> Task:
            raise DataError(f"record {index}: unreadable")

    with pytest.raises(DataError, match="record 0: unreadable"):
        next(
            TaskStream(Bad([1, 1]), renderer=RENDERER, prompts=PromptsConfig(shuffle=False), seed=1)
        )
