"""Number of threads that a learner computes with, chosen by measurement; and how they wait for each other.

This file imports torch only where it measures: the environment must be set before torch loads its OpenMP library.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence

ROUNDS = 5
"""Times that each number of threads is measured at most; the median counts."""
WINDOW = 0.015
"""Seconds of one measurement: several time slices, because one short step may find idle cores by chance."""
BUDGET = 0.2
"""Seconds after which a measurement begins no other round."""
CLEAR_GAIN = 0.9
"""Share of the time of fewer threads that more threads must stay below: they take cores from others, and often sum in
another order, so that a choice between equals should not depend on chance."""
INTERVAL = 60.0
"""Seconds after which the choice is measured again, because the machine may have become busier or quieter."""
LEAST_INTERVAL = 10.0
"""Seconds between two measurements, if an update took ``SLOWDOWN`` times as long as the quickest one since."""
SLOWDOWN = 2.0


def passive_waiting() -> dict[str, str]:
    """Returns the environment that lets threads sleep while they wait for each other; settings of the user's win.

    By default they spin, which costs nothing on an idle machine. On a busy one they burn the time that the thread they
    wait for would need. The first variable is read by GNU's OpenMP, which torch brings on Linux, the second by Intel's.
    """
    settings = {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}
    return {name: os.environ.get(name, value) for name, value in settings.items()}


def thread_candidates(most: int) -> list[int]:
    """Returns 1, 2, 4 and so on, and the largest number itself."""
    powers = [2**exponent for exponent in range(most.bit_length()) if 2**exponent < most]
    return [*powers, most]


def choose_threads(candidates: Sequence[int], step: Callable[[], object]) -> int:
    """Returns the number of threads with which a step is quickest; of about equal ones the smallest.

    torch is left with that number.

    Args:
        candidates: numbers of threads, ascending.
        step: computation to measure, the same each time. It must change nothing that anyone else sees.
    """
    import torch

    seconds: dict[int, list[float]] = {count: [] for count in candidates}
    for count in candidates:  # warms up
        torch.set_num_threads(count)
        step()
    began = time.perf_counter()
    for _ in range(ROUNDS):
        for count in candidates:  # in turn, so that a busy moment slows all of them down
            torch.set_num_threads(count)
            seconds[count].append(_seconds_of(step))
        if time.perf_counter() - began > BUDGET:
            break
    best = candidates[0]
    for count in candidates[1:]:
        if statistics.median(seconds[count]) < CLEAR_GAIN * statistics.median(seconds[best]):
            best = count
    torch.set_num_threads(best)
    return best


def _seconds_of(step: Callable[[], object]) -> float:
    """Returns the mean seconds of a step, repeated for at least a window."""
    began, steps = time.perf_counter(), 0
    while (spent := time.perf_counter() - began) < WINDOW:
        step()
        steps += 1
    return spent / steps


class LearnerThreads:
    """Number of threads of a learner: as configured, or measured at the first update and now and then again.

    Attributes:
        count: present number.
    """

    def __init__(self, configured: int | str, most: int) -> None:
        """Takes the configured number; any text means to measure, up to the largest number."""
        self.count = configured if isinstance(configured, int) else most
        self._candidates = [] if isinstance(configured, int) else thread_candidates(most)
        self._measured = float("-inf")
        self._pace = float("inf")  # seconds per unit of work of the quickest update since

    def apply(self) -> None:
        """Sets the number for this thread, for which alone torch keeps it."""
        import torch

        torch.set_num_threads(self.count)

    def measure_if_due(self, step: Callable[[], object], pace: float | None = None) -> None:
        """Chooses the number anew if that is due.

        Args:
            step: as for ``choose_threads``.
            pace: seconds per unit of work of the latest update; None before there was any.
        """
        slow = False
        if pace is not None:
            self._pace = min(self._pace, pace)
            slow = pace > SLOWDOWN * self._pace
        age = time.monotonic() - self._measured
        if len(self._candidates) > 1 and (age > INTERVAL or (slow and age > LEAST_INTERVAL)):
            self.count = choose_threads(self._candidates, step)
            self._measured, self._pace = time.monotonic(), float("inf")
