"""Bodies of a MuJoCo task, for replays: what they look like and where they are. It needs no OpenGL.

It works with every library whose tasks have MuJoCo's ``model`` and ``data``. Importing this file imports no MuJoCo.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlpipe.trajectory import Body, Float32, Scene, Shape

HIDDEN_GROUPS = (3, 4, 5)
"""Groups of geometry that MuJoCo's own viewer does not show either, such as simplified shapes for collisions."""
GOALS = re.compile("goal|target")
"""Names of sites that mark the goal. Other sites serve sensors and tools."""
_UNCOLOURED = (0.5, 0.5, 0.5, 1.0)  # MuJoCo's default, which a material replaces
_RGB = 1  # mjTEXROLE_RGB
_SIZES = {"sphere": 1, "capsule": 2, "cylinder": 2, "plane": 2, "box": 3, "ellipsoid": 3}
"""Numbers that describe the size of a geometry of each kind, but for meshes."""


class MuJoCoBodies:
    """Visible bodies of one compiled model.

    Attributes:
        scene: what they look like.
    """

    def __init__(self, model: Any, hidden_groups: Collection[int] = HIDDEN_GROUPS) -> None:
        """Finds the bodies of an ``MjModel``."""
        import mujoco

        self._mujoco = mujoco
        self.model = model
        kinds = {int(getattr(mujoco.mjtGeom, f"mjGEOM_{kind.upper()}")): kind for kind in (*_SIZES, "mesh")}
        shapes: dict[int, list[Shape]] = {}
        for geom in range(model.ngeom):
            kind, colour = kinds.get(int(model.geom_type[geom])), _colour(model, geom)
            hidden = int(model.geom_group[geom]) in hidden_groups or _is_handle(model, geom)
            if kind is not None and colour[3] > 0 and not hidden:
                shapes.setdefault(int(model.geom_bodyid[geom]), []).append(_shape(model, geom, kind, colour))
        self._numbers = np.array(sorted(shapes), dtype=np.int64)
        names = [model.body(number).name or f"body {number}" for number in self._numbers.tolist()]
        bodies = [Body(name, tuple(shapes[body])) for name, body in zip(names, self._numbers.tolist(), strict=True)]
        self._sites = [n for n in range(model.nsite) if _is_goal(model, n) and int(model.site_type[n]) in kinds]
        bodies += [_site(model, n, kinds[int(model.site_type[n])]) for n in self._sites]
        self.scene = Scene(tuple(bodies))

    def poses(self, data: Any, goals: NDArray[np.float64] | None = None) -> Float32:
        """Returns their poses [B, 7] from an ``MjData``.

        Args:
            data: whose poses are those at the beginning of the last physics step, which is what tasks observe.
            goals: [G, 3] places of the sites of goals, for a task that moves them only when it draws; None elsewhere.
        """
        poses = np.empty((len(self._numbers) + len(self._sites), 7), dtype=np.float32)
        count = len(self._numbers)
        poses[:count, :3], poses[:count, 3:] = data.xpos[self._numbers], data.xquat[self._numbers]
        goals = None if goals is None or len(goals) != len(self._sites) else goals
        turned = np.empty(4)
        for place, site in enumerate(self._sites):
            self._mujoco.mju_mat2Quat(turned, data.site_xmat[site])
            poses[count + place, :3] = data.site_xpos[site] if goals is None else goals[place]
            poses[count + place, 3:] = turned
        return poses


CHANGING = ("geom_pos", "geom_quat", "geom_size", "geom_rgba", "site_size", "site_rgba")
"""Arrays of a model that a task may change without compiling it again, and on which its looks depend."""


class MuJoCoGeometry:
    """Scene and poses of a task, whose model may be compiled anew."""

    def __init__(self, hidden_groups: Collection[int] = HIDDEN_GROUPS) -> None:
        """Knows no model yet."""
        self._hidden = hidden_groups
        self._bodies: MuJoCoBodies | None = None
        self._looks = b""

    def scene(self, model: Any) -> Scene:
        """Returns the bodies of a model, as it is now: some tasks move a goal within it, or resize it."""
        looks = b"".join(getattr(model, name).tobytes() for name in CHANGING)
        if self._bodies is None or self._bodies.model is not model or looks != self._looks:
            self._bodies, self._looks = MuJoCoBodies(model, self._hidden), looks
        return self._bodies.scene

    def poses(self, data: Any, goals: NDArray[np.float64] | None = None) -> Float32:
        """Returns the poses of the bodies of the last ``scene``."""
        assert self._bodies is not None  # the scene comes first
        return self._bodies.poses(data, goals)


