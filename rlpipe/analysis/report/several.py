"""Content of a report on several runs: their groups, and what ``rlpipe compare`` computes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlpipe.analysis.comparison import Comparison, compare
from rlpipe.analysis.report import formats
from rlpipe.analysis.report.formats import setting
from rlpipe.analysis.report.run_content import RunContent
from rlpipe.errors import ConfigError


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
        names = [str(content.record.get("experiment", content.label)) for content in contents]
        groups = list(dict.fromkeys(names))
        group_of = [groups.index(name) for name in names]
    return Together(groups, group_of, comparison, reason, _differing(contents))


def _differing(contents: Sequence[RunContent]) -> dict[str, list[str]]:
    configs = [content.settings.values for content in contents if content.settings is not None]
    if len(configs) < len(contents):
        return {}
    keys = dict.fromkeys(key for config in configs for key in config)
    return {
        key: [setting(config[key]) if key in config else formats.ABSENT for config in configs]
        for key in keys
        if any(config.get(key) != configs[0].get(key) for config in configs)
    }
