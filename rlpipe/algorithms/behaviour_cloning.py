"""Behaviour cloning: ``rlpipe pretrain`` fits a policy to demonstrations alone.

Pomerleau 1988, "ALVINN". The error is squared, as for a Gaussian of fixed deviation.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlpipe.algorithms.base import Algorithm, AlgorithmConfig
from rlpipe.errors import ConfigError
from rlpipe.metrics import catalogue as m

__all__ = ["BehaviourCloning"]


@dataclass(frozen=True)
class BehaviourCloningConfig(AlgorithmConfig):
    """Options of behaviour cloning; needs ``demos``."""

    epochs: int = 200
    """Passes over the demonstrations at most; each is an iteration of the run."""
    batch_size: int = 256
    """Demonstrated steps of a gradient step."""
    held_out: float = 0.1
    """Share of the demonstrations, whole ones, that is not learnt from and says when to stop."""
    patience: int = 20
    """Passes without a smaller held-out loss after which learning ends; the weights of the best pass are kept."""

    def __post_init__(self) -> None:
        if not 0.0 < self.held_out < 1.0:
            raise ConfigError(f"algorithm.held_out is {self.held_out}; it must lie between 0 and 1.")
        if min(self.epochs, self.batch_size, self.patience) < 1:
            raise ConfigError("algorithm.epochs, algorithm.batch_size and algorithm.patience must be at least 1.")


class BehaviourCloning(Algorithm):
    """Options and learner of cloning; the formula is ``functional.soft_actor_critic.cloning_loss``."""

    Config = BehaviourCloningConfig
    learner = "rlpipe.learning.cloning:CloningLearner"
    collects = False
    needs_demonstrations = True
    console_metrics = (m.CLONING_LOSS, m.CLONING_LOSS_HELD_OUT)

    def __init__(self, config: BehaviourCloningConfig) -> None:
        """Keeps the options."""
        self.config = config
