"""Schedules: the shape of a run and its faults, drawn from a seed, and the faults in a world."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlpipe.config.schema import Config
from rlpipe.run.directory import RunDirectory
from tests.helpers.runs import scripted
from tests.helpers.simulated_ray.world import Actor, Node, World

ENVIRONMENTS, STEPS = 4, 64
"""Environments of a run, and their steps in an iteration."""
_LARGE = 120_000
"""Bytes of a batch that can be lost with its node."""
_LEAK = 3 * 2**30
"""Resident bytes of a worker that leaks; its limit is 2 GiB."""


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
    hosting: str = "one"

    @property
    def actors(self) -> int:
        """Number of processes of workers with which a run starts."""
        return {"one": self.workers, "several": -(-self.workers // 2), "elastic": 1}[self.hosting]

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
            *{"one": [], "several": ["rollout.workers_per_actor=2"], "elastic": ["rollout.min_processes=1"]}[
                self.hosting
            ],
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
        hosting = random.Random(f"hosting {seed}").choice(["one", "one", "several", "elastic"])
        if options.workers > 1 and not (hosting == "elastic" and options.pipeline == "stream"):
            options = replace(options, hosting=hosting)
        length = 8.0 + 1.6 * options.iterations
        center = rng.uniform(0.0, length) if rng.random() < 0.5 else None

        def moment() -> float:
            return rng.uniform(0.0, length) if center is None else center + rng.uniform(0.0, 3.0)

        kinds = [rng.choice(KINDS) for _ in range(rng.randint(1, 4))]
        faults = [_drawn(kind, moment(), options, rng) for kind in kinds]
        if options.hosting == "elastic":
            faults += [SeededFault("resize", round(rng.uniform(0.0, length), 3), rng.random()) for _ in range(2)]
        return cls(str(seed), options, tuple(faults))

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

    def _resize(self, amount: float) -> None:
        for file in Path(self._world.folder).glob("*/*/run.json"):
            RunDirectory(file.parent).ask_for_processes(1 + int(amount * self._options.workers))

    def _pause(self, amount: float) -> None:
        self._world.paused_until = self._world.clock + 50 * amount

    def _driver(self, amount: float) -> None:
        self._world.end(self._world.driver, "killed")
