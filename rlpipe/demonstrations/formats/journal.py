"""Episodes of a dataset that is not finished, one behind the other in a file that grows at its end.

A record is a mark, two lengths and a checksum; a description as JSON; and the numbers of all arrays, as they are in
memory. Pictures are compressed lightly. What follows the last whole record was being written when the process ended.
"""

from __future__ import annotations

import json
import os
import struct
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rlpipe.demonstrations.formats.episode import Array, EpisodeEntry, Frames, RecordedEpisode

_HEAD = struct.Struct("<8sIQI")
"""Mark, bytes of the description, bytes of the arrays, CRC-32 of both."""
_MARK = b"episode\x01"
_PARTS = ("observations", "cameras", "states", "others")
SECONDS = 1.0
"""Time after which what was written is forced to the disk, so that a power cut loses no more."""


class Journal:
    """File of episodes, open to be read and to be appended to.

    Attributes:
        episodes: list of those that are whole.
    """

    def __init__(self, path: Path) -> None:
        """Opens a file, which need not exist, and finds its records."""
        self._path = path
        self._records: list[tuple[dict[str, Any], int]] = []  # descriptions, and where their arrays begin
        self._end, self._synced = 0, time.monotonic()
        self._file: Any = None
        if path.exists():
            with path.open("rb") as file:
                for description, place, self._end in _records(file):
                    self._records.append((description, place))

    @property
    def episodes(self) -> list[EpisodeEntry]:
        return [EpisodeEntry(about["name"], about["length"], about["seed"]) for about, _ in self._records]

    def add(self, episode: RecordedEpisode) -> None:
        """Appends an episode; once this returns, it outlasts the process."""
        arrays, places = [], []
        for part, name, values in _arrays(episode):
            packed = isinstance(values, Frames)
            numbers = np.ascontiguousarray(values.stacked() if isinstance(values, Frames) else values)
            held = zlib.compress(numbers.data, 1) if packed else numbers.tobytes()
            arrays.append(held)
            places.append([part, name, numbers.dtype.str, list(numbers.shape), len(held)])
        about = {"name": episode.name, "length": len(episode), "seed": episode.seed, "task": episode.task}
        text = json.dumps({**about, "arrays": places}).encode()
        body = b"".join([text, *arrays])
        if self._file is None:
            self._file = self._path.open("r+b" if self._path.exists() else "w+b")
            self._file.truncate(self._end)
            self._file.seek(self._end)
        record = _HEAD.pack(_MARK, len(text), len(body) - len(text), zlib.crc32(body)) + body
        self._file.write(record)
        self._file.flush()
        self._records.append(({**about, "arrays": places}, self._end + _HEAD.size + len(text)))
        self._end += len(record)
        if time.monotonic() - self._synced > SECONDS:
            self.sync()

    def sync(self) -> None:
        """Forces what was written to the disk."""
        if self._file is not None:
            os.fsync(self._file.fileno())
            self._synced = time.monotonic()

    def close(self) -> None:
        """Forces what was written to the disk, and closes the file."""
        if self._file is not None:
            self.sync()
            self._file.close()
            self._file = None

    def read(self, number: int) -> RecordedEpisode:
        """Reads an episode by its place in the list; its pictures, when they are asked for."""
        about, place = self._records[number]
        parts: dict[str, dict[str, Any]] = {part: {} for part in ("", *_PARTS)}
        with self._path.open("rb") as file:
            for part, name, dtype, shape, size in about["arrays"]:
                if part == "cameras":
                    opener = partial(_pictures, self._path, place, size, shape)
                    parts[part][name] = Frames(shape[0], tuple(shape[1:]), opener)
                else:
                    file.seek(place)
                    parts[part][name] = np.frombuffer(bytearray(file.read(size)), dtype).reshape(shape)
                place += size
        columns = parts.pop("")
        states = parts.pop("states") or None
        return RecordedEpisode(
            about["name"], columns.pop("actions"), seed=about["seed"], task=about["task"], states=states,
            **columns, **parts,
        )  # fmt: skip


def _arrays(episode: RecordedEpisode) -> Iterator[tuple[str, str, Array | Frames]]:
    """Yields all arrays of an episode, each with the part of the episode that it is in and its name there."""
    yield "", "actions", episode.actions
    for name, values in episode.columns.items():
        yield "", name, values
    parts: Mapping[str, Mapping[str, Any]] = {part: getattr(episode, part) or {} for part in _PARTS}
    for part, named in parts.items():
        for name, values in sorted(named.items()):
            yield part, name, values


def _pictures(path: Path, place: int, size: int, shape: Sequence[int]) -> Iterator[Array]:
    with path.open("rb") as file:
        file.seek(place)
        yield from np.frombuffer(zlib.decompress(file.read(size)), np.uint8).reshape(shape)


def _records(file: Any) -> Iterator[tuple[dict[str, Any], int, int]]:
    """Yields the description of each whole record, where its arrays begin, and where it ends."""
    end = os.fstat(file.fileno()).st_size
    while len(head := file.read(_HEAD.size)) == _HEAD.size:
        mark, text_size, size, check = _HEAD.unpack(head)
        place = file.tell()
        if mark != _MARK or place + text_size + size > end:
            return
        body = file.read(text_size + size)
        if zlib.crc32(body) != check:
            return
        yield json.loads(body[:text_size]), place + text_size, file.tell()
