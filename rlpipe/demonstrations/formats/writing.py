"""Writes a dataset episode by episode, so that one which is interrupted can be read and continued.

Episodes are stored at first, losslessly, in a journal in the hidden folder ``.unfinished``. The format comes into being
when the last one is there, in one go; so all formats share this way to continue.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

from rlpipe.demonstrations.formats.episode import Array, DatasetInfo, EpisodeEntry, Features, Format, RecordedEpisode
from rlpipe.demonstrations.formats.journal import Journal
from rlpipe.errors import ConfigError
from rlpipe.files import fsync_folder, replacing

UNFINISHED = ".unfinished"
"""Folder of a dataset that holds the episodes until all are there."""
_JOURNAL = "episodes"


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
        self._journal: Journal | None = None
        self.complete = False
        self.episodes: list[EpisodeEntry] = []
        facts = json.loads(json.dumps({"format": form.NAME, **asdict(info)}))
        if (self._work / "dataset").exists():
            self._move()
        if (self._work / "info.json").exists():
            self._check_facts(facts)
            self._journal = Journal(self._work / _JOURNAL)
            self.episodes = self._journal.episodes
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
            self._journal = Journal(self._work / _JOURNAL)

    def _check_facts(self, facts: dict[str, Any]) -> None:
        before = json.loads((self._work / "info.json").read_text(encoding="utf-8"))
        for name, value in facts.items():
            if before.get(name) != value:
                raise ConfigError(
                    f"{self._key}: {self.folder} was begun with {name} {before.get(name)}, but now it is {value}: name "
                    "another folder, or remove it."
                )

    def add(self, episode: RecordedEpisode) -> None:
        """Stores an episode; once this returns, it outlasts the process.

        Raises:
            ConfigError: its columns differ in length, or are not those of the episodes before.
        """
        if self._journal is None:
            raise ConfigError(
                f"{self._key}: {self.folder} is complete with {len(self.episodes)} episodes: name another."
            )
        episode.check()
        features = episode.features
        if self._features is None:
            self._features = self._journal.read(0).features if self.episodes else features
        if features != self._features:
            raise ConfigError(f"{episode.name} has {features}, but the episodes before have {self._features}.")
        episode = replace(episode, name=f"traj_{len(self.episodes)}")
        self._journal.add(episode)
        self.episodes.append(EpisodeEntry(episode.name, len(episode), episode.seed))

    def sync(self) -> None:
        """Forces what was stored to the disk."""
        if self._journal is not None:
            self._journal.sync()

    def release(self) -> None:
        """Forces what was stored to the disk, and lets go of its file, so that the dataset can be continued later."""
        if self._journal is not None:
            self._journal.close()

    def close(self) -> None:
        """Finishes the dataset: the format is written, and takes the place of what was stored for it."""
        if self._journal is None:
            return
        if not self.episodes:
            raise ConfigError(f"{self._key}: there is no episode to write to {self.folder}.")
        journal = self._journal
        partial = self._work / "dataset.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        earlier = (read() for read in self._before)
        collected = (journal.read(number) for number in range(len(self.episodes)))
        self._format.write(partial, self._info, chain(earlier, collected))
        fsync_folder(partial)
        partial.rename(self._work / "dataset")
        journal.close()
        self._move()
        self._journal, self.complete = None, True

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
        self.release()


def is_unfinished(path: Path) -> bool:
    """True for the folder of a dataset that was begun and not finished, and holds an episode."""
    return (path / UNFINISHED / "info.json").exists() and bool(Journal(path / UNFINISHED / _JOURNAL).episodes)


def open_unfinished(path: Path) -> UnfinishedDataset:
    """Opens the episodes that are there of a dataset that is not finished."""
    return UnfinishedDataset(path)


class UnfinishedDataset:
    """Episodes of a dataset that is not finished."""

    version: ClassVar[str] = "unfinished"

    def __init__(self, path: Path) -> None:
        """Opens the folder of a dataset."""
        facts = json.loads((path / UNFINISHED / "info.json").read_text(encoding="utf-8"))
        self.format, self.path = str(facts.pop("format")), path
        self.info = DatasetInfo(**facts)
        self._journal = Journal(path / UNFINISHED / _JOURNAL)
        self.episodes: Sequence[EpisodeEntry] = self._journal.episodes
        self.features = self.read(0).features

    def read(self, number: int) -> RecordedEpisode:
        """Reads an episode by its place in the list."""
        return self._journal.read(number)

    def each(self) -> Iterator[RecordedEpisode]:
        """Reads all episodes in turn."""
        return map(self.read, range(len(self.episodes)))

    def actions(self) -> Iterator[Array]:
        """Reads the actions of each episode in turn, [T, A]."""
        return (episode.actions for episode in self.each())
