"""What the learner observes on its device: pooled over the update, and fetched in one copy."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlpipe.metrics import CATALOGUE, MetricWindow
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.on_device import DeviceObservations, Masked, MinibatchSizes
from rlpipe.metrics.reductions import Histogram

ALL = list(CATALOGUE.values())


def observed(*epochs: list[tuple[list[float], list[int]]], metric=m.CLIP_FRACTION) -> MetricWindow:
    """The window of an update whose epochs consist of minibatches of values and trajectory numbers."""
    observations, window = DeviceObservations(ALL), MetricWindow()
    minibatches = [minibatch for epoch in epochs for minibatch in epoch]
    values = torch.tensor([value for values, _ in minibatches for value in values])
    numbers = torch.tensor([number for _, numbers in minibatches for number in numbers])
    sizes = [len(values) for values, _ in minibatches]
    observations.add_update({metric: values}, numbers, MinibatchSizes(sizes, sizes, len(epochs[-1])))
    observations.reduce(window)
    return window


def test_decisions_of_all_minibatches_weigh_alike():
    window = observed([([1.0, 1.0, 1.0], [0, 0, 0]), ([0.0], [1])])
    assert window.read(ALL)["train/actor/clip_fraction"] == 0.75


def test_a_trajectory_is_one_observation_however_long_it_is():
    read = observed([([1.0, 1.0, 1.0], [0, 0, 0]), ([0.0, 1.0], [7, 7])]).read(ALL)
    assert (read["train/actor/clip_fraction_min"], read["train/actor/clip_fraction_max"]) == (0.5, 1.0)


def test_the_largest_minibatch_and_the_last_epoch_and_minibatch_are_told_apart():
    first, last = [([4.0, 6.0], [0, 1]), ([1.0, 1.0], [0, 1])], [([2.0, 4.0], [0, 1]), ([0.0, 1.0], [0, 1])]
    read = observed(first, last, metric=m.APPROX_KL).read(ALL)
    assert read["train/actor/approx_kl"] == 19 / 8
    assert read["train/actor/approx_kl_max"] == 5.0
    assert read["train/actor/approx_kl_last_epoch"] == 7 / 4
    assert read["train/actor/approx_kl_last_minibatch"] == 0.5


def test_a_ratio_brings_its_variance_extremes_and_histogram():
    window = observed([([0.5, 1.5], [0, 0]), ([1.0, 1.0], [0, 0])], metric=m.RATIO)
    read = window.read(ALL)
    assert [read[f"train/actor/ratio{end}"] for end in ("", "_var", "_min", "_max")] == [1.0, 0.125, 0.5, 1.5]
    assert window.states["train/actor/ratio_dist"] == Histogram.of([0.5, 1.5, 1.0, 1.0])


@pytest.mark.parametrize("worst", [math.nan, math.inf, 1e200])
def test_what_no_moment_can_hold_is_counted_and_left_out(worst):
    observations, window = DeviceObservations(ALL), MetricWindow()
    observations.add({m.RATIO: torch.tensor([1.0, worst, 3.0], dtype=torch.float64)})
    observations.reduce(window)
    assert window.read(ALL)["train/actor/ratio"] == 2.0
    assert window.nonfinite()["train/actor/ratio"] == 1


def test_numbers_that_are_set_need_no_tensor():
    observations, window = DeviceObservations(ALL), MetricWindow()
    observations.add({m.CLIP_RANGE: 0.2})
    observations.reduce(window)
    assert window.read(ALL) == {"train/actor/clip_range": 0.2}


def test_an_observation_of_nothing_says_nothing():
    observations, window = DeviceObservations(ALL), MetricWindow()
    observations.add({m.RATIO: torch.zeros(0), m.LOSS: torch.zeros(0)})
    observations.reduce(window)
    assert window.read(ALL) == {}


def test_a_number_that_is_set_has_one_writer():
    observations = DeviceObservations(ALL)
    observations.add({m.CLIP_RANGE: 0.2})
    with pytest.raises(ValueError, match="train/actor/clip_range is set twice"):
        observations.add({m.CLIP_RANGE: 0.2})


def reduced(observed) -> dict[str, str]:
    """States of metrics, each with all its bits."""
    observations, window = DeviceObservations(ALL), MetricWindow()
    observations.add(observed)
    observations.reduce(window)
    return {name: repr(state) for name, state in window.states.items()}


KINDS = [m.LOSS, m.CLIP_FRACTION, m.RATIO, m.VALUES, m.RETURNS, m.NUM_UPDATES]
"""Means, distributions, histograms and a sum."""


@st.composite
def vectors(draw):
    """A vector for each of these metrics, most of one length, of any numbers that a learner can observe."""
    lengths, values = st.sampled_from([1, 3, 3, 3, 40]), st.floats(width=32) | st.sampled_from([1e100, 1e300, -0.0])
    kinds = st.sampled_from([torch.float64, torch.float32])
    return {
        metric: torch.tensor(draw(st.lists(values, min_size=length, max_size=length)), dtype=draw(kinds))
        for metric, length in zip(KINDS, draw(st.lists(lengths, min_size=6, max_size=6)), strict=True)
    }


@settings(max_examples=40)
@given(observed=vectors())
def test_what_is_reduced_together_has_the_bits_of_what_is_reduced_alone(observed):
    alone = {}
    for metric, values in observed.items():
        alone |= reduced({metric: values})
    assert reduced(observed) == alone


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300), st.integers(1, 5))
def test_rows_sum_to_the_bits_of_a_vector(numbers, rows):
    values = torch.tensor(numbers, dtype=torch.float64)
    assert torch.stack([values] * rows).sum(1).tolist() == [values.sum().item()] * rows


def test_a_mask_leaves_out_what_it_does_not_hold():
    mask = torch.tensor([True, False, True])
    together = reduced({m.RATIO: Masked(torch.tensor([1.0, math.nan, 3.0]), mask), m.LOSS: Masked(-mask.float(), mask)})
    assert together == reduced({m.RATIO: torch.tensor([1.0, 3.0]), m.LOSS: -torch.ones(2)})


def test_a_mask_that_holds_nothing_says_nothing():
    assert reduced({m.RATIO: Masked(torch.ones(2), torch.zeros(2, dtype=torch.bool))}) == {}


def test_units_weigh_alike_in_their_minibatch_and_in_their_trajectory():
    observations, window = DeviceObservations(ALL), MetricWindow()
    values = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 9.0]])
    mask = torch.tensor([[True, True], [True, True], [True, False]])
    sizes = MinibatchSizes([1, 2], [1, 2], 1)
    units = Masked(values, mask)
    observations.add_update({m.CLIP_FRACTION: units, m.APPROX_KL: units}, torch.tensor([0, 1, 1]), sizes, 2)
    observations.reduce(window)
    read = window.read(ALL)
    assert read["train/actor/clip_fraction"] == 3 / 5
    assert (read["train/actor/clip_fraction_min"], read["train/actor/clip_fraction_max"]) == (1 / 2, 2 / 3)
    assert read["train/actor/approx_kl_max"] == 2 / 3
    assert read["train/actor/approx_kl_last_minibatch"] == 2 / 3


@pytest.mark.parametrize("held", [[True, True, False, True], [False, False, True, True]])
def test_a_mask_of_decisions_may_leave_a_trajectory_out(held):
    mask, values, trajectory = torch.tensor(held), torch.arange(4.0), torch.tensor([0, 0, 1, 1])
    windows = []
    for each, numbers, size in ((Masked(values, mask), trajectory, 4), (values[mask], trajectory[mask], sum(held))):
        observations, window = DeviceObservations(ALL), MetricWindow()
        observations.add_update({m.CLIP_FRACTION: each}, numbers, MinibatchSizes([size], [size], 1))
        observations.reduce(window)
        windows.append(window.read(ALL))
    assert windows[0] == windows[1]


@pytest.mark.parametrize(("numbers", "count"), [([0, 0, 1], 2), ([3, 3, 70], None)])
def test_trajectories_may_be_numbered_with_or_without_gaps(numbers, count):
    observations, window = DeviceObservations(ALL), MetricWindow()
    sizes = MinibatchSizes([3], [3], 1)
    observations.add_update({m.CLIP_FRACTION: torch.tensor([1.0, 0.0, 1.0])}, torch.tensor(numbers), sizes, count)
    observations.reduce(window)
    assert window.read(ALL)["train/actor/clip_fraction_min"] == 0.5
