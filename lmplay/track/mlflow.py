"""`--track mlflow`: MLflow, in the store that its own settings name, else <out-dir>/mlflow.db.  Stats floor; needs the package `mlflow`."""
from __future__ import annotations

import json
import os
import posixpath
import re
import time
from pathlib import Path
from typing import Any

from .callback import RunInfo, Tracker, past_rows, rewound, samples_by_step

_SECONDS = 5.0  # between two requests: each is a transaction
_MOST = 900  # metrics of a request; MLflow's limit is 1000
_LONGEST = 5000  # characters of a parameter; MLflow's limit is 6000
_LONGEST_KEY = 250  # characters of a metric's name, MLflow's limit


class MlflowTracker(Tracker):
    """Logs to one run of experiment `lmplay`, also over resumes; it sends the metrics that the store lacks."""

    wants_pictures = True

    def start(self, run: RunInfo) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Metric

        self._metric = Metric
        self._client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(run.folder / 'mlflow.db').absolute()}")
        experiment = self._client.get_experiment_by_name("lmplay")
        number = experiment.experiment_id if experiment else self._client.create_experiment(
            "lmplay", artifact_location=None if os.environ.get("MLFLOW_TRACKING_URI") else (run.folder / "mlflow").absolute().as_uri())
        found = self._client.search_runs([number], f"tags.lmplay = '{run.identity}'")
        if found:
            self._run = found[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
        else:
            self._run = self._client.create_run(number, run_name=run.name, tags={"lmplay": run.identity}).info.run_id
            for name, value in run.settings.items():
                self._client.log_param(self._run, name, str(value)[:_LONGEST])
            self._client.log_text(self._run, json.dumps(run.plan, indent=2, ensure_ascii=False), "plan.json")
        self._sent: dict[str, int] = {}
        self._waiting: list[Any] = []
        self._last = time.monotonic()
        if found and (rewind := rewound(self._newest("train/samples"), run.step)):
            self._client.set_tag(self._run, "lmplay.rewinds", "\n".join(filter(None, [found[0].data.tags.get("lmplay.rewinds"), rewind])))
        for kind, row in past_rows(run):
            self._log(kind, row)
        there = {artifact.path for artifact in self._client.list_artifacts(self._run, "samples")} if run.past.get("samples") else set()
        self.samples([row for row in run.past.get("samples", []) if _file(row["step"]) not in there])

    def samples(self, rows: list[dict[str, Any]]) -> None:
        for step, text in samples_by_step(rows).items():
            self._client.log_text(self._run, text, _file(step))

    def end(self, status: str, pictures: list[Path]) -> None:
        self._send()
        for picture in pictures:
            self._client.log_artifact(self._run, str(picture))
        self._client.set_terminated(self._run, {"done": "FINISHED", "stopped": "KILLED"}.get(status, "FAILED"))

    def _log(self, kind: str, figures: dict[str, Any]) -> None:
        """Queue what the store lacks."""
        step, now = int(figures["step"]), int(time.time() * 1000)
        for name, value in figures.items():
            key = _allowed(f"{kind}/{name}")
            if value is not None and name != "step" and step > self._newest(key):
                self._waiting.append(self._metric(key, float(value), now, step))
        if len(self._waiting) > _MOST or time.monotonic() - self._last > _SECONDS:
            self._send()

    def _newest(self, key: str) -> int:
        """Return the newest step of a metric in the store when the run began or went on."""
        if key not in self._sent:
            history = self._client.get_metric_history(self._run, key)
            self._sent[key] = max((metric.step for metric in history), default=-1)
        return self._sent[key]

    def _send(self) -> None:
        """Send the queue."""
        while self._waiting:
            self._client.log_batch(self._run, metrics=self._waiting[:_MOST])
            del self._waiting[:_MOST]
        self._last = time.monotonic()


def _file(step: int) -> str:
    """Name the artifact with the completions of a step."""
    return f"samples/step_{step:09}.txt"


def _allowed(key: str) -> str:
    """Make a name that MLflow accepts; sources may have any name."""
    return posixpath.normpath(re.sub(r"[^\w\-. /]", "_", key).replace("..", "__"))[:_LONGEST_KEY]
