"""EnvPool's tasks meet the step contract, with the real library."""

from __future__ import annotations

import numpy as np
import pytest

import rlpipe
from rlpipe.config.loading import load_config
from rlpipe.envs.envpool import EnvPool, EnvPoolConfig
from rlpipe.errors import ConfigError, ContractError
from tests.helpers import contract
from tests.helpers.runs import lines, scripted

envpool = pytest.importorskip("envpool", reason="needs rlpipe[envpool]: EnvPool is not installed")
pytestmark = pytest.mark.extras
REACH = "MetaWorld/Reach-v3"
SHOWN = {"partially_observable": False}  # Meta-World's goal, in the last three numbers


def made(env_id=REACH, num_envs=3, seeds=None, **options):
    left = None if seeds is None else iter(seeds)
    config = EnvPoolConfig("envpool", id=env_id, **options)
    return EnvPool.make(config, num_envs, (lambda n: 10 + n) if left is None else lambda _: next(left, None))


def test_first_episodes_have_the_seeds_that_were_asked_for_whatever_their_slot():
    one, other = made(seeds=[7, 8, 9]), made(num_envs=1, seeds=[8])
    (first, beginnings), (same, _) = one.reset(), other.reset()
    assert [beginning.seed for beginning in beginnings.values()] == [7, 8, 9]
    assert np.array_equal(first[1], same[0])
    assert first.dtype == np.float32


@pytest.mark.parametrize("num_envs", [1, 2])
def test_a_success_of_nan_is_refused(num_envs):
    simulator = made(num_envs=num_envs, seed_each_episode=num_envs == 1)
    simulator.reset()
    pool = simulator._envs[0]._pool if num_envs == 1 else simulator._pool
    answer = pool._env.step

    def odd(*arguments):
        *told, info = answer(*arguments)
        return *told, info | {"success": np.full(num_envs, np.nan)}

    pool._env.step = odd
    with pytest.raises(ContractError, match=r"info\['success'\] is .*nan.*; a number above 0 is a success"):
        simulator.step(np.zeros((num_envs, 4), dtype=np.float32))


def test_an_episode_ends_at_its_limit_and_the_next_one_begins_at_once():
    simulator = made(max_episode_steps=3)
    observations, _ = simulator.reset()
    zeros = np.zeros((3, 4), dtype=np.float32)
    for number in range(1, 8):
        step = simulator.step(zeros)
        over = number in (3, 6)
        assert step.valid.all()
        assert step.truncated.tolist() == [over] * 3
        assert not step.terminated.any()
        assert [beginning.seed for beginning in step.beginnings.values()] == [None] * (3 * over)
        if over:  # the hand has moved since the reset, in which it stands still
            assert not np.allclose(step.successors, step.observations)
            assert np.array_equal(step.observations[:, :3], observations[:, :3])
        else:
            assert step.observations is step.successors


def test_the_rewards_are_those_of_the_library():
    """Steps of ours are steps of the library, so the same actions pay the same, over an end as well."""
    ours, theirs = (
        made(max_episode_steps=4, seeds=range(99)),
        envpool.make(REACH, "gymnasium", num_envs=3, seed=[0, 1, 2], num_threads=1, max_episode_steps=4),
    )
    ours.reset()
    theirs.reset()
    generator = np.random.default_rng(0)
    for number in range(1, 11):
        actions = generator.uniform(-1, 1, (3, 4)).astype(np.float32)
        step = ours.step(actions)
        successors, rewards, _, truncated, _ = theirs.step(actions)
        assert step.rewards == pytest.approx(rewards)
        assert step.successors == pytest.approx(successors, abs=1e-6)
        assert step.truncated.tolist() == truncated.tolist() == [number % 4 == 0] * 3
        if truncated.any():
            theirs.step(actions)  # resets, with a reward that belongs to no episode


def test_some_environments_may_wait():
    simulator = made()
    before, _ = simulator.reset()
    forward = np.full((3, 4), 0.5, dtype=np.float32)
    first = simulator.step(forward, np.array([True, False, True]))
    assert first.valid.tolist() == [True, False, True]
    second = simulator.step(forward)
    alone = made(num_envs=1, seeds=[11])
    alone.reset()
    assert np.array_equal(alone.step(forward[:1]).successors[0], second.successors[1])  # its first step
    assert not np.allclose(before[0], first.successors[0])


@pytest.mark.parametrize("seed_each_episode", [True, False])
def test_success_pays_and_ends_where_it_is_asked_to(seed_each_episode):
    simulator = made(reward_mode="sparse", end_on_success=True, kwargs=SHOWN, seed_each_episode=seed_each_episode)
    observations, _ = simulator.reset()
    for _ in range(100):
        step = simulator.step(contract.towards_the_goal(observations))
        observations = step.observations
        assert step.rewards.tolist() == step.success.astype(float).tolist()
        assert step.terminated.tolist() == step.success.tolist()
        if step.success.any():
            return
    pytest.fail("the goal was not reached")


