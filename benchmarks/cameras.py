"""Measures how many pictures a ManiSkill camera draws in a core-second, by mesh detail and size, and what they cost.

    python -m benchmarks.cameras [--task PushCube-v1] [--steps 60]

All environments live in one process and take turns, several times, so a busy machine slows all of them alike; times are
CPU seconds of the process, and each row is the median of its turns. Needs Vulkan (docs/cameras.md).
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

from rlpipe.envs.maniskill import ManiSkill
from rlpipe.envs.maniskill.options import ManiSkillConfig
from rlpipe.envs.shared.rendering import INSTALL_VULKAN, can_render

LEVELS = (None, 5000, 2000, 1000)
SIZES = (64, 128)
TURNS = 5


def make(task: str, **options):
    """One environment, begun."""
    config = ManiSkillConfig("maniskill", id=task, control_mode="pd_ee_delta_pos", max_episode_steps=10_000, **options)
    simulator = ManiSkill.make(config, 1, lambda _: 0)
    simulator.reset()
    return simulator


def seconds_per_step(simulator, steps: int) -> float:
    """CPU seconds of a step."""
    action = np.zeros((1, simulator.spec.action_dim), dtype=np.float32)
    began = time.process_time()
    for _ in range(steps):
        simulator.step(action)
    return (time.process_time() - began) / steps


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--task", default="PushCube-v1")
    parser.add_argument("--steps", type=int, default=60, help="steps of each turn")
    options = parser.parse_args()
    if not can_render():
        raise SystemExit(f"There is no Vulkan device. {INSTALL_VULKAN}")
    made = {"state": make(options.task)} | {
        (most, size): make(options.task, obs_mode="rgb", mesh_triangles=most, camera_size=size)
        for most in LEVELS
        for size in SIZES
    }
    for simulator in made.values():
        seconds_per_step(simulator, 5)  # compiles what draws
    turns = [{key: seconds_per_step(simulator, options.steps) for key, simulator in made.items()} for _ in range(TURNS)]
    taken = {key: statistics.median(turn[key] for turn in turns) for key in made}
    print("| triangles of a mesh | pixels | steps per core-second | of a step, drawing | x as shipped |")
    print("| --- | --- | --- | --- | --- |")
    print(f"| state only | - | {1 / taken['state']:.0f} | 0 % | - |")
    for most in LEVELS:
        for size in SIZES:
            seconds = taken[most, size]
            drawing = 1 - taken["state"] / seconds
            gain = statistics.median(turn[None, size] / turn[most, size] for turn in turns)
            name = "as shipped" if most is None else f"{most:,}"
            print(f"| {name} | {size} | {1 / seconds:.0f} | {drawing:.0%} | {gain:.1f} |")
    for simulator in made.values():
        simulator.close()


if __name__ == "__main__":
    main()
