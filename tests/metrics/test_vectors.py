"""Known answers: every vector of vectors.json goes through the code that training uses, and is compared by the name
under which a plot shows the number.

A vector has a name, a meaning, inputs, and what is expected by metric, where null says that the metric must be absent;
and perhaps what other systems call the numbers, by dialect, the percentiles of distributions, and what the samples hold
that were learnt from. Its kind says how far in the inputs enter:

- update: steps of environments, by worker, through episodes, PPO and the learner's pooling;
- critic: returns and values, by worker;
- episodes: finished episodes, by worker;
- observations: raw observations by metric, by worker;
- minibatches: by metric, the epochs of an update, their minibatches as [value, decisions]; by learner;
- policy: a distribution over actions;
- groups: scores of episodes and the numbers of their groups, by worker, through GRPO;
- reference: log-probabilities of episodes under the policy and under a frozen reference, and their scores, through PPO.
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
from rlpipe.algorithms.grpo import GRPO
from rlpipe.algorithms.ppo import PPO, PPOSamples
from rlpipe.collection.episodes import EpisodeTracker
from rlpipe.envs.base import Beginning, Step
from rlpipe.functional.diagnostics import explained_variance
from rlpipe.learning.on_policy import join
from rlpipe.metrics import CATALOGUE, MetricWindow
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.dialects import Dialect
from rlpipe.metrics.on_device import DeviceObservations, MinibatchSizes
from rlpipe.metrics.window import merged
from rlpipe.policies.base import Policy
from rlpipe.policies.mlp import MLPPolicy
from rlpipe.trajectory import Episode, SpaceSpec
from rlpipe.trajectory.batch import TrajectoryBatch

VECTORS: list[dict[str, Any]] = json.loads(Path(__file__).with_name("vectors.json").read_text())
ALL = list(CATALOGUE.values())

Observed = tuple[list[MetricWindow], Samples | None]
"""Windows of all workers and of the learner, and the samples that were learnt from."""


class Table(Policy):
    """Answers with what stands in the observation: value and log-probability at collection, and both now, entropy."""

    learning = False

    def value(self, observations: Tensor) -> Tensor:
        return observations[:, int(self.learning)]

    def evaluate_actions(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        return observations[:, 2 + int(self.learning)], observations[:, 4]

    def noise(self, generator, steps):
        raise NotImplementedError  # required by the interface; no algorithm's prepare or loss may call it

    def act(self, observations, noise):
        raise NotImplementedError  # required by the interface; no algorithm's prepare or loss may call it

    def actor_parameters(self):
        raise NotImplementedError  # required by the interface; no algorithm's prepare or loss may call it

    def critic_parameters(self):
        raise NotImplementedError  # required by the interface; no algorithm's prepare or loss may call it


class Reference(Table):
    """Answers with the log-probability of the reference, which stands in the observation too."""

    def evaluate_actions(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        return observations[:, 5], observations[:, 4]


def ppo(**options: Any) -> PPO:
    """PPO that leaves advantages as they are, unless told."""
    return PPO(PPO.Config(name="ppo", **{"normalize_advantages": False, **options}))


def learn(algorithm: PPO, policy: Policy, samples: Samples, observations: DeviceObservations) -> MetricWindow:
    """What the learner observes in a pass over two unequal minibatches; how the batch is cut must not show."""
    cut = (len(samples) + 2) // 3
    parts = [part for part in (slice(cut), slice(cut, None)) if len(samples.select(part))]
    terms = [algorithm.loss(policy, samples.select(part)).terms for part in parts]
    joined = {name: torch.cat([part[name] for part in terms]) for name in terms[0]}
    observed = algorithm.measure(samples, torch.arange(len(samples)), joined)
    sizes = [len(samples.select(part)) for part in parts]
    observations.add_update(observed, samples.trajectory, MinibatchSizes(sizes, sizes, len(sizes)))
    return reduced(observations)


def reduced(observations: DeviceObservations) -> MetricWindow:
    window = MetricWindow()
    observations.reduce(window)
    return window


def fragment(worker: int, envs: list[dict[str, Any]], dtype: type) -> tuple[TrajectoryBatch, MetricWindow]:
    """What one worker collected from environments whose steps are written out."""
    columns = (
        "rewards", "log_probs", "ratio", "valid", "terminated", "truncated", "success", "values", "values_now",
        "entropy", "ref_log_probs",
    )  # fmt: skip
    defaults = {"ratio": 1.0, "valid": 1.0}
    length = max(len(env[name]) for env in envs for name in columns if name in env)

    def column(name: str) -> np.ndarray:
        """[T, N]"""
        return np.array([env.get(name, [defaults.get(name, 0.0)] * length) for env in envs], dtype=np.float64).T

    values = column("values")
    values_now = column("values_now") if "values_now" in envs[0] else values
    terminated, truncated, valid = (column(name).astype(bool) for name in ("terminated", "truncated", "valid"))
    log_probs = column("log_probs")
    now = log_probs + np.log(column("ratio"))
    rows = np.stack([values, values_now, log_probs, now, column("entropy"), column("ref_log_probs")], axis=-1)
    last = np.array([[[env.get("last_value", 0.0), 0, 0, 0, 0, 0] for env in envs]])
    final_index = np.flatnonzero(terminated | truncated)
    final_values = np.array([env.get("final_values", [99.0] * length) for env in envs], dtype=np.float64).T
    final_observations = np.zeros((len(final_index), 6))
    final_observations[:, 0] = final_values.reshape(-1)[final_index]
    batch = TrajectoryBatch(
        observations=np.concatenate([rows, last]).astype(dtype),
        actions=np.zeros((length, len(envs), 1), dtype=dtype),
        log_probs=log_probs.astype(dtype),
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
    tracker = EpisodeTracker(worker, 0, count)
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
        episodes += tracker.step(step, policy_version=0, log_probs=batch.log_probs[t])
    window = MetricWindow()
    m.ENV.observe(window, episodes)
    window.observe(m.ENTROPY_EPISODE, [-episode.log_prob for episode in episodes])
    return window


def update(inputs: dict[str, Any], dtype: type) -> Observed:
    algorithm, policy, observations = ppo(**inputs["algorithm"]), Table(), DeviceObservations(ALL)
    algorithm.begin(Reference())
    collected = [fragment(worker, envs, dtype) for worker, envs in enumerate(inputs["workers"])]
    trajectories = join([batch for batch, _ in collected], torch.device("cpu"), 0)
    samples, observed = algorithm.prepare(trajectories, policy)
    observations.add(observed)
    policy.learning = True
    return [*(episodes for _, episodes in collected), learn(algorithm, policy, samples, observations)], samples


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
            return [None if value is None else kind(value) for value in worker.get(name, [default] * count)]

        success = column("success_once", 0, bool)
        rows = [
            Episode(
                worker=rank,
                slot=rank,
                seed=None,
                policy_version=0,
                episode_return=column("episode_return", 0, float)[e],
                length=column("length", 1, int)[e],
                success_once=success[e],
                success_at_end=success[e],
                success_at_reset=False,
                terminated=column("terminated", 1, bool)[e],
                truncated=column("truncated", 0, bool)[e],
                step=column("step", e, int)[e],
                first_success=column("first_success", None, int)[e],
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


def minibatches(inputs: dict[str, Any], dtype: type) -> Observed:
    windows = []
    for learner in inputs["learners"]:
        observations = DeviceObservations(ALL)
        for name, epochs in learner.items():
            means = [minibatch for epoch in epochs for minibatch in epoch]
            sizes = [decisions for _, decisions in means]
            values = torch.cat([torch.full((decisions,), mean, dtype=torch.float64) for mean, decisions in means])
            trajectory = torch.zeros(len(values), dtype=torch.int64)
            cut = MinibatchSizes(sizes, sizes, len(epochs[-1]))
            observations.add_update({CATALOGUE[name]: values}, trajectory, cut)
        windows.append(reduced(observations))
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
    observations = DeviceObservations(ALL)
    if (deviation := acting.action_std()) is not None:
        observations.add({m.ACTION_STD: deviation.detach()})
    samples = PPOSamples(
        numbers.unsqueeze(-1), actions, numbers, numbers, numbers.long(), numbers.long(), numbers, numbers
    )
    return [learn(ppo(), acting, samples, observations)], None


def set_parameter(parameter: Tensor, values: Any) -> None:
    with torch.no_grad():
        parameter.copy_(torch.tensor(values, dtype=parameter.dtype))


def groups(inputs: dict[str, Any], dtype: type) -> Observed:
    collected = [
        fragment(rank, [{"rewards": [score], "terminated": [1]} for score in worker["scores"]], dtype)
        for rank, worker in enumerate(inputs["workers"])
    ]
    numbers = [number for worker in inputs["workers"] for number in worker["groups"]]
    size = len(numbers) // len(set(numbers))
    assert all(len(set(numbers[first : first + size])) == 1 for first in range(0, len(numbers), size))
    observations = DeviceObservations(ALL)
    trajectories = join([batch for batch, _ in collected], torch.device("cpu"), 0)
    samples, observed = GRPO(GRPO.Config(name="grpo", group_size=size)).prepare(trajectories, Table())
    observations.add(observed)
    return [*(episodes for _, episodes in collected), reduced(observations)], samples


def reference(inputs: dict[str, Any], dtype: type) -> Observed:
    envs = [
        {
            "log_probs": log_probs,
            "ref_log_probs": ref_log_probs,
            "rewards": [0.0] * (len(log_probs) - 1) + [score],
            "terminated": [0] * (len(log_probs) - 1) + [1],
        }
        for log_probs, ref_log_probs, score in zip(
            inputs["log_probs"], inputs["ref_log_probs"], inputs["scores"], strict=True
        )
    ]
    penalty = {"kl_control": "fixed", "kl_coef": inputs["kl_coef"]}
    return update({"workers": [envs], "algorithm": penalty}, dtype)


KINDS: dict[str, Callable[[dict[str, Any], type], Observed]] = {
    "update": update,
    "critic": critic,
    "episodes": episodes,
    "observations": observations,
    "minibatches": minibatches,
    "policy": policy,
    "groups": groups,
    "reference": reference,
}
BY_TENSORS = ("update", "policy", "groups", "reference")


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
    window = merged(windows)
    readings = window.read(ALL)
    assert merged(windows[::-1]).read(ALL) == readings
    assert set(vector["expected"]) <= set(CATALOGUE)
    assert {name: readings.get(name) for name in vector["expected"]} == close(vector["expected"], rel)
    for system, expected in vector.get("dialects", {}).items():
        written = Dialect(system).write(readings, window.states)
        assert {key: written.get(key) for key in expected} == close(expected, rel)
    for name, expected in vector.get("percentiles", {}).items():
        assert window.histograms(ALL)[name].read() == pytest.approx(expected, rel=0.005)
    for name, expected in vector.get("samples", {}).items():
        assert getattr(samples, name).tolist() == pytest.approx(expected, rel=rel, abs=rel / 10), name


def close(expected: dict[str, float | None], rel: float) -> dict[str, Any]:
    """The numbers, with room for rounding; what is absent must be absent."""
    return {name: None if v is None else pytest.approx(v, rel=rel, abs=rel / 10) for name, v in expected.items()}


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
        assert set(vector) - {"samples", "dialects", "percentiles"} == {"name", "meaning", "kind", "inputs", "expected"}
        assert vector["meaning"].endswith(".")
        assert vector["expected"]
