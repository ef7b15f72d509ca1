"""Videos that another process makes while a run goes on."""

from __future__ import annotations

import pytest

from rlpipe.metrics.row import EventKind
from rlpipe.report.view_video import video_section
from rlpipe.run.replays import PARTIAL
from rlpipe.run.videos import VideoMaker
from tests.helpers.drawn import needs_drawing, slide, write_set


@pytest.mark.soak
def test_the_newest_evaluation_gets_a_video_and_what_waited_gives_way(tmp_path):
    needs_drawing()
    for iteration in (1, 2, 3):
        write_set(tmp_path, slide(1, 2), slide(2, None), name=f"iteration-{iteration:06d}")
    maker = VideoMaker(tmp_path, 1, first_iteration=1)
    assert maker.poll() == []
    maker.ask(1)
    assert maker.poll() == []
    assert maker.needs == {1}  # its replays are being read
    for iteration in (2, 3):
        maker.ask(iteration)
    events = maker.finish(600)
    assert [(event.kind, event.iteration, event.data) for event in events] == [
        (EventKind.VIDEO, iteration, {"file": f"videos/iteration-00000{iteration}.mp4"}) for iteration in (1, 3)
    ]
    assert sorted(file.stem for file in (tmp_path / "videos").iterdir()) == ["iteration-000001", "iteration-000003"]


def test_a_video_that_cannot_be_made_is_a_note(tmp_path):
    needs_drawing()
    maker = VideoMaker(tmp_path, 1, first_iteration=1)
    maker.ask(4)
    (event,) = maker.finish(600)
    assert (event.kind, event.iteration) == (EventKind.NOTE, 4)
    assert "has no replays" in event.message


def test_a_video_that_takes_too_long_is_given_up_with_the_command_that_makes_it(tmp_path):
    write_set(tmp_path, slide(1, 2))
    maker = VideoMaker(tmp_path, 2, first_iteration=1)
    maker.ask(3)
    (event,) = maker.finish(0)
    assert event.kind == EventKind.NOTE
    assert f"rlpipe replay {tmp_path} --videos 2" in event.message
    assert not list((tmp_path / "videos").glob("*"))


def test_without_the_option_nothing_starts(tmp_path):
    maker = VideoMaker(tmp_path, 0, first_iteration=1)
    maker.ask(1)
    assert maker.poll() == maker.finish(0) == []


def test_what_a_killed_run_left_half_drawn_is_removed_and_taken_for_no_video(tmp_path):
    folder = tmp_path / "videos"
    folder.mkdir()
    (folder / f".iteration-000003.77{PARTIAL}").write_bytes(b"half")
    assert video_section(tmp_path, 10_000) == (None, [])
    VideoMaker(tmp_path, 1, first_iteration=4)
    assert not list(folder.iterdir())


def test_a_resume_forgets_videos_of_iterations_that_come_again(tmp_path):
    folder = tmp_path / "videos"
    folder.mkdir()
    for name in ("iteration-000002", "iteration-000003", "evaluation-1"):
        (folder / f"{name}.mp4").touch()
    VideoMaker(tmp_path, 1, first_iteration=3)
    assert sorted(file.stem for file in folder.iterdir()) == ["evaluation-1", "iteration-000002"]
