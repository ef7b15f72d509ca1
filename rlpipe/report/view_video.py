"""Section with the newest video of evaluation episodes."""

from __future__ import annotations

import base64
from pathlib import Path

from rlpipe.report.web.page import Section, render
from rlpipe.run.replays import FOLDER, VIDEOS, ReplayFolder, iteration_of


def video_section(run: Path, budget: int) -> tuple[Section | None, list[str]]:
    """Returns the section, None if there is none or it takes more bytes, and what to say where it is left out."""
    videos = [*(run / VIDEOS).glob("*.mp4")]
    if not videos:
        return None, []
    places = {file.stem: place for place, file in enumerate(reversed(ReplayFolder(run / FOLDER).sets()))}
    newest = max(videos, key=lambda file: (places.get(file.stem, -1), file.stat().st_mtime_ns, file.name))
    if newest.stat().st_size * 4 / 3 > budget:  # as base64
        return None, [f"The video, for which there was no room: {newest}."]
    others = f" The folder {VIDEOS} holds {len(videos)} in all." if len(videos) > 1 else ""
    iteration = iteration_of(newest)
    when = newest.stem if iteration is None else f"the evaluation of iteration {iteration}"
    text = base64.b64encode(newest.read_bytes()).decode()
    return Section("video", "Video", render("report/video.html", video=text, when=when, others=others)), []
