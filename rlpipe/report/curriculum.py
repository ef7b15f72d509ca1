"""Progress of a curriculum, read from a run directory: how far each start has moved back, and what it is worth; or how
far each axis of variations has widened.

Everything follows from the metrics and the ledger, so the run may be in progress or over, and its demonstrations gone.
The start of a demonstration is the earliest step of it in which an episode has begun, and ended, so far.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import accumulate, groupby, pairwise
from operator import itemgetter, mul
from typing import Any

import numpy as np

from rlpipe.config.tree import leaves
from rlpipe.config.variations import LOG_UNIFORM, Variations
from rlpipe.errors import ConfigError
from rlpipe.functional.intervals import wilson_interval
from rlpipe.metrics import catalogue as m
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
class EdgeProgress:
    """Progress of an edge of an axis.

    Attributes:
        steps: environment steps of the run after which its level was another than before.
        levels: these levels.
        episodes: number of episodes at it.
        last: success of the last ``LAST`` of them; None if there was none.
    """

    steps: tuple[int, ...]
    levels: tuple[float, ...]
    episodes: int
    last: SuccessRate | None


@dataclass(frozen=True)
class AxisProgress:
    """Progress of the range of an axis of variations.

    Attributes:
        name: of the axis.
        widest: lowest and highest level of ``env.train.variations``.
        logarithmic: True if its levels spread on a logarithmic scale.
        low: progress of its low edge; None if the axis begins at its lowest level.
        high: likewise.
    """

    name: str
    widest: tuple[float, float]
    logarithmic: bool
    low: EdgeProgress | None
    high: EdgeProgress | None

    @property
    def range(self) -> tuple[float, float]:
        """Present lowest and highest level."""
        low, high = self.widest
        return self.low.levels[-1] if self.low else low, self.high.levels[-1] if self.high else high

    def place(self, level: float) -> float:
        """Returns where a level lies in the widest range, from 0 to 1."""
        low, high, at = np.log([*self.widest, level]) if self.logarithmic else (*self.widest, level)
        return float(np.clip((at - low) / (high - low), 0.0, 1.0))  # a resumed run may have had others


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
        width: (environment steps, share of the widest ranges, entropy in nats per axis) of a curriculum that widens
            ranges; own starts are then those at the widest ranges.
        axes: progress of each axis that it widens.
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
    width: list[tuple[float, ...]] = field(repr=False)
    axes: tuple[AxisProgress, ...] = ()

    @property
    def populations(self) -> tuple[str, str]:
        """Names of the episodes that the curriculum chose, and of those that the task began."""
        return ("present ranges", "widest ranges") if self.axes else ("chosen starts", "own starts")

    def as_json(self) -> dict[str, Any]:
        """Returns everything; successes are called ``chosen`` and ``own``."""
        return {name.removesuffix("_starts"): value for name, value in asdict(self).items()}


_SERIES = {
    "mean_start": (m.CURRICULUM_START,),
    "evaluations": (m.EVAL_SUCCESS_ONCE, m.EVAL_CI_LOW, m.EVAL_CI_HIGH),
    "seeds": (m.CURRICULUM_SEEDS_MASTERED, m.CURRICULUM_SEEDS_UNSOLVED),
    "blend_demonstrations": (m.CURRICULUM_BLEND_DEMONSTRATIONS,),
    "blend": (m.CURRICULUM_BLEND,),
    "width": (m.CURRICULUM_WIDTH, m.CURRICULUM_RANGE_ENTROPY),
}
"""Metrics of the fields of ``CurriculumProgress`` that hold values over the run."""


def read_progress(directory: RunDirectory) -> CurriculumProgress:
    """Reads the progress of a run's curriculum, episode by episode: of each, a byte is kept."""
    config = dict(leaves(directory.read_config()))
    name = config.get("curriculum.name", "none")
    if name == "none":
        raise ConfigError(f"{directory.path} was trained without a curriculum: its curriculum.name is none.")
    steps_after, series, levels = _read_rows(directory)
    course = _EpisodeCourse(int(config.get("curriculum.successes", 1)))
    for steps, episode in _ended(directory, steps_after):
        course.add(steps, episode)
    if not course.chosen_starts and course.has_tasks:
        raise ConfigError(
            f"{directory.path} was trained with curriculum.name={name}, which chooses tasks and no starts: see "
            "env/curriculum/tasks/ and env/tasks/ in its metrics."
        )
    if not course.chosen_starts:
        raise ConfigError(
            f"{directory.path} has a curriculum ({name}), but none of its episodes has ended yet: wait for the next "
            "iterations."
        )
    if course.lacks_length and not course.demonstrations:
        raise ConfigError(
            f"{directory.path / 'episodes.jsonl'} does not say how long the demonstrations are (demonstration_length), "
            "because an earlier version wrote it: train again."
        )
    return CurriculumProgress(
        run=directory.run_id,
        name=name,
        total_steps=max(steps_after.values()),
        demonstrations=tuple(members.progress() for _, members in sorted(course.demonstrations.items())),
        within=course.within(),
        lengths=_lengths(course.whole),
        chosen_starts=course.chosen_starts.rates(),
        own_starts=course.own_starts.rates(),
        axes=_axes(directory, course, levels),
        **series,
    )


