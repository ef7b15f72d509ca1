"""Advantages of the actions of a chunk: over environment steps, within decisions and from one to the next."""

from __future__ import annotations

import torch

from rlpipe.functional.advantages import gae, gae_of_actions

HALVES = {"discount": 0.5, "gae_lambda": 0.5}


def estimated(rewards, values, next_values, taken, terminated=(0, 0), truncated=(0, 0)):
    """[T, k] advantages of one environment."""

    def column(numbers, kind=torch.float32):
        return torch.tensor(numbers, dtype=kind).unsqueeze(1)

    ends = (column(terminated, torch.bool), column(truncated, torch.bool))
    found = gae_of_actions(
        column(rewards), column(values), column(next_values), *ends, column(taken, torch.bool), **HALVES
    )
    return found.squeeze(1).tolist()


def test_by_hand_with_a_task_that_ends_within_the_second_of_two_chunks():
    # A(1, 0) = 4 - 3 = 1; A(0, 1) = 2 + 3/2 - 2 + 1/4 = 1.75; A(0, 0) = 1 + 2/2 - 1 + 1.75/4 = 1.4375
    found = estimated([[1, 2], [4, 0]], [[1, 2], [3, 9]], [3, 100], [[1, 1], [1, 0]], terminated=(0, 1))
    assert found == [[1.4375, 1.75], [1, 0]]


def test_a_time_limit_keeps_the_value_of_what_follows_and_stops_the_sum():
    # A(0, 1) = 2 + 8/2 - 2 = 4, whatever the next episode brings
    found = estimated([[1, 2], [9, 9]], [[1, 2], [0, 0]], [8, 0], [[1, 1], [1, 1]], truncated=(1, 0))
    assert found[0] == [1 + 2 / 2 - 1 + 4 / 4, 4]


def test_after_the_last_action_taken_follows_the_first_of_the_next_decision():
    # one action of two is taken: A(1, 0) = 1 + 8/2 - 2 = 3; A(0, 0) = 1 + 2/2 - 1 + 3/4
    found = estimated([[1, 0], [1, 0]], [[1, 50], [2, 60]], [2, 8], [[1, 0], [1, 0]])
    assert found == [[1.75, 0], [3, 0]]


def random_fragment(steps=7, envs=3):
    torch.manual_seed(0)
    values = torch.randn(steps + 1, envs)
    terminated, truncated = torch.rand(steps, envs) < 0.2, torch.rand(steps, envs) < 0.2
    return torch.randn(steps, envs), values[:-1], values[1:], terminated, truncated


def test_with_one_action_in_a_decision_it_is_what_gae_gives():
    rewards, values, next_values, *ends = random_fragment()
    options = {"discount": 0.9, "gae_lambda": 0.8}
    taken = torch.ones_like(rewards, dtype=torch.bool).unsqueeze(-1)
    found = gae_of_actions(rewards.unsqueeze(-1), values.unsqueeze(-1), next_values, *ends, taken, **options)
    assert torch.equal(found.squeeze(-1), gae(rewards, values, next_values, *ends, **options))


def test_whole_chunks_give_what_gae_gives_over_the_same_environment_steps():
    torch.manual_seed(0)
    rewards, values = torch.randn(4, 3, 2), torch.randn(5, 3, 2)
    terminated, truncated = torch.rand(4, 3) < 0.3, torch.rand(4, 3) < 0.3
    options = {"discount": 0.9, "gae_lambda": 0.8}
    taken = torch.ones_like(rewards, dtype=torch.bool)
    found = gae_of_actions(rewards, values[:-1], values[1:, :, 0], terminated, truncated, taken, **options)

    def single(of_actions):  # [T, N, k] -> [T * k, N]
        return of_actions.transpose(1, 2).flatten(0, 1)

    within = torch.zeros_like(terminated)
    ends = [single(torch.stack([within, end], -1)) for end in (terminated, truncated)]
    flat = single(values)
    expected = gae(single(rewards), flat[:-2], flat[1:-1], *ends, **options)
    assert torch.allclose(single(found), expected, atol=1e-6)
