"""Reductions merge without losing anything, windows accept only what makes sense, and the catalogue is sound."""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import reduce

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rlpipe.metrics import CATALOGUE, MetricWindow
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.declaration import Metric
from rlpipe.metrics.reductions import Distribution, Last, Mean, Reduction, Sum, from_json, to_json
from rlpipe.metrics.window import merged
from rlpipe.trajectory import Episode

law = settings(deadline=None)

NOT_FINITE = st.sampled_from([math.nan, math.inf, -math.inf, sys.float_info.max])  # the last, no sum could bear


def numbers(bound: float = 1e289) -> st.SearchStrategy[float]:
    """Floats of every size, with a liking for those on which addition rounds."""
    return (
        st.floats(-bound, bound) | st.floats(1e8 - 10, 1e8 + 10) | st.sampled_from([0.1, 1e16, -1e16, 1e-300, 5e-324])
    )


def merge_all(states: Sequence[Reduction]) -> Reduction:
    """First to last."""
    return reduce(lambda a, b: a.merge(b), states)


def merge_in_pairs(states: Sequence[Reduction]) -> Reduction:
    """As a tree, like a reduction over ranks."""
    if len(states) == 1:
        return states[0]
    middle = len(states) // 2
    return merge_in_pairs(states[:middle]).merge(merge_in_pairs(states[middle:]))


# --- one law for every reduction: the state of the parts, merged, is the state of the whole, bit for bit


@st.composite
def splits(draw: st.DrawFn, element: st.SearchStrategy) -> tuple[list, list[list]]:
    """Observations, and the same observations dealt out to workers, some of which may have none, in any order."""
    workers = draw(st.integers(1, 5))
    dealt = draw(st.lists(st.tuples(element, st.integers(0, workers - 1)), max_size=30))
    parts = [[value for value, worker in dealt if worker == w] for w in range(workers)]
    return [value for value, _ in dealt], draw(st.permutations(parts))


@pytest.mark.parametrize("reduction", [Sum, Mean, Distribution])
@law
@given(split=splits(numbers() | NOT_FINITE))
def test_merging_workers_equals_one_worker(reduction, split):
    whole, parts = split
    states = [reduction.of(part) for part in parts]
    assert merge_all(states) == reduction.of(whole)
    assert merge_in_pairs(states) == reduction.of(whole)


@law
@given(splits(st.tuples(numbers(1e150) | NOT_FINITE, st.floats(0.0, 1e100) | NOT_FINITE)))
def test_merging_workers_equals_one_worker_for_a_weighted_mean(split):
    def of(pairs: list[tuple[float, float]]) -> Mean:
        return Mean.of([value for value, _ in pairs], [weight for _, weight in pairs])

    whole, parts = split
    states = [of(part) for part in parts]
    assert merge_all(states) == of(whole)
    assert merge_in_pairs(states) == of(whole)


@law
@given(numbers(), st.lists(st.sampled_from(["value", "nothing", "nan"]), min_size=1, max_size=6), st.randoms())
def test_merging_writers_of_one_value_gives_that_value_in_any_order(value, writers, random):
    given_to = {"value": [value], "nothing": [], "nan": [math.nan]}
    states = [Last.of(given_to[writer]) for writer in writers]
    expected = Last(value if "value" in writers else None, writers.count("nan"))
    random.shuffle(states)
    assert merge_all(states) == merge_in_pairs(states) == expected


@pytest.mark.parametrize(
    "reduction", [Sum, Mean, Distribution, pytest.param(lambda v: Mean.of(v, np.abs(v)), id="weighted")]
)
@pytest.mark.parametrize("cuts", [[0], [1], [500], [100, 101, 900], [999]])
@pytest.mark.parametrize("center", [0.0, 1e8])
def test_merging_parts_of_a_large_batch_loses_nothing(reduction, cuts, center):
    of = getattr(reduction, "of", reduction)
    values = np.random.default_rng(0).normal(center, 1.0, size=999)
    parts = [of(part) for part in np.split(values, cuts)]
    assert merge_all(parts) == merge_all(parts[::-1]) == of(values)


@pytest.mark.parametrize("state", [Sum.of([1, 2]), Mean.of([1, 2]), Distribution.of([1, 2]), Last.of([1])], ids=repr)
def test_an_empty_part_changes_nothing(state):
    empty = type(state).of([])
    assert state.merge(empty) == empty.merge(state) == state


