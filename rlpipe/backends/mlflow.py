"""MLflow: a tracking server, or one SQLite file for all runs."""

from __future__ import annotations

import json
import os
import shlex
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlpipe.backends.base import Backend, NameRules, RunInfo
from rlpipe.backends.shared.video import video_of
from rlpipe.config.tree import leaves
from rlpipe.metrics.row import Event, Row, Status
from rlpipe.plugins import require

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

__all__ = ["MLflow"]

RUN_ID, REACHED = "rlpipe.run_id", "rlpipe.iteration"
_METRICS_AT_ONCE, _PARAMS_AT_ONCE = 1000, 100
_LONGEST_PARAM, _LONGEST_TAG = 6000, 5000
_PROJECTS = NameRules(longest=256)
_REFUSED = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST", "RESOURCE_LIMIT_EXCEEDED")
"""Codes with which MLflow refuses a value that it will not accept later either."""
_STATUS = {Status.COMPLETED: "FINISHED", Status.FAILED: "FAILED"}


@dataclass(frozen=True)
class MLflowOptions:
    """Options of the MLflow backend. MLflow reads credentials itself, such as ``MLFLOW_TRACKING_TOKEN``."""

    tracking_uri: str = ""
    """Server or database; empty for ``$MLFLOW_TRACKING_URI``, else ``mlflow.db`` in ``log_path``. No password here."""


