"""Staying near what one comes from: a frozen reference policy, the control of its penalty, and demonstrations."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlpipe
from rlpipe.collection.worker import RolloutWorker
from rlpipe.config.loading import load_config
from rlpipe.errors import ConfigError
from rlpipe.functional.losses import cloning_weight
from rlpipe.functional.reference import adaptive_kl_coef
from rlpipe.learning.on_policy import Learner
from rlpipe.metrics import catalogue as m
from rlpipe.run.checkpoint import load, newest, subtree
from rlpipe.run.health import run_tags, run_variables
from tests.helpers.demonstrations import steps, write
from tests.helpers.runs import lines, scripted, to_mapping, without_timings

FIXED = ("algorithm.kl_control=fixed", "algorithm.kl_coef=0.1", "learner.lr=0.01")
ADAPTIVE = (
    "algorithm.kl_control=adaptive", "algorithm.kl_target=0.05", "algorithm.kl_horizon=16", "learner.lr=0.01",
)  # fmt: skip
WHOLE = ("env.train.script=[[{length: 8}]]",)
"""Two episodes of each of the four environments fill an iteration."""


def trained(config, **options):
    return rlpipe.train(config, local=True, **options)


def rows_of(config):
    return without_timings(trained(config).directory)


# --- formulas


@pytest.mark.parametrize(
    ("kl", "expected"),
    [
        (6.0, 0.2),  # on target
        (6.6, 0.2 * (1 + 0.1 * 0.5)),  # 10 % above it, half a horizon
        (3.0, 0.2 * (1 - 0.2 * 0.5)),  # no error counts for more than 20 %
        (600.0, 0.2 * (1 + 0.2 * 0.5)),
        (-1.0, 0.2 * (1 - 0.2 * 0.5)),
    ],
)
def test_the_coefficient_follows_the_divergence(kl, expected):
    found = adaptive_kl_coef(0.2, kl, kl_target=6.0, kl_horizon=100, trajectories=50)
    assert found == pytest.approx(expected)


@given(kl=st.floats(-1e6, 1e6), trajectories=st.integers(1, 10**6), horizon=st.floats(1e-3, 1e6))
def test_the_coefficient_stays_positive_and_moves_by_a_fifth_at_most(kl, trajectories, horizon):
    found = adaptive_kl_coef(1.0, kl, kl_target=6.0, kl_horizon=horizon, trajectories=trajectories)
    assert 0.8 - 1e-12 <= found <= 1.2 + 1e-12


def test_the_weight_of_cloning_keeps_its_share_each_iteration():
    assert [cloning_weight(0.8, 0.5, iteration) for iteration in (1, 2, 3)] == [0.8, 0.4, 0.2]


# --- configuration


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("algorithm.kl_control=adaptiv", r"did you mean 'adaptive'\? Allowed values: fixed, adaptive, null"),
        ("algorithm.kl_coef=0", r"kl_coef is 0.0; it must be greater than 0"),
        ("algorithm.kl_target=0", r"kl_target is 0.0; it must be greater than 0"),
        ("algorithm.cloning_coef=-1", r"cloning_coef is -1.0; it must be at least 0"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_starts(tmp_path, override, words):
    with pytest.raises(ConfigError, match=words):
        scripted(tmp_path, override)


def test_rules_know_of_the_penalty(tmp_path):
    class Info:
        num_actions, action_dims = None, 1

    plain, adaptive = scripted(tmp_path), scripted(tmp_path, *ADAPTIVE)
    assert not {"kl_coef", "kl_target"} & run_variables(plain, Info).keys()
    assert run_variables(adaptive, Info)["kl_target"] == 0.05
    assert "adaptive_kl" in run_tags(adaptive, Info)
    assert "adaptive_kl" not in run_tags(scripted(tmp_path, *FIXED), Info)


# --- the reference


def test_the_reference_is_the_policy_that_the_run_began_with_and_never_changes(tmp_path):
    config = scripted(tmp_path, *FIXED, "runner.save_interval=1", "runner.keep_checkpoints=9")
    run = trained(config).directory
    kept = [load(path).arrays for path in sorted((run / "checkpoints").glob("*.npz"))]
    learner = Learner(config.schedule, RolloutWorker(config.schedule, 0, 1).ready().spec)
    begun = learner.snapshot().weights
    for arrays in kept:
        reference = subtree("reference/", arrays)
        assert reference.keys() == begun.keys()
        assert all(np.array_equal(reference[name], begun[name]) for name in begun)
    assert not np.array_equal(kept[-1]["policy/actor.0.weight"], begun["actor.0.weight"])


def test_after_a_warm_start_the_reference_is_what_it_started_from(tmp_path):
    taught = trained(scripted(tmp_path, "learner.lr=0.01"))
    run = trained(scripted(tmp_path, *FIXED, f"policy.warm_start={taught.directory}"))
    teacher, reference = newest(taught.directory).arrays, subtree("reference/", newest(run.directory).arrays)
    assert all(np.array_equal(array, teacher[f"policy/{name}"]) for name, array in reference.items())
    assert without_timings(run.directory)[0]["rollout/kl_ref_episode"] == pytest.approx(0.0, abs=1e-5)


def test_a_stage_that_keeps_no_reference_leaves_it_as_the_run_began(tmp_path):
    penalty = {"algorithm.kl_control": "fixed"}
    parts = [
        {"name": "free", "timesteps": 128, "overrides": {}},
        {"name": "held", "overrides": penalty},
    ]
    rows = rows_of(load_config(to_mapping(scripted(tmp_path, "learner.lr=0.01")) | {"stages": parts}))
    assert ["rollout/kl_ref_episode" in row for row in rows] == [False, False, True, True]
    assert rows[2]["rollout/kl_ref_episode"] != pytest.approx(0.0, abs=1e-4)  # two updates lie between


def test_a_run_without_penalty_keeps_no_reference(tmp_path):
    run = trained(scripted(tmp_path)).directory
    assert not [name for name in newest(run).arrays if name.startswith(("reference/", "algorithm/"))]


# --- the penalty in PPO's reward


def test_the_penalty_is_what_leaving_the_reference_costs_and_is_added_to_the_return(tmp_path):
    rows = rows_of(scripted(tmp_path, *FIXED, *WHOLE))
    assert rows[0]["rollout/non_score_reward"] == pytest.approx(0.0, abs=1e-5)  # the policy is its own reference
    assert abs(rows[-1]["rollout/non_score_reward"]) > 1e-3
    for row in rows:
        penalty = row["rollout/non_score_reward"]
        assert penalty == pytest.approx(-0.1 * row["rollout/kl_ref_episode"], rel=1e-5, abs=1e-7)
        assert penalty == pytest.approx(8 * row["rollout/non_score_reward_step"], rel=1e-5, abs=1e-7)
        assert row["rollout/shaped_return_mean"] == pytest.approx(row["rollout/score_mean"] + penalty)
        assert row["rollout/rewards"] == pytest.approx(row["env/return"] / 8)  # raw, without the penalty
        assert row["train/actor/kl_coef"] == 0.1


def test_each_trajectory_stands_in_the_distribution_of_the_divergence(tmp_path):
    row = lines(trained(scripted(tmp_path, *FIXED, *WHOLE)).directory, "metrics.jsonl")[0]
    assert sum(row["histograms"]["rollout/kl_ref_dist"]["counts"]) == 8
    assert sum(row["histograms"]["rollout/ref_logprobs_dist"]["counts"]) == 64


@pytest.mark.soak
def test_the_penalty_changes_what_is_learnt(tmp_path):
    free, held = (
        rows_of(scripted(tmp_path, "learner.lr=0.01", "runner.total_timesteps=1024", *more))
        for more in ((), ("algorithm.kl_control=fixed", "algorithm.kl_coef=10"))
    )
    assert held[-1]["rollout/kl_ref_episode"] < 1
    assert held[-1]["env/return"] < free[-1]["env/return"]


def test_the_adaptive_coefficient_follows_the_divergence_of_the_iteration_before(tmp_path):
    rows = rows_of(scripted(tmp_path, *ADAPTIVE, *WHOLE, "runner.total_timesteps=512"))
    coefs = [row["train/actor/kl_coef"] for row in rows]
    assert coefs[0] == 0.05
    for before, row, coef in zip(coefs, rows, coefs[1:], strict=False):
        kl = row["rollout/kl_ref_episode"]
        assert coef == pytest.approx(
            adaptive_kl_coef(before, kl, kl_target=0.05, kl_horizon=16, trajectories=8), rel=1e-6
        )
    assert min(coefs) < 0.05


def test_trl_finds_its_own_names(tmp_path):
    config = scripted(tmp_path, *FIXED, *WHOLE, "runner.logger.dialects=[trl,trl_legacy]")
    for row in lines(trained(config).directory, "metrics.jsonl"):
        ours, trl, legacy = row["metrics"], row["dialects"]["trl"], row["dialects"]["trl_legacy"]
        assert trl["objective/kl"] == legacy["objective/kl"] == ours["rollout/kl_ref_episode"]
        assert trl["objective/non_score_reward"] == ours["rollout/non_score_reward"]
        assert trl["objective/rlhf_reward"] == ours["rollout/shaped_return_mean"]
        assert legacy["ppo/mean_non_score_reward"] == ours["rollout/non_score_reward_step"]
        assert legacy["objective/kl_coef"] == ours["train/actor/kl_coef"]


# --- demonstrations beside experience


def cloning(tmp_path, *overrides, **tree):
    """PPO on the scripted simulator, unless told, with demonstrations whose action is always 0.5."""
    file = write(tmp_path, [steps(6, success_at=6), steps(5, success_at=5)], env_id="scripted")
    options = ("algorithm.cloning_coef=0.5", "algorithm.cloning_batch_size=8")
    return scripted(tmp_path, f"demos={file}", *options, *overrides, **tree)


def test_cloning_draws_the_policy_to_what_was_demonstrated_with_less_and_less_weight(tmp_path):
    rows = rows_of(cloning(tmp_path, "learner.lr=0.01", "algorithm.cloning_decay=0.5", "env.train.match_actions=false"))
    assert [row["train/actor/cloning_weight"] for row in rows] == [0.5, 0.25, 0.125, 0.0625]
    assert rows[-1]["train/actor/cloning_loss"] < 0.5 * rows[0]["train/actor/cloning_loss"]


def test_a_policy_of_tokens_clones_by_their_cross_entropy(tmp_path):
    policy = {"name": "tokens", "hidden_sizes": [8], "bins": 4, "slot_width": 4}
    options = ("learner.lr=0.01", "env.train.match_actions=false")
    rows = rows_of(cloning(tmp_path, *options, policy=policy))
    assert rows[0]["train/actor/cloning_loss"] < math.log(4) + 0.01  # of four tokens that are alike
    assert rows[-1]["train/actor/cloning_loss"] < 0.8 * rows[0]["train/actor/cloning_loss"]


@pytest.mark.parametrize("loss", ["squared", "absolute"])
def test_tokens_cannot_follow_the_gradient_of_the_most_likely_action(loss, tmp_path):
    algorithm, policy = {"name": "behaviour_cloning", "loss": loss}, {"name": "tokens"}
    with pytest.raises(ConfigError, match=r"policy.name is tokens, .* set algorithm.loss=likelihood"):
        scripted(tmp_path, algorithm=algorithm, policy=policy)


def test_cloning_without_demonstrations_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"cloning_coef is 0.5, which needs demonstrations: demos=FILE.h5"):
        rlpipe.train(scripted(tmp_path, "algorithm.cloning_coef=0.5"), local=True)


def test_without_cloning_nothing_is_said_of_it(tmp_path):
    assert not [name for row in rows_of(scripted(tmp_path)) for name in row if "cloning" in name]


@pytest.mark.parametrize("algorithm", ["ppo", "grpo"])
def test_the_learner_goes_on_from_a_checkpoint_as_if_nothing_had_happened(tmp_path, algorithm):
    options = {"name": algorithm, "update_epochs": 2, "num_minibatches": 4}
    if algorithm == "grpo":
        options |= {"group_size": 2, "kl_beta": 0.1}
        env = {"train": {"name": "tests.helpers.simulators:Unnumbered", "total_num_envs": 4, "match_actions": True}}
        config = cloning(tmp_path, "learner.lr=0.01", algorithm=options, env=env)
    else:
        config = cloning(tmp_path, *ADAPTIVE, algorithm=options)
    plan = config.schedule
    worker = RolloutWorker(plan, 0, 1)
    learner, again = (Learner(plan, worker.ready().spec) for _ in range(2))
    for iteration in (1, 2):
        learner.update(0, iteration, worker.collect(learner.snapshot(), 0)[0])
    again.load_state(learner.state())
    batch, _ = worker.collect(learner.snapshot(), 0)
    first, second = (one.update(0, 3, batch) for one in (learner, again))
    assert all(np.array_equal(first[0].weights[name], second[0].weights[name]) for name in first[0].weights)
    for metric in (m.KL_REF, m.KL_COEF, m.CLONING_LOSS, m.CLONING_WEIGHT, m.KL_REF_EPISODE):
        assert first[1].states[metric.name].read() == second[1].states[metric.name].read()
