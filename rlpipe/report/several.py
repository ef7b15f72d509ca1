"""Content of a report on several runs: their groups, and what ``rlpipe compare`` computes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlpipe.analysis.comparison import Comparison, compare
from rlpipe.analysis.evaluated_run import kind_of
from rlpipe.errors import ConfigError
from rlpipe.report import formats
from rlpipe.report.formats import setting
from rlpipe.report.run_content import RunContent


@dataclass(frozen=True)
class Together:
    """Several runs side by side.

    Attributes:
        groups: names of the groups
        group_of: group of each run
        comparison: comparison of the runs; None where they cannot be compared
        reason: why they cannot be compared; empty if they can
        differing: configuration keys in which runs differ: value in each run, a dash where it has no such key
    """

    groups: list[str]
    group_of: list[int]
    comparison: Comparison | None
    reason: str
    differing: dict[str, list[str]]


def together(contents: Sequence[RunContent]) -> Together:
    """Groups runs and compares them, as far as they can be compared."""
    comparison, reason = None, ""
    if not all(content.is_ours for content in contents):
        reason = "Only runs of rlpipe can be compared: another system's log holds no episodes."
    else:
        try:
            comparison = compare([content.path for content in contents], anyway=True)
        except ConfigError as error:
            reason = str(error)
    if comparison is not None:
        groups = [group.label for group in comparison.groups]
        places = {run.path: n for n, group in enumerate(comparison.groups) for run in group.runs}
        group_of = [places[content.path] for content in contents]
    else:
        kinds = [_kind(content) for content in contents]
        firsts = [n for n, kind in enumerate(kinds) if kinds.index(kind) == n]
        groups = _named([contents[first] for first in firsts])
        group_of = [firsts.index(kinds.index(kind)) for kind in kinds]
    return Together(groups, group_of, comparison, reason, _differing(contents))


def _kind(content: RunContent) -> Any:
    """Says what a run has in common with others of its experiment; a log without a configuration is like no other."""
    if content.settings is None:
        return content.path
    return kind_of(content.settings, content.record["protocol"])


def _named(firsts: Sequence[RunContent]) -> list[str]:
    """Names groups by their first runs: as the experiment is called, and where several are, with its folder or run."""
    names = [str(content.record.get("experiment", content.label)) for content in firsts]
    return [
        name if names.count(name) == 1 else f"{name} ({content.path.parent.name}/{content.path.name})"
        for name, content in zip(names, firsts, strict=True)
    ]


def _differing(contents: Sequence[RunContent]) -> dict[str, list[str]]:
    configs = [content.settings for content in contents if content.settings is not None]
    if len(configs) < len(contents):
        return {}
    keys = dict.fromkeys(key for config in configs for key in config)
    return {
        key: [setting(config[key]) if key in config else formats.ABSENT for config in configs]
        for key in keys
        if any(config.get(key) != configs[0].get(key) for config in configs)
    }
