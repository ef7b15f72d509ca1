"""Learning from remembered and demonstrated steps: formulas, buffer, policy, whole runs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import AffineTransform, Independent, Normal, TanhTransform, TransformedDistribution

import rlpipe
from rlpipe.algorithms.sac import Ensemble
from rlpipe.collection.worker import RolloutWorker
from rlpipe.config.protocol import protocol
from rlpipe.errors import ConfigError
from rlpipe.functional.cloning import cloning_loss
from rlpipe.functional.n_step import n_step
from rlpipe.functional.soft_actor_critic import (
    actor_loss,
    critic_loss,
    follow,
    return_range,
    soft_target,
    squared_size,
    temperature_gradient,
    temperature_loss,
)
from rlpipe.learning.off_policy import OffPolicyLearner
from rlpipe.learning.replay import ReplayBuffer, StoredRows
from rlpipe.metrics import CATALOGUE
from rlpipe.metrics.health import Monitor
from rlpipe.policies.base import Policy, finite_bounds
from rlpipe.policies.shared.features import Features
from rlpipe.policies.squashed_gaussian import SquashedGaussianConfig, SquashedGaussianPolicy
from rlpipe.run.checkpoint import newest
from rlpipe.run.directory import read_jsonl
from rlpipe.trajectory import SpaceSpec
from rlpipe.trajectory.batch import TrajectoryBatch
from tests.helpers.demonstrations import demonstrator
from tests.helpers.runs import sac, scripted

CPU = torch.device("cpu")
SPEC = SpaceSpec(1, 1, None, np.array([-1.0], np.float32), np.array([1.0], np.float32))


def metrics(run):
    return [
        {name: value for name, value in row["metrics"].items() if not name.startswith("time/")}
        for row in read_jsonl(run / "metrics.jsonl")
    ]


# --- formulas


def test_a_target_is_the_reward_and_the_discounted_least_value_that_follows():
    target = soft_target(
        torch.tensor([1.0]), torch.tensor([0.0]), torch.tensor([[4.0], [2.0]]), torch.tensor([-3.0]),
        discount=0.5, temperature=0.1, entropy_backup=False,
    )  # fmt: skip
    assert target.tolist() == [2.0]  # 1 + 0.5 x 2


def test_entropy_counts_in_the_target_where_it_is_wanted():
    target = soft_target(
        torch.tensor([1.0]), torch.tensor([0.0]), torch.tensor([[4.0], [2.0]]), torch.tensor([-3.0]),
        discount=0.5, temperature=0.1, entropy_backup=True,
    )  # fmt: skip
    assert target.tolist() == pytest.approx([2.15])  # 1 + 0.5 (2 + 0.1 x 3)


def test_nothing_follows_the_end_of_a_task():
    target = soft_target(
        torch.tensor([1.0]), torch.tensor([1.0]), torch.tensor([[4.0]]), torch.tensor([-3.0]),
        discount=0.5, temperature=0.1, entropy_backup=True,
    )  # fmt: skip
    assert target.tolist() == [1.0]


@given(st.lists(st.floats(-2, 1), min_size=1, max_size=30), st.floats(0, 0.99))
def test_no_discounted_sum_of_rewards_leaves_the_range_of_returns(rewards, discount):
    low, high = return_range(-2.0, 1.0, discount)
    total = sum(discount**t * reward for t, reward in enumerate(rewards))
    assert low - 1e-9 <= total <= high + 1e-9


def test_the_range_of_returns_holds_a_task_that_ends_at_once_and_one_that_never_does():
    assert return_range(-1.0, 0.0, 0.5) == (-2.0, 0.0)
    assert return_range(0.5, 1.0, 0.5) == (0.5, 2.0)


def test_an_action_at_its_bounds_has_the_size_1_and_one_in_the_middle_0():
    low, high = torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 4.0])
    actions = torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.5, 2.0]])
    assert squared_size(actions, low, high).tolist() == [1.0, 0.0, 0.125]  # (0.25 + 0) / 2


def test_each_network_is_compared_with_the_same_target():
    assert critic_loss(torch.tensor([[1.0], [3.0]]), torch.tensor([2.0])).tolist() == [[1.0], [1.0]]


def test_the_policy_wants_high_values_and_low_log_probabilities():
    assert actor_loss(torch.tensor([[1.0], [3.0]]), torch.tensor([-2.0]), 0.5).tolist() == [-3.0]  # -1 - 2


@given(st.floats(-3, 3), st.floats(-3, 3))
def test_the_temperature_rises_exactly_where_the_entropy_is_under_its_target(entropy, target):
    log_temperature = torch.tensor(0.0, requires_grad=True)
    temperature_loss(log_temperature, torch.tensor([-entropy]), target).mean().backward()
    rises = -float(log_temperature.grad)
    assert np.sign(rises) == np.sign(np.float32(target) - np.float32(entropy))


@given(st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=9), st.floats(-6, 6), st.floats(-3, 3))
def test_the_gradient_of_the_temperature_is_that_of_its_loss(log_probs, target, logarithm):
    log_temperature = torch.tensor(logarithm, requires_grad=True)
    temperature_loss(log_temperature, torch.tensor(log_probs), target).mean().backward()
    found = temperature_gradient(torch.tensor(log_probs), target)
    assert torch.allclose(found, log_temperature.grad, rtol=1e-5, atol=1e-4)


def test_cloning_compares_actions_part_by_part():
    assert cloning_loss(torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, 3.0]])).tolist() == [2.5]  # (1 + 4) / 2


def test_targets_follow_their_networks_by_the_rate():
    target, source = torch.tensor([0.0]), torch.tensor([10.0])
    follow([target], [source], 0.1)
    assert target.tolist() == [1.0]


def test_the_networks_of_an_ensemble_do_not_know_of_each_other():
    torch.manual_seed(0)
    seen = Features(SpaceSpec(2, 1), {}, None, "")
    both = Ensemble(2, seen, 1, [8])
    one = Ensemble(1, seen, 1, [8])
    with torch.no_grad():
        for whole, part in zip(both.parameters(), one.parameters(), strict=True):
            part.copy_(whole[1:])
    observations, actions = torch.randn(5, 2), torch.randn(5, 1)
    assert torch.allclose(both(observations, actions)[1], one(observations, actions)[0], atol=1e-6)


# --- returns over several steps


def column(*values):
    return np.array(values).reshape(-1, 1)


def ahead(rewards, *, ended=(), invalid=(), discount=0.5, steps=2):
    places = np.arange(len(rewards))
    return n_step(
        column(*rewards).astype(np.float32), np.isin(column(*places), ended), ~np.isin(column(*places), invalid),
        discount=discount, steps=steps,
    )  # fmt: skip


def test_a_return_sums_the_rewards_of_n_steps_and_the_value_of_what_follows_weighs_less():
    found = ahead([1.0, 2.0, 4.0, 8.0], steps=3)
    assert found.returns[:, 0].tolist() == [3.0, 6.0, 8.0, 8.0]  # 1 + 2/2 + 4/4; 2 + 4/2 + 8/4; 4 + 8/2; 8
    assert found.discounts[:, 0].tolist() == [0.125, 0.125, 0.25, 0.5]
    assert found.last[:, 0].tolist() == [2, 3, 3, 3]


def test_a_return_ends_with_its_episode():
    found = ahead([1.0, 2.0, 4.0, 8.0], ended=[1])
    assert found.returns[:, 0].tolist() == [2.0, 2.0, 8.0, 8.0]
    assert found.last[:, 0].tolist() == [1, 1, 3, 3]


def test_a_return_does_not_reach_over_a_step_without_a_decision():
    assert ahead([1.0, 2.0, 4.0], invalid=[1]).last[:, 0].tolist() == [0, 2, 2]


def test_decisions_of_different_lengths_discount_each_by_its_own():
    ahead = n_step(column(1.0, 8.0), column(False, False), column(True, True), discount=column(0.5, 0.25), steps=2)
    assert ahead.returns.ravel().tolist() == [5, 8]  # 1 + 8 / 2
    assert ahead.discounts.ravel().tolist() == [0.125, 0.25]


@given(st.lists(st.tuples(st.integers(-4, 4), st.booleans()), min_size=1, max_size=12), st.integers(1, 6))
def test_returns_over_n_steps_are_those_of_the_plain_sum(steps_taken, n):
    rewards, ended = zip(*steps_taken, strict=True)
    found = ahead(rewards, ended=np.flatnonzero(ended), steps=n)
    for t in range(len(rewards)):
        last = next((i for i in range(t, min(t + n, len(rewards)) - 1) if ended[i]), min(t + n, len(rewards)) - 1)
        assert found.last[t, 0] == last
        assert found.returns[t, 0] == sum(0.5 ** (i - t) * rewards[i] for i in range(t, last + 1))
        assert found.discounts[t, 0] == 0.5 ** (last - t + 1)


# --- policy


def test_the_density_of_a_squashed_action_is_that_of_the_transformed_gaussian():
    torch.manual_seed(0)
    spec = SpaceSpec(3, 2, None, np.array([-1.0, 0.0], np.float32), np.array([1.0, 4.0], np.float32))
    policy = SquashedGaussianPolicy(SquashedGaussianConfig("squashed_gaussian", [8]), spec)
    observations, noise = torch.randn(6, 3), torch.randn(6, 2)
    mean, log_std = policy._moments(observations)
    transforms = [TanhTransform(), AffineTransform(torch.tensor([0.0, 2.0]), torch.tensor([1.0, 2.0]))]
    expected = TransformedDistribution(Normal(mean, log_std.exp()), transforms)
    actions, log_probs = policy.act(observations, noise)
    assert torch.allclose(log_probs, Independent(expected, 1).log_prob(actions), atol=1e-3)
    assert torch.allclose(policy.evaluate_actions(observations, actions)[0], log_probs, atol=1e-3)
    assert (actions >= torch.tensor([-1.0, 0.0])).all()
    assert (actions <= torch.tensor([1.0, 4.0])).all()


def test_a_squashed_policy_samples_and_says_what_is_most_likely_in_one_pass():
    torch.manual_seed(0)
    bounds = np.ones(2, np.float32)
    policy = SquashedGaussianPolicy(
        SquashedGaussianConfig("squashed_gaussian", [8]), SpaceSpec(3, 2, None, -bounds, bounds)
    )
    observations, noise = torch.randn(6, 3), torch.randn(6, 2)
    for found, expected in zip(
        policy.act_and_mode(observations, noise), Policy.act_and_mode(policy, observations, noise), strict=True
    ):
        assert torch.equal(found, expected)


def exploring(**options):
    torch.manual_seed(0)
    spec = SpaceSpec(3, 2, None, np.array([-1.0, 0.0], np.float32), np.array([1.0, 4.0], np.float32))
    return SquashedGaussianPolicy(SquashedGaussianConfig("squashed_gaussian", [8], **options), spec)


def beside(columns):
    """[N, 5] noise of two Gaussian numbers, and beside them the choice and a uniform action."""
    return torch.cat([torch.zeros(len(columns), 2), torch.tensor(columns)], 1)


def test_where_the_choice_is_below_the_share_the_action_is_uniform_within_the_bounds():
    policy, seen = exploring(random_actions=0.3), torch.zeros(3, 3)
    actions, log_probs = policy.act(seen, beside([[0.29, 0.75, 0.25], [0.31, 0.75, 0.25], [0.0, 0.0, 1.0]]))
    likely = policy.act(seen, None)[0]
    assert torch.allclose(actions[0], torch.tensor([0.5, 1.0]))  # three quarters of -1 to 1, one quarter of 0 to 4
    assert torch.equal(actions[1], likely[1])
    assert torch.allclose(actions[2], torch.tensor([-1.0, 4.0]), atol=1e-5)
    assert log_probs.isfinite().all()


def test_at_the_beginning_of_training_every_action_is_uniform():
    policy, seen = exploring(random_steps=100), torch.zeros(1, 3)
    noise = beside([[0.99, 0.75, 0.25]])
    assert torch.allclose(policy.act(seen, noise)[0], torch.tensor([[0.5, 1.0]]))
    policy.count_steps(100)
    assert torch.equal(policy.act(seen, noise)[0], policy.act(seen, None)[0])


def test_a_policy_without_a_random_beginning_takes_weights_of_one_that_has_it():
    taught, policy, seen = exploring(random_steps=100), exploring(), torch.ones(1, 3)
    with torch.no_grad():
        taught.actor[-1].bias.fill_(0.5)
    policy.load_weights(taught.acting_weights())
    assert torch.equal(policy.act(seen, None)[0], taught.act(seen, None)[0])


@pytest.mark.parametrize("options", [{}, {"random_actions": 0.5}, {"random_steps": 10}])
def test_a_learner_draws_no_uniform_actions_and_a_worker_only_where_they_are_wanted(options):
    policy = exploring(**options)
    assert policy.noise(np.random.default_rng(0), 7).shape == (7, 5 if options else 2)
    gaussian = torch.ones(1, 2)
    assert torch.equal(policy.act(torch.zeros(1, 3), gaussian)[0], exploring().act(torch.zeros(1, 3), gaussian)[0])


def squashed(low, high):
    torch.manual_seed(0)
    spec = SpaceSpec(3, len(low), None, np.array(low, np.float32), np.array(high, np.float32))
    return SquashedGaussianPolicy(SquashedGaussianConfig("squashed_gaussian", [8]), spec)


def test_a_number_of_the_action_with_equal_bounds_keeps_their_value_and_has_no_part_in_the_density():
    policy, observations, noise = squashed([-1.0, 0.3], [1.0, 0.3]), torch.randn(6, 3), torch.randn(6, 2)
    actions, log_probs = policy.act(observations, noise)
    mean, log_std = policy._moments(observations)
    first = TransformedDistribution(Normal(mean[:, 0], log_std[:, 0].exp()), [TanhTransform()])
    assert (actions[:, 1] == np.float32(0.3)).all()
    assert torch.allclose(log_probs, first.log_prob(actions[:, 0]), atol=1e-3)
    assert torch.allclose(policy.evaluate_actions(observations, actions)[0], log_probs, atol=1e-3)


@given(st.sampled_from([0.0, 1.0, -300.0]), st.sampled_from([0.0, 1e-45, 1e-12, 1e-6, 1.0, 1e15]))
def test_densities_and_their_gradients_are_finite_however_small_or_large_a_range_is(low, width):
    policy, observations, noise = squashed([-1.0, low], [1.0, low + width]), torch.ones(4, 3), torch.ones(4, 2)
    actions, log_probs = policy.act(observations, noise)
    log_probs = log_probs + policy.evaluate_actions(observations, actions.detach())[0]
    gradients = torch.autograd.grad(log_probs.sum() + actions.sum(), policy.actor.parameters())
    assert all(found.isfinite().all() for found in (actions, log_probs, *gradients))
    assert squared_size(actions, *(torch.from_numpy(b) for b in finite_bounds(policy.spec, ""))).isfinite().all()


def test_a_number_with_equal_bounds_has_no_part_in_the_entropy_to_aim_at(tmp_path):
    config = sac(tmp_path).algorithm
    low, high = np.array([-1.0, 0.0, 0.0], np.float32), np.array([1.0, 1.0, 0.0], np.float32)
    spec = SpaceSpec(1, 3, None, low, high)
    steps = sac(tmp_path).algorithm_class(config)
    steps.begin(SquashedGaussianPolicy(SquashedGaussianConfig("squashed_gaussian", [8]), spec), spec, CPU, None)
    assert steps._target_entropy == -0.5 * 2


LARGEST = float(np.finfo(np.float32).max)


@pytest.mark.parametrize(
    ("low", "high", "says"),
    [
        ([0.0, -LARGEST], [1.0, LARGEST], "unbounded .number 1 lies between"),
        ([0.0], [np.inf], "unbounded .number 0 lies between"),
        ([0.0], [1e30], "unbounded .number 0 lies between"),
        ([2.0, 3.0], [2.0, 3.0], r"a single action, \[2\. 3\.\]"),
        ([-1.0, 1.0], [1.0, -1.0], "number 1 of the simulator's actions lies between 1.0 and -1.0"),
        ([np.nan], [1.0], "number 0 of the simulator's actions lies between nan and 1.0"),
    ],
)
def test_bounds_that_leave_no_range_to_learn_in_are_refused_by_their_number(low, high, says):
    with pytest.raises(ConfigError, match=says):
        squashed(low, high)


def test_a_squashed_policy_needs_bounds():
    with pytest.raises(ConfigError, match="continuous actions with finite bounds"):
        SquashedGaussianPolicy(SquashedGaussianConfig("squashed_gaussian"), SpaceSpec(3, 1, 2))


# --- replay buffer


def fragment(first, steps, *, ends=()):
    """One environment that counts: observation t, reward t; episodes end after the steps given as {step: how}."""
    numbers = np.arange(first, first + steps + 1, dtype=np.float32)
    ends = dict(ends)
    rows = np.arange(steps)
    return TrajectoryBatch(
        observations=numbers.reshape(-1, 1, 1),
        actions=np.zeros((steps, 1, 1), np.float32),
        log_probs=np.zeros((steps, 1), np.float32),
        rewards=numbers[:-1].reshape(-1, 1),
        terminated=np.array([[ends.get(t) == "terminated"] for t in rows]),
        truncated=np.array([[ends.get(t) == "truncated"] for t in rows]),
        valid=np.ones((steps, 1), bool),
        final_observations=np.full((len(ends), 1), 99.0, np.float32),
        final_index=np.array(sorted(ends), dtype=np.int64),
        policy_version=7,
    )


def held(buffer):
    return sorted(stored(buffer).rewards.tolist())


def stored(buffer):
    return buffer.transitions(StoredRows(buffer.state()["rows"]))


def test_a_full_buffer_forgets_the_oldest_steps():
    buffer = ReplayBuffer(5, SPEC, CPU, 0.5)
    buffer.add(fragment(0, 4))
    assert held(buffer) == [0, 1, 2, 3]
    buffer.add(fragment(4, 3))
    assert held(buffer) == [2, 3, 4, 5, 6]
    assert (len(buffer), buffer.added) == (5, 7)


def test_a_fragment_longer_than_the_buffer_leaves_its_newest_steps():
    buffer = ReplayBuffer(3, SPEC, CPU, 0.5)
    buffer.add(fragment(0, 8))
    assert held(buffer) == [5, 6, 7]
    buffer.add(fragment(8, 1))
    assert held(buffer) == [6, 7, 8]


def test_time_limits_and_terminations_stand_apart_and_successors_are_the_true_ones():
    buffer = ReplayBuffer(10, SPEC, CPU, 0.5)
    buffer.add(fragment(0, 4, ends={1: "truncated", 3: "terminated"}))
    rows = stored(buffer)
    assert rows.terminated.tolist() == [0, 0, 0, 1]
    assert rows.truncated.tolist() == [0, 1, 0, 0]
    assert rows.next_observations[:, 0].tolist() == [1, 99, 3, 99]
    assert buffer.versions(StoredRows(buffer.state()["rows"])).tolist() == [7, 7, 7, 7]


def test_a_remembered_step_over_several_leads_to_where_the_last_of_them_led():
    buffer = ReplayBuffer(10, SPEC, CPU, 0.5, 3)
    buffer.add(fragment(0, 4, ends={3: "terminated"}))
    rows = stored(buffer)
    assert rows.observations[:, 0].tolist() == [0, 1, 2, 3]
    assert rows.next_observations[:, 0].tolist() == [3, 99, 99, 99]
    assert rows.rewards.tolist() == [1.0, 2.75, 3.5, 3.0]  # 0 + 1/2 + 2/4; 1 + 2/2 + 3/4; 2 + 3/2; 3
    assert rows.terminated.tolist() == [0, 1, 1, 1]


@given(st.integers(1, 12), st.integers(1, 12), st.integers(2, 30))
def test_a_restored_buffer_goes_on_like_the_one_before_also_with_another_capacity(capacity, other, steps):
    buffer = ReplayBuffer(capacity, SPEC, CPU, 0.5)
    buffer.add(fragment(0, steps // 2))
    buffer.add(fragment(steps // 2, steps - steps // 2))
    restored = ReplayBuffer(other, SPEC, CPU, 0.5)
    restored.load_state(buffer.state())
    expected = [*range(steps)][-capacity:][-other:]
    for more in (2, 1, 5):
        assert (held(restored), restored.added) == (expected, steps)
        restored.add(fragment(steps, more))
        expected, steps = [*expected, *range(steps, steps + more)][-other:], steps + more


def test_every_step_is_drawn_equally_often():
    buffer = ReplayBuffer(4, SPEC, CPU, 0.5)
    buffer.add(fragment(0, 4))
    drawn, _ = buffer.draw(8000, torch.Generator().manual_seed(0))
    counts = torch.bincount(buffer.transitions(buffer.read(drawn)).rewards.long(), minlength=4)
    assert counts.min() > 1800


# --- whole runs


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Metrics of a run whose first iteration has too few steps to learn from."""
    config = sac(tmp_path_factory.mktemp("run"), "algorithm.learning_starts=128")
    return metrics(rlpipe.train(config, local=True).directory)


