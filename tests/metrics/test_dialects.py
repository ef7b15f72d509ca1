"""The names of other systems: a row in their words, with their signs and scales, and their logs in ours."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlpipe.metrics import CATALOGUE, MetricWindow
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.declaration import Metric
from rlpipe.metrics.dialects import CONVERSIONS, DIALECTS, SYSTEMS, Dialect, find, left_out, translate, uses, written
from rlpipe.metrics.reductions import Distribution, Last

ALL = list(CATALOGUE.values())


def in_words_of(system: str, *observed: tuple[Metric, list[float]]) -> dict[str, float]:
    """What a system's dialect makes of raw observations."""
    window = MetricWindow()
    for metric, values in observed:
        window.observe(metric, values)
    return Dialect(system).write(window.read(ALL), window.states)


def meant(system: str, key: str, value: float = 1.0) -> dict[str, float]:
    """Our values of another system's number, by our names."""
    return {use.metric.name: ours for use, ours in translate(system, key, value)}


# --- their numbers from ours


def test_stable_baselines_shows_entropy_with_a_minus():
    assert in_words_of("sb3", (m.ENTROPY, [0.5, 1.5])) == {"train/entropy_loss": -1.0}
    assert in_words_of("trl_legacy", (m.ENTROPY, [0.5, 1.5])) == {"ppo/policy/entropy": 1.0}


def test_stable_baselines_counts_whole_steps_per_second():
    shown = in_words_of("sb3", (m.TOTAL_TIMESTEPS, [10]), (m.TRAINING_SECONDS, [4]))
    assert shown == {"time/total_timesteps": 10, "time/fps": 2}


def test_stable_baselines_counts_passes_as_updates():
    assert in_words_of("sb3", (m.NUM_UPDATES, [320]), (m.NUM_UPDATE_EPOCHS, [10])) == {"train/n_updates": 10}


def test_stable_baselines_does_not_halve_the_value_loss():
    assert in_words_of("sb3", (m.VALUE_LOSS, [2.0]), (m.VALUE_ERROR, [4.0])) == {"train/value_loss": 4.0}


def test_stable_baselines_counts_every_ratio_outside_the_clip():
    shown = in_words_of("sb3", (m.CLIP_FRACTION, [0.1]), (m.RATIO_OUTSIDE_FRACTION, [0.3]))
    assert shown == {"train/clip_fraction": 0.3}


def test_trl_divides_a_deviation_by_one_less_than_the_number_of_values():
    # deviation of 1 and 3: 1 by n, sqrt 2 by n - 1
    shown = in_words_of("trl", (m.ENV_EPISODE_RETURN, [1, 3]))
    assert (shown["reward"], shown["reward_std"]) == (2.0, pytest.approx(math.sqrt(2), rel=1e-15))


def test_one_value_has_no_deviation_by_one_less_than_their_number():
    assert "reward_std" not in in_words_of("trl", (m.ENV_EPISODE_RETURN, [1]))


@pytest.mark.parametrize(
    ("convert", "theirs"), [("", 2.5), ("negate", -2.5), ("floor", 2.0), ("double", 5.0), ("sample_std", None)]
)
def test_a_conversion_by_hand(convert, theirs):
    assert CONVERSIONS[convert](2.5, Last.of([2.5])) == theirs


def test_every_conversion_is_used():
    assert {name.convert for metric in ALL for name in metric.names} == set(CONVERSIONS)


def test_the_conversion_of_a_deviation_needs_the_observations():
    assert CONVERSIONS["sample_std"](1.0, Distribution.of([1, 3])) == pytest.approx(math.sqrt(2), rel=1e-15)
    assert CONVERSIONS["sample_std"](0.0, Distribution.of([1])) is None
    assert CONVERSIONS["sample_std"](1.0, None) is None


def test_what_was_not_observed_is_absent_there_too():
    for system in DIALECTS:
        assert in_words_of(system) == {}
        assert in_words_of(system, (m.ENTROPY, [math.nan])) == {}


def test_a_number_is_written_from_the_metric_that_is_exactly_it():
    for system in DIALECTS:
        for use in written(system).values():
            assert use.can_be_written
            exact = [other for other in uses(system) if other.name.key == use.name.key]
            assert use.name.relation == "exact" or "exact" not in [other.name.relation for other in exact]


# --- what cannot be given honestly


@pytest.mark.parametrize(
    ("system", "key"),
    [
        ("trl", "val/num_eos_tokens"),
        ("trl", "val/ratio"),
        ("trl", "completions/clipped_ratio"),
        ("trl", "completions/mean_length"),
        ("trl", "objective/entropy"),
        ("trl", "policy/entropy_avg"),
        ("trl", "num_tokens"),
        ("trl_legacy", "objective/logprobs"),
        ("trl_legacy", "ppo/val/var_explained"),
        ("trl_legacy", "ppo/returns/var"),
        ("cleanrl", "charts/episodic_return"),
    ],
)
def test_a_name_for_another_quantity_is_left_out_with_the_metric_that_is_nearest(system, key):
    nearest = left_out(system)[key]
    assert key not in written(system)
    assert nearest.name.relation != "exact"
    assert nearest.name.note


def test_of_stable_baselines_only_the_losses_of_its_sac_are_left_out_because_they_are_other_quantities():
    assert set(left_out("sb3")) == {"train/actor_loss", "train/critic_loss"}


