"""Shared by the versions of LeRobotDataset: the open folder, features, columns of a table, and ``meta/info.json``."""

from __future__ import annotations

import io
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar, NotRequired

import numpy as np
from typing_extensions import TypedDict

from rlpipe import files
from rlpipe.demonstrations.formats import statistics
from rlpipe.demonstrations.formats.episode import (
    Array,
    DatasetInfo,
    EpisodeEntry,
    Features,
    Frames,
    RecordedEpisode,
)
from rlpipe.demonstrations.formats.video import frames_of, seconds_of
from rlpipe.errors import ConfigError
from rlpipe.files import whole_file
from rlpipe.plugins import require
from rlpipe.trajectory import LeafSpec

COUNTERS = ("timestamp", "frame_index", "episode_index", "index", "task_index")
"""Columns that every dataset has, and that say nothing of the task."""
RESULTS = {
    "rewards": "next.reward",
    "success": "next.success",
    "terminated": "next.done",
    "truncated": "next.truncated",
}
"""Columns of the format by what they are here."""
EPISODE_SUCCESS, EPISODE_END = "is_success", "done"
"""Columns of RLinf's: whether the whole episode succeeds, in each of its rows; and whether it ends with the row."""
_ALIASES = {
    **{column: result for result, column in RESULTS.items()},
    "reward": "rewards", EPISODE_SUCCESS: "success", EPISODE_END: "terminated",
}  # fmt: skip
"""Meaning of each column; of two that mean the same, the first one counts."""
_IMAGES = "observation.images."
MOST_SEED = 2**63 - 1
"""Greatest seed that a column of the format can hold."""
ADVICE = "copy it again, or leave it out."


@whole_file
class Feature(TypedDict):
    """Column of a dataset."""

    dtype: str
    shape: list[int]
    names: NotRequired[Any]


@whole_file
class Info(TypedDict):
    """``meta/info.json``."""

    codebase_version: str
    fps: int | float
    features: dict[str, Feature]
    total_episodes: int
    total_frames: int
    data_path: str
    video_path: NotRequired[str | None]
    robot_type: NotRequired[str | None]
    chunks_size: NotRequired[int]
    rlpipe: NotRequired[dict[str, Any]]


def version_of(path: Path) -> str | None:
    """Returns the version that the folder of a dataset says it has; None if it is no such folder."""
    info = _described(path)
    return None if info is None else str(info.get("codebase_version"))


def is_of_rlinf(path: Path) -> bool:
    """True for the folder of a dataset whose columns have RLinf's names."""
    return {"actions", EPISODE_END} <= {*((_described(path) or {}).get("features") or {})}


