"""One iteration of a run as a Chrome trace: what each part did when, for Perfetto and ``chrome://tracing``.

Made from ``timeline.jsonl``, so the run may be going on, or over, and its cluster gone. The format is Google's "Trace
Event Format", https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rlpipe.errors import ConfigError
from rlpipe.metrics.spans import ITERATION, Span
from rlpipe.run.directory import KEPT_ITERATIONS, TIMELINE, RunDirectory, read_jsonl

_ALONG_THE_DATA = ("driver", "rollout", "inference", "learner", "metric-logger")
_WAIT = "wait"


@dataclass(frozen=True)
class Timeline:
    """What the parts of a run did in one iteration, and what reached into it from others.

    Attributes:
        iteration: from 1.
        began, ended: of the iteration, seconds since 1970 by the driver's clock.
        parts: names, along the data's way.
        spans: by part and time, each with the iteration it belongs to. A part other than the driver waits where it does
            nothing else, which belongs to this iteration.
    """

    iteration: int
    began: float
    ended: float
    parts: tuple[str, ...]
    spans: tuple[tuple[Span, int], ...]

    def shares(self, part: str) -> dict[str, float]:
        """Share of the iteration that a part spent on each thing, the largest first."""
        length = self.ended - self.began
        found: dict[str, float] = {}
        for span, _ in self.spans:
            if span.part == part and span.name != ITERATION:
                within = min(span.ended, self.ended) - max(span.began, self.began)
                found[span.name] = found.get(span.name, 0.0) + max(0.0, within) / length
        return dict(sorted(found.items(), key=lambda item: -item[1]))


def read(directory: RunDirectory, iteration: int | None = None) -> Timeline:
    """The timeline of an iteration; the newest unless said.

    Raises:
        ConfigError: the run directory does not hold it.
    """
    file = directory.path / TIMELINE
    kept: dict[int, list[Span]] = {}
    for row in read_jsonl(file) if file.is_file() else ():
        kept[row["iteration"]] = [Span(**fields) for fields in row["spans"]]
    if not kept:
        raise ConfigError(f"{directory.path} has no timeline: {TIMELINE} is written from the first whole iteration on.")
    wanted = max(kept) if iteration is None else iteration
    if wanted not in kept:
        raise ConfigError(
            f"--iteration is {wanted}, but the timeline of {directory.path} holds {min(kept)} to {max(kept)}: at least "
            f"the newest {KEPT_ITERATIONS} iterations are kept."
        )
    whole = next((span for span in kept[wanted] if span.name == ITERATION and span.ended > span.began), None)
    if whole is None:
        raise ConfigError(
            f"{file} does not say from when to when iteration {wanted} was: its span {ITERATION!r} is missing, or ends "
            "before it begins."
        )
    found = [
        (span, of)
        for of, spans in kept.items()
        for span in spans
        if of == wanted or (span.began < whole.ended and span.ended > whole.began)
    ]
    parts = sorted({span.part for span, _ in found}, key=_place)
    ordered: list[tuple[Span, int]] = []
    for part in parts:
        own = sorted((item for item in found if item[0].part == part), key=lambda item: (item[0].began, -item[0].ended))
        waits = [] if part == "driver" else [(wait, wanted) for wait in _waits(part, [span for span, _ in own], whole)]
        ordered += sorted([*own, *waits], key=lambda item: (item[0].began, -item[0].ended))
    return Timeline(wanted, whole.began, whole.ended, tuple(parts), tuple(ordered))


def _waits(part: str, spans: Sequence[Span], whole: Span) -> Iterable[Span]:
    """Where a part does nothing within an iteration."""
    ends = [whole.began, *(span.ended for span in spans)]
    begins = [*(span.began for span in spans), whole.ended]
    for ended, began in zip(itertools.accumulate(ends, max), begins, strict=True):
        if (until := min(began, whole.ended)) > ended:
            yield Span(part, _WAIT, ended, until)


def _place(part: str) -> tuple[int, str, int]:
    """Along the data's way, then by name and rank."""
    found = re.fullmatch(r"(.+?)(?:-(\d+))?", part)
    assert found is not None
    kind, rank = found.groups()
    order = _ALONG_THE_DATA.index(kind) if kind in _ALONG_THE_DATA else len(_ALONG_THE_DATA)
    return order, kind, int(rank or 0)


def chrome_trace(directory: RunDirectory, timeline: Timeline) -> dict[str, Any]:
    """The JSON object of a trace: a process for each host, a thread for each part, times in microseconds since the
    iteration began. What belongs to another iteration has its number in its name."""
    cluster = directory.read_json()["cluster"]
    places = cluster.get("parts", {})
    anywhere = {"host": next((node["host"] for node in cluster.get("nodes", [])), "unknown"), "node": ""}
    hosts = {part: places.get(part, anywhere) for part in timeline.parts}
    nodes = list(dict.fromkeys(host["node"] for host in hosts.values()))
    threads = {part: {"pid": 1 + nodes.index(hosts[part]["node"]), "tid": tid} for tid, part in enumerate(hosts, 1)}
    events: list[dict[str, Any]] = []
    for part, thread in threads.items():
        host = {"name": f"host {hosts[part]['host']}"}
        events += [
            {"ph": "M", "name": "process_name", **thread, "args": host},
            {"ph": "M", "name": "thread_name", **thread, "args": {"name": part}},
            {"ph": "M", "name": "thread_sort_index", **thread, "args": {"sort_index": thread["tid"]}},
        ]
    for span, of in timeline.spans:
        name = span.name if of == timeline.iteration and span.name != ITERATION else f"{span.name} {of}"
        began, ended = (round((moment - timeline.began) * 1e6) for moment in (span.began, span.ended))
        events.append({"ph": "X", "name": name, **threads[span.part], "ts": began, "dur": ended - began})
    about = {"run": directory.run_id, "iteration": timeline.iteration}
    about["began"] = datetime.fromtimestamp(timeline.began, UTC).isoformat()
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}
