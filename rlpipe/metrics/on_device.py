"""Values observed on the learner's device, which reach the host as reductions, in a single copy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rlpipe.learner_group import SINGLE_LEARNER, LearnerGroup
from rlpipe.metrics import MetricWindow
from rlpipe.metrics.declaration import Metric
from rlpipe.metrics.reductions import EDGES, LARGEST, Distribution, Histogram, Mean, Sum, exact_sum


@dataclass(frozen=True)
class MinibatchSizes:
    """Sizes of the minibatches of an update, over all epochs.

    Attributes:
        local: decisions of this learner in each minibatch
        all: decisions of all learners in each minibatch
        last_epoch: number of minibatches in the last epoch
    """

    local: Sequence[int]
    all: Sequence[int]
    last_epoch: int


class OfUnits(NamedTuple):
    """Values of the units of decisions, such as their tokens.

    Attributes:
        values: [U], in the order of the decisions
        counts: [S] int64, units of each decision
    """

    values: Tensor
    counts: Tensor


class DeviceObservations:
    """Everything that one learner observes in one update. Nothing leaves the device before ``reduce``.

    A metric's companions (``Metric.of``) take the same values: of all decisions, as a mean per minibatch or trajectory,
    or only of the last epoch or minibatch.
    """

    def __init__(self, metrics: Iterable[Metric], learners: LearnerGroup = SINGLE_LEARNER) -> None:
        """Finds the companions of each metric.

        Args:
            metrics: all declared metrics
            learners: group of all learners; the first one reports what is the same on all
        """
        self._learners = learners
        self._companions: defaultdict[Metric, list[Metric]] = defaultdict(list)
        for metric in metrics:
            if metric.of is not None:
                self._companions[metric.of].append(metric)
        self._values: defaultdict[Metric, list[Tensor]] = defaultdict(list)
        self._set: dict[Metric, float] = {}
        self._pooled: list[tuple[Metric, Tensor]] = []

    def add(self, observed: Mapping[Metric, Tensor | float]) -> None:
        """Adds this learner's values of any shape, each an observation, or a number that all learners share."""
        for metric, values in observed.items():
            if isinstance(values, Tensor):
                self._values[metric].append(values.reshape(-1))
            elif not self._learners.first:
                continue
            elif metric in self._set:
                raise ValueError(f"{metric.name} is set twice in one update; it has one writer.")
            else:
                self._set[metric] = values

    def add_common(self, observed: Mapping[Metric, Tensor]) -> None:
        """Adds values that are the same on every learner."""
        if self._learners.first:
            self.add(observed)

    def add_update(
        self, observed: Mapping[Metric, Tensor | OfUnits], trajectory: Tensor, sizes: MinibatchSizes
    ) -> None:
        """Adds values of every decision that was learnt from, or of every unit of it.

        Args:
            observed: [S] values of each metric, in the order of the minibatches
            trajectory: [S] int64, number of the trajectory that each decision belongs to
            sizes: sizes of the minibatches
        """
        whole = {metric: values for metric, values in observed.items() if isinstance(values, Tensor)}
        self._add_rows(whole, trajectory, sizes)
        split = {metric: units for metric, units in observed.items() if not isinstance(units, Tensor)}
        for counts in {id(units.counts): units.counts for units in split.values()}.values():
            of_units = {metric: units.values for metric, units in split.items() if units.counts is counts}
            local = torch.stack([minibatch.sum() for minibatch in torch.split(counts, list(sizes.local))])
            unit_sizes = MinibatchSizes(local.tolist(), self._learners.sum(local).tolist(), sizes.last_epoch)
            self._add_rows(of_units, trajectory.repeat_interleave(counts), unit_sizes)

    def _add_rows(self, observed: Mapping[Metric, Tensor], trajectory: Tensor, sizes: MinibatchSizes) -> None:
        if not observed:
            return
        _, index = torch.unique(trajectory, return_inverse=True)
        lengths = torch.bincount(index).double()
        epoch, last = sum(sizes.local[len(sizes.local) - sizes.last_epoch :]), sizes.local[-1]
        pools: dict[str, Callable[[Tensor], Tensor]] = {
            "decision": lambda values: values,
            "trajectory": lambda values: torch.zeros_like(lengths).index_add_(0, index, values.double()) / lengths,
            "last epoch": lambda values: values[len(values) - epoch :],
            "last minibatch": lambda values: values[len(values) - last :],
        }
        by_minibatch: dict[Metric, Tensor] = {}  # a minibatch is spread over all learners
        for metric, values in observed.items():
            for taker in (metric, *self._companions.get(metric, ())):
                if taker.over == "minibatch":
                    minibatches = torch.split(values, list(sizes.local))
                    by_minibatch[taker] = torch.stack([minibatch.double().sum() for minibatch in minibatches])
                else:
                    self._pooled.append((taker, pools[taker.over](values)))
        if by_minibatch:
            means = self._learners.sum(torch.stack([*by_minibatch.values()])) / lengths.new_tensor(sizes.all)
            if self._learners.first:
                self._pooled += zip(by_minibatch, means, strict=True)

    def reduce(self, window: MetricWindow) -> None:
        """Reduces everything on the device, fetches the sums in one copy, and observes them."""
        for metric, value in self._set.items():
            window.observe(metric, value)
        metrics, sums = [], []
        once = [
            (taker, torch.cat(values))
            for metric, values in self._values.items()
            for taker in (metric, *self._companions.get(metric, ()))
        ]
        for metric, values in (*once, *self._pooled):
            if len(values):
                metrics.append(metric)
                sums.append(_sums(metric, values.double()))
        if not sums:
            return
        fetched = torch.cat(sums).cpu().numpy()
        for metric, vector in zip(metrics, np.split(fetched, np.cumsum([len(s) for s in sums])[:-1]), strict=True):
            window.observe_state(metric, _state(metric, vector))


