"""Which display a run gets: the user's word, or what the terminal can show."""

import logging

from rich.console import Console

from parity.observe.dashboard.display import Display, DisplayChoice
from parity.observe.dashboard.live import LiveDisplay
from parity.observe.dashboard.plain import PlainDisplay
from parity.observe.dashboard.quiet import QuietDisplay

_logger = logging.getLogger(__name__)


def open_display(
    choice: DisplayChoice, *, total_steps: int, console: Console, is_ci: bool
) -> Display:
    """The display for `choice`.

    Args:
        choice: `auto` is live on a terminal that can move its cursor, and plain elsewhere
            (pipes, files, CI). `live` is taken at its word where the console can draw at all.
        is_ci: the environment says that nobody watches (`config/environment.py: is_ci`).
    """
    if choice == "none":
        return QuietDisplay()
    can_draw = console.is_terminal and not console.is_dumb_terminal
    if can_draw and (choice == "live" or (choice == "auto" and not is_ci)):
        return LiveDisplay(total_steps=total_steps, console=console)
    if choice == "live":
        _logger.warning("event=display_plain reason=not a terminal that can draw; asked for live")
    return PlainDisplay(total_steps=total_steps, console=console)
