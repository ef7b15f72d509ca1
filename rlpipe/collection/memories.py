"""Memories of the slots of one simulator, for a policy that has a memory."""

from __future__ import annotations

import torch
from torch import Tensor

from rlpipe.collection.decisions import Outcome
from rlpipe.trajectory import Float32


class Memories:
    """Memory of each slot, empty where an episode begins; nothing at all for a policy without a memory.

    Attributes:
        current: [N, H] before the next decision; None without a memory
    """

    def __init__(self, slots: int, width: int) -> None:
        """Begins empty; the width H is 0 for a policy without a memory."""
        self.current = torch.zeros(slots, width, dtype=torch.float32) if width else None

    def clear(self) -> None:
        """Empties all: an episode begins in every slot."""
        if self.current is not None:
            self.current = torch.zeros_like(self.current)

    def copy(self) -> Float32 | None:
        """Returns a copy of all as an array; None without a memory."""
        return None if self.current is None else self.current.numpy().copy()

    def keep(self, memories: Tensor | None) -> None:
        """Takes the memories of all slots after a decision."""
        if self.current is not None and memories is not None:
            self.current = memories

    def begin_episodes(self, outcome: Outcome) -> None:
        """Empties the slots whose next decision is the first of an episode."""
        if self.current is not None:
            self.current = self.current.masked_fill(torch.from_numpy(outcome.begins).unsqueeze(1), 0.0)
