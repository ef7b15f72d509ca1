"""One ManiSkill environment over K CPU scenes: controllers, observations and rewards are computed once for K rows.

ManiSkill has the code for many scenes on the GPU, and on the CPU for one, which it addresses as ``_objs[0]``. The
classes below read and write all scenes on the CPU. They derive from ManiSkill's own; only scenes made here use them, so
stock environments in the same process stay as they are. The single change to ManiSkill itself is
``BaseStruct.__post_init__``, because structs are created under their own names all over ManiSkill and the tasks.

Only state observations work: a group has no renderer. Call ``load_maniskill`` before importing this file.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import sapien
import sapien.physx
import torch
from mani_skill.agents.controllers.utils.kinematics import Kinematics
from mani_skill.envs.scene import ManiSkillScene
from mani_skill.utils import common
from mani_skill.utils.structs import Actor, Articulation, ArticulationJoint, Link
from mani_skill.utils.structs.base import BaseStruct
from mani_skill.utils.structs.pose import Pose, vectorize_pose
from numpy.typing import NDArray

TEMPLATE_ROWS = 2
"""Scenes that a group is built with. What differs in its first axis from a stock environment has a row per scene."""


class ScenePhysics:
    """Takes the place of the one PhysX system: steps the systems of all active scenes, and knows what is outdated.

    Attributes:
        systems: PhysX system by scene.
        timestep: seconds of a physics step.
        active: scenes that are stepped and written to; the others keep their state.
        gathered: values [K, ...] read since the state of a scene last changed, by the object's id and their name.
        drives: bound methods of joints by scene; they last as long as the scene's objects.
        targets: drive targets [K, M] of articulations, by their id; kept up to date once they have been read.
    """

    def __init__(self, systems: Sequence[Any], timestep: float) -> None:
        """Takes the PhysX system of each scene, None for one that has yet to come, and the seconds of a step."""
        self.systems = list(systems)
        self.timestep = timestep
        self.active = list(range(len(self.systems)))
        self.gathered: dict[tuple[int, str], NDArray[Any]] = {}
        self.drives: list[dict[tuple[Any, ...], list[Callable[[float], None]]]] = [{} for _ in systems]
        self.targets: dict[int, NDArray[np.float32]] = {}
        self._contacts: list[list[Contact]] | None = None

    def outdate(self) -> None:
        """Forgets what was read; for whoever changes the state of a scene."""
        self.gathered.clear()
        self._contacts = None

    def replace(self, scene: int, system: Any) -> None:
        """Takes over the state of a scene, whose system is another one if it was built anew."""
        if system is not self.systems[scene]:
            self.systems[scene] = system
            self.drives[scene] = {}
        self.targets.clear()
        self.outdate()

    def step(self) -> None:
        """Advances the active scenes by one physics step."""
        self.outdate()
        for scene in self.active:
            self.systems[scene].step()

    def get_contacts(self) -> list[Any]:
        """Refuses: who asks PhysX itself for contacts expects those of one scene."""
        # the check at the start catches this and shows the message: such a task is stepped one by one
        raise NotImplementedError("the task or its robot reads PhysX's contacts directly")

    def contacts(self) -> list[list[Contact]]:
        """Contacts by scene: (first body, second body, contact); none for scenes that are not active."""
        if self._contacts is None:
            self._contacts = [[] for _ in self.systems]
            for scene in self.active:
                contacts = self.systems[scene].get_contacts()
                self._contacts[scene] = [(*contact.bodies, contact) for contact in contacts]
        return self._contacts


Contact = tuple[Any, Any, Any]


class GroupScene(ManiSkillScene):  # type: ignore[misc]
    """K scenes with a PhysX system each."""

    def __init__(self, sub_scenes: list[Any], **options: Any) -> None:
        """Takes over the scenes; ``options`` are those of ``ManiSkillScene``."""
        super().__init__(sub_scenes, **options)
        self.px = ScenePhysics([scene.physx_system for scene in sub_scenes], sub_scenes[0].physx_system.timestep)

    def get_pairwise_contact_impulses(self, obj1: Any, obj2: Any) -> torch.Tensor:
        """Impulses [K, 3] of the contacts between two objects."""
        total = np.zeros((self.num_envs, 3))
        for row, contacts, body, other in zip(total, self.px.contacts(), obj1._bodies, obj2._bodies, strict=True):
            for first, second, contact in contacts:
                if first is body and second is other:
                    row += impulse(contact)
                elif first is other and second is body:
                    row += impulse(contact) * -1
        return torch.from_numpy(total.astype(np.float32))


def impulse(contact: Any) -> NDArray[Any]:
    """Impulse [3] of a contact on its first body."""
    total: NDArray[Any] = np.sum([point.impulse for point in contact.points], axis=0)
    return total


def read(struct: Any, name: str, values: Callable[[], NDArray[Any]]) -> torch.Tensor:
    """Returns a copy of values [K, ...] that are gathered once per state of the physics.

    Tasks may write into what they get, as they may with a stock environment, so each caller needs a copy.
    """
    gathered = struct.scene.px.gathered
    array = gathered.get((id(struct), name))
    if array is None:
        array = gathered[id(struct), name] = values()
    return torch.from_numpy(array.copy())


def stacked(rows: list[NDArray[Any]]) -> NDArray[Any]:
    """Stacks arrays [M] to [K, M]; several times as fast as ``numpy.stack``."""
    return np.concatenate(rows).reshape(len(rows), -1)


def written(struct: Any, values: Any) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yields the active scenes with their row of the values: [M], [1, M] or [K, M]. What was read is outdated then.

    An object that exists in some scenes only, as while a task builds them one by one, is written as a whole.
    """
    array, px = np.asarray(common.to_numpy(values)), struct.scene.px
    array = np.broadcast_to(array, (struct._num_objs, array.shape[-1] if array.ndim else 1))
    px.outdate()
    everywhere = struct._num_objs == len(px.systems)
    yield from ((place, array[place]) for place in (px.active if everywhere else range(struct._num_objs)))