def test_gradient_steps_keep_to_the_ratio_and_begin_when_there_is_enough(rows):
    assert [row["train/sac/gradient_steps"] for row in rows] == [0, 32, 32, 32]
    assert [row["train/sac/update_to_data"] for row in rows[1:]] == [0.5] * 3
    assert [row["train/replay_buffer/total_samples"] for row in rows] == [64, 128, 192, 256]


def test_collection_is_one_update_ahead_of_learning(rows):
    assert [row["rollout/policy_lag_max"] for row in rows if "rollout/policy_lag_max" in row] == [0, 1, 1, 1]


def test_soft_actor_critic_learns_the_scripted_task(tmp_path):
    rows = metrics(rlpipe.train(sac(tmp_path, "runner.total_timesteps=1280", "learner.lr=1e-2"), local=True).directory)
    assert rows[0]["env/return"] < 7.0
    assert rows[-1]["env/return"] > 9.0  # of 10
    assert rows[-1]["train/critic/q_data"] < 2.0  # at most 1 / (1 - 0.5)


GOALS = {"train": {"name": "gymnasium", "id": "tests.helpers.gym_trees:Place-v0", "total_num_envs": 4}}


@pytest.mark.parametrize("task", [{}, {"env": GOALS}], ids=["vectors", "goals in hindsight"])
def test_a_restored_learner_goes_on_as_if_nothing_had_happened(task, tmp_path):
    plan = sac(tmp_path, "rollout.horizon=20", *(["algorithm.hindsight=0.8"] if task else []), **task).schedule
    worker = RolloutWorker(plan, 0, 1)
    learner = OffPolicyLearner(plan, worker.ready().spec)
    for iteration in (1, 2):
        batch, _ = worker.collect(learner.snapshot(), 0)
        learner.update(0, iteration, batch)
    again = OffPolicyLearner(plan, worker.ready().spec)
    again.load_state(learner.state())
    batch, _ = worker.collect(learner.snapshot(), 0)
    ways = [one.update(0, 3, batch)[0].weights for one in (learner, again)]
    assert all(np.array_equal(ways[0][name], ways[1][name]) for name in ways[0])
    mine, other = learner.state(), again.state()
    assert all(np.array_equal(mine[name], array) for name, array in other.items())


