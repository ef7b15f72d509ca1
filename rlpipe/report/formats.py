"""How numbers, times and values are written in a report: always rounded from the full number, once."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from typing import Any

ABSENT = "\N{EN DASH}"
"""Placeholder for a missing value."""
LONGEST = 2000
"""Characters of a value that are shown."""


def result(value: float | None, *, signed: bool = False) -> str:
    """Writes a rate, a return or a length as ``rlpipe compare`` does."""
    if value is None:
        return ABSENT
    plus = "+" if signed and value > 0 else ""
    return f"{plus}{value:.3f}" if abs(value) < 10 else f"{plus}{value:,.1f}"


def bounds(low: float | None, high: float | None, *, signed: bool = False, absent: str = "") -> str:
    """Writes an interval in brackets."""
    if low is None or high is None:
        return absent
    return f"[{result(low, signed=signed)}, {result(high, signed=signed)}]"


def whole(value: float | None) -> str:
    """Writes a number without its decimals."""
    return ABSENT if value is None else f"{value:,.0f}"


def digits(value: float | None) -> str:
    """Writes a number with four significant digits, whole numbers in full."""
    if value is None:
        return ABSENT
    if float(value).is_integer() and abs(value) < 1e12:
        return f"{value:,.0f}"
    if 1e-3 <= abs(value) < 1e6:
        places = max(0, 3 - math.floor(math.log10(abs(value))))
        return f"{value:,.{places}f}"
    return f"{value:.4g}"


def significant(value: float) -> float:
    """Rounds a number to the six significant digits with which a page holds it."""
    return float(f"{value:.6g}")


def share(value: float) -> str:
    """Writes a share as a percentage."""
    return f"{100 * value:.1f} %" if value < 0.0995 else f"{100 * value:.0f} %"


def duration(seconds: float | None) -> str:
    """Writes a duration: ``12 s``, ``3:04 min`` or ``2:03:04 h``."""
    if seconds is None:
        return ABSENT
    if seconds < 99.5:
        return f"{seconds:.3g} s"
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02d}:{whole % 60:02d} h" if hours else f"{minutes}:{whole % 60:02d} min"


def moment(when: float | str) -> str:
    """Writes a time, given as seconds since 1970 or in ISO 8601, in UTC."""
    time = datetime.fromisoformat(when) if isinstance(when, str) else datetime.fromtimestamp(when, UTC)
    return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def setting(value: Any) -> str:
    """Writes a value of a configuration on one line, cut if it is very long."""
    text = value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} ... ({len(text):,} characters)"
