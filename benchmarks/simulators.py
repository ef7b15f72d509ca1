"""Measures what collection costs beside the simulator's own loop.

    python benchmarks/simulators.py                       # every task whose packages are installed
    python benchmarks/simulators.py MetaWorld/PickPlace-v3 FetchPush-v4 --rounds 7
    python benchmarks/simulators.py PushCube-v1 InvertedPendulum-v5 --variations

For each task, both take turns in one process with one thread: the loop of the library alone, with random actions drawn
beforehand, and a rollout worker of rlpipe with a policy of three layers of 256, its metrics and its fragments. Printed
are the steps of each in a second, resets included, and the share of the library's speed that is left: the median of the
neighbouring rounds, with the least and the greatest. A round lasts whole episodes where the task has a time limit,
because environments that began together are all reset in the same step. Counted is processor time, because other work
on the machine lengthens the wall clock of both; `--clock wall` counts the wall clock, for a quiet machine. EnvPool's
threads spin for a moment before they sleep, so a processor's second holds some waiting. The last column is the
wall clock from the command `rlpipe train CONFIG --local` to its first step of all environments, learnt from and written
down.

With `--variations`, rollout workers take turns: one without variations, one with all axes that every simulator has, and
one with all of the task's physics, over the ranges of `rlpipe stress`. Printed is the ratio of their median speeds to
that of the first, with the least and the greatest of all rounds.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks import machine
from rlpipe.config.loading import load_config
from rlpipe.config.simulators import task_facts
from rlpipe.config.variations import NEEDS, Axis
from rlpipe.envs.shared.axes import EVERYWHERE
from rlpipe.policies.base import NoWeights, Snapshot
from rlpipe.training.local import LocalEngine
from rlpipe.trajectory import SpaceSpec

DRAWN = 64
"""Steps of random actions that are drawn beforehand, and repeated."""


class Task(NamedTuple):
    """A task to measure.

    Attributes:
        simulator: ``env.train``, without the number of environments.
        environments: their number.
        package: module that must be installed.
        own_loop: makes the loop of the library.
    """

    simulator: dict[str, Any]
    environments: int
    package: str
    own_loop: Callable[[Task], Iterator[None]]


def drawn(shape: tuple[int, ...], low: Any, high: Any, dtype: Any) -> Iterator[Any]:
    """Yields random actions without end."""
    generator = np.random.default_rng(0)
    actions = [generator.uniform(low, high, shape).astype(dtype) for _ in range(DRAWN)]
    while True:
        yield from actions


def envpool_loop(task: Task) -> Iterator[None]:
    """Steps a pool in one thread."""
    import envpool

    count, options = task.environments, task.simulator.get("kwargs", {})
    env = envpool.make(task.simulator["id"], "gymnasium", num_envs=count, seed=0, num_threads=1, **options)
    env.reset()
    space = env.action_space
    for actions in drawn((count, *space.shape), space.low, space.high, space.dtype):
        env.step(actions)
        yield


def gymnasium_loop(task: Task) -> Iterator[None]:
    """Steps environments that ``gymnasium.make`` returns one after another, and resets each at its end."""
    import gymnasium

    envs = [gymnasium.make(task.simulator["id"]) for _ in range(task.environments)]
    for number, env in enumerate(envs):
        env.reset(seed=number)
    space = envs[0].action_space
    for actions in drawn((len(envs), *space.shape), space.low, space.high, space.dtype):
        for env, action in zip(envs, actions, strict=True):
            *_, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
        yield


def maniskill_loop(task: Task) -> Iterator[None]:
    """Steps ManiSkill's environments one after another, and resets each at its end."""
    import gymnasium
    import torch

    from rlpipe.envs.maniskill.loading import load_maniskill

    load_maniskill()  # registers the tasks, which without it need a rendering device
    options = {key: task.simulator[key] for key in ("control_mode", "reward_mode")}
    envs = [
        gymnasium.make(task.simulator["id"], obs_mode="state", sim_backend="cpu", render_backend="none", **options)
        for _ in range(task.environments)
    ]
    for number, env in enumerate(envs):
        env.reset(seed=number)
    shape = envs[0].unwrapped.single_action_space.shape
    with torch.inference_mode():
        for actions in drawn((len(envs), *shape), -1.0, 1.0, np.float32):
            for env, action in zip(envs, actions, strict=True):
                *_, terminated, truncated, _ = env.step(action)
                if bool(terminated) or bool(truncated):
                    env.reset()
            yield


def metaworld_loop(task: Task) -> Iterator[None]:
    """Steps Meta-World's own environments one after another, and resets each at its end."""
    from metaworld.env_dict import ALL_V3_ENVIRONMENTS_GOAL_OBSERVABLE

    make = ALL_V3_ENVIRONMENTS_GOAL_OBSERVABLE[f"{task.simulator['id']}-goal-observable"]
    envs = [make(seed=number) for number in range(task.environments)]
    for env in envs:
        env.reset()
    space = envs[0].action_space
    for actions in drawn((len(envs), *space.shape), space.low, space.high, space.dtype):
        for env, action in zip(envs, actions, strict=True):
            *_, truncated, _ = env.step(action)
            if truncated:
                env.reset()
        yield


