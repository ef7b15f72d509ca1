"""Checkpoints: one file each, written whole or not at all, and read without running anybody's code; and which of them
stay.

A checkpoint is a NumPy archive without pickles: the learner's arrays, one JSON text with counters, configuration and
the state of the metrics, and a digest of all that.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlpipe.errors import ConfigError
from rlpipe.metrics.declaration import Metric
from rlpipe.metrics.reductions import from_json

log = logging.getLogger("rlpipe")

FORMAT = 2
"""Format 1 is the same without the digest; it is still read."""
BEST = "best.json"
"""File beside the checkpoints that names the best of them."""
_META = "meta.json"
_DIGEST = "digest"
_NUMBERS = "biufc"
"""Kinds of NumPy types that may be in a checkpoint: truth values, integers, real and complex numbers."""


class DamagedError(ConfigError):
    """A file is no whole checkpoint."""


class NoCheckpointError(ConfigError):
    """A run directory has no whole checkpoint."""


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


def save(folder: Path, arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]) -> Path:
    """Writes ``iteration-NNNNNN.npz``, which appears under its name only when it is complete and on the disk.

    Args:
        folder: made if it is not there.  arrays: of numbers, by name.  meta: as in ``Checkpoint``.
    Returns:
        Path of the file.
    Raises:
        OSError: the disk does not take it; nothing is left of it, and what was there before is as it was.
        ValueError: an array holds something else than numbers.
    """
    for name, array in arrays.items():
        if array.dtype.kind not in _NUMBERS:
            raise ValueError(f"a checkpoint holds numbers alone, but {name} has the type {array.dtype}.")
    if not folder.is_dir():
        folder.mkdir(parents=True)
        _settle(folder.parent)
    for left in folder.glob(".*.partial"):  # by a process that was killed while it wrote
        left.unlink()
    text = np.frombuffer(json.dumps({"format": FORMAT, **meta}).encode(), dtype=np.uint8)
    contents = {_META: text, **arrays}
    path = folder / _name(meta["iteration"])
    partial = folder / f".{path.name}.partial"
    try:
        with partial.open("wb") as file:
            np.savez(file, allow_pickle=False, **{**contents, _DIGEST: digest(contents)})
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
    _settle(folder)
    return path


def digest(arrays: Mapping[str, NDArray[Any]]) -> NDArray[np.uint8]:
    """BLAKE2b (RFC 7693) over names, types, shapes and bytes of arrays, in the order of their names.

    Returns:
        [64] bytes.
    """
    found = hashlib.blake2b()
    for name in sorted(arrays):
        array = np.asarray(arrays[name], order="C")
        heading = json.dumps([name, array.dtype.str, array.shape]).encode()
        found.update(len(heading).to_bytes(8, "little"))
        found.update(heading)
        found.update(array.reshape(-1).view(np.uint8).data)
    return np.frombuffer(found.digest(), dtype=np.uint8)


def load(path: Path) -> Checkpoint:
    """Reads a checkpoint, and checks that it is what was written.

    Raises:
        DamagedError: it is none, or is not whole.
        ConfigError: it cannot be read, or was written by a newer version.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        text, written = arrays.pop(_META), arrays.pop(_DIGEST, None)
        meta = json.loads(text.tobytes())
    except Exception as error:  # what a damaged archive raises is promised nowhere: BadZipFile, zlib.error, KeyError...
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno != errno.EINVAL):
            raise ConfigError(f"{path} cannot be read: {error}.") from error
        raise DamagedError(f"{path} is not a whole checkpoint: {type(error).__name__}: {error}.") from error
    found: Any = meta.get("format") if isinstance(meta, dict) else None
    if _is_count(found) and found > FORMAT:
        raise ConfigError(
            f"{path} has checkpoint format {found}; this version reads up to {FORMAT}: take the version of rlpipe that "
            "wrote it."
        )
    if wrong := _wrong_arrays(arrays) or _wrong_meta(meta):
        raise DamagedError(f"{path} is not a whole checkpoint: {wrong}.")
    if found > 1 and not np.array_equal(written, digest({_META: text, **arrays})):
        raise DamagedError(f"{path} is not a whole checkpoint: its contents are not those that were written.")
    return Checkpoint(path, arrays, meta)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _wrong_arrays(arrays: Mapping[str, Any]) -> str:
    """What is wrong with the arrays for whatever learner; empty when nothing is."""
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray) or array.dtype.kind not in _NUMBERS:
            return f"{name} is no array of numbers"
    version = arrays.get("version")
    if version is None or version.shape or version.dtype.kind not in "iu":
        return "version is no whole number"
    return "" if subtree("policy/", arrays) else "it holds no policy"


