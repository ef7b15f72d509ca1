"""States of a ManiSkill task: taken in one episode, and set at the beginning of another.

ManiSkill's own state holds poses and velocities. The drive targets of the joints are kept as well, because a gripper
holds an object only while its targets press it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlpipe.functional.rotations import rotation_between
from rlpipe.trajectory import State

TARGETS = "drive_targets"
"""First part of the names of the drive targets, as ``actors`` and ``articulations`` are of ManiSkill's own."""

ORIENTATION = slice(3, 7)
"""Quaternion in the numbers of an actor or an articulation, which begin with its position."""


def state_of(task: Any) -> State:
    """Returns the state of a task with one scene: ``actors/cube`` [13], ``drive_targets/panda`` [M], and so on."""
    return row_of(states_of(task), 0)


def states_of(task: Any) -> dict[str, NDArray[Any]]:
    """Returns the states of a task with K scenes, [K, ...] by name."""
    held = {
        f"{kind}/{name}": values.numpy()
        for kind, values_by_name in task.get_state_dict().items()
        for name, values in values_by_name.items()
    }
    articulations = task.scene.articulations.items()
    return held | {f"{TARGETS}/{name}": driven.drive_targets.numpy() for name, driven in articulations}


def row_of(states: Mapping[str, NDArray[Any]], scene: int) -> State:
    """Returns a copy of the state of one scene."""
    return {name: rows[scene].copy() for name, rows in states.items()}


def set_state(task: Any, state: State) -> None:
    """Sets the state of a task with one scene; what it does not hold follows from the seed of the last reset.

    Controllers take the state as their starting point, so those that add to an earlier target begin anew.

    Raises:
        ValueError: the state is not one of this task.
    """
    import torch

    held = task.get_state_dict()
    parts = {f"{kind}/{name}" for kind, named in held.items() for name in named}
    parts_of_state = {name for name in state if not name.startswith(f"{TARGETS}/")}
    if parts != parts_of_state:
        raise ValueError(
            f"a state of {', '.join(sorted(parts_of_state))} is not one of this task, which has "
            f"{', '.join(sorted(parts))}."
        )
    tensors = {name: torch.from_numpy(np.array(values, dtype=np.float32))[None] for name, values in state.items()}
    task.set_state_dict({kind: {name: tensors[f"{kind}/{name}"] for name in named} for kind, named in held.items()})
    task.agent.controller.reset()
    for name, articulation in task.scene.articulations.items():
        if f"{TARGETS}/{name}" in state:
            articulation.set_joint_drive_targets(tensors[f"{TARGETS}/{name}"], articulation.active_joints)


def blended(first: State, second: State, share: float) -> State:
    """Returns the state some share of the way from one state of a task to another.

    Poses, joints, velocities and drive targets are interpolated; orientations take the shorter way. Objects that touch
    in neither state may touch between them.
    """
    between = {name: (1.0 - share) * first[name] + share * second[name] for name in first}
    for name, values in between.items():
        if not name.startswith(f"{TARGETS}/"):
            values[ORIENTATION] = rotation_between(first[name][ORIENTATION], second[name][ORIENTATION], share)
    return between
