"""LeRobotDataset v3.0: many episodes in a file of Parquet, one row group each, and in a video of each camera."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

from rlpipe.demonstrations.formats import lerobot
from rlpipe.demonstrations.formats.episode import DatasetInfo, EpisodeEntry, RecordedEpisode
from rlpipe.demonstrations.formats.lerobot import Columns
from rlpipe.demonstrations.formats.video import VideoEncoder
from rlpipe.errors import ConfigError

NAME = "lerobot"
VERSION = "v3.0"
FILES_IN_A_CHUNK = 1000
DATA_MEGABYTES, VIDEO_MEGABYTES = 100, 200
"""Sizes of a file beyond which the next episode begins another."""
_FILE = "chunk-{chunk_index:03d}/file-{file_index:03d}"
_DATA, _VIDEO, _EPISODES = (
    f"data/{_FILE}.parquet",
    f"videos/{{video_key}}/{_FILE}.mp4",
    f"meta/episodes/{_FILE}.parquet",
)

check, losses = lerobot.check, lerobot.losses


def recognises(path: Path) -> bool:
    """True for a folder whose ``meta/info.json`` names a version from v3.0 on."""
    version = lerobot.version_of(path)
    return version is not None and not version.startswith(("v1", "v2"))


class LeRobotDataset(lerobot.LeRobotFolder):
    """Folder of LeRobotDataset v3.0, open to be read."""

    format: ClassVar[str] = NAME
    version: ClassVar[str] = VERSION

    def _table_of(self, row: Mapping[str, Any]) -> Path:
        return self.path / _place(self.raw["data_path"], row, "data")

    def _video_of(self, row: Mapping[str, Any], column: str) -> tuple[Path, float]:
        file = _place(self.raw["video_path"] or _VIDEO, row, f"videos/{column}", video_key=column)
        return self.path / file, row[f"videos/{column}/from_timestamp"]


def _place(pattern: str, row: Mapping[str, Any], of: str, **names: str) -> str:
    return pattern.format(chunk_index=row[f"{of}/chunk_index"], file_index=row[f"{of}/file_index"], **names)


def open_dataset(path: Path, key: str = "demos") -> LeRobotDataset:
    """Opens a folder, after a check that all files of its episodes are there."""
    raw = lerobot.read_info(path, VERSION, key)
    columns = Columns.of(raw, f"{key}: {path}")
    import pyarrow.parquet as pq

    rows: list[dict[str, Any]] = []
    for file in sorted((path / "meta" / "episodes").glob("*/*.parquet")):
        with lerobot.undamaged(file, key):
            names = [name for name in pq.read_schema(file).names if not name.startswith("stats/")]
            rows += pq.read_table(file, columns=names).to_pylist()
    if len(rows) != raw["total_episodes"] or not rows:
        raise ConfigError(
            f"{key}: {path}/meta/episodes lists {len(rows)} episodes, but meta/info.json says {raw['total_episodes']}: "
            "the dataset is incomplete. Copy it again."
        )
    videos = [name for name in columns.cameras if raw["features"][name]["dtype"] == "video"]
    for row in rows:
        needed = [_place(raw["data_path"], row, "data")]
        needed += [_place(raw["video_path"] or _VIDEO, row, f"videos/{name}", video_key=name) for name in videos]
        for file_name in needed:
            if not (path / file_name).is_file():
                raise ConfigError(
                    f"{key}: {path} is half a dataset: {file_name}, with episode {row['episode_index']}, is missing. "
                    "Copy it again."
                )
    inside: dict[Path, list[dict[str, Any]]] = {}
    for row in rows:
        inside.setdefault(path / _place(raw["data_path"], row, "data"), []).append(row)
    for file, held in inside.items():
        lerobot.check_rows(file, held, key)
    seeds = lerobot.read_seeds(inside, columns, key)
    entries = [
        EpisodeEntry(f"episode {row['episode_index']}", row["length"], seeds.get(row["episode_index"])) for row in rows
    ]
    return LeRobotDataset(
        path, lerobot.dataset_info(raw), lerobot.features_of(raw, columns), entries, raw, columns, rows, key
    )


def write(folder: Path, info: DatasetInfo, episodes: Iterable[RecordedEpisode]) -> None:
    """Writes a folder."""
    remaining = iter(episodes)
    first = next(remaining)
    table = lerobot.Table(info, first.features, first.seed is not None)
    with ExitStack() as stack:
        files = _Files(folder, table, stack)
        for episode in chain([first], remaining):
            files.add(episode)
        files.close()
        files.write_list()
    lerobot.write_json(folder / "meta" / "stats.json", lerobot.plain(table.total))
    _write_tasks(folder / "meta" / "tasks.parquet", list(table.tasks))
    for column, leaf in table.cameras.items():
        height, width, _ = first.cameras[leaf].shape
        table.features[column]["info"] = {
            "video.height": height, "video.width": width, "video.codec": "h264", "video.pix_fmt": "yuv420p",
            "video.is_depth_map": False, "video.fps": table.rate, "video.channels": 3, "has_audio": False,
        }  # fmt: skip
    lerobot.write_json(folder / "meta" / "info.json", table.json(
        VERSION, data_files_size_in_mb=DATA_MEGABYTES, video_files_size_in_mb=VIDEO_MEGABYTES, data_path=_DATA,
        video_path=_VIDEO if table.cameras else None,
    ))  # fmt: skip


class _Files:
    """Files of a dataset that is being written: the present one of the data, and that of each camera."""

    def __init__(self, folder: Path, table: lerobot.Table, stack: ExitStack) -> None:
        self._folder, self._table, self._stack = folder, table, stack
        self._rows: list[dict[str, Any]] = []
        self._data: Any = None
        self._data_place = _Place(folder, _DATA)
        self._places = {column: _Place(folder, _VIDEO, video_key=column) for column in table.cameras}
        self._videos: dict[str, VideoEncoder] = {}

    def add(self, episode: RecordedEpisode) -> None:
        """Appends an episode to the present files, or to new ones where these have reached their size."""
        import pyarrow.parquet as pq

        if self._data is not None and self._data_place.megabytes(self._rows) >= DATA_MEGABYTES:
            self._data.close()
            self._data = None
            self._data_place.move_on()
        for column, leaf in self._table.cameras.items():
            place = self._places[column]
            if column in self._videos and place.megabytes(self._rows) >= VIDEO_MEGABYTES:
                self._videos.pop(column).close()
                place.move_on()
            if column not in self._videos:
                shape = episode.cameras[leaf].shape
                self._videos[column] = VideoEncoder(place.path, shape, self._table.rate)
                self._stack.callback(self._videos[column].stop)
        starts = {column: video.count for column, video in self._videos.items()}
        first, number = self._table.index, self._table.number
        rows, computed = self._table.rows(episode, lambda column, picture: self._videos[column].add(picture))
        if self._data is None:
            self._data_place.path.parent.mkdir(parents=True, exist_ok=True)
            self._data = pq.ParquetWriter(self._data_place.path, rows.schema, compression="snappy")
            self._stack.callback(self._data.close)
        self._data.write_table(rows, row_group_size=max(1, len(episode)))
        rate = self._table.rate
        described: dict[str, Any] = {
            "episode_index": number, "tasks": [episode.task or ""], "length": len(episode),
            **self._data_place.indices("data"), "dataset_from_index": first, "dataset_to_index": self._table.index,
        }  # fmt: skip
        for column, start in starts.items():
            described |= self._places[column].indices(f"videos/{column}")
            described[f"videos/{column}/from_timestamp"] = start / rate
            described[f"videos/{column}/to_timestamp"] = (start + len(episode)) / rate
        for feature, values in lerobot.plain(computed).items():
            described |= {f"stats/{feature}/{name}": value for name, value in values.items()}
        self._rows.append(described | {"meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0})

    def close(self) -> None:
        """Completes the present files."""
        self._data.close()
        for video in self._videos.values():
            video.close()

    def write_list(self) -> None:
        """Writes the list of the episodes."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = self._folder / _EPISODES.format(chunk_index=0, file_index=0)
        path.parent.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(self._rows), path, compression="snappy")


