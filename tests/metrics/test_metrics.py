"""Reductions merge without losing anything, windows accept only what makes sense, and the catalogue is sound."""

from __future__ import annotations

import ast
import csv
import dataclasses
import itertools
import json
import math
import re
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import reduce

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rlpipe.metrics import CATALOGUE, MetricWindow
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.catalogue import conditions, declare
from rlpipe.metrics.declaration import Metric, Name, Sign, observed
from rlpipe.metrics.dialects import CONVERSIONS, SYSTEMS, uses
from rlpipe.metrics.health import TAGS, VARIABLES
from rlpipe.metrics.reductions import (
    KINDS,
    Distribution,
    GroupedMean,
    Histogram,
    Last,
    Mean,
    Recent,
    Reduction,
    Skewed,
    Sum,
    from_json,
    to_json,
)
from rlpipe.metrics.rules import Band, Holds, MovesWith, Rule, UnknownError, View, evaluate
from rlpipe.metrics.window import merged
from rlpipe.plugins import resolve, shipped
from rlpipe.trajectory import Episode

law = settings(deadline=None)

NOT_FINITE = st.sampled_from([math.nan, math.inf, -math.inf, sys.float_info.max])  # the last, no sum could bear


def numbers(bound: float = 1e289) -> st.SearchStrategy[float]:
    """Floats of every size, with a liking for those on which addition rounds."""
    return (
        st.floats(-bound, bound)
        | st.floats(1e8 - 10, 1e8 + 10)
        | st.sampled_from([0.0, -0.0, 0.1, 1e16, -1e16, 1e-300, 5e-324])
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


@dataclasses.dataclass(frozen=True)
class Seen:
    """One observation, and where it was made: worker, rank, minibatch and micro-batch."""

    value: float
    weight: float
    valid: bool
    group: int
    place: tuple[int, int]
    path: tuple[int, int, int, int]


some = st.integers(0, 1)


@st.composite
def observations(draw: st.DrawFn) -> list[Seen]:
    """Up to 30 observations, dealt out at random; the places of no two are the same."""
    seen = st.builds(
        Seen,
        value=numbers(1e150) | NOT_FINITE,
        weight=st.floats(0.0, 1e100) | NOT_FINITE,
        valid=st.booleans(),
        group=st.integers(0, 3),
        place=st.tuples(st.integers(0, 9), st.integers(0, 9)),
        path=st.tuples(some, some, some, some),
    )
    return draw(st.lists(seen, max_size=30, unique_by=lambda one: one.place))


class Latest(Recent):
    """So few that a window can be full."""

    window = 3


def values(seen: Sequence[Seen]) -> list[float]:
    return [one.value for one in seen]


OF: dict[str, Callable[[Sequence[Seen]], Reduction]] = {
    "Sum": lambda seen: Sum.of(values(seen)),
    "Mean": lambda seen: Mean.of(values(seen)),
    "weighted Mean": lambda seen: Mean.of(values(seen), [one.weight for one in seen]),
    "Distribution": lambda seen: Distribution.of(values(seen)),
    "Skewed": lambda seen: Skewed.of(values(seen)),
    "Histogram": lambda seen: Histogram.of(values(seen)),
    "GroupedMean": lambda seen: GroupedMean.of(values(seen), [one.group for one in seen]),
    "Recent": lambda seen: Recent.of(values(seen), [one.place for one in seen]),
    "Recent, of 3": lambda seen: Latest.of(values(seen), [one.place for one in seen]),
}
EVERY = pytest.mark.parametrize("of", OF.values(), ids=list(OF))


@law
@given(seen=observations(), order=st.permutations(range(4)))
def test_merging_workers_equals_one_worker(seen, order):
    parts = [[one for one in seen if one.path[:2] == (rank // 2, rank % 2)] for rank in order]
    for name, of in OF.items():  # all on the same observations, because drawing these takes the most time
        states = [of(part) for part in parts]
        together = of(seen)
        for state in (merge_all(states), merge_in_pairs(states), type(together).pool(states)):
            assert state == together, name
            assert repr(state) == repr(together), name  # to the last bit, and to the sign of a zero


def observe(window: MetricWindow, seen: Sequence[Seen]) -> None:
    """Every reduction there is, of the same observations."""
    valid = [one.valid for one in seen]
    for metric in (m.NUM_UPDATES, m.POLICY_LOSS, m.RETURNS, m.ADVANTAGES, m.ADVANTAGES_DIST):
        window.observe(metric, values(seen), mask=valid)
    window.observe(m.POLICY_LAG, values(seen), mask=valid, weights=[one.weight for one in seen])
    kept = [one for one in seen if one.valid]
    window.observe(m.ENV_SUCCESS_ONCE_BALANCED, values(kept), groups=[one.group for one in kept])
    window.observe(m.ENV_RETURN_MA100, values(kept), places=[one.place for one in kept])


@law
@given(seen=observations(), random=st.randoms())
def test_splitting_into_workers_ranks_minibatches_and_micro_batches_does_not_show(seen, random):
    def collected(part: list[Seen], level: int) -> MetricWindow:
        halves = [[one for one in part if one.path[level] == half] for half in (0, 1)]
        random.shuffle(halves)
        if level < 3:
            return merged([collected(half, level + 1) for half in halves])
        window = MetricWindow()
        for half in halves:
            observe(window, half)
        return window

    whole = MetricWindow()
    observe(whole, seen)
    split = collected(seen, 0)
    assert split.states == whole.states
    assert repr(sorted(split.states.items())) == repr(sorted(whole.states.items()))
    metrics = list(CATALOGUE.values())
    assert split.read(metrics) == whole.read(metrics)


@law
@given(numbers(), st.lists(st.sampled_from(["value", "nothing", "nan"]), min_size=1, max_size=6), st.randoms())
def test_merging_writers_of_one_value_gives_that_value_in_any_order(value, writers, random):
    given_to = {"value": [value], "nothing": [], "nan": [math.nan]}
    states = [Last.of(given_to[writer]) for writer in writers]
    expected = Last(value if "value" in writers else None, writers.count("nan"))
    random.shuffle(states)
    assert merge_all(states) == merge_in_pairs(states) == expected


@EVERY
@pytest.mark.parametrize("cuts", [[0], [1], [500], [100, 101, 900], [999]])
@pytest.mark.parametrize("center", [0.0, 1e8])
def test_merging_parts_of_a_large_batch_loses_nothing(of, cuts, center):
    drawn = np.random.default_rng(0).normal(center, 1.0, size=999).tolist()
    whole = [Seen(value, abs(value), True, n % 7, (n * 31 % 999, 0), (0, 0, 0, 0)) for n, value in enumerate(drawn)]
    bounds = [0, *cuts, len(whole)]
    parts = [of(whole[begin:end]) for begin, end in itertools.pairwise(bounds)]
    assert merge_all(parts) == merge_all(parts[::-1]) == of(whole)


ONE = Seen(0.5, 1.0, True, 0, (0, 0), (0, 0, 0, 0))


@EVERY
def test_an_empty_part_changes_nothing(of):
    state = of([ONE])
    assert state.merge(of([])) == of([]).merge(state) == state


@EVERY
def test_one_observation_reads_as_itself(of):
    for number in of([ONE]).read().values():
        assert number in (0.5, 0.0, 1.0)  # it, its spread, its count


@EVERY
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, sys.float_info.max])
def test_whatever_the_reduction_what_is_not_finite_is_counted_and_left_out(of, value):
    state = of([ONE, dataclasses.replace(ONE, value=value, place=(1, 0))])
    assert (state.nonfinite, state.read()) == (1, of([ONE]).read())


def test_an_empty_part_of_a_set_value_changes_nothing():
    assert Last.of([1]).merge(Last.of([])) == Last.of([]).merge(Last.of([1])) == Last.of([1])


@pytest.mark.parametrize("reduction", [Sum, Mean, Distribution, Skewed, Histogram, Last])
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
        "mean": 5.0, "std": 2.0, "var": 4.0, "sample_var": 32 / 7, "min": 2.0, "max": 9.0, "sum": 40.0, "count": 8.0,
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


# --- skewness


def test_skewness_by_hand():
    # around the mean 1: third moment (-1 - 1 - 1 + 27) / 4 = 6, variance (1 + 1 + 1 + 9) / 4 = 3
    assert Skewed.of([0, 0, 0, 4]).read()["skew"] == pytest.approx(6 / 3**1.5, rel=1e-15)


def test_a_symmetric_distribution_has_no_skewness_and_its_mirror_image_the_opposite():
    assert Skewed.of([-1, 0, 1]).read()["skew"] == 0.0
    assert Skewed.of([0, 0, 0, -4]).read()["skew"] == -Skewed.of([0, 0, 0, 4]).read()["skew"]


def test_skewness_around_1e8_is_not_lost():
    shifted = Skewed.of([1e8, 1e8, 1e8, 1e8 + 4]).read()["skew"]
    assert shifted == Skewed.of([0, 0, 0, 4]).read()["skew"]


@pytest.mark.parametrize("values", [[0.1], [0.1] * 3, [1e-300, 2e-300], [1e100, 2e100]])
def test_where_there_is_no_spread_or_no_cube_there_is_no_skewness(values):
    assert "skew" not in Skewed.of(values).read()
    assert Skewed.of(values).read() == Distribution.of(values).read()


# --- states from sums that were made elsewhere, such as on the learner's device


def by_moments(reduction: type[Distribution], values: np.ndarray) -> Distribution:
    """What a device would send: sums around a rounded mean."""
    centre = values.sum() / len(values)
    offsets = values - centre
    return reduction.of_moments(
        len(values), centre, offsets.sum(), (offsets**2).sum(), (offsets**3).sum(), values.min(), values.max(), 2
    )


@pytest.mark.parametrize("centre", [0.0, -3.0, 1e4, 1e8])
def test_moments_around_the_mean_say_the_same_as_the_values(centre):
    values = centre + np.random.default_rng(0).gamma(2.0, size=1000)
    state = by_moments(Distribution, values)
    assert state.nonfinite == 2
    assert state.read() == pytest.approx(Distribution.of(values).read(), rel=1e-12)


@pytest.mark.parametrize("centre", [0.0, -3.0, 1e4, 1e8])
def test_moments_around_the_mean_give_the_skewness_of_the_values(centre):
    values = centre + np.random.default_rng(0).gamma(2.0, size=1000)
    assert by_moments(Skewed, values).read() == pytest.approx(Skewed.of(values).read(), rel=1e-12)


@pytest.mark.parametrize("reduction", [Distribution, Skewed])
@pytest.mark.parametrize("value", [0.0, -0.0, 0.1, 33.3, -1e8 / 3])
def test_equal_values_have_no_spread_however_their_sums_were_rounded(reduction, value):
    for count in (1, 2, 3, 10, 999):
        values = np.full(count, value)
        assert by_moments(reduction, values).read() == reduction.of(values).read()


@law
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20), st.sampled_from([Distribution, Skewed]))
def test_moments_never_give_a_negative_variance(values, reduction):
    state = by_moments(reduction, np.array(values))
    assert state.variance() >= 0
    assert all(math.isfinite(number) for number in state.read().values())


