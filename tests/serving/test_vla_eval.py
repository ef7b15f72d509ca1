"""Our tasks in vla-eval, which is not installed here: the two names that are derived from stand in for it.

``benchmarks/interop.py`` runs the real one.
"""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

import rlpipe
from tests.helpers.acting import trained
from tests.helpers.runs import scripted


@pytest.fixture(scope="module")
def pendulum(tmp_path_factory):
    run = trained(tmp_path_factory.mktemp("vla"), "Pendulum-v1", {"name": "gru", "memory_size": 6})
    return run.directory, rlpipe.evaluate(run.directory, local=True)


@pytest.fixture
def make_benchmark(monkeypatch):
    base, codec = ModuleType("vla_eval.benchmarks.base"), ModuleType("vla_eval.protocol.numpy_codec")
    base.StepBenchmark = type("StepBenchmark", (), {})
    base.StepResult = lambda obs, reward, done, info: SimpleNamespace(obs=obs, reward=reward, done=done, info=info)
    codec.set_image_format = print
    for module in (base, codec, *map(ModuleType, ("vla_eval", "vla_eval.benchmarks", "vla_eval.protocol"))):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.delitem(sys.modules, "rlpipe.serving.vla_eval", raising=False)
    from rlpipe.serving.vla_eval import RlpipeBenchmark

    yield RlpipeBenchmark
    del sys.modules["rlpipe.serving.vla_eval"]


def test_an_episode_has_the_seed_and_the_result_of_the_evaluation(pendulum, make_benchmark):
    folder, report = pendulum
    benchmark, policy = make_benchmark(str(folder)), rlpipe.load_policy(folder)
    assert benchmark.get_metadata() == {"max_steps": 30}
    for number, episode in enumerate(report.episodes):
        task = {**benchmark.get_tasks()[0], "episode_idx": number}
        observation = benchmark.make_obs(benchmark.reset(task), task)
        assert task == {"name": "Pendulum-v1", "suite": "rlpipe", "episode_idx": number, "seed": episode.seed}
        policy.reset(seed=task["seed"])
        result = SimpleNamespace(done=False)
        while not result.done:
            result = benchmark.step({"actions": policy.act(observation["state"])})
            observation = benchmark.make_obs(result.obs, task)
        assert benchmark.get_step_result(result) == {
            "episode_return": episode.episode_return, "length": episode.length, "seed": episode.seed,
        }  # fmt: skip
    benchmark.cleanup()


def test_each_of_several_tasks_is_a_task_of_vla_eval_with_the_episodes_of_the_evaluation(tmp_path, make_benchmark):
    """Two tasks, which the policy tells apart by a leaf of its observations."""
    easy = {"label": "easy", "script": [[{"length": 2, "success_at": [2], "reward": 1.0}]]}
    hard = {"label": "hard", "script": [[{"length": 3}]]}
    env = {"train": {"name": "scripted", "total_num_envs": 2, "tasks": [easy, hard]}}
    config = scripted(tmp_path, "evaluation.episodes=4", "runner.total_timesteps=16", "rollout.horizon=4",
                      "algorithm.num_minibatches=1", env=env)  # fmt: skip
    folder = rlpipe.train(config, local=True).directory
    report, policy = rlpipe.evaluate(folder, local=True), rlpipe.load_policy(folder)
    benchmark = make_benchmark(str(folder))
    assert [task["name"] for task in benchmark.get_tasks()] == ["easy", "hard"]
    results = []
    for task in benchmark.get_tasks() * 2:
        task["episode_idx"] = len(results) // 2
        observation = benchmark.make_obs(benchmark.reset(task), task)
        assert observation["task"] == ["easy", "hard"].index(task["name"])
        policy.reset(seed=task["seed"])
        result = SimpleNamespace(done=False)
        while not result.done:
            result = benchmark.step({"actions": policy.act(observation)})
            observation = benchmark.make_obs(result.obs, task)
        result = benchmark.get_step_result(result)
        results.append((task["name"], result["seed"], result["length"], result["success"], result["episode_return"]))
    assert sorted(results) == sorted(
        (one.task, one.seed, one.length, one.success_once, one.episode_return) for one in report.episodes
    )
    benchmark.cleanup()


def test_what_the_base_class_keeps_for_itself_is_left_alone(pendulum, make_benchmark):
    """Attributes of ``StepBenchmark`` of vla-eval 0.8.0."""
    benchmark = make_benchmark(str(pendulum[0]))
    assert not vars(benchmark).keys() & {"_task", "_last_result", "_recorder"}
    benchmark.cleanup()


def test_what_is_no_single_action_and_no_whole_episode_is_an_error(pendulum, make_benchmark):
    benchmark = make_benchmark(str(pendulum[0]), first_seed=7)
    benchmark.reset({**benchmark.get_tasks()[0], "episode_idx": 0})
    with pytest.raises(ValueError, match=r"shape \(2, 1\); the task takes one action of 1"):
        benchmark.step({"actions": np.zeros((2, 1))})
    result = benchmark.step({"actions": np.zeros((1, 1))})
    with pytest.raises(ValueError, match="max_steps"):
        benchmark.get_step_result(result)
    benchmark.cleanup()
