"""Evaluated runs side by side: what the episodes of one evaluation, of several seeds, and of two kinds of run say.

Reads run directories and their ledgers; plays nothing, and knows nothing of simulators or of policies.
"""

from __future__ import annotations

import json
import math
import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rlpipe import files
from rlpipe.analysis.evaluation_report import ESTIMATED, Estimate, estimate, records_of, values_of
from rlpipe.config.fields import Affects, affected_by
from rlpipe.config.protocol import comparable
from rlpipe.config.schema import Config
from rlpipe.config.tree import leaves
from rlpipe.errors import ConfigError
from rlpipe.functional.intervals import (
    bootstrap_difference,
    bootstrap_over_runs,
    newcombe_interval,
    probability_of_improvement,
)
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.declaration import Metric
from rlpipe.metrics.reductions import Mean
from rlpipe.metrics.row import Status
from rlpipe.plugins import nearest
from rlpipe.run import shapes
from rlpipe.run.directory import RunDirectory, read_jsonl
from rlpipe.trajectory import Episode

EXPERIMENT = "runner.logger.experiment_name"
WARM_START = "policy.warm_start"
_SIMULATED_BY = ("mani_skill", "sapien", "gymnasium", "torch")
"""Packages whose version may change what the same policy does with the same seeds."""


@dataclass(frozen=True)
class EvaluatedRun:
    """A run that has ended, and its evaluation after the last iteration.

    Attributes:
        path: of the run directory.  seed: ``runner.seed``.  config: full configuration by dotted key.
        source: file the episodes stand in.  protocol: they were played under.  versions: of packages, as far as known.
        episodes: all of them.
        while_training: protocol of the evaluations in ``metrics.jsonl``.
    """

    path: Path
    seed: int
    config: dict[str, Any]
    source: Path
    protocol: dict[str, Any]
    versions: dict[str, str]
    episodes: list[Episode] = field(repr=False)
    while_training: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> EvaluatedRun:
        """Reads a run directory: the newest record of ``rlpipe evaluate``, else the evaluation the run itself ended
        with.

        Raises:
            ConfigError: it is no run directory, the run has not ended, or it has no evaluation of its last iteration.
        """
        directory = RunDirectory.existing(path)
        path, said = directory.path, directory.read_json()
        if said["status"] != Status.COMPLETED:
            raise ConfigError(
                f"{path} has not reached its end: its status is {said['status']}. Go on with: "
                f"rlpipe train --resume {path}"
            )
        last = max((row["iteration"] for row in read_jsonl(path / "metrics.jsonl")), default=0)
        config = dict(leaves(directory.read_config()))
        played: Mapping[str, Any]
        for source in records_of(path):
            played = files.read(source, shapes.EvaluationRecord)
            rows = played["episodes"]
            # That of an older checkpoint, or of another configuration, is not what the run arrived at.
            if played["iteration"] == last and not played.get("changes"):
                break
        else:
            source, played = path / "eval_episodes.jsonl", said
            rows = [row for row in read_jsonl(source) if row["iteration"] == last] if source.is_file() else []
        if not rows:
            raise ConfigError(
                f"{path} has no evaluation of its last iteration, {last}. Evaluate it with: rlpipe evaluate {path}"
            )
        found = [Episode.from_row(row) for row in rows]
        return cls(
            path, config["runner.seed"], config, source, played["protocol"], played.get("versions", {}), found,
            said["protocol"],
        )  # fmt: skip

    @property
    def kind(self) -> dict[str, Any]:
        """The configuration without what may differ between runs of one experiment, which is the seed and where it is
        logged; how it was evaluated as the protocol has it."""
        kept = {key: value for key, value in self.config.items() if Affects.COMPARISON in affected_by(Config, key)}
        if (origin := self.config.get(WARM_START)) is not None:
            kept[WARM_START] = _experiment(origin)  # which may have a run for each seed
        return kept | {EXPERIMENT: self.config[EXPERIMENT]} | comparable(self.protocol)

    def first_reached(self, metric: Metric, level: float) -> tuple[float, float] | None:
        """Environment steps and seconds of training after which an evaluation was first at a level."""
        for row in read_jsonl(self.path / "metrics.jsonl"):
            if row["metrics"].get(metric.name, -math.inf) >= level:
                if (seconds := row["metrics"].get(m.TIME_ELAPSED.name)) is None:
                    raise ConfigError(
                        f"{self.path / 'metrics.jsonl'} does not say when iteration {row['iteration']} was over: "
                        f"metrics.{m.TIME_ELAPSED.name} is missing."
                    )
                return row["total_timesteps"], seconds
        return None

    def evaluations(self, metric: Metric) -> int:
        """How often the metric was measured while the run went on."""
        return sum(metric.name in row["metrics"] for row in read_jsonl(self.path / "metrics.jsonl"))


