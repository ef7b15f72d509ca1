"""Episodes of MuJoCo tasks that begin in a stored state, with the real libraries."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import TransformObservation

import rlpipe
from rlpipe.demonstrations import dataset
from rlpipe.demonstrations.replay import replay_demonstrations
from rlpipe.envs.base import began_in
from rlpipe.envs.gymnasium import Gymnasium
from rlpipe.envs.gymnasium.options import GymnasiumConfig
from rlpipe.envs.gymnasium.single import GymnasiumEnv
from rlpipe.errors import ConfigError
from rlpipe.trajectory import ChosenStart
from rlpipe.trajectory.tree import leaves_of
from tests.helpers.demonstrations import write
from tests.helpers.runs import lines, scripted

pytest.importorskip("mujoco", reason="needs rlpipe[robotics]: MuJoCo is not installed")
pytestmark = pytest.mark.extras
SEED = 5
FETCH = "gymnasium_robotics:Fetch{}-v4"
TASKS = [
    "Reacher-v5",  # observes poses of bodies, integrates with RK4, and has its goal in MuJoCo and outside
    "Pusher-v5",  # the same with Euler
    "Ant-v5",  # observes the forces of contacts
    FETCH.format("Push"),  # moves its hand by a mocap body, and closes its gripper after each step
    FETCH.format("PickAndPlace"),  # the same with a gripper that moves
    "gymnasium_robotics:HandManipulateBlock_ContinuousTouchSensors-v1",
]
LENGTH = 24
STARTS = [0, 1, 10, 23]


def made(env_id, next_start=None, **options):
    if env_id.startswith("gymnasium_robotics"):
        pytest.importorskip("gymnasium_robotics", reason="needs rlpipe[robotics]: it is not installed")
    config = GymnasiumConfig("gymnasium", id=env_id, **options)
    assert Gymnasium.describe(config, "env.train").states
    simulator = Gymnasium.make(config, 1, lambda _: SEED)
    simulator.next_start = next_start
    return simulator


def actions_for(simulator, observations):
    """Actions that push a Fetch task's block, or else random ones."""
    generator = np.random.default_rng(0)
    low, high = simulator.spec.action_low, simulator.spec.action_high
    for _ in range(LENGTH):
        action = generator.uniform(low, high).astype(np.float32)
        if "Fetch" in simulator.env_id:
            hand, block = observations[-1]["observation"][0, :3], observations[-1]["observation"][0, 3:6]
            action[:3] = np.clip(10 * (block - hand), -1, 1)
        yield action[None]


def recorded(env_id):
    """One episode: its actions, observations, rewards and states."""
    simulator = made(env_id)
    simulator.env_id = env_id
    try:
        first, _ = simulator.reset()
        observations, rewards, states, actions = [first], [], [simulator.state(0)], []
        for action in actions_for(simulator, observations):
            step = simulator.step(action)
            actions.append(action)
            observations.append(step.successors)
            rewards.append(step.rewards[0])
            states.append(simulator.state(0))
        return actions, observations, rewards, states
    finally:
        simulator.close()


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(leaves_of(one), leaves_of(other), strict=True))


@pytest.mark.parametrize("env_id", TASKS)
def test_an_episode_begun_in_a_stored_state_is_the_rest_of_the_recorded_one_to_the_last_bit(env_id):
    actions, observations, rewards, states = recorded(env_id)
    simulator = made(env_id)
    try:
        for start in STARTS:
            simulator.next_start = lambda _, start=start: ChosenStart(SEED, states[start], 0, start)
            first, beginnings = simulator.reset()
            assert beginnings[0].chosen.step == start
            assert same(first, observations[start])
            for number in range(start, LENGTH):
                step = simulator.step(actions[number])
                assert same(step.successors, observations[number + 1])
                assert step.rewards[0] == rewards[number]
    finally:
        simulator.close()


def test_the_fetch_test_moves_its_block():
    _, observations, _, _ = recorded(FETCH.format("Push"))
    moved = observations[-1]["achieved_goal"] - observations[0]["achieved_goal"]
    assert np.linalg.norm(moved) > 0.02


@pytest.mark.parametrize(("env_id", "goal"), [("Reacher-v5", 2), (FETCH.format("Push"), 3)])
def test_the_goal_has_a_name_of_its_own_beside_the_state_of_mujoco(env_id, goal):
    *_, states = recorded(env_id)
    shapes = {name: values.shape for name, values in states[0].items()}
    size = shapes["mujoco/state"]
    assert shapes == {"mujoco/state": size, "mujoco/state_before": size, "task/goal": (goal,)}


