"""Results of finished seeds and measured baselines, read from the files of their runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.sparse_rows.rows import Row
from rlpipe import files
from rlpipe.analysis.evaluated_run import EvaluatedRun
from rlpipe.config.protocol import comparable
from rlpipe.errors import ConfigError
from rlpipe.metrics import catalogue as m
from rlpipe.run import shapes
from rlpipe.run.directory import RunDirectory, read_jsonl
from rlpipe.trajectory import Episode

POINTS = 60
"""Most points of a learning curve."""
_CURRICULUM = {"start": m.CURRICULUM_START.name, "blend": m.CURRICULUM_BLEND.name}
"""How far a curriculum has come, in a learning curve."""


@dataclass(frozen=True)
class Run:
    """A finished run of a sequence.

    Attributes:
        evaluated: configuration, protocol and evaluation
        record: ``run.json``
        rows: ``metrics.jsonl``
    """

    evaluated: EvaluatedRun
    record: dict[str, Any]
    rows: list[dict[str, Any]]

    @classmethod
    def read(cls, path: Path, under: Mapping[str, Any] | None = None) -> Run:
        """Reads a run directory.

        Args:
            path: run directory
            under: protocol of its evaluation; None for any
        Raises:
            ConfigError: the run has not completed, has no such evaluation, or a file is damaged.
        """
        directory = RunDirectory.existing(path)
        evaluated = EvaluatedRun.read(path, under)
        return cls(evaluated, directory.read_json(), list(read_jsonl(directory.path / "metrics.jsonl")))

    def last(self, metric: str) -> float | None:
        """Returns the value of a metric in the last iteration, if it has one."""
        value: float | None = self.rows[-1]["metrics"].get(metric)
        return value

    @property
    def environment_steps(self) -> int:
        """Environment steps of the run."""
        return int(self.rows[-1]["total_timesteps"])

    @property
    def gradient_steps(self) -> int:
        """Optimiser steps of the run."""
        return int(self.last(m.NUM_UPDATES.name) or 0)

    @property
    def seconds(self) -> float:
        """Wall clock of all iterations, over resumes, with the evaluation and without what comes before the first."""
        return float(self.last(m.TIME_ELAPSED.name) or 0.0)

    @property
    def demonstrations(self) -> int | None:
        """Number of demonstrations that the run used; None if it does not say."""
        if self.evaluated.protocol["demonstrations"] is None:
            return 0
        counted = self.last(m.DEMO_TRAJECTORIES.name)
        return self.evaluated.protocol["num_demos"] if counted is None else int(counted)

    @property
    def cores(self) -> int:
        """Cores that the run could use: one of a run in one process with one thread, else those of its machines."""
        cluster = self.record["cluster"]
        alone = cluster["mode"] == "local" and self.evaluated.config["learner.num_threads"] == 1
        return 1 if alone else sum(int(node["cpus"]) for node in cluster["nodes"])


def learnt(row: Row, paths: Sequence[Path], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the result of one seed.

    Args:
        row: what was run
        paths: run directory of each command, in order
        facts: what only the process that ran them knows
    Raises:
        ConfigError: a run is not complete, reports no success, or used another number of demonstrations.
    """
    runs = [*(Run.read(path) for path in paths[:-1]), Run.read(paths[-1], row.protocol)]
    used = [count for count in (run.demonstrations for run in runs) if count is not None]
    if used and max(used) != row.demonstrations:
        raise ConfigError(
            f"row {row.name} declares {row.demonstrations} demonstrations, but {paths[-1]} learnt from {max(used)}: "
            "correct the row."
        )
    last = runs[-1]
    algorithms = [str(run.evaluated.config["algorithm.name"]) for run in runs]
    return {
        "settings": row.settings,
        **facts,
        "created": runs[0].record["created"],
        "versions": last.evaluated.versions,
        "mode": last.record["cluster"]["mode"],
        "cores": max(run.cores for run in runs),
        "algorithm": ", then ".join(algorithms),
        "demonstrations": row.demonstrations,
        "environment_steps": sum(run.environment_steps for run in runs),
        "gradient_steps": sum(run.gradient_steps for run in runs),
        "seconds": round(sum(run.seconds for run in runs), 1),
        **evaluated(last.evaluated.protocol, last.evaluated.episodes, str(paths[-1])),
        "curve": curve(last.rows, [(run.environment_steps, run.seconds) for run in runs[:-1]]),
    }