def dm_control_loop(task: Task) -> Iterator[None]:
    """Steps dm_control's environments one after another; each resets itself with the step after its end."""
    from dm_control import manipulation, suite

    domain, _, name = task.simulator["id"].partition("/")
    envs = [
        manipulation.load(name, seed=number) if domain == "manipulation"
        else suite.load(domain, name, task_kwargs={"random": number})
        for number in range(task.environments)
    ]  # fmt: skip
    for env in envs:
        env.reset()
    spec = envs[0].action_spec()
    for actions in drawn((len(envs), *spec.shape), spec.minimum, spec.maximum, spec.dtype):
        for env, action in zip(envs, actions, strict=True):
            env.step(action)
        yield


def _envpool(name: str, count: int = 64, **kwargs: Any) -> Task:
    return Task({"name": "envpool", "id": name, "kwargs": kwargs}, count, "envpool", envpool_loop)


def _maniskill(name: str, control_mode: str) -> Task:
    options = {"control_mode": control_mode, "reward_mode": "sparse"}
    return Task({"name": "maniskill", "id": name, **options}, 16, "mani_skill", maniskill_loop)


TASKS = {
    "MetaWorld/PickPlace-v3": _envpool("MetaWorld/PickPlace-v3", partially_observable=False),
    "FetchPush-v4": _envpool("FetchPush-v4"),
    "PandaPickCube-v1": _envpool("PandaPickCube-v1", 16),
    "AdroitHandDoorSparse-v1": _envpool("AdroitHandDoorSparse-v1"),
    "gymnasium_robotics:FetchPush-v4": Task(
        {"name": "gymnasium", "id": "gymnasium_robotics:FetchPush-v4", "success_key": "is_success"},
        16, "gymnasium_robotics", gymnasium_loop,
    ),
    "gym_pusht:gym_pusht/PushT-v0": Task(
        {"name": "gymnasium", "id": "gym_pusht:gym_pusht/PushT-v0", "success_key": "is_success"},
        16, "gym_pusht", gymnasium_loop,
    ),
    "pick-place-v3": Task({"name": "metaworld", "id": "pick-place-v3"}, 16, "metaworld", metaworld_loop),
    "manipulation/reach_site_features": Task(
        {"name": "dm_control", "id": "manipulation/reach_site_features"}, 4, "dm_control", dm_control_loop
    ),
    "cheetah/run": Task({"name": "dm_control", "id": "cheetah/run"}, 16, "dm_control", dm_control_loop),
    "InvertedPendulum-v5": Task({"name": "gymnasium", "id": "InvertedPendulum-v5"}, 16, "mujoco", gymnasium_loop),
    "PickCube-v1": _maniskill("PickCube-v1", "pd_ee_delta_pos"),
    "PushCube-v1": _maniskill("PushCube-v1", "pd_joint_delta_pos"),
}  # fmt: skip


def settings(task: Task, steps: int) -> dict[str, Any]:
    """Configuration of a run with some steps of every environment in a fragment."""
    return {
        "env": {"train": {**task.simulator, "total_num_envs": task.environments}},
        "policy": {"name": "mlp", "hidden_sizes": [256, 256, 256]},
        "algorithm": {"name": "ppo", "num_minibatches": 1},
        "learner": {"num_threads": 1},
        "rollout": {"num_workers": 1, "horizon": steps},
        "evaluation": {"episodes": 1},
    }


