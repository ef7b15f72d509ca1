"""Declaration of a metric. The package declares its metrics in ``catalogue``, a plug-in beside its code."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from rlpipe.metrics.reductions import Histogram, Reduction
from rlpipe.metrics.rules import Band, Rule


@dataclass(frozen=True)
class Sign:
    """A warning sign.

    Attributes:
        seen: what one sees.
        cause: why it may be so.
        remedy: what to try.
    """

    seen: str
    cause: str
    remedy: str


Tier = Literal["core", "standard", "extension", "language_only"]
"""Importance of a metric; the last one stands for policies that act in tokens."""
Over = Literal["decision", "minibatch", "trajectory", "last epoch", "last minibatch"]
"""Unit of one observation, of a number that the learner has for each decision."""
RELATIONS = ("exact", "transform", "approx", "differs", "invalid")
"""How another system's number relates to ours: the same; the same after ``convert``; nearly the same; the same idea but
another number; not usable. Ordered by closeness."""


@dataclass(frozen=True)
class Name:
    """Name of a metric in another system.

    Attributes:
        system: one of ``dialects.SYSTEMS``.
        key: its name there.
        relation: one of ``RELATIONS``.
        note: how the two differ, or under which condition they agree.
        convert: for ``transform``, one of ``dialects.CONVERSIONS``, from our number to theirs; empty if there is none.
        secondary: the key belongs to another of our metrics first, and an imported value goes there.
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

    There are three kinds. An *observed* metric has a reduction. A *reading* shows another number of an observed
    metric's state. A *derived* metric is computed from merged states. A name that contains ``{name}`` stands for a
    family; ``member`` makes its members when they are observed.

    Attributes:
        name: key in ``metrics.jsonl``, in the namespaces of RLinf.
        unit: unit of the number.
        meaning: one sentence.
        formula: how it is computed, with the letters of ``docs/metrics.md``.
        reduction: class of the state; None unless observed.
        reads: reading of that state that a plot shows.
        inputs: metrics from whose merged states a reading or a derived metric is made.
        optional: inputs that a run may lack; ``compute`` gets None for them.
        compute: makes the number from the states of the inputs; None where the number is undefined.
        tier: ``core``, ``standard``, ``extension``, or ``language_only``.
        algorithms: algorithms that have the metric; empty if all do.
        needs: requirement for the metric to exist, such as a reference policy; empty if every run has it.
        rules: what is healthy, and when to raise an alert.
        signs: warning signs by key; a rule shows the sign whose key it names.
        names: names in other systems.
        language: meaning for a policy that acts in tokens.
        of: metric whose observations on the learner's device this metric takes as well.
        over: what one observation is, if the learner has a number for each decision: a ``decision``, the mean of a
            ``minibatch`` or of a ``trajectory``, or only the decisions of the ``last epoch`` or ``last minibatch``.
        lifetime: the state accumulates over the run, and a resume continues it.
        hidden: an ingredient of other metrics, without a plot of its own.
        better: ``higher`` or ``lower`` if evaluations can be ranked by this metric; empty if not.
    """

    name: str
    unit: str
    meaning: str
    formula: str
    reduction: type[Reduction] | None = None
    reads: str = ""
    inputs: tuple[Metric, ...] = ()
    optional: tuple[Metric, ...] = ()
    compute: Callable[..., float | None] | None = None
    tier: Tier = "standard"
    algorithms: tuple[str, ...] = ()
    needs: str = ""
    rules: tuple[Rule, ...] = ()
    signs: Mapping[str, Sign] = field(default_factory=dict)
    names: tuple[Name, ...] = ()
    language: str = ""
    of: Metric | None = None
    over: Over = "decision"
    lifetime: bool = False
    hidden: bool = False
    better: Literal["higher", "lower", ""] = ""

    @property
    def healthy(self) -> Band | None:
        """The band in which the value should lie, if there is one."""
        bands = [rule.check for rule in self.rules if rule.level == "ok" and isinstance(rule.check, Band)]
        return bands[0] if bands else None

    @property
    def is_histogram(self) -> bool:
        """True if it is shown as a distribution instead of a number."""
        return (self.inputs[0] if self.inputs else self).reduction is Histogram and not self.reads

    @property
    def is_family(self) -> bool:
        """True if the name stands for many metrics."""
        return "{name}" in self.name

    def sign_of(self, rule: Rule) -> Sign | None:
        """Returns the warning sign that one of its rules shows, if there is one."""
        return self.signs.get(rule.sign or rule.name)

    def member(self, name: str) -> Metric:
        """Returns the member of a family that has this name.

        Raises:
            ValueError: it is no family, or the name cannot be part of a key.
        """
        if not self.is_family or not re.fullmatch(r"[\w.-]+", name):
            raise ValueError(f"{self.name} has no member {name!r}; names consist of letters, digits, _ . and -.")
        inputs = tuple(metric.member(name) if metric.is_family else metric for metric in self.inputs)
        return replace(self, name=self.name.replace("{name}", name), inputs=inputs)

    def members(self, states: Mapping[str, Reduction]) -> list[Metric]:
        """Returns all members of a family that have been observed; for any other metric, the metric itself."""
        if not self.is_family:
            return [self]
        observed = next((metric for metric in self.inputs if metric.is_family), self)
        return [self.member(match[1]) for match in map(observed.pattern.fullmatch, sorted(states)) if match]

    def state_in(self, states: Mapping[str, Reduction]) -> Any:
        """Returns the state of this metric, or the tuple of those of a family's members; None without any."""
        if not self.is_family:
            return states.get(self.name)
        return tuple(states[member.name] for member in self.members(states)) or None

    @property
    def pattern(self) -> re.Pattern[str]:
        """Pattern of the names of a family's members; its group is the argument of ``member``."""
        return re.compile(re.escape(self.name).replace(re.escape("{name}"), r"([\w.-]+)"))

    def read(self, states: Mapping[str, Reduction]) -> float | None:
        """Returns the number that a plot shows, which is always finite; None if nothing was observed.

        Raises:
            ValueError: a formula gave a number that is not finite.
        """
        if self.compute is not None:
            inputs = {metric: metric.state_in(states) for metric in self.inputs}
            lacking = any(state is None and metric not in self.optional for metric, state in inputs.items())
            value = None if lacking else self.compute(*inputs.values())
        else:
            state = states.get((self.inputs[0] if self.inputs else self).name)
            value = None if state is None else state.read().get(self.reads)
        if value is not None and not math.isfinite(value):
            raise ValueError(f"{self.name} came out as {value}; its formula must return None where it is undefined.")
        return value


def observed(name: str, reduction: type[Reduction], *, reads: str = "", **description: Any) -> Metric:
    """Declares a metric that code observes.

    Args:
        name: key in a row.
        reduction: how the observations of all workers become one number.
        reads: reading of the reduction to show; the first one if empty. A histogram is then shown as a whole.
        description: the other attributes of ``Metric``.
    """
    if not reads and reduction is not Histogram:
        reads = reduction.readings[0]
    return Metric(name, reduction=reduction, reads=reads, **description)


def reading(name: str, of: Metric, reads: str, **description: Any) -> Metric:
    """Declares another number of the same observations, such as their deviation. Unit, algorithms and needs are those
    of the observations unless given."""
    same = {"unit": of.unit, "algorithms": of.algorithms, "needs": of.needs}
    return Metric(name, inputs=(of,), reads=reads, **{**same, **description})


def derived(name: str, inputs: tuple[Metric, ...], compute: Callable[..., float | None], **description: Any) -> Metric:
    """Declares a metric that is computed from the merged states of others, once, after merging."""
    return Metric(name, inputs=inputs, compute=compute, **description)
