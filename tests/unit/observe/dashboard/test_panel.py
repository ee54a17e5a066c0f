import io
import threading

import pytest
from rich.console import Console

from parity.observe.dashboard.panel import Panel
from parity.observe.dashboard.progress import Progress

METRICS: dict[str, float | None] = {
    "rollout/raw_reward": 0.47,
    "train/loss": -0.0123,
    "rollout/response_tokens_mean": 34.2,
    "rollout/response_tokens_max": 64,
    "rollout/truncated_share": 0.02,
    "train/ppo_kl": 0.00032,
    "train/kl_reference": 0.01,
    "train/train_rollout_kl": None,
    "train/entropy": 1.2,
    "train/grad_norm": 0.81,
    "rollout/lag_mean": 0.8,
    "rollout/lag_max": 1,
    "time/tokens_per_s": 4123.4,
    "time/step_s": 1.23,
    "time/generate_share": 0.8,
    "time/train_share": 0.6,
    "time/wait_share": 0.2,
    "rollout/zero_spread_share": 0.3,
}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def progress() -> Progress:
    clock = Clock()
    progress = Progress(total_steps=100, clock=clock)
    progress.take_start("spell", {"model": "spell-1m", "platform": "cpu"})
    progress.take_evaluation(
        0, {"eval/accuracy": 0.2, "eval/accuracy_low": 0.14, "eval/accuracy_high": 0.28}
    )
    for step in range(1, 38):
        clock.now += 2.0
        progress.take_step(step, {**METRICS, "rollout/raw_reward": step / 79})
    progress.take_evaluation(
        30, {"eval/accuracy": 0.41, "eval/accuracy_low": 0.33, "eval/accuracy_high": 0.49}
    )
    progress.take_activity("training")
    progress.take_message("a note with [bold] marks")
    return progress


def drawn(progress: Progress, width: int, *, encoding: str = "utf-8", height: int = 40) -> str:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True)
    console = Console(file=file, width=width, height=height, color_system=None)
    console.print(Panel(progress, threading.Lock()))
    file.seek(0)
    return file.read()


def lines_of(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines()]


def test_the_picture_at_60_columns(progress: Progress) -> None:
    assert lines_of(drawn(progress, 60, encoding="ascii")) == [
        "parity spell  model spell-1m  platform cpu",
        "step 37/100 ----         1:14 gone, 2:06 left training",
        "reward    0.468  ..::::---===+++****###@@",
        "accuracy  0.2 -> 0.41 at step 30  (0.33 to 0.49)",
        "loss      -0.0123",
        "answers   34.2 tokens, longest 64, 2% cut",
        "kl        step 0.00032, reference 0.01",
        "entropy   1.2 nats",
        "gradient  norm 0.81",
        "lag       mean 0.8, max 1",
        "speed     4,123 tokens/s, 1.23 s/step",
        "time      generating 80%, training 60%, waiting 20%",
        "groups    30% without a difference in reward",
        "! a note with [bold] marks",
    ]


def test_the_picture_at_120_columns_has_two_columns_of_numbers(progress: Progress) -> None:
    lines = lines_of(drawn(progress, 120))
    assert len(lines) == 9
    assert "reward    0.468" in lines[2]
    assert "gradient  norm 0.81" in lines[2]
    assert "\u2581" in lines[2]
    assert "\u2588" in lines[2]
    assert "groups    30% without a difference in reward" in lines[6]


@pytest.mark.parametrize("width", [20, 40, 60, 80, 99, 100, 120, 250])
@pytest.mark.parametrize("encoding", ["ascii", "utf-8", "latin-1"])
def test_no_line_is_wider_than_the_terminal(progress: Progress, width: int, encoding: str) -> None:
    progress.take_start("a long title " * 9, {"model": "m" * 200, "who": "\u00fc\u4e2d\U0001f600"})
    progress.take_activity("doing " + "x" * 200)
    text = drawn(progress, width, encoding=encoding)
    assert all(len(line) <= width for line in text.splitlines())


def test_a_run_that_just_began_shows_no_numbers() -> None:
    progress = Progress(total_steps=100, clock=Clock())
    text = drawn(progress, 60)
    assert len(text.splitlines()) == 2
    assert "step 0/100" in text
    assert "- left" in text


def test_first_rewards_are_shown_before_the_first_step_and_not_after() -> None:
    progress = Progress(total_steps=100, clock=Clock())
    progress.so_far = 0.25, 12
    assert "reward    0.25 over 12 answers" in drawn(progress, 60)
    progress.take_step(1, {"train/loss": 1.0})
    assert "12 answers" not in drawn(progress, 60)


def test_unknown_numbers_are_never_drawn_as_zero(progress: Progress) -> None:
    nothing = Progress(total_steps=9, clock=Clock())
    nothing.take_step(1, dict.fromkeys(METRICS, float("nan")))
    nothing.take_evaluation(0, {"eval/accuracy": None})
    lines = lines_of(drawn(nothing, 60))
    assert lines[2:] == ["accuracy  -"]
    progress.take_step(2, {"rollout/response_tokens_mean": 3.0, "rollout/lag_mean": 1.0})
    assert "3 tokens, longest -, - cut" in drawn(progress, 60)


def test_only_the_newest_messages_are_shown_and_the_others_are_kept(progress: Progress) -> None:
    for n in range(5):
        progress.take_message(f"message {n}")
    progress.take_message("message 4")
    panel = Panel(progress, threading.Lock())
    text = drawn(progress, 60)
    assert "! message 4 (x2)" in text
    assert "message 1" not in text
    assert panel.hidden_messages() == ["a note with [bold] marks", "message 0", "message 1"]
