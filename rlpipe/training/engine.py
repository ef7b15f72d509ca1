"""The engine protocol: where the actors of a run live."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from rlpipe.backends.base import Place, RunInfo
from rlpipe.collection.worker import Ready
from rlpipe.config.schema import Config, Stage
from rlpipe.errors import Fault
from rlpipe.metrics.row import Event, Status
from rlpipe.policies.base import Weights
from rlpipe.run.checkpoint import Checkpoint
from rlpipe.run.directory import RunDirectory
from rlpipe.run.metric_logger import Backlog

Ref = Any
"""Something an engine made and can find again: an object here, an object reference on Ray."""


class Engine(Protocol):
    """Where the parts of a run live. Calls return references at once; ``wait`` and ``get`` wait for them."""

    places: frozenset[Place]
    """Where backends can live."""
    side_by_side: bool
    """Whether it collects while it learns."""

    def start_workers(self, plan: Sequence[Stage], incarnation: int) -> Ready:
        """Starts the rollout workers and waits until all have their simulators."""

    def start_learner(self, ready: Ready, state: Checkpoint | None, warm: Weights | None = None) -> Ref:
        """Starts the learner, from a checkpoint or else from the weights of another policy; returns its snapshot."""

    def start_logger(self, directory: RunDirectory, info: RunInfo, config: Config, state: Checkpoint | None) -> None:
        """Starts the metric logger."""

    def cluster(self) -> dict[str, Any]:
        """What ``run.json`` says about the machines."""

    def rebuild(self, ready: Ready, state: Checkpoint | None, warm: Weights | None, incarnation: int) -> Ref:
        """Makes anew what holds state, after a part of it was lost, and has the workers begin anew; there is no logger
        until ``start_logger``. Returns the learner's snapshot."""

    def collect(self, snapshot: Ref, stage: int) -> Ref:
        """Asks all workers for a fragment."""

    def gather(self, collection: Ref) -> tuple[list[Ref], list[Ref]]:
        """Batches and windows of a collection once they are there, in the order of the workers' ranks; what was lost on
        the way is in a window too."""

    def update(self, batches: list[Ref], stage: int, iteration: int) -> tuple[Ref, list[Ref]]:
        """New snapshot, and windows of all learners."""

    def evaluate(self, snapshot: Ref) -> list[Ref]:
        """Windows of all workers, once they are there."""

    def repaired_faults(self) -> list[Fault]:
        """Faults of workers that were made good since the last time."""

    def draining_nodes(self) -> list[str]:
        """Nodes of ours that are about to go and were not told of before, a sentence each without its end."""

    def evacuate(self) -> None:
        """Moves the workers from such nodes; raises ActorLostError if other parts must move too."""

    def write(self, iteration: int, windows: list[Ref]) -> Ref:
        """Row."""

    def event(self, event: Event) -> Ref:
        """Writes an event; the reference is only good for waiting."""

    def save(self, iteration: int, if_best: bool = False) -> Ref:
        """Path of a checkpoint of the state after the last update; with ``if_best`` only if its evaluation is the best
        so far, else nothing."""

    def wait(self, refs: list[Ref]) -> None:
        """Waits for all.

        Raises:
            ActorLostError: a part is gone that is needed for it.
            RunError: a part raised something that the user cannot act on.
            ConfigError: one raised it.
        """

    def get(self, ref: Ref) -> Any:
        """The object itself."""

    def finish(self, status: Status) -> Backlog:
        """Closes the logger; ``status`` is completed, interrupted, stopped or failed."""

    def close(self) -> None:
        """Ends everything that was started."""
