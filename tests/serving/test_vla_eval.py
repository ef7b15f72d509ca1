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


def test_what_is_no_single_action_and_no_whole_episode_is_an_error(pendulum, make_benchmark):
    benchmark = make_benchmark(str(pendulum[0]), first_seed=7)
    benchmark.reset({"episode_idx": 0})
    with pytest.raises(ValueError, match=r"shape \(2, 1\); the task takes one action of 1"):
        benchmark.step({"actions": np.zeros((2, 1))})
    result = benchmark.step({"actions": np.zeros((1, 1))})
    with pytest.raises(ValueError, match="max_steps"):
        benchmark.get_step_result(result)
    benchmark.cleanup()
