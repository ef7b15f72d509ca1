"""Draws a moment of a replay with MuJoCo, which serves here as a renderer alone: nothing is simulated.

MuJoCo draws in memory with OpenGL, which Mesa has in software, so neither a display, a GPU nor Vulkan is needed. It
draws the shapes and the recorded poses of the replay, whatever simulator they come from.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rlpipe.report.replays.geometry import drawn_shapes
from rlpipe.trajectory import Body, Scene, Shape

if TYPE_CHECKING:
    from mujoco import MjSpec

WIDTH, HEIGHT = 480, 360
"""Pixels of a picture."""
TRIANGLES = 4000
"""Triangles of each mesh, about."""
Picture = NDArray[np.uint8]
_GHOST_OPACITY = 0.45
_FROM = (0.62, -0.78, 0.4)
"""Direction from which a scene is seen that names no eye."""
_DOWNWARDS = 15.0
"""Degrees by which the camera looks down at least: some tasks put it level with the table."""
_DISTANCE = 1.95
"""Distance of the camera, in radii of what it shows."""
_RADII = (0.15, 6.0)
_LARGE, _TRAVEL = 1.2, 1.2
"""Metres: a larger shape that stays does not count for the view; the camera follows bodies that go further together."""
_REACH = 0.8
"""Metres from its first place beyond which a shape does not count for the view."""
_BELOW = 0.25
"""Share of the size of the first step; what is further below its lowest point does not count for the view."""
_SAMPLES = 16
"""Steps of an episode that are looked at to place the camera."""
_SKY = ((0.93, 0.94, 0.96), (0.80, 0.84, 0.90))


class Drawing:
    """A scene that can be drawn with its bodies wherever they are."""

    def __init__(self, scene: Scene) -> None:
        """Gives the shapes of a scene to MuJoCo, after ``check_drawing``, which chooses how it draws.

        Raises:
            ValueError: MuJoCo refuses a shape.
        """
        import mujoco

        spec = _empty_scene()
        for number, body in enumerate(scene.bodies):
            _add(spec, body, str(number))
        self._scene = scene
        self._model = spec.compile()
        self._data = mujoco.MjData(self._model)
        self._places = [self._model.body(str(number)).mocapid[0] for number in range(len(scene.bodies))]
        self._camera = mujoco.MjvCamera()
        self._target = np.zeros(3)
        self._renderer = mujoco.Renderer(self._model, HEIGHT, WIDTH)

    def frame(self, episodes: Sequence[NDArray[np.float32]]) -> None:
        """Places the camera so that it shows everything that happens in some episodes, from where the scene asks.

        Args:
            episodes: [T + 1, B, 7] each
        """
        corners = np.concatenate([self._corners(poses) for poses in episodes])
        low, high = corners.min(axis=0), corners.max(axis=0)
        self._target = 0.5 * (low + high)
        eye, target = self._scene.eye, self._scene.target
        way = -np.subtract(eye, target) if eye and target else -np.array(_FROM)
        way /= np.linalg.norm(way)
        radius = min(max(0.5 * float(np.linalg.norm(high - low)), _RADII[0]), _RADII[1])
        self._camera.distance = _DISTANCE * radius
        self._camera.azimuth = math.degrees(math.atan2(way[1], way[0]))
        self._camera.elevation = min(math.degrees(math.asin(way[2])), -_DOWNWARDS)

    def picture(self, poses: NDArray[np.float32], shift: NDArray[np.float32]) -> Picture:
        """Draws the bodies.

        Args:
            poses: [B, 7] of the bodies of the scene, as in ``Replay.poses``
            shift: [3] how far the camera has moved with them, m
        Returns:
            [HEIGHT, WIDTH, 3] red, green and blue.
        """
        self._place(poses)
        self._camera.lookat[:] = self._target + shift
        self._renderer.update_scene(self._data, self._camera)
        drawn: Picture = self._renderer.render()
        return drawn

    def _place(self, poses: NDArray[np.float32]) -> None:
        import mujoco

        self._data.mocap_pos[self._places] = poses[:, :3]
        self._data.mocap_quat[self._places] = poses[:, 3:]
        mujoco.mj_kinematics(self._model, self._data)
        mujoco.mj_camlight(self._model, self._data)

    def _corners(self, poses: NDArray[np.float32]) -> NDArray[np.float64]:
        """Returns [N, 3] corners of boxes around the shapes of an episode, without large ones that stay, as a table."""
        import mujoco

        model, data = self._model, self._data
        plane = model.geom_type == mujoco.mjtGeom.mjGEOM_PLANE
        middles, halves = model.geom_aabb[:, :3], model.geom_aabb[:, 3:]
        stays = ~np.isin(model.geom_bodyid - 1, np.flatnonzero(moving(poses)))  # body 0 is the world
        used = ~plane & ~(stays & (2 * np.linalg.norm(halves, axis=1) > _LARGE))
        if not used.any():
            used = ~plane if not plane.all() else np.ones_like(plane)
        signs = np.array(list(itertools.product((-1, 1), repeat=3)))
        local = middles[used, None] + halves[used, None] * signs
        boxes: list[NDArray[np.float64]] = []
        last = 0 if camera_path(poses).any() else len(poses) - 1
        for step in np.unique(np.linspace(0, last, _SAMPLES).astype(int)):
            self._place(poses[step])
            turned = np.einsum("gij,gkj->gki", data.geom_xmat[used].reshape(-1, 3, 3), local)
            boxes.append((data.geom_xpos[used, None] + turned).reshape(-1, 3))
        lowest = boxes[0][:, 2].min() - _BELOW * float(np.linalg.norm(np.ptp(boxes[0], axis=0)))
        # what is thrown away or falls off a table does not make all else small
        corners = np.concatenate([boxes[0] + np.clip(places - boxes[0], -_REACH, _REACH) for places in boxes])
        corners[:, 2] = np.maximum(corners[:, 2], lowest)
        return corners

    def close(self) -> None:
        """Frees what OpenGL holds."""
        self._renderer.close()


def moving(poses: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Returns [B] which bodies move in an episode. ``poses`` is [T + 1, B, 7]."""
    moved: NDArray[np.bool_] = np.ptp(poses, axis=0).max(axis=1) > 1e-4
    return moved


