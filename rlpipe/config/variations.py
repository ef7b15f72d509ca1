"""Variations of a task from episode to episode: axes that a simulator has, and the levels that a configuration names.

The level of an episode on an axis follows from the seed of its slot and the name of the axis, and from nothing else,
unless a curriculum narrows its range: neither other axes nor the number of workers change it.
"""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rlpipe.errors import ConfigError
from rlpipe.plugins import nearest
from rlpipe.trajectory import ChosenStart, LeafSpec, SpaceSpec

LEAF = "variations"
"""Name of the leaf that holds the levels of an episode, where they are observed."""
UNIFORM, LOG_UNIFORM, CHOICE = "uniform", "log_uniform", "choice"
_EXAMPLE = "{uniform: [0.5, 2.0]}, {log_uniform: [0.5, 2.0]}, {choice: [0, 1, 2]}, or a number"


@dataclass(frozen=True)
class Axis:
    """Quantity that may differ from episode to episode. A simulator declares those that its tasks have.

    Attributes:
        name: key in ``variations``, and name in the ledger.
        neutral: level at which the task is as its authors made it.
        least: smallest legal level.
        most: largest legal level.
        unit: unit of the level; empty for factors and shares.
        acts_on: ``actions``, ``observations``, ``pictures`` or ``physics``.
        meaning: what a level does, as a phrase.
        in_steps: True if levels are whole numbers of environment steps, of which an episode must have more.
        needs: what actions or observations must hold, one of ``NEEDS``; empty for nothing.
        stress: lowest and highest level at which ``rlpipe stress`` tries it; None for an axis that it must be told.
    """

    name: str
    neutral: float
    least: float
    most: float
    unit: str
    acts_on: str
    meaning: str
    in_steps: bool = False
    needs: str = ""
    stress: tuple[float, float] | None = None

    @property
    def legal(self) -> str:
        """Legal levels, as the end of a sentence."""
        return f"from {self.least:g} to {self.most:g} {self.unit}".rstrip()


NUMBERS, FRACTIONS, PICTURES = "continuous actions", "fractions", "pictures"
NEEDS: Mapping[str, Callable[[SpaceSpec], bool]] = {
    NUMBERS: lambda spec: spec.num_actions is None,
    FRACTIONS: lambda spec: spec.leaves is None or any(leaf.dtype == "float32" for leaf in spec.leaves.values()),
    PICTURES: lambda spec: spec.leaves is not None and any(map(is_picture, spec.leaves.values())),
}
"""Needs of an axis: the spaces that a task must have."""


def is_picture(leaf: LeafSpec) -> bool:
    """True for a leaf of colours, not of depths."""
    return leaf.is_image and leaf.dtype == "uint8"


@dataclass(frozen=True)
class Levels:
    """Distribution of the levels of an axis.

    Attributes:
        kind: ``choice`` of one of the values, each as likely; ``uniform`` or ``log_uniform`` between the two values.
        values: as named in the configuration.
    """

    kind: str
    values: tuple[float, ...]

    def at(self, quantile: float) -> float:
        """Returns the level at a quantile in [0, 1)."""
        if self.kind == CHOICE:
            return self.values[int(quantile * len(self.values))]
        low, high = self.values
        if self.kind == LOG_UNIFORM:
            return float(low * (high / low) ** quantile)
        return low + quantile * (high - low)

    @property
    def varies(self) -> bool:
        """True if there is more than one level."""
        return len({*self.values}) > 1

    def within(self, low: float, high: float) -> Levels:
        """Returns the distribution of the same kind over a part of its levels, from a lowest to a highest one."""
        if self.kind == CHOICE:
            return Levels(CHOICE, tuple(value for value in self.values if low <= value <= high))
        return Levels(self.kind, (low, high))


@dataclass(frozen=True)
class Variations:
    """Distributions of the axes that vary, by name.

    Attributes:
        levels: of each axis.
        redrawn: axes on which each seed has another level than without this.
    """

    levels: Mapping[str, Levels] = field(default_factory=dict)
    redrawn: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.levels)

    @classmethod
    def of(cls, section: Any, key: str = "env.train") -> Variations:
        """Reads the ``variations`` of a simulator's section.

        Args:
            section: a ``SimulatorConfig``.
            key: its key, for errors.
        Raises:
            ConfigError: a distribution is not usable.
        """
        return cls.read(section.variations, f"{key}.variations")

    @classmethod
    def read(cls, values: Mapping[str, Any], key: str) -> Variations:
        """Reads variations by themselves; otherwise as ``of``."""
        return cls({name: _levels(value, f"{key}.{name}") for name, value in values.items()})

    def draw(self, seed: int, start: ChosenStart | None = None) -> dict[str, float]:
        """Returns the level on each axis for the episode with a seed, within the ranges of a chosen start."""
        ranges = start.ranges if start else {}
        purposes = {name: (_REDRAWN,) if name in self.redrawn else () for name in self.levels}
        return {
            name: (levels.within(*ranges[name]) if name in ranges else levels).at(quantile(seed, name, *purposes[name]))
            for name, levels in self.levels.items()
        }

    def only(self, names: Iterable[str]) -> Variations:
        """Returns the variations of some axes."""
        return replace(self, levels={name: self.levels[name] for name in names if name in self.levels})

    def most(self, name: str, neutral: float) -> float:
        """Returns the largest level on an axis; the neutral one where it does not vary."""
        return max(self.levels[name].values) if name in self.levels else neutral


