"""Base of all policies from elsewhere: shows them observations, checks their answers, begins and ends episodes."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlpipe.analysis.evaluation_report import sha256_of_file
from rlpipe.collection.actions import ActionSource, RunningEpisode
from rlpipe.config.schema import ExternalConfig
from rlpipe.errors import ConfigError, PolicyError
from rlpipe.plugins import nearest
from rlpipe.trajectory import Observations, SpaceSpec, Tree

VECTOR = "observation"
"""Name in ``evaluation.external.inputs`` of an observation that is one vector."""
LITERAL = "="
"""Begins a text that is passed on as it stands, in place of the name of a leaf."""


class ExternalPolicy(ActionSource):
    """Source of the actions of an evaluation that is not trained here.

    It is sent to each worker, and opens what it needs there. A failure of it ends the evaluation without a result: it
    is never counted as a failed episode.
    """

    def __init__(self, name: str, spec: SpaceSpec, config: ExternalConfig, option: str = "--policy") -> None:
        """Takes the policy's name and what it is shown.

        Args:
            name: name of the policy, or its address.
            spec: spaces of the simulator.
            config: how observations reach the policy.
            option: option of the command that names it, for errors.
        Raises:
            ConfigError: an input names a leaf that does not exist.
        """
        self.name, self.spec, self.config, self.option = name, spec, config, option
        leaves = [VECTOR] if spec.leaves is None else [*spec.leaves]
        for key, leaf in config.inputs.items():
            if not leaf.startswith(LITERAL) and leaf not in leaves:
                raise ConfigError(
                    f"evaluation.external.inputs.{key} is {leaf!r}, which is no observation{nearest(leaf, leaves)} "
                    f"There are {', '.join(leaves)}; a text for the policy begins with {LITERAL}."
                )
        self._planned: dict[int, tuple[RunningEpisode, Any, deque[NDArray[Any]]]] = {}

    @property
    def argument(self) -> str:
        """The option that names the policy, with its name: ``--policy model.onnx``."""
        return f"{self.option} {self.name}"

    @classmethod
    def digests(cls, name: str, config: ExternalConfig) -> dict[str, str]:  # noqa: ARG003 - a policy without files
        """Returns SHA-256 of each file that a policy is read from, as hexadecimal digits, by what it holds."""
        return {}

    @abstractmethod
    def begin(self, episode: RunningEpisode) -> Any:
        """Returns what answers in an episode that begins."""

    @abstractmethod
    def ask(self, session: Any, observation: Any) -> Any:
        """Returns the action, or actions [H, A], that a policy answers to an observation.

        Args:
            session: what ``begin`` returned.
            observation: one array [D], or arrays by name.
        """

    def end(self, session: Any) -> None:
        """Ends an episode; by default there is nothing to do."""

    def actions(self, observations: Observations, episodes: Sequence[RunningEpisode]) -> NDArray[Any]:
        """See ``ActionSource.actions``.

        Raises:
            PolicyError: the policy failed, or answered what is no action.
        """
        running = {id(episode) for episode in episodes if episode.decisions}
        for key in [key for key in self._planned if key not in running]:  # ended, or about to begin
            self.end(self._planned.pop(key)[1])
        actions = []
        for row, episode in enumerate(episodes):
            if id(episode) not in self._planned:
                self._planned[id(episode)] = episode, self.begin(episode), deque()
            _, session, planned = self._planned[id(episode)]
            if not planned:
                answer = self.ask(session, self.shown(observations[row]))
                planned.extend(self.checked(answer)[: self.config.execute])
            actions.append(planned.popleft())
        return np.stack(actions)

    def close(self) -> None:
        while self._planned:
            self.end(self._planned.popitem()[1][1])

    def shown(self, observation: Any) -> Any:
        """Returns what the policy is shown: the observation as it is, or what ``evaluation.external.inputs`` says."""
        if not self.config.inputs and not isinstance(observation, Tree):
            return observation
        leaves: Mapping[str, Any] = observation.leaves if isinstance(observation, Tree) else {VECTOR: observation}
        inputs = self.config.inputs or {name: name for name in leaves}
        return {
            key: leaf.removeprefix(LITERAL) if leaf.startswith(LITERAL) else self._picture(leaf, leaves[leaf])
            for key, leaf in inputs.items()
        }

    def _picture(self, name: str, array: NDArray[Any]) -> NDArray[Any]:
        """Returns a leaf; a picture in the size and the order of axes that the policy takes."""
        leaf = None if self.spec.leaves is None else self.spec.leaves[name]
        if leaf is None or not leaf.is_image:
            return array
        if self.config.image_size is not None and array.dtype == np.uint8:
            array = padded(array, self.config.image_size)
        return np.ascontiguousarray(array.transpose(2, 0, 1)) if self.config.image_layout == "chw" else array

    def checked(self, answer: Any) -> NDArray[Any]:
        """Returns an answer as actions [H, ...].

        Raises:
            PolicyError: it is no action, or one that is not finite.
        """
        shape, is_discrete = self.spec.action_shape, self.spec.num_actions is not None
        try:
            actions = np.asarray(answer)
            actions = actions.reshape(-1, *shape) if actions.shape[-len(shape) or actions.ndim :] == shape else actions
        except (TypeError, ValueError) as error:
            raise PolicyError(self.name, f"answered {type(answer).__name__}, which is no array: {error}") from error
        if actions.shape[1:] != shape or not len(actions) or actions.dtype.kind not in "biuf":
            raise PolicyError(
                self.name,
                f"answered {actions.dtype} of the shape {np.shape(answer)}; an action has the shape {shape}, and H of "
                f"them (H, {', '.join(map(str, shape))})",
            )
        if not np.isfinite(actions).all():
            raise PolicyError(self.name, "answered an action that is not finite")
        if not is_discrete:
            return actions.astype(np.float32)
        limits = np.asarray(self.spec.num_actions)
        if (actions != np.rint(actions)).any() or (actions < 0).any() or (actions >= limits).any():
            raise PolicyError(self.name, f"answered {actions[0]}; actions are whole numbers from 0, below {limits}")
        return actions.astype(np.int64)


def digests_of_files(files: Mapping[str, Path]) -> dict[str, str]:
    """Returns SHA-256 of those files that exist, as hexadecimal digits, by the same names."""
    digests = {part: sha256_of_file(file) for part, file in files.items()}
    return {part: digest for part, digest in digests.items() if digest is not None}


def padded(image: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Scales an image [H, W, 3 n] to fit into a square of ``size`` pixels, and fills the rest with black."""
    from PIL import Image

    height, width, channels = image.shape
    scale = size / max(height, width)
    new = max(1, round(width * scale)), max(1, round(height * scale))
    square = np.zeros((size, size, channels), dtype=np.uint8)
    top, left = (size - new[1]) // 2, (size - new[0]) // 2
    for first in range(0, channels, 3):
        plane = image[:, :, first : first + 3]
        scaled = np.asarray(Image.fromarray(plane.squeeze(-1) if plane.shape[-1] == 1 else plane).resize(new, 2))
        square[top : top + new[1], left : left + new[0], first : first + 3] = scaled.reshape(new[1], new[0], -1)
    return square
