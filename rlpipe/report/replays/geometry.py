"""Geometry of pages and videos: shapes as they are, meshes with few triangles.

Meshes of robots are read where the simulator is installed, when the page or video is made. Elsewhere, stand-ins are
shown.
"""

from __future__ import annotations

import importlib.util
import logging
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlpipe.envs.shared.meshes import few_triangles, parts_of
from rlpipe.report.replays.packing import packed_mesh
from rlpipe.trajectory import Body, Scene, Shape

log = logging.getLogger("rlpipe")
INSTALLED = "site-packages/"


@dataclass
class Geometry:
    """Meshes of a page, each once, and the scenes that use them.

    Attributes:
        most: triangles of each mesh, about.
        meshes: packed, in the order of their numbers.
        missing: files of meshes that are not on this machine, or cannot be read.
    """

    most: int
    meshes: list[dict[str, Any]] = field(default_factory=list)
    missing: set[str] = field(default_factory=set)
    _numbers: dict[bytes, int] = field(default_factory=dict)

    def scene(self, scene: Scene) -> dict[str, Any]:
        """Describes a scene for the page."""
        return {
            "eye": scene.eye,
            "target": scene.target,
            "bodies": [
                {
                    "name": body.name,
                    "ghost": body.ghost,
                    "shapes": [self._shape(part) for part in drawn_shapes(body, self.most, self.missing)],
                }
                for body in scene.bodies
            ],
        }

    def _shape(self, shape: Shape) -> dict[str, Any]:
        mesh = {"mesh": self._mesh(shape.vertices, shape.triangles)} if shape.kind == "mesh" else {}
        return {
            "kind": shape.kind,
            "size": _rounded(shape.size),
            "position": _rounded(shape.position),
            "rotation": _rounded(shape.rotation),
            "colour": [round(value, 4) for value in shape.colour],
            **mesh,
        }

    def _mesh(self, vertices: NDArray[np.float32], triangles: NDArray[np.int32]) -> int:
        """Returns the number of a mesh; equal ones share it."""
        key = vertices.tobytes() + triangles.tobytes()
        if key not in self._numbers:
            self._numbers[key] = len(self.meshes)
            self.meshes.append(packed_mesh(vertices, triangles))
        return self._numbers[key]


def drawn_shapes(body: Body, most: int, missing: set[str]) -> list[Shape]:
    """Returns the shapes that a body is drawn with, in which each mesh has its vertices and one colour.

    Args:
        body: of a scene.
        most: triangles of each mesh, about.
        missing: gets the files of meshes that are not on this machine, or cannot be read; the stand-in is drawn then.
    """
    try:
        return [part for shape in body.shapes for part in _parts(shape, most, missing)]
    except (OSError, ValueError, ImportError) as error:
        log.debug("%s is shown by its stand-in: %s", body.name, error)
        return [part for shape in body.stand_in for part in _parts(shape, most, missing)]


def _parts(shape: Shape, most: int, missing: set[str]) -> list[Shape]:
    """Returns a shape with few triangles: of a file, one mesh for each of its colours."""
    if shape.kind != "mesh":
        return [shape]
    if not shape.file:
        points, corners = few_triangles(shape.vertices, shape.triangles, most)
        return [replace(shape, vertices=points, triangles=corners)]
    try:
        parts = parts_of(installed(shape.file), most)
    except Exception as error:  # whatever a file of a mesh, or the library that reads it, may do
        missing.add(shape.file)
        raise ValueError(f"{shape.file}: {error}") from error
    return [
        replace(shape, file="", vertices=points, triangles=corners, colour=colour or shape.colour)
        for points, corners, colour in parts
    ]


def _rounded(values: tuple[float, ...]) -> list[float]:
    return [round(float(value), 7) for value in values]


def installed(file: str) -> Path:
    """Returns where a file of an installed package lies on this machine; it may have been noted on another one.

    Raises:
        FileNotFoundError: it is not here.
    """
    path = Path(file)
    if path.is_file():
        return path
    _, marker, inside = file.replace("\\", "/").rpartition(INSTALLED)
    package, _, rest = inside.partition("/")
    spec = importlib.util.find_spec(package) if marker and package.isidentifier() else None
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (here := Path(folder, rest)).is_file():
            return here
    raise FileNotFoundError(f"{file} is not on this machine")