def _wrong_meta(meta: Any) -> str:
    """What is wrong with ``meta.json``; empty when nothing is."""
    if not isinstance(meta, dict):
        return f"{_META} is no JSON object"
    for name, legal in (("format", _is_count), ("iteration", _is_count), ("run_id", _is_text), ("config", _is_text)):
        if not legal(meta.get(name)):
            return f"{name} in {_META} is {meta.get(name)!r:.80}"
    if not isinstance(meta.get("metrics"), dict):
        return f"metrics in {_META} is no JSON object"
    for name, state in meta["metrics"].items():
        try:
            kind, fields = state
            if not _holds_numbers(list(fields.values())):
                return f"the state of {name} in {_META} holds something else than numbers"
            metric: Any = from_json([kind, fields])
            metric.merge(metric).read()
        except Exception as error:  # whatever fields that no state has, make of its arithmetic
            return f"the state of {name} in {_META} is none: {type(error).__name__}: {error}"
    return ""


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _holds_numbers(value: Any) -> bool:
    """Whether nested lists hold numbers, or nothing, and nothing else."""
    if isinstance(value, list):
        return all(map(_holds_numbers, value))
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def files(run: Path) -> dict[int, Path]:
    """The checkpoint files of a run directory by iteration, from the oldest to the newest, whole or not."""
    found = {}
    for file in (run / "checkpoints").glob("iteration-*.npz"):
        if match := re.fullmatch(r"iteration-(\d{6,})\.npz", file.name):
            found[int(match[1])] = file
    return dict(sorted(found.items()))


def newest_iteration(run: Path) -> int:
    """Iteration of the newest checkpoint of a run directory; 0 if there is none."""
    return max(files(run), default=0)


def newest(run: Path) -> Checkpoint:
    """The newest checkpoint of a run directory that is whole; damaged ones are passed over, which is told.

    Raises:
        NoCheckpointError: there is none.
        ConfigError: a newer one cannot be read, or was written by a newer version.
    """
    found = files(run)
    for iteration, file in reversed(found.items()):
        try:
            state = load(file)
            if state.meta["iteration"] != iteration:
                raise DamagedError(f"{file} holds the state after iteration {state.meta['iteration']}: it was renamed.")
        except DamagedError as error:
            log.warning("%s It is passed over.", error)
        except ConfigError:
            if file.exists():
                raise  # otherwise newer ones took its place meanwhile
        else:
            return state
    many = f"none of its {len(found)} checkpoints is whole" if len(found) > 1 else "its only checkpoint is not whole"
    raise NoCheckpointError(
        f"{run}: {many if found else 'it has no checkpoint'}. A run writes its first after runner.save_interval "
        "iterations."
    )


def set_aside(run: Path, after: int) -> tuple[str, ...]:
    """Renames the checkpoints after an iteration, which ``newest`` passed over, to ``iteration-NNNNNN.npz.damaged``.
    Only a run that resumes may do so, while it holds the directory.

    Returns:
        The names they had.
    """
    damaged = [file for iteration, file in files(run).items() if iteration > after]
    for file in damaged:
        file.replace(file.with_name(f"{file.name}.damaged"))
    return tuple(file.name for file in damaged)


def best(run: Path) -> Checkpoint:
    """The checkpoint of a run directory whose evaluation was best.

    Raises:
        ConfigError: none is known, or its file is gone or damaged.
    """
    named = _read_best(run / "checkpoints")
    if named is None:
        raise ConfigError(
            f"{run} names no best checkpoint: it was not evaluated yet (runner.val_check_interval), keeps none "
            "(runner.keep_best), or its evaluations do not have the metric that decides (runner.best_metric)."
        )
    return load(run / "checkpoints" / _name(named.iteration))


