"""The section of replays: what it takes from a run, how it keeps to its budget, and the command."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from typer.testing import CliRunner

import rlpipe
from rlpipe.cli import app
from rlpipe.errors import ConfigError
from rlpipe.report.replays import NoReplaysError, section
from rlpipe.report.replays.packing import MOST_ERROR, packed_poses
from rlpipe.run.replays import FOLDER, ReplayFolder, ReplaySet
from rlpipe.trajectory import Body, Episode, Replay, Scene, Shape
from tests.helpers.runs import scripted

SCENE = Scene((Body("cube", (Shape("box", (0.1, 0.2, 0.3)),)),))


def replay(seed, success, steps=50):
    episode = Episode(0, 0, seed, 0, float(success), steps, success, success, False, True, False)
    poses = np.random.default_rng(seed).normal(size=(steps + 1, 1, 7)).astype(np.float32)
    numbers = np.zeros((steps + 1, 4), np.float32)
    return Replay(episode, np.zeros(steps), None, numbers[1:], {"observation": numbers}, poses, SCENE.key)


def write(folder, replays, scene=SCENE):
    made = ReplaySet(3, "training", "PickCube-v1", replays)
    ReplayFolder(folder / FOLDER).write("iteration-000003", made, {scene.key: scene})
    return folder


def labels(found):
    return [record["label"] for record in found.data["episodes"]]


def test_a_folder_without_replays_has_no_section(tmp_path):
    assert section(tmp_path) is None


def test_a_success_and_a_failure_are_shown_first(tmp_path):
    found = section(write(tmp_path, [replay(0, False), replay(1, False), replay(2, True)]))
    assert found.data["first"] == [2, 0]
    assert "PickCube-v1: 3 episodes of the evaluation during training after iteration 3." in found.html


def test_the_replay_that_is_asked_for_is_shown_first_beside_another_outcome(tmp_path):
    found = section(write(tmp_path, [replay(0, False), replay(1, False), replay(2, True)]), episode=2)
    assert found.data["first"] == [1, 2]


def test_replays_that_do_not_fit_are_left_out_and_counted_and_both_outcomes_stay(tmp_path):
    folder = write(tmp_path, [replay(seed, seed == 9) for seed in range(10)])
    found = section(folder, budget=12_000)
    assert len(json.dumps(found.data)) < 14_000
    assert {record["kind"] for record in found.data["episodes"]} == {"good", "bad"}
    left_out = 10 - len(found.data["episodes"])
    assert f"{left_out} more would not fit into the page." in found.html


def test_poses_in_16_bits_are_off_by_less_than_they_say_and_long_ways_keep_32():
    poses = np.random.default_rng(0).uniform(-1, 1, (30, 2, 7)).astype(np.float32)
    poses[:, 1] = poses[0, 1]
    near = packed_poses(poses)
    assert near["columns"] == list(range(7))
    assert max(near["step"]) / 2 < MOST_ERROR
    poses[:, 0, 0] *= 100
    assert packed_poses(poses)["values"]["type"] == "f4"


def test_a_mesh_that_is_not_on_this_machine_is_replaced_by_its_stand_in(tmp_path):
    mesh = Shape("mesh", (1.0, 1.0, 1.0), file="/elsewhere/site-packages/no_such_package/arm.glb")
    scene = Scene((Body("arm", (mesh,), stand_in=(Shape("sphere", (0.5,)),)),))
    one = replay(0, True)
    vars(one)["scene"] = scene.key
    found = section(write(tmp_path, [one], scene))
    assert [shape["kind"] for shape in found.data["scenes"][scene.key]["bodies"][0]["shapes"]] == ["sphere"]
    assert "their collision shapes stand in" in found.html


def test_an_unknown_set_or_replay_is_refused_with_those_there_are(tmp_path):
    folder = write(tmp_path, [replay(0, True)])
    with pytest.raises(NoReplaysError, match="it has iteration-000003"):
        section(folder, name="evaluation-9")
    with pytest.raises(ConfigError, match="holds 1 replays, numbered from 1, and has no number 2"):
        section(folder, episode=2)


def test_the_command_writes_one_page_and_prints_where_it_is(tmp_path):
    run = rlpipe.train(scripted(tmp_path), local=True).directory
    out = tmp_path / "watch.html"
    result = CliRunner().invoke(app, ["replay", str(run), "--out", str(out)])
    assert result.exit_code == 0
    assert result.stdout.strip().endswith("watch.html")
    text = out.read_text()
    assert not re.findall(r"(?:src|href)=[\"'](?!#|data:)", text)
    assert "tells nothing about its bodies" in text  # the scripted simulator has none


def test_the_command_refuses_a_run_without_replays_and_says_how_to_record_some(tmp_path):
    run = rlpipe.train(scripted(tmp_path, "evaluation.replays=0"), local=True).directory
    result = CliRunner().invoke(app, ["replay", str(run)])
    assert isinstance(result.exception, ConfigError)
    assert f"rlpipe evaluate {run} --replays 4" in str(result.exception)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["typo"], "there is no run directory .*typo"),
        (["{run}", "--videos", "1", "--episode", "2"], "--episode chooses what a page shows first"),
        (["{run}", "--videos", "1", "--out", "video.webm"], "a video is an mp4 file: --out video.mp4"),
        (["{run}", "--videos", "1", "--out", "missing/video.mp4"], "there is no folder missing"),
    ],
)
def test_the_command_says_what_is_wrong_with_its_arguments(tmp_path, monkeypatch, arguments, complaint):
    run = rlpipe.train(scripted(tmp_path), local=True).directory
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["replay", *(one.format(run=run) for one in arguments)])
    assert isinstance(result.exception, ConfigError)
    assert re.search(complaint, str(result.exception))
    assert not list(tmp_path.glob("*.*4"))
