"""Reinforcement learning with prior data, Ball et al. 2023, arXiv:2302.02948: half of each batch is demonstrated.

The paper adds layer normalisation, an ensemble of critics and symmetric sampling. Here the policy can also be drawn
towards the demonstrated actions, as in Rajeswaran et al. 2018, arXiv:1709.10087.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlpipe.algorithms.sac import SAC, SACConfig
from rlpipe.config.fields import option

__all__ = ["RLPD"]


@dataclass(frozen=True)
class RLPDConfig(SACConfig):
    """Options of RLPD. Needs ``demos``."""

    demo_share: float = option(0.5, above=0, below=1)
    """Share of each batch that is demonstrated."""
    entropy_backup: bool = False
    """Count the entropy of later actions in the targets; the paper leaves it out where rewards are sparse."""
    cloning_coef: float = option(0.5, least=0)
    """Weight of the squared error to demonstrated actions in the policy's loss."""


class RLPD(SAC):
    """Soft actor-critic that learns from its own experience and from demonstrations."""

    Config = RLPDConfig
    needs_demonstrations = True

    def __init__(self, config: RLPDConfig) -> None:
        super().__init__(config)
        self.demo_share = config.demo_share
        self.cloning_coef = config.cloning_coef