def test_the_protocol_says_whether_the_number_of_gradient_steps_is_fixed(tmp_path):
    fixed, free = sac(tmp_path), sac(tmp_path, "algorithm.update_to_data=null")
    assert [protocol(one)["gradient_steps"] for one in (fixed, free)] == ["fixed", "as many as fit"]


@pytest.mark.soak
def test_on_ray_it_takes_as_many_gradient_steps_as_fit_while_workers_collect(tmp_path, ray_cluster):
    # 16 steps of at least 50 ms: many times what a second gradient step takes, on however busy a machine.
    fewer = ("runner.total_timesteps=192", "rollout.num_workers=1", "evaluation.episodes=1")
    config = sac(tmp_path, "algorithm.update_to_data=null", "env.train.step_seconds=0.05", *fewer)
    rows = metrics(rlpipe.train(config).directory)
    assert min(row["train/sac/gradient_steps"] for row in rows[1:]) > 1


def demonstrated(tmp_path, *overrides):
    """RLPD with demonstrations of the scripted task, of which half of each batch is taken."""
    base = {"name": "rlpd", "batch_size": 32, "critic_hidden_sizes": [16], "learning_starts": 64, "update_to_data": 0.5}
    return sac(tmp_path, f"demos={demonstrator(tmp_path)}", "rollout.num_workers=1", *overrides, algorithm=base)


