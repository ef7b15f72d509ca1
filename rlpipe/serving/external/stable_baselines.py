"""A policy that Stable-Baselines3 saved: ``--policy model.zip``, without executing anything in the file.

``PPO.load`` and the like unpickle classes and spaces from the file. Here the weights are read with ``weights_only``,
and the policy is built from what its JSON says in plain text and from the spaces of the task.
"""

from __future__ import annotations

import importlib
import io
import json
import logging
import math
import re
import zipfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rlpipe.collection.actions import RunningEpisode
from rlpipe.config.schema import ExternalConfig
from rlpipe.errors import ConfigError, PolicyError
from rlpipe.plugins import require
from rlpipe.serving.external.base import VECTOR, ExternalPolicy, digests_of_files
from rlpipe.serving.external.vec_normalize import Normalizer, read_normalizer
from rlpipe.trajectory import LeafSpec, SpaceSpec

_CLASSES = {
    "stable_baselines3.common.policies": "ActorCriticPolicy",
    "stable_baselines3.sac.policies": "SACPolicy",
    "stable_baselines3.td3.policies": "TD3Policy",
    "stable_baselines3.dqn.policies": "DQNPolicy",
}
"""Policies of PPO and A2C, SAC, TD3 and DDPG, and DQN, by the module that a file names."""
_LAYERS = "stable_baselines3.common.torch_layers"
"""Module of the extractors."""
_UNUSED = ("optimizer_class", "optimizer_kwargs")
"""Options of a policy that only learning needs."""
_INSTEAD = "Name a Python function that calls the policy, package.module:name."
_LARGEST = 2**31
"""Bytes of a part of the file that are read; a file can claim to hold more than there is memory."""


