"""Staying near a frozen reference policy: how far away the acting policy is, and what that costs.

A penalty in the loss takes ``reference_kl`` (Shao et al. 2024, arXiv:2402.03300, equation 4); one in the reward takes
``kl_rewards`` (Ziegler et al. 2019, arXiv:1909.08593, equation 2), whose coefficient ``adaptive_kl_coef`` may adapt.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rlpipe.functional.diagnostics import approx_kl, approx_kl_k1


def reference_kl(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """Estimate of KL(policy || reference) per decision, ``(r - 1) - ln r`` with ``r = pi_ref / pi``: k3 of Schulman
    2020, "Approximating KL Divergence" (http://joschu.net/blog/kl-approx.html). Never negative.

    Args:
        log_probs, ref_log_probs: same shape, nats, of actions that the policy drew.
    """
    return approx_kl(ref_log_probs, log_probs)


def reference_kl_k1(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """Signed estimate of the same divergence, ``ln pi - ln pi_ref``: k1 of the same source. Its sum over an episode is
    unbiased for the divergence of whole episodes.

    Args:
        log_probs, ref_log_probs: same shape, nats, of actions that the policy drew.
    """
    return approx_kl_k1(ref_log_probs, log_probs)


def kl_rewards(log_probs: Tensor, ref_log_probs: Tensor, valid: Tensor, *, kl_coef: float) -> Tensor:
    """What each decision costs, ``-kl_coef * (ln pi - ln pi_ref)``; 0 where no decision was made.
    Ziegler et al. 2019, arXiv:1909.08593, equation 2.

    Added to the score of the episode, their sum over its decisions gives the return that is really made larger.

    Args:
        log_probs, ref_log_probs: same shape, nats.  valid: bool of that shape.  kl_coef: reward per nat.
    Returns:
        The same shape, in the unit of the reward.
    """
    return torch.where(valid, -kl_coef * reference_kl_k1(log_probs, ref_log_probs), 0.0)


LARGEST_KL_ERROR = 0.2
"""Relative distance from its target beyond which a divergence moves the coefficient no faster."""


def adaptive_kl_coef(kl_coef: float, kl: float, *, kl_target: float, kl_horizon: float, trajectories: int) -> float:
    """Coefficient of the next iteration, ``kl_coef * (1 + clip(kl / kl_target - 1, -0.2, 0.2) * n / kl_horizon)``: it
    rises while the policy is further from the reference than wanted.
    Ziegler et al. 2019, arXiv:1909.08593, section 2.2; with the horizon of their code, in samples.

    An iteration with more trajectories than the horizon counts as that many: a step is at most 20 %.

    Args:
        kl_coef: of this iteration.  kl: divergence of a trajectory, mean, in nats.  kl_target: what it should be.
        kl_horizon: trajectories in which the coefficient follows.  trajectories: n, of this iteration.
    """
    error = min(max(kl / kl_target - 1.0, -LARGEST_KL_ERROR), LARGEST_KL_ERROR)
    return kl_coef * (1.0 + error * min(trajectories / kl_horizon, 1.0))
