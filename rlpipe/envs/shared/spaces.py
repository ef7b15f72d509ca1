"""Translates Gymnasium's spaces to ours, and values from one to the other.

Importing this file imports no Gymnasium.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlpipe.envs.shared.checks import beyond, categories, fitted, shown
from rlpipe.errors import ConfigError, ContractError
from rlpipe.plugins import nearest
from rlpipe.trajectory import LeafSpec, Observations, SpaceSpec, Tree

_FLOAT32 = np.dtype(np.float32)
ONLY = "observation"
"""Name of the leaf where an observation is one array, but not a vector of numbers."""


class _Leaf(NamedTuple):
    """A leaf of an observation space: its description, its keys, and what turns a value of a shape into its array."""

    spec: LeafSpec
    way: tuple[Any, ...]
    convert: Callable[[Any, tuple[int, ...]], NDArray[Any]]
    space: Any


class Spaces:
    """The spaces of one environment.

    A Box of fractions, or of bytes that are no picture, is flattened to one float32 vector. Everything else is a tree:
    a Dict or Tuple has a leaf for each space in it, whatever the depth; a Box keeps its shape there, and, unless it
    holds fractions, its dtype. Discrete and MultiDiscrete count from 0.

    Attributes:
        spec: what a policy must know.
    """

    def __init__(self, observation_space: Any, action_space: Any, name: str, ignored: Collection[str] = ()) -> None:
        """Translates both spaces.

        Args:
            observation_space: Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of those and of themselves.
            action_space: Box, Discrete, MultiDiscrete or MultiBinary.
            name: the environment's, for the error.
            ignored: leaves that are left out, or dictionaries with all their leaves; they may be of any space.
        Raises:
            ConfigError: no policy can use these spaces, or an ignored name does not exist.
        """
        from gymnasium.spaces import Box, MultiBinary

        self._name = name
        self._space, self._shape = observation_space, observation_space.shape
        is_box = isinstance(observation_space, Box)
        is_picture = is_box and len(self._shape) >= 2 and observation_space.dtype == np.uint8
        self._vector = (is_box and not is_picture) or isinstance(observation_space, MultiBinary)
        self._met = dict.fromkeys(ignored, False)  # ignored names, and if there is something of that name
        self._leaves = {} if self._vector else _apart(self._walk(observation_space, ()))
        self._check_ignored()
        shape, actions, self._start = self._actions(action_space)
        self._action_shape = action_space.shape
        whole = isinstance(action_space, Box) and action_space.dtype.kind in "iu"
        self._whole_actions = action_space if whole else None
        if self._vector:
            self.spec = SpaceSpec(math.prod(observation_space.shape), math.prod(shape), *actions)
        else:
            leaves = {name: leaf.spec for name, leaf in self._leaves.items()}
            self.spec = SpaceSpec.of_tree(leaves, math.prod(shape), *actions)

    def _walk(self, space: Any, way: tuple[Any, ...]) -> Iterator[tuple[str, _Leaf]]:
        """Yields the leaves of a space, each with its name."""
        from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

        name = "/".join(map(str, way))
        if name in self._met:
            self._met |= {each: True for each in self._met if f"{each}/".startswith(f"{name}/")}
            return
        if isinstance(space, Dict | Tuple):
            within = space.spaces.items() if isinstance(space, Dict) else enumerate(space.spaces)
            leaves = list(itertools.chain.from_iterable(self._walk(inner, (*way, key)) for key, inner in within))
            if not leaves and not way:
                left = " once ignore_observations is left out of them" if self._met else ""
                raise ConfigError(f"{self._name} has observations {space}, which hold nothing{left}.")
            yield from leaves
            return
        name = name or ONLY
        if isinstance(space, Box):
            dtype = np.dtype(np.float32) if space.dtype.kind == "f" else space.dtype
            yield name, _Leaf(LeafSpec(space.shape, str(dtype)), way, _as(dtype, name), space)
        elif isinstance(space, MultiBinary):
            yield name, _Leaf(LeafSpec(space.shape, "int8"), way, _as(np.dtype(np.int8), name), space)
        elif isinstance(space, Discrete):
            yield name, _Leaf(LeafSpec((), "int64", (int(space.n),)), way, _from_start(space, space.n, name), space)
        elif isinstance(space, MultiDiscrete):
            choices = tuple(int(count) for count in space.nvec.ravel())
            convert = _from_start(space, space.nvec, name)
            yield name, _Leaf(LeafSpec(space.shape, "int64", choices), way, convert, space)
        else:
            leave_out = f"Leave it out with ignore_observations=[{name}], or turn" if way else "Turn"
            raise ConfigError(
                f"{self._name} has the observation {name} in {type(space).__name__}, which no policy can use; Box, "
                f"Discrete, MultiDiscrete, MultiBinary, Dict and Tuple work. {leave_out} it into one of them "
                "where the task is made: gymnasium.wrappers.TransformObservation(env, function, space)."
            )

    def _check_ignored(self) -> None:
        """Checks that everything that is ignored was there."""
        for name, met in self._met.items():
            if not met:
                there = f"There are {', '.join(self._leaves)}." if self._leaves else "It observes one vector."
                raise ConfigError(
                    f"ignore_observations names {name!r}, which {self._name} does not observe"
                    f"{nearest(name, self._leaves)} {there}"
                )

    def _actions(self, space: Any) -> tuple[tuple[int, ...], tuple[Any, ...], Any]:
        """Shape of one action, the fields of its ``SpaceSpec``, and the number of the first discrete action."""
        from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete

        if isinstance(space, Discrete):
            return (), (int(space.n),), int(space.start)
        if isinstance(space, MultiDiscrete):
            return (space.nvec.size,), (tuple(int(count) for count in space.nvec.ravel()),), space.start
        if isinstance(space, MultiBinary):
            size = math.prod(space.shape)
            return (size,), ((2,) * size,), None
        if isinstance(space, Box):
            with np.errstate(over="ignore"):  # the largest float64 is infinite here
                bounds = [bound.astype(np.float32).ravel() for bound in (space.low, space.high)]
            return space.shape, (None, *bounds), None
        raise ConfigError(
            f"{self._name} has actions in {type(space).__name__}; Discrete, MultiDiscrete, MultiBinary and Box work. "
            "Turn them into one of these where the task is made: gymnasium.wrappers.TransformAction(env, function, "
            "space), whose function takes an action of that space and returns one of the task."
        )

    def observation(self, value: Any) -> Observations:
        """Turns an observation of the environment into ours: [D] float32, or a tree."""
        if self._vector:
            vector = fitted(value, self._shape, _FLOAT32, "")
            return vector if vector.ndim == 1 else vector.ravel()
        return Tree(
            {name: leaf.convert(self._reach(value, leaf), leaf.spec.shape) for name, leaf in self._leaves.items()}
        )

    def observations(self, values: Any, count: int) -> Observations:
        """Turns a copy of N observations of a vectorised environment into ours; as of ``observation``."""
        if self._vector:
            return np.array(fitted(values, (count, *self._shape), _FLOAT32, "")).reshape(count, -1)
        return Tree({
            name: np.array(leaf.convert(self._reach(values, leaf), (count, *leaf.spec.shape)))
            for name, leaf in self._leaves.items()
        })  # fmt: skip

    def final(self, values: Any, n: int) -> Observations:
        """Turns the last observation of one of N environments, which Gymnasium keeps in the info, into ours."""
        try:
            if self._vector or not isinstance(values, dict):
                return self.observation(values[n])
            leaves = {name: self._reach(values, leaf)[n] for name, leaf in self._leaves.items()}
        except (KeyError, IndexError, TypeError) as error:
            raise ContractError(
                f"final_obs is {shown(values)}; an observation for each environment is expected"
            ) from error
        return Tree({name: leaf.convert(leaves[name], leaf.spec.shape) for name, leaf in self._leaves.items()})

    def beyond(self, value: Any) -> Iterator[str]:
        """Yields a sentence on each leaf of an observation that lies beyond its declared bounds."""
        leaves = [(name, leaf.way, leaf.space) for name, leaf in self._leaves.items()]
        for name, way, space in leaves or [("", (), self._space)]:
            low, high = np.asarray(getattr(space, "low", 0)), np.asarray(getattr(space, "high", 1))  # of a MultiBinary
            if not hasattr(space, "start") and (sentence := beyond(np.asarray(_reach(value, way)), low, high, name)):
                yield sentence

    def _reach(self, value: Any, leaf: _Leaf) -> Any:
        """Value of a leaf in a nested observation."""
        try:
            return _reach(value, leaf.way)
        except (KeyError, IndexError, TypeError) as error:
            there = f"the observation lacks {'/'.join(map(str, leaf.way))!r}, which observation_space declares"
            instead = f"it has {', '.join(map(str, value))}" if isinstance(value, Mapping) else f"it is {shown(value)}"
            raise ContractError(f"{there}; {instead}") from error

    def action(self, action: Any) -> Any:
        """Turns an action of a policy into one of the environment."""
        shaped = np.asarray(action)
        return self._translated(shaped if shaped.shape == self._action_shape else shaped.reshape(self._action_shape))

    def actions(self, actions: NDArray[Any]) -> NDArray[Any]:
        """Turns N actions of a policy into those of N environments."""
        translated: NDArray[Any] = self._translated(actions.reshape(len(actions), *self._action_shape))
        return translated

    def _translated(self, shaped: NDArray[Any]) -> Any:
        """Returns actions of the environments' shape with their numbers."""
        if (whole := self._whole_actions) is not None:  # float64 holds the bounds of int32, which float32 rounds up
            return np.clip(np.rint(shaped.astype(np.float64)), whole.low, whole.high).astype(whole.dtype)
        return shaped if self._start is None else shaped + self._start