@pytest.mark.parametrize("centre", [100.0, 1e8])
def test_states_from_moments_merge_with_states_from_values(centre):
    values = centre + np.random.default_rng(0).gamma(2.0, size=1000)
    state = Skewed.of(values[:300]).merge(by_moments(Skewed, values[300:]))
    assert state.read() == pytest.approx(Skewed.of(values).read(), rel=1e-12)


# --- histograms


HUNDREDTHS = list(range(101))
PERCENTS = st.sampled_from([0, 1, 5, 25, 50, 75, 95, 99, 100]) | st.floats(0, 100)
WITHIN = st.floats(1e-9, 1e9).flatmap(lambda size: st.sampled_from([size, -size, 0.0]))


def test_percentiles_of_the_numbers_0_to_100_are_those_numbers():
    read = Histogram.of(HUNDREDTHS).read()
    assert (read["p0"], read["p100"]) == (0, 100)
    assert [read["p1"], read["p50"], read["p99"]] == pytest.approx([1, 50, 99], rel=0.005)


@law
@given(st.lists(WITHIN, min_size=1, max_size=50), PERCENTS)
def test_a_percentile_is_an_observation_to_half_a_percent(values, percent):
    exact = np.percentile(values, percent, method="lower")
    assert Histogram.of(values).percentile(percent) == pytest.approx(exact, rel=0.005, abs=0.0)


