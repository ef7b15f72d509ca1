"""Trackio: a local dashboard on one SQLite file per project."""

from __future__ import annotations

import os
import shlex
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rlpipe.backends.base import Backend, NameRules, RunInfo
from rlpipe.backends.shared.video import TAG, video_of
from rlpipe.config.fields import check_path, option
from rlpipe.metrics.row import Event, Row, Status
from rlpipe.plugins import require

__all__ = ["Trackio"]

RESERVED = ("project", "run", "timestamp", "step", "time", "metrics")
"""Names that Trackio keeps for itself."""
_PROJECTS = NameRules(longest=200)
"""Its files are named like the project."""
_LEVELS = {"warn": "warn", "critical": "error"}


@dataclass(frozen=True)
class TrackioOptions:
    """Options of the Trackio backend."""

    folder: str = option("", checks=(check_path,))
    """Folder of the databases, relative to ``log_path``; empty for Trackio's own, where ``trackio show`` looks:
    ``$TRACKIO_DIR``, else ``~/.cache/huggingface/trackio``."""


class Trackio(Backend):
    """Logs numbers and distributions over iterations; alerts and other events become Trackio's alerts.

    Writes through Trackio's storage, because the thread behind ``trackio.log`` writes later, stamps that later time,
    and only warns when it fails. This way a row is on the disk when ``write`` returns, and no thread is started.
    """

    Config = TrackioOptions

    @classmethod
    def check(cls) -> None:
        require("trackio", "trackio", "runner.logger.logger_backends=[trackio]")

    @classmethod
    def view_command(cls, options: TrackioOptions, run: Path, project: str) -> str:
        folder = f"TRACKIO_DIR={shlex.quote(str(run.parents[1] / options.folder))} " if options.folder else ""
        return f"{folder}trackio show --project {shlex.quote(_PROJECTS.fit(project))}"

    @classmethod
    def reached(cls, run: RunInfo) -> int:
        with _database(run) as database:
            return database.execute("SELECT MAX(step) FROM metrics WHERE run_id = ?", (run.run_id,)).fetchone()[0] or 0

    def __init__(self, run: RunInfo) -> None:
        """Deletes the run's rows from its next iteration on."""
        self._storage = _storage(run)
        self._folder = run.directory
        self._run = {"project": _PROJECTS.fit(run.project), "run": run.run_id, "run_id": run.run_id}
        self._config: dict[Any, Any] | None = {**run.config, "_Group": run.experiment}
        with _database(run) as database:
            database.execute("DELETE FROM metrics WHERE run_id = ? AND step >= ?", (run.run_id, run.first_iteration))

    def write(self, row: Row) -> None:
        histograms = {
            name: {"_type": "trackio.histogram", "bins": histogram.edges, "values": histogram.counts}
            for name, histogram in row.histograms.items()
        }
        self._storage.bulk_log(
            **self._run,
            metrics_list=[{_name(self.fitted(name)): value for name, value in {**histograms, **row.series}.items()}],
            steps=[row.iteration],
            timestamps=[_time(row.time)],
            log_ids=[f"{self._run['run_id']}/{row.iteration}"],  # unique in the database and in a Space
            config=self._config,
        )
        self._config = None

    def event(self, event: Event) -> None:
        if file := video_of(event, self._folder):
            self._add_video(file, event)
            return
        cleared = event.data.get("cleared", False)
        title = f"{event.data['metric']}{' cleared' * cleared}" if event.kind == "alert" else event.kind
        self._storage.bulk_alert(
            **self._run,
            titles=[title],
            texts=[event.message],
            levels=["info" if cleared else _LEVELS.get(event.data.get("level", ""), "info")],
            steps=[max(event.iteration, 0)],
            timestamps=[_time(event.time)],
            alert_ids=[f"{self._run['run_id']}/{event.time}/{title}"],
        )

    def _add_video(self, file: Path, event: Event) -> None:
        """Adds a video to the iteration that it shows, as ``trackio.log`` stores it."""
        import trackio

        video = trackio.Video(str(file), caption=file.stem)
        video._save(self._run["project"], self._run["run"], event.iteration)
        self._storage.bulk_log(
            **self._run,
            metrics_list=[{TAG: video._to_dict()}],
            steps=[event.iteration],
            timestamps=[_time(event.time)],
            log_ids=[f"{self._run['run_id']}/{event.iteration}/{TAG}"],
            config=None,
        )

    def close(self, status: Status) -> None:
        """Does nothing: every row is written already, and Trackio does not record how a run ended."""


def _storage(run: RunInfo) -> Any:
    if run.options.folder:
        os.environ["TRACKIO_DIR"] = str(run.log_path / run.options.folder)
    from trackio.sqlite_storage import SQLiteStorage  # the import reads the variable

    return SQLiteStorage


@contextmanager
def _database(run: RunInfo) -> Iterator[sqlite3.Connection]:
    """A transaction in the database of the run's project."""
    file = _storage(run).init_db(_PROJECTS.fit(run.project))
    with closing(sqlite3.connect(file, timeout=30.0)) as database, database:
        yield database


def _name(metric: str) -> str:
    """Name of a metric as Trackio stores it: reserved names get two leading underscores."""
    return f"__{metric}" if metric in RESERVED or metric.startswith("__") else metric


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