def test_demonstrations_are_replayed_and_imitated_and_an_evaluation_does_without_them(tmp_path):
    run = rlpipe.train(demonstrated(tmp_path, "learner.lr=3e-3"), local=True).directory
    rows = metrics(run)
    assert {row["train/demo_buffer/total_samples"] for row in rows} == {200}
    assert {row["train/demo_buffer/num_trajectories"] for row in rows} == {20}
    assert rows[-1]["train/actor/cloning_loss"] < 0.5 * rows[0]["train/actor/cloning_loss"]
    (tmp_path / "demos.h5").unlink()
    assert rlpipe.evaluate(run, episodes=2, local=True).metrics["eval/num_trajectories"] == 2


def test_the_share_of_demonstrations_stands_at_the_end_of_each_batch(tmp_path, monkeypatch):
    plan = demonstrated(tmp_path, "algorithm.demo_share=0.25").schedule
    worker = RolloutWorker(plan, 0, 1)
    learner = OffPolicyLearner(plan, worker.ready().spec)
    seen = []
    step = learner._algorithm.step
    monkeypatch.setattr(learner._algorithm, "step", lambda batch: seen.append(batch) or step(batch))
    learner.update(0, 1, worker.collect(learner.snapshot(), 0)[0])
    assert {batch.demonstrations for batch in seen} == {8}  # of 32
    assert all((batch.actions[-8:].abs() - 0.8).abs().max() < 1e-6 for batch in seen)


