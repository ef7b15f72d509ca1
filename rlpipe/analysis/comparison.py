"""Compares completed runs and records: pools the episodes of several seeds, and estimates the differences.

Runs no episodes, and knows nothing of simulators or policies.
"""

from __future__ import annotations

import json
import math
import shlex
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from rlpipe.analysis.baselines import BaselineResult, baselines_of
from rlpipe.analysis.divergence import where_runs_part
from rlpipe.analysis.evaluated_run import EXPERIMENT, UPDATE_TO_DATA, EvaluatedRun
from rlpipe.analysis.evaluation_report import ESTIMATED, Estimate, by_task, estimate, values_of
from rlpipe.analysis.pairs import SIMULATED_BY, Pair, other_slots, pairs_of, shared_values
from rlpipe.config.protocol import comparable
from rlpipe.errors import ConfigError
from rlpipe.functional.intervals import difference_interval, probability_of_improvement, widened_over_runs
from rlpipe.functional.paired import indistinguishable_from_best, tail_of_fair_coin, wins_and_losses
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.declaration import Metric
from rlpipe.metrics.reductions import Mean
from rlpipe.plugins import nearest

T = TypeVar("T")


@dataclass(frozen=True)
class Reached:
    """Time at which runs first reached a level.

    Attributes:
        runs: number of runs that reached it
        of: number of runs
        steps: median of the environment steps over all runs; None if half of them or more did not reach the level
        seconds: likewise, seconds of training
        at_the_latest: True if some run was evaluated only at its end, so that it may have reached the level before
    """

    runs: int
    of: int
    steps: float | None
    seconds: float | None
    at_the_latest: bool


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed, or a single record.

    Attributes:
        label: experiment, with the keys in which it differs from others of that name
        pooled: the metric over the episodes of all runs; with several runs, its bounds are over seeds and episodes
        by_seed: the metric of each run, as (seed, value)
        reached: time at which the runs first reached the level; None if no level was asked for, and for a record
        runs: the runs
    """

    label: str
    pooled: Estimate
    by_seed: list[tuple[int, float]]
    reached: Reached | None
    runs: list[EvaluatedRun] = field(repr=False)

    @property
    def run_labels(self) -> list[str]:
        """Seed of each run, with its directory's name where several have that seed."""
        seeds = [seed for seed, _ in self.by_seed]
        return [
            f"seed {seed}" if seeds.count(seed) == 1 else f"seed {seed}, {run.path.name}"
            for seed, run in zip(seeds, self.runs, strict=True)
        ]


@dataclass(frozen=True)
class Difference:
    """Difference between a group and the first one.

    Attributes:
        label: label of the group
        value: its pooled value minus that of the first group
        low: lower 95 % bound: over seeds and episodes, and for a share at most Newcombe's; for a share of one run each
            in the same episodes, it is Tango's
        high: upper 95 % bound, likewise
        over_seeds: True if both groups have several seeds; otherwise the bounds ignore how much seeds differ
        probability: probability that a run of this group beats a run of the first, with bounds; None if a group has
            one seed. The bounds are None if all pairs agree, because resampling then shows no other outcome.
    """

    label: str
    value: float
    low: float
    high: float
    over_seeds: bool
    probability: tuple[float, float | None, float | None] | None


@dataclass(frozen=True)
class TaskComparison:
    """Groups in the episodes of one of several tasks.

    Attributes:
        task: label of the task
        pooled: the metric of each group, over the episodes of this task
        differences: (value, low, high) of each group but the first, as in ``Difference``
    """

    task: str
    pooled: list[Estimate]
    differences: list[tuple[float, float, float]]


