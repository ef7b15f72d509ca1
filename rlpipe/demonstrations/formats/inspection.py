"""Looks through a dataset: what it holds, how it fits a task, and what to write in a configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlpipe.config.schema import Config
from rlpipe.config.simulators import task_facts
from rlpipe.demonstrations.formats.episode import Array, Dataset, Features
from rlpipe.demonstrations.formats.fitting import fitted
from rlpipe.envs.shared.make import make_simulator
from rlpipe.errors import ConfigError

_INDENT = "\n                "


@dataclass
class Inspection:
    """Facts about a whole dataset, of which every episode was read.

    Attributes:
        low: least number of each action.
        high: greatest.
        ranges: least and greatest number of each observation.
        succeeded: number of episodes that succeed; None if they do not say it.
        tasks: in words.
    """

    low: Array
    high: Array
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)
    succeeded: int | None = None
    tasks: set[str] = field(default_factory=set)

    def rows(self, dataset: Dataset) -> Mapping[str, str]:
        """Returns what to show of a dataset, by its label."""
        lengths = [entry.length for entry in dataset.episodes]
        features, count = dataset.features, len(lengths)
        seeds = sum(entry.seed is not None for entry in dataset.episodes)
        success = "not recorded" if self.succeeded is None else f"{self.succeeded} of {count} episodes"
        rate = dataset.info.rate
        return {
            "format": f"{dataset.format} {dataset.version}".strip(),
            "steps": f"{sum(lengths):,}; {min(lengths)} to {max(lengths)} an episode, median {np.median(lengths):g}",
            "rate": "not recorded" if rate is None else f"{rate:g} steps a second",
            "success": success,
            "seeds": f"{seeds} of {count} episodes",
            **({"tasks": ", ".join(sorted(self.tasks))} if self.tasks else {}),
            "actions": f"{features.action.dtype} {list(features.action.shape)}, {_numbers(self.low)} to "
            f"{_numbers(self.high)}",
            "observations": _INDENT.join(self._leaves(features)) or "none",
            "other columns": ", ".join(features.others) or "none",
            "missing": ", ".join(_missing(features, seeds < count, rate is None)) or "nothing",
        }

    def _leaves(self, features: Features) -> list[str]:
        lines = []
        for name, spec in features.observations.items():
            between = f", {self.ranges[name][0]:.3g} to {self.ranges[name][1]:.3g}" if name in self.ranges else ""
            lines.append(f"{name} {spec.dtype} {list(spec.shape)}{between}")
        return lines + [f"{name} pictures {list(spec.shape)}" for name, spec in features.cameras.items()]


def _missing(features: Features, seeds: bool, rate: bool) -> list[str]:
    absent = [name for name in ("rewards", "success", "terminated") if name not in features.columns]
    absent += ["some seeds"] * seeds + ["the rate"] * rate
    absent += ["the observation after the last step"] * (not features.last_observation)
    return absent + ["states of the simulator"] * (not features.states)


def _numbers(values: Array) -> str:
    return "[" + ", ".join(f"{value:.3g}" for value in np.atleast_1d(values)) + "]"


def inspected(dataset: Dataset, progress: Callable[[int], Any]) -> Inspection:
    """Reads all episodes, one after the other. ``progress`` is called with the number that was read.

    Raises:
        ConfigError: one is damaged.
    """
    inspection: Inspection | None = None
    for number, episode in enumerate(dataset.each(), 1):
        for frames in episode.cameras.values():
            for _ in frames:  # a video may end early
                pass
        if not len(episode):
            raise ConfigError(f"{dataset.path}: {episode.name} has no steps: leave it out.")
        low, high = episode.actions.min(axis=0), episode.actions.max(axis=0)
        if inspection is None:
            inspection = Inspection(low, high)
        inspection.low, inspection.high = np.minimum(inspection.low, low), np.maximum(inspection.high, high)
        for name, values in episode.observations.items():
            before = inspection.ranges.get(name, (np.inf, -np.inf))
            inspection.ranges[name] = (min(before[0], float(values.min())), max(before[1], float(values.max())))
        if episode.success is not None:
            inspection.succeeded = (inspection.succeeded or 0) + bool(episode.success.any())
        if episode.task:
            inspection.tasks.add(episode.task)
        progress(number)
    if inspection is None:
        raise ConfigError(f"{dataset.path} holds no episodes.")
    return inspection


def fit_of(dataset: Dataset, inspection: Inspection, config: Config) -> Mapping[str, str]:
    """Returns how a dataset fits the task of a configuration, and what to write in it, by its label."""
    task = config.env.train
    task_facts(task, "env.train")
    simulator = make_simulator(task, 1, lambda _: 0)
    try:
        spec = simulator.spec
    finally:
        simulator.close()
    low, high = spec.action_low, spec.action_high
    if low is None or high is None or inspection.low.shape != low.shape:
        return {"actions": f"the task takes {list(spec.action_shape)}: these demonstrations do not fit it"}
    outside = max(float((low - inspection.low).max()), float((inspection.high - high).max()), 0.0)
    bounds = f"{_numbers(low)} to {_numbers(high)}"
    rows = {"bounds": f"{bounds}; " + (f"actions are up to {outside:.3g} outside" if outside else "all actions inside")}
    try:
        names = fitted(dataset.features, spec, config.demo_leaves, str(dataset.path))
    except ConfigError as error:
        return rows | {"leaves": str(error)}
    leaves = {leaf: " + ".join(sources) for leaf, sources in names.items()}
    rows["leaves"] = _INDENT.join(f"{leaf} is {source}" for leaf, source in leaves.items())
    chosen_leaves = {leaf: source for leaf, source in leaves.items() if leaf != source}
    text = ", ".join(f"{leaf}: {source}" for leaf, source in chosen_leaves.items())
    return rows | {"write": f"demos={dataset.path}" + (f" 'demo_leaves={{{text}}}'" if text else "")}
