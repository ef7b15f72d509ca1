"""Exchanges datasets of demonstrations with the libraries of others, each in an environment of its own.

    python benchmarks/interop_data.py [--envs FOLDER] [--python PATH] [--rlinf PATH]

The environments are made in ``--envs`` where they are not there yet; ``--python`` names an interpreter that has lerobot
0.4.4 already. Its torch takes 7 GB, or 1 GB where pip finds a CPU build of that version, as in the index
https://download.pytorch.org/whl/cpu. A row of the table is a check:

- lerobot reads what ``DatasetWriter`` writes: lengths, columns, values, exact timestamps of videos, statistics, windows
  in time, some episodes; it joins it with a dataset of its own, and trains its ACT on it for ten steps;
- ``open_dataset`` reads what lerobot writes, in each of its codecs, with tables that end at 1 MB and videos that end at
  0.25 MB: every number and every pixel, and ``rlpipe pretrain`` clones it;
- lerobot 0.3.3 reads version 2.1, and the loader of RLinf its names, for which ``--rlinf`` names a copy of its
  repository;
- robomimic's and Minari's libraries read what is written in their formats, and their files are read.

``--keep FOLDER`` writes the small datasets that the tests read, made by the libraries. The exit code is 1 if anything
fails.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.interop import PROGRAMS, environment, install_once
from rlpipe.demonstrations.formats import lerobot_v3
from rlpipe.demonstrations.formats.episode import DatasetInfo, Frames, RecordedEpisode
from rlpipe.demonstrations.formats.registry import FORMATS, open_dataset
from rlpipe.demonstrations.formats.writing import DatasetWriter
from rlpipe.errors import ConfigError

LEROBOT = [
    "torch==2.9.1", "torchvision==0.24.1", "numpy==2.2.6", "datasets==4.8.5", "diffusers==0.35.2",
    "huggingface-hub==0.35.3", "accelerate==1.15.0", "einops==0.8.2", "av==15.1.0", "jsonlines==4.0.0",
    "packaging==25.0", "draccus==0.10.0", "gymnasium==1.4.0", "deepdiff==8.6.2", "imageio==2.38.1", "termcolor==3.3.0",
    "opencv-python-headless==4.12.0.88", "pandas==2.3.3", "pyarrow==26.0.1", "pyserial==3.5", "h5py==3.16.0",
    "setuptools==80.10.2",
]  # fmt: skip
"""Packages that lerobot 0.4.4 needs to read, write and train; it asks for some more, such as drivers of robots."""
LEROBOT_V2 = ["lerobot==0.3.3", "datasets==3.6.0", "dill==0.3.8", "multiprocess==0.70.16", "fsspec==2025.3.0"]
ROBOMIMIC = [
    "robomimic==0.3.0", "tensorboardX", "protobuf", "psutil", "six", "matplotlib", "pyparsing", "contourpy", "cycler",
    "fonttools", "kiwisolver",
]  # fmt: skip
MINARI = ["minari[hdf5,create]==0.5.4", "gymnasium", "jax[cpu]", "pillow"]
CODECS = ("libsvtav1", "h264")
RATE = 10
INFO = DatasetInfo("Reach-v1", {}, float(RATE), "made to be exchanged")
TASKS = ("reach the cube", "reach the goal")
LIMIT_SECONDS = 900


def main() -> int:
    """Checks all, prints the table, and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", type=Path, help="folder of the environments; by default a temporary one")
    parser.add_argument("--python", type=Path, help="interpreter with lerobot 0.4.4")
    parser.add_argument("--rlinf", type=Path, help="copy of RLinf's repository")
    parser.add_argument("--keep", type=Path, help="folder for the small datasets of the tests")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rlpipe-interop-") as folder:
        work = Path(folder)
        envs = Environments((options.envs or work / "envs").expanduser(), options.python, options.rlinf)
        if options.keep is not None:
            keep(envs, options.keep)
            return 0
        rows: list[Row] = []
        for group in (lerobot_reads_ours, ours_reads_lerobots, version_two, files_of_hdf5):
            rows += group(envs, work / group.__name__)
            print(f"{group.__name__}: {sum(row.passed for row in rows)} of {len(rows)} checks passed", flush=True)
    show(rows)
    return int(not all(row.passed for row in rows))


