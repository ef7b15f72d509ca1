"""Judges the rows of a run by the health rules of its stages, as events of the run."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rlpipe.backends.base import RunInfo
from rlpipe.config.schema import Config, Stage
from rlpipe.curricula.base import ChoosingConfig
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.alerts import ToldAlerts
from rlpipe.metrics.declaration import Metric
from rlpipe.metrics.health import Alert, Monitor
from rlpipe.metrics.row import Event, EventKind, Row


class RunHealth:
    """Alerts of a run.

    Attributes:
        monitor: judges by the rules of the current stage
    """

    def __init__(self, declared: Mapping[str, Metric], plan: Sequence[Stage], info: RunInfo) -> None:
        self._facts = [(run_variables(stage.config, info), run_tags(stage.config, info)) for stage in plan]
        self._total = info.total_iterations
        self.monitor = Monitor(declared, *self._facts[0])
        self._before_resume: list[Alert] = []
        self._reported: dict[tuple[str, str], dict[str, Any]] = {}

    def facts_as_json(self) -> list[dict[str, Any]]:
        """Returns the variables and tags of each stage, for a later diagnosis."""
        return [{"variables": variables, "tags": sorted(tags)} for variables, tags in self._facts]

    def resume(self, events: Iterable[Event], last: int) -> None:
        """Remembers what a run that continues after ``last`` has reported, once its earlier rows were judged again."""
        self._before_resume = self.monitor.standing
        alerts = ToldAlerts()
        for event in events:
            alerts.add(event)
        alerts.take_back(last)
        self._reported = alerts.standing

    def judge(self, row: Row) -> list[Event]:
        """Judges a row; returns an event for each alert that it raises or clears."""
        if (stage := row.metrics.get(m.STAGE.name)) is not None:
            self.monitor.variables, self.monitor.tags = self._facts[int(stage)]
        changes = self.monitor.judge(
            row.iteration,
            row.metrics,
            percentiles={name: histogram.percentiles for name, histogram in row.histograms.items()},
            nonfinite=row.nonfinite,
            progress=row.iteration / self._total,
        )
        return _events(changes, row.iteration)

    def still_active(self, iteration: int) -> list[Event]:
        """Events for the alerts that were active before a resume; only in the first iteration after it.

        With another ``runner.total_timesteps``, the same rows may violate other rules: what the run has not reported
        yet is raised now, and what it reported in vain is cleared.
        """
        reported, self._reported = self._reported, {}
        standing = {(alert.metric, alert.rule): alert for alert in self._before_resume}
        self._before_resume = []
        changes = [alert for key, alert in standing.items() if key not in reported]
        over = [data for key, data in reported.items() if key not in standing]
        changes += [Alert.from_json(data).cleared_at(iteration) for data in over]
        events = _events(changes, iteration)
        if names := sorted({metric for metric, rule in standing if (metric, rule) in reported}):
            message = f"Alerts still active on {', '.join(names)}."
            events.append(Event(EventKind.NOTE, message, iteration, time.time()))
        return events


def _events(alerts: Iterable[Alert], iteration: int) -> list[Event]:
    return [Event(EventKind.ALERT, alert.message, iteration, time.time(), alert.as_json()) for alert in alerts]


def run_variables(config: Config, info: RunInfo) -> dict[str, float]:
    """Returns the numbers of a run that health rules refer to; those without a meaning for it are left out."""
    task, algorithm = config.env.train, config.algorithm
    numbers = {
        "target": config.runner.health.target,
        **algorithm.health_variables(),
        "largest_return": algorithm.largest_value(task),
        "n_eval_episodes": config.evaluation.episodes,
        "deterministic_evaluation": config.evaluation.deterministic,
        "ignore_terminations": task.ignore_terminations,
        "n_actions": info.num_actions,
        "action_dims": info.action_dims,
    }
    return {name: float(value) for name, value in numbers.items() if value is not None}


def run_tags(config: Config, info: RunInfo) -> frozenset[str]:
    """Returns the properties that health rules require: those that follow from the run, and those the user names."""
    policy = "gaussian_policy" if info.num_actions is None else "discrete_policy"
    starts = ["chosen_starts"] if isinstance(config.curriculum, ChoosingConfig) else []
    return frozenset(["no_clip_schedule", policy, *starts, *config.algorithm.health_tags(), *config.runner.health.tags])
