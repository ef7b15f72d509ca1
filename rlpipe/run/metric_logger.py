"""Merges windows, derives metrics, judges their health and writes the row: the last stops on the way of the data.

Knows nothing of Ray or torch. One instance writes the run directory for the whole run.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rlpipe.backends.base import Place, RunInfo
from rlpipe.config.plan import Plan
from rlpipe.config.sections import options_of
from rlpipe.config.selection import best_metrics, declared_metrics, success_key
from rlpipe.config.tree import to_yaml
from rlpipe.metrics import MetricWindow
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.declaration import Metric
from rlpipe.metrics.dialects import Dialect
from rlpipe.metrics.episode_metrics import forget_success, never_told
from rlpipe.metrics.reductions import from_json, to_json
from rlpipe.metrics.row import Event, EventKind, HistogramView, Row, Status
from rlpipe.metrics.spans import Span, span
from rlpipe.metrics.window import merged
from rlpipe.plugins import nearest
from rlpipe.run.backend_group import BackendGroup
from rlpipe.run.backend_processes import BackendProcesses
from rlpipe.run.directory import EVENTS, RunDirectory, read_jsonl
from rlpipe.run.health import RunHealth
from rlpipe.run.replay_keeper import ReplayKeeper
from rlpipe.run.retention import Retention
from rlpipe.trajectory import SpaceSpec
from rlpipe.trajectory.fingerprint import FIRST_ITERATIONS

_DISK_SECONDS = 0.2
"""Interval between two attempts to write to a full disk."""
_PATIENCE = 1000
"""Steps of each environment without the end of an episode, after which that is worth a note."""


@dataclass(frozen=True)
class Backlog:
    """Work that is left when a run has ended.

    Attributes:
        behind: backends that do not show everything yet
        unwritten: number of iterations for which the disk had no room; they are lost
        remarks: sentences about what backends show otherwise, as far as no event says it
    """

    behind: tuple[str, ...] = ()
    unwritten: int = 0
    remarks: tuple[str, ...] = ()


class MetricLogger:
    """Single writer of a run directory.

    It owns rows and events. Checkpoints, replays, alerts and backends are kept by objects of their own.
    """

    def __init__(self, directory: RunDirectory, info: RunInfo, config: Plan, states: Mapping[str, Any]) -> None:
        """Opens the backends, and judges the earlier rows of a resumed run again.

        Args:
            states: ``metrics`` of the checkpoint that the run resumes from, else empty
        """
        self._directory = directory
        self._lock = directory.lock_for_writing()
        self._disk_is_full = False
        self._info = info
        self._config = config
        self._lifetime = {name: from_json(state) for name, state in states.items()}
        self._prepared: tuple[MetricWindow, ...] = ()
        self._steps_without_end, self._patience = 0, _PATIENCE  # of each environment
        self._tells_success = m.ENV_SUCCESS_AT_END_MA100.name in states
        self._untold, self._number_untold = 0, 0  # episodes of the next row, and of the last one
        self._noted: set[str] = set()
        self._declared = declared_metrics(config)
        logger = config.runner.logger
        dialect_names = [*logger.dialects, *(["sb3"] if logger.console_style == "sb3" else [])]
        self._dialects = {name: Dialect(name) for name in dict.fromkeys(dialect_names)}
        self._plan = config.schedule
        self._health = RunHealth(self._declared, self._plan, info)
        contents = directory.read_json()
        # for a later diagnosis, and for backends
        directory.write_json({**contents, "health": self._health.facts_as_json(), "view": info.as_json()})
        self._clocks = {name: part["clock"] for name, part in contents["cluster"].get("parts", {}).items()}
        self._spans: list[Span] = []  # of the logger itself, since the last row
        self._checkpoints = Retention(directory.path, config.runner.keep_checkpoints, best_metrics(config))
        self._replays = ReplayKeeper(directory.path, config, info.first_iteration)
        if info.first_iteration > 1:
            self._recall()
        self._backends = BackendGroup(
            cls(replace(info, options=options_of(name, cls.Config, logger.options.get(name, {}))))
            for name, cls in config.backend_classes.items()
            if cls.place in (Place.LOGGER, Place.RAY)
        )
        separate = [name for name, cls in config.backend_classes.items() if cls.place is Place.APART]
        self._backend_processes = BackendProcesses(directory, separate, deadline=logger.deadline)

    def _recall(self) -> None:
        """Ranks and judges the earlier rows of a resumed run again."""
        folder = self._directory.path
        for line in read_jsonl(folder / "metrics.jsonl"):
            row = Row.from_json(line)
            self._checkpoints.recall(row.iteration, row.metrics)
            self._health.judge(row)
        self._checkpoints.restore_best()
        events = read_jsonl(folder / EVENTS) if (folder / EVENTS).is_file() else ()
        self._health.resume((Event(**line) for line in events), self._info.first_iteration - 1)

    def prepare(self, *windows: MetricWindow, counted: bool = False) -> None:
        """Takes windows of the next iteration whose last ones are still to come, so that it can be saved before.

        Args:
            windows: windows of the learner and the workers by rank
            counted: True if the checkpoint that the run resumes from has counted them
        """
        self._forget_untold(windows)
        if not counted:
            self._count(merged(windows))
        self._prepared += windows

    def _count(self, window: MetricWindow) -> None:
        """Adds to the metrics that are counted over the whole run."""
        for name, state in window.states.items():
            if self._declaration(name).lifetime:
                before = self._lifetime.get(name)
                self._lifetime[name] = state if before is None else before.merge(state)  # type: ignore[arg-type]

    def write(self, iteration: int, *windows: MetricWindow) -> Row:
        """Writes one iteration.

        Args:
            iteration: counted from 1, one more than in the last call
            windows: windows of the driver, the learner and the workers by rank, merged in this order; without those
                that were prepared, which come after the driver's
        Returns:
            The row, after it was written to the run directory and passed to the backends.
        Raises:
            ValueError: a window holds a metric that is not declared.
        """
        began = time.perf_counter()
        self._forget_untold(windows)
        window = merged(windows)
        self._count(window)
        if self._prepared:
            windows, self._prepared = (*windows[:1], *self._prepared, *windows[1:]), ()
            window = merged(windows)
        notes = [*window.notes, *self._notes_on_success(window)]
        self._backend_processes.observe_lag(window)
        nonfinite = window.nonfinite()
        window.states.update(self._lifetime)
        total = int(window.states[m.TOTAL_TIMESTEPS.name].read()["sum"])
        left = self._info.total_iterations - iteration  # each with the mean number of steps so far
        window.observe(m.TIMESTEPS_LEFT, left * total / iteration)
        declared = list(self._declared.values())
        metrics = window.read(declared)
        histograms = {
            name: HistogramView(*state.buckets(), state.read()) for name, state in window.histograms(declared).items()
        }
        dialects = {name: dialect.write(metrics, window.states) for name, dialect in self._dialects.items()}
        by_worker = self._by_worker(windows, declared) if self._config.runner.logger.per_worker else {}
        row = Row(iteration, total, time.time(), metrics, nonfinite, histograms, dialects, by_worker)
        self._directory.write_row(row, window.episodes, window.eval_episodes)
        if iteration <= FIRST_ITERATIONS and window.fingerprints:
            self._directory.write_fingerprints(iteration, window.fingerprints)
        self._checkpoints.rank(iteration, metrics)
        failures = self._backends.show(lambda backend: backend.write(row), iteration)
        alerts = self._health.judge(row)
        events = [
            *failures,
            *self._disk_events(iteration),
            *self._backend_processes.tick(iteration, time.time()),
            *self._health.still_active(iteration),
            *self._incidents(row, windows),
            *self._endless(iteration, window),
            *(Event(EventKind.NOTE, note, iteration, time.time()) for note in self._new(notes)),
            *self._replays.write(iteration, window, self._checkpoints.best_iteration),
            *alerts,
        ]
        for event in events:
            self.event(event)
        self._record_span("write row", began)
        spans = [record.by_clock(self._clocks.get(record.actor, 0.0)) for record in [*window.spans, *self._spans]]
        self._directory.write_spans(iteration, spans)
        self._spans = []
        return replace(row, events=tuple(events))

    def _forget_untold(self, windows: Sequence[MetricWindow]) -> None:
        """Drops the success of episodes as long as the simulator has reported none."""
        self._tells_success |= any(window.tells_success for window in windows)
        if not self._tells_success:
            self._untold += sum(forget_success(window, (m.ENV, m.CURRICULUM, m.EVAL)) for window in windows)

    def _notes_on_success(self, window: MetricWindow) -> list[str]:
        """Observes how many episodes of a row have no success; returns a note for the first of several such rows."""
        untold, self._untold = self._untold, 0
        if untold or self._number_untold:  # 0 clears the alert
            window.observe(m.ENV_SUCCESS_UNTOLD, untold)
        first, self._number_untold = not self._number_untold, untold
        return [never_told(success_key(self._config.env.train), untold)] if untold and first else []

    def _new(self, notes: Sequence[str]) -> list[str]:
        """Returns the notes that this run has not reported yet."""
        unreported = [note for note in dict.fromkeys(notes) if note not in self._noted]
        self._noted.update(unreported)
        return unreported

    def _record_span(self, name: str, began: float) -> None:
        self._spans.append(span("metric-logger", name, began, time.perf_counter()))

    def _by_worker(self, windows: Sequence[MetricWindow], declared: Sequence[Metric]) -> dict[str, dict[str, float]]:
        """Returns the metrics of each rollout worker by itself, by rank."""
        alone = _of_single_workers(windows)
        ranks = sorted({window.worker for window in alone if window.worker is not None})
        return {
            str(rank): merged([window for window in alone if window.worker == rank]).read(declared) for rank in ranks
        }

    def _disk_events(self, iteration: int) -> list[Event]:
        """Events for the disk filling up and recovering, one each."""
        error, before = self._directory.write_error, self._disk_is_full
        self._disk_is_full = error is not None
        if self._disk_is_full == before:
            return []
        if error is None:
            level = "cleared"
            message = "The disk accepts writes again, and everything kept in memory was written."
        else:
            level = "critical"
            message = (
                f"{self._directory.path} cannot be written: {error.strerror or error}. Training continues, rows and "
                "events are kept in memory, and no checkpoint is written until the disk accepts writes again."
            )
        return [Event(EventKind.DISK, message, iteration, time.time(), {"level": level})]

    def _declaration(self, name: str) -> Metric:
        """Returns the metric of that name, or the family that it belongs to."""
        metric = self._health.monitor.metric(name)
        if metric is None:
            raise ValueError(
                f"{name} was observed, but is not declared{nearest(name, self._declared)} A plug-in lists its own "
                "metrics in its class attribute `metrics`."
            )
        return metric

    def _endless(self, iteration: int, window: MetricWindow) -> list[Event]:
        """Event for episodes that may never end, repeated each time when twice as many steps were taken without an end.

        Those with a longer time limit than that are waited for.
        """
        train = self._config.env.train
        if window.episodes or not self._config.algorithm_class.collects:
            self._steps_without_end, self._patience = 0, _PATIENCE
            return []
        self._steps_without_end += self._config.steps_per_iteration // train.total_num_envs
        if self._steps_without_end < max(self._patience, (self._info.time_limit or 0) + 1):
            return []
        self._patience = 2 * self._steps_without_end
        message = (
            f"No episode has ended in the last {self._steps_without_end:,} steps of each environment. If episodes do "
            "not end by themselves, give env.train a time limit."
        )
        return [Event(EventKind.NOTE, message, iteration, time.time(), {"level": "warn"})]

    def _incidents(self, row: Row, windows: Sequence[MetricWindow]) -> list[Event]:
        """Events for an update that ended early, skipped optimiser steps and simulators that raised."""
        stage = int(row.metrics.get(m.STAGE.name, 0))
        config, events = self._plan[stage].config.algorithm, []
        epochs, skipped = row.metrics.get(m.EPOCHS_RUN.name), row.metrics.get(m.NONFINITE_STEPS.name)
        target_kl = config.target_kl
        if target_kl is not None and epochs and epochs < config.update_epochs:
            message = (
                f"The update ended after {epochs:.0f} of {config.update_epochs} epochs, because "
                f"{m.APPROX_KL.name} passed {target_kl:g} (algorithm.target_kl)."
            )
            events.append(Event(EventKind.TARGET_KL, message, row.iteration, time.time(), {"epochs": epochs}))
        if skipped:
            message = f"{skipped:.0f} optimiser steps were skipped, because the loss or a gradient was not finite."
            events.append(Event(EventKind.NONFINITE, message, row.iteration, time.time(), {"steps": skipped}))
        faults: dict[str, Event] = {}  # several workers may report the same
        for window in _of_single_workers(windows):
            data = {"part": f"rollout-{window.worker}", "replaced": window.simulator_failed}
            for fault in window.faults:
                faults.setdefault(fault, Event(EventKind.SIMULATOR, fault, row.iteration, time.time(), data))
        return [*events, *faults.values()]

    def event(self, event: Event) -> None:
        """Writes an event."""
        self._directory.write_event(event)
        for failure in self._backends.show(lambda backend: backend.event(event), event.iteration):
            self.event(failure)

    def save(self, iteration: int, arrays: Mapping[str, Any], if_best: bool = False) -> str:
        """Writes a checkpoint of the learner's state and the states of the metrics.

        It comes after the row of the same iteration, so a checkpoint never knows more than ``metrics.jsonl``; one that
        comes before the row holds what was prepared of it. While rows are pending because the disk is full, no
        checkpoint is written; the last one of the run waits for room, up to ``finish_timeout``.

        Args:
            iteration: iteration of the newest row
            arrays: state of the learner after it
            if_best: write it only if the evaluation of this iteration is the best so far
        Returns:
            Path of the checkpoint; empty if none was written.
        """
        if if_best and not self._checkpoints.is_best(iteration):
            return ""
        is_last = iteration == self._info.total_iterations and not self._prepared
        ends = time.monotonic() + (self._config.runner.logger.finish_timeout if is_last else 0.0)
        while not (path := self._try_to_save(iteration, arrays)) and time.monotonic() < ends:
            time.sleep(_DISK_SECONDS)
        return path

    def _try_to_save(self, iteration: int, arrays: Mapping[str, Any]) -> str:
        """Writes a checkpoint if the disk has room; returns its path, or an empty text."""
        if self._directory.write_pending():
            return ""
        began = time.perf_counter()
        meta = {
            "iteration": iteration,
            "run_id": self._directory.run_id,
            "config": self._info.config_yaml,
            "metrics": {name: to_json(state) for name, state in self._lifetime.items()},
            **({"row": False, "window": merged(self._prepared).as_json()} if self._prepared else {}),
            **({} if self._info.spaces is None else {"spaces": self._info.spaces.as_json()}),
        }
        try:
            path = self._checkpoints.save(arrays, meta)
        except OSError as error:
            self._directory.write_error = error
            for event in self._disk_events(iteration):
                self.event(event)
            return ""
        self._record_span("save checkpoint", began)
        return str(path)

    def close(self, status: Status) -> Backlog:
        """Records the end of the run and closes the backends."""
        timeout = self._config.runner.logger.finish_timeout
        for event in self._replays.finish(timeout):  # before the status, with which backends end
            self.event(event)
        self._directory.write_json({**self._directory.read_json(), "status": status})
        unwritten = self._directory.write_pending(timeout)
        self._backends.close(status)
        behind = self._backend_processes.finish(timeout)
        self._lock.release()
        return Backlog(tuple(behind), unwritten, tuple(self._backend_processes.new_remarks()))


def run_info(directory: RunDirectory, config: Plan, first_iteration: int, spec: SpaceSpec) -> RunInfo:
    """Collects the facts about a run that backends need. Actions are those of a decision, which may be a chunk."""
    plan, logger, decided = config.schedule, config.runner.logger, spec.chunked(config.policy.chunk_size)
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
        action_dims=decided.action_dim,
        num_actions=decided.num_combinations,
        console_metrics=tuple(
            metric.name
            for plugin in (config.algorithm_class, config.curriculum_class, config.simulator_class)
            for metric in plugin.console_metrics
        ),
        time_limit=config.train_facts.time_limit,
        spaces=spec,
    )


def _of_single_workers(windows: Sequence[MetricWindow]) -> list[MetricWindow]:
    """Returns the windows of single workers in the place of those that were merged from them, where these have them."""
    return [single for window in windows for single in (window.of_workers or [window])]
