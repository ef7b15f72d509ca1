"""Checkpoints: one file each, written whole or not at all, and read without running any code that is in it.

A checkpoint is a NumPy archive without pickles: the learner's arrays, one JSON text with counters, configuration and
the state of the metrics, and a digest of all that.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import re
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rlpipe.config.tree import from_yaml
from rlpipe.errors import ConfigError
from rlpipe.files import fsync_folder, line, parsed, replacing
from rlpipe.functional.commitments import add_arrays
from rlpipe.metrics import MetricWindow
from rlpipe.metrics.reductions import from_json
from rlpipe.run.directory import RunDirectory, find_run
from rlpipe.run.shapes import Iteration
from rlpipe.trajectory import SpaceSpec

if TYPE_CHECKING:
    from rlpipe.policies.base import Snapshot

log = logging.getLogger("rlpipe")

FORMAT = 2
"""Format 1 is the same without the digest; it can still be read."""
BEST = "best.json"
"""File beside the checkpoints that names the best of them."""
_META = "meta.json"
_DIGEST = "digest"
_NUMBERS = "biufc"
"""Kinds of NumPy types that a checkpoint may hold: truth values, integers, real and complex numbers."""


class DamagedError(ConfigError):
    """File that is not a whole checkpoint."""


class NoCheckpointError(ConfigError):
    """Run directory without a whole checkpoint."""


@dataclass(frozen=True)
class Checkpoint:
    """Contents of a checkpoint file.

    Attributes:
        path: path of the file
        arrays: policy, optimiser and random states, by name
        meta: ``iteration``, ``config`` (YAML), ``run_id``, ``metrics`` (states that accumulate over the run),
            ``spaces`` (observations and actions that the policy is made for; the oldest checkpoints lack them), and
            ``row`` and ``window`` (what is known of the row of its iteration, which is still to come)
    """

    path: Path
    arrays: dict[str, NDArray[Any]]
    meta: dict[str, Any]

    @property
    def spaces(self) -> SpaceSpec | None:
        """Observations and actions that the policy is made for; None where the checkpoint is too old to tell."""
        return SpaceSpec.from_json(self.meta["spaces"]) if "spaces" in self.meta else None

    @property
    def policy(self) -> Snapshot:
        """Version and weights of the policy."""
        from rlpipe.policies.base import Snapshot  # loads torch, which no report of a run needs

        return Snapshot(int(self.arrays["version"]), subtree("policy/", self.arrays))


def save(folder: Path, arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]) -> Path:
    """Writes ``iteration-NNNNNN.npz``, which appears under its name only when it is complete and on the disk.

    Args:
        folder: folder of the checkpoints, created if missing
        arrays: arrays of numbers by name
        meta: as in ``Checkpoint``
    Raises:
        OSError: the disk does not accept it; nothing of it is left, and earlier files are unchanged.
        ValueError: an array does not hold numbers.
    """
    for name, array in arrays.items():
        if array.dtype.kind not in _NUMBERS:
            raise ValueError(f"a checkpoint holds only numbers, but {name} has the type {array.dtype}.")
    if not folder.is_dir():
        folder.mkdir(parents=True)
        fsync_folder(folder.parent)
    for left in folder.glob(".*.partial"):  # by a process that was killed while it wrote
        left.unlink()
    text = np.frombuffer(json.dumps({"format": FORMAT, **meta}).encode(), dtype=np.uint8)
    contents = {_META: text, **arrays}
    path = folder / file_name(meta["iteration"])
    with replacing(path, sync=True) as file:
        np.savez(file, **{**contents, _DIGEST: digest(contents)})  # type: ignore[arg-type] # any names
    return path


def digest(arrays: Mapping[str, NDArray[Any]]) -> NDArray[np.uint8]:
    """Hashes names, types, shapes and bytes of arrays with BLAKE2b (RFC 7693), in the order of their names.

    Returns:
        [64] bytes.
    """
    hasher = hashlib.blake2b()
    add_arrays(hasher, arrays)
    return np.frombuffer(hasher.digest(), dtype=np.uint8)


def load(path: Path) -> Checkpoint:
    """Reads a checkpoint and checks that it is what was written.

    Raises:
        DamagedError: it is not a checkpoint, or not a whole one.
        ConfigError: it cannot be read, or was written by a newer version.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        text, written = arrays.pop(_META), arrays.pop(_DIGEST, None)
        meta = json.loads(text.tobytes())
    except Exception as error:  # the errors of a damaged archive are undocumented: BadZipFile, zlib.error, KeyError...
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno != errno.EINVAL):
            raise ConfigError(f"{path} cannot be read: {error}.") from error
        if kind := _foreign(path):
            raise DamagedError(
                f"{path} is not a checkpoint of rlpipe: it is {kind}. Name a run directory of rlpipe, or a file in its "
                "folder checkpoints."
            ) from error
        raise DamagedError(f"{path} is not a whole checkpoint: it is cut short or damaged.") from error
    number: Any = meta.get("format") if isinstance(meta, dict) else None
    if is_count(number) and number > FORMAT:
        raise ConfigError(
            f"{path} has checkpoint format {number}; this version reads up to {FORMAT}: use the version of rlpipe that "
            "wrote it."
        )
    if wrong := _wrong_arrays(arrays) or _wrong_meta(meta):
        raise DamagedError(f"{path} is not a whole checkpoint: {wrong}.")
    if number > 1 and not np.array_equal(written, digest({_META: text, **arrays})):
        raise DamagedError(f"{path} is not a whole checkpoint: its contents are not those that were written.")
    return Checkpoint(path, arrays, meta)


