"""SwanLab: its local dashboard (``swanlab watch``), files for ``swanlab sync``, or its cloud.

The local and offline modes write through SwanLab's own storage. The thread behind ``swanlab.log`` writes later, stamps
that later time, ignores a full disk, cannot continue a local run, and reports a killed run as a success.
"""

from __future__ import annotations

import atexit
import json
import os
import shlex
import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import Enum
from io import BytesIO
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

from omegaconf import OmegaConf

from rlpipe.backends.base import Backend, NameRules, RunInfo
from rlpipe.backends.shared.video import TAG, animation, video_of
from rlpipe.config.fields import check_path, option
from rlpipe.config.tree import leaves
from rlpipe.metrics import CATALOGUE
from rlpipe.metrics.panels import ranked
from rlpipe.metrics.row import Event, Row, Status
from rlpipe.plugins import require

__all__ = ["SwanLab"]

_T = TypeVar("_T")
_POINTS_A_FILE = 1000
_PATIENCE_SECONDS = 60.0
"""Time SwanLab's cloud may take to begin a run, or to receive what is pending at its end."""


class Mode(Enum):
    """Place in which SwanLab shows the run."""

    local = "in a local dashboard: swanlab watch FOLDER"
    offline = "nowhere yet, but in files that swanlab sync sends to the cloud later"
    cloud = "in SwanLab's cloud, or the server $SWANLAB_API_HOST; the key is $SWANLAB_API_KEY, or from swanlab login"


@dataclass(frozen=True)
class SwanLabOptions:
    """Options of the SwanLab backend."""

    mode: Mode = Mode.local
    """local, offline or cloud."""
    folder: str = option("swanlab", checks=(check_path,))
    """Folder that ``swanlab watch`` opens, relative to ``log_path``; offline files lie in its folder ``offline``."""
    workspace: str = ""
    """Workspace in the cloud; empty for that of the key's owner."""


_IN_FILES = NameRules(r"\w/-", longest=512, paths=True)  # full stops and slashes would be stripped from the ends
_NAMES = {Mode.local: NameRules(longest=255), Mode.offline: _IN_FILES, Mode.cloud: _IN_FILES}
"""Names of metrics."""
_RUNS, _PROJECTS = NameRules(r"\w.-", longest=200), NameRules("0-9A-Za-z_.+-", longest=100)


class SwanLab(Backend):
    """One chart per metric, in sections; events and alerts in the run's log, or in the cloud as texts."""

    Config = SwanLabOptions

    @classmethod
    def check(cls) -> None:
        for package in ("swanlab", "swanboard"):
            require(package, "swanlab", "runner.logger.logger_backends=[swanlab]")

    @classmethod
    def can_forget(cls, options: SwanLabOptions) -> bool:
        return options.mode is not Mode.cloud

    @classmethod
    def view_command(cls, options: SwanLabOptions, run: Path, project: str) -> str:  # noqa: ARG003
        return (
            f"swanlab watch {shlex.quote(str(run.parents[1] / options.folder))}" if options.mode is Mode.local else ""
        )

    @classmethod
    def server(cls, options: SwanLabOptions) -> str:
        return os.environ.get("SWANLAB_API_HOST", "https://api.swanlab.cn") if options.mode is Mode.cloud else ""

    @classmethod
    def reached(cls, run: RunInfo) -> int | None:
        return _Local.reached(run) if run.options.mode is Mode.local else 0  # after 0, every row is given again

    def __init__(self, run: RunInfo) -> None:
        """Opens the writer of the mode."""
        self.names = _NAMES[run.options.mode]
        writers: dict[Mode, type[_Local | _Offline | _Cloud]]
        writers = {Mode.local: _Local, Mode.offline: _Offline, Mode.cloud: _Cloud}
        self._writer = writers[run.options.mode](run)

    def write(self, row: Row) -> None:
        """Gives the writer names that fit, in the order of sections and charts."""
        series = row.series
        self._writer.write(
            replace(row, metrics={self.fitted(name): series[name] for name in ranked(series)}, workers={})
        )

    def event(self, event: Event) -> None:
        self._writer.event(event)

    def close(self, status: Status) -> None:
        self._writer.close(status)


