"""Retention: the checkpoints of a run that stay, which are the newest ones and the one with the best evaluation."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from rlpipe.errors import ConfigError
from rlpipe.files import replacing
from rlpipe.metrics.declaration import Metric
from rlpipe.run import checkpoint
from rlpipe.run.checkpoint import BEST, BestCheckpoint, file_name


class Retention:
    """Writes checkpoints, removes those that need not stay, and names the best one in ``best.json``.

    At any moment at which the process may be killed, ``best.json`` names a file that exists: a checkpoint is written
    before it is named, and the one that was named before is removed last.
    """

    def __init__(self, run: Path, newest: int, metrics: Sequence[Metric]) -> None:
        """Starts without a best checkpoint.

        Args:
            newest: number of newest checkpoints that stay, at least 1
            metrics: metrics that rank evaluations. The first one that an evaluation has decides, and an evaluation
                that has it ranks before one that has not. Without metrics, no checkpoint is the best.
        """
        self._run = run
        self._folder = run / "checkpoints"
        self._newest = newest
        self._metrics = metrics
        self._best: BestCheckpoint | None = None
        self._candidate: BestCheckpoint | None = None

    def rank(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Ranks an iteration by its metrics, before its checkpoint is written."""
        decisive = next((metric.name for metric in self._metrics if metric.name in metrics), None)
        if decisive is not None:
            candidate = BestCheckpoint(iteration, decisive, metrics[decisive])
            if self._best is None or self._order(candidate) > self._order(self._best):
                self._candidate = candidate

    def _order(self, candidate: BestCheckpoint) -> tuple[int, float]:
        """Returns a sort key that grows with the rank."""
        place = [metric.name for metric in self._metrics].index(candidate.metric)
        return -place, candidate.value if self._metrics[place].better == "higher" else -candidate.value

    def is_best(self, iteration: int) -> bool:
        """True if this iteration was ranked last and its evaluation is better than all before."""
        return self._candidate is not None and self._candidate.iteration == iteration

    @property
    def best_iteration(self) -> int | None:
        """Iteration of the best evaluation so far; None without one. Its checkpoint may still have to be written."""
        best = self._candidate or self._best
        return None if best is None else best.iteration

    def recall(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Ranks an earlier iteration of a resumed run, whose checkpoint is already written or already gone."""
        self.rank(iteration, metrics)
        if self.is_best(iteration) and (self._folder / file_name(iteration)).is_file():
            self._best = self._candidate

    def restore_best(self) -> None:
        """Names the best of the recalled iterations in ``best.json``.

        The file may name a checkpoint that a resume has cut off, or be out of date because a kill came between a
        checkpoint and its naming.
        """
        try:
            named = BestCheckpoint.read(self._folder)
        except ConfigError:
            named = None
        if self._best is None:
            (self._folder / BEST).unlink(missing_ok=True)
        elif self._best != named:
            self._write_best(self._best)

    def save(self, arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]) -> Path:
        """Writes a checkpoint as ``checkpoint.save`` does, and removes those that need not stay."""
        path = checkpoint.save(self._folder, arrays, meta)
        if self._candidate is not None and self.is_best(meta["iteration"]):
            self._write_best(self._candidate)
            self._best = self._candidate
        checkpoints = checkpoint.files(self._run)
        for iteration in list(checkpoints)[: -self._newest]:
            if self._best is None or iteration != self._best.iteration:
                checkpoints[iteration].unlink()
        return path

    def _write_best(self, best: BestCheckpoint) -> None:
        with replacing(self._folder / BEST, sync=True) as file:
            file.write(json.dumps(asdict(best)).encode())
