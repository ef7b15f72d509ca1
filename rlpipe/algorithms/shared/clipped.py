"""Base of PPO and GRPO: the clipped surrogate, and the distance from a reference policy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from rlpipe.algorithms.base import OnPolicyAlgorithm, OnPolicyConfig, Samples, Terms
from rlpipe.config.fields import option
from rlpipe.config.schema import Config
from rlpipe.errors import ConfigError
from rlpipe.functional.diagnostics import approx_kl, approx_kl_k1
from rlpipe.functional.levels import LEVELS, Units, at_level, by_unit
from rlpipe.functional.losses import PolicyLoss, behaviour_weights, ppo_policy_loss
from rlpipe.functional.reference import reference_kl
from rlpipe.learner_group import SINGLE_LEARNER, LearnerGroup
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.declaration import Metric
from rlpipe.metrics.on_device import Masked
from rlpipe.policies.base import Policy
from rlpipe.trajectory.batch import TrajectoryBatch
from rlpipe.trajectory.rows import Rows


@dataclass(frozen=True)
class ClippedConfig(OnPolicyConfig):
    """Options of the clipped surrogate."""

    clip_ratio_low: float = option(0.2, above=0, below=1)
    """How far the probability ratio may fall below 1 before the gradient is cut."""
    clip_ratio_high: float = option(0.2, above=0)
    """How far the probability ratio may rise above 1 before the gradient is cut."""
    dual_clip: float | None = option(None, above=1)
    """Multiple of a negative advantage at which its loss is bounded; None for no bound."""
    entropy_coef: float = option(0.0)
    """Weight of the entropy bonus."""
    logprob_level: str = option("chunk", choices=LEVELS)
    """Unit that has a probability ratio of its own and is clipped for itself: a ``token`` (one number of an action, if
    the policy has no tokens), an ``action``, or the ``chunk``, the whole decision (RLinf's ``logprob_type``). Losses
    within a decision are averaged; at ``token`` and ``action`` the ratio refers to the policy before the update."""
    entropy_level: str = option("chunk", choices=LEVELS)
    """Unit of the entropy: its mean over tokens (``token``) or actions (``action``), or its sum over the whole decision
    (``chunk``); RLinf's ``entropy_type``."""
    correct_from_lag: int = option(1, least=1, unit="versions")
    """Lag of the weights that took a decision, from which its ratio refers to the policy before the update, and its
    loss is weighted (decoupled PPO, arXiv:2110.00641). Below, the ratio refers to the policy that acted. Without effect
    with ``runner.pipeline=sync``."""
    max_behaviour_weight: float = option(2.0, least=1)
    """Largest such weight; a decision beyond it is left out."""

    def check_memory(self, config: Config) -> None:
        environments = config.env.train.total_num_envs
        if self.num_minibatches > environments:
            raise ConfigError(
                f"algorithm.num_minibatches is {self.num_minibatches}, but policy.name={config.policy.name} has a "
                "memory, so minibatches are made of whole trajectories, of which an iteration may have no more than "
                f"env.train.total_num_envs, which is {environments}: lower the former or raise the latter."
            )
        if self.cloning_coef:
            raise ConfigError(
                f"algorithm.cloning_coef is {self.cloning_coef}, which clones steps of demonstrations out of their "
                f"order, but policy.name={config.policy.name} has a memory: set algorithm.cloning_coef=0."
            )

    def health_variables(self) -> dict[str, float | None]:
        return super().health_variables() | {
            "eps_lo": self.clip_ratio_low,
            "eps_hi": self.clip_ratio_high,
            "ent_coef": self.entropy_coef,
        }


@dataclass(frozen=True)
class Staleness:
    """Relation of each decision to the policy before the update, where some were taken by an older one.

    Attributes:
        start_log_probs: [B] under the policy before the update, in nats.
        weights: [B] behaviour weights; 1 where the ratio refers to the policy that acted.
        corrected: [B] bool, the ratio refers to the policy before the update.
    """

    start_log_probs: Tensor
    weights: Tensor
    corrected: Tensor

    def __getitem__(self, index: Tensor | slice) -> Staleness:
        return Staleness(self.start_log_probs[index], self.weights[index], self.corrected[index])

    def of_units(self, mask: Tensor) -> Staleness:
        """Returns that of the units of each decision, [B, G], of which a mask [B, G] holds those that were taken."""
        return Staleness(
            self.start_log_probs.unsqueeze(-1), self.weights.unsqueeze(-1), self.corrected.unsqueeze(-1) & mask
        )

    def at(self, rows: Rows) -> Staleness:
        """Returns that of some of the decisions."""
        return Staleness(rows.of(self.start_log_probs), rows.of(self.weights), rows.of(self.corrected))


@dataclass(frozen=True)
class ClippedSamples(Samples):
    """Decisions of PPO and GRPO.

    Attributes:
        ref_log_probs: of the same actions under the reference, [B] or [B, G] of their units; None without one.
        staleness: None if the learner's weights took all decisions.
    """

    ref_log_probs: Tensor | None = field(default=None, kw_only=True)
    staleness: Staleness | None = field(default=None, kw_only=True)


ClippedSamplesT = TypeVar("ClippedSamplesT", bound=ClippedSamples)


class PolicyTerms(NamedTuple):
    """Log-probabilities, entropy and surrogate of a minibatch, with gradients.

    Attributes:
        log_probs: [B] of the decisions, in nats.
        units: log-probabilities of the units of each decision; None where a decision is one unit.
        entropy: [B] at its level, in nats.
        loss: [B] of the surrogate, as it is minimised.
        terms: by name, values that ``measure`` needs.
    """

    log_probs: Tensor
    units: Units | None
    entropy: Tensor
    loss: Tensor
    terms: dict[str, Tensor]

    def distance_from(self, ref_log_probs: Tensor) -> Tensor:
        """[B] ``reference_kl`` from the log-probabilities of the same decisions, or of the same units."""
        if self.units is None:
            return reference_kl(self.log_probs, ref_log_probs)
        return self.units.of(reference_kl(self.units.values, ref_log_probs))


def surrogate_of(config: ClippedConfig, log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor) -> PolicyLoss:
    """Returns ``ppo_policy_loss`` with the configured clipping."""
    return ppo_policy_loss(
        log_probs,
        old_log_probs,
        advantages,
        clip_ratio_low=config.clip_ratio_low,
        clip_ratio_high=config.clip_ratio_high,
        dual_clip=config.dual_clip,
    )


def weighted(losses: Tensor, staleness: Staleness | None) -> Tensor:
    """[B] losses of the surrogate, weighted where an older policy decided."""
    return losses if staleness is None else staleness.weights * losses


class ClippedAlgorithm(OnPolicyAlgorithm[ClippedSamplesT]):
    """An algorithm that minimises ``ppo_policy_loss``."""

    config: ClippedConfig
    _reference: Policy | None = None

    def begin(self, reference: Policy | None, learners: LearnerGroup = SINGLE_LEARNER) -> None:
        super().begin(reference, learners)
        self._reference = reference if self.keeps_reference else None

    def divergence(self, terms: Terms) -> Tensor:
        moved = terms.get("moved", terms["log_ratio"])
        moved = moved[terms["taken"]] if moved.dim() > 1 else moved
        return approx_kl(moved, torch.zeros_like(moved))

    def _policy_terms(self, policy: Policy, samples: ClippedSamplesT) -> PolicyTerms:
        """Computes the surrogate and the entropy of a minibatch, at their levels."""
        config, terms, staleness = self.config, {}, samples.staleness
        if config.logprob_level == config.entropy_level == "chunk":
            log_probs, entropy = policy.evaluate_actions(*samples.decisions)
        else:
            parts, entropies = policy.evaluate_parts(samples.observations, samples.actions)
            log_probs = at_level(parts, samples.num_steps, "chunk").values.squeeze(-1)
            entropy = at_level(entropies, samples.num_steps, config.entropy_level).mean()
            terms["entropies"] = entropies
        if staleness is not None:  # how far the update has moved the policy, where the ratio does not tell
            terms["moved"] = log_probs - staleness.start_log_probs
        if samples.old_units is None:
            surrogate = surrogate_of(config, log_probs, samples.old_log_probs, samples.advantages)
            terms["log_ratio"] = surrogate.log_ratio
            return PolicyTerms(log_probs, None, entropy, weighted(surrogate.loss, staleness), terms)
        units = at_level(parts, samples.num_steps, config.logprob_level)
        advantages = by_unit(samples.advantages, units.values.shape[1])
        surrogate = surrogate_of(config, units.values, samples.old_units, advantages)
        terms |= {"log_ratio": surrogate.log_ratio, "taken": units.taken}
        return PolicyTerms(log_probs, units, entropy, weighted(units.of(surrogate.loss), staleness), terms)

    def _evaluate(self, trajectories: TrajectoryBatch, policy: Policy) -> tuple[Tensor, Tensor | None]:
        """Evaluates the valid decisions.

        Returns:
            [B] log-probabilities in nats, and those [B, G] of the units; None if each decision is one unit.
        """
        t, level = trajectories, self.config.logprob_level
        if level == "chunk":
            return policy.evaluate_actions(*t.decisions)[0], None
        parts, _ = policy.evaluate_parts(*t.decisions[:2])
        whole = at_level(parts, t.valid_steps, "chunk").values.squeeze(-1)
        return whole, at_level(parts, t.valid_steps, level).values

    def _evaluate_reference(self, trajectories: TrajectoryBatch) -> tuple[Tensor | None, Tensor | None]:
        """Evaluates the valid decisions under the reference, as ``_evaluate``; None without one."""
        return (None, None) if self._reference is None else self._evaluate(trajectories, self._reference)

    def _correct_staleness(
        self, trajectories: TrajectoryBatch, present: Tensor
    ) -> tuple[Tensor, Staleness | None, dict[Metric, Tensor | Masked | float]]:
        """Chooses the policy that the ratio of each valid decision refers to.

        Args:
            trajectories: as in ``prepare``.
            present: [B] from ``_evaluate``, of the policy before the update.
        Returns:
            [B] log-probabilities that the ratio refers to; the staleness, None if the learner's weights took all
            decisions; metrics.
        """
        t, config = trajectories, self.config
        valid = t.listed.valid
        acted = valid.of(t.log_probs)
        if t.listed.fresh.mask.all():
            return acted, None, {}
        lags = valid.of(t.lags.expand(t.valid.shape))
        corrected = lags >= config.correct_from_lag
        start = torch.where(lags > 0, present, acted)  # equal up to rounding where the weights are the same
        behaviour = behaviour_weights(present, acted, limit=config.max_behaviour_weight)
        staleness = Staleness(start, torch.where(corrected, behaviour.weights, 1.0), corrected)
        observed: dict[Metric, Tensor | Masked | float] = {
            m.BEHAV_CLIP_FRACTION: Masked(1.0 - behaviour.kept, corrected),
            m.BEHAV_APPROX_KL: Masked(approx_kl_k1(present, acted), corrected & (behaviour.kept > 0)),
        }
        return torch.where(corrected, present, acted), staleness, observed
