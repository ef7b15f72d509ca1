"""Numbers of drawn examples."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

MORE = float(os.environ.get("RLPIPE_FUZZ", "1"))


def fuzz(examples: int) -> settings:
    """Settings of a test that draws so many examples, or as many times more as ``RLPIPE_FUZZ`` says."""
    return settings(
        max_examples=max(1, int(examples * MORE)),
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
