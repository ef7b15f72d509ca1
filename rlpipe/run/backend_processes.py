"""Backend processes: each keeps one backend up to date while a run is in progress; they are watched and restarted.

Each backend follows the run directory in a process of its own (``follower``). So the queue in front of it is the file
itself, which is on the disk anyway, and a backend that raises, hangs, fills its disk or dies costs the run nothing.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from rlpipe.metrics import MetricWindow
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.row import Event, EventKind
from rlpipe.plugins import python_process
from rlpipe.run.directory import RunDirectory
from rlpipe.run.follower import BackendMark, mark_file, read_mark

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds before a failed backend process is restarted: doubled each time, up to the longest."""


@dataclass
class _BackendProcess:
    """Backend and its process.

    Attributes:
        name: name of the backend
        process: its process; None before the first start
        mark: progress at the last check
        last_progress: time at which the mark last changed, or at which nothing was left to do
        pause: seconds before the next restart
        restart_at: time of the next restart; None while the process runs
        began: time of its first progress since its start; None while it loads its library
        reported_remarks: remarks of its mark that were reported
        failing: True once a failure was reported, until the backend has recovered
    """

    name: str
    process: subprocess.Popen[bytes] | None = None
    mark: BackendMark = field(default_factory=BackendMark)
    last_progress: float = 0.0
    pause: float = FIRST_PAUSE
    restart_at: float | None = None
    began: float | None = None
    reported_remarks: tuple[str, ...] = ()
    failing: bool = False