def net_impulse(contacts: list[Contact], entity: Any) -> NDArray[Any]:
    """Impulse [3] of all contacts of an entity."""
    total = np.zeros(3)
    for first, second, contact in contacts:
        if first.entity == entity:
            total += impulse(contact) * 1
        elif second.entity == entity:
            total += impulse(contact) * -1
    return total


# Plain functions instead of a base class: an object may change its class only to one with a single base.
def pose_property(name: str) -> property:
    """The poses [K] of a struct: the attribute ``name`` of each scene's object."""

    def get(self: Any) -> Pose:
        poses = read(
            self, "pose", lambda: np.array([getattr(part, name).__getstate__() for part in self._objs], np.float32)
        )
        return Pose(raw_pose=poses)

    def set_(self: Any, pose: Any) -> None:
        for scene, row in written(self, vectorize_pose(pose)):
            self._objs[scene].pose = sapien.Pose(row[:3], row[3:])

    return property(get, set_)


def gathered_property(name: str, parts: str) -> property:
    """A property [K, M] of a struct: the attribute ``name`` of each scene's object, or rigid body, in ``parts``."""

    def get(self: Any) -> torch.Tensor:
        return read(self, name, lambda: stacked([getattr(part, name) for part in getattr(self, parts)]))

    def set_(self: Any, values: Any) -> None:
        for scene, row in written(self, values):
            setattr(getattr(self, parts)[scene], name, row)

    return property(get, set_)


def root_velocity(kind: str) -> property:
    """The ``linear`` or ``angular`` velocity [K, 3] of an articulation's root."""

    def get(self: Any) -> torch.Tensor:
        velocity: torch.Tensor = getattr(self.root, f"{kind}_velocity")
        return velocity

    def set_(self: Any, values: Any) -> None:
        for scene, row in written(self, values):
            getattr(self._objs[scene], f"set_root_{kind}_velocity")(row)

    return property(get, set_)


def joint_drive(name: str) -> property:
    """A target [K] of the joints of an articulation."""

    def get(self: Any) -> torch.Tensor:
        return torch.from_numpy(np.concatenate([getattr(joint, name) for joint in self._objs]))

    def set_(self: Any, values: Any) -> None:
        self.scene.px.targets.clear()
        for scene, row in written(self, common.to_tensor(values).reshape(-1, 1)):
            setattr(self._objs[scene], name, row)

    return property(get, set_)


def net_contact_impulses(self: Any) -> torch.Tensor:
    """Impulses [K, 3] of all contacts of the rigid bodies of actors and links."""
    pairs = zip(self.scene.px.contacts(), self._bodies, strict=True)
    total = np.array([net_impulse(contacts, body.entity) for contacts, body in pairs])
    return torch.from_numpy(total.astype(np.float32))