class _Local:
    """Writes an experiment of the local dashboard: its database names the charts, text files hold their points.

    All points of a row are written when ``write`` returns, and opening cuts off what the backend process's mark does
    not count, so the mark can be trusted.
    """

    @staticmethod
    def reached(run: RunInfo) -> int | None:
        """0 if the dashboard does not hold the run, or a user deleted it there; otherwise None, so the mark counts."""
        folder = _folder(run)
        if not (folder / "runs.swanlab").is_file() or not (folder / _name(run) / "logs").is_dir():
            return 0
        from swanboard.db import connect
        from swanboard.db.models import Experiment

        connect(path=str(folder))
        return None if Experiment.select().where(Experiment.run_id == _name(run)).exists() else 0

    def __init__(self, run: RunInfo) -> None:
        """Finds or adds the experiment, and cuts its curves off at the run's next iteration."""
        from swanboard.db import connect
        from swanboard.db.models import Experiment, Project, Tag
        from swanboard.utils import generate_color

        folder = _folder(run)
        folder.mkdir(parents=True, exist_ok=True)
        self._database = connect(path=str(folder), autocreate=True)
        with self._database.atomic("IMMEDIATE"):
            project = Project.init(run.project)
            self._experiment = Experiment.select().where(Experiment.run_id == _name(run)).first() or Experiment.create(
                name=_title(run),
                run_id=_name(run),
                colors=generate_color((project.sum or 0) + 1),
                description=str(run.directory)[:255],
            )
            self._set_status(Experiment.RUNNING_STATUS)
            tags = list(Tag.select().where(Tag.experiment_id == self._experiment.id))
        self._logs, self._console = folder / _name(run) / "logs", folder / _name(run) / "console"
        for path in (self._logs, self._console, folder / _name(run) / "files"):
            path.mkdir(parents=True, exist_ok=True)
        (folder / _name(run) / "files" / "config.yaml").write_text(_config_yaml(run), encoding="utf-8")
        self._curves = {tag.name: _Curve(self._logs / tag.folder, run.first_iteration) for tag in tags}
        folders = {curve.folder for curve in self._curves.values()}
        for path in self._logs.iterdir():
            if path not in folders:  # left by a row that was not finished
                shutil.rmtree(path)

    def write(self, row: Row) -> None:
        new = [name for name in row.series if name not in self._curves]
        for name in new:
            self._curves[name] = _Curve(self._logs / str(len(self._curves) + 1), row.iteration)
        for name, value in row.series.items():
            self._curves[name].add(row.iteration, value, row.time)
        if new:
            with self._database.atomic("IMMEDIATE"):
                self._add_charts(new)

    def _add_charts(self, names: list[str]) -> None:
        """Adds for each metric a chart, and one that compares experiments; all at once, as one by one takes seconds."""
        from swanboard.db.models import Chart, Display, Namespace, Project, Source, Tag

        experiment, project = self._experiment.id, Project.DEFAULT_PROJECT_ID
        folders = {name: self._curves[name].folder.name for name in names}
        _insert(Tag, ({"experiment_id": experiment, "name": name, "folder": folder, "type": "line",
                       "sort": int(folder) - 1} for name, folder in folders.items()))  # fmt: skip
        tags = _ids(Tag, Tag.experiment_id == experiment)
        for key, owner in (("experiment_id", experiment), ("project_id", project)):
            owned = {"experiment_id": None, "project_id": None, key: owner}
            before = _ids(Chart, getattr(Chart, key) == owner)
            _insert(Chart, ({**owned, "name": name, "type": "line", "system": int(key == "experiment_id")}
                            for name in names if name not in before))  # fmt: skip
            charts = _ids(Chart, getattr(Chart, key) == owner)
            sections = _ids(Namespace, getattr(Namespace, key) == owner)
            in_order = dict.fromkeys(map(_section, [*ranked(CATALOGUE), *names]))
            _insert(Namespace, ({**owned, "name": name, "sort": place} for place, name in enumerate(in_order)
                                if name not in sections))  # fmt: skip
            sections = _ids(Namespace, getattr(Namespace, key) == owner)
            _insert(Display, ({"chart_id": charts[name], "namespace_id": sections[_section(name)], "sort": charts[name]}
                              for name in names if name not in before))  # fmt: skip
            _insert(Source, ({"tag_id": tags[name], "chart_id": charts[name], "sort": experiment} for name in names))
        Project.update(charts=1).execute()

    def event(self, event: Event) -> None:
        when = datetime.fromtimestamp(event.time, UTC)
        file = self._console / f"{when:%Y-%m-%d}.log"
        line = f"{when:%H:%M:%S.%f} {_sentence(event)}\n"
        if not file.is_file() or line not in file.read_text(encoding="utf-8"):
            with file.open("a", encoding="utf-8") as log:
                log.write(line)

    def close(self, status: Status) -> None:
        from swanboard.db.models import Experiment

        if status != Status.RUNNING:
            self._set_status(Experiment.FINISHED_STATUS if status == Status.COMPLETED else Experiment.STOPPED_STATUS)
        self._database.close()

    def _set_status(self, status: int) -> None:
        self._experiment.update_status(status)
        if status == self._experiment.RUNNING_STATUS:
            self._experiment.finish_time = None
            self._experiment.save()


