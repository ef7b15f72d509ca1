"""Reads demonstrations of any format for training, and checks that they fit a task.

All of them come as groups of ManiSkill's layout (``formats.maniskill``): ``obs`` [L + 1, D], or an array [L + 1, ...]
for each leaf; ``actions`` [L, A]; ``success`` [L]; and perhaps ``rewards`` [L].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from rlpipe import files
from rlpipe.demonstrations.corrections import INTERVENED
from rlpipe.demonstrations.formats import maniskill
from rlpipe.demonstrations.formats.episode import STATE, Dataset, RecordedEpisode
from rlpipe.demonstrations.formats.fitting import as_group, steps_as_group
from rlpipe.demonstrations.formats.maniskill import STATES, first_step
from rlpipe.demonstrations.formats.registry import format_of
from rlpipe.demonstrations.formats.writing import is_unfinished, open_unfinished
from rlpipe.demonstrations.layouts import folder_is
from rlpipe.demonstrations.recording import MATCHED, contents, in_order, opened, readable, sidecar
from rlpipe.errors import ConfigError, command_line
from rlpipe.plugins import require
from rlpipe.trajectory import Bool, Float32, Observations, SpaceSpec, State, Tree
from rlpipe.trajectory.tree import joined, leaves_of

T = TypeVar("T")

ACTION_TOLERANCE = 1e-4
"""Distance by which rounding may put a recorded action outside its bounds, in the simulator's unit."""


@dataclass(frozen=True)
class Demonstrations:
    """Transitions of successful trajectories, one trajectory after the other; of corrections, those of all.

    Attributes:
        observations: [B, D] float32, or a tree.
        actions: [B, A] float32.
        rewards: [B] float32.
        terminated: [B] bool. Each trajectory ends with this or with ``truncated``.
        truncated: [B] bool.
        next_observations: [B, D] float32, or a tree.
        trajectory: [B] int64, number of the transition's trajectory, from 0.
        names: of each trajectory in the file.
        seeds: of each trajectory's reset; None where the file does not say it.
        states: of each trajectory, [T + 1, ...] arrays by name; None where the file has none.
        interventions: [B] bool, True where the expert that labelled the steps acted itself; None without one.
    """

    observations: Observations
    actions: Float32
    rewards: Float32
    terminated: Bool
    truncated: Bool
    next_observations: Observations
    trajectory: NDArray[np.int64]
    names: tuple[str, ...] = ()
    seeds: tuple[int | None, ...] = ()
    states: tuple[State | None, ...] = ()
    interventions: Bool | None = None

    @property
    def num_trajectories(self) -> int:
        """Number of trajectories."""
        return int(self.trajectory[-1]) + 1

    def __len__(self) -> int:
        return len(self.actions)

    def steps_left(self) -> NDArray[np.int64]:
        """[B] number of steps from each to the end of its trajectory, itself included."""
        ends = np.flatnonzero(self.terminated | self.truncated)
        return ends[self.trajectory] + 1 - np.arange(len(self))


SEEN = (
    "obs_mode", "camera_size", "mesh_triangles", "show_goals", "frame_stack", "pixels", "pixels_with_state", "kwargs",
)  # fmt: skip
"""Options that decide what is observed; demonstrations of cameras were recorded with the same."""


def check(path: str, task: Any) -> None:
    """Checks, without reading the trajectories, that a file of demonstrations is for a task.

    Raises:
        ConfigError: the file does not exist, or is for another task, control mode or observation mode.
    """
    check_actions(path, task)
    _, options = _simulator(path)
    for key in SEEN:
        value = getattr(task, key, options.get(key))  # a simulator without the option cannot contradict it
        if key in options and value != options[key] and (key == "obs_mode" or getattr(task, "has_cameras", False)):
            raise ConfigError(
                f"demos: {path} was recorded with {key} {options[key]}, but env.train.{key} is {value}. {remedy(path)}"
            )


def remedy(path: str) -> str:
    """Returns how to make demonstrations whose observations are those of a configuration."""
    return f"Make demonstrations with these observations: {_again(path)}"


def _again(path: str) -> str:
    """Returns the command that records demonstrations again under a configuration, as the end of a sentence."""
    return f"{command_line('demos', 'CONFIG', '--replay', path, 'demos=NEW.h5')}, and then demos=NEW.h5."


