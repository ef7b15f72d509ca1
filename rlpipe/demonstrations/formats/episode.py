"""The one shape of a recorded episode, whatever file it comes from or goes to, and of the dataset that holds it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rlpipe.errors import ConfigError
from rlpipe.trajectory import Bool, Float32, LeafSpec, State

STATE = "state"
"""Name of the observation where it is one vector without a name."""
Array: TypeAlias = NDArray[Any]


@dataclass(frozen=True)
class Frames:
    """Pictures of one camera in the course of an episode, read when they are asked for.

    Attributes:
        count: number of pictures; one for each row of the observations.
        shape: height, width and channels of each.
        opener: begins to read them again, from the first to the last, each [height, width, channels] uint8.
    """

    count: int
    shape: tuple[int, ...]
    opener: Callable[[], Iterator[Array]]

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Array]:
        return self.opener()

    def stacked(self) -> Array:
        """Returns all of them, [T, height, width, channels] uint8."""
        pictures = np.empty((self.count, *self.shape), np.uint8)
        for number, picture in enumerate(self):
            pictures[number] = picture
        return pictures

    @classmethod
    def of(cls, pictures: Array) -> Frames:
        """Takes pictures that are in memory, [T, height, width, channels] uint8."""
        return cls(len(pictures), pictures.shape[1:], lambda: iter(pictures))


@dataclass(frozen=True)
class RecordedEpisode:
    """Episode of a dataset, or of a simulator that has just ended one. T is its number of steps.

    Attributes:
        name: in its dataset, such as ``traj_7``; a format that numbers its episodes gives its own.
        actions: [T, A].
        observations: by leaf, [T + 1, ...], or [T, ...] of a format that does not keep the last one. One vector without
            a name is ``STATE``.
        cameras: pictures by leaf, as many as observations.
        rewards: [T] float32; None where they are not recorded, as for the next three.
        success: [T] bool, whether the task was solved after the step.
        terminated: [T] bool.
        truncated: [T] bool.
        seed: of the reset; None if it is not recorded.
        states: of the simulator, [T + 1, ...] by name; None if they are not recorded.
        task: in words, such as "pick up the cube"; None if it is not recorded.
        others: columns of the dataset that none of these is, [T, ...] by name.
    """

    name: str
    actions: Array
    observations: Mapping[str, Array] = field(default_factory=dict)
    cameras: Mapping[str, Frames] = field(default_factory=dict)
    rewards: Float32 | None = None
    success: Bool | None = None
    terminated: Bool | None = None
    truncated: Bool | None = None
    seed: int | None = None
    states: State | None = None
    task: str | None = None
    others: Mapping[str, Array] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.actions)

    @property
    def has_last_observation(self) -> bool:
        """True if it says what was observed after the last step."""
        rows = {*map(len, self.observations.values()), *map(len, self.cameras.values())}
        return rows == {len(self) + 1}

    @property
    def columns(self) -> Mapping[str, Array]:
        """The results of its steps that are recorded, [T] by name."""
        results = {name: getattr(self, name) for name in ("rewards", "success", "terminated", "truncated")}
        return {name: values for name, values in results.items() if values is not None}

    @property
    def features(self) -> Features:
        """Shapes and types of one row of it."""

        def specs(arrays: Mapping[str, Array]) -> dict[str, LeafSpec]:
            return {name: LeafSpec(values.shape[1:], str(values.dtype)) for name, values in arrays.items()}

        cameras = {name: LeafSpec(frames.shape, "uint8") for name, frames in self.cameras.items()}
        action = LeafSpec(self.actions.shape[1:], str(self.actions.dtype))
        columns = tuple(self.columns)
        return Features(
            action, specs(self.observations), cameras, columns, specs(self.states or {}), specs(self.others),
            self.has_last_observation,
        )  # fmt: skip

    def check(self, where: str = "") -> None:
        """Checks that its columns are as long as its actions.

        Args:
            where: how the error names it; empty for its name.
        Raises:
            ConfigError: one of them is not; the message names it.
        """
        rows, steps = len(self) + self.has_last_observation, len(self)
        pictures: Mapping[str, Sequence[Any] | Array | Frames] = {**self.observations, **self.cameras}
        expected = [*((name, values, rows) for name, values in pictures.items())]
        expected += [(name, values, steps) for name, values in {**self.columns, **self.others}.items()]
        expected += [(f"state {name}", values, steps + 1) for name, values in (self.states or {}).items()]
        for name, values, length in expected:
            if len(values) != length:
                raise wrong_length(where or self.name, steps, len(values), name, length)


def wrong_length(where: str, steps: int, count: int, name: str, length: int) -> ConfigError:
    """Returns the error of an episode of so many steps with ``count`` instead of ``length`` rows of a column."""
    return ConfigError(f"{where} has {steps} actions, but {count} rows of {name}, not {length}.")


@dataclass(frozen=True)
class Features:
    """Shapes and types of the rows of a dataset.

    Attributes:
        action: of one action.
        observations: by leaf.
        cameras: by leaf.
        columns: those of ``rewards``, ``success``, ``terminated`` and ``truncated`` that are recorded.
        states: of the simulator, by name.
        others: by name.
        last_observation: True if what was observed after the last step is recorded.
    """

    action: LeafSpec
    observations: Mapping[str, LeafSpec] = field(default_factory=dict)
    cameras: Mapping[str, LeafSpec] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    states: Mapping[str, LeafSpec] = field(default_factory=dict)
    others: Mapping[str, LeafSpec] = field(default_factory=dict)
    last_observation: bool = True


@dataclass(frozen=True)
class DatasetInfo:
    """Facts of a dataset that hold for all of its episodes.

    Attributes:
        task: id of the simulator's task, such as ``PickCube-v1``; None if it is not recorded.
        options: those with which the simulator was made, by name.
        rate: steps a second, in Hz; None if it is not recorded.
        description: how the dataset was made.
    """

    task: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    rate: float | None = None
    description: str = ""


@dataclass(frozen=True)
class EpisodeEntry:
    """Episode of a dataset as its list has it, before anything of its steps is read.

    Attributes:
        name: in the dataset.
        length: number of steps, T.
        seed: of the reset; None if it is not recorded.
    """

    name: str
    length: int
    seed: int | None = None


class Dataset(Protocol):
    """Dataset of one format, open to be read.

    Attributes:
        path: of the file or folder.
        info: facts of all episodes.
        features: shapes and types of its rows.
        episodes: list of its episodes, in order.
    """

    path: Path
    info: DatasetInfo
    features: Features
    episodes: Sequence[EpisodeEntry]

    @property
    def format(self) -> str:
        """Name of the format."""
        ...

    @property
    def version(self) -> str:
        """Version of the format, as the dataset says it; empty where it says none."""
        ...

    def read(self, number: int) -> RecordedEpisode:
        """Reads an episode by its place in the list; nothing of another stays in memory.

        Raises:
            ConfigError: it is damaged; the message names the file and the row.
        """
        ...

    def each(self) -> Iterator[RecordedEpisode]:
        """Reads all episodes in turn; see ``read``."""
        ...

    def actions(self) -> Iterator[Array]:
        """Reads the actions of each episode in turn, [T, A], and nothing else.

        Raises:
            ConfigError: a file is damaged.
        """
        ...


class Format(Protocol):
    """Format of demonstrations: one module, of which these are the public names."""

    NAME: str
    """Name on the command line, such as ``maniskill``."""

    def recognises(self, path: Path) -> bool:
        """True if a file or folder bears the marks of the format, found by looking into it."""
        ...

    def open_dataset(self, path: Path, key: str) -> Dataset:
        """Opens a dataset; ``key`` names it in errors.

        Raises:
            ConfigError: it is incomplete, damaged, or of a version that is not read.
        """
        ...

    def check(self, info: DatasetInfo) -> None:
        """Checks, before anything is written, that the format can hold a dataset.

        Raises:
            ConfigError: a fact is missing that the format needs.
        """
        ...

    def losses(self, info: DatasetInfo, features: Features) -> Sequence[str]:
        """Names all of such episodes that the format cannot hold, as ends of sentences that begin with its name."""
        ...

    def write(self, folder: Path, info: DatasetInfo, episodes: Iterable[RecordedEpisode]) -> None:
        """Writes a dataset into an empty folder, holding one episode at a time in memory."""
        ...
