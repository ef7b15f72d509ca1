"""Minari's datasets: ``data/main_data.hdf5`` and ``data/metadata.json``.

One group per episode, ``episode_N``, holds ``observations``, an array [T + 1, ...] or a group of such; ``actions``
[T, A]; ``rewards``, ``terminations`` and ``truncations`` [T]; and ``infos``, a group of [T + 1, ...] whose first row is
that of the reset. Its attribute ``seed`` is that of the reset.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rlpipe.demonstrations.formats.episode import (
    STATE,
    Array,
    DatasetInfo,
    EpisodeEntry,
    Features,
    Frames,
    RecordedEpisode,
)
from rlpipe.demonstrations.formats.hdf5 import (
    FileDataset,
    arrays_below,
    bears,
    compress,
    compress_whole,
    flags,
    needs_nothing,
    numbers,
    observations,
    rewards,
)
from rlpipe.demonstrations.recording import opened
from rlpipe.errors import ConfigError
from rlpipe.plugins import require
from rlpipe.trajectory import LeafSpec

NAME = "minari"
VERSION = "0.5.4"
"""Version of the library whose files are written."""
_SUCCESS = ("success", "is_success")
_STATES = "states"
_JPEG = b"\xff\xd8\xff"
"""First bytes of a JPEG."""


def recognises(path: Path) -> bool:
    """True for an HDF5 file with ``episode_N/observations``, and for the folder of a dataset."""

    def mark(file: Any) -> bool:
        names = [name for name in file if name.startswith("episode_")]
        return bool(names) and "observations" in file[names[0]]

    return bears(_file_of(path), mark)


def _file_of(path: Path) -> Path | None:
    """Returns the file of a dataset that is named by its path or by its folder; None if there is none."""
    inside = (path / "data" / "main_data.hdf5", path / "main_data.hdf5", path)
    return next((file for file in inside if file.is_file()), None)


def open_dataset(path: Path, key: str = "demos") -> FileDataset:
    """Opens a dataset."""
    file = _file_of(path) or path
    beside = file.with_name("metadata.json")
    try:
        facts = json.loads(beside.read_text(encoding="utf-8")) if beside.exists() else {}
        spec = facts.get("env_spec") or {}
        spec = json.loads(spec) if isinstance(spec, str) else spec
    except ValueError as error:
        raise ConfigError(f"{key}: {beside} is damaged or cut off: copy it again.") from error
    with opened(str(file), key) as held:
        names = sorted((name for name in held if name.startswith("episode_")), key=lambda name: int(name[8:]))
        for name in names:
            if "actions" not in held[name] or not hasattr(held[name]["actions"], "shape"):
                raise ConfigError(f"{key}: {file}: {name} holds no array of actions: record it again, or delete it.")
        entries = [EpisodeEntry(name, len(held[name]["actions"]), _seed(held[name])) for name in names]
    info = DatasetInfo(spec.get("id"), spec.get("kwargs") or {}, facts.get("rate"), str(facts.get("description") or ""))
    return FileDataset(NAME, str(facts.get("minari_version", "")), file, key, info, entries, _read)


def _seed(group: Any) -> int | None:
    seed = group.attrs.get("seed")
    return None if seed is None or isinstance(seed, str | bytes) or int(seed) < 0 else int(seed)


def _read(group: Any, entry: EpisodeEntry, dataset: FileDataset) -> RecordedEpisode:
    where = dataset.where(entry)
    length = len(group["actions"])
    arrays = arrays_below(group, "observations")
    encoded = {leaf: arrays.pop(leaf) for leaf in [*arrays] if _holds_jpeg(arrays[leaf])}
    leaves, cameras = observations(arrays, dataset.path, where)
    for leaf, array in encoded.items():
        shape = _decoded(array[0]).shape
        cameras[leaf] = Frames(len(array), shape, partial(_decoded_frames, dataset.path, array.name))
    infos = arrays_below(group, "infos")
    success = next((infos[name] for name in _SUCCESS if name in infos), None)
    states = {name[len(_STATES) + 1 :]: array[:] for name, array in infos.items() if name.startswith(_STATES + "/")}
    others = {
        name: array[:][-length:]
        for name, array in infos.items()
        if name not in _SUCCESS and not name.startswith(_STATES + "/") and array.dtype.kind in "biuf"
        and len(array) in (length, length + 1)
    }  # fmt: skip
    task = group.attrs.get("task")
    return RecordedEpisode(
        entry.name, numbers(group["actions"], where), leaves, cameras,
        rewards(group["rewards"], where) if "rewards" in group else None,
        None if success is None else flags(success, where)[-length:],
        flags(group["terminations"], where) if "terminations" in group else None,
        flags(group["truncations"], where) if "truncations" in group else None,
        entry.seed, states or None, None if task is None else str(task), others,
    )  # fmt: skip


def _holds_jpeg(array: Any) -> bool:
    """True for pictures each of which the library has encoded, as it does unless it is told not to."""
    if array.dtype.kind == "O":
        return bool(len(array)) and isinstance(array[0], np.ndarray) and array[0].dtype == np.uint8
    return array.dtype == np.uint8 and array.ndim == 2 and bool(len(array)) and array[0, :3].tobytes() == _JPEG


def _decoded(content: Array) -> Array:
    require("PIL", "video", "demos")
    from PIL import Image

    picture = np.asarray(Image.open(io.BytesIO(content.tobytes())))
    return picture if picture.ndim == 3 else picture[..., None]


def _decoded_frames(file: Path, place: str) -> Iterator[Array]:
    import h5py

    with h5py.File(file) as held:
        for content in held[place]:
            yield _decoded(content)


check = needs_nothing


def losses(info: DatasetInfo, features: Features) -> Sequence[str]:
    """Names observations without the last one, which Minari cannot hold."""
    del info
    return [] if features.last_observation else ["needs an observation after the last step: the last one is repeated"]


def write(folder: Path, info: DatasetInfo, episodes: Iterable[RecordedEpisode]) -> None:
    """Writes ``data/main_data.hdf5`` and ``data/metadata.json``."""
    import h5py

    data = folder / "data"
    data.mkdir()
    total = number = 0
    features = Features(LeafSpec(()))
    with h5py.File(data / "main_data.hdf5", "w", libver="latest") as out:
        for number, episode in enumerate(episodes, 1):
            group = out.create_group(f"episode_{number - 1}")
            _write(group, episode, number - 1)
            total += len(episode)
            features = episode.features
        out.attrs["total_episodes"], out.attrs["total_steps"] = number, total
    facts = {
        "total_episodes": number, "total_steps": total, "data_format": "hdf5", "dataset_id": "rlpipe/demonstrations-v0",
        "jpeg_encoding": False,
        "observation_space": _space({**features.observations, **features.cameras}), "minari_version": VERSION,
        "action_space": json.dumps(_box(features.action)), "description": info.description,
        "env_spec": _env_spec(info),
        "rate": info.rate,
    }  # fmt: skip
    recorded = {name: value for name, value in facts.items() if value is not None}
    (data / "metadata.json").write_text(json.dumps(recorded), encoding="utf-8")


def _env_spec(info: DatasetInfo) -> str | None:
    """Returns the task as Gymnasium has it in JSON; None without one that Gymnasium could name."""
    from gymnasium.envs.registration import EnvSpec
    from gymnasium.error import Error

    try:
        return str(EnvSpec(info.task or "", kwargs=dict(info.options)).to_json())
    except Error:
        return None


def _box(spec: LeafSpec) -> dict[str, Any]:
    """Returns a space of Gymnasium as Minari has it in JSON; numbers without bounds."""
    low, high = (-np.inf, np.inf) if spec.dtype.startswith("float") else (0, 255)
    return {
        "type": "Box", "dtype": spec.dtype, "shape": list(spec.shape),
        "low": np.full(spec.shape, low, float).tolist(), "high": np.full(spec.shape, high, float).tolist(),
    }  # fmt: skip


def _space(leaves: Mapping[str, LeafSpec]) -> str:
    if set(leaves) == {STATE}:
        return json.dumps(_box(leaves[STATE]))
    return json.dumps({"type": "Dict", "subspaces": {name: _box(spec) for name, spec in leaves.items()}})


def _write(group: Any, episode: RecordedEpisode, number: int) -> None:
    length = len(episode)
    bare = not episode.cameras and set(episode.observations) == {STATE}
    pictures: dict[str, Array] = {leaf: frames.stacked() for leaf, frames in episode.cameras.items()}
    for leaf, values in {**episode.observations, **pictures}.items():
        rows = values if len(values) > length else np.concatenate([values, values[-1:]])
        compress(group, "observations" if bare else f"observations/{leaf}", rows)
    compress(group, "actions", episode.actions)
    never = np.zeros(length, bool)
    group["rewards"] = np.zeros(length, np.float32) if episode.rewards is None else episode.rewards
    group["terminations"] = never if episode.terminated is None else episode.terminated
    group["truncations"] = never if episode.truncated is None else episode.truncated
    if episode.success is not None:
        group["infos/success"] = np.concatenate([[False], episode.success])
    for name, values in episode.others.items():
        group[f"infos/{name}"] = np.concatenate([values[:1], values])
    for name, values in (episode.states or {}).items():
        compress_whole(group, f"infos/{_STATES}/{name}", values)
    group.attrs["id"], group.attrs["total_steps"] = number, length
    if episode.seed is not None:
        group.attrs["seed"] = episode.seed
    if episode.task is not None:
        group.attrs["task"] = episode.task
