"""Proximal policy optimisation, Schulman et al. 2017, arXiv:1707.06347. The formulas are in ``rlpipe.functional``."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rlpipe.algorithms.base import Loss, Observed, OnPolicyAlgorithm, OnPolicyConfig, Samples, Terms, Trajectories
from rlpipe.functional.advantages import gae, normalize
from rlpipe.functional.diagnostics import approx_kl, approx_kl_k1, approx_kl_k2, clip_fraction
from rlpipe.functional.losses import clipped_value_loss, ppo_policy_loss
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.declaration import Metric
from rlpipe.plugins import ConfigError
from rlpipe.policies.base import Policy

__all__ = ["PPO"]


@dataclass(frozen=True)
class PPOConfig(OnPolicyConfig):
    """Options of PPO."""

    discount: float = 0.99
    """Weight of a reward one step later, gamma."""
    gae_lambda: float = 0.95
    """Between one-step (0) and whole-return (1) advantages."""
    clip_ratio_low: float = 0.2
    """How far the probability ratio may fall below 1 before the gradient is cut."""
    clip_ratio_high: float = 0.2
    """How far it may rise above 1."""
    dual_clip: float | None = None
    """Bounds the loss of a negative advantage at this multiple of it; greater than 1, None for none."""
    value_clip: float | None = None
    """How far a value may move in one update before its loss is clipped, in reward units; None for a plain loss."""
    value_coef: float = 0.5
    """Weight of the value loss."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""
    normalize_advantages: bool = True
    """Shift and scale advantages over the whole batch."""

    def __post_init__(self) -> None:
        for name in ("discount", "gae_lambda"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ConfigError(f"algorithm.{name} is {getattr(self, name)}; it must lie between 0 and 1.")
        if not 0.0 < self.clip_ratio_low < 1.0 or self.clip_ratio_high <= 0.0:
            raise ConfigError(
                f"algorithm.clip_ratio_low is {self.clip_ratio_low} and clip_ratio_high {self.clip_ratio_high}; the "
                "first must lie between 0 and 1, the second above 0."
            )
        if self.value_clip is not None and self.value_clip <= 0.0:
            raise ConfigError(f"algorithm.value_clip is {self.value_clip}; it must be greater than 0.")
        if self.dual_clip is not None and self.dual_clip <= 1.0:
            raise ConfigError(f"algorithm.dual_clip is {self.dual_clip}; it must be greater than 1.")


class PPO(OnPolicyAlgorithm):
    """Clipped surrogate, generalised advantages, value loss and entropy bonus."""

    Config = PPOConfig

    def __init__(self, config: PPOConfig) -> None:
        """Keeps the options."""
        self.config = config

    def prepare(self, trajectories: Trajectories, policy: Policy) -> tuple[Samples, Observed]:
        t, config = trajectories, self.config
        steps, envs, _ = t.observations[1:].shape
        seen = torch.cat([t.observations.flatten(0, 1), t.final_observations])
        seen_values = policy.value(seen)
        boundary = (steps + 1) * envs
        values, final_values = seen_values[:boundary].view(steps + 1, envs), seen_values[boundary:]
        next_values = values[1:].clone()
        next_values.view(-1)[t.final_index] = final_values  # after a reset, row t + 1 belongs to the next episode
        values = values[:-1]
        raw = gae(
            t.rewards,
            values,
            next_values,
            t.terminated,
            t.truncated,
            discount=config.discount,
            gae_lambda=config.gae_lambda,
        )
        returns, valid = raw + values, t.valid
        advantages = normalize(raw, valid) if config.normalize_advantages else raw
        samples = Samples(
            t.observations[:-1][valid], t.actions[valid], t.log_probs[valid], advantages[valid], returns[valid],
            values[valid], t.numbers()[valid],
        )  # fmt: skip
        again, _ = policy.evaluate_actions(samples.observations, samples.actions)
        log_ratio = again - samples.old_log_probs
        observed: dict[Metric, Tensor | float] = {
            m.ADVANTAGES: raw[valid],
            m.ADVANTAGES_NORM: samples.advantages,
            m.RETURNS: samples.returns,
            m.VALUES: samples.old_values,
            m.VALUE_RESIDUALS: samples.returns - samples.old_values,
            m.REWARDS: t.rewards[valid],
            m.LOG_PROBS: samples.old_log_probs,
            m.ROLLOUT_TRAIN_KL: approx_kl(again, samples.old_log_probs),
            m.LOGP_DIFF: log_ratio.abs(),
            m.IS_RATIO: log_ratio.exp(),
            m.CLIP_RANGE_LOW: config.clip_ratio_low,
            m.CLIP_RANGE_HIGH: config.clip_ratio_high,
            m.ENTROPY_COEF: config.entropy_coef,
        }
        if config.clip_ratio_low == config.clip_ratio_high:
            observed[m.CLIP_RANGE] = config.clip_ratio_low
        if config.value_clip is not None:
            observed[m.CLIP_RANGE_VF] = config.value_clip
        return samples, observed

    def loss(self, policy: Policy, samples: Samples) -> Loss:
        config = self.config
        log_probs, entropy = policy.evaluate_actions(samples.observations, samples.actions)
        values = policy.value(samples.observations)
        surrogate = ppo_policy_loss(
            log_probs,
            samples.old_log_probs,
            samples.advantages,
            clip_ratio_low=config.clip_ratio_low,
            clip_ratio_high=config.clip_ratio_high,
            dual_clip=config.dual_clip,
        )
        value = clipped_value_loss(values, samples.old_values, samples.returns, value_clip=config.value_clip)
        loss = surrogate.loss + config.value_coef * value.loss - config.entropy_coef * entropy
        terms = {"loss": loss, "entropy": entropy, "log_ratio": surrogate.log_ratio, "values": values}
        return Loss(loss.mean(), {name: term.detach() for name, term in terms.items()})

    def divergence(self, terms: Terms) -> Tensor:
        return approx_kl(terms["log_ratio"], torch.zeros_like(terms["log_ratio"]))

    def observe(self, samples: Samples, taken: Tensor, terms: Terms) -> dict[Metric, Tensor]:
        config = self.config
        log_ratio, values = terms["log_ratio"], terms["values"]
        at_rest = torch.zeros_like(log_ratio)
        advantages, returns = samples.advantages[taken], samples.returns[taken]
        surrogate = ppo_policy_loss(
            log_ratio,
            at_rest,
            advantages,
            clip_ratio_low=config.clip_ratio_low,
            clip_ratio_high=config.clip_ratio_high,
            dual_clip=config.dual_clip,
        )
        value = clipped_value_loss(values, samples.old_values[taken], returns, value_clip=config.value_clip)
        residuals = returns - values
        observed = {
            m.LOSS: terms["loss"],
            m.ENTROPY: terms["entropy"],
            m.APPROX_KL: approx_kl(log_ratio, at_rest),
            m.APPROX_KL_K1: approx_kl_k1(log_ratio, at_rest),
            m.APPROX_KL_K2: approx_kl_k2(log_ratio, at_rest),
            m.RATIO: surrogate.ratio,
            m.RATIO_ABS_DEV: (surrogate.ratio - 1.0).abs(),
            m.RATIO_OUTSIDE_FRACTION: surrogate.ratio_outside,
            m.CLIPPED_RATIO: surrogate.clipped_ratio,
            m.CLIP_FRACTION: clip_fraction(surrogate.clipped_low, surrogate.clipped_high),
            m.CLIP_FRACTION_LOW: surrogate.clipped_low,
            m.CLIP_FRACTION_HIGH: surrogate.clipped_high,
            m.POLICY_LOSS: surrogate.loss,
            m.POLICY_LOSS_ABS: surrogate.loss.abs(),
            m.VALUE_LOSS: value.loss,
            m.VALUE_ERROR: residuals.square(),
            m.VALUE_PRED: values,
            m.RETURNS_TRAINED: returns,
            m.VALUE_RESIDUALS_TRAINED: residuals,
        }
        if config.dual_clip is not None:
            observed[m.DUAL_CLIP_FRACTION] = surrogate.dual_clipped
            observed[m.DUAL_CLIPPED_RATIO] = surrogate.ratio * surrogate.dual_clipped
        if config.value_clip is not None:
            observed[m.VALUE_CLIP_RATIO] = value.clipped
            observed[m.VALUE_CLIP_ACTIVE_FRACTION] = value.clip_active
        return observed
