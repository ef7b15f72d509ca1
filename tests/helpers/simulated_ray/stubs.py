"""Workers and learners that cost nothing: episodes with the seeds of the real ledger, and a state to be saved."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlpipe.collection import worker
from rlpipe.collection.moving import Belongings
from rlpipe.collection.seeds import training_seed
from rlpipe.collection.worker import Ready
from rlpipe.config.schema import Stage
from rlpipe.learning import on_policy
from rlpipe.metrics import MetricWindow
from rlpipe.metrics import catalogue as m
from rlpipe.policies.base import NoWeights, Snapshot
from rlpipe.trajectory import Episode, SpaceSpec

EPISODES = 2
"""Episodes of an environment in a fragment, each of half of its steps."""


class StubWorker:
    """Rollout worker whose environments end two episodes in each fragment."""

    spec: SpaceSpec
    payload = 0
    """Bytes of a batch: objects of 100 kB and more can be lost with their node."""

    def __init__(
        self, stages: Sequence[Stage], rank: int, num_workers: int, incarnation: int = 0, server: Any = None,
        life: int = 0,
    ) -> None:  # fmt: skip
        self._config = stages[0].config
        self._rank, self._num_workers, self._life = rank, num_workers, life
        self._share = self._config.env.train.total_num_envs // num_workers
        self.restart_episodes(incarnation)

    def ready(self) -> Ready:
        return Ready(self.spec, True, ())

    def restart_episodes(self, incarnation: int, server: Any = None) -> None:
        self._incarnation, self._counts = incarnation, [0] * self._share

    def give_belongings(self) -> Belongings:
        return Belongings(
            self._rank, self._life, self._incarnation, 0, 0, 0, list(self._counts), None, {}, None, False, None
        )

    def take_belongings(self, belongings: Belongings) -> None:
        self._life, self._incarnation = belongings.life, belongings.incarnation
        self._counts = list(belongings.counts)

    def take_over(self, rank: int, life: int, incarnation: int, server: Any = None) -> None:
        self._rank, self._life = rank, life
        self.restart_episodes(incarnation)

    def collect(self, snapshot: Snapshot, stage: int, first_step: int | None = None) -> tuple[Any, MetricWindow]:
        horizon, window = self._config.rollout.horizon, MetricWindow(worker=self._rank, tells_success=True)
        window.episodes = [
            self._episode(slot, snapshot.version, (first_step or 0) + (number + 1) * horizon // EPISODES)
            for slot in range(self._share)
            for number in range(EPISODES)
        ]
        m.ENV.observe(window, window.episodes, self._incarnation)
        for metric in (m.NUM_DECISIONS, m.TIMESTEPS, m.TOTAL_TIMESTEPS):
            window.observe(metric, horizon * self._share)
        window.observe(m.TOTAL_EPISODES, len(window.episodes))
        window.observe(m.WORKERS_REPORTING, 1)
        window.observe(m.WORKERS_EXPECTED, self._num_workers)
        return (self._rank, snapshot.version, bytes(self.payload)), window

    def _episode(self, slot: int, version: int, step: int) -> Episode:
        place = self._rank * self._share + slot
        lives = [self._life, 0] if self._life else []
        seed = training_seed(self._config.runner.seed, self._incarnation, 0, place, self._counts[slot], lives)
        self._counts[slot] += 1
        success, half = bool(seed % 2), self._config.rollout.horizon // EPISODES
        return Episode(
            self._rank, place, seed, version, float(seed % 7), half, success, success, False, success, not success,
            step=step,
        )  # fmt: skip

    def evaluate(
        self, acting: Any, watch: Any = None, only: Collection[Any] | None = None, whole: bool = False
    ) -> MetricWindow:
        return MetricWindow(worker=self._rank)

    def close(self) -> None:
        pass


class StubLearner:
    """Learner whose state is the number of its updates."""

    def __init__(self, stages: Sequence[Stage], spec: SpaceSpec, *_: Any) -> None:
        self._version = 0
        self._in_order = stages[0].config.runner.pipeline != "stream"  # where a process may have two turns

    def snapshot(self) -> Snapshot:
        return Snapshot(self._version, NoWeights.FROM_SEED)

    def begin_with(self, weights: Any) -> Snapshot:
        return self.snapshot()

    def resume(self, arrays: Mapping[str, Any], path: Path) -> None:
        self._version = int(arrays["version"])

    def state(self) -> dict[str, Any]:
        return {"version": np.array(self._version), "policy/weight": np.full(1, float(self._version))}

    def is_finished(self) -> bool:
        return False

    def update(self, stage: int, iteration: int, *batches: Any, **_: Any) -> tuple[Snapshot, MetricWindow]:
        ranks = [rank for rank, _, _ in batches]
        assert ranks == sorted(ranks) or not self._in_order, f"fragments came in the order of the ranks {ranks}"
        self._version += 1
        assert self._version == iteration, f"iteration {iteration} is update {self._version}"
        window = MetricWindow()
        window.observe(m.ACTOR_LR, 1e-3)
        window.observe(m.NUM_UPDATES, 1)
        window.observe(m.POLICY_LAG_MAX, [self._version - 1 - version for _, version, _ in batches])
        return self.snapshot(), window


@contextmanager
def in_the_place_of_workers_and_learners(spec: SpaceSpec, payload: int = 0) -> Iterator[None]:
    """Has actors make stubs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StubWorker, "spec", spec, raising=False)
        patch.setattr(StubWorker, "payload", payload)
        patch.setattr(worker, "RolloutWorker", StubWorker)
        patch.setattr(on_policy, "Learner", StubLearner)
        yield
