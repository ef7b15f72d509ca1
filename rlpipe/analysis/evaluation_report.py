"""Result of an evaluation: estimates, protocol, episodes, and its record in a folder."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rlpipe import files
from rlpipe.config.fields import Affects, affected_by
from rlpipe.config.protocol import BASELINE_NAMES, protocol
from rlpipe.config.schema import Config
from rlpipe.config.selection import success_key
from rlpipe.config.tree import from_yaml, leaves, to_yaml
from rlpipe.functional.commitments import canonical_json, merkle_root, sha256_of_arrays
from rlpipe.functional.intervals import (
    bootstrap_interval,
    wilson_interval,
)
from rlpipe.metrics import CATALOGUE, MetricWindow
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.declaration import Metric
from rlpipe.metrics.episode_metrics import forget_success, never_told
from rlpipe.metrics.reductions import Mean
from rlpipe.run import shapes
from rlpipe.run.checkpoint import Checkpoint, subtree
from rlpipe.run.provenance import code_digest, versions
from rlpipe.run.replays import FOLDER as REPLAYS
from rlpipe.run.replays import ReplayFolder, ReplaySet
from rlpipe.trajectory import Episode, Scene
from rlpipe.trajectory.replay import worth_keeping

log = logging.getLogger("rlpipe")


@dataclass(frozen=True)
class EvaluationReport:
    """Result of an evaluation.

    Attributes:
        metrics: the ``eval/`` metrics
        estimates: success, return and length, each with its number of episodes and its 95 % interval
        policy: name of a baseline (``rlpipe.collection.baselines``); None for the policy of a checkpoint
        checkpoint: path of the evaluated checkpoint; None for a baseline
        iteration: iteration after which the checkpoint was written; 0 for a baseline
        protocol: settings that make two success rates comparable
        versions: versions of the packages that the evaluation used
        changes: keys outside of the protocol in which the configuration differs from the checkpoint's, with values
        episodes: all episodes, in the order of their seeds
        record: file that holds all this, for ``rlpipe compare``; None for a checkpoint outside of a run directory
        replays: recorded episodes; None if none were asked for
        scenes: what their bodies look like, by key
        replay_file: file of the replays, for ``rlpipe replay``; None if there is none
        notes: sentences on what the episodes cannot tell
        against: policy against which it was evaluated until that was decided, so that the number of episodes follows
            from their outcomes; None where it was fixed before
        checkpoint_sha256: of the checkpoint file
        weights_sha256: of names, types, shapes and bytes of the weights (``functional.commitments``)
        policy_sha256: of the files of a policy from elsewhere, by what they hold, and of the demonstrations of
            ``replay``; empty where there is no file
        external: how a policy from elsewhere was shown the task (``evaluation.external``); None for all others
        protocol_sha256: of the protocol as canonical JSON
        episodes_root: root of the tree of hashes over all episodes (``root_of``)
        code_sha256: of the files of this package
        machines: facts about the machines that evaluated, on which the bits of an episode may depend
        command: command that makes the evaluation again
    """

    metrics: dict[str, float]
    estimates: list[Estimate]
    policy: str | None
    checkpoint: str | None
    iteration: int
    protocol: dict[str, Any]
    versions: dict[str, str]
    changes: dict[str, Any]
    episodes: list[Episode]
    record: str | None = None
    replays: ReplaySet | None = None
    scenes: Mapping[str, Scene] = field(default_factory=dict)
    replay_file: str | None = None
    notes: list[str] = field(default_factory=list)
    against: str | None = None
    checkpoint_sha256: str | None = None
    weights_sha256: str | None = None
    policy_sha256: dict[str, str] = field(default_factory=dict)
    external: dict[str, Any] | None = None
    protocol_sha256: str = ""
    episodes_root: str = ""
    code_sha256: str = ""
    machines: list[dict[str, Any]] = field(default_factory=list)
    command: str = ""

    @classmethod
    def of(
        cls, window: MetricWindow, config: Config, state: Checkpoint | None = None, policy: str | None = None
    ) -> EvaluationReport:
        """Builds the report from the merged window of an evaluation: of a checkpoint, or of a baseline by its name."""
        notes = list(dict.fromkeys(window.notes))
        told_before = state is not None and m.ENV_SUCCESS_AT_END_MA100.name in state.meta["metrics"]
        if not window.tells_success and not told_before and (untold := forget_success(window, (m.EVAL,))):
            notes.append(never_told(success_key(config.env.eval), untold))
        episodes = sorted(window.eval_episodes, key=lambda e: (e.seed is None, e.seed or 0, e.step, e.slot))
        replays = worth_keeping(window.eval_replays, config.evaluation.replays)
        iteration = 0 if state is None else state.meta["iteration"]
        settings = protocol(config)
        return cls(
            metrics=window.read([metric for name, metric in CATALOGUE.items() if name.startswith("eval/")]),
            estimates=estimates(episodes),
            policy=policy,
            checkpoint=None if state is None else str(state.path),
            iteration=iteration,
            protocol=settings,
            versions=versions(),
            changes={} if state is None else _changes(config, state),
            episodes=episodes,
            replays=ReplaySet(iteration, policy or "", config.env.eval.task_name, replays) if replays else None,
            scenes=window.scenes,
            notes=notes,
            checkpoint_sha256=None if state is None else sha256_of_file(state.path),
            weights_sha256=None if state is None else weights_digest(state),
            external=None if policy in (None, *BASELINE_NAMES) else asdict(config.evaluation.external),
            protocol_sha256=protocol_digest(settings),
            episodes_root=root_of([episode.as_row(iteration) for episode in episodes]),
            code_sha256=code_digest(),
            machines=window.machines,
        )

    @property
    def tasks(self) -> dict[str, list[Estimate]]:
        """Estimates of each task by its label; empty where there is only one."""
        return {task: estimates(episodes) for task, episodes in by_task(self.episodes).items()}

    def as_json(self) -> dict[str, Any]:
        """Returns what ``rlpipe evaluate --json`` prints and the record holds: all fields but files and replays."""
        fields = {name: value for name, value in vars(self).items() if name not in _NOT_RECORDED}
        return {
            **fields,
            "estimates": [asdict(result) for result in self.estimates],
            "tasks": {task: [asdict(result) for result in results] for task, results in self.tasks.items()},
            "episodes": [episode.as_row(self.iteration) for episode in self.episodes],
        }

    def recorded(self, folder: Path | None) -> EvaluationReport:
        """Writes the record into a folder of records, and the replays beside it, if there is one; returns the result.

        Replays of a run lie in its folder ``replays``, those of a baseline in ``replays`` beside its record.
        """
        if folder is None:
            return self
        try:
            record = write_record(folder, self.as_json())
        except OSError as error:
            log.warning("The evaluation could not be recorded in %s: %s", folder, error)
            return self
        return replace(self, record=str(record))._with_replays(folder, record.stem)

    def _with_replays(self, folder: Path, number: str) -> EvaluationReport:
        if self.replays is None:
            return self
        baselines = folder.name == BASELINES
        place = (folder if baselines else folder.parent) / REPLAYS
        kind = "floor" if baselines else "evaluation"
        policy = f" ({self.policy})" if self.policy else ""
        replays = replace(self.replays, source=f"{kind} {number}{policy}")
        try:
            return replace(self, replay_file=str(ReplayFolder(place).write(f"{kind}-{number}", replays, self.scenes)))
        except OSError as error:
            log.warning("The replays could not be written to %s: %s", place, error)
            return self


def _changes(config: Config, state: Checkpoint) -> dict[str, Any]:
    """Returns the keys outside of the protocol in which a configuration differs from a checkpoint's, with values."""
    before, now = (dict(leaves(from_yaml(text))) for text in (state.meta["config"], to_yaml(config)))
    return {
        key: value
        for key, value in now.items()
        if Affects.EVALUATION in affected_by(Config, key)
        and before.get(key, value) != value  # a new version may add keys
    }