@law
@given(st.lists(numbers(), min_size=1, max_size=20))
def test_the_percentiles_0_and_100_are_the_extremes_themselves(values):
    read = Histogram.of(values).read()
    assert (read["p0"], read["p100"]) == (min(values), max(values))
    assert min(values) <= read["p50"] <= max(values)


@pytest.mark.parametrize("size", [100, 100_000])
def test_percentiles_of_many_values_agree_with_numpy(size):
    values = np.random.default_rng(0).normal(3.0, 10.0, size=size)
    for percent in (1, 5, 25, 50, 75, 95, 99):
        exact = np.percentile(values, percent, method="lower")
        assert Histogram.of(values).percentile(percent) == pytest.approx(exact, rel=0.005)


@law
@given(st.lists(numbers(), min_size=1, max_size=100), st.integers(1, 80))
def test_a_picture_of_a_histogram_shows_every_observation(values, at_most):
    edges, counts = Histogram.of(values).buckets(at_most)
    assert sum(counts) == len(values)
    assert len(edges) == len(counts) + 1 <= at_most + 1
    assert (edges[0], edges[-1]) == (min(values), max(values))
    assert edges == sorted(edges)


def test_a_picture_of_nothing_is_empty():
    assert Histogram.of([]).buckets() == ([], [])


