"""Monitor of a run: judges every report by the rules of the metrics, and raises and clears alerts.

An alert is raised once, when its rule has been violated for as many reports in a row as the rule demands, and cleared
once, when the rule has been met for as long. ``Monitor.standing`` lists the alerts that are not cleared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from rlpipe.metrics.declaration import Metric, Sign
from rlpipe.metrics.rules import Finite, MovesWith, Rule, View

VARIABLES = (
    "progress",  # share of the run that is done, 0 to 1; given with every report
    "target",  # mean return at which the task counts as solved
    "eps_lo", "eps_hi",  # clip of the ratio: 1 - eps_lo to 1 + eps_hi
    "vf_coef", "ent_coef", "kl_coef", "kl_target",  # weights in the loss, and the target of an adaptive penalty
    "n_epochs", "minibatches_per_epoch",  # as configured
    "n_eval_episodes",  # number of episodes in an evaluation
    "deterministic_evaluation",  # 1 if it takes the most likely action instead of sampling, else 0
    "n_actions", "action_dims",  # number of discrete actions; dimensions of a continuous action
    "largest_return",  # largest possible return of an episode, if the reward is bounded
    "ignore_terminations",  # 1 if episodes only end at the time limit, else 0
)  # fmt: skip
"""Properties of a run that rules may use beside its metrics. A rule that needs a missing one does not apply."""

TAGS = (
    "discrete_policy", "gaussian_policy",  # actions
    "no_clip_schedule", "adaptive_kl", "whitening",  # learning
    "reward_per_step", "reward_one_per_step", "rapid_improvement",  # reward of the task
    "fresh_run",  # not resumed
    "chosen_starts",  # a curriculum chooses where most episodes begin
)  # fmt: skip
"""Properties of a run that rules may ask for with ``tag:x``."""

_OF_THE_REWARD = ("env/", "eval/", "rollout/", "train/critic/", "train/loss", "train/actor/policy_loss")
"""Metrics that depend on reward, simulator or discount; their history restarts with a new stage."""
_STAGE = "train/stage"


@dataclass(frozen=True)
class Alert:
    """A violated rule, or the end of its violation.

    Attributes:
        value: number that was judged; None if no observation of the metric was finite.
        demanded: what the number should be, in words.
        since: iteration of the first report that violated the rule.
        iteration: iteration of the report that raised or cleared the alert.
        cause: likely cause; empty if the metric declares none.
        remedy: what to try; empty if the metric declares none.
        cleared: True if the rule is met again.
        nonfinite: number of observations of the metric in that report that were not finite.
    """

    metric: str
    rule: str
    level: str
    value: float | None
    demanded: str
    since: int
    iteration: int
    cause: str = ""
    remedy: str = ""
    cleared: bool = False
    nonfinite: int = 0

    @property
    def message(self) -> str:
        """The alert in a sentence."""
        finding = "is not finite" if self.value is None else f"is {self.value:.4g}"
        if self.nonfinite:
            finding = f"is not finite in {self.nonfinite:,} observation{'s' if self.nonfinite > 1 else ''}"
        if self.cleared:
            return f"{self.metric} {finding}, and its alert {self.rule} of iteration {self.since} is cleared"
        why = f": {self.cause}" if self.cause else ""
        what = f"; try: {self.remedy}" if self.remedy else ""
        return f"{self.metric} {finding}, healthy is {self.demanded} ({self.rule}){why}{what}"

    def cleared_at(self, iteration: int) -> Alert:
        """Returns the end of the violation."""
        return replace(self, iteration=iteration, cleared=True, nonfinite=0)

    def as_json(self) -> dict[str, Any]:
        """Returns the fields and the message."""
        return {**asdict(self), "message": self.message}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Alert:
        """Restores an alert from what ``as_json`` returned."""
        return cls(**{field.name: data[field.name] for field in fields(cls) if field.name in data})


@dataclass
class _Watch:
    """One rule of one metric, and for how long it has been violated or met; ``then`` is the view that raised it."""

    rule: Rule
    violated: int = 0
    met: int = 0
    since: int = 0
    alert: Alert | None = None
    then: View | None = None


@dataclass
class _History:
    """Values of one metric, oldest first, as far back as the rules that can raise an alert look (``longest``), with the
    first since the history began and how many there were."""

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
        """Creates a monitor without a history, for the properties of a run in ``VARIABLES`` and ``TAGS``."""
        self.variables = dict(variables)
        self.tags = tags
        self._metrics = metrics
        self._families = {metric.pattern: metric for metric in metrics.values() if metric.is_family}
        self._histories: dict[str, _History | None] = {}
        self._rows: list[Mapping[str, float]] = []
        checks = [rule.check for metric in metrics.values() for rule in metric.rules]
        self._kept_rows = max((check.window for check in checks if isinstance(check, MovesWith)), default=2)
        self._stage: float | None = None

    @property
    def standing(self) -> list[Alert]:
        """Alerts that were raised and not cleared, in the order in which their metrics were first reported."""
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
            iteration: iteration of the report.
            values: finite numbers by name of the metric; absent metrics are not judged.
            percentiles: percentiles of histograms by name of the metric: ``{"p50": ...}``.
            nonfinite: number of observations that were not finite, by name of the metric.
            progress: share of the run that is done, 0 to 1.
        Returns:
            Alerts that this report raises, and alerts that it clears: those of what the simulator returned before those
            of what may follow from it.
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
            reported = history.values if value is not None else []
            view = View(
                reported, history.first, self._rows, variables, percentiles.get(name, {}),
                nonfinite=nonfinite.get(name, 0),
            )  # fmt: skip
            for watch in history.watches:
                if value is not None or isinstance(watch.rule.check, Finite):
                    changes += self._judge(name, history, watch, view, iteration)
        return sorted(changes, key=lambda alert: place_on_the_data_path(alert.metric))

    def metric(self, name: str) -> Metric | None:
        """Returns the metric of that name, or the family that it belongs to; None if it is not declared."""
        family = (metric for pattern, metric in self._families.items() if pattern.fullmatch(name))
        return self._metrics.get(name) or next(family, None)

    def _history(self, name: str) -> _History | None:
        """Returns the history of a metric; None if the metric is not declared."""
        if name not in self._histories:
            metric = self.metric(name)
            rules = [rule for rule in metric.rules if rule.level != "ok"] if metric else []
            longest = max((rule.check.window for rule in rules), default=1) + 1
            self._histories[name] = _History(metric, [_Watch(rule) for rule in rules], longest) if metric else None
        return self._histories[name]

    def _judge(self, name: str, history: _History, watch: _Watch, view: View, iteration: int) -> list[Alert]:
        """Returns the alert that this report raises or clears, if any."""
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
            watch.alert = _raised(name, history.metric, watch, view, iteration)
            watch.then = View(tuple(view.values), view.first, (), view.variables, view.percentiles)
            return [watch.alert]
        if watch.alert is not None and watch.met >= max(rule.sustained, rule.quiet):
            return [_clear(watch, iteration, rule.check.judged(view))]
        return []

    def _enter_stage(self, iteration: int, values: Mapping[str, float]) -> list[Alert]:
        """Restarts the histories that depend on reward or simulator if a new stage begins, and clears their alerts."""
        stage, self._stage = self._stage, values.get(_STAGE, self._stage)
        if stage is None or stage == self._stage:
            return []
        names = [name for name in self._histories if name.startswith(_OF_THE_REWARD)]
        watches = [watch for name in names if (history := self._histories.pop(name)) for watch in history.watches]
        return [_clear(watch, iteration, watch.alert.value) for watch in watches if watch.alert is not None]


def place_on_the_data_path(metric: str) -> int:
    """Sorts the metrics of the simulator before those of rollouts, and these before the learner's."""
    room = metric.split("/")[0]
    order = ("env", "rollout", "train")
    return order.index(room) if room in order else len(order)


def _raised(name: str, metric: Metric, watch: _Watch, view: View, iteration: int) -> Alert:
    """Makes the alert of a violated rule."""
    rule = watch.rule
    sign = metric.sign_of(rule) or Sign("", "", "")
    return Alert(
        name, rule.name, rule.level, rule.check.judged(view), str(rule.check), watch.since, iteration,
        sign.cause, sign.remedy, nonfinite=view.nonfinite,
    )  # fmt: skip


def _clear(watch: _Watch, iteration: int, value: float | None) -> Alert:
    """Clears the standing alert of a rule and returns it as cleared."""
    alert = watch.alert
    assert alert is not None
    watch.alert = watch.then = None
    return replace(alert, value=value).cleared_at(iteration)