def has_mujoco(task: Any) -> bool:
    """True for a task with the ``model`` and ``data`` of MuJoCo's own Python package."""
    kinds = [type(getattr(task, name, None)) for name in ("model", "data")]
    return [kind.__name__ for kind in kinds] == ["MjModel", "MjData"]


def goals_of(task: Any) -> NDArray[np.float64] | None:
    """Returns the goal of a task as points [G, 3]; None if it is no row of points."""
    goal = getattr(task, "goal", None)
    points = np.asarray(goal, dtype=np.float64) if isinstance(goal, np.ndarray) else np.zeros(0)
    return points.reshape(-1, 3) if points.size and points.size % 3 == 0 else None


def _shape(model: Any, geom: int, kind: str, colour: tuple[float, ...]) -> Shape:
    where = tuple(map(float, model.geom_pos[geom])), tuple(map(float, model.geom_quat[geom]))
    if kind != "mesh":
        return Shape(kind, tuple(map(float, model.geom_size[geom][: _SIZES[kind]])), *where, colour)
    mesh = int(model.geom_dataid[geom])
    first, count = int(model.mesh_vertadr[mesh]), int(model.mesh_vertnum[mesh])
    begin, faces = int(model.mesh_faceadr[mesh]), int(model.mesh_facenum[mesh])
    points = np.array(model.mesh_vert[first : first + count], dtype=np.float32)
    corners = np.array(model.mesh_face[begin : begin + faces], dtype=np.int32)
    return Shape("mesh", (1.0, 1.0, 1.0), *where, colour, points, corners)


def _is_handle(model: Any, geom: int) -> bool:
    """True for the axes of a body that a controller drags along, which is not part of the robot."""
    moved = int(model.body_mocapid[model.geom_bodyid[geom]]) >= 0
    return moved and not model.geom_contype[geom] and not model.geom_conaffinity[geom]


def _is_goal(model: Any, site: int) -> bool:
    return GOALS.search(model.site(site).name.lower()) is not None and model.site_rgba[site][3] > 0


def _site(model: Any, site: int, kind: str) -> Body:
    size = tuple(map(float, model.site_size[site][: _SIZES[kind]]))
    return Body(model.site(site).name, (Shape(kind, size, colour=_linear(model.site_rgba[site])),), ghost=True)


def _colour(model: Any, geom: int) -> tuple[float, ...]:
    """Returns the colour of a geometry in linear light: its own, or that of its material with its picture's mean."""
    colour, material = model.geom_rgba[geom], int(model.geom_matid[geom])
    if material < 0:
        return _linear(colour)
    rgba = np.array(model.mat_rgba[material] if np.allclose(colour, _UNCOLOURED) else colour, dtype=np.float64)
    texture = int(np.atleast_1d(model.mat_texid[material])[_RGB if np.ndim(model.mat_texid[material]) else 0])
    if texture >= 0:
        rgba[:3] *= _mean_of(model, texture)
    return _linear(rgba)


def _mean_of(model: Any, texture: int) -> NDArray[np.float64]:
    """Returns the mean red, green and blue of a picture, from 0 to 1."""
    channels = int(model.tex_nchannel[texture])
    begin = int(model.tex_adr[texture])
    size = int(model.tex_height[texture]) * int(model.tex_width[texture]) * channels
    pixels = np.asarray(model.tex_data[begin : begin + size]).reshape(-1, channels)
    mean: NDArray[np.float64] = pixels[:, :3].mean(axis=0) / 255.0 if channels >= 3 else np.full(3, pixels.mean() / 255)
    return mean


def _linear(rgba: Any) -> tuple[float, ...]:
    """Converts a colour as screens take it to linear light."""
    values = np.clip(np.asarray(rgba, dtype=np.float64), 0.0, 1.0)
    return (*map(float, values[:3] ** 2.2), float(values[3]))
