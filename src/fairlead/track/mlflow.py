"""Logging runs to MLflow."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairlead.errors import needed
from fairlead.track.tracker import Tracker, settings, tag

NOTE = "mlflow.json"
PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "MLFLOW_HTTP_REQUEST_TIMEOUT": "5"}
LONGEST_KEY, LONGEST_VALUE, PARAMS, METRICS = 250, 500, 100, 1000  # limits of all its servers


class MLflow(Tracker):
    """Metrics per round, settings as params, the reason the run ended as the tag `ended`.

    uri: the tracking server, such as sqlite:///mlflow.db or http://host:5000; by default
        MLFLOW_TRACKING_URI.
    run_id: an MLflow run to log to, such as `mlflow.active_run().info.run_id`, which is then not ended
        here; by default a new one.
    folder: the run's folder, which stores the id, so that a resumed run continues the same MLflow run.
    """

    name = "MLflow"

    def __init__(
        self,
        uri: str | None = None,
        experiment: str = "fairlead",
        *,
        run_id: str | None = None,
        folder: str | Path | None = None,
    ) -> None:
        super().__init__(folder)
        self._library, self._entities = needed("mlflow"), needed("mlflow.entities")
        self.uri, self.experiment, self._given = uri, experiment, run_id
        self.run_id = run_id
        self._client: Any = None

    def open(self, first: int) -> float:
        for name, value in PATIENCE.items():  # its own defaults wait for minutes
            os.environ.setdefault(name, value)
        self._client = self._library.MlflowClient(tracking_uri=self.uri)
        where = {"uri": self.uri, "experiment": self.experiment}
        noted = self.remembered(NOTE)
        same = all(noted.get(name) == value for name, value in where.items())
        earlier = self._given or (noted.get("run_id") if same else None)
        earlier = earlier or (self.run_id if self._known >= 0 else None)
        existing = self._reopened(earlier) if earlier else None
        self.run_id = self._created() if existing is None else existing.info.run_id
        self.remember(NOTE, {**where, "run_id": self.run_id})
        self._describe({} if existing is None else existing.data.params)
        return -1.0 if existing is None else float(existing.data.metrics.get("round", -1))

    def _reopened(self, run_id: str) -> Any:
        """An earlier run, unless it was deleted in the meantime."""
        try:
            run = self._client.get_run(run_id)
            if run.info.lifecycle_stage == "deleted":
                return None
            self._client.update_run(run_id, status="RUNNING")
        except self._library.MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST" or self._given:
                raise
            return None
        return run

    def _created(self) -> str:
        found = self._client.get_experiment_by_name(self.experiment)
        number = (
            self._client.create_experiment(self.experiment)
            if found is None
            else found.experiment_id
        )
        label = f"{self.about.get('label', 'run')}"
        return self._client.create_run(number, run_name=label).info.run_id

    def _describe(self, known: Mapping[str, str]) -> None:
        """Settings as params; params are immutable in MLflow, so a changed setting becomes a tag."""
        given = {_key(k): _short(v) for k, v in settings(self.about).items()}
        param, tagged = self._entities.Param, self._entities.RunTag
        new = [param(k, v) for k, v in given.items() if k not in known]
        other = [tagged(f"resumed.{k}"[:LONGEST_KEY], v) for k, v in given.items()
                 if known.get(k, v) != v]  # fmt: skip
        for at in range(0, len(new), PARAMS):
            self._client.log_batch(self.run_id, params=new[at : at + PARAMS])
        for at in range(0, len(other), PARAMS):
            self._client.log_batch(self.run_id, tags=other[at : at + PARAMS])

    def send(self, row: Mapping[str, float]) -> None:
        step, names = int(row["round"]), [*(name for name in row if name != "round"), "round"]
        # the round last: its presence means that the row is complete
        self._log({tag(name): row[name] for name in names}, step)

    def _log(self, values: Mapping[str, float], step: int) -> None:
        now, kind = int(1000 * time.time()), self._entities.Metric
        found = [kind(_key(name), float(value), now, step) for name, value in values.items()]
        for at in range(0, len(found), METRICS):
            self._client.log_batch(self.run_id, metrics=found[at : at + METRICS])

    def close(self, why: str, best: Mapping[str, float]) -> None:
        self._log({f"best/{name}": value for name, value in best.items()}, int(self._known))
        self._client.set_tag(self.run_id, "ended", _short(why))
        if self._given is None:
            failed = "FAILED" if why.startswith("failed") else "FINISHED"
            status = "KILLED" if why == "interrupted" else failed
            self._client.set_terminated(self.run_id, status)

    def drop(self) -> None:
        self._client = None


def _key(name: str) -> str:
    """A name that MLflow accepts.

    >>> _key("top-5 (%)")
    'top-5 ___'
    """
    return re.sub(r"[^/\w.\- ]", "_", name)[:LONGEST_KEY] or "_"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 1]}…"
