"""Sufficient statistics that merge without losing anything.

One law holds for every reduction: ``of(a).merge(of(b)) == of(a + b)``, bit for bit, in any order and over any split
into workers, ranks and minibatches. Sums make that hard in floating point, because addition rounds. So a sum is kept
exactly, as a few floats that do not overlap (Shewchuk 1997, "Adaptive Precision Floating-Point Arithmetic", section
2), and is rounded once, when it is read. Means and variances are then correctly rounded too, also around 1e8; a
deviation is within one unit in its last place.

Values that are not finite, or larger than any sum can bear, are counted and left out of everything else.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

Parts = tuple[float, ...]
"""Floats, largest first, whose exact sum is the number meant. The same number always has the same parts."""


def exact_sum(values: Iterable[float]) -> Parts:
    """The parts of the exact sum of finite values."""
    rest = list(values)
    parts: list[float] = []
    while head := math.fsum(rest):  # each head is the remainder rounded once, so the parts depend on the sum alone
        parts.append(head)
        rest.append(-head)
    return tuple(parts)


def _fraction(parts: Parts) -> Fraction:
    return sum((Fraction(part) for part in parts), Fraction(0))


_SCALES = (600, 0, -500)
"""Powers of two that bring tiny, ordinary and huge values to where their squares neither vanish nor overflow."""


def _exact_squares(values: NDArray[np.float64]) -> tuple[Parts, ...]:
    """Exact sums of the squares of values, one for each of ``_SCALES``, of values scaled by it."""
    magnitude = np.abs(values)
    bands = (magnitude < 2.0**-450, (magnitude >= 2.0**-450) & (magnitude <= 2.0**450), magnitude > 2.0**450)
    sums = []
    for scale, band in zip(_SCALES, bands, strict=True):
        x = np.ldexp(values[band], scale)
        square = x * x
        split = (
            134217729.0 * x
        )  # 2^27 + 1: Veltkamp's split into halves, then Dekker's product gives the rounding error
        high = split - (split - x)
        low = x - high
        error = ((high * high - square) + 2.0 * high * low) + low * low
        sums.append(exact_sum([*square.tolist(), *error.tolist()]))
    return tuple(sums)


LARGEST = 1e290
"""Values beyond this count as not finite, so that no sum of them can overflow."""


def _finite(values: ArrayLike) -> tuple[NDArray[np.float64], int]:
    array = np.asarray(values, dtype=np.float64).ravel()
    finite = np.abs(array) < LARGEST
    dropped = int(array.size - np.count_nonzero(finite))
    return (array[finite] if dropped else array), dropped


@dataclass(frozen=True)
class Sum:
    """A total: steps, episodes, skipped updates. Reads 0 when it was observed to be 0."""

    readings: ClassVar[tuple[str, ...]] = ("sum",)
    parts: Parts = ()
    count: int = 0
    nonfinite: int = 0

    @classmethod
    def of(cls, values: ArrayLike) -> Self:
        """State of an array of observations."""
        array, dropped = _finite(values)
        return cls(exact_sum(array.tolist()), array.size, dropped)

    def merge(self, other: Self) -> Self:
        """State of both sets of observations."""
        return type(self)(
            exact_sum(self.parts + other.parts), self.count + other.count, self.nonfinite + other.nonfinite
        )

    def read(self) -> dict[str, float]:
        """What a plot can show; empty when nothing was observed."""
        return {"sum": math.fsum(self.parts)} if self.count else {}


@dataclass(frozen=True)
class Mean:
    """A weighted mean: sum of weight times value over sum of weights."""

    readings: ClassVar[tuple[str, ...]] = ("mean",)
    parts: Parts = ()
    weight: Parts = ()
    nonfinite: int = 0

    @classmethod
    def of(cls, values: ArrayLike, weights: ArrayLike | None = None) -> Self:
        """State of an array of observations; weights default to 1 each.

        Raises:
            ValueError: values and weights differ in shape.
        """
        array = np.asarray(values, dtype=np.float64).ravel()
        if weights is None:
            finite, dropped = _finite(array)
            return cls(exact_sum(finite.tolist()), exact_sum([float(finite.size)]), dropped)
        weight = np.asarray(weights, dtype=np.float64).ravel()
        if weight.shape != array.shape:
            raise ValueError(f"every value needs its weight, but got {array.size} values and {weight.size} weights.")
        with np.errstate(all="ignore"):
            products = array * weight
        usable = (np.abs(array) < LARGEST) & (np.abs(weight) < LARGEST) & (np.abs(products) < LARGEST)
        dropped = int(array.size - np.count_nonzero(usable))
        return cls(exact_sum(products[usable].tolist()), exact_sum(weight[usable].tolist()), dropped)

    def merge(self, other: Self) -> Self:
        """State of both sets of observations."""
        return type(self)(
            exact_sum(self.parts + other.parts),
            exact_sum(self.weight + other.weight),
            self.nonfinite + other.nonfinite,
        )

    def read(self) -> dict[str, float]:
        """What a plot can show; empty when nothing was observed."""
        if not self.weight:
            return {}
        return {"mean": float(_fraction(self.parts) / _fraction(self.weight))}


@dataclass(frozen=True)
class Distribution:
    """Count, mean, population variance and standard deviation (dividing by n), sum and extremes of observations."""

    readings: ClassVar[tuple[str, ...]] = ("mean", "std", "var", "min", "max", "sum", "count")
    count: int = 0
    parts: Parts = ()
    squares: tuple[Parts, ...] = ((), (), ())
    minimum: float = math.inf
    maximum: float = -math.inf
    nonfinite: int = 0

    @classmethod
    def of(cls, values: ArrayLike) -> Self:
        """State of an array of observations."""
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

    def merge(self, other: Self) -> Self:
        """State of both sets of observations."""
        return type(self)(
            self.count + other.count,
            exact_sum(self.parts + other.parts),
            tuple(exact_sum(a + b) for a, b in zip(self.squares, other.squares, strict=True)),
            min(self.minimum, other.minimum),
            max(self.maximum, other.maximum),
            self.nonfinite + other.nonfinite,
        )

    def variance(self) -> Fraction:
        """Population variance, exact. Needs at least one observation."""
        total = sum(
            (_fraction(parts) / Fraction(4) ** scale for parts, scale in zip(self.squares, _SCALES, strict=True)),
            Fraction(0),
        )
        return total / self.count - (_fraction(self.parts) / self.count) ** 2

    def read(self) -> dict[str, float]:
        """What a plot can show; empty when nothing was observed."""
        if not self.count:
            return {}
        variance = self.variance()
        std = _square_root(variance)
        return {
            "mean": float(_fraction(self.parts) / self.count),
            "std": std,
            **({"var": float(variance)} if std < 1e154 else {}),  # beyond, the square is no float
            "min": self.minimum,
            "max": self.maximum,
            "sum": math.fsum(self.parts),
            "count": float(self.count),
        }


def _square_root(value: Fraction) -> float:
    """Square root of an exact number, also where the number itself is too small or too large for a float."""
    if value == 0:
        return 0.0
    scale = (value.numerator.bit_length() - value.denominator.bit_length()) // 2
    return math.ldexp(math.sqrt(float(value / Fraction(4) ** scale)), scale)


@dataclass(frozen=True)
class Last:
    """A value that one writer sets once, such as the learning rate, or that all ranks hold alike.

    Merging two different values is an error: it means a second writer.
    """

    readings: ClassVar[tuple[str, ...]] = ("value",)
    value: float | None = None
    nonfinite: int = 0

    @classmethod
    def of(cls, values: ArrayLike) -> Self:
        """State of one observation.

        Raises:
            ValueError: more than one value.
        """
        array = np.asarray(values, dtype=np.float64).ravel()
        if array.size > 1:
            raise ValueError(f"a value that is only set, never reduced, was given {array.size} values.")
        finite, dropped = _finite(array)
        return cls(float(finite[0]) if finite.size else None, dropped)

    def merge(self, other: Self) -> Self:
        """The value both hold, or the one that either holds.

        Raises:
            ValueError: they hold different values.
        """
        if None not in (self.value, other.value) and self.value != other.value:
            raise ValueError(f"two writers set different values, {self.value} and {other.value}.")
        return type(self)(other.value if self.value is None else self.value, self.nonfinite + other.nonfinite)

    def read(self) -> dict[str, float]:
        """What a plot can show; empty when nothing was observed."""
        return {} if self.value is None else {"value": self.value}


Reduction = Sum | Mean | Distribution | Last


def to_json(state: Reduction) -> list[Any]:
    """A state as JSON values, for a checkpoint."""
    return [type(state).__name__, dict(vars(state))]


def from_json(data: list[Any]) -> Reduction:
    """Inverse of ``to_json``."""
    kinds: dict[str, type[Reduction]] = {"Sum": Sum, "Mean": Mean, "Distribution": Distribution, "Last": Last}
    name, fields = data

    def tuples(value: Any) -> Any:
        return tuple(tuples(item) for item in value) if isinstance(value, list) else value

    return kinds[name](**{key: tuples(value) for key, value in fields.items()})
