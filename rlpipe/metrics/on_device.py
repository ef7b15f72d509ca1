"""Values observed on the learner's device, which reach the host as reductions, in a single copy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlpipe.learner_group import SINGLE_LEARNER, LearnerGroup
from rlpipe.metrics import MetricWindow
from rlpipe.metrics.declaration import Metric
from rlpipe.metrics.reductions import EDGES, LARGEST, Distribution, Histogram, Mean, State, Sum, exact_sum


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


class Masked(NamedTuple):
    """Values of which only some are observed: those of the units that were taken, such as tokens, or of some decisions.

    They are selected once the update is over: only then does the host read how many there are.

    Attributes:
        values: [S], or [S, G] of the units of each decision
        mask: bool of the same shape; one tensor for all metrics that observe the same
    """

    values: Tensor
    mask: Tensor


@dataclass(frozen=True)
class _Update:
    """Facts about the decisions of an update.

    Attributes:
        trajectory: [S] int64, number of each decision's trajectory
        count: number of trajectories, if their numbers have no gaps; else None
        sizes: sizes of the minibatches
    """

    trajectory: Tensor
    count: int | None
    sizes: MinibatchSizes


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
        self._masked: list[tuple[dict[Metric, Tensor], Tensor, _Update | None]] = []

    def add(self, observed: Mapping[Metric, Tensor | Masked | float]) -> None:
        """Adds this learner's values of any shape, each an observation, or a number that all learners share."""
        self._defer(observed, None)
        for metric, values in observed.items():
            if isinstance(values, Masked):
                continue
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
        self,
        observed: Mapping[Metric, Tensor | Masked],
        trajectory: Tensor,
        sizes: MinibatchSizes,
        count: int | None = None,
    ) -> None:
        """Adds values of every decision that was learnt from, or of every unit of it.

        Args:
            observed: [S] values of each metric, in the order of the minibatches
            trajectory: [S] int64, number of the trajectory that each decision belongs to
            sizes: sizes of the minibatches
            count: number of trajectories, J, if their numbers are 0 to J - 1; None if that is to be found out, for
                which the host waits for the device
        """
        update = _Update(trajectory, count, sizes)
        self._add_rows({metric: each for metric, each in observed.items() if isinstance(each, Tensor)}, update)
        self._defer(observed, update)

    def _defer(self, observed: Mapping[Metric, Tensor | Masked | float], update: _Update | None) -> None:
        """Keeps masked values for ``reduce``, those with one mask together."""
        masked = {metric: each for metric, each in observed.items() if isinstance(each, Masked)}
        for mask in {id(each.mask): each.mask for each in masked.values()}.values():
            values = {metric: each.values for metric, each in masked.items() if each.mask is mask}
            self._masked.append((values, mask, update))

    def _takers(self, metric: Metric) -> tuple[Metric, ...]:
        return (metric, *self._companions.get(metric, ()))

    def _add_rows(self, observed: Mapping[Metric, Tensor], update: _Update) -> None:
        takers = [(taker, values) for metric, values in observed.items() for taker in self._takers(metric)]
        sizes = update.sizes
        tail = {"last epoch": sum(sizes.local[-sizes.last_epoch :]), "last minibatch": sizes.local[-1]}
        if any(taker.over == "trajectory" for taker, _ in takers):
            index, lengths = _numbered(update.trajectory, update.count)
        by_minibatch: dict[Metric, Tensor] = {}  # a minibatch is spread over all learners
        for taker, values in takers:
            if taker.over == "minibatch":
                by_minibatch[taker] = _minibatch_sums(values.double(), sizes.local)
            elif taker.over == "trajectory":
                sums = torch.zeros_like(lengths).index_add_(0, index, values.double())
                self._pooled.append((taker, sums / lengths))
            else:
                self._pooled.append((taker, values[len(values) - tail.get(taker.over, len(values)) :]))
        if by_minibatch:
            means = self._learners.sum(torch.stack([*by_minibatch.values()]))
            means = means / torch.cat([means.new_full((len([*run]),), size) for size, run in groupby(sizes.all)])
            if self._learners.first:
                self._pooled += zip(by_minibatch, means, strict=True)

    def _select_masked(self) -> None:
        """Selects what masks leave, after one read of how much that is in each minibatch."""
        parts, self._masked = self._masked, []
        if not parts:
            return
        counts = []
        for observed, mask, update in parts:
            local = _minibatch_sums(mask, [len(mask)] if update is None else update.sizes.local)
            spread = any(taker.over == "minibatch" for metric in observed for taker in self._takers(metric))
            counts.append(torch.stack([local, self._learners.sum(local) if spread else local]))
        read = np.split(torch.cat(counts, 1).cpu().numpy(), np.cumsum([each.shape[1] for each in counts])[:-1], 1)
        for (observed, mask, update), (local, everywhere) in zip(parts, read, strict=True):
            rows = torch.repeat_interleave(mask.flatten().long(), output_size=int(local.sum()))
            every = len(rows) == mask.numel()
            selected = {metric: each.flatten() if every else each.flatten()[rows] for metric, each in observed.items()}
            if update is None:
                self._pooled += [(taker, each) for metric, each in selected.items() for taker in self._takers(metric)]
                continue
            of_units = mask.dim() > 1
            trajectory = update.trajectory[rows // mask.shape[1] if of_units else rows]
            count = update.count if of_units else None  # a decision has a unit, but a mask may leave a trajectory empty
            sizes = MinibatchSizes(local.tolist(), everywhere.tolist(), update.sizes.last_epoch)
            self._add_rows(selected, _Update(trajectory, count, sizes))

    def reduce(self, window: MetricWindow) -> None:
        """Reduces everything on the device, fetches the sums in one copy, and observes them.

        Vectors of one length, type and kind of reduction are reduced together, which launches a fourth as many kernels
        and gives the same bits.
        """
        for metric, value in self._set.items():
            window.observe(metric, value)
        self._select_masked()
        pooled = {
            metric: values[0] if len(values) == 1 else torch.cat(values) for metric, values in self._values.items()
        }
        once = [(taker, values) for metric, values in pooled.items() for taker in self._takers(metric)]
        vectors = [(metric, values) for metric, values in (*once, *self._pooled) if len(values)]
        groups: defaultdict[tuple[type[State], int, torch.dtype], list[int]] = defaultdict(list)
        for number, (metric, values) in enumerate(vectors):
            groups[_kind(metric), len(values), values.dtype].append(number)
        batches, sums = [], []
        for (kind, length, _), numbers in groups.items():
            for batch in _batches(numbers, _stacked(vectors[numbers[0]][1].device) // length):
                batches.append(batch)
                rows = [vectors[number][1] for number in batch]
                stack = rows[0].unsqueeze(0) if len(rows) == 1 else torch.stack(rows)
                sums.append(_sums(kind, stack.double()))
        if not sums:
            return
        fetched = torch.cat([each.flatten() for each in sums]).cpu().numpy()
        pieces = np.split(fetched, np.cumsum([each.numel() for each in sums])[:-1])
        states: dict[int, NDArray[np.float64]] = {}
        for batch, piece in zip(batches, pieces, strict=True):
            states |= zip(batch, piece.reshape(len(batch), -1), strict=True)
        for number, (metric, values) in enumerate(vectors):
            window.observe_state(metric, _state(metric, len(values), states[number]))


def _minibatch_sums(values: Tensor, sizes: Sequence[int]) -> Tensor:
    """[minibatches] sums over minibatches of these sizes of [S, ...] values."""
    if len(set(sizes)) == 1:
        return values.reshape(len(sizes), sizes[0], *values.shape[1:]).flatten(1).sum(1)
    return torch.stack([minibatch.sum() for minibatch in torch.split(values, list(sizes))])


def _numbered(trajectory: Tensor, count: int | None) -> tuple[Tensor, Tensor]:
    """[S] index of each trajectory, from 0 and without gaps, and [J] float64 their lengths."""
    if count is None:
        present, trajectory = torch.unique(trajectory, return_inverse=True)
        count = len(present)
    lengths = torch.zeros(count, dtype=torch.float64, device=trajectory.device)
    return trajectory, lengths.index_add_(0, trajectory, torch.ones_like(trajectory, dtype=torch.float64))


def _stacked(device: torch.device) -> int:
    """Numbers that are reduced together at most.

    On a GPU they bound the memory. On a CPU they fit its cache, and a vector that torch cuts among threads stays alone,
    as that changes the order of its sum.
    """
    return 2**16 - 1 if device.type == "cpu" else 2**22


def _batches(numbers: Sequence[int], size: int) -> list[Sequence[int]]:
    size = max(1, size)
    return [numbers[begin : begin + size] for begin in range(0, len(numbers), size)]


_CUBE_LIMIT = 1e90
"""Bound above which a sum of cubes would overflow; larger values count as not finite."""


def _kind(metric: Metric) -> type[State]:
    """Kind of reduction that says which sums a metric needs."""
    if metric.reduction in (Mean, Sum):
        return Sum
    return Histogram if metric.reduction is Histogram else Distribution


def _sums(kind: type[State], values: Tensor) -> Tensor:
    """[M, K] sufficient statistics of M vectors, from [M, S] float64 values."""
    zero, infinity = _constants(values.device)
    finite = values.abs() < (LARGEST if kind is Sum else _CUBE_LIMIT)
    count = finite.sum(1).double()
    usable = torch.where(finite, values, zero)
    total = usable.sum(1)
    if kind is Sum:
        return torch.stack([count, total], 1)
    extremes = [torch.where(finite, values, infinity).amin(1), torch.where(finite, values, -infinity).amax(1)]
    if kind is Histogram:
        bins = torch.bucketize(usable.abs(), _edges(values.device), right=True)
        signed = torch.where(usable < 0, -bins, bins) + len(EDGES)
        width = 2 * len(EDGES) + 1
        signed += torch.arange(0, len(values) * width, width, device=values.device).unsqueeze(1)
        counts = torch.zeros(len(values) * width, dtype=torch.float64, device=values.device)
        counts.index_add_(0, signed.flatten(), finite.double().flatten())
        return torch.cat([torch.stack([count, total, *extremes], 1), counts.view(len(values), width)], 1)
    centre = total / count.clamp(min=1)
    offsets = torch.where(finite, values - centre.unsqueeze(1), zero)
    squares = offsets.square()
    moments = [centre, offsets.sum(1), squares.sum(1), (squares * offsets).sum(1)]
    return torch.stack([count, total, *extremes, *moments], 1)


@cache
def _constants(device: torch.device) -> tuple[Tensor, Tensor]:
    """Zero and infinity as float64: a number in ``torch.where`` would be written to the device each time."""
    zero = torch.zeros((), dtype=torch.float64, device=device)
    return zero, zero + torch.inf


@cache
def _edges(device: torch.device) -> Tensor:
    return torch.from_numpy(EDGES).to(device)


def _state(metric: Metric, length: int, sums: NDArray[np.float64]) -> Mean | Sum | Distribution | Histogram:
    """Returns the reduction that a row of ``_sums`` describes, of a vector of this length."""
    count, total = int(sums[0]), float(sums[1])
    dropped = length - count
    if metric.reduction is Mean:
        return Mean(exact_sum([total]), exact_sum([float(count)]), dropped)
    if metric.reduction is Sum:
        return Sum(exact_sum([total]), count, dropped)
    if metric.reduction is Histogram:
        if not count:
            return Histogram(nonfinite=dropped)
        filled = np.flatnonzero(sums[4:])
        pairs = tuple(zip((filled - len(EDGES)).tolist(), sums[4:][filled].astype(int).tolist(), strict=True))
        return Histogram(pairs, float(sums[2]) + 0.0, float(sums[3]) + 0.0, dropped)
    if metric.reduction is None or not issubclass(metric.reduction, Distribution):
        raise ValueError(f"{metric.name} cannot be observed on the learner's device.")
    low, high, centre, offsets, squares, cubes = map(float, sums[2:])
    return metric.reduction.of_moments(count, centre, offsets, squares, cubes, low, high, dropped)
