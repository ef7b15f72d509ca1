"""Experts whose answers are known."""

from __future__ import annotations

import numpy as np


def counting(observation):
    """Answers a hundredth of the number of the step, which the scripted simulator observes."""
    return np.array([observation[2] / 100], np.float32)
