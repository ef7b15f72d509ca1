"""Observations in the order in which they were seen, for a policy whose actions depend on what it saw before."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rlpipe.trajectory.tree import Tree


@dataclass(frozen=True)
class Sequences:
    """Observations grouped into sequences; replaces plain observations for a policy with a memory.

    The rows may lie in any order.

    Attributes:
        observations: [B, D] raw, or a tree.
        sequence: [B] int64 number of each observation's sequence, in [0, J).
        step: [B] int64 place of each observation in its sequence, from 0; none may be missing before it.
        memories: [J, H] memory before the first observation of each sequence.
    """

    observations: Tensor | Tree
    sequence: Tensor
    step: Tensor
    memories: Tensor

    def __len__(self) -> int:
        return len(self.sequence)

    def __getitem__(self, index: Tensor | slice) -> Sequences:
        """Returns the observations at an index; of each sequence, it must hold all steps up to some step."""
        return Sequences(self.observations[index], self.sequence[index], self.step[index], self.memories)
