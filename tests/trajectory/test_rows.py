"""Lists of decisions, made on the host, select what masks would."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis.extra.numpy import arrays

from rlpipe.trajectory import Tree
from rlpipe.trajectory.batch import TrajectoryBatch
from rlpipe.trajectory.rows import Rows

CPU = torch.device("cpu")
MASK = np.array([[True, False], [True, True]])
VALUES = torch.tensor([[1.0, 2.0], [3.0, 4.0]])


def batch_of(valid, ended, lags=None):
    """The batch on a device, of observations that do not matter."""
    steps, envs = valid.shape
    zeros, final_index = np.zeros((steps, envs), np.float32), np.flatnonzero(ended)
    batch = TrajectoryBatch(
        np.zeros((steps + 1, envs, 1), np.float32), zeros[..., None], zeros, zeros, ended, np.zeros_like(ended), valid,
        np.zeros((len(final_index), 1), np.float32), final_index, 0, lags=lags,
    )  # fmt: skip
    return batch.to(CPU)


def test_rows_are_those_of_the_mask_in_its_order():
    rows = Rows.at(MASK, CPU)
    assert rows.of(VALUES).tolist() == [1, 3, 4]
    assert rows.of(Tree({"a": VALUES}))["a"].tolist() == [1, 3, 4]
    assert len(rows) == 3


def test_all_rows_are_a_view():
    assert Rows.at(np.ones((2, 2), bool), CPU).of(VALUES).data_ptr() == VALUES.data_ptr()


@pytest.mark.parametrize(("mask", "expected"), [(MASK, [[7, 2], [8, 9]]), (np.ones((2, 2), bool), [[7, 8], [9, 10]])])
def test_values_are_put_back_at_their_rows(mask, expected):
    values = torch.tensor([7.0, 8.0, 9.0, 10.0])[: int(mask.sum())]
    assert Rows.at(mask, CPU).onto(values, VALUES).tolist() == expected
    assert VALUES.tolist() == [[1, 2], [3, 4]]


flags = arrays(bool, (5, 3))


@given(valid=flags, ended=flags)
def test_trajectories_without_gaps_are_those_with_gaps_in_their_order(valid, ended):
    batch = batch_of(valid, ended)
    present, index = torch.unique(batch.numbers()[batch.valid], return_inverse=True)
    assert batch.listed.trajectories.count == len(present)
    assert torch.equal(batch.listed.trajectories.index, index)


@given(valid=flags, ended=flags, left_out=arrays(bool, 3))
def test_decisions_without_some_columns_are_those_of_a_mask(valid, ended, left_out):
    batch = batch_of(valid, ended)
    mask = batch.valid & ~torch.from_numpy(left_out)
    rows, among, trajectories = batch.listed.without(left_out)
    positions = batch.positions()
    assert torch.equal(rows.of(positions), positions[mask])
    assert torch.equal(among.of(batch.listed.valid.of(positions)), positions[mask])
    present, index = torch.unique(batch.numbers()[mask], return_inverse=True)
    assert trajectories.count == len(present)
    assert torch.equal(trajectories.index, index)


def test_decisions_of_the_present_weights_are_fresh():
    batch = batch_of(MASK, np.zeros((2, 2), bool), lags=np.array([1, 0]))
    assert batch.listed.fresh.of(batch.listed.valid.of(VALUES)).tolist() == [4]


def test_a_batch_on_the_host_has_no_lists():
    with pytest.raises(ValueError, match=r"call its method to\(\)"):
        _ = TrajectoryBatch(*[np.zeros((1, 1))] * 9, 0).listed