def _experiment(origin: str) -> str:
    """Experiment of the run directory that is named, with the file if a checkpoint in it is; else what is named."""
    path = Path(origin)
    if path.parent.name == "checkpoints":
        return f"{path.parent.parent.parent.name}/{path.name}"
    return origin if path.suffix == ".npz" else path.parent.name or origin


@dataclass(frozen=True)
class Reached:
    """When runs first reached a level.

    Attributes:
        runs: how many did.  of: how many there are.
        steps, seconds: median over all of them; None where half of them or more did not reach it.
        at_the_latest: some run was evaluated only at its end, so that it may have been there before.
    """

    runs: int
    of: int
    steps: float | None
    seconds: float | None
    at_the_latest: bool


@dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but their seed.

    Attributes:
        label: experiment, with the keys that tell it from others of that name.
        pooled: the metric over the episodes of all its runs; of several, its bounds hold seeds and episodes drawn anew.
        by_seed: the metric of each run, as (seed, value).
        reached: when it first reached the level; None where no level was asked for.
        runs: what they are.
    """

    label: str
    pooled: Estimate
    by_seed: list[tuple[int, float]]
    reached: Reached | None
    runs: list[EvaluatedRun] = field(repr=False)


@dataclass(frozen=True)
class Difference:
    """A group against the first one.

    Attributes:
        label: of the group.  value: its pooled value minus that of the first.
        low, high: 95 % bounds: seeds and episodes drawn with replacement, and for a share not inside Newcombe's.
        over_seeds: both groups have several seeds; where one has a single seed, how much seeds differ is not in them.
        probability: that a run of this group beats a run of the first, with bounds; None where a group has one seed.
            The bounds are None where all pairs agree, because resampling them then shows no other outcome.
    """

    label: str
    value: float
    low: float
    high: float
    over_seeds: bool
    probability: tuple[float, float | None, float | None] | None


@dataclass(frozen=True)
class Comparison:
    """Groups of runs side by side.

    Attributes:
        metric: name.  level: that counts as reached; None for none, and where runs were not measured alike.
        groups: in the order they were named; the others are compared with the first.
        differences: one for each group but the first.
        protocol: under which all were evaluated; of the first run where they differ.
        warnings: sentences on what weakens the comparison.
    """

    metric: str
    level: float | None
    groups: list[Group]
    differences: list[Difference]
    protocol: dict[str, Any]
    warnings: list[str]

    def as_json(self) -> dict[str, Any]:
        """Everything but the episodes."""
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
            "protocol": self.protocol,
            "warnings": self.warnings,
        }


def compare(
    paths: Sequence[Path], *, metric: str | None = None, level: float | None = None, anyway: bool = False
) -> Comparison:
    """Puts runs side by side, those that differ only in their seed together.

    Args:
        paths: run directories.
        metric: one of ``ESTIMATED``; None takes success once, or the return where there is no success.
        level: of the metric that counts as reached; None takes 0.9 for a share, and none for a mean.
        anyway: compare also what was evaluated under different protocols.
    Raises:
        ConfigError: a run has not ended, has no evaluation or not this metric, or the protocols differ.
    """
    if level is not None and not math.isfinite(level):
        raise ConfigError(f"--level is {level}; it must be a finite number.")
    if metric is not None and metric not in ESTIMATED:
        raise ConfigError(f"--metric is {metric!r}{nearest(metric, ESTIMATED)} Legal are {', '.join(ESTIMATED)}.")
    runs = list({run.path: run for run in map(EvaluatedRun.read, paths)}.values())
    warnings = _check_protocols(runs, anyway) + _check_versions(runs)
    if metric is None:
        told = all(values_of(m.EVAL_SUCCESS_ONCE, run.episodes) for run in runs)
        metric = (m.EVAL_SUCCESS_ONCE if told else m.EVAL_EPISODE_RETURN).name
    chosen = m.CATALOGUE[metric]
    if level is None and chosen.reduction is Mean:
        level = 0.9
    if level is not None and (apart := _apart(runs, [comparable(run.while_training) for run in runs])):
        level = None
        warnings.append(f"When a level was reached is not shown: while training, {'; '.join(apart.values())}.")
    groups = _groups(runs, chosen, level)
    for group in groups:
        seeds = [run.seed for run in group.runs]
        if repeated := sorted({seed for seed in seeds if seeds.count(seed) > 1}):
            warnings.append(
                f"{group.label} holds more than one run with seed {', '.join(map(str, repeated))}: such runs are not "
                "independent, so the intervals are too narrow."
            )
    differences = [_difference(chosen, groups[0], group) for group in groups[1:]]
    return Comparison(metric, level, groups, differences, groups[0].runs[0].protocol, warnings)


def _apart(runs: Sequence[EvaluatedRun], told: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """By key, in which runs it has which value; of the keys that have more than one."""
    found = {}
    for key in dict.fromkeys(key for one in told for key in one):
        values: list[tuple[Any, list[str]]] = []
        for run, one in zip(runs, told, strict=True):
            names = next((names for value, names in values if value == one.get(key)), None)
            if names is None:
                values.append((one.get(key), [run.path.name]))
            else:
                names.append(run.path.name)
        if len(values) > 1:
            each = (f"{value!r} in {', '.join(names)}" for value, names in values)
            found[key] = f"{key} is {' and '.join(each)}"
    return found


def _check_protocols(runs: Sequence[EvaluatedRun], anyway: bool) -> list[str]:
    """Checks that all were evaluated alike; answers with what is to be said about it.

    Raises:
        ConfigError: they were not, and it matters.
    """
    protocols = [comparable(run.protocol) for run in runs]
    apart = _apart(runs, protocols)
    if not apart:
        return []
    found = f"These runs were evaluated under different protocols: {'; '.join(apart.values())}."
    if anyway:
        return [f"{found} Their numbers do not mean the same."]
    commands = []
    for run, theirs in zip(runs[1:], protocols[1:], strict=True):
        keys = [key for key in apart if theirs.get(key) != protocols[0].get(key)]
        if keys and not {"env.eval.name", "env.eval.id"} & {*keys}:
            changes = [f"{key}={json.dumps(protocols[0].get(key))}" for key in keys]  # JSON is YAML
            commands.append(shlex.join(["rlpipe", "evaluate", str(run.path), *changes]))
    alike = ["To evaluate like the first:", *commands] if commands else []
    raise ConfigError("\n".join([found, *alike, "To compare them all the same: --anyway"]))


def _check_versions(runs: Sequence[EvaluatedRun]) -> list[str]:
    """What is to be said about the packages that the evaluations were played with, where they are known."""
    apart: dict[str, str] = {}
    for package in _SIMULATED_BY:
        known = [run for run in runs if package in run.versions]
        apart |= _apart(known, [{package: run.versions[package]} for run in known])
    if not apart:
        return []
    return [f"{'; '.join(apart.values())}: with other versions the same seeds may be other episodes."]


def _groups(runs: Sequence[EvaluatedRun], metric: Metric, level: float | None) -> list[Group]:
    kinds: list[tuple[dict[str, Any], list[EvaluatedRun]]] = []
    for run in runs:
        held = next((members for kind, members in kinds if kind == run.kind), None)
        if held is None:
            kinds.append((run.kind, [run]))
        else:
            held.append(run)
    groups = []
    for kind, members in kinds:
        members.sort(key=lambda run: run.seed)
        each = [estimate(metric, run.episodes) for run in members]
        values = [one.value for one in each if one is not None]
        if len(values) < len(members):
            silent = members[each.index(None)].path
            raise ConfigError(f"{silent} says nothing of {metric.name}: choose another --metric.")
        by_seed = [(run.seed, value) for run, value in zip(members, values, strict=True)]
        reached = None if level is None else _reached(members, metric, level)
        label = _label(kind, [kind for kind, _ in kinds])
        groups.append(Group(label, _pooled(metric, members), by_seed, reached, members))
    return groups


def _pooled(metric: Metric, runs: Sequence[EvaluatedRun]) -> Estimate:
    """What the episodes of all runs say, each of which says something. Where there are several, the bounds also hold
    those of a bootstrap over seeds and episodes: episodes of one seed are not independent of each other."""
    found = estimate(metric, [episode for run in runs for episode in run.episodes])
    assert found is not None
    if found.low is None or found.high is None or len(runs) == 1:
        return found
    low, high = bootstrap_over_runs([values_of(metric, run.episodes) for run in runs])
    return replace(found, low=min(low, found.low), high=max(high, found.high))


def _label(kind: Mapping[str, Any], kinds: Sequence[Mapping[str, Any]]) -> str:
    """The experiment's name, with the keys that tell it from others of that name."""
    namesakes = [other for other in kinds if other[EXPERIMENT] == kind[EXPERIMENT]]
    keys = [
        key
        for key in dict.fromkeys(key for other in namesakes for key in other)
        if any(other.get(key) != namesakes[0].get(key) for other in namesakes)
    ]
    shown = [f"{key}={kind[key]}" for key in keys if key in kind]
    more = [f"and {len(shown) - 3} more"] if len(shown) > 3 else []
    return " ".join([str(kind[EXPERIMENT]), *shown[:3], *more])


