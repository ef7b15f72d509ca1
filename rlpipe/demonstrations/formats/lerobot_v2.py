"""LeRobotDataset v2.1: a file of Parquet for each episode, and a video of each camera; RLinf reads this version."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

from rlpipe.demonstrations.formats import lerobot
from rlpipe.demonstrations.formats.episode import DatasetInfo, EpisodeEntry, RecordedEpisode
from rlpipe.demonstrations.formats.lerobot import ADVICE, Columns, Info
from rlpipe.demonstrations.formats.video import VideoEncoder
from rlpipe.errors import ConfigError

NAME = "lerobot-v2.1"
VERSION = "v2.1"
EPISODES_IN_A_CHUNK = 1000
_CHUNK = "chunk-{episode_chunk:03d}"
_DATA = f"data/{_CHUNK}/episode_{{episode_index:06d}}.parquet"
_VIDEO = f"videos/{_CHUNK}/{{video_key}}/episode_{{episode_index:06d}}.mp4"
_STATISTICS = ("min", "max", "mean", "std", "count")

check, losses = lerobot.check, lerobot.losses


def recognises(path: Path) -> bool:
    """True for a folder whose ``meta/info.json`` names a version before v3.0, and other columns than RLinf's."""
    return is_old(path) and not lerobot.is_of_rlinf(path)


def is_old(path: Path) -> bool:
    """True for a folder whose ``meta/info.json`` names a version before v3.0."""
    version = lerobot.version_of(path)
    return version is not None and version.startswith(("v1", "v2"))


class LeRobotDataset(lerobot.LeRobotFolder):
    """Folder of LeRobotDataset v2.1, open to be read."""

    format: ClassVar[str] = NAME
    version: ClassVar[str] = VERSION

    def _table_of(self, row: Mapping[str, Any]) -> Path:
        return self.path / _place(self.raw["data_path"], self.raw, row)

    def _video_of(self, row: Mapping[str, Any], column: str) -> tuple[Path, float]:
        return self.path / _place(self.raw["video_path"] or _VIDEO, self.raw, row, video_key=column), 0.0


def _place(pattern: str, raw: Info, row: Mapping[str, Any], **names: str) -> str:
    number = row["episode_index"]
    chunk = number // raw.get("chunks_size", EPISODES_IN_A_CHUNK)
    return pattern.format(episode_chunk=chunk, episode_index=number, **names)


def open_dataset(path: Path, key: str = "demos", kind: type[LeRobotDataset] = LeRobotDataset) -> LeRobotDataset:
    """Opens a folder as a ``kind`` of dataset, after a check that all files of its episodes are there."""
    raw = lerobot.read_info(path, VERSION, key)
    columns = Columns.of(raw, f"{key}: {path}")
    rows = list(_lines(path / "meta" / "episodes.jsonl", ("episode_index", "tasks", "length"), key))
    if len(rows) != raw["total_episodes"] or not rows:
        raise ConfigError(
            f"{key}: {path}/meta/episodes.jsonl lists {len(rows)} episodes, but meta/info.json says "
            f"{raw['total_episodes']}: the dataset is incomplete. Copy it again."
        )
    videos = [name for name in columns.cameras if raw["features"][name]["dtype"] == "video"]
    for row in rows:
        needed = [_place(raw["data_path"], raw, row)]
        needed += [_place(raw["video_path"] or _VIDEO, raw, row, video_key=name) for name in videos]
        for file_name in needed:
            if not (path / file_name).is_file():
                raise ConfigError(
                    f"{key}: {path} is half a dataset: {file_name}, with episode {row['episode_index']}, is missing. "
                    "Copy it again."
                )
    for row in rows:
        lerobot.check_rows(path / _place(raw["data_path"], raw, row), [row], key)
    seeds = lerobot.read_seeds((path / _place(raw["data_path"], raw, row) for row in rows), columns, key)
    entries = [
        EpisodeEntry(f"episode {row['episode_index']}", row["length"], seeds.get(row["episode_index"])) for row in rows
    ]
    return kind(path, lerobot.dataset_info(raw), lerobot.features_of(raw, columns), entries, raw, columns, rows, key)


def _lines(path: Path, names: Sequence[str], key: str) -> Iterator[dict[str, Any]]:
    """Reads a file of JSON lines, each of which has ``names``."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{key}: {path} cannot be read: {error.strerror}. {ADVICE.capitalize()}") from error
    for number, line in enumerate(text.splitlines(), 1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"{key}: {path}: line {number} is damaged or cut off: {ADVICE}") from error
        if not isinstance(row, dict) or any(name not in row for name in names):
            raise ConfigError(f"{key}: {path}: line {number} lacks one of {', '.join(names)}: {ADVICE}")
        yield row


def write(folder: Path, info: DatasetInfo, episodes: Iterable[RecordedEpisode]) -> None:
    """Writes a folder."""
    remaining = iter(episodes)
    first = next(remaining)
    write_table(folder, lerobot.Table(info, first.features, first.seed is not None), chain([first], remaining))


def write_table(folder: Path, table: lerobot.Table, episodes: Iterable[RecordedEpisode]) -> None:
    """Writes a folder of episodes by the columns of ``table``, which has no rows yet."""
    import pyarrow.parquet as pq

    raw: Any = {"chunks_size": EPISODES_IN_A_CHUNK}
    listed: list[dict[str, Any]] = []
    stats: list[dict[str, Any]] = []
    for episode in episodes:
        row = {"episode_index": table.number, "tasks": [episode.task or ""], "length": len(episode)}
        videos = {
            column: VideoEncoder(
                folder / _place(_VIDEO, raw, row, video_key=column), episode.cameras[leaf].shape, table.rate
            )
            for column, leaf in table.cameras.items()
        }
        try:
            rows, computed = table.rows(episode, lambda column, picture, to=videos: to[column].add(picture))  # type: ignore[misc]
            for video in videos.values():
                video.close()
        finally:
            for video in videos.values():
                video.stop()
        file = folder / _place(_DATA, raw, row)
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, file, compression="snappy")
        listed.append(row)
        stats.append({"episode_index": row["episode_index"], "stats": lerobot.plain(computed, _STATISTICS)})
    meta = folder / "meta"
    chunks = -(-table.number // EPISODES_IN_A_CHUNK)
    lerobot.write_json(meta / "info.json", table.json(
        VERSION, total_videos=table.number * len(table.cameras), total_chunks=chunks, data_path=_DATA,
        video_path=_VIDEO if table.cameras else None,
    ))  # fmt: skip
    tasks = [{"task_index": number, "task": task} for task, number in table.tasks.items()]
    for name, lines in {"episodes": listed, "episodes_stats": stats, "tasks": tasks}.items():
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        (meta / f"{name}.jsonl").write_text(text, encoding="utf-8")
