"""Iterations in vain: every optimiser step skipped, or every rollout worker replaced. Several in a row end a run."""

from __future__ import annotations

from collections.abc import Collection

from rlpipe.errors import Fault
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.health import place_on_the_data_path
from rlpipe.metrics.row import EventKind, Row

IN_A_ROW = 3
"""Iterations in vain, one after the other, that end a run."""
_GOES_ON = "runner.health.on_critical=continue trains on all the same."


class Setbacks:
    """Follows the rows of a run.

    Attributes:
        skipped: iterations in a row, up to the last one, in which every optimiser step was skipped
        replaced: iterations in a row, up to the last one, in which every worker or its simulator was replaced
        learnt: False as long as no optimiser step was taken since the run began
    """

    def __init__(self, num_workers: int) -> None:
        self._num_workers = num_workers
        self._updates = 0.0
        self._skipped_because, self._replaced_because = "", ""
        self.skipped = self.replaced = 0
        self.learnt = False

    def add(self, row: Row, restarted: Collection[str]) -> None:
        """Takes the next row, and the names of the rollout workers that were replaced in that iteration."""
        updates, skipped = row.metrics.get(m.NUM_UPDATES.name, 0.0), row.metrics.get(m.NONFINITE_STEPS.name, 0.0)
        self.skipped = self.skipped + 1 if skipped and updates <= self._updates else 0
        self._updates, self.learnt = updates, updates > 0
        if self.skipped:
            self._skipped_because = f"because the loss or a gradient was not finite{_first_not_finite(row)}"
        faults = [event for event in row.events if event.kind == EventKind.SIMULATOR and event.data["replaced"]]
        failed = {event.data["part"] for event in faults}.union(restarted)
        self.replaced = self.replaced + 1 if len(failed) >= self._num_workers else 0
        if self.replaced and faults:
            self._replaced_because = f". The last time: {faults[0].message.removesuffix('.')}"

    @property
    def fault(self) -> Fault | None:
        """Cause to end the run now; None if there is none."""
        if self.skipped >= IN_A_ROW:
            return self._nothing_learnt(f"in {IN_A_ROW} iterations in a row", _GOES_ON)
        if self.replaced >= IN_A_ROW:
            what = f"failed, or its simulator did, in each of {IN_A_ROW} iterations in a row{self._replaced_because}"
            return Fault("every rollout worker", what, advice=f"Mend the simulator. {_GOES_ON}")
        return None

    @property
    def fault_at_end(self) -> Fault | None:
        """Cause for which a run has failed at its end: all its optimiser steps were skipped. None if there is none."""
        return self._nothing_learnt("of the run", "") if self.skipped and not self.learnt else None

    def _nothing_learnt(self, when: str, advice: str) -> Fault:
        remedy = "Look at the simulator's observations and rewards first, then at learner.lr and learner.max_grad_norm."
        return Fault(
            "the learner",
            f"skipped every optimiser step {when}, {self._skipped_because}",
            advice=f"{remedy} {advice}".strip(),
        )


def _first_not_finite(row: Row) -> str:
    """Names what was not finite where the data comes from; empty if it is not known."""
    for name, count in row.metrics.items():
        if count and (leaf := m.NONFINITE_OBSERVATIONS.pattern.fullmatch(name)):
            return f"; {leaf[1]} was not finite in {int(count):,} observations of the simulator"
    first = min(row.nonfinite, key=place_on_the_data_path, default="")
    return f"; {first} was not finite in {row.nonfinite[first]:,} observations" if first else ""
