"""Tasks with a goal in each observation: how they judge any goal, which hindsight asks in the learner's process.

The goal is the leaf ``desired_goal`` of the observation tree, and ``achieved_goal`` is what there is of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlpipe.errors import ConfigError
from rlpipe.trajectory import SpaceSpec

ACHIEVED, DESIRED = "achieved_goal", "desired_goal"
"""Names of the leaves, those of ``gymnasium_robotics.GoalEnv``."""
TRIAL_STEPS = 10
"""Random steps whose rewards are compared with recomputed ones."""

Judge = Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]
"""Function of what [B] steps achieved and of their goals, both [B, ...], that returns [B] answers."""


@dataclass(frozen=True)
class GoalTask:
    """How a task judges what a step achieved, for any goal.

    Attributes:
        rewards: returns [B] float64 rewards.
        terminated: returns [B] bool, True where the goal ends the task.
    """

    rewards: Judge
    terminated: Judge


def check_goals(spec: SpaceSpec, user: str) -> None:
    """Checks that observations have a goal that could be replaced by what was achieved.

    Args:
        spec: spaces of the simulator.
        user: who needs it, as the beginning of the error.
    Raises:
        ConfigError: they have none.
    """
    leaves = spec.leaves or {}
    if ACHIEVED not in leaves or DESIRED not in leaves:
        observed = f"the leaves {', '.join(leaves)}" if leaves else "one vector"
        raise ConfigError(
            f"{user}, which needs observations with the leaves {ACHIEVED} and {DESIRED}, but the simulator's have "
            f"{observed}: set algorithm.hindsight=0, or take a task with goals."
        )
    achieved, desired = leaves[ACHIEVED], leaves[DESIRED]
    if achieved != desired or achieved.choices is not None:
        raise ConfigError(
            f"{user}, which puts {ACHIEVED} in the place of {DESIRED}, so both must hold numbers of the same shape "
            f"and dtype, but they are {achieved} and {desired}: set algorithm.hindsight=0."
        )


class _Trial(NamedTuple):
    """Some random steps of one episode; arrays [K, ...], in the environment's own dtypes."""

    achieved: NDArray[Any]
    desired: NDArray[Any]
    rewards: NDArray[np.float64]
    terminated: NDArray[np.bool_]


def task_of_goal_env(env: Any, name: str, *, ignore_terminations: bool) -> GoalTask:
    """Returns the judgement of an environment's own ``compute_reward`` and ``compute_terminated``.

    They are tried on a few random steps: what they compute from the goals alone must be what the steps gave.

    Args:
        env: a ``gymnasium.Env`` with the methods of ``gymnasium_robotics.GoalEnv``.
        name: its name, for errors.
        ignore_terminations: True if no goal ends an episode.
    Raises:
        ConfigError: a method is missing, needs more than the goals, or does not agree with the steps.
    """
    compute_reward = _method(env, "compute_reward", name, "")
    trial = _try(env, name)
    rewards = _judge(compute_reward, trial, name)
    computed = rewards(trial.achieved, trial.desired)
    if not np.allclose(computed, trial.rewards, rtol=1e-4, atol=1e-6):
        step = int(np.argmax(~np.isclose(computed, trial.rewards, rtol=1e-4, atol=1e-6)))
        raise ConfigError(
            f"algorithm.hindsight recomputes rewards from goals, but a step of {name} paid {trial.rewards[step]:g} "
            f"where its compute_reward gives {computed[step]:g}: the reward depends on more than the goals. Set "
            "algorithm.hindsight=0, or leave the rest out of the reward."
        )
    if ignore_terminations:
        return GoalTask(rewards, lambda achieved, _: np.zeros(len(achieved), dtype=bool))
    remedy = ", or set env.train.ignore_terminations=true"
    terminated = _judge(_method(env, "compute_terminated", name, remedy), trial, name)
    if (terminated(trial.achieved, trial.desired).astype(bool) & ~trial.terminated).any():
        raise ConfigError(
            f"algorithm.hindsight asks compute_terminated of {name} which goals end the task, but a step went on where "
            f"it says that the task has ended: let them agree{remedy}."
        )
    return GoalTask(rewards, lambda achieved, desired: terminated(achieved, desired).astype(bool))


def _method(env: Any, name: str, owner: str, remedy: str) -> Callable[..., Any]:
    """Returns a method of an environment or of the outermost wrapper that has it."""
    if not env.has_wrapper_attr(name):
        raise ConfigError(
            f"algorithm.hindsight recomputes what a step gives for another goal, but {owner} has no method "
            f"{name}(achieved_goal, desired_goal, info): add it{remedy}."
        )
    method: Callable[..., Any] = env.get_wrapper_attr(name)
    return method


def _try(env: Any, name: str) -> _Trial:
    """Takes a few random steps."""
    try:
        env.action_space.seed(0)
        env.reset(seed=0)
        steps = []
        for _ in range(TRIAL_STEPS):
            observation, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            achieved, desired = (np.array(observation[goal]) for goal in (ACHIEVED, DESIRED))
            steps.append((achieved, desired, float(reward), bool(terminated)))
            if terminated or truncated:
                break
    except Exception as error:
        raise ConfigError(
            f"algorithm.hindsight tries the reward function of {name} on a few steps, which failed: "
            f"{type(error).__name__}: {error}"
        ) from error
    return _Trial(*(np.array(column) for column in zip(*steps, strict=True)))


def _judge(method: Callable[..., Any], trial: _Trial, name: str) -> Judge:
    """Returns a method of goals for many of them: at once where it can do that, otherwise one by one."""
    dtype = trial.achieved.dtype

    def at_once(achieved: NDArray[Any], desired: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(method(achieved.astype(dtype), desired.astype(dtype), {}), dtype=np.float64)

    def one_by_one(achieved: NDArray[Any], desired: NDArray[Any]) -> NDArray[Any]:
        pairs = zip(achieved.astype(dtype), desired.astype(dtype), strict=True)
        return np.array([np.asarray(method(*pair, {})).item() for pair in pairs], dtype=np.float64)

    pairs = (np.concatenate([trial.achieved, trial.achieved]), np.concatenate([trial.desired, trial.achieved]))
    try:
        expected = one_by_one(*pairs)
    except Exception as error:
        raise ConfigError(
            f"algorithm.hindsight calls {method.__name__} of {name} with goals and an empty info, which failed: "
            f"{type(error).__name__}: {error}. Set algorithm.hindsight=0, or let it depend on the goals alone."
        ) from error
    try:
        answers = at_once(*pairs)
        agree = answers.shape == expected.shape and np.allclose(answers, expected)
    except Exception:  # written for one goal, it may raise anything
        agree = False
    return at_once if agree else one_by_one