def check_actions(path: str, task: Any, key: str = "demos", section: str = "env.train") -> None:
    """Checks that a file of demonstrations exists, and that its actions mean what those of a task do.

    Args:
        path: of the HDF5 file.
        task: configuration of the simulator.
        key: key or option of the command that names the file, for the error.
        section: key of the simulator's configuration, likewise.
    """
    require("h5py", "maniskill", key)
    kind = files.kind_of(Path(path))
    if kind and other_format(path, key) is not None:
        _check_recorded(*_simulator(path), path, task, key, section)
        return
    if kind != "file":
        instead = folder_is(Path(path)) if kind else "there is no such file: name one of ManiSkill's HDF5 files."
        makes = not kind and key == "demos" and getattr(task, "has_cameras", False)
        advice = " Make it: rlpipe demos CONFIG --replay FILE.h5." if makes else ""
        raise ConfigError(f"{key} is {path}, but {instead}{advice}")
    contents(path, key)
    _check_recorded(*_simulator(path), path, task, key, section)


def _check_recorded(
    task_id: str | None, options: Mapping[str, Any], path: str, task: Any, key: str, section: str
) -> None:
    """Checks that demonstrations were made with the task and the control mode of a simulator, where they say them."""
    recorded = {"id": task_id, "control_mode": options.get("control_mode")}
    for name, before in recorded.items():
        value = getattr(task, name, before)
        if before is not None and value != before and not (name == "id" and _same_task(before, value)):
            raise ConfigError(f"{key}: {path} was made with {name} {before}, but {section}.{name} is {value}.")


def other_format(path: str, key: str = "demos") -> Dataset | None:
    """Opens demonstrations that are of another format than ManiSkill's, or in a folder; None if they are neither.

    Raises:
        ConfigError: they are incomplete, or of a version that is not read.
    """
    place = Path(path)
    if is_unfinished(place):
        return open_unfinished(place, key)
    form = format_of(place, key)
    return None if form is None or (form.NAME == maniskill.NAME and place.is_file()) else form.open_dataset(place, key)


def _simulator(path: str) -> tuple[str | None, Mapping[str, Any]]:
    """Returns the task of demonstrations and the options of its simulator, as far as they say them."""
    if (dataset := other_format(path)) is not None:
        return (None if dataset.format == "robomimic" else dataset.info.task), dataset.info.options
    simulator = sidecar(path)["env_info"]
    options: Any = simulator["env_kwargs"]
    return simulator["env_id"], options


def _same_task(recorded: str, configured: object) -> bool:
    """True if two ids of Gymnasium differ only in that one names the module that registers the task."""
    if not isinstance(configured, str) or (":" in recorded) == (":" in configured):
        return False
    return recorded.rpartition(":")[2] == configured.rpartition(":")[2]


def check_states(path: str, curriculum: str) -> None:
    """Checks that a file that has passed ``check`` says the seeds of its episodes, so that others can begin in the
    course of its demonstrations."""
    if (dataset := other_format(path)) is not None and not dataset.features.states:
        raise ConfigError(
            f"curriculum.name is {curriculum}, whose episodes begin in the course of demonstrations, but {path} has no "
            "states of the simulator: make demonstrations with rlpipe demos."
        )
    if not seeds(path):
        raise ConfigError(
            f"curriculum.name is {curriculum}, whose episodes begin in the course of demonstrations, but the JSON "
            f"beside {path} does not say with which seeds they began ({MATCHED}): make them with rlpipe demos."
        )


def check_count(path: str, count: int) -> None:
    """Checks that a file that has passed ``check_actions`` holds enough trajectories, whether or not they succeed."""
    dataset = other_format(path)
    available = len(contents(path).names) if dataset is None else len(dataset.episodes)
    if count > available:
        raise ConfigError(f"num_demos is {count}, but {path} has only {available} demonstrations.")


def seeds(path: str) -> set[int]:
    """Seeds of the episodes in a file that has passed ``check``, where they are known."""
    if (dataset := other_format(path)) is not None:
        return {entry.seed for entry in dataset.episodes if entry.seed is not None}
    held = contents(path)
    return {*held.seeds.values(), *held.seeds_without_id}