def _foreign(path: Path) -> str:
    """Describes a file that never was a checkpoint of rlpipe; empty for one that may be what is left of one."""
    head, members = b"", list[str]()
    with suppress(Exception):  # a damaged archive raises anything, as above
        with path.open("rb") as file:
            head = file.read(4)
        with zipfile.ZipFile(path) as opened:
            members = opened.namelist()
    if "_stable_baselines3_version" in members or {"data", "policy.pth"} <= {*members}:
        return "a model of Stable-Baselines3"
    if any(name.split("/")[-1] == "data.pkl" for name in members):
        return "a file of torch"
    if members and not any(name.endswith(".npy") for name in members):
        return "a zip of other files"
    if path.suffix == ".py":
        return "a Python file"
    if path.suffix in (".yaml", ".yml"):
        return "a configuration"
    if head.startswith(b"\x80"):
        return "a pickle, as torch and others write"
    return "" if not head or b"PK\x03\x04".startswith(head) else "no archive of arrays"


def is_count(value: Any) -> bool:
    """True for an integer of at least 1."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _wrong_arrays(arrays: Mapping[str, Any]) -> str:
    """Describes an error that no learner's arrays may have; empty if there is none."""
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray) or array.dtype.kind not in _NUMBERS:
            return f"{name} is not an array of numbers"
    version = arrays.get("version")
    if version is None or version.shape or version.dtype.kind not in "iu":
        return "version is not a whole number"
    return "" if subtree("policy/", arrays) else "it holds no policy"


def _wrong_meta(meta: Any) -> str:
    """Describes an error in ``meta.json``; empty if there is none."""
    if not isinstance(meta, dict):
        return f"{_META} is not a JSON object"
    for name, legal in (("format", is_count), ("iteration", is_count), ("run_id", _is_text), ("config", _is_text)):
        if not legal(meta.get(name)):
            return f"{name} in {_META} is {meta.get(name)!r:.80}"
    if not isinstance(meta.get("metrics"), dict):
        return f"metrics in {_META} is not a JSON object"
    window = meta.get("window", {"states": {}})
    try:
        MetricWindow.from_json({"episodes": [], "faults": [], "notes": [], "tells_success": False, **window})
    except Exception as error:  # as below
        return f"window in {_META} is not valid: {type(error).__name__}: {error}"
    for name, state in [*meta["metrics"].items(), *window["states"].items()]:
        try:
            kind, fields = state
            if not _holds_numbers(list(fields.values())):
                return f"the state of {name} in {_META} holds something other than numbers"
            metric: Any = from_json([kind, fields])
            metric.merge(metric).read()
        except Exception as error:  # the arithmetic may raise anything for fields that no state has
            return f"the state of {name} in {_META} is not valid: {type(error).__name__}: {error}"
    try:
        if "spaces" in meta:
            SpaceSpec.from_json(meta["spaces"])
    except (KeyError, TypeError, ValueError) as error:
        return f"spaces in {_META} are not valid: {type(error).__name__}: {error}"
    return ""


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _holds_numbers(value: Any) -> bool:
    """True if nested lists hold nothing but numbers and nulls."""
    if isinstance(value, list):
        return all(map(_holds_numbers, value))
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def files(run: Path) -> dict[int, Path]:
    """Lists the checkpoint files of a run directory by iteration, from the oldest to the newest, whole or not."""
    by_iteration = {}
    for file in (run / "checkpoints").glob("iteration-*.npz"):
        if match := re.fullmatch(r"iteration-(\d{6,})\.npz", file.name):
            by_iteration[int(match[1])] = file
    return dict(sorted(by_iteration.items()))


