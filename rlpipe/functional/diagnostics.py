"""Diagnostics of an update. They only describe it; nothing is optimised through them."""

from __future__ import annotations

import torch
from torch import Tensor


def approx_kl(log_probs: Tensor, old_log_probs: Tensor) -> Tensor:
    """[B] estimate of KL(old || new) per decision, ``(r - 1) - ln r`` with ``r = pi_new / pi_old``.

    Unbiased for samples of the old policy, never negative, and of low variance: estimator k3 of Schulman 2020,
    "Approximating KL Divergence" (http://joschu.net/blog/kl-approx.html).

    Args:
        log_probs: [B] under the new policy, nats.
        old_log_probs: [B] under the old policy, nats.
    """
    log_ratio = (log_probs - old_log_probs).double()  # in float32, r - 1 - ln r cancels to noise near r = 1
    return torch.expm1(log_ratio) - log_ratio


def approx_kl_k1(log_probs: Tensor, old_log_probs: Tensor) -> Tensor:
    """[B] signed estimate of the same divergence, ``-ln r``: unbiased but noisy, and its mean may be negative.
    Estimator k1 of the same source."""
    return (old_log_probs - log_probs).double()


def approx_kl_k2(log_probs: Tensor, old_log_probs: Tensor) -> Tensor:
    """[B] second-order estimate of the same divergence, ``(ln r)^2 / 2``. Estimator k2 of the same source."""
    return 0.5 * (log_probs - old_log_probs).double().square()


def clip_fraction(clipped_low: Tensor, clipped_high: Tensor) -> Tensor:
    """[B] 1.0 where either clip is the active branch, from the fields of ``PolicyLoss``."""
    return clipped_low + clipped_high


def explained_variance(values: Tensor, returns: Tensor) -> float | None:
    """``1 - Var(R - V) / Var(R)`` over all elements; None where the returns do not vary or there are fewer than two.

    1 means that V follows R up to a constant offset, 0 that V is no better than a constant. The metric of the same name
    applies the same formula to merged moments, so it is exact over all workers.

    Args:
        values: V, any shape.
        returns: R, of the same shape.
    """
    returns = returns.double()
    if returns.numel() < 2 or bool((returns == returns.flatten()[0]).all()):
        return None
    return 1.0 - ((returns - values.double()).var(correction=0) / returns.var(correction=0)).item()
