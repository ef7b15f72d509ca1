"""Intervals around measured rates. Needs no torch, so that whoever only reads metrics does not load it."""

from __future__ import annotations

import math


def wilson_interval(successes: int, episodes: int, *, z: float = 1.959963984540054) -> tuple[float, float]:
    """Bounds of a success rate, 95 % by default.  Wilson 1927, JASA 22:209-212.

    Unlike ``p +- z sqrt(p (1 - p) / n)`` it stays inside [0, 1] and says something at 0 and n successes.

    Raises:
        ValueError: no episodes, or more successes than episodes.
    """
    if not 0 <= successes <= episodes or episodes == 0:
        raise ValueError(f"a success rate needs 0 <= successes <= episodes, episodes > 0; got {successes}/{episodes}.")
    rate = successes / episodes
    center = rate + z * z / (2 * episodes)
    spread = z * math.sqrt(rate * (1 - rate) / episodes + z * z / (4 * episodes * episodes))
    scale = 1 + z * z / episodes
    low = (center - spread) / scale if successes else 0.0  # exact there, where rounding would miss the rate itself
    high = (center + spread) / scale if successes < episodes else 1.0
    return low, high
