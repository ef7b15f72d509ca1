"""Merges windows, derives numbers, writes the row (stops 5 to 7 on the data's way). Keeper of the run directory.

Knows nothing of Ray or torch. One instance writes for the whole run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlpipe import checkpoint
from rlpipe.backends.base import Backend, Event, Row, RunInfo
from rlpipe.config import Config, to_yaml
from rlpipe.metrics import CATALOGUE, MetricWindow
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.reductions import from_json, to_json
from rlpipe.metrics.window import merged
from rlpipe.plugins import resolve
from rlpipe.run_directory import RunDirectory, now


class MetricLogger:
    """The one writer of a run."""

    def __init__(self, directory: RunDirectory, info: RunInfo, config: Config, kept: Mapping[str, Any]) -> None:
        """Opens the backends.

        Args:
            directory: of the run.  info: for the backends.  config: of the run.
            kept: ``metrics`` of the checkpoint a run resumes from, else empty.
        """
        self._directory = directory
        self._config = config
        self._lifetime = {name: from_json(state) for name, state in kept.items()}
        self._metrics = list(CATALOGUE.values())
        classes = [resolve("backends", name, "logger_backends") for name in config.runner.logger.logger_backends]
        self._backends: list[Backend] = [cls(info) for cls in classes if not cls.at_terminal]

    def write(self, iteration: int, *windows: MetricWindow) -> Row:
        """Writes one iteration.

        Args:
            iteration: from 1, one more than the last time.
            windows: of the driver, the learner and the workers by rank; merged in the order given.
        Returns:
            The row, after it has been written to the run directory and handed to the backends.
        """
        window = merged(windows)
        nonfinite = window.nonfinite()
        for name in [name for name in window.states if CATALOGUE[name].lifetime]:
            held, state = self._lifetime.get(name), window.states[name]
            self._lifetime[name] = state if held is None else held.merge(state)  # type: ignore[arg-type]
        window.states.update(self._lifetime)
        metrics = window.read(self._metrics)
        row = Row(iteration, int(metrics[m.TOTAL_TIMESTEPS.name]), now(), metrics, nonfinite)
        self._directory.write_row(row, window.episodes, window.eval_episodes)
        for backend in self._backends:
            backend.write(row)
        return row

    def event(self, event: Event) -> None:
        """Writes an event."""
        self._directory.write_event(event)
        for backend in self._backends:
            backend.event(event)

    def save(self, iteration: int, arrays: Mapping[str, Any]) -> str:
        """Writes a checkpoint of the learner's state together with the metrics' own.

        It comes after the row of the same iteration, so a checkpoint never knows more than ``metrics.jsonl``.

        Returns:
            Path of the checkpoint.
        """
        meta = {
            "iteration": iteration,
            "run_id": self._directory.run_id,
            "config": to_yaml(self._config),
            "metrics": {name: to_json(state) for name, state in self._lifetime.items()},
        }
        keep = self._config.runner.keep_checkpoints
        return str(checkpoint.save(self._directory.checkpoints, arrays, meta, keep=keep))

    def close(self, status: str) -> None:
        """Closes the backends: ``status`` is completed, interrupted or failed."""
        for backend in self._backends:
            backend.close(status)


def run_info(directory: RunDirectory, config: Config, stages: Sequence[Any], first_iteration: int) -> RunInfo:
    """What backends are told about a run."""
    logger = config.runner.logger
    return RunInfo(
        run_id=directory.run_id,
        experiment=logger.experiment_name,
        project=logger.project_name,
        directory=directory.path,
        config_yaml=to_yaml(config),
        total_iterations=stages[-1].until,
        total_timesteps=stages[-1].until * config.steps_per_iteration,
        first_iteration=first_iteration,
        stages=tuple((stage.name, stage.until) for stage in stages),
    )
