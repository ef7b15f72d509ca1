"""Chrome trace of one iteration, for Perfetto and ``chrome://tracing``: the work of each actor over time.

It is made from ``timeline.jsonl``, so the run may be in progress or over, and its cluster gone. The format is
Google's "Trace Event Format", https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rlpipe import files
from rlpipe.errors import ConfigError
from rlpipe.metrics.spans import ITERATION, Span
from rlpipe.run import shapes
from rlpipe.run.directory import KEPT_ITERATIONS, TIMELINE, RunDirectory, read_jsonl

_ALONG_THE_DATA = ("driver", "rollout", "inference", "learner", "metric-logger")
_WAIT = "wait"


@dataclass(frozen=True)
class Timeline:
    """Work of the actors of a run in one iteration, including work of other iterations that overlaps with it.

    Attributes:
        iteration: number of the iteration, counted from 1
        began: start of the iteration, seconds since 1970 by the driver's clock
        ended: end of the iteration, likewise
        actors: names of the driver and the actors, along the way of the data
        spans: spans by actor and time, each with the iteration it belongs to. The gaps of an actor other than the
            driver are spans named ``wait`` of this iteration.
    """

    iteration: int
    began: float
    ended: float
    actors: tuple[str, ...]
    spans: tuple[tuple[Span, int], ...]

    def shares(self, actor: str) -> dict[str, float]:
        """Returns the share of the iteration that an actor spent on each kind of span, the largest first."""
        length = self.ended - self.began
        shares: dict[str, float] = {}
        for span, _ in self.spans:
            if span.actor == actor and span.name != ITERATION:
                within = min(span.ended, self.ended) - max(span.began, self.began)
                shares[span.name] = shares.get(span.name, 0.0) + max(0.0, within) / length
        return dict(sorted(shares.items(), key=lambda item: -item[1]))


def read(directory: RunDirectory, iteration: int | None = None) -> Timeline:
    """Reads the timeline of an iteration; None takes the newest.

    Raises:
        ConfigError: the run directory does not hold it.
    """
    file = directory.path / TIMELINE
    spans_of: dict[int, list[Span]] = {}
    for row in read_jsonl(file) if file.is_file() else ():
        spans_of[row["iteration"]] = [Span.from_json(entry) for entry in row["spans"]]
    if not spans_of:
        raise ConfigError(
            f"{directory.path} has no timeline: {TIMELINE} is written from the first complete iteration on."
        )
    number = max(spans_of) if iteration is None else iteration
    if number not in spans_of:
        raise ConfigError(
            f"--iteration is {number}, but the timeline of {directory.path} holds {min(spans_of)} to {max(spans_of)}: "
            f"at least the newest {KEPT_ITERATIONS} iterations are kept."
        )
    whole = next((span for span in spans_of[number] if span.name == ITERATION and span.ended > span.began), None)
    if whole is None:
        raise ConfigError(
            f"{file} does not hold start and end of iteration {number}: its span {ITERATION!r} is missing, or ends "
            "before it begins."
        )
    spans = [
        (span, of)
        for of, members in spans_of.items()
        for span in members
        if of == number or (span.began < whole.ended and span.ended > whole.began)
    ]
    actors = sorted({span.actor for span, _ in spans}, key=_order)
    ordered: list[tuple[Span, int]] = []
    for actor in actors:
        work = sorted((item for item in spans if item[0].actor == actor), key=_began)
        gaps = [] if actor == "driver" else _waits(actor, [span for span, _ in work], whole)
        waits = [(wait, number) for wait in gaps]
        ordered += sorted([*work, *waits], key=_began)
    return Timeline(number, whole.began, whole.ended, tuple(actors), tuple(ordered))


def _began(item: tuple[Span, int]) -> tuple[float, float]:
    """Returns a sort key: by start, the longer of two spans first."""
    return item[0].began, -item[0].ended


def _waits(actor: str, spans: Sequence[Span], whole: Span) -> Iterable[Span]:
    """Yields a span for each gap between the spans of an actor within an iteration."""
    ends = [whole.began, *(span.ended for span in spans)]
    begins = [*(span.began for span in spans), whole.ended]
    for ended, began in zip(itertools.accumulate(ends, max), begins, strict=True):
        if (until := min(began, whole.ended)) > ended:
            yield Span(actor, _WAIT, ended, until)


def _order(actor: str) -> tuple[int, str, int]:
    """Returns a sort key: along the way of the data, then by name and rank."""
    match = re.fullmatch(r"(.+?)(?:-(\d+))?", actor)
    assert match is not None
    kind, rank = match.groups()
    order = _ALONG_THE_DATA.index(kind) if kind in _ALONG_THE_DATA else len(_ALONG_THE_DATA)
    return order, kind, int(rank or 0)


def chrome_trace(directory: RunDirectory, timeline: Timeline) -> dict[str, Any]:
    """Builds the JSON object of a trace: a process for each host, a thread for each actor.

    Times are microseconds since the start of the iteration. Spans of other iterations have their number in their name.
    """
    cluster = files.read(directory.path / "run.json", shapes.ClusterRecord)["cluster"]
    places = cluster.get("parts", {})
    anywhere: shapes.ActorPlace = {
        "host": next((node["host"] for node in cluster.get("nodes", [])), "unknown"),
        "node": "",
    }
    hosts = {actor: places.get(actor, anywhere) for actor in timeline.actors}
    nodes = list(dict.fromkeys(host["node"] for host in hosts.values()))
    threads = {
        actor: {"pid": 1 + nodes.index(place["node"]), "tid": tid}
        for tid, (actor, place) in enumerate(hosts.items(), 1)
    }
    events: list[dict[str, Any]] = []
    for actor, thread in threads.items():
        host = {"name": f"host {hosts[actor]['host']}"}
        events += [
            {"ph": "M", "name": "process_name", **thread, "args": host},
            {"ph": "M", "name": "thread_name", **thread, "args": {"name": actor}},
            {"ph": "M", "name": "thread_sort_index", **thread, "args": {"sort_index": thread["tid"]}},
        ]
    for span, of in timeline.spans:
        name = span.name if of == timeline.iteration and span.name != ITERATION else f"{span.name} {of}"
        began, ended = (round((moment - timeline.began) * 1e6) for moment in (span.began, span.ended))
        events.append({"ph": "X", "name": name, **threads[span.actor], "ts": began, "dur": ended - began})
    about = {"run": directory.run_id, "iteration": timeline.iteration}
    about["began"] = datetime.fromtimestamp(timeline.began, UTC).isoformat()
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}
