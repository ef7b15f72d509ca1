"""The run directory: the files that a run leaves behind (``docs/run_directory.md``).

``metrics.jsonl`` and the episode ledgers are the source of everything that backends show. Each line is written whole
and handed to the operating system at once, so killing the program loses no line that was reported. If the disk is full,
writes wait in memory in their order, and what is on the disk stays whole.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from rlpipe import files
from rlpipe.config.schema import Config, LoggerConfig
from rlpipe.config.tree import from_yaml, to_yaml
from rlpipe.errors import ConfigError
from rlpipe.metrics.row import Event, Row, Status
from rlpipe.metrics.spans import Span
from rlpipe.plugins import find_modules_in, nearest
from rlpipe.run import shapes
from rlpipe.run.locks import Lock, TemporaryLock
from rlpipe.run.provenance import provenance
from rlpipe.trajectory import Episode
from rlpipe.trajectory.fingerprint import FragmentFingerprint, UpdateFingerprint

log = logging.getLogger("rlpipe")

EVENTS = "events.jsonl"
LATEST = "latest"
"""Word for the newest run."""
TIMELINE = "timeline.jsonl"
FINGERPRINTS = "fingerprints.jsonl"
PROCESSES = "processes"
"""File with the number of processes that a user asks a run to take for its workers."""
KEPT_ITERATIONS = 100
"""Smallest number of iterations that the timeline keeps; every so many iterations, older ones are dropped."""
LINE_FILES = tuple(shapes.SHAPES)
_LOST = {"metrics.jsonl": "iteration", "episodes.jsonl": "episode", "eval_episodes.jsonl": "episode"}
"""Name of what one line records, by file."""


@dataclass(frozen=True)
class _PendingWrite:
    """Write that has not reached the disk yet.

    Attributes:
        name: file in the run directory
        contents: lines to append, or the new contents of the whole file
        replaces: True if the contents replace the file
    """

    name: str
    contents: bytes
    replaces: bool = False


class RunDirectory:
    """Files of one run, written by one process.

    Attributes:
        path: absolute path of the directory
        checkpoints: folder of the checkpoints
        write_error: why the disk accepts no writes at the moment; None while it does
    """

    def __init__(self, path: Path) -> None:
        """Refers to a directory; see ``create`` and ``existing``."""
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.write_error: OSError | None = None
        self._pending: deque[_PendingWrite] = deque()
        self._complete_bytes: dict[str, int] = {}

    @classmethod
    def create(cls, config: Config, cluster: Mapping[str, Any]) -> RunDirectory:
        """Creates the directory of a new run, with ``config.yaml`` and ``run.json``."""
        experiment = Path(config.runner.logger.log_path) / config.runner.logger.experiment_name
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        for suffix in ("", *(f"-{n}" for n in range(2, 1000))):
            path = experiment / f"{stamp}-seed{config.runner.seed}{suffix}"
            try:
                path.mkdir(parents=True)
                break
            except FileExistsError:
                continue
            except OSError as error:
                raise ConfigError(f"runner.logger.log_path: cannot create {path}: {error}.") from error
        run = cls(path.resolve())
        try:
            run.write_config(config)
        except OSError as error:
            shutil.rmtree(path)
            raise ConfigError(f"runner.logger.log_path: cannot write to {path}: {error}.") from error
        run.write_json(
            {
                "run_id": path.name,
                "experiment": config.runner.logger.experiment_name,
                "project": config.runner.logger.project_name,
                "status": Status.RUNNING,
                "created": datetime.now(UTC).isoformat(),
                "incarnation": 0,
                **provenance(config, cluster),
            }
        )
        if run.write_error:
            shutil.rmtree(path)
            raise ConfigError(f"runner.logger.log_path: cannot write to {path}: {run.write_error}.")
        return run

    def reopen(self, config: Config, cluster: Mapping[str, Any], incarnation: int, after: int) -> None:
        """Records that the run continues after an iteration, perhaps with other settings or on another machine."""
        self.write_config(config)
        before = {key: value for key, value in self.read_json().items() if key != "cause"}
        changes = {"status": Status.RUNNING, "incarnation": incarnation, **provenance(config, cluster)}
        resumed = [*before.get("resumed_after", []), after]
        self.write_json({**before, **changes, "resumed_after": resumed})

    @classmethod
    def existing(cls, path: Path) -> RunDirectory:
        """Refers to the directory of an existing run. The modules that it was made with can be imported from then on.

        Raises:
            ConfigError: the path is not a run directory.
        """
        path = find_run(path)
        if not (kind := files.kind_of(path)):
            beside = path.parent if path.parent.is_dir() else Path()
            near = nearest(path.name, [other.name for other in beside.iterdir() if other.is_dir()])
            raise ConfigError(f"there is no run directory {path}{near}")
        if kind == "file":
            raise ConfigError(f"{path} is a file; name the run directory, which holds run.json and config.yaml.")
        missing = [name for name in ("run.json", "config.yaml") if files.kind_of(path / name) != "file"]
        if missing:
            raise ConfigError(f"{path} is not a run directory: {' and '.join(missing)} missing.")
        run = cls(path.resolve())
        with suppress(ConfigError):  # whoever reads the file reports what is wrong with it
            find_modules_in(*run.read_json().get("module_folders", []))
        return run

    @property
    def run_id(self) -> str:
        """Name of the run, which is that of its folder."""
        return self.path.name

    def check(self) -> None:
        """Checks every file that others read.

        Raises:
            ConfigError: a file is damaged, or was not written by a run.
        """
        self.read_json()
        self.read_config()
        for name in LINE_FILES:
            if files.kind_of(self.path / name):
                deque(read_jsonl(self.path / name), maxlen=0)

    def read_json(self) -> dict[str, Any]:
        """Returns ``run.json``, checked against ``shapes.RunRecord``.

        Raises:
            ConfigError: it is damaged.
        """
        pending = [write.contents for write in self._pending if write.name == "run.json"]
        file = self.path / "run.json"
        contents = pending[-1] if pending else files.content(file)
        return dict(files.parsed(contents, shapes.RunRecord, str(file)))

    def read_config(self) -> dict[str, Any]:
        """Returns ``config.yaml``, of which ``shapes.ConfigRecord`` is checked.

        Raises:
            ConfigError: it is damaged.
        """
        file = self.path / "config.yaml"
        return dict(files.checked(from_yaml(files.text(file), str(file)), shapes.ConfigRecord, str(file)))

    def last_iteration(self) -> int:
        """Returns the iteration of the last row; 0 without one."""
        file = self.path / "metrics.jsonl"
        return max((row["iteration"] for row in read_jsonl(file)), default=0) if file.is_file() else 0

    def write_json(self, contents: Mapping[str, Any]) -> None:
        """Replaces ``run.json``, whole or not at all."""
        self._write(_PendingWrite("run.json", (json.dumps(contents, indent=2) + "\n").encode(), replaces=True))

    def logger_options(self, backend: str) -> dict[str, Any]:
        """Returns the options of a backend in the configuration of the run."""
        options = self.read_config()["runner"]["logger"].get("options", {})
        return dict(options.get(backend) or {})

    def write_config(self, config: Config) -> None:
        """Writes ``config.yaml``: the configuration of the run since its start or its last resume."""
        (self.path / "config.yaml").write_text(to_yaml(config), encoding="utf-8")

    def append(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Appends lines to a ``.jsonl`` file. ``json`` refuses NaN and infinity."""
        lines = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows)
        if lines:
            self._write(_PendingWrite(name, lines.encode()))

    def _write(self, new: _PendingWrite) -> None:
        """Writes in order, because a line in ``metrics.jsonl`` implies the episodes that were written before it."""
        self._pending.append(new)
        self.write_pending()

    def write_pending(self, timeout: float = 0.0) -> int:
        """Writes everything for which the disk had no room before.

        Args:
            timeout: seconds to wait for room
        Returns:
            Number of iterations that are still pending.
        """
        deadline = time.monotonic() + timeout
        while self._pending:
            try:
                (self._replace if self._pending[0].replaces else self._append)(self._pending[0])
            except OSError as error:
                self.write_error = error
                if time.monotonic() >= deadline:
                    break
                time.sleep(0.2)
            else:
                self._pending.popleft()
                self.write_error = None
        return sum(write.name == "metrics.jsonl" for write in self._pending)

    def _append(self, lines: _PendingWrite) -> None:
        """Appends lines; a line for which there is only partly room is taken back."""
        with (self.path / lines.name).open("ab", buffering=0) as file:
            complete = self._complete_bytes.setdefault(lines.name, file.tell())
            if file.tell() > complete:  # part of a line that could not be taken back at once
                file.truncate(complete)
            rest = memoryview(lines.contents)
            try:
                while rest:
                    rest = rest[file.write(rest) :]
            except OSError:
                file.truncate(complete)
                raise
            self._complete_bytes[lines.name] = complete + len(lines.contents)

    def _replace(self, new: _PendingWrite) -> None:
        with files.replacing(self.path / new.name) as file:
            file.write(new.contents)
        self._complete_bytes.pop(new.name, None)

    def write_row(self, row: Row, episodes: Iterable[Episode], eval_episodes: Iterable[Episode]) -> None:
        """Writes one iteration, its episodes first: the line in ``metrics.jsonl`` states that they are complete."""
        self.append("episodes.jsonl", (episode.as_row(row.iteration) for episode in episodes))
        self.append("eval_episodes.jsonl", (episode.as_row(row.iteration) for episode in eval_episodes))
        self.append("metrics.jsonl", [row.as_json()])

    def write_spans(self, iteration: int, spans: Iterable[Span]) -> None:
        """Appends an iteration to the timeline and from time to time drops the oldest ones."""
        self.append(TIMELINE, [{"iteration": iteration, "spans": [span.as_json() for span in spans]}])
        if iteration % KEPT_ITERATIONS == 0 and not self._pending:
            lines = (self.path / TIMELINE).read_bytes().splitlines(keepends=True)
            self._write(_PendingWrite(TIMELINE, b"".join(lines[-KEPT_ITERATIONS:]), replaces=True))

    def write_fingerprints(
        self, iteration: int, fingerprints: Sequence[FragmentFingerprint | UpdateFingerprint]
    ) -> None:
        """Appends the fingerprints of an iteration; several learners, whose weights are equal, leave one."""
        fragments, updates = (
            [asdict(fingerprint) for fingerprint in dict.fromkeys(fingerprints) if isinstance(fingerprint, kind)]
            for kind in (FragmentFingerprint, UpdateFingerprint)
        )
        self.append(FINGERPRINTS, [{"iteration": iteration, "fragments": fragments, "updates": updates}])

    def write_event(self, event: Event) -> None:
        """Appends a line to ``events.jsonl``."""
        self.append(EVENTS, [event.as_json()])

    def ask_for_processes(self, number: int | None) -> None:
        """Asks a run that can to take at most so many processes for its workers; None for as many as there is room."""
        if number is None:
            (self.path / PROCESSES).unlink(missing_ok=True)
        else:
            with files.replacing(self.path / PROCESSES) as file:
                file.write(f"{number}\n".encode())

    def processes_asked_for(self) -> int | None:
        """Returns the number of processes that a user has asked for; None if nobody has."""
        try:
            return int((self.path / PROCESSES).read_text())
        except (OSError, ValueError):
            return None

    def lock_for_writing(self, patience: float = 20.0) -> Lock:
        """Locks the directory for its one writer; the lock file stays.

        Args:
            patience: seconds to wait for the logger of a run that has just died
        Raises:
            ConfigError: another process writes here, or the directory cannot be written.
        """
        refusal = f"{self.path} is being written: the run is in progress. Stop it before resuming."
        try:
            return Lock(self.path / ".lock", patience, refusal)
        except OSError as error:
            raise ConfigError(f"{self.path / '.lock'} cannot be written: {error.strerror or error}.") from error

    def lock_for_resuming(self, patience: float = 20.0) -> Lock:
        """Locks the run for the one start that resumes it.

        The logger of that start, which writes the directory, may live in another process and takes its own lock.

        Args:
            patience: seconds to wait for a start, and for the logger of a run, that have just died
        Raises:
            ConfigError: another start resumes the run, the run is in progress, or its directory cannot be written.
        """
        refusal = f"{self.path} was resumed and is in progress: wait for its end, or stop it."
        try:
            lock = TemporaryLock(self.path / ".resume.lock", patience, refusal)
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be written, so its run cannot be resumed there: {error}.") from error
        with ExitStack() as on_refusal:
            on_refusal.enter_context(lock)
            if (self.path / ".lock").exists():
                self.lock_for_writing(patience).release()
            on_refusal.pop_all()
        return lock