@dataclass(frozen=True)
class Row:
    """Check, who did it, whether it passed, and numbers to judge it by."""

    by: str
    check: str
    passed: bool
    numbers: str


def show(rows: Sequence[Row]) -> None:
    """Prints the table."""
    table = Table("by", "check", "", "numbers")
    for row in rows:
        table.add_row(row.by, row.check, "passed" if row.passed else "[bold red]FAILED[/]", row.numbers)
    Console(highlight=False, width=160).print(table)


@dataclass(frozen=True)
class Environments:
    """Interpreters with the libraries, which are installed when they are asked for.

    Attributes:
        folder: of the environments.
        python: interpreter with lerobot 0.4.4; None to make it.
        rlinf: copy of RLinf's repository; None to leave its checks out.
    """

    folder: Path
    python: Path | None
    rlinf: Path | None

    @property
    def lerobot(self) -> Path:
        """Interpreter with lerobot 0.4.4."""
        return self.python or environment(self.folder / "lerobot", LEROBOT, ["lerobot==0.4.4"], constraints=None)

    def layer(self, name: str, packages: list[str]) -> Path:
        """Returns a folder of packages that goes before those of lerobot's interpreter."""
        folder = self.folder / name
        pip = [str(self.lerobot), "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
        install_once(folder, packages, lambda: subprocess.run([*pip, *packages], check=True))
        return folder

    @property
    def minari(self) -> Path:
        """Interpreter with Minari's library."""
        return environment(self.folder / "minari", MINARI, [], constraints=None)


def asked(by: str, python: Path, program: str, *arguments: object, path: Sequence[Path] = ()) -> list[Row]:
    """Runs a program of ``interop_programs`` in an environment, and returns its rows.

    Args:
        by: names who checks.
        python: interpreter of the environment.
        program: name of the file.
        arguments: of the program.
        path: folders of packages that go before those of the environment.
    """
    words = [str(python), str(PROGRAMS / program), *map(str, arguments)]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path)), "HF_HUB_OFFLINE": "1"}
    answer = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_SECONDS, env=environ)
    if answer.returncode:
        return [Row(by, " ".join([program, *map(str, arguments[:1])]), False, answer.stderr[-2000:])]
    return [Row(by, row["check"], row["passed"], row["numbers"]) for row in json.loads(answer.stdout.splitlines()[-1])]


def checked(by: str, check: str, run: Callable[[], str]) -> Row:
    """Returns the row of a check of ours, which fails by an assertion."""
    try:
        return Row(by, check, True, run())
    except (AssertionError, ConfigError) as error:
        return Row(by, check, False, str(error) or "not equal")


# --- theirs reads ours


def made_episode(number: int, *, camera: bool = True) -> RecordedEpisode:
    """Returns an episode whose columns count, with a picture in which a square moves.

    It has two actions: lerobot gives windows of one number a step without the axis that its policies expect.
    """
    steps = 20 + 5 * number
    at = np.arange(steps + 1, dtype=np.float32)
    pictures = np.full((steps + 1, 64, 64, 3), (40, 90, 140), np.uint8)
    for row in range(steps + 1):
        pictures[row, row % 48 : row % 48 + 16, 8 * number : 8 * number + 16] = (220, 60 + 2 * row, 40)
    random = np.random.default_rng(number)
    return RecordedEpisode(
        f"traj_{number}", np.clip(random.normal(size=(steps, 2)), -2, 2).astype(np.float32),
        {"state": np.stack([np.cos(at), np.sin(at), at / 8], axis=1).astype(np.float32),
         "touch": random.normal(size=(steps + 1, 2)).astype(np.float32)},
        {"front": Frames.of(pictures)} if camera else {}, -at[:-1], at[1:] >= steps, seed=number,
        terminated=at[1:] >= steps, truncated=np.zeros(steps, bool), task=TASKS[number % 2],
    )  # fmt: skip


def truth_file(file: Path, episodes: Sequence[RecordedEpisode], columns: dict[str, str]) -> Path:
    """Writes the columns of episodes, by the names that a format has for them, for a program to compare with."""
    arrays: dict[str, Any] = {}
    for number, episode in enumerate(episodes):
        held = {**episode.observations, **{leaf: frames.stacked() for leaf, frames in episode.cameras.items()}}
        held |= {
            "action": episode.actions,
            **episode.columns,
            **episode.others,
            "task": np.array([episode.task] * len(episode)),
        }
        held["seed"] = np.full(len(episode), episode.seed)
        for name, column in columns.items():
            if name in held:
                arrays[f"{number}/{column}"] = held[name][: len(episode)]
    np.savez_compressed(file, **arrays)
    return file


