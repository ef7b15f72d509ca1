"""robomimic's HDF5, which robosuite, LIBERO, MimicGen and Isaac Lab write too.

The group ``data`` holds one group per episode, ``demo_N``: ``obs`` and perhaps ``next_obs``, groups of [T, ...];
``actions`` [T, A]; ``rewards`` and ``dones`` [T]; and ``states`` [T, D]. Its attribute ``env_args`` is JSON that names
the task.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlpipe.demonstrations.formats.episode import (
    Array,
    DatasetInfo,
    EpisodeEntry,
    Features,
    RecordedEpisode,
    wrong_length,
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
    only_file,
    rewards,
)
from rlpipe.demonstrations.recording import opened
from rlpipe.errors import ConfigError

NAME = "robomimic"
FILE = "demonstrations.hdf5"
_EXTRA = ("success", "terminated", "truncated")
_STATES = "simulator_states"


def recognises(path: Path) -> bool:
    """True for an HDF5 file with ``data/demo_N``, and for a folder that holds exactly one."""

    def mark(file: Any) -> bool:
        data = file.get("data")
        return hasattr(data, "keys") and any(name.startswith("demo") for name in data)

    return bears(only_file(path, ".hdf5"), mark)


def open_dataset(path: Path, key: str = "demos") -> FileDataset:
    """Opens a file, or the only one of a folder."""
    file = only_file(path, ".hdf5") or path
    with opened(str(file), key) as held:
        data = held["data"]
        names = sorted(data, key=lambda name: (int((re.findall(r"\d+", name) or ["0"])[-1]), name))
        for name in names:
            if "actions" not in data[name]:
                raise ConfigError(f"{key}: {file}: data/{name} holds no actions: record it again, or delete it.")
        entries = [EpisodeEntry(name, len(data[name]["actions"]), _seed(data[name])) for name in names]
        try:
            arguments = json.loads(data.attrs.get("env_args", "{}"))
        except ValueError as error:
            raise ConfigError(f"{key}: {file}: the attribute env_args of data is no JSON: write it again.") from error
    options: Mapping[str, Any] = arguments.get("env_kwargs") or {}
    info = DatasetInfo(
        arguments.get("env_name"), options, options.get("control_freq"), str(arguments.get("description", ""))
    )
    return FileDataset(NAME, "", file, key, info, entries, _read, "data/")


def _seed(group: Any) -> int | None:
    seed = group.attrs.get("seed")
    return None if seed is None else int(seed)


def _read(group: Any, entry: EpisodeEntry, dataset: FileDataset) -> RecordedEpisode:
    where = dataset.where(entry)
    before, after = arrays_below(group, "obs"), arrays_below(group, "next_obs")
    complete, steps = bool(after) and after.keys() == before.keys(), len(group["actions"])
    for place, arrays in {"obs": before, "next_obs": after}.items():
        for leaf, array in arrays.items():
            if len(array) != steps:
                raise wrong_length(where, steps, len(array), f"{place}/{leaf}", steps)
    leaves, cameras = observations(before, dataset.path, where, last=after if complete else None)
    results: dict[str, Any] = {name: flags(group[name], where) for name in _EXTRA if name in group}
    if "rewards" in group:
        results["rewards"] = rewards(group["rewards"], where)
    if "dones" in group and "terminated" not in results:
        results["terminated"] = flags(group["dones"], where)
    others = {"states": group["states"][:]} if "states" in group and len(group["states"]) == steps else {}
    states = {name: array[:] for name, array in arrays_below(group, _STATES).items()} or None
    task = group.attrs.get("task")
    return RecordedEpisode(
        entry.name, numbers(group["actions"], where), leaves, cameras, seed=entry.seed, states=states,
        task=None if task is None else str(task), others=others, **results,
    )  # fmt: skip


check = needs_nothing


def losses(info: DatasetInfo, features: Features) -> Sequence[str]:
    """Names the columns for which the layout has no place."""
    del info
    return [f"has no place for the column {name}" for name in features.others if name != "states"]


def write(folder: Path, info: DatasetInfo, episodes: Iterable[RecordedEpisode]) -> None:
    """Writes ``demonstrations.hdf5``."""
    import h5py

    with h5py.File(folder / FILE, "w", libver="latest") as out:
        data = out.create_group("data")
        total = 0
        for number, episode in enumerate(episodes):
            group = data.create_group(f"demo_{number}")
            _write(group, episode)
            total += len(episode)
        rate = {} if info.rate is None else {"control_freq": info.rate}
        arguments = {
            "env_name": info.task or "", "type": 2, "env_kwargs": {**info.options, **rate},
            "description": info.description,
        }  # fmt: skip
        data.attrs["env_args"], data.attrs["total"] = json.dumps(arguments), total


def _write(group: Any, episode: RecordedEpisode) -> None:
    length = len(episode)
    pictures: dict[str, Array] = {leaf: frames.stacked() for leaf, frames in episode.cameras.items()}
    for leaf, values in {**episode.observations, **pictures}.items():
        compress(group, f"obs/{leaf}", values[:length])
        if episode.has_last_observation:
            compress(group, f"next_obs/{leaf}", values[1:])
    compress(group, "actions", episode.actions)
    if episode.rewards is not None:
        group["rewards"] = episode.rewards
    ends = episode.terminated if episode.terminated is not None else episode.success
    if ends is not None:
        group["dones"] = ends.astype(np.int64)
    for name in _EXTRA:
        if (column := getattr(episode, name)) is not None:
            group[name] = column
    if "states" in episode.others:
        group["states"] = episode.others["states"]
    for name, values in (episode.states or {}).items():
        compress_whole(group, f"{_STATES}/{name}", values)
    group.attrs["num_samples"] = length
    if episode.seed is not None:
        group.attrs["seed"] = episode.seed
    if episode.task is not None:
        group.attrs["task"] = episode.task
