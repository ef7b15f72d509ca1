"""Group-relative policy optimisation, Shao et al. 2024, arXiv:2402.03300.

Each episode is compared with others that began in the same state, instead of with a critic's value. The formulas are
in ``rlpipe.functional``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlpipe.algorithms.base import Loss, ObservedBatch, Terms
from rlpipe.algorithms.shared.clipped import ClippedAlgorithm, ClippedConfig, ClippedSamples
from rlpipe.algorithms.shared.clipped_metrics import describe_batch, describe_update
from rlpipe.config.fields import option
from rlpipe.errors import ConfigError
from rlpipe.functional.aggregation import AGGREGATIONS, loss_weights
from rlpipe.functional.groups import equal_groups, group_advantages, group_deviations
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.declaration import Metric
from rlpipe.metrics.on_device import Masked
from rlpipe.policies.base import Policy
from rlpipe.trajectory.batch import TrajectoryBatch
from rlpipe.trajectory.tree import leaves_of

__all__ = ["GRPO"]


@dataclass(frozen=True)
class GRPOConfig(ClippedConfig):
    """Options of GRPO. Each iteration runs whole episodes, so ``rollout.horizon`` must reach their time limit. It
    counts as horizon times environments towards ``runner.total_timesteps``, though episodes may end sooner."""

    clip_ratio_high: float = 0.28
    """How far the probability ratio may rise above 1 before the gradient is cut; further than it may fall, so that rare
    actions can become likely (Yu et al. 2025, arXiv:2503.14476, section 3.1)."""
    group_size: int = option(8, least=2, unit="environments")
    """Number of environments (G) that begin each episode in the same state, to compare their episodes; divides those of
    a worker."""
    kl_beta: float = option(0.0, least=0)
    """Weight in the loss of the divergence from the policy that the run began with; 0 for none."""
    loss_aggregation: str = option("decision", choices=tuple(AGGREGATIONS))
    """Unit of equal weight in the loss: each ``decision``, or each ``trajectory`` regardless of its length."""
    filter_groups: bool = option(False)
    """Leave groups whose episodes all scored alike out of the loss, entropy bonus and divergence included."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.filter_groups and self.cloning_coef:
            raise ConfigError(
                "algorithm.filter_groups is true and algorithm.cloning_coef is given: where every group scored alike "
                "there would be no step at all, and so no cloning. Leave one of them out."
            )

    def health_variables(self) -> dict[str, float | None]:
        return super().health_variables() | {"kl_coef": self.kl_beta}


@dataclass(frozen=True)
class GRPOSamples(ClippedSamples):
    """Decisions of GRPO.

    Attributes:
        weights: [B] weight of each decision in the loss; their mean is 1.
    """

    weights: Tensor


class GRPO(ClippedAlgorithm[GRPOSamples]):
    """Clipped surrogate with group-relative advantages, and a divergence from a reference in the loss."""

    learns_critic = False
    console_metrics = (m.APPROX_KL, m.CLIP_FRACTION, m.FRAC_REWARD_ZERO_STD, m.ENTROPY)
    Config = GRPOConfig
    config: GRPOConfig

    @property
    def keeps_reference(self) -> bool:
        return self.config.kl_beta > 0.0

    def prepare(self, trajectories: TrajectoryBatch, policy: Policy) -> tuple[GRPOSamples, ObservedBatch]:
        t, config = trajectories, self.config
        valid, size = t.valid, config.group_size
        scores = torch.where(valid, t.rewards, 0.0).double().sum(0)
        equal = equal_groups(scores, size)
        filtered = self._check(t, equal)
        advantages = group_advantages(scores, size).to(t.rewards.dtype).expand(valid.shape)
        ref_log_probs, ref_units = self._evaluate_reference(t)
        reference = ref_log_probs if ref_units is None else ref_units
        learnt, among, numbered = t.listed.without(np.repeat(filtered, size))
        present, units = self._evaluate(t, policy)
        old_log_probs, staleness, observed = self._correct_staleness(t, present)
        weights = loss_weights(
            numbered.index, config.loss_aggregation, total=self.learners.sum, num_trajectories=numbered.count
        )
        samples = GRPOSamples(
            among.of(t.decided), learnt.of(t.actions), among.of(old_log_probs), learnt.of(advantages),
            learnt.of(t.numbers()), learnt.of(t.positions()), weights.to(t.rewards.dtype),
            ref_log_probs=None if reference is None else among.of(reference),
            staleness=None if staleness is None else staleness.at(among),
            num_steps=None if t.num_steps is None else learnt.of(t.num_steps),
            old_units=None if units is None else among.of(units),
            trajectories=numbered,
        )  # fmt: skip
        observed |= describe_batch(config, t, present, ref_log_probs)
        observed |= {
            m.ADVANTAGES: t.listed.valid.of(advantages),
            m.ADVANTAGES_NORM: samples.advantages,
            m.GROUP_SCORE_STD: group_deviations(scores, size),
            m.FRAC_REWARD_ZERO_STD: equal,
        }
        if config.filter_groups:
            observed[m.GROUP_FILTERED_FRACTION] = equal
        if ref_log_probs is not None:
            observed[m.KL_COEF] = config.kl_beta
        return samples, observed

    def _check(self, trajectories: TrajectoryBatch, equal: Tensor) -> NDArray[np.bool_]:
        """Checks that all episodes have ended, and that the members of each group began in one state.

        Args:
            trajectories: as in ``prepare``.
            equal: [G] bool, True where all scores of a group are equal.
        Returns:
            [G] True for each group that ``filter_groups`` leaves out.
        Raises:
            ConfigError: one of them does not hold.
        """
        t, size = trajectories, self.config.group_size
        steps, envs = t.valid.shape
        unended = (~(t.terminated | t.truncated).any(0)).sum()
        first = [leaf.view(envs // size, size, -1) for leaf in leaves_of(t.observations[0])]
        unlike = torch.stack([(leaf != leaf[:, :1]).flatten(1).any(1) for leaf in first]).any(0).sum()
        counts = self.learners.sum(torch.stack([unended, unlike]))
        running, differing, *alike = torch.cat([counts, equal]).tolist()  # one read for all that the host must know
        if running:
            raise ConfigError(
                f"{running} of {t.environments} episodes did not end within rollout.horizon, which is {steps}; GRPO "
                "scores whole episodes. Raise rollout.horizon to the task's time limit, or lower that limit "
                "(env.train.max_episode_steps)."
            )
        if differing:
            raise ConfigError(
                f"{differing} of {t.environments // size} groups of {size} environments (algorithm.group_size) did not "
                "begin in one state, although they were reset with one seed: their first observations differ. GRPO "
                "needs a simulator whose first state follows from the seed of the reset; env.train.vectorized=false "
                "may help."
            )
        return np.array(alike, bool) & self.config.filter_groups

    def loss(self, policy: Policy, samples: GRPOSamples) -> Loss:
        config = self.config
        policy_terms = self._policy_terms(policy, samples)
        loss = policy_terms.loss - config.entropy_coef * policy_terms.entropy
        if samples.ref_log_probs is not None:
            loss = loss + config.kl_beta * policy_terms.distance_from(samples.ref_log_probs).to(loss.dtype)
        loss = samples.weights * loss
        terms = {"loss": loss, "entropy": policy_terms.entropy, **policy_terms.terms}
        return Loss(loss, {name: term.detach() for name, term in terms.items()})

    def measure(self, samples: GRPOSamples, index: Tensor, terms: Terms) -> dict[Metric, Tensor | Masked]:
        return describe_update(self.config, samples, index, terms, samples.weights)
