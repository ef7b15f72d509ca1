"""The names and scales of other systems: rows in their words, and their logs in ours.

What a name means, and how far it agrees with ours, stands beside each metric in the catalogue (``Metric.names``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from rlpipe.metrics.catalogue import CATALOGUE
from rlpipe.metrics.declaration import RELATIONS, Metric, Name
from rlpipe.metrics.reductions import Distribution, Reduction

DIALECTS = ("sb3", "trl", "trl_legacy", "cleanrl")
"""Systems whose keys can be written next to ours. RLinf's are ours already."""
BY_TIMESTEPS = ("sb3", "cleanrl")
"""Those that plot over environment steps; the others over updates, which are our iterations."""
SYSTEMS = (*DIALECTS, "rlinf", "maniskill")
"""Systems whose keys can be looked up."""


def _sample_std(value: float, state: Reduction | None) -> float | None:
    """Standard deviation dividing by n - 1."""
    if not isinstance(state, Distribution) or state.count < 2:
        return None
    return value * math.sqrt(state.count / (state.count - 1))


CONVERSIONS: dict[str, Callable[[float, Reduction | None], float | None]] = {
    "": lambda value, _: value,
    "negate": lambda value, _: -value,
    "floor": lambda value, _: float(math.floor(value)),
    "double": lambda value, _: 2.0 * value,
    "sample_std": _sample_std,
}
"""How our number becomes theirs, from the number and the state behind it."""
_FACTORS = {"negate": -1.0, "double": 2.0}


@dataclass(frozen=True)
class Use:
    """A metric of ours and a name of it elsewhere."""

    metric: Metric
    name: Name

    @property
    def can_be_written(self) -> bool:
        """Whether their number follows from ours; a distribution is no number."""
        given = self.name.relation == "exact" or (self.name.relation == "transform" and bool(self.name.convert))
        return given and not self.metric.is_histogram


def uses(system: str) -> list[Use]:
    """Every name that a system has for a metric of ours, in the order of the catalogue."""
    return [Use(metric, name) for metric in CATALOGUE.values() for name in metric.names if name.system == system]


def written(system: str) -> dict[str, Use]:
    """The metric that each key of a system is written from: the closest that can be."""
    chosen: dict[str, Use] = {}
    for use in uses(system):
        held = chosen.get(use.name.key)
        closer = held is None or RELATIONS.index(use.name.relation) < RELATIONS.index(held.name.relation)
        if use.can_be_written and closer:
            chosen[use.name.key] = use
    return chosen


def left_out(system: str) -> dict[str, Use]:
    """Keys that are not written because no metric of ours is that number, and the metric that is nearest."""
    given = written(system)
    nearest: dict[str, Use] = {}
    for use in sorted(uses(system), key=_distance):
        nearest.setdefault(use.name.key, use)
    return {use.name.key: nearest[use.name.key] for use in uses(system) if use.name.key not in given}


def _distance(use: Use) -> tuple[bool, int]:
    """Orders what a name may mean, the closest first."""
    return use.name.secondary, RELATIONS.index(use.name.relation)


class Dialect:
    """Rows in the words of one system."""

    def __init__(self, system: str) -> None:
        """Looks its keys up once."""
        self._written = written(system)

    def write(self, metrics: Mapping[str, float], states: Mapping[str, Reduction]) -> dict[str, float]:
        """The row's numbers under their keys, with their signs and scales.

        Args:
            metrics: row by our names.  states: it was read from.
        """
        row: dict[str, float] = {}
        for key, use in self._written.items():
            for member in use.metric.members(states):
                value = metrics.get(member.name)
                state = states.get((member.inputs[0] if member.inputs else member).name)
                theirs = None if value is None else CONVERSIONS[use.name.convert](value, state)
                if theirs is not None:
                    row[_named(key, use.metric, member)] = theirs
        return row


def _named(key: str, family: Metric, member: Metric) -> str:
    """Key of a member of a family: the braces in a key stand for the name."""
    if not family.is_family:
        return key
    before, _, after = family.name.partition("{name}")
    name = member.name.removeprefix(before).removesuffix(after)
    return key[: key.index("{")] + name + key[key.index("}") + 1 :] if "{" in key else key


def find(name: str) -> list[Use]:
    """What a name may mean, in any dialect: our own metric of that name first, then others' names for one.

    A name of a member of a family, such as ``env/reward_terms/reach/mean``, is found as that member.
    """
    ours = [use for metric in CATALOGUE.values() if (use := _as_asked(Use(metric, Name("rlpipe", metric.name)), name))]
    theirs = [found for system in SYSTEMS for use in uses(system) if (found := _as_asked(use, name))]
    return [*ours, *sorted(theirs, key=_distance)]


def _as_asked(use: Use, name: str) -> Use | None:
    """The use if its key is this name, or stands for it; None if not."""
    if use.name.key == name:
        return use
    if not use.metric.is_family:
        return None
    before, brace, rest = use.name.key.partition("{")
    match = re.fullmatch(rf"{re.escape(before)}([\w.-]+){re.escape(rest.partition('}')[2])}", name) if brace else None
    return Use(use.metric.member(match[1]), replace(use.name, key=name)) if match else None


def translate(system: str, key: str, value: float) -> list[tuple[Use, float]]:
    """A number of another system in our words: the metric it is, and those it is nearly.

    Returns:
        Each use with our value; empty for a key that is unknown, or known to be unusable. A number that ``differs`` is
        given to the metric that the key belongs to first, so that it can still be judged for its course.
    """
    return [
        (found, value / _FACTORS.get(use.name.convert, 1.0))
        for use in uses(system)
        if use.name.relation != "invalid" and not (use.name.relation == "differs" and use.name.secondary)
        if (found := _as_asked(use, key))
    ]
