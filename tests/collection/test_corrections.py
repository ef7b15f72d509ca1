"""An expert labels what a policy visits, and takes some of its steps."""

from __future__ import annotations

import numpy as np
import pytest

from rlpipe.collection.actions import ActionSource, RunningEpisode
from rlpipe.collection.corrections import Corrected, CorrectedActions
from rlpipe.trajectory import SpaceSpec

SPEC = SpaceSpec(1, 1, None, -np.ones(1, np.float32), np.ones(1, np.float32))


class Counting(ActionSource):
    """Acts by the number of its decisions in the episode, as a policy with a memory would."""

    def __init__(self, factor, chunk=1):
        self.factor, self.chunk, self.memories = factor, chunk, []

    def actions(self, observations, episodes):
        self.memories = [episode.memory for episode in episodes]
        for episode in episodes:
            episode.memory = self.factor
        rows = [[self.factor * episode.decisions] * self.chunk for episode in episodes]
        return np.array(rows, np.float32)


def run(beta, *, steps=400, slots=2, policy=None, expert=None):
    """Runs an episode in each slot: the actions [T, N, A] and labels, T x N."""
    source = CorrectedActions(
        policy or Counting(0.001), expert or Counting(-0.001), Corrected(None, None, beta, 7, SPEC)
    )
    episodes = [RunningEpisode(n, 50 + n, np.random.default_rng(n), slot=n) for n in range(slots)]
    actions, labels = [], []
    for _ in range(steps):
        actions.append(source.actions(np.zeros((slots, 1), np.float32), episodes))
        labels.append([source.labels[n] for n in range(slots)])
        for episode in episodes:
            episode.decisions += 1
    return np.array(actions), labels


@pytest.mark.parametrize("beta", [0.0, 0.25, 1.0])
def test_each_step_is_the_experts_with_probability_beta_and_has_its_label_in_any_case(beta):
    actions, labels = run(beta)
    steps = np.arange(400)
    for n in range(2):
        intervened = np.array([row[n].intervened for row in labels])
        np.testing.assert_allclose([row[n].action[0] for row in labels], -0.001 * steps, rtol=1e-6)
        np.testing.assert_allclose(actions[:, n, 0], np.where(intervened, -0.001, 0.001) * steps, rtol=1e-6)
        assert abs(intervened.mean() - beta) < 0.1


def test_who_acts_follows_from_the_seed_of_the_episode_and_not_from_what_runs_beside_it():
    together, alone = run(0.5)[1], run(0.5, slots=1)[1]
    first, second = ([row[n].intervened for row in together] for n in (0, 1))
    assert [row[0].intervened for row in alone] == first != second


def test_the_expert_remembers_for_itself():
    policy, expert = Counting(1.0), Counting(2.0)
    run(0.5, steps=3, policy=policy, expert=expert)
    assert (policy.memories, expert.memories) == ([1.0, 1.0], [2.0, 2.0])


def test_of_an_expert_that_plans_a_chunk_the_first_action_counts_within_the_bounds():
    _, labels = run(0.0, steps=3, slots=1, expert=Counting(-4.0, chunk=5))
    assert [row[0].action.tolist() for row in labels] == [[0.0], [-1.0], [-1.0]]


def test_an_episode_that_begins_again_in_its_slot_is_drawn_anew():
    source = CorrectedActions(Counting(0.0), Counting(1.0), Corrected(None, None, 0.5, 7, SPEC))

    def flags(seed):
        episode = RunningEpisode(0, seed, np.random.default_rng(0))
        drawn = []
        for _ in range(20):
            source.actions(np.zeros((1, 1), np.float32), [episode])
            drawn.append(source.labels[0].intervened)
            episode.decisions += 1
        return drawn

    assert flags(3) == flags(3) != flags(4)
