"""Videos of a run, for the backends that can show them."""

from __future__ import annotations

import io
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
    """Returns a video as a GIF of half the size and half the pictures, for what shows no mp4.

    Raises:
        OSError, RuntimeError: it cannot be read.
    """
    import imageio_ffmpeg
    from PIL import Image

    frames = imageio_ffmpeg.read_frames(
        str(file), output_params=["-vf", f"fps={_PER_SECOND},scale={_WIDTH}:-2", "-threads", "1"]
    )
    width, height = next(frames)["size"]
    height = round(_WIDTH * height / width / 2) * 2
    pictures = [Image.frombytes("RGB", (_WIDTH, height), frame).quantize(64) for frame in frames]
    written = io.BytesIO()
    pictures[0].save(
        written, "GIF", save_all=True, append_images=pictures[1:], duration=1000 // _PER_SECOND, loop=0, optimize=False
    )
    return written.getvalue()
