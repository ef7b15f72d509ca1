"""Known answers: every vector of vectors.json goes through the code that training uses, and is compared by the name
under which a plot shows the number.

A vector has a name, a meaning, inputs, and what is expected by metric, where null says that the metric must be absent.
Its kind says how far in the inputs enter:

- update: steps of environments, by worker, through episodes, PPO and the learner's pooling;
- critic: returns and values, by worker;
- episodes: finished episodes, by worker;
- observations: raw observations by metric, by worker;
- means: [mean, count] of minibatches by metric, by worker;
- policy: a distribution over actions.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rlpipe.algorithms.base import Samples
from rlpipe.algorithms.ppo import PPO
from rlpipe.envs.base import Beginning, Step
from rlpipe.episodes import EpisodeTracker
from rlpipe.functional.diagnostics import explained_variance
from rlpipe.learner import _observe_means, join
from rlpipe.metrics import CATALOGUE, MetricWindow
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.window import merged
from rlpipe.policies.base import Policy
from rlpipe.policies.mlp import MLPPolicy
from rlpipe.trajectory import Episode, SpaceSpec, TrajectoryBatch

VECTORS: list[dict[str, Any]] = json.loads(Path(__file__).with_name("vectors.json").read_text())

Observed = tuple[list[MetricWindow], Samples | None]
"""Windows of all workers and of the learner, and the samples that were learnt from."""


class Table(Policy):
    """Answers with what stands in the observation: value at collection, value now, log-probability now, entropy now."""

    learning = False

    def value(self, observations: Tensor) -> Tensor:
        return observations[:, int(self.learning)]

    def evaluate_actions(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        return observations[:, 2], observations[:, 3]

    def noise(self, generator, steps):
        raise NotImplementedError  # required by the interface; neither PPO.prepare nor PPO.loss may call it

    def act(self, observations, noise):
        raise NotImplementedError  # required by the interface; neither PPO.prepare nor PPO.loss may call it

    def actor_parameters(self):
        raise NotImplementedError  # required by the interface; neither PPO.prepare nor PPO.loss may call it

    def critic_parameters(self):
        raise NotImplementedError  # required by the interface; neither PPO.prepare nor PPO.loss may call it


def ppo(**options: Any) -> PPO:
    """PPO that leaves advantages as they are, unless told."""
    return PPO(PPO.Config(name="ppo", **{"normalize_advantages": False, **options}))


def learn(algorithm: PPO, policy: Policy, samples: Samples) -> MetricWindow:
    """What the learner observes in a pass over two unequal minibatches; how the batch is cut must not show."""
    window, cut = MetricWindow(), (len(samples) + 2) // 3
    minibatches = [samples.select(part) for part in (slice(cut), slice(cut, None)) if len(samples.select(part))]
    losses = [algorithm.loss(policy, minibatch).observed for minibatch in minibatches]
    _observe_means({metric: [loss[metric] for loss in losses] for metric in losses[0]}, window)
    return window


def fragment(worker: int, envs: list[dict[str, Any]], dtype: type) -> tuple[TrajectoryBatch, MetricWindow]:
    """What one worker collected from environments whose steps are written out."""
    columns = ("rewards", "ratio", "valid", "terminated", "truncated", "success", "values", "values_now", "entropy")
    defaults = {"ratio": 1.0, "valid": 1.0}
    length = max(len(env[name]) for env in envs for name in columns if name in env)

    def column(name: str) -> np.ndarray:
        """[T, N]"""
        return np.array([env.get(name, [defaults.get(name, 0.0)] * length) for env in envs], dtype=np.float64).T

    values = column("values")
    values_now = column("values_now") if "values_now" in envs[0] else values
    terminated, truncated, valid = (column(name).astype(bool) for name in ("terminated", "truncated", "valid"))
    rows = np.stack([values, values_now, np.log(column("ratio")), column("entropy")], axis=-1)
    last = np.array([[[env.get("last_value", 0.0), 0, 0, 0] for env in envs]])
    final_index = np.flatnonzero(terminated | truncated)
    final_values = np.array([env.get("final_values", [99.0] * length) for env in envs], dtype=np.float64).T
    final_observations = np.zeros((len(final_index), 4))
    final_observations[:, 0] = final_values.reshape(-1)[final_index]
    batch = TrajectoryBatch(
        observations=np.concatenate([rows, last]).astype(dtype),
        actions=np.zeros((length, len(envs), 1), dtype=dtype),
        log_probs=np.zeros((length, len(envs)), dtype=dtype),
        rewards=column("rewards").astype(dtype),
        terminated=terminated,
        truncated=truncated,
        valid=valid,
        final_observations=final_observations.astype(dtype),
        final_index=final_index,
        policy_version=0,
    )
    return batch, finished_episodes(worker, batch, column("success").astype(bool) if "success" in envs[0] else None)


def finished_episodes(worker: int, batch: TrajectoryBatch, success: np.ndarray | None) -> MetricWindow:
    count = batch.rewards.shape[1]
    tracker = EpisodeTracker(worker, 0, count, has_success=success is not None)
    tracker.begin({n: Beginning(seed=n, success=False) for n in range(count)})
    episodes: list[Episode] = []
    for t in range(len(batch.rewards)):
        ended = np.flatnonzero(batch.terminated[t] | batch.truncated[t])
        step = Step(
            observations=batch.observations[t + 1],
            successors=batch.observations[t + 1],
            rewards=batch.rewards[t].astype(np.float64),
            terminated=batch.terminated[t],
            truncated=batch.truncated[t],
            success=None if success is None else success[t],
            valid=batch.valid[t],
            beginnings={int(n): Beginning(seed=None, success=False) for n in ended},
        )
        episodes += tracker.step(step, policy_version=0)
    window = MetricWindow()
    m.ENV.observe(window, episodes)
    return window


def update(inputs: dict[str, Any], dtype: type) -> Observed:
    algorithm, policy, window = ppo(**inputs["algorithm"]), Table(), MetricWindow()
    collected = [fragment(worker, envs, dtype) for worker, envs in enumerate(inputs["workers"])]
    trajectories = join([batch for batch, _ in collected], torch.device("cpu"))
    samples = algorithm.prepare(trajectories, policy, window)
    policy.learning = True
    return [*(episodes for _, episodes in collected), window, learn(algorithm, policy, samples)], samples


def critic(inputs: dict[str, Any], dtype: type) -> Observed:
    windows = []
    for worker in inputs["workers"]:
        window, returns, values = MetricWindow(), np.array(worker["returns"], dtype), np.array(worker["values"], dtype)
        window.observe(m.RETURNS, returns)
        window.observe(m.VALUE_RESIDUALS, returns - values)
        windows.append(window)
    return windows, None


def episodes(inputs: dict[str, Any], dtype: type) -> Observed:
    windows = []
    for rank, worker in enumerate(inputs["workers"]):
        window, count = MetricWindow(), len(worker["success_once"])

        def column(name: str, default: Any, kind: type, worker=worker, count=count) -> list[Any]:
            return [kind(value) for value in worker.get(name, [default] * count)]

        success = column("success_once", 0, bool)
        rows = [
            Episode(
                worker=rank,
                slot=0,
                seed=None,
                policy_version=0,
                episode_return=column("episode_return", 0, float)[e],
                length=column("length", 1, int)[e],
                success_once=success[e],
                success_at_end=success[e],
                success_at_reset=False,
                terminated=column("terminated", 1, bool)[e],
                truncated=column("truncated", 0, bool)[e],
            )
            for e in range(count)
        ]
        m.ENV.observe(window, rows)
        m.EVAL.observe(window, rows)
        windows.append(window)
    return windows, None


def observations(inputs: dict[str, Any], dtype: type) -> Observed:
    windows = []
    for worker in inputs["workers"]:
        windows.append(MetricWindow())
        for name, values in worker.items():
            windows[-1].observe(CATALOGUE[name], values)
    return windows, None


def means(inputs: dict[str, Any], dtype: type) -> Observed:
    windows = []
    for worker in inputs["workers"]:
        windows.append(MetricWindow())
        for name, minibatches in worker.items():
            for mean, count in minibatches:
                windows[-1].observe_mean(CATALOGUE[name], total=mean * count, count=count)
    return windows, None


def policy(inputs: dict[str, Any], dtype: type) -> Observed:
    config = MLPPolicy.Config(name="mlp", hidden_sizes=[4])
    if "probabilities" in inputs:
        spec = SpaceSpec(observation_dim=1, action_dim=1, num_actions=len(inputs["probabilities"]))
        acting = MLPPolicy(config, spec).to(torch.from_numpy(np.zeros(0, dtype)).dtype)
        set_parameter(acting.actor[-1].weight, 0.0)
        set_parameter(acting.actor[-1].bias, [math.log(p) for p in inputs["probabilities"]])
        actions = torch.zeros(3, dtype=torch.int64)
    else:
        width = len(inputs["deviations"])
        acting = MLPPolicy(config, SpaceSpec(observation_dim=1, action_dim=width))
        acting = acting.to(torch.from_numpy(np.zeros(0, dtype)).dtype)
        set_parameter(acting.log_std, [math.log(deviation) for deviation in inputs["deviations"]])
        actions = acting.log_std.new_zeros(3, width)
    numbers = next(acting.parameters()).new_zeros(3)
    window = learn(ppo(), acting, Samples(numbers.unsqueeze(-1), actions, numbers, numbers, numbers, numbers))
    if (deviation := acting.action_std()) is not None:
        window.observe(m.ACTION_STD, deviation)
    return [window], None


def set_parameter(parameter: Tensor, values: Any) -> None:
    with torch.no_grad():
        parameter.copy_(torch.tensor(values, dtype=parameter.dtype))


KINDS: dict[str, Callable[[dict[str, Any], type], Observed]] = {
    "update": update,
    "critic": critic,
    "episodes": episodes,
    "observations": observations,
    "means": means,
    "policy": policy,
}
ALL = list(CATALOGUE.values())
BY_TENSORS = ("update", "policy")


def cases() -> list[Any]:
    """Every vector in float64; those that pass through tensors also in float32, as training does."""
    return [
        pytest.param(vector, dtype, rel, id=f"{vector['name']}, {dtype.__name__}")
        for vector in VECTORS
        for dtype, rel in ((np.float64, 1e-12), (np.float32, 1e-6))
        if dtype is np.float64 or vector["kind"] in BY_TENSORS
    ]


@pytest.mark.parametrize(("vector", "dtype", "rel"), cases())
def test_a_known_answer_comes_out_under_its_name(vector, dtype, rel):
    windows, samples = KINDS[vector["kind"]](vector["inputs"], dtype)
    readings = merged(windows).read(ALL)
    assert merged(windows[::-1]).read(ALL) == readings
    for name, expected in vector["expected"].items():
        assert name in CATALOGUE
        assert readings.get(name) == (None if expected is None else pytest.approx(expected, rel=rel, abs=rel / 10)), (
            name
        )
    for name, expected in vector.get("samples", {}).items():
        assert getattr(samples, name).tolist() == pytest.approx(expected, rel=rel, abs=rel / 10), name


@pytest.mark.parametrize("vector", [v for v in VECTORS if v["kind"] == "critic"], ids=lambda v: v["name"])
def test_the_function_and_the_metric_agree_on_explained_variance(vector):
    workers = vector["inputs"]["workers"]
    values, returns = (
        torch.tensor([number for worker in workers for number in worker[name]], dtype=torch.float64)
        for name in ("values", "returns")
    )
    expected = vector["expected"]["train/critic/explained_variance"]
    assert explained_variance(values, returns) == (None if expected is None else pytest.approx(expected, rel=1e-6))


def test_vectors_have_names_of_their_own_and_say_what_they_show():
    assert len({vector["name"] for vector in VECTORS}) == len(VECTORS)
    for vector in VECTORS:
        assert set(vector) - {"samples"} == {"name", "meaning", "kind", "inputs", "expected"}
        assert vector["meaning"].endswith(".")
        assert vector["expected"]
