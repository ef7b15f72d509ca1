"""robosuite's tasks of one and two arms (Zhu et al. 2020, arXiv:2009.12293).

robosuite needs numpy<2, and so a Python of its own. Importing this file imports no robosuite.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlpipe.config.fields import option
from rlpipe.envs.base import OneByOne, SingleEnv, SingleStep, TaskEntry, TaskFacts
from rlpipe.envs.shared.frames import stacked
from rlpipe.envs.shared.mujoco.physics import AXES, MuJoCoPhysics
from rlpipe.envs.shared.mujoco.pixels import choose_opengl
from rlpipe.envs.shared.mujoco.scene import HIDDEN_GROUPS, MuJoCoGeometry
from rlpipe.envs.shared.seeding import global_generators
from rlpipe.envs.shared.slots import NextSeed
from rlpipe.envs.shared.spaces import Spaces
from rlpipe.envs.shared.success import SuccessConfig
from rlpipe.errors import ConfigError
from rlpipe.plugins import nearest
from rlpipe.trajectory import Float32, Observations, Scene

__all__ = ["Robosuite"]

STATES = "-state"
"""End of the names under which robosuite joins the numbers of one kind: of each robot, and of the objects."""


@dataclass(frozen=True)
class RobosuiteConfig(SuccessConfig):
    """Options of a robosuite task. Needs a Python of its own; see docs/simulators.md#robosuite."""

    id: str = option("")
    """Name of the task, such as ``Lift``, ``Stack``, ``NutAssemblySquare`` or ``TwoArmLift``."""
    robots: list[str] = option(["Panda"], fixed=True)
    """Robots, by name: one, or two for a task of two arms."""
    max_episode_steps: int = option(500, unit="environment steps", least=1, below=2**31)
    """Time limit (``horizon``), at which every episode ends; a success ends only those of ``Wipe``."""
    cameras: list[str] = option([], fixed=True)
    """Cameras whose pictures are observed as well, such as ``agentview`` or ``robot0_eye_in_hand``."""
    camera_size: int = option(84, least=8, most=4096, unit="pixels", fixed=True)
    """Height and width of their pictures."""
    frame_stack: int = option(1, least=1, most=64, unit="pictures", fixed=True)
    """Pictures of the last steps in each image, one behind the other, the oldest first."""
    hard_reset: bool = option(True)
    """Build the model again for each episode, as the library does by itself. False is faster, and keeps what is drawn
    with the model, such as the size of Lift's cube."""
    ignore_observations: list[str] = option([], fixed=True)
    """Leaves of the observation that are left out."""
    kwargs: dict[str, Any] = option({})
    """Further keyword arguments of ``robosuite.make``, such as ``{control_freq: 10}``."""

    @property
    def has_cameras(self) -> bool:
        return bool(self.cameras)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Drops what robosuite logs about itself when it is imported and makes a task."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def make_task(config: RobosuiteConfig) -> Any:
    """Makes the library's environment of a task.

    Raises:
        ConfigError: the library cannot make it.
    """
    drawing: dict[str, Any] = {}
    if config.has_cameras:
        choose_opengl()
        size = config.camera_size
        drawing = {"camera_names": config.cameras, "camera_heights": size, "camera_widths": size}
    with quiet():
        import robosuite

        try:
            return robosuite.make(
                config.id,
                robots=config.robots,
                horizon=config.max_episode_steps,
                hard_reset=config.hard_reset,
                reward_shaping=True,
                has_renderer=False,
                has_offscreen_renderer=config.has_cameras,
                use_camera_obs=config.has_cameras,
                seed=0,
                **drawing,
                **config.kwargs,
            )
        except Exception as error:  # it raises plain exceptions and assertions
            raise ConfigError(
                f"robosuite cannot make {config.id} with the robots {', '.join(config.robots)} and {config.kwargs} "
                f"({type(error).__name__}: {error}). With MuJoCo 3.10 and later it fails: pip install 'mujoco<3.10'."
            ) from error


