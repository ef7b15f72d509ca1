"""Tries datasets with the library lerobot: ``python lerobot_data.py COMMAND ARGUMENTS``; prints a row for each check.

``read FOLDER TRUTH``, ``join FOLDER TRUTH OUT`` and ``train FOLDER`` take a dataset that rlpipe wrote, and ``TRUTH``,
an archive of NumPy's with the columns ``NUMBER/NAME`` of its episodes. ``write OUT TRUTH MEGABYTES CODEC`` writes a
dataset and such an archive, with pictures as the library decodes them. ``read-v2 FOLDER TRUTH`` is for a library before
0.4.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from PIL import Image

FPS = 10
COUNTERS = {"timestamp", "frame_index", "episode_index", "index", "task_index"}
EXACT = ("min", "max", "mean", "std", "count")
TASKS = ("push the cube", "lift the cube")


class Rows(list[dict[str, Any]]):
    """Checks and their outcomes."""

    def add(self, check: str, numbers: str, problems: list[str] | None = None) -> None:
        """Adds a check, which failed if there are problems."""
        self.append({"check": check, "passed": not problems, "numbers": "; ".join([numbers, *(problems or [])[:3]])})


def truth_of(path: str) -> list[dict[str, Any]]:
    """Reads the columns of each episode by name."""
    episodes: dict[int, dict[str, Any]] = {}
    with np.load(path, allow_pickle=False) as held:
        for name in held.files:
            number, _, column = name.partition("/")
            episodes.setdefault(int(number), {})[column] = held[name]
    return [episodes[number] for number in sorted(episodes)]


def opened(folder: str | Path, **options: Any) -> LeRobotDataset:
    """Opens a dataset on the disk, whose videos pyav decodes."""
    return LeRobotDataset("local/dataset", root=folder, video_backend="pyav", **options)


def rows_of(dataset: LeRobotDataset, numbers: range | list[int]) -> dict[str, Any]:
    """Returns columns of a dataset, pictures as [T, height, width, 3] uint8."""
    items = [dataset[number] for number in numbers]
    columns = {}
    for name, first in items[0].items():
        if isinstance(first, torch.Tensor):
            values = torch.stack([item[name] for item in items]).numpy()
            if name in dataset.meta.camera_keys:
                values = np.round(values * 255).astype(np.uint8).transpose(0, 2, 3, 1)
            columns[name] = values
        else:
            columns[name] = np.array([item[name] for item in items])
    return columns


def differences(expected: dict[str, Any], found: dict[str, Any], pictures: int = 0) -> list[str]:
    """Names the columns that differ; pictures may differ by so much on average."""
    problems = []
    for name, values in expected.items():
        if name not in found:
            problems.append(f"no {name}")
            continue
        other = found[name].reshape(values.shape) if found[name].size == values.size else found[name]
        if values.ndim == 4 and pictures and values.shape == other.shape:
            mean = np.abs(values.astype(int) - other.astype(int)).mean()
            if mean > pictures:
                problems.append(f"{name} differs by {mean:.2f} on average")
        elif values.shape != other.shape or not np.array_equal(values, other):
            problems.append(f"{name} differs")
    return problems


# --- of a dataset that rlpipe wrote


def read(folder: str, truth: str) -> Rows:
    """Checks that the library reads what was written."""
    rows, episodes, dataset = Rows(), truth_of(truth), opened(folder)
    lengths = [len(episode["action"]) for episode in episodes]
    starts = [0, *itertools.accumulate(lengths)]
    found = [row["length"] for row in dataset.meta.episodes]
    files = len({row["data/file_index"] + 1000 * row["data/chunk_index"] for row in dataset.meta.episodes})
    rows.add(
        "lengths", f"{len(found)} episodes, {len(dataset)} steps, {files} files of data",
        [f"{found} instead of {lengths}"] * (found != lengths or len(dataset) != sum(lengths)),
    )  # fmt: skip
    types = {name: str(column.feature if hasattr(column, "feature") else column) for name, column in
             dataset.hf_features.items()}  # fmt: skip
    absent = [f"no {name}" for name in episodes[0] if name not in {*dataset.features, "task"}]
    rows.add("features", f"{len(dataset.features)} columns, {len(types)} in tables", absent)
    problems, frames = [], 0
    for number, episode in enumerate(episodes):
        held = rows_of(dataset, range(starts[number], starts[number + 1]))
        problems += [f"episode {number}: {text}" for text in differences(episode, held, pictures=6)]
        expected = (np.arange(lengths[number]) / dataset.fps).astype(np.float32)
        problems += [f"episode {number}: timestamps"] * (not np.array_equal(held["timestamp"], expected))
        frames += sum(len(held[name]) for name in dataset.meta.camera_keys)
    rows.add("values", f"{sum(lengths)} steps of {len(episodes[0])} columns, {frames} pictures", problems)
    rows += timestamps(dataset)
    rows += statistics(dataset, episodes)
    rows += windows(folder, episodes, starts)
    some = sorted({1, len(episodes) - 1})
    part = opened(folder, episodes=some)
    held = rows_of(part, range(len(part)))
    parts = [{name: np.atleast_1d(values) for name, values in episodes[number].items()} for number in some]
    expected = {name: np.concatenate([each[name] for each in parts]) for name in parts[0]}
    rows.add("episodes=[...]", f"episodes {some}, {len(part)} steps", differences(expected, held, pictures=6))
    return rows


def timestamps(dataset: LeRobotDataset) -> Iterator[dict[str, Any]]:
    """Checks that frame n of a video is at n / rate seconds exactly."""
    import av

    rows, count, problems = Rows(), 0, []
    for column in dataset.meta.video_keys:
        for file in sorted({dataset.root / dataset.meta.get_video_file_path(number, column) for number in
                            range(dataset.meta.total_episodes)}):  # fmt: skip
            with av.open(str(file)) as container:
                stream = container.streams.video[0]
                times = [frame.pts * frame.time_base for frame in container.decode(stream)]
                codec = f"{stream.codec.canonical_name} {stream.pix_fmt}"
            count += len(times)
            problems += [f"{file.name}: not exact"] * (times != [Fraction(n, dataset.fps) for n in range(len(times))])
    rows.add("timestamps of videos", f"{count} frames at n / {dataset.fps} s exactly, {codec}", problems)
    return iter(rows)


def statistics(dataset: LeRobotDataset, episodes: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Compares the statistics with those that the library computes of the same numbers."""
    from lerobot.datasets.compute_stats import aggregate_stats, compute_episode_stats
    from lerobot.datasets.utils import load_stats

    rows, total, exact, quantiles, computed = Rows(), None, 0.0, 0.0, 0
    for number, episode in enumerate(episodes):
        data = {name: values for name, values in episode.items() if name != "task"}
        with tempfile.TemporaryDirectory() as folder:
            for name in dataset.meta.camera_keys:
                paths = [f"{folder}/{name}-{t}.png" for t in range(len(data[name]))]
                for path, picture in zip(paths, data[name], strict=True):
                    Image.fromarray(picture).save(path)
                data[name] = paths
            theirs = compute_episode_stats(data, {name: dataset.features[name] for name in data})
        row = dataset.meta.episodes[number]
        file = dataset.root / f"meta/episodes/chunk-{row['meta/episodes/chunk_index']:03d}"
        ours = statistics_of(file / f"file-{row['meta/episodes/file_index']:03d}.parquet", number, theirs)
        for name, values in theirs.items():
            for statistic, value in values.items():
                difference = float(np.abs(np.asarray(ours[name][statistic], float) - np.asarray(value, float)).max())
                computed += 1
                if statistic in EXACT:
                    exact = max(exact, difference)
                else:
                    spread = float((np.asarray(values["max"], float) - values["min"]).max()) or 1.0
                    quantiles = max(quantiles, difference / spread)
        total = theirs if total is None else aggregate_stats([total, theirs])
    rows.add(
        "statistics of episodes",
        f"{computed} numbers; min, max, mean, std, count differ by {exact:g}, quantiles by {quantiles:g} of the range",
        ["more than rounding"] * (exact > 1e-6 or quantiles > 1e-3),
    )
    stored = load_stats(dataset.root)
    worst = max(
        float(np.abs(np.asarray(stored[name][statistic], float) - np.asarray(value, float)).max())
        for name, values in total.items() for statistic, value in values.items()
    )  # fmt: skip
    rows.add("statistics of the dataset", f"differ by {worst:g}", ["more than rounding"] * (worst > 1e-5))
    return iter(rows)


