"""Shows at the driver what workers print on a Ray that it started on its machine."""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from pathlib import Path

_PERIOD_SECONDS = 0.3
_MARKS = (":job_id:", ":actor_name:", ":task_name:")
"""Beginnings of the lines in which Ray notes whose output follows."""


class WorkerOutput:
    """Prints on standard error what simulators and libraries print on the standard output of workers.

    Ray's own monitor would do so for seconds of a run's start. The standard error of workers stays in Ray's logs: it
    holds the dumps of crashes, of which the error that follows shows what matters.
    """

    def __init__(self, session: Path) -> None:
        """Begins to read in the folder of the session that Ray has just begun."""
        self._logs = session / "logs"
        self._read: dict[Path, int] = {}  # bytes that were passed on
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Passes on what is left, while the files are still there."""
        self._ended.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._ended.wait(_PERIOD_SECONDS):
            self._pass_on()
        self._pass_on(last=True)

    def _pass_on(self, *, last: bool = False) -> None:
        """Prints the whole lines that are new; the last time, also one that has no end."""
        for path in sorted(self._logs.glob("worker-*.out")):
            with suppress(OSError), path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                new = file.read()
                new = new if last else new[: new.rfind(b"\n") + 1]
                self._read[path] = self._read.get(path, 0) + len(new)
                lines = new.decode(errors="replace").splitlines(keepends=True)
                with suppress(ValueError):  # standard error was closed
                    sys.stderr.write("".join(line for line in lines if not line.startswith(_MARKS)))
                    sys.stderr.flush()