def test_a_run_writes_what_the_catalogue_says_of_its_algorithm(rows):
    written = set().union(*rows)
    for name, metric in CATALOGUE.items():
        if name.startswith(("train/", "rollout/")):
            declared = not metric.algorithms or "sac" in metric.algorithms
            assert declared or name not in written, f"{name} is written, but not declared"
            assert not declared or name in written or metric.needs, f"{name} is declared, but not written"


def test_a_stage_may_not_change_the_options_of_its_algorithm(tmp_path):
    parts = [{"name": "one", "timesteps": 64, "overrides": {"algorithm.discount": 0.9}}, {"name": "two"}]
    with pytest.raises(ConfigError, match=r"stages\[0\] \(one\).overrides holds algorithm.discount"):
        sac(tmp_path, stages=parts)


def test_steps_that_are_not_finite_are_left_out_and_counted(tmp_path):
    nan = "env.train.script=[[{length: 8, reward: .nan}]]"
    plan = sac(tmp_path, nan, "env.train.match_actions=false").schedule
    worker = RolloutWorker(plan, 0, 1)
    learner = OffPolicyLearner(plan, worker.ready().spec)
    _, window = learner.update(0, 1, worker.collect(learner.snapshot(), 0)[0])
    found = window.read([CATALOGUE["train/n_updates"], CATALOGUE["train/nonfinite_steps"]])
    assert found["train/nonfinite_steps"] > 0
    assert sum(found.values()) == 32


