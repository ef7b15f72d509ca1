"""Whole runs of a policy with a memory, on a task that shows its goal before the first action only."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

import rlpipe
from rlpipe.algorithms.base import OnPolicyConfig
from rlpipe.algorithms.ppo import PPO
from rlpipe.config.loading import load_config
from rlpipe.errors import ConfigError
from tests.helpers.commands import command
from tests.helpers.runs import gru, lines, sac, scripted

RECALL = {"name": "gymnasium", "id": "tests.helpers.gym_trees:Recall-v0", "success_key": "is_success"}
LEARNING = (
    "env.train.total_num_envs=16", "rollout.horizon=32", "learner.lr=0.005", "algorithm.update_epochs=8",
    "runner.total_timesteps=4096", "policy.hidden_sizes=[32]", "evaluation.episodes=100",
)  # fmt: skip
WITHOUT_A_MEMORY = 0.6
"""Return of a policy that sees the goal at the first of 5 or 6 steps, and guesses at the others; chance is 0.5."""


@dataclass(frozen=True)
class UnorderedConfig(OnPolicyConfig):
    """Options of an algorithm that has not heard of memories."""


class Unordered(PPO):
    """An algorithm that has not heard of memories."""

    Config = UnorderedConfig


def trained(folder, *overrides, make=gru, **tree):
    env = {"train": {**RECALL, "total_num_envs": 4}}
    return rlpipe.train(make(folder, *overrides, **({"env": env} | tree)), local=True).directory


def column(run, name):
    return [row["metrics"][name] for row in lines(run, "metrics.jsonl")]


def check_exact_replay(run):
    """Before each update, the replay gave the log-probabilities of the collection."""
    assert max(column(run, "train/actor/logp_diff_max")) < 1e-5


@pytest.fixture(scope="module")
def solved(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("solved"), *LEARNING, "policy.memory_size=32")


class TestPPO:
    def test_a_task_that_hides_its_goal_is_solved_with_a_memory(self, solved):
        assert column(solved, "env/return")[0] < WITHOUT_A_MEMORY
        assert column(solved, "env/return")[-1] > 0.95
        assert lines(solved, "metrics.jsonl")[-1]["metrics"]["eval/return"] > 0.95
        check_exact_replay(solved)

    @pytest.mark.soak
    def test_and_not_without_one(self, tmp_path):
        run = trained(tmp_path, *LEARNING, make=scripted)
        assert column(run, "env/return")[-1] < WITHOUT_A_MEMORY + 0.05
        assert lines(run, "metrics.jsonl")[-1]["metrics"]["eval/return"] < 0.75  # which goals are drawn is chance, too

    def test_rlpipe_evaluate_runs_it_on_other_episodes(self, solved):
        done = command("evaluate", str(solved), "--local", "--json", "--episodes", "40")
        assert done.code == 0, done.err
        assert json.loads(done.out)["metrics"]["eval/return"] > 0.95

    def test_an_evaluation_does_not_depend_on_how_many_episodes_run_side_by_side(self, solved):
        side_by_side = {
            slots: rlpipe.evaluate(
                solved, overrides=[f"env.eval.total_num_envs={slots}"], episodes=12, local=True
            ).metrics
            for slots in (1, 5)
        }
        assert side_by_side[1]["eval/return"] == side_by_side[5]["eval/return"]

    def test_continuous_actions_in_chunks(self, tmp_path):
        options = ("policy.chunk_size=2", "algorithm.logprob_level=action", "env.train.kwargs.discrete=false")
        check_exact_replay(trained(tmp_path, *options))

    def test_an_observation_tree(self, tmp_path):
        env = {"train": {**RECALL, "id": "tests.helpers.gym_trees:Signs-v0", "total_num_envs": 4}}
        run = trained(tmp_path, "policy.normalize_observations=true", "runner.total_timesteps=128", env=env)
        check_exact_replay(run)

    def test_a_stage_with_another_simulator_begins_with_empty_memories(self, tmp_path):
        shorter = {"env": {"train": {"kwargs": {"steps": 3}}}}
        stages = [{"name": "long", "timesteps": 128}, {"name": "short", "timesteps": 128, "overrides": shorter}]
        check_exact_replay(trained(tmp_path, stages=stages))

    def test_decisions_of_older_weights_are_corrected(self, tmp_path):
        run = trained(tmp_path, "runner.pipeline=ahead", "learner.lr=0.01")
        assert column(run, "rollout/policy_lag_mean") == [0, 1, 1, 1]
        last = lines(run, "metrics.jsonl")[-1]["metrics"]
        assert 0 < abs(last["train/actor/behav_approx_kl"]) < 0.1


GRPO = {"name": "grpo", "group_size": 4, "num_minibatches": 2, "update_epochs": 4}


class TestGRPO:
    OPTIONS = ("rollout.horizon=8", "env.train.total_num_envs=32", "learner.lr=0.01", "runner.total_timesteps=4096")

    @pytest.mark.soak
    def test_whole_episodes_are_remembered_too(self, tmp_path):
        run = trained(tmp_path, *self.OPTIONS, "policy.memory_size=32", algorithm=GRPO)
        assert column(run, "env/return")[-1] > 0.9
        check_exact_replay(run)

    def test_a_reference_has_a_memory_of_its_own(self, tmp_path):
        options = (*self.OPTIONS, "runner.total_timesteps=768", "algorithm.kl_beta=0.1")
        run = trained(tmp_path, *options, algorithm=GRPO)
        assert column(run, "rollout/kl_ref_episode")[0] == pytest.approx(0, abs=1e-5)
        assert column(run, "rollout/kl_ref_episode")[-1] > 1e-3


def test_a_resumed_run_begins_new_episodes_with_empty_memories(tmp_path):
    run = trained(tmp_path, "runner.save_interval=2")
    (run / "checkpoints" / "iteration-000004.npz").unlink()
    rlpipe.train(load_config(run / "config.yaml"), resume=run, local=True)
    assert [row["iteration"] for row in lines(run, "metrics.jsonl")] == [1, 2, 3, 4]
    check_exact_replay(run)


@pytest.mark.parametrize(
    ("make", "overrides", "tree", "words"),
    [
        (gru, ["algorithm.num_minibatches=5"], {}, "algorithm.num_minibatches is 5, but policy.name=gru has a memory"),
        (gru, ["algorithm.kl_control=fixed"], {}, "algorithm.kl_control is fixed, but policy.name=gru has a memory"),
        (gru, ["algorithm.cloning_coef=0.1"], {}, "algorithm.cloning_coef is 0.1, which clones steps"),
        (sac, [], {"policy": {"name": "gru"}}, "algorithm.name is sac, which needs a policy whose actions are bounded"),
        (
            gru,
            ["policy.chunk_size=2"],
            {"algorithm": {"name": "behaviour_cloning"}},
            "takes 2 actions of each decision",
        ),
        (gru, [], {"algorithm": {"name": f"{__name__}:Unordered"}}, "which has a memory, but algorithm.name is tests"),
        (gru, ["policy.memory_size=0"], {}, "policy.memory_size is 0; it must be at least 1"),
    ],
)
def test_what_cannot_be_is_an_error_before_anything_starts(tmp_path, make, overrides, tree, words):
    with pytest.raises(ConfigError, match=words):
        trained(tmp_path, *overrides, make=make, **tree)
    assert not any(tmp_path.iterdir())
