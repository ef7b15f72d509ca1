"""Spaces of a simulator: what a policy must know about observations and actions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rlpipe.trajectory.tree import VECTOR, Tree

Float32 = NDArray[np.float32]
Bool = NDArray[np.bool_]
Observations: TypeAlias = Any
"""One float32 array [..., D], or a ``Tree`` of arrays [..., *shape]. Both are indexed and assigned alike, which a union
of the two types does not say."""


@dataclass(frozen=True)
class LeafSpec:
    """One named array of an observation tree.

    Attributes:
        shape: of one observation, without any leading axis.
        dtype: of its numbers, such as ``uint8``. Fractions are always float32.
        choices: for an array of categories, the number of values of each entry, in C order; None for numbers.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    choices: tuple[int, ...] | None = None

    @property
    def size(self) -> int:
        """Number of entries."""
        return math.prod(self.shape)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> LeafSpec:
        """Restores a leaf from its fields in JSON, which has no tuples."""
        choices = fields["choices"]
        return cls(tuple(fields["shape"]), str(np.dtype(fields["dtype"])), None if choices is None else tuple(choices))

    @property
    def is_image(self) -> bool:
        """True for [height, width, channels] bytes, and for depth in whole millimetres, as cameras give it."""
        return len(self.shape) == 3 and self.dtype in ("uint8", "int16") and self.choices is None


@dataclass(frozen=True)
class SpaceSpec:
    """Observation and action spaces of a simulator.

    Attributes:
        observation_dim: D; of a tree, the number of all its entries.
        action_dim: A for a continuous action, 1 for a discrete one, M for one of several discrete parts.
        num_actions: number of discrete actions, or of those of each of M parts; None for a continuous action.
        action_low: [A] lower bounds of a continuous action, in the simulator's unit; None when discrete.
        action_high: [A] upper bounds, likewise.
        leaves: by name, the arrays of an observation tree; None where an observation is one float32 vector.
    """

    observation_dim: int
    action_dim: int
    num_actions: int | tuple[int, ...] | None = None
    action_low: Float32 | None = None
    action_high: Float32 | None = None
    leaves: Mapping[str, LeafSpec] | None = None

    @property
    def varying(self) -> Bool | None:
        """[A] True for each number of a continuous action whose bounds differ; None for a discrete one."""
        if self.action_low is None or self.action_high is None:
            return None
        return np.asarray(0.5 * self.action_high > 0.5 * self.action_low)  # halves, as of the smallest floats, may be 0

    def chunked(self, size: int) -> SpaceSpec:
        """Spaces of a policy whose decisions are ``size`` actions, concatenated."""
        if size == 1:
            return self
        tiled = (None if bound is None else np.tile(bound, size) for bound in (self.action_low, self.action_high))
        parts = self.num_actions
        if parts is not None:
            parts = ((parts,) if isinstance(parts, int) else parts) * size
        low, high = tiled
        return replace(self, action_dim=size * self.action_dim, num_actions=parts, action_low=low, action_high=high)

    @classmethod
    def of_tree(cls, leaves: Mapping[str, LeafSpec], action_dim: int, *actions: Any) -> SpaceSpec:
        """Spaces whose observations are a tree; the other arguments are those of the class."""
        return replace(cls(sum(leaf.size for leaf in leaves.values()), action_dim, *actions), leaves=leaves)

    def with_leaf(self, name: str, leaf: LeafSpec) -> SpaceSpec:
        """Returns the spaces with a further leaf; a vector becomes a leaf as well.

        Raises:
            ValueError: there is a leaf of this name.
        """
        leaves = {VECTOR: LeafSpec((self.observation_dim,))} if self.leaves is None else dict(self.leaves)
        if name in leaves:
            raise ValueError(f"the observations have a leaf {name} already.")
        leaves[name] = leaf
        return SpaceSpec.of_tree(leaves, self.action_dim, self.num_actions, self.action_low, self.action_high)

    @property
    def num_combinations(self) -> int | None:
        """Number of different discrete actions, all parts together; None for a continuous action."""
        parts = self.num_actions
        return math.prod(parts) if isinstance(parts, tuple) else parts

    @property
    def action_shape(self) -> tuple[int, ...]:
        """Shape of one action."""
        return () if isinstance(self.num_actions, int) else (self.action_dim,)

    def observations(self, *leading: int) -> Observations:
        """Observations [*leading, ...] of zeros."""
        if self.leaves is None:
            return np.zeros((*leading, self.observation_dim), dtype=np.float32)
        return Tree({name: np.zeros((*leading, *leaf.shape), leaf.dtype) for name, leaf in self.leaves.items()})

    def actions(self, *leading: int) -> NDArray[Any]:
        """Actions [*leading, ...] of zeros."""
        return np.zeros((*leading, *self.action_shape), dtype=np.int64 if self.num_actions else np.float32)

    def clip(self, actions: Float32) -> Float32:
        """Clips [..., A] continuous actions to their bounds.

        Raises:
            ValueError: the actions are discrete.
        """
        if self.action_low is None or self.action_high is None:
            raise ValueError("discrete actions have no bounds.")
        return np.minimum(np.maximum(actions, self.action_low), self.action_high)  # np.clip is slower on small arrays

    def as_json(self) -> dict[str, Any]:
        """Returns the fields as JSON has them, for a file that tells a policy's spaces; infinite bounds are strings."""
        low, high = (
            None if bound is None else [float(x) if np.isfinite(x) else str(x) for x in bound]
            for bound in (self.action_low, self.action_high)
        )
        leaves = None if self.leaves is None else {name: asdict(leaf) for name, leaf in self.leaves.items()}
        return {**vars(self), "action_low": low, "action_high": high, "leaves": leaves}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> SpaceSpec:
        """Restores the spaces from what ``as_json`` returned and a file kept.

        Raises:
            KeyError, TypeError, ValueError: the fields are others.
        """
        low, high = (
            None if fields[name] is None else np.asarray([float(x) for x in fields[name]], dtype=np.float32)
            for name in ("action_low", "action_high")
        )
        parts, leaves = fields["num_actions"], fields["leaves"]
        return cls(
            int(fields["observation_dim"]),
            int(fields["action_dim"]),
            tuple(map(int, parts)) if isinstance(parts, list | tuple) else parts,
            low,
            high,
            leaves and {name: LeafSpec.from_json(leaf) for name, leaf in leaves.items()},
        )

    def same_as(self, other: SpaceSpec) -> bool:
        """True if a policy made for one also fits the other."""
        return (self.observation_dim, self.action_dim, self.num_actions, self.leaves) == (
            other.observation_dim,
            other.action_dim,
            other.num_actions,
            other.leaves,
        )