# --- means over groups, and of the most recent


def test_a_mean_over_groups_weighs_each_group_alike():
    assert GroupedMean.of([1, 1, 1, 0], groups=[7, 7, 7, 9]).read() == {"mean": 0.5}  # a plain mean would say 0.75


def test_a_group_that_is_spread_over_workers_is_one_group():
    parts = [GroupedMean.of([1, 0], groups=[7, 9]), GroupedMean.of([0], groups=[7])]
    assert merge_all(parts).read() == {"mean": 0.25}


def test_the_most_recent_are_those_with_the_largest_places_whoever_reports_them():
    late, early = Latest.of([9, 6], [(1, 2), (1, 1)]), Latest.of([3, 100], [(0, 8), (0, 7)])
    assert late.merge(early).read() == early.merge(late).read() == {"mean": 6.0}


def test_the_most_recent_hundred_count():
    places = [(0, n) for n in range(150)]
    assert Recent.of([1000] * 50 + [1] * 100, places).read() == {"mean": 1.0}


@pytest.mark.parametrize(
    ("of", "message"),
    [
        (lambda: GroupedMean.of([1, 2], [0]), "2 values and 1 groups"),
        (lambda: Recent.of([1, 2], [(0, 0)]), "2 values and 1 places"),
    ],
)
def test_every_value_needs_its_group_or_place(of, message):
    with pytest.raises(ValueError, match=message):
        of()


# --- checkpoints


def test_every_reduction_can_be_named_by_a_checkpoint():
    assert {type(of([ONE])).__name__ for name, of in OF.items() if name != "Recent, of 3"} | {"Last"} == set(KINDS)


@law
@given(seen=observations())
def test_a_state_survives_a_checkpoint(seen):
    for name in OF.keys() - {"Recent, of 3"}:
        state = OF[name](seen)
        restored = from_json(json.loads(json.dumps(to_json(state))))
        assert restored == state
        assert type(restored) is type(state)
        assert repr(restored) == repr(state)
        assert restored.read() == state.read()


@pytest.mark.parametrize("state", [Last.of([3e-4]), Last.of([]), Last.of([math.nan])], ids=repr)
def test_a_set_value_survives_a_checkpoint(state):
    assert from_json(json.loads(json.dumps(to_json(state)))) == state


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
    window.observe_state(m.POLICY_LOSS, Mean((6.0,), (1.0,), nonfinite=4))
    assert window.read([m.POLICY_LOSS]) == {"train/actor/policy_loss": 3.0}
    assert window.nonfinite() == {"train/actor/policy_loss": 4}


def test_a_mean_over_nothing_summed_elsewhere_is_absent():
    window = MetricWindow()
    window.observe_state(m.POLICY_LOSS, Mean())
    assert window.read([m.POLICY_LOSS]) == {}


@pytest.mark.parametrize("metric", ["train/loss", None, Mean])
def test_what_nobody_declared_cannot_be_observed(metric):
    with pytest.raises(TypeError, match=f"{re.escape(repr(metric))} is not a declared metric: declare it once"):
        MetricWindow().observe(metric, [1.0])


def test_a_family_cannot_be_observed_and_its_members_can():
    with pytest.raises(ValueError, match=r"env/reward_terms/\{name\}/mean is a family: observe one of its members"):
        MetricWindow().observe(m.REWARD_TERM, [1.0])
    window = MetricWindow()
    window.observe(m.REWARD_TERM.member("reach"), [1.0, 3.0])
    assert window.read([m.REWARD_TERM, m.REWARD_TERM_STD]) == {
        "env/reward_terms/reach/mean": 2.0,
        "env/reward_terms/reach/std": 1.0,
    }


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


