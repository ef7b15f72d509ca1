"""Advantage estimators. Time is the first axis; shapes are those of ``rlpipe.trajectory``."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor
from torch.nn.functional import pad

from rlpipe.functional.aggregation import Total, alone


def gae(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    *,
    discount: float | Tensor,
    gae_lambda: float,
) -> Tensor:
    """Generalised advantage estimates, ``A_t = d_t + discount * gae_lambda * A_{t+1}`` with
    ``d_t = r_t + discount * V(s_{t+1}) - V(s_t)``.  Schulman et al. 2016, arXiv:1506.02438, section 3.

    Termination removes V(s_{t+1}): the task has no future. A time limit keeps it: the future exists, but was not
    observed (Pardo et al. 2018, arXiv:1712.00378). Both stop the sum, because step t+1 belongs to another episode.
    Where both hold, termination wins.

    Args:
        rewards: [T, N] reward.
        values: [T, N] V(s_t).
        next_values: [T, N] V(s_{t+1}) of the true successor, before any reset.
        terminated: [T, N] bool, the task ended.
        truncated: [T, N] bool, a time limit cut the episode off.
        discount: weight of a reward one decision later; [T, N] where decisions last for different numbers of steps.
        gae_lambda: between one-step (0) and whole-return (1) advantages.
    Returns:
        [T, N], in the unit of the reward, not normalised.
    """
    deltas = rewards + discount * next_values * ~terminated - values
    carry = discount * gae_lambda * (~(terminated | truncated)).to(rewards.dtype)
    advantages = torch.zeros_like(rewards)
    advantage = torch.zeros_like(rewards[0])
    for t in reversed(range(len(rewards))):
        advantage = deltas[t] + carry[t] * advantage
        advantages[t] = advantage
    return advantages


def gae_of_actions(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    were_taken: Tensor,
    *,
    discount: float,
    gae_lambda: float,
) -> Tensor:
    """As ``gae``, but over environment steps: each of the k actions of a decision has a reward and a value.

    The value of an action is that of being about to take it, seen from where the decision was made. The last action
    taken is followed by the first one of the next decision.

    Args:
        rewards: [T, N, k] reward of each action.
        values: [T, N, k] V of each action.
        next_values: [T, N] V of the first action of the next decision, at the true successor, before any reset.
        terminated: [T, N] bool, the task ended with the last action taken.
        truncated: [T, N] bool, a time limit cut the episode off there.
        were_taken: [T, N, k] bool, the leading actions of each decision that were taken.
        discount: weight of a reward one environment step later.
        gae_lambda: between one-step (0) and whole-return (1) advantages.
    Returns:
        [T, N, k]; 0 for actions that were not taken.
    """
    last = were_taken & ~pad(were_taken[..., 1:], (0, 1))
    following = pad(values[..., 1:], (0, 1))
    following = torch.where(last, (next_values * ~terminated).unsqueeze(-1), following)
    deltas = rewards + discount * following - values
    carry = discount * gae_lambda * (~(last & (terminated | truncated).unsqueeze(-1))).to(rewards.dtype)
    advantages = torch.zeros_like(rewards)
    advantage = torch.zeros_like(next_values[0])
    for t, j in itertools.product(reversed(range(rewards.shape[0])), reversed(range(rewards.shape[2]))):
        advantage = torch.where(were_taken[t, :, j], deltas[t, :, j] + carry[t, :, j] * advantage, advantage)
        advantages[t, :, j] = advantage
    return advantages * were_taken


def normalize(advantages: Tensor, valid: Tensor | None, *, eps: float = 1e-8, total: Total = alone) -> Tensor:
    """Advantages with mean 0 and standard deviation 1 over the valid decisions, ``(A - mean) / (std + eps)``, where the
    standard deviation divides by n - 1.

    The statistics are those of the whole batch. Those of a minibatch or of one learner's share would make the update
    depend on how the batch is divided. Fewer than two valid decisions are returned unchanged.

    Args:
        advantages: any shape.
        valid: bool of the same shape, or int64 numbers of positions in the flattened shape, for which the host need
            not wait for the device; None for all. Other positions do not influence the result.
        eps: added to the standard deviation.
        total: sums over all learners.
    """
    exact = advantages.double()  # in float32, the mean of equal numbers need not be that number
    included = (
        exact.flatten() if valid is None else exact[valid] if valid.dtype == torch.bool else exact.flatten()[valid]
    )
    count, first = total(torch.stack([exact.new_full((), len(included)), included.sum()]))
    mean = first / count
    deviation = (total((included - mean).square().sum()) / (count - 1.0)).sqrt()
    return torch.where(count < 2, exact, (exact - mean) / (deviation + eps)).to(advantages.dtype)
