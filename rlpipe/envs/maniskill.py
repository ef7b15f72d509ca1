"""ManiSkill tasks on CPU physics, observed by state or by cameras. Only cameras need Vulkan.

Importing this file imports no simulator.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rlpipe.config.fields import option
from rlpipe.envs.base import (
    Beginning,
    NextSeed,
    OneByOne,
    Simulator,
    SimulatorConfig,
    SingleEnv,
    SingleStep,
    Step,
    TaskEntry,
    check_ends,
)
from rlpipe.envs.base_checks import flag
from rlpipe.envs.base_frames import stacked
from rlpipe.envs.base_garbage import collect_exempted, exempt_from_collection
from rlpipe.envs.base_maniskill_cameras import MODES, camera_tree, tree_spec
from rlpipe.envs.base_maniskill_scene import ManiSkillBodies, note_visuals
from rlpipe.envs.base_maniskill_state import blended, set_state, state_of
from rlpipe.envs.base_meshes import simplified_meshes
from rlpipe.envs.base_rendering import INSTALL_VULKAN, can_render
from rlpipe.errors import ConfigError
from rlpipe.plugins import nearest, require
from rlpipe.trajectory import Bool, Float32, Observations, Scene, SpaceSpec, State

__all__ = ["ManiSkill"]


def no_vulkan(key: str, obs_mode: str) -> str:
    """Error of a configuration with cameras on a machine that cannot render; ``key`` is that of the mode."""
    return f"{key} is {obs_mode}, but this machine has no Vulkan device to render with. {INSTALL_VULKAN}"


def _check_batched(key: str, value: Any) -> None:
    if not isinstance(value, bool) and value != "auto":
        raise ConfigError(f"{key} is {value!r}; it must be auto, true or false.")


@dataclass(frozen=True)
class ManiSkillConfig(SimulatorConfig):
    """Options of a ManiSkill task."""

    id: str = option("")
    """Registered task, such as ``PushCube-v1``."""
    control_mode: str = option("pd_joint_delta_pos")
    """Meaning of an action; the task's robot lists the modes that it knows."""
    reward_mode: str = option("sparse", choices=("sparse", "dense", "normalized_dense", "none"))
    """``sparse``: 1 where success holds, else 0. ``dense``, ``normalized_dense`` (at most 1 a step), or ``none``."""
    max_episode_steps: int | None = option(None, unit="environment steps")
    """Time limit; None keeps the registered one."""
    batched: bool | str = option("auto", checks=(_check_batched,))
    """Step all environments of a worker as one, with the same numbers in less time: ``auto`` where a check at the start
    finds no different number, ``true`` (an error where it does), or ``false`` ([maniskill.md](maniskill.md)). Cameras
    are always drawn in turn."""
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


class UnrenderedMaterial:
    """Replaces ``sapien.render.RenderMaterial`` where nothing is rendered.

    Tasks colour objects even if nothing draws them. Attributes can be set; setters do nothing, but for the colour,
    which replays show.
    """

    replaced: ClassVar[Any] = None
    """SAPIEN's own material, once SAPIEN is imported."""

    def __init__(self, emission: Any = None, base_color: Any = (1.0, 1.0, 1.0, 1.0), *_: Any, **__: Any) -> None:  # noqa: ARG002 - as of a real one
        """Accepts the arguments of a real material, and ignores all but the colour: [4], red to opacity."""
        self.base_color = list(base_color)

    def set_base_color(self, base_color: Any) -> None:
        """Sets the colour."""
        self.base_color = list(base_color)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("set_"):
            return lambda *_, **__: None
        raise AttributeError(name)


