"""The step contract, asked of any simulator: seeds, ends, final observations, workers, and a resume."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlpipe
from rlpipe.config.sections import typed
from rlpipe.envs.shared.make import make_simulator
from rlpipe.plugins import resolve
from rlpipe.trajectory.tree import leaves_of
from tests.helpers.runs import lines, scripted


def made(tree: dict[str, Any], seeds, num_envs: int = 1) -> Any:
    """Makes a simulator of some options, whose slots ask for these seeds in turn; it has none afterwards."""
    plugin, left = resolve("envs", tree["name"], "env.train.name"), iter(seeds)
    config = typed(plugin.Config, tree, "env.train")
    plugin.describe(config, "env.train")
    return make_simulator(config, num_envs, lambda _: next(left, None))


def random_actions(spec, count: int, seed: int = 0) -> np.ndarray:
    """[count, 1, A] actions between the bounds, which are -1 and 1 where there are none."""
    low, high = (np.where(np.isfinite(bound), bound, end) for bound, end in
                 ((spec.action_low, -1.0), (spec.action_high, 1.0)))  # fmt: skip
    return np.random.default_rng(seed).uniform(low, high, (count, 1, spec.action_dim)).astype(np.float32)


def numbers(observations) -> np.ndarray:
    """One vector of everything that the first environment observes."""
    return np.concatenate([np.ravel(leaf[0]).astype(np.float64) for leaf in leaves_of(observations)])


def towards_the_goal(observations) -> np.ndarray:
    """Actions that reach, in Meta-World, whose goal is shown."""
    actions = np.zeros((len(observations), 4), dtype=np.float32)
    actions[:, :3] = np.clip(10 * (observations[:, 36:39] - observations[:, :3]), -1, 1)
    return actions


def episode(simulator, actions) -> tuple[np.ndarray, np.ndarray, list[float]]:
    """Begins an episode. Returns its first observation, those after each action, and the rewards."""
    first = numbers(simulator.reset()[0]).copy()
    steps = [simulator.step(action) for action in actions]
    return first, np.array([numbers(step.successors) for step in steps]), [float(step.rewards[0]) for step in steps]


def assert_episodes_follow_from_their_seeds(tree: dict[str, Any]) -> None:
    """The same seed begins the same episode, in an environment that has done other things too; another, another one."""
    used, fresh = made(tree, [5, 6, 5]), made(tree, [5])
    actions = random_actions(used.spec, 5)
    (first, successors, rewards), (other, *_), again = (episode(used, one) for one in (actions, 0.5 * actions, actions))
    assert not np.allclose(first, other)
    for same in (again, episode(fresh, actions)):
        assert np.array_equal(first, same[0])
        assert np.array_equal(successors, same[1])
        assert rewards == same[2]
    used.close(), fresh.close()


def assert_a_time_limit_cuts_off(tree: dict[str, Any]) -> None:
    """A time limit truncates and does not terminate; the last observation is from before the reset."""
    short, long, next_one = made(tree | {"max_episode_steps": 3}, [5, 6]), made(tree, [5]), made(tree, [6])
    observations, beginnings = short.reset()
    assert [beginnings[0].seed, numbers(observations).tolist()] == [5, numbers(long.reset()[0]).tolist()]
    for number, action in enumerate(random_actions(short.spec, 3), start=1):
        step, longer = short.step(action), long.step(action)
        assert (bool(step.truncated[0]), bool(step.terminated[0])) == (number == 3, False)
        assert np.array_equal(numbers(step.successors), numbers(longer.successors))
        assert not longer.truncated.any()
    assert step.beginnings[0].seed == 6
    assert np.array_equal(numbers(step.observations), numbers(next_one.reset()[0]))
    assert not np.array_equal(numbers(step.observations), numbers(step.successors))
    short.close(), long.close(), next_one.close()


def short_run(folder, tree: dict[str, Any], *overrides: str, **others: Any) -> Any:
    """Configuration of a run of two environments, 16 steps an iteration each, with episodes of 8 steps."""
    train = {"train": {"total_num_envs": 2, "max_episode_steps": 8} | tree, "eval": {"total_num_envs": 2}}
    return scripted(folder, "evaluation.episodes=2", *overrides, env=train, **others)


def episodes_of(folder, tree: dict[str, Any], *overrides: str, resume=None) -> tuple[Any, list[dict[str, Any]]]:
    """Trains here, and returns the run with its ledger by iteration, slot and worker."""
    run = rlpipe.train(short_run(folder, tree, *overrides), local=True, resume=resume).directory
    rows = lines(run, "episodes.jsonl")
    return run, sorted(rows, key=lambda row: (row["iteration"], row["slot"], row["worker"]))


def assert_two_workers_equal_one(folder, tree: dict[str, Any]) -> None:
    """Episodes and their returns do not depend on which worker steps them."""
    (_, one), (_, two) = (
        episodes_of(folder / str(workers), tree, "runner.total_timesteps=64", f"rollout.num_workers={workers}")
        for workers in (1, 2)
    )
    assert len(one) == 8
    returns = [[row["return"] for row in rows] for rows in (one, two)]
    assert returns[0] == pytest.approx(returns[1], rel=1e-4)  # rows of a batch are multiplied in another order


def assert_a_resumed_run_goes_on(folder, tree: dict[str, Any]) -> None:
    """A resumed run counts every episode once, and none of its seeds comes again."""
    stopped, _ = episodes_of(folder, tree, "runner.total_timesteps=32")
    _, rows = episodes_of(folder, tree, "runner.total_timesteps=64", resume=stopped)
    assert [row["iteration"] for row in rows] == [1] * 4 + [2] * 4
    seeds = [row["seed"] for row in rows]
    assert len(set(seeds)) == len(seeds)