@pytest.mark.parametrize(
    ("metric", "how", "message"),
    [
        (m.RETURNS, {"weights": [1, 2]}, "is a Distribution, which takes values alone, but got weights"),
        (m.POLICY_LOSS, {"groups": [1, 2]}, "train/actor/policy_loss is a Mean, which takes weights, but got groups"),
        (m.ENV_SUCCESS_ONCE_BALANCED, {}, "is a GroupedMean, which takes groups, but got none"),
        (m.ENV_SUCCESS_ONCE_BALANCED, {"weights": [1, 2]}, "is a GroupedMean, which takes groups, but got weights"),
        (m.ENV_RETURN_MA100, {}, "is a Recent, which takes places, but got none"),
        (m.ENV_RETURN_MA100, {"groups": [1, 2]}, "is a Recent, which takes places, but got groups"),
    ],
)  # fmt: skip
def test_a_reduction_takes_what_it_needs_and_nothing_else(metric, how, message):
    with pytest.raises(ValueError, match=message):
        MetricWindow().observe(metric, [1, 2], **how)


def test_a_state_of_another_reduction_is_refused():
    with pytest.raises(ValueError, match="rollout/returns_mean is Distribution, but got a Mean"):
        MetricWindow().observe_state(m.RETURNS, Mean.of([1]))
    with pytest.raises(ValueError, match="rollout/returns_max is derived, but got a Distribution"):
        MetricWindow().observe_state(m.RETURNS_MAX, Distribution.of([1]))


def test_a_state_reduced_elsewhere_pools_with_values_observed_here():
    window = MetricWindow()
    window.observe(m.RETURNS, [1.0])
    window.observe_state(m.RETURNS, Distribution.of([3.0]))
    assert window.read([m.RETURNS, m.RETURNS_VAR]) == {"rollout/returns_mean": 2.0, "rollout/returns_var": 1.0}


def test_two_windows_that_reduced_a_metric_differently_do_not_merge():
    windows = [MetricWindow({"train/loss": Mean.of([1])}), MetricWindow({"train/loss": Sum.of([1])})]
    with pytest.raises(ValueError, match="train/loss was observed with more than one reduction: Mean, Sum"):
        merged(windows)


def test_a_histogram_is_shown_as_one_and_not_as_a_number():
    window = MetricWindow()
    window.observe(m.ADVANTAGES_DIST, [1.0, 2.0])
    window.observe(m.RATIO_DIST, [])
    metrics = list(CATALOGUE.values())
    assert window.read(metrics) == {}
    assert list(window.histograms(metrics)) == ["rollout/advantages_dist"]
    assert window.histograms(metrics)["rollout/advantages_dist"].read()["p100"] == 2.0


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


@settings(max_examples=20)
@given(st.lists(windows(), min_size=2, max_size=4), st.randoms())
def test_the_order_in_which_windows_merge_does_not_show(parts, random):
    shuffled = list(parts)
    random.shuffle(shuffled)
    metrics = list(CATALOGUE.values())
    assert merged(shuffled).read(metrics) == merged(parts).read(metrics)
    assert merged(shuffled).nonfinite() == merged(parts).nonfinite()
    nested = merged([merged(parts[:1]), merged(parts[1:])])
    assert nested.read(metrics) == merged(parts).read(metrics)


@settings(max_examples=20)
@given(st.lists(windows(), min_size=1, max_size=8), st.randoms())
def test_windows_that_are_merged_in_a_tree_of_any_shape_are_the_same_to_the_last_bit(parts, random):
    """As partial results of hosts, racks or nodes are: each is a run of ranks, in their order."""

    def tree(run: Sequence[MetricWindow]) -> MetricWindow:
        if len(run) < 2 or random.random() < 0.2:
            return merged(run)
        cuts = sorted(random.sample(range(1, len(run)), random.randint(1, len(run) - 1)))
        return merged([tree(run[begin:end]) for begin, end in itertools.pairwise([0, *cuts, len(run)])])

    for rank, window in enumerate(parts):
        window.episodes = [episode(slot=rank)]
    together, partial = merged(parts), tree(parts)
    assert repr(sorted(partial.states.items())) == repr(sorted(together.states.items()))
    assert partial.episodes == together.episodes


def test_merging_leaves_the_other_window_as_it_was():
    window, other = MetricWindow(), MetricWindow()
    other.observe(m.LOSS, 1)
    window.merge(other)
    window.observe(m.LOSS, 3)
    assert other.read([m.LOSS]) == {"train/loss": 1.0}


# --- the catalogue


MODULES = (m.train, m.off_policy, m.rollout, m.env, m.curriculum, m.time)
NAMESPACES = ("train/", "rollout/", "env/", "eval/", "time/")
TIERS = ("core", "standard", "extension", "language_only")
OBSERVATIONS = ("decision", "minibatch", "trajectory", "last epoch", "last minibatch")
RULES = [(metric, rule) for metric in CATALOGUE.values() for rule in metric.rules]
NAMES = [(metric, name) for metric in CATALOGUE.values() for name in metric.names]


