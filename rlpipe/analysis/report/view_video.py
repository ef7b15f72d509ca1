"""Section with the newest video of evaluation episodes."""

from __future__ import annotations

import base64
from pathlib import Path

from rlpipe.analysis.web.page import Section, render
from rlpipe.run.replays import VIDEOS


def video_section(run: Path, budget: int) -> tuple[Section | None, list[str]]:
    """Returns the section, None without one, and what to say where it is left out.

    Args:
        run: run directory
        budget: most bytes of the video in the page
    """
    found = sorted((run / VIDEOS).glob("*.mp4"), key=lambda file: (file.stat().st_mtime_ns, file.name))
    if not found:
        return None, []
    newest = found[-1]
    text = base64.b64encode(newest.read_bytes()).decode()
    if len(text) > budget:
        return None, [f"The video, for which there was no room: {newest}."]
    others = f" The folder {VIDEOS} holds {len(found)} in all." if len(found) > 1 else ""
    iteration = newest.stem.removeprefix("iteration-")
    when = f"the evaluation of iteration {int(iteration)}" if iteration.isdigit() else newest.stem
    return Section("video", "Video", render("report/video.html", video=text, when=when, others=others)), []
