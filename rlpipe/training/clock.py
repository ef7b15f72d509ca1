"""Divides wall clock time into phases that add up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rlpipe.metrics import MetricWindow
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.declaration import Metric
from rlpipe.metrics.spans import ITERATION, Span, span

_PHASES = {
    m.GENERATE_ROLLOUTS: "wait for collection",
    m.UPDATE: "wait for learning",
    m.EVAL_TIME: "wait for evaluation",
    m.CHECKPOINT_TIME: "hand over checkpoint",
    m.LOG_TIME: "wait for logging",
}
"""Name of each phase in the timeline."""


class PhaseClock:
    """Clock whose phases add up: every moment between two laps belongs to exactly one of them."""

    def __init__(self, now: Callable[[], float] = lambda: time.perf_counter()) -> None:
        self._now = now
        self._began = now()
        self._spent: dict[Metric, float] = {}
        self._spans: list[Span] = []

    @contextmanager
    def __call__(self, phase: Metric) -> Iterator[None]:
        """Counts the time spent inside as this phase; phases do not nest."""
        began = self._now()
        try:
            yield
        finally:
            ended = self._now()
            self._spent[phase] = self._spent.get(phase, 0.0) + ended - began
            self._spans.append(span("driver", _PHASES[phase], began, ended))

    def lap(self) -> MetricWindow:
        """Returns the ``time/`` metrics and spans since the last lap, and starts a new lap."""
        ended = self._now()
        step = ended - self._began
        window = MetricWindow(spans=[span("driver", ITERATION, self._began, ended), *self._spans])
        spent, self._spent, self._began, self._spans = self._spent, {}, ended, []
        for phase, seconds in spent.items():
            window.observe(phase, seconds)
        window.observe(m.OTHER_TIME, step - sum(spent.values()))
        window.observe(m.STEP, step)
        window.observe(m.TIME_ELAPSED, step)
        training = step - spent.get(m.EVAL_TIME, 0.0) - spent.get(m.CHECKPOINT_TIME, 0.0)
        window.observe(m.TRAINING_SECONDS, training)
        window.observe(m.INTERVAL_SECONDS, training)
        window.observe(m.ITERATIONS, 1)
        return window
