"""Divergence of a policy from a frozen reference, and penalties for it.

A penalty in the loss uses ``reference_kl`` (Shao et al. 2024, arXiv:2402.03300, equation 4). A penalty in the reward
uses ``kl_rewards`` (Ziegler et al. 2019, arXiv:1909.08593, equation 2); ``adaptive_kl_coef`` may adapt its coefficient.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rlpipe.functional.diagnostics import approx_kl, approx_kl_k1


def reference_kl(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """Estimate of KL(policy || reference) per decision, ``(r - 1) - ln r`` with ``r = pi_ref / pi``: k3 of Schulman
    2020, "Approximating KL Divergence" (http://joschu.net/blog/kl-approx.html). Never negative.

    Args:
        log_probs: nats, any shape, of actions that the policy drew.
        ref_log_probs: nats, of the same actions under the reference.
    """
    return approx_kl(ref_log_probs, log_probs)


def reference_kl_k1(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """Signed estimate of the same divergence, ``ln pi - ln pi_ref``: k1 of the same source. Its sum over an episode is
    unbiased for the divergence of whole episodes.

    Args:
        log_probs: nats, any shape, of actions that the policy drew.
        ref_log_probs: nats, of the same actions under the reference.
    """
    return approx_kl_k1(ref_log_probs, log_probs)


def kl_rewards(log_probs: Tensor, ref_log_probs: Tensor, valid: Tensor, *, kl_coef: float) -> Tensor:
    """Reward for each decision, ``-kl_coef * (ln pi - ln pi_ref)``; 0 where no decision was made.
    Ziegler et al. 2019, arXiv:1909.08593, equation 2.

    The score of the episode plus their sum over its decisions is the return that is maximised.

    Args:
        log_probs: nats, any shape.
        ref_log_probs: nats, of the same actions under the reference.
        valid: bool of that shape; False where no decision was made.
        kl_coef: reward per nat.
    Returns:
        The same shape, in the unit of the reward.
    """
    return torch.where(valid, -kl_coef * reference_kl_k1(log_probs, ref_log_probs), 0.0)


LARGEST_KL_ERROR = 0.2
"""Largest relative distance from the target that counts in the change of the coefficient."""


def adaptive_kl_coef(kl_coef: float, kl: float, *, kl_target: float, kl_horizon: float, trajectories: int) -> float:
    """Coefficient of the next iteration, ``kl_coef * (1 + clip(kl / kl_target - 1, -0.2, 0.2) * n / kl_horizon)``: it
    rises while the policy is further from the reference than wanted.
    Ziegler et al. 2019, arXiv:1909.08593, section 2.2; with the horizon of their code, in samples.

    n counts at most as the horizon, so one iteration changes the coefficient by at most 20 %.

    Args:
        kl_coef: coefficient of this iteration.
        kl: mean divergence of a trajectory, in nats.
        kl_target: divergence to aim at, in nats.
        kl_horizon: trajectories in which the coefficient follows.
        trajectories: n, number of trajectories of this iteration.
    """
    error = min(max(kl / kl_target - 1.0, -LARGEST_KL_ERROR), LARGEST_KL_ERROR)
    return kl_coef * (1.0 + error * min(trajectories / kl_horizon, 1.0))
