"""Pipelines: when fragments are collected, relative to the updates that learn from them.

A pipeline is asked for the fragments of one iteration after another. It knows which stage each iteration belongs to and
which weights act, and nothing about what a fragment contains. An iteration learns from as many fragments as there are
workers, so each has the same number of steps whatever the pipeline.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import insort
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rlpipe.config.plan import Plan
from rlpipe.config.schema import PipelineKind, Stage
from rlpipe.config.selection import pipeline_kind
from rlpipe.metrics import MetricWindow
from rlpipe.metrics import catalogue as m
from rlpipe.training.engine import Engine, Ref


class Fragments(NamedTuple):
    """References to the results of one or several collections.

    Attributes:
        batches: one trajectory batch for each fragment, in the order of the workers' ranks
        windows: metrics of the same fragments, and of whatever was lost while they were collected
    """

    batches: list[Ref]
    windows: list[Ref]


class Pipeline(ABC):
    """Supplies the fragments to learn from. As it stands, it collects nothing between two calls of ``next``."""

    def __init__(self, engine: Engine, plan: Sequence[Stage]) -> None:
        self._engine = engine
        self._plan = plan

    @abstractmethod
    def next(self, snapshot: Ref, iteration: int) -> Fragments:
        """Returns the fragments of an iteration, counted from 1, once they are complete.

        Args:
            snapshot: weights that act in whatever collection starts now
        """

    def wait(self, refs: list[Ref]) -> None:
        """Waits for the references of an update, and keeps the workers collecting meanwhile."""
        self._engine.wait(refs)

    @property
    def collecting(self) -> bool:
        """True while workers collect for a later iteration."""
        return False

    def settle(self) -> None:
        """Waits for all collections in progress, so that the workers are free for something else."""


class SyncPipeline(Pipeline):
    """Collects, then learns: the fragments of an iteration come from the newest weights."""

    def next(self, snapshot: Ref, iteration: int) -> Fragments:
        return Fragments(*self._engine.gather(self._engine.collect(snapshot, stage_at(self._plan, iteration))))


class AheadPipeline(Pipeline):
    """Collects for the next iteration while the current one is learnt, with weights that are one update older."""

    def __init__(self, engine: Engine, plan: Sequence[Stage]) -> None:
        super().__init__(engine, plan)
        self._in_progress: Ref = None
        self._complete: Fragments | None = None

    def next(self, snapshot: Ref, iteration: int) -> Fragments:
        if self._in_progress is None:
            self._in_progress = self._engine.collect(snapshot, stage_at(self._plan, iteration))
        self.settle()
        assert self._complete is not None
        fragments, self._complete, self._in_progress = self._complete, None, None
        if iteration < self._plan[-1].until:
            self._in_progress = self._engine.collect(snapshot, stage_at(self._plan, iteration + 1))
        return fragments

    @property
    def collecting(self) -> bool:
        return self._in_progress is not None and self._complete is None

    def settle(self) -> None:
        if self._complete is None and self._in_progress is not None:
            self._complete = Fragments(*self._engine.gather(self._in_progress))


@dataclass(frozen=True)
class _Collection:
    """One process's collection of a fragment of each of its workers.

    Attributes:
        rank: number of the process, in the order of their workers' ranks
        since: iteration that was assembled or learnt when it began, which tells the version of the acting weights
        ref: the engine's reference
    """

    rank: int
    since: int
    ref: Ref


def _since(collection: _Collection) -> int:
    return collection.since


class StreamPipeline(Pipeline):
    """Collects without a barrier: each worker begins its next fragment as soon as it has finished one.

    An iteration takes the oldest complete fragments. A slow worker therefore costs its own share only, up to a bound on
    the lag, which is the number of updates between the weights that acted and those that learn: a fragment that would
    exceed it later is waited for, and no worker begins one that could not be learnt from in time.
    """

    def __init__(self, engine: Engine, plan: Sequence[Stage], max_lag: int) -> None:
        """Takes the engine that collects, the stages of the run, and the largest lag, at least 1."""
        super().__init__(engine, plan)
        self._max_lag = max_lag
        self._size = engine.num_collectors
        self._in_progress: list[_Collection] = []
        self._complete: list[_Collection] = []  # by the iteration in which they began
        self._snapshot: Ref = None
        self._iteration = 0
        self._next_update = 0  # earliest iteration that can still learn from a fragment

    def next(self, snapshot: Ref, iteration: int) -> Fragments:
        self._snapshot, self._iteration, self._next_update = snapshot, iteration, iteration
        while not self._can_take():
            self._begin_fragments()
            self._await([])
        oldest, self._complete = self._complete[: self._size], self._complete[self._size :]
        self._next_update = iteration + 1
        self._begin_fragments()
        return self._fragments(sorted(oldest, key=lambda collection: (collection.rank, collection.since)))

    def _fragments(self, collections: Sequence[_Collection]) -> Fragments:
        gathered = [self._engine.gather(collection.ref) for collection in collections]
        waiting = MetricWindow()
        waiting.observe(m.QUEUE_DEPTH, len(self._complete))
        return Fragments(
            [ref for refs, _ in gathered for ref in refs], [waiting, *(ref for _, refs in gathered for ref in refs)]
        )

    def _can_take(self) -> bool:
        """True if there are enough complete fragments, and all others can still be learnt from in time."""
        if len(self._complete) < self._size:
            return False
        left = [*self._complete[self._size :], *self._in_progress]
        due = [collection.since + self._max_lag for collection in left]  # last iteration that can learn from each
        return all(
            sum(iteration <= latest for iteration in due) <= self._size * (latest - self._iteration)
            for latest in range(self._iteration, self._iteration + self._max_lag)
        )

    def _begin_fragments(self) -> None:
        """Starts a fragment on every idle worker, as long as there is an update that can learn from it in time."""
        stage = stage_at(self._plan, self._iteration)
        if self._next_update > self._plan[stage].until:  # fragments of the next stage have its settings
            stage += 1
        if stage == len(self._plan):
            return
        last = min(self._plan[stage].until, self._iteration + self._max_lag)
        room = self._size * (last - self._next_update + 1) - len(self._complete) - len(self._in_progress)
        busy = {collection.rank for collection in self._in_progress}
        waiting = Counter(collection.rank for collection in self._complete)
        idle = sorted(set(range(self._size)) - busy, key=lambda rank: waiting[rank])
        for rank in idle[: max(0, room)]:
            ref = self._engine.collect(self._snapshot, stage, rank)
            self._in_progress.append(_Collection(rank, self._iteration, ref))

    def _await(self, refs: list[Ref]) -> list[Ref]:
        """Waits until a fragment is complete or a reference is answered; returns the references that are not."""
        refs = self._engine.wait_for_any([collection.ref for collection in self._in_progress], refs)
        collections, self._in_progress = self._in_progress, []
        for collection in collections:
            if self._engine.is_complete(collection.ref):
                insort(self._complete, collection, key=_since)
            else:
                self._in_progress.append(collection)
        return refs

    def wait(self, refs: list[Ref]) -> None:
        pending = refs
        while pending and self._in_progress:
            pending = self._await(pending)
            if pending:  # else newer weights are at hand
                self._begin_fragments()
        self._engine.wait(refs)

    @property
    def collecting(self) -> bool:
        return bool(self._in_progress)

    def settle(self) -> None:
        while self._in_progress:
            self._await([])


class NoCollection(Pipeline):
    """Supplies nothing: for an algorithm that learns from what it has, such as demonstrations."""

    def next(self, snapshot: Ref, iteration: int) -> Fragments:  # noqa: ARG002 - the arguments of every pipeline
        return Fragments([], [])


def make_pipeline(config: Plan, engine: Engine) -> Pipeline:
    """Returns the pipeline that a configuration asks for."""
    if not config.algorithm_class.collects:
        return NoCollection(engine, config.schedule)
    kind = pipeline_kind(config)
    if kind == PipelineKind.STREAM:
        return StreamPipeline(engine, config.schedule, config.runner.max_lag)
    return (AheadPipeline if kind == PipelineKind.AHEAD else SyncPipeline)(engine, config.schedule)


def stage_at(plan: Sequence[Stage], iteration: int) -> int:
    """Returns the index of the stage that an iteration, counted from 1, belongs to."""
    return next(index for index, stage in enumerate(plan) if iteration <= stage.until)
