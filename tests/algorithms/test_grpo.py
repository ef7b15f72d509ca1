"""Group-relative policy optimisation: groups that begin alike, whole episodes, and a loss without a critic."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import rlpipe
from rlpipe.collection.collector import Collector
from rlpipe.collection.worker import RolloutWorker
from rlpipe.config.loading import load_config
from rlpipe.config.schema import FIRST_TRAINING_SEED
from rlpipe.errors import ConfigError
from rlpipe.functional.aggregation import loss_weights, trajectory_sums
from rlpipe.learning.on_policy import Learner
from rlpipe.metrics import catalogue as m
from rlpipe.policies.mlp import MLPPolicy
from rlpipe.run.checkpoint import newest
from tests.helpers.runs import lines, scripted, to_mapping, without_timings
from tests.helpers.simulators import Unnumbered

FOUR = [[{"length": 5, "reward": 1.0}], [{"length": 3}], [{"length": 2}], [{"length": 4, "reward": 1.0}]]
"""Episodes of four slots: two score 1, two 0."""
ONCE = "runner.total_timesteps=128"
"""A single iteration."""
ALIKE = [[{"length": length, "end": "terminated"}] for length in (5, 3, 2, 4)]
"""Four that all score 0."""


def grpo(tmp_path, *overrides, script=FOUR, match_actions=False, **algorithm):
    """Two groups of four environments on the scripted simulator, at most 16 steps an episode, 4 iterations."""
    return scripted(
        tmp_path,
        "runner.total_timesteps=512",
        *overrides,
        env={
            "train": {
                "name": "tests.helpers.simulators:Unnumbered",
                "total_num_envs": 8,
                "script": script,
                "match_actions": match_actions,
            }
        },
        algorithm={"name": "grpo", "group_size": 4, "update_epochs": 2, "num_minibatches": 2, **algorithm},
    )


def trained(config):
    return rlpipe.train(config, local=True).directory


def rows_of(config):
    return without_timings(trained(config))


# --- formulas


def test_by_decision_every_decision_weighs_alike():
    assert loss_weights(torch.tensor([7, 7, 7, 9]), "decision").tolist() == [1, 1, 1, 1]


def test_by_trajectory_a_long_one_weighs_no_more_than_a_short_one():
    # 4 decisions, 2 trajectories: each has weight 2, over three decisions and over one
    assert loss_weights(torch.tensor([7, 7, 7, 9]), "trajectory").tolist() == [2 / 3, 2 / 3, 2 / 3, 2]


def test_another_aggregation_is_refused_by_name():
    with pytest.raises(ValueError, match="'token'; it must be one of decision, trajectory"):
        loss_weights(torch.tensor([0]), "token")


@given(
    trajectory=st.lists(st.integers(0, 3), min_size=1, max_size=20),
    cuts=st.lists(st.integers(0, 20), max_size=4),
    aggregation=st.sampled_from(["decision", "trajectory"]),
)
def test_however_the_batch_is_cut_its_minibatches_sum_to_the_formula_of_the_whole(trajectory, cuts, aggregation):
    numbers, count = torch.tensor(trajectory), len(trajectory)
    losses = torch.arange(1.0, count + 1, dtype=torch.float64)
    weighted = loss_weights(numbers, aggregation) * losses
    bounds = sorted({0, count, *(cut for cut in cuts if cut < count)})
    summed = sum((end - begin) / count * weighted[begin:end].mean() for begin, end in itertools.pairwise(bounds))
    means = [losses[numbers == number].mean() for number in numbers.unique()]
    whole = losses.mean() if aggregation == "decision" else torch.stack(means).mean()
    assert float(summed) == pytest.approx(float(whole))


def test_what_a_trajectory_sums_to():
    assert trajectory_sums(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([5, 3, 5])).tolist() == [2, 5]


# --- configuration


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("algorithm.group_size=3", r"8 environments of a worker .* cannot be cut into groups of 3"),
        ("rollout.num_workers=4", r"2 environments of a worker .* cannot be cut into groups of 4"),
        ("algorithm.group_size=1", r"group_size is 1; it must be at least 2"),
        ("algorithm.kl_beta=-1", r"kl_beta is -1.0; it must be at least 0"),
        ("algorithm.loss_aggregation=trajectories", r"did you mean 'trajectory'\?"),
        ("algorithm.cloning_decay=2", r"cloning_decay is 2.0; it must be at least 0 and at most 1"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_starts(tmp_path, override, words):
    with pytest.raises(ConfigError, match=words):
        grpo(tmp_path, override)


def test_episodes_that_do_not_end_within_the_horizon_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"2 of 8 episodes did not end within rollout.horizon, which is 4; .* Raise"):
        trained(grpo(tmp_path, "rollout.horizon=4"))


def test_a_simulator_that_does_not_begin_alike_from_one_seed_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"2 of 2 groups of 4 environments .* their first observations differ"):
        trained(grpo(tmp_path, "env.train.name=scripted"))


# --- collection


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Directory of a run of four iterations."""
    return trained(grpo(tmp_path_factory.mktemp("run")))


