import json
import math
import threading
from pathlib import Path

import fakes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parity.errors import DataError
from parity.observe.encode import Unencodable, dumps, loads
from parity.rollouts import dump_line
from parity.rollouts.dump import EpisodeDump, read
from parity.types import GraderFailure, Group, Scored, Task, Unscored


class Hostile:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


def group_of(*episodes_of: dict[str, object], index: int = 0) -> Group:
    """A group whose episodes have hostile fields."""
    import dataclasses

    owner = fakes.task(index)
    plain = fakes.episode(owner, 8, 9)
    episodes = tuple(
        dataclasses.replace(plain, episode_id=f"e{n}", **fields)
        for n, fields in enumerate(episodes_of)
    )
    return Group(task=owner, episodes=episodes, index=index)


def written(dir: Path, groups: list[Group], **options: object) -> list[dict[str, object]]:
    with EpisodeDump(dir) as dump:
        assert dump.write(12, groups, **options)
    (path,) = dir.iterdir()
    for line in path.read_bytes().splitlines():
        json.loads(line, parse_constant=pytest.fail)
    return list(read(path))


def test_every_episode_is_read_back_with_its_place_and_tokens(tmp_path: Path) -> None:
    group = fakes.group(3, [Scored(1.0, {"format": 0.5}), Unscored("no answer")], version=4)
    found = written(tmp_path / "episodes", [group], advantages={"episode": 0.5})
    assert (tmp_path / "episodes" / "step_00000012.jsonl").exists()
    assert found[0] == {
        "step": 12,
        "split": "train",
        "group": 3,
        "sibling": 0,
        "episode_id": "episode",
        "task_id": "task/3",
        "prompt": "prompt 3",
        "messages": None,
        "expected": "x",
        "response": "89",
        "reward": 1.0,
        "reward_parts": {"format": 0.5},
        "outcome": "scored",
        "advantage": 0.5,
        "finish_reason": "stop",
        "num_prompt_tokens": 3,
        "num_response_tokens": 2,
        "num_trained_tokens": 2,
        "tokens": [5, 6, 7, 8, 9],
        "loss_mask": [False, False, False, True, True],
        "logprobs": [0.0, 0.0, 0.0, -0.5, -0.5],
        "versions": [-1, -1, -1, 4, 4],
    }
    assert found[1]["reward"] is None
    assert (found[1]["outcome"], found[1]["reason"]) == ("unscored", "no answer")


def test_a_grader_failure_and_a_missing_advantage_are_told_apart_from_zero(tmp_path: Path) -> None:
    (episode,) = written(tmp_path, [fakes.group(0, [GraderFailure("crashed")])])
    assert episode["reward"] is None
    assert episode["advantage"] is None
    assert (episode["outcome"], episode["reason"]) == ("grader_failed", "crashed")


def test_generated_and_trained_lengths_are_both_there(tmp_path: Path) -> None:
    group = group_of({"loss_mask": (False,) * 5, "finish_reason": "length"})
    (episode,) = written(tmp_path, [group])
    assert (episode["num_response_tokens"], episode["num_trained_tokens"]) == (2, 0)


def test_chat_prompts_keep_their_messages(tmp_path: Path) -> None:
    from dataclasses import replace

    from parity.types import Message

    owner = Task(task_id="t", messages=(Message("system", "s"), Message("user", "q")))
    episode = replace(fakes.episode(owner, 1), task=owner)
    (found,) = written(tmp_path, [Group(task=owner, episodes=(episode,), index=0)])
    assert found["prompt"] == "q"
    assert found["messages"] == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "q"},
    ]


@pytest.mark.parametrize(
    "response", ["half \ud83d pair", "a\u2028b\u0085c\nd", "\x00\x1b[2J", "\ud83d\ude00", "NaN"]
)
def test_hostile_answers_stay_one_record_and_come_back(response: str, tmp_path: Path) -> None:
    found = written(tmp_path, [group_of({"response": response}, {"response": "after"})])
    assert [episode["response"] for episode in found] == [response, "after"]


def test_hostile_values_cost_only_themselves_and_are_counted(tmp_path: Path) -> None:
    group = group_of(
        {"response": Hostile()},
        {"reward": Scored(math.nan, {"x": np.float32(0.5), "y": np.bool_(True)})},
        {"logprobs": (math.nan, 0.0, -math.inf, np.float64(-0.5), -1.0)},
    )
    with EpisodeDump(tmp_path) as dump:
        dump.write(1, [group])
    assert (dump.stats.written, dump.stats.lost_values, dump.stats.failed) == (3, 1, 0)
    first, second, third = read(tmp_path / "step_00000001.jsonl")
    assert isinstance(first["response"], Unencodable)
    assert first["tokens"] == [5, 6, 7, 8, 9]
    assert math.isnan(second["reward"])
    assert second["reward_parts"] == {"x": 0.5, "y": True}
    assert math.isnan(third["logprobs"][0])
    assert third["logprobs"][2:] == [-math.inf, -0.5, -1.0]