EVALUATIONS = "evaluations"
"""Folder of a run directory that holds a record of each ``rlpipe evaluate``."""
_PLACES = ("worker", "slot", "step")
"""Fields of an episode that depend on where it ran."""
_NOT_RECORDED = ("record", "replays", "scenes", "replay_file")
BASELINES = "floors"
"""Folder beside the experiments (``runner.logger.log_path``) with the records of baselines of configurations. Files and
tables say floor, as since the first version; the code says baseline."""
_FIELDS = {
    m.EVAL_SUCCESS_ONCE: "success_once",
    m.EVAL_SUCCESS_AT_END: "success_at_end",
    m.EVAL_SUCCESS_AT_RESET: "success_at_reset",
    m.EVAL_EPISODE_RETURN: "episode_return",
    m.EVAL_EPISODE_LEN: "length",
}
"""Estimated metrics, and the field of an episode that holds each."""
ESTIMATED = [metric.name for metric in _FIELDS]


@dataclass(frozen=True)
class Estimate:
    """Mean over episodes, with its 95 % interval.

    Attributes:
        metric: name of the metric
        value: share of episodes, or mean
        low: lower bound: Wilson's for a share, bootstrapped for a mean; None for the mean of a single episode
        high: upper bound, likewise
        episodes: number of episodes
    """

    metric: str
    value: float
    low: float | None
    high: float | None
    episodes: int


def committed(row: Mapping[str, Any]) -> bytes:
    """Entry of an episode in the tree of hashes: its row as canonical JSON, without what depends on where it ran and
    without what is null or empty, so that fields of later versions change no entry."""
    entry = {key: value for key, value in row.items() if key not in _PLACES and value is not None and value != {}}
    return canonical_json(entry)


