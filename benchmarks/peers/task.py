"""The task, the settings and the clock that rlpipe and its peers share. Imports nothing of rlpipe.

A peer's adapter runs in the peer's own environment, as ``python -m benchmarks.peers.<peer> TASK --iterations N``, and
prints one line of JSON with ``report``. While throughput is measured, the learning rate is 0.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import tempfile
import threading
import time
from collections import deque
from importlib import metadata
from pathlib import Path
from typing import Any

CONTROL_MODES = {
    "PushCube-v1": "pd_joint_delta_pos",
    "PickCube-v1": "pd_ee_delta_pos",
    "PegInsertionSide-v1": "pd_ee_delta_pose",
}
STEPS, EPOCHS, MINIBATCHES, ENVS = 3200, 8, 8, 16
HIDDEN = (256, 256, 256)
LEARNING_RATE, DISCOUNT, GAE_LAMBDA, INITIAL_LOG_STD = 3e-4, 0.8, 0.9, -0.5
RECENT = 100
"""Number of episodes over which training success is taken."""
WORKERS = 2 ** min(ENVS.bit_length() - 1, len(os.sched_getaffinity(0)).bit_length() - 1)
"""Processes that collect: as many as there are cores, rounded down so that each has its share of the environments."""
BEGAN = float(os.environ.get("BENCHMARK_BEGAN", time.time()))
"""Time at which the command was given."""


class UnrenderedMaterial:
    """Replaces ``sapien.render.RenderMaterial`` where no Vulkan device exists; setters do nothing."""

    def __init__(self, *_, **__):
        self.base_color = [1.0, 1.0, 1.0, 1.0]

    def __getattr__(self, name):
        if name.startswith("set_"):
            return lambda *_, **__: None
        raise AttributeError(name)


def load_maniskill() -> None:
    """Imports ManiSkill's tasks, on a machine without Vulkan too."""
    import sapien.pysapien.render
    import sapien.render

    try:
        sapien.render.RenderMaterial()
    except RuntimeError:
        sapien.render.RenderMaterial = sapien.pysapien.render.RenderMaterial = UnrenderedMaterial
    import mani_skill.envs  # noqa: F401


def make_task(task: str):
    """Makes the task as ``gymnasium.make`` returns it: one environment, whose values are torch tensors [1, ...]."""
    import gymnasium
    import torch

    torch.set_num_threads(1)
    load_maniskill()
    return gymnasium.make(
        task,
        num_envs=1,
        obs_mode="state",
        control_mode=CONTROL_MODES[task],
        reward_mode="normalized_dense",
        sim_backend="physx_cpu",
        render_backend="none",
    )


def make_numpy_task(task: str, journal: str, seed: int):
    """Makes the task with ManiSkill's own wrapper for NumPy on the CPU; its episodes are noted in the journal."""
    import gymnasium
    from mani_skill.utils.wrappers.gymnasium import CPUGymWrapper

    class Noted(gymnasium.Env):
        """Appends a line at the first step, and one with the outcome at the end of each episode.

        Not a wrapper: inside, libraries would find ``num_envs`` and expect batches.
        """

        def __init__(self, env):
            self.env, self.first = env, True
            self.observation_space, self.action_space = env.observation_space, env.action_space

        def reset(self, *, seed=None, options=None):
            return self.env.reset(seed=seed, options=options)[0], {}

        def step(self, action):
            observation, reward, terminated, truncated, info = self.env.step(action)
            if self.first:
                self.first = False
                note(journal, {"first": time.time()})
            if terminated or truncated:
                note(journal, {"success": bool(info["success"])})
            return observation, float(reward), bool(terminated), bool(truncated), {}

        def close(self):
            self.env.close()

    env = CPUGymWrapper(make_task(task))
    env.reset(seed=seed)
    return Noted(env)


def note(journal: str, line: dict[str, Any]) -> None:
    """Appends a line; a short write to a file opened for appending is atomic, so many processes may do it."""
    with Path(journal).open("a") as file:
        file.write(json.dumps(line) + "\n")


class Journal:
    """Follows what the environments of all processes note, to know when training has reached a success rate.

    Attributes:
        path: file that the environments append to.
        first: time of the first step of any environment; None before it.
        reached: time at which the last episodes had the target success rate; None before that, or without a target.
    """

    def __init__(self, target: float | None) -> None:
        """Starts to follow a new file."""
        self.path = str(Path(tempfile.mkdtemp()) / "journal.jsonl")
        Path(self.path).touch()
        self.first: float | None = None
        self.reached: float | None = None
        self._target = target
        self._recent: deque[bool] = deque(maxlen=RECENT)
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        pending = ""
        with Path(self.path).open() as file:
            while True:
                *lines, pending = (pending + file.read()).split("\n")
                for line in lines:
                    self._read(json.loads(line))
                time.sleep(0.1)

    def _read(self, line: dict[str, Any]) -> None:
        if "first" in line:
            self.first = min(self.first or line["first"], line["first"])
        else:
            self._recent.append(line["success"])
        full = len(self._recent) == RECENT and self._target is not None
        if full and self.reached is None and statistics.mean(self._recent) >= self._target:
            self.reached = time.time()


def arguments() -> argparse.Namespace:
    """Parses the command of an adapter. With a target success rate, it learns; without, the learning rate is 0."""
    parser = argparse.ArgumentParser()
    parser.add_argument("task", choices=CONTROL_MODES)
    parser.add_argument("--iterations", type=int, default=4)
    parser.add_argument("--success", type=float, help="learn until training has this success rate")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.learning_rate = 0.0 if options.success is None else LEARNING_RATE
    return options


def report(journal: Journal, marks: list[float], package: str) -> None:
    """Prints the measurements as one line of JSON.

    Args:
        journal: of the environments
        marks: times at which a whole number of iterations was complete, beginning with the start of the first one,
            which is left out
        package: distribution whose version is reported
    """
    spans = [later - earlier for earlier, later in itertools.pairwise(marks[1:])]
    answer: dict[str, Any] = {
        "version": metadata.version(package),
        "first_step": None if journal.first is None else journal.first - BEGAN,
    }
    if spans:
        answer["end_to_end"] = STEPS / statistics.median(spans)
    if journal.reached is not None:
        answer["seconds_to_success"] = journal.reached - BEGAN
    print(json.dumps(answer), flush=True)