@pytest.mark.parametrize("reduction", [Sum, Mean, Distribution, Last])
def test_nothing_observed_reads_nothing(reduction):
    assert reduction.of([]).read() == {}
    assert reduction.of([math.nan]).read() == {}
    assert reduction.of([]) == reduction()


# --- what the states read


def test_a_sum_by_hand():
    assert Sum.of([1, 2, 3.5]).read() == {"sum": 6.5}
    assert Sum.of([0]).read() == {"sum": 0.0}  # observed to be nothing, unlike not observed


def test_a_sum_does_not_lose_small_numbers_between_large_ones():
    assert Sum.of([1e16, 1, -1e16]).read() == {"sum": 1.0}


def test_a_mean_by_hand():
    assert Mean.of([1, 2, 6]).read() == {"mean": 3.0}
    assert Mean.of([1, 5], weights=[3, 1]).read() == {"mean": 2.0}


def test_a_mean_over_workers_weighs_each_observation_alike():
    assert Mean.of([0.0]).merge(Mean.of([1.0, 1.0, 1.0])).read() == {"mean": 0.75}  # not the mean of means, 0.5


def test_a_weight_of_zero_does_not_count():
    assert Mean.of([7, 1], weights=[0, 2]).read() == {"mean": 1.0}
    assert Mean.of([7], weights=[0]).read() == {}


def test_every_value_needs_its_weight():
    with pytest.raises(ValueError, match="3 values and 2 weights"):
        Mean.of([1, 2, 3], weights=[1, 2])


def test_a_distribution_by_hand():
    assert Distribution.of([2, 4, 4, 4, 5, 5, 7, 9]).read() == {
        "mean": 5.0, "std": 2.0, "var": 4.0, "min": 2.0, "max": 9.0, "sum": 40.0, "count": 8.0,
    }  # fmt: skip


def test_one_observation_has_no_spread():
    read = Distribution.of([0.1]).read()
    assert (read["mean"], read["std"], read["var"], read["min"], read["max"]) == (0.1, 0.0, 0.0, 0.1, 0.1)


def test_equal_observations_have_no_spread():
    assert Distribution.of([0.1] * 3).read()["std"] == 0.0  # in floats, 0.1 + 0.1 + 0.1 is not 0.3


def test_a_small_spread_around_a_large_mean_is_not_lost():
    read = Distribution.of([1e8 - 1, 1e8 + 1]).read()
    assert (read["mean"], read["std"], read["var"]) == (1e8, 1.0, 1.0)


def test_a_distribution_of_tiny_values_keeps_its_deviation():
    read = Distribution.of([1e-300, 3e-300]).read()
    assert read["mean"] == pytest.approx(2e-300, rel=1e-15, abs=0.0)
    assert read["std"] == pytest.approx(1e-300, rel=1e-15, abs=0.0)


def test_a_distribution_of_huge_values_has_a_deviation_but_no_variance():
    read = Distribution.of([1e200, 3e200]).read()
    assert read["mean"] == pytest.approx(2e200, rel=1e-15)
    assert read["std"] == pytest.approx(1e200, rel=1e-15)
    assert "var" not in read  # 1e400 is no float


def test_tiny_ordinary_and_huge_values_share_a_distribution():
    read = Distribution.of([1e-300, 1.0, 1e200]).read()
    assert (read["min"], read["max"], read["sum"]) == (1e-300, 1e200, 1e200)
    assert read["std"] == pytest.approx(math.sqrt(2) / 3 * 1e200, rel=1e-15)


@pytest.mark.timeout(5)
@pytest.mark.parametrize("reduction", [Sum, Mean, Distribution, Last])
@pytest.mark.parametrize("value", [1e300, 1e305, sys.float_info.max, -sys.float_info.max])
def test_a_value_larger_than_any_sum_can_bear_counts_as_not_finite(reduction, value):
    assert reduction.of([value]) == reduction(nonfinite=1)


@pytest.mark.timeout(5)
@pytest.mark.parametrize("reduction", [Sum, Mean, Distribution])
def test_many_of_the_largest_values_add_up(reduction):
    state = merge_all([reduction.of([9e289] * 1000)] * 100)
    assert state.nonfinite == 0
    assert all(math.isfinite(number) for number in state.read().values())