def notes(path: str) -> tuple[str, ...]:
    """Returns what a user should know of demonstrations that have passed ``check``, in sentences."""
    if (dataset := other_format(path)) is None:
        return contents(path).notes(path)
    sentences = []
    if dataset.version == "unfinished":
        sentences.append(f"{path} is not finished: its {len(dataset.episodes)} episodes are used.")
    if "success" not in dataset.features.columns:
        sentences.append(f"{path} records no success: every episode counts as one that succeeds with its last step.")
    return tuple(sentences)


def load(
    path: str,
    task: Any,
    spec: SpaceSpec,
    count: int | None = None,
    seed: int = 0,
    leaves: Mapping[str, str] | None = None,
) -> Demonstrations:
    """Reads the successful trajectories, or all of corrections, each up to where the task ends it.

    With sparse reward, the reward is the success; otherwise it is the recorded reward. It is also the recorded one of a
    simulator without reward modes, whose files name none.

    Args:
        path: of the file or folder.
        task: configuration of the simulator.
        spec: of the simulator.
        count: number of trajectories to draw; None for all.
        seed: decides which are drawn.
        leaves: names of the dataset's observations by those of the task's; the others are guessed.
    Raises:
        ConfigError: the file is damaged, is not for this task, or holds no success, or too few.
    """
    check(path, task)
    recorded = _simulator(path)[1].get("reward_mode")
    reward_mode = getattr(task, "reward_mode", "sparse" if recorded else None)
    if reward_mode not in ("sparse", recorded):
        raise ConfigError(
            f"demos: {path} was recorded with reward_mode {recorded}, but env.train.reward_mode is {reward_mode}. "
            f"Use sparse, or record these rewards: {_again(path)}"
        )

    def read(group: Any, where: str) -> tuple[tuple[Any, ...], tuple[str, State | None, Bool | None]] | None:
        trajectory = _trajectory(group, where, spec, reward_mode, task.ignore_terminations)
        if trajectory is None:
            return None
        steps = len(trajectory[1])
        return trajectory, (where.rpartition(": ")[2], _states(group, steps), _interventions(group, steps))

    def arranged(episode: RecordedEpisode, where: str) -> Mapping[str, Any]:
        return as_group(episode, spec, leaves or {}, where, keeps_last=not task.ignore_terminations)

    successful = _successful(path, read, arranged)
    drawn = _drawn(successful, count, seed, path)
    columns = [joined(column) for column in zip(*(trajectory for trajectory, _ in drawn), strict=True)]
    numbers = np.repeat(np.arange(len(drawn)), [len(trajectory[0]) for trajectory, _ in drawn])
    names, states, intervened = zip(*(label for _, label in drawn), strict=True)
    by_name = _seeds_by_name(path)
    seeds = tuple(by_name.get(name) for name in names)
    interventions = None if any(flags is None for flags in intervened) else np.concatenate(intervened)
    return Demonstrations(*columns, numbers, names, seeds, states, interventions)  # type: ignore[call-arg]


def _seeds_by_name(path: str) -> Mapping[str, int | None]:
    dataset = other_format(path)
    return contents(path).seeds if dataset is None else {entry.name: entry.seed for entry in dataset.episodes}


def load_actions(path: str, spec: SpaceSpec, count: int | None = None, seed: int = 0) -> list[Float32]:
    """Reads the actions [L, A] of each successful trajectory from the first to the last, whatever was observed; see
    ``load``. The file must have passed ``check_actions``."""

    def read(group: Any, where: str) -> Float32 | None:
        _, actions, success = _attempt(group, where, spec)
        return spec.clip(actions) if success.any() else None

    return _drawn(_successful(path, read, lambda episode, _: steps_as_group(episode)), count, seed, path)


def _successful(
    path: str, read: Callable[[Any, str], T | None], arranged: Callable[[RecordedEpisode, str], Mapping[str, Any]]
) -> list[T]:
    """Reads the successful trajectories of a dataset in turn.

    Args:
        path: of the file or folder.
        read: reads the group of one trajectory, given where it is, for errors; None if it never succeeds.
        arranged: arranges an episode of another format as such a group, likewise.
    """
    trajectories: list[T | None] = []
    if (dataset := other_format(path)) is not None:
        for number, entry in enumerate(dataset.episodes):
            episode, where = dataset.read(number), f"{path}: {entry.name}"
            episode.check()
            trajectories.append(read(arranged(episode, where), where))
    else:
        with opened(path) as file:
            for name in in_order(file):
                with readable(f"demos: {path}: {name}"):
                    trajectories.append(read(file[name], f"{path}: {name}"))
    successful = [trajectory for trajectory in trajectories if trajectory is not None]
    if not successful:
        raise ConfigError(f"demos: none of the {len(trajectories)} trajectories in {path} succeeds.")
    return successful