def test_a_state_that_was_set_is_the_present_state():
    *_, states = recorded("Pusher-v5")
    simulator = made("Pusher-v5", lambda _: ChosenStart(SEED, states[10]))
    simulator.reset()
    again = simulator.state(0)
    assert again.keys() == states[10].keys()
    assert all(np.array_equal(again[name], states[10][name]) for name in again)
    simulator.close()


def test_the_first_observation_passes_through_the_wrappers_of_the_task():
    def doubled():
        env = gymnasium.make("Reacher-v5")
        return GymnasiumEnv(TransformObservation(env, lambda observation: 2 * observation, env.observation_space))

    one, other = doubled(), doubled()
    one.reset(SEED)
    seen = one.step(np.ones(2, np.float32)).observation
    other.reset(SEED)
    first, _ = other.set_state(one.state())
    assert np.array_equal(first, seen)


def test_an_episode_may_begin_between_a_stored_state_and_that_of_the_reset():
    *_, states = recorded(FETCH.format("PickAndPlace"))
    single = GymnasiumEnv(gymnasium.make("FetchPickAndPlace-v4"))
    observation, _ = single.reset(SEED + 1)
    own = single.state()
    seen = {}
    for share in (0.0, 0.25, 1.0):
        single.reset(SEED + 1)
        seen[share], _ = single.set_state(single.blended(states[-1], share))
    single.close()
    for leaf in ("achieved_goal", "desired_goal"):  # where the block and its goal are
        assert seen[1.0][leaf] == pytest.approx(observation[leaf], abs=1e-6)
        assert not np.allclose(seen[0.0][leaf], seen[1.0][leaf], atol=1e-3)
        assert seen[0.25][leaf] == pytest.approx(0.75 * seen[0.0][leaf] + 0.25 * seen[1.0][leaf], abs=1e-5)
    assert own["task/goal"] == pytest.approx(seen[1.0]["desired_goal"])


def test_an_episode_may_begin_between_two_stored_states_under_another_seed():
    *_, states = recorded(FETCH.format("PickAndPlace"))
    single = GymnasiumEnv(gymnasium.make("FetchPickAndPlace-v4"))
    single.reset(SEED + 1)
    ends = [single.set_state(state)[0] for state in (states[0], states[-1])]
    chosen = ChosenStart(SEED + 1, states[0], 0, blend=0.25, target=states[-1], towards=1)
    seen, _ = began_in(single, SEED, chosen)
    single.close()
    for leaf in ("achieved_goal", "desired_goal"):
        assert seen[leaf] == pytest.approx(0.75 * ends[0][leaf] + 0.25 * ends[1][leaf], abs=1e-5)
    assert not np.allclose(ends[0]["achieved_goal"], ends[1]["achieved_goal"], atol=1e-3)


def test_a_free_body_turns_the_shorter_way():
    """Halfway between none and a quarter turn is an eighth of a turn, with either sign of the quaternion."""
    env = gymnasium.make("FetchPush-v4")
    single = GymnasiumEnv(env)
    single.reset(SEED)
    data, block = env.unwrapped.data, slice(-4, None)
    data.qpos[block] = [1.0, 0.0, 0.0, 0.0]
    state = single.state()
    for sign in (1.0, -1.0):
        data.qpos[block] = sign * np.array([np.sqrt(0.5), 0.0, 0.0, np.sqrt(0.5)])
        single.set_state(single.blended(state, 0.5))
        assert np.abs(data.qpos[block]) == pytest.approx([np.cos(np.pi / 8), 0.0, 0.0, np.sin(np.pi / 8)])
        single.set_state(state)
    single.close()


def test_a_state_of_another_task_is_refused():
    *_, states = recorded("Reacher-v5")
    simulator = made("Pusher-v5", lambda _: ChosenStart(SEED, states[0]))
    with pytest.raises(ValueError, match=r"a state of mujoco/state \[49\], .*is not one of this task, which has"):
        simulator.reset()
    simulator.close()


class Tiring:
    """A Reacher that pays less with every step, which its ``taken`` counts."""

    def reset(self, **options):
        self.taken = 0
        return super().reset(**options)

    def step(self, action):
        observation, reward, *rest = super().step(action)
        self.taken += 1
        return observation, reward - self.taken, *rest


