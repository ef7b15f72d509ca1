"""Fragments of random numbers: what a learner relies on holds in them as in collected ones."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from rlpipe.learning.base import learner_class
from rlpipe.trajectory import LeafSpec, SpaceSpec
from rlpipe.trajectory.synthetic import synthetic_actions, synthetic_batch, synthetic_observations
from rlpipe.trajectory.tree import leaves_of
from tests.helpers.runs import gru, sac, scripted

LOW, HIGH = np.array([-1.0, 0.0], dtype=np.float32), np.array([1.0, 4.0], dtype=np.float32)
VECTOR = SpaceSpec(3, 2, None, LOW, HIGH)
LEAVES = {"camera": LeafSpec((20, 20, 3), "uint8"), "state": LeafSpec((4,)), "word": LeafSpec((2,), "int64", (3, 5))}
PICTURES = SpaceSpec.of_tree(LEAVES, 2, None, LOW, HIGH)
PARTS = SpaceSpec(3, 2, (3, 5))


def test_equal_seeds_give_equal_fragments_and_others_do_not():
    first, second, third = (synthetic_batch(VECTOR, 4, 2, seed=seed).observations for seed in (1, 1, 2))
    assert (first == second).all()
    assert (first != third).any()


def test_observations_have_the_types_of_the_leaves_and_choices_stay_among_those_that_there_are():
    observations = synthetic_observations(PICTURES, np.random.default_rng(0), 50)
    assert {name: leaf.dtype.name for name, leaf in observations.leaves.items()} == {
        "camera": "uint8", "state": "float32", "word": "int64",
    }  # fmt: skip
    assert observations["camera"].max() == 255
    assert observations["word"].max(0).tolist() == [2, 4]


def test_actions_lie_within_their_bounds_and_have_the_density_they_were_drawn_with():
    actions, log_probs = synthetic_actions(VECTOR, np.random.default_rng(0), 100)
    assert (actions >= LOW).all()
    assert (actions <= HIGH).all()
    assert log_probs[0] == pytest.approx(-math.log(2 * 4))  # ranges of 2 and of 4


def test_actions_without_bounds_are_normal():
    unbounded = SpaceSpec(3, 1, None, np.array([-np.inf], np.float32), np.array([np.inf], np.float32))
    actions, log_probs = synthetic_actions(unbounded, np.random.default_rng(0), 1)
    assert log_probs[0] == pytest.approx(torch.distributions.Normal(0, 1).log_prob(torch.tensor(actions[0, 0])))


def test_discrete_actions_are_drawn_among_all_of_each_part():
    actions, log_probs = synthetic_actions(PARTS, np.random.default_rng(0), 100)
    assert actions.max(0).tolist() == [2, 4]
    assert log_probs[0] == pytest.approx(-math.log(3 * 5))


def test_in_groups_every_environment_runs_one_whole_episode_from_the_state_of_its_group():
    batch = synthetic_batch(PICTURES, 8, 4, group_size=2)
    assert (batch.terminated.sum(0) == 1).all()
    assert (batch.valid.sum(0) == batch.terminated.argmax(0) + 1).all()
    for leaf in leaves_of(batch.observations[0]):
        assert (leaf[0] == leaf[1]).all()
        assert (leaf[1] != leaf[2]).any()


def test_a_chunk_is_cut_short_only_where_its_episode_ends():
    batch = synthetic_batch(VECTOR, 100, 4, chunk_size=3, keep_rewards=True)
    assert (batch.num_steps[~batch.terminated] == 3).all()
    assert batch.num_steps[batch.terminated].min() == 1
    assert (batch.step_rewards[..., 2][batch.num_steps < 3] == 0).all()
    assert batch.actions.shape == (100, 4, 6)


@pytest.mark.parametrize("spec", [VECTOR, PICTURES, PARTS], ids=["vector", "pictures", "discrete parts"])
@pytest.mark.parametrize("algorithm", ["ppo", "grpo", "gru", "chunks", "tokens", "sac"])
def test_every_learner_takes_them(tmp_path, spec, algorithm):
    if algorithm in ("tokens", "sac") and spec.num_actions is not None:
        pytest.skip("needs continuous actions")
    grpo = {"name": "grpo", "group_size": 2, "update_epochs": 1, "num_minibatches": 2}
    by_action = ("algorithm.reward_level=action", "algorithm.logprob_level=action", "policy.chunk_size=3")
    tokens = {"name": "tokens", "hidden_sizes": [8], "bins": 4, "chunk_size": 3}
    config = {
        "ppo": lambda: scripted(tmp_path),
        "grpo": lambda: scripted(tmp_path, algorithm=grpo),
        "gru": lambda: gru(tmp_path),
        "chunks": lambda: scripted(tmp_path, *by_action),
        "tokens": lambda: scripted(tmp_path, policy=tokens),
        "sac": lambda: sac(tmp_path, "algorithm.update_to_data=0.0625"),
    }[algorithm]()
    batch = synthetic_batch(
        spec, 16, 4,
        chunk_size=config.policy.chunk_size, memory_width=config.policy.memory_width,
        group_size=config.algorithm.group_size, keep_rewards=config.algorithm.reward_level == "action",
    )  # fmt: skip
    learner = learner_class(config)(config.schedule, spec)
    for iteration in (1, 2):
        snapshot, _ = learner.update(0, iteration, batch)
    assert all(np.isfinite(array).all() for array in snapshot.weights.values())
    assert learner.snapshot().version == 2
