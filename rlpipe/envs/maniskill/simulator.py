"""ManiSkill tasks on CPU physics, observed by state or by cameras. Only cameras need Vulkan.

Importing this file imports no simulator.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from rlpipe.envs.base import Beginning, OneByOne, Simulator, Step, TaskEntry, TaskFacts, check_ends
from rlpipe.envs.maniskill.expert import why_no_expert
from rlpipe.envs.maniskill.loading import load_maniskill, quicken_poses, quicken_quaternions, quicken_seeding
from rlpipe.envs.maniskill.options import ManiSkillConfig
from rlpipe.envs.maniskill.physics import AXES, SPREADS
from rlpipe.envs.maniskill.registry import known_tasks, missing_assets, registered_limit
from rlpipe.envs.maniskill.scene import note_visuals
from rlpipe.envs.maniskill.single import ManiSkillEnv
from rlpipe.envs.shared.axes import START
from rlpipe.envs.shared.frames import stacked
from rlpipe.envs.shared.garbage import collect_exempted, exempt_from_collection
from rlpipe.envs.shared.rendering import INSTALL_VULKAN, can_render
from rlpipe.envs.shared.slots import NextSeed
from rlpipe.errors import ConfigError
from rlpipe.plugins import require
from rlpipe.trajectory import Bool, Observations

SCALED_MODES = ("pd_ee_delta_pos", "pd_ee_delta_pose", "pd_joint_delta_pos")
"""Control modes whose numbers each of ManiSkill's robots scales to -1 to 1, but for ``UNSCALED_ROBOT``."""
UNSCALED_ROBOT = "xarm6_robotiq"
"""First part of the names of robots whose fingers take the positions of their joints in ``pd_ee_delta_pose``."""


def no_vulkan(key: str, obs_mode: str) -> str:
    """Error of a configuration with cameras on a machine that cannot render; ``key`` is that of the mode."""
    return f"{key} is {obs_mode}, but this machine has no Vulkan device to render with. {INSTALL_VULKAN}"


class ManiSkill(OneByOne):
    """Task instances in this process, each with its own physics."""

    Config = ManiSkillConfig
    tries_seeds = False
    axes = (*OneByOne.axes, *AXES)

    @classmethod
    def load(cls) -> None:
        if load_maniskill():
            raise RuntimeError("a process that has opened a rendering device cannot be forked")  # cameras came before

    @classmethod
    def make(cls, config: ManiSkillConfig, num_envs: int, next_seed: NextSeed) -> Simulator:
        if not load_maniskill(cameras=config.has_cameras) and config.has_cameras:
            raise ConfigError(no_vulkan("obs_mode", config.obs_mode))
        quicken_poses()
        note_visuals()
        quicken_quaternions()
        quicken_seeding()
        if missing := missing_assets(config.id):
            raise ConfigError(
                f"{config.id} needs assets that this machine does not have: {', '.join(missing)}. Download them with: "
                f"python -m mani_skill.utils.download_asset {config.id}"
            )
        exempt_from_collection()
        try:
            envs = [ManiSkillEnv(config) for _ in range(num_envs)]
        except (AssertionError, KeyError, NotImplementedError, TypeError) as error:  # raised for unknown modes
            raise ConfigError(
                f"ManiSkill cannot make {config.id} with control_mode={config.control_mode!r}, "
                f"reward_mode={config.reward_mode!r}, kwargs={config.kwargs}: {type(error).__name__}: {error}"
            ) from error
        return cls._simulator(envs, next_seed, config)

    @classmethod
    def _simulator(cls, envs: list[ManiSkillEnv], next_seed: NextSeed, config: ManiSkillConfig) -> Simulator:
        """Returns the simulator that steps the environments as one if it may and can, or else in turn.

        Raises:
            ConfigError: it has to step them as one, and cannot.
        """
        notes: tuple[str, ...] = ()
        # Cameras are drawn one by one, which takes nearly all of a step, so there is nothing to gain by batching.
        if config.batched is not False and len(envs) > 1 and not config.has_cameras:
            from rlpipe.envs.maniskill.batched import BatchedManiSkill, NotBatchableError, checked_rows

            try:
                rows = checked_rows(lambda: ManiSkillEnv(config), len(envs), config.what_is_checked)
                return BatchedManiSkill(envs, rows, next_seed, ignore_terminations=config.ignore_terminations)
            except NotBatchableError as error:
                if config.batched is True:
                    raise ConfigError(
                        f"batched=true: {config.id} cannot be stepped as one, because {error}."
                    ) from error
                notes = (
                    f"ManiSkill: the {len(envs)} environments of {config.id} are stepped in turn, not as one, because "
                    f"{error}. No number changes, but steps take longer.",
                )
        simulator = cls(
            stacked(envs, config.frame_stack),
            next_seed,
            ignore_terminations=config.ignore_terminations,
            limit=envs[0].limit,
        )
        simulator.notes = notes
        return simulator

    def reset(self) -> tuple[Observations, dict[int, Beginning]]:
        import torch

        with torch.inference_mode():  # ManiSkill tracks gradients by default; without them a step is about 15 % faster
            return super().reset()

    def step(self, actions: NDArray[Any], active: Bool | None = None) -> Step:
        import torch

        with torch.inference_mode():
            return super().step(actions, active)

    def close(self) -> None:
        super().close()
        self._envs = []
        collect_exempted()

    @classmethod
    def tasks(cls) -> list[TaskEntry]:
        require("mani_skill", "maniskill", "maniskill")
        return [TaskEntry(name, limit) for name, limit in sorted(known_tasks().items())]

    @classmethod
    def describe(cls, config: ManiSkillConfig, key: str) -> TaskFacts:
        require("mani_skill", "maniskill", key)
        if config.has_cameras and config.mesh_triangles is not None:
            require("fast_simplification", "maniskill", f"{key}.mesh_triangles={config.mesh_triangles}")
        registered = registered_limit(config.id, key)
        limit = registered if config.max_episode_steps is None else config.max_episode_steps
        check_ends(config, key, limit)
        no_expert = why_no_expert(config)
        facts = super().describe(config, key)
        return replace(
            facts,
            time_limit=limit,
            axes=tuple(axis for axis in facts.axes if axis is not START or config.id in SPREADS),
            # PhysX keeps contacts, so that one in five episodes of PushCube moves a digit, unless each has a new scene
            independent=config.kwargs.get("reconfiguration_freq") == 1,
            why_not={
                "independent": f"{key}.kwargs.reconfiguration_freq=1, which builds the scene anew for each episode",
                "expert": no_expert,
            },
            states=True,
            expert=not no_expert,
            blends=True,
            action_bounds=(-1.0, 1.0) if _is_scaled(config) else None,
            check_machine=lambda: _check_machine(config, key),
        )


def _is_scaled(config: ManiSkillConfig) -> bool:
    """True if it is known, without the robot, that it scales each number of an action to -1 to 1."""
    is_known = config.id in known_tasks() and UNSCALED_ROBOT not in str(config.kwargs.get("robot_uids"))
    return is_known and config.control_mode in SCALED_MODES


def _check_machine(config: ManiSkillConfig, key: str) -> None:
    if config.needs_vulkan and not can_render():
        raise ConfigError(no_vulkan(f"{key}.obs_mode", config.obs_mode))
