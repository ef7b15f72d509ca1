"""Soft actor-critic, Haarnoja et al. 2018, arXiv:1812.05905, from experience alone."""

from __future__ import annotations

from rlpipe.algorithms.base_off_policy import SoftActorCritic

__all__ = ["SAC"]


class SAC(SoftActorCritic):
    """Soft actor-critic whose batches hold only its own experience."""
