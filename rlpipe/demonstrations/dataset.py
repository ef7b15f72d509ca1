"""Reads demonstrations of any format for training, and checks that they fit a task."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from rlpipe import files
from rlpipe.demonstrations.corrections import INTERVENED
from rlpipe.demonstrations.formats.episode import Array, Dataset, RecordedEpisode
from rlpipe.demonstrations.formats.fitting import arranged, fitted, succeeded
from rlpipe.demonstrations.formats.maniskill import ManiSkillDataset
from rlpipe.demonstrations.formats.registry import open_dataset
from rlpipe.demonstrations.recording import MATCHED
from rlpipe.errors import ConfigError, command_line
from rlpipe.trajectory import Bool, Float32, Observations, SpaceSpec, State
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


def check(path: str, task: Any) -> Dataset:
    """Opens demonstrations after a check, without reading all of them, that they are for a task.

    Raises:
        ConfigError: they do not exist, or are for another task, control mode or observation mode.
    """
    dataset = check_actions(path, task)
    options = dataset.info.options
    for key in SEEN:
        value = getattr(task, key, options.get(key))  # a simulator without the option cannot contradict it
        if key in options and value != options[key] and (key == "obs_mode" or getattr(task, "has_cameras", False)):
            raise ConfigError(
                f"demos: {path} was recorded with {key} {options[key]}, but env.train.{key} is {value}. {remedy(path)}"
            )
    return dataset


def remedy(path: str) -> str:
    """Returns how to make demonstrations whose observations are those of a configuration."""
    return f"Make demonstrations with these observations: {_again(path)}"


def _again(path: str) -> str:
    """Returns the command that records demonstrations again under a configuration, as the end of a sentence."""
    return f"{command_line('demos', 'CONFIG', '--replay', path, 'demos=NEW.h5')}, and then demos=NEW.h5."


def check_actions(path: str, task: Any, key: str = "demos", section: str = "env.train") -> Dataset:
    """Opens demonstrations after a check that their actions mean what those of a task do.

    Args:
        path: of the file or folder.
        task: configuration of the simulator.
        key: key or option of the command that names them, for the error.
        section: key of the simulator's configuration, likewise.
    """
    if key == "demos" and getattr(task, "has_cameras", False) and not files.kind_of(Path(path)):
        raise ConfigError(f"demos is {path}, but there is no such file. Make it: rlpipe demos CONFIG --replay FILE.h5.")
    dataset = open_dataset(Path(path), key)
    task_id = None if dataset.format == "robomimic" else dataset.info.task  # which has names of its own
    recorded = {"id": task_id, "control_mode": dataset.info.options.get("control_mode")}
    for name, before in recorded.items():
        value = getattr(task, name, before)
        if before is not None and value != before and not (name == "id" and _same_task(before, value)):
            raise ConfigError(f"{key}: {path} was made with {name} {before}, but {section}.{name} is {value}.")
    return dataset


def _same_task(recorded: str, configured: object) -> bool:
    """True if two ids of Gymnasium differ only in that one names the module that registers the task."""
    if not isinstance(configured, str) or (":" in recorded) == (":" in configured):
        return False
    return recorded.rpartition(":")[2] == configured.rpartition(":")[2]


def check_seeds(dataset: Dataset, curriculum: str) -> None:
    """Checks that demonstrations say the seeds of their episodes, so that others can begin in the course of them."""
    if not seeds(dataset):
        raise ConfigError(
            f"curriculum.name is {curriculum}, whose episodes begin in the course of demonstrations, but "
            f"{no_seeds(dataset)}: make them with rlpipe demos."
        )


def no_seeds(dataset: Dataset) -> str:
    """Returns that a dataset lacks seeds, as a clause."""
    if isinstance(dataset, ManiSkillDataset):
        return f"the JSON beside {dataset.path} does not say with which seeds they began ({MATCHED})"
    return f"{dataset.path} does not say with which seeds they began"


def check_count(dataset: Dataset, count: int) -> None:
    """Checks that there are enough demonstrations, whether or not they succeed."""
    if count > (available := len(dataset.episodes)):
        raise ConfigError(f"num_demos is {count}, but {dataset.path} has only {available} demonstrations.")


def seeds(dataset: Dataset) -> set[int]:
    """Seeds of the episodes, where they are known; also those of which nobody knows the trajectory."""
    loose = dataset.contents.seeds_without_id if isinstance(dataset, ManiSkillDataset) else ()
    return {*(entry.seed for entry in dataset.episodes if entry.seed is not None), *loose}


def notes(dataset: Dataset) -> tuple[str, ...]:
    """Returns what a user should know of demonstrations, in sentences."""
    if isinstance(dataset, ManiSkillDataset):
        return dataset.contents.notes(str(dataset.path))
    sentences = []
    if dataset.version == "unfinished":
        sentences.append(f"{dataset.path} is not finished: its {len(dataset.episodes)} episodes are used.")
    if "success" not in dataset.features.columns:
        sentences.append(
            f"{dataset.path} records no success: every episode counts as one that succeeds with its last step."
        )
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
    dataset = check(path, task)
    recorded = dataset.info.options.get("reward_mode")
    reward_mode = getattr(task, "reward_mode", "sparse" if recorded else None)
    if reward_mode not in ("sparse", recorded):
        raise ConfigError(
            f"demos: {path} was recorded with reward_mode {recorded}, but env.train.reward_mode is {reward_mode}. "
            f"Use sparse, or record these rewards: {_again(path)}"
        )
    advice = remedy(path) if isinstance(dataset, ManiSkillDataset) or seeds(dataset) else ""

    def read(episode: RecordedEpisode, where: str) -> tuple[tuple[Any, ...], tuple[Any, ...]] | None:
        names = fitted(episode.features, spec, leaves or {}, where, advice)
        trajectory = _trajectory(episode, where, spec, names, reward_mode, task.ignore_terminations)
        if trajectory is None:
            return None
        steps = len(trajectory[1])
        states = None if episode.states is None else {name: held[: steps + 1] for name, held in episode.states.items()}
        return trajectory, (episode.name, episode.seed, states, _interventions(episode, steps))

    drawn = _drawn(_successful(dataset, path, read), count, seed, path)
    columns = [joined(column) for column in zip(*(trajectory for trajectory, _ in drawn), strict=True)]
    numbers = np.repeat(np.arange(len(drawn)), [len(trajectory[0]) for trajectory, _ in drawn])
    names, seeds_of, states, intervened = zip(*(label for _, label in drawn), strict=True)
    interventions = None if any(flags is None for flags in intervened) else np.concatenate(intervened)
    return Demonstrations(*columns, numbers, names, seeds_of, states, interventions)  # type: ignore[call-arg]


def _interventions(episode: RecordedEpisode, steps: int) -> Bool | None:
    """Returns where an expert acted in an episode up to its end, [steps]; None if none has labelled it."""
    if INTERVENED not in episode.others:
        return None
    flags: Bool = episode.others[INTERVENED].reshape(-1).astype(bool)
    return flags[:steps]


def load_actions(path: str, spec: SpaceSpec, count: int | None = None, seed: int = 0) -> list[Float32]:
    """Reads the actions [L, A] of each successful trajectory from the first to the last, whatever was observed; see
    ``load``. The file must have passed ``check_actions``."""

    def read(episode: RecordedEpisode, where: str) -> Float32 | None:
        actions = spec.clip(bounded(episode.actions, where, spec))
        return actions if succeeded(episode).any() else None

    return _drawn(_successful(open_dataset(Path(path), "demos"), path, read), count, seed, path)


def _successful(dataset: Dataset, path: str, read: Callable[[RecordedEpisode, str], T | None]) -> list[T]:
    """Reads the successful episodes of a dataset in turn.

    Args:
        dataset: is open.
        path: of it, for errors.
        read: reads what is needed of an episode, given where it is, for errors; None if it never succeeds.
    """
    episodes: list[T | None] = []
    for episode in dataset.each():
        where = f"{path}: {episode.name}"
        if episode.success is None and isinstance(dataset, ManiSkillDataset):  # whose layout has it
            raise ConfigError(
                f"demos: {where} holds no success, [{len(episode)}] bool, the steps after which the task was solved. "
                f"Record it: {_again(path)}"
            )
        episodes.append(read(episode, where))
    successful = [episode for episode in episodes if episode is not None]
    if not successful:
        raise ConfigError(f"demos: none of the {len(episodes)} trajectories in {path} succeeds.")
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


def check_bounds(dataset: Dataset, path: str, spec: SpaceSpec) -> None:
    """Checks the actions of all episodes, of which nothing else is read; see ``bounded``. ``path`` is for errors."""
    for entry, actions in zip(dataset.episodes, dataset.actions(), strict=True):
        bounded(actions, f"{path}: {entry.name}", spec)


def actions_of(recorded: Array, where: str, spec: SpaceSpec) -> Float32:
    """Returns actions of an episode, [L, A], also beyond the simulator's bounds.

    Args:
        recorded: actions of any format.
        where: the episode, for errors.
        spec: of the simulator.
    Raises:
        ConfigError: they are none of the simulator's, or not finite.
    """
    actions: Float32 = recorded.astype(np.float32)
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


def bounded(recorded: Array, where: str, spec: SpaceSpec) -> Float32:
    """Returns actions of an episode, [L, A], that lie within the bounds but for rounding; see ``actions_of``.

    Raises:
        ConfigError: they do not.
    """
    actions = actions_of(recorded, where, spec)
    beyond = np.abs(actions - spec.clip(actions)).max(axis=1, initial=0.0)
    outside = float(beyond.max(initial=0.0))
    if outside > ACTION_TOLERANCE:
        row = int(np.argmax(beyond > ACTION_TOLERANCE))
        raise ConfigError(
            f"demos: {where} has actions {outside:g} outside the simulator's bounds, first in row {row}. Was it "
            "recorded with another control mode, or without clipping its actions?"
        )
    return actions


def _trajectory(
    episode: RecordedEpisode,
    where: str,
    spec: SpaceSpec,
    names: Mapping[str, tuple[str, ...]],
    reward_mode: str | None,
    ignore_terminations: bool,
) -> tuple[Any, ...] | None:
    """Returns the transitions of an episode up to its end; None if it never succeeds, unless it is labelled.

    Without the last observation, an episode that success does not end is a step shorter. Others repeat the observation
    before, from which nothing is learnt.
    """
    actions, success = bounded(episode.actions, where, spec), succeeded(episode)
    if not success.any() and INTERVENED not in episode.others:
        return None
    observations = arranged(episode, spec, names)
    if not all(np.isfinite(leaf).all() for leaf in leaves_of(observations)):
        raise ConfigError(f"demos: {where} has observations that are not finite: record it again.")
    count, is_cut_off = len(actions), ignore_terminations or not success.any()
    if not episode.has_last_observation:
        if ignore_terminations:
            count -= 1
            success = np.append(success[:-2], success[-2:].any())
        else:
            observations = joined([observations, observations[-1:]])
    last = count if is_cut_off else int(np.argmax(success)) + 1
    if not last:
        return None
    sparse = reward_mode == "sparse" or (reward_mode is None and episode.rewards is None)
    rewards = success.astype(np.float32) if sparse else _rewards(episode, where)
    terminated, truncated = np.zeros(last, dtype=bool), np.zeros(last, dtype=bool)
    (truncated if is_cut_off else terminated)[-1] = True
    return (
        observations[:last], spec.clip(actions[:last]), rewards[:last], terminated, truncated,
        observations[1 : last + 1],
    )  # fmt: skip


def _rewards(episode: RecordedEpisode, where: str) -> Float32:
    """Returns the recorded rewards, [L], after a check that there are some, and that they are finite."""
    rewards = episode.rewards
    if rewards is None or not np.isfinite(rewards).all():
        held = "no rewards" if rewards is None else f"rewards with {np.count_nonzero(~np.isfinite(rewards))} NaN"
        raise ConfigError(
            f"demos: {where} holds {held}; for its {len(episode)} actions there must be as many, all finite. Record "
            f"them: {_again(where.partition(': ')[0])}"
        )
    return rewards