def test_alone_it_needs_a_ratio(tmp_path):
    with pytest.raises(ConfigError, match=r"With --local\s+nothing runs side by side"):
        rlpipe.train(sac(tmp_path, "algorithm.update_to_data=null"), local=True)
    assert not list(tmp_path.iterdir())


def test_it_refuses_a_policy_without_bounds(tmp_path):
    with pytest.raises(ConfigError, match=r"policy\.name=squashed_gaussian"):
        rlpipe.train(sac(tmp_path, policy={"name": "mlp"}), local=True)


def test_algorithms_that_learn_from_probabilities_refuse_uniform_actions(tmp_path):
    with pytest.raises(ConfigError, match=r"policy\.random_actions is 0\.3, but\s+algorithm\.name=ppo"):
        scripted(tmp_path, policy={"name": "squashed_gaussian", "random_actions": 0.3})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["algorithm.reward_range=[1]"], "must hold two numbers"),
        (["algorithm.reward_range=[0, -1]"], "must hold two numbers"),
        (["algorithm.reward_range=[-1, 0]", "algorithm.discount=1"], "returns have no bounds"),
    ],
)
def test_a_range_of_rewards_must_bound_returns(options, words, tmp_path):
    with pytest.raises(ConfigError, match=words.replace(" ", r"\s+")):
        sac(tmp_path, *options)


