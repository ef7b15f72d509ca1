"""Behaviour cloning: ``rlpipe pretrain`` fits a policy to demonstrations alone.

Pomerleau 1988, "ALVINN".
"""

from __future__ import annotations

from dataclasses import dataclass

from rlpipe.algorithms.base import Algorithm, AlgorithmConfig, check_random_shift
from rlpipe.config.fields import option
from rlpipe.config.schema import Config
from rlpipe.errors import ConfigError
from rlpipe.functional.cloning import DISTANCES
from rlpipe.metrics import catalogue as m
from rlpipe.trajectory import SpaceSpec

__all__ = ["BehaviourCloning"]


LIKELIHOOD = "likelihood"


@dataclass(frozen=True)
class BehaviourCloningConfig(AlgorithmConfig):
    """Options of behaviour cloning. Needs ``demos``."""

    epochs: int = option(200, least=1)
    """Largest number of passes over the demonstrations; each is an iteration of the run."""
    batch_size: int = option(256, least=1, below=2**31)
    """Demonstrated steps of a gradient step."""
    loss: str = option("squared", choices=(*DISTANCES, LIKELIHOOD))
    """Loss to minimise: the distance of the most likely action from the demonstrated one, ``squared`` as for a Gaussian
    of fixed deviation, or ``absolute``, which clones chunks of actions better; or ``likelihood``, the negative
    log-probability of the demonstrated action, which for a policy of tokens is the cross-entropy."""
    random_shift: int = option(0, least=0, below=2**10, unit="pixels")
    """Largest shift, in each direction, of the images that are learnt from, drawn anew for each use
    ([cameras.md](cameras.md)); 0 for none."""
    held_out: float = option(0.1, least=0, below=1)
    """Share of the demonstrations, whole ones, that is not learnt from and decides when to stop. With 0 all are learnt
    from in all passes, and the weights of the last one are kept: a small loss need not mean success (Mandlekar et al.
    2021, arXiv:2108.03298)."""
    patience: int = option(20, least=1)
    """Passes without a smaller held-out loss after which learning ends; the weights of the best pass are kept."""

    def check_spaces(self, spec: SpaceSpec) -> None:
        check_random_shift(self.random_shift, spec)

    @property
    def clones_by_distance(self) -> bool:
        return self.loss in DISTANCES

    def check_memory(self, config: Config) -> None:
        steps = config.policy.steps_per_decision
        if steps > 1:
            raise ConfigError(
                f"policy.name is {config.policy.name}, which has a memory, and takes {steps} actions of each decision, "
                "while a demonstration is cloned from step to step: its memory would see more than when it acts. Set "
                "policy.execute=1, or leave policy.chunk_size out."
            )


class BehaviourCloning(Algorithm):
    """Options and learner of cloning; the formula is ``functional.cloning.cloning_loss``."""

    Config = BehaviourCloningConfig
    learner = "rlpipe.learning.cloning:CloningLearner"
    collects = False
    in_micro_batches = True
    needs_demonstrations = True
    console_metrics = (m.CLONING_LOSS, m.CLONING_LOSS_HELD_OUT)
