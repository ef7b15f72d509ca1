"""One instance of a ManiSkill task."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping
from typing import Any

from rlpipe.envs.base import SingleEnv, SingleStep
from rlpipe.envs.maniskill.cameras import MODES, camera_tree
from rlpipe.envs.maniskill.expert import expert_action
from rlpipe.envs.maniskill.options import ManiSkillConfig, camera_options
from rlpipe.envs.maniskill.physics import ManiSkillPhysics
from rlpipe.envs.maniskill.scene import ManiSkillBodies
from rlpipe.envs.maniskill.state import blended, set_state, state_of
from rlpipe.envs.shared.checks import flag
from rlpipe.envs.shared.meshes import simplified_meshes
from rlpipe.envs.shared.rendering import INSTALL_VULKAN
from rlpipe.envs.shared.spaces import spec_of
from rlpipe.errors import ConfigError
from rlpipe.trajectory import Float32, Observations, Scene, State


@contextlib.contextmanager
def _tasks_without_success() -> Iterator[set[int]]:
    """Collects the ids of tasks made within it that do not tell success; to ask them would evaluate them once more."""
    from mani_skill.envs.sapien_env import BaseEnv

    as_shipped, without_success = BaseEnv.get_info, set[int]()

    @functools.wraps(as_shipped)
    def get_info(self: Any) -> dict[str, Any]:
        info: dict[str, Any] = as_shipped(self)
        if "success" not in info:
            without_success.add(id(self))
        return info

    BaseEnv.get_info = get_info
    try:
        yield without_success
    finally:
        BaseEnv.get_info = as_shipped


class ManiSkillEnv(SingleEnv):
    """One task instance, without Gymnasium's wrappers: they would only count steps, which happens here.

    Attributes:
        task: ManiSkill's environment.
        limit: steps of an episode.
    """

    def __init__(self, config: ManiSkillConfig) -> None:
        """Makes the task; call ``load_maniskill`` first.

        Raises:
            ConfigError: the task has no time limit, or needs a renderer, and there is none.
        """
        import gymnasium

        self._config = config
        self._most_triangles = config.mesh_triangles if config.has_cameras else None
        try:
            with simplified_meshes(self._most_triangles), _tasks_without_success() as without_success:
                env = gymnasium.make(
                    config.id,
                    num_envs=1,
                    obs_mode=MODES[config.obs_mode],
                    control_mode=config.control_mode,
                    reward_mode=config.reward_mode,
                    sim_backend="physx_cpu",
                    render_backend="cpu" if config.has_cameras else "none",
                    **camera_options(config),
                )
        except AttributeError as error:
            if error.name != "render_shapes":
                raise
            raise ConfigError(
                f"{config.id} looks at its own pictures while it is built, so it needs obs_mode=rgb and a Vulkan "
                f"device.\n{INSTALL_VULKAN}"
            ) from error
        limit = config.max_episode_steps
        limit = gymnasium.spec(config.id).max_episode_steps if limit is None else limit
        if limit is None:
            raise ConfigError(f"{config.id} registers no time limit: set max_episode_steps.")
        self.limit = limit
        self._bodies: ManiSkillBodies | None = None
        self.task: Any = env.unwrapped
        space = self.task.single_action_space
        self.spec = spec_of(self._observed(self.task._init_raw_obs), space.low, space.high)
        self.has_success = id(self.task) not in without_success
        self._physics = ManiSkillPhysics(self.task)

    def vary(self, levels: Mapping[str, float]) -> None:
        self._physics.vary(levels)

    def reset(self, seed: int | None) -> tuple[Observations, bool | None]:
        with simplified_meshes(self._most_triangles), self._physics.placing():  # some tasks build their scene anew
            self.task.reset(seed=seed)
        self._physics.was_reset()
        if self._config.show_goals:
            for hidden in self.task._hidden_objects:
                hidden.show_visual()
            self.task._hidden_objects.clear()
        return self._first_observation()

    def _observed(self, observation: Any) -> Observations:
        """Turns ManiSkill's observation into ours: [D] float32, or a tree."""
        return camera_tree(observation) if self._config.has_cameras else observation.numpy()[0]

    def _first_observation(self) -> tuple[Observations, bool | None]:
        """First observation of an episode, free of the previous one, and True if the task is already solved.

        PhysX keeps the contacts of its last step, so after an episode that ended in a grasp the next one would begin
        with ``is_grasped``. One physics step updates the contacts; then the state of the reset is restored.
        """
        task = self.task
        state = task.get_state_dict()
        task.scene.step()
        task.set_state_dict(state)
        info = task.get_info()
        return self._observed(task.get_obs(info)), info.get("success")

    def state(self) -> State:
        return state_of(self.task)

    def blended(self, state: State, share: float) -> State:
        return blended(state, self.state(), share)

    def expert_action(self) -> Float32:
        return expert_action(self.task)

    def scene(self) -> Scene | None:
        if self._bodies is None or not self._bodies.are_of(self.task):
            self._bodies = ManiSkillBodies(self.task)
        return self._bodies.scene

    def poses(self) -> Float32:
        assert self._bodies is not None  # the scene comes first
        return self._bodies.poses()

    def set_state(self, state: State) -> tuple[Observations, bool | None]:
        set_state(self.task, state)
        return self._first_observation()

    def step(self, action: Any) -> SingleStep:
        observation, reward, terminated, _, info = self.task.step(action)
        success, failure = info.get("success"), info.get("fail")
        if success is not None:  # looked at first: an end is made of it
            success = flag(success.item(), "success")
        return SingleStep(
            self._observed(observation),
            reward.item(),
            terminated.item(),
            False,
            success,
            None if failure is None else failure.item(),
            info.get("reward_terms"),
            info.get("metrics"),
        )

    def close(self) -> None:
        self.task.close()
