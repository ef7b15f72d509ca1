"""Checks of what simulators return, against the step contract and the declared spaces.

Every value of a step passes one of these functions, which raises a ``ContractError`` that names the field. They cost
little enough for each step. Importing this file imports no simulator.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rlpipe.errors import ContractError
from rlpipe.trajectory import Observations, SpaceSpec, Tree

if TYPE_CHECKING:
    from rlpipe.envs.base import Step

SHOWN = 60
"""Characters of a value that an error shows."""


def shown(value: Any) -> str:
    """Returns a value as an error shows it: its beginning, and the type of an array or object."""
    try:
        text = " ".join(repr(value).split())
    except Exception:
        text = f"of type {type(value).__name__}"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def without_names(kind: str, numbers: Any) -> str:
    """Note on numbers that were given without names, such as one instead of a dict."""
    return f"The {kind}s are of type {type(numbers).__name__}, no dict of numbers: they are left out."


def number(value: Any, name: str) -> float:
    """Returns a number, which may be the only one of an array."""
    if isinstance(value, float):  # the quick way of nearly all
        return value
    converted = number_or_none(value)
    if converted is None:
        raise ContractError(f"the {name} is {shown(value)}; one number is expected")
    return converted


def number_or_none(value: Any) -> float | None:
    """Returns a number, which may be the only one of an array; None for everything else."""
    if isinstance(value, int | float):
        try:
            return float(value)
        except OverflowError:
            return None
    array = array_or_none(value)
    return float(array.reshape(-1)[0]) if array is not None and array.size == 1 else None


def flag(value: Any, name: str) -> bool:
    """Returns a truth value: true, false, 0 or 1, alone or as the only one of an array."""
    if value is True or value is False:
        return value
    converted = number_or_none(value)
    if converted not in (0.0, 1.0):
        raise ContractError(f"{name} is {shown(value)}; true, false, 0 or 1 is expected")
    return converted == 1.0


def flags(values: Any, name: str, count: int) -> NDArray[np.bool_]:
    """Returns [N] truth values."""
    array = array_or_none(values)
    if array is None or array.size != count or (array.dtype.kind != "b" and not np.isin(array, (0, 1)).all()):
        raise ContractError(f"{name} is {shown(values)}; {count} of true, false, 0 or 1 are expected")
    return np.array(array.reshape(count), dtype=bool)


def numbers(values: Any, name: str, count: int) -> NDArray[np.float64]:
    """Returns [N] numbers."""
    array = array_or_none(values)
    if array is None or array.size != count:
        raise ContractError(f"the {name} is {shown(values)}; {count} numbers are expected, one for each environment")
    return np.array(array.reshape(count), dtype=np.float64)


def array_or_none(value: Any) -> NDArray[Any] | None:
    """Array of numbers or truth values; None if it is something else."""
    try:
        array = np.asarray(value)
    except Exception:  # an object may raise anything
        return None
    return array if array.dtype.kind in "biuf" else None


def fitted(value: Any, shape: tuple[int, ...], dtype: np.dtype[Any], name: str) -> NDArray[Any]:
    """Returns an observation, or a leaf of one, as an array of its declared shape and dtype; nothing is spread or lost.

    Args:
        value: as the simulator gave it.
        shape: as declared.
        dtype: of the result.
        name: of the leaf, for the error; empty for the whole observation.
    """
    if type(value) is np.ndarray and value.dtype is dtype and value.shape == shape:  # the quick way of nearly all
        return value
    array = value if isinstance(value, np.ndarray) else array_or_none(value)
    if type(array) is np.ndarray and array.shape == shape and array.dtype.kind == "f" == dtype.kind:
        return array.astype(dtype)
    leaf = f"the observation {name!r}" if name else "the observation"
    if array is None or array.dtype.kind not in "biuf":
        raise ContractError(f"{leaf} is {shown(value)}; an array of numbers of shape {shape} is expected")
    if array.shape != shape:
        raise ContractError(f"{leaf} has shape {array.shape}, but observation_space declares {shape}")
    if array.dtype == dtype or dtype.kind == "f" or np.can_cast(array.dtype, dtype):
        return array.astype(dtype, copy=False)
    with np.errstate(invalid="ignore"):
        cast = array.astype(dtype)
    if not np.array_equal(cast, array):
        wrong = array[cast != array].ravel()[0]
        raise ContractError(f"{leaf} holds {wrong:g} as {array.dtype}, which {dtype}, as declared, cannot hold")
    return cast


def categories(
    value: Any, shape: tuple[int, ...], start: Any, counts: NDArray[np.uint64], name: str
) -> NDArray[np.int64]:
    """Returns categories that are counted from 0.

    Args:
        value: as the simulator gave it, counted from ``start``.
        shape: as declared, behind the axis of the environments if there is one.
        start: first number of the space.
        counts: number of categories of each entry.
        name: of the leaf, for the error.
    """
    from_zero = np.asarray(fitted(value, shape, np.dtype(np.int64), name) - start)
    if (from_zero.view(np.uint64) >= counts).any():  # below 0 it is a large number
        raise ContractError(
            f"the observation {name!r} is {shown(value)}, but observation_space declares {_range(start, counts)}"
        )
    return from_zero


def _range(start: Any, counts: NDArray[np.uint64]) -> str:
    first, number = np.broadcast_arrays(start, counts.astype(np.int64))
    each = dict.fromkeys(zip(first.ravel().tolist(), (first + number - 1).ravel().tolist(), strict=True))
    return ", ".join(f"{low} to {high}" for low, high in each)


def first_of(answer: Any) -> tuple[Any, bool | None]:
    """Returns the first observation of an episode, and True if the task is solved, from what a reset returned."""
    if not (isinstance(answer, tuple) and len(answer) == 2):
        raise ContractError(
            f"reset() returns {shown(answer)}; two values are expected: the observation, and the success"
        )
    observation, success = answer
    return observation, None if success is None else flag(success, "the success of a reset")


def place(observations: Observations, n: int, observation: Any, spec: SpaceSpec) -> None:
    """Writes the observation of one environment into the row of its slot.

    Args:
        observations: [N, ...].
        n: slot.
        observation: [D] or a tree.
        spec: spaces of the simulator.
    """
    if spec.leaves is None:
        if getattr(observation, "shape", None) != (spec.observation_dim,):
            observation = fitted(observation, (spec.observation_dim,), np.dtype(np.float32), "")
        observations[n] = observation
        return
    if not isinstance(observation, Tree):
        raise ContractError(f"the observation is {shown(observation)}; a tree of {', '.join(spec.leaves)} is expected")
    for name, leaf in spec.leaves.items():
        if name not in observation.leaves:
            raise ContractError(f"the observation lacks {name!r}, which the spaces declare")
        observations.leaves[name][n] = fitted(observation.leaves[name], leaf.shape, np.dtype(leaf.dtype), name)


def check_observations(observations: Any, spec: SpaceSpec, count: int) -> None:
    """Checks the shapes and types of observations [N, ...]."""
    if spec.leaves is None:
        declared: dict[str, tuple[tuple[int, ...], Any]] = {"": ((spec.observation_dim,), np.float32)}
    else:
        declared = {name: (leaf.shape, leaf.dtype) for name, leaf in spec.leaves.items()}
        if not isinstance(observations, Tree) or declared.keys() - observations.leaves.keys():
            raise ContractError(
                f"the observations are {shown(observations)}; a tree of {', '.join(declared)} is expected"
            )
    for name, (shape, dtype) in declared.items():
        array = observations.leaves[name] if name else observations
        leaf_name = f" {name!r}" if name else ""
        if getattr(array, "shape", None) != (count, *shape):
            actual = getattr(array, "shape", None) or shown(array)
            raise ContractError(
                f"the observations{leaf_name} have shape {actual}, but the spaces declare {(count, *shape)}"
            )
        if not isinstance(array, np.ndarray) or array.dtype != dtype:
            raise ContractError(
                f"the observations{leaf_name} are {shown(array)} of {array.dtype}; an array of {np.dtype(dtype)} is "
                "expected"
            )


def check_beginnings(answer: Any) -> None:
    """Checks that the reset of a simulator returned observations and beginnings."""
    if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], Mapping)):
        raise ContractError(
            f"reset() returns {shown(answer)}; two values are expected: the observations, and the beginnings by slot"
        )


def check_step(step: Step, spec: SpaceSpec, count: int, *, has_success: bool) -> None:
    """Checks the shapes of a step of a simulator that makes it itself."""
    if not hasattr(step, "beginnings"):
        raise ContractError(f"a step is {shown(step)}; a Step is expected")
    for name in ("rewards", "terminated", "truncated", "valid", "success", "failure"):
        values = getattr(step, name)
        if values is None and (name == "failure" or (name == "success" and not has_success)):
            continue
        kinds = "b" if name in ("terminated", "truncated", "valid", "success") else "biuf"
        kind = getattr(getattr(values, "dtype", None), "kind", "")  # a tensor of torch has none
        if getattr(values, "shape", None) != (count,) or not kind or kind not in kinds:
            content = "truth values" if kinds == "b" else "numbers"
            raise ContractError(
                f"{name} of a step is {shown(values)}; an array of {count} {content} is expected, one for each "
                "environment"
            )
    for observations in (step.observations, step.successors):
        check_observations(observations, spec, count)


def beyond(value: NDArray[Any], low: NDArray[Any], high: NDArray[Any], name: str) -> str | None:
    """Returns a sentence on the first number beyond the declared bounds; None if all lie within, but for rounding."""
    margin = 1e-5 * np.maximum(1.0, np.where(np.isfinite(high), np.abs(high), 0.0))
    outside = (value < low - margin) | (value > high + margin)
    if not outside.any():
        return None
    first = int(np.argmax(outside.ravel()))
    leaf = f"The observation {name!r}" if name else "The observation"
    least, most = (np.broadcast_to(bound, value.shape).ravel()[first] for bound in (low, high))
    return (
        f"{leaf} holds {value.ravel()[first]:g}, beyond its declared bounds, {least:g} to {most:g}; it is used as it "
        "is."
    )


# --- the form of Gymnasium's interface


def check_reset_signature(env: Any) -> None:
    """Checks that the reset of an environment takes what Gymnasium's wrappers give it."""
    try:
        parameters = inspect.signature(env.reset).parameters
    except (TypeError, ValueError):  # compiled
        return
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    for name in ("seed", "options"):
        if name not in parameters:
            raise ContractError(
                f"reset() takes no {name}, as in Gym before 0.26; define reset(self, *, seed=None, options=None) and "
                "begin it with super().reset(seed=seed)"
            )


def check_reset_form(answer: Any) -> None:
    """Checks that a reset returned two values, an observation and an info."""
    if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], Mapping)):
        raise ContractError(
            f"reset() returns {shown(answer)} and no info, as in Gym before 0.26; return two values, the observation "
            "and a dictionary: return observation, {}"
        )


def check_step_form(answer: Any) -> None:
    """Checks that a step returned five values, the last of them an info."""
    if isinstance(answer, tuple) and len(answer) == 5 and (type(answer[4]) is dict or isinstance(answer[4], Mapping)):
        return
    if isinstance(answer, tuple) and len(answer) == 4:
        raise ContractError(
            "step() returns 4 values, as in Gym before 0.26; return five: observation, reward, terminated, truncated, "
            "info. In a subclass: observation, reward, done, info = super().step(action); return observation, reward, "
            "done, False, info"
        )
    if isinstance(answer, tuple) and len(answer) == 5:
        raise ContractError(f"the info of a step is {shown(answer[4])}; a dictionary is expected")
    returned = f"{len(answer)} values" if isinstance(answer, tuple) else shown(answer)
    raise ContractError(
        f"step() returns {returned}; five values are expected: observation, reward, terminated, truncated, info"
    )