@pytest.mark.parametrize("reduction", [Sum, Mean, Distribution])
def test_what_is_not_finite_is_counted_and_left_out(reduction):
    state = reduction.of([1, math.nan, 3, math.inf, -math.inf])
    assert state.nonfinite == 3
    assert state.read() == reduction.of([1, 3]).read()
    assert state.merge(state).nonfinite == 6


def test_a_value_or_a_weight_that_is_not_finite_leaves_out_both():
    state = Mean.of([1, math.nan, 5, 9], weights=[3, 1, 1, math.inf])
    assert (state.read(), state.nonfinite) == ({"mean": 2.0}, 2)


def test_a_weighted_value_too_large_for_a_float_is_counted_and_left_out():
    state = Mean.of([1e200, 2.0], weights=[1e200, 1.0])
    assert (state.read(), state.nonfinite) == ({"mean": 2.0}, 1)


def test_a_set_value_that_is_not_finite_is_counted_and_left_out():
    assert Last.of([math.nan]) == Last(None, nonfinite=1)
    assert Last.of([math.nan]).merge(Last.of([3])) == Last(3.0, nonfinite=1)


def test_a_second_writer_of_a_set_value_is_an_error():
    with pytest.raises(ValueError, match=r"different values, 1\.0 and 2\.0"):
        Last.of([1]).merge(Last.of([2]))


def test_a_set_value_is_not_reduced():
    with pytest.raises(ValueError, match="2 values"):
        Last.of([1, 1])


@law
@given(st.lists(numbers(), min_size=1, max_size=20))
def test_sums_and_means_are_rounded_once(values):
    exact = sum(map(Fraction, values))
    assert Sum.of(values).read()["sum"] == math.fsum(values)
    assert Mean.of(values).read()["mean"] == float(exact / len(values))
    assert Distribution.of(values).read()["mean"] == float(exact / len(values))


@law
@given(st.lists(numbers(), min_size=1, max_size=20))
def test_the_deviation_is_that_of_exact_arithmetic(values):
    mean = sum(map(Fraction, values)) / len(values)
    variance = sum((Fraction(value) - mean) ** 2 for value in values) / len(values)
    state = Distribution.of(values)
    assert state.variance() == variance
    std = state.read()["std"]
    assume(std == 0 or std > 1e-290)  # below, floats have fewer digits
    squared = Fraction(std) ** 2
    assert abs(squared - variance) <= Fraction(2e-15) * variance or variance < Fraction(1e-290) ** 2
    assert (state.read()["min"], state.read()["max"]) == (min(values), max(values))


@law
@given(st.lists(st.floats(-1e6, 1e6).map(lambda v: v + 1e8), min_size=1, max_size=50))
def test_mean_and_deviation_agree_with_the_standard_library(values):
    read = Distribution.of(values).read()
    assert read["mean"] == pytest.approx(statistics.mean(values), rel=1e-15, abs=0.0)
    assert read["std"] == pytest.approx(statistics.pstdev(values), rel=1e-15, abs=0.0)


def test_mean_and_deviation_agree_with_numpy_on_ordinary_values():
    values = np.random.default_rng(0).normal(size=1000)
    read = Distribution.of(values).read()
    assert read["mean"] == pytest.approx(values.mean(), rel=1e-13)
    assert read["std"] == pytest.approx(values.std(), rel=1e-13)
    assert (read["min"], read["max"], read["count"]) == (values.min(), values.max(), 1000)


def test_the_deviation_of_a_thousand_values_around_1e8_is_right_to_the_last_digits():
    values = np.random.default_rng(0).normal(1e8, 1.0, size=1000).tolist()
    assert Distribution.of(values).read()["std"] == pytest.approx(statistics.pstdev(values), rel=1e-15)


@law
@given(
    st.sampled_from([Sum.of, Mean.of, Distribution.of, lambda v: Mean.of(v, np.abs(v)), lambda v: Last.of(v[:1])]),
    st.lists(numbers(1e150) | NOT_FINITE, max_size=20),
)
def test_a_state_survives_a_checkpoint(of: Callable[[list[float]], Reduction], values):
    state = of(values)
    restored = from_json(json.loads(json.dumps(to_json(state))))
    assert restored == state
    assert type(restored) is type(state)
    assert restored.read() == state.read()


# --- windows


def test_a_window_pools_all_observations_of_a_metric():
    window = MetricWindow()
    window.observe(m.POLICY_LOSS, [1.0, 2.0])
    window.observe(m.POLICY_LOSS, 6.0)
    assert window.read([m.POLICY_LOSS]) == {"train/actor/policy_loss": 3.0}