def test_targets_are_clipped_to_the_returns_that_the_rewards_allow(tmp_path):
    few = ("runner.total_timesteps=64", "evaluation.episodes=1")
    found = []
    for possible in ("null", "[0, 0.1]"):
        run = rlpipe.train(sac(tmp_path, f"algorithm.reward_range={possible}", *few), local=True).directory
        found.append(metrics(run)[-1]["train/critic/q_target"])
    assert found[0] > 0.3  # the task pays up to 1 a step
    assert found[1] <= 0.2  # 0.1 / (1 - 0.5)


def test_a_penalty_keeps_actions_small(tmp_path):
    sizes = []
    for penalty in (0.0, 100.0):
        plan = sac(tmp_path, f"algorithm.action_penalty={penalty}", "learner.lr=1e-2").schedule
        worker = RolloutWorker(plan, 0, 1)
        learner = OffPolicyLearner(plan, worker.ready().spec)
        for iteration in (1, 2, 3):
            batch, _ = worker.collect(learner.snapshot(), 0)
            learner.update(0, iteration, batch)
        with torch.no_grad():
            actions, _ = learner._policy.act(torch.from_numpy(batch.observations[0]), None)
        sizes.append(actions.square().mean().item())
    assert sizes[1] < 0.1 * sizes[0]


