"""Schedules: a run with faults, all drawn from a seed. Played, checked against what the docs promise, and shrunk.

Two phases, as in TigerBeetle's simulator: while faults last, what a run has written must be right; once they stop, the
same command must complete it.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import logging
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import rlpipe
from rlpipe.config.schema import Config
from rlpipe.envs.shared.make import make_simulator
from rlpipe.errors import ConfigError, LostRowsError, RunError
from rlpipe.run import checkpoint
from rlpipe.trajectory import SpaceSpec
from tests.helpers.faulty import assert_whole, rows
from tests.helpers.runs import scripted
from tests.helpers.simulated_ray.stubs import EPISODES, in_the_place_of_workers_and_learners
from tests.helpers.simulated_ray.surface import in_the_place_of_ray
from tests.helpers.simulated_ray.world import EPOCH, Actor, Happening, Node, World

ENVIRONMENTS, STEPS = 4, 64
"""Environments of a run, and their steps in an iteration."""
_STARTS = 12
"""Starts of the same command, of which the last ones meet no more faults."""
_LARGE = 120_000
"""Bytes of a batch that can be lost with its node."""
_LEAK = 3 * 2**30
"""Resident bytes of a worker that leaks; its limit is 2 GiB."""
_ENDINGS = (
    "rollout.max_restarts", "runner.max_recoveries", "in a row",  # a budget is spent
    "the solver diverged",  # an actor with state raised
    "cluster.start_timeout", "cluster.placement_timeout",  # a worker was silent, or had no place, at the start
    "found no room",  # nor does the disk at the end
)  # fmt: skip
"""Parts of the messages with which a run may end."""


@dataclass(frozen=True)
class Options:
    """Shape of a run and its cluster."""

    workers: int
    iterations: int
    nodes: int
    pipeline: str
    max_lag: int
    save_interval: int
    val_check_interval: int
    spares: str
    min_workers: int | str
    max_restarts: int
    max_recoveries: int
    max_memory: float | None
    payload: int
    strategy: str

    @classmethod
    def draw(cls, rng: random.Random) -> Options:
        workers = rng.choice([1, 2, 2, 4])
        return cls(
            workers=workers,
            iterations=rng.randint(3, 8),
            nodes=rng.randint(4, 7),
            pipeline=rng.choice(["sync", "ahead", "stream"]),
            max_lag=rng.choice([1, 2]),
            save_interval=rng.choice([1, 2, 3]),
            val_check_interval=rng.choice([0, 2, 3]),
            spares=rng.choice(["never", "after_loss", "always"]),
            min_workers=rng.choice(["all", "all", 1]),
            max_restarts=rng.choice([100, 100, 100, 2]),
            max_recoveries=rng.choice([50, 50, 50, 1]),
            max_memory=rng.choice([None, None, 2.0]),
            payload=rng.choice([0, _LARGE]),
            strategy=rng.choice(["spread", "pack"]),
        )

    def config(self, folder: Path) -> Config:
        return scripted(
            folder,
            f"rollout.num_workers={self.workers}",
            "rollout.timeout=20",
            f"rollout.spares={self.spares}",
            f"rollout.min_workers={self.min_workers}",
            f"rollout.max_restarts={self.max_restarts}",
            *([] if self.max_memory is None else [f"rollout.max_memory={self.max_memory}"]),
            "evaluation.timeout=20",
            "cluster.cpus_per_worker=1",
            "cluster.cpus_per_learner=1",
            f"cluster.strategy={self.strategy}",
            "learner.device=cpu",
            f"runner.pipeline={self.pipeline}",
            *([f"runner.max_lag={self.max_lag}"] if self.pipeline == "stream" else []),
            f"runner.total_timesteps={STEPS * self.iterations}",
            f"runner.save_interval={self.save_interval}",
            f"runner.val_check_interval={self.val_check_interval}",
            f"runner.max_recoveries={self.max_recoveries}",
            "runner.auto_resume=true",
        )


@dataclass(frozen=True)
class SeededFault:
    """Fault of a schedule.

    Attributes:
        kind: of ``KINDS``.
        at: virtual seconds, or number of the call.
        amount: what the kind says.
    """

    kind: str
    at: float
    amount: float


_CALLS = {
    "worker": ("rollout", ("collect", "collect", "collect", "evaluate", "make", "ready", "restart_episodes", "start")),
    "learner": ("learner", ("update", "update", "state", "make", "resume", "snapshot", "start")),
    "logger": ("metric-logger", ("write", "write", "save", "event", "make", "close", "start", "prepare")),
}
"""Role and labels of the calls that fail, by kind."""
KINDS = (
    *_CALLS, "worker raises", "learner raises", "worker silent", "worker stopped", "worker slow", "worker leaks",
    "node", "rack", "learner's node", "drain", "object", "disk", "pause", "driver", "driver during",
)  # fmt: skip


@dataclass(frozen=True)
class Schedule:
    """Run with its faults.

    Attributes:
        name: what the world's own randomness is drawn from.
    """

    name: str
    options: Options
    faults: tuple[SeededFault, ...] = ()

    @classmethod
    def draw(cls, seed: int) -> Schedule:
        """Draws 1 to 4 faults; half of the time, all in one short span."""
        rng = random.Random(f"schedule {seed}")
        options = Options.draw(rng)
        length = 8.0 + 1.6 * options.iterations
        center = rng.uniform(0.0, length) if rng.random() < 0.5 else None

        def moment() -> float:
            return rng.uniform(0.0, length) if center is None else center + rng.uniform(0.0, 3.0)

        kinds = [rng.choice(KINDS) for _ in range(rng.randint(1, 4))]
        return cls(str(seed), options, tuple(_drawn(kind, moment(), options, rng) for kind in kinds))

    def without(self, fault: SeededFault) -> Schedule:
        return replace(self, faults=tuple(other for other in self.faults if other is not fault))


def _drawn(kind: str, moment: float, options: Options, rng: random.Random) -> SeededFault:
    if kind in _CALLS or kind.endswith(("raises", "silent", "slow")):
        calls = options.iterations * (options.workers if kind.startswith("worker") else 1)
        return SeededFault(kind, rng.randint(1, max(1, calls)), rng.random())
    at = {"driver during": rng.randint(1, 900)}.get(kind, round(moment, 3))
    return SeededFault(kind, at, round(rng.random(), 6))


class Faults:
    """Faults of a schedule, set up in a world."""

    def __init__(self, world: World, schedule: Schedule) -> None:
        self._world, self._options = world, schedule.options
        for fault in schedule.faults:
            self._set_up(fault)

    def _set_up(self, fault: SeededFault) -> None:
        world, kind, at, amount = self._world, fault.kind, fault.at, fault.amount
        if kind in _CALLS:
            role, labels = _CALLS[kind]
            rng = random.Random(amount)
            label, when = rng.choice(labels), rng.choice(["before", "after", f"during {rng.randint(1, 40)}"])
            often = label in ("collect", "update", "write", "event", "save")
            world.fates[role, label, int(at) if often else 1 + int(at) % 3] = when
        elif kind == "worker slow":
            world.fates["rollout", "collect", int(at)] = f"slow {60 * amount}"
        elif kind.endswith(("raises", "silent")):
            role, label = ("rollout", "collect") if kind.startswith("worker") else ("learner", "update")
            world.fates[role, label, int(at)] = "raise" if kind.endswith("raises") else "silent"
        elif kind == "disk":
            world.disk_full.append((at, at + 30 * amount))
        elif kind == "driver during":
            world.driver.fuse = int(at)
        else:
            world.after(at, getattr(self, f"_{kind.replace(' ', '_').replace(chr(39), '')}"), amount)

    def stop(self) -> None:
        """Ends all faults; what is lost already stays lost."""
        world = self._world
        world.fates.clear()
        world.disk_full.clear()
        world.paused_until = min(world.paused_until, world.clock)
        world.events = [
            entry for entry in world.events if not isinstance(getattr(entry[3].func, "__self__", 0), Faults)
        ]
        for node in [node for node in world.nodes.values() if node.leaves_at is not None and node.alive]:
            world.lose_node(node, 0.5)
        for actor in list(world.actors):
            world.memory.pop(actor.pid, None)

    def _workers(self) -> list[Actor]:
        return [actor for actor in self._world.actors if actor.role == "rollout" and self._works(actor)]

    def _works(self, actor: Actor) -> bool:
        return actor.cause is None and actor.placed and not actor.silent

    def _nodes(self, actors: Sequence[Actor]) -> list[Node]:
        return [node for node in dict.fromkeys(actor.node for actor in actors) if node is not self._world.head]

    def _pick(self, things: Sequence[Any], amount: float) -> Any:
        return things[int(amount * len(things))] if things else None

    def _worker_stopped(self, amount: float) -> None:
        if (actor := self._pick(self._workers(), amount)) is not None:
            self._world.fall_silent(actor, stopped=True)

    def _worker_leaks(self, amount: float) -> None:
        if (actor := self._pick(self._workers(), amount)) is not None:
            self._world.memory[actor.pid] = _LEAK

    def _node(self, amount: float) -> None:
        self._lose(self._pick(self._nodes(self._workers()), amount), amount)

    def _learners_node(self, amount: float) -> None:
        learners = [actor for actor in self._world.actors if actor.role == "learner" and self._works(actor)]
        self._lose(self._pick(self._nodes(learners), amount), amount)

    def _rack(self, amount: float) -> None:
        if (node := self._pick(self._nodes(self._workers()), amount)) is not None:
            for other in [other for other in self._world.nodes.values() if other.rack == node.rack]:
                self._lose(other, amount)

    def _lose(self, node: Node | None, amount: float) -> None:
        """Loses a node, which Ray notices 1 to 16 s later; another joins after up to 20 s."""
        if node is not None and node is not self._world.head:
            self._world.lose_node(node, 1 + 15 * amount**2)
            self._world.after(20 * amount, self._world.join_node)

    def _drain(self, amount: float) -> None:
        actors = [actor for actor in self._world.actors if self._works(actor)]
        if (node := self._pick(self._nodes(actors), amount)) is not None:
            self._world.drain(node, 60 * amount)
            self._world.after(10 * amount, self._world.join_node)

    def _object(self, amount: float) -> None:
        large = [ref for ref in self._world.large if ref.blob is not None]
        if (ref := self._pick(large, amount)) is not None:
            self._world.lose(ref)

    def _pause(self, amount: float) -> None:
        self._world.paused_until = self._world.clock + 50 * amount

    def _driver(self, amount: float) -> None:
        self._world.end(self._world.driver, "killed")


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
        """Hash of every file of the runs, without the path of their folder."""
        digest = hashlib.sha256()
        for file in sorted(self.folder.rglob("*")):
            if file.is_file():
                digest.update(str(file.relative_to(self.folder)).encode())
                digest.update(file.read_bytes().replace(str(self.folder).encode(), b"FOLDER"))
        return digest.hexdigest()


class BrokenPromiseError(AssertionError):
    """A schedule ended in a way that the docs do not promise."""


@cache
def _spec() -> SpaceSpec:
    config = scripted(Path("/nowhere"))
    simulator = make_simulator(config.env.train, 1, lambda _: 1, lambda _: None, allotment=None)
    try:
        return simulator.spec
    finally:
        simulator.close()


@contextlib.contextmanager
def on_a_simulated_cluster(
    folder: Path, *, stubs: bool = True, payload: int = 0, seed: str = "directed", nodes: int = 6
) -> Iterator[World]:
    """Has runs below a folder use a cluster in virtual time; without ``stubs``, the workers and learners of rlpipe."""
    world = World(seed, nodes=nodes, folder=folder)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_quiet())
        if stubs:
            stack.enter_context(in_the_place_of_workers_and_learners(_spec(), payload))
        stack.enter_context(in_the_place_of_ray(world))
        yield world


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("rlpipe", "ray.exceptions")]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, disabled in zip(loggers, before, strict=True):
            logger.disabled = disabled


def play(schedule: Schedule, folder: Path) -> Played:
    """Starts the same command until its run completes; after an ending by itself, or many kills, faults stop.

    Raises:
        BrokenPromiseError: the run ended in a way that is not documented.
    """
    options, folder = schedule.options, folder.resolve()
    config = options.config(folder)
    with on_a_simulated_cluster(folder, payload=options.payload, seed=schedule.name, nodes=options.nodes) as world:
        played = Played(schedule, world, folder)
        faults = Faults(world, schedule)
        for number in range(_STARTS):
            played.starts.append(start := Start(len(world.log)))
            start.ending = _train(world, config)
            if start.ending == "completed":
                return played
            if start.ending != "killed" or number > _STARTS // 2:
                faults.stop()
            world.restart_driver()
    raise BrokenPromiseError(f"the run did not complete in {_STARTS} starts: {[s.ending for s in played.starts]}")


def _train(world: World, config: Config) -> str:
    """Trains once; returns how that ended."""
    try:
        rlpipe.train(config)
    except BaseException as error:
        if world.driver.cause is not None:
            return "killed"
        ending = isinstance(error, RunError | ConfigError | LostRowsError) and any(
            part in str(error) for part in _ENDINGS
        )
        # A start, a resume and a return to a checkpoint need room on the disk.
        full = isinstance(error, ConfigError | OSError) and "No space left" in str(error) and world.disk_was_full
        if not (ending or full):
            raise BrokenPromiseError(f"the run ended with {type(error).__name__}: {error}") from error
        return str(error)
    return "completed"


# --- the oracle


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


def _check_events(played: Played, contents: dict[str, Any]) -> None:
    """Checks that events tell of each loss, and of nothing else."""
    files = [run / "events.jsonl" for run in _runs(played)]
    events = [event for file in files if file.is_file() for event in rows(file.parent, file.name)]
    reports = [event["data"] for event in events if event["kind"] in ("restarted", "recovered", "failed")]
    processes = [data["pid"] for data in reports if "pid" in data]
    assert len(processes) == len({*processes}), f"events tell twice of a process: {processes}"
    never_started = Counter(data["part"] for data in reports if "pid" not in data)
    for name, entry in losses(played):
        if entry.pid not in processes:
            assert never_started[name], f"no event tells that {name} was lost: {entry}"
            never_started[name] -= 1
    ended = {entry.pid for entry in played.world.log if entry.what in ("end", "silent", "stopped")}
    assert {*processes} <= ended, f"events tell of processes that did not end: { {*processes} - ended }"
    again = Counter(
        event["iteration"] for event in rows(played.run, "events.jsonl") if event["kind"] in ("recovered", "resumed")
    )
    after = contents.get("resumed_after", [])
    assert Counter(after) <= again, f"the run was resumed after {after}, and its events tell of {again}"
    assert contents["incarnation"] >= len(after)  # a second loss interrupts a recovery


def _runs(played: Played) -> list[Path]:
    return sorted(file.parent for file in played.folder.glob("*/*/run.json"))


def losses(played: Played) -> list[tuple[str, Happening]]:
    """Lists the ends of actors that a run has noticed, with their names: another actor took their place, and a row was
    written afterwards by the same start."""
    log, noticed = played.world.log, []
    written = [row["time"] - EPOCH for run in _runs(played) for row in _all_rows(run)]
    bounds = [start.first for start in played.starts] + [len(log)]
    for first, last in itertools.pairwise(bounds):
        noticed += _losses_of_start(log[first:last], written)
    return noticed


def _all_rows(run: Path) -> list[dict[str, Any]]:
    """Rows of a run, also those that were rolled back."""
    files = [run / "metrics.jsonl", *run.glob("discarded-*-metrics.jsonl")]
    return [json.loads(line) for file in files if file.is_file() for line in file.read_text().splitlines()]


def _losses_of_start(log: Sequence[Happening], written: Sequence[float]) -> list[tuple[str, Happening]]:
    holders: dict[str, Happening] = {}
    ends = {entry.pid: entry for entry in reversed(log) if entry.what in ("end", "silent", "stopped")}
    until = log[-1].time if log else 0.0
    for entry in log:
        if entry.what == "end" and entry.cause == "its driver died":
            until = min(until, entry.time)
    noticed = []
    for entry in log:
        if entry.what != "holds":
            continue
        before, holders[entry.name] = holders.get(entry.name), entry
        if before is None or (end := ends.get(before.pid)) is None or end.cause == "its driver died":
            continue
        if end.cause == "ray.kill" and not before.name.startswith("rollout"):  # because another actor was lost
            continue
        if any(entry.time < moment <= until for moment in written):
            noticed.append((entry.name, end))
    return noticed


# --- seeds


def report(schedule: Schedule, error: BaseException, shrunk: Schedule) -> str:
    """Returns what a failing seed means, as a text."""
    lines = [f"seed {schedule.name}: {type(error).__name__}: {error}", f"  {schedule.options}"]
    lines += [f"  {fault}" for fault in schedule.faults]
    lines += [f"it still fails with {len(shrunk.faults)} of them:", *(f"  {fault}" for fault in shrunk.faults)]
    return "\n".join(lines)


def trial(schedule: Schedule, folder: Path | None = None) -> str:
    """Plays and checks a schedule; returns the hash of what it wrote."""
    with contextlib.ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="schedule-")))
        played = play(schedule, folder)
        check(played)
        return played.digest()


def fails(schedule: Schedule) -> BaseException | None:
    """Returns what goes wrong in a schedule; None if nothing does."""
    try:
        trial(schedule)
    except Exception as error:
        return error
    return None


def shrink(schedule: Schedule, still_fails: Callable[[Schedule], Any] = fails) -> Schedule:
    """Drops faults one by one as long as the schedule still fails."""
    for fault in schedule.faults:
        if still_fails(smaller := schedule.without(fault)):
            return shrink(smaller, still_fails)
    return schedule


def failures(seeds: Sequence[int], *, repeat_every: int = 20) -> list[str]:
    """Tries the schedules of seeds, every 20th twice; returns a report on each that fails."""
    reports = []
    for seed in seeds:
        schedule = Schedule.draw(seed)
        try:
            first = trial(schedule)
            if seed % repeat_every == 0:
                assert trial(schedule) == first, "the same seed has written other bytes"
        except Exception as error:
            reports.append(report(schedule, error, shrink(schedule)))
    return reports
