import io
import logging
import sys
import threading

import pytest
from rich.console import Console

from parity.observe.dashboard.choose import open_display
from parity.observe.dashboard.display import Display, MessageHandler
from parity.observe.dashboard.live import LiveDisplay
from parity.observe.dashboard.plain import PlainDisplay
from parity.observe.dashboard.quiet import QuietDisplay
from parity.observe.summary import Summary

DONE = Summary(
    status="finished", platform="cpu", steps=2, train_seconds=5, eval_first=0.2, eval_last=0.6
)
HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"


class Screen(io.StringIO):
    """A terminal that can be waited on."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = threading.Condition()

    def write(self, text: str) -> int:
        with self._changed:
            count = super().write(text)
            self._changed.notify_all()
            return count

    def wait_for(self, text: str) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: text in self.getvalue(), timeout=10)


def terminal(screen: io.StringIO, width: int = 80, **options: object) -> Console:
    return Console(file=screen, force_terminal=True, width=width, height=30, **options)


def run_through(display: Display) -> None:
    """Everything a run may tell, hostile values included."""
    with display:
        display.start("a run \ud800", {"model": "m", "folder": "[red]/tmp/x\x1b[2J"})
        display.activity("loading model")
        display.rewards_so_far(0.25, 12)
        display.evaluation(0, {"eval/accuracy": 0.2})
        display.step(1, {"rollout/raw_reward": 0.5, "train/loss": float("nan")})
        display.step(2, {"rollout/raw_reward": None, "train/entropy": float("inf")})
        display.evaluation(2, {"eval/accuracy": None})
        display.message("100% [bold] {odd} \ud800 \u4e2d")
        display.finish(DONE)
    display.close()


@pytest.mark.parametrize("width", [60, 120])
@pytest.mark.parametrize("kind", [LiveDisplay, PlainDisplay])
def test_every_display_shows_a_whole_run(
    kind: type[LiveDisplay | PlainDisplay], width: int
) -> None:
    screen = Screen()
    console = terminal(screen, width) if kind is LiveDisplay else Console(file=screen, width=width)
    run_through(kind(total_steps=2, console=console))
    text = screen.getvalue()
    assert "finished after 2 steps in 0:05" in text
    assert "accuracy 0.2 -> 0.6" in text
    assert "100% [bold] {odd}" in text
    assert "\x1b[2J" not in text


def test_the_quiet_display_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    run_through(QuietDisplay())
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("kind", [LiveDisplay, PlainDisplay])
def test_an_ascii_terminal_is_no_reason_to_fail(kind: type[LiveDisplay | PlainDisplay]) -> None:
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii", write_through=True)
    console = Console(file=file, force_terminal=kind is LiveDisplay, width=60)
    run_through(kind(total_steps=2, console=console))
    file.seek(0)
    assert "finished after 2 steps" in file.read()


def test_first_rewards_appear_before_the_first_step_ends() -> None:
    screen = Screen()
    with LiveDisplay(total_steps=9, console=terminal(screen)) as display:
        display.start("run", {})
        display.rewards_so_far(0.375, 8)
        assert screen.wait_for("0.375 over 8 answers")
        display.rewards_so_far(0.25, 16)
        assert screen.wait_for("0.25 over 16 answers")
        display.step(1, {"rollout/raw_reward": 0.75})
        assert screen.wait_for("0.75")


def test_plain_output_is_one_line_per_step_and_never_wraps() -> None:
    screen = Screen()
    with PlainDisplay(total_steps=9, console=Console(file=screen, width=20)) as display:
        display.start("run", {"model": "m"})
        display.activity("loading model")
        display.activity("loading model")
        display.rewards_so_far(0.375, 8)
        display.rewards_so_far(0.5, 16)
        display.step(1, {"rollout/raw_reward": 0.75, "rollout/truncated_share": 0.5})
        display.activity("training")
        display.message("odd")
        display.message("odd")
        display.evaluation(1, {"eval/accuracy": 0.5})
        display.evaluation(2, {"eval/accuracy": 0.6, "eval/accuracy_low": 0.4})
    lines = [line.partition("] ")[2] for line in screen.getvalue().splitlines()]
    assert lines == [
        "run  model=m",
        "loading model",
        "first rewards: mean 0.375 over 8 answers",
        "step 1/9  reward 0.75  cut 50%",
        "note: odd",
        "evaluation at step 1: 0.5",
        "evaluation at step 2: 0.6, first 0.5",
    ]


def test_the_terminal_is_given_back_after_an_error() -> None:
    screen = Screen()
    before = sys.stdout
    with (
        pytest.raises(RuntimeError),
        LiveDisplay(total_steps=9, console=terminal(screen)) as display,
    ):
        display.start("run", {})
        assert HIDE_CURSOR in screen.getvalue()
        raise RuntimeError
    assert screen.getvalue().rindex(SHOW_CURSOR) > screen.getvalue().rindex(HIDE_CURSOR)
    assert sys.stdout is before
    assert not [t for t in threading.enumerate() if t.name == "live-display"]


def test_a_live_display_that_never_started_closes() -> None:
    LiveDisplay(total_steps=9, console=terminal(Screen())).close()


class LostTerminal(Screen):
    is_lost = False

    def write(self, text: str) -> int:
        if self.is_lost:
            raise OSError("connection lost")
        return super().write(text)


def test_a_lost_terminal_ends_the_drawing_and_not_the_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    screen = LostTerminal()
    display = LiveDisplay(total_steps=9, console=terminal(screen))
    display.start("run", {})
    screen.is_lost = True
    display.step(1, {"rollout/raw_reward": 0.5})
    thread = display._thread
    assert thread is not None
    thread.join(10)
    assert not thread.is_alive()
    display.step(2, {})
    display.close()
    assert "terminal_lost" in caplog.text


def test_no_color_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    screen = Screen()
    run_through(LiveDisplay(total_steps=2, console=terminal(screen, color_system="truecolor")))
    assert "\x1b[36" not in screen.getvalue()
    assert ";36m" not in screen.getvalue()


def test_log_warnings_become_messages() -> None:
    screen = Screen()
    logger = logging.getLogger("parity.test_log_warnings")
    logger.propagate = False
    with PlainDisplay(total_steps=1, console=Console(file=screen)) as display:
        handler = MessageHandler(display)
        logger.addHandler(handler)
        logger.info("not this")
        logger.warning("event=odd count=%s", 3)
        logger.removeHandler(handler)
    assert screen.getvalue().endswith("] note: event=odd count=3\n")
    assert "not this" not in screen.getvalue()


@pytest.mark.parametrize(
    ("choice", "is_terminal", "is_ci", "kind"),
    [
        ("auto", True, False, LiveDisplay),
        ("auto", True, True, PlainDisplay),
        ("auto", False, False, PlainDisplay),
        ("live", True, True, LiveDisplay),
        ("live", False, False, PlainDisplay),
        ("plain", True, False, PlainDisplay),
        ("none", True, False, QuietDisplay),
    ],
)
def test_the_display_follows_the_word_and_the_terminal(
    choice: str,
    is_terminal: bool,  # noqa: FBT001
    is_ci: bool,  # noqa: FBT001
    kind: type[Display],
) -> None:
    console = Console(file=Screen(), force_terminal=is_terminal)
    display = open_display(choice, total_steps=1, console=console, is_ci=is_ci)  # type: ignore[arg-type]
    assert type(display) is kind


def test_a_dumb_terminal_gets_plain_lines(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    console = Console(file=Screen(), force_terminal=True)
    display = open_display("live", total_steps=1, console=console, is_ci=False)
    assert isinstance(display, PlainDisplay)
    assert "display_plain" in caplog.text
