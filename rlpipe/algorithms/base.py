"""What an algorithm offers to the learner: samples from trajectories, and a loss of a minibatch of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from rlpipe.metrics.declaration import Metric
from rlpipe.plugins import ConfigError
from rlpipe.policies.base import Policy


@dataclass(frozen=True)
class AlgorithmConfig:
    """What every algorithm's own configuration begins with."""

    name: str
    """File in ``rlpipe/algorithms/``, or ``package.module:Class``."""


@dataclass(frozen=True)
class OnPolicyConfig(AlgorithmConfig):
    """What the configuration of an algorithm that learns from fresh trajectories begins with."""

    update_epochs: int = 8
    """Passes over each batch."""
    num_minibatches: int = 8
    """Parts each pass is cut into, drawn anew each time; one optimiser step each."""
    target_kl: float | None = None
    """End the update after a pass whose mean approx_kl exceeds this, in nats; None never does."""


Terms = Mapping[str, Tensor]
"""What an algorithm keeps of each decision it learnt from, by name."""
Observed = Mapping[Metric, Tensor | float]
"""Raw values on the learner's device, or a number that is set."""


@dataclass(frozen=True)
class Trajectories:
    """Fragments joined along N, on the learner's device; fields as in ``rlpipe.trajectory.TrajectoryBatch``."""

    observations: Tensor
    actions: Tensor
    log_probs: Tensor
    rewards: Tensor
    terminated: Tensor
    truncated: Tensor
    valid: Tensor
    final_observations: Tensor
    final_index: Tensor

    def numbers(self) -> Tensor:
        """[T, N] int64 numbers of the trajectories: each environment begins one, and each end another."""
        ended = (self.terminated | self.truncated).long()
        steps, envs = ended.shape
        return ended.cumsum(0) - ended + torch.arange(envs, device=ended.device) * (steps + 1)


@dataclass(frozen=True)
class Samples:
    """Decisions to learn from, flattened; only valid ones.

    Attributes:
        observations: [B, D].  actions: [B, A] or [B].  old_log_probs, advantages, returns, old_values: [B].
        trajectory: [B] int64, number of the trajectory that a decision belongs to; an episode that spans iterations is
            one in each.
    """

    observations: Tensor
    actions: Tensor
    old_log_probs: Tensor
    advantages: Tensor
    returns: Tensor
    old_values: Tensor
    trajectory: Tensor

    def select(self, index: Tensor | slice) -> Self:
        """The decisions at an index."""
        return type(self)(*(getattr(self, field.name)[index] for field in fields(self)))

    def __len__(self) -> int:
        return len(self.observations)


class Loss(NamedTuple):
    """Loss of one minibatch.

    Attributes:
        total: scalar to minimise, with gradients.
        terms: what ``observe`` wants to have, per decision [B], without gradients.
    """

    total: Tensor
    terms: Terms


class OnPolicyAlgorithm(ABC):
    """An algorithm that learns from fresh trajectories. A plug-in is made from its ``Config`` alone."""

    learner: ClassVar[str] = "rlpipe.learner:Learner"
    """Where it learns."""
    ahead: ClassVar[bool] = False
    """Whether workers collect while it learns, with weights that are one update older."""
    collects: ClassVar[bool] = True
    """Whether it learns from what workers collect."""
    needs_demonstrations: ClassVar[bool] = False
    Config: ClassVar[type[Any]] = OnPolicyConfig
    metrics: ClassVar[tuple[Metric, ...]] = ()
    """Declarations of its own, beside its code."""

    @abstractmethod
    def prepare(self, trajectories: Trajectories, policy: Policy) -> tuple[Samples, Observed]:
        """Turns trajectories into samples, with what there is to log about them; runs without gradients."""

    @abstractmethod
    def loss(self, policy: Policy, samples: Samples) -> Loss:
        """Loss of a minibatch."""

    @abstractmethod
    def observe(self, samples: Samples, taken: Tensor, terms: Terms) -> Mapping[Metric, Tensor]:
        """What there is to log about an update, at once for all minibatches; runs without gradients.

        Args:
            samples: of the iteration.
            taken: [S] int64, the sample of each decision that was learnt from, in order, over minibatches and epochs.
            terms: [S] each, those of all losses.
        Returns:
            [S] raw values of each metric.
        """

    def divergence(self, terms: Terms) -> Tensor:  # noqa: ARG002 - for those that can say
        """[B] how far the update has moved the policy, in nats, by which ``target_kl`` ends it.

        Raises:
            ConfigError: the algorithm does not say.
        """
        raise ConfigError(f"algorithm.target_kl is set, but {type(self).__name__} does not say how far it moves.")
