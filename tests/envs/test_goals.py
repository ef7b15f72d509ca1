"""How a task judges any goal: its own functions, tried on a few steps."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from rlpipe.envs.gymnasium import Gymnasium
from rlpipe.envs.gymnasium.options import GymnasiumConfig
from rlpipe.envs.shared.goals import check_goals, task_of_goal_env
from rlpipe.errors import ConfigError
from rlpipe.trajectory import LeafSpec, SpaceSpec
from tests.helpers.gym_trees import Place, Reach

ACHIEVED = np.zeros((3, 3), dtype=np.float32)
GOALS = np.array([[0.0, 0.0, 0.1], [0.0, 0.0, 0.2], [0.1, 0.1, 0.0]], dtype=np.float32)  # within 0.15, or not


def task(env, **options):
    return task_of_goal_env(env, "Place", **{"ignore_terminations": False, **options})


class OfOneGoal(Place):
    """Its reward function takes one goal only."""

    def compute_reward(self, achieved_goal, desired_goal, info):
        return 0.0 if np.linalg.norm(achieved_goal - desired_goal) <= 0.15 else -1.0


class WithCost(Place):
    """Actions cost something, which no goal explains."""

    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, reward - 0.1 * float(np.square(action).sum()), *rest


class NeedsInfo(Place):
    """Its reward function reads the info of the step."""

    def compute_reward(self, achieved_goal, desired_goal, info):
        return 0.0 if info["is_success"] else -1.0


class GoesOn(Place):
    """Says that any goal ends the task, but goes on."""

    def step(self, action):
        observation, reward, _, *rest = super().step(action)
        return observation, reward, False, *rest

    def compute_terminated(self, achieved_goal, desired_goal, info):
        return True


class Unsaid(Reach):
    """Does not say what ends the task."""

    def compute_reward(self, achieved_goal, desired_goal, info):
        return -np.abs(achieved_goal - desired_goal)[..., 0]


@pytest.mark.parametrize("kind", [Place, OfOneGoal])
def test_rewards_are_those_of_the_environment_for_one_goal_or_for_many_at_once(kind):
    assert task(kind()).rewards(ACHIEVED, GOALS).tolist() == [0.0, -1.0, 0.0]


def test_a_goal_ends_the_task_where_the_environment_says_so():
    assert task(Place()).terminated(ACHIEVED, GOALS).tolist() == [False, False, False]
    assert task(Place(ends=True)).terminated(ACHIEVED, GOALS).tolist() == [True, False, True]


def test_where_terminations_are_ignored_no_goal_ends_the_task():
    assert not task(Place(ends=True), ignore_terminations=True).terminated(ACHIEVED, GOALS).any()


def test_a_wrapper_may_replace_the_reward_function():
    class Doubled(gymnasium.Wrapper):
        def step(self, action):
            observation, reward, *rest = super().step(action)
            return observation, 2 * reward, *rest

        def compute_reward(self, achieved_goal, desired_goal, info):
            return 2 * self.env.compute_reward(achieved_goal, desired_goal, info)

    assert task(Doubled(Place())).rewards(ACHIEVED, GOALS).tolist() == [0.0, -2.0, 0.0]


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (gymnasium.make("CartPole-v1"), r"no method compute_reward\(achieved_goal, desired_goal, info\)"),
        (WithCost(), "a step of Place paid -1.* where its compute_reward gives -1: the reward depends on more"),
        (NeedsInfo(), "with goals and an empty info, which failed: KeyError: 'is_success'"),
        (GoesOn(), "a step went on where it says that the task has ended"),
    ],
)
def test_a_function_that_cannot_judge_goals_alone_is_refused(env, words):
    with pytest.raises(ConfigError, match=words):
        task(env)


def test_without_a_method_for_terminations_they_must_be_ignored():
    with pytest.raises(ConfigError, match=r"compute_terminated.*: add it, or set env.train.ignore_terminations=true"):
        task(Unsaid())
    found = task(Unsaid(), ignore_terminations=True)
    assert found.rewards(np.array([[0.5]]), np.array([[0.25]])).tolist() == [-0.25]


def test_a_registered_environment_brings_its_functions():
    ending = GymnasiumConfig("gymnasium", id="tests.helpers.gym_trees:Place-v0", kwargs={"ends": True})
    found = Gymnasium.goal_task(ending)
    assert (found.rewards(ACHIEVED, GOALS) == 0.0).tolist() == found.terminated(ACHIEVED, GOALS).tolist()


@pytest.mark.parametrize(
    ("leaves", "words"),
    [
        (None, "the leaves achieved_goal and desired_goal, but the simulator's have one vector"),
        ({"camera": LeafSpec((3,))}, "but the simulator's have the leaves camera"),
        ({"achieved_goal": LeafSpec((2,)), "desired_goal": LeafSpec((3,))}, "both must hold numbers of the same shape"),
        (dict.fromkeys(("achieved_goal", "desired_goal"), LeafSpec((), "int64", (3,))), "both must hold numbers"),
    ],
)
def test_observations_without_a_goal_that_can_be_replaced_are_refused(leaves, words):
    spec = SpaceSpec(3, 1) if leaves is None else SpaceSpec.of_tree(leaves, 1)
    with pytest.raises(ConfigError, match=words):
        check_goals(spec, "algorithm.hindsight is 0.8")
