"""Metrics of PPO and GRPO. Nothing here changes what is learnt."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from rlpipe.algorithms.base import ValueSamples
from rlpipe.algorithms.shared.clipped import ClippedConfig, ClippedSamples, Staleness, surrogate_of, weighted
from rlpipe.functional.aggregation import trajectory_sums
from rlpipe.functional.diagnostics import approx_kl, approx_kl_k1, approx_kl_k2, clip_fraction
from rlpipe.functional.levels import at_level, by_unit, taken_actions
from rlpipe.functional.losses import PolicyLoss, clipped_value_loss
from rlpipe.functional.reference import reference_kl, reference_kl_k1
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.declaration import Metric
from rlpipe.metrics.on_device import Masked
from rlpipe.trajectory.batch import TrajectoryBatch


def describe_batch(
    config: ClippedConfig, trajectories: TrajectoryBatch, present: Tensor, ref_log_probs: Tensor | None
) -> dict[Metric, Tensor | Masked | float]:
    """Measures the collected decisions, each once, by their log-probabilities [B] under the policy before the update,
    and under the reference if there is one.
    """
    t = trajectories
    valid, fresh = t.listed.valid, t.listed.fresh  # only in fresh rows do both sides have the same weights
    log_probs = valid.of(t.log_probs)
    log_ratio = present - log_probs
    observed: dict[Metric, Tensor | Masked | float] = {
        m.REWARDS: valid.of(t.rewards),
        m.LOG_PROBS: log_probs,
        m.ROLLOUT_TRAIN_KL: fresh.of(approx_kl(present, log_probs)),
        m.LOGP_DIFF: fresh.of(log_ratio.abs()),
        m.IS_RATIO: log_ratio.exp(),
        m.CLIP_RANGE_LOW: config.clip_ratio_low,
        m.CLIP_RANGE_HIGH: config.clip_ratio_high,
        m.ENTROPY_COEF: config.entropy_coef,
    }
    if config.clip_ratio_low == config.clip_ratio_high:
        observed[m.CLIP_RANGE] = config.clip_ratio_low
    if ref_log_probs is not None:
        observed[m.REF_LOG_PROBS] = ref_log_probs
        numbered, divergence = t.listed.trajectories, reference_kl_k1(log_probs, ref_log_probs)
        observed[m.KL_REF_EPISODE] = trajectory_sums(divergence, numbered.index, numbered.count)
    return observed


def describe_update(
    config: ClippedConfig,
    samples: ClippedSamples,
    index: Tensor,
    terms: Mapping[str, Tensor],
    weights: Tensor | None = None,
) -> dict[Metric, Tensor | Masked]:
    """Measures, as ``measure``, how the update changed the policy on the decisions that were learnt from.

    The weights are those of the samples in the loss; None for 1.
    """
    log_ratio, advantages, mask = terms["log_ratio"], samples.advantages[index], terms.get("taken")
    weights = None if weights is None else weights[index]
    staleness = None if samples.staleness is None else samples.staleness[index]
    if mask is not None:  # of the units
        advantages = by_unit(advantages, log_ratio.shape[1])
        weights = None if weights is None else weights.unsqueeze(-1)
        staleness = None if staleness is None else staleness.of_units(mask)
    unchanged = torch.zeros_like(log_ratio)
    surrogate = surrogate_of(config, log_ratio, unchanged, advantages)
    policy_loss = weighted(surrogate.loss, staleness)
    policy_loss = policy_loss if weights is None else policy_loss * weights
    of_units = {
        m.APPROX_KL: approx_kl(log_ratio, unchanged),
        m.APPROX_KL_K1: approx_kl_k1(log_ratio, unchanged),
        m.APPROX_KL_K2: approx_kl_k2(log_ratio, unchanged),
        m.RATIO: surrogate.ratio,
        m.RATIO_ABS_DEV: (surrogate.ratio - 1.0).abs(),
        m.RATIO_OUTSIDE_FRACTION: surrogate.ratio_outside,
        m.CLIPPED_RATIO: surrogate.clipped_ratio,
        m.CLIP_FRACTION: clip_fraction(surrogate.clipped_low, surrogate.clipped_high),
        m.CLIP_FRACTION_LOW: surrogate.clipped_low,
        m.CLIP_FRACTION_HIGH: surrogate.clipped_high,
        m.POLICY_LOSS: policy_loss,
        m.POLICY_LOSS_ABS: policy_loss.abs(),
    }
    if config.dual_clip is not None:
        of_units[m.DUAL_CLIP_FRACTION] = surrogate.dual_clipped
        of_units[m.DUAL_CLIPPED_RATIO] = surrogate.ratio * surrogate.dual_clipped
    if samples.ref_log_probs is not None:
        start = samples.old_log_probs if samples.old_units is None else samples.old_units
        of_units[m.KL_REF] = reference_kl(start[index] + log_ratio, samples.ref_log_probs[index])
    observed: dict[Metric, Tensor | Masked] = {m.LOSS: terms["loss"], m.ENTROPY: terms["entropy"]}
    observed |= {metric: values if mask is None else Masked(values, mask) for metric, values in of_units.items()}
    if (entropies := terms.get("entropies")) is not None:
        steps = None if samples.num_steps is None else samples.num_steps[index]
        observed |= _describe_entropies(config, entropies, steps)
    if staleness is not None:
        observed |= _describe_correction(surrogate, staleness)
    return observed


def _describe_entropies(config: ClippedConfig, entropies: Tensor, num_steps: Tensor | None) -> dict[Metric, Masked]:
    """Measures the entropy of each unit and, if tokens are units, of each dimension of the actions, from [S, k, A]."""
    units = at_level(entropies, num_steps, config.entropy_level)
    observed = {m.ENTROPY: Masked(*units)}
    if "token" in (config.logprob_level, config.entropy_level):
        actions = at_level(entropies, num_steps, "action").taken
        dimensions = range(entropies.shape[-1])
        observed |= {m.ENTROPY_DIMENSION.member(f"dim_{i}"): Masked(entropies[..., i], actions) for i in dimensions}
    return observed


def _describe_correction(surrogate: PolicyLoss, staleness: Staleness) -> dict[Metric, Masked]:
    """Measures those of the decisions whose ratio refers to the policy before the update."""
    corrected, unchanged = staleness.corrected, torch.zeros_like(surrogate.log_ratio)
    return {
        m.PROXIMAL_RATIO: Masked(surrogate.ratio, corrected),
        m.CLIPPED_PROXIMAL_RATIO: Masked(surrogate.clipped_ratio, corrected),
        m.PROXIMAL_APPROX_KL: Masked(approx_kl_k1(surrogate.log_ratio, unchanged), corrected),
    }


def describe_values(
    value_clip: float | None, samples: ValueSamples, index: Tensor, values: Tensor
) -> dict[Metric, Tensor | Masked]:
    """Measures how well values [S], or [S, k] of each action of a chunk, fit their targets, each in its minibatch."""
    returns = samples.returns[index]
    loss = clipped_value_loss(values, samples.old_values[index], returns, value_clip=value_clip)
    residuals = returns - values
    observed: dict[Metric, Tensor] = {
        m.VALUE_LOSS: loss.loss,
        m.VALUE_ERROR: residuals.square(),
        m.VALUE_PRED: values,
        m.RETURNS_TRAINED: returns,
        m.VALUE_RESIDUALS_TRAINED: residuals,
    }
    if value_clip is not None:
        observed[m.VALUE_CLIP_RATIO] = loss.clipped
        observed[m.VALUE_CLIP_ACTIVE_FRACTION] = loss.clip_active
    if samples.num_steps is None or values.dim() == 1:
        return {**observed}
    mask = taken_actions(samples.num_steps[index], values.shape[1])
    return {metric: Masked(each, mask) for metric, each in observed.items()}
