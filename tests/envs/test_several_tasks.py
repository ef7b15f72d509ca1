"""Several tasks in one run: slots, observations, the ledger and metrics, each task by itself and all together."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import rlpipe
from rlpipe.analysis.comparison import compare
from rlpipe.cli import app
from rlpipe.collection.seeds import episode_keys, seeds_of_slots, task_of_slot
from rlpipe.collection.worker import RolloutWorker
from rlpipe.config.loading import load_config
from rlpipe.config.protocol import comparable
from rlpipe.config.simulators import task_facts
from rlpipe.curricula.task_progress import TaskProgress, TaskProgressConfig
from rlpipe.envs.gymnasium.options import GymnasiumConfig
from rlpipe.envs.scripted import ScriptedConfig
from rlpipe.envs.shared.make import make_simulator
from rlpipe.envs.shared.tasks import allotted, tasks_of
from rlpipe.errors import ConfigError
from rlpipe.functional.curricula import progress_shares
from rlpipe.metrics import catalogue as m
from rlpipe.policies.base import NoWeights, Snapshot
from rlpipe.training.checks import check_spaces
from rlpipe.trajectory import Episode
from tests.helpers.runs import from_ledger, lines, sac, scripted

EASY = {"label": "easy", "script": [[{"length": 2, "success_at": [2], "reward": 1.0}]]}
HARD = {"label": "hard", "script": [[{"length": 3}]]}
ZEROS = np.zeros((4, 1), dtype=np.float32)


def made(num_envs=4, seeds=lambda n: 100 + n, tasks=(EASY, HARD), **options):
    return make_simulator(ScriptedConfig("scripted", tasks=list(tasks), **options), num_envs, seeds)


def run_of(tmp_path, *overrides, tasks=(EASY, HARD), make=scripted, experiment="scripted", **tree):
    overrides += (f"runner.logger.experiment_name={experiment}",)
    env = {"train": {"name": "scripted", "total_num_envs": 4, "tasks": list(tasks)}}
    return rlpipe.train(make(tmp_path, *overrides, env=env, **tree), local=True).directory


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run of both tasks."""
    return run_of(tmp_path_factory.mktemp("finished"))


# slots


@pytest.mark.parametrize(
    ("shares", "count", "together", "expected"),
    [
        ([1, 1], 4, 1, [0, 1, 0, 1]),
        ([3, 1], 4, 1, [0, 0, 1, 0]),
        ([1, 1], 8, 4, [0, 0, 0, 0, 1, 1, 1, 1]),  # groups of GRPO share their start, so their task
        ([1], 3, 1, [0, 0, 0]),
        ([8, 1, 1], 4, 1, [0, 0, 2, 1]),  # each has at least one
    ],
)
def test_slots_are_divided_by_shares(shares, count, together, expected):
    assert allotted(shares, count, together) == expected


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=10), st.integers(10, 200))
def test_no_task_is_more_than_a_few_slots_from_its_share_in_any_row_of_slots(shares, count):
    given_slots = np.bincount(allotted(shares, count), minlength=len(shares))
    assert given_slots.min() > 0
    assert np.all(np.abs(given_slots - count * np.array(shares) / sum(shares)) <= len(shares))


# the step contract


def test_every_slot_has_its_own_task_and_its_own_seed():
    simulator = made()
    observations, beginnings = simulator.reset()
    assert [beginnings[n].task for n in range(4)] == ["easy", "hard", "easy", "hard"]
    assert [beginnings[n].seed for n in range(4)] == [100, 101, 102, 103]
    assert observations["task"].tolist() == [0, 1, 0, 1]
    assert observations["observation"].shape == (4, 4)
    assert simulator.spec.leaves["task"].choices == (2,)


def test_a_task_ends_and_begins_by_itself():
    simulator = made()
    simulator.reset()
    first, second, third = (simulator.step(ZEROS) for _ in range(3))
    assert not first.truncated.any()
    assert second.truncated.tolist() == [True, False, True, False]
    assert second.success.tolist() == [True, False, True, False]
    assert second.rewards.tolist() == [1, 0, 1, 0]
    assert {n: one.task for n, one in second.beginnings.items()} == {0: "easy", 2: "easy"}
    assert second.successors["observation"][:, 2].tolist() == [2, 2, 2, 2]  # steps of the episode that goes on
    assert second.observations["observation"][:, 2].tolist() == [0, 2, 0, 2]  # and of the one to act in
    assert third.truncated.tolist() == [False, True, False, True]


