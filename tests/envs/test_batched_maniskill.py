"""ManiSkill stepped as one: the same numbers as one environment after another."""

from __future__ import annotations

import dataclasses
import gc
import re
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rlpipe
from rlpipe.config.loading import load_config
from rlpipe.envs.base import Simulator, Step
from rlpipe.envs.maniskill import ManiSkill
from rlpipe.envs.maniskill.loading import load_maniskill
from rlpipe.envs.maniskill.options import ManiSkillConfig
from rlpipe.envs.maniskill.single import ManiSkillEnv
from rlpipe.envs.shared import garbage
from rlpipe.errors import ConfigError
from tests.helpers.replays import pushing
from tests.helpers.runs import without_timings

pytestmark = pytest.mark.maniskill
PAGE = Path(__file__).parents[2] / "docs" / "simulators.md"


@pytest.fixture(scope="module", autouse=True)
def _registered_tasks():
    load_maniskill()
    from tests.helpers import maniskill_tasks  # noqa: F401 - registers them


def config(task: str = "PushCube-v1", **options) -> ManiSkillConfig:
    return ManiSkillConfig("maniskill", id=task, **{"reward_mode": "normalized_dense", **options})


def seeds_until(episodes: int | None) -> Callable[[int], int | None]:
    """Seeds of each slot; with a number of episodes, slot n has n fewer of them."""
    asked: dict[int, int] = {}

    def next_seed(slot: int) -> int | None:
        asked[slot] = asked.get(slot, 0) + 1
        return None if episodes is not None and asked[slot] > episodes - slot else 100 * slot + asked[slot]

    return next_seed


def make(options: ManiSkillConfig, num_envs: int, *, batched: bool | str, episodes: int | None = None) -> Simulator:
    return ManiSkill.make(dataclasses.replace(options, batched=batched), num_envs, seeds_until(episodes))


def assert_same(ours: object, theirs: object) -> None:
    """Equal types and bits."""
    if isinstance(theirs, np.ndarray):
        assert isinstance(ours, np.ndarray)
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
    elif isinstance(theirs, dict):
        assert isinstance(ours, dict)
        assert ours.keys() == theirs.keys()
        for name in theirs:
            assert_same(ours[name], theirs[name])
    else:
        assert ours == theirs


def tell_both(
    options: ManiSkillConfig,
    num_envs: int,
    steps: int,
    episodes: int | None = None,
    act: Callable[[Any], Any] | None = None,
) -> list[Step]:
    """Steps environments as one and in turn, with the same actions; returns the steps, once both are equal.

    Args:
        act: returns actions for observations; random ones without it.
    """
    both = [make(options, num_envs, batched=batched, episodes=episodes) for batched in (True, False)]
    assert [type(simulator).__name__ for simulator in both] == ["BatchedManiSkill", "ManiSkill"]
    (ours, our_beginnings), (theirs, their_beginnings) = (simulator.reset() for simulator in both)
    assert_same(ours, theirs)
    assert our_beginnings == their_beginnings
    generator = np.random.default_rng(0)
    told = []
    for _ in range(steps):
        actions = generator.uniform(-1, 1, (num_envs, both[0].spec.action_dim)).astype(np.float32)
        if act is not None:
            actions = act(ours)
        one, other = (simulator.step(actions) for simulator in both)
        for field in dataclasses.fields(Step):
            assert_same(getattr(one, field.name), getattr(other, field.name))
        for slot in np.flatnonzero(one.valid).tolist():
            assert_same(both[0]._group.state(slot), both[1].state(slot))
        told.append(one)
        ours = one.observations
    for simulator in both:
        simulator.close()
    return told


def test_joint_control_is_the_same_as_in_turn_over_several_episodes():
    steps = tell_both(config(max_episode_steps=5), 3, 16)
    assert sum(len(step.beginnings) for step in steps) == 9


@pytest.mark.soak
def test_a_task_that_builds_its_scene_anew_at_each_reset_is_the_same_as_in_turn():
    tell_both(config("PegInsertionSide-v1", control_mode="pd_ee_delta_pose", max_episode_steps=2), 2, 5)


def test_sparse_reward_and_the_end_by_success_are_the_same_as_in_turn():
    task = config(control_mode="pd_ee_delta_pos", reward_mode="sparse", max_episode_steps=25)
    steps = tell_both(task, 2, 25, act=pushing)
    assert any(step.terminated.any() for step in steps)


def test_idle_slots_are_the_same_as_in_turn_until_all_are_idle():
    steps = tell_both(config(max_episode_steps=4), 3, 14, episodes=3)
    assert [step.valid.tolist() for step in steps[::4]] == [
        [True, True, True],
        [True, True, False],
        [True, False, False],
        [False, False, False],
    ]


