"""Makes demonstrations with ManiSkill's motion planner, which runs in another process."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlpipe.config.schema import EvaluationConfig
from rlpipe.demonstrations import dataset
from rlpipe.demonstrations.formats.hdf5 import compress_whole
from rlpipe.demonstrations.formats.maniskill import first_step, write_sidecar
from rlpipe.demonstrations.planner_process import PlannerError, check_planner, describe, messages
from rlpipe.demonstrations.planner_program import plan_and_convert
from rlpipe.demonstrations.replay import add_states, new_file
from rlpipe.envs.maniskill import ManiSkill
from rlpipe.envs.maniskill.options import ManiSkillConfig
from rlpipe.errors import ConfigError
from rlpipe.plugins import require
from rlpipe.trajectory import SpaceSpec

FIRST_EVALUATION_SEED = EvaluationConfig.first_seed
"""Demonstrations have smaller seeds, so no evaluation episode begins like a demonstration."""
PATIENCE = 50
"""Failures in a row after which the planner gives up."""
TRIAL = 10
"""Demonstrations planned and converted first; if none survives the control mode, no more are planned."""

Progress = Callable[[str, int, int], None]
"""Called with the current activity, the demonstrations finished so far, and the number wanted."""


@dataclass(frozen=True)
class PlannedDemonstrations:
    """File of demonstrations that were made and read back.

    Attributes:
        file: HDF5; its JSON is beside it.
        steps: number of all, counting each trajectory up to its first success.
        longest: steps of the longest trajectory.
        seeds: one for each trajectory, in order.
    """

    file: Path
    trajectories: int
    steps: int
    longest: int
    seeds: list[int]


def make_demonstrations(
    task: str, count: int, control_mode: str, folder: Path, *, python: str, first_seed: int, progress: Progress
) -> PlannedDemonstrations:
    """Makes ``folder/task.h5`` and ``.json``, both or neither, and reads them back as training would.

    Args:
        task: ManiSkill's id.
        count: successful demonstrations.
        control_mode: of their actions.
        folder: to write to; created if it does not exist.
        python: interpreter that runs the planner.
        first_seed: seed of the first episode tried; the others follow by one.
        progress: called after each message of the planner.
    Raises:
        ConfigError: the request cannot be met.
        PlannerError: the planner failed.
    """
    file = folder / f"{task}.h5"
    config = ManiSkillConfig(name="maniskill", id=task, control_mode=control_mode)
    for package in ("h5py", "mani_skill"):
        require(package, "maniskill", "rlpipe demos")
    if count < 1 or first_seed < 0 or first_seed + count > FIRST_EVALUATION_SEED:
        raise ConfigError(
            f"{count} demonstrations from seed {first_seed} on were asked for; there must be at least 1, and their "
            f"seeds must lie from 0 to {FIRST_EVALUATION_SEED - 1}, because evaluation begins at the next one."
        )
    if file.exists():
        raise ConfigError(f"{file} exists. Name another folder with --out, or remove it.")
    there = describe(python)
    check_planner(python, task, there)
    ManiSkill.describe(config, "task")
    simulator = ManiSkill.make(config, 1, lambda _: None)  # refuses a control mode that the task does not know
    spec = simulator.spec
    simulator.close()
    with new_file(file, "--out") as partial:
        sources = _plan(task, count, control_mode, partial.parent, python, first_seed, progress)
        compact(sources, partial, count, f"ManiSkill's motion planner, with {there}")
        add_states(partial, config, lambda done: progress("recording states", done, count))
        facts = _read_back(partial, config, spec)
    return PlannedDemonstrations(file, *facts)


def _plan(
    task: str, count: int, control_mode: str, folder: Path, python: str, first_seed: int, progress: Progress
) -> list[Path]:
    """Plans and converts until there are enough demonstrations. Returns ManiSkill's files."""
    sources: list[Path] = []
    planned = converted = 0
    seed = first_seed
    while converted < count:
        missing = count - converted
        attempts = math.ceil(missing * planned / converted) if converted else min(missing, TRIAL)
        here = folder / str(len(sources))
        doing, done = "planning", 0
        running = messages(
            python, plan_and_convert, task=task, control_mode=control_mode, folder=str(here), count=attempts,
            first_seed=seed, end_seed=FIRST_EVALUATION_SEED, patience=PATIENCE,
        )  # fmt: skip
        gave_up_before = None
        with contextlib.closing(running):
            for message in running:
                seed = message.get("tried", seed - 1) + 1
                doing, done = message.get("doing", doing), message.get("made", done)
                gave_up_before = message.get("gave_up_before")
                progress(f"planning, seed {seed - 1}" if doing == "planning" else doing, done, attempts)
        if gave_up_before is not None:
            why = (
                "evaluation begins there" if gave_up_before == FIRST_EVALUATION_SEED else f"{PATIENCE} in a row failed"
            )
            raise PlannerError(
                f"the planner made {planned + done} demonstrations of {task} and gave up before seed {gave_up_before}: "
                f"{why}."
            )
        planned, converted = planned + attempts, converted + done
        sources += here.rglob("plan.state.*.h5")
        if not converted and planned >= TRIAL:
            raise PlannerError(
                f"the planner made {planned} demonstrations, but none of them succeeds when replayed under "
                f"--control-mode {control_mode}. Try pd_ee_delta_pose, which can turn the hand, or pd_joint_delta_pos."
            )
    return sources


def compact(sources: Sequence[Path], file: Path, count: int, description: str) -> None:
    """Writes the first trajectories of ManiSkill's files, each with its JSON beside it, as one file that holds only
    what training reads. The description of how they were made goes to its JSON."""
    import h5py

    episodes: list[dict[str, Any]] = []
    with h5py.File(file, "w", libver="latest") as out:  # the older layout needs 7 kB for each group
        for source in sources:
            sidecar = json.loads(source.with_suffix(".json").read_text(encoding="utf-8"))
            with h5py.File(source) as raw:
                for episode in sidecar["episodes"][: count - len(episodes)]:
                    columns = raw[f"traj_{episode['episode_id']}"]
                    success, terminated, first = columns["success"][:], columns["terminated"][:], first_step(columns)
                    group = out.create_group(f"traj_{len(episodes)}")
                    for name in ("obs", "actions"):
                        compress_whole(group, name, columns[name][first:].astype(np.float32))
                    group["success"], group["terminated"] = success[first:], terminated[first:]
                    episodes.append(episode | {"episode_id": len(episodes), "elapsed_steps": len(success) - first})
    facts = {name: sidecar.get(name) for name in ("env_info", "commit_info")}
    write_sidecar(file, episodes, **facts, source_type="motionplanning", source_desc=description)


def _read_back(file: Path, config: Any, spec: SpaceSpec) -> tuple[int, int, int, list[int]]:
    """Reads a file as training would. Returns its trajectories, steps, steps of the longest trajectory, and seeds."""
    demonstrations = dataset.load(str(file), config, spec)
    episodes = json.loads(file.with_suffix(".json").read_text(encoding="utf-8"))["episodes"]
    seeds = [episode["episode_seed"] for episode in episodes]
    if len({*seeds}) != demonstrations.num_trajectories or max(seeds) >= FIRST_EVALUATION_SEED:
        raise PlannerError(f"{demonstrations.num_trajectories} demonstrations were made, but their seeds are {seeds}.")
    longest = int(np.bincount(demonstrations.trajectory).max())
    return demonstrations.num_trajectories, len(demonstrations), longest, seeds
