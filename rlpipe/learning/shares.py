"""The share of a batch that each learner takes, and minibatches drawn alike by all of them."""

from __future__ import annotations

import bisect
import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rlpipe.learner_group import LearnerGroup


@dataclass(frozen=True)
class Share:
    """Share of one learner in a batch that several workers collected.

    Attributes:
        workers: ranks of the workers whose fragments it takes
        columns: its environments, numbered among those of these workers
        first: number of its first environment among those of all learners
        environments: number of environments of all learners
    """

    workers: range
    columns: range
    first: int
    environments: int


def share_of_learner(rank: int, size: int, workers: int, environments: int, group_size: int = 1) -> Share:
    """Returns a learner's share: whole groups of environments, divided as evenly as possible.

    Args:
        rank: rank of the learner
        size: number of learners
        workers: number of workers that collected the batch; divides the number of environments
        environments: number of environments in the batch
        group_size: number of environments that stay together
    """
    groups, each = environments // group_size, environments // workers
    begin, end = (groups * bound // size * group_size for bound in (rank, rank + 1))
    ranks = range(begin // each, math.ceil(end / each))
    offset = ranks.start * each
    return Share(ranks, range(begin - offset, end - offset), begin, environments)


class Minibatches:
    """Divides the decisions of all learners into minibatches, alike on every learner, which then takes its own.

    A minibatch therefore holds the same decisions, however many learners there are. Decisions that belong together stay
    together, in their order; minibatches are then as equal as that allows.

    Attributes:
        total: number of decisions of all learners
        per_epoch: minibatches of an epoch; fewer than requested if there are fewer decisions, or trajectories that stay
            together
    """

    def __init__(
        self,
        position: Tensor,
        per_epoch: int,
        learners: LearnerGroup,
        generator: torch.Generator,
        together: Tensor | None = None,
    ) -> None:
        """Numbers the decisions.

        Args:
            position: [B] int64, ascending: number of each own decision among all decisions of the iteration
            per_epoch: minibatches of an epoch
            learners: group of all learners
            generator: generator on the host, in the same state on every learner
            together: [B] int64 number of the trajectory, among those of all learners, that each own decision stays
                with; None if every decision is drawn by itself
        """
        self._own: Tensor | None = None
        self.total = len(position)
        if learners.size > 1:
            everyone, by_position = torch.cat(learners.gather(position)).sort()
            self.total = len(everyone)
            self._own = torch.full_like(everyone, -1)
            self._own[torch.searchsorted(everyone, position)] = torch.arange(len(position), device=position.device)
            together = None if together is None else torch.cat(learners.gather(together))[by_position]
        units = self.total
        self._unit: Tensor | None = None
        if together is not None:
            _, self._unit, self._lengths = torch.unique(together, return_inverse=True, return_counts=True)
            units = len(self._lengths)
        self.per_epoch = min(per_epoch, units)
        self._units = units
        self._generator = generator
        self._device = position.device

    def draw(self) -> tuple[Tensor, list[int], list[int]]:
        """Draws the order of one epoch.

        Returns:
            [B] own decisions in that order, the number of own decisions in each minibatch, and its size over all
            learners.
        """
        # Drawn on the host, because another kind of device would draw another order.
        order = torch.randperm(self._units, generator=self._generator).to(self._device)
        if self._unit is None:
            ends = [self.total * index // self.per_epoch for index in range(1, self.per_epoch + 1)]
        else:
            ends = _even_ends(self._lengths[order].tolist(), self.per_epoch)
            order = order.argsort()[self._unit].argsort(stable=True)  # the decisions of each trajectory in its place
        sizes = _differences(ends)
        if self._own is None:
            return order, sizes, sizes
        decisions = self._own[order]
        is_own = decisions >= 0
        return decisions[is_own], _differences(is_own.cumsum(0)[[end - 1 for end in ends]].tolist()), sizes


def _even_ends(lengths: list[int], count: int) -> list[int]:
    """Returns where to cut trajectories of these lengths, one after the other, into so many parts of about equal size.

    Each cut lies at the end of the trajectory that is nearest to an even division, and leaves every part at least one.
    """
    bounds = list(itertools.accumulate(lengths))
    ends, last = [], -1
    for index in range(1, count + 1):
        even_end = bounds[-1] * index / count
        first, most = last + 1, len(bounds) - 1 - (count - index)
        last = bisect.bisect_left(bounds, even_end, first, most)
        if last > first and even_end - bounds[last - 1] < bounds[last] - even_end:
            last -= 1
        ends.append(bounds[last])
    return ends


def _differences(ends: list[int]) -> list[int]:
    return [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
