"""Replay of observation trees: each frame once, in its own dtype, and whole transitions only."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlpipe.errors import ConfigError
from rlpipe.learning.replay import ReplayBuffer
from rlpipe.trajectory import LeafSpec, SpaceSpec, Tree
from rlpipe.trajectory.batch import TrajectoryBatch

SPEC = SpaceSpec.of_tree({"image": LeafSpec((1, 1, 1), "uint8")}, 1)
CPU = torch.device("cpu")


def fragment(first, steps, ends=()):
    """One environment that counts: image and reward t; a true successor of 99 after each step in ``ends``."""
    numbers = np.arange(first, first + steps + 1)
    return TrajectoryBatch(
        observations=Tree({"image": numbers.astype(np.uint8).reshape(-1, 1, 1, 1, 1)}),
        actions=np.zeros((steps, 1, 1), np.float32), log_probs=np.zeros((steps, 1), np.float32),
        rewards=numbers[:-1].astype(np.float32).reshape(-1, 1),
        terminated=np.array([[t in ends] for t in range(steps)]), truncated=np.zeros((steps, 1), bool),
        valid=np.ones((steps, 1), bool),
        final_observations=Tree({"image": np.full((len(ends), 1, 1, 1), 99, np.uint8)}),
        final_index=np.array(sorted(ends), dtype=np.int64), policy_version=3,
    )  # fmt: skip


def drawn(buffer, count=400):
    """Distinct transitions of a large draw: (image before, image after, reward)."""
    batch = buffer.transitions(buffer.read(buffer.draw(count, torch.Generator().manual_seed(0))[0]))
    before, after = (tree["image"].flatten().tolist() for tree in (batch.observations, batch.next_observations))
    return sorted(set(zip(before, after, batch.rewards.int().tolist(), strict=True)))


def test_transitions_find_their_frames_and_the_true_successor_of_an_end():
    buffer = ReplayBuffer(10, SPEC, CPU, 0.5)
    buffer.add(fragment(0, 3, ends=[1]))
    assert drawn(buffer) == [(0, 1, 0), (1, 99, 1), (2, 3, 2)]
    assert buffer.read(buffer.draw(1, torch.Generator())[0]).observations[0]["image"].dtype == torch.uint8


def test_each_frame_is_stored_once():
    buffer = ReplayBuffer(10, SPEC, CPU, 0.5)
    buffer.add(fragment(0, 3, ends=[1]))
    assert buffer.state()["frames/image"].flatten().tolist() == [0, 1, 2, 3, 99]


def test_over_several_steps_the_frame_after_is_that_of_the_last_one():
    buffer = ReplayBuffer(20, SPEC, CPU, 1.0, 2)
    buffer.add(fragment(0, 4, ends=[3]))
    assert drawn(buffer) == [(0, 2, 1), (1, 3, 3), (2, 99, 5), (3, 99, 3)]


def test_a_full_buffer_drops_the_oldest_fragment_with_all_its_transitions():
    buffer = ReplayBuffer(8, SPEC, CPU, 0.5)
    for first in (0, 3, 6):
        buffer.add(fragment(first, 3))
    assert (len(buffer), buffer.added) == (6, 9)
    assert drawn(buffer) == [(n, n + 1, n) for n in range(3, 9)]


def test_a_fragment_that_does_not_fit_names_the_key():
    with pytest.raises(ConfigError, match=r"algorithm.replay_capacity is 3, but one collection has 4 observations"):
        ReplayBuffer(3, SPEC, CPU, 0.5).add(fragment(0, 3))


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(6, 20), st.integers(6, 20))
def test_a_restored_buffer_goes_on_like_the_one_before_also_with_another_capacity(lengths, capacity, other):
    buffer = ReplayBuffer(capacity, SPEC, CPU, 0.5)
    begin = 0
    for steps in lengths:
        buffer.add(fragment(begin, steps))
        begin += steps
    restored = ReplayBuffer(other, SPEC, CPU, 0.5)
    restored.load_state(buffer.state())
    assert restored.added == begin
    assert set(drawn(restored)) <= set(drawn(buffer))
    if other >= capacity:
        assert drawn(restored) == drawn(buffer)
    restored.add(fragment(begin, 5))
    assert drawn(restored)[-5:] == [(n, n + 1, n) for n in range(begin, begin + 5)]
