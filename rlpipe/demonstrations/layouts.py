"""Recognises files and folders of demonstrations by their own marks, before anything of them is parsed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rlpipe.errors import ConfigError

CONVERT = "rlpipe reads ManiSkill's: docs/demonstrations.md#files-of-other-formats has the lines that convert it."
WRITE = "rlpipe reads ManiSkill's: docs/demonstrations.md#file-format has the lines that write it."
"""Advice for a file of another format: where that page has lines that convert it, and where it has none. A test follows
both."""
_HDF5 = b"\x89HDF\r\n\x1a\n"
_USER_BLOCKS = (0, 512, 1024, 2048)
"""Places where the signature of an HDF5 file may stand."""

_MAGIC = {
    b"PAR1": "holds Parquet, as LeRobot's datasets do: name the folder of the dataset, in which meta/info.json is.",
    b"PK\x03\x04": f"is a ZIP archive, such as NumPy's .npz or a zipped Zarr store. {WRITE}",
    b"\x93NUMPY": f"is an array of NumPy's. {WRITE}",
    b"\x80": f"is a pickle, as of D4RL's and DAPG's demonstrations. {WRITE}",
    b"\x1f\x8b": "is compressed with gzip: unpack it first.",
    b"\x28\xb5\x2f\xfd": "is compressed with zstd: unpack it first.",
    b"\x89MCAP": f"is a recording of ROS (MCAP). {WRITE}",
    b"#ROSBAG": f"is a recording of ROS. {WRITE}",
    b"version https://git-lfs": "is a pointer of Git LFS, not the file itself: fetch it with git lfs pull.",
    b"<": "is a page of HTML or XML, as a download that failed leaves behind: download the file itself.",
    b"{": "is JSON: name the HDF5 file, whose JSON has the same name and is beside it.",
}
"""Ends of the sentence on a file of another format, by its first bytes."""


def check_file(path: Path, key: str) -> None:
    """Checks that a file begins as HDF5; the error says what it is instead. ``key`` names the file there."""
    try:
        with path.open("rb") as file:
            first = file.read(4096)
    except OSError as error:
        raise ConfigError(f"{key}: {path} cannot be read: {error.strerror or error}.") from error
    if any(first[at : at + 8] == _HDF5 for at in _USER_BLOCKS):
        return
    if not first:
        raise ConfigError(f"{key}: {path} is empty or damaged: copy or record it again.")
    formats = (what for magic, what in _MAGIC.items() if first.startswith(magic))
    tensorflow = f"is TensorFlow's (RLDS). {WRITE}" if ".tfrecord" in path.name else None
    what = tensorflow or next(formats, "is damaged, or no HDF5 file: copy or record it again.")
    raise ConfigError(f"{key}: {path} {what}")


_FOLDERS: Mapping[str, tuple[str, ...]] = {
    "a dataset of LeRobot whose meta/info.json is damaged: copy it again.": ("meta/info.json",),
    "a dataset of Minari that is damaged: copy it again.": ("data/main_data.hdf5", "main_data.hdf5"),
    f"a Zarr store, such as Diffusion Policy's. {WRITE}": (".zgroup", "zarr.json", ".zattrs"),
    f"a dataset of TensorFlow (RLDS). {WRITE}": ("dataset_info.json", "features.json", "*.tfrecord*"),
}
"""Files by which a dataset of another format is known, under the end of the sentence on it."""


def folder_is(folder: Path) -> str:
    """Returns the end of the sentence "the path is a folder", with what it holds and what to do."""
    for what, marks in _FOLDERS.items():
        if any(next(folder.glob(mark), None) for mark in marks):
            return f"that is {what}"
    inside = sorted(file.name for file in folder.iterdir() if file.suffix in (".h5", ".hdf5"))
    of_it = f", such as {folder / inside[0]}" if inside else ""
    return f"that is a directory: name one of ManiSkill's HDF5 files{of_it}."


def _is_d4rl(file: Any) -> bool:
    return all(hasattr(file.get(name), "shape") for name in ("observations", "actions"))


def _is_one_episode(file: Any) -> bool:
    return any(name in file for name in ("action", "joint_action", "actions")) and not _is_d4rl(file)


_LAYOUTS: Mapping[str, Callable[[Any], bool]] = {
    f"D4RL's layout, all steps in one array. {CONVERT}": _is_d4rl,
    f"one episode, as ALOHA, ACT and RoboTwin store each in a file. {WRITE}": _is_one_episode,
}


def check_layout(file: Any, path: str, key: str) -> None:
    """Checks that an open HDF5 file has no layout of another library; the error names it, the path and the key."""
    for what, has_marks in _LAYOUTS.items():
        if has_marks(file):
            raise ConfigError(f"{key}: {path} holds {what}")
