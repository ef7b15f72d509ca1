"""Compares ManiSkill environments that are stepped as one (``batched=true``) with stock environments of ManiSkill.

    python benchmarks/batched_maniskill.py equality --steps 20000    # "0 unequal numbers" for each task and mode
    python benchmarks/batched_maniskill.py time                      # CPU time of an environment step, and the ratios
    python benchmarks/batched_maniskill.py start                     # seconds and memory of 16 environments

``equality`` steps both with the same random actions, smoothed so that the robot moves far, and resets both with the
same seeds. In demonstrated tasks (configs/demonstrations) half of the episodes replay a successful demonstration. Every
number of every step is compared: observations, rewards, ends, and all that the task reports. It takes hours for many
steps; ``--tasks`` and ``--modes`` continue it where it was stopped.

``time`` compares three contenders in turn in one process, by the CPU time of the thread: ``gymnasium.make`` one by one,
``batched=false`` and ``batched=true``. Resets count. Ratios mean more than microseconds, which depend on the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import itertools
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from rlpipe.envs.base import Simulator
from rlpipe.envs.maniskill import ManiSkill
from rlpipe.envs.maniskill.loading import load_maniskill
from rlpipe.envs.maniskill.options import ManiSkillConfig
from rlpipe.envs.maniskill.single import ManiSkillEnv

TASKS = ["PushCube-v1", "PickCube-v1", "StackCube-v1", "PegInsertionSide-v1", "LiftPegUpright-v1"]
MODES = ["pd_joint_delta_pos", "pd_ee_delta_pos", "pd_ee_delta_pose"]
TIMED = [
    ("PushCube-v1", "pd_joint_delta_pos"),
    ("PickCube-v1", "pd_ee_delta_pos"),
    ("PegInsertionSide-v1", "pd_ee_delta_pose"),
]
DEMONSTRATIONS = Path(__file__).parent.parent / "configs" / "demonstrations"
LIMIT = 60
"""Steps of an episode of random actions."""


def config_of(task: str, mode: str, *, batched: bool, limit: int | None = None) -> ManiSkillConfig:
    """Options of a task under dense reward, which uses most of its numbers."""
    return ManiSkillConfig(
        "maniskill",
        id=task,
        control_mode=mode,
        reward_mode="normalized_dense",
        batched=batched,
        max_episode_steps=limit,
    )


# ---- equality ----


def demonstrated(task: str, mode: str) -> list[tuple[int, np.ndarray]]:
    """Seeds and actions [L, A] of successful demonstrations of a task in a control mode."""
    import h5py

    index = DEMONSTRATIONS / f"{task}.json"
    if not index.exists():
        return []
    described = json.loads(index.read_text(encoding="utf-8"))
    if described["env_info"]["env_kwargs"]["control_mode"] != mode:
        return []
    with h5py.File(index.with_suffix(".h5")) as file:
        return [
            (one["episode_seed"], np.array(file[f"traj_{one['episode_id']}/actions"], dtype=np.float32))
            for one in described["episodes"]
            if one["success"]
        ]


def random_episodes(seed: int, size: int) -> Iterator[tuple[int, np.ndarray]]:
    """Seeds and smoothed random actions [L, A]; the length varies, so that scenes are reset at different times."""
    generator = np.random.default_rng(seed)
    while True:
        length = int(generator.integers(LIMIT // 3, LIMIT))
        kept = np.repeat(generator.uniform(-1, 1, (-(-length // 5), size)), 5, axis=0)[:length]
        actions = np.clip(kept + generator.normal(0, 0.3, kept.shape), -1, 1)
        yield int(generator.integers(2**31)), actions.astype(np.float32)


def unequal_numbers(task: str, mode: str, steps: int, count: int) -> dict[str, int]:
    """Steps a group and stock environments alike. Returns what was compared, and how many numbers differed."""
    from rlpipe.envs.maniskill.batched import SceneGroup, SceneStep, checked_rows, differences

    asked = config_of(task, mode, batched=True, limit=10**6)
    rows = checked_rows(lambda: ManiSkillEnv(asked), count, asked.what_is_checked)
    group = SceneGroup([ManiSkillEnv(asked) for _ in range(count)], rows)
    twins = [ManiSkillEnv(asked) for _ in range(count)]
    shown = iter(demonstrated(task, mode))
    drawn = random_episodes(0, twins[0].spec.action_dim)
    running: list[Any] = [None] * count
    found = {"steps": 0, "resets": 0, "demonstrations": 0, "successful steps": 0, "unequal": 0}
    while found["steps"] < steps:
        for scene, twin in enumerate(twins):
            if running[scene] is None:
                demonstration = next(shown, None) if scene % 2 else None
                seed, actions = next(drawn) if demonstration is None else demonstration
                found["demonstrations"] += demonstration is not None
                ours, theirs = group.reset(scene, seed), twin.reset(seed)
                found["resets"] += 1
                found["unequal"] += int((ours[0] != theirs[0]).sum()) + (ours[1] != theirs[1])
                running[scene] = iter(actions)
        actions = [next(one, None) for one in running]
        active = [scene for scene, action in enumerate(actions) if action is not None]
        running = [one if action is not None else None for one, action in zip(running, actions, strict=True)]
        if not active:
            continue
        idle = np.zeros(twins[0].spec.action_dim, dtype=np.float32)
        answer = group.step(np.stack([idle if action is None else action for action in actions]), active)
        for scene in active:
            observation, reward, terminated, _, info = twins[scene].task.step(actions[scene])
            stock = SceneStep(observation, reward, terminated, info)
            found["unequal"] += len(list(differences(answer, stock, scene)))
            found["successful steps"] += bool(info["success"].item()) if "success" in info else 0
        found["steps"] += len(active)
    return found


def equality(options: argparse.Namespace) -> None:
    """Prints the number of unequal numbers for each task and control mode."""
    for task, mode in itertools.product(options.tasks or TASKS, options.modes or MODES):
        began = time.process_time()
        with torch.inference_mode():
            found = unequal_numbers(task, mode, options.steps, options.envs[0])
        told = ", ".join(f"{value:,} {name}" for name, value in found.items() if name != "unequal")
        seconds = time.process_time() - began
        print(f"{task} {mode}: {found['unequal']} unequal numbers ({told}; {seconds:.0f} s)", flush=True)


# ---- CPU time ----


@contextlib.contextmanager
def as_installed() -> Iterator[None]:
    """Takes back what rlpipe makes quicker in ManiSkill itself, and the exemption from garbage collection."""
    from mani_skill.utils.geometry import rotation_conversions
    from mani_skill.utils.structs.pose import Pose

    create, multiply = Pose.__dict__["create"], rotation_conversions.quaternion_raw_multiply
    Pose.create = classmethod(getattr(create.__func__, "__wrapped__", create.__func__))
    rotation_conversions.quaternion_raw_multiply = getattr(multiply, "__wrapped__", multiply)
    gc.unfreeze()
    try:
        yield
    finally:
        gc.freeze()
        Pose.create, rotation_conversions.quaternion_raw_multiply = create, multiply


class Stock:
    """Environments of ``gymnasium.make``, one by one, reset at their ends."""

    def __init__(self, task: str, mode: str, count: int) -> None:
        """Makes the environments."""
        self.envs = [
            gymnasium.make(
                task, num_envs=1, obs_mode="state", control_mode=mode, reward_mode="normalized_dense",
                sim_backend="physx_cpu", render_backend="none",
            )
            for _ in range(count)
        ]  # fmt: skip
        self.seeds = itertools.count(1)

    def reset(self) -> None:
        """Begins an episode in each."""
        for env in self.envs:
            env.reset(seed=next(self.seeds))

    def step(self, actions: np.ndarray) -> None:
        """Takes a step in each."""
        for env, action in zip(self.envs, actions, strict=True):
            *_, terminated, truncated, _ = env.step(action)
            if bool(terminated) or bool(truncated):
                env.reset(seed=next(self.seeds))


def simulator(task: str, mode: str, count: int, *, batched: bool) -> Simulator:
    """Returns a simulator with seeds from a counter."""
    seeds = itertools.count(1)
    return ManiSkill.make(config_of(task, mode, batched=batched), count, lambda _: next(seeds))


def episodes(contender: Any, actions: np.ndarray) -> float:
    """CPU seconds of the steps of one time limit, with the resets that they bring."""
    with torch.inference_mode(), as_installed() if isinstance(contender, Stock) else contextlib.nullcontext():
        began = time.thread_time()
        for action in actions:
            contender.step(action)
        return time.thread_time() - began


def compare_time(task: str, mode: str, count: int, rounds: int) -> list[str]:
    """Row of the table: medians of microseconds per environment step, and of the ratios of neighbouring rounds."""
    contenders: list[Any] = [
        Stock(task, mode, count),
        *(simulator(task, mode, count, batched=b) for b in (False, True)),
    ]
    for contender in contenders:
        contender.reset()
    steps = gymnasium.spec(task).max_episode_steps or LIMIT
    size = contenders[1].spec.action_dim
    actions = np.random.default_rng(0).uniform(-1, 1, (steps, count, size)).astype(np.float32)
    taken = np.array([[episodes(contender, actions) for contender in contenders] for _ in range(rounds + 1)])[1:]
    stock, loop, batched = (1e6 * np.median(taken, axis=0) / steps / count).tolist()
    gains = [taken[:, 0] / taken[:, 2], taken[:, 1] / taken[:, 2]]
    told = [f"{np.median(gain):.2f} [{gain.min():.2f}-{gain.max():.2f}]" for gain in gains]
    return [task, mode, str(count), f"{stock:.0f}", f"{loop:.0f}", f"{batched:.0f}", *told]


def compare_times(options: argparse.Namespace) -> None:
    """Prints the CPU time of an environment step for each task and number of environments."""
    table = Table("task", "mode", "K", "stock, us", "in turn, us", "batched, us", "stock/batched", "in turn/batched")
    console = Console(width=140)
    for task, mode in TIMED:
        if task in (options.tasks or [task]) and mode in (options.modes or [mode]):
            for count in options.envs:
                row = compare_time(task, mode, count, options.rounds)
                table.add_row(*row)
                console.print(" | ".join(row))
    console.print(table)


# ---- start ----


def measure_start(options: argparse.Namespace) -> None:
    """Prints as JSON the CPU seconds of making environments, and of making them again; the megabytes that they add."""
    (task,), (kind,), (count,) = options.tasks, options.kinds, options.envs
    mode = dict(TIMED)[task]
    ManiSkillEnv(config_of(task, mode, batched=False)).close()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = []
    for _ in range(2):
        began = time.process_time()
        made = Stock(task, mode, count) if kind == "stock" else simulator(task, mode, count, batched=kind == "batched")
        seconds.append(time.process_time() - began)
        if isinstance(made, Simulator):
            made.close()
    print(json.dumps([*seconds, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024]))


def compare_start(options: argparse.Namespace) -> None:
    """Prints the CPU seconds and the memory that environments take to be made, each kind in a process of its own."""
    table = Table("task", "kind", "made first, s", "made again, s", "memory, MB")
    for task, kind in itertools.product(options.tasks or dict(TIMED), options.kinds):
        order = [sys.executable, __file__, "start-of-one", "--tasks", task, "--kinds", kind, "--envs"]
        found = []
        for _ in range(options.rounds):
            told = subprocess.run([*order, str(options.envs[-1])], capture_output=True, text=True, check=True).stdout
            found.append(json.loads(told.splitlines()[-1]))
        medians = [statistics.median(values) for values in zip(*found, strict=True)]
        row = [task, kind, f"{medians[0]:.2f}", f"{medians[1]:.2f}", f"{medians[2]:.0f}"]
        print(" | ".join(row), flush=True)
        table.add_row(*row)
    Console(width=120).print(table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("equality", "time", "start", "start-of-one"))
    parser.add_argument("--kinds", nargs="*", default=["stock", "in turn", "batched"], help="contenders of start")
    parser.add_argument("--tasks", nargs="*", help="only these tasks")
    parser.add_argument("--modes", nargs="*", help="only these control modes")
    parser.add_argument("--steps", type=int, default=20_000, help="environment steps for each task and mode")
    parser.add_argument("--envs", type=int, nargs="*", default=[8, 16], help="numbers of environments")
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds of one time limit, or starts")
    torch.set_num_threads(1)
    load_maniskill()
    asked = parser.parse_args()
    tasks = {"equality": equality, "time": compare_times, "start": compare_start, "start-of-one": measure_start}
    tasks[asked.what](asked)
