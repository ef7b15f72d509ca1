"""Rules of a healthy metric. They stand beside the metric they judge, and say in words what they demand.

A rule's check looks only at numbers that were reported. ``health`` raises and clears the alerts.
"""

from __future__ import annotations

import ast
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

if TYPE_CHECKING:
    from simpleeval import SimpleEval

LEVELS = ("ok", "info", "warn", "critical")
"""``ok`` describes the healthy band and raises nothing; the others raise an alert of that level."""


@dataclass(frozen=True)
class View:
    """The reports that a check may look at.

    Attributes:
        values: kept values of the metric, oldest first; the last one is judged.
        first: first value of the metric in this run.
        rows: kept reports of all metrics by name, oldest first.
        variables: properties of the run, such as ``progress`` (0 to 1), ``eps_lo``, ``n_epochs``; see ``health``.
        percentiles: percentiles of the metric if it is a histogram: ``{"p50": ...}``.
        then: view that raised the alert, if one stands.
        nonfinite: number of observations of the metric in the last report that were not finite.
    """

    values: Sequence[float]
    first: float
    rows: Sequence[Mapping[str, float]]
    variables: Mapping[str, float]
    percentiles: Mapping[str, float] = field(default_factory=dict)
    then: View | None = None
    nonfinite: int = 0

    @property
    def value(self) -> float:
        """The number that is judged."""
        return self.values[-1]


