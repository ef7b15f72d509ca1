"""Soft actor-critic, and its use of demonstrations.

E critics, B transitions. Haarnoja et al. 2018, arXiv:1812.05905; Ball et al. 2023 (RLPD), arXiv:2302.02948.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def soft_target(
    rewards: Tensor,
    terminated: Tensor,
    next_values: Tensor,
    next_log_probs: Tensor,
    *,
    discount: Tensor | float,
    temperature: Tensor | float,
    entropy_backup: bool,
) -> Tensor:
    """Targets of the critics, ``y = r + discount (1 - terminated) (min_e Q_e(s', a') - temperature log pi(a' | s'))``.

    arXiv:1812.05905, eq. 5. A time limit does not end the task, so a truncated transition bootstraps like any other.

    Args:
        rewards: [B].
        terminated: [B].
        next_values: [E', B] of the critics that the minimum is taken over.
        next_log_probs: [B] nats.
        discount: weight of the value that follows; [B] where transitions differ in their number of steps.
        temperature: weight of the entropy.
        entropy_backup: True to include the last term; RLPD leaves it out where rewards are sparse (section 4.3).
    Returns:
        [B], without gradients.
    """
    future = next_values.amin(0)
    if entropy_backup:
        future = future - temperature * next_log_probs
    return (rewards + discount * (1.0 - terminated.to(rewards.dtype)) * future).detach()


def return_range(low: float, high: float, discount: float) -> tuple[float, float]:
    """Smallest and largest discounted sum of one or more rewards between ``low`` and ``high``, with a discount below 1.

    The weights of the rewards add up to a number from 1, for a task that ends at once, to ``1 / (1 - discount)``.
    Andrychowicz et al. 2017, arXiv:1707.01495, appendix A, clips the targets of the critic to it.
    """
    weight = 1.0 / (1.0 - discount)
    return min(low, weight * low), max(high, weight * high)


def critic_loss(values: Tensor, targets: Tensor) -> Tensor:
    """[E, B] squared errors ``(Q_e - y)^2`` of [E, B] values and [B] targets."""
    return (values - targets).square()


def actor_loss(values: Tensor, log_probs: Tensor, temperature: Tensor | float) -> Tensor:
    """[B] ``temperature log pi(a | s) - mean_e Q_e(s, a)`` over the whole ensemble; arXiv:1812.05905, eq. 7."""
    return temperature * log_probs - values.mean(0)


def squared_size(actions: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """[B] mean over an action's numbers of its squared distance from the middle of the bounds, in half ranges: 0 to 1.

    A number whose bounds are equal counts as 0. Andrychowicz et al. 2017, arXiv:1707.01495, appendix A.

    Args:
        actions: [B, A].
        low: [A] lower bounds.
        high: [A] upper bounds.
    """
    half_range = 0.5 * (high - low)
    scale = half_range.where(half_range > 0.0, 1.0)
    return ((actions - 0.5 * (high + low)) / scale).square().mean(-1)


def temperature_loss(log_temperature: Tensor, log_probs: Tensor, target_entropy: float) -> Tensor:
    """[B] ``-log_temperature (log pi(a | s) + target_entropy)``: raises the temperature while the entropy is too low.

    Uses the logarithm, as the authors' code does, instead of the temperature itself (arXiv:1812.05905, eq. 18).
    """
    return -log_temperature * (log_probs + target_entropy).detach()


def temperature_gradient(log_probs: Tensor, target_entropy: float) -> Tensor:
    """[] derivative of the mean ``temperature_loss`` by the logarithm of the temperature, without gradients."""
    return -(log_probs.detach() + target_entropy).mean()


@torch.no_grad()
def follow(targets: Sequence[Tensor], sources: Sequence[Tensor], rate: float) -> None:
    """Moves target parameters towards their sources: ``target += rate (source - target)``."""
    torch._foreach_lerp_(list(targets), list(sources), rate)
