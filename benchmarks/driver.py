"""Driver's processor time for each rollout worker and iteration, and whether it stays the same with more workers.

    python benchmarks/driver.py                                       # both tables, a few minutes
    python benchmarks/driver.py --ray 10,100 --stand-in 10,100,1000

An iteration is what ``runner.pipeline=sync`` does: send every worker its task, take the answers as they come, send the
batches to the learner and the windows to the metric logger. ``RayEngine``, ``WorkerPool``, ``RayAnswers`` and ``Actor``
run as they are, and every window is one that a rollout worker of the scripted simulator observed. The actors do
nothing. The CPU time is that of all threads of this process, most of which are Ray's, and of the main thread.

On Ray, many workers share a few processes: a call costs the driver the same whichever process answers it, and thousands
of processes fit on no single machine. On the stand-in, which takes the place of ``ray.wait`` and ``ray.get``, all
workers have answered after 20 moments of 20 ms, at each of them a twentieth in random order. Its own time is left out,
so that table is the worker pool alone.

A line through the sizes up to a tenth of the largest predicts the others. The error of the prediction shows whether the
time grows in proportion to the number of workers.
"""

from __future__ import annotations

import argparse
import copy
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import ray
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.machine import ROOT, describe
from rlpipe.collection.worker import RolloutWorker
from rlpipe.config.loading import load_config
from rlpipe.distributed import ray_answers
from rlpipe.distributed.actors import Actor
from rlpipe.distributed.cluster import Cluster
from rlpipe.distributed.engine import RayEngine
from rlpipe.distributed.hosting import runs
from rlpipe.distributed.ray_answers import RayAnswers
from rlpipe.distributed.roles import Role
from rlpipe.distributed.worker_pool import WorkerPool
from rlpipe.metrics import MetricWindow
from rlpipe.plugins import find_modules_in
from rlpipe.policies.base import NoWeights, Snapshot

SNAPSHOT = Snapshot(0, NoWeights.FROM_SEED)
MOMENTS, MOMENT_SECONDS = 20, 0.02
"""When workers of the stand-in answer."""
PHASES = ("send", "gather", "learn", "write")
Phases = dict[str, float]
"""CPU seconds of the driver in one iteration, by phase, and of all phases: of all threads, and of the main one."""


class Idle:
    """Object of every actor: answers at once, a rollout actor for all the workers that it hosts."""

    def __init__(self, window: MetricWindow, hosted: int = 1) -> None:
        self._window, self._batches = window, ["batch"] * hosted

    def ready(self) -> str:
        return "ready"

    def collect(self, *_: Any) -> tuple[Any, ...]:
        return *self._batches, self._window

    def update(self, *_: Any) -> tuple[Snapshot, MetricWindow]:
        return SNAPSHOT, self._window

    def write(self, *_: Any) -> str:
        return "row"


class SharedActors:
    """Actors on Ray; the workers share a few processes."""

    def __init__(self, processes: int, window: MetricWindow, hosted: int) -> None:
        find_modules_in(ROOT)
        self._processes = [self._start(f"worker-{index}", window, hosted) for index in range(processes)]
        self.learner, self.logger = self._start("learner", window), self._start("logger", window)

    @staticmethod
    def _start(name: str, window: MetricWindow, hosted: int = 1) -> Actor:
        actor = Actor(Role.ROLLOUT_WORKER, name, "benchmarks.driver:Idle", {}, num_cpus=0)
        actor.make(window, hosted)
        return actor

    def start_host(self, place: int, lives: Mapping[int, int]) -> Actor:  # noqa: ARG002 - of every factory
        return copy.copy(self._processes[place % len(self._processes)])


