"""Files of recorded episodes: ``replays/`` of a run (docs/run_directory.md#replays), written whole or not at all.

A set holds the replays of one evaluation. Geometry lies beside the sets, once for all episodes that share it.
"""

from __future__ import annotations

import json
import os
import re
import time
import zipfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlpipe.errors import ConfigError
from rlpipe.trajectory import Body, Episode, Replay, Scene, Shape

FORMAT = 1
"""Raised when older files can no longer be read."""
FOLDER, VIDEOS = "replays", "videos"
PARTIAL = ".partial"
"""End of the name of a file that is being written."""
_ABOUT = "about"
_TRAINING = re.compile(r"iteration-(\d+)")


@dataclass(frozen=True)
class ReplaySet:
    """Replays of one evaluation.

    Attributes:
        iteration: iteration whose weights acted; 0 for a baseline.
        source: where they come from, such as ``training``, ``evaluation 3``, or ``floor 2 (random)``.
        task: id of the task that was evaluated, for people.
        replays: in the order of their seeds.
    """

    iteration: int
    source: str
    task: str
    replays: Sequence[Replay]


def set_name(iteration: int) -> str:
    """Returns the name of the set, and of its video, of an evaluation during training."""
    return f"iteration-{iteration:06d}"


def iteration_of(file: Path) -> int | None:
    """Returns the iteration of a set or a video; None if it is not of an evaluation during training."""
    match = _TRAINING.fullmatch(file.stem)
    return int(match[1]) if match else None


