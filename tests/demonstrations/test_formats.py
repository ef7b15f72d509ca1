"""Every format: what goes in comes out, an interrupted dataset goes on, and what a format cannot hold has a name."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from rlpipe.demonstrations.formats import lerobot_v2, lerobot_v3, maniskill, minari, rlinf, robomimic
from rlpipe.demonstrations.formats.episode import DatasetInfo, Frames
from rlpipe.demonstrations.formats.registry import FORMATS, open_dataset
from rlpipe.demonstrations.formats.writing import DatasetWriter, is_unfinished, open_unfinished
from rlpipe.errors import ConfigError
from tests.helpers.datasets import INFO, assert_equal, episode, pictures, write


def test_a_file_of_maniskills_keeps_everything(tmp_path):
    episodes = [episode(0), episode(1, 2)]
    dataset = write(tmp_path / "data", episodes)
    assert dataset.info == INFO
    assert [(entry.name, entry.length, entry.seed) for entry in dataset.episodes] == [
        ("traj_0", 3, 100), ("traj_1", 2, 101),
    ]  # fmt: skip
    for number, before in enumerate(episodes):
        assert_equal(before, dataset.read(number))


def test_pictures_are_kept_and_read_one_by_one(tmp_path):
    before = episode(0, cameras={"front/rgb": pictures()})
    dataset = write(tmp_path / "data", [before])
    assert dataset.features.cameras["front/rgb"].shape == (4, 6, 3)
    assert_equal(before, dataset.read(0))
    np.testing.assert_array_equal(
        next(iter(dataset.read(0).cameras["front/rgb"])), before.cameras["front/rgb"].stacked()[0]
    )


def test_one_vector_without_a_name_stays_one(tmp_path):
    import h5py

    dataset = write(tmp_path / "data", [episode(0, observations={"state": np.zeros((4, 5), np.float32)})])
    with h5py.File(dataset.path) as file:
        assert file["traj_0/obs"].shape == (4, 5)


@pytest.mark.parametrize(
    "half",
    [lambda record: record[:9], lambda record: record[:-1], lambda record: record[:-1] + b"?", lambda _: b"x" * 400],
    ids=["head", "most", "other bytes", "anything"],
)
def test_an_interrupted_dataset_can_be_read_and_goes_on_to_the_same_bytes(tmp_path, half):
    episodes = [episode(number) for number in range(3)]
    write(tmp_path / "whole", episodes)
    with suppress(KeyboardInterrupt), DatasetWriter(tmp_path / "cut", maniskill, INFO) as writer:
        writer.add(episodes[0])
        raise KeyboardInterrupt
    journal = tmp_path / "cut" / ".unfinished" / "episodes"
    whole = journal.read_bytes()
    journal.write_bytes(whole + half(whole))
    assert is_unfinished(tmp_path / "cut")
    assert_equal(episodes[0], open_unfinished(tmp_path / "cut").read(0))
    with DatasetWriter(tmp_path / "cut", maniskill, INFO) as writer:
        assert [entry.seed for entry in writer.episodes] == [100]
        for each in episodes[len(writer.episodes) :]:
            writer.add(each)
    files = {file.name: file.read_bytes() for file in (tmp_path / "cut").iterdir()}
    assert files == {file.name: file.read_bytes() for file in (tmp_path / "whole").iterdir()}
    assert not is_unfinished(tmp_path / "cut")


def test_an_unfinished_dataset_keeps_everything_to_the_bit(tmp_path):
    before = [
        episode(number, cameras={"front": pictures()}, others={"force": np.arange(3) ** number}) for number in (0, 1)
    ]
    writer = DatasetWriter(tmp_path / "data", maniskill, INFO)
    for each in before:
        writer.add(each)
    stored = open_unfinished(tmp_path / "data")
    assert [(entry.length, entry.seed) for entry in stored.episodes] == [(3, 100), (3, 101)]
    for number, each in enumerate(before):
        assert_equal(each, stored.read(number))


def test_a_dataset_goes_on_only_with_the_facts_with_which_it_began(tmp_path):
    DatasetWriter(tmp_path / "data", maniskill, INFO).add(episode(0))
    with pytest.raises(ConfigError, match=r"was begun with task Reach-v1, but now it is Push-v1"):
        DatasetWriter(tmp_path / "data", maniskill, DatasetInfo("Push-v1", INFO.options, INFO.rate, INFO.description))


def test_a_complete_dataset_takes_no_more_episodes(tmp_path):
    write(tmp_path / "data", [episode(0)])
    writer = DatasetWriter(tmp_path / "data", maniskill, INFO)
    assert writer.complete
    assert len(writer.episodes) == 1
    with pytest.raises(ConfigError, match="is complete with 1 episodes"):
        writer.add(episode(1))


def test_an_episode_with_a_column_of_another_length_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"traj_0 has 3 actions, but 2 rows of rewards, not 3"):
        DatasetWriter(tmp_path / "data", maniskill, INFO).add(episode(0, rewards=np.zeros(2, np.float32)))


def test_an_episode_with_other_columns_than_those_before_is_refused(tmp_path):
    writer = DatasetWriter(tmp_path / "data", maniskill, INFO)
    writer.add(episode(0))
    with pytest.raises(ConfigError, match="traj_1 has"):
        writer.add(episode(1, states=None))
    assert len(writer.episodes) == 1


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="is not empty"):
        DatasetWriter(tmp_path, maniskill, INFO)
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("form", [maniskill, robomimic, minari])
def test_formats_of_hdf5_keep_an_episode_to_the_bit(form, tmp_path):
    before = [episode(0, cameras={"front/rgb": pictures()}), episode(1, cameras={"front/rgb": pictures()})]
    dataset = write(tmp_path / "data", before, form)
    assert dataset.info == INFO if form is not robomimic else dataset.info.task == INFO.task
    assert dataset.info.rate == 20
    assert [entry.seed for entry in dataset.episodes] == [100, 101]
    for number, each in enumerate(before):
        assert_equal(each, dataset.read(number))
    assert not form.losses(INFO, dataset.features)


@pytest.mark.parametrize("form", [lerobot_v3, lerobot_v2])
def test_lerobot_keeps_every_step_to_the_bit_and_names_what_it_cannot_hold(form, tmp_path):
    before = [episode(0), episode(1, 2, task="reach the other goal")]
    dataset = write(tmp_path / "data", before, form)
    assert dataset.info == INFO
    assert [entry.length for entry in dataset.episodes] == [3, 2]
    for number, each in enumerate(before):
        held = {name: values[:-1] for name, values in each.observations.items()}
        assert_equal(replace(each, observations=held, states=None), dataset.read(number))
    assert form.losses(INFO, before[0].features) == [
        "has no observation after the last step", "has no states of the simulator",
    ]  # fmt: skip


@pytest.mark.parametrize("form", [lerobot_v3, lerobot_v2])
def test_two_columns_of_one_name_are_refused(form, tmp_path):
    twice = episode(0, observations={"a/b": np.zeros((4, 1), np.float32), "a.b": np.ones((4, 1), np.float32)})
    with pytest.raises(ConfigError, match=r"two columns would be observation\.a\.b in LeRobotDataset: rename a[./]b"):
        write(tmp_path / "data", [twice], form)


@pytest.mark.parametrize("form", [lerobot_v3, lerobot_v2])
def test_pictures_of_even_size_are_a_video_whose_frames_come_back_in_order(form, tmp_path):
    """Each picture has one brightness, so that compression changes it little."""
    shades = [Frames.of(np.stack([np.full((16, 32, 3), 40 * t + 20 * n, np.uint8) for t in range(4)])) for n in (0, 1)]
    dataset = write(tmp_path / "data", [episode(n, cameras={"front": shades[n]}) for n in (0, 1)], form)
    assert dataset.raw["features"]["observation.images.front"]["dtype"] == "video"
    for number in (1, 0):
        frames = dataset.read(number).cameras["front"].stacked()
        assert frames.shape == (3, 16, 32, 3)
        assert np.abs(frames.astype(int) - shades[number].stacked()[:3]).max() <= 3


def test_rlinf_has_its_own_names_and_keeps_pictures_in_the_tables(tmp_path):
    import pyarrow.parquet as pq

    cameras = {name: pictures() for name in ("base_rgb", "hand_rgb", "left", "right")}
    before = episode(0, cameras=cameras, success=np.array([0, 1, 0], bool), others={"intervene_flag": np.ones(3, bool)})
    dataset = write(tmp_path / "data", [before], rlinf)
    table = pq.read_table(tmp_path / "data/data/chunk-000/episode_000000.parquet")
    assert {
        "state", "observation.goal", "actions", "image", "wrist_image", "extra_view_image-0", "extra_view_image-1",
        "intervene_flag",
    } <= {*table.column_names}  # fmt: skip
    assert table["done"].to_pylist() == [False, False, True]
    assert table["is_success"].to_pylist() == [True, True, True]  # of the whole episode
    held = {name: values[:-1] for name, values in before.observations.items()}
    seen = {name: Frames.of(frames.stacked()[:-1]) for name, frames in cameras.items()}
    assert_equal(replace(before, observations=held, cameras=seen, states=None), dataset.read(0))
    assert rlinf.losses(INFO, before.features) == [
        "has no observation after the last step",
        "has no states of the simulator",
    ]


def test_rlinf_has_one_state_which_joins_vectors(tmp_path):
    before = episode(0, observations={"qpos": np.ones((4, 2), np.float32), "goal": np.zeros((4, 1), np.float32)})
    assert write(tmp_path / "data", [before], rlinf).read(0).observations["state"].tolist() == [[0, 1, 1]] * 3
    assert rlinf.losses(INFO, before.features)[-1] == "has one state, which joins goal, qpos"


def test_a_dataset_of_rlinfs_own_writer_succeeds_with_its_last_step(tmp_path):
    """It has no columns of results but two, of which one tells the outcome of the whole episode in each row."""
    import json

    import pyarrow.parquet as pq

    write(tmp_path / "data", [episode(0), episode(1, success=np.zeros(3, bool))], rlinf)
    info = json.loads((tmp_path / "data/meta/info.json").read_text())
    del info["rlpipe"]
    info["features"] = {name: info["features"][name] for name in info["features"] if "." not in name and name != "seed"}
    (tmp_path / "data/meta/info.json").write_text(json.dumps(info))
    for file in (tmp_path / "data").rglob("*.parquet"):
        pq.write_table(pq.read_table(file).select([*info["features"]]), file)
    dataset = open_dataset(tmp_path / "data", "demos")
    solved, failed = dataset.read(0), dataset.read(1)
    assert solved.success.tolist() == solved.terminated.tolist() == [False, False, True]
    assert failed.success.tolist() == [False, False, False]
    assert (solved.rewards, [*solved.others]) == (None, [])


def test_pictures_of_odd_size_are_kept_to_the_bit(tmp_path):
    odd = pictures(3, 5, 7)
    dataset = write(tmp_path / "data", [episode(0, cameras={"front": odd})], lerobot_v3)
    np.testing.assert_array_equal(dataset.read(0).cameras["front"].stacked(), odd.stacked()[:3])


def test_files_of_lerobot_roll_over_and_chunks_too(tmp_path, monkeypatch):
    for name, value in {"DATA_MEGABYTES": 0.001, "VIDEO_MEGABYTES": 0, "FILES_IN_A_CHUNK": 2}.items():
        monkeypatch.setattr(lerobot_v3, name, value)
    before = [episode(n, cameras={"front": pictures(3, 16, 32)}) for n in range(4)]
    dataset = write(tmp_path / "data", before, lerobot_v3)
    files = sorted(str(file.relative_to(dataset.path)) for file in dataset.path.rglob("chunk-*/*") if file.is_file())
    assert "data/chunk-001/file-001.parquet" in files
    assert "videos/observation.images.front/chunk-001/file-001.mp4" in files
    for number, each in enumerate(before):
        after = dataset.read(number)
        np.testing.assert_array_equal(after.actions, each.actions)
        assert len(after.cameras["front"].stacked()) == 3


def test_one_row_group_is_an_episode(tmp_path):
    import pyarrow.parquet as pq

    dataset = write(tmp_path / "data", [episode(0), episode(1, 2)], lerobot_v3)
    table = pq.ParquetFile(dataset.path / "data/chunk-000/file-000.parquet")
    assert [table.metadata.row_group(number).num_rows for number in range(table.num_row_groups)] == [3, 2]


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_a_format_is_known_by_what_is_inside(form, tmp_path):
    write(tmp_path / "data", [episode(0)], form)
    assert open_dataset(tmp_path / "data", "demos").format == form.NAME
    assert [other.NAME for other in FORMATS.values() if other.recognises(tmp_path / "data")] == [form.NAME]