class StandIn:
    """Ray's place: references that are answered at a moment of the real clock, and actors that return them.

    Attributes:
        seconds: CPU time that it took itself.
    """

    def __init__(self, window: MetricWindow) -> None:
        self._window = window
        self._random = random.Random(0)
        self.learner = self.logger = self
        self.seconds = 0.0

    def start_host(self, place: int, lives: Mapping[int, int]) -> StandIn:  # noqa: ARG002 - of every factory
        return self

    def call(self, *_: Any, num_returns: int = 1) -> Any:
        return [StandInRef(0.0)] * num_returns if num_returns > 1 else StandInRef(0.0)

    def deliver_within(self, *_: Any, num_objects: int) -> list[StandInRef]:
        moment = time.perf_counter() + MOMENT_SECONDS * self._random.randint(1, MOMENTS)
        return [StandInRef(moment)] * (num_objects + 1)

    def wait(self, refs: list[StandInRef], *, num_returns: int = 1, timeout: float, **_: Any) -> tuple[Any, Any]:
        began = time.thread_time()
        enough = sorted(ref.at for ref in refs)[num_returns - 1]
        self.seconds += time.thread_time() - began
        time.sleep(max(0.0, min(enough - time.perf_counter(), timeout)))
        began, now = time.thread_time(), time.perf_counter()
        done = [ref for ref in refs if ref.at <= now][:num_returns]
        pending = [*set(refs).difference(done)]
        self.seconds += time.thread_time() - began
        return done, pending

    def get(self, refs: Any, timeout: float | None = None) -> Any:  # noqa: ARG002 - of Ray
        return [self._window] * len(refs) if isinstance(refs, list) else self._window


class StandInRef:
    """Reference of the stand-in.

    Attributes:
        at: moment from which it is answered.
    """

    def __init__(self, at: float) -> None:
        self.at = at


