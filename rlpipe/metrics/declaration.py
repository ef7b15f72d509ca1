"""What a metric is. The metrics themselves are declared in ``catalogue``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rlpipe.metrics.reductions import Reduction


@dataclass(frozen=True, eq=False)
class Metric:
    """One number of a row, declared once; code observes raw values with this object.

    Three kinds: an *observed* metric has a reduction; a *reading* shows another number of an observed metric's state; a
    *derived* metric is computed from merged states.

    Attributes:
        name: key in ``metrics.jsonl``, in the namespaces of RLinf.
        unit: of the number.
        meaning: one sentence.
        formula: how it is computed; letters as in ``docs/metrics.md``.
        reduction: class of the state, None unless observed.
        reads: which reading of that state the plot shows.
        inputs: metrics whose merged states a reading or derived metric is made from.
        compute: number from the states of the inputs, or None where it is undefined.
        healthy: (low, high) band, None where one side is open or there is none.
        lifetime: the state accumulates over the run, and resumes with it.
        hidden: an ingredient that has no plot of its own.
        aliases: key of the same number in other systems.
    """

    name: str
    unit: str
    meaning: str
    formula: str
    reduction: type[Reduction] | None = None
    reads: str = ""
    inputs: tuple[Metric, ...] = ()
    compute: Callable[..., float | None] | None = None
    healthy: tuple[float | None, float | None] | None = None
    lifetime: bool = False
    hidden: bool = False
    aliases: Mapping[str, str] = field(default_factory=dict)

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
    """A metric that code observes. ``reads`` defaults to the first reading of the reduction."""
    return Metric(name, reduction=reduction, reads=reads or reduction.readings[0], **description)


def reading(name: str, of: Metric, reads: str, **description: Any) -> Metric:
    """Another number of the same observations, such as their deviation; the unit is the same unless given."""
    return Metric(name, inputs=(of,), reads=reads, **{"unit": of.unit, **description})


def derived(name: str, inputs: tuple[Metric, ...], compute: Callable[..., float | None], **description: Any) -> Metric:
    """A metric computed from the merged states of others, once, after merging."""
    return Metric(name, inputs=inputs, compute=compute, **description)