COLUMNS = {
    "state": "observation.state", "touch": "observation.touch", "front": "observation.images.front",
    "action": "action", "rewards": "next.reward", "success": "next.success", "terminated": "next.done",
    "truncated": "next.truncated", "seed": "seed", "task": "task",
}  # fmt: skip


def written(folder: Path, form: str, episodes: Sequence[RecordedEpisode], info: DatasetInfo = INFO) -> Path:
    """Writes a dataset of a format."""
    with DatasetWriter(folder, FORMATS[form], info) as writer:
        for episode in episodes:
            writer.add(episode)
    return folder


def lerobot_reads_ours(envs: Environments, work: Path) -> list[Row]:
    """Has lerobot read, join and train on a dataset of ours in several files."""
    work.mkdir()
    episodes = [made_episode(number) for number in range(6)]
    sizes = lerobot_v3.DATA_MEGABYTES, lerobot_v3.VIDEO_MEGABYTES, lerobot_v3.FILES_IN_A_CHUNK
    lerobot_v3.DATA_MEGABYTES, lerobot_v3.VIDEO_MEGABYTES, lerobot_v3.FILES_IN_A_CHUNK = 0.01, 0, 2  # type: ignore[assignment]
    try:
        several = written(work / "several", "lerobot", episodes)
    finally:
        lerobot_v3.DATA_MEGABYTES, lerobot_v3.VIDEO_MEGABYTES, lerobot_v3.FILES_IN_A_CHUNK = sizes
    one = written(work / "one", "lerobot", episodes)
    truth = truth_file(work / "truth.npz", episodes, COLUMNS)
    rows = asked("lerobot 0.4.4", envs.lerobot, "lerobot_data.py", "read", several, truth)
    rows += asked("lerobot 0.4.4", envs.lerobot, "lerobot_data.py", "join", one, truth, work)
    rows += asked("lerobot 0.4.4", envs.lerobot, "lerobot_data.py", "train", one)
    return rows


# --- ours reads theirs


def ours_reads_lerobots(envs: Environments, work: Path) -> list[Row]:
    """Reads datasets of lerobot's, whose tables and videos roll over into several files, and clones one."""
    work.mkdir()
    rows = []
    for codec in CODECS:
        folder, truth = work / codec, work / f"{codec}.npz"
        rows += asked("lerobot 0.4.4", envs.lerobot, "lerobot_data.py", "write", folder, truth, 1, codec)
        rows.append(checked("rlpipe", f"its values and pictures, {codec}", partial(read_as_truth, folder, truth)))
    rows.append(checked("rlpipe", "pretrain from it", lambda: cloned(work / CODECS[0], work)))
    return rows


def read_as_truth(folder: Path, truth: Path) -> str:
    """Compares each episode of a dataset with the columns that its library has."""
    dataset, steps, pictures = open_dataset(folder, "--demos"), 0, 0
    inverse = {column: name for name, column in COLUMNS.items()} | {
        "observation.sensors": "sensors", "observation.images.wrist": "wrist",
    }  # fmt: skip
    files = {
        camera: {tuple(row[f"{camera}/{index}"] for index in ("chunk_index", "file_index")) for row in dataset.rows}  # type: ignore[attr-defined]
        for camera in ("data", "videos/observation.images.front", "videos/observation.images.wrist")
    }
    for what, places in files.items():
        assert 1 < len(places) < len(dataset.episodes), f"{what} is in {len(places)} files"
    with np.load(truth) as held:
        columns = {name.partition("/")[2] for name in held.files}
        for number in range(len(dataset.episodes)):
            episode = dataset.read(number)
            episode.check()
            ours: dict[str, Any] = {**episode.observations, **episode.columns, "action": episode.actions}
            ours |= {leaf: frames.stacked() for leaf, frames in episode.cameras.items()}
            ours["task"] = np.array([episode.task] * len(episode))
            for column in columns:
                values, theirs = ours[inverse[column]], held[f"{number}/{column}"]
                worst = (
                    0 if values.dtype.kind == "U" else np.abs(values.astype(float) - theirs.reshape(values.shape)).max()
                )
                assert np.array_equal(values, theirs.reshape(values.shape)), f"episode {number}: {column} by {worst}"
            steps += len(episode)
            pictures += sum(len(frames) for frames in episode.cameras.values())
    counts = f"{len(dataset.episodes)} episodes, {steps} steps of {len(columns)} columns, {pictures} pictures"
    of_data, *of_videos = map(len, files.values())
    return f"{counts}, {of_data} files of data, {' and '.join(map(str, of_videos))} of videos"


