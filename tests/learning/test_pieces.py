"""``learner.micro_batch``: pieces of a minibatch, one after the other, teach what the whole one teaches."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlpipe.algorithms.shared.optimizer import FlatAdam
from rlpipe.collection.worker import RolloutWorker
from rlpipe.errors import ConfigError
from rlpipe.learning.base import learner_class
from rlpipe.learning.pieces import cut, gradients_in_pieces
from rlpipe.metrics import CATALOGUE
from rlpipe.trajectory import SpaceSpec
from rlpipe.trajectory.synthetic import synthetic_batch
from tests.helpers.demonstrations import demonstrator
from tests.helpers.runs import gru, sac, scripted

SPEC = SpaceSpec(3, 1, None, -np.ones(1, np.float32), np.ones(1, np.float32))


@pytest.mark.parametrize(
    ("rows", "size", "pieces"),
    [(5, None, [(0, 5)]), (5, 5, [(0, 5)]), (5, 2, [(0, 2), (2, 4), (4, 5)]), (0, 2, [(0, 0)])],
)
def test_pieces_have_at_most_so_many_rows(rows, size, pieces):
    assert [(piece.start, piece.stop) for piece in cut(rows, size)] == pieces


@pytest.mark.parametrize(
    ("lengths", "pieces"),
    [([2, 2, 2], [(0, 4), (4, 6)]), ([3, 3], [(0, 3), (3, 6)]), ([1, 6, 1], [(0, 1), (1, 7), (7, 8)])],
)
def test_a_trajectory_stays_whole_even_if_it_is_longer(lengths, pieces):
    together = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    assert [(piece.start, piece.stop) for piece in cut(len(together), 4, together)] == pieces


def test_gradients_of_pieces_are_summed_and_their_terms_joined():
    weight, x = torch.nn.Parameter(torch.tensor([2.0])), torch.tensor([1.0, 2.0, 3.0])

    def summand(piece):
        each = weight * x[piece]
        return each.sum() / 3, {"each": each.detach()}

    total, gradient, terms = gradients_in_pieces(FlatAdam([weight]), summand, cut(3, 2))
    assert (total.item(), gradient.item(), terms["each"].tolist()) == (4.0, 2.0, [2.0, 4.0, 6.0])


def cloning(folder, *overrides):
    algorithm = {"name": "behaviour_cloning", "epochs": 3, "batch_size": 16}
    return scripted(folder, *overrides, demos=demonstrator(folder), algorithm=algorithm)


def grpo(folder, *overrides):
    algorithm = {"name": "grpo", "group_size": 2, "update_epochs": 2, "num_minibatches": 2}
    return scripted(folder, *overrides, algorithm=algorithm)


def with_cloning(folder, *overrides):
    return scripted(folder, "algorithm.cloning_coef=0.5", *overrides, demos=demonstrator(folder))


@pytest.mark.parametrize("make", [scripted, grpo, gru, with_cloning, cloning])
def test_weights_and_metrics_are_those_of_whole_minibatches(tmp_path, make):
    results = []
    for overrides in ((), ("learner.micro_batch=5",)):
        config = make(tmp_path, *overrides)
        spec = RolloutWorker(config.schedule, 0, 1).ready().spec
        batch = synthetic_batch(
            spec, 16, 4, memory_width=config.policy.memory_width, group_size=config.algorithm.group_size
        )
        learner = learner_class(config)(config.schedule, spec)
        for iteration in (1, 2):
            snapshot, window = learner.update(0, iteration, *([batch] if config.algorithm_class.collects else []))
        metrics = window.read(tuple(CATALOGUE.values()))
        results.append((snapshot.weights, {k: v for k, v in metrics.items() if not k.startswith("time/")}))
    (whole, metrics), (in_pieces, other_metrics) = results
    for name, array in whole.items():
        np.testing.assert_allclose(in_pieces[name], array, rtol=1e-4, atol=1e-5, err_msg=name)
    assert other_metrics == pytest.approx(metrics, rel=1e-3, abs=1e-5, nan_ok=True)


def test_it_is_refused_where_batches_are_taken_whole(tmp_path):
    with pytest.raises(ConfigError, match=r"learner.micro_batch is 5, but algorithm.name=sac takes its batches whole"):
        sac(tmp_path, "learner.micro_batch=5")