def test_an_episode_that_breaks_the_record_itself_costs_only_itself(tmp_path: Path) -> None:
    with EpisodeDump(tmp_path) as dump:
        dump.write(1, [group_of({"loss_mask": None}, {})])
    assert (dump.stats.written, dump.stats.failed) == (1, 1)
    assert [episode["episode_id"] for episode in read(tmp_path / "step_00000001.jsonl")] == ["e1"]


def test_evaluations_have_files_of_their_own(tmp_path: Path) -> None:
    with EpisodeDump(tmp_path) as dump:
        dump.write(0, [fakes.group(0, [Scored(1.0)])], split="eval")
        dump.write(0, [fakes.group(0, [Scored(0.0)])])
    assert {path.name for path in tmp_path.iterdir()} == {
        "eval_00000000.jsonl",
        "step_00000000.jsonl",
    }


def test_a_step_written_twice_keeps_both_and_a_resumed_run_replaces_it(tmp_path: Path) -> None:
    for _ in range(2):
        with EpisodeDump(tmp_path) as dump:
            dump.write(1, [fakes.group(0, [Scored(1.0)])])
            dump.write(1, [fakes.group(1, [Scored(1.0)])])
        found = [episode["task_id"] for episode in read(tmp_path / "step_00000001.jsonl")]
        assert found == ["task/0", "task/1"]


def test_a_broken_disk_costs_the_episodes_and_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "episodes"
    blocked.write_text("a file where the folder should be")
    with EpisodeDump(blocked) as dump:
        for step in range(3):
            dump.write(step, [fakes.group(0, [Scored(1.0), Scored(0.0)])])
    assert dump.stats.failed == 6
    assert dump.stats.written == 0
    assert len([r for r in caplog.records if "episode_dump_failed" in r.getMessage()]) == 1


def test_a_slow_disk_never_holds_up_training_and_drops_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, entered = threading.Event(), threading.Event()
    write = EpisodeDump._write

    def slow(self: EpisodeDump, job: object) -> None:
        entered.set()
        release.wait(30)
        write(self, job)

    monkeypatch.setattr(EpisodeDump, "_write", slow)
    dump = EpisodeDump(tmp_path, max_queued_steps=1, max_wait_s=0.01)
    group = fakes.group(0, [Scored(1.0), Scored(0.0)])
    assert dump.write(1, [group])
    assert entered.wait(10)
    assert dump.write(2, [group])
    assert not dump.write(3, [group])
    assert dump.stats.dropped == 2
    assert "queue_full" in caplog.text
    release.set()
    dump.close()
    assert dump.stats.written == 4
    assert not dump.write(4, [group])
    assert dump.stats.dropped == 4


def test_closing_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr(EpisodeDump, "_write", lambda self, job: release.wait(30))
    dump = EpisodeDump(tmp_path, max_queued_steps=4)
    for step in range(3):
        dump.write(step, [fakes.group(0, [Scored(1.0)])])
    dump.close(timeout_s=0.05)
    assert dump.stats.dropped >= 2
    release.set()
    dump.close()


def test_nothing_is_half_written(tmp_path: Path) -> None:
    with EpisodeDump(tmp_path) as dump:
        dump.write(1, [fakes.group(0, [Scored(1.0)])])
    assert [path.name for path in tmp_path.iterdir()] == ["step_00000001.jsonl"]


@pytest.mark.parametrize("line", [b'{"a": 1', b"[1]", b"NaN"])
def test_a_line_that_is_no_episode_is_refused_with_its_place(line: bytes, tmp_path: Path) -> None:
    path = tmp_path / "step_00000001.jsonl"
    path.write_bytes(b'{"step": 1}\n' + line + b"\n")
    with pytest.raises(DataError, match=r"step_00000001\.jsonl:2: "):
        list(read(path))


NUMBERS = st.one_of(
    st.integers(), st.floats(), st.booleans(), st.none(), st.just(""), st.just(()), st.just([1])
)
TEXTS = st.one_of(st.text(st.characters(categories=None)), st.just("\ud83d"))


@given(
    response=TEXTS,
    value=st.floats(),
    parts=st.dictionaries(TEXTS, st.floats(), max_size=2),
    tokens=st.lists(st.one_of(st.integers(0, 9), NUMBERS), max_size=4).map(tuple),
    logprobs=st.lists(st.one_of(st.floats(), NUMBERS), max_size=4).map(tuple),
)
def test_the_short_way_says_what_the_long_one_says(
    response: str,
    value: float,
    parts: dict[str, float],
    tokens: tuple[int, ...],
    logprobs: tuple[float, ...],
) -> None:
    own = {"response": response, "reward": value, "reward_parts": parts}
    found = dump_line.line('{"step": 1', own, {"tokens": tokens, "logprobs": logprobs})
    record = {"step": 1, **own, "tokens": list(tokens), "logprobs": list(logprobs)}
    if found is not None:
        assert found.isascii()
        assert str(loads(found)) == str(loads(dumps(record)))


def test_an_ordinary_episode_takes_the_short_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EpisodeDump, "_line", lambda *_: pytest.fail("took the long way"))
    group = fakes.group(3, [Scored(1.0), GraderFailure("crashed")], version=4)
    assert len(written(tmp_path, [group], advantages={"episode": -0.5})) == 2
