"""Rollout workers of one process, which work in turn and answer together."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rlpipe.collection import worker
from rlpipe.collection.evaluator import AS_CONFIGURED, Request, Watch
from rlpipe.collection.moving import Belongings
from rlpipe.collection.served_policy import PolicyServer
from rlpipe.collection.worker import Ready, RolloutWorker
from rlpipe.config.schema import Stage
from rlpipe.envs.shared.seeding import global_states, set_global_states
from rlpipe.metrics import MetricWindow
from rlpipe.metrics.window import merged
from rlpipe.trajectory.batch import TrajectoryBatch


def host_name(ranks: Sequence[int]) -> str:
    """Returns the name of the process of some workers, such as ``rollout-3``, or ``rollout-4..7`` of several."""
    return f"rollout-{ranks[0]}" if len(ranks) == 1 else f"rollout-{ranks[0]}..{ranks[-1]}"


def worker_names(name: str) -> list[str]:
    """Returns the names of the workers of a process, of which the name is that of ``host_name``."""
    first, _, last = name.removeprefix("rollout-").partition("..")
    return [f"rollout-{rank}" for rank in range(int(first), int(last or first) + 1)]


class WorkerHost:
    """Holds the workers of some ranks. Each sees the process's generators as if it were alone."""

    def __init__(
        self,
        stages: Sequence[Stage],
        lives: Mapping[int, int],
        num_workers: int,
        incarnation: int = 0,
        server: PolicyServer | None = None,
    ) -> None:
        """Makes the workers.

        Args:
            stages: stages of the run
            lives: rank of each worker, in order, with the number of workers that had it before
            num_workers: number of all workers
            incarnation: number of times the run was resumed
            server: server that acts; None for a copy of the policy in each worker
        Raises:
            ConfigError: a simulator cannot be made as configured.
        """
        self._stages = stages
        self._num_workers = num_workers
        self._incarnation = incarnation
        self._server = server
        self._workers: dict[int, RolloutWorker] = {}
        self._generators: dict[int, Any] = {}  # states of the process's generators, by rank, while another works
        self.begin(lives, incarnation)

    def begin(self, lives: Mapping[int, int], incarnation: int) -> None:
        """Takes on workers that begin anew, in the place of those of the same ranks here or in lost processes."""
        self._incarnation = incarnation
        for rank, life in lives.items():
            self._end(rank)
            with self._turn(rank):
                self._workers[rank] = worker.RolloutWorker(
                    self._stages, rank, self._num_workers, self._incarnation, self._server, life
                )

    @contextmanager
    def _turn(self, rank: int) -> Iterator[None]:
        """Lets the generators of the process be those of one worker."""
        if rank in self._generators:
            set_global_states(self._generators[rank])
        yield
        self._generators[rank] = global_states()

    def _end(self, rank: int) -> None:
        self._generators.pop(rank, None)
        if (former := self._workers.pop(rank, None)) is not None:
            former.close()

    def ready(self) -> Ready:
        """Reports the spaces and notes of the first simulator."""
        return next(iter(self._workers.values())).ready()

    def restart_episodes(self, incarnation: int, server: PolicyServer | None = None) -> None:
        """Has every worker drop its episodes; see ``RolloutWorker.restart_episodes``."""
        self._incarnation, self._server = incarnation, server
        for rollout_worker in self._workers.values():
            rollout_worker.restart_episodes(incarnation, server)

    def take_over(self, lives: Mapping[int, int], incarnation: int, server: PolicyServer | None = None) -> None:
        """Takes the place of another host, with workers that have not collected anything as far as there are some."""
        self._incarnation, self._server = incarnation, server
        ready, self._workers, self._generators = [*self._workers.values()], {}, {}
        for rollout_worker, (rank, life) in zip(ready, lives.items(), strict=False):
            rollout_worker.take_over(rank, life, incarnation, server)
            self._workers[rank] = rollout_worker
        self.begin({rank: life for rank, life in lives.items() if rank not in self._workers}, incarnation)

    def collect(
        self, ranks: Sequence[int], snapshot: Any, stage: int, first_steps: Sequence[int]
    ) -> tuple[TrajectoryBatch | MetricWindow, ...]:
        """Collects a fragment with each worker of some ranks; see ``RolloutWorker.collect``.

        Args:
            first_steps: steps that the environments of each rank have taken before
        Returns:
            The fragment of each rank, and one window.
        """
        batches, windows = [], []
        for rank, first_step in zip(ranks, first_steps, strict=True):
            with self._turn(rank):
                batch, window = self._workers[rank].collect(snapshot, stage, first_step)
            batches.append(batch)
            windows.append(window)
        return *batches, self._together(windows)

    def evaluate(
        self,
        ranks: Sequence[int],
        acting: Any,
        watch: Watch | None = None,
        request: Request = AS_CONFIGURED,
    ) -> MetricWindow:
        """Runs the shares of an evaluation of some ranks; see ``RolloutWorker.evaluate``."""
        windows: list[MetricWindow] = []
        for rank in ranks:
            with self._turn(rank):
                windows.append(self._workers[rank].evaluate(acting, watch, request))
            if windows[-1].cut_short:
                break
        return self._together(windows)

    def _together(self, windows: Sequence[MetricWindow]) -> MetricWindow:
        """Merges windows; keeps those of single workers about which somebody will ask."""
        if len(windows) == 1:
            return windows[0]
        whole, per_worker = merged(windows), self._stages[0].config.runner.logger.per_worker
        whole.worker = windows[0].worker
        whole.cut_short = next((window.cut_short for window in windows if window.cut_short), "")
        whole.of_workers = [window for window in windows if per_worker or window.faults]
        return whole

    def give_belongings(self, rank: int) -> bytes:
        """Ends a worker; returns what another host needs to go on in its place.

        In bytes, because the arrays of an object that Ray has brought cannot be written to.
        """
        with self._turn(rank):
            belongings = self._workers[rank].give_belongings()
        self._end(rank)
        return pickle.dumps(belongings)

    def take_belongings(self, content: bytes) -> None:
        """Goes on in the place of a worker of another host."""
        belongings: Belongings = pickle.loads(content)
        rank = belongings.rank
        if rank not in self._workers:
            self.begin({rank: belongings.life}, belongings.incarnation)
        with self._turn(rank):
            self._workers[rank].take_belongings(belongings)