def root_of(rows: Iterable[Mapping[str, Any]]) -> str:
    """Root of the tree of hashes over rows of episodes, in the order of their seeds, and of their tasks' names."""
    in_order = sorted(rows, key=lambda row: (row["seed"] is None, row["seed"] or 0, row.get("task") or ""))
    return merkle_root([committed(row) for row in in_order])


def protocol_digest(settings: Mapping[str, Any]) -> str:
    """SHA-256 of a protocol as canonical JSON, as hexadecimal digits."""
    return hashlib.sha256(canonical_json(settings)).hexdigest()


def weights_digest(state: Checkpoint) -> str:
    """SHA-256 of the weights of a checkpoint's policy, as hexadecimal digits."""
    return sha256_of_arrays(subtree("policy/", state.arrays))


def sha256_of_file(path: Path) -> str | None:
    """SHA-256 of a file, as hexadecimal digits; None if a run has meanwhile removed it."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def sha256_of(path: Path) -> str | None:
    """SHA-256 of a file, or of the names and digests of the files of a folder; None if a file was removed meanwhile."""
    if not path.is_dir():
        return sha256_of_file(path)
    inside = sorted(file for file in path.rglob("*") if file.is_file())
    digests = [(file.relative_to(path).as_posix(), sha256_of_file(file)) for file in inside]
    return hashlib.sha256(repr(digests).encode()).hexdigest()


def estimate(metric: Metric, episodes: Sequence[Episode]) -> Estimate | None:
    """Estimates a metric over episodes in any order; None if none of them has a value."""
    values = values_of(metric, episodes)
    if not values:
        return None
    window = MetricWindow()
    window.observe(metric, values)
    value, low, high = metric.read(window.states), None, None
    if metric.reduction is Mean:
        low, high = wilson_interval(round(math.fsum(values)), len(values))
    elif len(values) > 1:
        low, high = bootstrap_interval(values)
    return None if value is None else Estimate(metric.name, value, low, high, len(values))


def estimates(episodes: Sequence[Episode]) -> list[Estimate]:
    """Estimates success once, at the end and at reset, return and length, as far as they are known."""
    results = (estimate(metric, episodes) for metric in _FIELDS)
    return [result for result in results if result is not None]


def by_task(episodes: Sequence[Episode]) -> dict[str, list[Episode]]:
    """Returns the episodes of each task by its label, in the order of their slots; empty for one task."""
    in_order = sorted(episodes, key=lambda episode: episode.slot)
    labels = dict.fromkeys(episode.task for episode in in_order if episode.task is not None)
    return {label: [episode for episode in episodes if episode.task == label] for label in labels}


def values_of(metric: Metric, episodes: Sequence[Episode]) -> list[float]:
    """Returns the value of a metric in each episode that has a finite one."""
    values = (value_of(metric, episode) for episode in episodes)
    return [value for value in values if value is not None]


def value_of(metric: Metric, episode: Episode) -> float | None:
    """Returns the value of a metric in an episode; None where it has none that is finite."""
    value = getattr(episode, _FIELDS[metric])
    return float(value) if value is not None and math.isfinite(value) else None


def folder_of(checkpoint: Path) -> Path | None:
    """Returns the folder for records of a checkpoint; None if it is not in a run directory."""
    run = checkpoint.resolve().parent.parent
    if checkpoint.resolve().parent.name != "checkpoints" or not (run / "run.json").is_file():
        return None
    return run / EVALUATIONS


def write_record(folder: Path, contents: Mapping[str, Any]) -> Path:
    """Adds ``<n>.json`` to a folder of records, whole or not at all, and touches nothing else in it."""
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f".{os.getpid()}.partial"
    try:
        partial.write_text(json.dumps(contents, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        number = max((int(file.stem) for file in records_in(folder)), default=0)
        while True:
            number += 1
            try:
                (folder / f"{number}.json").hardlink_to(partial)  # unlike a rename, never replaces another's record
            except FileExistsError:
                continue
            return folder / f"{number}.json"
    finally:
        partial.unlink(missing_ok=True)


def records_in(folder: Path) -> list[Path]:
    """Lists the records in a folder, the newest first."""
    records = [file for file in folder.glob("*.json") if file.stem.isdecimal()]
    return sorted(records, key=lambda file: int(file.stem), reverse=True)


def results_of(run: Path, iteration: int) -> Iterator[tuple[Path, shapes.EvaluationRecord]]:
    """Yields the records of a run directory that tell its result after an iteration, the newest first: those of
    baselines, of older checkpoints and of other configurations do not, nor those that ended once they were decided."""
    for file in records_in(run / EVALUATIONS):
        record = files.read(file, shapes.EvaluationRecord)
        other = record.get("policy") or record.get("changes") or record.get("against")
        if record["iteration"] == iteration and not other:
            yield file, record
