"""Moments of an update, by which its parts are timed."""

from __future__ import annotations

import time

import torch


class Marks:
    """Moments between the parts of an update.

    On a GPU, the host would have to wait at each of them for what it has queued. Events are queued instead, which note
    when the device reaches them.
    """

    def __init__(self, device: torch.device) -> None:
        """Marks the beginning, at which the device has nothing left to do."""
        self._device = device
        self._moments: list[float] = []
        self._events: list[torch.cuda.Event] = []
        self.add()

    def add(self) -> None:
        """Marks the present moment of the device: when all that is queued so far will be done."""
        self._moments.append(time.perf_counter())
        if self._device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call] # torch's
            event.record(torch.cuda.current_stream(self._device))
            self._events.append(event)

    def moments(self) -> list[float]:
        """Returns all moments, in seconds of ``time.perf_counter``, once the device has reached the last one."""
        if not self._events:
            return self._moments
        first, last = self._events[0], self._events[-1]
        last.synchronize()
        return [self._moments[0] + first.elapsed_time(event) / 1000.0 for event in self._events]
