"""Makes a video of replays: successes on the left, failures on the right."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from rlpipe.report.replays.drawing import HEIGHT, WIDTH, Drawing, Picture, camera_path
from rlpipe.report.replays.section import NoReplaysError, find_set, no_replays, words_of
from rlpipe.run.opengl import check_drawing
from rlpipe.run.replays import FOLDER, PARTIAL, VIDEOS, ReplayFolder
from rlpipe.trajectory import Replay

FRAMES = 240
"""Pictures of a video at most; of longer episodes, every second step is shown, or every third, and so on."""
FRAMES_PER_SECOND = 20
_HELD = 15
"""Times that the last picture is shown once more."""
_BAR = 30
_INK, _PALE, _GREEN, _RED = (242, 244, 247), (52, 58, 68), (24, 112, 60), (160, 42, 42)


def make_video(
    run: Path,
    pairs: int,
    *,
    name: str | None = None,
    out: Path | None = None,
    watch: Callable[[int, int], None] | None = None,
) -> Path:
    """Writes a video (mp4, H.264) of the first successes of a set of replays beside its first failures.

    The file appears once it is whole. Call it in a process that has neither imported MuJoCo nor drawn before.

    Args:
        run: run directory, or folder of baselines
        pairs: rows, each a success and a failure; where there is only one kind, two episodes of it
        name: set to show, such as ``evaluation-1``; None for the one that was written last
        out: file to write; None for ``videos/<set>.mp4`` in the run directory
        watch: is told how many pictures are done, and of how many
    Returns:
        The file.
    Raises:
        NoReplaysError: there is no such set, or its simulator tells nothing about its bodies.
        ConfigError: a file is damaged, or this machine cannot draw; the message says what to install.
    """
    os.environ["MUJOCO_GL"] = check_drawing("a video")  # MuJoCo reads it when it is imported
    folder = ReplayFolder(run / FOLDER)
    file = find_set(folder, name)
    if file is None:
        raise no_replays(run)
    replays = [replay for replay in folder.read(file).replays if replay.poses is not None]
    if not replays:
        raise NoReplaysError(f"{file} has no bodies to draw: its simulator tells nothing about them.")
    rows = side_by_side(replays, pairs)
    drawn = [replay for row in rows for replay in row if replay is not None]
    drawings: dict[str, Drawing] = {}
    try:
        for key in dict.fromkeys(replay.scene for replay in drawn):
            drawings[key] = Drawing(folder.read_scene(key))
            drawings[key].frame([replay.poses for replay in drawn if replay.scene == key and replay.poses is not None])
        file = out or run / VIDEOS / f"{file.stem}.mp4"
        _write(file, rows, drawings, watch)
    finally:
        for drawing in drawings.values():
            drawing.close()
    return file


def side_by_side(replays: Sequence[Replay], pairs: int) -> list[list[Replay | None]]:
    """Arranges replays in rows of two: a success and a failure, or, where there is one kind only, any two."""
    good = [replay for replay in replays if replay.episode.success_once][:pairs]
    bad = [replay for replay in replays if replay.episode.success_once is False][:pairs]
    if not good or not bad:
        some = replays[: 2 * pairs]
        return [list(some[start : start + 2]) for start in range(0, len(some), 2)]
    places = range(max(len(good), len(bad)))
    return [[good[at] if at < len(good) else None, bad[at] if at < len(bad) else None] for at in places]


def steps_shown(longest: int) -> list[int]:
    """Chooses the steps of an episode that have a picture: all of them, or equally spaced ones, and the last."""
    stride = -(-(longest + 1) // FRAMES)
    return [*range(0, longest, stride), longest]


def _write(
    file: Path,
    rows: Sequence[Sequence[Replay | None]],
    drawings: dict[str, Drawing],
    watch: Callable[[int, int], None] | None,
) -> None:
    """Draws step by step, and gives each picture to ffmpeg, so that a long video needs no more memory."""
    import imageio_ffmpeg

    file.parent.mkdir(parents=True, exist_ok=True)
    longest = max(replay.episode.length for row in rows for replay in row if replay is not None)
    steps = steps_shown(longest)
    size = (max(map(len, rows)) * WIDTH, len(rows) * (HEIGHT + _BAR))
    partial = file.with_name(f".{file.stem}.{os.getpid()}{PARTIAL}")
    writer = imageio_ffmpeg.write_frames(
        str(partial),
        size,
        fps=FRAMES_PER_SECOND,
        codec="libx264",
        quality=7,
        macro_block_size=2,
        ffmpeg_log_level="error",
        output_params=["-threads", "1", "-movflags", "+faststart", "-f", "mp4"],
    )
    try:
        writer.send(None)
        for done, picture in enumerate(_pictures(rows, drawings, steps), 1):
            for _ in range(1 + _HELD * (done == len(steps))):
                writer.send(picture)
            if watch:
                watch(done, len(steps))
        writer.close()
        partial.replace(file)
    finally:
        writer.close()
        partial.unlink(missing_ok=True)


def _pictures(
    rows: Sequence[Sequence[Replay | None]], drawings: dict[str, Drawing], steps: Sequence[int]
) -> Iterator[Picture]:
    """Yields the whole picture at each of the steps; an episode that has ended shows its last step."""
    panels = [
        (replay, replay.poses, camera_path(replay.poses), down * (HEIGHT + _BAR), across * WIDTH)
        for down, row in enumerate(rows)
        for across, replay in enumerate(row)
        if replay is not None and replay.poses is not None
    ]
    whole = np.full((len(rows) * (HEIGHT + _BAR), max(map(len, rows)) * WIDTH, 3), _PALE, np.uint8)
    for step in steps:
        for replay, poses, path, top, left in panels:
            at = min(step, len(poses) - 1)
            whole[top : top + _BAR, left : left + WIDTH] = _caption(replay, at)
            drawn = drawings[replay.scene].picture(poses[at], path[at])
            whole[top + _BAR : top + _BAR + HEIGHT, left : left + WIDTH] = drawn
        yield whole


def _caption(replay: Replay, step: int) -> Picture:
    """Draws the bar above an episode: which it is, its step, and its outcome once that is known."""
    from PIL import Image, ImageDraw

    episode = replay.episode
    succeeded = episode.first_success is not None and episode.first_success <= step
    over = step >= episode.length
    outcome = "success" if succeeded else "failure" if over and episode.success_once is False else ""
    ground = {"success": _GREEN, "failure": _RED}.get(outcome, _PALE)
    bar = Image.new("RGB", (WIDTH, _BAR), ground)
    pen: Any = ImageDraw.Draw(bar)
    font = _font()
    words = "  ·  ".join((*words_of(episode), f"step {min(step, episode.length)} of {episode.length}"))
    pen.text((12, _BAR / 2), words, _INK, font=font, anchor="lm")
    pen.text((WIDTH - 12, _BAR / 2), outcome, _INK, font=font, anchor="rm")
    return np.asarray(bar)


@cache
def _font() -> Any:
    from PIL import ImageFont

    return ImageFont.load_default(15)
