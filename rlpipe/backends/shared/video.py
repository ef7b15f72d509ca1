"""Videos of a run, for the backends that can show them."""

from __future__ import annotations

import io
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from rlpipe.metrics.row import Event, EventKind

if TYPE_CHECKING:
    from PIL.Image import Image

TAG = "eval/video"
"""Name under which a backend shows the videos."""
_WIDTH, PER_SECOND = 480, 10


def video_of(event: Event, run: Path) -> Path | None:
    """Returns the file of the video that an event tells of; None for other events, and if the file is gone."""
    if event.kind != EventKind.VIDEO:
        return None
    file = run / str(event.data["file"])
    return file if file.is_file() else None


def animation(file: Path) -> bytes | None:
    """Returns a video as a small GIF with ten pictures a second, for what shows no mp4.

    None if it cannot be read here: the file is damaged, or the extra ``video`` is not installed.
    """
    try:
        pictures = [picture.quantize(64) for picture in some_pictures(file, _WIDTH, PER_SECOND)]
    except (ImportError, OSError, RuntimeError):
        return None
    if not pictures:
        return None
    written = io.BytesIO()
    pictures[0].save(written, "GIF", save_all=True, append_images=pictures[1:], duration=1000 // PER_SECOND, loop=0)
    return written.getvalue()


def some_pictures(file: Path, width: int, per_second: int) -> Iterator[Image]:
    """Yields pictures of a video, so many a second and so many pixels wide."""
    import imageio_ffmpeg
    from PIL import Image as Images

    frames = imageio_ffmpeg.read_frames(str(file))
    about = next(frames)
    across, down = about["size"]
    for frame in islice(frames, 0, None, max(1, round(about["fps"] / per_second))):
        whole = Images.frombytes("RGB", (across, down), frame)
        yield whole.resize((width, round(down * width / across)), Images.Resampling.LANCZOS)