def test_only_values_under_the_mask_count():
    window = MetricWindow()
    window.observe(m.POLICY_LOSS, [[1, 2], [900, 6]], mask=[[True, True], [False, True]])
    assert window.read([m.POLICY_LOSS]) == {"train/actor/policy_loss": 3.0}


def test_a_mask_applies_to_the_weights_too():
    window = MetricWindow()
    window.observe(m.POLICY_LOSS, [1, 900, 5], mask=[True, False, True], weights=[3, 7, 1])
    assert window.read([m.POLICY_LOSS]) == {"train/actor/policy_loss": 2.0}


def test_a_mean_summed_elsewhere_pools_with_one_observed_here():
    window = MetricWindow()
    window.observe(m.POLICY_LOSS, [1.0, 2.0])
    window.observe_mean(m.POLICY_LOSS, total=6.0, count=1, nonfinite=4)
    assert window.read([m.POLICY_LOSS]) == {"train/actor/policy_loss": 3.0}
    assert window.nonfinite() == {"train/actor/policy_loss": 4}


def test_a_mean_over_nothing_summed_elsewhere_is_absent():
    window = MetricWindow()
    window.observe_mean(m.POLICY_LOSS, total=0.0, count=0)
    assert window.read([m.POLICY_LOSS]) == {}


def test_a_derived_metric_cannot_be_observed():
    with pytest.raises(
        ValueError, match=r"train/critic/explained_variance is derived from rollout/returns_mean, .*: observe those"
    ):
        MetricWindow().observe(m.EXPLAINED_VARIANCE, [0.5])


def test_another_reading_of_a_metric_cannot_be_observed():
    with pytest.raises(ValueError, match="rollout/advantages_max is derived from rollout/advantages_mean"):
        MetricWindow().observe(m.ADVANTAGES_MAX, [0.5])


def test_a_mask_of_another_shape_is_refused_with_both_shapes():
    with pytest.raises(ValueError, match=r"train/loss: values have shape \(3,\), the mask \(3, 1\)"):
        MetricWindow().observe(m.LOSS, [1, 2, 3], mask=[[True], [True], [True]])


@pytest.mark.parametrize("mask", [None, [True, False, True]])
@pytest.mark.parametrize("weights", [[1, 2], [[1], [2], [3]]])
def test_weights_of_another_shape_are_refused(mask, weights):
    with pytest.raises(ValueError, match="weight"):
        MetricWindow().observe(m.LOSS, [1, 2, 3], mask=mask, weights=weights)


def test_only_a_mean_takes_weights():
    with pytest.raises(ValueError, match="rollout/returns_mean is a Distribution; only a Mean takes weights"):
        MetricWindow().observe(m.RETURNS, [1, 2], weights=[1, 2])


def test_a_second_writer_of_a_set_metric_is_an_error_that_names_it():
    window = MetricWindow()
    window.observe(m.ACTOR_LR, 3e-4)
    window.observe(m.ACTOR_LR, 3e-4)  # all ranks hold it alike
    with pytest.raises(ValueError, match=r"train/actor/lr: two writers set different values, 0\.0003 and 0\.001"):
        window.observe(m.ACTOR_LR, 1e-3)


def test_merging_a_second_writer_is_an_error_too():
    windows = [MetricWindow(), MetricWindow()]
    windows[0].observe(m.ACTOR_LR, 1.0)
    windows[1].observe(m.ACTOR_LR, 2.0)
    with pytest.raises(ValueError, match="train/actor/lr"):
        merged(windows)


def test_nothing_observed_is_absent_and_not_zero():
    assert MetricWindow().read(list(CATALOGUE.values())) == {}


def test_only_values_that_are_not_finite_are_absent_and_counted():
    window = MetricWindow()
    window.observe(m.LOSS, [math.nan, math.inf])
    window.observe(m.ENTROPY, [1.0])
    assert window.read([m.LOSS, m.ENTROPY]) == {"train/entropy_loss": 1.0}
    assert window.nonfinite() == {"train/loss": 2}


def test_an_ingredient_is_not_shown():
    window = MetricWindow()
    window.observe(m.TIMESTEPS, 10)
    window.observe(m.INTERVAL_SECONDS, 2)
    assert window.read(list(CATALOGUE.values())) == {"time/fps_interval": 5.0}