def _drawn(trajectories: list[T], count: int | None, seed: int, path: str) -> list[T]:
    """Returns the trajectories to use, in the order of the file."""
    available = len(trajectories)
    if count is None:
        return trajectories
    if count > available:
        raise ConfigError(f"num_demos is {count}, but {path} has only {available} demonstrations that succeed.")
    numbers = np.random.default_rng([seed, available]).choice(available, count, replace=False)
    return [trajectories[number] for number in sorted(numbers.tolist())]


def _states(group: Any, steps: int) -> State | None:
    """Reads the states of a trajectory up to its end, [steps + 1, ...] by name; None if it has none."""
    if STATES not in group:
        return None
    if isinstance(group, dict):  # of an episode of another format
        return {name: values[: steps + 1] for name, values in group[STATES].items()}
    states: dict[str, NDArray[Any]] = {}
    first = first_step(group)

    def read(name: str, held: Any) -> None:
        if hasattr(held, "shape"):  # not a group of such
            states[name] = held[first : first + steps + 1]

    group[STATES].visititems(read)
    return states


def _interventions(group: Any, steps: int) -> Bool | None:
    """Reads where an expert acted in a trajectory up to its end, [steps]; None if none has labelled it."""
    if INTERVENED not in group:
        return None
    flags: Bool = np.asarray(group[INTERVENED][:]).reshape(-1).astype(bool)
    return flags[first_step(group) :][:steps]


def _numbers(group: Any, name: str, where: str) -> NDArray[Any]:
    """Reads an array of a trajectory, [L, ...], after a check that it holds numbers."""
    held = group[name]
    if not hasattr(held, "shape") or held.dtype.kind not in "biuf" or held.ndim == 0:
        if hasattr(held, "shape"):
            kind = f"{'text' if held.dtype.kind in 'OSU' else held.dtype} {list(held.shape)}"
        else:
            kind = f"a group of {', '.join(held)}"
        raise ConfigError(f"demos: {where} holds {name} as {kind}; it must be an array of numbers, one row a step.")
    return np.asarray(held[:])


def read_actions(group: Any, where: str, spec: SpaceSpec) -> Float32:
    """Reads the actions of a trajectory, [L, A], also beyond the simulator's bounds."""
    actions = _numbers(group, "actions", where).astype(np.float32)
    if spec.action_low is None or spec.action_high is None or actions.shape[1:] != (spec.action_dim,):
        raise ConfigError(
            f"demos: {where} has actions of shape {actions.shape}; the simulator takes "
            + (
                f"{spec.action_dim} numbers."
                if spec.num_actions is None
                else "one of a few discrete actions, and demonstrations need continuous ones."
            )
        )
    if not np.isfinite(actions).all():
        raise ConfigError(f"demos: {where} has actions that are not finite: record it again.")
    return actions


def _success(group: Any, where: str, count: int) -> Bool:
    """Reads after which steps a trajectory had succeeded, [L]."""
    if "success" not in group:
        raise ConfigError(
            f"demos: {where} holds no success, [{count}] bool, the steps after which the task was solved. Record it: "
            f"{_again(where.partition(': ')[0])}"
        )
    success = _numbers(group, "success", where)
    if success.shape not in ((count,), (count, 1)):
        raise ConfigError(f"demos: {where} has {count} actions, but success of shape {success.shape}.")
    if odd := [value for value in success.ravel().tolist() if value not in (0, 1)]:
        raise ConfigError(f"demos: {where} holds success {odd[0]:g}; it must be true or false after each step.")
    return success.reshape(count).astype(bool)