def those(satisfies: Callable[[Metric], bool]) -> list[str]:
    """Names of the metrics of the catalogue that a predicate holds for: the violations of a check."""
    return [name for name, metric in CATALOGUE.items() if satisfies(metric)]


def test_every_name_is_declared_once():
    declared = {id(metric): metric for module in MODULES for metric in m.metrics_of(module)}
    counts = Counter(metric.name for metric in declared.values())
    assert counts.most_common(1)[0][1] == 1
    assert set(counts) == set(CATALOGUE)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_a_metric_has_the_same_variable_everywhere(module):
    for variable, value in vars(module).items():
        if isinstance(value, Metric):
            assert getattr(m, variable) is value


def test_the_keys_of_the_catalogue_are_the_names():
    assert list(CATALOGUE) == [metric.name for metric in CATALOGUE.values()]


def test_a_metric_stands_in_a_known_namespace():
    assert those(lambda metric: not metric.name.startswith(NAMESPACES)) == []


def test_a_metric_says_its_unit_and_its_formula():
    assert those(lambda metric: not (metric.unit.strip() and metric.formula.strip())) == []


def test_the_meaning_of_a_metric_is_a_sentence():
    assert those(lambda metric: not (metric.meaning[0].isupper() and metric.meaning.endswith("."))) == []


def test_a_metric_is_observed_or_read_or_derived():
    def kind(metric: Metric) -> tuple[bool, bool, bool]:
        shown = bool(metric.reads) or metric.is_histogram
        return metric.reduction is not None, shown, metric.compute is not None

    kinds = [(True, True, False), (False, True, False), (False, False, True)]
    assert those(lambda metric: kind(metric) not in kinds) == []
    assert those(lambda metric: bool(metric.inputs) is (metric.reduction is not None)) == []


def test_the_inputs_of_a_metric_are_observed_metrics_of_the_catalogue():
    def observed(source: Metric) -> bool:
        return CATALOGUE.get(source.name) is source and source.reduction is not None

    assert those(lambda metric: not all(map(observed, metric.inputs))) == []


def test_a_metric_shows_a_reading_that_its_reduction_has():
    def readings(metric: Metric) -> Sequence[str]:
        return (metric.inputs[0] if metric.inputs else metric).reduction.readings

    assert those(lambda metric: bool(metric.reads) and metric.reads not in readings(metric)) == []


def test_a_metric_has_a_known_tier():
    assert those(lambda metric: metric.tier not in TIERS) == []
    assert those(lambda metric: metric.tier == "language_only" and not metric.needs) == []


def test_a_metric_is_for_algorithms_that_there_are():
    assert those(lambda metric: not set(metric.algorithms) <= set(shipped("algorithms"))) == []


@pytest.mark.parametrize(
    ("group", "base"),
    [
        (conditions.CLIPPED, "shared.clipped:ClippedAlgorithm"),
        (conditions.VALUE_BASED, "ppo:PPO"),
        (conditions.GROUP_RELATIVE, "grpo:GRPO"),
        (conditions.SOFT_ACTOR_CRITIC, "sac:SAC"),
    ],
)
def test_a_group_of_algorithms_holds_the_subclasses_that_observe_its_metrics(group, base):
    kind = resolve("algorithms", f"rlpipe.algorithms.{base}", "algorithm.name")
    classes = {name: resolve("algorithms", name, "algorithm.name") for name in shipped("algorithms")}
    assert set(group) == {name for name, cls in classes.items() if issubclass(cls, kind)}


def test_what_takes_the_values_of_another_metric_is_observed_as_that_is():
    def fits(metric: Metric) -> bool:
        if metric.of is None:
            return metric.over == "decision"
        same = CATALOGUE.get(metric.of.name) is metric.of
        return same and metric.over in OBSERVATIONS and issubclass(metric.reduction, Mean | Distribution | Histogram)

    assert those(lambda metric: not fits(metric)) == []


# --- the rules of the catalogue


def test_the_bounds_of_a_band_are_in_order():
    bands = [(metric.name, rule.check) for metric, rule in RULES if isinstance(rule.check, Band)]
    assert [name for name, band in bands if None not in (band.low, band.high) and not band.low < band.high] == []


def test_the_rules_of_a_metric_have_different_names():
    assert those(lambda metric: len({rule.name for rule in metric.rules}) < len(metric.rules)) == []


