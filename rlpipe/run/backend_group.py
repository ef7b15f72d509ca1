"""Backends in this process, such as the console: what one of them raises costs the run nothing but that backend."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable

from rlpipe.backends.base import Backend
from rlpipe.errors import how_it_failed
from rlpipe.metrics.row import Event, EventKind, Status
from rlpipe.secrets import redacted


class BackendGroup:
    """Backends without a process of their own."""

    def __init__(self, backends: Iterable[Backend]) -> None:
        self._backends = [*backends]

    def show(self, call: Callable[[Backend], None], iteration: int) -> list[Event]:
        """Calls every backend. One that raises cannot be reopened, so it is dropped.

        Returns:
            One event of this iteration for each backend that raised.
        """
        events = []
        for backend in list(self._backends):
            try:
                call(backend)
            except BaseException as error:
                self._backends.remove(backend)
                name, why = type(backend).__name__, redacted(how_it_failed(error), os.environ)
                message = f"The {name} backend {why}. It is skipped from now on."
                data = {"backend": name, "level": "warn"}
                events.append(Event(EventKind.BACKEND, message, iteration, time.time(), data))
        return events

    def close(self, status: Status) -> None:
        """Closes all backends at the end of the run."""
        for backend in self._backends:
            backend.close(status)
