"""The share of a batch that each learner takes, and minibatches drawn alike by all of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rlpipe.learner_group import LearnerGroup


@dataclass(frozen=True)
class Share:
    """What one learner takes of a batch that several workers collected.

    Attributes:
        workers: those whose fragments it takes.  environments: of all learners.
        columns: its own environments among those of these workers.  first: number of the first among all.
    """

    workers: range
    columns: range
    first: int
    environments: int


def portion(rank: int, size: int, workers: int, environments: int, group_size: int = 1) -> Share:
    """Whole groups of environments, shared as evenly as they can be.

    Args:
        rank: of the learner.  size: number of learners.  workers, environments: of the batch; the first divides the
            second.  group_size: environments that stay together.
    """
    groups, each = environments // group_size, environments // workers
    begin, end = (groups * bound // size * group_size for bound in (rank, rank + 1))
    taken = range(begin // each, math.ceil(end / each))
    offset = taken.start * each
    return Share(taken, range(begin - offset, end - offset), begin, environments)


class Minibatches:
    """The decisions of all learners, drawn into minibatches alike on each, of which it takes its own.

    So a minibatch holds the same decisions, however many learners there are.

    Attributes:
        total: number of decisions of all learners.
        parts: minibatches of a pass; fewer than asked for where there are fewer decisions.
    """

    def __init__(self, position: Tensor, parts: int, learners: LearnerGroup, generator: torch.Generator) -> None:
        """Numbers the decisions.

        Args:
            position: [B] int64, rising: where each own decision stands among those of the iteration.
            parts: minibatches of a pass.  generator: in the same state on every learner; on the host.
        """
        self._own: Tensor | None = None
        self.total = len(position)
        if learners.size > 1:
            everyone = torch.cat(learners.gather(position)).sort().values
            self.total = len(everyone)
            self._own = torch.full_like(everyone, -1)
            self._own[torch.searchsorted(everyone, position)] = torch.arange(len(position), device=position.device)
        self.parts = min(parts, self.total)
        self._generator = generator
        self._device = position.device

    def draw(self) -> tuple[Tensor, list[int], list[int]]:
        """One pass in a new order.

        Returns:
            [B] own decisions as drawn; how many of them each minibatch has; how many all learners have in it.
        """
        # Drawn on the host: another kind of device would draw another order, and so learn from other minibatches.
        order = torch.randperm(self.total, generator=self._generator).to(self._device)
        ends = [self.total * part // self.parts for part in range(1, self.parts + 1)]
        sizes = _steps(ends)
        if self._own is None:
            return order, sizes, sizes
        own = self._own[order]
        kept = own >= 0
        return own[kept], _steps(kept.cumsum(0)[[end - 1 for end in ends]].tolist()), sizes


def _steps(ends: list[int]) -> list[int]:
    return [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
