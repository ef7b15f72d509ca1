"""Proximal policy optimisation, Schulman et al. 2017, arXiv:1707.06347. The formulas are in ``rlpipe.functional``."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from rlpipe.algorithms.base import AlgorithmConfig, Loss, OnPolicyAlgorithm, Samples, Trajectories
from rlpipe.functional.advantages import gae, normalize
from rlpipe.functional.diagnostics import approx_kl, clip_fraction
from rlpipe.functional.losses import clipped_value_loss, ppo_policy_loss
from rlpipe.metrics import MetricWindow
from rlpipe.metrics import catalogue as m
from rlpipe.plugins import ConfigError
from rlpipe.policies.base import Policy

__all__ = ["PPO"]


@dataclass(frozen=True)
class PPOConfig(AlgorithmConfig):
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

    def prepare(self, trajectories: Trajectories, policy: Policy, window: MetricWindow) -> Samples:
        t = trajectories
        steps, envs, _ = t.observations[1:].shape
        seen = torch.cat([t.observations.flatten(0, 1), t.final_observations])
        seen_values = policy.value(seen)
        boundary = (steps + 1) * envs
        values, final_values = seen_values[:boundary].view(steps + 1, envs), seen_values[boundary:]
        next_values = values[1:].clone()
        next_values.view(-1)[t.final_index] = final_values  # after a reset, row t + 1 belongs to the next episode
        values = values[:-1]
        advantages = gae(
            t.rewards,
            values,
            next_values,
            t.terminated,
            t.truncated,
            discount=self.config.discount,
            gae_lambda=self.config.gae_lambda,
        )
        returns = advantages + values
        valid = t.valid
        observed = torch.stack([advantages, returns, values, t.rewards])[:, valid].double().cpu().numpy()
        window.observe(m.ADVANTAGES, observed[0])
        window.observe(m.RETURNS, observed[1])
        window.observe(m.VALUES, observed[2])
        window.observe(m.VALUE_RESIDUALS, observed[1] - observed[2])
        window.observe(m.REWARDS, observed[3])
        if self.config.normalize_advantages:
            advantages = normalize(advantages, valid)
        return Samples(
            t.observations[:-1][valid], t.actions[valid], t.log_probs[valid], advantages[valid], returns[valid],
            values[valid],
        )  # fmt: skip

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
        observed = {
            m.LOSS: loss,
            m.ENTROPY: entropy,
            m.POLICY_LOSS: surrogate.loss,
            m.APPROX_KL: approx_kl(log_probs.detach(), samples.old_log_probs),
            m.CLIP_FRACTION: clip_fraction(surrogate.clipped_low, surrogate.clipped_high),
            m.RATIO_OUTSIDE_FRACTION: surrogate.ratio_outside,
            m.CLIPPED_RATIO: surrogate.clipped_ratio,
            m.RATIO: surrogate.ratio,
            m.VALUE_LOSS: value.loss,
        }
        if config.dual_clip is not None:
            observed[m.DUAL_CLIP_FRACTION] = surrogate.dual_clipped
        if config.value_clip is not None:
            observed[m.VALUE_CLIP_RATIO] = value.clipped
        return Loss(loss.mean(), {metric: values.detach() for metric, values in observed.items()})
