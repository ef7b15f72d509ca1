"""A hand-written controller for the tasks of LIBERO that say "pick up something and place it in the basket"."""

from __future__ import annotations

import json

import numpy as np

HAND, OBJECTS, PER_OBJECT = slice(28, 31), 39, 14
"""Where the vector of ``obs_mode=state`` has the position of the hand, and that of each object; in metres."""
OPEN, CLOSED = -1.0, 1.0
UP = np.array([0.0, 0.0, 1.0])
STEP = 0.05
"""Metres that the largest action moves the hand."""


class PickAndPlace:
    """Moves above an object, grasps it, carries it to another one and lets go."""

    def __init__(self, item: int, target: int) -> None:
        """Takes the numbers of both among the objects of the task."""
        self._item, self._target = item, target
        self._phase, self._waited = 0, 0

    def action(self, observation):
        """Returns the next action [7] for an observation [D]."""
        hand = observation[HAND]
        item, target = (observation[OBJECTS + PER_OBJECT * n :][:3] for n in (self._item, self._target))
        way = [
            (item + UP * 0.12, OPEN, 0.01),
            (item, OPEN, 0.01),
            (None, CLOSED, 12),
            (np.array([*hand[:2], target[2] + 0.32]), CLOSED, 0.02),
            (target + UP * 0.32, CLOSED, 0.02),
            (target + UP * 0.2, CLOSED, 0.02),
            (None, OPEN, 10**6),
        ]  # goal, gripper, and the distance to the goal in metres, or the steps, that are enough
        goal, grip, enough = way[self._phase]
        self._waited += 1
        if goal is None:
            goal, done = hand, self._waited >= enough
        else:
            done = bool(np.linalg.norm(goal - hand) < enough) or self._waited > 60
        if done:
            self._phase, self._waited = self._phase + 1, 0
        move = np.clip((goal - hand) / STEP, -1, 1)
        return np.array([*move, 0, 0, 0, grip], dtype=np.float32)


def record(simulator, seeds, item, target):
    """Solves an episode for each seed that a simulator of one environment is asked for.

    Returns:
        Seed, actions [L, A] and success [L] of each.
    """
    observations, beginnings = simulator.reset()
    found = []
    while len(found) < len(seeds):
        (beginning,) = beginnings.values()
        controller, actions, success, ended = PickAndPlace(item, target), [], [], False
        while not ended:
            actions.append(controller.action(observations[0].astype(np.float64)))
            step = simulator.step(actions[-1][None])
            success.append(bool(step.success[0]))
            observations, beginnings = step.observations, step.beginnings
            ended = bool(step.terminated[0] or step.truncated[0])
        found.append((beginning.seed, np.array(actions), np.array(success)))
    return found


def write(file, task, episodes):
    """Writes what ``record`` returned as a file of demonstrations, without observations."""
    import h5py

    with h5py.File(file, "w") as out:
        for number, (_, actions, success) in enumerate(episodes):
            group = out.create_group(f"traj_{number}")
            group["actions"], group["success"] = actions, success
    listed = [{"episode_id": number, "episode_seed": seed} for number, (seed, _, _) in enumerate(episodes)]
    text = json.dumps({"env_info": {"env_id": task, "env_kwargs": {}}, "episodes": listed})
    file.with_suffix(".json").write_text(text, encoding="utf-8")