class BackendProcesses:
    """All backend processes of one run."""

    def __init__(
        self,
        directory: RunDirectory,
        names: Sequence[str],
        *,
        deadline: float,
        clock: Callable[[], float] = lambda: time.monotonic(),
    ) -> None:
        """Starts one process for each backend.

        Args:
            deadline: seconds without progress, while rows are pending, after which a process is ended
            clock: seconds that never go back
        """
        self._directory = directory
        self._deadline = deadline
        self._clock = clock
        self._written: deque[tuple[int, float]] = deque()
        self._backends = [_BackendProcess(name, reported_remarks=self._mark(name).remarks) for name in names]
        for backend in self._backends:
            self._start(backend)

    def _start(self, backend: _BackendProcess) -> None:
        command, environment = python_process(
            *("-m", "rlpipe", "sync", str(self._directory.path)),
            *("--to", backend.name, "--watch", "--parent", str(os.getpid())),
        )
        with self._log(backend.name) as log:
            backend.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,  # Ctrl-C must not reach it; in a session of its own, its niceness would have no effect
                env={**environment, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
            )
        backend.restart_at = backend.began = None
        backend.mark = self._mark(backend.name)
        backend.last_progress = self._clock() + self._deadline  # on a busy machine, loading a library takes long too

    def _log(self, name: str) -> IO[bytes]:
        """Opens the file for the output of a process; the null device if the disk is full."""
        file = mark_file(self._directory.path, name).with_suffix(".log")
        try:
            file.parent.mkdir(exist_ok=True)
            return file.open("ab")
        except OSError:
            return Path(os.devnull).open("ab")

    def tick(self, iteration: int, now: float) -> list[Event]:
        """Checks every process; called after each row.

        Returns:
            One event for each backend that fails or has caught up again, once each.
        """
        self._written.append((iteration, self._clock()))
        events = []
        for backend in self._backends:
            if report := self._check(backend, iteration):
                level, message = report
                data = {"backend": backend.name, "level": level}
                events.append(Event(EventKind.BACKEND, message, iteration, now, data))
        events += [Event(EventKind.NOTE, remark, iteration, now, {"level": "warn"}) for remark in self.new_remarks()]
        slowest = min((backend.mark.iteration for backend in self._backends), default=iteration)
        while self._written and self._written[0][0] <= slowest:
            self._written.popleft()
        return events

    def _mark(self, name: str) -> BackendMark:
        return read_mark(mark_file(self._directory.path, name))

    def new_remarks(self) -> list[str]:
        """Returns what backends show otherwise than they were given it, each sentence once."""
        remarks = []
        for backend in self._backends:
            before, backend.reported_remarks = backend.reported_remarks, backend.mark.remarks
            remarks += [f"{backend.name}: {remark}" for remark in backend.mark.remarks if remark not in before]
        return remarks

    def _check(self, backend: _BackendProcess, iteration: int) -> tuple[str, str] | None:
        """Restarts a process or ends a stuck one; returns level and message of a report, if there is one."""
        now, mark = self._clock(), self._mark(backend.name)
        if mark != backend.mark and backend.began is None:
            backend.began = now
        if mark != backend.mark or mark.iteration >= iteration:
            backend.mark, backend.last_progress = mark, now
        if backend.restart_at is not None:
            if now >= backend.restart_at:
                self._start(backend)
            return None
        assert backend.process is not None
        code = backend.process.poll()
        stuck = now - backend.last_progress > self._deadline
        if code is None and not stuck:
            if backend.failing and mark.iteration >= iteration - 1:
                backend.failing, backend.pause = False, FIRST_PAUSE
                return "cleared", f"The {backend.name} backend works again and shows everything up to now."
            return None
        if code is None:
            backend.process.kill()
            backend.process.wait()
        backend.restart_at, backend.pause = now + backend.pause, min(2 * backend.pause, LONGEST_PAUSE)
        if backend.failing or self._directory.write_error:  # a full disk is reported once, and takes backends with it
            return None
        backend.failing = True
        why = f"made no progress for {self._deadline:g} s" if stuck else f"ended with exit code {code}"
        log = mark_file(self._directory.path, backend.name).with_suffix(".log")
        cause = _last_failure(log) if code is not None and code > 0 else ""
        return "warn", (
            f"The {backend.name} backend {why}{cause}. Training continues, nothing is lost, and the "
            f"backend is restarted. Its output is in {log}."
        )

    def observe_lag(self, window: MetricWindow) -> None:
        """Observes the age of the oldest row that some backend does not show yet, and the number of such rows."""
        if self._backends:
            window.observe(m.LOGGER_LAG, max(map(self._lag, self._backends)))
            window.observe(m.LOGGER_QUEUE_DEPTH, len(self._written))
            window.observe(m.LOGGER_DROPPED, 0)  # pending rows are on the disk, so nothing is ever dropped

    def _lag(self, backend: _BackendProcess) -> float:
        """Returns for how long a row has been waiting for a backend that could write it.

        A backend that loads its library makes nobody wait; if it never begins, ``_check`` restarts and reports it.
        """
        pending = next((at for iteration, at in self._written if iteration > backend.mark.iteration), None)
        return 0.0 if pending is None or backend.began is None else self._clock() - max(pending, backend.began)

    def finish(self, timeout: float) -> list[str]:
        """Waits until all backends show everything, for ``timeout`` seconds at most, and ends their processes.

        Returns:
            Names of the backends that do not show everything.
        """
        ends = self._clock() + timeout
        behind = []
        for backend in self._backends:
            while not self._finishes(backend, ends):
                if self._clock() + FIRST_PAUSE >= ends:
                    behind.append(backend.name)
                    break
                time.sleep(FIRST_PAUSE)
            backend.mark = self._mark(backend.name)
        return behind

    def _finishes(self, backend: _BackendProcess, ends: float) -> bool:
        """Waits for a process, started again if there is none; returns True if it shows the whole run in time."""
        if backend.process is None or backend.process.poll() is not None:
            self._start(backend)
        assert backend.process is not None
        try:
            return backend.process.wait(max(0.1, ends - self._clock())) == 0
        except subprocess.TimeoutExpired:
            backend.process.kill()
            backend.process.wait()
            return False


def _last_failure(log: Path) -> str:
    """Returns what a process said last, if that is why it ended, as the end of a sentence; it has no credentials."""
    with suppress(OSError):
        last = log.read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2]
        for beginning in ("failed: ", "error: "):
            if last.startswith(beginning):
                return f" ({last.removeprefix(beginning).rstrip('.')[:300]})"
    return ""
