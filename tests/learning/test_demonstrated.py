"""Demonstrations as decisions: which chunk begins with which step, and how far a policy is from it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlpipe.demonstrations.dataset import Demonstrations
from rlpipe.functional.cloning import cloning_loss
from rlpipe.learning.demonstrated import Demonstrated, chunked_decisions
from rlpipe.learning.replay import ReplayBuffer, StoredRows
from rlpipe.trajectory import SpaceSpec, Tree
from rlpipe.trajectory.sequences import Sequences

CPU = torch.device("cpu")


@pytest.fixture
def demonstrations():
    """Trajectories of 3 and 2 steps, whose actions count from 1; the last step of each pays 1."""
    ends = np.array([False, False, True, False, True])
    numbers = np.arange(5, dtype=np.float32).reshape(-1, 1)
    return Demonstrations(
        observations=numbers, actions=numbers + 1, rewards=ends.astype(np.float32), terminated=ends,
        truncated=np.zeros(5, bool), next_observations=numbers + 0.5, trajectory=np.array([0, 0, 0, 1, 1]),
    )  # fmt: skip


def test_a_chunk_begins_with_each_step_and_ends_with_its_demonstration(demonstrations):
    decisions = chunked_decisions(demonstrations, 2, CPU)
    assert decisions.num_steps.tolist() == [2, 2, 1, 2, 1]
    assert decisions.actions[:, 0, 0].tolist() == [1, 2, 3, 4, 5]
    assert decisions.actions[[0, 1, 3], 1, 0].tolist() == [2, 3, 5]


def test_single_actions_are_what_was_demonstrated(demonstrations):
    decisions = chunked_decisions(demonstrations, 1, CPU)
    assert (decisions.num_steps, decisions.actions.tolist()) == (None, [[1], [2], [3], [4], [5]])


def in_pieces(size, observations):
    whole = Demonstrated(observations, torch.arange(7.0).unsqueeze(-1))
    return [piece.actions.flatten().tolist() for piece in whole.pieces(size)]


def test_observation_trees_are_split_and_vectors_are_not():
    tree = Tree({"a": torch.zeros(7, 2)})
    assert in_pieces(3, tree) == [[0, 1, 2], [3, 4, 5], [6]]
    assert in_pieces(3, tree["a"]) == [[0, 1, 2, 3, 4, 5, 6]]


def test_observation_trees_in_sequences_are_split_between_demonstrations():
    numbers, steps = torch.tensor([0, 0, 2, 2, 2, 2, 5]), torch.tensor([0, 1, 0, 1, 2, 3, 0])
    sequences = Sequences(Tree({"a": torch.zeros(7, 2)}), numbers, steps, torch.zeros(6, 4))
    assert in_pieces(2, sequences) == [[0, 1], [2, 3, 4, 5], [6]]
    assert in_pieces(3, sequences) == [[0, 1, 2, 3, 4, 5], [6]]
    assert in_pieces(100, sequences) == [[0, 1, 2, 3, 4, 5, 6]]


def test_the_distance_from_a_chunk_counts_only_what_was_demonstrated():
    demonstrated = torch.zeros(2, 2, 1)
    actions = torch.tensor([[[1.0], [3.0]], [[1.0], [3.0]]])
    steps = torch.tensor([2, 1])
    assert cloning_loss(actions, demonstrated, steps, kind="absolute").tolist() == [2, 1]
    assert cloning_loss(actions, demonstrated, steps).tolist() == [5, 1]
    assert cloning_loss(torch.tensor([[1.0, 3.0]]), torch.zeros(1, 2)).tolist() == [5]


def test_a_replay_buffer_holds_a_chunk_for_each_step_with_its_discounted_reward(demonstrations):
    buffer = ReplayBuffer(5, SpaceSpec(1, 1).chunked(2), CPU, 0.5)
    buffer.add_demonstrations(demonstrations, 2)
    held = buffer.transitions(StoredRows(buffer.state()["rows"]))
    assert held.actions.tolist() == [[1, 2], [2, 3], [3, 0], [4, 5], [5, 0]]
    assert held.rewards.tolist() == [0, 0.5, 1, 0.5, 1]
    assert held.next_observations[:, 0].tolist() == [1.5, 2.5, 2.5, 4.5, 4.5]
    assert held.terminated.tolist() == [0, 1, 1, 1, 1]
    assert held.discounts.tolist() == [0.25, 0.25, 0.5, 0.25, 0.5]