class _Place:
    """Place of the present file in its chunk."""

    def __init__(self, folder: Path, pattern: str, **names: str) -> None:
        self._folder, self._pattern, self._names = folder, pattern, names
        self._chunk = self._file = 0

    @property
    def path(self) -> Path:
        return self._folder / self._pattern.format(chunk_index=self._chunk, file_index=self._file, **self._names)

    def indices(self, of: str) -> dict[str, int]:
        return {f"{of}/chunk_index": self._chunk, f"{of}/file_index": self._file}

    def move_on(self) -> None:
        """Goes on to the next file, after the last of a chunk to the next chunk."""
        self._file += 1
        if self._file == FILES_IN_A_CHUNK:
            self._chunk, self._file = self._chunk + 1, 0

    def megabytes(self, rows: Sequence[Any]) -> float:
        """Size of the present file on the disk, where nothing of the last frames may have arrived yet."""
        return self.path.stat().st_size / 2**20 if rows and self.path.exists() else 0.0


def _write_tasks(path: Path, tasks: Sequence[str]) -> None:
    """Writes the tasks as pandas does, which makes them the index when it reads them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    def column(name: str, kind: str, numpy_type: str) -> dict[str, Any]:
        return {"name": name, "field_name": name, "pandas_type": kind, "numpy_type": numpy_type, "metadata": None}

    pandas = {
        "index_columns": ["task"], "pandas_version": "2.0.0",
        "creator": {"library": "pyarrow", "version": pa.__version__},
        "column_indexes": [{**column("", "unicode", "object"), "name": None, "field_name": None}],
        "columns": [column("task_index", "int64", "int64"), column("task", "unicode", "object")],
    }  # fmt: skip
    table = pa.table({"task_index": pa.array(range(len(tasks)), pa.int64()), "task": pa.array(tasks, pa.string())})
    pq.write_table(table.replace_schema_metadata({"pandas": json.dumps(pandas)}), path)
