"""`display=none`: shows nothing; trackers, logs and summary.json still tell everything."""

from collections.abc import Mapping

from parity.observe.dashboard.display import Display, Metrics
from parity.observe.summary import Summary


class QuietDisplay(Display):
    """Shows nothing."""

    def start(self, title: str, facts: Mapping[str, str]) -> None:
        """Nothing is shown."""

    def activity(self, text: str) -> None:
        """Nothing is shown."""

    def rewards_so_far(self, mean: float, count: int) -> None:
        """Nothing is shown."""

    def step(self, step: int, metrics: Metrics) -> None:
        """Nothing is shown."""

    def evaluation(self, step: int, metrics: Metrics) -> None:
        """Nothing is shown."""

    def message(self, text: str) -> None:
        """Nothing is shown."""

    def finish(self, summary: Summary) -> None:
        """Nothing is shown."""

    def close(self) -> None:
        """Nothing was opened."""
