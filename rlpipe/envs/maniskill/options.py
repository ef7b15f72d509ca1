"""Options of a ManiSkill task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rlpipe.config.fields import option
from rlpipe.envs.base import SimulatorConfig
from rlpipe.envs.maniskill.cameras import MODES
from rlpipe.errors import ConfigError


@dataclass(frozen=True)
class ManiSkillConfig(SimulatorConfig):
    """Options of a ManiSkill task. Needs ``pip install 'rlpipe[maniskill]'``."""

    id: str = option("")
    """Registered task, such as ``PushCube-v1``."""
    control_mode: str = option("pd_joint_delta_pos")
    """Meaning of an action; the task's robot lists the modes that it knows."""
    reward_mode: str = option("sparse", choices=("sparse", "dense", "normalized_dense", "none"))
    """``sparse``: 1 where success holds, else 0. ``dense``, ``normalized_dense`` (at most 1 a step), or ``none``."""
    max_episode_steps: int | None = option(None, unit="environment steps")
    """Time limit; None keeps the registered one."""
    batched: bool | str = option("auto", choices=("auto", "true", "false"))
    """Step all environments of a worker as one, with the same numbers in less time: ``auto`` where a check at the start
    finds no different number, ``true`` (an error where it does), or ``false``
    ([simulators.md](simulators.md#maniskill)). Cameras are always drawn in turn."""
    obs_mode: str = option("state", choices=tuple(MODES), fixed=True)
    """``state``: one vector. The others give a tree with the pictures of the task's cameras ([cameras.md](cameras.md)):
    ``<camera>_rgb``, ``<camera>_depth``, and either ``state`` or what the robot itself senses."""
    camera_size: int | None = option(64, least=8, most=4096, unit="pixels", fixed=True)
    """Height and width of every camera's pictures; None keeps the task's own, 128 as a rule."""
    frame_stack: int = option(1, least=1, most=64, unit="pictures", fixed=True)
    """Pictures of the last steps in each image, one behind the other, the oldest first."""
    mesh_triangles: int | None = option(2000, least=100, unit="triangles")
    """Draw each mesh file (GLB) with about so many triangles at most, which is several times as fast; None draws them
    as shipped. Physics stays the same."""
    show_goals: bool = option(False, fixed=True)
    """Let cameras see what a task hides from them, such as the goal of PickCube-v1."""
    kwargs: dict[str, Any] = option({})
    """Further keyword arguments of ``gymnasium.make``, such as ``robot_uids``."""

    def __post_init__(self) -> None:
        """Checks options that depend on each other."""
        if self.frame_stack > 1 and not self.has_cameras:
            raise ConfigError(
                f"frame_stack is {self.frame_stack}, but obs_mode is state, which has no pictures: set obs_mode=rgb."
            )
        if self.has_cameras and self.batched is True:
            raise ConfigError(
                f"batched is true, but obs_mode is {self.obs_mode}: environments with cameras are stepped in turn. Set "
                "batched=auto."
            )

    @property
    def has_cameras(self) -> bool:
        return self.obs_mode != "state"

    @property
    def needs_vulkan(self) -> bool:
        return self.has_cameras

    @property
    def what_is_checked(self) -> str:
        """Everything that may decide whether the task can be stepped as one."""
        return repr((self.id, self.control_mode, self.reward_mode, sorted(self.kwargs.items())))

    def largest_return(self, discount: float) -> float | None:
        if self.reward_mode == "sparse" and not self.ignore_terminations:
            return 1.0  # success ends the episode
        at_most_one = self.reward_mode in ("sparse", "normalized_dense")
        return 1.0 / (1.0 - discount) if at_most_one and discount < 1.0 else None


def camera_options(config: ManiSkillConfig) -> dict[str, Any]:
    """Further keyword arguments of ``gymnasium.make``, with the size of the pictures unless they hold their own."""
    if not config.has_cameras or config.camera_size is None:
        return config.kwargs
    size = {"width": config.camera_size, "height": config.camera_size}
    return {**config.kwargs, "sensor_configs": {**size, **config.kwargs.get("sensor_configs", {})}}
