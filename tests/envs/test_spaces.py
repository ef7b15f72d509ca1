"""Gymnasium's spaces as ours: which leaves there are, and what becomes of values and actions."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rlpipe.envs.gymnasium.vector import GymnasiumVector
from rlpipe.envs.shared.spaces import Spaces
from rlpipe.errors import ConfigError
from rlpipe.trajectory import LeafSpec, Tree
from tests.helpers import gym_trees

ACTIONS = Box(-1.0, 1.0, (1,))


def spec(observations, actions=ACTIONS):
    return Spaces(observations, actions, "Task-v0").spec


@pytest.mark.parametrize(
    ("space", "width"),
    [(Box(-1, 1, (3,)), 3), (Box(-1, 1, (2, 3)), 6), (Box(-1, 1, ()), 1), (Box(0, 255, (4,), np.uint8), 4),
     (MultiBinary(3), 3)],
)  # fmt: skip
def test_numbers_that_are_no_picture_are_one_vector(space, width):
    found = Spaces(space, ACTIONS, "Task-v0")
    assert (found.spec.observation_dim, found.spec.leaves) == (width, None)
    value = found.observation(space.sample())
    assert (value.shape, value.dtype) == ((width,), np.float32)


def test_a_picture_keeps_its_shape_and_its_bytes():
    found = Spaces(Box(0, 255, (20, 20, 3), np.uint8), ACTIONS, "Task-v0")
    assert found.spec.leaves == {"observation": LeafSpec((20, 20, 3), "uint8")}
    assert found.observation(np.full((20, 20, 3), 255, np.uint8))["observation"].dtype == np.uint8


def test_dictionaries_and_tuples_have_a_leaf_for_each_space_in_them():
    space = Dict(
        {"arm": Dict({"q": Box(-1, 1, (7,), np.float64)}), "tools": Tuple([Discrete(3), MultiDiscrete([2, 4])])}
    )
    assert spec(space).leaves == {
        "arm/q": LeafSpec((7,)),
        "tools/0": LeafSpec((), "int64", (3,)),
        "tools/1": LeafSpec((2,), "int64", (2, 4)),
    }
    assert spec(space).observation_dim == 10


def test_values_reach_their_leaves_and_categories_count_from_zero():
    space = Dict({"arm": Tuple([Box(-1, 1, (2,), np.float64)]), "tool": Discrete(3, start=5)})
    value = Spaces(space, ACTIONS, "Task-v0").observation({"arm": (np.array([0.5, 1.0]),), "tool": 6})
    assert value["arm/0"].tolist() == [0.5, 1.0]
    assert value["arm/0"].dtype == np.float32
    assert value["tool"] == 1


def test_actions_have_the_shape_and_the_numbers_of_the_environment():
    vector = Box(-1, 1, (2,))
    assert Spaces(vector, Box(-1, 1, (2, 2)), "").action(np.arange(4.0)).tolist() == [[0, 1], [2, 3]]
    assert Spaces(vector, Discrete(3, start=-1), "").action(np.int64(0)) == -1
    assert Spaces(vector, MultiDiscrete([3, 2], start=[0, 7]), "").action(np.array([2, 1])).tolist() == [2, 8]
    assert Spaces(vector, MultiBinary((2, 2)), "").action(np.array([1, 0, 0, 1])).tolist() == [[1, 0], [0, 1]]


def test_whole_actions_are_rounded_into_their_bounds():
    space = Box(np.array([-3, 0], np.int32), np.array([3, 2**31 - 1], np.int32), dtype=np.int32)
    spaces = Spaces(Box(0, 1, (1,)), space, "made")
    taken = spaces.action(np.array([1.6, 2.0**31], np.float32))
    assert (taken.tolist(), taken.dtype) == ([2, 2**31 - 1], np.int32)
    assert space.contains(taken)


def test_the_parts_of_an_action_are_known_to_the_policy():
    assert spec(Box(-1, 1, (2,)), Discrete(3)).num_actions == 3
    several = spec(Box(-1, 1, (2,)), MultiDiscrete([3, 2]))
    assert (several.num_actions, several.action_dim, several.actions(4).shape) == ((3, 2), 2, (4, 2))
    assert spec(Box(-1, 1, (2,)), MultiBinary(3)).num_actions == (2, 2, 2)


def test_what_no_policy_can_use_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"Task-v0 has the observation words/0 in Text.*ignore_observations=\[w"):
        spec(Dict({"words": Tuple([Text(5)])}))
    with pytest.raises(ConfigError, match=r"observation in Text.* Tuple work\. Turn it into one of them"):
        spec(Text(5))
    with pytest.raises(ConfigError, match="has actions in Dict; Discrete, MultiDiscrete, MultiBinary and Box work"):
        spec(Box(-1, 1, (2,)), Dict({}))
    with pytest.raises(ConfigError, match="hold nothing"):
        spec(Dict({}))


def test_what_is_ignored_may_be_of_any_space():
    space = Dict({"goal": Dict({"words": Text(5), "place": Box(-1, 1, (2,))}), "said": Text(5), "tool": Discrete(3)})
    assert [*Spaces(space, ACTIONS, "", ["said", "goal/words"]).spec.leaves] == ["goal/place", "tool"]
    assert [*Spaces(space, ACTIONS, "", ["said", "goal"]).spec.leaves] == ["tool"]
    assert [*Spaces(space, ACTIONS, "", ["said", "goal", "goal/words"]).spec.leaves] == ["tool"]


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (Dict({"tool": Discrete(3)}), r"names 'tol', .* did you mean 'tool'\? There are tool\."),
        (Box(-1, 1, (2,)), r"names 'tol', which Task-v0 does not observe. It observes one vector\."),
        (Dict({"tol": Discrete(3)}), "hold nothing once ignore_observations is left out"),
    ],
)
def test_what_is_ignored_must_be_there_and_leave_something(space, words):
    with pytest.raises(ConfigError, match=words):
        Spaces(space, ACTIONS, "Task-v0", ["tol"])


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_a_vectorised_environment_gives_the_true_last_tree_of_each_episode(mode):
    def make():
        return gym_trees.Reach()

    vector = SyncVectorEnv([make, make], autoreset_mode=mode)
    simulator = GymnasiumVector(vector, lambda n: n, success_key="is_success")
    first, _ = simulator.reset()
    assert isinstance(first, Tree)
    for _ in range(gym_trees.STEPS):
        step = simulator.step(np.full((2, 1), 1.0 if first["desired_goal"][0, 0] < 0 else -1.0, dtype=np.float32))
    assert step.truncated[0]
    assert abs(step.successors["achieved_goal"][0, 0]) == 2.0
    assert step.successors["desired_goal"][0, 0] == first["desired_goal"][0, 0]


def test_checked_environments_of_gymnasium_translate_back_and_forth():
    for env_id in ("CartPole-v1", "FrozenLake-v1", "Blackjack-v1", "Taxi-v4", "CliffWalking-v1", "Pendulum-v1"):
        env = gymnasium.make(env_id)
        spaces = Spaces(env.observation_space, env.action_space, env_id)
        observation, _ = env.reset(seed=0)
        wanted = spaces.spec.observations(1)
        wanted[0] = spaces.observation(observation)
        env.step(spaces.action(spaces.spec.actions(1)[0]))
        env.close()