def runs_in(folder: Path) -> list[Path]:
    """Lists the run directories in a folder of runs, of an experiment or of several, the newest first."""
    records = (file for depth in range(1, 4) for file in folder.glob(f"{'*/' * depth}run.json"))
    return sorted((file.parent for file in records), key=_began, reverse=True)


def _began(run: Path) -> tuple[float, str]:
    """Returns when a run began, in seconds since 1970, and its name, which counts those of the same second."""
    try:
        return datetime.fromisoformat(RunDirectory(run).read_json()["created"]).timestamp(), run.name
    except ConfigError:
        return (run / "run.json").stat().st_mtime, run.name


def find_run(path: Path) -> Path:
    """Returns the run directory that a user means: the newest one where ``path`` is a folder of runs.

    ``latest`` is the newest in ``runs``, ``FOLDER/latest`` that in a folder, unless there is something of that name.

    Returns:
        The path as it is where it is no folder of runs; whoever reads it says what is wrong with it.
    Raises:
        ConfigError: there is no run for which ``latest`` could stand.
    """
    path = files.user_path(str(path), "RUN")
    folder, latest = path, path.name == LATEST and not os.path.lexists(path)
    if latest:
        folder = path.parent if len(path.parts) > 1 else Path(LoggerConfig().log_path)
    if not (latest or os.path.isdir(folder)) or _is_run(folder):
        return path
    newest = next(iter(runs_in(folder)), None)
    if newest is None and latest:
        raise ConfigError(f"{path} stands for the newest run in {folder}, where there is none: name the run directory.")
    if newest is None:
        return path
    log.info("%s: the newest run is %s", path, newest)
    return newest


