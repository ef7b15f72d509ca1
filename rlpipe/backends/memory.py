"""Rows and events in lists, for tests and notebooks."""

from __future__ import annotations

from typing import ClassVar

from rlpipe.backends.base import Backend, Place, RunInfo
from rlpipe.metrics.row import Event, Row, Status

__all__ = ["Memory"]


class Memory(Backend):
    """Keeps the rows and events of the newest run in this process."""

    place = Place.LOGGER
    latest: ClassVar[Memory | None] = None

    def __init__(self, run: RunInfo) -> None:
        """Becomes ``Memory.latest``."""
        self.run = run
        self.rows: list[Row] = []
        self.events: list[Event] = []
        self.status: Status | None = None
        Memory.latest = self

    def write(self, row: Row) -> None:
        self.rows.append(row)

    def event(self, event: Event) -> None:
        self.events.append(event)

    def close(self, status: Status) -> None:
        self.status = status