def load_maniskill(*, cameras: bool = False) -> bool:
    """Imports ManiSkill's tasks, without a rendering device unless cameras need one.

    Without cameras, SAPIEN's material is replaced: a task that is built anew for each episode otherwise makes materials
    on the device, which takes five times as long as the rest of its reset, and opens a device that cannot be forked.

    Args:
        cameras: True if something is to be rendered.
    Returns:
        True if rendering works.
    """
    import gc
    import warnings

    loaded = "mani_skill.envs" in sys.modules
    os.environ.setdefault("LP_NUM_THREADS", "0")  # lavapipe draws in this thread: workers fill the cores already
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*libvulkan.*")
        import sapien.pysapien.render
        import sapien.render

        own = UnrenderedMaterial.replaced = UnrenderedMaterial.replaced or sapien.render.RenderMaterial
        rendering = cameras or (loaded and sapien.render.RenderMaterial is own)  # cameras were there before
        if rendering:
            try:
                own()
            except RuntimeError:
                rendering = False
        use_material(own if rendering else UnrenderedMaterial)
        import mani_skill.envs  # noqa: F401
    if not loaded:
        # A task collects garbage each time it is built, which takes 0.2 s because it looks at every object of every
        # imported module. Those stay until the process ends, so the collector may leave them out.
        gc.freeze()
    return rendering


def use_material(material: type[Any]) -> None:
    """Makes every module of SAPIEN and ManiSkill that was imported so far, and all later ones, use a material."""
    for name, module in list(sys.modules.items()):
        if name.startswith(("sapien", "mani_skill")) and "RenderMaterial" in vars(module):
            module.RenderMaterial = material  # type: ignore[attr-defined]  # just seen there


def quicken_poses() -> None:
    """Makes ManiSkill convert SAPIEN's poses by one copy instead of ten tensor operations; every number stays the same.

    A task asks for poses about ten times a step, so this takes about 12 % off a step of PushCube. Poses that the short
    conversion does not cover take ManiSkill's own, which stays available as ``Pose.create.__wrapped__``.
    """
    import sapien
    import torch
    from mani_skill.utils.structs.pose import Pose

    if hasattr(Pose.create, "__wrapped__"):
        return
    slow: Any = Pose.create.__func__

    @functools.wraps(slow)
    def create(cls: Any, pose: Any, device: Any = None) -> Any:
        poses = pose if type(pose) is list else [pose]
        on_cpu = device is None or torch.device(device).type == "cpu"
        if on_cpu and all(type(p) is sapien.Pose for p in poses):
            return cls(raw_pose=torch.from_numpy(np.stack([np.concatenate((p.p, p.q)) for p in poses])))
        return slow(cls, pose, device)

    Pose.create = classmethod(create)


def quicken_quaternions() -> None:
    """Makes ManiSkill multiply quaternions by a quarter of the operations; every number stays the same.

    A step of PegInsertionSide multiplies 68 times. Products are added in ManiSkill's order, and a sign is exact.
    ManiSkill's own way, ``quaternion_raw_multiply.__wrapped__``, remains for the GPU and for gradients.
    """
    import torch
    from mani_skill.utils.geometry import rotation_conversions

    if hasattr(rotation_conversions.quaternion_raw_multiply, "__wrapped__"):
        return
    slow: Any = rotation_conversions.quaternion_raw_multiply
    orders = [[1, 0, 3, 2], [2, 3, 0, 1], [3, 2, 1, 0]]  # the part of b that each part of the product takes
    signs = np.array([[-1, 1, -1, 1], [-1, 1, 1, -1], [-1, -1, 1, 1]], dtype=np.float32)

    @functools.wraps(slow)
    def multiply(a: Any, b: Any) -> Any:
        if any(q.dtype is not torch.float32 or q.device.type != "cpu" or q.requires_grad for q in (a, b)):
            return slow(a, b)
        left, right = a.numpy(), b.numpy()
        product = left[..., :1] * right
        for place, (order, sign) in enumerate(zip(orders, signs, strict=True), 1):
            product = product + left[..., place : place + 1] * sign * right.take(order, axis=-1)
        return torch.from_numpy(product)

    rotation_conversions.quaternion_raw_multiply = multiply