@dataclass(frozen=True)
class Comparison:
    """Comparison of groups of runs.

    Attributes:
        metric: name of the metric
        level: level that counts as reached; None for none, and if the runs were not measured alike
        groups: groups in the order in which they were named; the others are compared with the first
        differences: one for each group but the first
        tasks: the same for each task; empty where the runs have only one
        pairs: for success, every two groups in the same episodes
        best_set: labels of the groups than which none is shown to be better; together they hold the best one with a
            probability of 95 %; empty for a metric that does not rank policies
        baselines: results of policies that have learnt nothing, in the same episodes; in no group and no difference
        protocol: protocol of all evaluations; that of the first run if they differ
        warnings: sentences on what weakens the comparison
    """

    metric: str
    level: float | None
    groups: list[Group]
    differences: list[Difference]
    tasks: list[TaskComparison]
    pairs: list[Pair]
    best_set: list[str]
    baselines: list[BaselineResult]
    protocol: dict[str, Any]
    warnings: list[str]

    def as_json(self) -> dict[str, Any]:
        """Returns everything but the episodes."""
        groups = [
            {
                "label": group.label,
                "pooled": asdict(group.pooled),
                "reached": group.reached and asdict(group.reached),
                "runs": [
                    {"path": str(run.path), "seed": seed, "value": value, "evaluation": str(run.source)}
                    for run, (seed, value) in zip(group.runs, group.by_seed, strict=True)
                ],
            }
            for group in self.groups
        ]
        return {
            "metric": self.metric,
            "level": self.level,
            "groups": groups,
            "differences": [asdict(difference) for difference in self.differences],
            "tasks": [asdict(task) for task in self.tasks],
            "pairs": [pair.as_json() for pair in self.pairs],
            "best_set": self.best_set,
            "floors": [baseline.as_json() for baseline in self.baselines],
            "protocol": self.protocol,
            "warnings": self.warnings,
        }


def compare(
    paths: Sequence[Path], *, metric: str | None = None, level: float | None = None, anyway: bool = False
) -> Comparison:
    """Compares runs and records. Runs that differ only in their seed form a group, and each record is one of its own.

    Args:
        paths: run directories, and records of ``rlpipe evaluate``
        metric: one of ``ESTIMATED``; None takes success once, or the return if there is no success
        level: level of the metric that counts as reached; None takes 0.9 for a share, and none for a mean
        anyway: also compare runs that were evaluated under different protocols
    Raises:
        ConfigError: a run is not complete, has no evaluation or not this metric, or the protocols differ.
    """
    if level is not None and not math.isfinite(level):
        raise ConfigError(f"--level is {level}; it must be a finite number.")
    if metric is not None and metric not in ESTIMATED:
        raise ConfigError(f"--metric is {metric!r}{nearest(metric, ESTIMATED)} Allowed values: {', '.join(ESTIMATED)}.")
    runs = list({run.path: run for run in map(_read, paths)}.values())
    warnings = _check_protocols(runs, anyway) + _check_versions(runs) + _check_seeds(runs) + _check_gradient_steps(runs)
    if stopped := [run.name for run in runs if run.against is not None]:
        warnings.append(
            f"{', '.join(stopped)} ended once it was decided (--until-decided): intervals and tests here are for a "
            "number of episodes that was fixed before, so they promise too much."
        )
    if metric is None:
        has_success = all(values_of(m.EVAL_SUCCESS_ONCE, run.episodes) for run in runs)
        metric = (m.EVAL_SUCCESS_ONCE if has_success else m.EVAL_EPISODE_RETURN).name
    declaration = m.CATALOGUE[metric]
    if level is None and declaration.reduction is Mean:
        level = 0.9
    trained = [run for run in runs if run.record is None]
    if level is not None and (different := _different(trained, [comparable(run.while_training) for run in trained])):
        level = None
        warnings.append(f"When a level was reached is not shown: while training, {'; '.join(different.values())}.")
    groups = _groups(runs, declaration, level)
    for group in groups:
        seeds = [run.seed for run in group.runs]
        if repeated := sorted({seed for seed in seeds if seeds.count(seed) > 1}):
            warnings.append(
                f"{group.label} holds more than one run with seed {', '.join(map(str, repeated))}: such runs are not "
                "independent, so the intervals are too narrow."
            )
    warnings += where_runs_part(trained)
    differences = [_difference(declaration, groups[0], group) for group in groups[1:]]
    baselines = baselines_of(runs, declaration)
    tasks = _by_task(declaration, groups)
    pairs, best = _pairs(declaration, groups), [groups[index].label for index in _best_set(declaration, groups)]
    warnings += _check_slots(pairs, groups)
    protocol = groups[0].runs[0].protocol
    return Comparison(metric, level, groups, differences, tasks, pairs, best, baselines, protocol, warnings)


