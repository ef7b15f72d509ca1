"""Report of one or several runs as one HTML file of at most ``MOST_BYTES``.

The list of sections stands here, once. Where a page would be too large, what matters least goes first, and the page
says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from rlpipe.errors import ConfigError, command_line
from rlpipe.report.curves import CurveDetail
from rlpipe.report.replays.section import section
from rlpipe.report.run_content import RunContent, collect
from rlpipe.report.several import Together, together
from rlpipe.report.view_curves import curves_section, success_section
from rlpipe.report.view_episodes import episodes_section
from rlpipe.report.view_episodes import left_out as episodes_left_out
from rlpipe.report.view_facts import about_section, distributions_section, setup_section
from rlpipe.report.view_health import health_section, next_section
from rlpipe.report.view_lead import lead_of_run, lead_of_runs
from rlpipe.report.view_runs import runs_section
from rlpipe.report.view_stress import stress_section
from rlpipe.report.view_time import time_section
from rlpipe.report.view_video import video_section
from rlpipe.report.web.page import Section, check_file, page, write_page
from rlpipe.run.replays import FOLDER

REPORT = "report.html"
"""File of a run directory that holds its report."""
MOST_BYTES = 10_000_000


@dataclass(frozen=True)
class Detail:
    """Amount of detail on a page.

    Attributes:
        curves: metrics, and points of their curves
        episodes: most episodes that are shown one by one, and most points of the scatter
        replays: bytes of the replays; 0 for none
        video: bytes of the newest video; 0 for none
    """

    curves: CurveDetail
    episodes: int
    replays: int = 0
    video: int = 0


DETAILS = (
    Detail(CurveDetail(), 2000, 5_000_000, 3_000_000),
    Detail(CurveDetail(workers=False), 2000, 5_000_000, 3_000_000),
    Detail(CurveDetail(600, workers=False), 1000, 2_000_000, 1_000_000),
    Detail(CurveDetail(300, workers=False), 500),
    Detail(CurveDetail(300, workers=False, all_metrics=False), 500),
    Detail(CurveDetail(100, workers=False, all_metrics=False), 200),
    Detail(CurveDetail(30, workers=False, all_metrics=False), 100),
)
"""From everything to the least, in the order in which things go."""


Replays = Callable[[int], tuple[Section | None, list[str]]]
"""Takes a budget in bytes; returns the section that plays episodes, and what to say where it is left out."""


def report(paths: Sequence[Path]) -> str:
    """Builds the report of run directories, or of logs of other systems."""
    contents = [collect(path) for path in {path.resolve(): path for path in paths}.values()]
    several = together(contents) if len(contents) > 1 else None
    replays = cache(partial(_replays, contents[0].path))  # details of the rest may go while the budget stays
    text = ""
    for detail in DETAILS:
        text = _page(contents, several, detail, replays)
        if len(text.encode()) <= MOST_BYTES:
            break
    return text


def write(paths: Sequence[Path], out: Path | None = None) -> Path:
    """Writes the report of run directories, or of logs of other systems, whole or not at all.

    Without ``out``, that of a single run is ``report.html`` in its directory; others are in the working directory.
    """
    alone = len(paths) == 1 and (paths[0] / "run.json").is_file()
    file = out or (paths[0] / REPORT if alone else Path(REPORT))
    check_file(file)
    write_page(file, report(paths))
    return file


def _page(contents: Sequence[RunContent], several: Together | None, detail: Detail, replays: Replays) -> str:
    if several is not None:
        sections = [*_of_several(contents, several, detail)]
        lead, title = lead_of_runs(contents, several), f"{len(contents)} runs"
    else:
        sections = [*_of_one(contents[0], detail, replays)]
        lead, title = lead_of_run(contents[0]), contents[0].record.get("experiment", "")
        title = f"{title} {contents[0].label}".strip()
    return page(f"{title} - rlpipe report", sections, lead)


def _of_one(content: RunContent, detail: Detail, replays: Replays) -> Iterator[Section]:
    """Yields the sections of a report on one run that has something to show in them, in their order."""
    alone = [content.label]
    played, no_replays = replays(detail.replays)
    video, no_video = video_section(content.path, detail.video)
    built = (
        success_section([content], alone),
        curves_section([content], alone, [0], detail.curves),
        played,
        video,
        stress_section(content),
        next_section(content),
        health_section(content),
        time_section(content),
        episodes_section(content, detail.episodes),
        distributions_section(content),
        setup_section(content),
        about_section(
            [content],
            [
                *no_replays,
                *no_video,
                *_curves_left_out([content], detail),
                *episodes_left_out(content, detail.episodes),
            ],
        ),
    )
    yield from (section for section in built if section is not None)


def _replays(run: Path, budget: int) -> tuple[Section | None, list[str]]:
    """Returns the section that plays evaluation episodes, and what to say where it is left out."""
    folder = run / FOLDER
    if not folder.is_dir():
        return None, []
    if not budget:
        return None, [f"Replays, for which there was no room: {command_line('replay', run)} plays them."]
    try:
        return section(run, budget), []
    except (ConfigError, ImportError) as error:
        return None, [f"Replays: {error}"]


def _of_several(contents: Sequence[RunContent], several: Together, detail: Detail) -> Iterator[Section]:
    """Likewise for several runs."""
    begun = [content for content in contents if content.course.rows]
    groups = [group for content, group in zip(contents, several.group_of, strict=True) if content.course.rows]
    left = [*_curves_left_out(contents, detail), "Events, alerts, time, episodes, distributions and the whole "
            "configuration of each run: rlpipe report of one run has them."]  # fmt: skip
    built = (
        runs_section(contents, several),
        success_section(begun, several.groups) if begun else None,
        curves_section(begun, several.groups, groups, detail.curves) if begun else None,
        about_section(contents, left),
    )
    yield from (section for section in built if section is not None)


def _curves_left_out(contents: Sequence[RunContent], detail: Detail) -> list[str]:
    """Says which metrics and which points of curves are not on the page."""
    curves, sentences = detail.curves, []
    everything = len({name for content in contents for name in content.course.series})
    if (fewer := everything - len(curves.names(contents))) > 0:
        sentences.append(
            f"Curves of {fewer:,} of {everything:,} metrics, for which there was no room in {MOST_BYTES:,} bytes."
        )
    longest = max((content.course.rows for content in contents), default=0)
    if longest > curves.points and len(contents) > 1:
        sentences.append(
            f"Curves of more than {curves.points:,} values show one of every {-(-longest // curves.points)} iterations."
        )
    elif longest > curves.points:
        sentences.append(
            f"A curve of more than {curves.points:,} values shows, of equally many consecutive values each, the lowest "
            f"and the highest; the longest has {longest:,}."
        )
    return sentences
