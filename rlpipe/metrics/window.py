"""Window: the metrics that one actor observed in one iteration, such as a rollout worker or a learner.

A window travels with the batch it describes. Windows merge by the law of ``reductions``; ``read`` derives numbers only
after merging.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from rlpipe.metrics.declaration import Metric
from rlpipe.metrics.reductions import GroupedMean, Histogram, Mean, Recent, Reduction, from_json, to_json
from rlpipe.metrics.spans import Span
from rlpipe.trajectory import Episode, Replay, Scene
from rlpipe.trajectory.fingerprint import FragmentFingerprint, UpdateFingerprint


@dataclass
class MetricWindow:
    """Merged observations, finished episodes, and spans of time.

    Attributes:
        states: reduction states by name of the metric.
        episodes: training episodes that ended in this window.
        eval_episodes: evaluation episodes that ended in this window.
        spans: activities of the actor.
        worker: rank of the rollout worker, the first of several in one process; None for any other actor.
        faults: a sentence for each fault from which the actor recovered by itself.
        eval_replays: replays of some of the evaluation episodes.
        scenes: what their bodies look like, by key.
        simulator_failed: True if the worker replaced its simulator while it collected. Not merged.
        cut_short: why a share of an evaluation ended before its episodes did, which then do not count; empty if it
            did not. Not merged.
        notes: sentences for the user, each of which is told once in a run.
        tells_success: True if a simulator has told the success of an episode so far.
        machines: facts about the machines that evaluated, each once.
        fingerprints: fingerprints of a fragment, or of an update, in the first iterations of a run.
        of_workers: windows of single workers that were merged into this one, where somebody asks for them. Not merged.
    """

    states: dict[str, Reduction] = field(default_factory=dict)
    episodes: list[Episode] = field(default_factory=list)
    eval_episodes: list[Episode] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    worker: int | None = None
    faults: list[str] = field(default_factory=list)
    eval_replays: list[Replay] = field(default_factory=list)
    scenes: dict[str, Scene] = field(default_factory=dict)
    simulator_failed: bool = False
    cut_short: str = ""
    notes: list[str] = field(default_factory=list)
    tells_success: bool = False
    machines: list[dict[str, Any]] = field(default_factory=list)
    fingerprints: list[FragmentFingerprint | UpdateFingerprint] = field(default_factory=list)
    of_workers: list[MetricWindow] = field(default_factory=list)

    def observe(
        self,
        metric: Metric,
        values: ArrayLike,
        *,
        mask: ArrayLike | None = None,
        weights: ArrayLike | None = None,
        groups: ArrayLike | None = None,
        places: Sequence[tuple[int, ...]] | None = None,
    ) -> None:
        """Adds raw observations of a metric.

        Args:
            metric: a declared metric that is observed, not derived.
            values: numbers of any shape.
            mask: bool of the same shape; only values where it is True count.
            weights: weights of the same shape, for a mean.
            groups: number of each value's group, of the same shape, for a mean over groups; not with a mask.
            places: one tuple of integers per value, larger is later, for the most recent values; not with a mask.
        Raises:
            TypeError: the metric is a name or any other object that is not a metric.
            ValueError: the metric is not observed itself, mask or weights do not fit the values, or a metric that is
                set once is given a second value.
        """
        if not isinstance(metric, Metric):
            raise TypeError(f"{metric!r} is not a declared metric: declare it once, and observe that object.")
        if metric.is_family:
            raise ValueError(f"{metric.name} is a family: observe one of its members, metric.member(name).")
        if metric.reduction is None:
            raise ValueError(
                f"{metric.name} is derived from {', '.join(m.name for m in metric.inputs)}: observe those."
            )
        array = np.asarray(values, dtype=np.float64)
        weight = None if weights is None else np.asarray(weights, dtype=np.float64)
        if weight is not None and weight.shape != array.shape:
            raise ValueError(f"{metric.name}: values have shape {array.shape}, the weights {weight.shape}.")
        if mask is not None:
            valid = np.asarray(mask, dtype=bool)
            if valid.shape != array.shape:
                raise ValueError(f"{metric.name}: values have shape {array.shape}, the mask {valid.shape}.")
            array = array[valid]
            weight = None if weight is None else weight[valid]
        accepts = {Mean: "weights", GroupedMean: "groups", Recent: "places"}.get(metric.reduction)
        details: dict[str, Any] = {
            name: how for name, how in (("weights", weight), ("groups", groups), ("places", places)) if how is not None
        }
        if set(details) - {accepts} or (accepts in ("groups", "places") and not details):
            takes = f"takes {accepts}" if accepts else "takes values alone"
            raise ValueError(
                f"{metric.name} is a {metric.reduction.__name__}, which {takes}, "
                f"but got {', '.join(details) or 'none'}."
            )
        state: Reduction = metric.reduction.of(array, **details)
        self._add(metric.name, state)

    def observe_state(self, metric: Metric, state: Reduction) -> None:
        """Adds observations that were reduced elsewhere, such as on the learner's device.

        Raises:
            ValueError: the metric has another reduction.
        """
        if metric.reduction is not type(state):
            kind = metric.reduction.__name__ if metric.reduction else "derived"
            raise ValueError(f"{metric.name} is {kind}, but got a {type(state).__name__}.")
        self._add(metric.name, state)

    def merge(self, other: MetricWindow) -> None:
        """Adds the contents of another window to this one."""
        for name, state in other.states.items():
            self._add(name, state)
        self._extend(other)

    def _extend(self, other: MetricWindow) -> None:
        """Adds everything of another window but its states."""
        self.episodes += other.episodes
        self.eval_episodes += other.eval_episodes
        self.spans += other.spans
        self.faults += other.faults
        self.eval_replays += other.eval_replays
        self.scenes |= other.scenes
        self.notes += other.notes
        self.tells_success |= other.tells_success
        self.machines += [facts for facts in other.machines if facts not in self.machines]
        self.fingerprints += other.fingerprints

    def as_json(self) -> dict[str, Any]:
        """Converts what a row and the ledger need to JSON values, for a checkpoint."""
        return {
            "states": {name: to_json(state) for name, state in self.states.items()},
            "episodes": [episode.as_row(0) for episode in self.episodes],
            "faults": self.faults,
            "notes": self.notes,
            "tells_success": self.tells_success,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> MetricWindow:
        """Converts JSON values of ``as_json`` back to a window."""
        states = {name: from_json(state) for name, state in data["states"].items()}
        episodes = [Episode.from_row(row) for row in data["episodes"]]
        return cls(states, episodes, faults=data["faults"], notes=data["notes"], tells_success=data["tells_success"])

    def _add(self, name: str, state: Reduction) -> None:
        held = self.states.get(name)
        self.states[name] = state if held is None else _pool(name, [held, state])

    def read(self, metrics: Sequence[Metric]) -> dict[str, float]:
        """Returns the numbers that a plot shows, in the order given; metrics without observations are absent."""
        readings: dict[str, float] = {}
        for metric in metrics:
            if metric.hidden or metric.is_histogram:
                continue
            for member in metric.members(self.states):
                value = member.read(self.states)
                if value is not None:
                    readings[member.name] = value
        return readings

    def histograms(self, metrics: Sequence[Metric]) -> dict[str, Histogram]:
        """Returns the distributions that a plot shows, by name; metrics without observations are absent."""
        histograms: dict[str, Histogram] = {}
        for metric in metrics:
            for member in metric.members(self.states) if metric.is_histogram else ():
                state = self.states.get((member.inputs[0] if member.inputs else member).name)
                if isinstance(state, Histogram) and state.counts:
                    histograms[member.name] = state
        return histograms

    def nonfinite(self) -> dict[str, int]:
        """Returns the number of observations that were not finite, by metric; metrics without any are absent."""
        return {name: state.nonfinite for name, state in self.states.items() if state.nonfinite}


def merged(windows: Sequence[MetricWindow]) -> MetricWindow:
    """Merges windows in the order given, in time proportional to their number."""
    held: dict[str, list[Reduction]] = {}
    for window in windows:
        for name, state in window.states.items():
            held.setdefault(name, []).append(state)
    whole = MetricWindow({name: _pool(name, states) for name, states in held.items()})
    for window in windows:
        whole._extend(window)
    return whole


def _pool(name: str, states: list[Any]) -> Reduction:
    """Merges all states of one metric."""
    if len({type(state) for state in states}) > 1:
        kinds = ", ".join(sorted({type(state).__name__ for state in states}))
        raise ValueError(f"{name} was observed with more than one reduction: {kinds}.")
    try:
        pooled: Reduction = type(states[0]).pool(states)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    return pooled
