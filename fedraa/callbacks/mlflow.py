"""Write a run to MLflow."""

import math
import os
import time
from collections.abc import Mapping
from typing import Any

from fedraa.arguments import check_texts
from fedraa.callbacks.events import Event, RunStart
from fedraa.callbacks.tracker import Tracker
from fedraa.callbacks.writers import import_package

# A resumed run finds its MLflow run by this tag, whose value is the run directory.
DIRECTORY_TAG = "fedraa.directory"
# MLflow's server accepts at most this number of parameters in one request.
PARAMS_PER_BATCH = 100


class MLflow(Tracker):
    """A callback that writes the settings, all evaluations and the result of a run to MLflow.

    A resumed run continues the same MLflow run. If the run is stopped or fails, its status in MLflow is KILLED.

    Args:
        experiment: The name of the MLflow experiment, which is created if it does not exist.
        uri: The tracking store, such as http://host:5000 or sqlite:////path/mlflow.db. None uses the environment
            variable MLFLOW_TRACKING_URI, or else the file mlflow.db beside the run directory.
        name: The name of the MLflow run; None for the name of the run directory.

    Raises:
        InputError: An argument is no text, or the package mlflow is not installed.
    """

    def __init__(self, experiment: str = "fedraa", uri: str | None = None, name: str | None = None) -> None:
        check_texts("callbacks", experiment=experiment)
        check_texts("callbacks", optional=True, uri=uri, name=name)
        self.experiment = experiment
        self.uri = uri
        self.name = name
        self._package = import_package("mlflow", "mlflow")
        self._client: Any = None
        self._run_id = ""
        self._last_step = -1
        self._ended = False

    def open(self, run: RunStart) -> None:
        directory = run.directory.resolve()
        database = f"sqlite:///{directory.parent / 'mlflow.db'}"
        uri = self.uri or os.environ.get("MLFLOW_TRACKING_URI") or database
        self._client = self._package.MlflowClient(tracking_uri=uri)
        self._ended = False
        experiment = self._find_or_create_experiment()
        written = None
        if run.resumed:
            written = self._find_run(experiment, str(directory))
        if written is None:
            tags = {DIRECTORY_TAG: str(directory)}
            written = self._client.create_run(experiment, run_name=self.name or directory.name, tags=tags)
        self._run_id = written.info.run_id
        self._client.update_run(self._run_id, status="RUNNING")
        # A resumed run delivers earlier events again, but no value may be written twice.
        points = self._client.get_metric_history(self._run_id, "t")
        self._last_step = max((point.step for point in points), default=-1)
        self._log_settings(run, written.data.params)

    def write_metrics(self, step: int, t: float, metrics: Mapping[str, float]) -> None:
        if step <= self._last_step:
            return
        now = int(1000 * time.time())
        values = {**metrics, "t": t}
        points = [self._package.entities.Metric(name, value, now, step) for name, value in values.items()]
        self._client.log_batch(self._run_id, metrics=points)
        self._last_step = step

    def write_end(self, event: Event) -> None:
        for name, value in event.items():
            if isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value)):
                self._client.set_tag(self._run_id, f"fedraa.{name}", value)
        self._client.set_terminated(self._run_id, "FINISHED")
        self._ended = True

    def shut(self) -> None:
        if self._client is not None and not self._ended:
            self._client.set_terminated(self._run_id, "KILLED")
        self._client = None

    def _find_or_create_experiment(self) -> str:
        experiment = self._client.get_experiment_by_name(self.experiment)
        if experiment is None:
            return str(self._client.create_experiment(self.experiment))
        return str(experiment.experiment_id)

    def _find_run(self, experiment: str, directory: str) -> Any | None:
        """Return the newest MLflow run of the run directory, or None."""
        quoted = directory.replace("'", "\\'")
        runs = self._client.search_runs(
            [experiment], f"tags.`{DIRECTORY_TAG}` = '{quoted}'", order_by=["attributes.start_time DESC"], max_results=1
        )
        return next(iter(runs), None)

    def _log_settings(self, run: RunStart, written: Mapping[str, str]) -> None:
        """Log the experiment's options as MLflow parameters, except those in `written`, which MLflow already has."""
        settings = run.experiment.model_dump(mode="json")
        entities = self._package.entities
        params = [entities.Param(name, str(value)) for name, value in settings.items() if name not in written]
        for start in range(0, len(params), PARAMS_PER_BATCH):
            self._client.log_batch(self._run_id, params=params[start : start + PARAMS_PER_BATCH])
