"""Follows a run directory on behalf of a backend: reads what is there and passes on what the backend has not seen.

The run directory is written first, and by one writer. A follower only reads it. So a follower may be late, fail, be
killed and be restarted, on this machine or another; afterwards nothing is missing and nothing is there twice.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from rlpipe import files
from rlpipe.backends.base import Backend, RunInfo
from rlpipe.config.sections import options_of
from rlpipe.errors import ConfigError
from rlpipe.metrics.row import Event, Row, Status
from rlpipe.plugins import resolve
from rlpipe.run import checkpoint, shapes
from rlpipe.run.directory import RunDirectory, warn_of_torn_line
from rlpipe.run.locks import Lock


@dataclass(frozen=True)
class BackendMark:
    """Progress of a backend, as kept in ``backends/<name>.json``.

    Attributes:
        iteration: last iteration that was passed on
        incarnation: incarnation of the run at that time
        events: number of lines of ``events.jsonl`` that were passed on
        status: status that the backend was closed with; empty while it is open
        options: hash of the backend's options. With other options it may show the run elsewhere, so the mark is void.
        remarks: sentences about metrics that the backend shows under a shortened name or not at all, the first ones
    """

    iteration: int = 0
    incarnation: int = 0
    events: int = 0
    status: str = ""
    options: str = ""
    remarks: tuple[str, ...] = ()


_MOST_REMARKS = 20


class Tail:
    """Reads the complete lines that are appended to a file; all lines again after the file was replaced."""

    def __init__(self, path: Path) -> None:
        """Starts at the first line; the file need not exist yet."""
        self._path = path
        self._offset = self._inode = 0
        self._lines = shapes.Lines(path)

    def read(self, after: int = -1) -> Iterator[dict[str, Any]]:
        """Yields the records since the last call, without those of iterations up to ``after``."""
        if not self._path.is_file():
            return
        with self._path.open("rb") as file:
            inode = self._path.stat().st_ino
            size = file.seek(0, 2)
            if inode != self._inode or size < self._offset:
                self._inode, self._offset, self._lines = inode, 0, shapes.Lines(self._path)
            file.seek(self._offset)
            for line in files.lines(file, self._path):
                if not line.endswith(b"\n"):  # it is being written
                    warn_of_torn_line(self._path)
                    return
                self._offset += len(line)
                if (record := self._lines.record(line)).get("iteration", 0) > after:
                    yield record


class Follower:
    """Keeps one backend up to date with a run directory. A lock excludes others: two would show everything twice."""

    def __init__(
        self, directory: RunDirectory, name: str, options: Mapping[str, Any] | None = None, *, patience: float = 0.0
    ) -> None:
        """Reads the backend's progress; the backend is opened once there is something to show.

        Args:
            options: options that replace those in the run's configuration
            patience: seconds to wait for another follower of the same backend to end
        Raises:
            ConfigError: there is no such backend, its options are wrong, it cannot work here, or another process
                follows the run for it.
        """
        self._directory = directory
        self._class: type[Backend] = resolve("backends", name, "--to")
        self._options = options_of(name, self._class.Config, directory.logger_options(name) | dict(options or {}))
        self._class.check()
        self._forgets = self._class.can_forget(self._options)
        directory.check()
        self._file = mark_file(directory.path, name)
        lock_file = self._file.with_suffix(".lock")
        try:
            lock_file.parent.mkdir(exist_ok=True)
            self._lock = Lock(
                lock_file,
                patience,
                f"another process already keeps {name} up to date for this run: let it do so, or wait until the run "
                "has ended.",
            )
        except OSError as error:
            raise ConfigError(f"{lock_file} cannot be written: {error.strerror or error}.") from error
        options_hash = hashlib.sha256(repr(self._options).encode()).hexdigest()[:8]
        mark = read_mark(self._file)
        self._mark = mark if mark.options == options_hash else BackendMark(options=options_hash)
        self._backend: Backend | None = None
        self._rows, self._events = Tail(directory.path / "metrics.jsonl"), Tail(directory.path / "events.jsonl")
        self._held_back: list[Row] = []
        self._seen_events = 0

    def close(self) -> None:
        """Lets another follower take over. A backend that is open is left as it is, to be opened again."""
        self._lock.release()

    @property
    def withheld(self) -> int:
        """Number of rows held back, because a resume could discard them and the backend could not forget them."""
        return len(self._held_back)

    @property
    def mark(self) -> BackendMark:
        """Progress of the backend."""
        return self._mark

    def catch_up(self) -> bool:
        """Passes on everything that the backend has not seen and may see; nothing before the run has begun to write.

        Returns:
            True if the run has ended and the backend shows all of it; the backend is then closed.
        """
        run = self._directory.read_json()
        if "view" not in run:
            return False
        if self._mark.status and run["status"] == self._mark.status and run["incarnation"] == self._mark.incarnation:
            return True
        if self._backend is None or run["incarnation"] != self._mark.incarnation:
            self._open(run)
        assert self._backend is not None
        ended: bool = run["status"] != Status.RUNNING
        certain = self._forgets or run["status"] == Status.COMPLETED
        covered = None if certain else checkpoint.newest_iteration(self._directory.path)
        held_back = []
        for row in chain(self._held_back, map(Row.from_json, self._rows.read(after=self._mark.iteration))):
            if covered is not None and row.iteration > covered:
                held_back.append(row)
            else:
                self._backend.write(row)
                self._set_mark(replace(self._mark, iteration=row.iteration, remarks=self._remarks()))
        self._held_back = held_back
        for event in self._events.read():
            self._seen_events += 1
            if self._seen_events > self._mark.events:
                self._backend.event(Event(**event))
                self._set_mark(replace(self._mark, events=self._seen_events, remarks=self._remarks()))
        if ended:
            self._backend.close(run["status"])
            self._backend = None
            self._set_mark(replace(self._mark, status=run["status"]))
        return ended

    def _remarks(self) -> tuple[str, ...]:
        assert self._backend is not None
        return tuple(dict.fromkeys([*self._mark.remarks, *self._backend.remarks.values()]))[:_MOST_REMARKS]

    def view_command(self) -> str:
        """Returns the command that opens what the backend shows; empty if there is none."""
        project = self._directory.read_json()["project"]
        return self._class.view_command(self._options, self._directory.path, project)

    def _open(self, run: Mapping[str, Any]) -> None:
        """Opens the backend after the last row that it shows and that is still valid."""
        if self._backend is not None:
            self._backend.close(Status.RUNNING)
        info = RunInfo(
            run_id=self._directory.run_id,
            experiment=run["experiment"],
            project=run["project"],
            directory=self._directory.path,
            config_yaml=files.text(self._directory.path / "config.yaml"),
            first_iteration=1,
            options=self._options,
            created=run["created"],
            **RunInfo.kept(run["view"]),
        )
        stored = self._class.reached(info)
        reached = self._mark.iteration if stored is None else stored
        # A resume discarded everything after its checkpoint; a backend that cannot forget never saw that.
        resumed = run.get("resumed_after", [])[self._mark.incarnation :]
        if self._forgets:
            reached = min([reached, *resumed])
        self._backend = self._class(replace(info, first_iteration=reached + 1))
        self._held_back = []
        self._rows, self._events = (Tail(self._directory.path / f"{name}.jsonl") for name in ("metrics", "events"))
        self._seen_events = 0
        events = self._mark.events if reached else 0  # a backend that starts again is given every event again
        self._set_mark(BackendMark(reached, run["incarnation"], events, "", self._mark.options, self._remarks()))

    def _set_mark(self, mark: BackendMark) -> None:
        """Stores the progress. A mark that is lost on a full disk duplicates nothing and only costs time."""
        self._mark = mark
        with suppress(OSError), files.replacing(self._file) as file:
            file.write(json.dumps(asdict(mark)).encode())


def mark_file(directory: Path, name: str) -> Path:
    """Returns the file of a run directory that keeps the progress of a backend."""
    return directory / "backends" / f"{name.replace(':', '.')}.json"


def read_mark(file: Path) -> BackendMark:
    """Reads the progress of a backend; none if it was never opened or the file is damaged, which only costs time."""
    with suppress(ConfigError):
        if files.kind_of(file):
            return files.read(file, BackendMark)
    return BackendMark()
