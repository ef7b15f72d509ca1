"""Several learners as one: sums over all of them, and which part of a batch each takes.

A sum over ranks is a sum over the decisions they hold, so whatever is computed from sums and counts is what one learner
with the whole batch would have computed, however unequal the shares.
"""

from __future__ import annotations

from torch import Tensor


class LearnerGroup:
    """The learners of a run, seen from one of them. This one is alone.

    Attributes:
        rank: of this learner.  size: number of all.
    """

    rank = 0
    size = 1

    @property
    def first(self) -> bool:
        """Whether this is the learner that speaks for all."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all learners, each of which must call this with the same shape; on every one the same bits."""
        return values

    def from_first(self, values: Tensor) -> Tensor:
        """What the first learner gave; the others give a tensor of its shape and dtype."""
        return values

    def gather(self, values: Tensor) -> list[Tensor]:
        """What every learner gave, by rank: [n_r, ...] tensors that differ in n_r alone."""
        return [values]


SINGLE_LEARNER = LearnerGroup()