def test_a_row_comes_in_the_order_of_the_catalogue():
    window = MetricWindow()
    for metric in (m.REWARDS, m.VALUE_LOSS, m.LOSS):
        window.observe(metric, 1)
    assert list(window.read(list(CATALOGUE.values()))) == ["train/loss", "train/critic/value_loss", "rollout/rewards"]


def test_a_formula_that_is_not_finite_is_an_error_that_names_it():
    window = MetricWindow()
    window.observe(m.LOSS, 1)
    broken = Metric("train/broken", "1", "Broken.", "1 / 0", inputs=(m.LOSS,), compute=lambda _: math.inf)
    with pytest.raises(ValueError, match="train/broken came out as inf"):
        window.read([broken])


def test_a_derived_metric_is_computed_from_merged_observations():
    windows = [MetricWindow(), MetricWindow()]
    for window, returns, residuals in zip(windows, ([0, 2], [10, 12]), ([0, 0], [1, 1]), strict=True):
        window.observe(m.RETURNS, returns)
        window.observe(m.VALUE_RESIDUALS, residuals)
    read = merged(windows).read([m.EXPLAINED_VARIANCE])  # each worker alone would say 1
    assert read["train/critic/explained_variance"] == 1 - 0.25 / 26


def test_explained_variance_is_absent_where_returns_do_not_vary():
    window = MetricWindow()
    window.observe(m.RETURNS, [0.1] * 3)
    window.observe(m.VALUE_RESIDUALS, [0, 1, 2])
    assert window.read([m.EXPLAINED_VARIANCE]) == {}


def test_explained_variance_is_absent_where_it_is_too_large_for_a_float():
    window = MetricWindow()
    window.observe(m.RETURNS, [0, 1e-200])
    window.observe(m.VALUE_RESIDUALS, [0, 1])
    assert window.read([m.EXPLAINED_VARIANCE]) == {}


def test_observing_no_finished_episode_says_only_that_there_was_none():
    window = MetricWindow()
    m.EVAL.observe(window, [])
    assert window.read(list(CATALOGUE.values())) == {"eval/num_trajectories": 0.0}


def episode(**fields: object) -> Episode:
    defaults = {
        "worker": 0, "slot": 0, "seed": None, "policy_version": 0, "episode_return": 0.0, "length": 1,
        "success_once": False, "success_at_end": False, "success_at_reset": False, "terminated": True,
        "truncated": False,
    }  # fmt: skip
    return Episode(**(defaults | fields))


def test_a_simulator_without_a_notion_of_success_has_no_success_rate():
    window = MetricWindow()
    m.ENV.observe(window, [episode(success_once=None, success_at_end=None, success_at_reset=None)])
    read = window.read(list(CATALOGUE.values()))
    assert read["env/num_trajectories"] == 1
    assert not [name for name in read if "success" in name]


def test_merging_windows_keeps_the_episodes_of_all_in_order():
    first, second = episode(slot=1), episode(slot=2)
    window = merged([MetricWindow(episodes=[first]), MetricWindow(episodes=[second], eval_episodes=[first])])
    assert (window.episodes, window.eval_episodes) == ([first, second], [first])


EPISODES = st.builds(
    episode,
    episode_return=st.floats(-1e6, 1e6),
    length=st.integers(1, 1000),
    success_once=st.booleans(),
    success_at_end=st.booleans(),
    terminated=st.booleans(),
    truncated=st.booleans(),
)


@st.composite
def windows(draw: st.DrawFn) -> MetricWindow:
    """What some worker or rank may have observed."""
    window = MetricWindow()
    for metric in draw(st.lists(st.sampled_from([m.POLICY_LOSS, m.ADVANTAGES, m.NUM_UPDATES, m.ENV_STEP_TIME]))):
        window.observe(metric, draw(st.lists(numbers(1e100) | NOT_FINITE, max_size=5)))
    number = st.floats(-100, 100, width=32)
    pairs = draw(st.lists(st.tuples(number, number), max_size=5))
    window.observe(m.RETURNS, [returns for returns, _ in pairs])
    window.observe(m.VALUE_RESIDUALS, [returns - value for returns, value in pairs])
    if draw(st.booleans()):
        window.observe(m.ACTOR_LR, 3e-4)
    m.ENV.observe(window, draw(st.lists(EPISODES, max_size=4)))
    m.EVAL.observe(window, draw(st.lists(EPISODES, max_size=4)))
    return window


