"""Rules for restarting rollout workers, as plain functions of the configuration."""

from __future__ import annotations

_FAILURES_IN_A_ROW = 5
"""Failures of one rank without a finished task in between that end the run."""


class RestartBudget:
    """Counts the unplanned restarts of a run against ``rollout.max_restarts``."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._spent = 0

    def charge(self, failures: int) -> str:
        """Charges one restart.

        Args:
            failures: of this rank since it last finished a task, without the present one.
        Returns:
            Why no restart is allowed; empty if it is, and has been charged.
        """
        if failures + 1 >= _FAILURES_IN_A_ROW:
            return f"It was restarted {failures} times in a row and finished nothing in between."
        if self._spent >= self._limit:
            return f"{self._limit} workers were restarted before it (rollout.max_restarts)."
        self._spent += 1
        return ""


def required_answers(min_workers: int | str, workers: int) -> int:
    """Returns how many workers must answer before an iteration may continue.

    Args:
        min_workers: ``rollout.min_workers``, a number or ``all``.
        workers: number of workers of the run.
    """
    return min(min_workers, workers) if isinstance(min_workers, int) else workers


def wants_spare(spares: str, *, restarted: bool) -> bool:
    """True if a node should keep a spare worker, by ``rollout.spares``.

    Args:
        spares: ``always``, ``after_loss`` or ``never``.
        restarted: True if the node's worker took the place of one that was lost or replaced.
    """
    return spares == "always" or (spares == "after_loss" and restarted)
