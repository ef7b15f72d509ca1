"""The metrics of one part of one iteration: what one worker collected, or one learner learnt (stop 2 of the data).

A window travels with the batch it describes. Windows merge by the law of ``reductions``; numbers are derived only after
merging, by ``read``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from rlpipe.metrics.declaration import Metric
from rlpipe.metrics.reductions import Mean, Reduction, exact_sum
from rlpipe.trajectory import Episode


@dataclass
class MetricWindow:
    """Merged observations, by name of the metric they belong to, and the episodes that ended.

    Attributes:
        states: reduction states by metric name.
        episodes: training episodes that ended in this window.
        eval_episodes: evaluation episodes that ended in it.
    """

    states: dict[str, Reduction] = field(default_factory=dict)
    episodes: list[Episode] = field(default_factory=list)
    eval_episodes: list[Episode] = field(default_factory=list)

    def observe(
        self, metric: Metric, values: ArrayLike, *, mask: ArrayLike | None = None, weights: ArrayLike | None = None
    ) -> None:
        """Adds raw observations of a metric.

        Args:
            metric: from the catalogue; one that is observed, not derived.
            values: numbers of any shape.
            mask: bool of the same shape; only values where it is True count.
            weights: for a mean: of the same shape.
        Raises:
            ValueError: the metric is not observed itself, mask or weights do not fit the values, or a second value is
                given to a metric that has one writer.
        """
        if metric.reduction is None:
            raise ValueError(
                f"{metric.name} is derived from {', '.join(m.name for m in metric.inputs)}: observe those."
            )
        array = np.asarray(values, dtype=np.float64)
        weight = None if weights is None else np.asarray(weights, dtype=np.float64)
        if weight is not None and weight.shape != array.shape:
            raise ValueError(f"{metric.name}: values have shape {array.shape}, the weights {weight.shape}.")
        if mask is not None:
            chosen = np.asarray(mask, dtype=bool)
            if chosen.shape != array.shape:
                raise ValueError(f"{metric.name}: values have shape {array.shape}, the mask {chosen.shape}.")
            array = array[chosen]
            weight = None if weight is None else weight[chosen]
        if weight is None:
            state: Reduction = metric.reduction.of(array)
        elif metric.reduction is Mean:
            state = Mean.of(array, weight)
        else:
            raise ValueError(f"{metric.name} is a {metric.reduction.__name__}; only a Mean takes weights.")
        self._add(metric.name, state)

    def observe_mean(self, metric: Metric, total: float, count: int, *, nonfinite: int = 0) -> None:
        """Adds observations of a mean that were summed where they lie, such as on the learner's device.

        Args:
            metric: a mean.  total, count: sum and number of finite values.  nonfinite: how many others there were.
        Raises:
            ValueError: the metric is no mean, or the total is not finite.
        """
        if metric.reduction is not Mean or not math.isfinite(total):
            raise ValueError(f"{metric.name}: only the finite sum of a Mean can be observed, but got {total}.")
        self._add(metric.name, Mean(exact_sum([total]), exact_sum([float(count)]), nonfinite))

    def merge(self, other: MetricWindow) -> None:
        """Takes over the observations and episodes of another window, after its own."""
        for name, state in other.states.items():
            self._add(name, state)
        self.episodes += other.episodes
        self.eval_episodes += other.eval_episodes

    def _add(self, name: str, state: Reduction) -> None:
        held = self.states.get(name)
        try:
            self.states[name] = state if held is None else held.merge(state)  # type: ignore[arg-type]
        except (ValueError, AttributeError) as error:
            raise ValueError(f"{name}: {error}") from error

    def read(self, metrics: Sequence[Metric]) -> dict[str, float]:
        """The numbers a plot shows: one for each metric that has something to say, in the order given."""
        readings: dict[str, float] = {}
        for metric in metrics:
            value = metric.read(self.states)
            if value is not None and not metric.hidden:
                readings[metric.name] = value
        return readings

    def nonfinite(self) -> dict[str, int]:
        """Number of observations that were not finite, by metric; only those that had any."""
        return {name: state.nonfinite for name, state in self.states.items() if state.nonfinite}


def merged(windows: Sequence[MetricWindow]) -> MetricWindow:
    """One window with the observations of all, in the order given."""
    total = MetricWindow()
    for window in windows:
        total.merge(window)
    return total