def _described(path: Path) -> Mapping[str, Any] | None:
    try:
        info = json.loads((path / "meta" / "info.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return info if isinstance(info, dict) else None


@dataclass(frozen=True)
class Columns:
    """Columns of a dataset by what they are here.

    Attributes:
        observations: names of the leaves, by column.
        cameras: likewise.
        results: ``rewards``, ``success``, ``terminated`` or ``truncated``, by column.
        others: by column.
        action: name of the column.
        seed: name of the column; None if there is none.
    """

    action: str
    observations: Mapping[str, str]
    cameras: Mapping[str, str]
    results: Mapping[str, str]
    others: Mapping[str, str]
    seed: str | None

    @classmethod
    def of(cls, info: Info, where: str) -> Columns:
        """Recognises the columns by their names and types."""
        features = info["features"]
        additions: dict[str, str] = dict(info.get("rlpipe", {}).get("names", {}))
        action = next((name for name in ("action", "actions") if name in features), None)
        if action is None:
            raise ConfigError(f"{where} has no column action: it has {', '.join(features)}.")
        observations: dict[str, str] = {}
        cameras, others = dict(observations), dict(observations)
        results = {result: column for column, result in reversed(_ALIASES.items()) if column in features}
        seed = None
        for column, feature in features.items():
            if column in (*COUNTERS, action) or feature["dtype"] in ("string", "language"):
                continue
            if feature["dtype"] in ("image", "video"):
                cameras[column] = additions.get(column, column.removeprefix(_IMAGES).removeprefix("observation."))
            elif column in (EPISODE_SUCCESS, EPISODE_END) or column in results.values():
                continue
            elif column.startswith("observation.") or column == "state":
                observations[column] = additions.get(column, column.removeprefix("observation."))
            elif column == "seed":
                seed = column
            else:
                others[column] = additions.get(column, column)
        return cls(
            action, observations, cameras, {results[name]: name for name in RESULTS if name in results}, others, seed
        )


def spec_of(feature: Feature) -> LeafSpec:
    """Returns the shape and type of a column's rows; pictures are [height, width, channels] uint8."""
    shape = tuple(feature["shape"])
    if feature["dtype"] in ("image", "video"):
        names = feature.get("names")
        first = isinstance(names, list) and names[:1] in (["channels"], ["channel"])
        return LeafSpec((*shape[1:], shape[0]) if first or (shape[0] == 3 and shape[-1] != 3) else shape, "uint8")
    return LeafSpec(shape, feature["dtype"])


def features_of(info: Info, columns: Columns) -> Features:
    """Returns the shapes and types of the rows of a dataset."""

    def specs(names: Mapping[str, str]) -> dict[str, LeafSpec]:
        return {name: spec_of(info["features"][column]) for column, name in names.items()}

    others = {name: replace(spec, shape=_bare(spec.shape)) for name, spec in specs(columns.others).items()}

    return Features(
        spec_of(info["features"][columns.action]), specs(columns.observations), specs(columns.cameras),
        tuple(columns.results.values()), {}, others, last_observation=False,
    )  # fmt: skip


def dataset_info(info: Info) -> DatasetInfo:
    """Returns the facts of a dataset that ``meta/info.json`` holds."""
    additions: dict[str, Any] = info.get("rlpipe", {})
    return DatasetInfo(
        additions.get("task"), additions.get("options", {}), float(info["fps"]), additions.get("description", "")
    )  # fmt: skip


def read_info(path: Path, version: str, key: str) -> Info:
    """Reads ``meta/info.json``.

    Raises:
        ConfigError: it is damaged, or of another version.
    """
    require("pyarrow", "parquet", key)
    info: Info = files.read(path / "meta" / "info.json", Info)
    if info["codebase_version"] != version:
        raise ConfigError(
            f"{key}: {path} is of version {info['codebase_version']} of LeRobotDataset; v3.0 and v2.1 are read. "
            "Convert it with lerobot's own scripts."
        )
    return info


@contextmanager
def undamaged(file: Path, key: str) -> Iterator[None]:
    """Names a file of Parquet that turns out to be damaged while it is read."""
    import pyarrow as pa

    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise ConfigError(
            f"{key}: {file} is damaged or cut off ({str(error).partition(chr(10))[0]}): {ADVICE}"
        ) from error


def check_rows(file: Path, rows: Sequence[Mapping[str, Any]], key: str) -> None:
    """Checks, by its end alone, that a file holds as many rows as the list of episodes says of those in it."""
    import pyarrow.parquet as pq

    with undamaged(file, key):
        count = pq.read_metadata(file).num_rows
    if count != sum(row["length"] for row in rows):
        for row in rows:
            read_table(file, row["episode_index"], row["length"], key)


def read_table(file: Path, episode: int, length: int, key: str) -> Any:
    """Reads the rows of an episode from a file, and checks that there are as many as the list says."""
    import pyarrow.parquet as pq

    with undamaged(file, key):
        table = pq.read_table(file, filters=[("episode_index", "=", episode)])
    if table.num_rows != length:
        raise ConfigError(
            f"{key}: {file} has {table.num_rows} rows of episode {episode}, but the list of episodes says {length}: "
            f"{ADVICE}"
        )
    return table


def read_seeds(files_of_data: Iterable[Path], columns: Columns, key: str) -> Mapping[int, int]:
    """Returns the seeds of the episodes by their numbers; nothing of a dataset that does not keep them."""
    import pyarrow.parquet as pq

    seeds: dict[int, int] = {}
    for file in sorted({*files_of_data}) if columns.seed is not None else ():
        with undamaged(file, key):
            table = pq.read_table(file, columns=["episode_index", columns.seed])
        seeds |= dict(zip(table["episode_index"].to_pylist(), table[columns.seed].to_pylist(), strict=True))
    return {episode: seed for episode, seed in seeds.items() if seed is not None and seed >= 0}


def values_of(table: Any, column: str, spec: LeafSpec, where: str) -> Array:
    """Returns the rows of a column, [T, *shape]; one number a row is [T, 1], as its shape says."""
    if column not in table.column_names:
        raise ConfigError(f"{where} has no column {column}, which meta/info.json describes: {ADVICE}")
    held = table.column(column)
    if held.null_count:
        row = next(number for number, value in enumerate(held) if not value.is_valid)
        raise ConfigError(f"{where}: row {row} has no {column}: {ADVICE}")
    import pyarrow as pa

    flat = held.combine_chunks()
    while pa.types.is_list(flat.type) or pa.types.is_fixed_size_list(flat.type) or hasattr(flat.type, "storage_type"):
        flat = flat.storage if hasattr(flat.type, "storage_type") else flat.flatten()
    values = np.asarray(flat.to_numpy(zero_copy_only=False), spec.dtype)
    if values.size != table.num_rows * spec.size:
        raise ConfigError(
            f"{where} has {values.size} numbers of {column} in {table.num_rows} rows, but meta/info.json says "
            f"{list(spec.shape)} a row: {ADVICE}"
        )
    return values.reshape(table.num_rows, *spec.shape)


@dataclass
class LeRobotFolder(ABC):
    """Folder of a LeRobotDataset, open to be read; its version says where an episode lies.

    Attributes:
        raw: ``meta/info.json``.
        columns: columns of a table, by what they hold.
        rows: facts about each episode.
        key: key of the path in the configuration, for errors.
    """

    format: ClassVar[str]
    version: ClassVar[str]
    path: Path
    info: DatasetInfo
    features: Features
    episodes: Sequence[EpisodeEntry]
    raw: Info
    columns: Columns
    rows: Sequence[Mapping[str, Any]]
    key: str

    @abstractmethod
    def _table_of(self, row: Mapping[str, Any]) -> Path:
        """Returns the file with the steps of an episode."""

    @abstractmethod
    def _video_of(self, row: Mapping[str, Any], column: str) -> tuple[Path, float]:
        """Returns the file with the pictures of a column, and the second at which the episode begins in it."""

    def read(self, number: int) -> RecordedEpisode:
        """Reads an episode; pictures when they are asked for."""
        row = self.rows[number]
        file = self._table_of(row)
        table = read_table(file, row["episode_index"], row["length"], self.key)

        def video(column: str, spec: LeafSpec) -> Frames:
            path, start = self._video_of(row, column)
            where = f"{self.key}: {self.episodes[number].name}"
            return frames_of(path, row["length"], spec.shape, start, self.raw["fps"], where)

        task = "; ".join(row["tasks"] or [])
        return episode_of(table, self.raw, self.columns, self.episodes[number].name, task, f"{self.key}: {file}", video)

    def each(self) -> Iterator[RecordedEpisode]:
        """Reads all episodes in turn."""
        return map(self.read, range(len(self.rows)))

    def actions(self) -> Iterator[Array]:
        """Reads the actions of each episode in turn, [T, A]; each file once."""
        import pyarrow.parquet as pq

        for file, rows in groupby(self.rows, self._table_of):
            with undamaged(file, self.key):
                table = pq.read_table(file, columns=["episode_index", self.columns.action])
            held = values_of(table, self.columns.action, self.features.action, f"{self.key}: {file}")
            episodes = table["episode_index"].to_numpy()
            for row in rows:
                yield held[episodes == row["episode_index"]]

    def check_videos(self) -> None:
        """Checks that the videos have a picture for each step; only those whose heads promise too few are decoded.

        Raises:
            ConfigError: one ends early; the message names the file and the episode.
        """
        rate = self.raw["fps"]
        columns = [name for name in self.columns.cameras if self.raw["features"][name]["dtype"] == "video"]
        places = {
            (number, column): self._video_of(row, column) for number, row in enumerate(self.rows) for column in columns
        }
        seconds = seconds_of(sorted({file for file, _ in places.values()}), self.key)
        for (number, column), (file, start) in places.items():
            if seconds.get(file, 0.0) < start + (self.rows[number]["length"] - 0.5) / rate:
                for _ in self.read(number).cameras[self.columns.cameras[column]]:
                    pass


def episode_of(
    table: Any, info: Info, columns: Columns, name: str, task: str | None, where: str,
    videos: Callable[[str, LeafSpec], Frames],
) -> RecordedEpisode:  # fmt: skip
    """Returns the episode whose rows a table holds.

    Args:
        table: of pyarrow.
        info: of the dataset.
        columns: likewise.
        name: of the episode.
        task: in words.
        where: the file, for errors.
        videos: gives the pictures of a column that is a video.
    """

    def values(column: str) -> Array:
        return values_of(table, column, spec_of(info["features"][column]), where)

    cameras = {}
    for column, leaf in columns.cameras.items():
        spec = spec_of(info["features"][column])
        if info["features"][column]["dtype"] == "video":
            cameras[leaf] = videos(column, spec)
        else:
            cameras[leaf] = Frames(table.num_rows, spec.shape, partial(_images, table, column, where))
    results: dict[str, Any] = {
        result: values(column).reshape(-1).astype(np.float32 if result == "rewards" else bool)
        for column, result in columns.results.items()
    }
    if EPISODE_SUCCESS in columns.results:
        results["success"] &= np.arange(table.num_rows) == table.num_rows - 1
    seed = None if columns.seed is None or not table.num_rows else _whole(values(columns.seed))
    others = {leaf: values(column) for column, leaf in columns.others.items()}
    return RecordedEpisode(
        name, values(columns.action), {leaf: values(column) for column, leaf in columns.observations.items()}, cameras,
        seed=seed, task=task or None,
        others={leaf: rows.reshape(-1, *_bare(rows.shape[1:])) for leaf, rows in others.items()},
        **results,
    )  # fmt: skip


def _bare(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the shape of a row of another column: the format writes one number a row as [1]."""
    return () if shape == (1,) else shape


def _whole(seeds: Array) -> int | None:
    return int(seeds[0, 0]) if seeds[0, 0] >= 0 else None


def _images(table: Any, column: str, where: str) -> Iterator[Array]:
    """Reads pictures that a table holds as files."""
    from PIL import Image

    for number, value in enumerate(table.column(column)):
        content = value.as_py()["bytes"]
        if content is None:
            raise ConfigError(f"{where}: row {number} of {column} holds no picture: {ADVICE}")
        yield np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))


def rate_of(info: DatasetInfo) -> int:
    """Returns the frames a second, which the format needs as a whole number."""
    if info.rate is None or info.rate <= 0 or info.rate != int(info.rate):
        raise ConfigError(
            f"LeRobotDataset needs a whole number of steps a second, but the dataset says {info.rate}: give it with "
            "--rate, such as 20, with which ManiSkill's tasks run."
        )
    return int(info.rate)


def check(info: DatasetInfo) -> None:
    """Checks that there is what writing needs: a rate, and pyarrow."""
    rate_of(info)
    require("pyarrow", "parquet", "--to")


def camera_column(leaf: str) -> str:
    """Returns the format's own name of the column with the pictures of a camera."""
    return _IMAGES + leaf.replace("/", ".")


def is_video(spec: LeafSpec) -> bool:
    """True for pictures that h264 can hold: three channels, and an even number of rows and columns."""
    height, width, channels = spec.shape
    return channels == 3 and height % 2 == 0 and width % 2 == 0


@dataclass
class Table:
    """Writes episodes as rows of tables.

    Attributes:
        features: of the dataset, as ``meta/info.json`` holds them.
        names: of leaves and other columns, where the format spells them otherwise.
        counters: the next global index.
        tasks: their indices by their words.
        total: statistics of all episodes, by feature.
        spelling: other names of columns than the format's own, by these.
    """

    info: DatasetInfo
    episode_features: Features
    has_seed: bool
    videos: bool = True
    spelling: Mapping[str, str] = field(default_factory=dict)
    features: dict[str, dict[str, Any]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    index: int = 0
    number: int = 0
    tasks: dict[str, int] = field(default_factory=dict)
    total: dict[str, statistics.Statistics] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rate = rate_of(self.info)
        shapes = self.episode_features
        for leaf, spec in shapes.cameras.items():
            kind = "video" if self.videos and is_video(spec) else "image"
            self._add_leaf(_IMAGES, leaf, kind, spec.shape, ["height", "width", "channels"])
        for leaf, spec in shapes.observations.items():
            self._add_leaf("observation.", leaf, spec.dtype, spec.shape)
        self._add(self._spelt("action"), shapes.action.dtype, shapes.action.shape)
        for result in shapes.columns:
            self._add(RESULTS[result], "float32" if result == "rewards" else "bool", ())
        if self.has_seed:
            self._add("seed", "int64", ())
        for leaf, spec in shapes.others.items():
            self._add_leaf("", leaf, spec.dtype, spec.shape)
        for counter in COUNTERS:
            self._add(counter, "float32" if counter == "timestamp" else "int64", ())

    def _spelt(self, prefix: str, leaf: str = "") -> str:
        column = prefix + leaf.replace("/", ".")
        return self.spelling.get(column, column)

    def _add_leaf(self, prefix: str, leaf: str, dtype: str, shape: Sequence[int], names: Any = None) -> None:
        self._add(self._spelt(prefix, leaf), dtype, shape, names)
        self.names[self._spelt(prefix, leaf)] = leaf

    def _add(self, column: str, dtype: str, shape: Sequence[int], names: Any = None) -> None:
        if column in self.features:
            raise ConfigError(
                f"two columns would be {column} in LeRobotDataset: rename {self.names.get(column, column)}."
            )
        self.features[column] = {"dtype": dtype, "shape": list(shape) or [1], "names": names}

    @property
    def cameras(self) -> Mapping[str, str]:
        """Leaves of the pictures that become videos, by column."""
        return {column: self.names[column] for column, feature in self.features.items() if feature["dtype"] == "video"}

    def rows(
        self, episode: RecordedEpisode, show: Callable[[str, Array], None]
    ) -> tuple[Any, dict[str, statistics.Statistics]]:
        """Returns the rows of the next episode, a table of pyarrow, and its statistics by feature.

        ``show`` is called with the column of a video and each of its pictures."""
        import pyarrow as pa

        length, columns, computed = len(episode), {}, {}
        held: dict[str, Array] = {RESULTS[name]: values for name, values in episode.columns.items()}
        held |= {self._spelt("action"): episode.actions}
        held |= {self._spelt("observation.", leaf): rows for leaf, rows in episode.observations.items()}
        held |= {self._spelt("", leaf): rows for leaf, rows in episode.others.items()}
        if self.has_seed:
            seed = -1 if episode.seed is None or episode.seed > MOST_SEED else episode.seed
            held["seed"] = np.full(length, seed, np.int64)
        task = self.tasks.setdefault(episode.task or "", len(self.tasks))
        frames = np.arange(length)
        held |= {
            "timestamp": (frames / self.rate).astype(np.float32), "frame_index": frames, "index": self.index + frames,
            "episode_index": np.full(length, self.number), "task_index": np.full(length, task),
        }  # fmt: skip
        for column, feature in self.features.items():
            if feature["dtype"] in ("video", "image"):
                looked = {*statistics.sampled(length)}
                sample, contents = [], []
                for number, picture in enumerate(episode.cameras[self.names[column]]):
                    if number == length:
                        break  # the format keeps no observation after the last step
                    if number in looked:
                        sample.append(statistics.reduced(picture).copy())
                    if feature["dtype"] == "video":
                        show(column, picture)
                    else:
                        contents.append({"bytes": _png(picture), "path": None})
                computed[column] = statistics.of_pictures(sample)
                if contents:
                    columns[column] = pa.array(contents, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
                continue
            values = held[column][:length]
            columns[column] = _array(values, feature)
            computed[column] = statistics.of_rows(values)
        self.index += length
        self.number += 1
        self.total = statistics.combined(self.total, computed) if self.total else computed
        return pa.table(columns), computed

    def json(self, version: str, **more: Any) -> dict[str, Any]:
        """Returns ``meta/info.json``."""
        facts = {"names": self.names, "task": self.info.task, "options": dict(self.info.options)}
        return {
            "codebase_version": version, "robot_type": None, "total_episodes": self.number,
            "total_frames": self.index, "total_tasks": len(self.tasks), "chunks_size": 1000, "fps": self.rate,
            "splits": {"train": f"0:{self.number}"}, **more, "features": self.features,
            "rlpipe": facts | {"description": self.info.description},
        }  # fmt: skip


def _png(picture: Array) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(picture).save(file, "PNG")
    return file.getvalue()


def _array(values: Array, feature: Mapping[str, Any]) -> Any:
    """Returns a column [T, *shape] of pyarrow: one number a row, or lists in lists of fixed length."""
    import pyarrow as pa

    array = pa.array(np.ascontiguousarray(values, feature["dtype"]).reshape(-1))
    if feature["shape"] == [1]:
        return array
    sizes = feature["shape"]
    for size in reversed(sizes):
        array = pa.FixedSizeListArray.from_arrays(array, size)
    return array


def write_json(path: Path, content: Any) -> None:
    """Writes a JSON file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=4, ensure_ascii=False), encoding="utf-8")


def plain(computed: Mapping[str, statistics.Statistics], names: Iterable[str] | None = None) -> dict[str, Any]:
    """Returns statistics as JSON has them; only those called ``names``, or all."""
    return {
        feature: {name: values.tolist() for name, values in values.items() if names is None or name in names}
        for feature, values in computed.items()
    }


def losses(info: DatasetInfo, features: Features) -> Sequence[str]:
    """Names all of such episodes that LeRobotDataset cannot hold."""
    del info
    lost = []
    if features.last_observation:
        lost.append("has no observation after the last step")
    if features.states:
        lost.append("has no states of the simulator")
    if any(is_video(spec) for spec in features.cameras.values()):
        lost.append("holds pictures as video, whose colours differ a little from the original")
    return lost