def _observations(group: Any, where: str, spec: SpaceSpec) -> Observations:
    """Reads the observations of one trajectory, [L + 1, D] or a tree, after a check that they are those of a task."""
    held = group.get("obs")
    names = list(held) if held is not None and not hasattr(held, "shape") else None
    file = where.partition(": ")[0]
    if names is None and spec.leaves is not None and set(spec.leaves) == {STATE}:
        held, names = {STATE: held}, [STATE]
    if spec.leaves is None:
        if held is None or names is not None:
            raise ConfigError(f"demos: {where} holds no state observations, obs [L + 1, D]. {remedy(file)}")
        return _numbers(group, "obs", where).astype(np.float32)
    if names is None or set(names) != set(spec.leaves):
        kind = "one vector" if names is None else f"the leaves {', '.join(sorted(names))}"
        raise ConfigError(
            f"demos: {where} holds observations of {kind}, but the simulator's have the leaves "
            f"{', '.join(spec.leaves)}. {remedy(file)}"
        )
    for name, leaf in spec.leaves.items():
        if held[name].shape[1:] != leaf.shape or held[name].dtype != leaf.dtype:
            raise ConfigError(
                f"demos: {where} holds {name} as {held[name].dtype} {list(held[name].shape[1:])}, but the simulator's "
                f"is {leaf.dtype} {list(leaf.shape)}. {remedy(file)}"
            )
    return Tree({name: held[name][:] for name in spec.leaves})


def _attempt(group: Any, where: str, spec: SpaceSpec) -> tuple[int, Float32, Bool]:
    """Reads the last attempt in one trajectory, after a check that its actions are those of a task.

    Returns:
        The step with which it begins, its actions [L, A], within the bounds but for rounding, and its success [L].
    """
    actions = read_actions(group, where, spec)
    success = _success(group, where, len(actions))
    beyond = np.abs(actions - spec.clip(actions)).max(axis=1, initial=0.0)
    outside = float(beyond.max(initial=0.0))
    if outside > ACTION_TOLERANCE:
        row = int(np.argmax(beyond > ACTION_TOLERANCE))
        raise ConfigError(
            f"demos: {where} has actions {outside:g} outside the simulator's bounds, first in row {row}. Was it "
            "recorded with another control mode, or without clipping its actions?"
        )
    first = first_step(group)
    return first, actions[first:], success[first:]


def _trajectory(
    group: Any, where: str, spec: SpaceSpec, reward_mode: str | None, ignore_terminations: bool
) -> tuple[Any, ...] | None:
    """Reads one trajectory up to its end; None if it never succeeds, unless an expert has labelled it."""
    observations = _observations(group, where, spec)
    first, actions, success = _attempt(group, where, spec)
    count = first + len(actions)
    for leaf, empty in zip(leaves_of(observations), leaves_of(spec.observations(count + 1)), strict=True):
        if leaf.shape != empty.shape:
            raise ConfigError(
                f"demos: {where} has observations of shape {leaf.shape}, but {count} actions and the "
                f"simulator's observations require {empty.shape}."
            )
        if not np.isfinite(leaf).all():
            raise ConfigError(f"demos: {where} has observations that are not finite: record it again.")
    observations = observations[first:]
    if not success.any() and INTERVENED not in group:
        return None
    is_cut_off = ignore_terminations or not success.any()
    last = len(actions) if is_cut_off else int(np.argmax(success)) + 1
    sparse = reward_mode == "sparse" or (reward_mode is None and "rewards" not in group)
    rewards = success.astype(np.float32) if sparse else _rewards(group, where, count)[first:]
    terminated, truncated = np.zeros(last, dtype=bool), np.zeros(last, dtype=bool)
    (truncated if is_cut_off else terminated)[-1] = True
    return (
        observations[:last], spec.clip(actions[:last]), rewards[:last], terminated, truncated,
        observations[1 : last + 1],
    )  # fmt: skip


def _rewards(group: Any, where: str, count: int) -> Float32:
    """Reads the recorded rewards, [L], after a check that there is one for each action, and finite."""
    rewards = _numbers(group, "rewards", where) if "rewards" in group else None
    if rewards is None or rewards.shape not in ((count,), (count, 1)) or not np.isfinite(rewards).all():
        held = (
            "no rewards" if rewards is None else f"rewards of shape {rewards.shape} with {np.isnan(rewards).sum()} NaN"
        )
        raise ConfigError(
            f"demos: {where} holds {held}; for its {count} actions there must be as many, all finite. Record them: "
            f"{_again(where.partition(': ')[0])}"
        )
    return rewards.reshape(count).astype(np.float32)