def statistics_of(file: Path, number: int, names: Any) -> dict[str, dict[str, Any]]:
    """Returns the statistics of an episode that the list of episodes holds."""
    import pyarrow.parquet as pq

    (row,) = [row for row in pq.read_table(file).to_pylist() if row["episode_index"] == number]
    return {
        name: {key.rpartition("/")[2]: value for key, value in row.items() if key.startswith(f"stats/{name}/")}
        for name in names
    }


def windows(folder: str, episodes: list[dict[str, Any]], starts: list[int]) -> Iterator[dict[str, Any]]:
    """Compares windows in time with those of the truth, beyond the ends of episodes too."""
    rows, problems, count = Rows(), [], 0
    steps = {"observation.state": [-2, 0], "action": [0, 1, 2, 3]}
    fps = opened(folder).fps
    dataset = opened(folder, delta_timestamps={name: [n / fps for n in each] for name, each in steps.items()})
    for number, episode in enumerate(episodes):
        length = len(episode["action"])
        for row in (0, 1, length // 2, length - 2, length - 1):
            item = dataset[starts[number] + row]
            for name, each in steps.items():
                places = np.array([row + step for step in each])
                values = episode[name][np.clip(places, 0, length - 1)]
                padded = (places < 0) | (places >= length)
                count += 1
                if not np.array_equal(item[name].numpy(), values) or (item[f"{name}_is_pad"].numpy() != padded).any():
                    problems.append(f"episode {number}, row {row}: {name}")
    rows.add("delta_timestamps", f"{count} windows", problems)
    return iter(rows)


def join(folder: str, truth: str, out: str) -> Rows:
    """Aggregates a dataset with one of the library's own with the same columns."""
    from lerobot.datasets.aggregate import aggregate_datasets

    rows, episodes, dataset = Rows(), truth_of(truth), opened(folder)
    own, joined = Path(out) / "own", Path(out) / "joined"
    columns = {name: feature for name, feature in dataset.features.items() if name not in COUNTERS}
    theirs = LeRobotDataset.create("local/own", dataset.fps, columns, root=own, vcodec="h264", video_backend="pyav")
    for _ in range(2):
        add(theirs, columns, episodes[0])
    theirs.finalize()
    aggregate_datasets(["local/own", "local/ours"], "local/joined", roots=[own, Path(folder)], aggr_root=joined)
    both = opened(joined)
    first, problems = 2 * len(episodes[0]["action"]), []
    starts = [0, *itertools.accumulate(len(episode["action"]) for episode in episodes)]
    for number, episode in enumerate(episodes):
        held = rows_of(both, range(first + starts[number], first + starts[number + 1]))
        problems += [f"episode {number}: {text}" for text in differences(episode, held, pictures=6)]
    rows.add("aggregate_datasets", f"{both.num_episodes} episodes, {len(both)} steps of both", problems)
    return rows


def add(dataset: LeRobotDataset, columns: dict[str, Any], episode: dict[str, Any]) -> None:
    """Records an episode with the library."""
    for row in range(len(episode["action"])):
        frame = {name: np.asarray(episode[name][row]) for name in columns}
        for name, feature in columns.items():
            if feature["dtype"] not in ("image", "video"):
                frame[name] = frame[name].reshape(feature["shape"]).astype(feature["dtype"])
        dataset.add_frame({**frame, "task": str(episode["task"][row])})
    dataset.save_episode()


def train(folder: str) -> Rows:
    """Trains the library's ACT for ten steps."""
    from lerobot.configs.types import FeatureType
    from lerobot.datasets.utils import dataset_to_policy_features
    from lerobot.policies.act.configuration_act import ACTConfig
    from lerobot.policies.act.modeling_act import ACTPolicy
    from lerobot.policies.act.processor_act import make_act_pre_post_processors

    torch.manual_seed(0)
    torch.set_num_threads(1)
    meta = opened(folder).meta
    features = dataset_to_policy_features(meta.features)
    outputs = {name: feature for name, feature in features.items() if feature.type is FeatureType.ACTION}
    config = ACTConfig(
        input_features={name: feature for name, feature in features.items() if name not in outputs},
        output_features=outputs, chunk_size=8, n_action_steps=8, dim_model=64, n_heads=4, dim_feedforward=128,
        n_encoder_layers=2, n_vae_encoder_layers=2, latent_dim=8, pretrained_backbone_weights=None, device="cpu",
        optimizer_lr=1e-3,
    )  # fmt: skip
    policy = ACTPolicy(config)
    before, _ = make_act_pre_post_processors(config, dataset_stats=meta.stats)
    dataset = opened(folder, delta_timestamps={"action": [n / meta.fps for n in range(config.chunk_size)]})
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(0)
    )
    optimizer = torch.optim.AdamW(policy.parameters(), lr=config.optimizer_lr)
    losses = []
    policy.train()
    for batch in itertools.islice(itertools.cycle(loader), 10):
        loss, _ = policy.forward(before(batch))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    rows = Rows()
    inputs = ", ".join(f"{name} {list(feature.shape)}" for name, feature in config.input_features.items())
    rows.add(
        "ten steps of ACT", f"loss {losses[0]:.2f} to {losses[-1]:.2f}, from {inputs}",
        ["not finite or not falling"] * (not np.isfinite(losses).all() or losses[-1] >= losses[0]),
    )  # fmt: skip
    return rows