def test_end_effector_control_with_a_slot_that_is_idle_from_the_start_is_the_same_as_in_turn():
    steps = tell_both(config("PickCube-v1", control_mode="pd_ee_delta_pos", max_episode_steps=4), 3, 9, episodes=2)
    assert [step.valid.tolist() for step in steps[::4]] == [[True, True, False], [True, False, False], [False] * 3]


def test_idle_scenes_do_not_move():
    simulator = make(config(max_episode_steps=2), 2, batched=True, episodes=2)
    simulator.reset()
    for _ in range(2):
        simulator.step(np.zeros((2, 8), dtype=np.float32))
    idle = simulator._envs[1].task
    before = idle.agent.robot._objs[0].qpos
    simulator.step(np.ones((2, 8), dtype=np.float32))
    assert np.array_equal(idle.agent.robot._objs[0].qpos, before)
    simulator.close()


def test_where_inverse_kinematics_finds_nothing_the_arm_stays_as_in_a_stock_environment():
    options = config("PickCube-v1", control_mode="pd_ee_pose")
    ours, theirs = (make(options, 2, batched=batched) for batched in (True, False))
    ours.reset(), theirs.reset()
    within, far = [0.3, 0, 0.3, np.pi, 0, 0, 1], [9, 9, 9, 0, 0, 0, 1]
    failed = 0
    for actions in ([within, far], [far, within], [far, far], [within, within]):
        one, other = (simulator.step(np.array(actions, dtype=np.float32)) for simulator in (ours, theirs))
        assert_same(one.successors, other.successors)
        arms = [env.task.agent.controller.controllers["arm"] for env in theirs._envs]
        failed += sum(torch.equal(arm._target_qpos, arm._start_qpos) for arm in arms)
    assert failed == 4
    ours.close(), theirs.close()


def test_what_a_task_keeps_across_episodes_is_the_same_as_in_turn():
    steps = tell_both(config("RlpipeRemembering-v1", max_episode_steps=3), 2, 8)
    assert [step.rewards[0] for step in steps[1:5]] == [5, 6, 9, 10]  # a reset evaluates twice


def test_one_environment_is_no_group():
    simulator = make(config(), 1, batched=True)
    assert isinstance(simulator, ManiSkill)
    simulator.close()


def test_a_task_with_other_numbers_falls_back_and_says_so():
    simulator = make(config("RlpipeStatistical-v1"), 3, batched="auto")
    assert isinstance(simulator, ManiSkill)
    assert simulator.notes[0] == (
        "ManiSkill: the 3 environments of RlpipeStatistical-v1 are stepped in turn, not as one, because a reward "
        "differs from a stock environment's in step 1. No number changes, but steps take longer."
    )
    simulator.close()


def test_a_task_with_other_numbers_is_an_error_where_it_has_to_be_stepped_as_one():
    with pytest.raises(ConfigError, match=r"batched=true: RlpipeStatistical-v1 cannot .* because a reward differs"):
        make(config("RlpipeStatistical-v1"), 3, batched=True)


def test_another_version_of_maniskill_falls_back(monkeypatch):
    import importlib.metadata

    monkeypatch.setattr(importlib.metadata, "version", lambda _: "3.1.0")
    simulator = make(config(max_episode_steps=None, kwargs={"sim_config": {"sim_freq": 80}}), 2, batched="auto")
    assert "because ManiSkill 3.1.0 is installed, and only 3.0 can be stepped as one" in simulator.notes[0]
    simulator.close()


@pytest.mark.parametrize("value", ["yes", "TRUE"])
def test_other_words_than_auto_are_refused(value):
    from rlpipe.config.fields import check_fields

    with pytest.raises(ConfigError, match=r"env\.train\.batched is .*Allowed values: auto, true, false"):
        check_fields(config(batched=value), "env.train")


def test_stock_environments_in_the_same_process_stay_as_they_are():
    group = make(config(), 2, batched=True)
    stock = ManiSkillEnv(config())
    modules = {
        type(part).__module__.split(".")[0] for part in (stock.task.obj, stock.task.agent.robot, stock.task.scene)
    }
    assert modules == {"mani_skill"}
    assert type(stock.task).__name__ == "PushCubeEnv"
    group.close(), stock.close()


def test_a_second_simulator_of_a_task_is_not_checked_again(monkeypatch):
    from rlpipe.envs.maniskill import batched

    make(config(), 2, batched=True).close()
    monkeypatch.setattr(batched, "check_twins", lambda *_: pytest.fail("checked again"))
    make(config(), 2, batched=True).close()


@pytest.mark.soak
def test_closed_simulators_leave_nothing_behind():
    both = [make(config(), 2, batched=True) for _ in range(2)]
    left = [weakref.ref(task) for one in both for task in (one._group, *(env.task for env in one._envs))]
    assert all(task() is not None for task in left)
    while both:
        both.pop().close()
    gc.unfreeze()  # making the second exempted the first
    gc.collect()
    assert not any(task() is not None for task in left)


