"""Observation trees of a replay buffer: each observation is stored once, although two transitions share it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import torch
from torch import Tensor

from rlpipe.errors import ConfigError
from rlpipe.trajectory import SpaceSpec, Tree
from rlpipe.trajectory.tree import mapped


class Frames:
    """A ring of observations, in their own dtypes. The oldest fragment goes, with its transitions, when it is full.

    Attributes:
        held: number of observations.
        transitions: number of transitions whose observations are still here.
    """

    def __init__(self, capacity: int, spec: SpaceSpec, device: torch.device) -> None:
        """Allocates the ring for a number of observations; the system provides memory only as it fills."""
        self._ring: Tree = mapped(
            lambda leaf: torch.empty((capacity, *leaf.shape[1:]), dtype=leaf.dtype, device=device),
            mapped(torch.from_numpy, spec.observations(1)),
        )
        self._capacity = capacity
        self._end = 0
        self._fragments: deque[tuple[int, int]] = deque()  # number of frames and of transitions of each
        self.held = 0
        self.transitions = 0

    def add(self, frames: Tree, transitions: int) -> int:
        """Stores the frames of a fragment.

        Args:
            frames: leaves [F, ...], on any device.
            transitions: number of transitions that refer to them.
        Returns:
            Number of the first frame; the others follow.
        Raises:
            ConfigError: they are more than the ring holds.
        """
        count = len(frames)
        if count > self._capacity:
            raise ConfigError(
                f"algorithm.replay_capacity is {self._capacity}, but one collection has {count} observations: raise "
                "it, or lower rollout.horizon."
            )
        first = self._end
        places = (first + torch.arange(count)) % self._capacity
        for name, leaf in self._ring.leaves.items():
            leaf[places.to(leaf.device)] = frames[name].to(leaf.device)
        self._end += count
        self._fragments.append((count, transitions))
        self.held, self.transitions = self.held + count, self.transitions + transitions
        while self.held > self._capacity:
            gone, lost = self._fragments.popleft()
            self.held, self.transitions = self.held - gone, self.transitions - lost
        return first

    def at(self, numbers: Tensor) -> Tree:
        """Returns the frames of [B] numbers: leaves [B, ...]."""
        return Tree({name: self.leaf(name, numbers) for name in self._ring.leaves})

    def leaf(self, name: str, numbers: Tensor) -> Tensor:
        """Returns one leaf, [B, ...], of the frames of [B] numbers."""
        leaf: Tensor = self._ring[name]
        return leaf.index_select(0, (numbers % self._capacity).to(leaf.device))

    def state(self) -> dict[str, Tensor]:
        """Returns all frames, the oldest first, and the sizes of their fragments."""
        frames = self.at(torch.arange(self._end - self.held, self._end))
        state = {f"frames/{name}": leaf for name, leaf in frames.leaves.items()}
        return state | {"fragments": torch.tensor(list(self._fragments), dtype=torch.int64).reshape(-1, 2)}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restores what ``state`` returned, with numbers from 0; with a smaller capacity, only the newest fragments.

        Raises:
            ConfigError: a fragment is larger than the ring.
        """
        frames = Tree({name: state[f"frames/{name}"] for name in self._ring.leaves})
        self._end = self.held = self.transitions = 0
        self._fragments.clear()
        for count, transitions in state["fragments"].tolist():
            self.add(frames[self._end : self._end + count], transitions)

    @property
    def first(self) -> int:
        """Number of the oldest frame."""
        return self._end - self.held
