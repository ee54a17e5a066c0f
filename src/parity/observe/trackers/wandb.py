"""`trackers.names=[wandb]`: Weights & Biases, online or offline as its own settings say.

The run id is kept in RUN_DIR/wandb_run_id, so that a resumed run goes on with the same one.
Steps are a metric of their own (`step`), because W&B refuses its built-in step to go back,
as it does after a resume.
"""

import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING

from parity.errors import UnsupportedError
from parity.observe.trackers.tracker import Tracker
from parity.types import Json

if TYPE_CHECKING:
    import wandb  # pyright: ignore[reportMissingImports]


class WandbTracker(Tracker):
    """Sends metrics to Weights & Biases."""

    _run: "wandb.Run | None" = None

    def start(self, config: Mapping[str, Json]) -> None:
        """Begin the W&B run, or go on with the one this folder belongs to."""
        try:
            import wandb  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise UnsupportedError(
                f"trackers.names has wandb, which can't be imported ({error});"
                " pip install 'parity-rl[wandb]', or take it out."
            ) from error
        id_path = self.run_dir / "wandb_run_id"
        if not id_path.exists():
            self.run_dir.mkdir(parents=True, exist_ok=True)
            id_path.write_text(uuid.uuid4().hex[:12])
        run = wandb.init(
            project=self.project,
            name=self.run_name,
            id=id_path.read_text().strip(),
            resume="allow",
            dir=str(self.run_dir),
            config=dict(config),
        )
        run.define_metric("step", hidden=True)
        run.define_metric("*", step_metric="step")
        self._run = run

    def log(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Send the known values of one step; W&B queues them itself."""
        if self._run is None:
            raise ValueError("the wandb tracker isn't started; call start() first.")
        known = {name: value for name, value in metrics.items() if value is not None}
        self._run.log({"step": step, **known})

    def finish(self) -> None:
        """Upload what is left and end the W&B run."""
        if self._run is not None:
            self._run.finish()
            self._run = None
