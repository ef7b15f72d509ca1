"""Completed runs as a comparison reads them: configuration, protocol, and the episodes of the last evaluation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlpipe.analysis.evaluation_report import results_of
from rlpipe.config.defaults import completed
from rlpipe.config.fields import Affects, affected_by
from rlpipe.config.protocol import comparable
from rlpipe.config.schema import Config
from rlpipe.errors import ConfigError, command_line
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.declaration import Metric
from rlpipe.metrics.row import Status
from rlpipe.run.directory import RunDirectory, read_jsonl
from rlpipe.trajectory import Episode

EXPERIMENT = "runner.logger.experiment_name"
ORIGINS = {
    "policy.warm_start": "environment steps are counted from the warm start on",
    "policy.base": "environment steps do not include those of the base",
}
"""Keys that name the run of another policy, and what that means for a comparison."""
UPDATE_TO_DATA = "algorithm.update_to_data"


def kind_of(config: Mapping[str, Any], protocol: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a configuration without what may differ between runs of one experiment, such as the seed and logging.

    How a run was evaluated is taken from the protocol of its evaluation.
    """
    kind = {key: value for key, value in config.items() if Affects.COMPARISON in affected_by(Config, key)}
    for key in ORIGINS:
        if (origin := config.get(key)) is not None:
            kind[key] = _experiment(origin)  # the experiment may have one run per seed
    return kind | {EXPERIMENT: config[EXPERIMENT]} | comparable(protocol)


@dataclass(frozen=True)
class EvaluatedRun:
    """Completed run, with the evaluation of its last iteration.

    Attributes:
        path: run directory
        seed: ``runner.seed``
        config: full configuration by dotted key
        source: file that holds the episodes
        protocol: protocol of the evaluation
        versions: versions of packages, as far as known
        episodes: all episodes of the evaluation
        while_training: protocol of the evaluations in ``metrics.jsonl``
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
    def read(cls, path: Path, under: Mapping[str, Any] | None = None) -> EvaluatedRun:
        """Reads a run directory: the newest record of ``rlpipe evaluate``, else the evaluation at the end of the run.

        Args:
            path: run directory
            under: protocol of the evaluation to read; None for any
        Raises:
            ConfigError: it is not a run directory, the run is not complete, or its last iteration was not evaluated.
        """

        def matches(protocol: Mapping[str, Any]) -> bool:
            return under is None or comparable(protocol) == comparable(under)

        directory = RunDirectory.existing(path)
        path, run = directory.path, directory.read_json()
        if run["status"] != Status.COMPLETED:
            raise ConfigError(
                f"{path} is not complete: its status is {run['status']}. Resume it with: "
                f"{command_line('train', '--resume', path)}"
            )
        newest = max(read_jsonl(path / "metrics.jsonl"), key=lambda row: row["iteration"], default=None)
        last = 0 if newest is None else newest["iteration"]
        config = completed(directory.read_config())
        records: Iterator[tuple[Path, Mapping[str, Any]]] = (
            (file, record) for file, record in results_of(path, last) if matches(record["protocol"])
        )
        source, evaluation = next(records, (path / "eval_episodes.jsonl", run))
        rows = evaluation.get("episodes", [])
        if evaluation is run:
            there = source.is_file() and matches(run["protocol"])
            rows = [row for row in read_jsonl(source) if row["iteration"] == last] if there else []
            had = 0 if newest is None else newest["metrics"].get(m.EVAL.num_trajectories.name, 0)
            if there and len(rows) < had:
                raise ConfigError(
                    f"{source} holds {len(rows):,} of the {had:,.0f} episodes that iteration {last} was evaluated on: "
                    f"the others are lost. Evaluate it again with: {command_line('evaluate', path)}"
                )
        if not rows:
            such, how = ("", "") if under is None else (" under that protocol", ", and the options in which it differs")
            raise ConfigError(
                f"{path} has no evaluation of its last iteration, {last}{such}. Evaluate it with: "
                f"{command_line('evaluate', path)}{how}"
            )
        episodes = [Episode.from_row(row) for row in rows]
        return cls(
            path, config["runner.seed"], config, source, evaluation["protocol"], evaluation.get("versions", {}),
            episodes, run["protocol"],
        )  # fmt: skip

    @property
    def kind(self) -> dict[str, Any]:
        """Settings that the run has in common with others of its experiment, as of ``kind_of``."""
        return kind_of(self.config, self.protocol)

    @property
    def repeats(self) -> bool:
        """True if its episodes follow from their seeds, so that another evaluation has the same ones."""
        return all(episode.seed is not None for episode in self.episodes)

    def first_reached(self, metric: Metric, level: float) -> tuple[float, float] | None:
        """Returns the environment steps and seconds of training after which an evaluation first reached a level."""
        for row in read_jsonl(self.path / "metrics.jsonl"):
            if row["metrics"].get(metric.name, -math.inf) >= level:
                if (seconds := row["metrics"].get(m.TIME_ELAPSED.name)) is None:
                    raise ConfigError(
                        f"{self.path / 'metrics.jsonl'} does not say when iteration {row['iteration']} ended: "
                        f"metrics.{m.TIME_ELAPSED.name} is missing."
                    )
                return row["total_timesteps"], seconds
        return None

    @property
    def fixes_gradient_steps(self) -> bool:
        """False if the run took as many gradient steps as fit while workers collected."""
        return self.config.get(UPDATE_TO_DATA, 0.0) is not None

    def update_to_data(self) -> float | None:
        """Returns the gradient steps for each environment step that the run took, once it had begun to learn.

        None if it took none, or does not say how many.
        """
        gradient_steps = collected = before = 0.0
        for row in read_jsonl(self.path / "metrics.jsonl"):
            steps, before = row["total_timesteps"] - before, row["total_timesteps"]
            if ratio := row["metrics"].get(m.UPDATE_TO_DATA.name):
                gradient_steps, collected = gradient_steps + ratio * steps, collected + steps
        return gradient_steps / collected if collected else None

    def evaluations(self, metric: Metric) -> int:
        """Counts the iterations in which the metric was measured."""
        return sum(metric.name in row["metrics"] for row in read_jsonl(self.path / "metrics.jsonl"))


def _experiment(origin: str) -> str:
    """Returns the experiment of a named run directory, with the file of a named checkpoint in it; else the name."""
    path = Path(origin)
    if path.parent.name == "checkpoints":
        return f"{path.parent.parent.parent.name}/{path.name}"
    return origin if path.suffix == ".npz" else path.parent.name or origin
