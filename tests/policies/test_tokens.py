"""Actions as tokens: bins, sampling, levels, cloning and learning from reward."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
import torch

import rlpipe
from rlpipe.collection.worker import RolloutWorker
from rlpipe.errors import ConfigError
from rlpipe.learning.on_policy import Learner
from rlpipe.policies.shared.bins import BinnedActions
from rlpipe.policies.tokens import TokenConfig, TokenPolicy
from rlpipe.trajectory import SpaceSpec
from tests.helpers.runs import lines, scripted, without_timings

BOUND = np.array([1.0, 2.0], dtype=np.float32)
SPEC = SpaceSpec(3, 2, None, -BOUND, BOUND)


def made(chunk=1, bins=4, **options):
    torch.manual_seed(0)
    config = TokenConfig("tokens", hidden_sizes=[8], bins=bins, slot_width=4, chunk_size=chunk, **options)
    return TokenPolicy(config, SPEC.chunked(chunk))


def test_a_token_stands_for_the_middle_of_its_bin():
    policy = made()
    actions = torch.tensor([[-0.75, -1.5], [0.25, 0.5], [0.75, 1.5]])
    assert policy.tokens(actions).tolist() == [[0, 0], [2, 2], [3, 3]]
    assert policy.centres(policy.tokens(actions)).tolist() == actions.tolist()


@pytest.mark.parametrize("value", [0.0, 1.0, -300.0])
def test_bins_between_equal_bounds_are_told_apart(value):
    bins = BinnedActions()
    equal = np.array([value], np.float32)
    bins.make_bins(equal, equal, 4, 0.01)
    tokens = torch.arange(4)[:, None]
    assert torch.equal(bins.tokens(bins.centres(tokens)), tokens)
    assert torch.allclose(bins.centres(tokens), torch.from_numpy(equal), rtol=1e-5, atol=1e-5)


def test_numbers_beyond_the_bins_fall_into_the_outermost():
    assert made().tokens(torch.tensor([[-9.0, 9.0]])).tolist() == [[0, 3]]


def test_bins_lie_between_quantiles_of_what_was_demonstrated():
    policy = made(chunk=2, quantile=0.25)
    policy.fit_actions(torch.tensor([[0.0, 0.0], [1.0, 10.0], [2.0, 20.0], [3.0, 30.0], [4.0, 40.0]]))
    assert policy.lowest.tolist() == [1, 10, 1, 10]
    assert policy.width.tolist() == [0.5, 5, 0.5, 5]


@pytest.mark.parametrize("chunk", [1, 3])
def test_sampled_actions_have_the_probability_they_are_said_to_have(chunk):
    policy = made(chunk)
    observations = torch.randn(5, 3)
    noise = torch.from_numpy(policy.noise(np.random.default_rng(0), 5))
    actions, log_probs = policy.act(observations, noise)
    assert log_probs.shape == ((5,) if chunk == 1 else (5, chunk))
    steps = () if chunk == 1 else (torch.full((5,), chunk),)
    again, entropy = policy.evaluate_actions(observations, actions, *steps)
    assert torch.allclose(again, log_probs if chunk == 1 else log_probs.sum(-1), atol=1e-6)
    assert (entropy <= 2 * chunk * np.log(4) + 1e-5).all()


def test_tokens_are_drawn_as_often_as_they_are_likely():
    policy = made(bins=3)
    with torch.no_grad():
        policy.head.bias.copy_(torch.tensor([0.7, 0.2, 0.1]).log())
    noise = torch.from_numpy(policy.noise(np.random.default_rng(0), 20_000))
    actions, _ = policy.act(torch.zeros(20_000, 3), noise)
    shares = torch.bincount(policy.tokens(actions).flatten(), minlength=3) / 40_000
    expected = policy._log_probs(policy._slots(torch.zeros(1, 3))).exp()[0].mean(0)
    assert torch.allclose(shares, expected, atol=0.01)


def test_tokens_need_bounds():
    with pytest.raises(ConfigError, match=r"policy.name is tokens, which needs continuous actions"):
        TokenPolicy(TokenConfig("tokens"), SpaceSpec(3, 1, 2))


@pytest.mark.soak
@pytest.mark.parametrize(("name", "level"), [("ppo", "token"), ("grpo", "chunk")])
def test_both_algorithms_learn_and_at_either_level(name, level, tmp_path):
    """An action of one number is one token: the same level."""
    algorithm = {"name": name, "update_epochs": 4, "num_minibatches": 4, "logprob_level": level, "entropy_level": level}
    if name == "grpo":
        algorithm["group_size"] = 4
    policy = {"name": "tokens", "hidden_sizes": [8], "bins": 4, "slot_width": 4, "chunk_size": 2}
    kind = "tests.helpers.simulators:Unnumbered"  # whose slots begin alike
    env = {"train": {"name": kind, "total_num_envs": 16, "match_actions": True}}
    options = ("learner.lr=0.015", "rollout.horizon=16", "runner.total_timesteps=6144", "evaluation.episodes=1")
    run = rlpipe.train(scripted(tmp_path, *options, algorithm=algorithm, policy=policy, env=env), local=True).directory
    rows = without_timings(run)
    returns = [statistics.mean(row["env/return"] for row in rows[n : n + 4]) for n in range(0, len(rows), 4)]
    assert returns[0] < 7  # of 10; chance is 5
    assert max(returns) > returns[0] + 2
    assert rows[0]["train/actor/clip_fraction"] <= 1
    assert rows[0]["train/actor/ratio_min"] <= 1 <= rows[0]["train/actor/ratio_max"]


def test_in_the_first_minibatch_every_ratio_is_one_at_every_level(tmp_path):
    policy = {"name": "tokens", "hidden_sizes": [8], "bins": 4, "slot_width": 4, "chunk_size": 3}
    for level in ("token", "action", "chunk"):
        algorithm = {"name": "ppo", "update_epochs": 1, "num_minibatches": 1, "logprob_level": level}
        config = scripted(tmp_path / level, "runner.total_timesteps=64", algorithm=algorithm, policy=policy)
        metrics = lines(rlpipe.train(config, local=True).directory, "metrics.jsonl")[0]["metrics"]
        assert metrics["train/actor/ratio_max"] == pytest.approx(1, abs=1e-5)
        assert metrics["train/actor/clip_fraction"] == 0


@pytest.mark.parametrize("level", ["token", "action", "chunk"])
def test_one_pass_evaluates_the_policy_before_the_update(level, tmp_path):
    algorithm = {"name": "ppo", "update_epochs": 1, "num_minibatches": 1, "logprob_level": level}
    plan = scripted(tmp_path, algorithm=algorithm, policy={"name": "tokens", "hidden_sizes": [8], "bins": 4}).schedule
    worker = RolloutWorker(plan, 0, 1)
    learner = Learner(plan, worker.ready().spec)
    batch, _ = worker.collect(learner.snapshot(), 0)
    evaluate, passes = learner._policy.evaluate_entries, []
    learner._policy.evaluate_entries = lambda *given: passes.append(len(given[1])) or evaluate(*given)
    learner.update(0, 1, batch)
    assert passes == [64, 64]  # before the update, and in its only step


def test_all_tokens_of_each_decision_are_counted(tmp_path):
    script = [[{"length": 3, "end": "terminated", "success_at": [3], "reward": 1.0}]]
    policy = {"name": "tokens", "hidden_sizes": [8], "bins": 4, "slot_width": 4, "chunk_size": 2}
    env = {"train": {"name": "scripted", "total_num_envs": 2, "script": script}}
    run = rlpipe.train(scripted(tmp_path, "rollout.horizon=8", policy=policy, env=env), local=True).directory
    metrics = lines(run, "metrics.jsonl")[0]["metrics"]
    assert metrics["rollout/action_tokens_total"] == 32  # 16 decisions of two numbers
    assert metrics["rollout/action_tokens_per_episode_mean"] == 4  # two decisions
