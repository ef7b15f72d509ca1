"""Brings a view up to the truth: reads what the run directory holds and gives a backend what it has not seen.

The run directory is written first and by one writer. A follower only reads it, so it may be late, fail, be killed and
be started again, on this machine or another, and nothing is missing afterwards and nothing is there twice.
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
from rlpipe.run.directory import RunDirectory, locked


@dataclass(frozen=True)
class Mark:
    """How far a view has come, as it stands in ``backends/<name>.json``.

    Attributes:
        iteration: last one it was given.  incarnation: of the run at that time.  events: lines of ``events.jsonl``.
        status: that it was closed with; empty while it is open.
        options: of the backend, as a short sum; with others it may show the run at another place, so the mark is void.
    """

    iteration: int = 0
    incarnation: int = 0
    events: int = 0
    status: str = ""
    options: str = ""


class Tail:
    """Complete lines that are added to a file; after the file was replaced, all lines again."""

    def __init__(self, path: Path) -> None:
        """Begins at the beginning; the file need not exist yet."""
        self._path = path
        self._offset = self._inode = 0
        self._lines = shapes.Lines(path)

    def read(self, after: int = -1) -> Iterator[dict[str, Any]]:
        """Objects of the lines that came since the last time, but for iterations up to ``after``."""
        if not self._path.is_file():
            return
        with self._path.open("rb") as file:
            inode = self._path.stat().st_ino
            size = file.seek(0, 2)
            if inode != self._inode or size < self._offset:
                self._inode, self._offset, self._lines = inode, 0, shapes.Lines(self._path)
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return  # it is being written
                self._offset += len(line)
                if (record := self._lines.record(line)).get("iteration", 0) > after:
                    yield record


class Follower:
    """One backend, kept up to a run directory. The only one in the world: two would show everything twice."""

    def __init__(
        self, directory: RunDirectory, name: str, options: Mapping[str, Any] | None = None, *, patience: float = 0.0
    ) -> None:
        """Reads how far the view has come; opens it when there is something to show.

        Args:
            directory: of the run.  name: of the backend.
            options: that replace those of the run's configuration.
            patience: seconds to wait for another follower of the same view to end.
        Raises:
            ConfigError: there is no such backend, its options are wrong, it cannot work here, or another process keeps
                this view.
        """
        self._directory = directory
        self._class: type[Backend] = resolve("backends", name, "--to")
        self._options = options_of(name, self._class.Config, directory.logger_options(name) | dict(options or {}))
        self._class.check()
        self._forgets = self._class.can_forget(self._options)
        directory.check()
        self._file = mark_file(directory.path, name)
        try:
            self._file.parent.mkdir(exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{self._file.parent} cannot be made: {error.strerror or error}.") from error
        self._lock = locked(
            self._file.with_suffix(".lock"),
            patience,
            f"another process keeps {name} up to date for this run already: leave it to that, or wait until the run "
            "has ended.",
        )
        given = hashlib.sha256(repr(self._options).encode()).hexdigest()[:8]
        mark = read_mark(self._file)
        self._mark = mark if mark.options == given else Mark(options=given)
        self._backend: Backend | None = None
        self._rows, self._events = Tail(directory.path / "metrics.jsonl"), Tail(directory.path / "events.jsonl")
        self._pending: list[Row] = []
        self._seen_events = 0

    def close(self) -> None:
        """Lets another follower have the view. One that is open is left as it is, to be opened again."""
        self._lock.close()

    @property
    def withheld(self) -> int:
        """Rows that the view is not given, because a resume could take them back and it could not forget them."""
        return len(self._pending)

    @property
    def mark(self) -> Mark:
        """How far the view has come."""
        return self._mark

    def catch_up(self) -> bool:
        """Gives the view everything it has not seen and may see; nothing as long as the run has not begun to write.

        Returns:
            Whether the run has ended and the view shows all of it; it is closed then.
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
        waiting = []
        for row in chain(self._pending, map(Row.from_json, self._rows.read(after=self._mark.iteration))):
            if covered is not None and row.iteration > covered:
                waiting.append(row)
            else:
                self._backend.write(row)
                self._keep(replace(self._mark, iteration=row.iteration))
        self._pending = waiting
        for event in self._events.read():
            self._seen_events += 1
            if self._seen_events > self._mark.events:
                self._backend.event(Event(**event))
                self._keep(replace(self._mark, events=self._seen_events))
        if ended:
            self._backend.close(run["status"])
            self._backend = None
            self._keep(replace(self._mark, status=run["status"]))
        return ended

    def view_command(self) -> str:
        """Command that opens what the view shows; empty if there is none."""
        project = self._directory.read_json()["project"]
        return self._class.view_command(self._options, self._directory.path, project)

    def _open(self, run: Mapping[str, Any]) -> None:
        """Opens the view behind the last row that it shows and that still holds."""
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
        held = self._class.reached(info)
        reached = self._mark.iteration if held is None else held
        # A resume took back everything behind its checkpoint; only a view that cannot forget was never given it.
        resumed = run.get("resumed_after", [])[self._mark.incarnation :]
        if self._forgets:
            reached = min([reached, *resumed])
        self._backend = self._class(replace(info, first_iteration=reached + 1))
        self._pending = []
        self._rows, self._events = (Tail(self._directory.path / f"{name}.jsonl") for name in ("metrics", "events"))
        self._seen_events = 0
        told = self._mark.events if reached else 0  # a view that begins anew hears of everything again
        self._keep(Mark(reached, run["incarnation"], told, "", self._mark.options))

    def _keep(self, mark: Mark) -> None:
        """Remembers how far the view has come. A mark that is lost on a full disk doubles nothing, only costs time."""
        self._mark = mark
        partial = self._file.with_name(f".{self._file.name}.partial")
        with suppress(OSError):
            partial.write_text(json.dumps(asdict(mark)), encoding="utf-8")
            partial.replace(self._file)


def mark_file(directory: Path, name: str) -> Path:
    """Where a run directory keeps how far a view has come."""
    return directory / "backends" / f"{name.replace(':', '.')}.json"


def read_mark(file: Path) -> Mark:
    """How far a view has come; nowhere, if it was never opened or its mark is damaged, which only costs time."""
    with suppress(ConfigError):
        if files.kind_of(file):
            return files.read(file, Mark)
    return Mark()
