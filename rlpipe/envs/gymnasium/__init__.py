"""Environments of Gymnasium."""

from rlpipe.envs.gymnasium.simulator import Gymnasium

__all__ = ["Gymnasium"]