class _Curve:
    """Points of one metric, one line each."""

    def __init__(self, folder: Path, first_iteration: int) -> None:
        """Keeps the points before ``first_iteration``."""
        self.folder = folder
        held = False
        for file in folder.glob("*.log"):
            lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
            earlier = [line for line in lines if line.endswith("\n") and json.loads(line)["index"] < first_iteration]
            held |= bool(earlier)
            if not earlier:
                file.unlink()
            elif len(earlier) < len(lines):
                partial = file.with_suffix(".partial")
                partial.write_text("".join(earlier), encoding="utf-8")
                partial.replace(file)
        if not held:
            shutil.rmtree(folder, ignore_errors=True)  # the table of last values fails on an empty folder

    def add(self, iteration: int, value: float, seconds: float) -> None:
        """Adds a point."""
        if not self.folder.is_dir():
            self.folder.mkdir()
            (self.folder / "_summary.json").write_text("{}", encoding="utf-8")  # requested by the page, but not used
        point = {"index": iteration, "data": value, "create_time": datetime.fromtimestamp(seconds, UTC).isoformat()}
        with (self.folder / f"{iteration // _POINTS_A_FILE:06d}.log").open("a", encoding="utf-8") as file:
            file.write(json.dumps(point) + "\n")


def _insert(table: Any, rows: Iterable[dict[str, Any]]) -> None:
    from peewee import chunked

    for some in chunked(rows, 500):  # SQLite takes 32766 values at once
        table.insert_many(some).execute()


def _ids(table: Any, where: Any) -> dict[str, int]:
    return dict(table.select(table.name, table.id).where(where).tuples())


class _Offline:
    """Writes a file of SwanLab's records. It cannot be continued, so each opening writes it again from the start."""

    def __init__(self, run: RunInfo) -> None:
        from swanlab.proto.swanlab.run.v1.run_pb2 import StartRecord
        from swanlab.proto.swanlab.save.v1.save_pb2 import SaveRecord, SaveType
        from swanlab.sdk.internal.core_python.pkg import builder, counter
        from swanlab.sdk.internal.core_python.store import DataStoreWriter

        folder = _folder(run) / "offline" / _name(run)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self._build, self._number, self._line = builder, counter.Counter(), counter.Counter()
        self._sections: set[str] = set()
        self._file = DataStoreWriter()
        self._file.open(folder / f"run-{_name(run)}.swanlab")
        config = SaveRecord(name="config", type=SaveType.SAVE_TYPE_CONFIG, payload=_config_yaml(run).encode())
        start = StartRecord(
            project=_project(run),
            workspace=run.options.workspace,
            name=_title(run),
            group=run.experiment,
            id=_name(run),
        )
        self._write(builder.build_start_record(start))
        self._write(builder.build_save_record(self._number, config, config.type))
        self._file.ensure_flushed()

    def write(self, row: Row) -> None:
        from swanlab.proto.swanlab.metric.column.v1 import column_pb2
        from swanlab.proto.swanlab.metric.data.v1.data_pb2 import ScalarRecord, ScalarValue

        for key, value in row.series.items():
            scalar = column_pb2.ColumnType.COLUMN_TYPE_SCALAR
            if key not in self._sections:
                self._sections.add(key)
                column = column_pb2.ColumnRecord(
                    column_class=column_pb2.ColumnClass.COLUMN_CLASS_CUSTOM,
                    column_type=scalar,
                    column_key=key,
                    section_name=_section(key),
                    section_type=column_pb2.SectionType.SECTION_TYPE_PUBLIC,
                )
                self._write(self._build.build_column_record(self._number, column))
            point = ScalarRecord(
                key=key, step=row.iteration, type=scalar, timestamp=_stamp(row.time), value=ScalarValue(number=value)
            )
            self._write(self._build.build_scalar_record(self._number, point))
        self._file.ensure_flushed()

    def event(self, event: Event) -> None:
        from swanlab.proto.swanlab.terminal.v1.log_pb2 import LogLevel, LogRecord

        line = LogRecord(line=_sentence(event), level=LogLevel.LOG_LEVEL_INFO, timestamp=_stamp(event.time))
        self._write(self._build.build_log_record(self._number, self._line, line))
        self._file.ensure_flushed()

    def close(self, status: Status) -> None:
        from swanlab.proto.swanlab.run.v1.run_pb2 import FinishRecord, RunState

        states = {Status.COMPLETED: RunState.RUN_STATE_FINISHED, Status.FAILED: RunState.RUN_STATE_CRASHED}
        if status != Status.RUNNING:
            state = states.get(status, RunState.RUN_STATE_ABORTED)
            error = "" if status == Status.COMPLETED else f"The run {status}."
            self._write(self._build.build_finish_record(FinishRecord(state=state, error=error)))
        self._file.close()

    def _write(self, record: Any) -> None:
        self._file.write(record.SerializeToString())


