"""Raw values on the learner's device, and the one copy in which their reductions come to the host."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from rlpipe.learner_group import SINGLE_LEARNER, LearnerGroup
from rlpipe.metrics import MetricWindow
from rlpipe.metrics.declaration import Metric
from rlpipe.metrics.reductions import EDGES, LARGEST, Distribution, Histogram, Mean, Sum, exact_sum


@dataclass(frozen=True)
class MinibatchSizes:
    """How the decisions of an update were cut into minibatches, over all epochs.

    Attributes:
        own: decisions of this learner in each.  all: of every learner.  last_epoch: how many of them are the last
            epoch's.
    """

    own: Sequence[int]
    all: Sequence[int]
    last_epoch: int


class Observations:
    """Everything that one learner observed in one update. Nothing leaves the device before ``reduce``.

    A metric's companions (``Metric.of``) take the same values: over all decisions, the mean of each minibatch or
    trajectory, or only those of the last epoch or minibatch.
    """

    def __init__(self, metrics: Iterable[Metric], learners: LearnerGroup = SINGLE_LEARNER) -> None:
        """Notes which metrics are companions of which.

        Args:
            metrics: all there are.  learners: the learners; what is the same on all of them is told by the first.
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
        """Takes this learner's values, of any shape, each an observation; or a number that is set, on all alike.

        Raises:
            ValueError: a number is set twice.
        """
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
        """Takes values that are the same on every learner."""
        if self._learners.first:
            self.add(observed)

    def add_update(self, observed: Mapping[Metric, Tensor], trajectory: Tensor, cut: MinibatchSizes) -> None:
        """Takes values of every decision that was learnt from.

        Args:
            observed: [S] each, in the order of the minibatches.
            trajectory: [S] int64, number of the trajectory that a decision belongs to.
            cut: into minibatches.
        """
        _, index = torch.unique(trajectory, return_inverse=True)
        lengths = torch.bincount(index).double()
        epoch, last = sum(cut.own[len(cut.own) - cut.last_epoch :]), cut.own[-1]
        pools: dict[str, Callable[[Tensor], Tensor]] = {
            "decision": lambda values: values,
            "trajectory": lambda values: torch.zeros_like(lengths).index_add_(0, index, values.double()) / lengths,
            "last epoch": lambda values: values[len(values) - epoch :],
            "last minibatch": lambda values: values[len(values) - last :],
        }
        parted: dict[Metric, Tensor] = {}  # a minibatch lies on all learners
        for metric, values in observed.items():
            for taker in (metric, *self._companions.get(metric, ())):
                if taker.over == "minibatch":
                    parted[taker] = torch.stack([part.double().sum() for part in torch.split(values, list(cut.own))])
                else:
                    self._pooled.append((taker, pools[taker.over](values)))
        if parted:
            means = self._learners.sum(torch.stack([*parted.values()])) / lengths.new_tensor(cut.all)
            if self._learners.first:
                self._pooled += zip(parted, means, strict=True)

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
        for metric, part in zip(metrics, np.split(fetched, np.cumsum([len(s) for s in sums])[:-1]), strict=True):
            window.observe_state(metric, _state(metric, part))


_CUBE_LIMIT = 1e90
"""Beyond this, the sum of cubes would overflow; such values count as not finite."""


def _sums(metric: Metric, values: Tensor) -> Tensor:
    """Sufficient statistics of float64 values, as one vector."""
    finite = values.abs() < (LARGEST if metric.reduction in (Mean, Sum) else _CUBE_LIMIT)
    count = finite.sum()
    dropped = len(values) - count
    kept = torch.where(finite, values, 0.0)
    total = kept.sum()
    head = torch.stack([count.double(), dropped.double(), total])
    if metric.reduction in (Mean, Sum):
        return head
    extremes = torch.stack(
        [torch.where(finite, values, torch.inf).min(), torch.where(finite, values, -torch.inf).max()]
    )
    if metric.reduction is Histogram:
        bins = torch.bucketize(kept.abs(), _edges(values.device), right=True)
        signed = torch.where(kept < 0, -bins, bins) + len(EDGES)
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
    """The reduction that a vector of ``_sums`` describes."""
    count, dropped, total = int(sums[0]), int(sums[1]), float(sums[2])
    if metric.reduction is Mean:
        return Mean(exact_sum([total]), exact_sum([float(count)]), dropped)
    if metric.reduction is Sum:
        return Sum(exact_sum([total]), count, dropped)
    if metric.reduction is Histogram:
        if not count:
            return Histogram(nonfinite=dropped)
        found = np.flatnonzero(sums[5:])
        pairs = tuple(zip((found - len(EDGES)).tolist(), sums[5:][found].astype(int).tolist(), strict=True))
        return Histogram(pairs, float(sums[3]), float(sums[4]), dropped)
    if metric.reduction is None or not issubclass(metric.reduction, Distribution):
        raise ValueError(f"{metric.name} cannot be observed on the learner's device.")
    low, high, centre, offsets, squares, cubes = map(float, sums[3:])
    return metric.reduction.of_moments(count, centre, offsets, squares, cubes, low, high, dropped)