class ReplayFolder:
    """Folder of the replays of a run, or of baselines."""

    def __init__(self, path: Path) -> None:
        """Refers to a folder, which need not exist."""
        self.path = path

    def sets(self) -> list[Path]:
        """Lists the files of the sets, the one that was written last first; a copy of them has the same order."""
        return sorted(self._sets(), key=lambda file: (_written(file), file.name), reverse=True)

    def episodes(self, name: str) -> list[Episode]:
        """Lists the episodes of a set in the order of its replays; none where there is no such set, or it is damaged.

        Args:
            name: of the set, without an ending
        """
        try:
            return [Episode.from_row(entry["episode"]) for entry in _about(self.path / f"{name}.npz")["replays"]]
        except (*_DAMAGE, ConfigError):
            return []

    def _sets(self) -> list[Path]:
        return [file for file in self.path.glob("*.npz") if not file.name.startswith("scene-")]

    def write(self, name: str, replay_set: ReplaySet, scenes: Mapping[str, Scene]) -> Path:
        """Writes a set under a name without its ending, and the geometry that it needs.

        Raises:
            OSError: the disk does not take it.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        for key in {replay.scene for replay in replay_set.replays} - {""}:
            if not (file := self._scene_file(key)).exists():
                _write(file, *_packed_scene(scenes[key]))
        file = self.path / f"{name}.npz"
        _write(file, *_packed_set(replay_set))
        return file

    def write_iteration(
        self,
        iteration: int,
        replays: Sequence[Replay],
        scenes: Mapping[str, Scene],
        staying: Collection[int],
        task: str = "",
    ) -> None:
        """Writes the replays of an evaluation during training, and removes those of others.

        Args:
            staying: iterations whose replays stay, too.
        """
        self.write(set_name(iteration), ReplaySet(iteration, "training", task, replays), scenes)
        for other, file in self._of_training():
            if other != iteration and other not in staying:
                file.unlink(missing_ok=True)
        self._remove_unused_scenes()

    def forget_from(self, iteration: int) -> None:
        """Removes what training wrote in this iteration and later: a resumed run takes them again."""
        for other, file in self._of_training():
            if other >= iteration:
                file.unlink(missing_ok=True)

    def _of_training(self) -> list[tuple[int, Path]]:
        numbered = [(iteration_of(file), file) for file in self.path.glob("*.npz")]
        return [(iteration, file) for iteration, file in numbered if iteration is not None]

    def _remove_unused_scenes(self) -> None:
        try:
            used = {entry["scene"] for file in self._sets() for entry in _about(file)["replays"]}
        except (*_DAMAGE, ConfigError):  # a set that cannot be read may need any of them
            return
        for file in self.path.glob("scene-*.npz"):
            if file.stem.removeprefix("scene-") not in used:
                file.unlink(missing_ok=True)

    def _scene_file(self, key: str) -> Path:
        return self.path / f"scene-{key}.npz"

    def read(self, file: Path) -> ReplaySet:
        """Reads a set.

        Raises:
            ConfigError: it is damaged, or of a newer version.
        """
        try:
            return _unpacked_set(file)
        except _DAMAGE as error:
            raise ConfigError(f"{file} is damaged ({type(error).__name__}: {error}); remove it.") from error

    def read_scene(self, key: str) -> Scene:
        """Reads the geometry of a replay.

        Raises:
            ConfigError: it is missing or damaged.
        """
        file = self._scene_file(key)
        try:
            return _unpacked_scene(file)
        except FileNotFoundError as error:
            raise ConfigError(f"{file} is missing: copy the folder {self.path} as a whole.") from error
        except _DAMAGE as error:
            raise ConfigError(f"{file} is damaged ({type(error).__name__}: {error}); remove it.") from error


_DAMAGE = (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile)
Arrays = dict[str, NDArray[Any]]


def _write(file: Path, about: Mapping[str, Any], arrays: Arrays) -> None:
    text = np.frombuffer(json.dumps({"format": FORMAT, **about}, allow_nan=False).encode(), dtype=np.uint8)
    partial = file.with_name(f".{file.name}.{os.getpid()}{PARTIAL}")
    try:
        with partial.open("wb") as open_file:
            np.savez_compressed(open_file, **{_ABOUT: text, **arrays})  # type: ignore[arg-type] # arrays by name
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)


def _about(file: Path, held: Any = None) -> dict[str, Any]:
    if held is None:
        with np.load(file, allow_pickle=False) as opened:
            return _about(file, opened)
    about: dict[str, Any] = json.loads(held[_ABOUT].tobytes())
    if about["format"] > FORMAT:
        raise ConfigError(f"{file} was written by a newer rlpipe: install that to read it.")
    return about


def _written(file: Path) -> float:
    """Returns when a set was written, in seconds since 1970; the time of the file where the set does not say."""
    try:
        return float(_about(file)["written"])
    except (*_DAMAGE, ConfigError):
        return file.stat().st_mtime


def _packed_set(replay_set: ReplaySet) -> tuple[dict[str, Any], Arrays]:
    entries: list[dict[str, Any]] = []
    arrays: Arrays = {}
    for number, replay in enumerate(replay_set.replays):
        leaves = list(replay.observations)
        episode = replay.episode.as_row(replay_set.iteration)
        entries.append({"episode": episode, "scene": replay.scene, "observations": leaves})
        held = {"rewards": replay.rewards, "actions": replay.actions, "success": replay.success, "poses": replay.poses}
        held |= {f"observation-{place}": replay.observations[name] for place, name in enumerate(leaves)}
        arrays |= {f"{number}-{name}": values for name, values in held.items() if values is not None}
    facts = {"iteration": replay_set.iteration, "source": replay_set.source, "task": replay_set.task}
    return {**facts, "replays": entries, "written": time.time()}, arrays


def _unpacked_set(file: Path) -> ReplaySet:
    with np.load(file, allow_pickle=False) as held:
        about = _about(file, held)
        replays = []
        for number, entry in enumerate(about["replays"]):
            arrays: dict[str, Any] = {name: held.get(f"{number}-{name}") for name in _NAMES}
            leaves = {name: held[f"{number}-observation-{place}"] for place, name in enumerate(entry["observations"])}
            replays.append(
                Replay(Episode.from_row(entry["episode"]), observations=leaves, scene=entry["scene"], **arrays)
            )
    return ReplaySet(about["iteration"], about["source"], about["task"], replays)


_NAMES = ("rewards", "actions", "success", "poses")


def _packed_scene(scene: Scene) -> tuple[dict[str, Any], Arrays]:
    arrays: Arrays = {}

    def packed(shape: Shape) -> dict[str, Any]:
        fields = {name: value for name, value in vars(shape).items() if name not in ("vertices", "triangles")}
        if len(shape.vertices):
            number = fields["mesh"] = len(arrays) // 2
            arrays[f"vertices-{number}"], arrays[f"triangles-{number}"] = shape.vertices, shape.triangles
        return fields

    bodies = [
        {
            "name": body.name,
            "ghost": body.ghost,
            "shapes": [packed(shape) for shape in body.shapes],
            "stand_in": [packed(shape) for shape in body.stand_in],
        }
        for body in scene.bodies
    ]
    return {"bodies": bodies, "eye": scene.eye, "target": scene.target}, arrays


def _unpacked_scene(file: Path) -> Scene:
    with np.load(file, allow_pickle=False) as held:
        about = _about(file, held)

        def unpacked(fields: dict[str, Any]) -> Shape:
            attributes: dict[str, Any] = {
                name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()
            }
            mesh = attributes.pop("mesh", None)
            if mesh is not None:
                attributes |= {"vertices": held[f"vertices-{mesh}"], "triangles": held[f"triangles-{mesh}"]}
            return Shape(**attributes)

        bodies = tuple(
            Body(
                body["name"],
                tuple(map(unpacked, body["shapes"])),
                body["ghost"],
                tuple(map(unpacked, body["stand_in"])),
            )
            for body in about["bodies"]
        )
        return Scene(bodies, tuple(about["eye"]), tuple(about["target"]))
