"""Whole runs on observation trees and on actions of several parts."""

from __future__ import annotations

import pytest

import rlpipe
from rlpipe.config.loading import load_config
from rlpipe.errors import ConfigError
from tests.helpers.runs import lines, sac, scripted

TASK = {"name": "gymnasium", "success_key": "is_success", "total_num_envs": 4}


def task(name):
    return {"train": {**TASK, "id": f"tests.helpers.gym_trees:{name}-v0"}}


def trained(folder, name, *overrides, make=scripted, **tree):
    return rlpipe.train(make(folder, *overrides, env=task(name), **tree), local=True).directory


def returns(run):
    return [row["metrics"]["env/return"] for row in lines(run, "metrics.jsonl")]


def test_what_only_a_critic_sees_is_left_out_of_the_acting_weights(tmp_path):
    options = ("policy.actor_observations=[camera/rgb,sign]", "policy.critic_observations=[noise]")
    run = trained(tmp_path, "Signs", *options, "runner.total_timesteps=64")
    assert returns(run)


@pytest.mark.soak
def test_a_picture_and_a_choice_together_are_learnt(tmp_path):
    run = trained(
        tmp_path, "Signs", "runner.total_timesteps=3072", "rollout.horizon=64", "algorithm.update_epochs=8",
        "learner.lr=0.004", "policy.hidden_sizes=[64]", "algorithm.discount=0.0",
        "policy.encoders={camera/rgb: {channels: 4}}",
    )  # fmt: skip
    assert returns(run)[-1] > 7.2  # of 8; chance is 4


@pytest.mark.parametrize("make", [scripted, sac])
def test_a_goal_dictionary_is_learnt_by_both_kinds_of_algorithm(make, tmp_path):
    options = ["runner.total_timesteps=768", "algorithm.discount=0.8", "learner.lr=0.006"]
    options += ["algorithm.replay_capacity=8192"] if make is sac else ["algorithm.update_epochs=8"]
    run = trained(tmp_path, "Reach", *options, make=make)
    found = returns(run)
    assert sum(found[-5:]) > sum(found[:5]) * 0.6  # distances are paid for with negative reward


def test_a_replay_buffer_of_trees_continues_after_a_resume(tmp_path):
    run = trained(tmp_path, "Reach", "runner.save_interval=2", make=sac)
    (run / "checkpoints" / "iteration-000004.npz").unlink()
    rlpipe.train(load_config(run / "config.yaml"), resume=run, local=True)
    rows = lines(run, "metrics.jsonl")
    assert [row["metrics"]["train/replay_buffer/total_samples"] for row in rows] == [64, 128, 192, 256]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["policy.actor_observations=[camra]"], "policy.actor_observations names the observation 'camra'"),
        (["policy.encoders={noise: {name: drq_cnn}}"], "policy.encoders.noise is drq_cnn, which needs a uint8 image"),
        (["policy.encoders={noise: {name: cnn}}"], "policy.encoders.noise.name is 'cnn'"),
    ],
)
def test_a_combination_that_cannot_be_is_an_error_before_anything_starts(overrides, words, tmp_path):
    with pytest.raises(ConfigError, match=words):
        trained(tmp_path, "Signs", *overrides)
    assert not any(tmp_path.rglob("run.json"))