def _axes(
    directory: RunDirectory, course: _EpisodeCourse, levels: Mapping[str, list[tuple[int, float]]]
) -> tuple[AxisProgress, ...]:
    """Returns the progress of the axes that have an edge."""

    def edge(name: str) -> EdgeProgress | None:
        if name not in levels:
            return None
        steps, reached = zip(*levels[name], strict=True)
        episodes, last = course.edges.get(name, (0, ()))
        return EdgeProgress(steps, reached, episodes, _rate(last) if last else None)

    if not levels:
        return ()
    widest = Variations.read(directory.read_config()["env"]["train"]["variations"], "env.train.variations")
    axes = [
        AxisProgress(
            name, (min(of.values), max(of.values)), of.kind == LOG_UNIFORM, edge(f"{name}_low"), edge(f"{name}_high")
        )
        for name, of in widest.levels.items()
        if of.varies
    ]
    return tuple(axis for axis in axes if axis.low or axis.high)


def _read_rows(
    directory: RunDirectory,
) -> tuple[dict[int, int], dict[str, list[tuple[float, ...]]], dict[str, list[tuple[int, float]]]]:
    """Returns the environment steps after each iteration; by field those steps with the values of its metrics, where
    all of them have one; and by edge those after which it had another level, with the level."""
    steps_after: dict[int, int] = {}
    levels: dict[str, list[tuple[int, float]]] = {}
    series: dict[str, list[tuple[float, ...]]] = {name: [] for name in _SERIES}
    for row in read_jsonl(directory.path / "metrics.jsonl"):
        steps_after[row["iteration"]] = row["total_timesteps"]
        for name, metrics in _SERIES.items():
            if all(metric.name in row["metrics"] for metric in metrics):
                series[name].append((row["total_timesteps"], *(row["metrics"][metric.name] for metric in metrics)))
        if m.CURRICULUM_WIDTH.name in row["metrics"]:
            for name, level in row["metrics"].items():
                if (match := m.CURRICULUM_EDGE_LEVEL.pattern.fullmatch(name)) is None:
                    continue
                reached = levels.setdefault(match[1], [])
                if not reached or reached[-1][1] != level:
                    reached.append((row["total_timesteps"], level))
    return steps_after, series, levels


def _ended(directory: RunDirectory, steps_after: Mapping[int, int]) -> Iterator[tuple[int, Episode]]:
    """Yields the episodes in the order in which the curriculum learnt of them, each with the steps of the run."""
    file = directory.path / "episodes.jsonl"
    rows = read_jsonl(file) if file.is_file() else ()
    for iteration, members in groupby(rows, key=itemgetter("iteration")):
        if iteration in steps_after:  # its row may be about to be written
            episodes = sorted(map(Episode.from_row, members), key=lambda episode: (episode.step, episode.slot))
            for episode in episodes:
                yield steps_after[iteration], episode


class _EpisodeCourse:
    """Episodes of a run, of which only what the progress says is kept.

    Attributes:
        demonstrations: progress by number of the demonstration
        chosen_starts: outcomes of the episodes whose start was chosen
        own_starts: outcomes of the others
        whole: newest episodes that began where the task begins or a demonstration does
        edges: by edge of a range, the number of episodes at it, and the outcomes of the last ``LAST``
        has_tasks: True if an episode has the label of a task
        lacks_length: True if an episode began in the course of a demonstration of unknown length
    """

    def __init__(self, successes: int) -> None:
        """Begins without episodes; so many ``successes`` in a row master the beginning of a demonstration."""
        self.demonstrations: dict[int, _Demonstration] = {}
        self.chosen_starts, self.own_starts = _Outcomes(), _Outcomes()
        self.whole: deque[Episode] = deque(maxlen=LAST_WHOLE)
        self.edges: dict[str, tuple[int, deque[tuple[int, bool]]]] = {}
        self.has_tasks = self.lacks_length = False
        self._successes = successes
        self._by_power: dict[int, deque[tuple[int, bool]]] = {}

    def add(self, steps: int, episode: Episode) -> None:
        """Adds the next episode, which ended in the iteration after which the run had taken so many steps."""
        outcome = steps, bool(episode.success_once)
        (self.chosen_starts if episode.chosen else self.own_starts).add(*outcome)
        self.has_tasks |= episode.task is not None
        if not episode.demonstration_step:
            self.whole.append(episode)
        if episode.edge is not None:
            count, last = self.edges.get(episode.edge, (0, deque(maxlen=LAST)))
            last.append(outcome)
            self.edges[episode.edge] = count + 1, last
        if not episode.chosen or episode.demonstration is None:
            return
        if episode.demonstration_length is None:
            self.lacks_length = True
            return
        left = episode.demonstration_length - (episode.demonstration_step or 0)
        power = max(3, (left - 1).bit_length())  # 8 is 2^3
        self._by_power.setdefault(power, deque(maxlen=LAST_LEFT)).append(outcome)
        if episode.demonstration not in self.demonstrations:
            self.demonstrations[episode.demonstration] = _Demonstration(episode, self._successes)
        self.demonstrations[episode.demonstration].add(*outcome, episode.demonstration_step or 0)

    def within(self) -> tuple[SuccessWithin, ...]:
        """Returns the success by the steps that were left of demonstrations."""
        return tuple(
            SuccessWithin(2 ** (power - 1) + 1 if power > 3 else 1, 2**power, _rate(self._by_power[power]))
            for power in sorted(self._by_power)
        )