NO_VARIATIONS = Variations()
_REDRAWN = 2
"""Last part of the seed of a level that is drawn anew; that of noise has 1."""


def seed_on(seed: int, axis: str, *purpose: int) -> np.random.SeedSequence:
    """Returns the origin of random numbers for an axis in the episode with a seed."""
    return np.random.SeedSequence([seed, zlib.crc32(axis.encode()), *purpose])


@functools.lru_cache(maxsize=1024)  # a simulator draws the levels of its own axes once more
def quantile(seed: int, axis: str, *purpose: int) -> float:
    """Returns a number in [0, 1) that follows from a seed and the name of an axis: 53 random bits."""
    return float(int(seed_on(seed, axis, *purpose).generate_state(1, np.uint64)[0]) >> 11) * 2.0**-53


def _levels(value: Any, key: str) -> Levels:
    if not isinstance(value, Mapping):
        return Levels(CHOICE, (_number(value, key),))
    kinds: dict[str, Callable[[str, tuple[float, ...]], None]] = {
        UNIFORM: _check_range, LOG_UNIFORM: _check_positive_range, CHOICE: _check_choice,
    }  # fmt: skip
    if len(value) != 1 or not {*value} <= {*kinds}:
        unknown = next((str(name) for name in value if name not in kinds), "")
        raise ConfigError(f"{key} is {value!r}; it must be {_EXAMPLE}{nearest(unknown, kinds) if unknown else '.'}")
    ((kind, numbers),) = value.items()
    if not isinstance(numbers, list | tuple):
        raise ConfigError(f"{key}.{kind} is {numbers!r}; it must hold a list, such as {_EXAMPLE}.")
    values = tuple(_number(number, f"{key}.{kind}[{index}]") for index, number in enumerate(numbers))
    kinds[kind](f"{key}.{kind}", values)
    return Levels(kind, values)


def _number(value: Any, key: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError(f"{key} is {value!r}; it must be {'a number' if '[' in key else _EXAMPLE}.")
    return float(value)


def _check_choice(key: str, values: Sequence[float]) -> None:
    if not values:
        raise ConfigError(f"{key} is empty; name at least one level.")


def _check_range(key: str, values: Sequence[float]) -> None:
    if len(values) != 2 or values[0] >= values[1]:
        levels = ", ".join(f"{value:g}" for value in values)
        raise ConfigError(
            f"{key} is [{levels}], which is no range: name a lower and a higher level, such as [0.5, 2.0]."
        )


def _check_positive_range(key: str, values: Sequence[float]) -> None:
    _check_range(key, values)
    if values[0] <= 0:
        raise ConfigError(f"{key} begins at {values[0]:g}, which has no logarithm: begin above 0.")


def check_variations(section: Any, key: str, axes: Sequence[Axis], time_limit: int | None) -> None:
    """Checks that a simulator has the axes that vary or are observed, and that their levels are legal.

    Args:
        section: a ``SimulatorConfig``.
        key: its key, for errors.
        axes: axes that the simulator has.
        time_limit: environment steps after which every episode ends; None if that is not known.
    Raises:
        ConfigError: the first mistake that is found.
    """
    by_name = {axis.name: axis for axis in axes}
    for name in section.observe_variations:
        _check_axis(name, f"{key}.observe_variations", section, by_name)
    for name, levels in Variations.of(section, key).levels.items():
        _check_axis(name, f"{key}.variations", section, by_name)
        check_levels(f"{key}.variations.{name}", levels, by_name[name], time_limit)


def check_effects(variations: Variations, axes: Sequence[Axis], spec: SpaceSpec, key: str) -> None:
    """Checks that the axes that vary have something to act on.

    Args:
        variations: those of the section.
        axes: axes that the simulator has.
        spec: spaces of the task.
        key: key of the section, for errors.
    Raises:
        ConfigError: an axis would change nothing.
    """
    for axis in axes:
        if axis.name in variations.levels and axis.needs and not NEEDS[axis.needs](spec):
            raise ConfigError(f"{key}.variations names {axis.name}, but the task has no {axis.needs}: leave it out.")


def _check_axis(name: str, key: str, section: Any, axes: Mapping[str, Axis]) -> None:
    if name not in axes:
        raise ConfigError(
            f"{key} names {name}, which {section.task_name} ({section.name}) cannot vary{nearest(name, axes)} "
            f"It has {', '.join(axes)}."
        )


def check_levels(key: str, levels: Levels, axis: Axis, time_limit: int | None) -> None:
    """Raises ConfigError if a level on an axis is not legal; for ``key`` and ``time_limit`` see above."""
    for level in levels.values:
        if not axis.least <= level <= axis.most:
            raise ConfigError(f"{key} reaches {level:g}; it must be {axis.legal}.")
    if not axis.in_steps:
        return
    if levels.kind != CHOICE or any(level % 1 for level in levels.values):
        raise ConfigError(f"{key} is in whole environment steps: name them, such as {{choice: [0, 1, 2]}}.")
    if time_limit is not None and max(levels.values) >= time_limit:
        raise ConfigError(
            f"{key} reaches {max(levels.values):g} steps, but an episode ends after {time_limit}, the time limit: "
            "nothing would change within an episode. Lower it."
        )
