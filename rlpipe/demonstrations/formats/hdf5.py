"""Base of formats whose episodes are groups of one HDF5 file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from rlpipe.demonstrations.formats.episode import (
    STATE,
    Array,
    DatasetInfo,
    EpisodeEntry,
    Features,
    Frames,
    RecordedEpisode,
)
from rlpipe.demonstrations.recording import opened, readable
from rlpipe.errors import ConfigError
from rlpipe.trajectory import Bool, Float32

_SMALL_BYTES = 1024
"""Size up to which an array is not worth compressing."""
FRAMES_IN_A_BLOCK = 16
"""Consecutive observations that are compressed together: most of a picture is that of the step before."""


@dataclass
class FileDataset:
    """Dataset in one HDF5 file, open to be read.

    Attributes:
        format: its name.
        version: of the format; empty where the file says none.
        path: of the file.
        key: names it in errors.
        info: facts of all episodes.
        episodes: list of its episodes, in order.
        reader: reads an episode, given its group, its entry and this.
        above: group that holds those of the episodes, such as ``data/``; empty for the file itself.
        features: shapes and types of the rows of its first episode.
    """

    format: str
    version: str
    path: Path
    key: str
    info: DatasetInfo
    episodes: Sequence[EpisodeEntry]
    reader: Callable[[Any, EpisodeEntry, Any], RecordedEpisode]
    above: str = ""
    features: Features = field(init=False)

    def __post_init__(self) -> None:
        self.features = self.read(0).features

    def read(self, number: int) -> RecordedEpisode:
        """Reads an episode by its place in the list."""
        with opened(str(self.path), self.key) as file:
            return self._read(file, self.episodes[number])

    def each(self) -> Iterator[RecordedEpisode]:
        """Reads all episodes in turn."""
        with opened(str(self.path), self.key) as file:
            for entry in self.episodes:
                yield self._read(file, entry)

    def _read(self, file: Any, entry: EpisodeEntry) -> RecordedEpisode:
        with readable(self.where(entry)):
            episode = self.reader(file[self.above + entry.name], entry, self)
        episode.check(self.where(entry))
        return episode

    def actions(self) -> Iterator[Array]:
        """Reads the actions of each episode in turn, [T, A]; not those before its last attempt."""
        with opened(str(self.path), self.key) as file:
            for entry in self.episodes:
                where = self.where(entry)
                with readable(where):
                    held = numbers(file[f"{self.above}{entry.name}/actions"], where)
                yield held[len(held) - entry.length :]

    def where(self, entry: EpisodeEntry) -> str:
        """Returns how errors name an episode."""
        return f"{self.key}: {self.path}: {entry.name}"


def only_file(path: Path, ending: str) -> Path | None:
    """Returns the file of a dataset that is named by its path or by its folder, if that holds exactly one."""
    if not path.is_dir():
        return path if path.exists() else None
    inside = sorted(path.glob(f"*{ending}"))
    return inside[0] if len(inside) == 1 else None


def bears(file: Path | None, mark: Callable[[Any], bool]) -> bool:
    """True for an HDF5 file which, when it is open, bears a mark."""
    import h5py

    if file is None or not h5py.is_hdf5(file):
        return False
    with h5py.File(file) as held:
        return mark(held)


def needs_nothing(info: DatasetInfo) -> None:
    """Checks nothing: the format needs no fact."""
    del info


def numbers(held: Any, where: str) -> Array:
    """Reads an array, [T, ...], after a check that it holds numbers; ``where`` names its episode in errors."""
    if hasattr(held, "shape"):
        values = np.asarray(held[()])
        if values.dtype.kind in "biuf" and values.ndim:
            return values
        kind = f"{'text' if held.dtype.kind in 'OSU' else held.dtype} {list(held.shape)}"
    else:
        kind = f"a group of {', '.join(held)}"
    raise ConfigError(
        f"{where} holds {_name_of(held, where)} as {kind}; it must be an array of numbers, one row a step."
    )


def _name_of(held: Any, where: str) -> str:
    """Returns the name of an array in the group of its episode."""
    name: str = held.name.rpartition(f"{where.rpartition(': ')[2]}/")[2]
    return name


def flags(held: Any, where: str) -> Bool:
    """Reads an array [T] or [T, 1] that is true or false after each step; see ``numbers``."""
    values = numbers(held, where).reshape(-1)
    odd = values[(values != 0) & (values != 1)]
    if len(odd):
        name = _name_of(held, where)
        raise ConfigError(f"{where} holds {name} {odd[0]:g}; it must be true or false after each step.")
    return values.astype(bool)


def rewards(held: Any, where: str) -> Float32:
    """Reads rewards, [T] or [T, 1]; see ``numbers``."""
    return numbers(held, where).reshape(-1).astype(np.float32)


def observations(
    arrays: Mapping[str, Any], file: Path, where: str, *, first: int = 0, last: Mapping[str, Any] | None = None
) -> tuple[dict[str, Array], dict[str, Frames]]:
    """Reads what was observed: numbers at once, pictures when they are asked for.

    Args:
        arrays: [T, ...] by leaf.
        file: that holds them.
        where: the episode, for errors.
        first: row to begin with.
        last: arrays whose last row follows; None for nothing.
    """
    values, cameras = {}, {}
    for leaf, array in arrays.items():
        if array.ndim == 4 and array.dtype == np.uint8:
            after = None if last is None else last[leaf].name
            opener = partial(frames_of, file, array.name, first, after)
            cameras[leaf] = Frames(len(array) - first + (last is not None), tuple(array.shape[1:]), opener)
        else:
            rows = numbers(array, where)[first:]
            values[leaf] = rows if last is None else np.concatenate([rows, last[leaf][-1:]])
    return values, cameras


def compress_whole(group: Any, name: str, values: Any) -> None:
    """Writes an array that is read as a whole."""
    _create(group, name, values, values.shape, level=9, shuffle=True)


def compress(group: Any, name: str, values: Any) -> None:
    """Writes an array that is read row by row."""
    block = (min(len(values), FRAMES_IN_A_BLOCK), *values.shape[1:])
    _create(group, name, values, block, level=4, shuffle=False)


def _create(group: Any, name: str, values: Any, block: tuple[int, ...], *, level: int, shuffle: bool) -> None:
    """Writes an array as ``create_dataset`` of h5py does, which takes twice as long for those of an episode."""
    from h5py import h5d, h5s, h5t

    values = np.ascontiguousarray(values)
    kind, space = h5t.py_create(values.dtype, logical=True), h5s.create_simple(values.shape)
    link, layout = _properties(None if values.nbytes <= _SMALL_BYTES else block, level, shuffle)
    h5d.create(group.id, name.encode(), kind, space, layout, link).write(h5s.ALL, h5s.ALL, values)


@lru_cache
def _properties(block: tuple[int, ...] | None, level: int, shuffle: bool) -> tuple[Any, Any]:
    """Returns the properties of a link, whose groups are made where they are missing, and of an array.

    Args:
        block: rows and columns that are compressed together; None to write the numbers into the array's own header.
    """
    from h5py import h5d, h5p, h5t

    link, layout = h5p.create(h5p.LINK_CREATE), h5p.create(h5p.DATASET_CREATE)
    link.set_create_intermediate_group(True)
    link.set_char_encoding(h5t.CSET_UTF8)
    layout.set_obj_track_times(False)
    if block is None:
        layout.set_layout(h5d.COMPACT)
        return link, layout
    layout.set_chunk(block)
    if shuffle:
        layout.set_shuffle()
    layout.set_deflate(level)
    return link, layout


def arrays_below(group: Any, place: str, bare: str = STATE) -> dict[str, Any]:
    """Returns the arrays at a place of a group by their names below it; one without a group has the name ``bare``."""
    held = group.get(place)
    if held is None:
        return {}
    if hasattr(held, "shape"):
        return {bare: held}
    arrays: dict[str, Any] = {}
    held.visititems(lambda name, item: arrays.update({name: item}) if hasattr(item, "shape") else None)
    return arrays


def frames_of(file: Path, place: str, first: int, last: str | None) -> Iterator[Array]:
    """Reads pictures block by block, from row ``first`` on; after them the last row of the array ``last``, if any."""
    import h5py

    with h5py.File(file) as held:
        array = held[place]
        for start in range(first, len(array), FRAMES_IN_A_BLOCK):
            yield from array[start : start + FRAMES_IN_A_BLOCK]
        if last is not None:
            yield held[last][-1]
