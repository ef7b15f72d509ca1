"""PPO with a reward, a value and an advantage for each action of a chunk."""

from __future__ import annotations

import statistics

import pytest
import torch

import rlpipe
from rlpipe.algorithms.ppo import PPO, PPOConfig, PPOSamples
from rlpipe.errors import ConfigError
from rlpipe.policies.base import Policy
from rlpipe.policies.mlp import MLPConfig, MLPPolicy
from rlpipe.trajectory import SpaceSpec
from tests.helpers.runs import lines, scripted, without_timings

BY_ACTION = {"name": "ppo", "update_epochs": 2, "num_minibatches": 4, "logprob_level": "action"}


def policy_of(chunk) -> dict:
    return {"name": "mlp", "hidden_sizes": [8], "chunk_size": chunk}


def test_with_single_actions_both_levels_give_the_same_numbers(tmp_path):
    rows = []
    for level in ("chunk", "action"):
        algorithm = BY_ACTION | {"reward_level": level}
        config = scripted(tmp_path / level, algorithm=algorithm, policy=policy_of(1))
        rows.append(without_timings(rlpipe.train(config, local=True).directory))
    assert rows[0] == rows[1]


@pytest.mark.soak
def test_it_learns(tmp_path):
    algorithm = BY_ACTION | {"update_epochs": 4, "reward_level": "action"}
    env = {"train": {"name": "scripted", "total_num_envs": 16, "match_actions": True}}
    options = ("learner.lr=0.02", "runner.total_timesteps=6144", "evaluation.episodes=1")
    config = scripted(tmp_path, *options, algorithm=algorithm, policy=policy_of(2), env=env)
    returns = [row["env/return"] for row in without_timings(rlpipe.train(config, local=True).directory)]
    assert statistics.mean(returns[:4]) < 7  # of 10; chance is 5
    assert statistics.mean(returns[-4:]) > statistics.mean(returns[:4]) + 2


def test_returns_are_those_of_actions_and_not_of_decisions(tmp_path):
    """Episodes of three steps that pay 6 at the end, cut into chunks of two and one."""
    env = {
        "train": {
            "name": "scripted",
            "total_num_envs": 4,
            "script": [[{"length": 3, "end": "terminated", "reward": 6.0}]],
        }
    }
    options = ("algorithm.gae_lambda=1.0", "algorithm.discount=0.5")
    found = {}
    for level in ("chunk", "action"):
        algorithm = BY_ACTION | {"reward_level": level}
        config = scripted(tmp_path / level, *options, algorithm=algorithm, policy=policy_of(2), env=env)
        found[level] = lines(rlpipe.train(config, local=True).directory, "metrics.jsonl")[0]["metrics"]
    mean = {level: metrics["rollout/returns_mean"] for level, metrics in found.items()}
    assert mean == pytest.approx({"chunk": (1.5 + 6) / 2, "action": (1.5 + 3 + 6) / 3}, rel=1e-6)
    assert found["action"]["rollout/rewards"] == found["chunk"]["rollout/rewards"]


def decisions(advantages, returns) -> PPOSamples:
    """Two decisions of two actions; of the second, one action was taken."""
    whole = torch.zeros(2)
    return PPOSamples(
        torch.ones(2, 3), torch.zeros(2, 2), whole, torch.tensor(advantages), whole.long(), torch.arange(2),
        torch.tensor(returns), torch.zeros(2, 2), num_steps=torch.tensor([2, 1]), old_units=torch.full((2, 2), -1.0),
    )  # fmt: skip


def policy_with_values() -> MLPPolicy:
    torch.manual_seed(0)
    policy = MLPPolicy(MLPConfig("mlp", hidden_sizes=[4], chunk_size=2), SpaceSpec(3, 1).chunked(2))
    policy.value_each_action()
    return policy


def test_the_loss_of_a_decision_is_the_mean_over_the_actions_that_were_taken():
    policy = policy_with_values()
    algorithm = PPO(PPOConfig("ppo", reward_level="action", logprob_level="action", value_coef=1.0))
    loss = algorithm.loss(policy, decisions([[1.0, 3.0], [2.0, 99.0]], [[1.0, 3.0], [2.0, 99.0]])).each
    other = algorithm.loss(policy, decisions([[1.0, 3.0], [2.0, -5.0]], [[1.0, 3.0], [2.0, -5.0]])).each
    assert torch.equal(loss, other)  # of what was never taken, nothing counts
    values, (parts, _) = policy.value(torch.ones(2, 3)), policy.evaluate_parts(torch.ones(2, 3), torch.zeros(2, 2))
    ratio = (parts.squeeze(-1) + 1.0).exp().clamp(max=1.2)
    value = 0.5 * (values - torch.tensor([[1.0, 3.0], [2.0, 0.0]])).square()
    each = value - ratio * torch.tensor([[1.0, 3.0], [2.0, 0.0]])
    assert loss.tolist() == pytest.approx([each[0].mean().item(), each[1, 0].item()], abs=1e-6)


def test_one_ratio_for_a_decision_cannot_be_weighted_by_several_advantages():
    with pytest.raises(ConfigError, match=r"reward_level is action.*logprob_level is chunk.*=action or token"):
        PPOConfig("ppo", reward_level="action")


def test_a_policy_with_one_value_for_a_decision_is_refused():
    with pytest.raises(ConfigError, match=r"reward_level is action, but MLPPolicy has no value_each_action"):
        Policy.value_each_action(policy_with_values())


def test_grpo_scores_whole_episodes_and_has_no_such_option(tmp_path):
    with pytest.raises(ConfigError, match="reward_level"):
        scripted(tmp_path, algorithm={"name": "grpo", "reward_level": "action"})


def test_a_stage_cannot_change_it(tmp_path):
    stage = {"name": "late", "overrides": {"algorithm": {"reward_level": "action"}}}
    with pytest.raises(ConfigError, match=r"changes algorithm.reward_level, which stays the same for a run"):
        scripted(tmp_path, algorithm=BY_ACTION, policy=policy_of(2), stages=[stage])
