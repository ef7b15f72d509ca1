"""Memories of the slots of one simulator, for a policy that has a memory."""

from __future__ import annotations

import torch
from torch import Tensor

from rlpipe.collection.decisions import Outcome
from rlpipe.trajectory import Float32


class Memories:
    """Memory of each slot, empty where an episode begins; nothing at all for a policy without a memory."""

    def __init__(self, slots: int, width: int) -> None:
        """Begins empty.

        Args:
            slots: number of slots, N
            width: numbers that the policy remembers, H; 0 for a policy without a memory
        """
        self._all = torch.zeros(slots, width, dtype=torch.float32) if width else None

    def clear(self) -> None:
        """Empties all: an episode begins in every slot."""
        if self._all is not None:
            self._all = torch.zeros_like(self._all)

    def before_decision(self) -> Tensor | None:
        """Returns the memories of all slots before their next decision; None without a memory."""
        return self._all

    def copy(self) -> Float32 | None:
        """Returns a copy of all as an array; None without a memory."""
        return None if self._all is None else self._all.numpy().copy()

    def keep(self, memories: Tensor | None) -> None:
        """Takes the memories of all slots after a decision."""
        if self._all is not None and memories is not None:
            self._all = memories

    def begin_episodes(self, outcome: Outcome) -> None:
        """Empties the slots whose next decision is the first of an episode."""
        if self._all is not None:
            self._all = self._all.masked_fill(torch.from_numpy(outcome.begins).unsqueeze(1), 0.0)
