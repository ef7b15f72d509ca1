"""Declares a metric of the catalogue, with its aliases from ``aliases.csv`` and its warning signs from ``signs.toml``.

The two files hold what is long and changes by itself, so that a declaration shows a whole metric in a few lines.
"""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import rlpipe.metrics.declaration as declaration
from rlpipe.metrics.declaration import Metric, Name, Sign
from rlpipe.metrics.reductions import Reduction

ALIASES = Path(__file__).with_name("aliases.csv")
SIGNS = Path(__file__).with_name("signs.toml")


def read_aliases() -> dict[str, tuple[Name, ...]]:
    """Reads the names of every metric in other systems."""
    names: dict[str, tuple[Name, ...]] = {}
    with ALIASES.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            metric, secondary = row.pop("metric"), row.pop("secondary") == "yes"
            names[metric] = (*names.get(metric, ()), Name(**row, secondary=secondary))
    return names


def read_signs() -> dict[str, dict[str, Sign]]:
    """Reads the warning signs of every metric, by their keys."""
    tables = tomllib.loads(SIGNS.read_text(encoding="utf-8"))
    return {metric: {key: Sign(**sign) for key, sign in signs.items()} for metric, signs in tables.items()}


_ALIASES, _SIGNS = read_aliases(), read_signs()


def _described(name: str, description: dict[str, Any]) -> dict[str, Any]:
    """Adds what the two files say of a metric; a declaration may take over the signs of another metric."""
    return {"names": _ALIASES.get(name, ()), "signs": _SIGNS.get(name, {}), **description}


def observed(name: str, reduction: type[Reduction], unit: str, **description: Any) -> Metric:
    """Declares a metric that code observes."""
    return declaration.observed(name, reduction, unit=unit, **_described(name, description))


def reading(name: str, of: Metric, reads: str, **description: Any) -> Metric:
    """Declares another number of the same observations."""
    return declaration.reading(name, of, reads, **_described(name, description))


def derived(
    name: str, inputs: tuple[Metric, ...], compute: Callable[..., float | None], unit: str, **description: Any
) -> Metric:
    """Declares a metric that is computed from the merged states of others."""
    return declaration.derived(name, inputs, compute, unit=unit, **_described(name, description))