def test_a_slot_without_another_episode_is_idle_and_its_task_is_no_longer_stepped():
    left = {0: [1], 1: [2, 3]}
    simulator = made(2, lambda n: left[n].pop(0) if left[n] else None)
    simulator.reset()
    steps = [simulator.step(ZEROS[:2]) for _ in range(6)]
    assert [step.valid.tolist() for step in steps] == [[True, True]] * 2 + [[False, True]] * 4
    assert [step.truncated.tolist() for step in steps][2] == [False, True]


def test_a_task_whose_episodes_begin_with_the_step_after_an_end_goes_on():
    pole = {"id": "CartPole-v1", "max_episode_steps": 3, "success_key": ""}
    tasks = [pole | {"label": "one"}, pole | {"label": "two"}]
    simulator = make_simulator(GymnasiumConfig("gymnasium", tasks=tasks, vectorized=True), 4, lambda n: n)
    simulator.reset()
    right = np.ones((4, 1), dtype=np.int64)
    steps = [simulator.step(right) for _ in range(8)]
    assert [step.valid.sum() for step in steps] == [4, 4, 4, 0, 4, 4, 4, 0]  # three steps, and one that only begins


def test_slots_that_wait_take_no_step():
    simulator = made()
    simulator.reset()
    step = simulator.step(ZEROS, np.array([True, True, False, False]))
    assert step.valid.tolist() == [True, True, False, False]
    assert simulator.can_wait


def test_terms_of_one_task_are_unknown_in_the_others():
    with_term = EASY | {"script": [[{"length": 2, "reward_terms": {"reach": 0.5}}]]}
    simulator = made(2, tasks=(with_term, HARD))
    simulator.reset()
    assert np.array_equal(simulator.step(ZEROS[:2]).reward_terms["reach"], [0.5, np.nan], equal_nan=True)


def test_the_task_can_be_left_out_of_observations():
    observations, _ = made(observe_task=False).reset()
    assert observations.shape == (4, 4)


def test_shorter_observations_are_filled_up_with_zeros():
    tasks = ["CartPole-v1", {"id": "MountainCar-v0"}]  # 4 numbers and 2 actions, 2 numbers and 3 actions
    config = GymnasiumConfig("gymnasium", tasks=[tasks[0], {"id": "CartPole-v0"}], pad_observations=6)
    observations, _ = make_simulator(config, 2, lambda n: n).reset()
    assert observations["observation"].shape == (2, 6)
    assert not observations["observation"][:, 4:].any()
    with pytest.raises(ConfigError, match="pad_observations=4 fills the shorter one up"):
        make_simulator(GymnasiumConfig("gymnasium", tasks=tasks), 2, lambda n: n)


# the ledger and metrics


def test_metrics_of_each_task_and_of_all_follow_from_the_ledger(finished):
    for file, metrics in (("episodes.jsonl", m.ENV), ("eval_episodes.jsonl", m.EVAL)):
        rows = [row for row in lines(finished, "metrics.jsonl") if metrics.num_trajectories.name in row["metrics"]]
        last = rows[-1]
        own = from_ledger(finished, file, metrics, last["iteration"])
        assert {name: last["metrics"][name] for name in own} == own
    found = rows[-1]["metrics"]
    assert found["eval/tasks/easy/success_once"] == 1
    assert found["eval/tasks/hard/success_once"] == 0
    assert found["eval/tasks/easy/num_trajectories"] == found["eval/tasks/hard/num_trajectories"] == 3
    assert found["eval/success_once"] == found["eval/tasks/success_once_mean"] == 0.5
    assert found["eval/tasks/success_once_worst"] == 0


def test_the_mean_over_tasks_counts_each_alike_however_many_episodes_it_has(finished):
    row = lines(finished, "metrics.jsonl")[0]["metrics"]
    assert row["env/tasks/easy/num_trajectories"] > row["env/tasks/hard/num_trajectories"]
    assert row["env/success_once"] > row["env/tasks/success_once_mean"] == 0.5


def test_two_workers_collect_what_one_collects(tmp_path, finished):
    def episodes(run):
        rows = [{**row, "worker": 0} for row in lines(run, "episodes.jsonl")]
        return sorted(rows, key=lambda row: (row["iteration"], row["slot"], row["step"]))

    def seen(rows):
        return [(row["task"], row["slot"], row["seed"], row["length"], row["success_once"]) for row in rows]

    assert seen(episodes(finished)) == seen(episodes(run_of(tmp_path, "rollout.num_workers=2")))