def find_runs(path: Path) -> list[Path]:
    """Returns the run directories that a user means where there may be several: all in a folder, the oldest first.

    Anything but a folder of runs is the one path that ``find_run`` returns.
    """
    folder = files.user_path(str(path), "RUN")
    runs = runs_in(folder)[::-1] if os.path.isdir(folder) and not _is_run(folder) else []
    if not runs:
        return [find_run(path)]
    log.info("%s: its runs are %s", path, ", ".join(map(str, runs)))
    return runs


def _is_run(folder: Path) -> bool:
    """True if a folder has a file of a run, also of a damaged one."""
    return any(os.path.exists(folder / name) for name in ("run.json", "config.yaml", "metrics.jsonl"))


def read_jsonl(path: Path, name: str = "") -> Iterator[dict[str, Any]]:
    """Yields the records of a ``.jsonl`` file; a last line that is being written, or was torn, is skipped.

    Args:
        name: name that the file would have in a run directory; empty for that of the path
    Raises:
        ConfigError: the file cannot be read, or a line is damaged.
    """
    lines = shapes.Lines(path, name)
    try:
        with path.open("rb") as file:
            for line in files.lines(file, path):
                if line.endswith(b"\n"):
                    yield lines.record(line)
                else:
                    warn_of_torn_line(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}.") from error


def warn_of_torn_line(path: Path) -> None:
    """Warns, once, that the last line of a file is not whole, if the run completed: then nothing will complete it."""
    with suppress(OSError, ConfigError):
        if RunDirectory(path.parent).read_json()["status"] == Status.COMPLETED:
            lost = _LOST.get(path.name, "line")
            _warn_once(f"The last line of {path} is torn, although the run completed: one {lost} is missing.")


@cache
def _warn_once(message: str) -> None:
    log.warning("%s", message)
