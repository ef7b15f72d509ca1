"""Proximal policy optimisation, Schulman et al. 2017, arXiv:1707.06347. The formulas are in ``rlpipe.functional``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from rlpipe.algorithms.base import Loss, ObservedBatch, Terms, ValueSamples
from rlpipe.algorithms.shared.clipped import ClippedAlgorithm, ClippedConfig, ClippedSamples
from rlpipe.algorithms.shared.clipped_metrics import describe_batch, describe_update, describe_values
from rlpipe.config.fields import option
from rlpipe.config.schema import Config
from rlpipe.errors import ConfigError
from rlpipe.functional.advantages import gae, gae_of_actions, normalize
from rlpipe.functional.aggregation import trajectory_sums
from rlpipe.functional.levels import Units, taken_actions
from rlpipe.functional.losses import clipped_value_loss
from rlpipe.functional.reference import adaptive_kl_coef, kl_rewards
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.declaration import Metric
from rlpipe.metrics.on_device import Masked
from rlpipe.policies.base import Policy
from rlpipe.trajectory.batch import TrajectoryBatch
from rlpipe.trajectory.rows import Rows

__all__ = ["PPO"]


@dataclass(frozen=True)
class PPOConfig(ClippedConfig):
    """Options of PPO."""

    discount: float = option(0.99, least=0, most=1)
    """Weight of a reward one step later, gamma."""
    gae_lambda: float = option(0.95, least=0, most=1)
    """Interpolation between one-step (0) and whole-return (1) advantages."""
    value_clip: float | None = option(None, above=0, unit="reward")
    """How far a value may move in one update before its loss is clipped; None for a plain loss."""
    value_coef: float = option(0.5)
    """Weight of the value loss."""
    normalize_advantages: bool = option(True)
    """Shift and scale advantages over the whole batch."""
    reward_level: str = option("chunk", choices=("chunk", "action"), fixed=True)
    """Unit that has a reward, a value and an advantage: a decision with its summed rewards (``chunk``), or each action
    of it (``action``; RLinf's ``reward_type``), which needs ``logprob_level`` ``action`` or ``token``. Without effect
    if ``policy.chunk_size`` is 1."""
    kl_control: str | None = option(None, choices=("fixed", "adaptive"))
    """Penalty in the reward for leaving the policy that the run began with: ``fixed``, ``adaptive``, None for none."""
    kl_coef: float = option(0.05, above=0, unit="reward per nat")
    """Weight of that penalty; with ``adaptive``, in the first iteration."""
    kl_target: float = option(6.0, above=0, unit="nats")
    """Divergence of a trajectory that ``adaptive`` aims at."""
    kl_horizon: float = option(10_000.0, above=0, unit="trajectories")
    """Speed of ``adaptive``: the fewer trajectories, the faster it follows."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reward_level == "action" and self.logprob_level == "chunk":
            raise ConfigError(
                "algorithm.reward_level is action, which gives each action an advantage, but algorithm.logprob_level "
                "is chunk: the one probability ratio of a decision cannot be weighted by several advantages. Set "
                "algorithm.logprob_level=action or token."
            )

    def check_memory(self, config: Config) -> None:
        super().check_memory(config)
        if self.kl_control is not None:
            raise ConfigError(
                f"algorithm.kl_control is {self.kl_control}, but policy.name={config.policy.name} has a memory, and "
                "nobody keeps the one that the reference would have of an episode from an earlier iteration: leave "
                "algorithm.kl_control out, or take algorithm.name=grpo with algorithm.kl_beta, whose episodes are "
                "whole."
            )

    def health_variables(self) -> dict[str, float | None]:
        penalised = self.kl_control is not None
        return super().health_variables() | {
            "vf_coef": self.value_coef,
            "kl_coef": self.kl_coef if penalised else None,
            "kl_target": self.kl_target if penalised else None,
        }

    def health_tags(self) -> set[str]:
        tags = {"whitening": self.normalize_advantages, "adaptive_kl": self.kl_control == "adaptive"}
        return {tag for tag, holds in tags.items() if holds}


@dataclass(frozen=True)
class PPOSamples(ClippedSamples, ValueSamples):
    """Decisions of PPO."""


class PPO(ClippedAlgorithm[PPOSamples]):
    """Clipped surrogate, generalised advantages, value loss and entropy bonus."""

    Config = PPOConfig
    config: PPOConfig
    outside_steps = frozenset({"_kl_coef"})

    def __init__(self, config: PPOConfig) -> None:
        super().__init__(config)
        self._kl_coef = config.kl_coef

    @property
    def keeps_reference(self) -> bool:
        return self.config.kl_control is not None

    def state(self) -> dict[str, float]:
        return {"kl_coef": self._kl_coef} if self.config.kl_control == "adaptive" else {}

    def load_state(self, state: Mapping[str, float]) -> None:
        if self.config.kl_control == "adaptive":
            self._kl_coef = state.get("kl_coef", self._kl_coef)

    def prepare(self, trajectories: TrajectoryBatch, policy: Policy) -> tuple[PPOSamples, ObservedBatch]:
        t, config = trajectories, self.config
        valid = t.listed.valid
        ref_log_probs, ref_units = self._evaluate_reference(t)
        present, units = self._evaluate(t, policy)
        old_log_probs, staleness, observed = self._correct_staleness(t, present)
        observed |= describe_batch(config, t, present, ref_log_probs)
        penalties = None if ref_log_probs is None else self._penalties(t, ref_log_probs, observed)
        raw, values, estimated = self._advantages(t, policy, penalties)
        returns = raw + values
        advantages = raw
        if config.normalize_advantages:
            advantages = normalize(raw, estimated.index, total=self.learners.sum)
        samples = PPOSamples(
            t.decided, valid.of(t.actions), old_log_probs, valid.of(advantages), valid.of(t.numbers()),
            valid.of(t.positions()), valid.of(returns), valid.of(values), num_steps=t.valid_steps, old_units=units,
            ref_log_probs=ref_log_probs if ref_units is None else ref_units, staleness=staleness,
            trajectories=t.listed.trajectories,
        )  # fmt: skip
        observed |= {
            m.ADVANTAGES: estimated.of(raw),
            m.ADVANTAGES_NORM: estimated.of(advantages),
            m.RETURNS: estimated.of(returns),
            m.VALUES: estimated.of(values),
            m.VALUE_RESIDUALS: estimated.of(returns) - estimated.of(values),
        }
        if config.value_clip is not None:
            observed[m.CLIP_RANGE_VF] = config.value_clip
        return samples, observed

    def _advantages(
        self, trajectories: TrajectoryBatch, policy: Policy, penalties: Tensor | None
    ) -> tuple[Tensor, Tensor, Rows]:
        """Estimates the advantage of each decision, or of each action with ``reward_level=action``.

        Args:
            trajectories: as in ``prepare``.
            policy: the policy before the update.
            penalties: [T, N] rewards of decisions beside the simulator's; None for none.
        Returns:
            [T, N] or [T, N, k] advantages and values, and the rows that have one.
        """
        t, config = trajectories, self.config
        steps, envs = t.valid.shape
        seen = policy.value(t.seen)
        boundary = (steps + 1) * envs
        first = seen if seen.dim() == 1 else seen[:, 0]
        next_values = first[envs:boundary].view(steps, envs).clone()
        next_values.view(-1)[t.final_index] = first[boundary:]  # after a reset, row t + 1 belongs to the next episode
        values = seen[: steps * envs].view(steps, envs, *seen.shape[1:])
        if t.step_rewards is None or t.num_steps is None:
            raw = gae(
                t.rewards if penalties is None else t.rewards + penalties,
                values,
                next_values,
                t.terminated,
                t.truncated,
                discount=config.discount if t.num_steps is None else config.discount**t.num_steps,
                gae_lambda=config.gae_lambda,
            )
            return raw, values, t.listed.valid
        rewards = t.step_rewards.clone()
        if penalties is not None:
            rewards[..., 0] += penalties  # the decision is made before its first action
        actions_taken = t.valid.unsqueeze(-1) & taken_actions(t.num_steps, rewards.shape[-1])
        ends = (t.terminated, t.truncated)
        raw = gae_of_actions(
            rewards, values, next_values, *ends, actions_taken, discount=config.discount, gae_lambda=config.gae_lambda
        )
        assert t.listed.actions is not None
        return raw, values, t.listed.actions

    def _penalties(
        self, trajectories: TrajectoryBatch, ref_log_probs: Tensor, observed: dict[Metric, Tensor | Masked | float]
    ) -> Tensor:
        """[T, N] rewards for leaving the reference, negative where the policy prefers the action more than it does.

        Adds their metrics to ``observed``, and adapts the coefficient for the next iteration.
        """
        t, config = trajectories, self.config
        valid, numbered = t.listed.valid, t.listed.trajectories
        everywhere = valid.onto(ref_log_probs, t.log_probs)
        penalties = kl_rewards(t.log_probs, everywhere, t.valid, kl_coef=self._kl_coef).to(t.rewards.dtype)
        paid = valid.of(penalties)
        totals = trajectory_sums(paid, numbered.index, numbered.count)
        observed |= {
            m.KL_COEF: self._kl_coef,
            m.NON_SCORE_REWARD: totals,
            m.NON_SCORE_REWARD_STEP: paid,
            m.SHAPED_RETURN: totals + trajectory_sums(valid.of(t.rewards), numbered.index, numbered.count),
        }
        divergence = observed[m.KL_REF_EPISODE]
        assert isinstance(divergence, Tensor)
        if config.kl_control == "adaptive":
            total, count = self.learners.sum(
                torch.stack([divergence.sum(), divergence.new_full((), len(divergence))])
            ).tolist()
            if math.isfinite(total) and count:
                self._kl_coef = adaptive_kl_coef(
                    self._kl_coef,
                    total / count,
                    kl_target=config.kl_target,
                    kl_horizon=config.kl_horizon,
                    trajectories=int(count),
                )
        return penalties

    def loss(self, policy: Policy, samples: PPOSamples) -> Loss:
        config = self.config
        policy_terms = self._policy_terms(policy, samples)
        values = policy.value(samples.observations)
        value = clipped_value_loss(values, samples.old_values, samples.returns, value_clip=config.value_clip)
        value_loss = value.loss
        if samples.num_steps is not None and values.dim() > 1:
            value_loss = Units(value_loss, taken_actions(samples.num_steps, values.shape[1])).mean()
        loss = policy_terms.loss + config.value_coef * value_loss - config.entropy_coef * policy_terms.entropy
        terms = {"loss": loss, "entropy": policy_terms.entropy, "values": values, **policy_terms.terms}
        return Loss(loss, {name: term.detach() for name, term in terms.items()})

    def measure(self, samples: PPOSamples, index: Tensor, terms: Terms) -> dict[Metric, Tensor | Masked]:
        observed = describe_update(self.config, samples, index, terms)
        return observed | describe_values(self.config.value_clip, samples, index, terms["values"])
