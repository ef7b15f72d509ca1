"""An ONNX graph as a policy: ``--policy model.onnx``, ours or anybody's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlpipe.collection.actions import RunningEpisode
from rlpipe.config.schema import ExternalConfig
from rlpipe.errors import ConfigError, PolicyError
from rlpipe.plugins import require
from rlpipe.serving import runner
from rlpipe.serving.external.base import ExternalPolicy, digests_of_files
from rlpipe.trajectory import SpaceSpec


class GraphPolicy(ExternalPolicy):
    """Runs a graph in onnxruntime, on the CPU, row by row.

    An export of ours brings its card among the graph's properties: memory, noise and chunks are its own. Another graph
    has an input for each leaf that it reads (``evaluation.external.inputs`` renames them), or a single one, and its
    first output holds the actions.
    """

    def __init__(self, name: str, spec: SpaceSpec, config: ExternalConfig, option: str = "--policy") -> None:
        """Opens the graph once, so that what is wrong with it is known before anything starts.

        Raises:
            ConfigError: onnxruntime is missing, the file is no graph, or it takes something else.
        """
        super().__init__(name, spec, config, option)
        require("onnxruntime", "onnx", self.argument)
        self._session: Any = None
        self._card = self._read_card()
        if not self._card:
            self._check_inputs()
        elif not (exported := SpaceSpec.from_json(self._card["spaces"])).same_as(spec):
            raise ConfigError(
                f"{self.argument} was exported for other observations or actions than those of this task: "
                f"{_sizes(exported)} instead of {_sizes(spec)}."
            )

    @classmethod
    def digests(cls, name: str, config: ExternalConfig) -> dict[str, str]:  # noqa: ARG003 - a graph has no other files
        """Covers the graph, and the weights beside it where torch's exporter has put them into a file of their own."""
        return digests_of_files({"graph": Path(name), "weights": Path(f"{name}.data")})

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_session": None}

    def _open(self) -> Any:
        """Returns the session of this process."""
        if self._session is None:
            import onnxruntime

            try:
                self._session = runner.open_graph(Path(self.name))
            except Exception as error:  # onnxruntime has an exception for each kind, without a common base
                reason = str(error).splitlines()[0] if str(error) else type(error).__name__
                raise ConfigError(
                    f"{self.argument} cannot be opened as an ONNX graph by onnxruntime {onnxruntime.__version__}: "
                    f"{reason}."
                ) from error
        return self._session

    def _read_card(self) -> dict[str, Any]:
        """Returns the card of an export of ours; empty for another graph."""
        properties: Mapping[str, str] = self._open().get_modelmeta().custom_metadata_map
        if not {"spaces", "chunk_size", "execute"} <= {*properties}:
            return {}
        try:
            return {key: json.loads(text) for key, text in properties.items()}
        except ValueError as error:
            raise ConfigError(f"{self.argument} has properties that are not JSON: {error}.") from error

    def _check_inputs(self) -> None:
        """Checks that each input of a graph of others has an observation of its shape."""
        example = self.shown(self.spec.observations(1)[0])
        for entry in self._open().get_inputs():
            array, shape = self._input(entry.name, example), tuple(entry.shape[1:])
            is_fixed = all(isinstance(size, int) for size in shape)
            if array is None or (is_fixed and np.shape(array) != shape):
                what = "there is none of that name" if array is None else f"the observation has {np.shape(array)}"
                raise ConfigError(
                    f"{self.argument} has the input {entry.name} of the shape {list(entry.shape)}, but {what}: "
                    "evaluation.external.inputs says which leaf an input gets."
                )

    def _input(self, name: str, observation: Any) -> Any:
        """Returns what an input of the graph gets; None if there is nothing for it."""
        if not isinstance(observation, Mapping):
            return observation if len(self._open().get_inputs()) == 1 else None
        return observation.get(name, observation.get(name.removeprefix("obs.")))

    def begin(self, episode: RunningEpisode) -> Any:
        if not self._card:
            return None
        return runner.ActingPolicy(runner.onnx_decisions(self._open()), self._card, seed=episode.seed)

    def ask(self, session: Any, observation: Any) -> Any:
        if session is not None:
            return session.act_chunk(observation)[: self.config.execute or session.card["execute"]]
        graph = self._open()
        feed = {entry.name: np.asarray(self._input(entry.name, observation))[None] for entry in graph.get_inputs()}
        try:
            return graph.run(None, feed)[0][0]
        except Exception as error:
            raise PolicyError(self.name, f"failed: {str(error).splitlines()[0]}") from error


def _sizes(spec: SpaceSpec) -> str:
    observed = f"{spec.observation_dim} numbers" if spec.leaves is None else ", ".join(spec.leaves)
    return f"{observed} and {spec.num_actions or spec.action_dim} actions"