def engine_of(config: Any, actors: SharedActors | StandIn, count: int, hosted: int = 1) -> RayEngine:
    """Returns an engine with so many workers, some in each actor, which did not have to start a run."""
    engine: Any = object.__new__(RayEngine)
    engine._config, engine._plan, engine._waiting_servers = config, config.schedule, None
    engine._launcher = SimpleNamespace(num_workers=count, num_learners=1, num_servers=0, servers=[])
    engine._learners, engine._logger, engine._steps = [actors.learner], actors.logger, [0] * count
    factory: Any = actors
    factory.wave = count
    engine._worker_pool = WorkerPool(config, runs(count, count // hosted), factory, RayAnswers(), lambda *_: None)
    engine._worker_pool.wait_until_ready()
    assert isinstance(engine, RayEngine)
    return engine


def iterate(engine: RayEngine, snapshot: Any, iteration: int) -> Phases:
    """Runs one iteration and measures its phases."""
    began, moments = time.thread_time(), [time.process_time()]
    collection = engine.collect(snapshot, 0)
    moments.append(time.process_time())
    batches, windows = engine.gather(collection)
    moments.append(time.process_time())
    _, learnt = engine.update(batches, 0, iteration)
    engine.wait(learnt)
    moments.append(time.process_time())
    engine.get(engine.write(iteration, [*learnt, *windows]))
    moments.append(time.process_time())
    phases = dict(zip(PHASES, np.diff(moments).tolist(), strict=True))
    return {**phases, "all": moments[-1] - moments[0], "main thread": time.thread_time() - began}


def on_ray(config: Any, actors: SharedActors, count: int, hosted: int, iterations: int) -> list[Phases]:
    """Measures on a real Ray."""
    engine = engine_of(config, actors, count, hosted)
    snapshot = engine.put(SNAPSHOT)
    return [iterate(engine, snapshot, iteration) for iteration in range(iterations + 1)][1:]


def on_stand_in(config: Any, window: MetricWindow, count: int, iterations: int) -> list[Phases]:
    """Measures on the stand-in."""
    stand_in, measured = StandIn(window), []
    ray_answers.ray = stand_in  # type: ignore[assignment]
    try:
        engine = engine_of(config, stand_in, count)
        for iteration in range(iterations + 1):
            before = stand_in.seconds
            phases = iterate(engine, SNAPSHOT, iteration)
            for name in ("gather", "all", "main thread"):
                phases[name] -= stand_in.seconds - before
            measured.append(phases)
    finally:
        ray_answers.ray = ray  # type: ignore[assignment]
    return measured[1:]


def prediction(seconds: dict[int, float]) -> dict[int, float]:
    """Predicts the times beyond a tenth of the largest number of workers by a line through the others.

    The line has the least sum of squared relative errors.
    """
    counts = np.asarray([*seconds], dtype=float)
    times, terms = np.asarray([*seconds.values()]), np.stack([np.ones_like(counts), counts], axis=1)
    is_fitted = counts <= counts.max() / 10
    line, *_ = np.linalg.lstsq(terms[is_fitted] / times[is_fitted, None], np.ones(is_fitted.sum()), rcond=None)
    return {int(count): float(ahead) for count, ahead in zip(counts[~is_fitted], terms[~is_fitted] @ line, strict=True)}


def table(title: str, measured: dict[int, list[Phases]]) -> Table:
    """Shows medians over the iterations beside what the line predicts."""
    names = list(next(iter(measured.values()))[0])
    totals = {count: statistics.median(one["all"] for one in phases) for count, phases in measured.items()}
    predicted = prediction(totals) if len(totals) > 2 else {}
    view = Table(title=title)
    for heading in ("workers", *names, "all workers", "predicted", "error"):
        view.add_column(heading, justify="right")
    for count, phases in measured.items():
        each = [statistics.median(one[name] for one in phases) / count for name in names]
        cells = [*(f"{1000 * seconds:.3f}" for seconds in each), f"{1000 * totals[count]:.1f}"]
        if count in predicted:
            cells += [f"{1000 * predicted[count]:.1f}", f"{100 * (predicted[count] / totals[count] - 1):+.0f} %"]
        view.add_row(f"{count:,}", *cells)
    return view


def observed_window() -> tuple[Any, MetricWindow]:
    """Returns a configuration, and a window that a rollout worker with two environments observed."""
    with tempfile.TemporaryDirectory() as folder:
        tree: dict[str, Any] = {
            "env": {"train": {"name": "scripted", "total_num_envs": 2}},
            "policy": {"name": "mlp", "hidden_sizes": [8]},
            "algorithm": {"name": "ppo", "num_minibatches": 1},
            "rollout": {"horizon": 16, "max_restarts": 0},
            "runner": {"logger": {"log_path": folder, "logger_backends": []}},
        }
        config = load_config(tree)
        worker = RolloutWorker(config.schedule, 0, 1)
        windows = [worker.collect(SNAPSHOT, 0)[1] for _ in range(2)]
        worker.close()
    return config, windows[-1]


def sizes(text: str) -> list[int]:
    """Reads numbers of workers, separated by commas."""
    return [int(size) for size in text.split(",") if size]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ray", type=sizes, default="10,30,100,200,500,2000", help="numbers of workers on Ray")
    parser.add_argument("--stand-in", type=sizes, default="100,200,500,1000,2000,10000", help="numbers on none")
    parser.add_argument("--processes", type=int, default=4, help="processes that the workers on Ray share")
    parser.add_argument("--hosted", type=int, default=1, help="workers of each actor on Ray; divides their numbers")
    parser.add_argument("--iterations", type=int, default=10)
    options = parser.parse_args(arguments)
    console = Console(width=110)
    console.print(describe("ray", "numpy"))
    config, window = observed_window()
    of_each = "CPU ms of the driver for each worker and iteration"
    if options.stand_in:
        measured = {count: on_stand_in(config, window, count, options.iterations) for count in options.stand_in}
        console.print(table(f"{of_each}, without Ray", measured))
    if options.ray:
        cluster = Cluster()
        try:
            actors = SharedActors(options.processes, window, options.hosted)
            measured = {
                count: on_ray(config, actors, count, options.hosted, options.iterations) for count in options.ray
            }
        finally:
            cluster.close()
        console.print(table(f"{of_each}, on Ray", measured))


if __name__ == "__main__":
    main()
