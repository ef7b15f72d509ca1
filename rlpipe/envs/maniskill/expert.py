"""Expert for tasks whose solution is to grasp something and to bring it somewhere; it knows what to do in any state.

The grasps and goals are those of ManiSkill's own solutions (``mani_skill.examples.motionplanning.panda.solutions``).
These plan from a reset to the end. Here the next move follows from the present state alone, so that an expert can be
asked wherever a policy has gone. Between two poses of one orientation, their planner moves along the straight line,
which is all that a controller of the hand's position needs; so it takes no planner, and no Python of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlpipe.envs.maniskill.options import ManiSkillConfig
from rlpipe.functional.grasping import grasp_and_place
from rlpipe.trajectory import Float32

CONTROL_MODES = ("pd_ee_delta_pos", "pd_ee_delta_pose")
"""Control modes whose first three numbers move the hand, and whose last one opens and closes it."""
ROBOTS = ("panda", "panda_wristcam")


class Errand(NamedTuple):
    """Errand of a hand.

    Attributes:
        thing: actor to grasp.
        goal: [3] where its centre should be, in m.
        releases: True if it should lie there, and False if it should be held there.
    """

    thing: Any
    goal: NDArray[np.float64]
    releases: bool


def _pick_cube(task: Any) -> Errand:
    return Errand(task.cube, _place(task.goal_site), releases=False)


def _place_sphere(task: Any) -> Errand:
    return Errand(task.obj, _place(task.bin) + _up(task.block_half_size[0] + task.radius), releases=True)


def _stack_cube(task: Any) -> Errand:
    return Errand(task.cubeA, _place(task.cubeB) + _up(2 * float(task.cube_half_size[2])), releases=True)


ERRANDS: Mapping[str, Callable[[Any], Errand]] = {
    "PickCube-v1": _pick_cube,
    "PlaceSphere-v1": _place_sphere,
    "StackCube-v1": _stack_cube,
}
"""Errands by task."""


def _place(struct: Any) -> NDArray[np.float64]:
    """[3] position of an actor or a link, in m."""
    return struct.pose.p[0].numpy().astype(np.float64)  # type: ignore[no-any-return]


def _up(height: float) -> NDArray[np.float64]:
    return np.array([0.0, 0.0, height])


def why_no_expert(config: ManiSkillConfig) -> str:
    """Returns why there is no expert for a task, as the end of a sentence that begins with it; empty if there is."""
    robot = config.kwargs.get("robot_uids", ROBOTS[0])
    if config.id not in ERRANDS:
        return f"has no planner: ManiSkill's tasks with one are {', '.join(ERRANDS)}. Name a run or a function instead."
    if config.control_mode not in CONTROL_MODES:
        return (
            f"has a planner for control_mode={' and '.join(CONTROL_MODES)}, and not for {config.control_mode}: name a "
            "run or a function instead."
        )
    return "" if robot in ROBOTS else f"has a planner for robot_uids {' and '.join(ROBOTS)}, and not for {robot}."


def expert_action(task: Any) -> Float32:
    """Returns the next action of the expert, [A] within the bounds, in the present state of a task with one scene."""
    errand = ERRANDS[task.spec.id](task)
    agent = task.agent
    move = grasp_and_place(
        _place(agent.tcp),
        float(agent.robot.qpos[0, -2:].sum()),
        _place(errand.thing),
        errand.goal,
        grasped=bool(agent.is_grasping(errand.thing)[0]),
        releases=errand.releases,
    )
    action = np.zeros(task.single_action_space.shape, dtype=np.float32)
    action[:3] = np.clip(move.displacement / agent.controller.controllers["arm"].config.pos_upper, -1.0, 1.0)
    action[-1] = 1.0 if move.opens else -1.0
    return action
