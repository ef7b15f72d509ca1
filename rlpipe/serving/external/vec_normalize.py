"""Statistics of a ``VecNormalize`` that Stable-Baselines3 saved, read without executing what the file says.

The file is a pickle. Its classes are replaced by stand-ins that keep what was saved and run nothing.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlpipe.errors import ConfigError

_RECORDS = {
    "stable_baselines3.common.vec_env.vec_normalize": {"VecNormalize"},
    "stable_baselines3.common.running_mean_std": {"RunningMeanStd"},
    "gymnasium.spaces.box": {"Box"},
    "gymnasium.spaces.dict": {"Dict"},
    "gymnasium.spaces.discrete": {"Discrete"},
    "gymnasium.spaces.multi_binary": {"MultiBinary"},
    "gymnasium.spaces.multi_discrete": {"MultiDiscrete"},
    "numpy.random._pickle": {"__generator_ctor", "__bit_generator_ctor"},
    "numpy.random._pcg64": {"PCG64"},
    "numpy.random.bit_generator": {"SeedSequence", "__pyx_unpickle_SeedSequence"},
}
"""Classes and constructors that a saved ``VecNormalize`` names; nothing of them is run."""


@dataclass(frozen=True)
class Normalizer:
    """Normalises observations as ``VecNormalize.normalize_obs`` does: clip((o - mean) / sqrt(variance + epsilon)).

    Attributes:
        moments: mean and variance by the name of an array; by an empty name where an observation is a single one.
        epsilon: as in the formula.
        clip: largest size of a normalised number.
    """

    moments: Mapping[str, tuple[NDArray[Any], NDArray[Any]]]
    epsilon: float
    clip: float

    def __call__(self, observation: Any) -> Any:
        """Returns an observation, an array or arrays by name, normalised in float64 and as float32.

        Raises:
            ValueError: it is another observation than that of the statistics.
        """
        arrays = observation if isinstance(observation, Mapping) else {"": observation}
        if missing := [name for name in self.moments if name not in arrays]:
            raise ValueError(f"it normalises {missing[0] or 'one array'}, and there is {', '.join(arrays) or 'one'}")
        normalized = {name: self._normalized(name, array) for name, array in arrays.items()}
        return normalized if isinstance(observation, Mapping) else normalized[""]

    def _normalized(self, name: str, array: NDArray[Any]) -> NDArray[Any]:
        if name not in self.moments:
            return array
        mean, variance = self.moments[name]
        scaled = (array.reshape(mean.shape) - mean) / np.sqrt(variance + self.epsilon)
        clipped: NDArray[np.float32] = np.clip(scaled, -self.clip, self.clip).astype(np.float32)
        return clipped.reshape(array.shape)


def read_normalizer(file: Path, key: str) -> Normalizer:
    """Reads the statistics of observations.

    Args:
        file: what ``VecNormalize.save`` wrote.
        key: option that names it, for errors.
    Raises:
        ConfigError: there is no such file, or it holds something else.
    """
    try:
        with file.open("rb") as stream:
            return _normalizer(_Inert(stream).load().state)
    except OSError as error:
        raise ConfigError(f"{key} is {file}, which cannot be read: {error.strerror}.") from error
    except Exception as error:  # a damaged pickle raises whatever its first wrong byte leads to
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}".rstrip(".")
        raise ConfigError(
            f"{key} is {file}, which is not what VecNormalize.save writes, so it is not read: {reason}."
        ) from error


def _normalizer(state: Mapping[str, Any]) -> Normalizer:
    """Returns the statistics in the attributes of a saved ``VecNormalize``."""
    statistics = state["obs_rms"] if state["norm_obs"] else {}
    if not isinstance(statistics, Mapping):
        statistics = {"": statistics}
    names = [name for name in statistics if not name or name in (state.get("norm_obs_keys") or statistics)]
    moments = {name: tuple(statistics[name].state[part].array for part in ("mean", "var")) for name in names}
    for mean, variance in moments.values():
        if mean.shape != variance.shape or not (np.isfinite(mean).all() and (variance >= 0).all()):
            raise ValueError("its moments are no means and variances")
    return Normalizer(moments, float(state["epsilon"]), float(state["clip_obs"]))


class _Inert(pickle.Unpickler):
    """Reads a pickle into records, whatever it asks to be called."""

    def find_class(self, module: str, name: str) -> Any:
        """Returns the stand-in of a class that a saved ``VecNormalize`` names.

        Raises:
            UnpicklingError: it names none of these.
        """
        if name in _RECORDS.get(re.sub(r"^gym\.", "gymnasium.", module), ()):
            return type("Record", (_Record,), {})  # of its own: a pickle can set attributes of what it gets
        if name in _NUMPY and re.fullmatch(r"numpy(\._?core\.(multiarray|numeric))?", module):
            stand_in = _NUMPY[name]
            return type(name, (stand_in,), {}) if isinstance(stand_in, type) else partial(stand_in)
        if (module, name) == ("collections", "OrderedDict"):
            return dict
        raise pickle.UnpicklingError(f"it names {module}.{name}")


class _Record:
    """Object that keeps its attributes in ``state``."""

    state: Any = None

    def __init__(self, *_: Any) -> None:
        """Takes any arguments, for nothing."""

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Type:
    """Type of numbers, of NumPy's own."""

    def __init__(self, code: str, *_: Any) -> None:
        self._code, self._order = code, "="

    def __setstate__(self, state: Any) -> None:
        self._order = "=" if state[1] == "|" else state[1]

    def read(self, data: bytes) -> NDArray[Any]:
        """Returns bytes as numbers of this type; none of a type that is no number."""
        if not re.fullmatch("[biuf][0-9]{1,2}", self._code):
            return np.empty(0)
        return np.frombuffer(data, np.dtype(self._order + self._code))


class _Array:
    """Array, in ``array`` once its contents are there."""

    array: NDArray[Any] = np.empty(0)

    def __init__(self, *_: Any) -> None:
        """Takes any arguments, for nothing."""

    def __setstate__(self, state: Any) -> None:
        _, shape, type_, is_fortran, data = state
        if isinstance(data, bytes):  # a list for an array of objects, which holds no numbers
            self.array = type_.read(data).reshape(shape, order="F" if is_fortran else "C")


def _number(type_: _Type, data: bytes) -> Any:
    return type_.read(data)[0]


def _buffer(data: bytes, type_: _Type, shape: tuple[int, ...], order: str) -> _Array:
    array = _Array()
    array.array = type_.read(data).reshape(shape, order="F" if order == "F" else "C")
    return array


_NUMPY: dict[str, Any] = {
    "dtype": _Type, "ndarray": _Array, "_reconstruct": _Array, "scalar": _number, "_frombuffer": _buffer,
}  # fmt: skip
"""Stand-ins for what NumPy pickles numbers with."""
