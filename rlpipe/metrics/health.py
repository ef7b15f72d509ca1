"""Watches over the metrics: judges every report by the rules of the catalogue, and raises and clears alerts.

An alert is raised once, when its rule has been violated for as many reports in a row as the rule asks, and cleared
once, when the rule has been met for as long. What stands can be asked for at any time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from rlpipe.metrics.declaration import Metric, Sign
from rlpipe.metrics.rules import Finite, MovesWith, Rule, View

VARIABLES = (
    "progress",  # share of the run that is done, 0 to 1; given with every report
    "target",  # mean return at which the task counts as solved
    "eps_lo", "eps_hi",  # clip of the ratio: 1 - eps_lo to 1 + eps_hi
    "vf_coef", "ent_coef", "kl_coef", "kl_target",  # weights in the loss, and what an adaptive penalty aims at
    "n_epochs", "minibatches_per_epoch",  # as configured
    "n_eval_episodes",  # whole episodes of an evaluation
    "n_actions", "action_dims",  # choices of a discrete action; dimensions of an action
    "largest_return",  # that an episode can have, where the reward says
    "ignore_terminations",  # 1 where episodes only end at the time limit, else 0
)  # fmt: skip
"""What rules may know about a run beside its metrics. A rule that needs one that is not given does not apply."""

TAGS = (
    "discrete_policy", "gaussian_policy",  # how it acts
    "no_clip_schedule", "adaptive_kl", "whitening",  # how it learns
    "reward_per_step", "reward_one_per_step", "rapid_improvement",  # what the task pays
    "fresh_run",  # not resumed
)  # fmt: skip
"""Properties of a run that rules may ask for with ``when="tag:x"``."""

_OF_THE_REWARD = ("env/", "eval/", "rollout/", "train/critic/", "train/loss", "train/actor/policy_loss")
"""Metrics that another reward, simulator or discount moves; a new stage begins their history anew."""
_STAGE = "train/stage"


@dataclass(frozen=True)
class Alert:
    """A rule that is not met, or is met again.

    Attributes:
        metric: its name.  rule: its name, unique within the metric.  level: info, warn or critical.
        value: number that was judged.  demanded: what it should be, in words.
        since: iteration of the first report that violated the rule.
        iteration: of the report that raised or cleared the alert.
        cause, remedy: why it may be so, and what to try; empty where the catalogue knows none.
        cleared: it is over.
    """

    metric: str
    rule: str
    level: str
    value: float
    demanded: str
    since: int
    iteration: int
    cause: str = ""
    remedy: str = ""
    cleared: bool = False

    @property
    def message(self) -> str:
        """What happened, in a sentence."""
        if self.cleared:
            return f"{self.metric} is {self.value:.4g}, and {self.rule} is over, which began in iteration {self.since}"
        why = f": {self.cause}" if self.cause else ""
        what = f"; try: {self.remedy}" if self.remedy else ""
        return f"{self.metric} is {self.value:.4g}, healthy is {self.demanded} ({self.rule}){why}{what}"

    def as_json(self) -> dict[str, Any]:
        """Its fields and its message."""
        return {**asdict(self), "message": self.message}


@dataclass
class _Watch:
    """One rule of one metric, and how long it has been met or not."""

    rule: Rule
    violated: int = 0
    met: int = 0
    since: int = 0
    alert: Alert | None = None
    then: View | None = None


@dataclass
class _History:
    """What was reported of one metric, as far back as its rules look."""

    metric: Metric
    watches: list[_Watch]
    longest: int
    values: list[float] = field(default_factory=list)
    first: float = 0.0
    reports: int = 0

    def add(self, value: float) -> None:
        if not self.values:
            self.first = value
        self.values.append(value)
        self.reports += 1
        if len(self.values) > 2 * self.longest:
            del self.values[: -self.longest]


class Monitor:
    """Judges the reports of one run, in order."""

    def __init__(
        self, metrics: Mapping[str, Metric], variables: Mapping[str, float], tags: frozenset[str] = frozenset()
    ) -> None:
        """Begins without a history.

        Args:
            metrics: with their rules, by name.
            variables: of the run, see ``VARIABLES``.  tags: of the run, see ``TAGS``.
        """
        self.variables = dict(variables)
        self.tags = tags
        self._metrics = metrics
        self._families = {_pattern(metric): metric for metric in metrics.values() if metric.is_family}
        self._histories: dict[str, _History | None] = {}
        self._rows: list[Mapping[str, float]] = []
        checks = [rule.check for metric in metrics.values() for rule in metric.rules]
        self._kept_rows = max((check.window for check in checks if isinstance(check, MovesWith)), default=2)
        self._stage: float | None = None

    @property
    def standing(self) -> list[Alert]:
        """Alerts that were raised and not cleared, in the order of the metrics' first reports."""
        watches = [watch for history in self._histories.values() if history for watch in history.watches]
        return [watch.alert for watch in watches if watch.alert is not None]

    def judge(
        self,
        iteration: int,
        values: Mapping[str, float],
        *,
        percentiles: Mapping[str, Mapping[str, float]] | None = None,
        nonfinite: Mapping[str, int] | None = None,
        progress: float | None = None,
    ) -> list[Alert]:
        """Judges one report.

        Args:
            iteration: it belongs to.  values: finite numbers by name of the metric; what is absent is not judged.
            percentiles: of histograms, by name of the metric: ``{"p50": ...}``.
            nonfinite: number of observations that were not finite, by name of the metric.
            progress: share of the run that is done, 0 to 1.
        Returns:
            Alerts that this report raises, and those that it clears.
        """
        percentiles, nonfinite = percentiles or {}, nonfinite or {}
        changes = self._enter_stage(iteration, values)
        self._rows = [*self._rows[-self._kept_rows + 1 :], values]
        variables = self.variables if progress is None else {**self.variables, "progress": progress}
        for name in dict.fromkeys([*values, *percentiles, *nonfinite]):
            history = self._history(name)
            if history is None:
                continue
            value = values.get(name, percentiles.get(name, {}).get("p50"))
            if value is not None:
                history.add(value)
            counted = {**variables, "nonfinite": float(nonfinite.get(name, 0))}
            view = View(history.values, history.first, self._rows, counted, percentiles.get(name, {}))
            for watch in history.watches:
                if value is not None or isinstance(watch.rule.check, Finite):
                    changes += self._judge(name, history, watch, view, iteration)
        return changes

    def metric(self, name: str) -> Metric | None:
        """The metric of that name, or the family it is a member of; None when nobody declared it."""
        family = (metric for pattern, metric in self._families.items() if pattern.fullmatch(name))
        return self._metrics.get(name) or next(family, None)

    def _history(self, name: str) -> _History | None:
        """Of a metric that has something to be judged by."""
        if name not in self._histories:
            metric = self.metric(name)
            rules = [rule for rule in metric.rules if rule.level != "ok"] if metric else []
            longest = max((rule.check.window for rule in rules), default=1) + 1
            self._histories[name] = _History(metric, [_Watch(rule) for rule in rules], longest) if metric else None
        return self._histories[name]

    def _judge(self, name: str, history: _History, watch: _Watch, view: View, iteration: int) -> list[Alert]:
        """The alert that this report raises or clears, if it does."""
        rule = watch.rule
        if history.reports % rule.check.every:
            return []
        view = replace(view, then=watch.then)
        if rule.applies(view, self.tags) and rule.check.violated(view):
            watch.since = watch.since if watch.violated or watch.alert else iteration
            watch.violated, watch.met = watch.violated + 1, 0
        else:
            watch.violated, watch.met = 0, watch.met + 1
        if watch.alert is None and watch.violated >= rule.sustained:
            sign = _sign(history.metric, rule)
            watch.alert = Alert(
                name, rule.name, rule.level, rule.check.judged(view), str(rule.check), watch.since, iteration,
                sign.cause, sign.remedy,
            )  # fmt: skip
            watch.then = View(tuple(view.values), view.first, (), view.variables, view.percentiles)
            return [watch.alert]
        if watch.alert is not None and watch.met >= max(rule.sustained, rule.quiet):
            return [_clear(watch, iteration, rule.check.judged(view))]
        return []

    def _enter_stage(self, iteration: int, values: Mapping[str, float]) -> list[Alert]:
        """Where a new stage begins, forgets what another reward or simulator has no bearing on."""
        stage, self._stage = self._stage, values.get(_STAGE, self._stage)
        if stage is None or stage == self._stage:
            return []
        names = [name for name in self._histories if name.startswith(_OF_THE_REWARD)]
        watches = [watch for name in names if (history := self._histories.pop(name)) for watch in history.watches]
        return [_clear(watch, iteration, watch.alert.value) for watch in watches if watch.alert is not None]


def _clear(watch: _Watch, iteration: int, value: float) -> Alert:
    """The standing alert, which is over."""
    alert = watch.alert
    assert alert is not None
    watch.alert = watch.then = None
    return replace(alert, value=value, iteration=iteration, cleared=True)


def _pattern(family: Metric) -> re.Pattern[str]:
    """Names of the members of a family."""
    return re.compile(re.escape(family.name).replace(re.escape("{name}"), r"[\w.-]+"))


def _sign(metric: Metric, rule: Rule) -> Sign:
    """The warning sign that a rule shows."""
    return metric.signs[rule.sign] if metric.signs and rule.sign is not None else Sign("", "", "")
