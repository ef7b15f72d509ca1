"""A fragment of experience: shapes, dtypes and units of all arrays that travel from collection to learning.

Collection fills NumPy arrays. A learner joins the fragments of several workers and moves them to its device, where the
same arrays are tensors.

Letters used throughout the package: T steps (time first), N environments, D observation width, A action width,
K ended episodes in the batch, B decisions after flattening, H numbers that a policy remembers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlpipe.trajectory.episode import Episode
from rlpipe.trajectory.rows import Listed
from rlpipe.trajectory.sequences import Sequences
from rlpipe.trajectory.spaces import Observations
from rlpipe.trajectory.tree import Tree, joined, mapped, tensors

Array: TypeAlias = Any
"""NumPy array as collected, tensor on a learner's device."""


_ENVIRONMENTS_FIRST, _TIME_FIRST = {"environments": 0}, {"environments": 1}
"""Axis of the environments of an array."""


@dataclass(frozen=True)
class TrajectoryBatch:
    """Fragment of experience: N environments over T steps.

    Attributes:
        observations: [T + 1, N, D] float32, or a tree; the policy saw row t at step t, and sees the last row next.
        actions: [T, N, A] float32, as sampled, before clipping to the bounds; or [T, N] int64 of one discrete action,
            or [T, N, M] of several.
        log_probs: [T, N] float32, log-probability of the action under the policy that took it, in nats.
        rewards: [T, N] float32, raw.
        terminated: [T, N] bool, the task ended. Can hold together with ``truncated``.
        truncated: [T, N] bool, a time limit cut the episode off.
        valid: [T, N] bool; False where no decision was made (the step only reset the environment, or a slot is idle).
        final_observations: [K, D] float32, or a tree; true successor of each step that ended an episode, before any
            reset.
        final_index: [K] int64, t * N + n of that step.
        policy_version: number of updates behind the weights that acted; of several joined fragments, those of the
            oldest.
        seconds: time that collection took.
        num_steps: [T, N] int64, environment steps that each decision took; None where each is one. Rewards of several
            steps are summed, with the discount of the algorithm.
        step_rewards: [T, N, k] float32, raw reward of each environment step of a decision, 0 after the last one; None
            unless the algorithm learns from them.
        memories: [N, H] float32, memory of each environment before the first step; zeros where an episode begins. None
            for a policy without a memory.
        chosen_episodes: episodes that ended in the fragment and that a curriculum may follow, because it chose their
            start, or because their task is one of several.
        first_slot: number of the first environment among those of all workers, or learners; the others follow.
        steps_before: [N] int64, environment steps of each running episode before the first step; 0 where an episode
            begins. None where nobody collected the fragment.
        environments: number of environments of all workers, or learners; 0 before fragments are joined.
        lags: [N] int64, updates between the weights that acted in each environment and the learner's; None before.
        lists: lists of the valid decisions; None on the host.
    """

    observations: Observations = field(metadata=_TIME_FIRST)
    actions: Array = field(metadata=_TIME_FIRST)
    log_probs: Array = field(metadata=_TIME_FIRST)
    rewards: Array = field(metadata=_TIME_FIRST)
    terminated: Array = field(metadata=_TIME_FIRST)
    truncated: Array = field(metadata=_TIME_FIRST)
    valid: Array = field(metadata=_TIME_FIRST)
    final_observations: Observations
    final_index: Array
    policy_version: int
    seconds: float = 0.0
    num_steps: Array | None = field(default=None, metadata=_TIME_FIRST)
    step_rewards: Array | None = field(default=None, metadata=_TIME_FIRST)
    memories: Array | None = field(default=None, metadata=_ENVIRONMENTS_FIRST)
    chosen_episodes: tuple[Episode, ...] = ()
    first_slot: int = 0
    steps_before: Array | None = field(default=None, metadata=_ENVIRONMENTS_FIRST)
    environments: int = 0
    lags: Array = None
    lists: Listed | None = None

    @classmethod
    def joined(
        cls, batches: Sequence[TrajectoryBatch], version: int, columns: range, first: int, environments: int
    ) -> TrajectoryBatch:
        """Joins fragments along their environments.

        Args:
            batches: fragments as they were collected, in the order of the workers' ranks.
            version: version of the learner's weights.
            columns: environments to take, numbered among those of the fragments.
            first: number of the first of them among those of all learners.
            environments: number of environments of all learners.
        """
        begin, end = columns.start, columns.stop
        finals, final_index, offset = [], [], 0
        for batch in batches:
            count = batch.rewards.shape[1]
            steps, slots = np.divmod(batch.final_index, count)
            slots += offset
            inside = (slots >= begin) & (slots < end)
            finals.append(batch.final_observations[inside])
            final_index.append((steps * (end - begin) + slots - begin)[inside])
            offset += count
        versions = np.concatenate([np.full(batch.rewards.shape[1], batch.policy_version) for batch in batches])
        arrays = {
            column.name: _columns(
                [getattr(batch, column.name) for batch in batches], column.metadata["environments"], columns
            )
            for column in fields(cls)
            if "environments" in column.metadata
        }
        return cls(
            **arrays, final_observations=joined(finals), final_index=np.concatenate(final_index),
            policy_version=min(batch.policy_version for batch in batches), first_slot=first, environments=environments,
            lags=version - versions[begin:end],
        )  # fmt: skip

    def to(self, device: torch.device) -> TrajectoryBatch:
        """Returns the batch with tensors on a device in place of its arrays."""
        values = {column.name: getattr(self, column.name) for column in fields(self)}
        moved = {
            name: tensors(value).to(device) for name, value in values.items() if isinstance(value, np.ndarray | Tree)
        }
        actions = None
        if self.step_rewards is not None and self.num_steps is not None:
            actions = self.valid[..., None] & (np.arange(self.step_rewards.shape[-1]) < self.num_steps[..., None])
        lists = Listed.of_batch(self.valid, self.terminated | self.truncated, self.lags, actions, device)
        return replace(self, **moved, lists=lists)

    @property
    def listed(self) -> Listed:
        """Lists of the valid decisions, made when the batch was moved to a device.

        Raises:
            ValueError: it was not.
        """
        if self.lists is None:
            raise ValueError("a batch lists its valid decisions when it is moved to a device: call its method to().")
        return self.lists

    def trajectories(self) -> NDArray[np.int64]:
        """[N] number of trajectories in each environment: those that ended here, and the one that continues."""
        ended = self.terminated | self.truncated
        unfinished = self.valid[-1] & ~ended[-1]
        return np.asarray(ended.sum(0) + unfinished, dtype=np.int64)

    def successors(self) -> Observations:
        """[T, N, ...] true successors of all steps: before any reset, unlike ``observations[1:]``."""

        def of_leaf(observations: NDArray[Any], finals: NDArray[Any]) -> NDArray[Any]:
            successors = observations[1:].copy()
            successors.reshape(-1, *successors.shape[2:])[self.final_index] = finals
            return successors

        successors: Observations = mapped(of_leaf, self.observations, self.final_observations)
        return successors

    def positions(self) -> Tensor:
        """[T, N] int64 position of each decision among those of all learners, time first; on a device, as all below."""
        steps, envs = self.valid.shape
        rows = torch.arange(steps, device=self.valid.device).unsqueeze(1) * self.environments
        return rows + torch.arange(self.first_slot, self.first_slot + envs, device=self.valid.device)

    @property
    def valid_steps(self) -> Tensor | None:
        """[B] number of environment steps of each valid decision; None where each is one."""
        return None if self.num_steps is None else self.listed.valid.of(self.num_steps)

    @cached_property
    def decided(self) -> Observations:
        """[B, ...] observations of the valid decisions; in ``Sequences`` for a policy with a memory."""
        valid = self.listed.valid
        observations = valid.of(self.observations[:-1])
        if self.memories is not None:
            return self._in_sequences(observations, valid.of(self.numbers()), valid.of(self._steps()[:-1]))
        if valid.index is None and self.valid.device.type == "cpu":
            # On a CPU the bits of a matrix product depend on where in memory its rows begin, and these are NumPy's.
            return mapped(torch.clone, observations)
        return observations

    @property
    def seen(self) -> Observations:
        """[(T + 1) N + K, ...] all observations, time first, then the final ones; in ``Sequences`` for a memory.

        A final observation is the last one of the trajectory that it ended.
        """
        observations = joined([self.observations.flatten(0, 1), self.final_observations])
        if self.memories is None:
            return observations
        numbers, steps = self._numbers(), self._steps()
        apart = -1 - torch.arange(numbers.numel(), device=numbers.device).view_as(numbers)
        counted = torch.cat([self.valid, torch.ones_like(self.valid[:1])])
        numbers, steps = torch.where(counted, numbers, apart).flatten(), torch.where(counted, steps, 0).flatten()
        return self._in_sequences(
            observations,
            torch.cat([numbers, numbers[self.final_index]]),
            torch.cat([steps, steps[self.final_index] + 1]),
        )

    @property
    def decisions(self) -> tuple[Any, ...]:
        """Arguments of ``Policy.evaluate_actions`` for the valid decisions."""
        return evaluation_arguments(self.decided, self.listed.valid.of(self.actions), self.valid_steps)

    def numbers(self) -> Tensor:
        """[T, N] int64 number of each decision's trajectory among those of all learners.

        Every environment begins one, and every end another.
        """
        return self._numbers()[:-1]

    def _ends(self) -> Tensor:
        """[T + 1, N] bool, True where the step before ended an episode."""
        ended = self.terminated | self.truncated
        return torch.cat([torch.zeros_like(ended[:1]), ended])

    def _numbers(self) -> Tensor:
        """[T + 1, N] int64 as ``numbers``, and those of the last observations."""
        steps, envs = self.valid.shape
        columns = torch.arange(self.first_slot, self.first_slot + envs, device=self.valid.device)
        numbers: Tensor = self._ends().cumsum(0) + columns * (steps + 1)
        return numbers

    def _steps(self) -> Tensor:
        """[T + 1, N] int64, valid decisions of the same trajectory before each observation."""
        before = torch.cat([torch.zeros_like(self.valid[:1]), self.valid]).cumsum(0)
        return before - torch.where(self._ends(), before, 0).cummax(0).values

    def _in_sequences(self, observations: Tensor | Tree, numbers: Tensor, steps: Tensor) -> Sequences:
        """Puts observations into sequences, each with its memory: the collected one where an episode continues.

        Args:
            observations: [B, ...].
            numbers: [B] from ``_numbers``; any negative number stands for a sequence of its own.
            steps: [B] from ``_steps``.
        """
        assert self.memories is not None
        length = len(self.valid) + 1
        present, sequence = torch.unique(numbers, return_inverse=True)
        continued = (present >= 0) & (present % length == 0)  # the first trajectory of its environment
        memories = self.memories.new_zeros(len(present), self.memories.shape[1])
        memories[continued] = self.memories[present[continued] // length - self.first_slot]
        return Sequences(observations, sequence, steps, memories)


def _columns(arrays: Sequence[Any], axis: int, columns: range) -> Any:
    """Joins arrays or trees along an axis and takes some columns; None where there are none."""
    if arrays[0] is None:
        return None
    whole = joined(arrays, axis=axis)
    selection = slice(columns.start, columns.stop)
    return whole[selection] if axis == 0 else whole[:, selection]


def evaluation_arguments(
    observations: Tensor | Tree, actions: Tensor, num_steps: Tensor | None
) -> tuple[Tensor | Tree, Tensor] | tuple[Tensor | Tree, Tensor, Tensor]:
    """Arguments of ``Policy.evaluate_actions``, which is asked with ``num_steps`` only where decisions are chunks."""
    return (observations, actions) if num_steps is None else (observations, actions, num_steps)
