"""Training episodes that are truncated some steps after their first success."""

from __future__ import annotations

import numpy as np
import pytest

import rlpipe
from rlpipe.config.loading import load_config
from rlpipe.envs.maniskill import ManiSkill
from rlpipe.envs.maniskill.options import ManiSkillConfig
from rlpipe.envs.scripted import Scripted, ScriptedConfig
from rlpipe.errors import ConfigError
from rlpipe.trajectory import ChosenStart
from tests.helpers.replays import pushing
from tests.helpers.runs import lines, scripted

SOLVED_TWICE = {"length": 8, "end": "truncated", "success_at": [2, 5], "reward": 1.0}


def lengths(steps: int | None, limit: int | None = None) -> list[int]:
    """Lengths of the episodes of twenty steps."""
    config = ScriptedConfig(name="scripted", script=[[SOLVED_TWICE]], ignore_terminations=True)
    simulator = Scripted.make(config, 1, lambda _: 1)
    simulator.steps_after_success = steps
    simulator.next_start = lambda _: ChosenStart(limit=limit)
    simulator.reset()
    still = np.zeros((1, simulator.spec.action_dim), dtype=np.float32)
    ends = [n + 1 for n in range(20) if simulator.step(still).truncated[0]]
    return np.diff([0, *ends]).tolist()


@pytest.mark.parametrize(("steps", "length"), [(None, 8), (0, 2), (1, 3), (4, 6), (100, 8)])
def test_the_steps_count_from_the_first_success_and_never_beyond_the_time_limit(steps, length):
    assert set(lengths(steps)) == {length}


def test_the_time_limit_of_a_chosen_start_stays():
    assert set(lengths(4, limit=3)) == {3}
    assert set(lengths(0, limit=3)) == {2}


@pytest.mark.maniskill
@pytest.mark.parametrize("batched", [True, False])
def test_maniskill_ends_each_episode_for_itself(batched):
    task = ManiSkillConfig(
        name="maniskill", id="PushCube-v1", control_mode="pd_ee_delta_pos", max_episode_steps=50, batched=batched,
        ignore_terminations=True,
    )  # fmt: skip
    simulator = ManiSkill.make(task, 2, lambda n: n)
    simulator.steps_after_success = 2
    try:
        observations, _ = simulator.reset()
        steps = []
        for _ in range(50):
            one_pushes = np.array([[1], [0]], dtype=np.float32)  # and the other one waits
            steps.append(simulator.step(pushing(observations) * one_pushes))
            observations = steps[-1].observations
    finally:
        simulator.close()
    first = next(n for n, step in enumerate(steps) if step.success[0])
    assert next(n for n, step in enumerate(steps) if step.truncated[0]) == first + 2
    assert [bool(step.truncated[1]) for step in steps] == [False] * 49 + [True]


def test_training_episodes_end_earlier_and_evaluations_do_not(tmp_path):
    train = {"name": "scripted", "total_num_envs": 4, "script": [[SOLVED_TWICE]], "ignore_terminations": True}
    config = scripted(tmp_path, "rollout.steps_after_success=1", "rollout.num_workers=1", env={"train": train})
    run = rlpipe.train(config, local=True).directory
    assert {line["length"] for line in lines(run, "episodes.jsonl")} == {3}
    assert {line["truncated"] for line in lines(run, "episodes.jsonl")} == {True}
    assert {line["length"] for line in lines(run, "eval_episodes.jsonl")} == {8}


@pytest.mark.parametrize(
    ("train", "complaint"),
    [
        ({}, "rollout.steps_after_success is 3, but a success ends episodes: set env.train.ignore_terminations=true"),
        (
            {"ignore_terminations": True, "tasks": [{"label": "a"}, {"label": "b"}]},
            r"several tasks \(env.train\) cannot end episodes so",
        ),
    ],
)
def test_what_cannot_be_is_an_error_before_anything_starts(train, complaint):
    given = {
        "env": {"train": {"name": "scripted", "total_num_envs": 2, **train}},
        "rollout": {"steps_after_success": 3},
    }
    with pytest.raises(ConfigError, match=complaint):
        load_config(given)


@pytest.mark.parametrize("ends", [True, False])
def test_it_asks_for_what_keeps_a_success_from_ending_episodes(ends):
    pytest.importorskip("metaworld")
    train = {"name": "metaworld", "id": "reach-v3", "end_on_success": ends}
    given = {"env": {"train": train}, "rollout": {"steps_after_success": 3}}
    if not ends:
        assert load_config(given).rollout.steps_after_success == 3
        return
    with pytest.raises(ConfigError, match=r"a success ends episodes: set env.train.end_on_success=false"):
        load_config(given)


@pytest.mark.maniskill
@pytest.mark.parametrize("batched", [True, False])
def test_a_maniskill_task_without_success_says_so(batched):
    task = ManiSkillConfig(name="maniskill", id="MS-CartpoleBalance-v1", reward_mode="dense", batched=batched)
    simulator = ManiSkill.make(task, 2, lambda n: n)
    try:
        simulator.reset()
        step = simulator.step(np.zeros((2, 1), dtype=np.float32))
    finally:
        simulator.close()
    assert (simulator.has_success, step.success) == (False, None)
    assert step.failure is not None


def test_a_simulator_that_does_not_tell_success_is_an_error(tmp_path):
    train = {"name": "gymnasium", "id": "Pendulum-v1", "total_num_envs": 4, "ignore_terminations": True}
    config = scripted(tmp_path, "rollout.steps_after_success=1", "rollout.num_workers=1", env={"train": train})
    with pytest.raises(ConfigError, match=r"steps_after_success is 1, but the simulator .* does not tell success"):
        rlpipe.train(config, local=True)