class RobosuiteEnv(SingleEnv):
    """One environment of robosuite."""

    has_success = True

    def __init__(self, config: RobosuiteConfig) -> None:
        """Makes the environment."""
        from gymnasium.spaces import Box, Dict

        self._config = config
        self._env = make_task(config)
        self._geometry = MuJoCoGeometry((0, *HIDDEN_GROUPS))  # robosuite's group 0 are shapes for collisions
        self._physics = MuJoCoPhysics(lambda: self._env.sim.model._model)
        with global_generators(0):
            first = self._observed(self._env.reset())
        low, high = self._env.action_spec
        boxes = {
            name: Box(0, 255, values.shape, np.uint8) if values.dtype == np.uint8
            else Box(-np.inf, np.inf, values.shape, np.float64)
            for name, values in first.items()
        }  # fmt: skip
        self._spaces = Spaces(Dict(boxes), Box(low, high, dtype=np.float64), config.id, config.ignore_observations)
        self.spec = self._spaces.spec

    def _observed(self, observation: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        """Returns the joined numbers of an observation, and its pictures, the upper row first."""
        from robosuite import macros

        upward = macros.IMAGE_CONVENTION == "opengl"  # the lower row first
        leaves = {name: np.asarray(values) for name, values in observation.items() if name.endswith(STATES)}
        for camera in self._config.cameras:
            picture = observation[f"{camera}_image"]
            leaves[camera] = np.ascontiguousarray(picture[::-1] if upward else picture)
        return leaves

    def vary(self, levels: Mapping[str, float]) -> None:
        self._physics.vary(levels)

    def reset(self, seed: int | None) -> tuple[Observations, bool | None]:
        assert seed is not None
        # In place, because the samplers of the task share this generator.
        self._env.rng.bit_generator.state = np.random.default_rng(seed).bit_generator.state
        with quiet(), global_generators(seed):  # some tasks draw their object with Python's own generator
            observation = self._env.reset()
        self._physics.was_reset()
        return self._spaces.observation(self._observed(observation)), self._env._check_success()

    def step(self, action: Any) -> SingleStep:
        observation, reward, done, _ = self._env.step(self._spaces.action(action))
        at_limit = self._env.timestep >= self._env.horizon
        answer = SingleStep(
            self._spaces.observation(self._observed(observation)),
            reward,
            terminated=bool(done) and not at_limit,  # by Wipe alone: a collision, a limit of a joint, or success
            truncated=bool(done) and at_limit,
            success=self._env._check_success(),
        )
        return self._config.judged(answer)

    def scene(self) -> Scene:
        return self._geometry.scene(self._env.sim.model._model)

    def poses(self) -> Float32:
        return self._geometry.poses(self._env.sim.data._data)

    def close(self) -> None:
        self._env.close()


class Robosuite(OneByOne):
    """robosuite's tasks, one by one, each episode with the start of its seed."""

    Config = RobosuiteConfig
    tries_seeds = False
    axes = (*OneByOne.axes, *AXES)

    @classmethod
    def make(cls, config: RobosuiteConfig, num_envs: int, next_seed: NextSeed) -> Robosuite:
        envs = stacked([RobosuiteEnv(config) for _ in range(num_envs)], config.frame_stack)
        return cls(envs, next_seed, ignore_terminations=config.ignore_terminations)

    @classmethod
    def tasks(cls) -> list[TaskEntry]:
        return [
            TaskEntry(name, settings="robots=[Panda,Panda]" if name.startswith("TwoArm") else "")
            for name in known_tasks("robosuite")
        ]

    @classmethod
    def describe(cls, config: RobosuiteConfig, key: str) -> TaskFacts:
        tasks = known_tasks(f"{key}.name=robosuite")
        if config.id not in tasks:
            raise ConfigError(f"{key}.id is {config.id!r}, but robosuite does not know it{nearest(config.id, tasks)}")
        return super().describe(config, key)


def known_tasks(key: str) -> list[str]:
    """Names of all tasks.

    Raises:
        ConfigError: it is not installed, or Gymnasium is not, whose spaces its observations become.
    """
    try:
        with quiet():
            import gymnasium.spaces  # noqa: F401 - needed later
            import robosuite
    except ImportError as error:
        raise ConfigError(
            f"{key} needs robosuite and Gymnasium, which cannot be imported here ({error}), with numpy<2 and so in a "
            "Python of its own: docs/simulators.md says how."
        ) from error
    return sorted(robosuite.ALL_ENVIRONMENTS)
