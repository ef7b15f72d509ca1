"""Reinforcement learning with prior data, Ball et al. 2023, arXiv:2302.02948: half of each batch is demonstrated.

The paper adds layer normalisation, an ensemble of critics and symmetric sampling. Here the policy can also be drawn
towards the demonstrated actions, as in Rajeswaran et al. 2018, arXiv:1709.10087.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlpipe.algorithms.base_off_policy import SoftActorCritic, SoftActorCriticConfig
from rlpipe.errors import ConfigError

__all__ = ["RLPD"]


@dataclass(frozen=True)
class RLPDConfig(SoftActorCriticConfig):
    """Options of RLPD; needs ``demos``."""

    demo_share: float = 0.5
    """Share of each batch that is demonstrated."""
    entropy_backup: bool = False
    """Whether targets count the entropy of later actions; the paper leaves it out where rewards are sparse."""
    cloning_coef: float = 0.5
    """Weight of the squared error to demonstrated actions in the policy's loss."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 < self.demo_share < 1.0 or self.cloning_coef < 0.0:
            raise ConfigError(
                f"algorithm.demo_share is {self.demo_share} and algorithm.cloning_coef {self.cloning_coef}; the first "
                "must lie between 0 and 1, and the second may not be negative."
            )


class RLPD(SoftActorCritic):
    """Soft actor-critic that learns from its own experience and from demonstrations."""

    Config = RLPDConfig
    needs_demonstrations = True

    def __init__(self, config: RLPDConfig) -> None:
        """Keeps the options."""
        super().__init__(config)
        self.demo_share = config.demo_share
        self.cloning_coef = config.cloning_coef