def _reached(runs: Sequence[EvaluatedRun], metric: Metric, level: float) -> Reached:
    found = [run.first_reached(metric, level) for run in runs]
    known = [one for one in found if one is not None]
    steps, seconds = (statistics.median([math.inf if one is None else one[axis] for one in found]) for axis in (0, 1))
    once = any(run.evaluations(metric) == 1 for run, one in zip(runs, found, strict=True) if one is not None)
    return Reached(
        len(known),
        len(runs),
        steps if math.isfinite(steps) else None,
        seconds if math.isfinite(seconds) else None,
        once,
    )


def _difference(metric: Metric, first: Group, group: Group) -> Difference:
    ours, theirs = ([values_of(metric, run.episodes) for run in one.runs] for one in (group, first))
    over_seeds = min(len(ours), len(theirs)) > 1
    bounds = [bootstrap_difference(ours, theirs)]
    if metric.reduction is Mean:  # a bootstrap alone would be certain of 400 successes against 400
        counts = [(round(sum(map(sum, values))), sum(map(len, values))) for values in (ours, theirs)]
        bounds.append(newcombe_interval(counts[0], counts[1]))
    low, high = min(low for low, _ in bounds), max(high for _, high in bounds)
    probability: tuple[float, float | None, float | None] | None = None
    if over_seeds:
        chance, least, most = probability_of_improvement(
            [value for _, value in group.by_seed], [value for _, value in first.by_seed]
        )
        probability = (chance, None, None) if least == most else (chance, least, most)
    return Difference(group.label, group.pooled.value - first.pooled.value, low, high, over_seeds, probability)
