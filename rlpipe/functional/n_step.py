"""Returns over several steps, for values learnt from a replay buffer."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class NStep(NamedTuple):
    """Returns over k steps from each of [T, N] steps.

    Attributes:
        returns: [T, N] float32, discounted sum of the rewards of the k steps.
        discounts: [T, N] float32, discount^k.
        last: [T, N] int64, row of the last of the k steps; the value of its successor completes the return.
    """

    returns: NDArray[np.float32]
    discounts: NDArray[np.float32]
    last: NDArray[np.int64]


def n_step(
    rewards: NDArray[np.float32],
    ended: NDArray[np.bool_],
    valid: NDArray[np.bool_],
    *,
    discount: float | NDArray[np.floating[Any]],
    steps: int,
) -> NStep:
    """Returns over up to n steps, ``sum_{i<k} discount^i r_{t+i}``, and the weight ``discount^k`` of what follows.

    k is n, or less where the episode or the fragment ends earlier. Watkins 1989, ch. 7; with replay and without
    correction for the policy that acted: Hessel et al. 2018 (Rainbow), arXiv:1710.02298, "Multi-step learning".

    Args:
        rewards: [T, N].
        ended: [T, N] True where the episode ended with the step.
        valid: [T, N] False where no decision was made.
        discount: weight of a reward one decision later; [T, N] where decisions last for different numbers of steps.
        steps: n, at least 1.
    """
    length = len(rewards)
    returns, reach = rewards.astype(np.float64), np.zeros(rewards.shape, dtype=np.int64)
    alive = np.ones(rewards.shape, dtype=bool)
    each = np.broadcast_to(discount, rewards.shape)
    weights = each.astype(np.float64)  # of what follows the decisions so far
    for k in range(1, min(steps, length)):
        alive[length - k :] = False
        alive[: length - k] &= ~ended[k - 1 : -1] & valid[k:]
        weight = discount**k if np.ndim(discount) == 0 else weights[: length - k]  # a product would round otherwise
        returns[: length - k] += np.where(alive[: length - k], weight * rewards[k:], 0.0)
        weights[: length - k] *= np.where(alive[: length - k], each[k:], 1.0)
        reach += alive
    if np.ndim(discount) == 0:
        weights = np.asarray(discount ** (reach + 1.0), dtype=np.float64)
    return NStep(returns.astype(np.float32), weights.astype(np.float32), np.arange(length)[:, None] + reach)
