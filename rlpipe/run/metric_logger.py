"""Merges windows, derives numbers, judges their health, writes the row (stops 5 to 7 on the data's way). Keeper of the
run directory.

Knows nothing of Ray or torch. One instance writes for the whole run.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rlpipe.backends.base import Backend, Place, RunInfo
from rlpipe.config.schema import Config, Stage
from rlpipe.config.selection import algorithm_class, best_metrics, declared_metrics
from rlpipe.config.stages import stages
from rlpipe.config.tree import options_of, to_yaml
from rlpipe.metrics import MetricWindow
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.declaration import Metric
from rlpipe.metrics.dialects import Dialect
from rlpipe.metrics.health import Alert, Monitor
from rlpipe.metrics.reductions import from_json, to_json
from rlpipe.metrics.row import Event, EventKind, HistogramView, Row, Status
from rlpipe.metrics.spans import Span, span
from rlpipe.metrics.window import merged
from rlpipe.plugins import nearest, resolve
from rlpipe.run.backend_processes import BackendProcesses
from rlpipe.run.directory import RunDirectory, read_jsonl
from rlpipe.run.retention import Retention
from rlpipe.secrets import redacted
from rlpipe.trajectory import SpaceSpec


@dataclass(frozen=True)
class Backlog:
    """What is left to do when a run has ended.

    Attributes:
        behind: backends that do not show everything yet.
        unwritten: iterations for which the disk had no room; they are lost.
    """

    behind: tuple[str, ...] = ()
    unwritten: int = 0


class MetricLogger:
    """The one writer of a run."""

    def __init__(self, directory: RunDirectory, info: RunInfo, config: Config, kept: Mapping[str, Any]) -> None:
        """Opens the backends, and catches up on the health of a run that goes on.

        Args:
            directory: of the run.  info: for the backends.  config: of the run.
            kept: ``metrics`` of the checkpoint a run resumes from, else empty.
        """
        self._directory = directory
        self._lock = directory.lock_for_writing()
        self._full = False
        self._info = info
        self._config = config
        self._lifetime = {name: from_json(state) for name, state in kept.items()}
        self._declared = declared_metrics(config)
        logger = config.runner.logger
        wanted = [*logger.dialects, *(["sb3"] if logger.console_style == "sb3" else [])]
        self._dialects = {name: Dialect(name) for name in dict.fromkeys(wanted)}
        self._plan = stages(config)
        self._facts = [(run_variables(stage.config, info), run_tags(stage.config, info)) for stage in self._plan]
        self._monitor = Monitor(self._declared, *self._facts[0])
        health = [{"variables": variables, "tags": sorted(tags)} for variables, tags in self._facts]
        # for whoever judges the run later, or shows it elsewhere
        contents = directory.read_json()
        directory.write_json({**contents, "health": health, "view": info.as_json()})
        self._clocks = {name: part["clock"] for name, part in contents["cluster"].get("parts", {}).items()}
        self._spans: list[Span] = []  # of this part since the last row
        self._retention = Retention(directory.path, config.runner.keep_checkpoints, best_metrics(config))
        for row in read_jsonl(directory.path / "metrics.jsonl") if info.first_iteration > 1 else ():
            self._retention.recall(row["iteration"], row["metrics"])
            percentiles = {name: view["percentiles"] for name, view in row.get("histograms", {}).items()}
            self._judge(row["iteration"], row["metrics"], percentiles, row.get("nonfinite", {}))
        if info.first_iteration > 1:
            self._retention.restore_best()
        self._stood = self._monitor.standing
        classes = {name: resolve("backends", name, "logger_backends") for name in logger.logger_backends}
        self._backends: list[Backend] = [
            cls(replace(info, options=options_of(name, cls.Config, logger.options.get(name, {}))))
            for name, cls in classes.items()
            if cls.place in (Place.LOGGER, Place.RAY)
        ]
        apart = [name for name, cls in classes.items() if cls.place is Place.APART]
        self._backend_processes = BackendProcesses(directory, apart, deadline=logger.deadline)

    def write(self, iteration: int, *windows: MetricWindow) -> Row:
        """Writes one iteration.

        Args:
            iteration: from 1, one more than the last time.
            windows: of the driver, the learner and the workers by rank; merged in the order given.
        Returns:
            The row, after it has been written to the run directory and handed to the backends.
        Raises:
            ValueError: a window holds a metric that nobody declared.
        """
        began = time.perf_counter()
        window = merged(windows)
        self._backend_processes.observe_lag(window)
        nonfinite = window.nonfinite()
        for name, state in window.states.items():
            if self._declaration(name).lifetime:
                held = self._lifetime.get(name)
                self._lifetime[name] = state if held is None else held.merge(state)  # type: ignore[arg-type]
        window.states.update(self._lifetime)
        total = int(window.states[m.TOTAL_TIMESTEPS.name].read()["sum"])
        left = self._info.total_iterations - iteration  # of as many steps as those before, which need not be equal
        window.observe(m.TIMESTEPS_LEFT, left * total / iteration)
        declared = list(self._declared.values())
        metrics = window.read(declared)
        histograms = {
            name: HistogramView(*state.buckets(), state.read()) for name, state in window.histograms(declared).items()
        }
        dialects = {name: dialect.write(metrics, window.states) for name, dialect in self._dialects.items()}
        apart = self._by_worker(windows, declared) if self._config.runner.logger.per_worker else {}
        row = Row(iteration, total, time.time(), metrics, nonfinite, histograms, dialects, apart)
        self._directory.write_row(row, window.episodes, window.eval_episodes)
        self._retention.rank(iteration, metrics)
        failed = [self._failure(backend, iteration, backend.write, row) for backend in list(self._backends)]
        percentiles = {name: view.percentiles for name, view in histograms.items()}
        alerts = self._judge(iteration, metrics, percentiles, nonfinite)
        events = [
            *filter(None, failed),
            *self._disk(iteration),
            *self._backend_processes.tick(iteration, time.time()),
            *self._still_standing(iteration),
            *self._incidents(row, window.faults),
            *(Event(EventKind.ALERT, a.message, iteration, time.time(), a.as_json()) for a in alerts),
        ]
        for event in events:
            self.event(event)
        self._did("write row", began)
        spans = [one.by_clock(self._clocks.get(one.part, 0.0)) for one in [*window.spans, *self._spans]]
        self._directory.write_spans(iteration, spans)
        self._spans = []
        return replace(row, events=tuple(events))

    def _did(self, what: str, began: float) -> None:
        self._spans.append(span("metric-logger", what, began, time.perf_counter()))

    def _by_worker(self, windows: Sequence[MetricWindow], declared: Sequence[Metric]) -> dict[str, dict[str, float]]:
        """What each rollout worker saw by itself, by rank."""
        ranks = sorted({window.worker for window in windows if window.worker is not None})
        return {
            str(rank): merged([window for window in windows if window.worker == rank]).read(declared) for rank in ranks
        }

    def _failure(
        self, backend: Backend, iteration: int, does: Callable[[Any], None], shown: Row | Event
    ) -> Event | None:
        """Shows something in a backend that lives here. One that raises is closed, which is said; the run goes on."""
        try:
            does(shown)
        except Exception as error:
            self._backends.remove(backend)
            return backend_closed_event(backend, error, iteration)
        return None

    def _disk(self, iteration: int) -> list[Event]:
        """That the run directory takes nothing more, and that it does again, each said once."""
        trouble, before = self._directory.write_error, self._full
        self._full = trouble is not None
        if trouble is not None and not before:
            message = (
                f"{self._directory.path} takes nothing more: {trouble.strerror or trouble}. Training goes on, what "
                "comes now waits in memory, and no checkpoint is written until there is room again."
            )
            return [Event(EventKind.DISK, message, iteration, time.time(), {"level": "critical"})]
        if before and trouble is None:
            return [
                Event(
                    EventKind.DISK,
                    "The run directory holds everything again.",
                    iteration,
                    time.time(),
                    {"level": "cleared"},
                )
            ]
        return []

    def _declaration(self, name: str) -> Metric:
        """The metric of that name, or the family it is a member of."""
        metric = self._monitor.metric(name)
        if metric is None:
            raise ValueError(
                f"{name} was observed, but nobody declares it{nearest(name, self._declared)} A plug-in lists its own "
                "metrics in its class attribute `metrics`."
            )
        return metric

    def _judge(
        self,
        iteration: int,
        metrics: Mapping[str, float],
        percentiles: Mapping[str, Mapping[str, float]],
        nonfinite: Mapping[str, int],
    ) -> list[Alert]:
        progress = iteration / self._info.total_iterations
        if (stage := metrics.get(m.STAGE.name)) is not None:
            self._monitor.variables, self._monitor.tags = self._facts[int(stage)]
        return self._monitor.judge(iteration, metrics, percentiles=percentiles, nonfinite=nonfinite, progress=progress)

    def _still_standing(self, iteration: int) -> list[Event]:
        """In the first iteration of a resumed run: the alerts that stood before, in one sentence."""
        names = sorted({alert.metric for alert in self._stood})
        self._stood = []
        if not names:
            return []
        return [Event(EventKind.NOTE, f"Alerts still stand on {', '.join(names)}.", iteration, time.time())]

    def _incidents(self, row: Row, faults: Sequence[str]) -> list[Event]:
        """What happened in this iteration that a user should find again later: to its update, and to simulators."""
        stage = int(row.metrics.get(m.STAGE.name, 0))
        config, found = self._plan[stage].config.algorithm, []
        epochs, skipped = row.metrics.get(m.EPOCHS_RUN.name), row.metrics.get(m.NONFINITE_STEPS.name)
        target_kl = getattr(config, "target_kl", None)
        if target_kl is not None and epochs and epochs < config.update_epochs:
            message = (
                f"The update ended after {epochs:.0f} of {config.update_epochs} epochs, because "
                f"{m.APPROX_KL.name} passed {target_kl:g} (algorithm.target_kl)."
            )
            found.append(Event(EventKind.TARGET_KL, message, row.iteration, time.time(), {"epochs": epochs}))
        if skipped:
            message = f"{skipped:.0f} optimiser steps were skipped, because the loss or a gradient was not finite."
            found.append(Event(EventKind.NONFINITE, message, row.iteration, time.time(), {"steps": skipped}))
        return [*found, *(Event(EventKind.SIMULATOR, told, row.iteration, time.time()) for told in faults)]

    def event(self, event: Event) -> None:
        """Writes an event."""
        self._directory.write_event(event)
        for backend in list(self._backends):
            if failure := self._failure(backend, event.iteration, backend.event, event):
                self.event(failure)

    def save(self, iteration: int, arrays: Mapping[str, Any], if_best: bool = False) -> str:
        """Writes a checkpoint of the learner's state together with the metrics' own.

        It comes after the row of the same iteration, so a checkpoint never knows more than ``metrics.jsonl``; while
        rows wait for room on the disk there is none.

        Args:
            iteration: of the newest row.  arrays: state of the learner after it.
            if_best: write it only if the evaluation of this iteration is the best so far.
        Returns:
            Path of the checkpoint, or nothing.
        """
        if self._directory.write_pending() or (if_best and not self._retention.is_best(iteration)):
            return ""
        began = time.perf_counter()
        meta = {
            "iteration": iteration,
            "run_id": self._directory.run_id,
            "config": to_yaml(self._config),
            "metrics": {name: to_json(state) for name, state in self._lifetime.items()},
        }
        try:
            path = self._retention.save(arrays, meta)
        except OSError as error:
            self._directory.write_error = error
            for event in self._disk(iteration):
                self.event(event)
            return ""
        self._did("save checkpoint", began)
        return str(path)

    def close(self, status: Status) -> Backlog:
        """Notes the end of the run and closes the backends.

        Args:
            status: completed, interrupted, stopped or failed.
        """
        timeout = self._config.runner.logger.finish_timeout
        self._directory.write_json({**self._directory.read_json(), "status": status})
        unwritten = self._directory.write_pending(timeout)
        for backend in self._backends:
            backend.close(status)
        behind = self._backend_processes.finish(timeout)
        self._lock.release()
        return Backlog(tuple(behind), unwritten)


def backend_closed_event(backend: Backend, error: Exception, iteration: int) -> Event:
    """That a view which cannot be opened again, because it lives beside the logger or the terminal, is closed."""
    name, why = type(backend).__name__, redacted(f"{type(error).__name__}: {error}", os.environ)
    message = f"The {name} backend raised {why}. It is left out from now on."
    return Event(EventKind.BACKEND, message, iteration, time.time(), {"backend": name, "level": "warn"})


def run_info(
    directory: RunDirectory, config: Config, plan: Sequence[Stage], first_iteration: int, spec: SpaceSpec
) -> RunInfo:
    """What backends are told about a run."""
    logger = config.runner.logger
    return RunInfo(
        run_id=directory.run_id,
        created=directory.read_json()["created"],
        experiment=logger.experiment_name,
        project=logger.project_name,
        directory=directory.path,
        config_yaml=to_yaml(config),
        total_iterations=plan[-1].until,
        total_timesteps=plan[-1].until * config.steps_per_iteration,
        first_iteration=first_iteration,
        stages=tuple((stage.name, stage.until) for stage in plan),
        console_style=logger.console_style,
        action_dims=spec.action_dim,
        num_actions=spec.num_actions,
        console_metrics=tuple(metric.name for metric in algorithm_class(config).console_metrics),
    )


def run_variables(config: Config, info: RunInfo) -> dict[str, float]:
    """Numbers of a run that health rules speak of; those that its algorithm does not have are left out."""
    algorithm = config.algorithm
    penalised = getattr(algorithm, "kl_control", None) is not None
    found = {
        "target": config.runner.health.target,
        "eps_lo": getattr(algorithm, "clip_ratio_low", None),
        "eps_hi": getattr(algorithm, "clip_ratio_high", None),
        "vf_coef": getattr(algorithm, "value_coef", None),
        "ent_coef": getattr(algorithm, "entropy_coef", None),
        "kl_coef": algorithm.kl_coef if penalised else getattr(algorithm, "kl_beta", None),
        "kl_target": algorithm.kl_target if penalised else None,
        "n_epochs": getattr(algorithm, "update_epochs", None),
        "minibatches_per_epoch": getattr(algorithm, "num_minibatches", None),
        "largest_return": _largest_return(config),
        "n_eval_episodes": config.evaluation.episodes,
        "ignore_terminations": config.env.train.ignore_terminations,
        "n_actions": info.num_actions,
        "action_dims": info.action_dims,
    }
    return {name: float(value) for name, value in found.items() if value is not None}


def _largest_return(config: Config) -> float | None:
    """Largest discounted return there can be, for ManiSkill's rewards of at most 1 a step; None for others."""
    task, discount = config.env.train, getattr(config.algorithm, "discount", 1.0)
    mode = getattr(task, "reward_mode", None)
    if getattr(config.algorithm, "entropy_backup", False):
        return None  # its Q values hold entropy too
    if mode == "sparse" and not task.ignore_terminations:
        return 1.0  # success ends the episode
    return 1.0 / (1.0 - discount) if mode in ("sparse", "normalized_dense") and discount < 1.0 else None


def run_tags(config: Config, info: RunInfo) -> frozenset[str]:
    """Properties of a run that health rules ask for: those that follow from it, and those the user names."""
    tags = {"no_clip_schedule", "gaussian_policy" if info.num_actions is None else "discrete_policy"}
    if getattr(config.algorithm, "normalize_advantages", False):
        tags.add("whitening")
    if getattr(config.algorithm, "kl_control", None) == "adaptive":
        tags.add("adaptive_kl")
    return frozenset([*tags, *config.runner.health.tags])