def test_a_rule_says_what_it_demands_and_asks_for_at_least_one_report():
    assert [(metric.name, rule.name) for metric, rule in RULES if not str(rule) or rule.sustained < 1] == []


def test_a_rule_shows_a_sign_that_there_is():
    assert [(metric.name, rule.name) for metric, rule in RULES if rule.sign and rule.sign not in metric.signs] == []


def formulas_of(rule: Rule) -> list[str]:
    """Formulas of a rule, without tags."""
    formulas = (rule.when, *rule.exceptions, rule.check.formula if isinstance(rule.check, Holds) else "")
    return [formula for formula in formulas if formula and not formula.startswith("tag:")]


def unknown_in(metric: Metric, formula: str) -> set[str]:
    """Metrics and variables that a formula names, and that do not exist."""
    known = {*VARIABLES, *(Histogram.readings if metric.is_histogram else ())}
    mentioned = re.findall(r"\{([^{}]+)\}", formula)
    tree = ast.parse(re.sub(r"\{[^{}]+\}", "0", formula))
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call)}
    variables = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - called
    return (set(mentioned) - set(CATALOGUE)) | (variables - known)


def test_a_rule_names_only_what_there_is():
    found = {(metric.name, rule.name): unknown_in(metric, text) for metric, rule in RULES for text in formulas_of(rule)}
    assert {place: unknown for place, unknown in found.items() if unknown} == {}


def test_a_rule_asks_for_tags_and_metrics_that_there_are():
    tags = [rule.when.removeprefix("tag:") for _, rule in RULES if rule.when.startswith("tag:")]
    others = [rule.check.other for _, rule in RULES if isinstance(rule.check, MovesWith)]
    assert (set(tags) - set(TAGS), set(others) - set(CATALOGUE)) == (set(), set())


def test_a_formula_of_a_rule_is_true_or_false():
    def value(metric: Metric, formula: str) -> float:
        values = dict.fromkeys((*re.findall(r"\{([^{}]+)\}", formula), metric.name), 0.5)
        known = dict.fromkeys((*VARIABLES, *Histogram.readings), 0.5)
        return evaluate(formula, View([0.5, 0.5], 0.5, [values, values], known))

    formulas = [(metric, formula) for metric, rule in RULES for formula in formulas_of(rule)]
    assert [formula for metric, formula in formulas if value(metric, formula) not in (True, False)] == []


# --- aliases.csv and signs.toml


def alias_lines() -> list[dict[str, str]]:
    with declare.ALIASES.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_an_alias_belongs_to_a_metric_that_there_is():
    assert {line["metric"] for line in alias_lines()} - set(CATALOGUE) == set()


def test_aliases_are_sorted_by_metric_system_and_key_and_unique():
    order = list(CATALOGUE)
    places = [(order.index(line["metric"]), line["system"], line["key"]) for line in alias_lines()]
    assert places == sorted(set(places))


def test_an_alias_is_secondary_or_not():
    assert {line["secondary"] for line in alias_lines()} == {"yes", ""}


def test_every_alias_is_attached_to_its_metric():
    attached = [(metric.name, name.system, name.key) for metric, name in NAMES]
    assert attached == [(line["metric"], line["system"], line["key"]) for line in alias_lines()]


def test_a_name_elsewhere_is_of_a_known_system_and_converts_in_a_known_way():
    assert [name for _, name in NAMES if name.system not in SYSTEMS] == []
    assert [name for _, name in NAMES if name.convert not in CONVERSIONS] == []
    assert [name for _, name in NAMES if name.convert and name.relation != "transform"] == []


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_key_of_another_system_belongs_to_one_metric_first(system):
    first = Counter(use.name.key for use in uses(system) if not use.name.secondary)
    assert [key for key, count in first.items() if count > 1] == []


def test_signs_belong_to_metrics_that_there_are_in_the_order_of_the_catalogue():
    named = list(declare.read_signs())
    assert named == [name for name in CATALOGUE if name in named]


def test_every_sign_is_attached_to_its_metric():
    assert [name for name, signs in declare.read_signs().items() if CATALOGUE[name].signs != signs] == []


def test_a_plug_in_gives_names_and_signs_in_its_declaration():
    names, signs = (Name("sb3", "train/mine"),), {"high": Sign("high", "too much", "less")}
    mine = observed("train/mine", Mean, unit="1", meaning="Mine.", formula="x", names=names, signs=signs)
    assert (mine.names, mine.signs) == (names, signs)