def test_values_beyond_the_largest_return_raise_an_alert():
    monitor = Monitor(CATALOGUE, {"largest_return": 1.0})
    healthy = [monitor.judge(i, {"train/critic/q_data": 0.9}) for i in range(1, 6)]
    runaway = [monitor.judge(i, {"train/critic/q_data": 3.0}) for i in range(6, 11)]
    assert not any(healthy)
    told = [(alert.rule, alert.level) for alert in runaway[-1]]
    assert ("runaway", "critical") in told


def test_a_warm_start_continues_critics_and_temperature_of_the_same_shapes(tmp_path):
    """Nothing is learnt in the later runs."""
    before = rlpipe.train(sac(tmp_path), local=True).directory

    def continued(*overrides: str) -> dict[str, np.ndarray]:
        options = (f"policy.warm_start={before}", "algorithm.learning_starts=10_000", *overrides)
        return newest(rlpipe.train(sac(tmp_path, *options), local=True).directory).arrays

    first, then, other = newest(before).arrays, continued(), continued("algorithm.critic_hidden_sizes=[8]")
    of_algorithm = [name for name in first if name.startswith(("algorithm/critics/", "algorithm/targets/"))]
    assert len(of_algorithm) == 8
    for name in (*of_algorithm, "algorithm/log_temperature", *(name for name in first if name.startswith("policy/"))):
        assert np.array_equal(then[name], first[name]), name
    assert other["algorithm/critics/biases.0"].shape == (2, 1, 8)
    assert other["algorithm/log_temperature"] != first["algorithm/log_temperature"]


@pytest.mark.parametrize("lacks", ["log_temperature", "critics/biases.0"])
def test_a_state_that_lacks_a_part_is_not_continued(tmp_path, lacks):
    config, policy = sac(tmp_path), exploring()
    algorithm = config.algorithm_class(config.algorithm)
    algorithm.begin(policy, policy.spec, CPU, None)
    before = {name: tensor.clone() for name, tensor in algorithm.state().items()}
    earlier = {name: tensor + 1 for name, tensor in before.items() if name.startswith(algorithm.continued)}
    del earlier[lacks]
    algorithm.continue_with(earlier)
    assert all(torch.equal(tensor, before[name]) for name, tensor in algorithm.state().items())