class GroupActor(Actor):  # type: ignore[misc]
    """An actor of every scene."""

    linear_velocity = gathered_property("linear_velocity", "_bodies")
    angular_velocity = gathered_property("angular_velocity", "_bodies")
    get_net_contact_impulses = net_contact_impulses
    pose = pose_property("pose")

    @property
    def is_sleeping(self) -> list[bool]:
        """By scene, True if PhysX has put the body to sleep."""
        return [body.is_sleeping for body in self._bodies]

    def apply_force(self, force: Any) -> None:
        """Applies forces [3] or [K, 3] in newtons to the centres of mass."""
        for scene, row in written(self, force):
            body = self._bodies[scene]
            body.add_force_at_point(force=row, point=(body.pose * body.cmass_local_pose).p)


class GroupLink(Link):  # type: ignore[misc]
    """A link of an articulation in every scene."""

    linear_velocity = gathered_property("linear_velocity", "_bodies")
    angular_velocity = gathered_property("angular_velocity", "_bodies")
    get_net_contact_impulses = net_contact_impulses
    pose = pose_property("entity_pose")


class GroupArticulation(Articulation):  # type: ignore[misc]
    """An articulation of every scene."""

    qpos = gathered_property("qpos", "_objs")
    qvel = gathered_property("qvel", "_objs")
    qf = gathered_property("qf", "_objs")
    qacc = gathered_property("qacc", "_objs")
    root_linear_velocity = root_velocity("linear")
    root_angular_velocity = root_velocity("angular")

    @property
    def drive_targets(self) -> torch.Tensor:
        """Target positions [K, M] of the active joints."""
        targets = self.scene.px.targets
        if id(self) not in targets:
            targets[id(self)] = torch.stack([joint.drive_target for joint in self.active_joints], dim=-1).numpy()
        return torch.from_numpy(targets[id(self)].copy())

    @property
    def drive_velocities(self) -> torch.Tensor:
        """Target velocities [K, M] of the active joints."""
        return torch.stack([joint.drive_velocity_target for joint in self.active_joints], dim=-1)

    def set_joint_drive_targets(self, targets: Any, joints: Any = None, joint_indices: Any = None) -> None:  # noqa: ARG002
        """Sets target positions [K, M] of joints."""
        self._drive("set_drive_target", targets, joints)
        if (held := self.scene.px.targets.get(id(self))) is not None:
            columns = [int(joint.active_index[0]) for joint in joints]
            held[np.ix_(self.scene.px.active, columns)] = common.to_numpy(targets)[self.scene.px.active]

    def set_joint_drive_velocity_targets(self, targets: Any, joints: Any = None, joint_indices: Any = None) -> None:  # noqa: ARG002
        """Sets target velocities [K, M] of joints."""
        self._drive("set_drive_velocity_target", targets, joints)

    def _drive(self, name: str, targets: Any, joints: list[Any]) -> None:
        px = self.scene.px
        rows = common.to_tensor(targets).tolist()
        key = (name, *map(id, joints))
        for scene in px.active:
            drives = px.drives[scene].get(key)
            if drives is None:
                drives = px.drives[scene][key] = [getattr(joint._objs[scene], name) for joint in joints]
            for drive, target in zip(drives, rows[scene], strict=True):
                drive(target)

    def get_net_contact_impulses(self, link_names: Sequence[str]) -> torch.Tensor:
        """Impulses [K, L, 3] of all contacts of links. A contact between two of them counts for its first body."""
        total = np.zeros((self._num_objs, len(link_names), 3))
        for scene, contacts in enumerate(self.scene.px.contacts()):
            entities = [self.links_map[name]._objs[scene].entity for name in link_names]
            # a stock environment looks impulses up by the entity's name, which need not be the link's
            places = {name: place for place, name in enumerate(link_names)}
            for first, second, contact in contacts:
                hit, sign = (first.entity, 1) if first.entity in entities else (second.entity, -1)
                if hit in entities and hit.name in places:
                    total[scene, places[hit.name]] += impulse(contact) * sign
        return torch.from_numpy(total.astype(np.float32))

    def get_link_incoming_joint_forces(self) -> torch.Tensor:
        """Spatial forces [K, L, 6] on the links."""
        return torch.from_numpy(np.array([part.get_link_incoming_joint_forces() for part in self._objs]))

    def compute_passive_force(self, *args: Any, **kwargs: Any) -> NDArray[Any]:
        """Joint forces [K, M] that balance gravity and Coriolis forces."""
        return np.array([part.compute_passive_force(*args, **kwargs) for part in self._objs])


