"""What a metric is. The metrics themselves are declared in ``catalogue``."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rlpipe.metrics.reductions import Histogram, Reduction
from rlpipe.metrics.rules import Band, Rule


@dataclass(frozen=True)
class Sign:
    """A warning sign: what one sees, why it may be so, and what to try."""

    seen: str
    cause: str
    remedy: str


RELATIONS = ("exact", "transform", "approx", "differs", "invalid")
"""How another system's number relates to ours: the same; the same after ``convert``; nearly the same; the same idea but
another number; not usable."""


@dataclass(frozen=True)
class Name:
    """What another system calls a number.

    Attributes:
        system: sb3, trl, trl_legacy, rlinf, cleanrl or maniskill.
        key: its name there.
        relation: one of ``RELATIONS``.
        note: how the two differ, or when they agree.
        convert: for ``transform``: how ours becomes theirs, one of ``dialects.CONVERSIONS``; empty if it cannot.
        secondary: the key belongs to another of our metrics first; an imported value goes there.
    """

    system: str
    key: str
    relation: str = "exact"
    note: str = ""
    convert: str = ""
    secondary: bool = False

    def __post_init__(self) -> None:
        if self.relation not in RELATIONS:
            raise ValueError(f"{self.system} {self.key}: relation {self.relation!r} is none of {RELATIONS}.")


@dataclass(frozen=True, eq=False)
class Metric:
    """One number of a row, declared once; code observes raw values with this object.

    Three kinds: an *observed* metric has a reduction; a *reading* shows another number of an observed metric's state; a
    *derived* metric is computed from merged states. A name that contains ``{name}`` stands for a family, whose members
    come about when they are observed through ``member``.

    Attributes:
        name: key in ``metrics.jsonl``, in the namespaces of RLinf.
        unit: of the number.
        meaning: one sentence.
        formula: how it is computed; letters as in ``docs/metrics.md``.
        reduction: class of the state, None unless observed.
        reads: which reading of that state the plot shows.
        inputs: metrics whose merged states a reading or derived metric is made from.
        compute: number from the states of the inputs, or None where it is undefined.
        tier: ``core``, ``standard``, ``extension``, or ``language_only``.
        algorithms: that have it; empty when all do.
        needs: what must be there for it to be produced, such as a reference policy; empty when every run has it.
        rules: what is healthy, and when to raise an alert.
        signs: what to make of what one sees.
        names: in other systems.
        language: what the number is for a policy that acts in tokens.
        of: metric whose observations on the learner's device this one takes as well.
        over: what one observation is, of a number the learner gives for each decision: a ``decision``, the mean of a
            ``minibatch`` or of a ``trajectory``, or only the decisions of the ``last epoch`` or ``last minibatch``.
        lifetime: the state accumulates over the run, and resumes with it.
        hidden: an ingredient that has no plot of its own.
        better: ``higher`` or ``lower``, for a metric by which evaluations can be ranked; empty for the others.
    """

    name: str
    unit: str
    meaning: str
    formula: str
    reduction: type[Reduction] | None = None
    reads: str = ""
    inputs: tuple[Metric, ...] = ()
    compute: Callable[..., float | None] | None = None
    tier: str = "standard"
    algorithms: tuple[str, ...] = ()
    needs: str = ""
    rules: tuple[Rule, ...] = ()
    signs: tuple[Sign, ...] = ()
    names: tuple[Name, ...] = ()
    language: str = ""
    of: Metric | None = None
    over: str = "decision"
    lifetime: bool = False
    hidden: bool = False
    better: str = ""

    @property
    def healthy(self) -> Band | None:
        """The band in which the value should lie, if there is one."""
        bands = [rule.check for rule in self.rules if rule.level == "ok" and isinstance(rule.check, Band)]
        return bands[0] if bands else None

    @property
    def is_histogram(self) -> bool:
        """Whether it is shown as a distribution instead of a number."""
        return (self.inputs[0] if self.inputs else self).reduction is Histogram and not self.reads

    @property
    def is_family(self) -> bool:
        """Whether the name stands for many."""
        return "{name}" in self.name

    def member(self, name: str) -> Metric:
        """The metric of a family that has this name.

        Raises:
            ValueError: it is no family, or the name cannot stand in a key.
        """
        if not self.is_family or not re.fullmatch(r"[\w.-]+", name):
            raise ValueError(f"{self.name} has no member {name!r}; names consist of letters, digits, _ . and -.")
        inputs = tuple(metric.member(name) if metric.is_family else metric for metric in self.inputs)
        return replace(self, name=self.name.replace("{name}", name), inputs=inputs)

    def members(self, states: Mapping[str, Reduction]) -> list[Metric]:
        """Itself, or of a family all members that have been observed."""
        if not self.is_family:
            return [self]
        observed = next((metric for metric in self.inputs if metric.is_family), self)
        return [self.member(match[1]) for match in map(observed.pattern.fullmatch, sorted(states)) if match]

    @property
    def pattern(self) -> re.Pattern[str]:
        """What the names of a family's members match; the group is what ``member`` takes."""
        return re.compile(re.escape(self.name).replace(re.escape("{name}"), r"([\w.-]+)"))

    def read(self, states: Mapping[str, Reduction]) -> float | None:
        """The number the plot shows; None when nothing was observed, and never one that is not finite.

        Raises:
            ValueError: a formula gave a number that is not finite from states that are.
        """
        if self.compute is not None:
            found = [states.get(metric.name) for metric in self.inputs]
            value = None if None in found else self.compute(*found)
        else:
            state = states.get((self.inputs[0] if self.inputs else self).name)
            value = None if state is None else state.read().get(self.reads)
        if value is not None and not math.isfinite(value):
            raise ValueError(f"{self.name} came out as {value}; its formula must answer None where it is undefined.")
        return value


def observed(name: str, reduction: type[Reduction], *, reads: str = "", **description: Any) -> Metric:
    """A metric that code observes. ``reads`` defaults to the first reading; a histogram without is shown as a whole."""
    if not reads and reduction is not Histogram:
        reads = reduction.readings[0]
    return Metric(name, reduction=reduction, reads=reads, **description)


def reading(name: str, of: Metric, reads: str, **description: Any) -> Metric:
    """Another number of the same observations, such as their deviation; the unit is the same unless given."""
    return Metric(name, inputs=(of,), reads=reads, **{"unit": of.unit, **description})


def derived(name: str, inputs: tuple[Metric, ...], compute: Callable[..., float | None], **description: Any) -> Metric:
    """A metric computed from the merged states of others, once, after merging."""
    return Metric(name, inputs=inputs, compute=compute, **description)