def read_v2(folder: str, truth: str) -> Rows:
    """Checks that a library before 0.4 reads version 2.1."""
    import lerobot

    rows, episodes, dataset = Rows(), truth_of(truth), opened(folder)
    ends = [0, *dataset.episode_data_index["to"].tolist()]
    problems = []
    for number, episode in enumerate(episodes):
        held = rows_of(dataset, range(ends[number], ends[number + 1]))
        problems += [f"episode {number}: {text}" for text in differences(episode, held, pictures=6)]
    named = f"lerobot {getattr(lerobot, '__version__', '')} reads version 2.1"
    rows.add(named, f"{len(ends) - 1} episodes, {len(dataset)} steps of {len(episodes[0])} columns", problems)
    return rows


# --- of a dataset of the library's own


def write(out: str, truth: str, megabytes: str, codec: str) -> Rows:
    """Writes a dataset with two cameras and two tasks, or with 0 megabytes one of few kB.

    Its tables end at a size in megabytes, and its videos, which noise of this size hardly fills, at a quarter of it."""
    small = float(megabytes) == 0
    count, steps, size, sensors = (3, 4, 16, 2) if small else (12, 40, 64, 1024)
    columns: dict[str, Any] = {
        f"observation.images.{name}": {
            "dtype": "video", "shape": (size, size, 3), "names": ["height", "width", "channels"],
        }
        for name in ("front", "wrist")
    } | {
        "observation.state": {"dtype": "float32", "shape": (3,), "names": ["x", "y", "z"]},
        "observation.sensors": {"dtype": "float32", "shape": (sensors,), "names": None},
        "action": {"dtype": "float32", "shape": (1,), "names": ["force"]},
        "next.reward": {"dtype": "float32", "shape": (1,), "names": None},
        "next.success": {"dtype": "bool", "shape": (1,), "names": None},
        "next.done": {"dtype": "bool", "shape": (1,), "names": None},
    }  # fmt: skip
    dataset = LeRobotDataset.create("local/theirs", FPS, columns, root=out, vcodec=codec, video_backend="pyav")
    if not small:
        dataset.meta.update_chunk_settings(
            chunks_size=2, data_files_size_in_mb=float(megabytes), video_files_size_in_mb=float(megabytes) / 4
        )
    generator = np.random.default_rng(0)
    kept: dict[str, Any] = {}
    for number in range(count):
        length = steps + number
        at = np.arange(length, dtype=np.float32)
        last = at == length - 1
        episode = {
            "observation.state": np.stack([at, np.full(length, number, np.float32), at / 8], axis=1),
            "observation.sensors": generator.normal(size=(length, sensors)).astype(np.float32),
            "action": (at / 8 % 2)[:, None] - 1, "next.reward": at, "next.success": last, "next.done": last,
            "task": np.array([TASKS[number % 2]] * length),
        }  # fmt: skip
        for name, feature in columns.items():
            if feature["dtype"] == "video":
                noise = generator.integers(0, 128, (length, *feature["shape"]))
                noise += (16 * np.arange(length) % 128)[:, None, None, None]
                episode[name] = noise.astype(np.uint8)
        add(dataset, columns, episode)
        kept |= {f"{number}/{name}": values for name, values in episode.items() if name not in dataset.meta.camera_keys}
    dataset.finalize()
    again, start = opened(out), 0
    for number in range(count):
        length = steps + number
        held = rows_of(again, range(start, start + length))
        kept |= {f"{number}/{name}": held[name] for name in again.meta.camera_keys}
        start += length
    np.savez_compressed(truth, **kept)
    rows = Rows()
    files = sorted(Path(out).glob("*/**/*.parquet")) + sorted(Path(out).glob("videos/**/*.mp4"))
    rows.add("it writes", f"{count} episodes, {start} steps, {len(files)} files, {codec}")
    return rows


def main() -> None:
    """Runs a command, and prints its rows as JSON."""
    commands = {"read": read, "join": join, "train": train, "read-v2": read_v2, "write": write}
    print(json.dumps(commands[sys.argv[1]](*sys.argv[2:])))


if __name__ == "__main__":
    main()
