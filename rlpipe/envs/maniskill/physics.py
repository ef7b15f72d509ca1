"""Physics of a ManiSkill task that differs from episode to episode.

Everything is set in the scene of a stock environment, so a group that steps this scene has it too.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from rlpipe.envs.shared.axes import FRICTION, GRAVITY, JOINT_DAMPING, JOINT_STIFFNESS, MASS, START

AXES = (MASS, FRICTION, JOINT_DAMPING, JOINT_STIFFNESS, GRAVITY, START)
_BOTH, _X, _Y = slice(None), slice(0, 1), slice(1, 2)
SPREADS: Mapping[str, Mapping[tuple[tuple[int, ...], int], slice]] = {
    "LiftPegUpright-v1": {((2,), 0): _BOTH},
    "PegInsertionSide-v1": {((2,), 0): _X, ((2,), 1): _X},  # the peg points along y, to the box
    "PickCube-v1": {((2,), 0): _BOTH, ((2,), 1): _BOTH},
    "PlaceSphere-v1": {((1,), 1): _BOTH, ((1,), 3): _BOTH},  # y; along x, the sphere and the bin are side by side
    "PlugCharger-v1": {((2,), 0): _Y, ((2,), 1): _Y},
    "PokeCube-v1": {((3,), 0): _BOTH, ((3,), 1): _BOTH},  # z is not used
    "PullCube-v1": {((2,), 0): _BOTH},
    "PullCubeTool-v1": {((2,), 0): _Y, ((), 1): _BOTH},
    "PushCube-v1": {((2,), 0): _BOTH},
    "StackCube-v1": {((2,), 0): _BOTH},  # of both cubes together
}
"""By task, which of the numbers in [0, 1) that a reset draws are places that can spread without things meeting: by the
shape of ``torch.rand((scenes, *shape))`` and the count of its draws before, the coordinates."""


_NO_TORQUE = np.zeros(3, dtype=np.float32)


class PhysicsWithGravity:
    """Takes the place of a PhysX system, whose own gravity is settled once it is made."""

    def __init__(self, system: Any) -> None:
        """Takes over a system."""
        self._system = system
        self._further: Any = None
        self._pulls: list[Callable[..., None]] | None = None  # of the bodies that have weight; None: to be looked for

    def pull(self, further: Any) -> None:
        """Sets a further acceleration [3] of everything that has weight from now on, m/s^2; None for none."""
        self._further = further
        self.look_again()

    def look_again(self) -> None:
        """Looks before the next step which bodies have weight; within an episode that stays as it is."""
        self._pulls = None

    def step(self) -> None:
        """Advances the system by one physics step."""
        if self._further is not None:
            if self._pulls is None:
                self._pulls = [body.add_force_torque for body in _heavy_bodies(self._system)]
            for pull in self._pulls:
                pull(self._further, _NO_TORQUE, "acceleration")
        self._system.step()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._system, name)


def _heavy_bodies(system: Any) -> Iterator[Any]:
    for body in system.rigid_dynamic_components:
        if not body.kinematic and not body.disable_gravity:
            yield body
    for link in system.articulation_link_components:
        if not link.disable_gravity:
            yield link


class ManiSkillPhysics:
    """Levels of the physics of one task, as one stock environment has it."""

    def __init__(self, task: Any) -> None:
        """Changes nothing yet; ``task`` is ManiSkill's environment with one scene."""
        self._task = task
        self._scene: Any = None
        self._levels: Mapping[str, float] = {}
        self._present: Mapping[str, float] = {}  # levels that the scene has

    def vary(self, levels: Mapping[str, float]) -> None:
        """Sets the levels of the next episode, before its reset."""
        self._levels = levels
        self._apply()

    @contextlib.contextmanager
    def placing(self) -> Iterator[None]:
        """Spreads the places that the task draws in a reset around the middle of their range."""
        level = self._levels.get(START.name, START.neutral)
        if level == START.neutral:
            yield
            return
        import torch

        as_shipped: Any = torch.rand
        spreads, counts = SPREADS[self._task.spec.id], Counter[tuple[int, ...]]()

        def rand(*size: Any, **options: Any) -> Any:
            drawn = as_shipped(*size, **options)
            shape = tuple(drawn.shape[1:])
            place = spreads.get((shape, counts[shape]))
            counts[shape] += 1
            if place is not None:
                drawn[..., place] = 0.5 + level * (drawn[..., place] - 0.5)
            return drawn

        torch.rand = rand
        try:
            yield
        finally:
            torch.rand = as_shipped

    def was_reset(self) -> None:
        """Sets the levels in a scene that the reset has built anew, or has filled with other bodies."""
        if not self._levels:
            return
        if self._task.scene is not self._scene:
            self._apply()
        if isinstance(self._task.scene.px, PhysicsWithGravity):
            self._task.scene.px.look_again()

    def _apply(self) -> None:
        if self._task.scene is not self._scene:
            self._remember()
        levels = {axis.name: self._levels.get(axis.name, axis.neutral) for axis in AXES}
        present, self._present = self._present, levels

        def changes(*axes: Any) -> bool:
            return any(levels[axis.name] != present[axis.name] for axis in axes)

        if changes(MASS):
            for body, mass, inertia in self._objects:
                body.mass = mass * levels[MASS.name]
                body.inertia = inertia * np.float32(levels[MASS.name])
        if changes(FRICTION):
            for material, static, dynamic in self._own_materials():
                material.static_friction = static * levels[FRICTION.name]
                material.dynamic_friction = dynamic * levels[FRICTION.name]
        if changes(JOINT_DAMPING, JOINT_STIFFNESS):
            for joint, stiffness, damping, limit, mode in self._joints:
                joint.set_drive_properties(
                    stiffness * levels[JOINT_STIFFNESS.name], damping * levels[JOINT_DAMPING.name], limit, mode
                )
        if changes(GRAVITY):
            scene = self._task.scene
            if not isinstance(scene.px, PhysicsWithGravity):
                scene.px = PhysicsWithGravity(scene.px)
            level = levels[GRAVITY.name]
            gravity = np.array(self._task.sim_config.scene_config.gravity, dtype=np.float32)
            scene.px.pull(None if level == GRAVITY.neutral else np.float32(level - 1.0) * gravity)

    def _remember(self) -> None:
        """Looks at a scene as the task has built it."""
        self._scene = scene = self._task.scene
        system = scene.px
        agent = self._task.agent
        robots = [] if agent is None else [part.robot for part in getattr(agent, "agents", [agent])]
        links = {id(link) for robot in robots for link in robot._objs[0].links}
        moving = [body for body in system.rigid_dynamic_components if not body.kinematic]
        moving += [link for link in system.articulation_link_components if id(link) not in links]
        moving = moving or list(system.articulation_link_components)
        self._objects = [(body, body.mass, np.array(body.inertia)) for body in moving]
        joints = [joint._objs[0] for robot in robots for joint in robot.active_joints]
        self._joints = [
            (joint, joint.stiffness, joint.damping, joint.force_limit, joint.drive_mode) for joint in joints
        ]
        self._materials: list[tuple[Any, float, float]] | None = None
        self._present = {axis.name: axis.neutral for axis in AXES}

    def _own_materials(self) -> list[tuple[Any, float, float]]:
        """Returns this scene's materials with their frictions; before the first call, scenes may share materials."""
        if self._materials is None:
            import sapien.physx

            system, copies = self._task.scene.px, dict[tuple[float, float, float], Any]()
            bodies = (
                *system.rigid_dynamic_components, *system.rigid_static_components,
                *system.articulation_link_components,
            )  # fmt: skip
            for body in bodies:
                for shape in body.collision_shapes:
                    material = shape.physical_material
                    case = (material.static_friction, material.dynamic_friction, material.restitution)
                    if case not in copies:
                        copies[case] = sapien.physx.PhysxMaterial(*case)
                    shape.physical_material = copies[case]
            self._materials = [(material, static, dynamic) for (static, dynamic, _), material in copies.items()]
        return self._materials
