"""Measures what a process of its own costs a simulator: steps per second with the boundary, relative to without.

    python benchmarks/process_boundary.py                                           # the cheap ones, and ManiSkill
    python benchmarks/process_boundary.py libero --python path/to/other/python      # where that is installed

Two simulators of the same task are stepped in turns of a second: one by a loop in the same process, one through the
boundary. Printed are the median steps per second of both, and their ratio: the median over neighbouring turns, with its
quartiles. Wall clock, because two processes share the work. Actions are random, and cost both the same.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path[0] = str(ROOT)


class Task(NamedTuple):
    """A task to measure.

    Attributes:
        environments: their number.
        options: ``env.train``.
    """

    environments: int
    options: dict[str, Any]


TASKS = {
    "scripted": Task(16, {"name": "scripted", "script": [[{"length": 100}]]}),
    "cartpole": Task(16, {"name": "gymnasium", "id": "CartPole-v1"}),
    "picture": Task(16, {"name": "gymnasium", "id": "benchmarks.process_boundary:Picture-v0"}),
    "maniskill": Task(16, {"name": "maniskill", "id": "PushCube-v1"}),
    "libero": Task(1, {"name": "libero", "id": "libero_object/0"}),
    "libero-pictures": Task(1, {"name": "libero", "id": "libero_object/0", "obs_mode": "rgb"}),
}
"""``picture`` returns 128 x 128 pixels and does nothing else, so it shows the cost of pictures alone."""


def register_picture() -> None:
    """Registers the task that returns a picture."""
    import gymnasium
    from gymnasium.spaces import Box

    class Picture(gymnasium.Env):
        """Shows a picture that never changes."""

        observation_space = Box(0, 255, (128, 128, 3), np.uint8)
        action_space = Box(-1.0, 1.0, (2,))

        def reset(self, *, seed=None, options=None):  # noqa: ARG002 - Gymnasium's interface
            super().reset(seed=seed)
            return np.zeros((128, 128, 3), np.uint8), {}

        def step(self, action):  # noqa: ARG002 - Gymnasium's interface
            return np.zeros((128, 128, 3), np.uint8), 0.0, False, False, {}

    gymnasium.register("Picture-v0", Picture, max_episode_steps=100)


if __name__ == "benchmarks.process_boundary":  # imported for its task
    register_picture()


def made(task: Task, python: str | None) -> Any:
    """Makes a simulator, in a process of its own if there is a Python for it."""
    from rlpipe.plugins import resolve

    seeds = iter(range(10**9))
    config = resolve("envs", task.options["name"], "name").Config(**task.options, python=python)
    name = task.options["name"] if python is None else "rlpipe.envs.shared.child_process.simulator:ProcessSimulator"
    return resolve("envs", name, "name").make(config, task.environments, lambda _: next(seeds))


def rate_of(simulator: Any) -> Callable[[float], float]:
    """Returns a function that steps a simulator for some seconds, and returns environment steps per second."""
    generator, spec, count = np.random.default_rng(0), simulator.spec, simulator.num_envs
    simulator.reset()

    def rate(seconds: float) -> float:
        steps, began = 0, time.perf_counter()
        while (taken := time.perf_counter() - began) < seconds:
            if spec.num_actions:
                actions = generator.integers(spec.num_actions, size=(count, *spec.action_shape))
            else:
                actions = generator.uniform(spec.action_low, spec.action_high, (count, spec.action_dim)).astype("f4")
            simulator.step(actions)
            steps += count
        return steps / taken

    return rate


def serve(task: Task) -> None:
    """Steps a simulator in this process whenever a line with a number of seconds arrives, and answers with the rate."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the simulator prints is no answer
    rate = rate_of(made(task, None))
    for line in sys.stdin:
        print(rate(float(line)), file=answers)


def measure(name: str, python: str, turns: int, seconds: float) -> str:
    """Steps a task with and without the boundary in turns. Returns a line of the table."""
    task = TASKS[name]
    command = [python, __file__, name, "--serve"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def alone(seconds: float) -> float:
            print(seconds, file=process.stdin)
            return float(process.stdout.readline())

        simulator = made(task, python)
        through = rate_of(simulator)
        alone(seconds), through(seconds)  # first steps are slow
        pairs = []
        for turn in range(turns):
            if turn % 2:
                pairs.append((alone(seconds), through(seconds)))
            else:
                behind = through(seconds)
                pairs.append((alone(seconds), behind))
        simulator.close()
        process.stdin.close()
    low, middle, high = statistics.quantiles([behind / plain for plain, behind in pairs], n=4)
    rates = [statistics.median(pair[side] for pair in pairs) for side in (0, 1)]
    return (
        f"| {name} | {task.environments} | {rates[0]:,.0f} | {rates[1]:,.0f} | {middle:.2f} [{low:.2f}, {high:.2f}] |"
    )


def main() -> None:
    """Measures the tasks that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", default=[], choices=[[], *TASKS], help="all but libero by default")
    parser.add_argument("--python", default=sys.executable, help="interpreter of both simulators")
    parser.add_argument("--turns", type=int, default=10, help="turns of each")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a turn")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(TASKS[given.tasks[0]])
        return
    from benchmarks import machine

    print(machine.sentence(machine.describe("numpy", "gymnasium", "mani_skill")))
    print("| task | environments | steps/s alone | through the boundary | ratio |\n| --- | --- | --- | --- | --- |")
    for name in given.tasks or [name for name in TASKS if not name.startswith("libero")]:
        print(measure(name, given.python, given.turns, given.seconds), flush=True)


if __name__ == "__main__":
    main()
