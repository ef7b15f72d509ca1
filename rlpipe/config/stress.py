"""Axes on which ``rlpipe stress`` tries a policy, and the levels on each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlpipe.config.variations import (
    CHOICE,
    LOG_UNIFORM,
    NEEDS,
    UNIFORM,
    Axis,
    Levels,
    check_levels,
)
from rlpipe.errors import ConfigError
from rlpipe.plugins import nearest
from rlpipe.trajectory import SpaceSpec

MOST_BINS = 5
"""Bins of the levels that were drawn on an axis."""


@dataclass(frozen=True)
class StressAxis:
    """Axis with a range of levels.

    Attributes:
        axis: as the simulator declares it.
        low: lowest level.
        high: highest level.
        levels: those at which the axis is tried alone, ascending, evenly spaced on its scale.
    """

    axis: Axis
    low: float
    high: float
    levels: tuple[float, ...]

    @property
    def is_log(self) -> bool:
        """True if the scale is logarithmic, as that of factors."""
        return _is_log(self.axis, self.low)

    @property
    def drawn(self) -> Levels:
        """Distribution of its levels where all axes vary together."""
        if self.axis.in_steps:
            return Levels(CHOICE, tuple(map(float, range(int(self.low), int(self.high) + 1))))
        return Levels(LOG_UNIFORM if self.is_log else UNIFORM, (self.low, self.high))

    @property
    def edges(self) -> list[float]:
        """Bounds of the bins of its levels, ascending; each is as likely where it is drawn, in steps about so."""
        if not self.axis.in_steps:
            return _spaced(self.low, self.high, MOST_BINS + 1, log=self.is_log)
        count = int(self.high - self.low) + 1
        bins = min(count, MOST_BINS)
        return [self.low + bin_ * count // bins - 0.5 for bin_ in range(bins + 1)]


def stress_axes(
    text: str | None, levels: int, axes: Sequence[Axis], spec: SpaceSpec | None, time_limit: int | None, task: str
) -> list[StressAxis]:
    """Returns the axes that are named, or all those of a task that something can be said of beforehand.

    Args:
        text: names, each perhaps with a range: ``mass=0.5:3,action_latency``; None for all axes.
        levels: number of levels on each axis.
        axes: axes that the task has.
        spec: its spaces, where they are known: axes without anything to act on are left out.
        time_limit: environment steps after which every episode ends; None if that is not known.
        task: its name, for errors.
    Raises:
        ConfigError: an axis is unknown, its range is none, or a level is not legal.
    """
    if levels < 2:
        raise ConfigError(f"--levels is {levels}; it must be at least 2: the two ends of the range of an axis.")
    usable = [axis for axis in axes if spec is None or not axis.needs or NEEDS[axis.needs](spec)]
    if text is None:
        ranges = [(axis, _usual_range(axis, time_limit)) for axis in usable]
        selected = [(axis, bounds) for axis, bounds in ranges if bounds is not None]
        if not selected:
            raise ConfigError(f"{task} has no axis with a usual range: name one with --axes, such as mass=0.5:2.")
    else:
        selected = _named(text, {axis.name: axis for axis in axes}, {axis.name for axis in usable}, time_limit, task)
    return [_spread(axis, *bounds, levels, time_limit) for axis, bounds in selected]


def _usual_range(axis: Axis, time_limit: int | None) -> tuple[float, float] | None:
    """Returns the range that an axis declares, in steps as far as an episode has them; None without any."""
    if axis.stress is None:
        return None
    low, high = axis.stress
    if axis.in_steps and time_limit is not None:
        high = min(high, time_limit - 1.0)
    return (low, high) if low < high else None


def _named(
    text: str, axes: Mapping[str, Axis], usable: set[str], time_limit: int | None, task: str
) -> list[tuple[Axis, tuple[float, float]]]:
    selected: dict[str, tuple[Axis, tuple[float, float]]] = {}
    for part in text.split(","):
        name, _, numbers = (piece.strip() for piece in part.partition("="))
        if name not in axes:
            raise ConfigError(
                f"--axes names {name!r}, which {task} cannot vary{nearest(name, axes)} It has {', '.join(axes)}."
            )
        if name in selected:
            raise ConfigError(f"--axes names {name} twice: name it once.")
        axis = axes[name]
        if name not in usable:
            raise ConfigError(f"--axes names {name}, but {task} has no {axis.needs}: leave it out.")
        bounds = _range(name, numbers) if numbers else _usual_range(axis, time_limit)
        if bounds is None:
            raise ConfigError(f"--axes names {name}, which has no usual range: name one, such as {name}=1:2.")
        selected[name] = axis, bounds
    return list(selected.values())


def _range(name: str, numbers: str) -> tuple[float, float]:
    low, colon, high = numbers.partition(":")
    try:
        bounds = float(low), float(high)
    except ValueError:
        colon, bounds = "", (0.0, 0.0)
    if not colon or not all(map(math.isfinite, bounds)) or bounds[0] >= bounds[1]:
        raise ConfigError(
            f"--axes has {name}={numbers}, which is no range: name a lower and a higher level, such as {name}=0.5:2."
        )
    return bounds


def _spread(axis: Axis, low: float, high: float, count: int, time_limit: int | None) -> StressAxis:
    check_levels(f"--axes: {axis.name}", Levels(CHOICE, (low, high)), axis, time_limit)
    levels = _spaced(low, high, count, log=_is_log(axis, low))
    if axis.in_steps:
        levels = [float(round(level)) for level in levels]
    return StressAxis(axis, low, high, tuple(dict.fromkeys(levels)))


def _is_log(axis: Axis, low: float) -> bool:
    return axis.neutral == 1 and not axis.in_steps and low > 0


def _spaced(low: float, high: float, count: int, *, log: bool) -> list[float]:
    """Returns evenly spaced numbers from low to high, with six digits each, so that they can be typed."""
    shares = [index / (count - 1) for index in range(count)]
    numbers = [low * (high / low) ** share if log else low + share * (high - low) for share in shares]
    return [low, *(float(f"{number:.6g}") for number in numbers[1:-1]), high]
