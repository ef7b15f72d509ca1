"""ManiSkill's trajectory files: HDF5 with a JSON beside it (``mani_skill.trajectory``).

One group per trajectory holds ``obs`` [T + 1, D], or a group of such arrays; ``actions`` [T, A]; ``success``,
``rewards``, ``terminated`` and ``truncated`` [T]; and ``env_states``, a group of [T + 1, ...]. The JSON names the task
and how its simulator was made, and gives the seeds of the episodes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

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
from rlpipe.demonstrations.formats.hdf5 import arrays_below, compress, compress_whole, frames_of
from rlpipe.demonstrations.recording import contents, in_order, opened, readable, sidecar
from rlpipe.trajectory import Bool

NAME = "maniskill"
FILE = "demonstrations.h5"
"""Name of a file that is written into a folder."""
STATES = "env_states"
"""Group of a trajectory that holds the states."""
_COLUMNS = ("rewards", "success", "terminated", "truncated")


@dataclass
class ManiSkillDataset:
    """File of ManiSkill's, open to be read."""

    format: ClassVar[str] = NAME
    version: ClassVar[str] = ""
    path: Path
    info: DatasetInfo
    features: Features
    episodes: Sequence[EpisodeEntry]
    tasks: Mapping[str, str]
    key: str

    def read(self, number: int) -> RecordedEpisode:
        entry = self.episodes[number]
        where = f"{self.key}: {self.path}: {entry.name}"
        with opened(str(self.path), self.key) as file, readable(where):
            return read_group(file[entry.name], self.path, entry.seed, self.tasks.get(entry.name))


def recognises(path: Path) -> bool:
    """True for an HDF5 file with trajectories, and for a folder that holds exactly one."""
    import h5py

    file = file_of(path)
    if file is None or not h5py.is_hdf5(file):
        return False
    with h5py.File(file) as held:
        names = in_order(held)
        return bool(names) and "observations" not in held[names[0]]


def file_of(path: Path) -> Path | None:
    """Returns the file of a dataset that is named by its path or by its folder; None if there is none."""
    if not path.is_dir():
        return path if path.exists() else None
    inside = sorted(path.glob("*.h5"))
    return inside[0] if len(inside) == 1 else None


def open_dataset(path: Path, key: str = "demos") -> ManiSkillDataset:
    """Opens a file, or the only one of a folder."""
    file = file_of(path) or path
    held = contents(str(file), key)
    beside = sidecar(str(file))
    simulator = beside["env_info"]
    options: dict[str, Any] = dict(simulator["env_kwargs"])
    rate: Any = simulator.get("control_freq") or (options.get("sim_config") or {}).get("control_freq")
    info = DatasetInfo(simulator["env_id"], options, rate, str(beside.get("source_desc") or ""))
    described = {f"traj_{episode.get('episode_id')}": episode for episode in beside.get("episodes", [])}
    tasks = {name: str(episode["task"]) for name, episode in described.items() if episode.get("task")}
    with opened(str(file), key) as open_file:
        lengths = {name: len(open_file[name]["actions"]) - first_step(open_file[name]) for name in held.names}
        first = read_group(open_file[held.names[0]], file)
    entries = [EpisodeEntry(name, lengths[name], held.seeds.get(name)) for name in held.names]
    return ManiSkillDataset(file, info, first.features, entries, tasks, key)


def check(info: DatasetInfo) -> None:
    """Needs nothing."""
    del info


def losses(info: DatasetInfo, features: Features) -> Sequence[str]:
    """Nothing: the file keeps everything."""
    del info, features
    return ()


def write(folder: Path, info: DatasetInfo, episodes: Iterable[RecordedEpisode]) -> None:
    """Writes ``demonstrations.h5`` and its JSON."""
    import h5py

    described: list[dict[str, Any]] = []
    with h5py.File(folder / FILE, "w", libver="latest") as out:  # the older layout needs 7 kB for each group
        for number, episode in enumerate(episodes):
            write_group(out.create_group(f"traj_{number}"), episode)
            described.append(episode_json(number, episode))
    write_sidecar(folder / FILE, described, env_info=simulator_json(info), source_desc=info.description)


