"""Chunks of actions: several environment steps of one decision, up to the end of the episode."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import rlpipe
from rlpipe.collection.collector import Collector
from rlpipe.collection.decisions import Chunks
from rlpipe.envs.scripted import Scripted, ScriptedConfig
from rlpipe.errors import ConfigError
from rlpipe.policies.mlp import MLPConfig, MLPPolicy
from tests.helpers.runs import lines, sac, scripted, without_timings

WON = {"length": 3, "end": "terminated", "success_at": [3], "reward": 8.0}
LOST = {"length": 6}


def collected(script, horizon, chunks):
    simulator = Scripted.make(ScriptedConfig("scripted", script=script), len(script), lambda _: 7)
    config = MLPConfig("mlp", hidden_sizes=[4], chunk_size=chunks.size)
    policy = MLPPolicy(config, simulator.spec.chunked(chunks.size))
    batch, window = Collector(simulator, policy, horizon, 0, 0, [1]).collect(0, chunks=chunks)
    return batch, window, policy


class TestAFragmentOfChunks:
    def test_a_chunk_stops_with_its_episode_and_the_next_decision_begins_another(self):
        batch, window, _ = collected([[WON], [LOST]], 4, Chunks(2, 2))
        assert batch.num_steps.tolist() == [[2, 2], [1, 2], [2, 2], [1, 2]]
        assert batch.terminated.tolist() == [[False, False], [True, False], [False, False], [True, False]]
        assert batch.truncated[:, 1].tolist() == [False, False, True, False]
        assert [episode.length for episode in window.episodes] == [3, 6, 3]

    def test_each_decision_sees_what_the_last_step_of_the_one_before_left(self):
        batch, _, _ = collected([[WON]], 3, Chunks(2, 2))
        assert batch.observations[:, 0, 1:3].tolist() == [[0, 0], [0, 2], [1, 0], [1, 2]]  # episode, step
        assert batch.final_observations[0, 1:3].tolist() == [0, 3]

    def test_rewards_within_a_chunk_are_discounted_and_those_of_the_episode_are_not(self):
        batch, window, _ = collected([[WON]], 1, Chunks(4, 4, discount=0.5))
        assert batch.rewards.tolist() == [[2.0]]  # 0 + 0/2 + 8/4
        assert window.episodes[0].episode_return == 8.0

    def test_only_actions_that_were_taken_count_in_the_log_probability(self):
        batch, window, policy = collected([[WON]], 2, Chunks(2, 2))
        decided = (torch.from_numpy(batch.observations[:-1].reshape(2, -1)), torch.from_numpy(batch.actions[:, 0]))
        found, entropy = policy.evaluate_actions(*decided, torch.tensor([2, 1]))
        assert np.allclose(found.detach(), batch.log_probs[:, 0], atol=1e-6)
        assert entropy[0] == 2 * entropy[1]
        assert window.episodes[0].log_prob == pytest.approx(batch.log_probs.sum(), abs=1e-5)

    def test_a_policy_may_decide_anew_before_its_chunk_is_over(self):
        batch, _, _ = collected([[LOST]], 3, Chunks(4, 2))
        assert batch.actions.shape == (3, 1, 4)
        assert batch.num_steps.tolist() == [[2], [2], [2]]

    def test_the_reward_of_each_step_is_kept_where_the_algorithm_asks_for_it(self):
        batch, _, _ = collected([[WON], [LOST]], 2, Chunks(2, 2, discount=0.5, keep_rewards=True))
        assert batch.step_rewards.tolist() == [[[0, 0], [0, 0]], [[8, 0], [0, 0]]]
        assert collected([[WON], [LOST]], 2, Chunks(2, 2))[0].step_rewards is None


LEDGER = ("length", "return", "success_once", "success_at_end", "first_success", "terminated", "truncated", "seed")


@pytest.mark.parametrize("size", [2, 5])
def test_the_ledger_of_a_chunked_run_has_the_same_episodes(size, tmp_path):
    env = {"train": {"name": "scripted", "total_num_envs": 2, "script": [[WON, LOST]]}}
    one = rlpipe.train(scripted(tmp_path / "one", env=env), local=True).directory
    many = rlpipe.train(scripted(tmp_path / "many", f"policy.chunk_size={size}", env=env), local=True).directory
    for file in ("episodes.jsonl", "eval_episodes.jsonl"):
        first, second = ([[row[key] for key in LEDGER] for row in lines(run, file)] for run in (one, many))
        assert sorted(map(str, second[: len(first)])) == sorted(map(str, first[: len(second)]))


def test_lengths_and_steps_count_environment_steps_and_decisions_have_metrics_of_their_own(tmp_path):
    env = {"train": {"name": "scripted", "total_num_envs": 2, "script": [[WON]]}}
    run = rlpipe.train(scripted(tmp_path, "policy.chunk_size=2", "rollout.horizon=8", env=env), local=True).directory
    row = lines(run, "metrics.jsonl")[0]
    assert row["metrics"]["rollout/num_decisions"] == 16
    assert row["metrics"]["rollout/chunk_len_mean"] == 1.5
    assert (row["total_timesteps"], row["metrics"]["env/episode_len"]) == (24, 3.0)


@pytest.mark.parametrize("make", [scripted, pytest.param(sac, marks=pytest.mark.soak)])
def test_a_task_is_learnt_in_chunks(make, tmp_path):
    options = ["policy.chunk_size=2", "runner.save_interval=1000", "algorithm.discount=0.5"]
    if make is sac:
        options += ["runner.total_timesteps=3840", "learner.lr=0.003", "algorithm.replay_capacity=8192"]
    else:
        options += ["runner.total_timesteps=3072", "learner.lr=0.01", "algorithm.update_epochs=8"]
    run = rlpipe.train(make(tmp_path, *options), local=True).directory
    returns = [row["env/return"] for row in without_timings(run)]
    assert returns[0] < 7  # of 10; chance is 5
    assert returns[-1] > 9


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["policy.execute=2"], "policy.execute is 2, but a decision has 1 actions"),
        (["policy.chunk_size=0"], "policy.chunk_size is 0; it must be at least 1"),
    ],
)
def test_a_chunk_that_cannot_be_is_an_error_that_names_the_key(overrides, words, tmp_path):
    with pytest.raises(ConfigError, match=words):
        scripted(tmp_path, *overrides)


@pytest.mark.parametrize(("limit", "steps"), [({"max_episode_steps": 8}, 8), ({}, 500)])
def test_a_chunk_longer_than_an_episode_is_refused(limit, steps, tmp_path):
    env = {"train": {"name": "gymnasium", "id": "CartPole-v1", **limit}}
    with pytest.raises(ConfigError, match=f"policy.chunk_size is {steps + 1}, but an episode ends after {steps} steps"):
        scripted(tmp_path, f"policy.chunk_size={steps + 1}", env=env)


def test_a_simulator_that_steps_all_its_environments_at_once_is_refused(tmp_path):
    train = {"name": "gymnasium", "id": "CartPole-v1", "vectorized": True, "total_num_envs": 4}
    with pytest.raises(ConfigError, match=r"policy.chunk_size is 2, but env.train .*Set env.train.vectorized=false"):
        scripted(tmp_path, "policy.chunk_size=2", env={"train": train, "eval": {"vectorized": False}})