CLONING = {
    "env": {"train": {"name": "gymnasium", "id": "Pendulum-v1", "total_num_envs": 2, "max_episode_steps": 20}},
    "policy": {"name": "mlp", "hidden_sizes": [16]},
    "algorithm": {"name": "ppo"},
    "learner": {"num_threads": 1},
    "evaluation": {"episodes": 2},
}
"""Configuration in which demonstrations of Pendulum's shapes are cloned."""


def cloned(folder: Path, work: Path) -> str:
    """Clones a dataset by ``rlpipe pretrain``."""
    import yaml

    config = {**CLONING, "runner": {"logger": {"log_path": str(work / "runs"), "logger_backends": []}}}
    (work / "clone.yaml").write_text(yaml.safe_dump(config))
    words = ["-m", "rlpipe", "pretrain", str(work / "clone.yaml"), f"demos={folder}", "algorithm.epochs=3", "--local"]
    answer = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=LIMIT_SECONDS)
    assert answer.returncode == 0, answer.stderr[-1000:]
    return next((line.strip() for line in answer.stdout.splitlines() if "return" in line), "ended with exit code 0")


# --- version 2.1 and RLinf's names


def version_two(envs: Environments, work: Path) -> list[Row]:
    """Has a library of version 2.1, and RLinf's loader, read what is written for them."""
    work.mkdir()
    episodes = [made_episode(number) for number in range(3)]
    truth = truth_file(work / "truth.npz", episodes, COLUMNS)
    folder = written(work / "old", "lerobot-v2.1", episodes)
    layer = envs.layer("lerobot-v2", LEROBOT_V2)
    rows = asked("lerobot 0.3.3", envs.lerobot, "lerobot_data.py", "read-v2", folder, truth, path=[layer])
    if envs.rlinf is not None:
        flagged = [replace(each, others={"intervene_flag": np.arange(len(each)) > 9}) for each in episodes]
        folder = written(work / "rank_0" / "id_0", "rlinf", flagged)
        names = {"state": "state", "front": "image", "action": "actions", "task": "task"}
        truth = truth_file(work / "rlinf.npz", flagged, names | {"intervene_flag": "intervene_flag"})
        rows += asked("RLinf", envs.lerobot, "rlinf_data.py", folder, truth, path=[envs.rlinf, layer])
    return rows


def keep(envs: Environments, folder: Path) -> None:
    """Writes the small datasets of the tests: three by the libraries, and one of ours that lerobot has read."""
    program = "lerobot_data.py"
    rows = asked("lerobot", envs.lerobot, program, "write", folder / "lerobot", folder / "lerobot.npz", 0, "h264")
    ours = written(folder / "read_by_lerobot", "lerobot", kept_episodes())
    with tempfile.TemporaryDirectory() as work:
        truth = truth_file(Path(work) / "truth.npz", kept_episodes(), COLUMNS)
        rows += asked("lerobot", envs.lerobot, program, "read", ours, truth)
        layer, truth = envs.layer("robomimic", ROBOMIMIC), Path(work) / "robomimic.npz"
        rows += asked(
            "robomimic", envs.lerobot, "robomimic_data.py", "write", folder / "robomimic.hdf5", truth, path=[layer]
        )
        rows += asked("minari", envs.minari, "minari_data.py", "write", work, folder / "minari.npz")
        shutil.copytree(Path(work) / "pendulum" / "small-v0", folder / "minari")
    show(rows)


def kept_episodes() -> list[RecordedEpisode]:
    """Returns the episodes of the dataset of the tests that lerobot has read."""
    episodes = [made_episode(number) for number in range(2)]
    return [
        replace(each, cameras={"front": Frames.of(each.cameras["front"].stacked()[:, ::4, ::4])}) for each in episodes
    ]


