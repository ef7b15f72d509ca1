"""Arrays in groups of HDF5 files, for the formats that use them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlpipe.demonstrations.formats.episode import STATE, Array

FRAMES_IN_A_BLOCK = 16
"""Consecutive observations that are compressed together: most of a picture is that of the step before."""


def compress_whole(group: Any, name: str, values: Any) -> None:
    """Writes an array that is read as a whole."""
    group.create_dataset(name, data=values, compression="gzip", compression_opts=9, shuffle=True, chunks=values.shape)


def compress(group: Any, name: str, values: Any) -> None:
    """Writes an array that is read row by row."""
    block = (min(len(values), FRAMES_IN_A_BLOCK), *values.shape[1:])
    group.create_dataset(name, data=values, compression="gzip", compression_opts=4, chunks=block)


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
