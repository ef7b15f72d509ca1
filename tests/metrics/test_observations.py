"""What the learner observes on its device: pooled over the update, and fetched in one copy."""

from __future__ import annotations

import math

import pytest
import torch

from rlpipe.metrics import CATALOGUE, MetricWindow
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.on_device import DeviceObservations, MinibatchSizes
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
