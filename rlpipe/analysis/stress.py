"""Stress tests of a policy: success in arms of an evaluation that vary differently, in the same episodes.

The clean arm varies nothing. In further ones a single axis is at one of its levels, in one all axes vary together, and
in the rest all vary together as well, but one axis is drawn anew.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from rlpipe.analysis.evaluation_report import write_record
from rlpipe.analysis.pairs import EpisodeKey
from rlpipe.config.stress import StressAxis
from rlpipe.config.variations import CHOICE, Levels, Variations
from rlpipe.functional.intervals import wilson_interval
from rlpipe.functional.paired import holm_adjusted, mcnemar_test, simultaneous_z, tango_interval
from rlpipe.functional.sensitivity import first_order_share, total_share
from rlpipe.run.replays import FOLDER as REPLAYS
from rlpipe.run.replays import ReplayFolder, ReplaySet
from rlpipe.trajectory import Scene

log = logging.getLogger("rlpipe")

Outcomes: TypeAlias = Mapping[EpisodeKey, bool]
"""Success of each episode of an arm, in one order of the episodes for all arms."""
STRESS = "stress"
"""Folder of a run directory that holds a record of each ``rlpipe stress``, and the beginning of its sets of replays."""
FEWEST_OF_A_KIND = 10
"""Successes, and failures, below which shares of variance say nothing."""
SHARE_KEYS = ("value", "low", "high")


class Kind(StrEnum):
    """Kind of an arm: which axes vary in it."""

    CLEAN = "clean"
    """Nothing."""
    AGAIN = "clean again"
    """Nothing, where an episode may depend on those before it: how much that changes."""
    ALONE = "alone"
    """One axis, at one level."""
    TOGETHER = "together"
    """All axes, whose levels each episode draws."""
    REDRAWN = "redrawn"
    """All axes, with the same levels but on one, which draws others."""


@dataclass(frozen=True)
class Arm:
    """Arm of a stress test.

    Attributes:
        kind: what varies
        variations: of its episodes
        axis: the one that it is about; empty for none
        level: of this axis in all episodes; None where it is drawn
    """

    kind: Kind
    variations: Variations
    axis: str = ""
    level: float | None = None

    @property
    def label(self) -> str:
        """Name of the arm, as in the table."""
        if self.level is not None:
            return f"{self.axis} {self.level:g}"
        return f"{self.kind} {self.axis}" if self.axis else "all together" if self.kind is Kind.TOGETHER else self.kind


def arms_of(axes: Sequence[StressAxis], *, independent: bool) -> list[Arm]:
    """Lists the arms of a stress test, the clean one first.

    Args:
        axes: to vary
        independent: True if no episode depends on those before it; else the clean arm runs twice
    """
    together = {stressed.axis.name: stressed.drawn for stressed in axes}
    alone = [
        Arm(Kind.ALONE, Variations({stressed.axis.name: Levels(CHOICE, (level,))}), stressed.axis.name, level)
        for stressed in axes
        for level in stressed.levels
        if level != stressed.axis.neutral  # which is the clean arm
    ]
    redrawn = [Arm(Kind.REDRAWN, Variations(together, frozenset({name})), name) for name in together]
    again = [] if independent else [Arm(Kind.AGAIN, Variations())]
    return [Arm(Kind.CLEAN, Variations()), *again, *alone, Arm(Kind.TOGETHER, Variations(together)), *redrawn]


@dataclass(frozen=True)
class ArmResult:
    """Result of an arm.

    Attributes:
        label: name of the arm
        kind: what varies
        axis: the one that it is about; empty for none
        level: of this axis in all episodes; None where it is drawn
        value: success rate
        low: lower 95 % bound of it (Wilson 1927)
        high: upper bound of it
        failed: task and seed of the episodes that fail here
        difference: rate less that of the clean arm in the same episodes; None for the clean arm itself, as below
        difference_low: lower bound of it (Tango 1998); those of all arms hold together with a probability of 0.95
        difference_high: upper bound of it
        p_value: of the exact McNemar test
        p_adjusted: adjusted over all arms (Holm 1979)
        broken: task and seed of the episodes that succeed in the clean arm and fail here
        mended: those that fail in the clean arm and succeed here
    """

    label: str
    kind: Kind
    axis: str
    level: float | None
    value: float
    low: float
    high: float
    failed: list[EpisodeKey]
    difference: float | None = None
    difference_low: float | None = None
    difference_high: float | None = None
    p_value: float | None = None
    p_adjusted: float | None = None
    broken: list[EpisodeKey] = field(default_factory=list)
    mended: list[EpisodeKey] = field(default_factory=list)


@dataclass(frozen=True)
class AxisResult:
    """Result of an axis.

    Attributes:
        name: of the axis
        unit: of its levels
        neutral: level at which the task is as its authors made it
        is_log: True if the scale of its levels is logarithmic
        levels: those at which it was tried alone, ascending, the neutral one where it lies between them
        values: success rate at each
        lows: lower 95 % bound of each
        highs: upper bound of each
        mean: mean of the rates: that over the range of the axis
        survives: lowest and highest level around the neutral one up to which success stays above the bound, by
            interpolation; an end of the range where it never falls below; None where it does at once
        first_order: share of the variance with all axes together that this axis explains by itself, and its bounds;
            None where there is too little variance
        total: share that would be left if all else were known, likewise
    """

    name: str
    unit: str
    neutral: float
    is_log: bool
    levels: list[float]
    values: list[float]
    lows: list[float]
    highs: list[float]
    mean: float
    survives: tuple[float, float] | None
    first_order: dict[str, float] | None = None
    total: dict[str, float] | None = None


@dataclass(frozen=True)
class StressMap:
    """Success with all axes together, by the levels of two of them.

    Attributes:
        axes: names of the two
        edges: bounds of the bins of each
        successes: by bin of the first, and of the second
        episodes: likewise
    """

    axes: tuple[str, str]
    edges: tuple[list[float], list[float]]
    successes: list[list[int]]
    episodes: list[list[int]]


@dataclass(frozen=True)
class StressReport:
    """Result of a stress test.

    Attributes:
        bound: success rate below which a level is too much
        arms: all but those with an axis drawn anew, the clean one first
        axes: those with the lowest success over their range first
        map: of the first two axes; None if there is but one
        protocol: of the clean arm
        policy: name of a baseline or a policy from elsewhere; None for a checkpoint
        checkpoint: path of the checkpoint; None for other policies
        iteration: iteration after which it was written; 0 for other policies
        versions: versions of the packages that the evaluation used
        command: command that makes it again
        notes: sentences on what cannot be told
        record: file that holds all this but the next; None if none was written
        replay_set: name of the replays of an episode that a variation breaks; None without one
    """

    bound: float
    arms: list[ArmResult]
    axes: list[AxisResult]
    map: StressMap | None
    protocol: dict[str, Any]
    policy: str | None
    checkpoint: str | None
    iteration: int
    versions: dict[str, str]
    command: str = ""
    notes: list[str] = field(default_factory=list)
    record: str | None = None
    replay_set: str | None = None

    @property
    def together(self) -> ArmResult:
        """The arm with all axes together."""
        return next(arm for arm in self.arms if arm.kind is Kind.TOGETHER)

    def as_json(self) -> dict[str, Any]:
        """Returns what ``rlpipe stress --json`` prints, and the record holds."""
        return {name: value for name, value in asdict(self).items() if name not in ("record", "replay_set")}


def arm_results(arms: Sequence[Arm], outcomes: Sequence[Outcomes]) -> list[ArmResult]:
    """Compares every arm with the first, the clean one, in the same episodes."""
    clean, compared = outcomes[0], len(arms) - 1
    counts = [
        ([key for key in clean if clean[key] > other[key]], [key for key in clean if clean[key] < other[key]])
        for other in outcomes
    ]
    tests = [mcnemar_test(len(mended), len(broken)) for broken, mended in counts[1:]]
    adjusted, z = holm_adjusted(tests), simultaneous_z(compared)
    results = [
        ArmResult(arm.label, arm.kind, arm.axis, arm.level, *_rate(other), [key for key in other if not other[key]])
        for arm, other in zip(arms, outcomes, strict=True)
    ]
    for index, (broken, mended) in enumerate(counts[1:], 1):
        low, high = tango_interval(len(clean), len(mended), len(broken), z=z)
        results[index] = replace(
            results[index],
            difference=(len(mended) - len(broken)) / len(clean),
            difference_low=low,
            difference_high=high,
            p_value=tests[index - 1],
            p_adjusted=adjusted[index - 1],
            broken=broken,
            mended=mended,
        )
    return results


def axis_results(
    axes: Sequence[StressAxis], arms: Sequence[Arm], outcomes: Sequence[Outcomes], bound: float
) -> list[AxisResult]:
    """Summarises each axis; those with the lowest success over their range come first."""
    by_arm = {(arm.kind, arm.axis, arm.level): outcome for arm, outcome in zip(arms, outcomes, strict=True)}
    clean, together = by_arm[Kind.CLEAN, "", None], by_arm[Kind.TOGETHER, "", None]
    results = []
    for stressed in axes:
        name, neutral = stressed.axis.name, stressed.axis.neutral
        inside = {neutral} if stressed.low <= neutral <= stressed.high else set()
        levels = sorted({*stressed.levels, *inside})
        rates = [_rate(clean if level == neutral else by_arm[Kind.ALONE, name, level]) for level in levels]
        values, lows, highs = (list(column) for column in zip(*rates, strict=True))
        first_order, total = _shares(stressed, together, by_arm[Kind.REDRAWN, name, None])
        results.append(
            AxisResult(
                name=name,
                unit=stressed.axis.unit,
                neutral=neutral,
                is_log=stressed.is_log,
                levels=levels,
                values=values,
                lows=lows,
                highs=highs,
                mean=float(np.mean(values)),
                survives=survived(levels, values, neutral, bound, log=stressed.is_log),
                first_order=first_order,
                total=total,
            )
        )
    return sorted(results, key=lambda result: result.mean)


def _rate(outcomes: Outcomes) -> tuple[float, float, float]:
    successes, episodes = sum(outcomes.values()), len(outcomes)
    return successes / episodes, *wilson_interval(successes, episodes)


def _shares(
    stressed: StressAxis, together: Outcomes, redrawn: Outcomes
) -> tuple[dict[str, float] | None, dict[str, float] | None]:
    """Returns the first-order and the total share of an axis; None for each that too little variance leaves open."""
    success, again = np.array([*together.values()]), np.array([*redrawn.values()])
    if min(success.sum(), (~success).sum()) < FEWEST_OF_A_KIND:
        return None, None
    variations = Variations({stressed.axis.name: stressed.drawn})
    levels = [variations.draw(seed)[stressed.axis.name] for _, seed in together]
    first_order = first_order_share(_binned(levels, stressed.edges), success)
    return tuple(  # type: ignore[return-value] # of two
        dict(zip(SHARE_KEYS, share, strict=True)) for share in (first_order, total_share(success, again))
    )


def _binned(levels: Sequence[float], edges: Sequence[float]) -> np.ndarray:
    """[n] numbers of the bins in which levels lie."""
    return np.clip(np.searchsorted(edges, levels, side="right") - 1, 0, len(edges) - 2)


def survived(
    levels: Sequence[float], values: Sequence[float], neutral: float, bound: float, *, log: bool
) -> tuple[float, float] | None:
    """Returns the levels below and above the neutral one, or the one closest to it, up to which success stays at or
    above a bound, by linear interpolation between neighbours, on a logarithmic scale where the axis has one.

    Args:
        levels: ascending.
        values: success rate at each.
        neutral: level at which the task is as its authors made it.
        bound: success rate.
        log: True for a logarithmic scale.
    Returns:
        An end of the levels where success never falls below; None where it is below at once.
    """
    start = min(range(len(levels)), key=lambda index: abs(levels[index] - neutral))
    if values[start] < bound:
        return None

    def last(indices: Sequence[int]) -> float:
        for inner, outer in pairwise(indices):
            if values[outer] < bound:
                share = (values[inner] - bound) / (values[inner] - values[outer])
                near, far = levels[inner], levels[outer]
                return float(near * (far / near) ** share if log else near + share * (far - near))
        return levels[indices[-1]]

    return last(range(start, -1, -1)), last(range(start, len(levels)))


def map_of(
    axes: Sequence[StressAxis], names: Sequence[str], arms: Sequence[Arm], outcomes: Sequence[Outcomes]
) -> StressMap | None:
    """Counts success with all axes together by the levels of the first two that are named; None if there is but one.

    Episodes with the one or the other drawn anew count as well: they have the same starts, and other levels.
    """
    if len(names) < 2:
        return None
    first, second = (next(stressed for stressed in axes if stressed.axis.name == name) for name in names[:2])
    shape = len(first.edges) - 1, len(second.edges) - 1
    successes, episodes = np.zeros(shape, dtype=int), np.zeros(shape, dtype=int)
    for arm, outcome in zip(arms, outcomes, strict=True):
        if arm.kind is Kind.TOGETHER or (arm.kind is Kind.REDRAWN and arm.axis in names[:2]):
            drawn = [arm.variations.draw(seed) for _, seed in outcome]
            places = tuple(
                _binned([levels[stressed.axis.name] for levels in drawn], stressed.edges)
                for stressed in (first, second)
            )
            np.add.at(episodes, places, 1)
            np.add.at(successes, places, np.array([*outcome.values()], dtype=int))
    return StressMap((names[0], names[1]), (first.edges, second.edges), successes.tolist(), episodes.tolist())


def telling_flip(arms: Sequence[ArmResult], axes: Sequence[AxisResult]) -> tuple[ArmResult, list[EpisodeKey]] | None:
    """Returns the arm of the first axis that breaks most episodes, and these; None where none breaks any."""
    for axis in axes:
        alone = [arm for arm in arms if arm.kind is Kind.ALONE and arm.axis == axis.name and arm.broken]
        if alone:
            worst = max(alone, key=lambda arm: len(arm.broken))
            return worst, worst.broken
    return None


def recorded(
    report: StressReport, folder: Path | None, replays: ReplaySet | None, scenes: Mapping[str, Scene]
) -> StressReport:
    """Writes the record into a folder of records, if there is one, and the replays where ``rlpipe replay`` finds them;
    returns the report with their places.

    Replays of a run lie in its folder ``replays``, others in ``replays`` beside their records.
    """
    if folder is None:
        return report
    try:
        record = write_record(folder.resolve(), report.as_json())
        report = replace(report, record=str(record))
        if replays is not None:
            name, beside = f"{STRESS}-{record.stem}", (folder.parent / "run.json").is_file()
            ReplayFolder((folder.parent if beside else folder).resolve() / REPLAYS).write(
                name, replace(replays, source=f"stress {record.stem}"), scenes
            )
            report = replace(report, replay_set=name)
    except OSError as error:
        log.warning("The stress test could not be recorded in %s: %s", folder, error)
    return report
