"""A trained policy as a robot or a notebook uses it: one observation in, one action out."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rlpipe.collection.actions import PolicyActions, RunningEpisode
from rlpipe.policies.base import Acting
from rlpipe.trajectory import Observations, SpaceSpec, Tree


class ActingPolicy:
    """A policy that acts. Chunks, memory, noise, normalisation and bounds are its own business.

    Attributes:
        spaces: observations and actions of one environment.
        chunk_size: actions of a decision, k.
        execute: how many of them are taken before it decides anew.
        memory_width: numbers that it remembers of an episode, H; 0 for none.
        deterministic: True if it takes its most likely actions.
        facts: where it comes from and how well it does: ``run_id``, ``iteration``, ``experiment``, ``task``.
    """

    def __init__(
        self,
        policy: Acting,
        spaces: SpaceSpec,
        *,
        chunk_size: int,
        execute: int,
        memory_width: int,
        deterministic: bool,
        entropy: int,
        seed: int,
        facts: Mapping[str, Any],
    ) -> None:
        """Takes a policy with its weights.

        Args:
            policy: takes the decisions.
            spaces: as of the class.
            chunk_size: as of the class.
            execute: as of the class.
            memory_width: as of the class.
            deterministic: as of the class.
            entropy: ``runner.seed`` of its run: with it, an episode of a seed draws what the evaluation drew in it.
            seed: seed of the first episode; those after it have the seeds that follow.
            facts: as of the class.
        """
        self.spaces, self.chunk_size, self.execute, self.memory_width = spaces, chunk_size, execute, memory_width
        self.deterministic, self.facts = deterministic, dict(facts)
        self._source = PolicyActions(policy, deterministic=deterministic, memory_width=memory_width)
        self._entropy, self._seed = entropy, seed
        self._episodes: list[RunningEpisode] = []
        self._actions: list[deque[NDArray[Any]]] = []

    def reset(self, rows: Collection[int] | NDArray[Any] | None = None, *, seed: int | None = None) -> None:
        """Begins an episode: forgets what was remembered and planned.

        Args:
            rows: of a batch of environments, those whose episode has ended, as numbers or as a mask; None for all.
            seed: seed of the next episode, where actions are sampled; None continues with the next number.
        Raises:
            ValueError: there is no such row.
        """
        self._seed = self._seed if seed is None else seed
        if rows is None:
            self._episodes, self._actions = [], []
            return
        numbers = np.asarray(rows)
        for row in np.flatnonzero(numbers) if numbers.dtype == bool else numbers:
            if not 0 <= row < len(self._episodes):
                raise ValueError(f"there is no row {row} to reset: the last batch had {len(self._episodes)}.")
            self._episodes[row], self._actions[row] = self._begun(), deque()

    def act(self, observation: Any) -> Any:
        """Returns the action to take next.

        Args:
            observation: as the environment gives it: an array [D], or a mapping of arrays, nested or not; or a batch,
                [N, D] or a mapping of arrays [N, ...], of N environments side by side.
        Returns:
            Action as the environment takes it: an array [A] within its bounds, or an integer, or M of them; for a batch
            [N, ...].
        Raises:
            ValueError: it is no observation of this policy, or the batch has another size than since the last reset.
        """
        observations, is_batch = self._batch(observation)
        count = len(observations)
        if not self._episodes:
            self._episodes, self._actions = [self._begun() for _ in range(count)], [deque() for _ in range(count)]
        if count != len(self._episodes):
            raise ValueError(
                f"there are {count} observations, but {len(self._episodes)} since the last reset: call reset() before "
                "the number of environments changes."
            )
        if due := [row for row in range(count) if not self._actions[row]]:
            for row, chunk in zip(due, self._decided(observations[due], due), strict=True):
                self._actions[row].extend(chunk[: self.execute])
        actions = np.stack([planned.popleft() for planned in self._actions])
        return actions if is_batch else actions[0]

    def act_chunk(self, observation: Any) -> Any:
        """Decides on one observation now, whatever was planned.

        Returns:
            All actions of the decision, [k, A], or [k] or [k, M] integers.
        """
        observations, is_batch = self._batch(observation)
        if is_batch:
            raise ValueError("act_chunk takes one observation, not a batch.")
        if not self._episodes:
            self._episodes, self._actions = [self._begun()], [deque()]
        return self._decided(observations, [0])[0]

    def _begun(self) -> RunningEpisode:
        episode = RunningEpisode(0, np.random.default_rng([self._entropy, self._seed]))
        self._seed += 1
        return episode

    @torch.inference_mode()
    def _decided(self, observations: Observations, rows: Sequence[int]) -> NDArray[Any]:
        """Returns the decisions [N, k, ...] of some rows, within the bounds."""
        decided = self._source.actions(observations, [self._episodes[row] for row in rows])
        actions = decided.reshape(len(rows), self.chunk_size, *self.spaces.action_shape)
        return actions if self.spaces.num_actions else self.spaces.clip(actions)

    def _batch(self, observation: Any) -> tuple[Observations, bool]:
        """Returns observations [N, ...], and False if they were a single one."""
        leaves = self.spaces.leaves
        if leaves is None:
            return batch_of(observation, (self.spaces.observation_dim,), "float32", "the observation")
        arrays = dict(flat_leaves(observation))
        if missing := [name for name in leaves if name not in arrays]:
            raise ValueError(
                f"the observation lacks {', '.join(missing)}: the policy observes {', '.join(leaves)}, and it has "
                f"{', '.join(arrays) or 'nothing'}."
            )
        shaped = {name: batch_of(arrays[name], leaf.shape, leaf.dtype, name) for name, leaf in leaves.items()}
        if len({(len(array), is_batch) for array, is_batch in shaped.values()}) > 1:
            sizes = ", ".join(f"{name} {len(array) if is_batch else 1}" for name, (array, is_batch) in shaped.items())
            raise ValueError(f"the leaves of the observation have different numbers of rows: {sizes}.")
        is_batch = next(iter(shaped.values()))[1]
        return Tree({name: array for name, (array, _) in shaped.items()}), is_batch


def flat_leaves(observation: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the arrays of a nested mapping under the names that simulators give them, such as ``camera/rgb``."""
    if isinstance(observation, Tree):
        observation = observation.leaves
    if isinstance(observation, Mapping):
        for name, value in observation.items():
            yield from flat_leaves(value, f"{prefix}/{name}" if prefix else str(name))
    elif isinstance(observation, tuple):
        for index, value in enumerate(observation):
            yield from flat_leaves(value, f"{prefix}/{index}" if prefix else str(index))
    else:
        yield prefix or "observation", observation


def batch_of(value: Any, shape: tuple[int, ...], dtype: str, name: str) -> tuple[NDArray[Any], bool]:
    """Returns an array as rows of a shape, and False if it was a single row.

    Raises:
        ValueError: it has another shape, or numbers that are not finite.
    """
    array = np.asarray(value.detach().cpu() if isinstance(value, torch.Tensor) else value)
    size = int(np.prod(shape))
    if array.shape == shape or (len(shape) == 1 and array.size == size and array.shape[:1] != (1,)):
        rows, is_batch = array.reshape(1, *shape), False
    elif array.shape[1:] == shape or (len(shape) == 1 and array.ndim > 1 and array[0].size == size):
        rows, is_batch = array.reshape(len(array), *shape), True
    else:
        raise ValueError(
            f"{name} has the shape {array.shape}; the policy takes {shape}, or rows of that, (N, "
            f"{', '.join(map(str, shape))})."
        )
    if array.dtype.kind not in "biuf" or not np.can_cast(array.dtype, dtype, "same_kind"):
        raise ValueError(f"{name} holds {array.dtype}; the policy takes {dtype}.")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError(f"{name} holds a number that is not finite.")
    return np.ascontiguousarray(rows, dtype=dtype), is_batch