def test_a_resumed_run_goes_on_with_the_same_tasks(tmp_path):
    stopped = run_of(tmp_path, "runner.total_timesteps=128")
    env = {"train": {"name": "scripted", "total_num_envs": 4, "tasks": [EASY, HARD]}}
    resumed = rlpipe.train(scripted(tmp_path, env=env), resume=stopped, local=True).directory
    assert {(row["slot"], row["task"]) for row in lines(resumed, "episodes.jsonl")} == {
        (0, "easy"), (1, "hard"), (2, "easy"), (3, "hard"),
    }  # fmt: skip


def test_off_policy_learning_takes_several_tasks(tmp_path):
    assert lines(run_of(tmp_path, make=sac), "metrics.jsonl")[-1]["metrics"]["eval/num_trajectories"] == 6


def test_the_members_of_a_group_have_the_same_task(tmp_path):
    """GRPO compares episodes that begin in one state, and checks that they do."""
    env = {"name": "gymnasium", "total_num_envs": 8, "max_episode_steps": 8, "success_key": None}
    short = {"id": "CartPole-v1", "label": "short", "max_episode_steps": 4}
    config = scripted(
        tmp_path, "evaluation.episodes=2", "rollout.num_workers=2",
        env={"train": {**env, "tasks": ["CartPole-v1", short]}},
        algorithm={"name": "grpo", "group_size": 4, "update_epochs": 1, "num_minibatches": 1},
    )  # fmt: skip
    rows = lines(rlpipe.train(config, local=True).directory, "episodes.jsonl")
    assert {(row["slot"] // 4, row["task"]) for row in rows} == {(0, "CartPole-v1"), (1, "short")}


# shares that follow progress


@pytest.mark.parametrize(
    ("progress", "uniform", "expected"),
    [
        ([0.3, 0.1], 0.5, [0.625, 0.375]),
        ([0.3, 0.0], 0.2, [0.9, 0.1]),
        ([0.0, 0.0], 0.5, [0.5, 0.5]),  # nothing changes anywhere: all alike
        ([0.3, 0.1], 1.0, [0.5, 0.5]),
    ],
)
def test_shares_follow_progress_in_part(progress, uniform, expected):
    assert progress_shares(np.array(progress), uniform) == pytest.approx(expected)


def an_episode(task, success):
    return Episode(0, 0, 1, 0, 0.0, 1, success, success, False, False, True, task=task)


def test_a_task_whose_success_changes_gets_more_than_one_that_is_solved_or_hopeless():
    curriculum = TaskProgress(TaskProgressConfig("task_progress", interval=1, progress_window=2), [], 0)
    for task, outcomes in (("solved", [1, 1, 1, 1]), ("hopeless", [0, 0, 0, 0]), ("learnt", [0, 0, 0, 1])):
        curriculum.observe([an_episode(task, bool(one)) for one in outcomes])
    assert curriculum.starts().task_weights == pytest.approx({"solved": 0.5, "hopeless": 0.5, "learnt": 2.0})
    again = TaskProgress(TaskProgressConfig("task_progress", interval=1, progress_window=2), [], 0)
    again.load_state(curriculum.state())
    assert again.starts().task_weights == curriculum.starts().task_weights


def test_slots_go_over_to_the_task_that_is_being_learnt(tmp_path):
    """The second task succeeds from its slots' fifth episode on; the first never does."""
    rising = [{"length": 3}] * 4 + [{"length": 3, "success_at": [3]}] * 20
    tasks = [HARD, {"label": "rising", "script": [rising]}]
    curriculum = {"name": "task_progress", "interval": 1, "progress_window": 4, "uniform_share": 0.5}
    run = run_of(tmp_path, "rollout.num_workers=2", tasks=tasks, curriculum=curriculum)
    slots = [
        {row["slot"]: row["task"] for row in lines(run, "episodes.jsonl") if row["iteration"] == iteration}
        for iteration in (1, 2)
    ]
    assert [list(map(found.get, range(4))).count("rising") for found in slots] == [2, 3]
    seeds = [row["seed"] for row in lines(run, "episodes.jsonl")]
    assert len(set(seeds)) == len(seeds)  # no episode is repeated with the new shares
    metrics = lines(run, "metrics.jsonl")
    assert metrics[0]["metrics"]["env/curriculum/tasks/rising/weight"] == pytest.approx(1.5)
    assert sum(row["metrics"].get("rollout/discarded_trajectories", 0) for row in metrics) > 0


def test_a_spare_that_takes_the_place_of_a_worker_gets_its_tasks(tmp_path):
    shares = [EASY | {"share": 3}, HARD]  # of four slots, the third is hard
    env = {"train": {"name": "scripted", "total_num_envs": 4, "tasks": shares}}
    plan = scripted(tmp_path, "rollout.num_workers=2", env=env).schedule
    lost, spare = RolloutWorker(plan, 1, 2), RolloutWorker(plan, 0, 2)
    spare.take_over(rank=1, life=1, incarnation=0)

    def tasks(worker):
        _, window = worker.collect(Snapshot(0, NoWeights.FROM_SEED), 0)
        return {(episode.slot, episode.task) for episode in window.episodes}

    assert tasks(spare) == tasks(lost) == {(2, "hard"), (3, "easy")}


# evaluation


@given(st.integers(1, 5), st.integers(1, 6), st.integers(0, 20))
def test_each_task_is_evaluated_on_the_seeds_that_it_would_have_by_itself(tasks, each, more_slots):
    slots = min(tasks + more_slots, tasks * each)
    of_slots = seeds_of_slots(episode_keys(tasks * each, 1000, tasks), slots, tasks)
    for task in range(tasks):
        seeds = [seed for slot, seeds in enumerate(of_slots) if task_of_slot(slot, tasks) == task for seed in seeds]
        assert sorted(seeds) == list(range(1000, 1000 + each))


def test_some_of_the_tasks_can_be_evaluated(finished):
    hard = ["env.eval.tasks=[{label: hard, script: [[{length: 3}]]}]"]
    report = rlpipe.evaluate(finished, episodes=4, overrides=hard, local=True)
    assert {episode.task for episode in report.episodes} == {"hard"}
    assert [episode.seed for episode in report.episodes] == [1000000, 1000001, 1000002, 1000003]


def test_a_run_can_evaluate_some_of_its_tasks_where_spaces_are_known_before_it_starts(tmp_path):
    cart_poles = ["CartPole-v1", {"id": "CartPole-v1", "label": "short", "max_episode_steps": 4}]
    env = {"name": "gymnasium", "total_num_envs": 4, "max_episode_steps": 8, "success_key": None, "tasks": cart_poles}
    config = scripted(tmp_path, "evaluation.episodes=2", env={"train": env, "eval": {"tasks": cart_poles[1:]}})
    check_spaces(config)
    run = rlpipe.train(config, local=True).directory
    assert {row["task"] for row in lines(run, "eval_episodes.jsonl")} == {"short"}


def test_a_report_and_a_comparison_have_a_row_for_each_task(tmp_path, finished):
    runs = [finished, run_of(tmp_path, "runner.seed=1")]
    runs.append(run_of(tmp_path, tasks=(EASY, HARD | {"script": EASY["script"]}), experiment="other"))
    report = rlpipe.evaluate(runs[0], episodes=6, local=True)
    assert {task: estimates[0].value for task, estimates in report.tasks.items()} == {"easy": 1, "hard": 0}
    shown = CliRunner().invoke(app, ["evaluate", str(runs[0]), "--episodes", "6", "--local"]).output
    assert [line.split()[:2] for line in shown.splitlines() if line[:4] in ("easy", "hard")] == [
        ["easy", "1.000"], ["hard", "0.000"],
    ]  # fmt: skip
    assert "scripted easy, hard" in shown
    assert "6 whole episodes, 3 of each task, seeds 1000000 to 1000002" in shown
    compared = compare(runs[:2])
    assert [(task.task, task.pooled[0].value, task.pooled[0].episodes) for task in compared.tasks] == [
        ("easy", 1, 6), ("hard", 0, 6),
    ]  # fmt: skip
    easy, hard = compare(runs, anyway=True).tasks
    assert easy.differences[0][0] == 0
    assert hard.differences[0][0] == 1


# mistakes


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ([EASY, EASY], r"tasks\[1\] is called 'easy', as tasks\[0\] is"),
        ([3], r"env.train.tasks\[0\] is 3; it must be the id"),
        ([{"label": "a/b"}], "'a/b', which cannot be part of a metric's name"),
        ([{"label": "a", "share": 0}], r"tasks\[0\].share is 0; it must be a number greater than 0"),
        ([{"label": "a", "name": "maniskill"}], "name is given, but it is the same for all tasks"),
        ([{"label": "a", "skript": []}], "unknown key env.train.tasks.0..skript; did you mean 'script'"),
        ([EASY, HARD | {"discrete": True}], "share their spaces, but easy has"),
        ([EASY | {"label": f"{n}"} for n in range(5)], "names 5 tasks, .*total_num_envs is 4: give 5 or more"),
        ([EASY, HARD | {"ignore_terminations": True}], "it is the same for all tasks"),
    ],
)
def test_a_mistake_in_the_list_is_named(tmp_path, tasks, message):
    with pytest.raises(ConfigError, match=message):
        run_of(tmp_path, tasks=tasks)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("evaluation.episodes=7", "7, which 2 tasks .* cannot share evenly: give 8"),
        ("env.eval.tasks=[{label: medium}]", "medium, which is none of env.train.tasks.* There are easy, hard"),
        ("env.eval.tasks=[]", "env.eval.tasks is empty: name at least one of them"),
        ("env.eval.total_num_envs=1", "names 2 tasks, each of which needs at least one environment"),
        ("curriculum.name=forward", "for one task, but env.train.tasks names 2 tasks: .*curriculum.name=task_progress"),
    ],
)
def test_a_setting_that_does_not_fit_several_tasks_is_refused(tmp_path, override, message):
    env = {"train": {"name": "scripted", "total_num_envs": 4, "tasks": [EASY, HARD]}}
    with pytest.raises(ConfigError, match=message):
        scripted(tmp_path, override, env=env)