@settings(deadline=None, max_examples=50)
@given(st.lists(windows(), min_size=2, max_size=4), st.randoms())
def test_the_order_in_which_windows_merge_does_not_show(parts, random):
    shuffled = list(parts)
    random.shuffle(shuffled)
    metrics = list(CATALOGUE.values())
    assert merged(shuffled).read(metrics) == merged(parts).read(metrics)
    assert merged(shuffled).nonfinite() == merged(parts).nonfinite()
    nested = merged([merged(parts[:1]), merged(parts[1:])])
    assert nested.read(metrics) == merged(parts).read(metrics)


def test_merging_leaves_the_other_window_as_it_was():
    window, other = MetricWindow(), MetricWindow()
    other.observe(m.LOSS, 1)
    window.merge(other)
    window.observe(m.LOSS, 3)
    assert other.read([m.LOSS]) == {"train/loss": 1.0}


# --- the catalogue


NAMESPACES = ("train/", "rollout/", "env/", "eval/", "time/")
METRICS = pytest.mark.parametrize("metric", CATALOGUE.values(), ids=list(CATALOGUE))


def test_every_name_is_declared_once():
    declared = [value for value in vars(m).values() if isinstance(value, Metric)]
    declared += m.ENV.declared() + m.EVAL.declared()
    assert len({metric.name for metric in declared}) == len(declared) == len(CATALOGUE)


def test_the_keys_of_the_catalogue_are_the_names():
    assert list(CATALOGUE) == [metric.name for metric in CATALOGUE.values()]


@METRICS
def test_a_metric_stands_in_a_known_namespace(metric):
    assert metric.name.startswith(NAMESPACES)


@METRICS
def test_a_metric_says_its_unit_its_meaning_and_its_formula(metric):
    assert metric.unit.strip()
    assert metric.formula.strip()
    assert metric.meaning[0].isupper()
    assert metric.meaning.endswith(".")


@METRICS
def test_a_metric_is_observed_or_read_or_derived(metric):
    observed, reading, derived = metric.reduction is not None, bool(metric.reads), metric.compute is not None
    assert (observed, reading, derived) in [(True, True, False), (False, True, False), (False, False, True)]
    assert bool(metric.inputs) is not observed


@METRICS
def test_the_inputs_of_a_metric_are_observed_metrics_of_the_catalogue(metric):
    for source in metric.inputs:
        assert CATALOGUE[source.name] is source
        assert source.reduction is not None


@METRICS
def test_a_metric_shows_a_reading_that_its_reduction_has(metric):
    if metric.reads:
        source = metric.inputs[0] if metric.inputs else metric
        assert metric.reads in source.reduction.readings


@METRICS
def test_a_healthy_band_has_its_lower_bound_first(metric):
    if metric.healthy and None not in metric.healthy:
        assert metric.healthy[0] <= metric.healthy[1]


@pytest.mark.parametrize("reduction", [Sum, Mean, Distribution, Last])
def test_a_reduction_reads_what_it_declares(reduction):
    assert tuple(reduction.of([2.0]).read()) == reduction.readings


def test_evaluation_measures_what_training_measures():
    assert [metric.name.removeprefix("eval/") for metric in m.EVAL.declared()] == [
        metric.name.removeprefix("env/") for metric in m.ENV.declared()
    ]


@pytest.mark.parametrize(
    "name",
    [
        "train/actor/approx_kl",
        "train/actor/clip_fraction",
        "train/actor/clipped_ratio",
        "train/actor/grad_norm",
        "train/actor/lr",
        "train/actor/policy_loss",
        "train/critic/value_loss",
        "train/critic/value_clip_ratio",
        "train/critic/explained_variance",
        "train/entropy_loss",
        "train/loss",
        "rollout/advantages_max",
        "rollout/advantages_mean",
        "rollout/advantages_min",
        "rollout/rewards",
        "env/success_once",
        "env/episode_len",
        "env/return",
        "env/reward",
    ],
)
def test_what_rlinf_shows_is_shown_here_under_the_same_name(name):
    assert CATALOGUE[name].aliases["rlinf"] == name
    assert not CATALOGUE[name].hidden


def test_whoever_only_reads_metrics_does_not_load_torch_or_ray():
    script = "import sys, rlpipe.metrics; print({'torch', 'ray'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "set()"
