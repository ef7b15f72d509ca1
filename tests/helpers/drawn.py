"""A red cube that slides along x over a grey floor: replays that can be drawn, and a video of two of them."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

import imageio_ffmpeg
import numpy as np
import pytest

from rlpipe.errors import ConfigError
from rlpipe.run.opengl import check_drawing
from rlpipe.run.replays import FOLDER, ReplayFolder, ReplaySet
from rlpipe.trajectory import Body, Episode, Replay, Scene, Shape

SCENE = Scene(
    (
        Body("floor", (Shape("plane", (0.0, 0.0), colour=(0.5, 0.5, 0.5, 1.0)),)),
        Body("cube", (Shape("box", (0.1, 0.1, 0.1), colour=(1.0, 0.0, 0.0, 1.0)),)),
    ),
    eye=(0.0, -2.0, 1.0),
    target=(0.0, 0.0, 0.0),
)


@cache
def _missing() -> str:
    try:
        check_drawing("a video")
    except ConfigError as error:
        return str(error)
    return ""


def needs_drawing() -> None:
    """Skips a test on a machine that cannot draw."""
    if _missing():
        pytest.skip(_missing())


def slide(seed: int, first_success: int | None, steps: int = 4, distance: float = 0.8) -> Replay:
    """An episode in which the cube slides so far; it succeeds after a step, or never."""
    poses = np.zeros((steps + 1, 2, 7), np.float32)
    poses[:, :, 3] = 1.0
    poses[:, 1, 0] = np.linspace(0.0, distance, steps + 1)
    poses[:, 1, 2] = 0.1
    won = first_success is not None
    episode = Episode(0, 0, seed, 0, 1.0, steps, won, won, False, True, False, first_success=first_success)
    return Replay(
        episode, np.zeros(steps), np.zeros(steps, bool), np.zeros((steps, 1), np.float32), {}, poses, SCENE.key
    )


def write_set(run: Path, *replays: Replay, name: str = "iteration-000003") -> None:
    """Writes a set into a run directory."""
    ReplayFolder(run / FOLDER).write(name, ReplaySet(3, "training", "Slide-v1", replays), {SCENE.key: SCENE})


def make_video(run: Path, pairs: int = 1) -> Path:
    """Makes a video as a user does: OpenGL wants a process that has not drawn before."""
    command = [sys.executable, "-m", "rlpipe", "replay", str(run), "--videos", str(pairs)]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert answer.returncode == 0, answer.stderr
    (file,) = (run / "videos").iterdir()
    return file


def pictures(file: Path) -> np.ndarray:
    """[N, H, W, 3] pictures of a video."""
    frames = imageio_ffmpeg.read_frames(str(file))
    width, height = next(frames)["size"]
    return np.stack([np.frombuffer(frame, np.uint8).reshape(height, width, 3) for frame in frames])
