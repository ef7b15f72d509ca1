"""Estimate of the memory that a learner will need, from what it does with a few synthetic decisions on the CPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rlpipe.algorithms.base import OnPolicyAlgorithm, Samples
from rlpipe.algorithms.shared.off_policy import OffPolicyAlgorithm
from rlpipe.config.plan import Plan
from rlpipe.config.schema import Config, Stage
from rlpipe.demonstrations.dataset import load
from rlpipe.learning.demonstrated import Demonstrated, chunked_decisions
from rlpipe.learning.live_bytes import LiveBytes, held_bytes
from rlpipe.learning.off_policy import OffPolicyLearner
from rlpipe.learning.on_policy import join
from rlpipe.policies.base import Policy, build_policy
from rlpipe.trajectory import SpaceSpec
from rlpipe.trajectory.batch import TrajectoryBatch
from rlpipe.trajectory.synthetic import synthetic_batch

CPU = torch.device("cpu")
MOMENT_BYTES = 8
"""Of Adam, for each number that is learnt: two moments in float32."""
MASTER_BYTES = GRADIENT_BYTES = 4
"""Of a master weight beside one that is not float32, and of a number of the joined gradient."""
LARGEST_BATCH = 256
"""Transitions of the largest gradient step that is taken for the estimate with a replay buffer."""
SMALL_CAPACITY = 4096
"""Transitions of the replay buffer that is made for the estimate."""


@dataclass(frozen=True)
class Line:
    """Bytes that grow with a number of rows, ``fixed + each * rows``."""

    fixed: float
    each: float

    @classmethod
    def through(cls, *points: tuple[int, int]) -> Line:
        """The line through two points, (rows, bytes)."""
        (rows, size), (more_rows, larger) = points
        each = max(0.0, (larger - size) / (more_rows - rows))
        return cls(size - each * rows, each)

    def at(self, rows: float) -> int:
        """Bytes of so many rows."""
        return max(0, round(self.fixed + self.each * rows))


def estimated_memory(config: Plan, spec: SpaceSpec) -> dict[str, int]:
    """Returns the bytes of tensors that a learner holds at its peak, by what they are for; their sum is the estimate.

    Allocators, CUDA itself and, on the CPU, Python with torch come on top. Runs a few rows through the policy and its
    gradients; of the largest policies only those that the machine can hold as well.

    Args:
        config: configuration of the planned run.
        spec: spaces of its simulator.
    Raises:
        ConfigError: the configuration does not suit the spaces.
    """
    config.algorithm.check_spaces(spec)
    algorithm = config.algorithm_class
    with torch.random.fork_rng(devices=[]):
        if issubclass(algorithm, OffPolicyAlgorithm):
            return _off_policy(config, spec)
        policy = build_policy(config, spec)
        if issubclass(algorithm, OnPolicyAlgorithm):
            return _on_policy(config, spec, policy)
        return _cloning(config, spec, policy)


# --- learners of fresh trajectories


def _on_policy(config: Plan, spec: SpaceSpec, policy: Policy) -> dict[str, int]:
    algorithm: Any = config.algorithm_class(config.algorithm)
    trained = [*policy.actor_parameters(), *(policy.critic_parameters() if algorithm.learns_critic else ())]
    options = [(stage.config.algorithm_class, stage.config.algorithm) for stage in config.schedule]
    keeps_reference = any(class_(of_stage).keeps_reference for class_, of_stage in options)
    algorithm.begin(policy if keeps_reference else None)
    learners = config.learner.num_learners if isinstance(config.learner.num_learners, int) else 1
    decisions = -(-config.decisions_per_iteration // learners)
    cloned = config.algorithm.cloning_batch_size if config.algorithm.cloning_coef else 0
    micro_batch = config.learner.micro_batch or 2 * decisions
    rows = min(micro_batch, -(-decisions // config.algorithm.num_minibatches)) + cloned

    held, steps, preparations = [], [], []  # rows and bytes
    for batch in _two_batches(config, spec):
        trajectories = join([batch], CPU, 0)
        with torch.no_grad(), _autocast(config), LiveBytes() as live:
            samples, _ = algorithm.prepare(trajectories, policy)
        count = len(samples)
        held.append((count, held_bytes(trajectories, samples) + held_bytes(samples)))  # an epoch shuffles a copy
        steps.append((count, _step_bytes(config, trained, partial(_loss, algorithm, policy, samples))))
        preparations.append((len(trajectories.seen) if algorithm.learns_critic else count, live.peak))
    evaluated = decisions * (1 + algorithm.learns_critic / config.rollout.horizon)
    at_a_time = min(evaluated, micro_batch, getattr(config.policy, "rows_per_pass", evaluated))
    seen = round(_observation_bytes(spec) * (evaluated - at_a_time))  # joined beside the samples
    prepared = Line.through(*preparations).at(at_a_time) + seen
    parts = {"policy": held_bytes(policy)}
    if keeps_reference:
        parts["reference policy"] = sum(tensor.nbytes for tensor in policy.trained_state().values())
    parts |= {
        "optimiser": _optimiser_bytes(trained),
        f"samples, {decisions:,} decisions": Line.through(*held).at(decisions),
        **_demonstrations(config, spec),
    }
    of_step = _of_gradient_step(trained, Line.through(*steps).at(rows), f"activations, {rows:,} decisions")
    if prepared > sum(of_step.values()):  # before, not beside, the gradient steps
        return parts | {f"values before an update, {decisions:,} decisions": prepared}
    return parts | of_step


def _observation_bytes(spec: SpaceSpec) -> int:
    """Returns the bytes of one observation."""
    if spec.leaves is None:
        return 4 * spec.observation_dim
    return sum(leaf.size * np.dtype(leaf.dtype).itemsize for leaf in spec.leaves.values())


def _loss(algorithm: OnPolicyAlgorithm[Any], policy: Policy, samples: Samples) -> Tensor:
    return algorithm.loss(policy, samples).each


def _two_batches(config: Config, spec: SpaceSpec) -> list[TrajectoryBatch]:
    """Makes two small fragments, the second with twice as many environments."""
    policy, algorithm = config.policy, config.algorithm
    steps, environments = _small_size(config, spec)
    group_size = algorithm.group_size
    if group_size is not None:
        steps, environments = 1, -(-steps * environments // group_size) * group_size
    return [
        synthetic_batch(
            spec, steps, count, chunk_size=policy.chunk_size, memory_width=policy.memory_width, group_size=group_size,
            keep_rewards=algorithm.reward_level == "action",
        )
        for count in (environments, 2 * environments)
    ]  # fmt: skip


def _small_size(config: Config, spec: SpaceSpec) -> tuple[int, int]:
    """Returns steps and environments whose activations outweigh the gradient of one layer, which counts with them."""
    if config.policy_class.from_files:
        return 2, 1
    if any(leaf.is_image for leaf in (spec.leaves or {}).values()):
        return 4, 8
    return 8, 16


def _autocast(config: Config) -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16, enabled=config.learner.precision == "bfloat16")


def _step_bytes(config: Config, trained: list[nn.Parameter], loss: Callable[[], Tensor]) -> int:
    """Returns the most bytes of activations and their gradients at once, without the gradients of parameters."""
    learnt = [parameter for parameter in trained if parameter.requires_grad]
    with LiveBytes(without_gradients_of=learnt) as live:
        with _autocast(config):
            total = loss().sum()
        torch.autograd.grad(total, learnt, allow_unused=True)
    peak: int = live.peak
    return peak


def _optimiser_bytes(trained: list[nn.Parameter]) -> int:
    masters = sum(parameter.numel() for parameter in trained if parameter.dtype != torch.float32)
    return MASTER_BYTES * masters + MOMENT_BYTES * sum(parameter.numel() for parameter in trained)


def _of_gradient_step(trained: list[nn.Parameter], activations: int, name: str) -> dict[str, int]:
    """Parts of a gradient step. Gradients are joined in float32 once there are no activations any more."""
    pieces = sum(parameter.numel() * (1 + (parameter.dtype != torch.float32)) for parameter in trained)
    gradients = sum(parameter.nbytes for parameter in trained)
    return {"gradients": gradients, name: max(activations, GRADIENT_BYTES * pieces)}


# --- cloning


def _demonstrated(config: Plan, spec: SpaceSpec) -> Demonstrated | None:
    """Reads the demonstrations as a learner keeps them; None without any."""
    if config.demos is None or (config.algorithm_class.collects and not config.algorithm.cloning_coef):
        return None
    loaded = load(config.demos, config.env.train, spec, config.num_demos, config.runner.seed, config.demo_leaves)
    return chunked_decisions(loaded, config.policy.chunk_size, CPU, config.policy.memory_width)


def _demonstrations(config: Plan, spec: SpaceSpec) -> dict[str, int]:
    demonstrated = _demonstrated(config, spec)
    if demonstrated is None:
        return {}
    return {f"demonstrations, {len(demonstrated):,} steps": held_bytes(demonstrated)}


def _cloning(config: Plan, spec: SpaceSpec, policy: Policy) -> dict[str, int]:
    trained = list(policy.actor_parameters())
    demonstrated = _demonstrated(config, spec)
    assert demonstrated is not None
    rows, kind = config.algorithm.batch_size, config.algorithm.loss
    rows = min(rows, config.learner.micro_batch or rows)
    steps, environments = _small_size(config, spec)
    largest = min(2 * steps * environments, len(demonstrated))
    pieces = [demonstrated[:size] for size in (largest // 2, largest)]
    points = [(len(piece), _step_bytes(config, trained, partial(piece.loss, policy, kind))) for piece in pieces]
    return {
        "policy": held_bytes(policy),
        "optimiser": _optimiser_bytes(trained),
        f"demonstrations, {len(demonstrated):,} steps": held_bytes(demonstrated),
        **_of_gradient_step(trained, Line.through(*points).at(rows), f"activations, {rows:,} steps"),
    }


# --- learners with a replay buffer


def _off_policy(config: Plan, spec: SpaceSpec) -> dict[str, int]:
    """As the learner itself: with a small buffer, it takes two gradient steps on a synthetic fragment."""
    options, capacity = config.algorithm, min(config.algorithm.replay_capacity, SMALL_CAPACITY)
    batch = synthetic_batch(spec, 32, 4, chunk_size=config.policy.chunk_size)
    changes = {"replay_capacity": capacity, "learning_starts": 1, "update_to_data": 2 / batch.rewards.size}
    largest, points = min(options.batch_size, LARGEST_BATCH), []
    for size in (-(-largest // 2), largest):
        stages = [_stage(stage, {**changes, "batch_size": size}) for stage in config.schedule]
        learner = OffPolicyLearner(stages, spec)
        with LiveBytes() as live:
            learner.update(0, 1, batch)
        points.append((size, live.peak))
    replay, demos = learner._replay, learner._demo_buffer
    learnt = held_bytes(learner._policy, learner._algorithm)
    stored = held_bytes(replay) * options.replay_capacity // capacity
    parts = {
        "policy and critics, with their optimisers": learnt,
        f"replay buffer, {options.replay_capacity:,} transitions": stored,
    }
    if demos is not None:
        parts[f"demonstrations, {len(demos):,} steps"] = held_bytes(demos)
    step = Line.through(*points).at(options.batch_size)
    return parts | {f"gradient step, {options.batch_size:,} transitions": step}


def _stage(stage: Stage, changes: dict[str, Any]) -> Stage:
    """Returns a stage whose learner is on the CPU and has these options of the algorithm."""
    algorithm = dataclasses.replace(stage.config.algorithm, **changes)
    learner = replace(stage.config.learner, device="cpu", num_threads=1, precision="float32", graphs=False)
    return replace(stage, config=replace(stage.config, algorithm=algorithm, learner=learner))
