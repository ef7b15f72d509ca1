"""Files of demonstrations that others wrote: joined with their JSON by ids, recognised by their marks, converted."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlpipe.config.loading import load_config
from rlpipe.demonstrations.dataset import check_actions, load, seeds
from rlpipe.demonstrations.formats.registry import open_dataset
from rlpipe.demonstrations.recording import contents
from rlpipe.errors import ConfigError
from rlpipe.learning.curriculum import make_curriculum
from rlpipe.trajectory import SpaceSpec
from tests.helpers import REPOSITORY
from tests.helpers.datasets import ACTIONS, OBS, REWARDS
from tests.helpers.demonstrations import steps, write

SPEC = SpaceSpec(4, 1, None, np.array([-1.0], np.float32), np.array([1.0], np.float32))
TASK = SimpleNamespace(id="Reach-v1", control_mode="pd", reward_mode="sparse", ignore_terminations=False)


def written(folder, count=3):
    """As many trajectories, whose seeds are 100, 101, ..."""
    return write(folder, [steps(2, success_at=2)] * count, seeds=range(100, 100 + count))


def describe(file, episodes):
    """Writes other episodes to the JSON beside a file."""
    beside = Path(file).with_suffix(".json")
    beside.write_text(json.dumps(json.loads(beside.read_text()) | {"episodes": episodes}))
    return file


def change(file, **parts):
    """Puts other arrays in the place of those of the first trajectory; ``...`` takes them away."""
    with h5py.File(file, "a") as out:
        for name, values in parts.items():
            del out["traj_0"][name]
            if values is not ...:
                out["traj_0"][name] = values
    return file


# --- joined by ids


@pytest.fixture(scope="module")
def twelve(tmp_path_factory):
    return written(tmp_path_factory.mktemp("twelve"), 12)


@settings(max_examples=20, deadline=None)
@given(order=st.permutations(range(12)), described=st.integers(0, 12))
def test_a_trajectory_has_the_seed_of_the_episode_with_its_id_whatever_the_order_and_whatever_is_missing(
    twelve, order, described
):
    kept = order[:described]
    found = contents(describe(twelve, [{"episode_id": n, "episode_seed": 100 + n} for n in kept]))
    assert found.seeds == {f"traj_{n}": 100 + n for n in kept}
    assert found.names == tuple(f"traj_{n}" for n in range(12))  # 2 before 10


def test_what_has_no_counterpart_and_what_is_no_trajectory_is_told(tmp_path):
    file = describe(written(tmp_path), [{"episode_id": n, "episode_seed": n} for n in (0, 2, 9)])
    with h5py.File(file, "a") as out:
        out["meta/note"] = 1
    passed_over, unknown, absent = contents(file).notes("demos.h5")
    assert passed_over == "demos.h5: passed over what holds no actions: meta."
    assert "gives no seed for traj_1;" in unknown
    assert absent.endswith("not in the file: episode 9.")
    assert load(file, TASK, SPEC).seeds == (0, None, 2)


@pytest.mark.parametrize(
    "spelling",
    [
        {"episode_seed": 7}, {"episode_seed": 7.0}, {"episode_seed": "7"}, {"episode_seed": [7]}, {"seed": 7},
        {"episode_seed": "np.int64(7)"}, {"episode_seed": "tensor([7])"}, {"reset_kwargs": {"seed": [7]}},
        {"episode_seed": None, "reset_kwargs": {"seed": 7}}, {"episode_seed": 7, "reset_kwargs": {"seed": [6, 7, 8]}},
    ],
)  # fmt: skip
@pytest.mark.parametrize("label", [0, "0", 0.0, "traj_0"])
def test_a_seed_and_an_id_may_be_spelt_as_others_spell_them(tmp_path, spelling, label):
    file = describe(written(tmp_path, 1), [{"episode_id": label, **spelling}])
    assert contents(file).seeds == {"traj_0": 7}


@pytest.mark.parametrize(
    ("episodes", "says"),
    [
        ([{"episode_id": 1, "episode_seed": 1}, {"episode_id": "1"}], "more than one episode with episode_id 1"),
        ([{"episode_id": 1, "episode_seed": 1, "reset_kwargs": {"seed": 2}}], "episode 1 has two seeds, 1 and 2"),
        ([{"episode_id": 1, "episode_seed": "one"}], "episode 1 has the seed 'one'; it must be a whole number"),
        ([{"episode_id": 1, "episode_seed": 1.5}], r"the seed 1\.5"),
        ([{"episode_id": 1, "episode_seed": [1, 2]}], r"the seed \[1, 2\]"),
    ],
)
def test_an_id_or_a_seed_that_could_mean_two_things_is_refused(tmp_path, episodes, says):
    with pytest.raises(ConfigError, match=says):
        contents(describe(written(tmp_path), episodes))


def test_two_trajectories_with_one_number_are_refused(tmp_path):
    file = written(tmp_path)
    with h5py.File(file, "a") as out:
        out.copy("traj_1", "traj_01")
    with pytest.raises(ConfigError, match="holds episode 1 twice, as traj_01 and traj_1"):
        contents(file)


def test_a_curriculum_needs_the_seed_of_each_demonstration(tmp_path):
    shown = load(describe(written(tmp_path), [{"episode_id": 0, "episode_seed": 5}]), TASK, SPEC)
    with pytest.raises(
        ConfigError, match=r"2 of 3 demonstrations in .* have no seed: traj_7 has the episode_seed of episode_id 7"
    ):
        make_curriculum(load_config("sparse_pick_cube_few"), shown)


def test_seeds_without_an_id_belong_to_no_trajectory_but_may_not_be_evaluated(tmp_path):
    file = describe(written(tmp_path), [{"episode_seed": 5}])
    assert contents(file).seeds == {}
    assert seeds(open_dataset(Path(file), "demos")) == {5}


def test_names_without_a_number_are_read_and_found_by_their_text(tmp_path):
    file = describe(written(tmp_path), [{"episode_id": "pick_b", "episode_seed": 8}])
    with h5py.File(file, "a") as out:
        out.move("traj_0", "pick_b")
        out.move("traj_1", "pick_a")
    found = load(file, TASK, SPEC)
    assert (found.names, found.seeds) == (("traj_2", "pick_a", "pick_b"), (None, None, 8))


@pytest.mark.parametrize(
    ("recorded", "wanted", "same"),
    [("Line-v0", "lab:Line-v0", True), ("lab:Line-v0", "Line-v0", True), ("a:Line-v0", "b:Line-v0", False),
     ("Line-v0", "lab:Line-v1", False), ("Line-v0", "Wide-v0", False)],
)  # fmt: skip
def test_an_id_with_and_without_its_module_is_the_same_task(tmp_path, recorded, wanted, same):
    file = write(tmp_path, [steps(2, success_at=2)], env_id=recorded)
    task = SimpleNamespace(id=wanted, control_mode="pd")
    if same:
        check_actions(file, task)
    else:
        with pytest.raises(ConfigError, match=f"made with id {recorded}, but env.train.id is {wanted}"):
            check_actions(file, task)


# --- values


@pytest.mark.parametrize(
    ("part", "values", "says"),
    [
        ("success", [0.0, np.nan], "holds success nan; it must be true or false"),
        ("success", [0, 2], "holds success 2; it must be true or false"),
        ("success", [b"False", b"True"], r"holds success as text \[2\]; it must be an array of numbers"),
        ("success", ..., r"holds no success, \[2\] bool.* rlpipe demos CONFIG --replay"),
        ("success", [True], "has 2 actions, but 1 rows of success, not 2"),
        ("actions", [[b"a"], [b"b"]], "holds actions as text"),
        ("obs", 5, r"holds obs as int64 \[\]"),
    ],
)
def test_values_that_mean_nothing_are_refused_with_the_name_of_the_trajectory(tmp_path, part, values, says):
    file = change(written(tmp_path), **{part: values})
    with pytest.raises(ConfigError, match=f"traj_0 {says}"):
        load(file, TASK, SPEC)


def test_a_column_of_one_is_a_number_a_step(tmp_path):
    file = change(written(tmp_path, 1), success=[[0], [1]], rewards=[[3.0], [4.0]])
    paid = SimpleNamespace(**vars(TASK) | {"reward_mode": "dense"})
    assert load(file, paid, SPEC).rewards.tolist() == [3, 4]


@pytest.mark.parametrize("rewards", [[1.0, np.nan], ...])
def test_rewards_that_are_used_are_one_a_step_and_finite(tmp_path, rewards):
    file = change(written(tmp_path, 1), rewards=rewards)
    assert load(file, TASK, SPEC).rewards.tolist() == [0, 1]  # sparse: the success
    with pytest.raises(ConfigError, match=r"traj_0 holds .*rewards.* for its 2 actions there must be as many"):
        load(file, SimpleNamespace(**vars(TASK) | {"reward_mode": "dense"}), SPEC)


def test_a_trajectory_by_name_that_holds_no_actions_is_refused_and_not_passed_over(tmp_path):
    with pytest.raises(ConfigError, match="traj_0 holds no actions"):
        contents(change(written(tmp_path), actions=...))


# --- formats of others, as their libraries write them, in two episodes of two steps, the second of which succeeds


def d4rl(out):
    out["observations"], out["actions"] = np.concatenate([OBS[:2]] * 2), np.concatenate([ACTIONS] * 2)
    out["rewards"], out["terminals"] = np.tile(REWARDS, 2), np.tile(REWARDS > 0, 2)
    out["timeouts"] = np.zeros(4, bool)


def aloha(out):
    out["action"], out["observations/qpos"] = ACTIONS, OBS[:2]


@pytest.mark.parametrize(
    ("name", "writes", "section"),
    [
        ("D4RL's", d4rl, "files-of-other-formats"), ("ALOHA", aloha, "file-format"),
    ],
)  # fmt: skip
def test_a_layout_of_another_library_is_named_before_anything_is_parsed(tmp_path, name, writes, section):
    with h5py.File(tmp_path / "demos.h5", "w") as out:
        writes(out)
    with pytest.raises(ConfigError, match=rf"holds .*{name}.*docs/demonstrations\.md#{section} "):
        check_actions(str(tmp_path / "demos.h5"), TASK)  # there is no JSON, as these libraries write none


@pytest.mark.parametrize(
    ("name", "first", "says"),
    [
        ("a.parquet", b"PAR1", "holds Parquet, as LeRobot's"),
        ("a.npz", b"PK\x03\x04", r"ZIP archive, such as NumPy's \.npz"),
        ("a.pkl", b"\x80\x04", "is a pickle"),
        ("a.tfrecord-00000", b"\x12\x00", r"is TensorFlow's \(RLDS\)"),
        ("a.h5", b"version https://git-lfs.github.com/spec/v1\n", "a pointer of Git LFS.* git lfs pull"),
        ("a.h5", b"<!DOCTYPE html>", "a download that failed"),
        ("a.json", b'{"env_info": 1}', "is JSON: name the HDF5 file"),
        ("a.h5", b"", "is empty"),
        ("a.h5", b"something", "is damaged, or no HDF5 file"),
        ("a.h5", b"\x89HDF\r\n\x1a\ncut off", "a.h5 is damaged or cut off"),
    ],
)
def test_a_file_that_is_no_hdf5_is_named_by_its_first_bytes(tmp_path, name, first, says):
    (tmp_path / name).write_bytes(first)
    with pytest.raises(ConfigError, match=says):
        check_actions(str(tmp_path / name), TASK)


@pytest.mark.parametrize(
    ("inside", "says"),
    [
        ("meta/info.json", "a dataset of LeRobot"), ("data/main_data.hdf5", "a dataset of Minari"),
        (".zgroup", "a Zarr store"), ("1.0.0/x.tfrecord-0", "that is a directory"), ("features.json", r"\(RLDS\)"),
        ("one.h5", r"name one of ManiSkill's HDF5 files, such as .*one\.h5"),
    ],
)  # fmt: skip
def test_a_folder_is_named_by_what_it_holds(tmp_path, inside, says):
    (tmp_path / inside).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / inside).touch()
    with pytest.raises(ConfigError, match=says):
        check_actions(str(tmp_path), TASK)


def test_a_file_without_any_trajectory_says_what_it_holds(tmp_path):
    with h5py.File(tmp_path / "demos.h5", "w") as out:
        out["x"], out["y"] = 1, 2
    with pytest.raises(ConfigError, match=r"has no trajectories, .*; it holds x, y"):
        check_actions(str(tmp_path / "demos.h5"), TASK)


def test_the_lines_of_the_page_that_the_message_names_convert_the_format(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (REPOSITORY / "docs/demonstrations.md").read_text(encoding="utf-8")
    lines: dict = {}
    for block in re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL):
        exec(block, lines)
    with h5py.File(tmp_path / "given.hdf5", "w") as out:
        d4rl(out)
    lines["write"]("made", "Reach-v1", lines["d4rl"](tmp_path / "given.hdf5"))
    made = load("made.h5", TASK, SPEC)
    assert (made.num_trajectories, len(made), made.rewards.tolist()) == (2, 4, [0, 1, 0, 1])
    assert made.seeds == (None, None)
