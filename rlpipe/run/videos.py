"""Videos of evaluations, made by another process while training goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rlpipe.errors import command_line
from rlpipe.metrics.row import Event, EventKind
from rlpipe.plugins import python_process
from rlpipe.run.replays import PARTIAL, VIDEOS, iteration_of, set_name

_NICENESS = 10


@dataclass(frozen=True)
class _Job:
    iteration: int
    process: subprocess.Popen[str]


class VideoMaker:
    """Has the replays of an evaluation drawn, one set at a time and with low priority.

    Drawing takes longer than some evaluations are apart. What waits gives way to what is newer, so that training never
    waits for a video, and the newest always gets one.
    """

    def __init__(self, run: Path, pairs: int, first_iteration: int) -> None:
        """Removes the videos of iterations that a resumed run takes again.

        Args:
            pairs: rows of a video, each a success beside a failure; 0 makes none.
        """
        self._run, self._pairs = run, pairs
        self._job: _Job | None = None
        self._waits: int | None = None
        for file in (run / VIDEOS).glob("*.mp4"):
            if (iteration := iteration_of(file)) is not None and iteration >= first_iteration:
                file.unlink(missing_ok=True)
        self._remove_partial()  # of a run that was killed

    @property
    def needs(self) -> set[int]:
        """Iterations whose replays are still read."""
        return {self._job.iteration} if self._job else set()

    def ask(self, iteration: int) -> None:
        """Asks for a video of the replays of an iteration, which are written."""
        if self._pairs:
            self._waits = iteration

    def poll(self) -> list[Event]:
        """Returns what has ended since the last call, and begins what waits. It takes no time."""
        events = []
        if self._job and self._job.process.poll() is not None:
            events.append(self._ended(self._job))
            self._job = None
        if self._job is None and self._waits is not None:
            self._job, self._waits = self._begin(self._waits), None
        return events

    def finish(self, timeout: float) -> list[Event]:
        """Waits up to ``timeout`` seconds for pending videos, and drops the rest."""
        ends = time.monotonic() + timeout
        events = self.poll()
        while self._job:
            with suppress(subprocess.TimeoutExpired):
                self._job.process.wait(max(0.0, ends - time.monotonic()))
            if self._job.process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(self._job.process.pid, signal.SIGKILL)  # it leads a session, with ffmpeg in it
                self._job.process.communicate()
                self._remove_partial()
                message = (
                    f"The video of iteration {self._job.iteration} was not ready {timeout:g} s after the end. Make it "
                    f"with: {command_line('replay', self._run, '--videos', self._pairs)}"
                )
                return [*events, _note(message, self._job.iteration)]
            events += self.poll()
        return events

    def _remove_partial(self) -> None:
        for file in (self._run / VIDEOS).glob(f".iteration-*{PARTIAL}"):
            file.unlink(missing_ok=True)

    def _begin(self, iteration: int) -> _Job:
        command, environment = python_process("-m", "rlpipe", "replay", str(self._run), "--set", set_name(iteration))
        one_thread = {"OMP_NUM_THREADS": "1", "LP_NUM_THREADS": "1"}  # the second is Mesa's
        process = subprocess.Popen(
            [*command, "--videos", str(self._pairs)],
            env={**environment, **one_thread},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C ends the training; its last video is still made
        )
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, process.pid, _NICENESS)
        return _Job(iteration, process)

    def _ended(self, job: _Job) -> Event:
        _, error = job.process.communicate()
        if job.process.returncode == 0:
            file = f"{VIDEOS}/{set_name(job.iteration)}.mp4"
            message = f"A video of the evaluation of iteration {job.iteration} is in {file}."
            return Event(EventKind.VIDEO, message, job.iteration, time.time(), {"file": file})
        reason = (error.strip().splitlines() or [f"exit code {job.process.returncode}"])[-1]
        return _note(f"The video of iteration {job.iteration} could not be made: {reason}", job.iteration)


def _note(message: str, iteration: int) -> Event:
    return Event(EventKind.NOTE, message, iteration, time.time(), {"level": "warn"})
