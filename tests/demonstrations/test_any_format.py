"""Training from demonstrations of any format, and what is said of damaged ones before a simulator starts."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
from typer.testing import CliRunner

from rlpipe.cli import app
from rlpipe.demonstrations.dataset import check, load, load_actions, notes, seeds
from rlpipe.demonstrations.formats.registry import FORMATS, open_dataset
from rlpipe.demonstrations.formats.writing import DatasetWriter
from rlpipe.errors import ConfigError
from rlpipe.trajectory import LeafSpec, SpaceSpec
from rlpipe.trajectory.tree import leaves_of
from tests.helpers.commands import command
from tests.helpers.datasets import INFO, episode, minari, pictures, robomimic, write

SPEC = SpaceSpec(4, 1, None, np.array([-1.0], np.float32), np.array([1.0], np.float32))
TREE = SpaceSpec.of_tree(
    {"state": LeafSpec((1,)), "goal": LeafSpec((2,))}, 2, None, np.full(2, -1, np.float32), np.full(2, 1, np.float32)
)
TASK = SimpleNamespace(id="Reach-v1", control_mode="pd", reward_mode="sparse", ignore_terminations=False)


@pytest.fixture
def lerobot(tmp_path):
    """Two episodes as LeRobotDataset v3.0."""
    write(tmp_path / "data", [episode(0), episode(1, 2)], FORMATS["lerobot"])
    return tmp_path / "data"


@pytest.mark.parametrize("name", FORMATS)
def test_each_format_gives_the_numbers_of_the_original(name, tmp_path):
    episodes = [episode(0), episode(1, 2)]
    write(tmp_path / "original", episodes)
    write(tmp_path / "other", episodes, FORMATS[name])
    before, after = (
        load(str(tmp_path / folder), TASK, TREE) for folder in ("original/demonstrations.h5", "other")
    )  # fmt: skip
    assert len(before) == 5
    for column in ("observations", "actions", "rewards", "terminated", "truncated"):
        for first, second in zip(leaves_of(getattr(before, column)), leaves_of(getattr(after, column)), strict=True):
            np.testing.assert_array_equal(first, second, column, strict=True)
    assert after.seeds == (100, 101)
    assert seeds(open_dataset(tmp_path / "other", "demos")) == {100, 101}
    assert [len(actions) for actions in load_actions(str(tmp_path / "other"), TREE)] == [3, 2]


def test_without_the_last_observation_an_episode_that_is_cut_off_ends_a_step_earlier(lerobot):
    """What follows the last step would be learnt from, because the task goes on."""
    cut_off = SimpleNamespace(**vars(TASK) | {"ignore_terminations": True})
    assert np.bincount(load(str(lerobot), cut_off, TREE).trajectory).tolist() == [2, 1]


def test_files_of_robomimics_and_minaris_libraries_are_read(tmp_path):
    for writes in (robomimic, minari):
        with h5py.File(tmp_path / f"{writes.__name__}.h5", "w") as out:
            writes(out)
    task = SimpleNamespace(reward_mode=None, ignore_terminations=False)
    path = str(tmp_path / "minari.h5")
    assert load(path, task, SPEC).seeds == (100, 101)
    assert "records no success" in notes(open_dataset(tmp_path / "minari.h5", "demos"))[0]
    path = str(tmp_path / "robomimic.h5")
    with pytest.raises(ConfigError, match=r"object float64 \[3\].*Say which is which: demo_leaves=\{state: NAME\}"):
        load(path, task, SPEC)
    two = SpaceSpec(6, 1, None, SPEC.action_low, SPEC.action_high)
    assert load(path, task, two, leaves={"state": "object + object"}).observations.shape == (4, 6)


def test_a_leaf_may_be_called_otherwise_and_a_wrong_name_says_what_there_is(lerobot):
    spec = SpaceSpec.of_tree({"where": LeafSpec((2,))}, 2, None, TREE.action_low, TREE.action_high)
    assert load(str(lerobot), TASK, spec).observations["where"].shape == (5, 2)
    with pytest.raises(ConfigError, match=r"demo_leaves\.where is x, but .* has no x: goal float32 \[2\], state"):
        load(str(lerobot), TASK, spec, leaves={"where": "x"})
    with pytest.raises(ConfigError, match="demo_leaves names x, but the task observes where"):
        load(str(lerobot), TASK, spec, leaves={"x": "goal"})


def test_another_task_or_control_mode_is_refused(lerobot):
    with pytest.raises(ConfigError, match=r"was made with control_mode pd, but env\.train\.control_mode is joints"):
        check(str(lerobot), SimpleNamespace(**vars(TASK) | {"control_mode": "joints"}))


# --- damaged


def test_half_a_dataset_names_the_file_that_is_missing(lerobot):
    (lerobot / "data/chunk-000/file-000.parquet").unlink()
    with pytest.raises(ConfigError, match=r"is half a dataset: data/chunk-000/file-000\.parquet, with episode 0"):
        check(str(lerobot), TASK)


def test_a_list_that_is_shorter_than_the_dataset_says_is_refused(lerobot):
    info = json.loads((lerobot / "meta/info.json").read_text())
    (lerobot / "meta/info.json").write_text(json.dumps(info | {"total_episodes": 3}))
    with pytest.raises(ConfigError, match=r"lists 2 episodes, but meta/info\.json says 3"):
        check(str(lerobot), TASK)


def test_a_version_that_is_not_read_is_named(lerobot):
    info = json.loads((lerobot / "meta/info.json").read_text())
    (lerobot / "meta/info.json").write_text(json.dumps(info | {"codebase_version": "v4.0"}))
    with pytest.raises(ConfigError, match=r"is of version v4\.0 of LeRobotDataset; v3\.0 and v2\.1 are read"):
        check(str(lerobot), TASK)


def test_rows_that_are_missing_name_the_file_and_the_episode(tmp_path):
    import pyarrow.parquet as pq

    write(tmp_path / "data", [episode(0)], FORMATS["lerobot-v2.1"])
    file = tmp_path / "data/data/chunk-000/episode_000000.parquet"
    pq.write_table(pq.read_table(file).slice(0, 2), file)
    with pytest.raises(ConfigError, match=r"episode_000000\.parquet has 2 rows of episode 0, but .* says 3"):
        load(str(tmp_path / "data"), TASK, TREE)


def test_a_column_of_another_length_is_named(tmp_path):
    file = write(tmp_path / "data", [episode(0)], FORMATS["robomimic"]).path
    with h5py.File(file, "a") as out:
        del out["data/demo_0/rewards"]
        out["data/demo_0/rewards"] = np.zeros(2)
    with pytest.raises(ConfigError, match="demo_0 has 3 actions, but 2 rows of rewards, not 3"):
        load(str(tmp_path / "data"), TASK, TREE)


def test_a_video_that_ends_early_is_named_with_the_row(tmp_path):
    from rlpipe.demonstrations.formats.video import VideoEncoder

    write(tmp_path / "data", [episode(0, cameras={"front": pictures(3, 16, 32)})], FORMATS["lerobot"])
    (file,) = (tmp_path / "data").rglob("*.mp4")
    video = VideoEncoder(file, (16, 32, 3), 20)
    video.add(np.zeros((16, 32, 3), np.uint8))
    video.close()
    with pytest.raises(ConfigError, match=r"file-000\.mp4 ends early: it has 1 of the 3 frames"):
        open_dataset(tmp_path / "data", "demos").read(0).cameras["front"].stacked()


def test_an_action_beyond_the_bounds_is_named_with_its_episode(tmp_path):
    write(tmp_path / "data", [replace(episode(0), actions=np.full((3, 2), 2.0, np.float32))], FORMATS["lerobot"])
    with pytest.raises(ConfigError, match="episode 0 has actions 1 outside the simulator's bounds, first in row 0"):
        load(str(tmp_path / "data"), TASK, TREE)


# --- commands


def test_inspect_shows_what_a_dataset_holds_and_misses(lerobot):
    shown = CliRunner().invoke(app, ["demos", "inspect", str(lerobot)])
    assert shown.exit_code == 0, shown.output
    text = " ".join(shown.output.split())
    for part in (
        "2 demonstrations of Reach-v1", "format lerobot v3.0", "5; 2 to 3 an episode", "20 steps a second",
        "success 2 of 2 episodes", "tasks reach the goal", "actions float32 [2], [0, 0] to [0.125, 0.125]",
        "goal float32 [2], 0 to 2", "missing the observation after the last step, states of the simulator",
    ):  # fmt: skip
        assert part in text


def test_convert_names_what_a_format_cannot_hold_and_goes_on_where_it_was_interrupted(tmp_path):
    before = [episode(0), episode(1)]
    write(tmp_path / "data", before)
    DatasetWriter(tmp_path / "out", FORMATS["lerobot"], INFO).add(before[0])
    shown = CliRunner().invoke(
        app, ["demos", "convert", str(tmp_path / "data"), "--to", "lerobot", "--out", str(tmp_path / "out")]
    )
    assert shown.exit_code == 0, shown.output
    assert re.search(r"has no observation after the last step\s+has no states of the simulator", shown.output)
    assert len(open_dataset(tmp_path / "out", "demos").episodes) == 2


def test_convert_needs_the_rate_before_it_writes(tmp_path):
    write(tmp_path / "data", [episode(0)], info=replace(INFO, rate=None))
    command = ["demos", "convert", str(tmp_path / "data"), "--to", "lerobot", "--out", str(tmp_path / "out")]
    refused = CliRunner().invoke(app, command)
    assert isinstance(refused.exception, ConfigError)
    assert "--rate" in str(refused.exception)
    assert not (tmp_path / "out").exists()


def test_convert_names_seeds_that_a_format_cannot_hold(tmp_path):
    """Minari draws seeds of 64 bits, of which LeRobotDataset has 63."""
    write(tmp_path / "data", [episode(0), episode(1, seed=2**63)])
    answer = command(
        "demos", "convert", str(tmp_path / "data"), "--to", "lerobot", "--out", str(tmp_path / "out"), "--rate", "20"
    )
    assert "cannot hold 1 of the seeds" in " ".join(answer.out.split())
    assert [entry.seed for entry in open_dataset(tmp_path / "out", "demos").episodes] == [100, None]
