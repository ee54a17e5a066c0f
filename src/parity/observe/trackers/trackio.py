"""`trackers.names=[trackio]`: Trackio, which keeps runs on this machine (`trackio show`).

A resumed run goes on with the Trackio run of the same name.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from parity.errors import UnsupportedError
from parity.observe.trackers.tracker import Tracker
from parity.types import Json

if TYPE_CHECKING:
    import trackio  # pyright: ignore[reportMissingImports]


class TrackioTracker(Tracker):
    """Sends metrics to Trackio."""

    _run: "trackio.Run | None" = None

    def start(self, config: Mapping[str, Json]) -> None:
        """Begin the Trackio run, or go on with the one of this name."""
        try:
            import trackio  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise UnsupportedError(
                f"trackers.names has trackio, which can't be imported ({error});"
                " pip install 'parity-rl[trackio]', or take it out."
            ) from error
        self._run = trackio.init(
            project=self.project,
            name=self.run_name,
            config=dict(config),
            resume="allow",
            embed=False,
        )

    def log(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Queue the known values of one step."""
        if self._run is None:
            raise ValueError("the trackio tracker isn't started; call start() first.")
        known = {name: value for name, value in metrics.items() if value is not None}
        self._run.log(known, step=step)

    def finish(self) -> None:
        """Write what is left and end the Trackio run."""
        if self._run is not None:
            self._run.finish()
            self._run = None