def quicken_seeding() -> None:
    """Makes ``torch.manual_seed`` seed the CPU alone where there is nothing else; random numbers stay the same.

    A task seeds torch at each reset. For kinds of devices that have not been used, torch then writes down where it was
    called, which takes a fifth of a reset of PushCube.
    """
    import torch

    slow: Any = torch.manual_seed
    if torch.accelerator.is_available() or hasattr(slow, "__rlpipe__"):
        return

    @functools.wraps(slow)
    def manual_seed(seed: Any) -> Any:
        return torch.default_generator.manual_seed(int(seed))

    manual_seed.__rlpipe__ = True  # type: ignore[attr-defined]
    torch.manual_seed = manual_seed


@functools.cache
def _known_tasks() -> dict[str, int | None]:
    """Tasks that ManiSkill's source registers, by id, each with its time limit in steps; None where it has none.

    Reads the source, because importing it takes seconds.
    """
    spec = importlib.util.find_spec("mani_skill")
    folders = spec.submodule_search_locations if spec else None
    source = Path(next(iter(folders or [])), "envs")
    pattern = re.compile(r"@register_env\(\s*[\"']([^\"']+)[\"']([^)]*)")
    known: dict[str, int | None] = {}
    for file in source.rglob("*.py"):
        for name, rest in pattern.findall(file.read_text(encoding="utf-8")):
            limit = re.search(r"max_episode_steps\s*=\s*(\d+)", rest)
            known[name] = int(limit[1]) if limit else None
    return known


def _missing_assets(task: str) -> list[str]:
    """Assets that a registered task needs and this machine does not have. ManiSkill itself would ask on stdin."""
    from mani_skill.utils import assets
    from mani_skill.utils.registration import REGISTERED_ENVS

    missing: list[str] = []
    for asset in REGISTERED_ENVS[task].asset_download_ids or []:
        sources = (
            assets.expand_data_group_into_individual_data_source_ids(asset) if asset in assets.DATA_GROUPS else [asset]
        )
        missing += [source for source in sources if not assets.is_data_source_downloaded(source)]
    return missing


def camera_options(config: ManiSkillConfig) -> dict[str, Any]:
    """Further keyword arguments of ``gymnasium.make``, with the size of the pictures unless they hold their own."""
    if not config.has_cameras or config.camera_size is None:
        return config.kwargs
    size = {"width": config.camera_size, "height": config.camera_size}
    return {**config.kwargs, "sensor_configs": {**size, **config.kwargs.get("sensor_configs", {})}}


@contextlib.contextmanager
def _told_without_rendering(task: str) -> Iterator[None]:
    """Tells of a task that looks at what is drawn of it while it is built, such as PushT-v1.

    Raises:
        ConfigError: nothing is drawn here.
    """
    try:
        yield
    except AttributeError as error:
        if error.name != "render_shapes":
            raise
        raise ConfigError(
            f"{task} looks at its own pictures while it is built, so it needs obs_mode=rgb and a Vulkan device.\n"
            f"{INSTALL_VULKAN}"
        ) from error


