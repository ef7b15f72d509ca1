"""When fragments are collected: what each iteration learns from, and how old the weights were that acted."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlpipe
from rlpipe.config.schema import Stage
from rlpipe.errors import ConfigError
from rlpipe.metrics import catalogue as m
from rlpipe.training.pipeline import AheadPipeline, StreamPipeline, SyncPipeline
from tests.helpers.runs import from_ledger, lines, sac, scripted


@dataclass(eq=False)
class Collection:
    """A fragment of one worker: begun with a version, in a stage, complete at a time."""

    rank: int
    version: int
    stage: int
    at: float


@dataclass
class Workshop:
    """Engine whose clock only waiting moves. A worker takes the next of its durations for each fragment.

    An update is a reference that is answered at a time.
    """

    durations: list[list[float]]
    clock: float = 0.0
    begun: list[Collection] = field(default_factory=list)

    @property
    def num_collectors(self) -> int:
        return len(self.durations)

    def collect(self, snapshot: int, stage: int, rank: int | None = None) -> Any:
        if rank is None:
            return [self.collect(snapshot, stage, one) for one in range(self.num_collectors)]
        mine = self.durations[rank]
        seconds = mine[sum(one.rank == rank for one in self.begun) % len(mine)]
        self.begun.append(Collection(rank, snapshot, stage, self.clock + seconds))
        return self.begun[-1]

    def gather(self, collection: Any) -> tuple[list[Any], list[Any]]:
        found = collection if isinstance(collection, list) else [collection]
        self.clock = max(self.clock, *(one.at for one in found))
        return found, []

    def wait_for_any(self, collections: list[Collection], refs: list[float]) -> list[float]:
        self.clock = max(self.clock, min([*(one.at for one in collections), *refs]))
        return [ref for ref in refs if ref > self.clock]

    def is_complete(self, collection: Collection) -> bool:
        return collection.at <= self.clock

    def wait(self, refs: list[float]) -> None:
        self.clock = max([self.clock, *refs])


def run(pipeline, engine: Workshop, iterations: int, learning: float) -> list[list[Collection]]:
    """Learns from one iteration after another, each for a time; version k acts once k updates are complete."""
    learnt = []
    for iteration in range(1, iterations + 1):
        learnt.append(pipeline.next(iteration - 1, iteration).batches)
        pipeline.wait([engine.clock + learning])
    return learnt


def one_stage(until: int) -> list[Stage]:
    return [Stage("only", until, SimpleNamespace())]


def lags(learnt: list[list[Collection]]) -> list[list[int]]:
    return [[iteration - one.version for one in batch] for iteration, batch in enumerate(learnt)]


def test_sync_learns_from_the_newest_weights_and_waits_for_the_slowest_worker():
    engine = Workshop([[1.0], [5.0]])
    learnt = run(SyncPipeline(engine, one_stage(3)), engine, 3, learning=2.0)
    assert lags(learnt) == [[0, 0], [0, 0], [0, 0]]
    assert engine.clock == 3 * (5.0 + 2.0)


def test_ahead_collects_while_it_learns_with_weights_that_are_one_update_older():
    engine = Workshop([[1.0], [5.0]])
    learnt = run(AheadPipeline(engine, one_stage(3)), engine, 3, learning=2.0)
    assert lags(learnt) == [[0, 0], [1, 1], [1, 1]]
    assert engine.clock == 3 * 5.0 + 2.0
    assert len(engine.begun) == 6, "nothing is collected that no iteration learns from"


def test_in_a_stream_a_worker_that_is_five_times_slower_costs_its_own_share_only():
    engine = Workshop([[1.0], [5.0]])
    learnt = run(StreamPipeline(engine, one_stage(60), max_lag=4), engine, 60, learning=0.5)
    rate = sum(len(batch) for batch in learnt) / engine.clock
    assert rate > 0.97 * (1 / 1.0 + 1 / 5.0)
    slow = sum(one.rank == 1 for batch in learnt for one in batch)
    assert 18 <= slow <= 21, "a sixth of all fragments"


def test_in_a_stream_a_tight_bound_makes_the_fast_worker_wait_for_the_slow_one():
    def clock(max_lag: int) -> float:
        engine = Workshop([[1.0], [5.0]])
        learnt = run(StreamPipeline(engine, one_stage(30), max_lag), engine, 30, learning=0.5)
        assert max(lag for batch in lags(learnt) for lag in batch) <= max_lag
        return engine.clock

    assert clock(max_lag=1) > 1.3 * clock(max_lag=4)


def test_in_a_stream_a_slow_learner_holds_the_workers_back():
    engine = Workshop([[1.0], [1.0]])
    learnt = run(StreamPipeline(engine, one_stage(20), max_lag=3), engine, 20, learning=100.0)
    assert max(lag for batch in lags(learnt) for lag in batch) == 3
    assert len(engine.begun) == 40


def test_a_stage_of_a_stream_learns_from_its_own_fragments_only():
    engine = Workshop([[1.0], [3.0]])
    plan = [Stage("first", 3, SimpleNamespace()), Stage("second", 6, SimpleNamespace())]
    learnt = run(StreamPipeline(engine, plan, max_lag=4), engine, 6, learning=0.5)
    assert [{one.stage for one in batch} for batch in learnt] == [{0}] * 3 + [{1}] * 3


def test_a_stream_that_settles_leaves_all_workers_idle_and_keeps_what_they_collected():
    engine = Workshop([[1.0], [5.0]])
    pipeline = StreamPipeline(engine, one_stage(10), max_lag=4)
    pipeline.next(0, 1)
    assert pipeline.collecting
    pipeline.settle()
    assert not pipeline.collecting
    assert all(engine.is_complete(one) for one in engine.begun)
    left = [pipeline.next(iteration - 1, iteration).batches for iteration in range(2, 11)]
    assert sum(len(batch) for batch in left) == 18


@settings(max_examples=200, deadline=None)
@given(
    durations=st.lists(st.lists(st.floats(0.1, 20.0), min_size=1, max_size=5), min_size=1, max_size=5),
    learning=st.lists(st.floats(0.0, 20.0), min_size=1, max_size=5),
    max_lag=st.integers(1, 6),
    untils=st.lists(st.integers(1, 8), min_size=1, max_size=3),
)
def test_whatever_the_speeds_a_stream_learns_from_every_fragment_once_in_its_stage_within_the_bound(
    durations, learning, max_lag, untils
):
    engine = Workshop(durations)
    plan = [Stage(f"{index}", until, SimpleNamespace()) for index, until in enumerate(itertools.accumulate(untils))]
    pipeline = StreamPipeline(engine, plan, max_lag)
    seen: list[Collection] = []
    for iteration in range(1, plan[-1].until + 1):
        batch = pipeline.next(iteration - 1, iteration).batches
        stage = next(index for index, one in enumerate(plan) if iteration <= one.until)
        assert len(batch) == engine.num_collectors
        assert all(one.stage == stage and 0 <= iteration - 1 - one.version <= max_lag for one in batch)
        for rank in range(engine.num_collectors):
            own = [engine.begun.index(one) for one in batch if one.rank == rank]
            assert own == sorted(own), "fragments of one worker stay in the order of time"
        pipeline.wait([engine.clock + learning[iteration % len(learning)]])
        seen += batch
    assert sorted(map(id, seen)) == sorted(map(id, engine.begun)), "each once, and none is left over"


# --- whole runs


@pytest.mark.parametrize(("kind", "make"), [("ahead", sac), ("stream", scripted)])
def test_counts_and_metrics_of_a_run_are_those_of_its_ledger(tmp_path, kind, make):
    result = rlpipe.train(make(tmp_path, f"runner.pipeline={kind}"), local=True)
    rows = lines(result.directory, "metrics.jsonl")
    assert [row["metrics"]["rollout/policy_lag_max"] for row in rows] == [0, 1, 1, 1]
    assert [row["metrics"]["rollout/data_staleness/1"] for row in rows] == [0.0, 1.0, 1.0, 1.0]
    assert rows[-1]["metrics"]["time/total_timesteps"] == 256
    for row in rows:
        expected = from_ledger(result.directory, "episodes.jsonl", m.ENV, row["iteration"])
        assert {name: row["metrics"].get(name) for name in expected} == expected


@pytest.fixture(scope="module")
def ahead(tmp_path_factory):
    """Rows of a run that collects ahead."""
    config = scripted(tmp_path_factory.mktemp("ahead"), "runner.pipeline=ahead")
    return lines(rlpipe.train(config, local=True).directory, "metrics.jsonl")


def test_ahead_acts_with_the_average_version_that_it_says(ahead):
    assert [row["metrics"]["train/actor/average_version"] for row in ahead] == [0, 0, 1, 2]


def test_log_probabilities_are_only_compared_with_the_workers_where_both_have_the_same_weights(ahead):
    compared = ["train/actor/rollout_train_kl" in row["metrics"] for row in ahead]
    assert compared == [True, False, False, False]


def test_decisions_are_corrected_from_the_lag_that_is_configured(ahead, tmp_path):
    plain = rlpipe.train(scripted(tmp_path, "runner.pipeline=ahead", "algorithm.correct_from_lag=2"), local=True)
    name = "train/actor/behav_approx_kl"
    assert [name in row["metrics"] for row in lines(plain.directory, "metrics.jsonl")] == [False] * 4
    assert [name in row["metrics"] for row in ahead] == [False, True, True, True]


def test_a_server_for_all_workers_cannot_serve_a_stream(tmp_path):
    with pytest.raises(ConfigError, match=r"runner\.pipeline is stream.*rollout\.inference=local"):
        scripted(tmp_path, "runner.pipeline=stream", "rollout.inference=server")
