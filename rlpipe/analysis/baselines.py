"""Baselines beside the results of runs: evaluations of policies that have learnt nothing, under the same protocol."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rlpipe import files
from rlpipe.analysis.evaluated_run import EXPERIMENT, EvaluatedRun, policy_label
from rlpipe.analysis.evaluation_report import BASELINES, EVALUATIONS, Estimate, estimate, records_in
from rlpipe.config.protocol import BASELINE_NAMES, comparable
from rlpipe.metrics.declaration import Metric
from rlpipe.run import shapes
from rlpipe.trajectory import Episode


@dataclass(frozen=True)
class BaselineResult:
    """Result of a baseline.

    Attributes:
        policy: name of the baseline
        demonstrations: file of the demonstrations that ``replay`` repeats; None for other baselines
        num_demos: number of them that it repeats; None for all
        result: the metric over its episodes
        source: its record
    """

    policy: str
    demonstrations: str | None
    num_demos: int | None
    result: Estimate
    source: Path

    @property
    def label(self) -> str:
        """Name of the baseline, with that of the file it repeats."""
        return policy_label(self.policy, {"demonstrations": self.demonstrations, "num_demos": self.num_demos})

    def as_json(self) -> dict[str, Any]:
        """Returns all fields."""
        return {**asdict(self), "source": str(self.source)}


def baselines_of(runs: Sequence[EvaluatedRun], metric: Metric) -> list[BaselineResult]:
    """Returns the newest result of each baseline that ran the same episodes as all of these runs, sorted by its label.

    Records in the directories of the runs come before those of configurations, which lie beside the experiments. One
    that was named itself stands among the runs, and not here.
    """
    named = [run.path for run in runs if run.record is not None]
    protocols = [_episodes_of(run.protocol) for run in runs]
    baselines: dict[str, BaselineResult] = {}
    for source in _records(runs):
        record: Mapping[str, Any] = files.read(source, shapes.EvaluationRecord)
        policy, protocol = record.get("policy"), record["protocol"]
        if (
            policy not in BASELINE_NAMES or record.get("against") is not None
        ):  # whose episodes follow from their outcomes
            continue
        if source.resolve() in named or any(_episodes_of(protocol) != other for other in protocols):
            continue
        result = estimate(metric, [Episode.from_row(row) for row in record["episodes"]])
        if result is not None:
            repeated = protocol if policy == "replay" else {}
            baseline = BaselineResult(policy, repeated.get("demonstrations"), repeated.get("num_demos"), result, source)
            baselines.setdefault(baseline.label, baseline)
    return [baselines[label] for label in sorted(baselines)]


def _episodes_of(protocol: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the part of a protocol on which the result of a baseline depends: it has no most likely actions."""
    return {key: value for key, value in comparable(protocol).items() if key != "evaluation.deterministic"}


def _records(runs: Sequence[EvaluatedRun]) -> Iterator[Path]:
    """Yields the records in the directories of runs, and those beside their experiments."""
    directories = [run for run in runs if run.record is None]
    for run in directories:
        yield from records_in(run.path / EVALUATIONS)
    for folder in dict.fromkeys(map(_folder_of_experiments, directories)):
        yield from records_in(folder / BASELINES)


def _folder_of_experiments(run: EvaluatedRun) -> Path:
    """Returns the folder above that of the experiment, whose name may itself have several parts."""
    folder = run.path.parent
    for _ in Path(run.config[EXPERIMENT]).parts:
        folder = folder.parent
    return folder
