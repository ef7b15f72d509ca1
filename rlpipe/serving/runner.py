"""Acts with a trained policy: one observation in, one action out. Needs numpy, and for an export onnxruntime, alone.

A copy of this file lies beside every export::

    from runner import load

    policy = load("FOLDER")
    policy.reset()
    action = policy.act(observation)

``python runner.py`` shows what the policy takes and gives, and how long a decision takes on this machine.
"""

from __future__ import annotations

import json
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Observations = Any
"""One array [N, D], or arrays [N, ...] by the names of leaves."""
Decide = Callable[[Observations, Any, Any], tuple[NDArray[Any], Any]]
"""Turns observations, noise [N, W] or None, and memories [N, H] or None into actions [N, ...] and memories. Each row is
computed alone, so that no action depends on how many others are decided beside it."""
DRAWS: dict[str, Callable[[np.random.Generator, int], NDArray[Any]]] = {
    "normal": lambda generator, width: generator.standard_normal((1, width), dtype=np.float32),
    "uniform": lambda generator, width: generator.random((1, width), dtype=np.float32),
    "gumbel": lambda generator, width: generator.gumbel(size=(1, width)).astype(np.float32),
}


class ActingPolicy:
    """A policy that acts. Chunks, memory, noise, normalisation and bounds are its own business.

    Attributes:
        card: facts about the policy: ``spaces`` of one environment, ``chunk_size`` (k, actions of a decision),
            ``execute`` (how many of them are taken before it decides anew), ``memory_width`` (numbers that it remembers
            of an episode, H), ``deterministic`` (True if it takes its most likely actions), and where it comes from.
    """

    def __init__(
        self,
        decide: Decide,
        card: Mapping[str, Any],
        noise: Callable[[np.random.Generator], NDArray[Any]] | None = None,
        seed: int = 0,
    ) -> None:
        """Takes what decides.

        Args:
            decide: takes the decisions.
            card: as of the class.
            noise: draws the [1, W] noise of a decision; None draws what the card says.
            seed: seed of the first episode; those after it have the seeds that follow.
        """
        self.card = dict(card)
        self._decide, self._noise, self._seed = decide, noise or self._drawn, seed
        spaces = self.card["spaces"]
        self._leaves: dict[str, Any] | None = spaces["leaves"]
        self._is_discrete = spaces["num_actions"] is not None
        self._action_shape = () if isinstance(spaces["num_actions"], int) else (spaces["action_dim"],)
        if not self._is_discrete:
            low, high = spaces["action_low"], spaces["action_high"]
            self._low, self._high = (np.asarray([float(x) for x in bound], np.float32) for bound in (low, high))
        self._generators: list[np.random.Generator] = []
        self._memories: list[NDArray[Any]] = []
        self._planned: list[deque[NDArray[Any]]] = []

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
            self._generators, self._memories, self._planned = [], [], []
            return
        numbers = np.asarray(rows)
        for row in np.flatnonzero(numbers) if numbers.dtype == bool else numbers:
            if not 0 <= row < len(self._planned):
                raise ValueError(f"there is no row {row} to reset: the last batch had {len(self._planned)}.")
            self._begin(int(row))

    def fresh(self, seed: int = 0) -> ActingPolicy:
        """Returns the same policy in an episode of its own, for another client or another loop beside this one.

        Args:
            seed: as of the class.
        """
        return ActingPolicy(self._decide, self.card, self._noise, seed)

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
        observations, count, is_batch = self._batch(observation)
        self._begin_all(count)
        if due := [row for row in range(count) if not self._planned[row]]:
            for row, chunk in zip(due, self._decided(rows_of(observations, due), due), strict=True):
                self._planned[row].extend(chunk[: self.card["execute"]])
        actions = np.stack([planned.popleft() for planned in self._planned])
        return actions if is_batch else actions[0]

    def act_chunk(self, observation: Any) -> NDArray[Any]:
        """Decides on one observation now, whatever was planned.

        Returns:
            All actions of the decision, [k, A], or [k] or [k, M] integers.
        Raises:
            ValueError: as of ``act``, or it is a batch.
        """
        observations, count, is_batch = self._batch(observation)
        if is_batch:
            raise ValueError("act_chunk takes one observation, not a batch.")
        self._begin_all(count)
        chunk: NDArray[Any] = self._decided(observations, [0])[0]
        return chunk

    def _begin_all(self, count: int) -> None:
        """Begins the first episodes since the last reset, of so many environments."""
        if not self._planned:
            for row in range(count):
                self._begin(row)
        if count != len(self._planned):
            raise ValueError(
                f"there are {count} observations, but {len(self._planned)} since the last reset: call reset() before "
                "the number of environments changes."
            )

    def _begin(self, row: int) -> None:
        generator = np.random.default_rng([self.card["entropy"], self._seed])
        memory, planned = np.zeros(self.card["memory_width"], np.float32), deque[NDArray[Any]]()
        self._generators[row : row + 1] = [generator]
        self._memories[row : row + 1], self._planned[row : row + 1] = [memory], [planned]
        self._seed += 1

    def _drawn(self, generator: np.random.Generator) -> NDArray[Any]:
        return np.concatenate([DRAWS[kind](generator, width) for kind, width in self.card["noise"]], axis=1)

    def _decided(self, observations: Observations, rows: Sequence[int]) -> NDArray[Any]:
        """Returns the decisions [N, k, ...] of some rows, within the bounds."""
        noise = memories = None
        if not self.card["deterministic"]:
            noise = np.concatenate([self._noise(self._generators[row]) for row in rows])
        if self.card["memory_width"]:
            memories = np.stack([self._memories[row] for row in rows])
        decided, memories = self._decide(observations, noise, memories)
        if memories is not None:
            for row, memory in zip(rows, memories, strict=True):
                self._memories[row] = memory
        actions = decided.reshape(len(rows), self.card["chunk_size"], *self._action_shape)
        return actions if self._is_discrete else np.minimum(np.maximum(actions, self._low), self._high)

    def _batch(self, observation: Any) -> tuple[Observations, int, bool]:
        """Returns observations [N, ...], N, and False if it was a single one."""
        if self._leaves is None:
            array, is_batch = batch_of(observation, (self.card["spaces"]["observation_dim"],), "float32", "observation")
            return array, len(array), is_batch
        arrays = dict(flat_leaves(observation))
        if missing := [name for name in self._leaves if name not in arrays]:
            raise ValueError(
                f"the observation lacks {', '.join(missing)}: the policy observes {', '.join(self._leaves)}, and it "
                f"has {', '.join(arrays) or 'nothing'}."
            )
        batches = {
            name: batch_of(arrays[name], tuple(leaf["shape"]), leaf["dtype"], name, leaf.get("choices"))
            for name, leaf in self._leaves.items()
        }
        if len({(len(array), is_batch) for array, is_batch in batches.values()}) > 1:
            counts = ", ".join(f"{name} {len(array)}" for name, (array, _) in batches.items())
            raise ValueError(f"the leaves of the observation have different numbers of rows: {counts}.")
        array, is_batch = next(iter(batches.values()))
        return {name: array for name, (array, _) in batches.items()}, len(array), is_batch


