"""Writes a dataset episode by episode, so that one which is interrupted can be read and continued.

Each episode is stored on its own at first, losslessly, in the hidden folder ``.unfinished``. The format comes into
being when the last one is there, in one go; so all formats share this way to continue.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

from rlpipe.demonstrations.formats import maniskill
from rlpipe.demonstrations.formats.episode import DatasetInfo, EpisodeEntry, Features, Format, RecordedEpisode
from rlpipe.demonstrations.recording import opened
from rlpipe.errors import ConfigError
from rlpipe.files import fsync_folder, replacing

UNFINISHED = ".unfinished"
"""Folder of a dataset that holds the episodes until all are there."""


class DatasetWriter:
    """Dataset that is being written, or continued.

    As a context it finishes the dataset at its end, unless an exception ends it: then it can be continued.

    Attributes:
        folder: of the dataset.
        episodes: list of those that are there, whose order is that of the calls of ``add``.
        complete: True if the dataset was finished before; it takes no more episodes.
    """

    def __init__(
        self,
        folder: Path,
        form: Format,
        info: DatasetInfo,
        key: str = "--out",
        *,
        before: Sequence[Callable[[], RecordedEpisode]] = (),
    ) -> None:
        """Begins a dataset, or goes on with one of the same facts.

        Args:
            folder: need not exist.
            form: format to write.
            info: facts of all episodes.
            key: names the folder in errors.
            before: read the episodes of another dataset, which come first.
        Raises:
            ConfigError: the folder holds something else, or a dataset that began with other facts.
        """
        form.check(info)
        self.folder, self._format, self._info, self._key, self._before = folder, form, info, key, before
        self._work = folder / UNFINISHED
        self._features: Features | None = None
        self.complete = False
        self.episodes: list[EpisodeEntry] = []
        facts = json.loads(json.dumps({"format": form.NAME, **asdict(info)}))
        if (self._work / "dataset").exists():
            self._move()
        if (self._work / "info.json").exists():
            self._continue(facts)
        elif folder.exists() and any(child.name != UNFINISHED for child in folder.iterdir()):
            if not form.recognises(folder):
                raise ConfigError(f"{key}: {folder} is not empty, and holds no dataset of {form.NAME}: name another.")
            self.complete, self.episodes = True, list(form.open_dataset(folder, key).episodes)
        else:
            try:
                self._work.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ConfigError(f"{key}: cannot write to {folder}: {error}.") from error
            with replacing(self._work / "info.json", sync=True) as file:
                file.write(json.dumps(facts).encode())

    def _continue(self, facts: dict[str, Any]) -> None:
        before = json.loads((self._work / "info.json").read_text(encoding="utf-8"))
        for name, value in facts.items():
            if before.get(name) != value:
                raise ConfigError(
                    f"{self._key}: {self.folder} was begun with {name} {before.get(name)}, but now it is {value}: name "
                    "another folder, or remove it."
                )
        self.episodes = list(open_unfinished(self.folder).episodes) if _parts(self._work) else []

    def add(self, episode: RecordedEpisode) -> None:
        """Stores an episode; once this returns, it outlasts the process.

        Raises:
            ConfigError: its columns differ in length, or are not those of the episodes before.
        """
        import h5py

        if self.complete:
            raise ConfigError(
                f"{self._key}: {self.folder} is complete with {len(self.episodes)} episodes: name another."
            )
        episode.check()
        features = episode.features
        if self._features is None:
            self._features = open_unfinished(self.folder).features if self.episodes else features
        if features != self._features:
            raise ConfigError(f"{episode.name} has {features}, but the episodes before have {self._features}.")
        number = len(self.episodes)
        with (
            replacing(self._work / f"{number:06d}.h5", sync=True) as file,
            h5py.File(file, "w", libver="latest") as out,
        ):
            group = out.create_group(f"traj_{number}")
            maniskill.write_group(group, episode)
            group.attrs["episode"] = json.dumps(maniskill.episode_json(number, episode))
        self.episodes.append(EpisodeEntry(f"traj_{number}", len(episode), episode.seed))

    def close(self) -> None:
        """Finishes the dataset: the format is written, and takes the place of what was stored for it."""
        if self.complete:
            return
        if not self.episodes:
            raise ConfigError(f"{self._key}: there is no episode to write to {self.folder}.")
        stored = open_unfinished(self.folder)
        partial = self._work / "dataset.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        episodes = (read() for read in self._before)
        collected = (stored.read(number) for number in range(len(self.episodes)))
        self._format.write(partial, self._info, chain(episodes, collected))
        fsync_folder(partial)
        partial.rename(self._work / "dataset")
        self._move()
        self.complete = True

    def _move(self) -> None:
        """Puts a dataset that is written in its place; may be interrupted and done again."""
        for child in sorted((self._work / "dataset").iterdir()):
            os.replace(child, self.folder / child.name)
        shutil.rmtree(self._work)
        fsync_folder(self.folder)

    def __enter__(self) -> DatasetWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()


def is_unfinished(path: Path) -> bool:
    """True for the folder of a dataset that was begun and not finished."""
    return bool(_parts(path / UNFINISHED))


def open_unfinished(path: Path, key: str = "demos") -> UnfinishedDataset:
    """Opens the episodes that are there of a dataset that is not finished."""
    return UnfinishedDataset(path, key)


class UnfinishedDataset:
    """Episodes of a dataset that is not finished."""

    version: ClassVar[str] = "unfinished"

    def __init__(self, path: Path, key: str) -> None:
        """Opens the folder ``path``; ``key`` names it in errors."""
        facts = json.loads((path / UNFINISHED / "info.json").read_text(encoding="utf-8"))
        self.format, self.path, self._key = str(facts.pop("format")), path, key
        self.info = DatasetInfo(**facts)
        self._parts = _parts(path / UNFINISHED)
        self._described = [_description(part, key) for part in self._parts]
        self.episodes: Sequence[EpisodeEntry] = [
            EpisodeEntry(f"traj_{number}", facts["elapsed_steps"], facts.get("episode_seed"))
            for number, facts in enumerate(self._described)
        ]
        self.features = self.read(0).features

    def read(self, number: int) -> RecordedEpisode:
        """Reads an episode by its place in the list."""
        facts = self._described[number]
        part = self._parts[number]
        with opened(str(part), self._key) as file:
            return maniskill.read_group(file[f"traj_{number}"], part, facts.get("episode_seed"), facts.get("task"))


def _description(part: Path, key: str) -> dict[str, Any]:
    with opened(str(part), key) as file:
        described: dict[str, Any] = json.loads(file[f"traj_{int(part.stem)}"].attrs["episode"])
    return described


def _parts(work: Path) -> list[Path]:
    return sorted(work.glob("[0-9]*.h5"))
