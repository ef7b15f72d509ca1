"""Bodies of a ManiSkill task, for replays: what they look like and where they are. Nothing is rendered for it.

SAPIEN attaches visual shapes only where it can render, but its builders know them; they are noted as each is built.
Importing this file imports no simulator.
"""

from __future__ import annotations

import functools
import re
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rlpipe.functional.rotations import rotation_product
from rlpipe.trajectory import Body, Float32, Scene, Shape
from rlpipe.trajectory.scene import GREY

Z_TO_X = (np.sqrt(0.5), 0.0, np.sqrt(0.5), 0.0)
"""Rotation that turns our axis of capsules, cylinders and planes into SAPIEN's."""
GHOSTS = re.compile("goal|target|site|hint")
"""Names of actors that only mark something, if they have nothing to collide with."""

_visuals: weakref.WeakKeyDictionary[Any, dict[str, list[Any]]] = weakref.WeakKeyDictionary()
"""Records of visual shapes by ManiSkill's scene, and by the name of the actor, or of the articulation and the link."""


def note_visuals() -> None:
    """Makes ManiSkill's builders note the visual shapes of everything they build. May be called again."""
    from mani_skill.utils.building.actor_builder import ActorBuilder
    from mani_skill.utils.building.articulation_builder import ArticulationBuilder

    if hasattr(ActorBuilder.build, "__wrapped__"):
        return
    actor, articulation = ActorBuilder.build, ArticulationBuilder.build

    @functools.wraps(actor)
    def build_actor(self: Any, *args: Any, **options: Any) -> Any:
        built = actor(self, *args, **options)
        _visuals.setdefault(self.scene, {})[built.name] = list(self.visual_records)
        return built

    @functools.wraps(articulation)
    def build_articulation(self: Any, *args: Any, **options: Any) -> Any:
        built = articulation(self, *args, **options)
        noted = _visuals.setdefault(self.scene, {})
        noted.update({f"{built.name}/{link.name}": list(link.visual_records) for link in self.link_builders})
        return built

    ActorBuilder.build, ArticulationBuilder.build = build_actor, build_articulation


class ManiSkillBodies:
    """Visible bodies of one task, as it is built now.

    Attributes:
        scene: what they look like.
    """

    def __init__(self, task: Any) -> None:
        """Finds the bodies of an unwrapped task on the CPU, which has been reset."""
        self._of = task.scene
        noted = _visuals.get(task.scene, {})
        hidden = {actor.name for actor in task._hidden_objects}
        bodies: list[Body] = []
        self._entities: list[Any] = []
        for name, entity in _entities(task.scene):
            shapes = tuple(map(_visual, noted.get(name, [])))
            touchable = tuple(_collisions(entity))
            if shapes or touchable:
                ghost = not touchable and (name in hidden or GHOSTS.search(name.lower()) is not None)
                from_files = any(shape.file for shape in shapes)
                bodies.append(Body(name, shapes or touchable, ghost, touchable if from_files else ()))
                self._entities.append(entity)
        self.scene = Scene(tuple(bodies), *_view(task))

    def are_of(self, task: Any) -> bool:
        """True if the task has not been built anew."""
        return task.scene is self._of

    def poses(self) -> Float32:
        """Returns their poses [B, 7]."""
        return np.array([entity.pose.__getstate__() for entity in self._entities], dtype=np.float32)


def _entities(scene: Any) -> Iterator[tuple[str, Any]]:
    """Yields the name and SAPIEN's entity of each actor and each link."""
    for name, actor in scene.actors.items():
        yield name, actor._objs[0]
    for name, articulation in scene.articulations.items():
        for link in articulation._objs[0].links:
            yield f"{name}/{_short(link.name, name)}", link.entity


def _short(link: str, articulation: str) -> str:
    """Name of a link in its articulation: scene-0-panda_panda_link0 -> panda_link0."""
    return re.sub(rf"^scene-\d+[-_]{re.escape(articulation)}_", "", link)


def _visual(record: Any) -> Shape:
    """Turns the record of a visual shape into ours."""
    where, scale = tuple(map(float, record.pose.p)), tuple(map(float, np.broadcast_to(record.scale, 3)))
    turned = tuple(map(float, record.pose.q))
    material: Any = record.material
    colour = GREY if material is None else tuple(map(float, material.base_color))
    along_x = tuple(map(float, rotation_product(turned, Z_TO_X)))
    if record.type == "box":
        return Shape("box", scale, where, turned, colour)
    if record.type == "sphere":
        return Shape("sphere", (float(record.radius),), where, turned, colour)
    if record.type in ("capsule", "cylinder"):
        return Shape(record.type, (float(record.radius), float(record.length)), where, along_x, colour)
    if record.type == "plane":
        return Shape("plane", (scale[2], scale[1]), where, along_x, colour)
    return Shape("mesh", scale, where, turned, colour, file=str(record.filename))


def _collisions(entity: Any) -> Iterator[Shape]:
    """Yields what other bodies can touch of an entity."""
    for component in entity.components:
        for shape in getattr(component, "collision_shapes", None) or []:
            kind = type(shape).__name__.removeprefix("PhysxCollisionShape")
            where, turned = tuple(map(float, shape.local_pose.p)), tuple(map(float, shape.local_pose.q))
            along_x = tuple(map(float, rotation_product(turned, Z_TO_X)))
            if kind == "Box":
                yield Shape("box", tuple(map(float, shape.half_size)), where, turned)
            elif kind == "Sphere":
                yield Shape("sphere", (float(shape.radius),), where, turned)
            elif kind in ("Capsule", "Cylinder"):
                yield Shape(kind.lower(), (float(shape.radius), float(shape.half_length)), where, along_x)
            elif kind == "Plane":
                yield Shape("plane", (0.0, 0.0), where, along_x)
            elif hasattr(shape, "vertices"):
                points, corners = np.asarray(shape.vertices, np.float32), np.asarray(shape.triangles, np.int32)
                scale = tuple(map(float, shape.scale))
                yield Shape("mesh", scale, where, turned, vertices=points, triangles=corners.reshape(-1, 3))


def _view(task: Any) -> tuple[Sequence[float], Sequence[float]] | tuple[()]:
    """Returns the eye and the target of the task's own camera for people; nothing if it has none."""
    configs = getattr(task, "_default_human_render_camera_configs", None)
    cameras = list(configs.values() if isinstance(configs, dict) else np.atleast_1d(np.asarray(configs, dtype=object)))
    pose = getattr(cameras[0], "pose", None) if cameras else None
    if pose is None or getattr(cameras[0], "mount", None) is not None:
        return ()
    eye = np.asarray(pose.p, dtype=np.float64).reshape(-1, 3)[0]
    w, x, y, z = np.asarray(pose.q, dtype=np.float64).reshape(-1, 4)[0]
    forward = np.array([1 - 2 * (y * y + z * z), 2 * (x * y + w * z), 2 * (x * z - w * y)])
    target = eye + forward * max(0.3, float(-eye @ forward))  # near the origin, where tasks are
    return tuple(map(float, eye)), tuple(map(float, target))
