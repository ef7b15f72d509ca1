"""Checkpoints: one file each, written whole or not at all, and read without running anybody's code.

A checkpoint is a NumPy archive without pickles: the learner's arrays, and one JSON text with counters, configuration
and the state of the metrics.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlpipe.plugins import ConfigError

FORMAT = 1
_META = "meta.json"


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint file holds.

    Attributes:
        path: of the file.
        arrays: policy, optimiser and random states, by name.
        meta: ``iteration``, ``config`` (YAML), ``run_id`` and ``metrics`` (states that accumulate over the run).
    """

    path: Path
    arrays: dict[str, NDArray[Any]]
    meta: dict[str, Any]


def save(folder: Path, arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any], *, keep: int) -> Path:
    """Writes ``iteration-NNNNNN.npz`` and removes all but the newest ``keep``.

    The file appears under its name only when it is complete and on the disk.

    Returns:
        Path of the file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"iteration-{meta['iteration']:06d}.npz"
    partial = folder / f".{path.name}.partial"
    text = np.frombuffer(json.dumps({"format": FORMAT, **meta}).encode(), dtype=np.uint8)
    try:
        with partial.open("wb") as file:
            np.savez(file, allow_pickle=False, **{_META: text, **arrays})
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        partial.unlink(missing_ok=True)
        raise
    partial.replace(path)
    for old in sorted(folder.glob("iteration-*.npz"))[:-keep]:
        old.unlink()
    return path


def load(path: Path) -> Checkpoint:
    """Reads a checkpoint.

    Raises:
        ConfigError: it is none, is damaged, or was written by a newer version.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        meta = json.loads(arrays.pop(_META).tobytes())
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{path} is not a whole checkpoint: {type(error).__name__}: {error}") from error
    if meta.get("format") != FORMAT:
        raise ConfigError(f"{path} has checkpoint format {meta.get('format')}; this version reads {FORMAT}.")
    return Checkpoint(path, arrays, meta)


def newest_iteration(run: Path) -> int:
    """Iteration of the newest checkpoint of a run directory; 0 if there is none."""
    return max((int(file.stem.partition("-")[2]) for file in (run / "checkpoints").glob("iteration-*.npz")), default=0)


def newest(run: Path) -> Checkpoint:
    """The newest checkpoint of a run directory that is whole; damaged ones are passed over.

    Raises:
        ConfigError: there is none.
    """
    files = sorted((run / "checkpoints").glob("iteration-*.npz"), reverse=True)
    for file in files:
        try:
            return load(file)
        except ConfigError:
            continue
    state = f"none of its {len(files)} checkpoints is whole" if files else "it has no checkpoint"
    raise ConfigError(f"{run}: {state}. A run writes its first after runner.save_interval iterations.")


def newest_or_none(run: Path) -> Checkpoint | None:
    """The newest checkpoint that is whole; None in a run that has none yet, or none any more."""
    try:
        return newest(run)
    except ConfigError:
        return None


def under(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Arrays whose names begin so, without that beginning."""
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