@contextlib.contextmanager
def _tasks_without_success() -> Iterator[set[int]]:
    """Collects the ids of tasks made within it that do not tell success; to ask them would evaluate them once more."""
    from mani_skill.envs.sapien_env import BaseEnv

    as_shipped, found = BaseEnv.get_info, set[int]()

    @functools.wraps(as_shipped)
    def get_info(self: Any) -> dict[str, Any]:
        info: dict[str, Any] = as_shipped(self)
        if "success" not in info:
            found.add(id(self))
        return info

    BaseEnv.get_info = get_info
    try:
        yield found
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
            ConfigError: the task has no time limit.
        """
        import gymnasium

        self._config = config
        self._most_triangles = config.mesh_triangles if config.has_cameras else None
        with (
            simplified_meshes(self._most_triangles),
            _told_without_rendering(config.id),
            _tasks_without_success() as without_success,
        ):
            made = gymnasium.make(
                config.id,
                num_envs=1,
                obs_mode=MODES[config.obs_mode],
                control_mode=config.control_mode,
                reward_mode=config.reward_mode,
                sim_backend="physx_cpu",
                render_backend="cpu" if config.has_cameras else "none",
                **camera_options(config),
            )
        limit = (
            gymnasium.spec(config.id).max_episode_steps
            if config.max_episode_steps is None
            else config.max_episode_steps
        )
        if limit is None:
            raise ConfigError(f"{config.id} registers no time limit: set max_episode_steps.")
        self.limit = limit
        self._steps = 0
        self._bodies: ManiSkillBodies | None = None
        self.task: Any = made.unwrapped
        self.spec = self._spec()
        self.has_success = id(self.task) not in without_success

    def _spec(self) -> SpaceSpec:
        space = self.task.single_action_space
        actions = (space.shape[0], None, space.low.astype(np.float32), space.high.astype(np.float32))
        if self._config.has_cameras:
            return tree_spec(camera_tree(self.task._init_raw_obs), *actions)  # taken when the task was made
        return SpaceSpec(int(np.prod(self.task.single_observation_space.shape)), *actions)

    def reset(self, seed: int | None) -> tuple[Observations, bool | None]:
        self._steps = 0
        with simplified_meshes(self._most_triangles):  # some tasks build their scene anew
            self.task.reset(seed=seed)
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
        self._steps += 1
        observation, reward, terminated, _, info = self.task.step(action)
        success, failure = info.get("success"), info.get("fail")
        if success is not None:  # looked at first: an end is made of it
            success = flag(success.item(), "success")
        return SingleStep(
            self._observed(observation),
            reward.item(),
            terminated.item(),
            self._steps >= self.limit,
            success,
            None if failure is None else failure.item(),
            info.get("reward_terms"),
            info.get("metrics"),
        )

    def close(self) -> None:
        self.task.close()


class ManiSkill(OneByOne):
    """Task instances in this process, each with its own physics."""

    Config = ManiSkillConfig
    tries_seeds = False

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
        if missing := _missing_assets(config.id):
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
            from rlpipe.envs.base_maniskill_batched import BatchedManiSkill, NotBatchableError, checked_rows

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
        simulator = cls(stacked(envs, config.frame_stack), next_seed, ignore_terminations=config.ignore_terminations)
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
        return [TaskEntry(name, limit) for name, limit in sorted(_known_tasks().items())]

    @classmethod
    def can_set_state(cls, config: ManiSkillConfig) -> bool:  # noqa: ARG003 - whatever the options
        return True

    @classmethod
    def can_blend(cls, config: ManiSkillConfig) -> bool:  # noqa: ARG003 - whatever the options
        return True

    @classmethod
    def time_limit(cls, config: ManiSkillConfig) -> int | None:
        if config.max_episode_steps is not None:
            return config.max_episode_steps
        if config.id in (known := _known_tasks()):
            return known[config.id]
        import gymnasium

        registered: int | None = gymnasium.spec(config.id).max_episode_steps  # by the user's own module
        return registered

    @classmethod
    def check_machine(cls, config: ManiSkillConfig, key: str) -> None:
        if config.needs_vulkan and not can_render():
            raise ConfigError(no_vulkan(f"{key}.obs_mode", config.obs_mode))

    @classmethod
    def check(cls, config: ManiSkillConfig, key: str) -> None:
        require("mani_skill", "maniskill", key)
        if config.has_cameras and config.mesh_triangles is not None:
            require("fast_simplification", "maniskill", f"{key}.mesh_triangles={config.mesh_triangles}")
        if config.id in _known_tasks():
            check_ends(config, key, cls.time_limit(config))
            return
        load_maniskill()  # slow, so only if the user's own module may have registered the id
        from mani_skill.utils.registration import REGISTERED_ENVS

        if config.id not in REGISTERED_ENVS:
            raise ConfigError(
                f"{key}.id is {config.id!r}, but ManiSkill has no such task{nearest(config.id, REGISTERED_ENVS)} "
                f"It knows {len(REGISTERED_ENVS)} tasks."
            )
        check_ends(config, key, cls.time_limit(config))
