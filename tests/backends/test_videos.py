"""Videos in the backends, each as it can show them."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from PIL import Image, ImageSequence

from rlpipe.backends import mlflow, trackio, wandb
from rlpipe.backends.base import RunInfo
from rlpipe.backends.shared.video import TAG, animation, video_of
from rlpipe.backends.tensorboard import TensorBoard
from rlpipe.metrics.row import Event, EventKind, Row, Status
from tests.helpers.drawn import make_video, needs_drawing, slide, write_set
from tests.helpers.stores.trackio import storage

EVENT = Event(EventKind.VIDEO, "A video.", 3, 1767225600.0, {"file": "videos/iteration-000003.mp4"})
ROWS = [Row(n, 100 * n, 1767225600.0 + n, {"env/return": 1.0}) for n in (4, 5)]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """Directory of a run with a video of iteration 3."""
    needs_drawing()
    path = tmp_path_factory.mktemp("runs") / "e" / "r1"
    write_set(path, slide(1, 2), slide(2, None))
    make_video(path)
    return path


def info(run: Path, options=None) -> RunInfo:
    return RunInfo(
        "r1", "e", "p", run, "a: {b: 1}", 20, 2000, 1, (), options=options, created="2026-01-01T00:00:00+00:00"
    )


@pytest.mark.soak
def test_a_gif_has_half_the_size_and_lasts_as_long(run):
    gif = Image.open(io.BytesIO(animation(video_of(EVENT, run))))
    assert gif.size == (480, 195)
    assert sum(frame.info["duration"] for frame in ImageSequence.Iterator(gif)) == 1000  # 20 pictures, 20 a second


def test_an_event_whose_video_is_gone_is_like_any_other(run):
    assert video_of(Event(EventKind.VIDEO, "", 9, 0.0, {"file": "videos/iteration-000009.mp4"}), run) is None


def test_a_video_that_cannot_be_read_here_is_told_in_words(run, tmp_path, monkeypatch):
    (tmp_path / "torn.mp4").write_bytes(b"half of it")
    assert animation(tmp_path / "torn.mp4") is None
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    assert animation(video_of(EVENT, run)) is None


def test_tensorboard_plays_it_at_its_iteration(run):
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    backend = TensorBoard(info(run))
    backend.event(EVENT)
    backend.close(Status.COMPLETED)
    (file,) = (run / "tensorboard").glob("events*")
    found = [(one.step, value.image) for one in LegacyEventFileLoader(str(file)).Load() for value in one.summary.value
             if value.tag == TAG]  # fmt: skip
    ((step, image),) = found
    assert (step, image.width, image.height, image.encoded_image_string[:6]) == (3, 480, 195, b"GIF89a")


def test_trackio_shows_it_at_its_iteration(run, tmp_path):
    held = storage(tmp_path)
    trackio.Trackio(info(run, trackio.TrackioOptions(folder=str(tmp_path / "trackio")))).event(EVENT)
    (row,) = held.get_logs("p", "r1")
    assert (row["step"], row[TAG]["_type"], row[TAG]["caption"]) == (3, "trackio.video", "iteration-000003")


def test_mlflow_keeps_the_file_beside_its_database(run, tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    mlflow.MLflow(info(run, mlflow.MLflowOptions())).event(EVENT)
    (kept,) = (run.parents[1] / "mlartifacts").glob("**/*.mp4")
    assert kept.parts[-2:] == ("videos", "iteration-000003.mp4")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.soak
def test_wandb_gets_it_with_the_next_row_so_that_its_steps_stay(run):
    backend = wandb.WandB(info(run, wandb.WandbOptions(mode="offline")))
    backend.write(ROWS[0])
    backend.event(EVENT)
    backend.write(ROWS[1])
    backend.close(Status.COMPLETED)
    (media,) = (run / "wandb").glob("offline-run-*/files/media/videos/eval/*.mp4")
    assert media.name.startswith("video_5_")  # the step