def file_name(iteration: int) -> str:
    """Returns the file name of the checkpoint after an iteration."""
    return f"iteration-{iteration:06d}.npz"


def newest_iteration(run: Path) -> int:
    """Returns the iteration of the newest checkpoint of a run directory; 0 if there is none."""
    return max(files(run), default=0)


def newest(run: Path) -> Checkpoint:
    """Reads the newest whole checkpoint of a run directory; damaged ones are skipped with a warning.

    Raises:
        NoCheckpointError: there is none.
        ConfigError: a newer one cannot be read, or was written by a newer version.
    """
    checkpoints = files(run)
    for iteration, file in reversed(checkpoints.items()):
        try:
            state = load(file)
            if state.meta["iteration"] != iteration:
                raise DamagedError(f"{file} holds the state after iteration {state.meta['iteration']}: it was renamed.")
        except DamagedError as error:
            log.warning("%s It is skipped.", error)
        except ConfigError:
            if file.exists():
                raise  # otherwise the run has meanwhile replaced it by newer ones
        else:
            return state
    why = {0: "it has no checkpoint", 1: "its only checkpoint is not whole"}.get(
        len(checkpoints), f"none of its {len(checkpoints)} checkpoints is whole"
    )
    raise NoCheckpointError(f"{run}: {why}. A run writes its first after runner.save_interval iterations.")


def best(run: Path) -> Checkpoint:
    """Reads the checkpoint of a run directory with the best evaluation.

    Raises:
        ConfigError: none is known, or its file is gone or damaged.
    """
    named = BestCheckpoint.read(run / "checkpoints")
    if named is None:
        raise ConfigError(
            f"{run} names no best checkpoint: it was not evaluated yet (runner.val_check_interval), keeps none "
            "(runner.keep_best), or its evaluations do not have the metric that decides (runner.best_metric)."
        )
    return load(run / "checkpoints" / file_name(named.iteration))


def find_checkpoint(path: Path, take_best: bool = False) -> tuple[Checkpoint, str]:
    """Reads a checkpoint and the configuration (YAML) it was trained with.

    Args:
        path: checkpoint file, or run directory, which means its newest whole checkpoint; or a folder of runs
        take_best: take the checkpoint of the run directory with the best evaluation instead of the newest
    Raises:
        ConfigError: there is none.
    """
    path = find_run(path)
    if path.is_dir():
        run = RunDirectory.existing(path).path
        state = best(run) if take_best else newest(run)
    elif take_best:
        raise ConfigError(f"--best needs a run directory, which {path} is not: name one, or leave out --best.")
    elif path.is_file():
        state, run = load(path), path.absolute().parent.parent
        if (run / "run.json").is_file():
            RunDirectory.existing(run)  # makes its modules known
    else:
        raise ConfigError(f"{path} is neither a run directory nor a checkpoint file.")
    try:
        from_yaml(state.meta["config"])
    except Exception as error:  # OmegaConf promises no common base of YAML's own errors
        raise ConfigError(f"{state.path}: the configuration in it is not readable as YAML: {error}") from error
    return state, state.meta["config"]


def set_aside(run: Path, after: int) -> tuple[str, ...]:
    """Renames the checkpoints after an iteration, which ``newest`` skipped, to ``iteration-NNNNNN.npz.damaged``.

    Only a run that resumes may do so, while it holds the lock on the directory.

    Returns:
        Names that they had.
    """
    damaged = [file for iteration, file in files(run).items() if iteration > after]
    for file in damaged:
        file.replace(file.with_name(f"{file.name}.damaged"))
    return tuple(file.name for file in damaged)


@line
@dataclass(frozen=True)
class BestCheckpoint:
    """Contents of ``best.json``.

    Attributes:
        iteration: iteration of the best checkpoint
        metric: metric that decided
        value: value of that metric in the evaluation after that iteration
    """

    iteration: Iteration
    metric: str
    value: float

    @classmethod
    def read(cls, folder: Path) -> BestCheckpoint | None:
        """Reads ``best.json``; None if there is none.

        Raises:
            ConfigError: it cannot be read, or holds something else.
        """
        file = folder / BEST
        try:
            return parsed(file.read_bytes(), cls, BEST)
        except FileNotFoundError:
            return None
        except (OSError, ConfigError) as error:
            reason = str(error).rstrip(".")
            raise ConfigError(f"{file} does not name the best checkpoint: {reason}. Name a checkpoint file.") from error


def subtree(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Selects the arrays whose names begin with a prefix, and removes the prefix from their names."""
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
