"""Results with their intervals as lines on one scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlpipe.report.formats import bounds, result


@dataclass(frozen=True)
class Line:
    """One result.

    Attributes:
        name: of what it is the result
        value: the result
        low: lower bound; None without one
        high: upper bound
        colour: variable of the stylesheet
        detail: what stands behind the numbers, such as the number of episodes
        minor: True for a line that explains another one, such as a seed of a group
    """

    name: str
    value: float
    low: float | None
    high: float | None
    colour: str = "series-1"
    detail: str = ""
    minor: bool = False


def forest(lines: Sequence[Line], *, is_share: bool, signed: bool = False) -> dict[str, Any]:
    """Places lines on a scale, for the template: 0 to 1 for a share, -1 to 1 for differences of shares, else all."""
    numbers = [number for line in lines for number in (line.value, line.low, line.high) if number is not None]
    low, high = min(numbers), max(numbers)
    if signed:
        most = 1.0 if is_share else max(abs(low), abs(high), 1e-12)
        low, high = -most, most
    elif is_share:
        low, high = 0.0, 1.0
    elif low == high:
        low, high = low - 1.0, high + 1.0

    def at(value: float) -> float:
        return round(100 * (value - low) / (high - low), 2)

    rows = []
    for line in lines:
        left: float | None = None
        width: float = 0
        if line.low is not None and line.high is not None:
            left, width = at(line.low), round(at(line.high) - at(line.low), 2)
        interval = bounds(line.low, line.high, signed=signed)
        text = f"{result(line.value, signed=signed)} {interval} {line.detail}".rstrip()
        rows.append(
            {
                "name": line.name,
                "at": at(line.value),
                "left": left,
                "width": width,
                "zero": 50.0 if signed else None,
                "colour": line.colour,
                "text": text,
                "minor": line.minor,
            }
        )
    return {
        "rows": rows,
        "low": f"{low:g}" if is_share else result(low),
        "high": f"{high:g}" if is_share else result(high),
    }
