"""Replays demonstrations, seed and actions, and records what a configuration's simulator observes meanwhile.

Its states are recorded too, where it can begin an episode in one.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from rlpipe.config.schema import Config
from rlpipe.config.simulators import task_facts
from rlpipe.demonstrations import dataset
from rlpipe.demonstrations.corrections import check_no_corrections
from rlpipe.demonstrations.formats.episode import STATE, Dataset, RecordedEpisode
from rlpipe.demonstrations.formats.maniskill import ManiSkillDataset, write_group, write_sidecar, write_states
from rlpipe.demonstrations.formats.registry import open_dataset
from rlpipe.demonstrations.recording import MATCHED
from rlpipe.envs.base import Simulator
from rlpipe.envs.shared.make import make_simulator
from rlpipe.errors import ConfigError
from rlpipe.trajectory import SpaceSpec, State, Tree
from rlpipe.trajectory.tree import joined


@dataclass(frozen=True)
class ReplayedDemonstrations:
    """File of demonstrations that were replayed.

    Attributes:
        trajectories: number of those that succeeded again.
        failed: number of those that did not, and were left out.
        spec: spaces of the simulator.
        notes: what a user should know of the file that was read, in sentences.
    """

    file: Path
    trajectories: int
    failed: int
    steps: int
    spec: SpaceSpec
    notes: tuple[str, ...] = ()


def replay_demonstrations(
    source: str, config: Config, file: Path, progress: Callable[[int, int], None]
) -> ReplayedDemonstrations:
    """Writes ``file`` and its JSON, both or neither.

    Args:
        source: demonstrations of the same task and control mode, whatever was observed then.
        config: its ``env.train`` says what is observed now.
        file: HDF5 file to write.
        progress: called with the trajectories replayed so far, and their number.
    Raises:
        ConfigError: the demonstrations do not fit, the file exists, or no trajectory succeeds again.
    """
    task = config.env.train
    recorded = dataset.check_actions(source, task, "--replay")
    check_no_corrections(recorded, "--replay repeats actions")
    import h5py  # which the check has found

    if file.exists():
        raise ConfigError(f"{file} exists. Name another file with demos=NEW.h5, or remove it.")
    task_facts(task, "env.train")
    numbers = _with_seeds(recorded)
    with new_file(file, "demos") as partial:
        episodes: list[dict[str, Any]] = []
        steps = 0
        repeater = _Repeater(task, recorded)
        with closing(repeater.simulator) as simulator, h5py.File(partial, "w", libver="latest") as out:
            spec = simulator.spec
            _check_success(simulator, task)
            for done, number in enumerate(numbers, 1):
                if again := repeater.replay(number):
                    write_group(out.create_group(f"traj_{len(episodes)}"), again)
                    episodes.append({"episode_id": len(episodes), "episode_seed": again.seed, "success": True})
                    steps += len(again)
                progress(done, len(numbers))
        if not episodes:
            raise ConfigError(
                f"demos: none of the {len(numbers)} trajectories in {source} succeeds when it is replayed."
            )
        options = ("control_mode", "reward_mode", *dataset.SEEN)
        simulator_facts = {
            "env_id": getattr(task, "id", task.name),
            "env_kwargs": {key: getattr(task, key) for key in options if hasattr(task, key)},
        }
        description = f"replayed from {Path(source).name}"
        write_sidecar(partial, episodes, env_info=simulator_facts, source_desc=description)
    notes = dataset.notes(recorded)
    return ReplayedDemonstrations(file, len(episodes), len(numbers) - len(episodes), steps, spec, notes)


@contextmanager
def new_file(file: Path, key: str) -> Iterator[Path]:
    """Yields a path to write to; once the block has ended, ``file`` and its JSON are in place, both or neither.

    The folder is created if it does not exist. ``key`` names the file in errors."""
    folder = file.parent
    is_new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        work = tempfile.TemporaryDirectory(dir=folder, prefix=".demos-")
    except OSError as error:
        raise ConfigError(f"{key}: cannot write to {folder}: {error}.") from error
    try:
        with work:
            partial = Path(work.name, file.name)
            yield partial
            for ending in (".json", ".h5"):  # the HDF5 file last: where it is, both are
                os.replace(partial.with_suffix(ending), file.with_suffix(ending))
    finally:
        if is_new and not any(folder.iterdir()):
            folder.rmdir()


def _check_success(simulator: Simulator, task: Any) -> None:
    """Checks that the simulator reports success."""
    if not simulator.has_success:
        raise ConfigError(
            "demos: only trajectories that succeed are kept, but env.train "
            f"({getattr(task, 'id', task.name)}) does not report success. For a Gymnasium task, env.train.success_key "
            "names the entry of info that says it, such as is_success."
        )


def _with_seeds(recorded: Dataset) -> Sequence[int]:
    """Returns the places of the episodes whose seed is known; there must be one."""
    numbers = [number for number, entry in enumerate(recorded.episodes) if entry.seed is not None]
    if not numbers:
        where = f"the JSON beside {recorded.path}" if isinstance(recorded, ManiSkillDataset) else str(recorded.path)
        hint = f": {MATCHED}" if isinstance(recorded, ManiSkillDataset) else ""
        raise ConfigError(
            f"--replay: {where} gives no seed for any of its {len(recorded.episodes)} trajectories, so they cannot be "
            f"replayed{hint}."
        )
    return numbers


def add_states(file: Path, task: Any, progress: Callable[[int], None]) -> None:
    """Adds the simulator's states to demonstrations of it, by running them again; the rest stays as it is.

    Trajectories that do not succeed again get none. ``progress`` is called with the trajectories done so far."""
    import h5py

    recorded = open_dataset(file, "demos")
    states: dict[str, State] = {}
    repeater = _Repeater(replace(task, ignore_terminations=True), recorded)  # beyond the first success as well
    with closing(repeater.simulator):
        for number, entry in enumerate(recorded.episodes):
            if recorded.read(number).states is None and (again := repeater.replay(number)):
                states[entry.name] = again.states or {}
            progress(number + 1)
    with h5py.File(file, "a", libver="latest") as out:
        for name, arrays in states.items():
            write_states(out[name], arrays)


def states_of(path: str, task: Any, names: Collection[str]) -> list[State | None]:
    """Runs some demonstrations again, whose seeds are known, and returns the states of each, [T + 1, ...] by name.

    None for a demonstration that does not succeed again. ``names`` are those of the episodes in the dataset."""
    recorded = open_dataset(Path(path), "demos")
    repeater = _Repeater(task, recorded)
    with closing(repeater.simulator):
        numbers = [number for number, entry in enumerate(recorded.episodes) if entry.name in names]
        return [None if (again := repeater.replay(number)) is None else again.states for number in numbers]


class _Repeater:
    """Repeats the episodes of a dataset in one environment, whose episodes are begun by hand."""

    def __init__(self, task: Any, recorded: Dataset) -> None:
        """Makes the environment, with time for the longest episode if its limit is an option."""
        longest = max(entry.length for entry in recorded.episodes)
        limited = any(option.name == "max_episode_steps" for option in fields(task))
        limit = {"max_episode_steps": longest + 1} if limited else {}
        # as they were recorded: demonstrations know of no variations
        plain: dict[str, Any] = {"variations": {}, "observe_variations": []}
        patient = replace(task, total_num_envs=1, ignore_terminations=True, **plain, **limit)
        self.simulator = make_simulator(patient, 1, lambda _: self._seed)
        self._seed = 0
        self._recorded = recorded
        self._to_the_end = task.ignore_terminations
        self._keeps_states = task_facts(task, "env.train").states

    def _state(self) -> tuple[State, ...]:
        return (self.simulator.state(0),) if self._keeps_states else ()

    def replay(self, number: int) -> RecordedEpisode | None:
        """Replays the episode at a place of the list, up to its success if that ends the task; None if it does not
        succeed."""
        episode, spec = self._recorded.read(number), self.simulator.spec
        assert episode.seed is not None  # whoever calls this has checked it
        actions = spec.clip(dataset.actions_of(episode.actions, f"{self._recorded.path}: {episode.name}", spec))
        self._seed = episode.seed
        observations, _ = self.simulator.reset()
        seen, states, success, rewards = [observations], self._state(), [], []
        for action in actions:
            step = self.simulator.step(action[None])
            seen.append(step.successors)
            states += self._state()
            success.append(step.success is not None and bool(step.success[0]))
            rewards.append(step.rewards[0])
            if success[-1] and not self._to_the_end:
                break
        if not any(success):
            return None
        observations = joined(seen)
        leaves = observations.leaves if isinstance(observations, Tree) else {STATE: observations}
        return RecordedEpisode(
            episode.name, actions[: len(success)], leaves, rewards=np.array(rewards, dtype=np.float32),
            success=np.array(success), seed=episode.seed,
            states={key: np.stack([state[key] for state in states]) for key in states[0]} if states else None,
        )  # fmt: skip