def observed_leaves(card: Mapping[str, Any]) -> dict[str, Any]:
    """Returns ``shape`` and ``dtype`` of each leaf of an observation; of one that is a vector, as ``observation``."""
    spaces = card["spaces"]
    return spaces["leaves"] or {"observation": {"shape": [spaces["observation_dim"]], "dtype": "float32"}}


def rows_of(observations: Observations, rows: Sequence[int]) -> Observations:
    """Selects rows of observations."""
    if isinstance(observations, dict):
        return {name: array[rows] for name, array in observations.items()}
    return observations[rows]


def flat_leaves(observation: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the arrays of a nested mapping under the names that simulators give them, such as ``camera/rgb``."""
    if isinstance(observation, Mapping | tuple):
        entries = observation.items() if isinstance(observation, Mapping) else enumerate(observation)
        for name, value in entries:
            yield from flat_leaves(value, f"{prefix}/{name}" if prefix else str(name))
    else:
        yield prefix or "observation", observation


def batch_of(
    value: Any, shape: tuple[int, ...], dtype: str, name: str, choices: Sequence[int] | None = None
) -> tuple[NDArray[Any], bool]:
    """Returns an array as rows of a shape, and False if it was a single row.

    Args:
        value: array, or what becomes one.
        shape: shape of a row.
        dtype: type of the numbers.
        name: name of the leaf, for errors.
        choices: of categories, how many values each entry of a row can have, in C order; None for numbers.
    Raises:
        ValueError: it has another shape or kind of numbers, one that is not finite, or no such category.
    """
    array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
    is_vector, size = len(shape) == 1, math.prod(shape)
    if array.shape == shape or (is_vector and array.size == size and array.shape[:1] != (1,)):
        rows, is_batch = array.reshape(1, *shape), False
    elif array.shape[1:] == shape or (is_vector and array.ndim > 1 and len(array) and array[0].size == size):
        rows, is_batch = array.reshape(len(array), *shape), True
    else:
        every = ", ".join(map(str, ("N", *shape)))
        raise ValueError(f"{name} has the shape {array.shape}; the policy takes {shape}, or ({every}).")
    if array.dtype.kind not in "biuf" or not np.can_cast(array.dtype, dtype, "same_kind"):
        raise ValueError(f"{name} holds {array.dtype}; the policy takes {dtype}.")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError(f"{name} holds a number that is not finite.")
    if choices is not None and not ((rows >= 0) & (rows < np.reshape(choices, shape))).all():
        raise ValueError(f"{name} is {array.tolist()}; categories are counted from 0, and there are {list(choices)}.")
    return np.ascontiguousarray(rows, dtype=dtype), is_batch


def load(folder: str | Path = ".", *, seed: int = 0) -> ActingPolicy:
    """Loads an export.

    Args:
        folder: folder with ``policy.onnx`` and ``card.json``.
        seed: as of ``ActingPolicy``.
    """
    path = Path(folder)
    card = json.loads((path / "card.json").read_text(encoding="utf-8"))
    return ActingPolicy(onnx_decisions(open_graph(path / "policy.onnx")), card, seed=seed)


def open_graph(file: Path) -> Any:
    """Opens an ONNX graph on one core of the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # one decision is small, and a thread would wake others up for nothing
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


def onnx_decisions(session: Any) -> Decide:
    """Returns what decides by an ONNX graph: inputs ``obs`` or ``obs.<leaf>``, ``noise`` and ``memory``, outputs
    ``actions`` and ``memory_out``; ``noise`` and ``memory`` where the policy has any."""
    inputs, outputs = ([entry.name for entry in entries] for entries in (session.get_inputs(), session.get_outputs()))

    def decide(observations: Observations, noise: Any, memories: Any) -> tuple[NDArray[Any], Any]:
        feed = {name: array for name, array in graph_inputs(observations, noise, memories).items() if name in inputs}
        count = len(next(iter(feed.values())))
        rows = [session.run(outputs, {name: array[n : n + 1] for name, array in feed.items()}) for n in range(count)]
        merged = [np.concatenate(arrays) for arrays in zip(*rows, strict=True)]
        return merged[0], merged[1] if len(merged) > 1 else None

    return decide


def graph_inputs(observations: Observations, noise: Any, memories: Any) -> dict[str, NDArray[Any]]:
    """Returns what a decision reads, by the names of the inputs of a graph; without noise or memories that are None."""
    leaves = observations if isinstance(observations, dict) else {"": observations}
    feed = {f"obs.{name}" if name else "obs": array for name, array in leaves.items()}
    return {name: array for name, array in (feed | {"noise": noise, "memory": memories}).items() if array is not None}


def main() -> None:
    """Shows the policy that lies beside this file."""
    policy = load(Path(__file__).parent)
    leaves = observed_leaves(policy.card)
    for name, leaf in leaves.items():
        print(f"takes {name}: {leaf['dtype']} {leaf['shape']}")
    zeros = {name: np.zeros(leaf["shape"], leaf["dtype"]) for name, leaf in leaves.items()}
    observation = zeros if policy.card["spaces"]["leaves"] else zeros["observation"]
    action = policy.act_chunk(observation)
    print(f"gives {action.dtype} {list(action.shape)}, {policy.card['execute']} of them taken: {action.tolist()}")
    began = time.perf_counter()
    for _ in range(200):
        policy.act_chunk(observation)
    print(f"a decision takes {(time.perf_counter() - began) * 5:.2f} ms")


if __name__ == "__main__":
    main()