class Check(ABC):
    """One demand on a metric."""

    window: int = 1
    """Number of reports that the check looks at."""
    costly: ClassVar[bool] = False
    """True if the check computes with the whole window."""

    @property
    def every(self) -> int:
        """Number of reports from one judgement to the next: a trend over 200 reports hardly changes within one."""
        return max(1, self.window // 10) if self.costly else 1

    @abstractmethod
    def violated(self, view: View) -> bool:
        """True if the demand is not met; False while there are too few reports to judge."""

    def judged(self, view: View) -> float | None:
        """The number to which the demand applies; None if there is none, because no observation was finite."""
        return view.value

    @abstractmethod
    def __str__(self) -> str:
        """The demand in words: ``at most 0.03``."""


@dataclass(frozen=True)
class Band(Check):
    """The value lies between two bounds; the bounds themselves are allowed unless the band is open."""

    low: float | None = None
    high: float | None = None
    open: bool = False

    def violated(self, view: View) -> bool:
        value = view.value
        if self.open:
            inside = (self.low is None or value > self.low) and (self.high is None or value < self.high)
        else:
            inside = (self.low is None or value >= self.low) and (self.high is None or value <= self.high)
        return not inside

    def __str__(self) -> str:
        if self.low is not None and self.high is not None:
            return f"{self.low:g} to {self.high:g}"
        if self.low is not None:
            return f"{'more than' if self.open else 'at least'} {self.low:g}"
        return f"{'less than' if self.open else 'at most'} {self.high or 0.0:g}"


@dataclass(frozen=True)
class Near(Check):
    """The value lies within a distance of a target."""

    target: float
    within: float

    def violated(self, view: View) -> bool:
        return abs(view.value - self.target) > self.within

    def __str__(self) -> str:
        return f"within {self.within:g} of {self.target:g}"


@dataclass(frozen=True)
class Finite(Check):
    """Every observation is finite. Rows hold only finite numbers, so the check looks at how many were left out."""

    def violated(self, view: View) -> bool:
        return view.nonfinite > 0

    def judged(self, view: View) -> float | None:
        return view.values[-1] if view.values else None

    def __str__(self) -> str:
        return "finite"


@dataclass(frozen=True)
class Percentile(Check):
    """A percentile of a histogram lies between two bounds."""

    percent: int
    low: float | None = None
    high: float | None = None

    def violated(self, view: View) -> bool:
        value = view.percentiles.get(f"p{self.percent}")
        if value is None:
            return False
        return not ((self.low is None or value >= self.low) and (self.high is None or value <= self.high))

    def judged(self, view: View) -> float:
        return view.percentiles.get(f"p{self.percent}", view.value)

    def __str__(self) -> str:
        name = {0: "smallest value", 50: "median", 100: "largest value"}.get(self.percent, f"p{self.percent}")
        return f"{name} {Band(self.low, self.high)}"


@lru_cache(maxsize=16)
def _pairs(count: int) -> tuple[Any, Any, Any]:
    """Returns the indices of all pairs of ``count`` values, and their distances."""
    first, second = np.triu_indices(count, 1)
    return first, second, (second - first).astype(np.float64)


def trend(values: Sequence[float]) -> str:
    """Returns ``up``, ``down`` or ``flat``: flat if the Theil-Sen slope changes them by at most 2 % of their median.

    Theil-Sen takes the median of all pairwise slopes, so that a few outliers change nothing. Sen 1968, Journal of the
    American Statistical Association 63:1379-1389.
    """
    y = np.asarray(values, dtype=np.float64)
    first, second, distance = _pairs(len(y))
    slope = float(np.median((y[second] - y[first]) / distance))
    change = slope * len(y)
    if abs(change) <= 0.02 * max(abs(float(np.median(y))), 1e-8):
        return "flat"
    return "up" if change > 0 else "down"


@dataclass(frozen=True)
class Expect(Check):
    """The value goes up, or down, over a window of reports."""

    trend: str
    window: int

    costly = True

    def violated(self, view: View) -> bool:
        recent = view.values[-self.window :]
        return len(recent) == self.window and trend(recent) != self.trend

    def __str__(self) -> str:
        return f"going {self.trend} over {self.window} reports"


@dataclass(frozen=True)
class Avoid(Check):
    """The value does not go up (or down, or stay flat) over a window of reports."""

    trend: str
    window: int

    costly = True

    def violated(self, view: View) -> bool:
        recent = view.values[-self.window :]
        return len(recent) == self.window and trend(recent) == self.trend

    def __str__(self) -> str:
        return f"not {'flat' if self.trend == 'flat' else f'going {self.trend}'} over {self.window} reports"


def _scatter(values: Sequence[float]) -> tuple[float, float]:
    """Returns the median, and the median absolute deviation from it."""
    middle = median(values)
    return middle, median([abs(value - middle) for value in values])


@dataclass(frozen=True)
class Spike(Check):
    """The value lies within a number of median absolute deviations of the median of the reports before it."""

    deviations: float
    window: int

    def violated(self, view: View) -> bool:
        before = view.values[-self.window - 1 : -1]
        if len(before) < self.window:
            return False
        middle, spread = _scatter(before)
        # Reports that hardly differ have a deviation near 0, which would make anything a spike.
        return abs(view.value - middle) > self.deviations * max(spread, 0.02 * abs(middle), 1e-8)

    def __str__(self) -> str:
        return f"within {self.deviations:g} median deviations of the last {self.window} reports"


@dataclass(frozen=True)
class Increasing(Check):
    """The value is larger than at the beginning of the window."""

    window: int

    def violated(self, view: View) -> bool:
        recent = view.values[-self.window :]
        return len(recent) == self.window and recent[-1] <= recent[0]

    def __str__(self) -> str:
        return f"growing over {self.window} reports"


@dataclass(frozen=True)
class Unchanged(Check):
    """The value stays the same over a window of reports."""

    window: int

    def violated(self, view: View) -> bool:
        return len(set(view.values[-self.window :])) > 1

    def __str__(self) -> str:
        return f"the same over {self.window} reports"


@dataclass(frozen=True)
class Drop(Check):
    """The value has not lost a share of the median of the reports before it.

    A loss within the noise of those reports (their change from one to the next) does not count. The share is taken of
    the height above 0; for negative values, of the height above the first report.
    """

    share: float
    window: int

    def _bound(self, view: View) -> float:
        """Returns the value at and below which the check is violated."""
        before = view.values[-self.window - 1 : -1]
        if len(before) < min(self.window, 5):
            return -math.inf
        middle = median(before)
        _, spread = _scatter([later - earlier for earlier, later in pairwise(before)])  # noise, without any trend
        height = middle - min(view.first, 0.0 if middle >= 0 else view.first)
        return middle - max(self.share * height, 3 * spread, 1e-8) if height > 0 else -math.inf

    def violated(self, view: View) -> bool:
        return view.value <= self._bound(view.then or view)  # soon after a crash, the window holds only low values

    def __str__(self) -> str:
        return f"not losing {self.share:.0%} of what it was over the last {self.window} reports"


def _early(view: View, before: float) -> bool:
    """True early in the run, and as long as an alert stands: what was lost early does not return by waiting."""
    return view.then is not None or view.variables.get("progress", 1.0) < before


@dataclass(frozen=True)
class KeepsShare(Check):
    """Early in the run the value stays above a share of its first report."""

    share: float
    before: float

    def violated(self, view: View) -> bool:
        return _early(view, self.before) and view.value < self.share * view.first

    def __str__(self) -> str:
        return f"above {self.share:.0%} of its first value in the first {self.before:.0%} of the run"


@dataclass(frozen=True)
class KeepsPerDimension(Check):
    """Early in the run the value falls by less than this much per action dimension."""

    loss: float
    before: float

    def violated(self, view: View) -> bool:
        dimensions = view.variables.get("action_dims")
        return dimensions is not None and _early(view, self.before) and view.first - view.value > self.loss * dimensions

    def __str__(self) -> str:
        return f"falling by at most {self.loss:g} per action dimension in the first {self.before:.0%} of the run"


@dataclass(frozen=True)
class Exceeds(Check):
    """The value has been above a level at least once in a window of reports."""

    level: float
    window: int

    def violated(self, view: View) -> bool:
        recent = view.values[-self.window :]
        return len(recent) == self.window and max(recent) <= self.level

    def __str__(self) -> str:
        return f"above {self.level:g} at least once in {self.window} reports"


@dataclass(frozen=True)
class Steady(Check):
    """The value scatters around its own trend by less than a share of its mean, over a window of reports."""

    share: float
    window: int

    costly = True

    def violated(self, view: View) -> bool:
        recent = np.asarray(view.values[-self.window :], dtype=np.float64)
        if len(recent) < self.window:
            return False
        x = np.arange(len(recent), dtype=np.float64)
        residuals = recent - np.polyval(np.polyfit(x, recent, 1), x)
        return float(residuals.std()) > self.share * max(abs(float(recent.mean())), 1e-8)

    def __str__(self) -> str:
        return f"scattering by less than {self.share:.0%} of its mean over {self.window} reports"


@dataclass(frozen=True)
class MovesWith(Check):
    """The value goes up and down with another metric: their correlation over a window is above a bound."""

    other: str
    above: float
    window: int

    costly = True

    def violated(self, view: View) -> bool:
        theirs = [row.get(self.other) for row in view.rows[-self.window :]]
        ours = view.values[-self.window :]
        if len(ours) < self.window or len(theirs) < self.window or None in theirs:
            return False
        a, b = np.asarray(ours, dtype=np.float64), np.asarray(theirs, dtype=np.float64)
        if not a.std() or not b.std():
            return False
        return float(np.corrcoef(a, b)[0, 1]) <= self.above

    def __str__(self) -> str:
        return f"moving with {self.other} over {self.window} reports"


_METRIC = re.compile(r"\{([^{}]+(?:\{name\}[^{}]*)?)\}")
_DELTA = re.compile(r"delta\(\{([^{}]+)\}\)")


class UnknownError(Exception):
    """A formula names a metric or variable that this report does not have."""


@cache
def _evaluator() -> SimpleEval:
    from simpleeval import SimpleEval  # nothing is evaluated where a simulator runs in a Python of its own

    return SimpleEval(
        functions={
            "abs": abs, "sign": lambda x: math.copysign(1.0, x) if x else 0.0, "ceil": math.ceil, "log": math.log,
            "sqrt": math.sqrt, "max": max, "min": min,
        }
    )  # fmt: skip


@lru_cache(maxsize=1024)
def _parsed(expression: str) -> tuple[ast.AST, dict[str, str], dict[str, str]]:
    """Parses a formula.

    Returns:
        Syntax tree whose variables stand for metrics and for changes of metrics, the metric behind each variable of the
        first kind, and the metric behind each variable of the second kind.
    """
    metrics: dict[str, str] = {}
    changes: dict[str, str] = {}

    def stand_in(kind: str, held: dict[str, str], metric: str) -> str:
        held[f"{kind}_{len(held)}"] = metric
        return f"{kind}_{len(held) - 1}"

    text = _DELTA.sub(lambda match: stand_in("change", changes, match[1]), expression)
    text = _METRIC.sub(lambda match: stand_in("metric", metrics, match[1]), text)
    return _evaluator().parse(text), metrics, changes


def evaluate(expression: str, view: View) -> float:
    """Evaluates a formula of metrics ``{name}``, last changes ``delta({name})``, percentiles and run variables.

    Raises:
        UnknownError: it names something that was not reported, or its value is undefined.
    """
    from simpleeval import InvalidExpression

    tree, metrics, changes = _parsed(expression)
    now = view.rows[-1]
    before = view.rows[-2] if len(view.rows) > 1 else {}
    names: dict[str, float] = {**view.variables, **view.percentiles}
    try:
        names.update({key: now[metric] for key, metric in metrics.items()})
        names.update({key: now[metric] - before[metric] for key, metric in changes.items()})
    except KeyError as error:
        raise UnknownError(error.args[0]) from error
    evaluator = _evaluator()
    evaluator.names = names
    try:
        return evaluator.eval(expression, previously_parsed=tree)  # type: ignore[no-any-return]
    except InvalidExpression as error:  # a variable this run does not have
        raise UnknownError(str(error)) from error
    except (ValueError, ZeroDivisionError, OverflowError) as error:  # such as the root of a negative number
        raise UnknownError(str(error)) from error


_TAG = "tag:"


def _is_met(condition: str, view: View, tags: frozenset[str]) -> bool:
    """True if the run has a property ``tag:x``, or a formula holds; False if it names something not reported."""
    if condition.startswith(_TAG):
        return condition.removeprefix(_TAG) in tags
    try:
        return bool(evaluate(condition, view))
    except UnknownError:
        return False


def _readable(condition: str) -> str:
    """Returns the words of a property, or a formula without the braces around metric names."""
    if condition.startswith(_TAG):
        return condition.removeprefix(_TAG).replace("_", " ")
    return _METRIC.sub(lambda match: match[1], condition)


@dataclass(frozen=True)
class Holds(Check):
    """A formula of metrics and run variables is true."""

    formula: str

    def violated(self, view: View) -> bool:
        try:
            return not evaluate(self.formula, view)
        except UnknownError:
            return False

    def __str__(self) -> str:
        return _readable(self.formula)


@dataclass(frozen=True)
class Rule:
    """One demand on a metric, its level, and when it applies.

    Attributes:
        name: unique within its metric.
        level: one of ``LEVELS``.
        check: the demand.
        when: formula that must hold for the rule to apply; ``tag:x`` is a property of the run.
        unless: formula or property that must not hold, or several of them; a formula that names something not reported
            does not hold.
        sustained: number of reports in a row that must violate the demand before an alert is raised.
        quiet: number of reports in a row that must meet it before the alert is cleared; 0 for ``sustained``.
        sign: key of the warning sign that the rule shows; empty for the sign with the name of the rule, if there is
            one.
    """

    name: str
    level: str
    check: Check
    when: str = ""
    unless: str | tuple[str, ...] = ""
    sustained: int = 1
    quiet: int = 0
    sign: str = ""

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise ValueError(f"rule {self.name} has level {self.level!r}; levels are {', '.join(LEVELS)}.")

    def applies(self, view: View, tags: frozenset[str]) -> bool:
        """True if the rule judges this report."""
        holds = not self.when or _is_met(self.when, view, tags)
        return holds and not any(_is_met(condition, view, tags) for condition in self.exceptions)

    @property
    def exceptions(self) -> tuple[str, ...]:
        """Conditions of which none may hold."""
        return tuple(filter(None, (self.unless,) if isinstance(self.unless, str) else self.unless))

    def __str__(self) -> str:
        lasting = f" ({self.sustained} reports in a row)" if self.sustained > 1 else ""
        when = f", when {_readable(self.when)}" if self.when else ""
        unless = f", unless {' or '.join(map(_readable, self.exceptions))}" if self.exceptions else ""
        return f"{self.check}{when}{unless}{lasting}"
