"""Whole runs with hindsight, on a task whose goals a random walk seldom achieves."""

from __future__ import annotations

import pytest

import rlpipe
from rlpipe.errors import ConfigError
from tests.helpers.commands import command
from tests.helpers.runs import gru, lines, sac, scripted, to_yaml

PLACE = {"name": "gymnasium", "id": "tests.helpers.gym_trees:Place-v0", "success_key": "is_success"}
LEARNING = (
    "runner.total_timesteps=1280", "algorithm.replay_capacity=4000", "algorithm.discount=0.8", "learner.lr=0.003",
    "algorithm.batch_size=64", "policy.hidden_sizes=[32,32]", "algorithm.critic_hidden_sizes=[32,32]",
    "evaluation.episodes=40",
)  # fmt: skip


def configured(folder, *overrides, make=sac, **env):
    return make(folder, *overrides, env={"train": {**PLACE, "total_num_envs": 4, **env}})


def trained(folder, *overrides, **env):
    return rlpipe.train(configured(folder, *overrides, **env), local=True)


def test_goals_are_learnt_from_sparse_reward_in_hindsight(tmp_path):
    assert trained(tmp_path, *LEARNING, "algorithm.hindsight=0.8").metrics["eval/success_at_end"] > 0.8


@pytest.mark.soak
def test_without_hindsight_they_are_not_learnt(tmp_path):
    assert trained(tmp_path, *LEARNING).metrics["eval/success_once"] < 0.2


def test_a_run_shows_what_hindsight_changes(tmp_path):
    run = trained(tmp_path, "algorithm.hindsight=0.8", "rollout.horizon=20").directory
    row = lines(run, "metrics.jsonl")[-1]["metrics"]
    shown = {name.rpartition("/")[2]: value for name, value in row.items() if "relabelled" in name}
    assert 0.5 < shown["relabelled"] < 0.8  # the last 4 steps of each 20 belong to episodes that have not ended
    assert shown["relabelled_reward_before"] <= -0.95 < shown["relabelled_reward"] < 0.0
    assert 0.0 < shown["relabelled_ahead"] < 7.0  # of 8 steps
    assert -1.0 < row["train/replay_buffer/reward"] < shown["relabelled_reward"]


def test_a_stage_judges_goals_by_its_own_task(tmp_path):
    parts = [{"name": "first", "timesteps": 128, "overrides": {"env.train.kwargs": {"ends": True}}}, {"name": "then"}]
    config = sac(tmp_path, "algorithm.hindsight=0.8", env={"train": {**PLACE, "total_num_envs": 4}}, stages=parts)
    run = rlpipe.train(config, local=True).directory
    assert [row["metrics"]["train/stage"] for row in lines(run, "metrics.jsonl")] == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["algorithm.n_step=3"], "algorithm.hindsight is 0.8 and algorithm.n_step is 3"),
        (["policy.chunk_size=2"], "algorithm.hindsight is 0.8 and policy.chunk_size is 2"),
        (["env.train.ignore_observations=[achieved_goal]"], "have the leaves desired_goal, observation"),
        (["env.train.id=tests.helpers.gym_trees:Reach-v0"], "tests.helpers.gym_trees:Reach-v0 has no method compute_"),
        (["env.train.id=Pendulum-v1"], "needs observations with the leaves achieved_goal and desired_goal"),
    ],
)
def test_what_hindsight_cannot_do_is_an_error_before_anything_starts(overrides, words, tmp_path):
    with pytest.raises(ConfigError, match=words):
        trained(tmp_path, "algorithm.hindsight=0.8", *overrides)
    assert not any(tmp_path.rglob("run.json"))


def test_a_simulator_without_goals_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"algorithm.hindsight is 0.8, which needs observations with the leaves"):
        rlpipe.train(sac(tmp_path, "algorithm.hindsight=0.8"), local=True)


def test_a_plug_in_that_does_not_say_how_it_judges_goals_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"tests.helpers.simulators:Unjudged \(env.train.name\) has no goal_task"):
        trained(tmp_path, "algorithm.hindsight=0.8", "env.train.name=tests.helpers.simulators:Unjudged")


@pytest.mark.parametrize("make", [scripted, gru])
def test_an_algorithm_that_learns_from_fresh_trajectories_does_not_have_the_key(make, tmp_path):
    with pytest.raises(ConfigError, match=r"unknown key algorithm.hindsight"):
        configured(tmp_path, "algorithm.hindsight=0.8", make=make)


def test_the_command_ends_with_exit_code_2_and_leaves_nothing(tmp_path):
    file = tmp_path / "config.yaml"
    unjudged = "env.train.id=tests.helpers.gym_trees:Reach-v0"
    file.write_text(to_yaml(configured(tmp_path / "runs", "algorithm.hindsight=0.8", unjudged)))
    done = command("train", str(file))  # on Ray, which is not started for it
    assert done.code == 2
    assert "has no method compute_reward" in done.err
    assert not (tmp_path / "runs").exists()