def is_evaluated(row: Row, path: Path) -> bool:
    """Says if a run has been evaluated as a row asks."""
    try:
        EvaluatedRun.read(path, row.protocol)
    except ConfigError:
        return False
    return True


def baseline(row: Row, source: Path, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the result of a baseline.

    Args:
        row: what was run
        source: record of the evaluation
        facts: what only the process that ran it knows
    Raises:
        ConfigError: the record is damaged, or reports no success.
    """
    record = files.read(source, shapes.EvaluationRecord)
    episodes = [Episode.from_row(line) for line in record["episodes"]]
    return {
        "settings": row.settings,
        **facts,
        "versions": record.get("versions", {}),
        **evaluated(record["protocol"], episodes, str(source)),
    }


def evaluated(protocol: Mapping[str, Any], episodes: Sequence[Episode], where: str) -> dict[str, Any]:
    """Returns protocol and outcomes of an evaluation; an outcome is a digit, in the order of the seeds.

    Raises:
        ConfigError: an episode of the protocol is missing, or does not say whether it succeeded.
    """
    ordered = sorted(episodes, key=lambda episode: episode.seed or 0)
    first, count = protocol["evaluation_first_seed"], protocol["evaluation_episodes"]
    if [episode.seed for episode in ordered] != list(range(first, first + count)):
        raise ConfigError(f"{where} does not hold the {count} episodes from seed {first} on, each once.")
    return {
        "protocol": comparable(protocol),
        "n": count,
        "success_once": _digits(ordered, lambda episode: episode.success_once, where),
        "success_at_end": _digits(ordered, lambda episode: episode.success_at_end, where),
    }


def _digits(episodes: Sequence[Episode], outcome: Callable[[Episode], bool | None], where: str) -> str:
    found = [outcome(episode) for episode in episodes]
    if None in found:
        raise ConfigError(f"{where} does not say whether an episode succeeded: this simulator has no success.")
    return "".join("1" if one else "0" for one in found)


def curve(rows: Sequence[Mapping[str, Any]], before: Sequence[tuple[int, float]] = ()) -> dict[str, Any]:
    """Returns a learning curve of at most ``POINTS`` points, as lists of equal length.

    Each point pools the episodes of consecutive iterations, and stands at the end of the last of them. They are those
    of the evaluations if there are several, otherwise the training episodes that began as the task draws them.

    Args:
        rows: ``metrics.jsonl``
        before: environment steps and seconds of each run that came before
    """
    evaluations = [row for row in rows if m.EVAL_SUCCESS_ONCE.name in row["metrics"]]
    periodic = len(evaluations) > 1
    counted_as = m.EVAL if periodic else m.ENV
    rate, count = counted_as.success_once.name, counted_as.num_trajectories.name
    chosen = evaluations if periodic else list(rows)
    steps, seconds = (sum(one[axis] for one in before) for axis in (0, 1))
    points: dict[str, list[Any]] = {name: [] for name in ("steps", "seconds", "success", "episodes", *_CURRICULUM)}
    for index in np.array_split(np.arange(len(chosen)), min(POINTS, len(chosen))):
        metrics = [chosen[i]["metrics"] for i in index]
        counted = [(one[rate], one[count]) for one in metrics if rate in one]
        episodes = sum(n for _, n in counted)
        points["steps"].append(steps + chosen[index[-1]]["total_timesteps"])
        points["seconds"].append(round(seconds + metrics[-1].get(m.TIME_ELAPSED.name, 0.0), 1))
        points["success"].append(round(sum(p * n for p, n in counted) / episodes, 4) if episodes else None)
        points["episodes"].append(int(episodes))
        for name, metric in _CURRICULUM.items():
            points[name].append(next((round(one[metric], 4) for one in metrics[::-1] if metric in one), None))
    return {"of": "evaluation" if periodic else "training", **points}
