"""ManiSkill's trajectory files: HDF5 with a JSON beside it (``mani_skill.trajectory``).

One group per trajectory holds ``obs`` [T + 1, D], or a group of such arrays; ``actions`` [T, A]; ``success``,
``rewards``, ``terminated`` and ``truncated`` [T]; and ``env_states``, a group of [T + 1, ...]. The JSON names the task
and how its simulator was made, and gives the seeds of the episodes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlpipe.demonstrations.formats.episode import STATE, Array, DatasetInfo, EpisodeEntry, Features, RecordedEpisode
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
from rlpipe.demonstrations.recording import Contents, contents, in_order, opened, sidecar
from rlpipe.trajectory import Bool

NAME = "maniskill"
FILE = "demonstrations.h5"
"""Name of a file that is written into a folder."""
STATES = "env_states"
"""Group of a trajectory that holds the states."""
_FLAGS = ("success", "terminated", "truncated")


@dataclass(kw_only=True)
class ManiSkillDataset(FileDataset):
    """File of ManiSkill's, open to be read.

    Attributes:
        contents: its trajectories, and what the JSON says of them.
        tasks: of trajectories in words, by name.
    """

    contents: Contents
    tasks: Mapping[str, str]


def recognises(path: Path) -> bool:
    """True for an HDF5 file with trajectories, and for a folder that holds exactly one."""

    def mark(file: Any) -> bool:
        names = in_order(file)
        return bool(names) and "observations" not in file[names[0]]

    return bears(only_file(path, ".h5"), mark)


def open_dataset(path: Path, key: str = "demos") -> ManiSkillDataset:
    """Opens a file, or the only one of a folder."""
    file = only_file(path, ".h5") or path
    held = contents(str(file), key)
    beside = sidecar(str(file))
    simulator = beside["env_info"]
    options: dict[str, Any] = dict(simulator["env_kwargs"])
    rate: Any = simulator.get("control_freq") or (options.get("sim_config") or {}).get("control_freq")
    info = DatasetInfo(simulator["env_id"], options, rate, str(beside.get("source_desc") or ""))
    described = {f"traj_{episode.get('episode_id')}": episode for episode in beside.get("episodes", [])}
    tasks = {name: str(episode["task"]) for name, episode in described.items() if episode.get("task")}
    with opened(str(file), key) as out:
        entries = [
            EpisodeEntry(name, len(out[name]["actions"]) - first_step(out[name]), held.seeds.get(name))
            for name in held.names
        ]
    return ManiSkillDataset(NAME, "", file, key, info, entries, _read, contents=held, tasks=tasks)


def _read(group: Any, entry: EpisodeEntry, dataset: ManiSkillDataset) -> RecordedEpisode:
    """Reads the last attempt of a trajectory (``last_attempt``), which the entry gives the length of."""
    where = dataset.where(entry)
    actions = numbers(group["actions"], where)
    first = len(actions) - entry.length
    leaves, cameras = observations(arrays_below(group, "obs"), dataset.path, where, first=first)
    columns: dict[str, Any] = {name: flags(group[name], where)[first:] for name in _FLAGS if name in group}
    if "rewards" in group:
        columns["rewards"] = rewards(group["rewards"], where)[first:]
    states = {leaf: array[first:] for leaf, array in arrays_below(group, STATES).items()}
    known_names = {"obs", "actions", "rewards", STATES, *_FLAGS}
    others = {
        leaf: array[first:]
        for other in group
        if other not in known_names
        for leaf, array in arrays_below(group, other, other).items()
        if array.dtype.kind in "biuf" and array.shape[:1] == (len(actions),)
    }
    return RecordedEpisode(
        entry.name, actions[first:], leaves, cameras, seed=entry.seed, states=states or None,
        task=dataset.tasks.get(entry.name), others=others, **columns,
    )  # fmt: skip


check = needs_nothing


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
        compress_whole(group, name, values)
    write_states(group, episode.states or {})


def write_states(group: Any, states: Mapping[str, Array]) -> None:
    """Writes the states of a trajectory to its group."""
    for name, values in states.items():
        compress_whole(group, f"{STATES}/{name}", values)


def first_step(group: Any) -> int:
    """Returns the first step of the last attempt in a trajectory; see ``last_attempt``."""
    terminated = group.get("terminated")
    if terminated is None or not (ends := terminated[:].astype(bool))[:-1].any() or "success" not in group:
        return 0
    failure = group["fail"][:].astype(bool) if "fail" in group else None
    return last_attempt(group["success"][:].astype(bool), ends, failure)


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
