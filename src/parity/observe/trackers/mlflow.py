"""`trackers.names=[mlflow]`: an MLflow experiment named by `trackers.project`.

Where it goes is MLflow's own setting (MLFLOW_TRACKING_URI). The run id is kept in
RUN_DIR/mlflow_run_id, so that a resumed run goes on with the same one. Metrics are handed to
MLflow's queue; `finish` waits for them.
"""

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from parity.errors import UnsupportedError
from parity.observe.encode import dumps
from parity.observe.trackers.tracker import Tracker
from parity.types import Json

if TYPE_CHECKING:
    import mlflow  # pyright: ignore[reportMissingImports]

_MAX_PARAMS = 100  # MLflow takes no more in one call
_MAX_PARAM_LENGTH = 500


class MlflowTracker(Tracker):
    """Sends metrics to MLflow."""

    _client: "mlflow.MlflowClient | None" = None
    _run_id = ""

    def start(self, config: Mapping[str, Json]) -> None:
        """Begin the MLflow run, or go on with the one this folder belongs to."""
        try:
            import mlflow  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise UnsupportedError(
                f"trackers.names has mlflow, which can't be imported ({error});"
                " pip install 'parity-rl[mlflow]', or take it out."
            ) from error
        client = mlflow.MlflowClient()
        id_path = self.run_dir / "mlflow_run_id"
        if id_path.exists():
            self._run_id = id_path.read_text().strip()
            client.update_run(self._run_id, status="RUNNING")
        else:
            experiment = client.get_experiment_by_name(self.project)
            experiment_id = (
                client.create_experiment(self.project)
                if experiment is None
                else experiment.experiment_id
            )
            run = client.create_run(experiment_id, run_name=self.run_name)
            self._run_id = run.info.run_id
            params = [
                mlflow.entities.Param(key, text[:_MAX_PARAM_LENGTH])
                for key, text in _flat(config, "")
            ]
            for first in range(0, len(params), _MAX_PARAMS):
                client.log_batch(self._run_id, params=params[first : first + _MAX_PARAMS])
            self.run_dir.mkdir(parents=True, exist_ok=True)
            id_path.write_text(self._run_id)
        self._client = client

    def log(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Queue the known values of one step."""
        import mlflow  # pyright: ignore[reportMissingImports]

        if self._client is None:
            raise ValueError("the mlflow tracker isn't started; call start() first.")
        now_ms = int(time.time() * 1000)
        known = [
            mlflow.entities.Metric(name, value, now_ms, step)
            for name, value in metrics.items()
            if value is not None
        ]
        self._client.log_batch(self._run_id, metrics=known, synchronous=False)

    def finish(self) -> None:
        """Wait for the queue and end the MLflow run."""
        import mlflow  # pyright: ignore[reportMissingImports]

        if self._client is not None:
            mlflow.flush_async_logging()
            self._client.set_terminated(self._run_id)
            self._client = None


def _flat(config: Mapping[str, Json], prefix: str) -> Iterator[tuple[str, str]]:
    """Every leaf as (dotted key, text)."""
    for key, value in config.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value if isinstance(value, str) else dumps(value)
