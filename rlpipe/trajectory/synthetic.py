"""Fragments of random numbers, with the shapes and types of real ones, to measure or check a learner before a run."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlpipe.trajectory.batch import TrajectoryBatch
from rlpipe.trajectory.spaces import Float32, LeafSpec, Observations, SpaceSpec
from rlpipe.trajectory.tree import Tree, mapped

ENDS = 0.01
"""Share of the decisions that end an episode, unless every environment runs one whole episode."""


def synthetic_observations(spec: SpaceSpec, generator: np.random.Generator, *leading: int) -> Observations:
    """[*leading, ...] observations: normal numbers, bytes of pictures, and choices among those that there are."""
    if spec.leaves is None:
        return generator.standard_normal((*leading, spec.observation_dim), dtype=np.float32)
    return Tree({name: _leaf(leaf, generator, *leading) for name, leaf in spec.leaves.items()})


def _leaf(leaf: LeafSpec, generator: np.random.Generator, *leading: int) -> NDArray[Any]:
    shape = (*leading, *leaf.shape)
    if leaf.choices is not None:
        choices = np.asarray(leaf.choices).reshape(leaf.shape)
        return generator.integers(choices, size=shape).astype(leaf.dtype)
    if np.issubdtype(leaf.dtype, np.floating):
        return generator.standard_normal(shape, dtype=np.float32).astype(leaf.dtype, copy=False)
    values = 2 if leaf.dtype == "bool" else min(256, np.iinfo(leaf.dtype).max + 1)
    return generator.integers(values, size=shape).astype(leaf.dtype)


def synthetic_actions(spec: SpaceSpec, generator: np.random.Generator, *leading: int) -> tuple[NDArray[Any], Float32]:
    """Draws actions: uniformly among the choices or between the bounds, normally where a number has none.

    Returns:
        Actions [*leading, A] float32, or [*leading] or [*leading, M] int64; and their true log-probabilities
        [*leading], in nats.
    """
    if spec.num_actions is not None:
        actions = generator.integers(spec.num_actions, size=(*leading, *spec.action_shape))
        parts = [spec.num_actions] if isinstance(spec.num_actions, int) else spec.num_actions
        return actions, np.full(leading, -sum(map(math.log, parts)), dtype=np.float32)
    shape = (*leading, spec.action_dim)
    low, high = (np.full(spec.action_dim, np.inf) if b is None else b for b in (spec.action_low, spec.action_high))
    with np.errstate(over="ignore", invalid="ignore"):
        width = np.asarray(high - low, dtype=np.float32)
    bounded = np.isfinite(width) & (width > 0)
    width = np.where(bounded, width, np.float32(1))
    normal, uniform = generator.standard_normal(shape, dtype=np.float32), generator.random(shape, dtype=np.float32)
    actions = np.where(bounded, np.where(bounded, low, 0) + width * uniform, normal).astype(np.float32)
    densities = np.where(bounded, -np.log(width), -0.5 * (normal**2 + math.log(2 * math.pi)))
    return actions, densities.sum(-1).astype(np.float32)


def synthetic_batch(
    spec: SpaceSpec,
    steps: int,
    environments: int,
    *,
    chunk_size: int = 1,
    memory_width: int = 0,
    group_size: int | None = None,
    keep_rewards: bool = False,
    seed: int = 0,
) -> TrajectoryBatch:
    """Makes a fragment as a worker would collect it under weights that draw actions at random; equal for equal seeds.

    Args:
        spec: spaces of the simulator, whose actions are those of one environment step.
        steps: decisions of each environment (T).
        environments: number of environments (N), a multiple of ``group_size``.
        chunk_size: actions of a decision (k).
        memory_width: numbers that the policy remembers (H); 0 for a policy without a memory.
        group_size: environments that begin in one state, each with one whole episode, as GRPO needs them; None for
            episodes that end by chance and are followed by others.
        keep_rewards: True to keep the reward of each step of a chunk, for ``algorithm.reward_level=action``.
        seed: seed of all numbers.
    """
    generator, shape = np.random.default_rng(seed), (steps, environments)
    observations = synthetic_observations(spec, generator, steps + 1, environments)
    actions, log_probs = synthetic_actions(spec.chunked(chunk_size), generator, *shape)
    if group_size is None:
        terminated, valid = generator.random(shape) < ENDS, np.ones(shape, dtype=bool)
    else:
        last = generator.integers(steps, size=environments)
        rows = np.arange(steps)[:, None]
        terminated, valid = rows == last, rows <= last
        observations[0] = mapped(lambda leaf: np.repeat(leaf[::group_size], group_size, axis=0), observations[0])
    final_index = np.flatnonzero(terminated)
    num_steps = step_rewards = None
    rewards = generator.standard_normal(shape, dtype=np.float32)
    if chunk_size > 1:
        cut_short = generator.integers(1, chunk_size, size=shape, endpoint=True)
        num_steps = np.where(terminated, cut_short, chunk_size) * valid
        if keep_rewards:
            step_rewards = generator.standard_normal((*shape, chunk_size), dtype=np.float32)
            step_rewards *= np.arange(chunk_size) < num_steps[..., None]
            rewards = step_rewards.sum(-1)
    return TrajectoryBatch(
        observations, actions, log_probs, rewards * valid, terminated, np.zeros_like(terminated), valid,
        synthetic_observations(spec, generator, len(final_index)), final_index, 0,
        num_steps=num_steps, step_rewards=step_rewards,
        memories=generator.standard_normal((environments, memory_width), dtype=np.float32) if memory_width else None,
    )  # fmt: skip
