"""The page of replays in a browser: bodies are where the simulator had them, and it plays."""

from __future__ import annotations

import time

import numpy as np
import pytest
from markupsafe import Markup

from rlpipe.report.replays import section
from rlpipe.report.web.page import page
from rlpipe.run.replays import FOLDER, ReplayFolder, ReplaySet
from tests.helpers.browser import DESKTOP, PHONE, browser, opened  # noqa: F401 - a fixture
from tests.helpers.replays import RandomActions, maniskill_episode, pushing

pytestmark = pytest.mark.extras

CONTROL = {"control_mode": "pd_ee_delta_pos"}
PERFORMANCE = "GPU stall due to ReadPixels"
"""Remark of software WebGL on the picture that the browser copies; it is no error of the page."""


def until(is_so):
    """Waits for a condition; the page's policy forbids what Playwright's own waiting evaluates in it."""
    deadline = time.monotonic() + 600
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def write_page(folder, recorded):
    """Writes the replays as a run does, and their page."""
    scenes = {one.scene.key: one.scene for one in recorded}
    made = ReplaySet(1, "training", "a task", [one.replay for one in recorded])
    ReplayFolder(folder / FOLDER).write("iteration-000001", made, scenes)
    found = section(folder)
    assert found is not None
    file = folder / "replay.html"
    file.write_text(page("replays", [found], Markup("<h1>Replays</h1>")), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def recorded():
    pytest.importorskip("mani_skill", reason="mani_skill is not installed")
    return [
        maniskill_episode("PushCube-v1", pushing, 2, **CONTROL),
        maniskill_episode("PickCube-v1", RandomActions(4), 1, max_episode_steps=20, **CONTROL),
    ]


@pytest.fixture(scope="module")
def file(recorded, tmp_path_factory):
    return write_page(tmp_path_factory.mktemp("replays"), recorded)


def complaints(shown):
    return [text for text in shown.complaints if PERFORMANCE not in text]


@pytest.mark.maniskill
def test_every_link_and_the_cube_are_drawn_where_the_simulator_had_them(browser, file, recorded):  # noqa: F811
    success, failure = recorded
    assert success.replay.episode.success_once
    assert not failure.replay.episode.success_once
    asked = [
        (name, step, panel, pose)
        for panel, one in enumerate((success, failure))
        for step in np.linspace(0, one.replay.episode.length, 5).astype(int).tolist()
        for name, pose in one.truth[step].items()
    ]
    with opened(browser, file) as shown:
        places = [[name, step, panel] for name, step, panel, _ in asked]
        drawn = shown.page.evaluate("all => all.map(([n, s, p]) => rlpipeReplay.pose(n, s, p))", places)
        for (name, step, _, pose), found in zip(asked, np.array(drawn), strict=True):
            sign = np.sign(pose[3:] @ found[3:])  # q and -q are the same orientation
            assert np.abs(found[:3] - pose[:3]).max() < 1e-4, (name, step)
            assert np.abs(sign * found[3:] - pose[3:]).max() < 1e-4, (name, step)
        assert (complaints(shown), shown.requests) == ([], [])


@pytest.mark.maniskill
def test_playing_moves_the_robot_and_stops_at_the_end(browser, file):  # noqa: F811
    with opened(browser, file) as shown:
        hand = "rlpipeReplay.bodies().includes('panda/panda_hand') && rlpipeReplay.time()"
        assert shown.page.evaluate(hand) == 0
        shown.page.select_option(".replay-speed", "80")
        shown.page.keyboard.press("Space")
        until(lambda: shown.page.evaluate("rlpipeReplay.time()") == 20)
        assert shown.page.locator(".replay-play").get_attribute("aria-label") == "Play"
        shown.page.keyboard.press("ArrowLeft")
        assert shown.page.evaluate("rlpipeReplay.time()") == 19
        shown.page.keyboard.press("Home")
        assert shown.page.evaluate("rlpipeReplay.time()") == 0
        assert complaints(shown) == []


@pytest.mark.maniskill
def test_a_success_stands_beside_a_failure_and_below_it_on_a_phone(browser, file):  # noqa: F811
    with opened(browser, file) as shown:
        assert shown.page.locator(".replay-panel .badge").all_inner_texts() == ["success", "failure"]
        for viewport, stacked in ((DESKTOP, False), (PHONE, True)):
            shown.page.set_viewport_size(viewport)
            first, second = (one.bounding_box() for one in shown.page.locator(".replay-panel").all())
            assert (second["y"] > first["y"]) is stacked
            assert not shown.is_wider_than_the_screen()


@pytest.mark.maniskill
def test_a_browser_without_webgl_shows_the_numbers_and_says_why(browser, file):  # noqa: F811
    without_webgl = (
        "const before = HTMLCanvasElement.prototype.getContext;"
        "HTMLCanvasElement.prototype.getContext = function (kind, ...rest) {"
        "  return kind.startsWith('webgl') ? null : before.call(this, kind, ...rest); };"
    )
    with opened(browser, file, without_webgl) as shown:
        assert "offers no WebGL" in shown.page.locator(".replay-none").first.inner_text()
        shown.page.evaluate("rlpipeReplay.go(10)")
        assert shown.page.locator(".replay-chart-title output").nth(1).inner_text() == "1.000"
        assert shown.page.locator(".uplot canvas").count() == 6


@pytest.mark.maniskill
def test_a_screen_reader_hears_the_step_and_the_return(browser, file):  # noqa: F811
    with opened(browser, file) as shown:
        shown.page.evaluate("rlpipeReplay.go(10)")
        said = shown.page.locator(".replay-said").inner_text()
        assert "1. seed 0, success: step 10 of 10, reward 1, return so far 1." in said
