"""Videos of a run, for the backends that can show them."""

from __future__ import annotations

import io
from itertools import islice
from pathlib import Path

from rlpipe.metrics.row import Event, EventKind

TAG = "eval/video"
"""Name under which a backend shows the videos."""
_WIDTH, _PER_SECOND = 480, 10


def video_of(event: Event, run: Path) -> Path | None:
    """Returns the file of the video that an event tells of; None for other events, and if the file is gone."""
    if event.kind != EventKind.VIDEO:
        return None
    file = run / str(event.data["file"])
    return file if file.is_file() else None


def animation(file: Path) -> bytes:
    """Returns a video as a small GIF with ten pictures a second, for what shows no mp4.

    Raises:
        OSError, RuntimeError: it cannot be read.
    """
    import imageio_ffmpeg
    from PIL import Image

    frames = imageio_ffmpeg.read_frames(str(file))
    about = next(frames)
    width, height = about["size"]
    stride = max(1, round(about["fps"] / _PER_SECOND))
    size = (_WIDTH, round(height * _WIDTH / width))
    pictures = [
        Image.frombytes("RGB", (width, height), frame).resize(size).quantize(64)
        for frame in islice(frames, 0, None, stride)
    ]
    written = io.BytesIO()
    pictures[0].save(written, "GIF", save_all=True, append_images=pictures[1:], duration=1000 // _PER_SECOND, loop=0)
    return written.getvalue()