class GroupJoint(ArticulationJoint):  # type: ignore[misc]
    """A joint of an articulation in every scene."""

    drive_target = joint_drive("drive_target")
    drive_velocity_target = joint_drive("drive_velocity_target")

    def _of_articulations(self, name: str) -> NDArray[Any]:
        index = self.active_index.tolist()
        pairs = zip(self._physx_articulations, index, strict=True)
        return np.array([getattr(articulation, name)[place] for articulation, place in pairs], dtype=np.float32)

    @property
    def qpos(self) -> torch.Tensor:
        """Positions [K]."""
        return read(self, "qpos", lambda: self._of_articulations("qpos"))

    @qpos.setter
    def qpos(self, values: Any) -> None:
        for scene, row in written(self, common.to_tensor(values).reshape(-1, 1)):
            articulation = self._physx_articulations[scene]
            positions = articulation.qpos
            positions[int(self.active_index[scene])] = row[0]
            articulation.qpos = positions

    @property
    def qvel(self) -> torch.Tensor:
        """Velocities [K]."""
        return read(self, "qvel", lambda: self._of_articulations("qvel"))


class GroupKinematics(Kinematics):  # type: ignore[misc]
    """Inverse kinematics of every scene, one after another, because the numbers must be those of one scene."""

    @functools.cached_property
    def _indices(self) -> tuple[NDArray[Any], ...]:
        """Indices of the model's joints in the articulation, of the controlled joints in both, and their mask."""
        return (
            self.pmodel_active_joint_indices.numpy(),
            self.pmodel_controlled_joint_indices.numpy(),
            np.array([int(index) for index in self.active_joint_indices]),
            self.qmask.numpy(),
        )

    def compute_ik(self, pose: Pose, q0: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        """Returns joint positions [K, M] that reach the poses; where there are none, the present ones, as stock does.

        Args:
            pose: target poses [K] in the frame of the base.
            q0: [K, J] present joint positions.
        """
        chain, controlled, controlled_in_articulation, mask = self._indices
        positions, targets = q0.numpy(), pose.raw_pose.numpy()
        solutions = positions[:, controlled_in_articulation]
        starts = positions[:, chain]
        for scene in self.articulation.scene.px.active:
            target = sapien.Pose(targets[scene, :3], targets[scene, 3:])
            result, reached, _error = self.pmodel.compute_inverse_kinematics(
                self.end_link_idx, target, initial_qpos=starts[scene], active_qmask=mask, max_iterations=100
            )
            if reached:
                solutions[scene] = result[controlled]
        return torch.from_numpy(solutions)


GROUPED = {Actor: GroupActor, Link: GroupLink, Articulation: GroupArticulation, ArticulationJoint: GroupJoint}


class GroupTask:
    """Mixed into a task's class: makes its scenes on the CPU."""

    @property
    def backend(self) -> Any:
        """ManiSkill's description of the backend, under a name of its own: the CPU's allows one scene only."""
        return self._backend

    @backend.setter
    def backend(self, backend: Any) -> None:
        self._backend = dataclasses.replace(backend, sim_backend="physx_cpu_group")

    def _setup_scene(self) -> None:
        task: Any = self
        task._set_scene_config()
        scenes = [sapien.Scene([sapien.physx.PhysxCpuSystem()]) for _ in range(task.num_envs)]
        for scene in scenes:
            scene.physx_system.timestep = 1.0 / task._sim_freq
        task.scene = GroupScene(scenes, sim_config=task.sim_config, device=task.device, backend=task.backend)


def use_group_structs() -> None:
    """Has ManiSkill's structs read and write every scene of a group. May be called again."""
    stock = BaseStruct.__post_init__
    if hasattr(stock, "__wrapped__"):
        return

    @functools.wraps(stock)
    def post_init(self: Any) -> None:
        stock(self)
        if type(self.scene) is GroupScene:
            self.__class__ = GROUPED.get(type(self), type(self))

    BaseStruct.__post_init__ = post_init


def make_template(task: Any) -> Any:
    """Makes the group of a stock environment's task, with ``TEMPLATE_ROWS`` scenes of its own.

    Args:
        task: the unwrapped stock environment, made by ``gymnasium.make``.
    """
    use_group_structs()
    stock = type(task)
    group_class = type(f"{stock.__name__}Group", (GroupTask, stock), {"__module__": stock.__module__})
    group: Any = group_class(**{**task.spec.kwargs, "num_envs": TEMPLATE_ROWS})
    for controller in controllers(group.agent.controller):
        if type(getattr(controller, "kinematics", None)) is Kinematics:
            controller.kinematics.__class__ = GroupKinematics
    return group


def controllers(controller: Any) -> Iterator[Any]:
    """Yields a controller and those that it consists of."""
    yield controller
    for inner in getattr(controller, "controllers", {}).values():
        yield from controllers(inner)
