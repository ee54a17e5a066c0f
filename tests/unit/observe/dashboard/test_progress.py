import pytest

from parity.observe.dashboard.progress import (
    Progress,
    clean,
    closing,
    duration,
    number,
    percent,
    printable,
)
from parity.observe.summary import Summary


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_time_left_follows_the_last_steps() -> None:
    clock = Clock()
    progress = Progress(total_steps=100, clock=clock)
    assert progress.left_s is None
    progress.take_step(51, {})
    assert progress.left_s is None
    for step in range(52, 61):
        clock.now += 3.0
        progress.take_step(step, {})
    assert progress.left_s == pytest.approx(120.0)
    clock.now += 1.0
    assert progress.left_s == pytest.approx(119.0)
    for step in range(61, 91):
        clock.now += 1.0
        progress.take_step(step, {})
    assert progress.left_s == pytest.approx(10.0)
    clock.now += 1000
    assert progress.left_s == 0.0
    progress.take_end("finished")
    assert progress.left_s is None


def test_rewards_are_thinned_out_and_memory_stays_bounded() -> None:
    progress = Progress(total_steps=100_000, clock=Clock())
    for step in range(20_000):
        progress.take_step(step, {"rollout/raw_reward": float(step)})
        progress.take_message(f"message {step}")
    assert 100 < len(progress.rewards) <= 241
    assert progress.rewards == sorted(progress.rewards)
    assert progress.rewards[0] == 0.0
    assert progress.rewards[-1] > 19_000
    gaps = {b - a for a, b in zip(progress.rewards[1:], progress.rewards[2:], strict=False)}
    assert max(gaps) <= 2 * min(gaps)
    assert len(progress.messages) == 20


def test_the_activity_keeps_its_start_while_it_is_repeated() -> None:
    clock = Clock()
    progress = Progress(total_steps=1, clock=clock)
    progress.take_activity("loading model")
    clock.now = 5.0
    progress.take_activity("loading model")
    assert progress.activity_s == 5.0
    progress.take_activity("training")
    assert progress.activity_s == 0.0


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0.0, "0"), (0.53149, "0.531"), (0.000312, "0.000312"), (1234.6, "1,235")],
)
def test_numbers_have_three_digits(value: float | None, text: str) -> None:
    assert number(value) == text


def test_shares_and_durations() -> None:
    assert (percent(None), percent(0.256)) == ("-", "26%")
    assert [duration(s) for s in (None, 0.4, 59.6, 3599, 3723)] == [
        "-",
        "0:00",
        "1:00",
        "59:59",
        "1:02:03",
    ]


def test_texts_cannot_move_the_cursor_or_break_the_terminal() -> None:
    assert clean("a\x1b[2Jb\nc\r\x07\ud800\u2028d") == "a [2Jb c    d"
    assert len(clean("x" * 1000)) == 400
    assert printable("\u00fc\u2028", "ascii") == "??"
    assert printable("\u00fc", "utf-8") == "\u00fc"


def test_the_closing_lines_tell_what_the_run_came_to() -> None:
    summary = Summary(
        status="finished", platform="cpu", steps=90, train_seconds=83, eval_first=0.2, eval_last=0.6
    )
    assert closing(summary) == ["finished after 90 steps in 1:23", "accuracy 0.2 -> 0.6"]
    summary = Summary(status="failed", reason="no\nmemory", platform="cpu", steps=3, eval_first=0.2)
    assert closing(summary) == ["failed after 3 steps: no memory", "accuracy 0.2 -> -"]
