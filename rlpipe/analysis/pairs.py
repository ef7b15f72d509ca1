"""Policies in the same episodes: which of them each one solves, and what that shows of their difference.

Two evaluations have the same episodes if their simulators have the same options and versions, and a task and a seed
the same name in both; how actions are chosen changes nothing of that. Nor does how many run side by side, but where an
episode may depend on those before it, pairs are then not strictly of the same episodes (``other_slots``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations, product
from pathlib import Path
from statistics import fmean
from typing import Any, TypeAlias

from rlpipe.analysis.evaluated_run import EvaluatedRun
from rlpipe.analysis.evaluation_report import value_of
from rlpipe.config.protocol import comparable
from rlpipe.errors import command_line
from rlpipe.functional.intervals import difference_interval, difference_test, wilson_interval
from rlpipe.functional.paired import holm_adjusted, mcnemar_test, pairs_needed, simultaneous_z
from rlpipe.metrics.declaration import Metric
from rlpipe.trajectory import Episode

EpisodeKey: TypeAlias = tuple[str, int]
"""Task, which is empty where there is only one, and seed of an episode."""
OF_AN_EVALUATION = ("evaluation.episodes", "evaluation.first_seed", "evaluation.deterministic")
"""Keys of a protocol that may differ where an episode is the same."""
SIMULATED_BY = ("mani_skill", "sapien", "gymnasium", "torch")
"""Packages whose version may change what the same policy does with the same seeds."""
LEVEL = 0.05
"""Probability that any of the pairs is wrongly decided, where all policies are equal."""
FEWEST_DISCORDANT = 6
"""Pairs in which only one policy succeeds, below which no test at 5 % can decide: 2 / 2^5 > 0.05."""
LEAST_DIFFERENCE = 0.05
"""Difference for which further pairs are counted where the observed one is smaller."""


@dataclass(frozen=True)
class Pair:
    """Two policies in the same episodes, or two groups of training seeds.

    Attributes:
        first: label of the one
        second: label of the other
        runs: number of runs of each; with more than one, seeds vary as well as episodes
        pairs: number of episodes that all of them ran
        unpaired: number of episodes that only some of them ran
        first_only: task and seed of the episodes in which only the first succeeds; empty where one has several runs
        second_only: task and seed of those in which only the second does, likewise
        difference: rate of the first minus that of the second, over these episodes
        low: lower bound of the difference, 95 %: Tango 1998, or of several runs ``difference_interval``
        high: upper bound of it
        p_value: of the exact McNemar test, or of several runs of ``difference_test``
        p_adjusted: adjusted over all pairs of the comparison: Holm 1979
        further_pairs: pairs that are missing for a power of 0.8 to find ``for_difference``; None where it is decided,
            and of several runs
        for_difference: observed difference, at least ``LEAST_DIFFERENCE``; None likewise
        replays: commands that show one of the flipping episodes; empty where no such episode has two replays
    """

    first: str
    second: str
    runs: tuple[int, int]
    pairs: int
    unpaired: int
    first_only: list[EpisodeKey]
    second_only: list[EpisodeKey]
    difference: float
    low: float
    high: float
    p_value: float
    p_adjusted: float
    further_pairs: int | None = None
    for_difference: float | None = None
    replays: list[str] = field(default_factory=list)

    @property
    def is_decided(self) -> bool:
        """True if the adjusted test finds a difference."""
        return self.p_adjusted < LEVEL

    @property
    def is_too_alike(self) -> bool:
        """True if too few pairs of two policies differ for any test at 5 % to decide."""
        return not self.is_over_seeds and len(self.first_only) + len(self.second_only) < FEWEST_DISCORDANT

    @property
    def is_over_seeds(self) -> bool:
        """True if one of the two has several runs."""
        return max(self.runs) > 1

    def as_json(self) -> dict[str, Any]:
        """Returns all fields."""
        return asdict(self)


def same_simulator(runs: Sequence[EvaluatedRun]) -> bool:
    """True if all evaluations had the same simulator, with the same options and, as far as known, versions."""
    options = [
        {key: value for key, value in comparable(run.protocol).items() if key not in OF_AN_EVALUATION} for run in runs
    ]
    versions = [{run.versions[package] for run in runs if package in run.versions} for package in SIMULATED_BY]
    return all(others == options[0] for others in options) and all(len(each) <= 1 for each in versions)


def values_by_episode(metric: Metric, run: EvaluatedRun) -> dict[EpisodeKey, float]:
    """Returns the value of a metric in each episode that has one; empty where episodes do not follow from seeds."""
    if not run.repeats:
        return {}
    values = ((_key(episode), value_of(metric, episode)) for episode in run.episodes)
    return {key: value for key, value in values if value is not None}


def _key(episode: Episode) -> EpisodeKey:
    return episode.task or "", episode.seed or 0


def shared_values(metric: Metric, groups: Sequence[Sequence[EvaluatedRun]]) -> list[list[list[float]]] | None:
    """Returns the values of each run of each group, in one order of the episodes that all of them share.

    None where some run has other episodes, or an episode without a value.
    """
    runs = [run for group in groups for run in group]
    if not same_simulator(runs):
        return None
    values = [[values_by_episode(metric, run) for run in group] for group in groups]
    episodes = values[0][0].keys()
    if not episodes or any(len(run.episodes) != len(episodes) for run in runs):
        return None
    if any(each.keys() != episodes for group in values for each in group):
        return None
    order = sorted(episodes)
    return [[[each[key] for key in order] for each in group] for group in values]


def pairs_of(metric: Metric, sides: Sequence[tuple[str, Sequence[EvaluatedRun]]]) -> list[Pair]:
    """Compares every two policies, or groups of training seeds, all of whose runs ran some of the same episodes.

    Args:
        metric: success, of whichever kind
        sides: label and evaluations of each
    """
    compared = (_pair(metric, *first, *second) for first, second in combinations(sides, 2))
    pairs = [pair for pair in compared if pair is not None]
    adjusted = holm_adjusted([pair.p_value for pair in pairs])
    z = simultaneous_z(len(pairs), level=1 - LEVEL)
    return [_planned(replace(pair, p_adjusted=p), z) for pair, p in zip(pairs, adjusted, strict=True)]


def other_slots(first: EvaluatedRun, second: EvaluatedRun) -> tuple[int, int] | None:
    """Returns how many environments ran side by side in each of two evaluations, where that differs and episodes may
    depend on those that their environment ran before; else None."""
    protocols = [run.protocol for run in (first, second)]
    ours, theirs = (protocol["eval_env"]["total_num_envs"] for protocol in protocols)
    independent = all(protocol.get("independent_episodes", True) for protocol in protocols)
    return None if independent or ours == theirs else (ours, theirs)


def _pair(
    metric: Metric, first: str, ours: Sequence[EvaluatedRun], second: str, theirs: Sequence[EvaluatedRun]
) -> Pair | None:
    """Compares two groups of runs; None if they have no episode in common."""
    values = [values_by_episode(metric, run) for run in (*ours, *theirs)]
    every_episode = [run.keys() for run in values]
    episodes = sorted(set.intersection(*map(set, every_episode)))
    if not episodes or not same_simulator([*ours, *theirs]):
        return None
    rows = [[run[key] for key in episodes] for run in values]
    our_rows, their_rows = rows[: len(ours)], rows[len(ours) :]
    wins, losses = list[EpisodeKey](), list[EpisodeKey]()
    if is_one_each := len(rows) == 2:
        wins = [key for key, our, their in zip(episodes, *rows, strict=True) if our > their]
        losses = [key for key, our, their in zip(episodes, *rows, strict=True) if our < their]
    p_value = (
        mcnemar_test(len(wins), len(losses)) if is_one_each else difference_test(our_rows, their_rows, shared=True)
    )
    low, high = difference_interval(our_rows, their_rows, shares=True, shared=True)
    couples = product(our_rows, their_rows)
    difference = fmean(our - their for couple in couples for our, their in zip(*couple, strict=True))
    replays = _replays_of(ours[0], theirs[0], [*wins, *losses])
    unpaired = len(set().union(*every_episode)) - len(episodes)
    return Pair(
        first, second, (len(ours), len(theirs)), len(episodes), unpaired, wins, losses, difference, low, high, p_value,
        p_value, replays=replays,
    )  # fmt: skip


def _planned(pair: Pair, z: float) -> Pair:
    """Returns a pair of policies with the number of further episodes that it would take, if it is not decided."""
    if pair.is_decided or pair.is_over_seeds:
        return pair
    _, discordant = wilson_interval(len(pair.first_only) + len(pair.second_only), pair.pairs)
    difference = max(abs(pair.difference), LEAST_DIFFERENCE)
    missing = pairs_needed(discordant, difference, z=z) - pair.pairs
    return replace(pair, further_pairs=max(0, missing), for_difference=difference)


def _replays_of(first: EvaluatedRun, second: EvaluatedRun, episodes: Sequence[EpisodeKey]) -> list[str]:
    """Returns the commands that show the first of some episodes of which both have a replay."""
    numbers = [{_key(episode): n for n, episode in enumerate(run.replayed(), 1)} for run in (first, second)]
    both = next((key for key in episodes if all(key in each for each in numbers)), None)
    if both is None:
        return []
    lines = []
    for run, each in zip((first, second), numbers, strict=True):
        folder, name = run.replay_set
        if folder.resolve().is_relative_to(Path.cwd()):
            folder = folder.resolve().relative_to(Path.cwd())
        page = ["--out", folder / f"replay-{name}.html"]  # or the second would replace the first
        lines.append(command_line("replay", folder, "--set", name, "--episode", each[both], *page))
    return lines


def number_of(key: EpisodeKey) -> str:
    """Names an episode: its seed, after its task where there are several."""
    task, seed = key
    return f"{task} {seed}" if task else str(seed)
