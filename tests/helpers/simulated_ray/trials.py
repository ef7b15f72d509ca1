"""Plays schedules and checks them; reports and shrinks those that fail.

Two phases, as in TigerBeetle's simulator: while faults last, what a run has written must be right; once they stop, the
same command must complete it.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import rlpipe
from rlpipe.config.schema import Config
from rlpipe.envs.shared.make import make_simulator
from rlpipe.errors import ConfigError, LostRowsError, RunError
from rlpipe.trajectory import SpaceSpec
from tests.helpers.runs import scripted
from tests.helpers.simulated_ray.oracle import Played, Start, check
from tests.helpers.simulated_ray.schedules import Faults, Schedule
from tests.helpers.simulated_ray.stubs import in_the_place_of_workers_and_learners
from tests.helpers.simulated_ray.surface import in_the_place_of_ray
from tests.helpers.simulated_ray.world import World

_STARTS = 12
"""Starts of the same command, of which the last ones meet no more faults."""
_ENDINGS = (
    "rollout.max_restarts", "runner.max_recoveries", "in a row",  # a budget is spent
    "the solver diverged",  # an actor with state raised
    "cluster.start_timeout", "cluster.placement_timeout",  # a worker was silent, or had no place, at the start
    "found no room",  # nor does the disk at the end
)  # fmt: skip
"""Parts of the messages with which a run may end."""


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


def report(schedule: Schedule, error: BaseException, shrunk: Schedule) -> str:
    """Returns what a failing seed means, as a text."""
    lines = [f"seed {schedule.name}: {type(error).__name__}: {error}", f"  {schedule.options}"]
    lines += [f"  {fault}" for fault in schedule.faults]
    lines += [f"it still fails with {len(shrunk.faults)} of them:", *(f"  {fault}" for fault in shrunk.faults)]
    return "\n".join(lines)


def trial(schedule: Schedule, *, twice: bool = False) -> None:
    """Plays and checks a schedule.

    Args:
        twice: play it a second time, which must write the same bytes.
    Raises:
        AssertionError: a promise does not hold.
    """
    with tempfile.TemporaryDirectory(prefix="schedule-") as folder:
        played = play(schedule, Path(folder, "runs"))
        check(played)
        if twice:
            digest = played.digest()
            shutil.rmtree(played.folder)
            assert play(schedule, played.folder).digest() == digest, "the same seed has written other bytes"


def fails(schedule: Schedule, *, twice: bool = False) -> Exception | None:
    """Returns what goes wrong in a schedule; None if nothing does."""
    try:
        trial(schedule, twice=twice)
    except Exception as error:
        return error
    return None


def shrink(schedule: Schedule, *, twice: bool = False) -> Schedule:
    """Drops faults one by one as long as the schedule still fails."""
    for fault in schedule.faults:
        if fails(smaller := schedule.without(fault), twice=twice):
            return shrink(smaller, twice=twice)
    return schedule


def failures(seeds: Sequence[int], *, repeat_every: int = 20) -> list[str]:
    """Tries the schedules of seeds, every 20th twice; returns a report on each that fails."""
    reports = []
    for seed in seeds:
        schedule, twice = Schedule.draw(seed), seed % repeat_every == 0
        if (error := fails(schedule, twice=twice)) is not None:
            reports.append(report(schedule, error, shrink(schedule, twice=twice)))
    return reports