def spec_of(observation: Observations, low: Any, high: Any) -> SpaceSpec:
    """Returns the spaces of an environment with such an observation, and with actions between two bounds [A]."""
    actions = (len(low), None, np.asarray(low, dtype=np.float32), np.asarray(high, dtype=np.float32))
    if not isinstance(observation, Tree):
        return SpaceSpec(len(observation), *actions)
    leaves = {name: LeafSpec(np.shape(leaf), str(leaf.dtype)) for name, leaf in observation.leaves.items()}
    return SpaceSpec.of_tree(leaves, *actions)


def _as(dtype: np.dtype[Any], name: str) -> Callable[[Any, tuple[int, ...]], NDArray[Any]]:
    return lambda value, shape: fitted(value, shape, dtype, name)


def _from_start(space: Any, counts: Any, name: str) -> Callable[[Any, tuple[int, ...]], NDArray[Any]]:
    number = np.asarray(counts, dtype=np.uint64)
    return lambda value, shape: categories(value, shape, space.start, number, name)


def _apart(leaves: Iterable[tuple[str, _Leaf]]) -> dict[str, _Leaf]:
    """Leaves by name, where those of ``a/b`` and of b in a would have the same: the second is ``a/b~2``."""
    by_name: dict[str, _Leaf] = {}
    for name, leaf in leaves:
        free = name if name not in by_name else next(
            other for number in itertools.count(2) if (other := f"{name}~{number}") not in by_name
        )  # fmt: skip
        by_name[free] = leaf
    return by_name


def _reach(value: Any, way: tuple[Any, ...]) -> Any:
    """Value of a leaf in a nested observation."""
    return functools.reduce(operator.getitem, way, value)
