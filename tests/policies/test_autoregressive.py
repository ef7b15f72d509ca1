"""Tokens decoded one after the other: acting and teacher forcing, what conditions what, entropy, and joint choices."""

from __future__ import annotations

import itertools
import statistics

import numpy as np
import pytest
import torch

import rlpipe
from rlpipe.errors import ConfigError
from rlpipe.learning.demonstrated import Demonstrated
from rlpipe.policies.tokens import TokenConfig, TokenPolicy
from rlpipe.trajectory import SpaceSpec
from tests.helpers.runs import lines, scripted, without_timings

BOUND = np.ones(2, dtype=np.float32)
SPEC = SpaceSpec(3, 2, None, -BOUND, BOUND)
SMALL = {"hidden_sizes": [8], "bins": 3, "slot_width": 8, "decoder_layers": 2, "decoder_heads": 2}


def made(chunk=1, decoding="autoregressive", spread=0.25, **options) -> TokenPolicy:
    """A policy whose probabilities are far from equal."""
    torch.manual_seed(0)
    config = TokenConfig("tokens", chunk_size=chunk, decoding=decoding, **(SMALL | options))
    policy = TokenPolicy(config, SPEC.chunked(chunk))
    with torch.no_grad():
        for parameter in policy.actor_parameters():
            parameter += spread * torch.randn_like(parameter)
    return policy


def drawn(policy, count, seed=0):
    return torch.from_numpy(policy.noise(np.random.default_rng(seed), count))


def every_action(policy) -> torch.Tensor:
    """[bins ** 2, 2] all actions of two tokens."""
    return policy.centres(torch.tensor([*itertools.product(range(3), repeat=2)]))


@pytest.mark.parametrize("count", [1, 7])
@pytest.mark.parametrize("chunk", [1, 3])
def test_acting_token_by_token_has_the_probabilities_of_teacher_forcing(chunk, count):
    policy = made(chunk)
    observations = torch.randn(count, 3)
    for noise in (drawn(policy, count), None):
        actions, log_probs = policy.act(observations, noise)
        given, _ = policy.evaluate_entries(observations, actions)
        assert torch.allclose(policy.by_action(given), log_probs, atol=1e-5)
        alone, log_probs_alone, _ = policy.decide_each(observations, noise, None)
        assert torch.equal(alone, actions)
        assert torch.allclose(log_probs_alone, log_probs, atol=1e-5)


def test_a_token_depends_on_earlier_tokens_and_never_on_later_ones():
    policy = made(chunk=2)
    observations = torch.zeros(1, 3)
    tokens = torch.zeros(1, 4, dtype=torch.int64)
    slots = policy._slots(observations)
    before = policy.decoder(slots, tokens)
    for changed in range(4):
        other = tokens.clone()
        other[0, changed] = 2
        differs = (policy.decoder(slots, other) != before).any(-1)[0]
        assert differs.tolist() == [position > changed for position in range(4)]


def test_the_noise_of_a_token_chooses_it_alone():
    policy = made(chunk=2)
    observations, noise = torch.zeros(1, 3), torch.full((1, 4), 0.01)
    first, _ = policy.act(observations, noise)
    noise[0, 2] = 0.99
    second, _ = policy.act(observations, noise)
    assert first[0, :2].tolist() == second[0, :2].tolist()
    assert first[0, 2] < second[0, 2]


def test_the_probabilities_of_all_decisions_add_up_to_one_and_are_how_often_they_are_drawn():
    policy = made()
    with torch.no_grad():
        log_probs, _ = policy.evaluate_actions(torch.zeros(9, 3), every_action(policy))
        actions, _ = policy.act(torch.zeros(20_000, 3), drawn(policy, 20_000))
    assert log_probs.exp().sum().item() == pytest.approx(1, abs=1e-6)
    shares = torch.bincount((policy.tokens(actions) * torch.tensor([3, 1])).sum(1), minlength=9) / 20_000
    assert torch.allclose(shares, log_probs.exp(), atol=0.01)


def test_the_entropy_along_drawn_tokens_is_on_average_that_of_the_decision():
    policy = made()
    with torch.no_grad():
        log_probs, entropies = policy.evaluate_actions(torch.zeros(9, 3), every_action(policy))
    joint = -(log_probs.exp() * log_probs).sum()
    assert entropies.std() > 0.01  # of one decision it is an estimate
    assert (log_probs.exp() * entropies).sum().item() == pytest.approx(joint.item(), abs=1e-5)


def test_the_deterministic_action_takes_the_likeliest_token_given_those_before():
    policy = made()
    with torch.no_grad():
        tokens = policy.tokens(policy.act(torch.zeros(1, 3), None)[0])[0].tolist()
        log_probs, _ = policy.evaluate_entries(torch.zeros(9, 3), every_action(policy))
    assert tokens[0] == log_probs[::3, 0].argmax()
    assert tokens[1] == log_probs[3 * tokens[0] : 3 * tokens[0] + 3, 1].argmax()


def test_tokens_of_actions_that_were_never_taken_do_not_count():
    policy = made(chunk=2)
    observations, steps = torch.zeros(2, 3), torch.tensor([1, 1])
    actions = torch.tensor([[-0.6, 0.0, 0.6, 0.6], [-0.6, 0.0, -0.6, 0.0]])  # alike up to the first action
    log_probs, entropies = policy.evaluate_actions(observations, actions, steps)
    assert log_probs[0] == log_probs[1]
    assert entropies[0] == entropies[1]


