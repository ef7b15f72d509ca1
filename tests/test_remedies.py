"""What a message advises is done as it stands, and what it was about is then accepted."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Text

from rlpipe.backends.base import Place
from rlpipe.collection.baselines import Random
from rlpipe.config.loading import load_config
from rlpipe.envs.shared.spaces import Spaces
from rlpipe.errors import ConfigError
from rlpipe.policies.base import finite_bounds
from rlpipe.training.checks import check_engine, check_spaces
from rlpipe.trajectory import SpaceSpec

LARGEST = np.finfo(np.float32).max


class Task(gymnasium.Env):
    """A task with given spaces; its last action is kept."""

    def __init__(self, actions, observations):
        self.action_space, self.observation_space = actions, observations

    def reset(self, *, seed=None, options=None):
        return self.observation_space.sample(), {}

    def step(self, action):
        self.action = action
        return self.observation_space.sample(), 0.0, False, False, {}


def spec(env) -> SpaceSpec:
    return Spaces(env.observation_space, env.action_space, "Task-v0").spec


def refusal(call, *arguments) -> str:
    with pytest.raises(ConfigError) as raised:
        call(*arguments)
    return str(raised.value)


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize(
    "actions",
    [Box(0, np.inf, (2,)), Box(-np.inf, np.inf, (2,)), Box(-LARGEST, LARGEST, (2,)),
     Box(-np.finfo(float).max, np.finfo(float).max, (2,), np.float64)],
)  # fmt: skip
@pytest.mark.parametrize("who", [lambda spec: finite_bounds(spec, "tokens"), lambda spec: Random(spec)])
def test_actions_without_bounds_get_them_by_the_expression_in_the_message(actions, who):
    env = Task(actions, Box(-1, 1, (2,)))
    expression = re.search(r"gymnasium\.wrappers\..*?\)\)", refusal(who, spec(env)))[0]
    bounded = eval(expression, {"gymnasium": gymnasium, "env": env})
    who(spec(bounded))
    bounded.reset()
    bounded.step(np.array([0.5, -1.0], np.float32))
    assert env.action.tolist() == [0.5, -1.0]


def test_a_space_that_no_policy_can_use_is_turned_into_one_by_the_wrapper_in_the_message():
    env = Task(Dict({"arm": Box(-1, 1, (2,)), "tool": Discrete(2)}), Dict({"q": Box(-1, 1, (2,)), "text": Text(5)}))
    for name, function, space in (
        ("TransformObservation", lambda observation: observation["q"], Box(-1, 1, (2,))),
        ("TransformAction", lambda action: {"arm": action[:2], "tool": int(action[2] > 0)}, Box(-1, 1, (3,))),
    ):
        expression = re.search(r"gymnasium\.wrappers\.(\w+)\(env, function, space\)", refusal(spec, env))
        assert expression[1] == name
        env = eval(expression[0], {"gymnasium": gymnasium, "env": env, "function": function, "space": space})
    assert spec(env).action_dim == 3
    env.reset()
    env.step(np.array([0.0, 0.0, 1.0], np.float32))
    assert env.unwrapped.action["tool"] == 1


# --- configurations; a task with discrete actions (CartPole) and one with numbers (Pendulum)

CARTPOLE, PENDULUM = "env.train.id=CartPole-v1", "env.train.id=Pendulum-v1"

IN_ONE_PROCESS = SimpleNamespace(side_by_side=False, places=tuple(Place))


def load(overrides) -> None:
    train = {"name": "gymnasium", "total_num_envs": 8}
    config = load_config({"env": {"train": train}, "policy": {"name": "mlp"}, "algorithm": {"name": "ppo"}}, overrides)
    check_spaces(config)


def load_for_one_process(overrides) -> None:
    check_engine(load_config("sparse_pick_cube", overrides), IN_ONE_PROCESS)


def advised(message) -> Iterator[list[str]]:
    """Yields the overrides that a message advises, one list for each alternative."""
    advice = re.split(r"(?:: |\. )(?=[Ss]et |env)|such as |--local, or ", message)[-1]
    for alternative in advice.split(", or "):
        found = re.findall(r"([a-z_][\w.]*)=(\w(?:[\w.]*\w)?)((?: or \w+)?)", alternative)
        keys = [key if "." in key else f"env.train.{key}" for key, _, _ in found]
        values = [[value, *([other.removeprefix(" or ")] if other else [])] for _, value, other in found]
        if found:
            yield from (
                [f"{key}={value}" for key, value in zip(keys, one, strict=True)] for one in itertools.product(*values)
            )


@pytest.mark.parametrize(
    ("asked", "count"),
    [
        ([CARTPOLE, "evaluation.videos=1", "evaluation.replays=0"], 2),
        ([CARTPOLE, "rollout.inference=server", "runner.pipeline=stream"], 2),
        ([CARTPOLE, "policy.name=gru", "algorithm.cloning_coef=0.1", "algorithm.num_minibatches=2"], 1),
        (
            [
                CARTPOLE,
                "policy.name=gru",
                "policy.chunk_size=4",
                "policy.execute=2",
                "algorithm.name=behaviour_cloning",
            ],
            1,
        ),
        ([CARTPOLE, "algorithm.reward_level=action", "algorithm.logprob_level=chunk", "policy.chunk_size=4"], 2),
        ([CARTPOLE, "env.train.vectorized=true", "policy.chunk_size=4"], 2),
        ([CARTPOLE, "env.train.frame_stack=4"], 1),
        ([CARTPOLE, "env.train.pixels_with_state=true"], 1),
        ([CARTPOLE, "policy.shared_encoder=true"], 1),
        ([CARTPOLE, "policy.name=squashed_gaussian"], 2),
        ([CARTPOLE, "rollout.steps_after_success=3", "env.train.success_key=is_success"], 1),
        (["env.train.tasks=[MountainCar-v0,Acrobot-v1]"], 1),
        ([PENDULUM, "algorithm.name=sac"], 2),
        ([PENDULUM, "algorithm.name=sac", "policy.name=squashed_gaussian", "learner.num_learners=2"], 1),
        ([PENDULUM, "policy.name=squashed_gaussian", "algorithm.entropy_coef=0.1"], 1),
        ([PENDULUM, "policy.name=squashed_gaussian", "policy.random_steps=10"], 3),
    ],
)
def test_the_keys_that_a_refusal_advises_are_accepted_as_they_stand(asked, count):
    alternatives = list(advised(refusal(load, asked)))
    assert len(alternatives) == count
    for changes in alternatives:
        load([*asked, *changes])


@pytest.mark.parametrize("asked", ["rollout.inference=server", "algorithm.update_to_data=null"])
def test_what_one_process_cannot_do_it_can_with_the_key_that_the_refusal_advises(asked):
    (changes,) = advised(refusal(load_for_one_process, [asked]))
    load_for_one_process([asked, *changes])
