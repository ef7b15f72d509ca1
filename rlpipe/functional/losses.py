"""Losses, one value per decision; the caller averages over valid decisions."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class PolicyLoss(NamedTuple):
    """Per-decision terms of the clipped surrogate, each [B].

    Attributes:
        loss: to be minimised.
        ratio: pi_new / pi_old.
        clipped_ratio: the ratio clamped to the clip range; its mean is a mean of ratios, not a share.
        clipped_low: 1.0 where the lower clip is the active branch and cuts the gradient.
        clipped_high: 1.0 where the upper clip is the active branch and cuts the gradient.
        dual_clipped: 1.0 where the dual clip is active.
        ratio_outside: 1.0 where the ratio is outside the clip range, whatever the sign of the advantage.
        log_ratio: ln ratio, nats.
    """

    loss: Tensor
    ratio: Tensor
    clipped_ratio: Tensor
    clipped_low: Tensor
    clipped_high: Tensor
    dual_clipped: Tensor
    ratio_outside: Tensor
    log_ratio: Tensor


class ValueLoss(NamedTuple):
    """Per-decision terms of the value loss, each [B].

    Attributes:
        loss: to be minimised.
        clipped: 1.0 where the value moved further than the clip range.
        clip_active: 1.0 where the loss uses the clipped value.
    """

    loss: Tensor
    clipped: Tensor
    clip_active: Tensor


def ppo_policy_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    *,
    clip_ratio_low: float,
    clip_ratio_high: float,
    dual_clip: float | None = None,
) -> PolicyLoss:
    """Clipped surrogate ``max(-A r, -A clamp(r, 1 - low, 1 + high))`` with ``r = exp(log_prob - old_log_prob)``.
    Schulman et al. 2017, arXiv:1707.06347, equation 7.

    The dual clip bounds the loss of a negative advantage by ``-dual_clip * A``, so that one huge ratio cannot dominate
    the batch.  Ye et al. 2020, arXiv:1912.09729, equation 5.

    Comparisons are strict: a ratio exactly on a bound is not clipped, nor is a decision with advantage 0.

    Args:
        log_probs: [B] nats.
        old_log_probs: [B] nats.
        advantages: [B] reward units, or standard deviations.
        clip_ratio_low: distance by which the ratio may fall below 1.
        clip_ratio_high: distance by which the ratio may rise above 1.
        dual_clip: greater than 1, or None for no dual clip.
    Raises:
        ValueError: the three tensors differ in shape.
    """
    if not log_probs.shape == old_log_probs.shape == advantages.shape:
        raise ValueError(
            "ppo_policy_loss compares the same decisions one by one, so its inputs must share a shape, but log_probs "
            f"has {tuple(log_probs.shape)}, old_log_probs {tuple(old_log_probs.shape)} and "
            f"advantages {tuple(advantages.shape)}."
        )
    log_ratio = log_probs - old_log_probs
    ratio = torch.exp(log_ratio)
    clipped_ratio = torch.clamp(ratio, 1.0 - clip_ratio_low, 1.0 + clip_ratio_high)
    plain, clipped = -advantages * ratio, -advantages * clipped_ratio
    loss = torch.maximum(plain, clipped)
    with torch.no_grad():
        active = clipped > plain
        low, high = ratio < 1.0 - clip_ratio_low, ratio > 1.0 + clip_ratio_high
        dual = torch.zeros_like(active)
    if dual_clip is not None:
        bound = -dual_clip * advantages
        dual = (advantages < 0) & (loss > bound)
        loss = torch.where(dual, bound, loss)
    return PolicyLoss(
        loss,
        ratio.detach(),
        clipped_ratio.detach(),
        (active & low).float(),
        (active & high).float(),
        dual.float(),
        (low | high).float(),
        log_ratio.detach(),
    )


class BehaviourWeights(NamedTuple):
    """Importance weights of decisions that an older policy took, each [B].

    Attributes:
        weights: pi_proximal / pi_behaviour; 0 where the decision is left out.
        kept: 1.0 where the decision is learnt from.
    """

    weights: Tensor
    kept: Tensor


def behaviour_weights(proximal_log_probs: Tensor, behaviour_log_probs: Tensor, *, limit: float) -> BehaviourWeights:
    """Weights with which decoupled PPO multiplies the clipped surrogate, whose ratio is then taken with respect to the
    proximal policy. Hilton, Cobbe and Schulman 2021, arXiv:2110.00641, equation 2.

    A decision whose weight exceeds the limit is left out, because it says little and would dominate the batch.

    Args:
        proximal_log_probs: [B] under the policy that bounds the update, nats.
        behaviour_log_probs: [B] under the policy that took the decision, nats.
        limit: largest weight.
    """
    weights = torch.exp(proximal_log_probs - behaviour_log_probs)
    included = (weights <= limit).to(weights.dtype)
    return BehaviourWeights(torch.where(weights <= limit, weights, 0.0), included)


def clipped_value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, *, value_clip: float | None = None
) -> ValueLoss:
    """Value loss ``0.5 * max((V - R)^2, (V_clip - R)^2)`` with ``V_clip = V_old + clamp(V - V_old, -c, c)``; without a
    clip ``0.5 * (V - R)^2``.  Schulman et al. 2017's code; Huang et al. 2022, "The 37 implementation details of PPO".

    Args:
        values: [B] V now.
        old_values: [B] V at collection.
        returns: [B] targets.
        value_clip: c, or None for no clip.
    """
    plain = 0.5 * (values - returns).square()
    if value_clip is None:
        return ValueLoss(plain, torch.zeros_like(plain), torch.zeros_like(plain))
    clipped_values = old_values + torch.clamp(values - old_values, -value_clip, value_clip)
    clipped = 0.5 * (clipped_values - returns).square()
    moved = ((values - old_values).abs() > value_clip).float()
    # Inside the clip range both losses are equal up to the last bit, which means nothing.
    return ValueLoss(torch.maximum(plain, clipped), moved, (clipped > plain).float() * moved)


def cloning_weight(cloning_coef: float, cloning_decay: float, iteration: int) -> float:
    """Weight of an auxiliary cloning loss, ``cloning_coef * cloning_decay^(iteration - 1)``: demonstrations dominate at
    first, experience later.  Rajeswaran et al. 2018, arXiv:1709.10087, equation 5.

    Args:
        cloning_coef: weight in the first iteration.
        cloning_decay: share of the weight that each iteration keeps.
        iteration: from 1.
    """
    return cloning_coef * cloning_decay ** (iteration - 1)