# --- robomimic and Minari


def files_of_hdf5(envs: Environments, work: Path) -> list[Row]:
    """Has the libraries of the formats of HDF5 read ours, and reads theirs."""
    work.mkdir()
    episodes = [made_episode(number, camera=False) for number in range(2)]
    folder = written(work / "robomimic", "robomimic", episodes)
    layer = envs.layer("robomimic", ROBOMIMIC)
    names = {"actions": "actions", "rewards": "rewards", "terminated": "dones"}
    arrays = {}
    for number, episode in enumerate(episodes):
        held: dict[str, Any] = {"actions": episode.actions, **episode.columns}
        arrays |= {f"{number}/{column}": held[name] for name, column in names.items()}
        for leaf, values in episode.observations.items():
            arrays |= {f"{number}/obs/{leaf}": values[:-1], f"{number}/next_obs/{leaf}": values[1:]}
    np.savez_compressed(work / "robomimic.npz", **arrays)
    truth = work / "robomimic.npz"
    rows = asked(
        "robomimic 0.3.0",
        envs.lerobot,
        "robomimic_data.py",
        "read",
        folder / "demonstrations.hdf5",
        truth,
        path=[layer],
    )
    file, truth = work / "theirs.hdf5", work / "robomimic_theirs.npz"
    rows += asked("robomimic 0.3.0", envs.lerobot, "robomimic_data.py", "write", file, truth, path=[layer])
    rows.append(checked("rlpipe", "its values", lambda: robomimics(file, truth)))
    pictures = [made_episode(number) for number in range(2)]
    folder, truth = written(work / "minari", "minari", pictures), work / "minari.npz"
    arrays = {}
    for number, episode in enumerate(pictures):
        held = {"actions": episode.actions, "rewards": episode.rewards, "truncations": episode.truncated}
        held |= {f"observations/{leaf}": values for leaf, values in episode.observations.items()}
        held |= {f"observations/{leaf}": frames.stacked() for leaf, frames in episode.cameras.items()}
        arrays |= {f"{number}/{name}": values for name, values in held.items()}
    np.savez_compressed(truth, **arrays)
    rows += asked("minari 0.5.4", envs.minari, "minari_data.py", "read", folder, truth)
    out, truth = work / "minari_theirs", work / "minari_theirs.npz"
    out.mkdir()
    rows += asked("minari 0.5.4", envs.minari, "minari_data.py", "write", out, truth)
    rows.append(checked("rlpipe", "its values and pictures", lambda: minaris(out / "pendulum" / "small-v0", truth)))
    return rows


def robomimics(file: Path, truth: Path) -> str:
    """Compares a file of robomimic's with what its library wrote."""
    dataset = open_dataset(file, "--demos")
    with np.load(truth) as held:
        for number in range(len(dataset.episodes)):
            episode = dataset.read(number)
            for leaf, values in episode.observations.items():
                assert np.array_equal(values[:-1], held[f"{number}/obs/{leaf}"]), leaf
                assert np.array_equal(values[1:], held[f"{number}/next_obs/{leaf}"]), leaf
            assert np.array_equal(episode.actions, held[f"{number}/actions"])
            assert np.array_equal(episode.others["states"], held[f"{number}/states"])
            assert episode.rewards is not None
            assert np.array_equal(episode.rewards, held[f"{number}/rewards"])
    return f"{len(dataset.episodes)} episodes of {dataset.info.task}, {dataset.info.rate:g} steps a second"


def minaris(folder: Path, truth: Path) -> str:
    """Compares a dataset of Minari's with what its library reads."""
    dataset = open_dataset(folder, "--demos")
    with np.load(truth) as held:
        assert [entry.seed for entry in dataset.episodes] == held["seeds"].tolist()
        for number in range(len(dataset.episodes)):
            episode = dataset.read(number)
            assert np.array_equal(episode.observations["state"], held[f"{number}/observations/state"])
            assert np.array_equal(episode.cameras["camera"].stacked(), held[f"{number}/observations/camera"])
            assert np.array_equal(episode.actions, held[f"{number}/actions"])
    shape = list(dataset.features.cameras["camera"].shape)
    return f"{len(dataset.episodes)} episodes of {dataset.info.task}, pictures {shape}"


if __name__ == "__main__":
    sys.exit(main())
