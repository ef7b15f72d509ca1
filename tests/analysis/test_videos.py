"""Videos of replays: what they show where, and what they need."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from rlpipe.cli import app
from rlpipe.config.loading import load_config
from rlpipe.errors import ConfigError
from rlpipe.report.replays.drawing import HEIGHT, WIDTH, camera_path
from rlpipe.report.replays.section import NoReplaysError, words_of
from rlpipe.report.replays.video import make_video as make_here
from rlpipe.report.replays.video import side_by_side, steps_shown
from rlpipe.run import opengl
from rlpipe.training.checks import check_machine
from tests.helpers.drawn import make_video, needs_drawing, pictures, slide, write_set

GOOD, BAD = slide(1, first_success=2), slide(2, first_success=None)


def seeds(rows):
    return [[one and one.episode.seed for one in row] for row in rows]


@pytest.mark.parametrize(
    ("replays", "rows"),
    [
        ([BAD, GOOD], [[1, 2]]),
        ([GOOD, GOOD, BAD], [[1, 2], [1, None]]),
        ([BAD, BAD, BAD], [[2, 2], [2]]),
        ([GOOD], [[1]]),
        ([GOOD, BAD] * 5, [[1, 2], [1, 2]]),
    ],
)
def test_each_row_is_a_success_beside_a_failure_or_two_of_the_only_kind(replays, rows):
    assert seeds(side_by_side(replays, 2)) == rows


@pytest.mark.parametrize(
    ("levels", "words"),
    [
        ({}, ["seed 7"]),
        ({"action_latency": 4.0}, ["seed 7", "action_latency 4"]),
        (dict.fromkeys("abcd", 1.0), ["seed 7", "4 axes vary"]),
    ],
)
def test_an_episode_is_told_from_others_by_its_seed_and_its_variations(levels, words):
    assert words_of(replace(GOOD.episode, seed=7, variations=levels)) == words


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """Pictures of a video of a success and a failure of four steps each."""
    needs_drawing()
    run = tmp_path_factory.mktemp("run")
    write_set(run, BAD, GOOD)
    file = make_video(run)
    assert file.name == "iteration-000003.mp4"
    return pictures(file).astype(int)


def red(picture):
    """Mean column of the red pixels of a view."""
    _, across = np.nonzero((picture[..., 0] > 120) & (picture[..., 1:].max(axis=-1) < 90))
    return across.mean()


def test_it_has_a_picture_for_each_step_and_holds_the_last_one(shown):
    assert shown.shape == (5 + 15, HEIGHT + 30, 2 * WIDTH, 3)
    assert np.abs(shown[4] - shown[-1]).mean() < 2  # but for compression


def test_the_cube_is_seen_from_the_eye_and_moves_as_recorded(shown):
    places = [red(picture[30:, :WIDTH]) for picture in shown[:5]]
    assert places[2] == pytest.approx(WIDTH / 2, abs=12)  # the camera looks at the middle of the way
    steps = np.diff(places)
    assert steps.min() > 20  # to the right, as x points from there
    assert steps == pytest.approx(steps.mean(), rel=0.15)


def test_the_bar_turns_green_with_the_first_success_and_red_with_a_failure(shown):
    left, right = shown[:5, 8:22, 200:300].mean(axis=(1, 2)), shown[:5, 8:22, 680:780].mean(axis=(1, 2))
    assert [int(np.argmax(colour)) == 1 for colour in left] == [False, False, True, True, True]
    assert [int(np.argmax(colour)) == 0 for colour in right] == [False, False, False, False, True]


@pytest.mark.soak
def test_what_falls_far_does_not_make_all_else_small(tmp_path):
    needs_drawing()
    fallen = slide(1, None)
    fallen.poses[-1, 1, 2] = -5.0
    write_set(tmp_path, fallen)
    first = pictures(make_video(tmp_path))[0].astype(int)[30:]
    assert ((first[..., 0] > 120) & (first[..., 1:].max(axis=-1) < 90)).mean() > 0.02  # of the view is the cube


def test_long_episodes_are_shown_in_fewer_pictures():
    assert steps_shown(4) == [0, 1, 2, 3, 4]
    assert steps_shown(1000) == list(range(0, 1001, 5))


def test_the_camera_follows_bodies_that_travel_and_stays_otherwise():
    assert not camera_path(slide(1, None, distance=0.8).poses).any()
    assert camera_path(slide(1, None, distance=2.0).poses)[:, 0] == pytest.approx([0, 0.5, 1, 1.5, 2])


def test_a_replay_without_bodies_is_refused(tmp_path, monkeypatch):
    needs_drawing()
    monkeypatch.setenv("MUJOCO_GL", "egl")  # and back to what it was
    write_set(tmp_path, replace(GOOD, poses=None, scene=""))
    with pytest.raises(NoReplaysError, match="has no bodies to draw"):
        make_here(tmp_path, 1)


def test_a_run_without_replays_is_told_how_to_record_some(tmp_path, monkeypatch):
    needs_drawing()
    monkeypatch.setenv("MUJOCO_GL", "egl")  # and back to what it was
    result = CliRunner().invoke(app, ["replay", str(tmp_path), "--videos", "1"])
    assert isinstance(result.exception, NoReplaysError)


def test_a_machine_without_opengl_is_told_what_to_install(monkeypatch):
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.setattr(opengl, "_PROBE", "raise OSError('no EGL here')")
    with pytest.raises(ConfigError, match=r"egl: OSError: no EGL here.*libegl1"):
        opengl.choose_library()


def test_a_library_that_the_user_chose_is_tried_and_named(monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "bogus")
    with pytest.raises(ConfigError, match=r"bogus.*unset MUJOCO_GL"):
        opengl.choose_library()


def test_training_refuses_videos_without_replays():
    tree = {
        "env": {"train": {"name": "gymnasium", "id": "CartPole-v1", "total_num_envs": 1}},
        "policy": {"name": "mlp"},
        "algorithm": {"name": "ppo"},
        "evaluation": {"videos": 1, "replays": 0},
    }
    with pytest.raises(ConfigError, match=r"evaluation\.replays is 0"):
        check_machine(load_config(tree))
