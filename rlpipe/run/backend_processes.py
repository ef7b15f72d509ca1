"""The processes that keep the views up to date while a run goes on: started, watched, ended and started again.

Each backend follows the run directory in a process of its own (``follower``). So the queue in front of it is the file
itself, which is on the disk anyway, and a backend that raises, hangs, fills its disk or dies costs the run nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from rlpipe.metrics import MetricWindow
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.row import Event, EventKind
from rlpipe.run.directory import RunDirectory
from rlpipe.run.follower import Mark, mark_file, read_mark

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds before a failed view is opened again: doubled each time, up to the longest."""


@dataclass
class _View:
    """A backend and its process.

    Attributes:
        moved: when its mark last moved, or when it had nothing to do.  pause: before the next start.
        again: when to start it again; None while it runs.  failing: whether that has been said.
    """

    name: str
    process: subprocess.Popen[bytes] | None = None
    mark: Mark = field(default_factory=Mark)
    moved: float = 0.0
    pause: float = FIRST_PAUSE
    again: float | None = None
    failing: bool = False


class BackendProcesses:
    """All views of one run that live apart."""

    def __init__(
        self,
        directory: RunDirectory,
        names: Sequence[str],
        *,
        deadline: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Starts a process for each.

        Args:
            directory: of the run.  names: of the backends.
            deadline: seconds without progress, while rows wait, after which a process is ended.
            clock: seconds that never go back.
        """
        self._directory = directory
        self._deadline = deadline
        self._clock = clock
        self._written: deque[tuple[int, float]] = deque()
        self._views = [_View(name) for name in names]
        for view in self._views:
            self._start(view)

    def _start(self, view: _View) -> None:
        command = [
            *(sys.executable, "-m", "rlpipe", "sync", str(self._directory.path)),
            *("--to", view.name, "--watch", "--parent", str(os.getpid())),
        ]
        with self._log(view.name) as log:
            view.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,  # Ctrl-C is for the run; but the same session, or being nice would mean nothing
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),  # so that it finds the same plug-ins
                    "OMP_NUM_THREADS": "1",
                    "CUDA_VISIBLE_DEVICES": "",
                },
            )
        view.again = None
        view.moved = self._clock() + self._deadline  # a library may take as long again to load on a busy machine

    def _log(self, name: str) -> IO[bytes]:
        """Where the output of a view goes; nowhere if the disk is full."""
        file = mark_file(self._directory.path, name).with_suffix(".log")
        try:
            file.parent.mkdir(exist_ok=True)
            return file.open("ab")
        except OSError:
            return Path(os.devnull).open("ab")

    def tick(self, iteration: int, now: float) -> list[Event]:
        """Looks after every view; called after each row.

        Args:
            iteration: just written.  now: wall clock.
        Returns:
            What a user should hear: that a view fails, once, and that it has caught up again.
        """
        self._written.append((iteration, self._clock()))
        events = []
        for view in self._views:
            if told := self._look_after(view, iteration):
                level, message = told
                data = {"backend": view.name, "level": level}
                events.append(Event(EventKind.BACKEND, message, iteration, now, data))
        slowest = min((view.mark.iteration for view in self._views), default=iteration)
        while self._written and self._written[0][0] <= slowest:
            self._written.popleft()
        return events

    def _look_after(self, view: _View, iteration: int) -> tuple[str, str] | None:
        now, mark = self._clock(), read_mark(mark_file(self._directory.path, view.name))
        if mark != view.mark or mark.iteration >= iteration:
            view.mark, view.moved = mark, now
        if view.again is not None:
            if now >= view.again:
                self._start(view)
            return None
        assert view.process is not None
        code = view.process.poll()
        stuck = now - view.moved > self._deadline
        if code is None and not stuck:
            if view.failing and mark.iteration >= iteration - 1:
                view.failing, view.pause = False, FIRST_PAUSE
                return "cleared", f"The {view.name} backend works again and holds everything up to now."
            return None
        if code is None:
            view.process.kill()
            view.process.wait()
        view.again, view.pause = now + view.pause, min(2 * view.pause, LONGEST_PAUSE)
        if view.failing or self._directory.write_error:  # a full disk has been told, and takes views with it
            return None
        view.failing = True
        why = f"made no progress for {self._deadline:g} s" if stuck else f"ended with exit code {code}"
        log = mark_file(self._directory.path, view.name).with_suffix(".log")
        return "warn", (
            f"The {view.name} backend {why}. Training goes on, nothing is lost, and it is tried again; its output is "
            f"in {log}."
        )

    def observe_lag(self, window: MetricWindow) -> None:
        """Observes how far the views are behind: the age of the oldest row that one does not show, and their number."""
        if self._views:
            window.observe(m.LOGGER_LAG, self._clock() - self._written[0][1] if self._written else 0.0)
            window.observe(m.LOGGER_QUEUE_DEPTH, len(self._written))
            window.observe(m.LOGGER_DROPPED, 0)  # what waits is on the disk, so nothing is ever dropped

    def finish(self, timeout: float) -> list[str]:
        """Waits until all views show everything, at most so many seconds, and ends their processes.

        Returns:
            Names of the views that do not show everything.
        """
        ends = self._clock() + timeout
        behind = []
        for view in self._views:
            while self._ends_badly(view, ends):
                if self._clock() + FIRST_PAUSE >= ends:
                    behind.append(view.name)
                    break
                time.sleep(FIRST_PAUSE)
        return behind

    def _ends_badly(self, view: _View, ends: float) -> bool:
        """Whether the process of a view, started again if there is none, does not reach the end of the run in time."""
        if view.process is None or view.process.poll() is not None:
            self._start(view)
        assert view.process is not None
        try:
            return view.process.wait(max(0.1, ends - self._clock())) != 0
        except subprocess.TimeoutExpired:
            view.process.kill()
            view.process.wait()
            return True