POLES = [{"id": "CartPole-v1", "label": "one", "vectorized": True}, {"id": "CartPole-v1", "label": "two"}]


def of_poles(**others):
    return load_config({"env": {"train": {"name": "gymnasium", "total_num_envs": 4, "tasks": POLES}}, **others})


def test_an_evaluation_takes_over_the_tasks_without_what_suits_training_alone():
    assert of_poles().env.eval.tasks == [{"id": "CartPole-v1", "label": "one"}, {"id": "CartPole-v1", "label": "two"}]


def test_an_evaluation_of_a_task_that_draws_its_own_seeds_is_refused():
    train = {"name": "gymnasium", "total_num_envs": 4, "tasks": POLES}
    with pytest.raises(ConfigError, match=r"env.eval.tasks\[0\].vectorized is true, .* needs held-out seeds"):
        load_config({"env": {"train": train, "eval": {"tasks": POLES}}})


def test_shares_follow_progress_where_each_task_names_its_success():
    with pytest.raises(ConfigError, match=r"task_progress, which follows the success of episodes, but env.train"):
        of_poles(curriculum={"name": "task_progress"})
    told = [pole | {"success_key": "is_success"} for pole in POLES]
    train = {"name": "gymnasium", "total_num_envs": 4, "tasks": told}
    assert load_config({"env": {"train": train}, "curriculum": {"name": "task_progress"}})


