"""Section on where time went: phases of the driver over the run, and every actor in the newest iteration."""

from __future__ import annotations

import math
from typing import Any

from rlpipe.analysis.timeline import Timeline
from rlpipe.metrics.spans import ITERATION
from rlpipe.report import formats
from rlpipe.report.run_content import RunContent
from rlpipe.report.web.page import Section, render

MOST_ACTORS = 16
MOST_BARS = 400
"""Spans of an actor that are drawn; of more, the longest."""


_COLOURS = {
    "generate_rollouts": 1, "collect": 1, "wait for collection": 1, "actor_training": 3, "train": 3,
    "wait for learning": 3, "eval": 5, "evaluate": 5, "wait for evaluation": 5, "cal_adv_and_returns": 4,
    "advantages": 4, "sync_weights": 7, "load weights": 7, "publish weights": 2, "receive batches": 6, "checkpoint": 2,
    "save checkpoint": 2, "hand over checkpoint": 2, "log": 8, "write row": 8, "wait for logging": 8, "other": 0,
    "answer": 4,
}  # fmt: skip
"""Colours of phases and activities: who waits has the colour of what it waits for."""


def _style(name: str) -> str:
    """Returns the style of a phase or an activity; an unknown one has a colour by its name."""
    colour = _COLOURS.get(name, sum(name.encode()) % 8 + 1)
    return f"c{colour} faint" if name.startswith("wait for") else f"c{colour}"


def time_section(content: RunContent) -> Section | None:
    """Shares of the phases, and the newest iteration; None where nothing was timed."""
    if not content.phases and content.timeline is None:
        return None
    total = math.fsum(content.phases.values()) or 1.0
    phases = []
    for name, seconds in content.phases.items():
        metric = content.metric(name)
        phases.append(
            {
                "name": name,
                "label": name.partition("/")[2].replace("_", " "),
                "style": _style(name.partition("/")[2]),
                "width": round(100 * seconds / total, 3),
                "share": formats.share(seconds / total),
                "seconds": formats.duration(seconds),
                "meaning": "" if metric is None else metric.meaning,
            }
        )
    return Section(
        "time",
        "Where time went",
        render(
            "report/time.html",
            note=f"Time of the driver over the whole run, {formats.duration(total)}: each moment between two rows "
            "belongs to one phase. Work of other actors that overlaps with these phases is not in them.",
            summary=", ".join(f"{phase['label']} {phase['share']}" for phase in phases),
            phases=phases,
            **({"actors": []} if content.timeline is None else _actors(content.timeline)),
        ),
    )


def _actors(timeline: Timeline) -> dict[str, Any]:
    """Lanes of the actors in an iteration, with a colour for each kind of work."""
    length = timeline.ended - timeline.began
    kinds: dict[str, str] = {}
    lanes = []
    for actor in timeline.actors[:MOST_ACTORS]:
        spans = [
            (span, of) for span, of in timeline.spans
            if span.actor == actor and span.name not in (ITERATION, "wait")
            and span.ended > timeline.began and span.began < timeline.ended
        ]  # fmt: skip
        spans = sorted(spans, key=lambda item: item[0].began - item[0].ended)[:MOST_BARS]
        bars = []
        for span, of in spans:
            style = kinds.setdefault(span.name, _style(span.name))
            began, ended = max(span.began, timeline.began), min(span.ended, timeline.ended)
            number = "" if of == timeline.iteration else f" of iteration {of}"
            bars.append(
                {
                    "style": style,
                    "left": round(100 * (began - timeline.began) / length, 2),
                    "width": round(100 * (ended - began) / length, 2),
                    "title": f"{span.name}{number}: {formats.duration(span.ended - span.began)}",
                }
            )
        shares = [f"{name} {formats.share(share)}" for name, share in timeline.shares(actor).items() if share >= 0.005]
        lanes.append({"name": actor, "summary": ", ".join(shares), "bars": bars})
    more = len(timeline.actors) - MOST_ACTORS
    note = "Gaps are waiting, and Ray's own work."
    if more > 0:
        note += f" {more} more actors are left out; rlpipe timeline shows all."
    return {
        "actors": lanes, "kinds": [{"name": name, "style": style} for name, style in kinds.items()],
        "iteration": f"{timeline.iteration:,}", "length": formats.duration(length), "actors_note": note,
    }  # fmt: skip
