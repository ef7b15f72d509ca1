"""Pipelines: when fragments are collected, relative to the updates that learn from them.

A pipeline is asked for the fragments of one iteration after another. It knows which stage each iteration belongs to and
which weights act, and nothing about what a fragment contains.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from rlpipe.config.schema import Stage
from rlpipe.training.engine import Engine, Ref


class Fragments(NamedTuple):
    """References to the results of one collection.

    Attributes:
        batches: one trajectory batch for each fragment, in the order of the workers' ranks
        windows: metrics of the same fragments, and of whatever was lost while they were collected
    """

    batches: list[Ref]
    windows: list[Ref]


class Pipeline(Protocol):
    """Supplies the fragments to learn from."""

    def next(self, snapshot: Ref, iteration: int) -> Fragments:
        """Returns the fragments of an iteration once they are complete.

        Args:
            snapshot: weights that act in whatever collection starts now
            iteration: number of the iteration, counted from 1
        """

    @property
    def collecting(self) -> bool:
        """True while workers collect for a later iteration."""

    def settle(self) -> None:
        """Waits for a collection in progress, so that the workers are free for something else."""


class SyncPipeline:
    """Collects, then learns: the fragments of an iteration come from the newest weights."""

    def __init__(self, engine: Engine, plan: Sequence[Stage]) -> None:
        """Takes the engine that collects and the stages of the run."""
        self._engine = engine
        self._plan = plan

    def next(self, snapshot: Ref, iteration: int) -> Fragments:
        return Fragments(*self._engine.gather(self._engine.collect(snapshot, stage_at(self._plan, iteration))))

    collecting = False

    def settle(self) -> None:
        """Does nothing: no collection is ever in progress between two calls."""


class AheadPipeline:
    """Collects for the next iteration while the current one is learnt, with weights that are one update older."""

    def __init__(self, engine: Engine, plan: Sequence[Stage]) -> None:
        """Takes the engine that collects and the stages of the run."""
        self._engine = engine
        self._plan = plan
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


class NoCollection:
    """Supplies nothing: for an algorithm that learns from what it has, such as demonstrations."""

    def next(self, snapshot: Ref, iteration: int) -> Fragments:  # noqa: ARG002 - the arguments of every pipeline
        return Fragments([], [])

    collecting = False

    def settle(self) -> None:
        """Does nothing."""


def make_pipeline(algorithm: Any, engine: Engine, plan: Sequence[Stage]) -> Pipeline:
    """Returns the pipeline that an algorithm class asks for."""
    if not algorithm.collects:
        return NoCollection()
    return (AheadPipeline if algorithm.ahead else SyncPipeline)(engine, plan)


def stage_at(plan: Sequence[Stage], iteration: int) -> int:
    """Returns the index of the stage that an iteration, counted from 1, belongs to."""
    return next(index for index, stage in enumerate(plan) if iteration <= stage.until)
