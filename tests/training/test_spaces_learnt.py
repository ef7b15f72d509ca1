"""Environments of Gymnasium as they come, and small ones of every space, which are solved."""

from __future__ import annotations

import pytest
from gymnasium.utils.env_checker import check_env

import rlpipe
from tests.helpers import gym_identity, gym_trees
from tests.helpers.gym_identity import SPACES
from tests.helpers.gym_trees import STEPS
from tests.helpers.runs import lines, sac, scripted

SHIPPED = ("Pendulum-v1", "FrozenLake-v1", "CliffWalking-v1", "Blackjack-v1")
"""Environments that Gymnasium makes without further packages, of each kind of observations and of actions."""


def train(folder, env_id, *overrides, make=scripted, kwargs=None, **tree):
    """Directory of a finished run on one core."""
    task = {"name": "gymnasium", "id": env_id, "total_num_envs": 8, "kwargs": kwargs or {}}
    return rlpipe.train(make(folder, *overrides, env={"train": task}, **tree), local=True).directory


def last_return(run):
    return lines(run, "metrics.jsonl")[-1]["metrics"]["eval/return"]


QUICK = ("rollout.horizon=64", "algorithm.update_epochs=8", "learner.lr=0.01", "policy.hidden_sizes=[32]")


@pytest.mark.parametrize("env_id", SHIPPED)
def test_what_gymnasium_ships_trains_and_is_evaluated(env_id, tmp_path):
    limit = "env.train.max_episode_steps=100"  # CliffWalking has none
    run = train(tmp_path, env_id, limit, "runner.total_timesteps=128", "evaluation.episodes=2")
    assert [row["iteration"] for row in lines(run, "metrics.jsonl")] == [1]
    report = rlpipe.evaluate(run, episodes=3, local=True)
    assert report.metrics["eval/num_trajectories"] == 3
    assert report.metrics["eval/episode_len"] <= 100


@pytest.mark.parametrize(("limit", "notes"), [("null", 1), ("50", 0)])
def test_a_task_without_a_time_limit_is_noted_when_a_run_starts(limit, notes, tmp_path):
    run = train(tmp_path, "Blackjack-v1", f"env.train.max_episode_steps={limit}", "runner.total_timesteps=128")
    found = [event["message"] for event in lines(run, "events.jsonl") if event["kind"] == "note"]
    assert sum("Blackjack-v1 registers no time limit" in message for message in found) == notes


@pytest.mark.parametrize("task", [gym_trees.Signs, gym_trees.Reach, gym_identity.Maze, gym_identity.Shade])
def test_the_environments_of_these_tests_are_as_gymnasium_wants_them(task):
    check_env(task(), skip_render_check=True)


@pytest.mark.soak
@pytest.mark.parametrize("kind", SPACES)
def test_an_action_of_every_space_is_learnt(kind, tmp_path):
    options = ["runner.total_timesteps=1536", "algorithm.discount=0.0", *QUICK]
    if kind == "box":
        options += ["runner.total_timesteps=2048", "rollout.horizon=32", "learner.lr=0.02"]
    assert last_return(train(tmp_path, "tests.helpers.gym_identity:Identity-v0", *options, kwargs={"kind": kind})) > 7.5


@pytest.mark.soak
def test_soft_actor_critic_learns_a_box(tmp_path):
    options = ["runner.total_timesteps=1024", "algorithm.discount=0.0", "learner.lr=0.006", "rollout.horizon=32"]
    options += ["algorithm.replay_capacity=8192", "policy.hidden_sizes=[32]", "algorithm.critic_hidden_sizes=[32]"]
    run = train(tmp_path, "tests.helpers.gym_identity:Identity-v0", *options, make=sac, kwargs={"kind": "box"})
    assert last_return(run) > 7.5  # of STEPS


@pytest.mark.soak
def test_a_picture_alone_is_learnt(tmp_path):
    options = ["runner.total_timesteps=1024", "algorithm.discount=0.0", "policy.encoders={observation: {channels: 4}}"]
    assert last_return(train(tmp_path, "tests.helpers.gym_identity:Shade-v0", *options, *QUICK)) == STEPS


def test_a_picture_and_a_vector_show_the_way(tmp_path):
    options = [
        "runner.total_timesteps=1536",
        "policy.encoders={image: {channels: 4}}",
        "env.train.success_key=is_success",
    ]
    assert last_return(train(tmp_path, "tests.helpers.gym_identity:Maze-v0", *options, *QUICK)) == pytest.approx(0.7)


def test_a_text_can_be_left_out(tmp_path):
    options = ["runner.total_timesteps=1536", "algorithm.discount=0.0", "env.train.ignore_observations=[mission]"]
    assert last_return(train(tmp_path, "tests.helpers.gym_trees:Words-v0", *options, *QUICK)) == STEPS