class _Cloud:
    """Begins or continues a run in the cloud. SwanLab itself skips every number that its server already holds."""

    def __init__(self, run: RunInfo) -> None:
        import swanlab

        settings = swanlab.Settings(
            interactive=False,
            mode="online",
            core={"section_rule": -1, "skip_store": True},
            terminal={"proxy_type": "none"},
            probe=dict.fromkeys(("hardware", "runtime", "requirements", "conda", "git", "swanlab", "monitor"), False),
        )
        self._text, self._show, self._directory = swanlab.Text, swanlab.Video, run.directory
        self._run = _bounded(
            lambda: swanlab.init(
                mode="online",
                project=_project(run),
                workspace=run.options.workspace or None,
                name=_title(run),
                group=run.experiment,
                id=_name(run),
                resume="allow",
                config=_config(run),
                settings=settings,
            )
        )
        atexit.register(self.close, Status.INTERRUPTED)  # before SwanLab's handler, which reports a success

    def write(self, row: Row) -> None:
        self._run.log(row.series, step=row.iteration)

    def event(self, event: Event) -> None:
        if (file := video_of(event, self._directory)) and (moving := animation(file)):  # it shows videos as GIF alone
            self._run.log({TAG: self._show(BytesIO(moving))}, step=event.iteration)
            return
        name = _IN_FILES.fit(f"events/{event.data.get('metric', event.kind)}")
        self._run.log({name: self._text(_sentence(event))}, step=max(event.iteration, 0))

    def close(self, status: Status) -> None:
        atexit.unregister(self.close)
        state = {Status.COMPLETED: "success", Status.FAILED: "crashed"}.get(status, "aborted")
        error = None if status == Status.COMPLETED else f"The run {status}."
        _bounded(lambda: self._run.finish(state=state, error=error))


def _bounded(work: Callable[[], _T]) -> _T:
    """Waits for SwanLab's server at most ``_PATIENCE_SECONDS``; in a thread, so that SwanLab does not handle Ctrl-C.

    Raises:
        TimeoutError: the server took longer.
    """
    done: Future[_T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    Thread(target=run, daemon=True).start()
    try:
        return done.result(_PATIENCE_SECONDS)
    except TimeoutError:
        raise TimeoutError(
            f"SwanLab's server did not accept everything within {_PATIENCE_SECONDS:g} s. Nothing is lost: rlpipe sync "
            "sends what is missing."
        ) from None


def _folder(run: RunInfo) -> Path:
    return run.log_path / str(run.options.folder)


def _name(run: RunInfo) -> str:
    """Name of the run as a folder and as SwanLab's id, unique in the store."""
    return _RUNS.fit(f"{run.experiment}-{run.run_id}")


def _title(run: RunInfo) -> str:
    return f"{run.run_id} {run.experiment}"  # the id first: the list of runs cuts off the end


def _project(run: RunInfo) -> str:
    return _PROJECTS.fit(run.project)


def _section(metric: str) -> str:
    return metric.rpartition("/")[0] or "default"


def _sentence(event: Event) -> str:
    standing = "cleared" if event.data.get("cleared") else event.data.get("level", event.kind)
    return f"{standing}: {' '.join(event.message.split())}"


def _config(run: RunInfo) -> dict[str, Any]:
    """Flattens the configuration, because the dashboard shows no nesting: ``learner.lr: 0.001``."""
    return {key: "{}" if value == {} else value for key, value in leaves(run.config)}


def _config_yaml(run: RunInfo) -> str:
    """The configuration in the format of SwanLab's files."""
    entries = enumerate(_config(run).items())
    described = {key: {"value": value, "desc": "", "sort": place} for place, (key, value) in entries}
    return OmegaConf.to_yaml(OmegaConf.create(described))


def _stamp(seconds: float) -> dict[str, int]:
    return {"seconds": int(seconds), "nanos": int(seconds % 1 * 1e9)}
