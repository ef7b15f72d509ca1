"""Requests to end a run, as from Ctrl-C."""

from __future__ import annotations


class Interruption:
    """Request to end a run after its current iteration. ``request`` is safe to call from a signal handler.

    Attributes:
        reason: cause of the request; None while there is none
        polled: True while the training loop runs, which checks for a request after every iteration
    """

    def __init__(self) -> None:
        self.reason: str | None = None
        self.polled = False

    def request(self, reason: str) -> None:
        """Asks the loop to end after the current iteration."""
        self.reason = reason