def _read(path: Path) -> EvaluatedRun:
    """Reads a run directory or a record."""
    return EvaluatedRun.of_record(path) if path.suffix == ".json" and path.is_file() else EvaluatedRun.read(path)


def _different(runs: Sequence[EvaluatedRun], facts: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Describes which runs have which value, for each key with more than one value."""
    differences = {}
    names = [run.name for run in runs]
    for key in dict.fromkeys(key for run_facts in facts for key in run_facts):
        values = _group_by_key([run_facts.get(key) for run_facts in facts], names)
        if len(values) > 1:
            each = (f"{value!r} in {', '.join(names)}" for value, names in values)
            differences[key] = f"{key} is {' and '.join(each)}"
    return differences


def _group_by_key(keys: Iterable[Any], members: Iterable[T]) -> list[tuple[Any, list[T]]]:
    """Gathers the members of each key, in the order in which the keys come; keys need not be hashable."""
    groups: list[tuple[Any, list[T]]] = []
    for key, member in zip(keys, members, strict=True):
        same = next((others for other, others in groups if other == key), None)
        if same is None:
            groups.append((key, [member]))
        else:
            same.append(member)
    return groups


def _check_protocols(runs: Sequence[EvaluatedRun], anyway: bool) -> list[str]:
    """Refuses runs that were not evaluated alike, or returns a warning if they need not be."""
    protocols = _comparable(runs)
    different = _different(runs, protocols)
    if not different:
        return []
    message = f"These runs were evaluated under different protocols: {'; '.join(different.values())}."
    if anyway:
        return [f"{message} Their numbers do not mean the same."]
    with_success = (n for n, protocol in enumerate(protocols) if protocol.get("env.eval.success_key") is not None)
    model = next(with_success, 0)  # to evaluate like one without would throw the success away
    commands = []
    for run, theirs in zip(runs, protocols, strict=True):
        keys = [key for key in different if theirs.get(key) != protocols[model].get(key)]
        if keys and run.policy is None and not {"env.eval.name", "env.eval.id"} & {*keys}:
            changes = [f"{key}={json.dumps(protocols[model].get(key))}" for key in keys]  # JSON is YAML
            commands.append(shlex.join(["rlpipe", "evaluate", str(run.checkpoint or run.path), *changes]))
    named = f"{runs[model].name}, which measures success" if model else "the first"
    alike = [f"To evaluate like {named}:", *commands] if commands else []
    raise ConfigError("\n".join([message, *alike, "To compare them nevertheless: --anyway"]))


def _comparable(runs: Sequence[EvaluatedRun]) -> list[dict[str, Any]]:
    """Returns the comparable part of each protocol. Policies that were not trained here choose their actions by
    themselves, so whether the most likely ones are taken is for them as for the first that was."""
    protocols, key = [comparable(run.protocol) for run in runs], "evaluation.deterministic"
    both = list(zip(runs, protocols, strict=True))
    model = next((protocol[key] for run, protocol in both if run.policy is None), None)
    return [protocol if run.policy is None else protocol | {key: model} for run, protocol in both]


def _check_versions(runs: Sequence[EvaluatedRun]) -> list[str]:
    """Warns if the evaluations used different versions of packages, as far as these are known."""
    different: dict[str, str] = {}
    for package in SIMULATED_BY:
        recorded = [run for run in runs if package in run.versions]
        different |= _different(recorded, [{package: run.versions[package]} for run in recorded])
    if not different:
        return []
    return [f"{'; '.join(different.values())}: with other versions the same seeds may be other episodes."]


def _check_seeds(runs: Sequence[EvaluatedRun]) -> list[str]:
    """Warns about runs whose episodes do not follow from their seeds, so that no two runs met the same ones."""
    names = [run.name for run in runs if not run.repeats]
    if not names:
        return []
    return [
        f"The episodes of {', '.join(names)} do not follow from seeds: no two evaluations have the same ones, and "
        "runs differ also by the starts that they met."
    ]


def _check_gradient_steps(runs: Sequence[EvaluatedRun]) -> list[str]:
    """Warns about runs whose number of gradient steps depended on the machine, with the ratio that each had."""
    ratios = {run.name: run.update_to_data() for run in runs if not run.fixes_gradient_steps}
    if not ratios:
        return []
    recorded = [ratio for ratio in ratios.values() if ratio is not None]
    each = (f"{name} {'unknown' if ratio is None else _two_digits(ratio)}" for name, ratio in ratios.items())
    typical = _two_digits(statistics.median(recorded)) if recorded else "0.5"
    return [
        f"{UPDATE_TO_DATA} is null, so the number of gradient steps depended on the machine and what else ran there. "
        f"Gradient steps for each environment step: {', '.join(each)}. Runs with equal numbers of them: "
        f"{UPDATE_TO_DATA}={typical}"
    ]


def _two_digits(value: float) -> str:
    return f"{float(f'{value:.2g}'):g}"


def _groups(runs: Sequence[EvaluatedRun], metric: Metric, level: float | None) -> list[Group]:
    kinds = _group_by_key([run.kind for run in runs], runs)
    groups = []
    for kind, members in kinds:
        members.sort(key=lambda run: run.seed)
        each = [estimate(metric, run.episodes) for run in members]
        values = [result.value for result in each if result is not None]
        if len(values) < len(members):
            silent = members[each.index(None)].path
            raise ConfigError(f"{silent} has no value of {metric.name}: choose another --metric.")
        by_seed = [(run.seed, value) for run, value in zip(members, values, strict=True)]
        reached = None if level is None or members[0].record is not None else _reached(members, metric, level)
        label = _label(kind, [kind for kind, _ in kinds])
        groups.append(Group(label, _pooled(metric, members), by_seed, reached, members))
    return groups


def _pooled(metric: Metric, runs: Sequence[EvaluatedRun]) -> Estimate:
    """Estimates a metric over the episodes of all runs, each of which has a value.

    With several runs, the bounds also enclose those over seeds and episodes (``widened_over_runs``), because episodes
    of one seed are not independent of each other.
    """
    pooled = estimate(metric, [episode for run in runs for episode in run.episodes])
    assert pooled is not None
    if pooled.low is None or pooled.high is None:
        return pooled
    values, shared = _values(metric, runs)
    shares = metric.reduction is Mean
    low, high = widened_over_runs((pooled.low, pooled.high), values[0], shares=shares, shared=shared)
    return replace(pooled, low=low, high=high)


def _label(kind: Mapping[str, Any], kinds: Sequence[Mapping[str, Any]]) -> str:
    """Returns the name of the experiment, with the keys in which it differs from others of that name."""
    namesakes = [other for other in kinds if other[EXPERIMENT] == kind[EXPERIMENT]]
    keys = [
        key
        for key in dict.fromkeys(key for other in namesakes for key in other)
        if any(other.get(key) != namesakes[0].get(key) for other in namesakes)
    ]
    settings = [f"{key}={kind[key]}" for key in keys if key in kind]
    more = [f"and {len(settings) - 3} more"] if len(settings) > 3 else []
    return " ".join([str(kind[EXPERIMENT]), *settings[:3], *more])


def _reached(runs: Sequence[EvaluatedRun], metric: Metric, level: float) -> Reached:
    moments = [run.first_reached(metric, level) for run in runs]
    reached = [moment for moment in moments if moment is not None]
    steps, seconds = (
        statistics.median([math.inf if moment is None else moment[axis] for moment in moments]) for axis in (0, 1)
    )
    once = any(run.evaluations(metric) == 1 for run, moment in zip(runs, moments, strict=True) if moment is not None)
    return Reached(
        len(reached),
        len(runs),
        steps if math.isfinite(steps) else None,
        seconds if math.isfinite(seconds) else None,
        once,
    )


def _by_task(metric: Metric, groups: Sequence[Group]) -> list[TaskComparison]:
    """Compares the groups in each task that all their runs were evaluated in, where a run has several."""
    tasks = [by_task(run.episodes) for group in groups for run in group.runs]
    comparisons = []
    for task in [label for label in tasks[0] if all(label in each for each in tasks)]:
        runs = [[replace(run, episodes=by_task(run.episodes)[task]) for run in group.runs] for group in groups]
        if not all(values_of(metric, run.episodes) for group in runs for run in group):
            continue
        pooled = [_pooled(metric, group) for group in runs]
        differences = [
            (result.value - pooled[0].value, *_bounds(metric, group, runs[0]))
            for result, group in zip(pooled[1:], runs[1:], strict=True)
        ]
        comparisons.append(TaskComparison(task, pooled, differences))
    return comparisons


def _bounds(
    metric: Metric, runs: Sequence[EvaluatedRun], first: Sequence[EvaluatedRun], *, level: float = 0.95
) -> tuple[float, float]:
    """Returns the bounds of the difference of a metric between some runs and the first ones."""
    (ours, theirs), shared = _values(metric, runs, first)
    return difference_interval(ours, theirs, shares=metric.reduction is Mean, shared=shared, level=level)


def _values(metric: Metric, *groups: Sequence[EvaluatedRun]) -> tuple[list[list[list[float]]], bool]:
    """Returns the values of each run of each group, and True if they are in one order of episodes that all share."""
    shared = shared_values(metric, groups)
    return shared or [[values_of(metric, run.episodes) for run in runs] for runs in groups], shared is not None


def _pairs(metric: Metric, groups: Sequence[Group]) -> list[Pair]:
    """Compares every two groups in the same episodes, where the metric is a share."""
    if metric.reduction is not Mean:
        return []
    return pairs_of(metric, [(group.label, group.runs) for group in groups])


def _check_slots(pairs: Sequence[Pair], groups: Sequence[Group]) -> list[str]:
    """Warns about pairs whose episodes are not strictly the same, because as many did not run side by side."""
    runs = {group.label: group.runs[0] for group in groups}
    return [
        f"{pair.first} and {pair.second} are not strictly paired: they ran {slots[0]} and {slots[1]} environments side "
        "by side (env.eval.total_num_envs), and in this task an episode may depend, in its last digits, on those that "
        "its environment ran before it. Evaluate both with the same number."
        for pair in pairs
        if (slots := other_slots(runs[pair.first], runs[pair.second])) is not None
    ]


def _best_set(metric: Metric, groups: Sequence[Group]) -> list[int]:
    """Returns the groups than which none is shown to be better: by the exact test of shares in the same episodes of one
    run each, else by the interval of the difference. There are none for a metric that does not rank policies."""
    if metric.better != "higher":
        return []

    def beats(better: int, worse: int, chance: float) -> bool:
        if groups[better].pooled.value <= groups[worse].pooled.value:
            return False
        first, second = groups[better].runs, groups[worse].runs
        (ours, theirs), shared = _values(metric, first, second)
        if shared and metric.reduction is Mean and len(first) == len(second) == 1:
            return tail_of_fair_coin(*wins_and_losses(ours[0], theirs[0])) <= chance
        return _bounds(metric, first, second, level=1 - 2 * chance)[0] > 0

    return indistinguishable_from_best(len(groups), beats)


def _difference(metric: Metric, first: Group, group: Group) -> Difference:
    over_seeds = min(len(group.runs), len(first.runs)) > 1
    low, high = _bounds(metric, group.runs, first.runs)
    probability: tuple[float, float | None, float | None] | None = None
    if over_seeds:
        chance, least, most = probability_of_improvement(
            [value for _, value in group.by_seed], [value for _, value in first.by_seed]
        )
        probability = (chance, None, None) if least == most else (chance, least, most)
    return Difference(group.label, group.pooled.value - first.pooled.value, low, high, over_seeds, probability)