def own_task(**attributes):
    """Registers a task that is not Gymnasium's; returns its id."""
    from gymnasium.envs.mujoco.reacher_v5 import ReacherEnv

    name = "_".join(["Tiring", *attributes])
    gymnasium.register(f"{name}-v0", type(name, (Tiring, ReacherEnv), attributes))
    return f"{name}-v0"


def test_what_an_own_task_names_is_part_of_its_state():
    env_id = own_task(state_attributes=("goal", "taken"))
    actions, _, rewards, states = recorded(env_id)
    simulator = made(env_id, lambda _: ChosenStart(SEED, states[10]))
    simulator.reset()
    assert simulator.step(actions[10]).rewards[0] == rewards[10]
    simulator.close()


def curriculum(tmp_path, env_id, demos, *overrides):
    return scripted(
        tmp_path, "runner.total_timesteps=96", *overrides, demos=demos,
        env={
            "train": {"name": "gymnasium", "id": env_id, "total_num_envs": 2, "success_key": "is_success"},
            "eval": {"total_num_envs": 2},
        },
        policy={"name": "squashed_gaussian", "hidden_sizes": [8]},
        algorithm={"name": "rlpd", "batch_size": 8, "critic_hidden_sizes": [8], "learning_starts": 32,
                   "update_to_data": 0.25, "replay_capacity": 500},
        curriculum={"name": "reverse", "step_back": 2, "own_starts": 0.3}, evaluation={"episodes": 2},
    )  # fmt: skip


def test_an_own_task_that_does_not_say_what_it_keeps_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"class Tiring does not say .* state_attributes = \('goal',\)"):
        curriculum(tmp_path, own_task(), "unread.h5")


def test_a_task_in_a_wrapper_that_may_keep_anything_is_refused(tmp_path):
    from gymnasium.envs.registration import WrapperSpec

    wrapper = WrapperSpec("Normalised", "gymnasium.wrappers:NormalizeObservation", {})
    gymnasium.register("Wrapped-v0", "gymnasium.envs.mujoco.reacher_v5:ReacherEnv", additional_wrappers=(wrapper,))
    with pytest.raises(ConfigError, match=r"\(Wrapped-v0\) cannot begin .* set curriculum.name=forward"):
        curriculum(tmp_path, "Wrapped-v0", "unread.h5")


def straight_to_the_goal(folder, count=2):
    """Demonstrations of FetchReach, with their seeds but without observations and states."""
    env = gymnasium.make("FetchReach-v4")
    trajectories = []
    for seed in range(count):
        observation, _ = env.reset(seed=seed)
        actions, success = [], []
        while not any(success) and len(actions) < 50:
            way = observation["desired_goal"] - observation["achieved_goal"]
            actions.append(np.append(np.clip(2 * way, -1, 1), 0.0))
            observation, _, _, _, info = env.step(actions[-1].astype(np.float32))
            success.append(bool(info["is_success"]))
        trajectories.append((np.zeros((len(actions) + 1, 1)), actions, success))
    env.close()
    return write(folder, trajectories, env_id=FETCH.format("Reach"), control_mode=None, seeds=range(count))


def test_replayed_demonstrations_keep_states_in_which_a_curriculum_begins(tmp_path):
    pytest.importorskip("gymnasium_robotics", reason="needs rlpipe[robotics]: it is not installed")
    reach = FETCH.format("Reach")
    source = straight_to_the_goal(tmp_path)
    config = curriculum(tmp_path, reach, source)
    made = replay_demonstrations(source, config, tmp_path / "replayed.h5", lambda *_: None)
    loaded = dataset.load(str(made.file), config.env.train, made.spec)
    assert loaded.states[0]["task/goal"].shape == (np.count_nonzero(loaded.trajectory == 0) + 1, 3)
    assert loaded.rewards.tolist() == (loaded.terminated - 1.0).tolist()  # what Fetch pays, not the success
    run = rlpipe.train(curriculum(tmp_path, reach, str(made.file)), local=True).directory
    chosen = [row for row in lines(run, "episodes.jsonl") if row["chosen"]]
    assert {row["seed"] for row in chosen} <= {0, 1}
    assert any(row["demonstration_step"] > 0 for row in chosen)
