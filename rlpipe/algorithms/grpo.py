"""Group-relative policy optimisation, Shao et al. 2024, arXiv:2402.03300.

Each episode is compared with others that began in the same state, instead of with a critic's value. The formulas are
in ``rlpipe.functional``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rlpipe.algorithms.base import Loss, Observed, Terms
from rlpipe.algorithms.shared.clipped import ClippedAlgorithm, ClippedConfig, ClippedSamples
from rlpipe.algorithms.shared.clipped_metrics import describe_batch, describe_update
from rlpipe.config.fields import option
from rlpipe.errors import ConfigError
from rlpipe.functional.aggregation import AGGREGATIONS, loss_weights
from rlpipe.functional.groups import equal_groups, group_advantages, group_deviations
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.declaration import Metric
from rlpipe.metrics.on_device import OfUnits
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

    def prepare(self, trajectories: TrajectoryBatch, policy: Policy) -> tuple[GRPOSamples, Observed]:
        t, config = trajectories, self.config
        self._check(t)
        valid = t.valid
        groups = torch.arange(valid.shape[1], device=valid.device) // config.group_size
        scores = torch.where(valid, t.rewards, 0.0).double().sum(0)
        equal = equal_groups(scores, groups)
        advantages = group_advantages(scores, groups).to(t.rewards.dtype).expand(valid.shape)
        ref_log_probs, ref_units = self._evaluate_reference(t)
        reference = ref_log_probs if ref_units is None else ref_units
        learnt = valid & ~equal[groups] if config.filter_groups else valid
        trajectory = t.numbers()[learnt]
        present, units = self._evaluate(t, policy)
        old_log_probs, staleness, observed = self._correct_staleness(t, present)
        samples = GRPOSamples(
            t.decided[learnt[valid]], t.actions[learnt], old_log_probs[learnt[valid]], advantages[learnt],
            trajectory, t.positions()[learnt],
            loss_weights(trajectory, config.loss_aggregation, total=self.learners.sum).to(t.rewards.dtype),
            ref_log_probs=None if reference is None else reference[learnt[valid]],
            staleness=None if staleness is None else staleness[learnt[valid]],
            num_steps=None if t.num_steps is None else t.num_steps[learnt],
            old_units=None if units is None else units[learnt[valid]],
        )  # fmt: skip
        observed |= describe_batch(config, t, present, ref_log_probs)
        observed |= {
            m.ADVANTAGES: advantages[valid],
            m.ADVANTAGES_NORM: samples.advantages,
            m.GROUP_SCORE_STD: group_deviations(scores, groups),
            m.FRAC_REWARD_ZERO_STD: equal,
        }
        if config.filter_groups:
            observed[m.GROUP_FILTERED_FRACTION] = equal
        if ref_log_probs is not None:
            observed[m.KL_COEF] = config.kl_beta
        return samples, observed

    def _check(self, trajectories: TrajectoryBatch) -> None:
        """Raises ConfigError unless all episodes have ended and the members of each group began in one state."""
        t, size = trajectories, self.config.group_size
        steps, envs = t.valid.shape
        unended = (~(t.terminated | t.truncated).any(0)).sum()
        first = [leaf.view(envs // size, size, -1) for leaf in leaves_of(t.observations[0])]
        unlike = torch.stack([(leaf != leaf[:, :1]).flatten(1).any(1) for leaf in first]).any(0).sum()
        running, differing = self.learners.sum(torch.stack([unended, unlike])).tolist()
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

    def loss(self, policy: Policy, samples: GRPOSamples) -> Loss:
        config = self.config
        policy_terms = self._policy_terms(policy, samples)
        loss = policy_terms.loss - config.entropy_coef * policy_terms.entropy
        if samples.ref_log_probs is not None:
            loss = loss + config.kl_beta * policy_terms.distance_from(samples.ref_log_probs).to(loss.dtype)
        loss = samples.weights * loss
        terms = {"loss": loss, "entropy": policy_terms.entropy, **policy_terms.terms}
        return Loss(loss, {name: term.detach() for name, term in terms.items()})

    def measure(self, samples: GRPOSamples, index: Tensor, terms: Terms) -> dict[Metric, Tensor | OfUnits]:
        return describe_update(self.config, samples, index, terms, samples.weights)
