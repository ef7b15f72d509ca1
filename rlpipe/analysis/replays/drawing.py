"""Draws a moment of a replay with MuJoCo, which serves here as a renderer alone: nothing is simulated.

MuJoCo draws in memory with OpenGL, which Mesa has in software, so neither a display, a GPU nor Vulkan is needed. What it
draws are the shapes and the recorded poses of the replay, whatever simulator they come from.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rlpipe.analysis.replays.geometry import drawn_shapes
from rlpipe.errors import ConfigError
from rlpipe.plugins import require
from rlpipe.trajectory import Body, Scene, Shape

if TYPE_CHECKING:
    from mujoco import MjSpec

WIDTH, HEIGHT = 480, 360
"""Pixels of a picture."""
TRIANGLES = 4000
"""Triangles of each mesh, about."""
EXTRA = "video"
"""Optional packages that videos need."""
LIBRARIES = ("egl", "osmesa") if sys.platform == "linux" else ("glfw",)
"""Ways to OpenGL without a display, in the order in which they are tried (``MUJOCO_GL``)."""
_GHOST_OPACITY = 0.45
_SKY = ((0.93, 0.94, 0.96), (0.80, 0.84, 0.90))
_PROBE = "import mujoco; mujoco.Renderer(mujoco.MjModel.from_xml_string('<mujoco/>'), 8, 8).render()"
_PROBE_SECONDS = 60.0


class Drawing:
    """A scene that can be drawn with its bodies wherever they are."""

    def __init__(self, scene: Scene) -> None:
        """Gives the shapes of a scene to MuJoCo.

        Raises:
            ValueError: MuJoCo refuses a shape.
        """
        import mujoco

        choose_library()
        spec = _empty_scene()
        for number, body in enumerate(scene.bodies):
            _add(spec, body, str(number))
        self._model = spec.compile()
        self._data = mujoco.MjData(self._model)
        self._places = [self._model.body(str(number)).mocapid[0] for number in range(len(scene.bodies))]
        self._camera = _camera(scene)
        self._renderer = mujoco.Renderer(self._model, HEIGHT, WIDTH)

    def picture(self, poses: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Draws the bodies.

        Args:
            poses: [B, 7] of the bodies of the scene, as in ``Replay.poses``
        Returns:
            [HEIGHT, WIDTH, 3] red, green and blue.
        """
        import mujoco

        self._data.mocap_pos[self._places] = poses[:, :3]
        self._data.mocap_quat[self._places] = poses[:, 3:]
        mujoco.mj_kinematics(self._model, self._data)
        mujoco.mj_camlight(self._model, self._data)
        self._renderer.update_scene(self._data, self._camera)
        drawn: NDArray[np.uint8] = self._renderer.render()
        return drawn

    def close(self) -> None:
        """Frees what OpenGL holds."""
        self._renderer.close()


def check_drawing(key: str) -> None:
    """Checks that videos can be made on this machine.

    Args:
        key: option that asks for them
    Raises:
        ConfigError: a package or OpenGL is missing; the message says what to install.
    """
    for package in ("mujoco", "imageio_ffmpeg", "PIL"):
        require(package, EXTRA, key)
    choose_library()


def choose_library() -> None:
    """Sets ``MUJOCO_GL`` to the first library that can draw here, tried in another process; leaves it if it is set.

    Raises:
        ConfigError: none can.
    """
    if os.environ.get("MUJOCO_GL"):
        return
    reasons = []
    for library in LIBRARIES:
        environment = {**os.environ, "MUJOCO_GL": library}
        try:
            tried = subprocess.run(
                [sys.executable, "-c", _PROBE], env=environment, capture_output=True, text=True, timeout=_PROBE_SECONDS
            )
        except subprocess.TimeoutExpired:
            reasons.append(f"{library}: no answer within {_PROBE_SECONDS:g} s")
            continue
        if tried.returncode == 0:
            os.environ["MUJOCO_GL"] = library
            return
        reasons.append(f"{library}: {(tried.stderr.strip().splitlines() or ['it crashed'])[-1]}")
    raise ConfigError(
        f"Videos need OpenGL without a display, which does not work here ({'; '.join(reasons)}). On Debian and Ubuntu: "
        "apt-get install libegl1 libgl1-mesa-dri, or libosmesa6. Replays (rlpipe replay) need none of it."
    )


def _empty_scene() -> MjSpec:
    """Makes a scene with light and sky."""
    import mujoco

    spec = mujoco.MjSpec()
    visual = spec.visual
    visual.global_.offwidth, visual.global_.offheight = WIDTH, HEIGHT
    visual.quality.shadowsize = 2048
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
        given: dict[str, Any] = {"size": _size(shape)}
        if shape.kind == "mesh":
            given = {"meshname": f"{name}-{number}"}
            spec.add_mesh(
                name=given["meshname"],
                uservert=(shape.vertices * np.float32(shape.size)).ravel(),
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
            **given,
        )


def _size(shape: Shape) -> list[float]:
    """Returns the three numbers that MuJoCo takes for the size of a shape; a plane's third must be positive."""
    if shape.kind == "plane":
        return [*shape.size[:2], 1.0]
    return [*shape.size, 0.0, 0.0][:3]


def _colour(shape: Shape, ghost: bool) -> list[float]:
    """Returns a colour as it appears on a screen, from one in linear light."""
    *light, opacity = shape.colour
    shown = [max(0.0, min(1.0, value)) ** (1 / 2.2) for value in light]
    return [*shown, opacity * (_GHOST_OPACITY if ghost else 1.0)]


def _camera(scene: Scene) -> Any:
    """Returns MuJoCo's camera at the eye of a scene."""
    import mujoco

    way = np.subtract(scene.target, scene.eye)
    distance = float(np.linalg.norm(way))
    camera = mujoco.MjvCamera()
    camera.lookat[:] = scene.target
    camera.distance = distance
    camera.azimuth = math.degrees(math.atan2(way[1], way[0]))
    camera.elevation = math.degrees(math.asin(way[2] / distance))
    return camera