@pytest.mark.parametrize("relation", ["similar", ""])
def test_a_name_elsewhere_relates_in_a_known_way(relation):
    with pytest.raises(ValueError, match="sb3 train/loss: relation"):
        Name("sb3", "train/loss", relation)


@pytest.mark.parametrize("reduction", [Sum, Mean, Distribution, Last, Histogram])
def test_a_reduction_reads_what_it_declares(reduction):
    assert set(reduction.of([2.0, 2.0] if reduction is Distribution else [2.0]).read()) == set(reduction.readings)


@pytest.mark.parametrize(("others", "namespace"), [(m.EVAL, "eval/"), (m.CURRICULUM, "env/curriculum/")])
def test_evaluations_and_curricula_measure_as_training_measures(others, namespace):
    for field in dataclasses.fields(others):
        training, other = getattr(m.ENV, field.name), getattr(others, field.name)
        if isinstance(other, Metric) and training is not None:  # edges of ranges are of curricula alone
            assert other.name == training.name.replace("env/", namespace)
            assert (other.reduction, other.reads) == (training.reduction, training.reads)


# --- families


def test_members_of_a_family_appear_as_they_are_observed():
    window = MetricWindow()
    for name, values in (("reach", [1, 3]), ("grasp", [5])):
        window.observe(m.REWARD_TERM.member(name), values)
    assert window.read(list(CATALOGUE.values())) == {
        "env/reward_terms/grasp/mean": 5.0,
        "env/reward_terms/reach/mean": 2.0,
        "env/reward_terms/grasp/std": 0.0,
        "env/reward_terms/reach/std": 1.0,
    }


def test_members_of_a_family_merge_by_their_names():
    windows = [MetricWindow(), MetricWindow()]
    windows[0].observe(m.REWARD_TERM.member("reach"), [1])
    windows[1].observe(m.REWARD_TERM.member("reach"), [3])
    assert merged(windows).read([m.REWARD_TERM]) == {"env/reward_terms/reach/mean": 2.0}


def test_reward_terms_of_an_episode_need_no_declaration():
    window = MetricWindow()
    m.ENV.observe(window, [episode(reward_terms={"reach": 1.0}), episode(reward_terms={"reach": 3.0, "grasp": 2.0})])
    read = window.read([m.REWARD_TERM])
    assert read == {"env/reward_terms/grasp/mean": 2.0, "env/reward_terms/reach/mean": 2.0}


@pytest.mark.parametrize("name", ["", "reach the cube", "a/b", "{name}"])
def test_the_name_of_a_member_must_fit_into_a_key(name):
    with pytest.raises(ValueError, match="names consist of letters, digits"):
        m.REWARD_TERM.member(name)


def test_what_is_no_family_has_no_members():
    with pytest.raises(ValueError, match="train/loss has no member 'x'"):
        m.LOSS.member("x")
    assert m.LOSS.members({}) == [m.LOSS]
    assert m.REWARD_TERM.members({}) == []


# --- formulas


def view(now: dict[str, float], before: dict[str, float] | None = None, **variables: float) -> View:
    rows = [now] if before is None else [before, now]
    return View([0.0], 0.0, rows, variables)


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        ("{a} <= 2 <= {b}", True),
        ("{b} <= {a} <= 4", False),
        ("1 - low <= {a} <= 1 + high", True),
        ("{a}**2 + sqrt({b}) == 1 + sqrt(3)", True),
        ("not low and {a} > 0", False),
        ("delta({b}) == 1", True),
        ("max({a}, {b}) - min({a}, {b}) == abs({a} - {b})", True),
    ],
)
def test_a_formula_of_metrics_and_variables(formula, expected):
    assert evaluate(formula, view({"a": 1.0, "b": 3.0}, {"a": 1.0, "b": 2.0}, low=0.2, high=0.2)) == expected


@pytest.mark.parametrize("formula", ["{c} > 0", "unknown > 0", "delta({a}) > 0", "sqrt(0 - {a}) > 0", "1 / ({a} - 1)"])
def test_a_formula_of_what_was_not_reported_or_is_undefined_has_no_value(formula):
    with pytest.raises(UnknownError):
        evaluate(formula, view({"a": 1.0}))
    assert not Holds(formula).violated(view({"a": 1.0}))


# --- names that others know


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
    assert name in [known.key for known in CATALOGUE[name].names if known.system == "rlinf"]
    assert not CATALOGUE[name].hidden


def test_whoever_only_reads_metrics_does_not_load_torch_or_ray():
    script = "import sys, rlpipe.metrics; print({'torch', 'ray'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=600)
    assert done.stdout.strip() == "set()"
