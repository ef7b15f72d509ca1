"""Files of replays: what is kept of an evaluation, what comes back from the disk, and what a full disk does."""

from __future__ import annotations

import dataclasses
import json
import os

import numpy as np
import pytest

import rlpipe
from rlpipe.errors import ConfigError
from rlpipe.run import replays as files
from rlpipe.run.directory import read_jsonl
from rlpipe.run.replays import ReplayFolder, ReplaySet
from rlpipe.trajectory import Body, Episode, Replay, Scene, Shape
from rlpipe.trajectory.replay import worth_keeping
from tests.helpers.runs import scripted

MESH = Shape(
    "mesh",
    (1.0, 1.0, 2.0),
    vertices=np.eye(3, dtype=np.float32),
    triangles=np.array([[0, 1, 2]], np.int32),
    file="a.glb",
)
SCENE = Scene(
    (Body("cube", (Shape("box", (0.1, 0.2, 0.3)),)), Body("arm", (MESH,), stand_in=(MESH,))), (1, 0, 1), (0, 0, 0)
)


def replay(seed, success=True, total=1.0, steps=3, scene=SCENE.key):
    episode = Episode(0, 0, seed, 0, total, steps, success, success, False, True, False, first_success=2)
    poses = np.random.default_rng(seed).normal(size=(steps + 1, 2, 7)).astype(np.float32)
    return Replay(
        episode,
        np.full(steps, total / steps),
        np.array([False] * (steps - 1) + [success]),
        np.ones((steps, 2), np.float32),
        {"state": np.zeros((steps + 1, 4), np.float32), "task": np.ones((steps + 1, 1), np.float32)},
        poses,
        scene,
    )


def seeds(replays):
    return [one.episode.seed for one in replays]


def test_the_first_the_failures_the_best_and_the_worst_are_kept():
    found = [replay(seed, success=seed not in (5, 7, 8), total=float(seed == 6) - (seed == 9)) for seed in range(10)]
    assert seeds(worth_keeping(found, 2)) == [0, 1, 5, 6, 7, 9]


def test_what_is_kept_does_not_depend_on_how_episodes_were_divided_among_workers():
    generator = np.random.default_rng(1)
    found = [replay(seed, bool(generator.random() < 0.5), float(generator.normal())) for seed in range(40)]
    parts = [one for rank in range(3) for one in worth_keeping(found[rank::3], 3)]
    assert seeds(worth_keeping(parts, 3)) == seeds(worth_keeping(found, 3))


def test_no_replay_is_kept_where_none_is_asked_for():
    assert worth_keeping([replay(0)], 0) == []


def test_a_set_and_its_geometry_come_back_from_the_disk_as_they_were(tmp_path):
    folder = ReplayFolder(tmp_path / "replays")
    before = ReplaySet(7, "training", "PickCube-v1", [replay(3), replay(4, success=False)])
    file = folder.write("iteration-000007", before, {SCENE.key: SCENE})
    after = folder.read(file)
    assert (after.iteration, after.source, after.task) == (7, "training", "PickCube-v1")
    for one, other in zip(before.replays, after.replays, strict=True):
        assert one.episode == other.episode
        for name in ("rewards", "actions", "success", "poses"):
            assert np.array_equal(getattr(one, name), getattr(other, name))
        assert {name: values.tolist() for name, values in one.observations.items()} == {
            name: values.tolist() for name, values in other.observations.items()
        }
    scene = folder.read_scene(SCENE.key)
    assert scene.key == SCENE.key
    assert [body.name for body in scene.bodies] == ["cube", "arm"]


def test_training_keeps_the_newest_evaluation_and_the_best_and_their_geometry_alone(tmp_path):
    folder = ReplayFolder(tmp_path)
    other = Scene((Body("ball", (Shape("sphere", (0.1,)),)),))
    for iteration, scene, best in ((10, SCENE, 10), (20, other, 10), (30, SCENE, 10)):
        folder.write_iteration(iteration, [replay(0, scene=scene.key)], {scene.key: scene}, {best})
    found = sorted(file.name for file in tmp_path.iterdir())
    assert found == ["iteration-000010.npz", "iteration-000030.npz", f"scene-{SCENE.key}.npz"]


def test_the_newest_set_is_the_newest_in_a_copy_as_well(tmp_path):
    folder = ReplayFolder(tmp_path)
    for iteration in (10, 20):
        folder.write_iteration(iteration, [replay(0)], {SCENE.key: SCENE}, {10})
    os.utime(tmp_path / "iteration-000010.npz", (4e9, 4e9))
    assert [file.stem for file in folder.sets()] == ["iteration-000020", "iteration-000010"]