class MLflow(Backend):
    """Logs numbers over iterations, in the MLflow experiment named like the project.

    The configuration that the run began with becomes parameters. Whatever can change becomes a tag: a key to which a
    resume gave another value, the last alert of each metric, and the last event of each kind.

    MLflow never forgets a number, but its databases keep a number that is logged again with the same time only once.
    After an iteration's last number, a tag records the iteration; up to this tag the store is complete, and later
    iterations are logged again.
    """

    Config = MLflowOptions
    forgets = False
    names = NameRules(r"a-zA-Z0-9_\-. :/", longest=250, paths=True)

    @classmethod
    def check(cls) -> None:
        require("mlflow", "mlflow", "runner.logger.logger_backends=[mlflow]")

    @classmethod
    def view_command(cls, options: MLflowOptions, run: Path, project: str) -> str:  # noqa: ARG003
        local = f"sqlite:///{run.parents[1] / 'mlflow.db'}"
        return shlex.join(["mlflow", "ui", "--backend-store-uri", _uri(options) or local])

    @classmethod
    def server(cls, options: MLflowOptions) -> str:
        uri = _uri(options)
        return uri if uri.startswith("http") else ""

    @classmethod
    def reached(cls, run: RunInfo) -> int:
        stored = _find(_client(run), run)
        return int(stored.data.tags.get(REACHED, 0)) if stored else 0

    def __init__(self, run: RunInfo) -> None:
        """Continues the MLflow run that has this run's tag, or begins one."""
        self._client, self._directory = _client(run), run.directory
        stored = _find(self._client, run) or _begin(self._client, run)
        self._id = stored.info.run_id
        self._end = stored.info.end_time
        self._client.update_run(self._id, status="RUNNING")
        self._configure(run.config, stored.data.params, stored.data.tags)

    def _configure(self, tree: Mapping[str, Any], params: Mapping[str, str], tags: Mapping[str, str]) -> None:
        from mlflow.entities import Param

        texts = ((key, value if isinstance(value, str) else json.dumps(value)) for key, value in leaves(tree))
        config = {self.fitted(key): text[:_LONGEST_PARAM] for key, text in texts}
        new = [Param(key, value) for key, value in config.items() if key not in params]
        self._log(new, _PARAMS_AT_ONCE, lambda some: self._client.log_batch(self._id, params=some, synchronous=True))
        for key, value in config.items():
            if tags.get(f"config/{key}", params.get(key, value)) != value:
                self._tag(f"config/{key}", value)

    def _log(self, values: Sequence[Any], at_once: int, log: Callable[[Sequence[Any]], None]) -> None:
        """Logs values in batches, and leaves out the single values that MLflow refuses."""
        from mlflow.exceptions import MlflowException

        for start in range(0, len(values), at_once):
            some = values[start : start + at_once]
            try:
                log(some)
            except MlflowException as error:
                if error.error_code not in _REFUSED:
                    raise
                if len(some) > 1:
                    self._log(some, (len(some) + 1) // 2, log)
                else:
                    self.refuse(some[0].key, f"MLflow does not accept it ({error.message.splitlines()[0]})")

    def write(self, row: Row) -> None:
        from mlflow.entities import Metric

        self._end = int(1000 * row.time)
        metrics = [Metric(self.fitted(name), value, self._end, row.iteration) for name, value in row.series.items()]
        self._log(metrics, _METRICS_AT_ONCE, lambda some: self._client.log_batch(self._id, some, synchronous=True))
        self._tag(REACHED, str(row.iteration))

    def event(self, event: Event) -> None:
        self._end = int(1000 * event.time)
        if file := video_of(event, self._directory):
            self._client.log_artifact(self._id, str(file), "videos")
        if event.kind == "alert":
            standing = "cleared" if event.data["cleared"] else event.data["level"]
            self._tag(f"alert/{event.data['metric']}", f"{standing} in iteration {event.iteration}: {event.message}")
        else:
            self._tag(f"event/{event.kind}", f"iteration {event.iteration}: {event.message}")

    def _tag(self, key: str, value: str) -> None:
        from mlflow.entities import RunTag

        tag = RunTag(self.fitted(key), value[:_LONGEST_TAG])
        self._log([tag], 1, lambda _: self._client.set_tag(self._id, tag.key, tag.value, synchronous=True))

    def close(self, status: Status) -> None:
        if status != Status.RUNNING:
            self._client.set_terminated(self._id, _STATUS.get(status, "KILLED"), self._end)


def _client(run: RunInfo) -> MlflowClient:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # before the import, which starts it
    from mlflow import MlflowClient

    return MlflowClient(_uri(run.options) or f"sqlite:///{_local_database(run)}")


def _uri(options: MLflowOptions) -> str:
    """Where the user keeps runs; empty for our own database."""
    return options.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI", "")


def _local_database(run: RunInfo) -> Path:
    """Database that all runs share; created if it does not exist.

    MLflow creates its tables one by one and without a lock, so two runs that begin at once, or one that is killed,
    would leave a file that cannot be opened. The database is therefore created in memory, which is also faster, and
    linked into place when complete, unless another run was first.
    """
    from mlflow import MlflowClient

    file, partial = run.log_path.resolve() / "mlflow.db", run.directory.resolve() / ".mlflow.db.partial"
    if not file.exists():
        memory = "file:rlpipe?mode=memory&cache=shared"
        with closing(sqlite3.connect(memory, uri=True)) as created:
            MlflowClient(f"sqlite:///{memory}&uri=true")
            partial.unlink(missing_ok=True)
            with closing(sqlite3.connect(partial)) as copy:
                created.backup(copy)
        with suppress(FileExistsError):
            os.link(partial, file)
    partial.unlink(missing_ok=True)
    return file


def _find(client: MlflowClient, run: RunInfo) -> Run | None:
    """MLflow's run for this run; None if there is none, or a user deleted it.

    An id says the second and the seed of a run, so two experiments may share one; their milliseconds differ.
    """
    experiment = client.get_experiment_by_name(_PROJECTS.fit(run.project))
    if experiment is None:
        return None
    tagged = client.search_runs([experiment.experiment_id], f"tags.`{RUN_ID}` = '{run.run_id}'")
    return next((stored for stored in tagged if stored.info.start_time == _started(run)), None)


def _begin(client: MlflowClient, run: RunInfo) -> Run:
    from mlflow.exceptions import MlflowException

    # else MLflow would put videos into the working directory
    place = {} if _uri(run.options) else {"artifact_location": (run.log_path.resolve() / "mlartifacts").as_uri()}
    try:
        client.create_experiment(_PROJECTS.fit(run.project), **place)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    experiment = client.get_experiment_by_name(_PROJECTS.fit(run.project))
    tags = {RUN_ID: run.run_id, "rlpipe.experiment": run.experiment}
    return client.create_run(experiment.experiment_id, _started(run), tags, run_name=run.run_id)


def _started(run: RunInfo) -> int:
    """Milliseconds since the epoch at which the run began."""
    return int(1000 * datetime.fromisoformat(run.created).timestamp())
