"""Draws pictures of recorded episodes, of any size and camera, from the states of their simulator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from rlpipe.config.simulators import task_facts
from rlpipe.demonstrations import dataset
from rlpipe.demonstrations.formats.episode import (
    Array,
    Dataset,
    DatasetInfo,
    EpisodeEntry,
    Features,
    Frames,
    RecordedEpisode,
)
from rlpipe.envs.shared.make import make_simulator
from rlpipe.errors import ConfigError
from rlpipe.trajectory import ChosenStart, Tree


class DrawnDataset:
    """Dataset to whose episodes the pictures are added that a simulator draws of their states.

    Only as a context can it be read, because that holds the simulator. What was recorded stays as it is.

    Attributes:
        info: of the dataset, with the options of the simulator that draws.
    """

    path: Path
    info: DatasetInfo
    features: Features
    episodes: Sequence[EpisodeEntry]

    def __init__(self, path: str, task: Any) -> None:
        """Opens demonstrations, and checks, without starting the simulator, that they can be drawn.

        Args:
            path: of the file or folder.
            task: configuration of the simulator, with cameras.
        Raises:
            ConfigError: they are of another task, or have no states or seeds.
        """
        held = dataset.check_actions(path, task, "PATH")
        self._recorded: Dataset = held
        self._task = replace(task, total_num_envs=1)
        if not task_facts(task, "env.train").states:
            raise ConfigError(
                f"env.train ({task.task_name}) cannot begin in a state, so it draws none that is recorded."
            )
        without = [entry.name for entry in held.episodes if entry.seed is None]
        if not held.features.states or without:
            lacks = f"{without[0]} has no seed" if without else "it has no states of the simulator"
            raise ConfigError(
                f"PATH is {path}, of which no pictures can be drawn: {lacks}. Leave CONFIG out, or record it again: "
                "rlpipe demos CONFIG --replay PATH demos=NEW.h5."
            )
        if getattr(task, "frame_stack", 1) > 1:
            raise ConfigError("env.train.frame_stack must be 1: a dataset holds each picture once.")
        seen = {key: getattr(task, key) for key in dataset.SEEN if hasattr(task, key)}
        self.path, self.episodes = held.path, held.episodes
        self.info = replace(held.info, options={**held.info.options, **seen})
        self.format, self.version = held.format, held.version

    def __enter__(self) -> DrawnDataset:
        self._simulator = make_simulator(self._task, 1, lambda _: 0, lambda _: self._start)
        self._start = ChosenStart()
        leaves = self._simulator.spec.leaves or {}
        self._pictures = {name: leaf for name, leaf in leaves.items() if len(leaf.shape) == 3}
        if not self._pictures:
            self._simulator.close()
            raise ConfigError(
                f"env.train ({self._task.task_name}) observes no pictures, so CONFIG draws none: set its cameras, such "
                "as env.train.obs_mode=state+rgb."
            )
        held = self._recorded.features
        colours, others = self._parted(self._pictures)
        self.features = replace(held, cameras={**held.cameras, **colours}, observations={**held.observations, **others})
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with closing(self._simulator):
            pass

    def _parted(self, values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns what is of pictures in colours, and what of others, such as depths."""
        is_colour = {name: leaf.dtype == "uint8" for name, leaf in self._pictures.items()}
        colours = {name: value for name, value in values.items() if is_colour[name]}
        return colours, {name: value for name, value in values.items() if not is_colour[name]}

    def read(self, number: int) -> RecordedEpisode:
        """Reads an episode by its place in the list, and draws it."""
        episode = self._recorded.read(number)
        colours, others = self._parted(self._drawn(episode))
        cameras = {name: Frames.of(pictures) for name, pictures in colours.items()}
        return replace(episode, cameras={**episode.cameras, **cameras}, observations={**episode.observations, **others})

    def _drawn(self, episode: RecordedEpisode) -> Mapping[str, Array]:
        """Draws an episode, [T + 1, H, W, channels] by leaf; [T, ...] where it has no observation after the last."""
        assert episode.states is not None  # every episode has the features of the first
        rows = len(episode) + (episode.has_last_observation or not (episode.observations or episode.cameras))
        drawn = {name: np.empty((rows, *leaf.shape), leaf.dtype) for name, leaf in self._pictures.items()}
        for row in range(rows):
            state = {name: values[row] for name, values in episode.states.items()}
            self._start = ChosenStart(episode.seed, state)
            observations, _ = self._simulator.reset()
            assert isinstance(observations, Tree)  # it has pictures
            for name, pictures in drawn.items():
                pictures[row] = observations.leaves[name][0]
        return drawn
