"""Tasks of ManiSkill."""

from rlpipe.envs.maniskill.simulator import ManiSkill

__all__ = ["ManiSkill"]
