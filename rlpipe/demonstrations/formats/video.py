"""Videos of LeRobot's datasets: h264 whose frames lie exactly 1 / rate seconds apart, by the program ffmpeg."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

import numpy as np

from rlpipe.demonstrations.formats.episode import Array, Frames
from rlpipe.errors import ConfigError
from rlpipe.plugins import require

VIDEOS_AT_ONCE = 100
"""Videos that one process opens, each of which needs a file descriptor."""


def ffmpeg(key: str) -> str:
    """Returns the path of ffmpeg; ``key`` needs it, for the error."""
    require("imageio_ffmpeg", "video", key)
    import imageio_ffmpeg

    return str(imageio_ffmpeg.get_ffmpeg_exe())


class VideoEncoder:
    """Video that is being written, frame by frame. It has no frames that depend on later ones, so that none is late."""

    def __init__(self, path: Path, shape: tuple[int, ...], rate: int) -> None:
        """Begins a video of ``shape`` [height, width, 3], both even, at ``rate`` frames a second."""
        path.parent.mkdir(parents=True, exist_ok=True)
        height, width, _ = shape
        self.path, self.count = path, 0
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 # close closes it
        command = [
            ffmpeg("--to"), "-y", "-loglevel", "error", "-f", "rawvideo", "-pix_fmt", "rgb24", "-s",
            f"{width}x{height}", "-framerate", str(rate), "-i", "-", "-an", "-c:v", "libx264", "-pix_fmt", "yuv420p",
            "-bf", "0", "-g", "2", "-crf", "18", "-threads", "1", "-fflags", "+bitexact", "-flags:v", "+bitexact",
            str(path),
        ]  # fmt: skip
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=self._errors)

    def add(self, picture: Array) -> None:
        """Adds a frame, [height, width, 3] uint8."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # close says why
            self._process.stdin.write(np.ascontiguousarray(picture).tobytes())
        self.count += 1

    def close(self) -> None:
        """Waits until the video is complete."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        if self._process.wait():
            self._errors.seek(0)
            raise ConfigError(f"{self.path} cannot be written: {self._errors.read().decode(errors='replace').strip()}")
        self._errors.close()

    def stop(self) -> None:
        """Ends the process of a video that will not be completed."""
        self._process.kill()
        self._process.wait()


def seconds_of(videos: Sequence[Path], key: str) -> Mapping[Path, float]:
    """Returns how long videos are, in seconds, as their heads say it to 10 ms; ``key`` needs them, for the error.

    It takes milliseconds a video. Those whose heads cannot be read are missing, and perhaps those that follow, too.
    """
    seconds: dict[Path, float] = {}
    for first in range(0, len(videos), VIDEOS_AT_ONCE):
        some = videos[first : first + VIDEOS_AT_ONCE]
        inputs = [word for path in some for word in ("-i", str(path))]
        command = [ffmpeg(key), "-hide_banner", "-nostdin", *inputs]
        answer = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL)
        parts = re.split("^Input #", answer.stderr.decode(errors="replace"), flags=re.MULTILINE)[1:]
        for path, part in zip(some, parts, strict=False):
            if length := re.search(r"^  Duration: (\d+):(\d+):(\d+\.\d+)", part, re.MULTILINE):
                hours, minutes, rest = map(float, length.groups())
                seconds[path] = 3600 * hours + 60 * minutes + rest
    return seconds


def frames_of(path: Path, count: int, shape: tuple[int, ...], start: float, rate: float, where: str) -> Frames:
    """Returns the ``count`` frames [height, width, 3] of a video from ``start`` on, in seconds; ``where`` names the
    episode in errors, after the key that asks for it."""

    def read() -> Iterator[Array]:
        size = int(np.prod(shape))
        before = max(0.0, start - 0.5 / rate)  # a frame is found also where its time is rounded
        command = [
            ffmpeg(where.partition(":")[0]), "-loglevel", "error", "-ss", f"{before:.6f}", "-i", str(path),
            "-frames:v", str(count), "-fps_mode", "passthrough", "-f", "rawvideo", "-pix_fmt", "rgb24", "-",
        ]  # fmt: skip
        with tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors)
            assert process.stdout is not None
            try:
                for number in range(count):
                    picture = process.stdout.read(size)
                    if len(picture) < size:
                        errors.seek(0)
                        reason = errors.read().decode(errors="replace").strip().partition("\n")[0]
                        raise ConfigError(
                            f"{where}: {path} ends early: it has {number} of the {count} frames from {start:g} s on"
                            f"{f' ({reason})' if reason else ''}."
                        )
                    yield np.frombuffer(picture, np.uint8).reshape(shape)
            finally:
                process.stdout.close()
                process.kill()
                process.wait()

    return Frames(count, shape, read)
