"""Observation trees: named arrays or tensors that share their leading axes.

A simulator whose observation is one vector needs no tree: everything here takes a bare array or tensor as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

VECTOR = "observation"
"""Name of the leaf that an observation is when it is one vector, alone or beside leaves that are added to it."""


class Tree:
    """Leaves by name. A string selects a leaf; any other index selects rows of all leaves.

    Nested spaces have the names of the way to a leaf, such as ``camera/rgb``.

    Attributes:
        leaves: arrays or tensors, [..., *shape of the leaf].
    """

    __slots__ = ("leaves",)

    def __init__(self, leaves: Mapping[str, Any]) -> None:
        """Takes over leaves, at least one."""
        self.leaves = dict(leaves)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, str):
            return self.leaves[index]
        return Tree({name: leaf[index] for name, leaf in self.leaves.items()})

    def __setitem__(self, index: Any, values: Tree) -> None:
        """Writes rows of all leaves."""
        for name, leaf in self.leaves.items():
            leaf[index] = values.leaves[name]

    def __len__(self) -> int:
        """Length of the first axis."""
        return len(next(iter(self.leaves.values())))

    def __iter__(self) -> Any:
        raise TypeError("a tree has leaves and rows: iterate over .leaves, or over range(len(tree)).")

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name}: {leaf.dtype} {tuple(leaf.shape)}" for name, leaf in self.leaves.items())
        return f"Tree({shapes})"

    def copy(self) -> Tree:
        """Copies all leaves, which are arrays."""
        return Tree({name: leaf.copy() for name, leaf in self.leaves.items()})

    def flatten(self, first: int, last: int) -> Tree:
        """Joins axes of all leaves, which are tensors, as ``torch.flatten`` does."""
        return Tree({name: leaf.flatten(first, last) for name, leaf in self.leaves.items()})

    def to(self, device: Any) -> Tree:
        """Moves all leaves, which are tensors, to a device."""
        return Tree({name: leaf.to(device) for name, leaf in self.leaves.items()})


def mapped(function: Callable[..., Any], first: Any, *others: Any) -> Any:
    """Applies a function to the leaves of trees with the same names, or to bare arrays."""
    if not isinstance(first, Tree):
        return function(first, *others)
    return Tree({name: function(leaf, *(other[name] for other in others)) for name, leaf in first.leaves.items()})


def joined(parts: Sequence[Any], axis: int = 0) -> Any:
    """Concatenates trees, or bare arrays or tensors, along an axis."""
    if isinstance(leaves_of(parts[0])[0], np.ndarray):
        return mapped(lambda *leaves: np.concatenate(leaves, axis=axis), *parts)
    import torch

    return mapped(lambda *leaves: torch.cat(leaves, axis), *parts)


def tensors(tree: Any) -> Any:
    """Tensors that share their memory with the arrays of a tree, or with a bare array."""
    import torch

    return mapped(torch.from_numpy, tree)


def arrays(tree: Any) -> Any:
    """Arrays on the host of the tensors of a tree, or of a bare tensor."""
    return mapped(lambda leaf: leaf.cpu().numpy(), tree)


def leaves_of(tree: Any) -> list[Any]:
    """Leaves of a tree; a bare array is its own only leaf."""
    return list(tree.leaves.values()) if isinstance(tree, Tree) else [tree]


def named_leaves(tree: Any) -> dict[str, Any]:
    """Leaves of a tree by name; a bare array has the name ``observation``."""
    return tree.leaves if isinstance(tree, Tree) else {VECTOR: tree}
