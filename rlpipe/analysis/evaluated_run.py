"""Completed runs as a comparison reads them: configuration, protocol, and the episodes of the last evaluation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlpipe import files
from rlpipe.analysis.evaluation_report import BASELINES, EVALUATIONS, results_of
from rlpipe.config.defaults import completed
from rlpipe.config.fields import Affects, affected_by
from rlpipe.config.protocol import BASELINE_NAMES, comparable
from rlpipe.config.schema import Config
from rlpipe.errors import ConfigError, command_line
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.declaration import Metric
from rlpipe.metrics.row import Status
from rlpipe.run import shapes
from rlpipe.run.directory import RunDirectory, read_jsonl
from rlpipe.run.replays import FOLDER as REPLAYS
from rlpipe.run.replays import ReplayFolder, set_name
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
        while_training: protocol of the evaluations in ``metrics.jsonl``; empty for a record that was named itself
        iteration: iteration whose weights acted; 0 for a policy that was not trained here
        policy: name of a policy that was not trained here; None for the policy of a run
        record: label of a record that was named itself; None for a run
        checkpoint: path of the checkpoint that a record is of; None for a run, and for a policy from elsewhere
        against: policy against which a record was made until it was decided; None where it was not
    """

    path: Path
    seed: int
    config: dict[str, Any]
    source: Path
    protocol: dict[str, Any]
    versions: dict[str, str]
    episodes: list[Episode] = field(repr=False)
    while_training: dict[str, Any]
    iteration: int = 0
    policy: str | None = None
    record: str | None = None
    checkpoint: str | None = None
    against: str | None = None

    @classmethod
    def of_record(cls, file: Path) -> EvaluatedRun:
        """Reads a record of ``rlpipe evaluate``, of whichever checkpoint or policy.

        Args:
            file: such as ``RUN/evaluations/3.json`` or ``runs/floors/2.json``
        Raises:
            ConfigError: it is not such a record.
        """
        record = files.read(file, shapes.EvaluationRecord)
        protocol, policy = record["protocol"], record.get("policy")
        episodes = [Episode.from_row(row) for row in record["episodes"]]
        return cls(
            file.resolve(), protocol.get("seed", 0), {}, file, {**protocol}, record.get("versions", {}), episodes, {},
            record["iteration"], policy, _label_of(record), record.get("checkpoint"), record.get("against"),
        )  # fmt: skip

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
            episodes, run["protocol"], last,
        )  # fmt: skip

    @property
    def kind(self) -> dict[str, Any]:
        """Settings that the run has in common with others of its experiment, as of ``kind_of``. A record that was named
        itself has nothing in common with any other."""
        if self.record is not None:
            return {EXPERIMENT: self.record, "record": str(self.source)}
        return kind_of(self.config, self.protocol)

    @property
    def name(self) -> str:
        """Name of the run directory, or the record as it was named."""
        return self.path.name if self.record is None else str(self.source)

    @property
    def replay_set(self) -> tuple[Path, str]:
        """Folder that ``rlpipe replay`` takes, and the name of the set with the replays of these episodes."""
        folder, number = self.source.parent, self.source.stem
        if folder.name == BASELINES:
            return folder, f"floor-{number}"
        if folder.name == EVALUATIONS:
            return folder.parent, f"evaluation-{number}"
        return folder, set_name(self.iteration)

    def replayed(self) -> list[Episode]:
        """Lists the episodes that have a replay, in the order of their numbers; none where a file is damaged."""
        folder, name = self.replay_set
        return ReplayFolder(folder / REPLAYS).episodes(name)

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


def policy_label(policy: str, protocol: Mapping[str, Any]) -> str:
    """Returns the name of a policy that was not trained here: a baseline is called floor, one that repeats
    demonstrations also by their file.

    Args:
        policy: as in a record
        protocol: of the evaluation
    """
    if policy not in BASELINE_NAMES:
        return policy
    if policy != "replay" or protocol.get("demonstrations") is None:
        return f"floor: {policy}"
    some = "" if protocol.get("num_demos") is None else f"{protocol['num_demos']} of "
    return f"floor: {policy} of {some}{Path(protocol['demonstrations']).name}"


def _label_of(record: shapes.EvaluationRecord) -> str:
    """Returns the label of a record: its policy, or the experiment, the seed and the iteration of its checkpoint."""
    if (policy := record.get("policy")) is not None:
        return policy_label(policy, record["protocol"])
    parents = Path(record.get("checkpoint") or "").parents
    experiment = parents[2].name if len(parents) > 2 else ""
    seed = record["protocol"].get("seed", 0)
    changes = "".join(f", {key}={value}" for key, value in record.get("changes", {}).items())
    return f"{experiment or 'checkpoint'} seed {seed}, iteration {record['iteration']}{changes}"


def _experiment(origin: str) -> str:
    """Returns the experiment of a named run directory, with the file of a named checkpoint in it; else the name."""
    path = Path(origin)
    if path.parent.name == "checkpoints":
        return f"{path.parent.parent.parent.name}/{path.name}"
    return origin if path.suffix == ".npz" else path.parent.name or origin
