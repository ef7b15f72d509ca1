"""LeRobotDataset v2.1 as RLinf writes it and its DAgger loader reads it, with names of its own for the columns.

``state`` and ``actions`` [D] float32; ``image``, ``wrist_image`` and ``extra_view_image`` as pictures in the tables,
since the loader opens no video, and ``wrist_image-0``, ``wrist_image-1`` where there are several; ``done``, true in the
last row; and ``is_success``, true in all rows of an episode that succeeds. It passes other columns on, such as
``intervene_flag``.

Source: ``rlinf/data/storage/lerobot/writer.py``, ``rlinf/envs/wrappers/collect_episode.py`` and
``rlinf/data/datasets/dagger/lerobot_io.py`` of RLinf, August 2026.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import ClassVar

import numpy as np

from rlpipe.demonstrations.formats import lerobot, lerobot_v2
from rlpipe.demonstrations.formats.episode import STATE, DatasetInfo, Features, RecordedEpisode

NAME = "rlinf"
_ON_THE_HAND = ("wrist", "hand", "gripper")
"""Parts of the names of cameras that move with the robot's hand."""

check = lerobot.check


def recognises(path: Path) -> bool:
    """True for a folder of LeRobotDataset v2.1 with RLinf's names."""
    return lerobot_v2.is_old(path) and lerobot.is_of_rlinf(path)


class RLinfDataset(lerobot_v2.LeRobotDataset):
    """Folder of LeRobotDataset v2.1 with RLinf's names, open to be read."""

    format: ClassVar[str] = NAME


def open_dataset(path: Path, key: str = "demos") -> lerobot_v2.LeRobotDataset:
    """Opens a folder, after a check that all files of its episodes are there."""
    return lerobot_v2.open_dataset(path, key, RLinfDataset)


def losses(info: DatasetInfo, features: Features) -> Sequence[str]:
    """Names all of such episodes that cannot be held, and vectors that become one."""
    lost = list(lerobot.losses(info, replace(features, cameras={})))
    if len(vectors := _vectors(features)) > 1:
        lost.append(f"has one state, which joins {', '.join(vectors)}")
    return lost


def write(folder: Path, info: DatasetInfo, episodes: Iterable[RecordedEpisode]) -> None:
    """Writes a folder."""
    remaining = map(_with_columns, episodes)
    first = next(remaining)
    spelling = {"action": "actions", f"observation.{STATE}": "state", **_camera_columns(first.features.cameras)}
    table = lerobot.Table(info, first.features, first.seed is not None, videos=False, spelling=spelling)
    lerobot_v2.write_table(folder, table, chain([first], remaining))


def _with_columns(episode: RecordedEpisode) -> RecordedEpisode:
    """Returns an episode with the state and the columns that RLinf has."""
    steps, vectors = len(episode), _vectors(episode.features)
    observations = {leaf: rows for leaf, rows in episode.observations.items() if leaf not in vectors}
    if vectors:
        observations[STATE] = np.concatenate([episode.observations[leaf] for leaf in vectors], axis=1)
    ends = {lerobot.EPISODE_END: np.arange(steps) == steps - 1}
    if episode.success is not None:
        ends[lerobot.EPISODE_SUCCESS] = np.full(steps, episode.success.any())
    return replace(episode, observations=observations, others={**episode.others, **ends})


def _vectors(features: Features) -> Sequence[str]:
    """Returns the leaves that make up the state: the one of that name, or else all vectors, in the order of names."""
    held = features.observations
    if STATE in held:
        return [STATE]
    return sorted(leaf for leaf, spec in held.items() if len(spec.shape) == 1 and spec.dtype == "float32")


def _camera_columns(cameras: Iterable[str]) -> Mapping[str, str]:
    """Returns the names of the columns of cameras by those that the format has otherwise."""
    on_hand = [leaf for leaf in cameras if any(part in leaf.lower() for part in _ON_THE_HAND)]
    elsewhere = [leaf for leaf in cameras if leaf not in on_hand]
    columns = dict(zip(elsewhere[:1], ["image"], strict=False))
    for name, leaves in {"wrist_image": on_hand, "extra_view_image": elsewhere[1:]}.items():
        columns |= {leaf: name if len(leaves) == 1 else f"{name}-{number}" for number, leaf in enumerate(leaves)}
    return {lerobot.camera_column(leaf): column for leaf, column in columns.items()}
