"""Oracle of schedules: what docs/reliability.md promises of a run that has completed."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlpipe.collection.host import worker_names
from rlpipe.run import checkpoint
from tests.helpers.faulty import assert_whole, rows
from tests.helpers.simulated_ray.schedules import ENVIRONMENTS, STEPS, Options, Schedule
from tests.helpers.simulated_ray.stubs import EPISODES
from tests.helpers.simulated_ray.world import EPOCH, Happening, World


@dataclass
class Start:
    """Start of the command, and how it ended.

    Attributes:
        first: index of its first entry in the world's log.
        ending: ``completed``, ``killed``, or the message of its error.
    """

    first: int
    ending: str = ""


@dataclass
class Played:
    """Schedule that was played: its world, starts and run directories, the newest last."""

    schedule: Schedule
    world: World
    folder: Path
    starts: list[Start] = field(default_factory=list)

    @property
    def run(self) -> Path:
        return max(self.folder.glob("*/*/run.json"), key=lambda file: file.parent.name).parent

    def digest(self) -> str:
        """Hash of every file of the runs."""
        digest = hashlib.sha256()
        for file in sorted(self.folder.rglob("*")):
            if file.is_file():
                digest.update(str(file.relative_to(self.folder)).encode())
                digest.update(file.read_bytes())
        return digest.hexdigest()


def check(played: Played) -> None:
    """Checks everything that a completed run has written.

    Raises:
        AssertionError: a promise of docs/reliability.md does not hold.
    """
    options, run = played.schedule.options, played.run
    assert_whole(run, options.iterations)
    _check_counts(rows(run), options)
    contents = json.loads((run / "run.json").read_text())
    assert contents["status"] == "completed", contents["status"]
    assert "cause" not in contents
    assert checkpoint.newest(run).meta["iteration"] == options.iterations
    _check_events(played, contents)


def _check_counts(written: Sequence[dict[str, Any]], options: Options) -> None:
    """Checks that each row counts the fragments that arrived, and nothing else."""
    total, each = 0, ENVIRONMENTS // options.workers
    for metrics in (row["metrics"] for row in written):
        reporting = metrics["time/workers_reporting"]
        if options.min_workers == "all":
            assert reporting == options.workers, f"{reporting} of {options.workers} workers reported"
        total += STEPS // options.workers * int(reporting)
        assert metrics["time/total_timesteps"] == total
        assert metrics["env/num_trajectories"] == EPISODES * each * reporting
        lag = metrics["rollout/policy_lag_max"]
        assert lag <= {"sync": 0, "ahead": 1, "stream": options.max_lag}[options.pipeline], f"a lag of {lag}"


@dataclass(frozen=True)
class Loss:
    """End of an actor in whose place another one was put.

    Attributes:
        name: of the part of the run that it played.
        end: how it ended.
        replaced_at: virtual seconds at which its successor started.
    """

    name: str
    end: Happening
    replaced_at: float

    @property
    def has_state(self) -> bool:
        return not self.name.startswith("rollout")


def _check_events(played: Played, contents: dict[str, Any]) -> None:
    """Checks that events tell of each loss, and of nothing else."""
    files = [run / "events.jsonl" for run in _runs(played)]
    events = [event for file in files if file.is_file() for event in rows(file.parent, file.name)]
    reports = [event["data"] for event in events if event["kind"] in ("restarted", "recovered", "failed")]
    processes = [data["pid"] for data in reports if "pid" in data]
    assert len(processes) == len({*processes}), f"events tell twice of a process: {processes}"
    ended = {entry.pid for entry in played.world.log if entry.what in ("end", "silent", "stopped")}
    assert {*processes} <= ended, f"events tell of processes that did not end: { {*processes} - ended }"
    parts = [data["part"] for data in reports if "pid" not in data]
    never_started = Counter(
        name for part in parts for name in (worker_names(part) if part.startswith("rollout") else [part])
    )
    losses = _losses(played)
    # The run itself ends all actors with state when one is lost; then it need not notice that another was gone as well.
    recoveries = [loss.replaced_at for loss in losses if loss.has_state and loss.end.pid in processes]
    for loss in losses:
        with_another = loss.has_state and any(abs(moment - loss.replaced_at) < 0.1 for moment in recoveries)
        if loss.end.pid in processes or with_another:
            continue
        if loss.end.cause != "ray.kill" or not loss.has_state:
            assert never_started[loss.name], f"no event tells of {loss}"
            never_started[loss.name] -= 1
    again = Counter(
        event["iteration"] for event in rows(played.run, "events.jsonl") if event["kind"] in ("recovered", "resumed")
    )
    after = contents.get("resumed_after", [])
    assert Counter(after) <= again, f"the run was resumed after {after}, and its events tell of {again}"
    assert contents["incarnation"] >= len(after)  # a second loss interrupts a recovery


def _runs(played: Played) -> list[Path]:
    return sorted(file.parent for file in played.folder.glob("*/*/run.json"))


def _losses(played: Played) -> list[Loss]:
    """Lists what a run has noticed: another actor took the place, and the same start wrote a row afterwards."""
    log, written = played.world.log, [row["time"] - EPOCH for run in _runs(played) for row in _all_rows(run)]
    bounds = [start.first for start in played.starts] + [len(log)]
    starts = (log[first:last] for first, last in itertools.pairwise(bounds))
    return [loss for start in starts for loss in _losses_of_start(start, written)]


def _all_rows(run: Path) -> list[dict[str, Any]]:
    """Rows of a run, also those that were rolled back."""
    files = [run / "metrics.jsonl", *run.glob("discarded-*-metrics.jsonl")]
    return [json.loads(line) for file in files if file.is_file() for line in file.read_text().splitlines()]


def _losses_of_start(log: Sequence[Happening], written: Sequence[float]) -> list[Loss]:
    ends: dict[int, Happening] = {}  # so far: the end of a process whose workers have moved is no loss
    started = {entry.pid: entry.time for entry in log if entry.what == "start"}
    until = min((entry.time for entry in log if entry.cause == "its driver died"), default=log[-1].time)
    holders: dict[str, Happening] = {}
    losses = []
    for entry in log:
        if entry.what in ("end", "silent", "stopped"):
            ends.setdefault(entry.pid, entry)
        if entry.what == "holds":
            before, holders[entry.name] = holders.get(entry.name), entry
            end = None if before is None else ends.get(before.pid)
            noticed = any(entry.time < moment <= until for moment in written)
            if end is not None and end.cause != "its driver died" and noticed:
                losses.append(Loss(entry.name, end, started[entry.pid]))
    return losses
