"""Reductions: sufficient statistics that merge without loss.

One law holds for every reduction: ``of(a).merge(of(b)) == of(a + b)``, bit for bit, in any order and over any split
into workers, learners and minibatches. Floating-point sums would break it, because addition rounds. So a sum is kept
exactly, as a few floats that do not overlap (Shewchuk 1997, "Adaptive Precision Floating-Point Arithmetic", section
2), and is rounded once, when it is read. Means and variances of plain observations are then correctly rounded too, even
around 1e8; a deviation is within one unit in its last place.

Values that are not finite, or too large to be summed, are counted and left out of everything else.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

Summands = tuple[float, ...]
"""Floats, largest first, whose exact sum is the number; ``parts`` in checkpoints. Equal numbers always have equal
summands."""


def exact_sum(values: Iterable[float]) -> Summands:
    """Returns the exact sum of finite values as summands."""
    rest = list(values)
    summands: list[float] = []
    while head := math.fsum(rest):  # each head is the remainder rounded once, so the summands depend on the sum alone
        summands.append(head)
        rest.append(-head)
    return tuple(summands)


def _fraction(summands: Summands) -> Fraction:
    return sum((Fraction(summand) for summand in summands), Fraction(0))


def _product(a: NDArray[np.float64], b: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns rounded products and their rounding errors, whose sums are the exact products (Dekker 1971)."""

    def halves(x: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        split = 134217729.0 * x  # 2^27 + 1: Veltkamp's split
        high = split - (split - x)
        return high, x - high

    product = a * b
    (a_high, a_low), (b_high, b_low) = halves(a), halves(b)
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def _summands(exact: Fraction) -> Summands:
    """Returns the summands of a number, up to a relative error of 2^-200."""
    summands: list[float] = []
    while exact and len(summands) < 4:
        summands.append(float(exact))
        exact -= Fraction(summands[-1])
    return exact_sum(summands)


_SCALES = (600, 0, -500)
"""Powers of two by which tiny, ordinary and huge values are scaled, so that squares neither vanish nor overflow."""


def _exact_squares(values: NDArray[np.float64]) -> tuple[Summands, ...]:
    """Returns the exact sums of the squares of the scaled values, one sum for each of ``_SCALES``."""
    magnitude = np.abs(values)
    bands = (magnitude < 2.0**-450, (magnitude >= 2.0**-450) & (magnitude <= 2.0**450), magnitude > 2.0**450)
    sums = []
    for scale, band in zip(_SCALES, bands, strict=True):
        x = np.ldexp(values[band], scale)
        square, error = _product(x, x)
        sums.append(exact_sum([*square.tolist(), *error.tolist()]))
    return tuple(sums)


LARGEST = 1e290
"""Values from here on count as not finite, so that no sum can overflow."""


def _finite(values: ArrayLike) -> tuple[NDArray[np.float64], int]:
    array = np.asarray(values, dtype=np.float64).ravel() + 0.0  # makes 0.0 of -0.0: equal extremes must be identical
    finite = np.abs(array) < LARGEST
    dropped = int(array.size - np.count_nonzero(finite))
    return (array[finite] if dropped else array), dropped


class State(ABC):
    """Statistics of a set of observations."""

    @abstractmethod
    def read(self) -> dict[str, float]:
        """Returns all readings by name; empty if nothing was observed."""

    @classmethod
    @abstractmethod
    def pool(cls, states: Sequence[Self]) -> Self:
        """Merges the states of several sets of observations, in time proportional to their number."""

    def merge(self, other: Self) -> Self:
        """Merges the states of two sets of observations."""
        return self.pool((self, other))


def _sum_of(all_summands: Iterable[Summands]) -> Summands:
    return exact_sum(chain.from_iterable(all_summands))


@dataclass(frozen=True)
class Sum(State):
    """A total: steps, episodes, skipped updates. Reads 0 if 0 was observed."""

    readings: ClassVar[tuple[str, ...]] = ("sum",)
    parts: Summands = ()
    count: int = 0
    nonfinite: int = 0

    @classmethod
    def of(cls, values: ArrayLike) -> Self:
        """Reduces an array of observations."""
        array, dropped = _finite(values)
        return cls(exact_sum(array.tolist()), array.size, dropped)

    @classmethod
    def pool(cls, states: Sequence[Self]) -> Self:
        return cls(_sum_of(s.parts for s in states), sum(s.count for s in states), sum(s.nonfinite for s in states))

    def read(self) -> dict[str, float]:
        return {"sum": math.fsum(self.parts)} if self.count else {}


@dataclass(frozen=True)
class Mean(State):
    """A weighted mean: sum of weight times value over sum of weights."""

    readings: ClassVar[tuple[str, ...]] = ("mean",)
    parts: Summands = ()
    weight: Summands = ()
    nonfinite: int = 0

    @classmethod
    def of(cls, values: ArrayLike, weights: ArrayLike | None = None) -> Self:
        """Reduces an array of observations; every weight is 1 unless given.

        Raises:
            ValueError: values and weights differ in shape.
        """
        array = np.asarray(values, dtype=np.float64).ravel()
        if weights is None:
            finite, dropped = _finite(array)
            return cls(exact_sum(finite.tolist()), exact_sum([float(finite.size)]), dropped)
        weight = np.asarray(weights, dtype=np.float64).ravel()
        if weight.shape != array.shape:
            raise ValueError(f"every value needs a weight, but got {array.size} values and {weight.size} weights.")
        with np.errstate(all="ignore"):
            products = array * weight
        usable = (np.abs(array) < LARGEST) & (np.abs(weight) < LARGEST) & (np.abs(products) < LARGEST)
        dropped = int(array.size - np.count_nonzero(usable))
        return cls(exact_sum(products[usable].tolist()), exact_sum(weight[usable].tolist()), dropped)

    @classmethod
    def pool(cls, states: Sequence[Self]) -> Self:
        return cls(
            _sum_of(s.parts for s in states), _sum_of(s.weight for s in states), sum(s.nonfinite for s in states)
        )

    def read(self) -> dict[str, float]:
        if not self.weight:
            return {}
        return {"mean": float(_fraction(self.parts) / _fraction(self.weight))}


@dataclass(frozen=True)
class Distribution(State):
    """Count, mean, population variance and standard deviation (by n; ``sample_var``: by n - 1), sum, extremes."""

    readings: ClassVar[tuple[str, ...]] = ("mean", "std", "var", "sample_var", "min", "max", "sum", "count")
    count: int = 0
    parts: Summands = ()
    squares: tuple[Summands, ...] = ((), (), ())
    minimum: float = math.inf
    maximum: float = -math.inf
    nonfinite: int = 0

    @classmethod
    def of(cls, values: ArrayLike) -> Self:
        """Reduces an array of observations."""
        array, dropped = _finite(values)
        if not array.size:
            return cls(nonfinite=dropped)
        return cls(
            array.size,
            exact_sum(array.tolist()),
            _exact_squares(array),
            float(array.min()),
            float(array.max()),
            dropped,
        )

    @classmethod
    def of_moments(
        cls,
        count: int,
        centre: float,
        offsets: float,
        squares: float,
        cubes: float,
        low: float,
        high: float,
        dropped: int,
    ) -> Self:
        """Makes a state from sums that were taken elsewhere, such as on the learner's device.

        The sums are taken around a centre, because sums of the values themselves would lose the digits of the variance
        around a mean of 1e8.

        Args:
            count: number of finite values.
            centre: any number near their mean.
            offsets: sum of ``value - centre``.
            squares: sum of ``(value - centre)^2``.
            cubes: sum of ``(value - centre)^3``.
            low: smallest value.
            high: largest value.
            dropped: number of values that were not finite.
        """
        if not count:
            return cls(nonfinite=dropped)
        c, d = Fraction(centre), Fraction(offsets)
        first = count * c + d
        second = Fraction(squares) + 2 * c * d + count * c**2
        third = Fraction(cubes) + 3 * c * Fraction(squares) + 3 * c**2 * d + count * c**3
        if low == high:  # equal values have no spread, however their sums were rounded
            first, second, third = (count * Fraction(low) ** power for power in (1, 2, 3))
        return cls._of_sums(count, first, second, third, low + 0.0, high + 0.0, dropped)

    @classmethod
    def _of_sums(
        cls, count: int, first: Fraction, second: Fraction, third: Fraction, low: float, high: float, dropped: int
    ) -> Self:
        """Makes a state from the sums of the values, their squares and their cubes."""
        del third  # used by subclasses that have a skewness
        return cls(count, _summands(first), ((), _summands(second), ()), low, high, dropped)

    @classmethod
    def pool(cls, states: Sequence[Self]) -> Self:
        return cls(
            count=sum(s.count for s in states),
            parts=_sum_of(s.parts for s in states),
            squares=tuple(map(_sum_of, zip(*(s.squares for s in states), strict=True))),
            minimum=min(s.minimum for s in states),
            maximum=max(s.maximum for s in states),
            nonfinite=sum(s.nonfinite for s in states),
        )

    def mean_square(self) -> Fraction:
        """Returns the exact mean of the squares. Needs at least one observation."""
        total = sum(
            (
                _fraction(summands) / Fraction(4) ** scale
                for summands, scale in zip(self.squares, _SCALES, strict=True)
                if summands
            ),
            Fraction(0),
        )
        return total / self.count

    def variance(self) -> Fraction:
        """Returns the population variance, exact unless sums were rounded elsewhere. Needs at least one observation."""
        return max(self.mean_square() - (_fraction(self.parts) / self.count) ** 2, Fraction(0))

    def read(self) -> dict[str, float]:
        if not self.count:
            return {}
        variance = self.variance()
        std = _square_root(variance)
        squared: dict[str, float] = {}
        if std < 1e150:  # beyond that, the square is not a float
            squared["var"] = float(variance)
            if self.count > 1:
                squared["sample_var"] = float(variance * self.count / (self.count - 1))
        return {
            "mean": float(_fraction(self.parts) / self.count),
            "std": std,
            **squared,
            "min": self.minimum,
            "max": self.maximum,
            "sum": math.fsum(self.parts),
            "count": float(self.count),
        }


@dataclass(frozen=True)
class Skewed(Distribution):
    """A distribution with its skewness, ``mean((x - mean)^3) / std^3``.

    Cubes are kept exactly between 1e-90 and 1e90; if a value lies outside, there is no skewness to read.
    """

    readings: ClassVar[tuple[str, ...]] = (*Distribution.readings, "skew")
    cubes: Summands = ()
    without_cube: int = 0

    @classmethod
    def _of_sums(
        cls, count: int, first: Fraction, second: Fraction, third: Fraction, low: float, high: float, dropped: int
    ) -> Self:
        return replace(super()._of_sums(count, first, second, third, low, high, dropped), cubes=_summands(third))

    @classmethod
    def of(cls, values: ArrayLike) -> Self:
        """Reduces an array of observations."""
        plain = Distribution.of(values)
        array, _ = _finite(values)
        magnitude = np.abs(array)
        usable = (array == 0.0) | ((magnitude > 1e-90) & (magnitude < 1e90))
        x = array[usable]
        square, square_error = _product(x, x)
        cubes = [*_product(square, x), *_product(square_error, x)]
        return cls(
            **vars(plain),
            cubes=exact_sum([value for values in cubes for value in values.tolist()]),
            without_cube=int(array.size - np.count_nonzero(usable)),
        )

    @classmethod
    def pool(cls, states: Sequence[Self]) -> Self:
        return replace(
            super().pool(states),
            cubes=_sum_of(s.cubes for s in states),
            without_cube=sum(s.without_cube for s in states),
        )

    def read(self) -> dict[str, float]:
        readings = super().read()
        if not self.count or self.without_cube or not (variance := self.variance()):
            return readings
        mean = _fraction(self.parts) / self.count
        third = _fraction(self.cubes) / self.count - 3 * mean * variance - mean**3
        # Scale by the deviation before taking the root, so that neither can leave the range of a float.
        squared = third**2 / variance**3
        readings["skew"] = math.copysign(_square_root(squared), third) if third else 0.0
        return readings


def _square_root(value: Fraction) -> float:
    """Returns the square root of an exact number, even of one that is too small or too large for a float."""
    if value == 0:
        return 0.0
    scale = (value.numerator.bit_length() - value.denominator.bit_length()) // 2
    return math.ldexp(math.sqrt(float(value / Fraction(4) ** scale)), scale)


@dataclass(frozen=True)
class Last(State):
    """A value that is set once, such as the learning rate; several writers must set the same value.

    Merging two different values is an error, because only one of them can be right.
    """

    readings: ClassVar[tuple[str, ...]] = ("value",)
    value: float | None = None
    nonfinite: int = 0

    @classmethod
    def of(cls, values: ArrayLike) -> Self:
        """Reduces one observation.

        Raises:
            ValueError: more than one value.
        """
        array = np.asarray(values, dtype=np.float64).ravel()
        if array.size > 1:
            raise ValueError(f"a metric that is set once was given {array.size} values.")
        finite, dropped = _finite(array)
        return cls(float(finite[0]) if finite.size else None, dropped)

    @classmethod
    def pool(cls, states: Sequence[Self]) -> Self:
        """Merges states that hold the same value, or none.

        Raises:
            ValueError: the states hold different values.
        """
        held = list(dict.fromkeys(s.value for s in states if s.value is not None))
        if len(held) > 1:
            raise ValueError(f"two writers set different values, {held[0]} and {held[1]}.")
        return cls(held[0] if held else None, sum(s.nonfinite for s in states))

    def read(self) -> dict[str, float]:
        return {} if self.value is None else {"value": self.value}


GROWTH = 1.01
"""Each bin of a histogram is 1 % wider than the one before, so a percentile is right to 0.5 %."""
_SMALLEST, _LARGEST = 1e-9, 1e9
EDGES: NDArray[np.float64] = np.multiply.accumulate(
    np.array([_SMALLEST] + [GROWTH] * math.ceil(math.log(_LARGEST / _SMALLEST) / math.log(GROWTH)))
)
"""Lower bounds of the bins of positive numbers. Negative numbers mirror them; bin 0 is everything between.
Computed by products alone, which every machine rounds the same way."""


def bins_of(magnitudes: NDArray[np.float64], negative: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Returns the bin of each number: 0 around zero, counting up for positive and down for negative numbers."""
    bins = np.searchsorted(EDGES, magnitudes, side="right")
    return np.where(negative, -bins, bins)


@dataclass(frozen=True)
class Histogram(State):
    """Counts in bins that are the same for all workers, so that merging adds integers and loses nothing.

    Bins grow geometrically away from zero, so that percentiles have a relative error of at most 0.5 % from 1e-9 to 1e9
    in magnitude, whatever the scale: Masson, Rim, Lee 2019, "DDSketch", arXiv:1908.10693, with fixed edges instead of
    a logarithm, whose last bit differs between machines. The extremes are kept exactly.
    """

    readings: ClassVar[tuple[str, ...]] = ("p50", "p1", "p5", "p25", "p75", "p95", "p99", "p0", "p100")
    counts: tuple[tuple[int, int], ...] = ()
    minimum: float = math.inf
    maximum: float = -math.inf
    nonfinite: int = 0

    @classmethod
    def of(cls, values: ArrayLike) -> Self:
        """Reduces an array of observations."""
        array, dropped = _finite(values)
        if not array.size:
            return cls(nonfinite=dropped)
        bins, counts = np.unique(bins_of(np.abs(array), array < 0.0), return_counts=True)
        pairs = tuple(zip(bins.tolist(), counts.tolist(), strict=True))
        return cls(pairs, float(array.min()), float(array.max()), dropped)

    @classmethod
    def pool(cls, states: Sequence[Self]) -> Self:
        total: dict[int, int] = {}
        for bin_, count in chain.from_iterable(s.counts for s in states):
            total[bin_] = total.get(bin_, 0) + count
        return cls(
            tuple(sorted(total.items())),
            min(s.minimum for s in states),
            max(s.maximum for s in states),
            sum(s.nonfinite for s in states),
        )

    @property
    def count(self) -> int:
        """Number of finite observations."""
        return sum(count for _, count in self.counts)

    def percentile(self, percent: float) -> float:
        """Returns the value below which this percentage of the observations lies. Needs at least one observation.

        Percentiles 0 and 100 are the extremes themselves.
        """
        rank = percent / 100 * (self.count - 1)
        if percent >= 100:
            return self.maximum
        if percent <= 0:
            return self.minimum
        middles, counts = self._arrays()
        place = int(np.searchsorted(counts.cumsum(), rank, side="right"))
        return float(middles[min(place, len(middles) - 1)])

    def _arrays(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Returns the middle of each bin that is not empty, within the extremes, and the count of the bin."""
        bins, counts = np.array(self.counts, dtype=np.int64).T
        # The middle has the same relative distance to both edges of the bin.
        sizes = np.where(bins == 0, 0.0, EDGES[np.abs(bins) - 1] * (2 * GROWTH / (1 + GROWTH)))
        return np.clip(np.copysign(sizes, bins) + 0.0, self.minimum, self.maximum), counts

    def read(self) -> dict[str, float]:
        return {name: self.percentile(float(name[1:])) for name in self.readings} if self.counts else {}

    def buckets(self, at_most: int = 60) -> tuple[list[float], list[int]]:
        """Returns the observations in few bins of equal width, for a plot.

        Args:
            at_most: largest number of bins.
        Returns:
            Edges from the smallest to the largest value, one more than bins; counts of the bins.
        """
        if not self.counts:
            return [], []
        if self.minimum == self.maximum:
            return [self.minimum, self.maximum], [self.count]
        edges = np.linspace(self.minimum, self.maximum, min(at_most, 2 * len(self.counts)) + 1)
        middles, held = self._arrays()
        counts, _ = np.histogram(middles, edges, weights=held)
        return edges.tolist(), [round(count) for count in counts.tolist()]


@dataclass(frozen=True)
class GroupedMean(State):
    """Mean of the groups' means, so that every group has the same weight, whatever its number of observations."""

    readings: ClassVar[tuple[str, ...]] = ("mean",)
    groups: tuple[tuple[int, Summands, int], ...] = ()
    nonfinite: int = 0

    @classmethod
    def of(cls, values: ArrayLike, groups: ArrayLike) -> Self:
        """Reduces an array of observations and the numbers of their groups.

        Raises:
            ValueError: values and groups differ in shape.
        """
        array, of = np.asarray(values, dtype=np.float64).ravel(), np.asarray(groups, dtype=np.int64).ravel()
        if of.shape != array.shape:
            raise ValueError(f"every value needs a group, but got {array.size} values and {of.size} groups.")
        finite = np.abs(array) < LARGEST
        array, of = array[finite], of[finite]
        held = tuple(
            (int(group), exact_sum(array[of == group].tolist()), int(np.count_nonzero(of == group)))
            for group in np.unique(of)
        )
        return cls(held, int(finite.size - np.count_nonzero(finite)))

    @classmethod
    def pool(cls, states: Sequence[Self]) -> Self:
        by_group: dict[int, list[tuple[Summands, int]]] = {}
        for group, summands, count in chain.from_iterable(s.groups for s in states):
            by_group.setdefault(group, []).append((summands, count))
        groups = tuple(
            (group, _sum_of(summands for summands, _ in held), sum(count for _, count in held))
            for group, held in sorted(by_group.items())
        )
        return cls(groups, sum(s.nonfinite for s in states))

    def read(self) -> dict[str, float]:
        if not self.groups:
            return {}
        means = (_fraction(summands) / count for _, summands, count in self.groups)
        return {"mean": float(sum(means, Fraction(0)) / len(self.groups))}


@dataclass(frozen=True)
class Recent(State):
    """Mean of the 100 most recent observations. Each has its place in time, so that states merge in any order."""

    readings: ClassVar[tuple[str, ...]] = ("mean",)
    window: ClassVar[int] = 100
    newest: tuple[tuple[tuple[int, ...], float], ...] = ()
    nonfinite: int = 0

    @classmethod
    def of(cls, values: ArrayLike, places: Sequence[tuple[int, ...]]) -> Self:
        """Reduces an array of observations and their places in time, which must differ from each other.

        Raises:
            ValueError: the numbers of places and values differ.
        """
        array = np.asarray(values, dtype=np.float64).ravel()
        if len(places) != array.size:
            raise ValueError(f"every value needs a place, but got {array.size} values and {len(places)} places.")
        finite = np.abs(array) < LARGEST
        pairs = [pair for pair, usable in zip(zip(places, array.tolist(), strict=True), finite, strict=True) if usable]
        return cls(tuple(sorted(pairs)[-cls.window :]), int(array.size - len(pairs)))

    @classmethod
    def pool(cls, states: Sequence[Self]) -> Self:
        together = sorted(chain.from_iterable(s.newest for s in states))
        return cls(tuple(together[-cls.window :]), sum(s.nonfinite for s in states))

    def read(self) -> dict[str, float]:
        if not self.newest:
            return {}
        return {"mean": float(_fraction(exact_sum(value for _, value in self.newest)) / len(self.newest))}


Reduction = Sum | Mean | Distribution | Last | Histogram | GroupedMean | Recent
KINDS: dict[str, type[Reduction]] = {
    kind.__name__: kind for kind in (Sum, Mean, Distribution, Skewed, Last, Histogram, GroupedMean, Recent)
}
_NAMES_IN_FILES = {"newest": "kept"}
"""Fields that a checkpoint calls otherwise."""


def to_json(state: Reduction) -> list[Any]:
    """Converts a state to JSON values, for a checkpoint."""
    return [type(state).__name__, {_NAMES_IN_FILES.get(name, name): value for name, value in vars(state).items()}]


def from_json(data: list[Any]) -> Reduction:
    """Converts JSON values of ``to_json`` back to a state."""
    kind, entries = data

    def tuples(value: Any) -> Any:
        return tuple(tuples(item) for item in value) if isinstance(value, list) else value

    names = {name: field for field, name in _NAMES_IN_FILES.items()}
    return KINDS[kind](**{names.get(name, name): tuples(value) for name, value in entries.items()})
