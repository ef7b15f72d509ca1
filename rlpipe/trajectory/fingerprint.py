"""Fingerprints of the first iterations of a run, by which two runs that should be equal are seen to part."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

FIRST_ITERATIONS = 5
"""Iterations that leave fingerprints; later ones cost nothing."""
DIGITS = 8
"""Hexadecimal digits of the digest of one step."""
MOST_STEPS = 256
"""Steps of a fragment with a digest of their own; the rest share the last one."""


@dataclass(frozen=True)
class FragmentFingerprint:
    """Fingerprint of a fragment: N environments over T steps.

    Attributes:
        first_slot: number of the first environment among those of all workers.
        slots: N.
        start: digest of the seeds and observations with which every environment began; None where the fragment
            continues episodes.
        noise: digest of the numbers from which actions are sampled.
        observations: digests of the T + 1 rows of observations, of ``DIGITS`` each, one after the other.
        actions: likewise, of the T rows of actions as they were sampled.
        outcomes: likewise, of rewards, ends and validity.
    """

    first_slot: int
    slots: int
    start: str | None
    noise: str
    observations: str
    actions: str
    outcomes: str


@dataclass(frozen=True)
class UpdateFingerprint:
    """Fingerprint of an update.

    Attributes:
        weights: digest of the policy's weights before it.
        updated: digest of them after it.
    """

    weights: str
    updated: str


def digest_of(*parts: Any) -> str:
    """SHA-256 of arrays and texts in turn, as hexadecimal digits."""
    hasher = hashlib.sha256()
    for part in parts:
        hasher.update(part.tobytes() if isinstance(part, np.ndarray) else repr(part).encode())
    return hasher.hexdigest()


def digests_of_steps(arrays: Sequence[NDArray[Any]]) -> str:
    """Digests of the rows of [T, ...] arrays, each of all arrays together, one after the other."""
    steps = len(arrays[0])
    rows = [slice(t, t + 1) for t in range(min(steps, MOST_STEPS))]
    rows += [slice(MOST_STEPS, steps)] if steps > MOST_STEPS else []
    return "".join(digest_of(*(array[row] for array in arrays))[:DIGITS] for row in rows)
