"""`trackers.names=[tensorboard]`: event files in RUN_DIR/tensorboard.

Look at them with `tensorboard --logdir RUN_DIR`. A resumed run writes a file of its own that
tells TensorBoard to forget the steps it takes again.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from parity.errors import UnsupportedError
from parity.observe.encode import dumps
from parity.observe.trackers.tracker import Tracker
from parity.types import Json

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

_FLUSH_S = 10


class TensorboardTracker(Tracker):
    """Writes scalars for TensorBoard."""

    _writer: "SummaryWriter | None" = None
    _config_text: str | None = None

    def start(self, config: Mapping[str, Json]) -> None:
        """Check that TensorBoard is there; the file is made with the first metrics."""
        try:
            import_module("torch.utils.tensorboard")
        except ImportError as error:
            raise UnsupportedError(
                f"trackers.names has tensorboard, which can't be imported ({error});"
                " pip install tensorboard, or take it out."
            ) from error
        self._config_text = dumps(dict(config))

    def log(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Write one scalar per known value."""
        writer = self._writer or self._open(step)
        for name, value in metrics.items():
            if value is not None:
                writer.add_scalar(name, value, global_step=step)

    def finish(self) -> None:
        """Flush and close."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _open(self, first_step: int) -> "SummaryWriter":
        from torch.utils.tensorboard import SummaryWriter

        if self._config_text is None:
            raise ValueError("the tensorboard tracker isn't started; call start() first.")
        log_dir = self.run_dir / "tensorboard"
        is_resumed = any(log_dir.glob("events.out.tfevents.*"))
        self._writer = SummaryWriter(
            str(log_dir), purge_step=first_step if is_resumed else None, flush_secs=_FLUSH_S
        )
        self._writer.add_text("config", f"    {self._config_text}", global_step=first_step)
        return self._writer