def first_step(task: Task) -> float:
    """Seconds from the command to the first row of metrics."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "config.yaml")
        logger = {"log_path": folder, "logger_backends": []}
        config.write_text(json.dumps({**settings(task, 1), "runner": {"logger": logger}}))  # JSON is YAML
        began = time.perf_counter()
        run = subprocess.Popen(
            [sys.executable, "-m", "rlpipe", "train", str(config), "--local"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            while not any(file.stat().st_size for file in Path(folder).glob("*/*/metrics.jsonl")):
                if run.poll() is not None:
                    raise SystemExit(f"rlpipe train ended with exit code {run.returncode}: {task.simulator}")
                time.sleep(0.01)
            return time.perf_counter() - began
        finally:
            run.kill()
            run.wait()


def worker_loop(task: Task, steps: int) -> Iterator[SpaceSpec]:
    """Collects fragments in this process, each of some steps of every environment; yields the spaces of the task."""
    config = load_config(settings(task, steps))
    engine = LocalEngine(config)
    spec = engine.start_workers(config.schedule, 0).spec
    while True:
        engine.gather(engine.collect(Snapshot(0, NoWeights.FROM_SEED), 0))
        yield spec


CLOCKS = {"processor": time.process_time, "wall": time.perf_counter}


def spent(loop: Iterator[Any], times: int, clock: Callable[[], float]) -> float:
    """Seconds of some turns of a loop."""
    began = clock()
    for _ in range(times):
        next(loop)
    return clock() - began


def measure(task: Task, rounds: int, seconds: float, clock: Callable[[], float]) -> tuple[float, float, list[float]]:
    """Returns the steps in a second of the library and of ours, and the ratio of each round."""
    library = task.own_loop(task)
    next(library)
    steps = max(16, int(seconds / (spent(library, 8, clock) / 8)))
    train = load_config(settings(task, 1)).env.train
    if limit := task_facts(train, "env.train").time_limit:
        steps = -(-steps // limit) * limit
    ours = worker_loop(task, steps)
    next(ours)
    pairs = [(spent(library, steps, clock), spent(ours, 1, clock)) for _ in range(rounds)]
    taken = steps * task.environments
    return (
        taken / statistics.median(one for one, _ in pairs),
        taken / statistics.median(other for _, other in pairs),
        [one / other for one, other in pairs],
    )


def varied(task: Task, axes: Iterable[Axis]) -> Task:
    """Returns a task in which axes vary over the ranges of ``rlpipe stress``."""
    variations: dict[str, Any] = {}
    for axis in axes:
        assert axis.stress is not None
        low, high = axis.stress
        variations[axis.name] = (
            {"choice": [*range(int(low), int(high) + 1)]} if axis.in_steps else {"uniform": [low, high]}
        )
    return task._replace(simulator={**task.simulator, "variations": variations})


class Arm(NamedTuple):
    """Speed of a worker with some axes.

    Attributes:
        axes: their number.
        rate: steps in a second, median over the rounds.
        ratio: that rate in relation to the one without axes.
        ratios: the same, by round.
    """

    axes: int
    rate: float
    ratio: float
    ratios: list[float]


def measure_variations(task: Task, rounds: int, seconds: float, clock: Callable[[], float]) -> dict[str, Arm]:
    """Measures workers without axes, with generic ones, and with those of the physics, in turn."""
    facts = task_facts(load_config(settings(task, 1)).env.train, "env.train")
    steps = facts.time_limit or 64
    loops = {"none": worker_loop(task, steps)}
    spec = next(loops["none"])
    arms = {
        "none": [],
        "generic": [axis for axis in EVERYWHERE if not axis.needs or NEEDS[axis.needs](spec)],
        "physics": [axis for axis in facts.axes if axis.acts_on == "physics"],
    }
    loops |= {arm: worker_loop(varied(task, axes), steps) for arm, axes in arms.items() if axes}
    for loop in loops.values():
        next(loop)
    turns = max(1, round(seconds / spent(loops["none"], 1, clock)))
    order = [*loops]
    taken: dict[str, list[float]] = {arm: [] for arm in loops}
    for _ in range(rounds):
        for arm in order:
            taken[arm].append(spent(loops[arm], turns, clock))
        order = [*order[1:], order[0]]
        print({arm: round(times[-1], 3) for arm, times in taken.items()}, file=sys.stderr, flush=True)
    middle = {arm: statistics.median(times) for arm, times in taken.items()}
    return {
        arm: Arm(
            len(arms[arm]),
            turns * steps * task.environments / middle[arm],
            middle["none"] / middle[arm],
            [none / time for none, time in zip(taken["none"], times, strict=True)],
        )
        for arm, times in taken.items()
    }


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"some of {', '.join(TASKS)}; all if none is named")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of the library's loop in each round")
    parser.add_argument("--clock", choices=CLOCKS, default="processor")
    parser.add_argument("--variations", action="store_true", help="what variations cost, instead of the library's loop")
    options = parser.parse_args()
    if unknown := sorted({*options.tasks} - {*TASKS}):
        parser.error(f"there is no task {unknown[0]}; there are {', '.join(TASKS)}")
    import torch

    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    screen = Table("task", "environments", "library, steps/s", "rlpipe, steps/s", "share", "first step, s")
    if options.variations:
        screen = Table("task", "environments", "arm", "axes", "steps/s", "ratio")
    for name in options.tasks or TASKS:
        task = TASKS[name]
        if importlib.util.find_spec(task.package) is None:
            screen.add_row(name, "", "", "", f"{task.package} is not installed", "")
            continue
        if options.variations:
            arms = measure_variations(task, options.rounds, options.seconds, CLOCKS[options.clock])
            for arm, (axes, rate, ratio, ratios) in arms.items():
                told = f"{ratio:.3f} [{min(ratios):.3f}, {max(ratios):.3f}]"
                screen.add_row(name, str(task.environments), arm, str(axes), f"{rate:,.0f}", told)
                print(f"{name}, {arm}: {told}", file=sys.stderr, flush=True)
            continue
        library, ours, shares = measure(task, options.rounds, options.seconds, CLOCKS[options.clock])
        share = f"{statistics.median(shares):.2f} [{min(shares):.2f}, {max(shares):.2f}]"
        screen.add_row(
            f"{name} ({task.simulator['name']})", str(task.environments), f"{library:,.0f}", f"{ours:,.0f}", share,
            f"{first_step(task):.1f}",
        )  # fmt: skip
        print(f"{name}: {share}", file=sys.stderr, flush=True)
    Console(width=140).print(screen)
    print(f"{machine.processor()}, one thread, {options.clock} time; torch {torch.__version__}")


if __name__ == "__main__":
    main()