@pytest.mark.parametrize("option", ["pad_observations=48", "observe_task=false"])
def test_an_option_of_several_tasks_is_refused_without_any(tmp_path, option):
    with pytest.raises(ConfigError, match=f"env.train.{option.split('=')[0]} is for several tasks, but .* is empty"):
        scripted(tmp_path, f"env.train.{option}")


def test_the_time_limit_of_all_is_the_shortest_one():
    tasks = [pole | {"max_episode_steps": limit} for pole, limit in zip(POLES, (100, 10), strict=True)]
    config = GymnasiumConfig("gymnasium", tasks=tasks)
    assert task_facts(config, "env.train").time_limit == 10


def test_neither_shares_nor_the_python_of_a_task_make_another_protocol():
    protocols = [
        {"eval_env": {"name": "scripted", "tasks": tasks, "total_num_envs": 4}, "evaluation_episodes": 4,
         "evaluation_first_seed": 0, "deterministic_actions": True}
        for tasks in ([HARD, EASY], [HARD | {"share": 3, "python": "/other"}, EASY], [HARD, HARD])
    ]  # fmt: skip
    first, shared, other = map(comparable, protocols)
    assert first == shared
    assert first != other


def test_a_task_is_called_by_the_last_part_of_its_id():
    config = GymnasiumConfig("gymnasium", tasks=["CartPole-v1", {"id": "some.module:Own-v0"}])
    assert [task.label for task in tasks_of(config, "env.train")] == ["CartPole-v1", "Own-v0"]


def test_tasks_of_the_training_alone_are_known_to_be_missing_in_an_evaluation(tmp_path):
    with pytest.raises(ConfigError, match=r"env.train.tasks is empty"):
        load_config(
            {"env": {"train": {"name": "scripted"}, "eval": {"tasks": [EASY]}}, "runner": {"total_timesteps": 10}}
        )