def simulator_json(info: DatasetInfo) -> dict[str, Any]:
    """Returns what the JSON says of the simulator."""
    rate = {} if info.rate is None else {"control_freq": info.rate}
    return {"env_id": info.task or "", "env_kwargs": dict(info.options), **rate}


def episode_json(number: int, episode: RecordedEpisode) -> dict[str, Any]:
    """Returns what the JSON says of an episode."""
    facts = {"episode_seed": episode.seed, "task": episode.task}
    success = None if episode.success is None else bool(episode.success.any())
    described = {key: value for key, value in {**facts, "success": success}.items() if value is not None}
    return {"episode_id": number, **described, "elapsed_steps": len(episode)}


def write_sidecar(file: Path, episodes: list[dict[str, Any]], **facts: Any) -> None:
    """Writes the JSON beside a file of demonstrations."""
    text = json.dumps({"episodes": episodes, **facts}, separators=(",", ":"))
    file.with_suffix(".json").write_text(text, encoding="utf-8")


def write_group(group: Any, episode: RecordedEpisode) -> None:
    """Writes an episode to an empty group of an HDF5 file."""
    bare = not episode.cameras and set(episode.observations) == {STATE}
    for name, values in episode.observations.items():
        compress(group, "obs" if bare else f"obs/{name}", values)
    for name, frames in episode.cameras.items():
        compress(group, f"obs/{name}", frames.stacked())
    compress(group, "actions", episode.actions)
    for name, values in {**episode.columns, **episode.others}.items():
        group[name] = values
    write_states(group, episode.states or {})


def write_states(group: Any, states: Mapping[str, Array]) -> None:
    """Writes the states of a trajectory to its group."""
    for name, values in states.items():
        compress_whole(group, f"{STATES}/{name}", values)


def read_group(group: Any, file: Path, seed: int | None = None, task: str | None = None) -> RecordedEpisode:
    """Reads the last attempt of a trajectory (``last_attempt``) from its group."""
    first = first_step(group)
    length = len(group["actions"])
    name = group.name.rpartition("/")[2]
    pictures, observations = {}, {}
    for leaf, array in arrays_below(group, "obs").items():
        if array.dtype == np.uint8 and array.ndim == 4:
            opener = partial(frames_of, file, array.name, first, None)
            pictures[leaf] = Frames(len(array) - first, tuple(array.shape[1:]), opener)
        else:
            observations[leaf] = array[first:]
    columns = {column: group[column][first:].reshape(-1) for column in _COLUMNS if column in group}
    columns |= {column: columns[column].astype(bool) for column in columns if column != "rewards"}
    states = {leaf: array[first:] for leaf, array in arrays_below(group, STATES).items()}
    known_names = {"obs", "actions", STATES, *_COLUMNS}
    others = {
        leaf: array[first:]
        for other in group
        if other not in known_names
        for leaf, array in arrays_below(group, other, other).items()
        if array.dtype.kind in "biuf" and array.shape[:1] == (length,)
    }
    return RecordedEpisode(
        name, group["actions"][first:], observations, pictures, seed=seed, states=states or None, task=task,
        others=others, **columns,
    )  # fmt: skip


def first_step(group: Any) -> int:
    """Returns the first step of the last attempt in a trajectory; see ``last_attempt``."""
    if "terminated" not in group or "success" not in group:
        return 0
    failure = group["fail"][:].astype(bool) if "fail" in group else None
    return last_attempt(group["success"][:].astype(bool), group["terminated"][:].astype(bool), failure)


def last_attempt(success: Bool, terminated: Bool, failure: Bool | None = None) -> int:
    """First step of the last attempt in a trajectory.

    When ``replay_trajectory`` fails to convert a trajectory, ManiSkill 3.0.1 leaves its steps in front of the next one.
    At the seam it writes ``terminated`` without a success or a failure, which no task does.

    Args:
        success: [L] bool of each step.
        terminated: [L] bool of each step.
        failure: [L] bool of each step; None for a task without a notion of failure.
    """
    seams = terminated & ~success if failure is None else terminated & ~success & ~failure
    (steps,) = np.nonzero(seams[:-1])
    return int(steps[-1]) + 1 if len(steps) else 0
