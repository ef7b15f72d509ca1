"""Small datasets that the libraries of the formats made, and one of ours that lerobot has read."""

from __future__ import annotations

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from benchmarks.interop_data import kept_episodes, written
from rlpipe.demonstrations.formats.registry import open_dataset
from tests.helpers import REPOSITORY

DATA = REPOSITORY / "tests/data/demonstrations"


def test_every_number_and_pixel_of_a_dataset_of_lerobots_is_read():
    dataset = open_dataset(DATA / "lerobot", "demos")
    assert (dataset.format, dataset.info.rate, [entry.length for entry in dataset.episodes]) == (
        "lerobot",
        10,
        [4, 5, 6],
    )
    with np.load(DATA / "lerobot.npz") as theirs:
        for number in range(3):
            episode, length = dataset.read(number), 4 + number
            at, last = np.arange(length), np.arange(length) == length - 1
            assert episode.task == ("push the cube", "lift the cube")[number % 2]
            assert episode.observations["state"].tolist() == [[t, number, t / 8] for t in range(length)]
            assert episode.actions[:, 0].tolist() == (at / 8 - 1).tolist()
            assert episode.rewards.tolist() == at.tolist()
            assert episode.success.tolist() == episode.terminated.tolist() == last.tolist()
            for camera in ("front", "wrist"):
                frames = theirs[f"{number}/observation.images.{camera}"]
                np.testing.assert_array_equal(episode.cameras[camera].stacked(), frames)


def test_what_lerobot_has_read_is_written_still(tmp_path):
    before, after = DATA / "read_by_lerobot", written(tmp_path / "data", "lerobot", kept_episodes())
    places = sorted(file.relative_to(before) for file in before.rglob("*") if file.is_file())
    assert places == sorted(file.relative_to(after) for file in after.rglob("*") if file.is_file())
    assert len(places) == 6
    for place in places:
        if place.suffix == ".json":
            assert json.loads((before / place).read_text()) == json.loads((after / place).read_text()), place
        elif place.suffix == ".parquet":
            first, then = pq.read_table(before / place), pq.read_table(after / place)
            assert first.equals(then), place
            assert first.schema.names == then.schema.names


def test_a_file_of_robomimics_script_is_read():
    dataset = open_dataset(DATA / "robomimic.hdf5", "demos")
    assert (dataset.info.task, dataset.info.rate) == ("Reach", 20)
    assert [entry.length for entry in dataset.episodes] == [5, 6]
    episode = dataset.read(0)
    hand = np.arange(6)[:, None] * [[0.1, 0.1]]
    np.testing.assert_allclose(episode.observations["robot0_eef_pos"], hand, atol=1e-12)
    np.testing.assert_allclose(episode.observations["object"][:, 2:], 0.5 - hand, atol=1e-12)
    np.testing.assert_allclose(episode.actions, np.full((5, 2), 0.1))
    assert episode.rewards.tolist() == [0, 0, 0, 0, 1]
    assert episode.terminated.tolist() == [False, False, False, False, True]
    np.testing.assert_allclose(episode.others["states"], hand[:-1], atol=1e-12)


def test_a_dataset_of_minaris_collector_is_read_with_its_pictures_and_a_seed_of_64_bits():
    dataset = open_dataset(DATA / "minari", "demos")
    assert dataset.info.task == "Pendulum-v1"
    with np.load(DATA / "minari.npz") as theirs:
        assert [entry.seed for entry in dataset.episodes] == theirs["seeds"].tolist()
        assert theirs["seeds"][1] > 2**32
        for number in range(3):
            episode = dataset.read(number)
            state = theirs[f"{number}/observations/state"]
            np.testing.assert_array_equal(episode.observations["state"], state)
            pictures = episode.cameras["camera"].stacked()
            np.testing.assert_array_equal(pictures, theirs[f"{number}/observations/camera"])
            np.testing.assert_allclose(pictures[:, 30, 38, 0], 128 + 8 * state[:, 2], atol=3)  # as the task draws it
            np.testing.assert_array_equal(episode.actions, theirs[f"{number}/actions"])
            assert episode.truncated.tolist() == [False, False, False, True]


@pytest.mark.parametrize("name", ["lerobot", "robomimic.hdf5", "minari"])
def test_what_a_library_wrote_is_inspected(name):
    from tests.helpers.commands import command

    answer = command("demos", "inspect", str(DATA / name))
    assert answer.code == 0, answer.err
    assert f"format {name.partition('.')[0]}" in " ".join(answer.out.split())