def test_without_that_an_episode_goes_on_after_its_success():
    simulator = made(kwargs=SHOWN)
    observations, _ = simulator.reset()
    succeeded = 0
    for _ in range(80):
        step = simulator.step(contract.towards_the_goal(observations))
        observations, succeeded = step.observations, succeeded + int(step.success.all())
        assert not step.terminated.any()
    assert succeeded > 10


@pytest.mark.parametrize(
    ("env_id", "observed", "has_success"),
    [
        ("FetchReach-v4", {"achieved_goal": 3, "desired_goal": 3, "observation": 10}, True),
        ("AdroitHandDoorSparse-v1", 39, True),
        ("PandaPickCube-v1", 66, True),
        ("ManipulatorBringBall-v1", None, False),
    ],
)
def test_each_family_has_its_own_observations_and_success(env_id, observed, has_success):
    simulator = made(env_id, num_envs=2)
    assert simulator.has_success is has_success
    observations, _ = simulator.reset()
    spec = simulator.spec
    if isinstance(observed, dict):
        assert {name: leaf.shape[1] for name, leaf in observations.leaves.items()} == observed
    elif observed is not None:
        assert observations.shape == (2, observed)
    step = simulator.step(np.zeros((2, spec.action_dim), dtype=np.float32))
    assert step.valid.all()
    assert np.isfinite(step.rewards).all()
    assert (step.success is not None) is has_success
    simulator.close()


def test_terms_of_the_reward_are_named():
    simulator = made()
    simulator.reset()
    step = simulator.step(np.zeros((3, 4), dtype=np.float32))
    assert {"grasp", "in_place", "unscaled"} <= step.reward_terms.keys()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"id": "MetaWorld/PickPlaces-v3"}, "did you mean 'MetaWorld/PickPlace-v3'"),
        ({"id": REACH, "success_key": "sucess"}, r"success_key is 'sucess', .* did you mean 'success'"),
        ({"id": REACH, "kwargs": {"visible": True}}, "EnvPool cannot make MetaWorld/Reach-v3 with {'visible': True}"),
        ({"id": "ManipulatorBringBall-v1", "reward_mode": "sparse"}, "reward_mode is sparse, but .* success_key"),
        ({"id": REACH, "ignore_terminations": True}, "terminations cannot be ignored"),
        ({"id": REACH, "kwargs": {"num_envs": 3}}, "kwargs gives num_envs, which follows from the run"),
    ],
)
def test_what_cannot_be_made_is_refused_before_anything_starts(options, message):
    with pytest.raises(ConfigError, match=message):
        load_config({"env": {"train": {"name": "envpool", **options}}})


def test_a_run_evaluates_on_seeds_of_its_own_and_names_those_that_it_knows(tmp_path):
    config = scripted(
        tmp_path, "runner.total_timesteps=96", "evaluation.episodes=4",
        env={"train": {"name": "envpool", "id": REACH, "total_num_envs": 2, "max_episode_steps": 8, "kwargs": SHOWN},
             "eval": {"total_num_envs": 2}},
    )  # fmt: skip
    assert (config.env.train.seed_each_episode, config.env.eval.seed_each_episode) == (False, True)
    run = rlpipe.train(config, local=True)
    seeds = [row["seed"] for row in lines(run.directory, "episodes.jsonl")]
    assert len(seeds) == 12
    assert sum(seed is not None for seed in seeds) == 2
    assert run.metrics["eval/num_trajectories"] == 4


def test_two_workers_collect_what_one_collects(tmp_path):
    """Episodes follow from the seeds of the first ones, whichever worker steps them."""
    contract.assert_two_workers_equal_one(tmp_path, {"name": "envpool", "id": REACH})


def test_a_resumed_run_goes_on_and_counts_no_episode_twice(tmp_path):
    env = {"train": {"name": "envpool", "id": REACH, "total_num_envs": 2, "max_episode_steps": 8}}
    stopped = rlpipe.train(scripted(tmp_path, "runner.total_timesteps=64", env=env), local=True).directory
    resumed = rlpipe.train(
        scripted(tmp_path, "runner.total_timesteps=128", env=env), resume=stopped, local=True
    ).directory
    rows = lines(resumed, "episodes.jsonl")
    assert [row["iteration"] for row in rows] == [1] * 4 + [2] * 4 + [3] * 4 + [4] * 4
    seeds = [row["seed"] for row in rows if row["seed"] is not None]
    assert len(set(seeds)) == len(seeds) == 4  # the pools are made anew, with other seeds