def test_a_set_that_cannot_be_read_costs_no_geometry(tmp_path):
    folder = ReplayFolder(tmp_path)
    folder.write_iteration(10, [replay(0)], {SCENE.key: SCENE}, set())
    (tmp_path / "evaluation-1.npz").write_bytes(b"half of it")
    folder.write_iteration(20, [replay(0, scene="")], {}, set())
    assert (tmp_path / f"scene-{SCENE.key}.npz").exists()


def test_a_resumed_run_forgets_replays_of_iterations_that_it_takes_again(tmp_path):
    folder = ReplayFolder(tmp_path)
    folder.write_iteration(10, [replay(0)], {SCENE.key: SCENE}, {10})
    folder.write_iteration(20, [replay(0)], {SCENE.key: SCENE}, {10})
    folder.forget_from(11)
    assert [file.stem for file in folder.sets()] == ["iteration-000010"]


def test_a_damaged_file_is_an_error_that_says_what_to_do(tmp_path):
    file = tmp_path / "iteration-000001.npz"
    file.write_bytes(b"PK nothing")
    with pytest.raises(ConfigError, match=r"is damaged .*; remove it"):
        ReplayFolder(tmp_path).read(file)


def measured(run):
    """Rows without times, and the episodes of the evaluations."""
    rows = [
        {name: value for name, value in row["metrics"].items() if not name.startswith(("time/", "system/"))}
        for row in read_jsonl(run / "metrics.jsonl")
    ]
    return rows, list(read_jsonl(run / "eval_episodes.jsonl"))


def test_recording_changes_no_number_of_a_run(tmp_path):
    runs = [
        rlpipe.train(
            scripted(tmp_path / str(most), f"evaluation.replays={most}", "runner.val_check_interval=2"), local=True
        )
        for most in (0, 3)
    ]
    (rows, episodes), (rows_too, episodes_too) = (measured(run.directory) for run in runs)
    differ = {name for one, other in zip(rows, rows_too, strict=True) for name in one if one[name] != other.get(name)}
    assert differ == set()
    assert episodes == episodes_too
    assert not (runs[0].directory / "replays").exists()


def test_a_run_keeps_replays_whose_numbers_are_those_of_its_ledger(tmp_path):
    run = rlpipe.train(scripted(tmp_path, "runner.val_check_interval=2"), local=True).directory
    ledger = {(row["iteration"], row["seed"]): row for row in read_jsonl(run / "eval_episodes.jsonl")}
    folder = ReplayFolder(run / "replays")
    newest = folder.read(folder.sets()[0])
    assert newest.iteration == 4
    for one in newest.replays:
        assert one.episode.as_row(4) == ledger[4, one.episode.seed]
        assert one.rewards.sum() == pytest.approx(one.episode.episode_return)
        assert [len(one.rewards), len(one.actions)] == [one.episode.length] * 2
        assert len(one.observations["observation"]) == one.episode.length + 1


def test_a_disk_without_room_for_replays_does_not_end_the_run(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "_write", full)
    result = rlpipe.train(scripted(tmp_path), local=True)
    events = [event["message"] for event in read_jsonl(result.directory / "events.jsonl")]
    assert any("replays of iteration 4 could not be written: OSError" in message for message in events)
    assert json.loads((result.directory / "run.json").read_text())["status"] == "completed"


def test_an_evaluation_keeps_replays_only_if_it_is_asked_to(tmp_path):
    run = rlpipe.train(scripted(tmp_path, "evaluation.replays=0"), local=True).directory
    assert rlpipe.evaluate(run, local=True).replay_file is None
    report = rlpipe.evaluate(run, local=True, replays=2)
    assert report.replay_file == str(run / "replays" / "evaluation-2.npz")
    assert ReplayFolder(run / "replays").read(run / "replays" / "evaluation-2.npz").source == "evaluation 2"


def test_a_baseline_of_a_configuration_keeps_its_replays_beside_its_record(tmp_path):
    config = dataclasses.replace(scripted(tmp_path))
    from rlpipe.config.tree import to_yaml

    (tmp_path / "config.yaml").write_text(to_yaml(config))
    report = rlpipe.evaluate(tmp_path / "config.yaml", policy="random", local=True, replays=1)
    assert report.replay_file == str(tmp_path / "floors" / "replays" / "floor-1.npz")