@pytest.mark.parametrize("system", DIALECTS)
def test_a_key_is_either_written_or_left_out(system):
    keys = {use.name.key for use in uses(system)}
    assert set(written(system)) | set(left_out(system)) == keys
    assert not set(written(system)) & set(left_out(system))


@pytest.mark.parametrize("system", DIALECTS)
def test_what_is_left_out_is_never_written(system):
    """Also when every metric has something to say."""
    window = MetricWindow()
    for metric in ALL:
        member = metric.member("x") if metric.is_family else metric
        if member.reduction is not None:
            how = {"GroupedMean": {"groups": [0]}, "Recent": {"places": [(0,)]}}.get(member.reduction.__name__, {})
            window.observe(member, [1.0], **how)
    row = Dialect(system).write(window.read(ALL), window.states)
    assert row
    assert not set(row) & set(left_out(system))
    assert set(row) <= {key.replace("{reward_func_name}", "x") for key in written(system)}


# --- families


def test_a_reward_term_has_the_key_that_trl_gives_a_reward_function():
    reach = m.REWARD_TERM.member("reach")
    assert in_words_of("trl", (reach, [1, 3])) == {
        "rewards/reach/mean": 2.0,
        "rewards/reach/std": pytest.approx(math.sqrt(2), rel=1e-15),
    }


def test_each_reward_term_has_a_key_of_its_own():
    terms = (m.REWARD_TERM.member("reach"), [1.0]), (m.REWARD_TERM.member("grasp"), [2.0])
    assert in_words_of("trl", *terms) == {"rewards/reach/mean": 1.0, "rewards/grasp/mean": 2.0}


def test_a_reward_function_of_trl_is_a_reward_term():
    assert meant("trl", "rewards/reach/mean", 2.0) == {"env/reward_terms/reach/mean": 2.0}
    assert list(meant("trl", "rewards/reach/std")) == ["env/reward_terms/reach/std"]


@pytest.mark.parametrize("key", ["rewards//mean", "rewards/a/b/mean", "rewards/reach", "rewards/reach/max"])
def test_a_key_that_no_family_member_can_have_means_nothing(key):
    assert translate("trl", key, 1.0) == find(key) == []


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("env/reward_terms/reach/mean", "env/reward_terms/reach/mean"),
        ("rewards/reach/mean", "env/reward_terms/reach/mean"),
        ("rollout/data_staleness_3/ratio", "rollout/data_staleness/3"),
        ("env/reward_terms/{name}/mean", "env/reward_terms/{name}/mean"),
        ("rewards/{reward_func_name}/mean", "env/reward_terms/{name}/mean"),
    ],
)
def test_a_member_of_a_family_is_found_by_its_own_name_and_elsewhere(asked, found):
    assert find(asked)[0].metric.name == found


# --- our numbers from theirs


def test_the_sign_of_an_imported_entropy_is_turned():
    assert meant("sb3", "train/entropy_loss", -0.6) == {"train/entropy_loss": 0.6}


@pytest.mark.parametrize(
    ("system", "key", "ours"),
    [
        ("sb3", "rollout/ep_rew_mean", {"env/return_ma100"}),
        ("sb3", "train/clip_fraction", {"train/actor/ratio_outside_fraction"}),
        ("trl_legacy", "ppo/policy/clipfrac", {"train/actor/clip_fraction"}),
        ("rlinf", "train/actor/approx_kl", {"train/actor/approx_kl_k1"}),
        ("rlinf", "train/critic/explained_variance", {"train/critic/explained_variance_post"}),
    ],
)
def test_a_name_that_two_metrics_could_have_goes_to_the_one_it_is(system, key, ours):
    assert set(meant(system, key)) == ours


def test_a_number_of_the_last_minibatch_also_stands_for_the_metric_so_that_its_course_is_judged():
    assert set(meant("cleanrl", "losses/entropy")) == {"train/entropy_loss", "train/entropy_loss_last_minibatch"}


def test_a_number_that_is_known_to_be_wrong_is_not_taken_over():
    assert [use.name.relation for use in find("train/critic/value_clip_ratio")] == ["exact", "invalid"]
    assert translate("rlinf", "train/critic/value_clip_ratio", 0.3) == []


@pytest.mark.parametrize("system", SYSTEMS)
def test_an_unknown_key_means_nothing(system):
    assert translate(system, "train/no_such_thing", 1.0) == []


def test_a_name_may_mean_different_things_in_different_systems():
    found = [(use.name.system, use.metric.name) for use in find("train/entropy_loss")]
    assert found[0] == ("rlpipe", "train/entropy_loss")
    assert ("sb3", "train/entropy_loss") in found
    assert {use.name.system for use in find("objective/kl")} == {"trl", "trl_legacy"}


@pytest.mark.parametrize("asked", ["ppo/policy/clipfrac", "objective/kl", "completions/clipped_ratio", "time/fps"])
def test_the_closest_meaning_of_a_name_comes_first(asked):
    order = [(use.name.secondary, use.name.relation) for use in find(asked)]
    assert order == sorted(order, key=lambda one: one[0])


@pytest.mark.parametrize("system", DIALECTS)
@settings(max_examples=20)
@given(value=st.floats(-1e6, 1e6))
def test_a_number_that_went_there_comes_back(system, value):
    for key, use in written(system).items():
        if use.name.convert in ("", "negate", "double") and not use.metric.is_family:
            theirs = CONVERSIONS[use.name.convert](value, None)
            assert meant(system, key, theirs)[use.metric.name] == value
