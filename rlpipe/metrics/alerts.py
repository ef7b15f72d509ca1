"""Alerts as the events of a run tell them, one after the other, without those that a resume or a recovery took back."""

from __future__ import annotations

from typing import Any

from rlpipe.metrics.row import Event, EventKind

TAKES_BACK = (EventKind.RESUMED, EventKind.RECOVERED)
"""Events after which the run continues from an earlier iteration: alerts of later iterations are void."""


class ToldAlerts:
    """Follows the events of a run.

    Attributes:
        events: alerts that were raised and cleared, the oldest first, all in iterations that still count
    """

    def __init__(self) -> None:
        self.events: list[Event] = []

    def add(self, event: Event) -> None:
        """Takes the next event, of whatever kind."""
        if event.kind in TAKES_BACK:
            self.take_back(event.iteration)
        elif event.kind == EventKind.ALERT:
            self.events.append(event)

    def take_back(self, iteration: int) -> None:
        """Forgets what came after an iteration."""
        self.events = [event for event in self.events if event.iteration <= iteration]

    @property
    def standing(self) -> dict[tuple[str, str], dict[str, Any]]:
        """Data of each alert that is raised and not cleared, by metric and rule, the latest last."""
        alerts: dict[tuple[str, str], dict[str, Any]] = {}
        for event in self.events:
            key = event.data["metric"], event.data["rule"]
            alerts.pop(key, None)
            if not event.data["cleared"]:
                alerts[key] = event.data
        return alerts
