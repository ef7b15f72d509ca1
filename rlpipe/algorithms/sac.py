"""Soft actor-critic, Haarnoja et al. 2018, arXiv:1812.05905: learning from experience alone."""

from __future__ import annotations

from rlpipe.algorithms.base_off_policy import SoftActorCritic

__all__ = ["SAC"]


class SAC(SoftActorCritic):
    """Every transition of a batch is the policy's own experience."""