@dataclass(frozen=True)
class Best:
    """What ``best.json`` holds.

    Attributes:
        iteration: of the best checkpoint.  metric: that decides.  value: of that metric in its evaluation.
    """

    iteration: int
    metric: str
    value: float


def _read_best(folder: Path) -> Best | None:
    """What ``best.json`` names; None where there is none.

    Raises:
        ConfigError: it cannot be read, or holds something else.
    """
    file = folder / BEST
    try:
        found = json.loads(file.read_bytes())
        named = Best(**found)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{file} does not name the best checkpoint: {error}. Name a checkpoint file.") from error
    if not (_is_count(named.iteration) and _is_text(named.metric) and isinstance(named.value, int | float)):
        raise ConfigError(f"{file} does not name the best checkpoint: it holds {found}. Name a checkpoint file.")
    return named


class Retention:
    """Which checkpoints of a run stay: the newest, and the one whose evaluation was best, which ``best.json`` names.

    Each step leaves ``best.json`` naming a file that is there, wherever the process is killed: a checkpoint is written
    before it is named, and what was named before goes last.
    """

    def __init__(self, run: Path, newest: int, metrics: Sequence[Metric]) -> None:
        """Nothing is known yet.

        Args:
            run: directory of the run.  newest: how many stay, at least 1.
            metrics: by which evaluations are compared; the first that an evaluation has decides, and an evaluation that
                has it comes before one that has not. With none, no checkpoint is the best.
        """
        self._run = run
        self._folder = run / "checkpoints"
        self._newest = newest
        self._metrics = metrics
        self._best: Best | None = None
        self._candidate: Best | None = None

    def rank(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Takes note of the numbers of an iteration, before its checkpoint is written."""
        decisive = next((metric.name for metric in self._metrics if metric.name in metrics), None)
        if decisive is not None:
            found = Best(iteration, decisive, metrics[decisive])
            if self._best is None or self._rank(found) > self._rank(self._best):
                self._candidate = found

    def _rank(self, one: Best) -> tuple[int, float]:
        place = [metric.name for metric in self._metrics].index(one.metric)
        return -place, one.value if self._metrics[place].better == "higher" else -one.value

    def leads(self, iteration: int) -> bool:
        """Whether the evaluation of an iteration, the newest that was observed, is better than all before."""
        return self._candidate is not None and self._candidate.iteration == iteration

    def recall(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """As ``rank``, for the rows of a run that goes on, in turn: their checkpoints are written, or are gone."""
        self.rank(iteration, metrics)
        if self.leads(iteration) and (self._folder / _name(iteration)).is_file():
            self._best = self._candidate

    def settle(self) -> None:
        """Names the best among what was recalled: what a resume cut off is not among that, and a kill may have come
        between a checkpoint and ``best.json``."""
        try:
            named = _read_best(self._folder)
        except ConfigError:
            named = None
        if self._best is None:
            (self._folder / BEST).unlink(missing_ok=True)
        elif self._best != named:
            self._name(self._best)

    def save(self, arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]) -> Path:
        """Writes a checkpoint and removes those that need not stay; as ``save``."""
        path = save(self._folder, arrays, meta)
        if self._candidate is not None and self.leads(meta["iteration"]):
            self._name(self._candidate)
            self._best = self._candidate
        there = files(self._run)
        for iteration in list(there)[: -self._newest]:
            if self._best is None or iteration != self._best.iteration:
                there[iteration].unlink()
        return path

    def _name(self, best: Best) -> None:
        partial = self._folder / f".{BEST}.partial"
        with partial.open("w", encoding="utf-8") as file:
            json.dump(asdict(best), file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self._folder / BEST)
        _settle(self._folder)


def _name(iteration: int) -> str:
    return f"iteration-{iteration:06d}.npz"


def _settle(folder: Path) -> None:
    """Waits until the names in a folder are on the disk too. Some network file systems cannot say; the files are."""
    with suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def newest_or_none(run: Path) -> Checkpoint | None:
    """As ``newest``; None in a run that has none yet, or none any more."""
    try:
        return newest(run)
    except NoCheckpointError:
        return None


def subtree(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Arrays whose names begin so, without that beginning."""
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