class StableBaselinesPolicy(ExternalPolicy):
    """Takes the most likely actions of a policy of PPO, A2C, SAC, TD3, DDPG or DQN, on the CPU, row by row.

    Where it was trained behind a ``VecNormalize``, the observations are normalised by its saved statistics.
    """

    def __init__(self, name: str, spec: SpaceSpec, config: ExternalConfig, option: str = "--policy") -> None:
        """Builds it once, so that what is wrong with it is known before anything starts.

        Raises:
            ConfigError: stable_baselines3 is missing, the file is something else, or its policy does not fit the task.
        """
        super().__init__(name, spec, config, option)
        require("stable_baselines3", "sb3", self.argument)
        self._file = Path(name).absolute()
        self._policy: Any = None
        self._normalizer: Normalizer | None = None
        self._open()
        self._normalizer = self._read_normalizer()
        try:
            self._read(self.shown(spec.observations(1)[0]))
        except ValueError as error:
            raise ConfigError(f"{self.argument}: its VecNormalize does not fit what it reads: {error}.") from error

    @classmethod
    def digests(cls, name: str, config: ExternalConfig) -> dict[str, str]:
        """Covers the model and its VecNormalize."""
        model = Path(name)
        normalizer = Path(config.normalizer) if config.normalizer else _normalizer_beside(model)
        return digests_of_files({"model": model} | ({} if normalizer is None else {"normalizer": normalizer}))

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_policy": None}

    def begin(self, episode: RunningEpisode) -> Any:
        """Returns nothing: none of these policies has a memory."""

    def ask(self, session: Any, observation: Any) -> Any:  # noqa: ARG002 - as of ``begin``
        try:
            return self._open().predict(self._read(observation), deterministic=True)[0]
        except Exception as error:
            raise PolicyError(self.name, f"raised {type(error).__name__}: {error}") from error

    def _read(self, observation: Any) -> Any:
        """Returns what the policy reads: an array, or arrays by name, normalised."""
        if isinstance(observation, Mapping) and not hasattr(self._open().observation_space, "spaces"):
            (observation,) = observation.values()
        return observation if self._normalizer is None else self._normalizer(observation)

    def _read_normalizer(self) -> Normalizer | None:
        """Returns the statistics that the configuration names, or else those that lie beside the policy."""
        if self.config.normalizer is not None:
            return read_normalizer(Path(self.config.normalizer).absolute(), "evaluation.external.normalizer")
        if (file := _normalizer_beside(self._file)) is None:
            return None
        _report_normalizer(self.argument, file.name)
        return read_normalizer(file, f"the VecNormalize of {self.argument}")

    def _open(self) -> Any:
        """Returns the policy of this process."""
        if self._policy is None:
            self._policy = self._built(*self._contents())
        return self._policy

    def _contents(self) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """Returns the JSON and the weights of the file.

        Raises:
            ConfigError: it is no such file, or its weights hold more than numbers.
        """
        try:
            with zipfile.ZipFile(self._file) as archive:
                parts = ("data", "policy.pth")
                if missing := [part for part in parts if part not in archive.namelist()]:
                    raise ValueError(f"it has no {' and no '.join(missing)}")
                if any(archive.getinfo(part).file_size > _LARGEST for part in parts):
                    raise ValueError(f"it claims to hold more than {_LARGEST >> 30} GiB")
                data, weights = (archive.read(part) for part in parts)
            return json.loads(data), torch.load(io.BytesIO(weights), map_location="cpu", weights_only=True)
        except OSError as error:
            raise ConfigError(f"{self.argument} cannot be read: {error.strerror}.") from error
        except Exception as error:  # a damaged archive raises whatever its first wrong byte leads to
            reason = str(error).strip().partition("\n")[0]
            raise ConfigError(
                f"{self.argument} is no model that Stable-Baselines3 saved, or holds more than numbers: {reason}"
            ) from error

    def _built(self, data: Mapping[str, Any], weights: Mapping[str, torch.Tensor]) -> Any:
        """Builds the policy, and gives it its weights."""
        class_, options = self._class(data), self._options(data)
        observed, acted = self._observation_space(data), _action_space(self.spec)
        self._check_shapes(data, observed, acted)
        if class_.__name__ == "ActorCriticPolicy":
            options["use_sde"] = bool(data.get("use_sde"))
        has_camera = any("features_extractor.cnn." in name for name in weights)
        stock = (
            "CombinedExtractor" if hasattr(observed, "spaces") else "NatureCNN" if has_camera else "FlattenExtractor"
        )
        options.setdefault("features_extractor_class", _class_of(f"{_LAYERS}.{stock}"))
        try:
            with torch.random.fork_rng(devices=[]):  # first weights are drawn, and the caller's numbers stay theirs
                policy = class_(observed, acted, lambda _: 0.0, **options)
            policy.load_state_dict(weights)
        except Exception as error:  # options and weights are those of a file, whatever they are
            reason = " ".join(str(error).split())
            raise ConfigError(
                f"{self.argument} does not fit this task, or another version of Stable-Baselines3 saved it: "
                f"{reason[:300]}"
            ) from error
        policy.set_training_mode(False)
        return policy

    def _class(self, data: Mapping[str, Any]) -> Any:
        """Returns the class of the policy, by the module that the file names.

        Raises:
            ConfigError: it is none of Stable-Baselines3's own.
        """
        module = _saved(data, "policy_class").get("__module__")
        if module not in _CLASSES:
            raise ConfigError(
                f"{self.argument} was saved with a policy class of {module or 'no module'}. Only those of PPO, "
                f"A2C, SAC, TD3, DDPG and DQN are read, because others need code that the file holds. {_INSTEAD}"
            )
        return getattr(importlib.import_module(module), _CLASSES[module])

    def _options(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Returns ``policy_kwargs``, whose values stand as plain JSON, or as the text of a class.

        Raises:
            ConfigError: one is neither.
        """
        options = {}
        for name, value in _saved(data, "policy_kwargs").items():
            if name.startswith(":") or name in _UNUSED:
                continue
            options[name] = _class_of(value) if isinstance(value, str) else value  # no option of a policy is a text
            if isinstance(value, str) and options[name] is None:
                raise ConfigError(
                    f"{self.argument} was saved with policy_kwargs {name}={value[:80]}, which is no activation of "
                    f"torch and no extractor of Stable-Baselines3: reading it would execute what the file holds. "
                    f"{_INSTEAD}"
                )
        return options

    def _observation_space(self, data: Mapping[str, Any]) -> Any:
        """Returns the space of what the policy reads: of one array, or of arrays by name.

        Raises:
            ConfigError: it reads one array and there are several, or ``evaluation.external.inputs`` names a text.
        """
        from gymnasium import spaces

        leaves = self.spec.leaves or {VECTOR: LeafSpec((self.spec.observation_dim,))}
        example = self.shown(self.spec.observations(1)[0])
        arrays = example if isinstance(example, Mapping) else {VECTOR: example}
        sources = self.config.inputs or {name: name for name in leaves}
        if texts := [name for name in arrays if sources[name] not in leaves]:
            raise ConfigError(f"evaluation.external.inputs.{texts[0]} is a text, but {self.argument} reads numbers.")
        parts = {
            name: _space_of(leaves[sources[name]], array.shape, self.config.image_layout)
            for name, array in arrays.items()
        }
        if "Dict" in str(_saved(data, "observation_space").get(":type:")):
            return spaces.Dict(parts)
        if len(parts) > 1:
            raise ConfigError(
                f"{self.argument} reads one array, and there are {', '.join(parts)}: name one, such as "
                f"'evaluation.external.inputs={{observation: {next(iter(parts))}}}'."
            )
        return next(iter(parts.values()))

    def _check_shapes(self, data: Mapping[str, Any], observed: Any, acted: Any) -> None:
        """Checks that the file's spaces, as far as they stand there in plain text, are those of the task.

        Raises:
            ConfigError: they are others.
        """
        shape, action = _saved(data, "observation_space").get("_shape"), _saved(data, "action_space")
        if isinstance(shape, list) and observed.shape is not None and math.prod(shape) != math.prod(observed.shape):
            raise ConfigError(
                f"{self.argument} was trained on observations of the shape {shape}; those of this task have "
                f"{list(observed.shape)}."
            )
        kind = re.search(r"(\w+)'>$", str(action.get(":type:")))
        if kind is not None and kind[1] != type(acted).__name__:
            raise ConfigError(f"{self.argument} was trained on actions of the kind {kind[1]}; here they are {acted}.")
        for bound, ours in (("low", self.spec.action_low), ("high", self.spec.action_high)):
            theirs = _numbers(action.get(bound))
            if ours is not None and theirs.shape == ours.shape and not np.allclose(theirs, ours, rtol=1e-4):
                raise ConfigError(
                    f"{self.argument} was trained on actions whose {bound} is {theirs.tolist()}; here it is "
                    f"{ours.tolist()}, so its actions would mean something else."
                )


@cache  # a policy is made for a check, and again to act
def _report_normalizer(argument: str, normalizer: str) -> None:
    logging.getLogger("rlpipe").info("What %s reads is normalised by %s beside it.", argument, normalizer)


def _normalizer_beside(file: Path) -> Path | None:
    return next((place for place in beside(file) if place.is_file()), None)


def beside(file: Path) -> list[Path]:
    """Returns where the ``VecNormalize`` of a policy may lie, the most specific first: for its name, as
    ``CheckpointCallback`` names it, and as the RL Zoo does."""
    names = [f"{file.stem}_vecnormalize.pkl", "vecnormalize.pkl", "vec_normalize.pkl"]
    if counted := re.fullmatch(r"(.+)_(\d+)_steps", file.stem):
        names.insert(0, f"{counted[1]}_vecnormalize_{counted[2]}_steps.pkl")
    return [file.with_name(name) for name in names]


def _saved(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Returns what stands in plain text about an object of the file; nothing where there is no such object."""
    value = data.get(key) if isinstance(data, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def _class_of(text: str) -> Any:
    """Returns the activation of torch or the extractor of Stable-Baselines3 that a text names; None for others."""
    path = text.removeprefix("<class '").removesuffix("'>")
    module, _, name = path.rpartition(".")
    if module == "torch.nn.modules.activation" and name in torch.nn.modules.activation.__all__:
        return getattr(torch.nn.modules.activation, name)
    if module == _LAYERS and name in ("FlattenExtractor", "NatureCNN", "CombinedExtractor"):
        return getattr(importlib.import_module(_LAYERS), name)
    return None


def _numbers(text: Any) -> NDArray[np.float64]:
    """Returns the numbers of a bound as NumPy prints them; none if it has shortened them."""
    try:
        return np.array([float(word) for word in str(text).strip("[]").split()])
    except ValueError:
        return np.empty(0)


def _space_of(leaf: LeafSpec, shape: tuple[int, ...], layout: str) -> Any:
    """Returns the space of an array, with pictures as Stable-Baselines3 trains on them: channels first.

    Args:
        leaf: what is known of the array.
        shape: of the array as the policy is shown it.
        layout: order of the axes of a picture.
    """
    from gymnasium import spaces

    if leaf.choices is not None:
        return spaces.MultiDiscrete(leaf.choices) if shape else spaces.Discrete(leaf.choices[0])
    if leaf.is_image and leaf.dtype == "uint8":
        height, width, channels = shape if layout == "hwc" else (*shape[1:], shape[0])
        return spaces.Box(0, 255, (channels, height, width), np.uint8)
    limits = (-np.inf, np.inf) if leaf.dtype == "float32" else (np.iinfo(leaf.dtype).min, np.iinfo(leaf.dtype).max)
    return spaces.Box(*limits, shape, np.dtype(leaf.dtype))


def _action_space(spec: SpaceSpec) -> Any:
    """Returns the space of the actions of a task."""
    from gymnasium import spaces

    if spec.num_actions is None:
        return spaces.Box(spec.action_low, spec.action_high, dtype=np.float32)
    return (
        spaces.Discrete(spec.num_actions)
        if isinstance(spec.num_actions, int)
        else spaces.MultiDiscrete(spec.num_actions)
    )
