"""Meshes with fewer triangles for cameras: on a CPU, the time of a small picture goes into its vertices.

Garland and Heckbert 1997, "Surface Simplification Using Quadric Error Metrics". Collision shapes are other meshes and
stay as they are. Importing this file imports no simulator.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

VERSION = 1
"""Part of the names in the cache. Raise it whenever a simplified mesh changes."""
SHARP_ANGLE = math.radians(30)
"""Edges between faces that differ more stay sharp; over others, normals are smooth, so that highlights do not smear."""
LEAST_TRIANGLES = 16
"""Triangles that each geometry of a file keeps at least."""


def cache_folder() -> Path:
    """Folder of the simplified meshes, below the user's folder of caches, else that of temporary files."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "rlpipe", "meshes")
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    return folder if os.access(folder, os.W_OK) else Path(tempfile.gettempdir(), f"rlpipe-{os.getuid()}", "meshes")


def simplified(file: Path, most: int) -> Path:
    """Returns a GLB file that looks like another and has few triangles; it is made once and kept.

    Geometries with a picture on them stay as they are, and so does a file with so few triangles already.

    Args:
        file: GLB.
        most: triangles of the file that is returned, about.
    """
    digest = hashlib.sha256(file.read_bytes()).hexdigest()[:24]
    copy = cache_folder() / f"{digest}-{most}-{VERSION}.glb"
    if not copy.exists():
        content = _simplify(file, most)
        copy.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=copy.parent, delete=False) as partial:
            partial.write(content)
        os.replace(partial.name, copy)  # other workers may make the same one
    return copy


def _simplify(file: Path, most: int) -> bytes:
    import trimesh

    scene: Any = trimesh.load_scene(file, process=False)
    plain = {name: mesh for name, mesh in scene.geometry.items() if _is_plain(mesh)}
    total = sum(len(mesh.faces) for mesh in plain.values())
    left = most - sum(len(mesh.faces) for name, mesh in scene.geometry.items() if name not in plain)
    if total <= left:
        return file.read_bytes()
    for name, mesh in plain.items():
        scene.geometry[name] = _simplified_mesh(mesh, max(left * len(mesh.faces) // total, LEAST_TRIANGLES))
    content: bytes = scene.export(file_type="glb", include_normals=True)
    return content


def _is_plain(mesh: Any) -> bool:
    """True for triangles of one colour, without a picture on them."""
    visual: Any = getattr(mesh, "visual", None)
    return hasattr(mesh, "faces") and getattr(visual, "kind", None) == "texture" and visual.uv is None


def _simplified_mesh(mesh: Any, most: int) -> Any:
    import fast_simplification
    import numpy as np
    import trimesh

    joined: Any = trimesh.Trimesh(mesh.vertices, mesh.faces, process=False)
    joined.merge_vertices(merge_norm=True, merge_tex=True)  # files repeat a vertex for each of its faces
    if len(joined.faces) > most:
        points, faces = fast_simplification.simplify(
            joined.vertices.astype(np.float32), joined.faces.astype(np.int32), target_count=most
        )
        joined = trimesh.Trimesh(points, faces, process=False)
        joined.update_faces(joined.nondegenerate_faces())  # which would have no normal
    smooth = trimesh.graph.smooth_shade(joined, angle=SHARP_ANGLE, facet_minarea=None)
    painted: Any = trimesh.visual.TextureVisuals
    smooth.visual = painted(material=mesh.visual.material)
    return smooth


@contextlib.contextmanager
def simplified_meshes(most: int | None) -> Iterator[None]:
    """Within it, SAPIEN loads simplified copies of the GLB files that are only seen; None changes nothing."""
    if most is None:
        yield
        return
    from sapien.wrapper.actor_builder import ActorBuilder

    as_shipped = ActorBuilder.add_visual_from_file

    @functools.wraps(as_shipped)
    def add_simplified(self: Any, filename: str, *args: Any, **options: Any) -> Any:
        file = Path(filename)
        if file.suffix.lower() == ".glb":
            filename = str(simplified(file, most))
        return as_shipped(self, filename, *args, **options)

    ActorBuilder.add_visual_from_file = add_simplified
    try:
        yield
    finally:
        ActorBuilder.add_visual_from_file = as_shipped


Colour = tuple[float, ...]


@functools.lru_cache(maxsize=64)
def parts_of(file: Path, most: int) -> list[tuple[Any, Any, Colour | None]]:
    """Returns the meshes of a file in one frame, for replays.

    Args:
        file: GLB, OBJ, STL or whatever else trimesh reads.
        most: triangles of all together, about.
    Returns:
        Vertices [V, 3] float32, triangles [F, 3] int32, and the colour in linear light of each; of a picture, its muted
        mean. None for a mesh without colour.
    Raises:
        ValueError: it holds no triangles.
    """
    import trimesh

    scene: Any = trimesh.load_scene(file, process=False)
    meshes = [mesh for mesh in scene.dump() if len(getattr(mesh, "faces", ()))]
    if not meshes:
        raise ValueError(f"{file} holds no triangles")
    total = sum(len(mesh.faces) for mesh in meshes)
    parts = []
    for mesh in meshes:
        share = max(most * len(mesh.faces) // total, LEAST_TRIANGLES)
        parts.append((*few_triangles(mesh.vertices, mesh.faces, share), _colour_of(mesh.visual)))
    return parts


def few_triangles(vertices: Any, triangles: Any, most: int) -> tuple[Any, Any]:
    """Joins equal vertices of a mesh [V, 3], [F, 3], and simplifies it to about ``most`` triangles."""
    import numpy as np

    points, places = np.unique(np.asarray(vertices, np.float32), axis=0, return_inverse=True)
    corners = places.reshape(-1)[np.asarray(triangles)].astype(np.int32)
    if len(corners) > most:
        import fast_simplification

        points, corners = fast_simplification.simplify(points, corners, target_count=max(most, LEAST_TRIANGLES))
    a, b, c = corners.T
    flat = (a == b) | (b == c) | (c == a)
    return np.asarray(points, np.float32), np.asarray(corners[~flat], np.int32)


def _colour_of(visual: Any) -> Colour | None:
    """Returns the colour of a mesh: its material's, times the muted mean of its picture."""
    import numpy as np

    material: Any = getattr(visual, "material", None)
    if material is None:
        return None
    if (factor := getattr(material, "baseColorFactor", None)) is not None or hasattr(material, "baseColorTexture"):
        colour = np.ones(4) if factor is None else np.asarray(factor, dtype=np.float64)
        colour = colour / 255.0 if colour.max() > 1 else colour  # trimesh holds bytes
        picture = material.baseColorTexture
    else:
        colour, picture = (np.asarray(material.main_color) / 255.0) ** 2.2, getattr(material, "image", None)
    colour = np.append(colour[:3], colour[3] if len(colour) > 3 else 1.0)
    if picture is not None:
        pixels = np.asarray(picture.convert("RGB"), dtype=np.float64).reshape(-1, 3) / 255.0
        colour[:3] *= (pixels**2.2).mean(axis=0)
        # Without its grain, a surface looks more colourful than its picture.
        colour[:3] += 0.5 * (colour[:3] @ [0.2126, 0.7152, 0.0722] - colour[:3])
    return tuple(map(float, colour))
