"""Ranges that widen: how far their edges come, and what the episodes of a curriculum are told of them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpipe.config.variations import Variations
from rlpipe.curricula.widening import WideningCurriculum
from rlpipe.errors import ConfigError
from rlpipe.metrics import MetricWindow
from rlpipe.metrics import catalogue as m
from rlpipe.trajectory import Episode

NEUTRAL = {"noise": 0.0, "mass": 1.0, "latency": 0.0}
MASS = {"mass": {"uniform": [0.5, 3.0]}}


def widening(variations, **options):
    """A curriculum whose edges take 5 steps, and are judged after 2 episodes."""
    config = WideningCurriculum.Config("widening", **{"edge_window": 2, "edge_steps": 5} | options)
    return WideningCurriculum(config, (), 0, Variations.read(variations, "variations"), NEUTRAL)


def at_edge(curriculum, name):
    return next(start for start in curriculum.starts().offered if start.edge == name)


def episode(start, levels, success):
    return Episode(
        0, 0, 1, 0, 0.0, 1, success, success, False, True, False, chosen=True, variations=levels, edge=start.edge
    )


def play(curriculum, name, *outcomes):
    """Plays episodes at the present edge; returns the ranges after each."""
    reached = []
    for success in outcomes:
        start = at_edge(curriculum, name)
        axis = name.rpartition("_")[0]
        curriculum.observe([episode(start, {axis: start.ranges[axis][0]}, success)])
        reached.append(tuple(round(end, 9) for end in curriculum.ranges[axis]))
    return reached


def read(curriculum):
    window = MetricWindow()
    curriculum.describe(window)
    edges = [m.CURRICULUM_EDGE_LEVEL.member(edge.name) for edge in curriculum.edges]
    return window.read([m.CURRICULUM_WIDTH, m.CURRICULUM_RANGE_ENTROPY, *edges])


def test_every_axis_begins_at_its_neutral_level():
    curriculum = widening(MASS | {"noise": {"uniform": [0, 0.2]}, "latency": {"choice": [2, 0, 1]}})
    assert curriculum.ranges == {"mass": (1, 1), "noise": (0, 0), "latency": (0, 0)}
    assert [edge.name for edge in curriculum.edges] == ["mass_low", "mass_high", "noise_high", "latency_high"]


def test_an_axis_whose_range_leaves_its_neutral_level_out_begins_at_the_nearest_level():
    curriculum = widening({"mass": {"log_uniform": [2.0, 4.0]}, "latency": {"choice": [3, 1]}})
    assert curriculum.ranges == {"mass": (2, 2), "latency": (1, 1)}
    assert [edge.name for edge in curriculum.edges] == ["mass_high", "latency_high"]


def test_an_edge_moves_outwards_after_enough_successes():
    assert play(widening(MASS), "mass_high", True, True, True, True) == [(1, 1), (1, 1.4), (1, 1.4), (1, 1.8)]
    assert play(widening(MASS), "mass_low", True, True)[-1] == (0.9, 1)


def test_an_edge_moves_inwards_after_failures_and_stays_in_between():
    curriculum = widening(MASS, widen_at=1.0, narrow_at=0.5)
    assert play(curriculum, "mass_high", True, True, True, False)[1:] == [(1, 1.4)] * 3  # half of them: neither
    assert play(curriculum, "mass_high", False, False) == [(1, 1.4), (1, 1)]
    assert play(curriculum, "mass_high", False, False)[-1] == (1, 1)


def test_a_logarithmic_range_widens_by_equal_factors():
    curriculum = widening({"mass": {"log_uniform": [0.25, 4.0]}}, edge_steps=2)
    assert play(curriculum, "mass_high", *[True] * 4)[1::2] == [(1, 2), (1, 4)]
    assert play(curriculum, "mass_low", *[True] * 4)[1::2] == [(0.5, 4), (0.25, 4)]


def test_a_choice_widens_from_each_level_to_the_next():
    curriculum = widening({"latency": {"choice": [5, 0, 2, 0]}})
    assert play(curriculum, "latency_high", *[True] * 6)[1::2] == [(0, 2), (0, 5), (0, 5)]


def test_an_episode_that_began_before_the_edge_moved_does_not_count():
    curriculum = widening(MASS)
    before = at_edge(curriculum, "mass_high")
    play(curriculum, "mass_high", True, True)
    curriculum.observe([episode(before, {"mass": 1.0}, True)] * 2)
    assert curriculum.ranges["mass"] == pytest.approx((1, 1.4))


def test_episodes_within_the_ranges_move_no_edge():
    curriculum = widening(MASS)
    within = curriculum.starts().offered[0]
    curriculum.observe([episode(within, {"mass": 1.0}, True)] * 9)
    assert curriculum.ranges == {"mass": (1, 1)}


def test_an_episode_has_one_axis_at_an_edge_and_the_others_within_their_ranges():
    curriculum = widening(MASS | {"noise": {"uniform": [0, 0.2]}})
    play(curriculum, "mass_high", True, True)
    play(curriculum, "noise_high", True, True)
    widest = Variations.read(MASS | {"noise": {"uniform": [0, 0.2]}}, "variations")
    drawn = [widest.draw(seed, at_edge(curriculum, "mass_high")) for seed in range(50)]
    assert {levels["mass"] for levels in drawn} == {curriculum.ranges["mass"][1]}
    assert all(0 <= levels["noise"] < 0.04 for levels in drawn)
    assert len({levels["noise"] for levels in drawn}) == 50


def test_the_shares_of_episodes_at_edges_and_at_the_widest_ranges_are_those_of_the_options():
    starts, generator = widening(MASS, edge_share=0.5, own_starts=0.2).starts(), np.random.default_rng(0)
    drawn = Counter(start and (start.edge or "within") for start in (starts.draw(generator) for _ in range(4000)))
    expected = {None: 0.2, "within": 0.4, "mass_low": 0.2, "mass_high": 0.2}
    assert {name: drawn[name] / 4000 for name in expected} == pytest.approx(expected, abs=0.03)


@pytest.mark.parametrize("levels", [{"uniform": [0.5, 3]}, {"log_uniform": [0.5, 3]}, {"choice": [3, 1, 0.5, 1]}])
@given(seed=st.integers(0, 2**31 - 1))
def test_at_its_widest_levels_are_drawn_as_without_a_curriculum(levels, seed):
    curriculum, widest = widening({"mass": levels}), Variations.read({"mass": levels}, "variations")
    for name in ("mass_low", "mass_high"):
        play(curriculum, name, *[True] * 10)
    assert widest.draw(seed, curriculum.starts().offered[0]) == widest.draw(seed)


def test_the_metrics_say_how_far_the_ranges_have_come():
    curriculum = widening(MASS | {"latency": {"choice": [0, 1]}})
    assert read(curriculum) == {
        "env/curriculum/width": 0, "env/curriculum/range_entropy": 0, "env/curriculum/edges/mass_low/level": 1,
        "env/curriculum/edges/mass_high/level": 1, "env/curriculum/edges/latency_high/level": 0,
    }  # fmt: skip
    play(curriculum, "mass_high", *[True] * 6)
    play(curriculum, "latency_high", True, True)
    row = read(curriculum)
    assert row["env/curriculum/width"] == pytest.approx((3 / 10 + 1 / 1) / 2)
    assert row["env/curriculum/range_entropy"] == pytest.approx((np.log(4) + np.log(2)) / 2)
    assert row["env/curriculum/edges/mass_high/level"] == pytest.approx(2.2)


MOVES = st.lists(st.tuples(st.sampled_from(["mass_low", "mass_high", "latency_high"]), st.booleans()), max_size=60)
AXES = MASS | {"latency": {"choice": [0, 1, 4]}}


@given(MOVES)
def test_no_range_leaves_the_widest_one_or_its_neutral_level(moves):
    curriculum = widening(AXES)
    for name, success in moves:
        play(curriculum, name, success)
        (low, high), (first, latest) = curriculum.ranges["mass"], curriculum.ranges["latency"]
        assert 0.5 <= low <= 1.0 <= high <= 3.0
        assert first == 0
        assert latest in (0, 1, 4)


@given(MOVES, st.integers(0, 60))
def test_a_resumed_curriculum_goes_on_as_if_nothing_had_happened(moves, cut):
    whole, resumed = widening(AXES), widening(AXES)
    for number, (name, success) in enumerate(moves):
        if number == cut:
            later = widening(AXES)
            later.load_state(resumed.state())
            resumed = later
        play(whole, name, success)
        play(resumed, name, success)
    assert resumed.ranges == whole.ranges
    assert {name: values.tolist() for name, values in resumed.state().items()} == {
        name: values.tolist() for name, values in whole.state().items()
    }


@pytest.mark.parametrize(
    ("variations", "options", "ranges"),
    [
        ({"mass": {"uniform": [0.9, 1.5]}}, {}, {"mass": (0.9, 1.5)}),  # narrower than it was
        ({"mass": {"uniform": [0.5, 5.0]}}, {}, {"mass": (0.8, 1.8)}),  # steps of 0.8
        (MASS, {"edge_steps": 10}, {"mass": (0.8, 2.2)}),
        (MASS | {"noise": {"uniform": [0, 1]}}, {}, {"mass": (0.8, 2.2), "noise": (0, 0)}),
    ],
)
def test_a_resume_with_other_ranges_begins_with_what_was_reached_of_them(variations, options, ranges):
    before, after = widening(MASS), widening(variations, **options)
    play(before, "mass_low", *[True] * 4)
    play(before, "mass_high", *[True] * 7)
    assert before.ranges["mass"] == pytest.approx((0.8, 2.2))
    after.load_state(before.state())
    for axis, ends in ranges.items():
        assert after.ranges[axis] == pytest.approx(ends)


@pytest.mark.parametrize(("narrow_at", "widen_at"), [(0.5, 0.5), (0.9, 0.8)])
def test_an_edge_that_would_move_both_ways_is_refused(narrow_at, widen_at):
    with pytest.raises(ConfigError, match=f"curriculum.narrow_at is {narrow_at}, but curriculum.widen_at is"):
        widening(MASS, narrow_at=narrow_at, widen_at=widen_at)
