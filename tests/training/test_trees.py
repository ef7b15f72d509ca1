"""Whole runs on observation trees and on actions of several parts."""

from __future__ import annotations

import pytest

import rlpipe
from rlpipe.errors import ConfigError
from tests.helpers.runs import lines, scripted

TASK = {"name": "gymnasium", "success_key": "is_success", "total_num_envs": 4}


def task(name):
    return {"train": {**TASK, "id": f"tests.helpers.gym_trees:{name}-v0"}}


def trained(folder, name, *overrides, **tree):
    return rlpipe.train(scripted(folder, *overrides, env=task(name), **tree), local=True).directory


def returns(run):
    return [row["metrics"]["env/return"] for row in lines(run, "metrics.jsonl")]


def test_what_only_a_critic_sees_is_left_out_of_the_acting_weights(tmp_path):
    options = ("policy.actor_observations=[camera/rgb,sign]", "policy.critic_observations=[noise]")
    run = trained(tmp_path, "Signs", *options, "runner.total_timesteps=64")
    assert returns(run)


def test_a_goal_dictionary_is_learnt(tmp_path):
    options = ["runner.total_timesteps=768", "algorithm.discount=0.8", "learner.lr=0.006", "algorithm.update_epochs=8"]
    found = returns(trained(tmp_path, "Reach", *options))
    assert sum(found[-5:]) > sum(found[:5]) * 0.6  # distances are paid for with negative reward


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