def camera_path(poses: NDArray[np.float32]) -> NDArray[np.float32]:
    """Returns [T + 1, 3] how far the camera moves with the bodies: not at all, unless they travel together.

    Args:
        poses: [T + 1, B, 7]
    """
    path = np.zeros((len(poses), 3), np.float32)
    moved = moving(poses)
    if moved.any():
        centre = poses[:, moved, :2].mean(axis=1)
        if np.linalg.norm(np.ptp(centre, axis=0)) > _TRAVEL:
            path[:, :2] = centre - centre[0]
    return path


def _empty_scene() -> MjSpec:
    """Makes a scene with light and sky."""
    import mujoco

    spec = mujoco.MjSpec()
    visual = spec.visual
    visual.global_.offwidth, visual.global_.offheight = WIDTH, HEIGHT
    visual.quality.shadowsize = 4096
    visual.headlight.ambient, visual.headlight.diffuse = [0.45] * 3, [0.3] * 3
    visual.headlight.specular = [0.1] * 3
    spec.add_texture(
        name="sky",
        type=mujoco.mjtTexture.mjTEXTURE_SKYBOX,
        builtin=mujoco.mjtBuiltin.mjBUILTIN_GRADIENT,
        rgb1=_SKY[0],
        rgb2=_SKY[1],
        width=128,
        height=128,
    )
    spec.worldbody.add_light(
        pos=[1, -1, 3],
        dir=[-0.3, 0.3, -1],
        type=mujoco.mjtLightType.mjLIGHT_DIRECTIONAL,
        diffuse=[0.45] * 3,
        castshadow=True,
    )
    return spec


def _add(spec: MjSpec, body: Body, name: str) -> None:
    """Adds a body, which is moved from outside and touches nothing."""
    import mujoco

    added = spec.worldbody.add_body(name=name, mocap=True)
    for number, shape in enumerate(drawn_shapes(body, TRIANGLES, set())):
        form: dict[str, Any] = {"size": _size(shape)}
        if shape.kind == "mesh":
            form = {"meshname": f"{name}-{number}"}
            spec.add_mesh(
                name=form["meshname"],
                uservert=(shape.vertices * np.asarray(shape.size, np.float32)).ravel(),
                userface=shape.triangles.ravel(),
                inertia=mujoco.mjtMeshInertia.mjMESH_INERTIA_SHELL,  # a flat one has no volume
            )
        added.add_geom(
            type=getattr(mujoco.mjtGeom, f"mjGEOM_{shape.kind.upper()}"),
            pos=shape.position,
            quat=shape.rotation,
            rgba=_colour(shape, body.ghost),
            contype=0,
            conaffinity=0,
            **form,
        )


def _size(shape: Shape) -> list[float]:
    """Returns the three numbers that MuJoCo takes for the size of a shape; a plane's third must be positive."""
    if shape.kind == "plane":
        return [*shape.size[:2], 1.0]
    return [*shape.size, 0.0, 0.0][:3]


def _colour(shape: Shape, ghost: bool) -> list[float]:
    """Returns a colour as it appears on a screen, from one in linear light."""
    *light, opacity = shape.colour
    light = [max(0.0, min(1.0, value)) ** (1 / 2.2) for value in light]
    return [*light, opacity * (_GHOST_OPACITY if ghost else 1.0)]