_CUBE_LIMIT = 1e90
"""Bound above which a sum of cubes would overflow; larger values count as not finite."""


def _sums(metric: Metric, values: Tensor) -> Tensor:
    """Returns the sufficient statistics of float64 values as one vector."""
    finite = values.abs() < (LARGEST if metric.reduction in (Mean, Sum) else _CUBE_LIMIT)
    count = finite.sum()
    dropped = len(values) - count
    usable = torch.where(finite, values, 0.0)
    total = usable.sum()
    head = torch.stack([count.double(), dropped.double(), total])
    if metric.reduction in (Mean, Sum):
        return head
    extremes = torch.stack(
        [torch.where(finite, values, torch.inf).min(), torch.where(finite, values, -torch.inf).max()]
    )
    if metric.reduction is Histogram:
        bins = torch.bucketize(usable.abs(), _edges(values.device), right=True)
        signed = torch.where(usable < 0, -bins, bins) + len(EDGES)
        counts = torch.zeros(2 * len(EDGES) + 1, dtype=torch.float64, device=values.device)
        return torch.cat([head, extremes, counts.index_add_(0, signed, finite.double())])
    centre = total / count.clamp(min=1)
    offsets = torch.where(finite, values - centre, 0.0)
    squares = offsets.square()
    moments = torch.stack([centre, offsets.sum(), squares.sum(), (squares * offsets).sum()])
    return torch.cat([head, extremes, moments])


@cache
def _edges(device: torch.device) -> Tensor:
    return torch.from_numpy(EDGES).to(device)


def _state(metric: Metric, sums: np.ndarray) -> Mean | Sum | Distribution | Histogram:
    """Returns the reduction that a vector of ``_sums`` describes."""
    count, dropped, total = int(sums[0]), int(sums[1]), float(sums[2])
    if metric.reduction is Mean:
        return Mean(exact_sum([total]), exact_sum([float(count)]), dropped)
    if metric.reduction is Sum:
        return Sum(exact_sum([total]), count, dropped)
    if metric.reduction is Histogram:
        if not count:
            return Histogram(nonfinite=dropped)
        filled = np.flatnonzero(sums[5:])
        pairs = tuple(zip((filled - len(EDGES)).tolist(), sums[5:][filled].astype(int).tolist(), strict=True))
        return Histogram(pairs, float(sums[3]), float(sums[4]), dropped)
    if metric.reduction is None or not issubclass(metric.reduction, Distribution):
        raise ValueError(f"{metric.name} cannot be observed on the learner's device.")
    low, high, centre, offsets, squares, cubes = map(float, sums[3:])
    return metric.reduction.of_moments(count, centre, offsets, squares, cubes, low, high, dropped)
