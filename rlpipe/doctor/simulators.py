"""Trials of the configured simulators: made, reset and stepped once before a run."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rlpipe.config.plan import Plan
from rlpipe.config.schema import FIRST_TRAINING_SEED
from rlpipe.doctor.results import CheckResult, fail, ok
from rlpipe.envs.shared.make import make_simulator
from rlpipe.errors import ConfigError, SimulatorError, how_it_failed
from rlpipe.trajectory import SpaceSpec
from rlpipe.trajectory.tree import leaves_of

_STEPS = 10


@dataclass(frozen=True)
class Trial:
    """Trial of a simulator.

    Attributes:
        task: name of the simulator's task, and what it is for.
        failure: what went wrong; empty if nothing did.
        start: seconds to make it.
        reset: seconds of the first reset.
        speed: steps per second, by the median, because the first step is slow; of one environment, or of one of each
            task.
        peak: bytes of the process.
        spec: spaces of the simulator; None if it failed.
    """

    task: str
    failure: str = ""
    start: float = 0.0
    reset: float = 0.0
    speed: float = 0.0
    peak: float = 0.0
    spec: SpaceSpec | None = None


def simulators(config: Plan) -> dict[str, Any]:
    """Returns the options of each different simulator of a run by its first use: a stage, or evaluation."""
    uses = {stage.name: stage.config.env.train for stage in config.schedule} | {"evaluation": config.env.eval}
    by_use: dict[str, Any] = {}
    for use, options in uses.items():
        single = replace(options, total_num_envs=1)
        if single not in by_use.values():
            by_use[use] = single
    return by_use


def try_simulators(configured: Mapping[str, Any]) -> list[Trial]:
    """Makes each simulator in this process, resets it and takes ten steps."""
    return [_try(f"{_task(options)} ({use})", options) for use, options in configured.items()]


def _task(options: Any) -> str:
    """Names the task of a simulator, or says how many it has."""
    return f"{len(options.tasks)} tasks" if options.tasks else getattr(options, "id", options.name)


def _try(task: str, options: Any) -> Trial:
    try:
        return _timed_trial(task, options)
    except (ConfigError, SimulatorError) as error:
        return Trial(task, str(error))
    except BaseException as error:
        return Trial(task, f"it {how_it_failed(error)}")


def _timed_trial(task: str, options: Any) -> Trial:
    import resource

    began = time.perf_counter()
    count = max(1, len(options.tasks))
    simulator = make_simulator(options, count, lambda _: FIRST_TRAINING_SEED)
    made_at = time.perf_counter()
    observations, _ = simulator.reset()
    reset_at = time.perf_counter()
    spec, noise, seconds = simulator.spec, np.random.default_rng(0), []
    finite = _finite(observations)
    for _ in range(_STEPS):
        if spec.num_actions is not None:
            actions: Any = noise.integers(spec.num_actions, size=(count, *spec.action_shape))
        else:
            actions = spec.clip(noise.standard_normal((count, spec.action_dim), dtype=np.float32))
        step_began = time.perf_counter()
        step = simulator.step(actions)
        seconds.append(time.perf_counter() - step_began)
        finite &= _finite(step.successors) and _finite(step.rewards)
    simulator.close()
    if not finite:
        return Trial(task, f"an observation or a reward within its first {_STEPS} steps is not finite")
    where = resource.RUSAGE_SELF if options.python is None else resource.RUSAGE_CHILDREN
    peak = resource.getrusage(where).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return Trial(task, "", made_at - began, reset_at - made_at, count / statistics.median(seconds), peak, spec)


def _finite(values: Any) -> bool:
    return all(np.isfinite(leaf).all() for leaf in leaves_of(values))


def check_trial(trial: Trial) -> CheckResult:
    """Judges the trial of a simulator."""
    if trial.failure:
        return fail("simulator", f"{trial.task}: {trial.failure}", "try it alone: rlpipe train CONFIG --local")
    speed = f"{trial.task}: {trial.speed:,.0f} steps/s, reset {1000 * trial.reset:,.0f} ms"
    return ok("simulator", f"{speed}; loaded in {trial.start:.1f} s, {trial.peak / 1e9:.1f} GB of memory")
