"""Visible bodies of a simulator. Their geometry is the same in every step; a ``Replay`` holds their poses by step."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

KINDS = ("box", "sphere", "capsule", "cylinder", "ellipsoid", "plane", "mesh")
GREY = (0.8, 0.8, 0.8, 1.0)
"""Colour of what has none."""


@dataclass(frozen=True, eq=False)
class Shape:
    """One visible shape of a body.

    Attributes:
        kind: one of ``KINDS``.
        size: in metres. Box: half lengths along x, y, z. Sphere: radius. Capsule and cylinder: radius, and half length
            along z, of a capsule without its caps. Ellipsoid: three radii. Plane: half lengths along x and y, 0 for a
            plane without end; it faces z. Mesh: factors along x, y, z.
        position: [3] in the frame of the body, m.
        rotation: [4] unit quaternion w, x, y, z, likewise.
        colour: red, green, blue in linear light, and opacity, from 0 to 1.
        vertices: [V, 3] float32, m, of a mesh; empty for other kinds, and for a mesh that only its file holds.
        triangles: [F, 3] int32 indices of vertices, counter-clockwise from outside.
        file: of a mesh, the file with the finer one that the simulator itself draws; empty if there is none. A page
            takes it where it exists, with its own colours, and the vertices elsewhere.
    """

    kind: str
    size: tuple[float, ...]
    position: tuple[float, ...] = (0.0, 0.0, 0.0)
    rotation: tuple[float, ...] = (1.0, 0.0, 0.0, 0.0)
    colour: tuple[float, ...] = GREY
    vertices: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 3), np.float32))
    triangles: NDArray[np.int32] = field(default_factory=lambda: np.zeros((0, 3), np.int32))
    file: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"a shape is one of {', '.join(KINDS)}, but got {self.kind!r}.")


@dataclass(frozen=True, eq=False)
class Body:
    """Shapes that move as one.

    Attributes:
        name: unique in its scene.
        shapes: what is drawn.
        ghost: True if nothing can touch it, as a mark of the goal; it is drawn translucent.
        stand_in: drawn instead of ``shapes`` where a file of a mesh is missing, such as collision hulls.
    """

    name: str
    shapes: tuple[Shape, ...]
    ghost: bool = False
    stand_in: tuple[Shape, ...] = ()


@dataclass(frozen=True, eq=False)
class Scene:
    """Bodies of an episode, in the order of their poses. z points up.

    Attributes:
        bodies: what can be drawn.
        eye: [3] good place to look from, m; empty if unknown.
        target: [3] point to look at, m; empty if unknown.
    """

    bodies: tuple[Body, ...]
    eye: tuple[float, ...] = ()
    target: tuple[float, ...] = ()

    @cached_property
    def key(self) -> str:
        """Name that two scenes share only if they look the same: 16 hexadecimal digits."""
        digest = hashlib.sha256(repr((self.eye, self.target)).encode())
        for body in self.bodies:
            digest.update(repr((body.name, body.ghost)).encode())
            for shapes in (body.shapes, body.stand_in):
                for shape in shapes:
                    where = (shape.kind, shape.size, shape.position, shape.rotation, shape.colour, shape.file)
                    digest.update(repr(where).encode())
                    digest.update(shape.vertices.tobytes() + shape.triangles.tobytes())
        return digest.hexdigest()[:16]