def test_the_short_way_to_multiply_quaternions_changes_no_bit():
    load_maniskill()
    from mani_skill.utils.geometry import rotation_conversions

    from rlpipe.envs.maniskill.loading import quicken_quaternions

    quicken_quaternions()
    quick = rotation_conversions.quaternion_raw_multiply
    generator = torch.Generator().manual_seed(0)
    for rows in [(1, 1), (5, 1), (1, 7), (16, 16)]:
        a, b = (torch.randn(count, 4, generator=generator) for count in rows)
        a[torch.rand(a.shape, generator=generator) < 0.3] = -0.0
        found, wanted = quick(a, b).numpy(), quick.__wrapped__(a, b).numpy()
        assert np.array_equal(found.view(np.int32), wanted.view(np.int32))


def test_quaternions_with_gradients_are_multiplied_the_long_way():
    load_maniskill()
    from mani_skill.utils.geometry import rotation_conversions

    from rlpipe.envs.maniskill.loading import quicken_quaternions

    quicken_quaternions()
    a = torch.ones(1, 4, requires_grad=True)
    rotation_conversions.quaternion_raw_multiply(a, torch.ones(1, 4)).sum().backward()
    assert a.grad is not None


def test_a_run_writes_the_same_metrics_as_in_turn(tmp_path):
    """The shipped configuration on a small scale, with both of its stages and evaluations."""
    shipped = Path(__file__).parents[2] / "configs" / "ppo_push_cube.yaml"
    rows = []
    for batched in ("true", "false"):
        overrides = [
            f"env.train.batched={batched}", "env.train.total_num_envs=3", "env.eval.total_num_envs=2",
            "env.train.max_episode_steps=5", "rollout.horizon=6", "evaluation.episodes=3", "learner.num_threads=1",
            "policy.hidden_sizes=[16]", "algorithm.num_minibatches=2", "stages.0.timesteps=18",
            "runner.total_timesteps=36", "runner.val_check_interval=1", f"runner.logger.log_path={tmp_path / batched}",
            "runner.logger.logger_backends=[]", "runner.report=false",
        ]  # fmt: skip
        result = rlpipe.train(load_config(shipped, overrides), local=True)
        rows.append(without_timings(result.directory))
    assert [row["train/stage"] for row in rows[0]] == [0, 1]
    assert rows[0] == rows[1]


def documented() -> dict[str, tuple[str, str]]:
    """Control mode of each task in the table, and "yes" or the reason."""
    table = PAGE.read_text(encoding="utf-8").partition("| control mode | batched | tasks |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.+) \| (.+) \|$", table, flags=re.MULTILINE)
    return {task: (mode, answer) for mode, answer, tasks in rows for task in re.findall(r"`([\w-]+)`", tasks)}


def observed(task: str) -> tuple[str, str] | None:
    """Row of a task; None if a stock environment of it cannot be made on this machine."""
    from mani_skill.utils.registration import REGISTERED_ENVS

    from rlpipe.envs.maniskill.batched import NotBatchableError, checked_rows

    modes = REGISTERED_ENVS[task].cls.SUPPORTED_REWARD_MODES
    reward = next(mode for mode in ("normalized_dense", "dense", "sparse", "none") if mode in modes)
    options = config(task, control_mode=None, reward_mode=reward, max_episode_steps=50)
    try:
        first = [ManiSkillEnv(options)]
    except (Exception, SystemExit):  # missing assets or packages, in as many ways as there are tasks
        return None
    mode = first[0].task.agent.control_mode
    try:
        checked_rows(lambda: first.pop() if first else ManiSkillEnv(options), 3, options.what_is_checked)
        return mode, "yes"
    except NotBatchableError as error:
        return mode, f"no: {error}"
    finally:
        for env in first:  # which the check has not taken
            env.close()


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_the_table_of_tasks_is_what_is_observed():
    """The first level of each task is observed; its other levels run the same code, so their rows are the same."""
    load_maniskill()
    from mani_skill.utils.registration import REGISTERED_ENVS

    from rlpipe.envs.maniskill.registry import missing_assets

    garbage.exempt_from_collection()
    tasks = [task for task in sorted(REGISTERED_ENVS) if not task.startswith("Rlpipe") and not missing_assets(task)]
    first: dict[str, str] = {}
    for task in tasks:
        first.setdefault(without_level(task), task)
    found = {kind: {row} for kind, task in first.items() if (row := observed(task)) is not None}
    told: dict[str, set[tuple[str, str]]] = {}
    for task, row in documented().items():
        assert task in tasks
        told.setdefault(without_level(task), set()).add(row)
    assert found == told


def without_level(task: str) -> str:
    return re.sub(r"Level\d+", "", task)