class _Demonstration:
    """Progress in a demonstration, episode by episode; so many ``successes`` in a row, from its beginning, master it.

    An episode that begins earlier in it than any before is the first of a new start.
    """

    def __init__(self, first: Episode, successes: int) -> None:
        self._first = first
        self._successes = successes
        self._moved_at: list[int] = []
        self._starts: list[int] = []
        self._episodes = self._in_a_row = 0
        self._solved_at: int | None = None
        self._last: deque[tuple[int, bool]] = deque(maxlen=LAST)
        self._at_start = (0, 0, 0)  # sum of the steps, successes, episodes

    def add(self, steps: int, succeeded: bool, start: int) -> None:
        if not self._starts or start < self._starts[-1]:
            self._moved_at.append(steps)
            self._starts.append(start)
            self._at_start = (0, 0, 0)
        if start == self._starts[-1]:
            total, successes, episodes = self._at_start
            self._at_start = (total + steps, successes + succeeded, episodes + 1)
        if start == 0:
            self._in_a_row = self._in_a_row + 1 if succeeded else 0
            if self._solved_at is None and self._in_a_row >= self._successes:
                self._solved_at = steps
        self._episodes += 1
        self._last.append((steps, succeeded))

    def progress(self) -> DemonstrationProgress:
        first = self._first
        assert first.demonstration is not None
        assert first.demonstration_length is not None
        return DemonstrationProgress(
            first.demonstration, first.seed, first.demonstration_length, tuple(self._moved_at), tuple(self._starts),
            self._episodes, _rate(self._last), _success_rate(*self._at_start), self._solved_at,
        )  # fmt: skip


class _Outcomes:
    """Outcomes of consecutive episodes: a byte for each, and two numbers for each iteration in which some ended."""

    def __init__(self) -> None:
        self._succeeded = bytearray()
        self._steps: list[int] = []
        self._counts: list[int] = []

    def __len__(self) -> int:
        return len(self._succeeded)

    def add(self, steps: int, succeeded: bool) -> None:
        """Adds an episode that ended in the iteration after which the run had taken so many steps."""
        if not self._steps or self._steps[-1] != steps:
            self._steps.append(steps)
            self._counts.append(0)
        self._counts[-1] += 1
        self._succeeded.append(succeeded)

    def rates(self) -> tuple[SuccessRate, ...]:
        """Returns the success of groups of consecutive episodes of about equal size; none without episodes."""
        groups = min(len(self), max(1, min(POINTS, len(self) // LEAST)))
        cuts = [len(self) * group // groups for group in range(groups + 1)] if groups else []
        ends: list[int] = [0, *accumulate(self._counts)]
        sums: list[int] = [0, *accumulate(map(mul, self._counts, self._steps))]

        def steps_before(cut: int) -> int:
            """Sum of the steps over the episodes before a cut."""
            place = bisect_right(ends, cut) - 1
            return sums[place] + (0 if cut == ends[place] else (cut - ends[place]) * self._steps[place])

        return tuple(
            _success_rate(steps_before(end) - steps_before(first), self._succeeded.count(1, first, end), end - first)
            for first, end in pairwise(cuts)
        )


def _lengths(episodes: Iterable[Episode]) -> Lengths | None:
    """Returns the lengths of some episodes."""
    success, failure = [], []
    for episode in episodes:
        if episode.success_once and episode.first_success is not None:
            success.append(episode.first_success)
        if episode.success_once is False:
            failure.append(episode.length)
    if min(len(success), len(failure)) < LEAST:
        return None
    return Lengths(float(np.median(success)), float(np.quantile(success, 0.9)), float(np.median(failure)))


def _rate(outcomes: Collection[tuple[int, bool]]) -> SuccessRate:
    """Returns the success of some episodes, each with the steps of the run."""
    steps, succeeded = (sum(values) for values in zip(*outcomes, strict=True))
    return _success_rate(steps, succeeded, len(outcomes))


def _success_rate(steps: int, succeeded: int, episodes: int) -> SuccessRate:
    """Returns the success of some episodes, from the sum of the steps of the run at their ends."""
    return SuccessRate(steps / episodes, succeeded / episodes, *wilson_interval(succeeded, episodes), episodes)
