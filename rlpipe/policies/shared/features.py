"""Inputs of networks: chosen leaves of an observation, each encoded as fits it, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rlpipe.errors import ConfigError
from rlpipe.learner_group import SINGLE_LEARNER, LearnerGroup
from rlpipe.plugins import nearest
from rlpipe.policies.encoders.base import make_encoder
from rlpipe.policies.shared.moments import RunningMoments
from rlpipe.trajectory import LeafSpec, SpaceSpec, Tree


class Features(nn.Module):
    """Turns observations into one vector. A bare vector stays as it is, without any weights.

    Attributes:
        width: length of the vector.
    """

    def __init__(self, spec: SpaceSpec, encoders: Mapping[str, Any], names: Sequence[str] | None, key: str) -> None:
        """Draws the encoders' first weights from torch's global generator.

        Args:
            spec: spaces of the simulator.
            encoders: options of encoders by leaf; other leaves have the default encoder.
            names: names of the leaves that the networks see; None for all.
            key: configuration key that chooses them, for errors.
        Raises:
            ConfigError: a leaf does not exist, or its encoder does not fit it.
        """
        super().__init__()
        leaves = spec.leaves
        if leaves is None:
            if names or encoders:
                name = "policy.encoders" if encoders else key
                raise ConfigError(
                    f"{name} names leaves, but the observation is one vector without names: leave it out."
                )
            self.width = spec.observation_dim
            self._names: tuple[str, ...] = ()
            return
        self._names = tuple(leaves if names is None else names)
        for name in [*self._names, *encoders]:
            if name not in leaves:
                owner = f"policy.encoders.{name}" if name in encoders else key
                raise ConfigError(
                    f"{owner} names the observation {name!r}, which there is not{nearest(name, leaves)} There are "
                    f"{', '.join(leaves)}."
                )
        modules = [make_encoder(leaves[name], name, encoders) for name in self._names]
        self.encoders = nn.ModuleList(modules)
        self.width = sum(encoder.width for encoder in modules)

    def modules_with_weights(self) -> list[nn.Module]:
        """Encoders that learn; those of numbers and choices only rearrange them."""
        encoders = self.encoders if self._names else ()
        return [encoder for encoder in encoders if any(True for _ in encoder.parameters())]

    def forward(self, observations: Tensor | Tree) -> Tensor:
        """[B, width] of [B, D] observations or a tree with leaves [B, ...]."""
        if not isinstance(observations, Tree):
            return observations
        encoded = [encoder(observations[name]) for name, encoder in zip(self._names, self.encoders, strict=True)]
        return torch.cat(encoded, -1)


class TreeMoments(nn.Module):
    """Normalises the fractions in an observation tree, each leaf by moments of its own; see ``RunningMoments``."""

    def __init__(self, leaves: Mapping[str, LeafSpec]) -> None:
        """Starts without values: normalising changes nothing yet."""
        super().__init__()
        self._sizes = {name: leaf.size for name, leaf in leaves.items() if leaf.dtype == "float32"}
        self._moments = nn.ModuleList([RunningMoments(size) for size in self._sizes.values()])

    def update(self, observations: Tree, learners: LearnerGroup = SINGLE_LEARNER) -> None:
        """Adds the values of a tree with leaves [B, ...], and those of the other learners."""
        for (name, size), moments in zip(self._sizes.items(), self._moments, strict=True):
            moments.update(observations[name].reshape(len(observations), size), learners)  # type: ignore[operator]

    def normalize(self, observations: Tree) -> Tree:
        """Shifts and scales the leaves that are fractions."""
        leaves = dict(observations.leaves)
        for (name, size), moments in zip(self._sizes.items(), self._moments, strict=True):
            values = leaves[name]
            leaves[name] = moments.normalize(values.reshape(values.shape[0], size)).view_as(values)  # type: ignore[operator]
        return Tree(leaves)
