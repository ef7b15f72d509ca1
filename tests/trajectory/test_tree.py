"""Observation trees: rows of all leaves at once, and bare arrays as they are."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlpipe.trajectory import LeafSpec, SpaceSpec, Tree
from rlpipe.trajectory.batch import TrajectoryBatch
from rlpipe.trajectory.tree import arrays, joined, leaves_of, mapped, tensors

SPEC = SpaceSpec.of_tree({"image": LeafSpec((2, 2, 3), "uint8"), "state": LeafSpec((4,))}, 1)


def test_a_name_selects_a_leaf_and_anything_else_selects_rows():
    tree = Tree({"a": np.arange(6).reshape(3, 2), "b": np.arange(3)})
    assert tree["b"].tolist() == [0, 1, 2]
    assert tree[1:]["a"].tolist() == [[2, 3], [4, 5]]
    assert tree[np.array([True, False, True])]["b"].tolist() == [0, 2]
    assert len(tree) == 3


def test_rows_of_one_tree_can_be_written_into_another():
    tree = SPEC.observations(2)
    tree[1] = Tree({"image": np.full((2, 2, 3), 7, np.uint8), "state": np.ones(4, np.float32)})
    assert tree["image"].sum(axis=(1, 2, 3)).tolist() == [0, 84]
    assert tree["state"].sum(axis=1).tolist() == [0, 4]


def test_leaves_keep_their_shapes_and_dtypes():
    tree = SPEC.observations(5, 2)
    assert tree["image"].shape == (5, 2, 2, 2, 3)
    assert (tree["image"].dtype, tree["state"].dtype) == (np.uint8, np.float32)
    assert tensors(tree)["image"].dtype == torch.uint8
    assert repr(tree) == "Tree(image: uint8 (5, 2, 2, 2, 3), state: float32 (5, 2, 4))"


def test_a_bare_array_needs_no_tree():
    assert joined([np.zeros(1), np.ones(1)]).tolist() == [0, 1]
    assert mapped(np.negative, np.ones(2)).tolist() == [-1, -1]
    assert arrays(tensors(np.ones(2))).tolist() == [1, 1]
    assert [leaf.tolist() for leaf in leaves_of(np.ones(1))] == [[1]]


def test_trees_are_joined_leaf_by_leaf_as_arrays_or_as_tensors():
    parts = [Tree({"a": np.zeros((1, 2)), "b": np.zeros((1, 1))}), Tree({"a": np.ones((1, 2)), "b": np.ones((1, 1))})]
    assert joined(parts, axis=1)["a"].tolist() == [[0, 0, 1, 1]]
    assert joined([tensors(part) for part in parts])["b"].tolist() == [[0], [1]]


def test_a_tree_is_not_walked_by_accident():
    with pytest.raises(TypeError, match="leaves and rows"):
        list(SPEC.observations(1))


def test_the_true_successors_of_a_fragment_stand_in_every_leaf():
    numbers = np.arange(3.0, dtype=np.float32)
    batch = TrajectoryBatch(
        observations=Tree({"a": numbers.reshape(3, 1, 1), "b": numbers.reshape(3, 1)}),
        actions=np.zeros((2, 1, 1), np.float32), log_probs=np.zeros((2, 1), np.float32),
        rewards=np.zeros((2, 1), np.float32), terminated=np.array([[True], [False]]),
        truncated=np.zeros((2, 1), bool), valid=np.ones((2, 1), bool),
        final_observations=Tree({"a": np.array([[9.0]], np.float32), "b": np.array([8.0], np.float32)}),
        final_index=np.array([0]), policy_version=0,
    )  # fmt: skip
    assert batch.successors()["a"].ravel().tolist() == [9, 2]
    assert batch.successors()["b"].ravel().tolist() == [8, 2]
    assert numbers.tolist() == [0, 1, 2]


def test_spaces_are_the_same_only_with_the_same_leaves():
    other = SpaceSpec.of_tree({"image": LeafSpec((2, 2, 3), "uint8"), "pose": LeafSpec((4,))}, 1)
    assert SPEC.same_as(SPEC)
    assert not SPEC.same_as(other)
    assert not SPEC.same_as(SpaceSpec(SPEC.observation_dim, 1))
