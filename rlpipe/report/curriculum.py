"""Progress of a curriculum, read from a run directory: how far each start has moved back, and what it is worth.

Everything follows from the metrics and the ledger, so the run may be in progress or over, and its demonstrations gone.
The start of a demonstration is the earliest step of it in which an episode has begun, and ended, so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from rlpipe.config.tree import leaves
from rlpipe.errors import ConfigError
from rlpipe.functional.intervals import wilson_interval
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.declaration import Metric
from rlpipe.run.directory import RunDirectory, read_jsonl
from rlpipe.trajectory import Episode

LAST = 20
"""Episodes of a demonstration whose success rate is shown as the present one."""
STUCK = 50
"""Episodes that began in one start of a demonstration, without moving it, from which on it counts as stuck."""
LAST_LEFT = 100
"""Episodes with about as many steps left of their demonstrations whose success rate is shown."""
LAST_WHOLE = 400
"""Episodes from beginnings whose lengths are shown."""
WASTEFUL = 2.0
"""Multiple of the steps of a slow success beyond which failures waste time."""
POINTS = 24
"""Points of a curve of success, unless that left fewer than ``LEAST`` episodes for each."""
LEAST = 10


@dataclass(frozen=True)
class SuccessRate:
    """Success of some consecutive episodes.

    Attributes:
        step: environment steps of the run, mean over the episodes.
        value: share of the episodes that succeeded at least once.
        low: lower 95 % bound (Wilson).
        high: upper 95 % bound.
        episodes: number of episodes.
    """

    step: float
    value: float
    low: float
    high: float
    episodes: int


@dataclass(frozen=True)
class DemonstrationProgress:
    """Progress in one demonstration.

    Attributes:
        number: of the demonstration in the run, from 0.
        seed: of its reset; None where a simulator drew its own.
        length: its steps.
        steps: environment steps of the run after which an episode began earlier in it than any before.
        starts: the step of the demonstration in which that episode began.
        episodes: number of episodes that began in its course.
        last: success of the last ``LAST`` of them.
        at_start: success of those that began in the present start.
        solved_at: environment steps after which its beginning had been mastered; None if it has not been.
    """

    number: int
    seed: int | None
    length: int
    steps: tuple[int, ...]
    starts: tuple[int, ...]
    episodes: int
    last: SuccessRate
    at_start: SuccessRate
    solved_at: int | None

    @property
    def start(self) -> int:
        """Present start."""
        return self.starts[-1]

    @property
    def stuck(self) -> bool:
        """True if many episodes began in the present start, and it has not moved."""
        return self.solved_at is None and self.at_start.episodes >= STUCK


@dataclass(frozen=True)
class SuccessWithin:
    """Success of the last ``LAST_LEFT`` episodes that began some steps before the end of a demonstration.

    Attributes:
        least: fewest steps that were left.
        most: most steps that were left.
        rate: their success.
    """

    least: int
    most: int
    rate: SuccessRate


@dataclass(frozen=True)
class Lengths:
    """Lengths of the last ``LAST_WHOLE`` episodes that began where the task begins or a demonstration does.

    Attributes:
        success: steps until success, median over the successful ones.
        slow_success: the same, 90th percentile.
        failure: steps of the others, median.
    """

    success: float
    slow_success: float
    failure: float

    @property
    def wasteful(self) -> bool:
        """True if failures go on for far longer than nearly every success takes."""
        return self.failure > WASTEFUL * self.slow_success


@dataclass(frozen=True)
class CurriculumProgress:
    """Progress of a run's curriculum.

    Attributes:
        run: id of the run.
        name: ``curriculum.name``.
        total_steps: environment steps so far.
        demonstrations: those in whose course episodes began; none of a curriculum over seeds.
        within: success by the steps that were left, of 1 to 8, 9 to 16, 17 to 32 and so on.
        lengths: how long whole episodes take; None without a few of each kind.
        mean_start: (environment steps, mean start as a share of the demonstrations).
        chosen_starts: success of consecutive episodes whose start was chosen.
        own_starts: success of consecutive episodes that began as the task draws them.
        evaluations: (environment steps, success, lower and upper 95 % bound) of each.
        seeds: (environment steps, share of the seeds mastered, share of those without any success).
        blend_demonstrations: (environment steps, share of the way to other demonstrations' beginnings) of a curriculum
            that spreads starts among them.
        blend: (environment steps, share of the way to the task's own starts) of a curriculum that spreads starts.
    """

    run: str
    name: str
    total_steps: int
    demonstrations: tuple[DemonstrationProgress, ...]
    within: tuple[SuccessWithin, ...]
    lengths: Lengths | None
    mean_start: list[tuple[float, ...]] = field(repr=False)
    chosen_starts: tuple[SuccessRate, ...] = field(repr=False)
    own_starts: tuple[SuccessRate, ...] = field(repr=False)
    evaluations: list[tuple[float, ...]] = field(repr=False)
    seeds: list[tuple[float, ...]] = field(repr=False)
    blend_demonstrations: list[tuple[float, ...]] = field(repr=False)
    blend: list[tuple[float, ...]] = field(repr=False)

    def as_json(self) -> dict[str, Any]:
        """Returns everything; successes are called ``chosen`` and ``own``."""
        return {name.removesuffix("_starts"): value for name, value in asdict(self).items()}


def read_progress(directory: RunDirectory) -> CurriculumProgress:
    """Reads the progress of a run's curriculum."""
    config = dict(leaves(directory.read_config()))
    name = config.get("curriculum.name", "none")
    if name == "none":
        raise ConfigError(f"{directory.path} was trained without a curriculum: its curriculum.name is none.")
    rows = list(read_jsonl(directory.path / "metrics.jsonl"))
    after = {row["iteration"]: row["total_timesteps"] for row in rows}
    episodes = _ended(directory, after)
    chosen_starts = [entry for entry in episodes if entry[1].chosen]
    if not chosen_starts and any(episode.task is not None for _, episode in episodes):
        raise ConfigError(
            f"{directory.path} was trained with curriculum.name={name}, which chooses tasks and no starts: see "
            "env/curriculum/tasks/ and env/tasks/ in its metrics."
        )
    if not chosen_starts:
        raise ConfigError(
            f"{directory.path} has a curriculum ({name}), but no episode whose start it chose has ended yet: wait for "
            "the next iterations."
        )
    in_course = [entry for entry in chosen_starts if entry[1].demonstration is not None]
    by_demonstration: dict[int, list[tuple[int, Episode]]] = {}
    for step, episode in in_course:
        if episode.demonstration is not None and episode.demonstration_length is not None:  # else beyond its course
            by_demonstration.setdefault(episode.demonstration, []).append((step, episode))
    if in_course and not by_demonstration:
        raise ConfigError(
            f"{directory.path / 'episodes.jsonl'} does not say how long the demonstrations are (demonstration_length), "
            "because an earlier version wrote it: train again."
        )
    successes = int(config.get("curriculum.successes", 1))
    return CurriculumProgress(
        run=directory.run_id,
        name=name,
        total_steps=max(after.values()),
        demonstrations=tuple(_demonstration(members, successes) for _, members in sorted(by_demonstration.items())),
        within=_within([entry for entry in in_course if entry[1].demonstration_length is not None]),
        lengths=_lengths([episode for _, episode in episodes if not episode.demonstration_step]),
        mean_start=_series(rows, m.CURRICULUM_START),
        chosen_starts=_curve(chosen_starts),
        own_starts=_curve([entry for entry in episodes if not entry[1].chosen]),
        evaluations=_series(rows, m.EVAL_SUCCESS_ONCE, m.EVAL_CI_LOW, m.EVAL_CI_HIGH),
        seeds=_series(rows, m.CURRICULUM_SEEDS_MASTERED, m.CURRICULUM_SEEDS_UNSOLVED),
        blend_demonstrations=_series(rows, m.CURRICULUM_BLEND_DEMONSTRATIONS),
        blend=_series(rows, m.CURRICULUM_BLEND),
    )


def _ended(directory: RunDirectory, after: dict[int, int]) -> list[tuple[int, Episode]]:
    """Returns the episodes in the order in which the curriculum learnt of them, each with the steps of the run."""
    file = directory.path / "episodes.jsonl"
    episodes = [
        (row["iteration"], Episode.from_row(row))
        for row in (read_jsonl(file) if file.is_file() else ())
        if row["iteration"] in after  # its row may be about to be written
    ]
    episodes.sort(key=lambda entry: (entry[0], entry[1].step, entry[1].slot))
    return [(after[iteration], episode) for iteration, episode in episodes]


def _demonstration(episodes: Sequence[tuple[int, Episode]], successes: int) -> DemonstrationProgress:
    """Returns the progress in a demonstration, from the episodes in its course and the environment steps at their ends.

    ``successes`` in a row, from the beginning, master it.
    """
    steps: list[int] = []
    starts: list[int] = []
    in_a_row, solved_at = 0, None
    for step, episode in episodes:
        began = episode.demonstration_step or 0
        if not starts or began < starts[-1]:
            steps.append(step)
            starts.append(began)
        if began == 0:
            in_a_row = in_a_row + 1 if episode.success_once else 0
            solved_at = step if solved_at is None and in_a_row >= successes else solved_at
    _, first = episodes[0]
    assert first.demonstration is not None
    assert first.demonstration_length is not None
    at_start = [entry for entry in episodes if (entry[1].demonstration_step or 0) == starts[-1]]
    return DemonstrationProgress(
        first.demonstration, first.seed, first.demonstration_length, tuple(steps), tuple(starts), len(episodes),
        _rate(episodes[-LAST:]), _rate(at_start), solved_at,
    )  # fmt: skip


def _within(episodes: Sequence[tuple[int, Episode]]) -> tuple[SuccessWithin, ...]:
    """Returns the success by the steps that were left, from the episodes that began in the course of demonstrations."""
    by_power: dict[int, list[tuple[int, Episode]]] = {}
    for entry in episodes:
        left = (entry[1].demonstration_length or 0) - (entry[1].demonstration_step or 0)
        by_power.setdefault(max(3, (left - 1).bit_length()), []).append(entry)  # 8 is 2^3
    return tuple(
        SuccessWithin(2 ** (power - 1) + 1 if power > 3 else 1, 2**power, _rate(by_power[power][-LAST_LEFT:]))
        for power in sorted(by_power)
    )


def _lengths(episodes: Sequence[Episode]) -> Lengths | None:
    """Returns the lengths of the last of some episodes."""
    last = episodes[-LAST_WHOLE:]
    success = [episode.first_success for episode in last if episode.success_once and episode.first_success is not None]
    failure = [episode.length for episode in last if episode.success_once is False]
    if min(len(success), len(failure)) < LEAST:
        return None
    return Lengths(float(np.median(success)), float(np.quantile(success, 0.9)), float(np.median(failure)))


def _curve(episodes: Sequence[tuple[int, Episode]]) -> tuple[SuccessRate, ...]:
    """Returns the success of groups of consecutive episodes of about equal size."""
    groups = max(1, min(POINTS, len(episodes) // LEAST))
    cuts = [len(episodes) * group // groups for group in range(groups + 1)]
    return tuple(_rate(episodes[cuts[n] : cuts[n + 1]]) for n in range(groups)) if episodes else ()


def _rate(episodes: Sequence[tuple[int, Episode]]) -> SuccessRate:
    succeeded = sum(bool(episode.success_once) for _, episode in episodes)
    step = sum(step for step, _ in episodes) / len(episodes)
    return SuccessRate(step, succeeded / len(episodes), *wilson_interval(succeeded, len(episodes)), len(episodes))


def _series(rows: Sequence[Any], *metrics: Metric) -> list[tuple[float, ...]]:
    """Returns the environment steps and values of metrics, where all of them have one."""
    return [
        (row["total_timesteps"], *(row["metrics"][metric.name] for metric in metrics))
        for row in rows
        if all(metric.name in row["metrics"] for metric in metrics)
    ]
