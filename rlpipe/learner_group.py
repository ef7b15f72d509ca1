"""Learner group: the learners that share one batch, and sums over all of them.

A sum over all learners is a sum over all decisions of the batch. Results computed from such sums and counts are
therefore those of one learner with the whole batch, however unequal the shares.
"""

from __future__ import annotations

from torch import Tensor


class LearnerGroup:
    """All learners of a run, as seen by one of them. This base class is a group of one.

    Attributes:
        rank: number of this learner, from 0.
        size: number of learners.
    """

    rank = 0
    size = 1

    @property
    def first(self) -> bool:
        """True for the learner that acts for the group, such as the one that saves the weights."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Sum over all learners, with the same bits on each. Every learner must call this, with the same shape."""
        return values

    def from_first(self, values: Tensor) -> Tensor:
        """The first learner's values. The others pass a tensor of the same shape and dtype."""
        return values

    def gather(self, values: Tensor) -> list[Tensor]:
        """Every learner's values, by rank: [n_r, ...] tensors that differ in n_r alone."""
        return [values]


SINGLE_LEARNER = LearnerGroup()