def test_a_group_begins_with_one_seed_and_no_other_group_or_iteration_with_the_same(run):
    episodes = lines(run, "episodes.jsonl")
    seeds = {(e["iteration"], e["slot"] // 4): set() for e in episodes}
    for episode in episodes:
        seeds[episode["iteration"], episode["slot"] // 4].add(episode["seed"])
    assert len(seeds) == 4 * 2
    assert all(len(of_group) == 1 for of_group in seeds.values())
    assert len(set.union(*seeds.values())) == 4 * 2
    assert min(set.union(*seeds.values())) >= FIRST_TRAINING_SEED


def test_each_environment_plays_one_episode_an_iteration_and_its_steps_are_those_that_count(run):
    for row in without_timings(run):
        assert row["env/num_trajectories"] == 8
        assert row["rollout/num_decisions"] == 2 * (5 + 3 + 2 + 4)
        assert row["train/num_samples"] == 2 * row["rollout/num_decisions"]  # two epochs
        assert row["rollout/valid_fraction"] == 28 / (16 * 8)
        assert row["rollout/score_mean"] == 0.5


def test_a_collection_is_over_when_its_longest_episode_is(tmp_path):
    config = grpo(tmp_path)
    counts = [0] * 4

    def next_seed(n):
        counts[n] += 1
        return 7 if counts[n] % 2 else None

    simulator = Unnumbered.make(config.env.train, 4, next_seed)
    policy = MLPPolicy(config.policy, simulator.spec)
    collector = Collector(simulator, policy, 16, worker=0, first_slot=0, noise_seed=[0], whole_episodes=True)
    for collection in (1, 2):
        batch, window = collector.collect(0)
        assert simulator.taken == 5 * collection
        assert batch.valid.sum(0).tolist() == [5, 3, 2, 4]
        assert batch.terminated.sum() + batch.truncated.sum() == len(window.episodes) == 4
        assert [episode.step for episode in window.episodes] == [16 * (collection - 1) + t for t in (2, 3, 4, 5)]


def test_the_number_of_workers_changes_nothing(tmp_path):
    config = to_mapping(grpo(tmp_path, "learner.lr=0", "algorithm.kl_beta=0.1"))
    runs = [rows_of(load_config(config, [f"rollout.num_workers={count}"])) for count in (1, 2)]
    same = [  # whose action rounds how may depend on how many act at once
        [(row["env/return"], row["rollout/valid_fraction"], row["rollout/group_score_std_mean"]) for row in rows]
        for rows in runs
    ]
    assert same[0] == same[1]


# --- learning


def test_no_critic_is_learnt_or_spoken_of(tmp_path):
    config = grpo(tmp_path, "runner.save_interval=1", "runner.keep_checkpoints=9")
    run = trained(config)
    assert not [name for row in without_timings(run) for name in row if "critic" in name or "value" in name]
    last = newest(run).arrays
    torch.manual_seed(config.runner.seed)
    first = MLPPolicy(config.policy, Unnumbered.make(config.env.train, 1, lambda _: 0).spec).weights()
    assert all(np.array_equal(last[f"policy/{name}"], first[name]) for name in first if name.startswith("critic."))
    assert not np.array_equal(last["policy/actor.0.weight"], first["actor.0.weight"])


def test_what_ppo_says_of_its_policy_grpo_says_too(tmp_path):
    row = rows_of(grpo(tmp_path, ONCE, dual_clip=3.0))[0]
    spoken_of = {
        name
        for name, metric in m.CATALOGUE.items()
        if "grpo" in metric.algorithms and not (metric.needs or metric.is_histogram or metric.hidden)
    }
    assert spoken_of - row.keys() == {"train/actor/clip_range"}  # the two sides differ


def test_a_group_that_scored_alike_teaches_nothing(tmp_path):
    config = grpo(tmp_path, script=ALIKE)
    row = rows_of(config)[-1]
    assert row["rollout/frac_reward_zero_std"] == 1
    assert (row["rollout/advantages_min"], row["rollout/advantages_max"]) == (0, 0)
    assert (row["train/loss"], row["train/actor/approx_kl"]) == (0, pytest.approx(0, abs=1e-12))
    assert "rollout/group_filtered_fraction" not in row


def test_an_iteration_in_which_all_groups_are_filtered_takes_no_step_and_says_so(tmp_path):
    rows = rows_of(grpo(tmp_path, script=ALIKE, filter_groups=True, entropy_coef=1.0))
    for row in rows:
        assert row["rollout/group_filtered_fraction"] == 1
        assert (row["train/n_updates"], row["train/epochs_run"], row["train/num_samples"]) == (0, 0, 0)
        assert not {"train/loss", "train/actor/grad_norm", "train/actor/advantages_norm_mean"} & row.keys()
        assert row["rollout/num_decisions"] == 28
    assert rows[0]["train/actor/action_std"] == rows[-1]["train/actor/action_std"]


def test_where_all_groups_are_filtered_an_observation_tree_leaves_its_statistics(tmp_path):
    unpaid = {"name": "gymnasium", "id": "tests.helpers.gym_trees:Unpaid-v0", "total_num_envs": 8}
    algorithm = {"name": "grpo", "group_size": 4, "filter_groups": True}
    options = ("policy.normalize_observations=true", "runner.total_timesteps=256", "rollout.horizon=16")
    rows = rows_of(scripted(tmp_path, *options, env={"train": unpaid}, algorithm=algorithm))
    assert [(row["rollout/group_filtered_fraction"], row["train/n_updates"]) for row in rows] == [(1, 0)] * 2


def test_a_filtered_group_is_out_of_the_loss_and_the_others_are_not(tmp_path):
    script = [*FOUR, *ALIKE]
    row = rows_of(grpo(tmp_path, ONCE, script=script, filter_groups=True))[0]
    assert (row["rollout/group_filtered_fraction"], row["rollout/frac_reward_zero_std"]) == (0.5, 0.5)
    assert (row["rollout/num_decisions"], row["train/num_samples"]) == (28, 2 * 14)
    assert row["train/actor/advantages_norm_max"] == row["rollout/advantages_max"] > 0.86


def test_the_loss_by_trajectory_is_the_mean_over_trajectories(tmp_path):
    # Without a step in between every ratio is 1, so that a decision's loss is minus its advantage, which are 0.866 and
    # -0.866 for two trajectories each: by trajectory they cancel, by decision 9 stand against 5.
    by_trajectory, by_decision = (
        rows_of(grpo(tmp_path, ONCE, "learner.lr=0", loss_aggregation=name, num_minibatches=5))[0]["train/loss"]
        for name in ("trajectory", "decision")
    )
    assert by_trajectory == pytest.approx(0.0, abs=1e-6)
    assert by_decision == pytest.approx(-0.8660239 * (9 - 5) / 14, rel=1e-5)


def test_a_policy_learns_the_scripted_task(tmp_path):
    config = grpo(
        tmp_path, "runner.total_timesteps=5120", "learner.lr=0.01", script=[[{"length": 8}]], match_actions=True
    )
    rows = rows_of(config)
    assert rows[0]["env/return"] < 6 < 7 < rows[-1]["env/return"]


def test_the_divergence_from_the_reference_is_part_of_the_loss_and_of_the_metrics(tmp_path):
    rows = rows_of(grpo(tmp_path, "learner.lr=0.01", kl_beta=0.5))
    assert rows[0]["rollout/kl_ref_episode"] == pytest.approx(0.0, abs=1e-5)  # the policy is its own reference
    assert rows[-1]["rollout/kl_ref_episode"] != pytest.approx(0.0, abs=1e-5)
    for row in rows:
        assert row["train/actor/kl_coef"] == 0.5
        assert row["train/loss"] == pytest.approx(row["train/actor/policy_loss"] + 0.5 * row["train/actor/kl_ref"])
        assert row["rollout/ref_logprobs_mean"] == pytest.approx(
            row["rollout/logprobs_mean"] - row["rollout/kl_ref_episode"] * 8 / 28, abs=1e-5
        )


def test_without_a_divergence_no_reference_is_kept(run):
    assert not [name for name in newest(run).arrays if name.startswith("reference/")]
    assert not [name for row in without_timings(run) for name in row if "kl_ref" in name or "kl_coef" in name]


def test_a_stage_may_change_the_size_of_groups(tmp_path):
    config = load_config(
        to_mapping(grpo(tmp_path))
        | {
            "stages": [
                {"name": "fours", "timesteps": 256, "overrides": {}},
                {"name": "pairs", "overrides": {"algorithm.group_size": 2}},
            ]
        }
    )
    episodes = lines(trained(config), "episodes.jsonl")
    for iteration, size in ((2, 4), (3, 2)):
        seeds = [e["seed"] for e in sorted(episodes, key=lambda e: e["slot"]) if e["iteration"] == iteration]
        assert len(set(seeds)) == 8 // size
        assert all(len(set(seeds[first : first + size])) == 1 for first in range(0, 8, size))


def test_the_learner_goes_on_from_a_checkpoint_as_if_nothing_had_happened(tmp_path):
    plan = grpo(tmp_path, "learner.lr=0.01", kl_beta=0.1).schedule
    worker = RolloutWorker(plan, 0, 1)
    learner, again = (Learner(plan, worker.ready().spec) for _ in range(2))
    learner.update(0, 1, worker.collect(learner.snapshot(), 0)[0])
    again.load_state(learner.state())
    batch, _ = worker.collect(learner.snapshot(), 0)
    first, second = (one.update(0, 2, batch) for one in (learner, again))
    assert all(np.array_equal(first[0].weights[name], second[0].weights[name]) for name in first[0].weights)
    assert first[1].states[m.KL_REF.name].read() == second[1].states[m.KL_REF.name].read()
