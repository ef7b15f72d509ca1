"""Replays demonstrations, seed and actions, and records what a configuration's simulator observes meanwhile.

Its states are recorded too, where it can begin an episode in one.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from rlpipe.config.schema import Config
from rlpipe.config.simulators import task_facts
from rlpipe.demonstrations import dataset
from rlpipe.demonstrations.formats.episode import STATE, RecordedEpisode
from rlpipe.demonstrations.formats.maniskill import STATES, first_step, write_group, write_sidecar, write_states
from rlpipe.demonstrations.recording import MATCHED, contents, in_order, readable
from rlpipe.envs.base import Simulator
from rlpipe.envs.shared.make import make_simulator
from rlpipe.errors import ConfigError, command_line
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
    dataset.check_actions(source, task, "--replay")
    if dataset.other_format(source, "--replay") is not None:
        raise ConfigError(
            f"--replay: {source} is no file of ManiSkill's: make one first, "
            f"{command_line('demos', 'convert', source, '--to', 'maniskill', '--out', 'DIR')}."
        )
    import h5py  # which the check has found

    if file.exists():
        raise ConfigError(f"{file} exists. Name another file with demos=NEW.h5, or remove it.")
    task_facts(task, "env.train")
    with new_file(file, "demos") as partial, h5py.File(source) as recorded:
        seeds = _with_seeds(source)
        episodes: list[dict[str, Any]] = []
        steps = 0
        recorder = _Recorder(task, recorded, list(seeds))
        with closing(recorder.simulator) as simulator, h5py.File(partial, "w", libver="latest") as out:
            spec = simulator.spec
            _check_success(simulator, task)
            for number, (name, seed) in enumerate(seeds.items()):
                if trajectory := recorder.replay(name, seed):
                    write_group(out.create_group(f"traj_{len(episodes)}"), trajectory)
                    episodes.append({"episode_id": len(episodes), "episode_seed": seed, "success": True})
                    steps += len(trajectory.actions)
                progress(number + 1, len(seeds))
        if not episodes:
            raise ConfigError(f"demos: none of the {len(seeds)} trajectories in {source} succeeds when it is replayed.")
        options = ("control_mode", "reward_mode", *dataset.SEEN)
        simulator_facts = {
            "env_id": getattr(task, "id", task.name),
            "env_kwargs": {key: getattr(task, key) for key in options if hasattr(task, key)},
        }
        description = f"replayed from {Path(source).name}"
        write_sidecar(partial, episodes, env_info=simulator_facts, source_desc=description)
    notes = contents(source).notes(source)
    return ReplayedDemonstrations(file, len(episodes), len(seeds) - len(episodes), steps, spec, notes)


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


def _with_seeds(source: str) -> Mapping[str, int]:
    """Returns the seed of each trajectory that has one, by its name; at least one must have one."""
    held = contents(source)
    if not held.seeds:
        raise ConfigError(
            f"--replay: the JSON beside {source} gives no seed for any of its {len(held.names)} trajectories, so they "
            f"cannot be replayed: {MATCHED}."
        )
    return {name: held.seeds[name] for name in held.names if name in held.seeds}


def add_states(file: Path, task: Any, progress: Callable[[int], None]) -> None:
    """Adds the simulator's states to demonstrations of it, by running them again; the rest stays as it is.

    Trajectories that do not succeed again get none. ``progress`` is called with the trajectories done so far."""
    import h5py

    seeds = contents(str(file)).seeds
    with h5py.File(file, "a", libver="latest") as out:
        names = in_order(out)
        recorder = _Recorder(replace(task, ignore_terminations=True), out, names)  # beyond the first success as well
        with closing(recorder.simulator):
            for number, name in enumerate(names):
                if STATES not in out[name] and (trajectory := recorder.replay(name, seeds[name])):
                    write_states(out[name], trajectory.states or {})
                progress(number + 1)


def states_of(path: str, task: Any, names: Sequence[str], seeds: Sequence[int]) -> list[State | None]:
    """Runs demonstrations again, and returns the states of each, [T + 1, ...] by name.

    None for a demonstration that does not succeed again. ``names`` are those of the trajectories in the file, ``seeds``
    those of their resets."""
    import h5py

    states = []
    with h5py.File(path) as file:
        recorder = _Recorder(task, file, names)
        with closing(recorder.simulator):
            for name, seed in zip(names, seeds, strict=True):
                again = recorder.replay(name, seed)
                states.append(None if again is None else again.states)
    return states


class _Recorder:
    """One environment, whose episodes are begun by hand."""

    def __init__(self, task: Any, file: Any, names: Sequence[str]) -> None:
        """Makes the environment, with time for the longest of some trajectories in an open file if its limit is an
        option."""
        longest = max(len(file[name]["actions"]) for name in names)
        limited = any(option.name == "max_episode_steps" for option in fields(task))
        limit = {"max_episode_steps": longest + 1} if limited else {}
        # as they were recorded: demonstrations know of no variations
        plain: dict[str, Any] = {"variations": {}, "observe_variations": []}
        patient = replace(task, total_num_envs=1, ignore_terminations=True, **plain, **limit)
        self.simulator = make_simulator(patient, 1, lambda _: self._seed)
        self._seed = 0
        self._file = file
        self._to_the_end = task.ignore_terminations
        self._keeps_states = task_facts(task, "env.train").states

    def _state(self) -> tuple[State, ...]:
        return (self.simulator.state(0),) if self._keeps_states else ()

    def replay(self, name: str, seed: int) -> RecordedEpisode | None:
        """Replays one trajectory, up to its success if that ends the task; None if it does not succeed."""
        actions = self._actions(name)
        self._seed = seed
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
            name, actions[: len(success)], leaves, rewards=np.array(rewards, dtype=np.float32),
            success=np.array(success), seed=seed,
            states={key: np.stack([state[key] for state in states]) for key in states[0]} if states else None,
        )  # fmt: skip

    def _actions(self, name: str) -> Any:
        group, spec = self._file[name], self.simulator.spec
        where = f"{self._file.filename}: {name}"
        with readable(f"demos: {where}"):
            return spec.clip(dataset.read_actions(group, where, spec)[first_step(group) :])
