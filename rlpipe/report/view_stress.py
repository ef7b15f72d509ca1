"""Section on what a policy survives: success against each axis, and over the two axes that matter most."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from rlpipe.report import formats
from rlpipe.report.run_content import RunContent
from rlpipe.report.web.page import Section, render
from rlpipe.run import shapes


def stress_section(content: RunContent) -> Section | None:
    """Curve of each axis, the worst first, and a map of the first two; None without a stress test."""
    if content.stress is None:
        return None
    file, record = content.stress
    arms = {arm["kind"]: arm for arm in record["arms"]}
    whose = record["policy"] or f"iteration {record['iteration']}"
    clean, together = (
        f"{formats.result(arm['value'])} {formats.bounds(arm['low'], arm['high'])}"
        for arm in (arms["clean"], arms["together"])
    )
    note = (
        f"{file}, {whose}: success {clean} without variations, {together} with all axes together, in the same episodes."
    )
    reading = (
        "Curves: success with one axis at a level and all others as they are, with its 95 % interval; dashed: "
        f"{record['bound']:.3g}, below which a level is too much; dotted: the level without variations."
    )
    html = render(
        "report/stress.html",
        note=note,
        reading=reading,
        curves=[_curve(axis, record["bound"]) for axis in record["axes"]],
        map=None if record["map"] is None else _map(record["map"]),
    )
    return Section("stress", "What it survives", html)


def _curve(axis: shapes.StressAxisRecord, bound: float) -> dict[str, Any]:
    """Places the curve of an axis in a square of side 100, success 1 at the top."""
    levels = np.array(axis["levels"])
    scaled, neutral = (np.log(levels), np.log(axis["neutral"])) if axis["is_log"] else (levels, axis["neutral"])
    width = scaled[-1] - scaled[0]
    x = [round(float(100 * (level - scaled[0]) / width), 2) for level in scaled]

    def points(values: Sequence[float]) -> list[str]:
        return [f"{place},{round(100 - 100 * value, 2)}" for place, value in zip(x, values, strict=True)]

    at_neutral = round(float(100 * (neutral - scaled[0]) / width), 2)
    pairs = zip(axis["levels"], axis["values"], strict=True)
    return {
        "name": axis["name"].replace("_", " "),
        "unit": axis["unit"],
        "line": " ".join(points(axis["values"])),
        "dots": [point.replace(",", " ") for point in points(axis["values"])],
        "band": " ".join([*points(axis["highs"]), *reversed(points(axis["lows"]))]),
        "bound": round(100 - 100 * bound, 2),
        "neutral": at_neutral if 0 <= at_neutral <= 100 else None,
        "ticks": [{"at": place, "text": f"{level:.3g}"} for place, level in zip(x, axis["levels"], strict=True)],
        "mean": formats.result(axis["mean"]),
        "summary": "; ".join(f"{level:.3g}: {formats.result(value)}" for level, value in pairs),
    }


def _map(counts: shapes.StressMapRecord) -> dict[str, Any]:
    """Rows of cells, the lowest level of the second axis at the bottom."""
    first, second = (_bins(edges) for edges in counts["edges"])
    rows = []
    for place in reversed(range(len(second))):
        cells = []
        for successes, episodes in zip(counts["successes"], counts["episodes"], strict=True):
            share = successes[place] / episodes[place] if episodes[place] else None
            cells.append(
                {
                    "percent": None if share is None else round(100 * share),
                    "text": formats.ABSENT if share is None else f"{share:.2f}",
                    "count": f"{successes[place]:,} of {episodes[place]:,}",
                }
            )
        rows.append({"name": second[place], "cells": cells})
    names = [name.replace("_", " ") for name in counts["axes"]]
    return {"first": names[0], "second": names[1], "columns": first, "rows": rows}


def _bins(edges: Sequence[float]) -> list[str]:
    """Names the levels of each bin; those of an axis in steps lie between its edges."""
    in_steps = all(edge % 1 == 0.5 for edge in edges)
    names = []
    for low, high in pairwise(edges):
        bounds = (low + 0.5, high - 0.5) if in_steps else (low, high)
        names.append(f"{bounds[0]:.3g}" if bounds[0] == bounds[1] else f"{bounds[0]:.3g} to {bounds[1]:.3g}")
    return names