@pytest.mark.parametrize(("chunk", "width"), [(1, 2), (2, 1)])
def test_only_tokens_decoded_in_order_agree_on_one_of_two_ways(chunk, width):
    """Both numbers of a demonstrated decision are -0.75, or both 0.75: one action of two, or a chunk of two of one."""
    spec = SpaceSpec(1, width, None, -BOUND[:width], BOUND[:width])
    both = torch.tensor([[-0.75, -0.75], [0.75, 0.75]]).repeat(32, 1)
    steps = None if chunk == 1 else torch.full((64,), chunk)
    demonstrated = Demonstrated(torch.zeros(64, 1), both if chunk == 1 else both.unsqueeze(-1), steps)
    agreeing = {}
    for decoding in ("parallel", "autoregressive"):
        torch.manual_seed(0)
        options = SMALL | {"bins": 4, "chunk_size": chunk, "decoding": decoding}
        policy = TokenPolicy(TokenConfig("tokens", **options), spec.chunked(chunk))
        optimizer = torch.optim.Adam(policy.actor_parameters(), lr=0.01)
        for _ in range(150):
            optimizer.zero_grad()
            demonstrated.loss(policy, "likelihood").mean().backward()
            optimizer.step()
        with torch.no_grad():
            actions, _ = policy.act(torch.zeros(1000, 1), drawn(policy, 1000))
        assert (actions.abs() == 0.75).all(-1).float().mean() > 0.97  # each number is one that was demonstrated
        agreeing[decoding] = (actions[:, 0] == actions[:, 1]).float().mean().item()
    assert agreeing["parallel"] == pytest.approx(0.5, abs=0.05)  # the best it can do
    assert agreeing["autoregressive"] > 0.97


def test_the_weights_to_act_with_hold_the_decoder():
    policy, other = made(), made(spread=0.0)
    weights = policy.acting_weights()
    assert not any(name.startswith("critic") for name in weights)
    other.load_weights(weights)
    noise = drawn(policy, 4)
    assert torch.equal(other.act(torch.ones(4, 3), noise)[1], policy.act(torch.ones(4, 3), noise)[1])


def test_heads_divide_the_width_of_a_slot():
    with pytest.raises(ConfigError, match=r"policy.slot_width is 6, which cannot be cut into 4 equal heads"):
        TokenConfig("tokens", slot_width=6, decoding="autoregressive")


POLICY = {"name": "tokens", **SMALL, "bins": 4, "chunk_size": 2, "decoding": "autoregressive"}


@pytest.mark.soak
@pytest.mark.parametrize(("name", "level"), [("ppo", "token"), ("grpo", "chunk")])
def test_both_algorithms_learn_and_at_either_level(name, level, tmp_path):
    """An action of one number is one token: the same level."""
    algorithm = {"name": name, "update_epochs": 4, "num_minibatches": 4, "logprob_level": level, "entropy_level": level}
    steps = 5120
    if name == "grpo":
        algorithm["group_size"], steps = 4, 8192
    kind = "tests.helpers.simulators:Unnumbered"  # whose slots begin alike
    env = {"train": {"name": kind, "total_num_envs": 16, "match_actions": True}}
    options = ("learner.lr=0.02", "rollout.horizon=16", f"runner.total_timesteps={steps}", "evaluation.episodes=1")
    run = rlpipe.train(scripted(tmp_path, *options, algorithm=algorithm, policy=POLICY, env=env), local=True).directory
    rows = without_timings(run)
    returns = [statistics.mean(row["env/return"] for row in rows[n : n + 4]) for n in range(0, len(rows), 4)]
    assert returns[0] < 7  # of 10; chance is 5
    assert max(returns) > returns[0] + 2


def test_in_the_first_minibatch_every_ratio_is_one(tmp_path):
    algorithm = {"name": "ppo", "update_epochs": 1, "num_minibatches": 1}
    config = scripted(tmp_path, "runner.total_timesteps=64", algorithm=algorithm, policy=POLICY)
    metrics = lines(rlpipe.train(config, local=True).directory, "metrics.jsonl")[0]["metrics"]
    assert metrics["train/actor/ratio_max"] == pytest.approx(1, abs=1e-5)
    assert metrics["train/actor/ratio_min"] == pytest.approx(1, abs=1e-5)


def test_a_resumed_run_has_the_weights_of_the_checkpoint(tmp_path):
    def newest(run) -> dict[str, np.ndarray]:
        with np.load(max((run / "checkpoints").glob("*.npz"))) as arrays:
            return {name: array for name, array in arrays.items() if name.startswith("policy/")}

    run = rlpipe.train(scripted(tmp_path, "runner.total_timesteps=128", policy=POLICY), local=True).directory
    trained = newest(run)
    frozen = scripted(tmp_path, "runner.total_timesteps=192", "learner.lr=0", policy=POLICY)
    resumed = newest(rlpipe.train(frozen, local=True, resume=run).directory)
    assert any(name.startswith("policy/decoder.blocks.1") and array.any() for name, array in trained.items())
    assert all(np.array_equal(array, resumed[name]) for name, array in trained.items())
