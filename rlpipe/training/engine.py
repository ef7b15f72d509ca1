"""The engine protocol: where the actors of a run live, and how the training loop talks to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from rlpipe.backends.base import Place, RunInfo
from rlpipe.collection.evaluator import AS_CONFIGURED, Request, Watch
from rlpipe.collection.worker import Ready
from rlpipe.config.plan import Plan
from rlpipe.config.schema import Stage
from rlpipe.errors import Fault
from rlpipe.metrics import MetricWindow
from rlpipe.metrics.row import Event, Status
from rlpipe.policies.base import Weights
from rlpipe.run.checkpoint import Checkpoint
from rlpipe.run.directory import RunDirectory
from rlpipe.run.metric_logger import Backlog

Ref = Any
"""Reference to something an engine has made: the object itself in this process, an object reference on Ray."""


class Engine(Protocol):
    """Place where the actors of a run live. Calls return references at once; ``wait`` and ``get`` wait for them."""

    places: frozenset[Place]
    """Places where backends can live."""
    side_by_side: bool
    """True if it collects while it learns."""

    @property
    def num_workers(self) -> int:
        """Number of rollout workers."""

    @property
    def num_collectors(self) -> int:
        """Number of processes of rollout workers, each of which can collect by itself."""

    def start_workers(self, plan: Sequence[Stage], incarnation: int) -> Ready:
        """Starts the rollout workers and waits until every simulator is ready."""

    def start_learner(self, ready: Ready, state: Checkpoint | None, warm: Weights | None = None) -> Ref:
        """Starts the learner and returns its snapshot.

        Args:
            state: checkpoint to continue from
            warm: weights of another policy to begin with; without either, weights follow from the seed
        """

    def start_logger(self, directory: RunDirectory, info: RunInfo, config: Plan, state: Checkpoint | None) -> None:
        """Starts the metric logger."""

    def cluster(self) -> dict[str, Any]:
        """Describes the machines, for ``run.json``."""

    def rebuild(self, ready: Ready, state: Checkpoint | None, warm: Weights | None, incarnation: int) -> Ref:
        """Replaces every actor with state after one was lost, and returns the new learner's snapshot.

        Rollout workers drop their episodes and begin new ones. There is no logger until ``start_logger``.
        """

    def collect(self, snapshot: Ref, stage: int, collector: int | None = None) -> Ref:
        """Asks every worker for a fragment, or those of one process by its number; returns the collection."""

    def gather(self, collection: Ref) -> tuple[list[Ref], list[Ref]]:
        """Waits for a collection.

        Returns:
            Batches and windows in the order of the workers' ranks; a window more if something was lost on the way.
        """

    def wait_for_any(self, collections: Sequence[Ref], refs: list[Ref]) -> list[Ref]:
        """Waits until a collection is complete or a reference has been answered, and replaces workers that fail.

        Returns:
            The references that have not been answered.
        """

    def is_complete(self, collection: Ref) -> bool:
        """True if ``gather`` need not wait for a collection, as of the last ``wait_for_any``."""

    def update(self, batches: list[Ref], stage: int, iteration: int) -> tuple[Ref, list[Ref]]:
        """Learns from batches; returns the new snapshot and the windows of all learners."""

    def learner_is_finished(self) -> bool:
        """True once an algorithm that does not collect has learnt all it can; waits for its last update."""

    def evaluate(self, snapshot: Ref, watch: Watch, request: Request = AS_CONFIGURED) -> list[MetricWindow]:
        """Evaluates on all workers and returns their windows; if one of them was cut short, perhaps not all.

        Args:
            snapshot: weights to evaluate, or what acts in place of the workers' policy
            watch: is told of the progress of all workers together, and can end the evaluation
            request: what to run, where that is not all that the configuration asks for
        """

    def repaired_faults(self, *, unfinished: bool = False) -> list[Fault]:
        """Returns the faults of workers that have been replaced since the last call, each once.

        Args:
            unfinished: also of those whose replacement has not finished a task yet, as at the end of a run
        """

    def moves(self) -> list[str]:
        """Returns a sentence for each time that workers have moved to other processes since the last call."""

    def draining_nodes(self) -> list[str]:
        """Describes nodes of this run that have begun to drain since the last call, as clauses without a full stop."""

    def evacuate(self) -> None:
        """Moves the workers away from draining nodes.

        Raises:
            ActorLostError: another actor must move as well.
        """

    def prepare(self, windows: list[Ref], *, counted: bool = False) -> Ref:
        """Counts windows of the next iteration that is written, so that a checkpoint may come before its row.

        Args:
            counted: True if they are those of a checkpoint, which has counted them
        """

    def write(self, iteration: int, windows: list[Ref]) -> Ref:
        """Writes an iteration; returns its row."""

    def event(self, event: Event) -> Ref:
        """Writes an event; the reference can only be waited for."""

    def save(self, iteration: int, if_best: bool = False) -> Ref:
        """Saves a checkpoint of the state after the last update; returns its path.

        Args:
            iteration: iteration of the newest row
            if_best: save only if the evaluation of this iteration is the best so far
        """

    def wait(self, refs: list[Ref]) -> None:
        """Waits for all references.

        Raises:
            ActorLostError: an actor is gone without which they cannot be had.
            RunError: an actor raised something that the user cannot act on.
            ConfigError: an actor raised it.
        """

    def put(self, value: Any) -> Ref:
        """Returns a reference to an object, so that several calls send it to a machine only once."""

    def get(self, ref: Ref) -> Any:
        """Returns the object behind a reference."""

    def finish(self, status: Status) -> Backlog:
        """Closes the logger; returns what is left to do."""

    def close(self) -> None:
        """Ends everything that was started."""
