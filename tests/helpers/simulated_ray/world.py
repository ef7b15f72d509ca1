"""Nodes, processes, objects and calls of a simulated cluster, and the faults that befall them.

One thread: whoever waits runs the events that are due. A call of an actor runs as a whole when its time is over. A
process that was killed raises whenever it touches anything again, so that nothing it does in a ``finally`` has effect.
"""

from __future__ import annotations

import heapq
import itertools
import pickle
import random
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakSet

from ray import cloudpickle
from ray.core.generated.common_pb2 import ActorDiedErrorContext
from ray.exceptions import ActorDiedError, ActorUnschedulableError, ObjectLostError, RayError, RayTaskError

from rlpipe.collection.host import worker_names

EPOCH = 1_800_000_000.0
"""Seconds since 1970 at which every world begins."""
INLINED_BYTES = 100_000
"""Smaller objects travel with the answer to their owner, the driver, and cannot be lost (Ray's
``max_direct_call_object_size`` is 100 KiB)."""
_TICK = 1e-6
"""Seconds by which each look at the clock moves it, so that a loop that waits for a time ends."""
_PIDS = 10_000_000
"""Larger than any process of Linux, so that nothing real is ever meant."""
_SECONDS = {
    "start": 2.0, "collect": 1.0, "evaluate": 1.5, "update": 0.4, "write": 0.01, "save": 0.05, "task": 0.3,
}  # fmt: skip
_OTHER_SECONDS = 0.002
_CALLING = ("call", "call_within", "deliver_within")
"""Methods of the process of an actor whose first text is the name of the method that they call."""
NEVER = float("inf")


class ProcessKilledError(BaseException):
    """Raised in a process that was killed, whenever it touches clock, disk or cluster."""


class StuckError(Exception):
    """A run waits for what will never happen, or has made no progress for very long."""


class Ref:
    """Reference of an object that is there, will be there, or is an error.

    Attributes:
        blob: the object as bytes; None until it is there.
        error: makes the exception that getting it raises; None if it did not fail.
        copies: nodes that hold it, if it is too large to travel with the answer.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.blob: bytes | None = None
        self.error: Callable[[], RayError] | None = None
        self.copies: set[str] = set()

    @property
    def done(self) -> bool:
        return self.blob is not None or self.error is not None

    def __hash__(self) -> int:
        return self.number

    def __reduce__(self) -> Any:
        raise TypeError("a reference inside of an argument is not simulated")


@dataclass(eq=False)
class Node:
    """Machine of the cluster.

    Attributes:
        alive: False once it is gone; Ray notices that later.
        listed: False once Ray has noticed.
        leaves_at: time at which it will go, as announced; None if it does not drain.
    """

    id: str
    name: str
    rack: int
    cpus: float
    free: float
    alive: bool = True
    listed: bool = True
    leaves_at: float | None = None


@dataclass(eq=False)
class Process:
    """Process on a node: the driver, or an actor.

    Attributes:
        cause: why it is gone; None while it is alive.
        silent: True if it does nothing any more, but is there.
        fuse: number of touches of clock, disk and cluster after which it is killed; None for never.
        files: open files, which the kernel closes at its death.
    """

    name: str
    pid: int
    node: Node
    cause: str | None = None
    silent: bool = False
    fuse: int | None = None
    files: WeakSet[Any] = field(default_factory=WeakSet)


@dataclass(eq=False)
class Call:
    """Call of an actor's method; an argument is a reference, or bytes."""

    method: str
    label: str
    args: list[Any]
    named: bytes
    refs: list[Ref]


@dataclass(frozen=True)
class Happening:
    """Entry of a world's log."""

    time: float
    what: str
    name: str
    pid: int
    cause: str


class Actor(Process):
    """Process of an actor with its calls, which run one by one in the order in which they were sent."""

    def __init__(self, world: World, cls: type, options: Mapping[str, Any], args: tuple[Any, ...]) -> None:
        super().__init__(cls.__name__, world.next_pid(), world.head)
        self.cls, self.options, self.args = cls, options, cloudpickle.dumps(args)
        self.id = world.rng.randbytes(16)
        self.instance: Any = None
        self.queue: deque[Call] = deque()
        self.running: Call | None = None
        self.error: Callable[[], RayError] | None = None
        self.bundle: tuple[Group, int] | None = None
        self.placed = False

    @property
    def role(self) -> str:
        """``rollout``, ``learner`` or ``metric-logger``."""
        return self.name if self.name in ("learner", "metric-logger") else "rollout"


class Group:
    """Placement group: all of its bundles have a place, or none."""

    def __init__(self, world: World, bundles: Sequence[Mapping[str, float]], strategy: str) -> None:
        self.id = f"group-{next(world.numbers)}"
        self.bundles, self.strategy = list(bundles), strategy
        self.nodes: dict[int, Node] = {}  # by bundle; empty while it waits, incomplete while bundles move
        self.removed = False
        self._world = world

    def wait(self, seconds: float) -> bool:
        """Waits until every bundle has a place."""
        return self._world.wait_until(lambda: len(self.nodes) == len(self.bundles), seconds)

    def place(self) -> None:
        """Places the bundles that have no place: at first all or none, later each by itself."""
        placed = dict[int, Node]()
        for index, bundle in enumerate(self.bundles):
            if index not in self.nodes and (node := self._room(bundle.get("CPU", 0.0), placed)) is not None:
                placed[index] = node
                node.free -= bundle.get("CPU", 0.0)
        if not self.nodes and len(placed) < len(self.bundles):
            for index, node in placed.items():
                node.free += self.bundles[index].get("CPU", 0.0)
            return
        self.nodes.update(placed)

    def _room(self, cpus: float, placed: Mapping[int, Node]) -> Node | None:
        alone = self.strategy == "STRICT_SPREAD"
        used = [*placed.values(), *self.nodes.values()]
        rooms = [
            node
            for node in self._world.nodes.values()
            if node.listed and node.leaves_at is None and node.free >= cpus and not (alone and node in used)
        ]
        if not rooms:
            return None
        least, most = (lambda node: node.free), (lambda node: -node.free)
        return min(rooms, key=least if self.strategy in ("PACK", "STRICT_PACK") else most)

    def leave(self, node: Node) -> None:
        """Takes the bundles from a node that is gone; they are placed anew."""
        self.nodes = {index: place for index, place in self.nodes.items() if place is not node}


class World:
    """Cluster with a driver.

    Attributes:
        memory: resident bytes of each process by pid, where they are not few.
        fates: what befalls the n-th call of a label to an actor of a role, by role, label and n from 1.
        disk_full: spans of time in which the disk accepts nothing.
        log: what happened to nodes and processes.
        folder: folder whose files belong to the world.
    """

    def __init__(self, seed: object, *, nodes: int = 6, cpus: float = 2.0, racks: int = 3, folder: Path | None) -> None:
        self.rng = random.Random(f"world {seed}")
        self.clock = 0.0
        self.numbers = itertools.count(1)
        self.events: list[tuple[float, float, int, partial[None]]] = []
        self.folder = "" if folder is None else str(folder.resolve())
        self.nodes: dict[str, Node] = {}
        self.racks = racks
        for _ in range(nodes):
            self.add_node(cpus)
        self.head = next(iter(self.nodes.values()))
        self.actors: list[Actor] = []
        self.holders: dict[str, Actor] = {}  # by part of the run
        self.groups: list[Group] = []
        self.large: deque[Ref] = deque(maxlen=20)
        self.memory: dict[int, int] = {}
        self.fates: dict[tuple[str, str, int], str] = {}
        self.counts: dict[tuple[str, str], int] = {}
        self.disk_full: list[tuple[float, float]] = []
        self.disk_was_full = False
        self.checkpoints_full = False  # where there is room for lines, and none for checkpoints
        self.paused_until = 0.0
        self.slept = 0.0  # by the call that runs: it answers so much later
        self.log: list[Happening] = []
        self.calls = 0
        self.patience = 50_000.0
        self.driver = self._new_driver()
        self.current: Process = self.driver

    def next_pid(self) -> int:
        return _PIDS + next(self.numbers)

    def _new_driver(self) -> Process:
        driver = Process("driver", self.next_pid(), self.head)
        self._record("driver", driver.name, driver.pid)
        return driver

    # --- clock and events

    def now(self) -> float:
        self.clock += _TICK
        return self.clock + self.slept

    def after(self, seconds: float, function: Callable[..., None], *args: Any) -> None:
        """Has something happen later; what is due at the same time happens in a random order."""
        entry = (self.clock + seconds, self.rng.random(), next(self.numbers), partial(function, *args))
        heapq.heappush(self.events, entry)

    def drop_events_of(self, owner: object) -> None:
        """Forgets what methods of an object were to do later."""
        self.events = [entry for entry in self.events if getattr(entry[3].func, "__self__", None) is not owner]
        heapq.heapify(self.events)

    def wait_until(self, condition: Callable[[], bool], timeout: float | None = None) -> bool:
        """Lets time pass until the condition holds or the time is over; returns whether it holds."""
        self.touch()
        ends = NEVER if timeout is None else self.clock + timeout
        while not condition():
            if not self.events and ends == NEVER:
                raise StuckError("the run waits, and nothing will ever happen")
            if not self.events or self.events[0][0] > ends:
                self.clock = max(self.clock, ends)
                return False
            due, _, _, happen = heapq.heappop(self.events)
            self.clock = max(self.clock, due)
            if self.clock > self.patience:
                raise StuckError(f"the run was not at its end after {self.patience:g} virtual seconds")
            happen()
            self.touch()
        return True

    def sleep(self, seconds: float) -> None:
        """Lets the driver wait; a call of an actor answers so much later."""
        self.touch()
        if self.current is self.driver:
            self.wait_until(lambda: False, seconds)
        else:
            self.slept += seconds

    def touch(self) -> None:
        """Marks that the current process touches clock, disk or cluster.

        Raises:
            ProcessKilledError: it is dead, or dies now.
        """
        process = self.current
        if process.fuse is not None:
            process.fuse -= 1
            if process.fuse <= 0:
                process.fuse = None
                self.end(process, "killed")
        if process.cause is not None:
            raise ProcessKilledError

    def pass_pause(self) -> None:
        """Waits for the control service, which answers nothing while it pauses."""
        if self.current is self.driver:
            self.wait_until(lambda: self.clock >= self.paused_until, max(0.0, self.paused_until - self.clock))

    def notice(self, seconds: float, function: Callable[..., None], *args: Any) -> None:
        """As ``after``, for what passes through the control service."""
        self.after(max(seconds, self.paused_until - self.clock + 0.01), self._noticed, function, args)

    def _noticed(self, function: Callable[..., None], args: tuple[Any, ...]) -> None:
        if self.clock < self.paused_until:
            self.notice(0.0, function, *args)
        else:
            function(*args)

    @contextmanager
    def as_process(self, process: Process) -> Iterator[None]:
        before, self.current = self.current, process
        try:
            yield
        finally:
            self.current = before

    @property
    def disk_is_full(self) -> bool:
        full = any(began <= self.clock + self.slept < ended for began, ended in self.disk_full)
        self.disk_was_full |= full
        return full

    # --- objects

    def put(self, value: Any) -> Ref:
        ref = Ref(next(self.numbers))
        self._store(ref, value, self.current.node)
        return ref

    def _store(self, ref: Ref, value: Any, node: Node) -> None:
        ref.blob = dumped(value)
        if len(ref.blob) >= INLINED_BYTES:
            ref.copies = {node.id}
            self.large.append(ref)

    def fail(self, refs: Sequence[Ref], error: Callable[[], RayError]) -> None:
        for ref in refs:
            if not ref.done:
                ref.error = error

    def lose(self, ref: Ref) -> None:
        """Loses every copy of a large object."""
        ref.blob, ref.error = None, partial(ObjectLostError, f"{ref.number:056x}", None, "")

    def is_there(self, ref: Ref) -> bool:
        """True if getting an object need not wait: it is an error, small, or on a node that is alive."""
        if ref.blob is None or not ref.copies:
            return ref.done
        return any(self.nodes[node].alive for node in ref.copies)

    def value(self, ref: Ref) -> Any:
        if ref.error is not None:
            error = ref.error()
            raise error.as_instanceof_cause() if isinstance(error, RayTaskError) else error
        assert ref.blob is not None
        if ref.copies:
            ref.copies.add(self.current.node.id)
        return pickle.loads(ref.blob)

    # --- processes and nodes

    def add_node(self, cpus: float = 2.0) -> Node:
        number = len(self.nodes)
        node = Node(f"{number:056x}", f"node-{number}", number % self.racks, cpus, cpus)
        self.nodes[node.id] = node
        return node

    def join_node(self) -> None:
        """Adds a node, which takes what waits for room."""
        self.add_node()
        self._place_groups()

    def _record(self, what: str, name: str, pid: int = 0, cause: str = "") -> None:
        self.log.append(Happening(round(self.clock, 3), what, name, pid, cause))

    def _hold(self, names: Sequence[str], actor: Actor) -> None:
        """Notes that an actor plays these parts of the run from now on."""
        for name in names:
            self.holders[name] = actor
            self._record("holds", name, actor.pid)

    def _plays(self, name: str) -> bool:
        """True if an actor that is alive plays this part of the run."""
        holder = self.holders.get(name)
        return holder is not None and holder.cause is None and not holder.silent

    def end(self, process: Process, cause: str) -> None:
        """Ends a process; whoever waits for it is told a little later."""
        if process.cause is not None:
            return
        process.cause = cause
        self._record("end", process.name, process.pid, cause)
        for file in list(process.files):  # so its locks end
            with suppress(OSError):
                file.close()
        if isinstance(process, Actor):
            self._end_actor(process, cause)
        elif process is self.driver:
            for actor in self.actors:  # Ray ends the actors of a job with its driver
                self.end(actor, "its driver died")

    def _end_actor(self, actor: Actor, cause: str) -> None:
        actor.instance = None
        message = {
            "node": "The actor died because its node has died. Node Id: " + actor.node.id,
            "ray.kill": "The actor is dead because it was killed by `ray.kill`.",
        }.get(cause, "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR")
        context = ActorDiedErrorContext(
            class_name=actor.name, actor_id=actor.id, pid=actor.pid, name=actor.name, error_message=message,
            ray_namespace="rlpipe", never_started=not actor.placed,
        )  # fmt: skip
        self._fail_actor(actor, partial(ActorDiedError, context))

    def _fail_actor(self, actor: Actor, error: Callable[[], RayError]) -> None:
        """Makes calls of an actor fail, those that wait and those to come."""
        actor.error = error
        calls = [*([actor.running] if actor.running else []), *actor.queue]
        actor.queue.clear()
        actor.running = None
        for call in calls:
            self.notice(self.rng.uniform(0.005, 0.1), self.fail, call.refs, error)

    def lose_node(self, node: Node, noticed_after: float) -> None:
        """Takes a node away; Ray notices that later, and only then do calls fail."""
        if not node.alive or node is self.head:
            return
        node.alive = False
        self._record("node lost", node.name)
        for actor in self.actors:
            if actor.node is node and actor.placed and actor.cause is None:
                actor.silent = True
        self.notice(noticed_after, self._notice_loss, node)

    def _notice_loss(self, node: Node) -> None:
        node.listed = False
        for actor in self.actors:
            if actor.node is node and actor.placed:
                self.end(actor, "node")
        for ref in self.large:
            if ref.copies and not any(self.nodes[copy].alive for copy in ref.copies):
                self.lose(ref)
        for group in self.groups:
            group.leave(node)
        self._place_groups()

    def drain(self, node: Node, seconds: float) -> None:
        """Announces that a node will go, and takes it then."""
        if node.alive and node is not self.head and node.leaves_at is None:
            node.leaves_at = self.clock + seconds
            self._record("drains", node.name)
            self.after(seconds, self.lose_node, node, 0.5)

    def fall_silent(self, actor: Actor, *, stopped: bool) -> None:
        """Has an actor answer nothing any more. One that is stopped does not even end when Ray ends it."""
        if actor.cause is None:
            actor.silent = True
            self._record("stopped" if stopped else "silent", actor.name, actor.pid)

    def kill_pid(self, pid: int) -> None:
        """Ends a process as the kernel does."""
        for actor in self.actors:
            if actor.pid == pid:
                self.end(actor, "ray.kill")

    # --- placement

    def new_group(self, bundles: Sequence[Mapping[str, float]], strategy: str) -> Group:
        self.pass_pause()
        group = Group(self, bundles, strategy)
        self.groups.append(group)
        group.place()
        return group

    def remove_group(self, group: Group) -> None:
        if group.removed:
            return
        group.removed = True
        self.groups.remove(group)
        for index, node in group.nodes.items():
            node.free += group.bundles[index].get("CPU", 0.0)
        for actor in self.actors:
            if actor.bundle is not None and actor.bundle[0] is group:
                self.end(actor, "ray.kill")
        self._place_groups()

    def _place_groups(self) -> None:
        for group in self.groups:
            group.place()

    def start(self, cls: type, options: Mapping[str, Any], args: tuple[Any, ...]) -> Actor:
        """Starts an actor once its place is free."""
        self.pass_pause()
        actor = Actor(self, cls, options, args)
        self.actors.append(actor)
        self._record("start", actor.name, actor.pid)
        strategy = options.get("scheduling_strategy")
        if hasattr(strategy, "placement_group"):
            actor.bundle = strategy.placement_group, strategy.placement_group_bundle_index
        elif hasattr(strategy, "node_id"):
            actor.node = self.nodes.get(strategy.node_id) or Node(strategy.node_id, "", 0, 0.0, 0.0, listed=False)
        self.notice(0.01, self._place, actor)
        return actor

    def _place(self, actor: Actor) -> None:
        if actor.cause is not None:
            return
        if actor.bundle is not None:
            group, index = actor.bundle
            node = group.nodes.get(index)
            holders = [other for other in self.actors if other.bundle == actor.bundle and other.placed]
            if node is None or any(other.cause is None for other in holders):
                self.after(0.5, self._place, actor)
                return
            actor.node = node
        elif not actor.node.listed:
            text = f"The actor is not schedulable: node {actor.node.id} is gone, and the affinity is hard."
            actor.cause = "unschedulable"
            self._fail_actor(actor, partial(ActorUnschedulableError, text))
            return
        actor.placed = True
        if not actor.node.alive:  # which nobody knows yet
            actor.silent = True
            return
        self.after(self._duration("start"), self._start_process, actor)

    def _start_process(self, actor: Actor) -> None:
        if actor.cause is not None or actor.silent:
            return
        if (fate := self._fate(actor, "start")) == "before":
            self.end(actor, "killed")
            return
        with self.as_process(actor):
            actor.instance = actor.cls(*pickle.loads(actor.args))
        if fate == "after":
            self.end(actor, "killed")
        self._pump(actor)

    # --- calls

    def submit(self, actor: Actor, method: str, args: Sequence[Any], named: Mapping[str, Any], num_returns: int) -> Any:
        """Sends a call; returns its references."""
        self.touch()
        self.calls += 1
        refs = [Ref(next(self.numbers)) for _ in range(num_returns)]
        label = next((arg for arg in args[:2] if isinstance(arg, str)), method) if method in _CALLING else method
        if label in ("take_over", "begin"):
            self._hold([f"rollout-{rank}" for rank in args[1]], actor)
        elif label == "make" and actor.name != "rollout-spare":
            names = worker_names(actor.name) if actor.role == "rollout" else [actor.name]
            self._hold([name for name in names if not self._plays(name)], actor)  # else it only joins
        call = Call(method, label, [arg if isinstance(arg, Ref) else dumped(arg) for arg in args], dumped(named), refs)
        if actor.error is not None:
            self.notice(0.001, self.fail, refs, actor.error)
        else:
            actor.queue.append(call)
            self._pump(actor)
        return refs[0] if num_returns == 1 else refs

    def _pump(self, actor: Actor) -> None:
        """Begins the next call. It waits for its arguments, and all later ones wait behind it."""
        if actor.instance is None or actor.running or actor.silent or not actor.queue:
            return
        if not all(self._resolved(arg) for arg in actor.queue[0].args):
            self.after(0.002, self._pump, actor)
            return
        actor.running = call = actor.queue.popleft()
        fate = self._fate(actor, call.label)
        if fate == "silent":
            self.fall_silent(actor, stopped=False)
            return
        seconds = self._duration(call.label) + (float(fate.partition(" ")[2]) if fate.startswith("slow") else 0.0)
        self.after(seconds, self._run, actor, call, fate)

    def _resolved(self, argument: Any) -> bool:
        return not isinstance(argument, Ref) or (argument.done and (self.is_there(argument) or argument.error))

    def _duration(self, label: str) -> float:
        return _SECONDS.get(label, _OTHER_SECONDS) * self.rng.lognormvariate(0.0, 0.3)

    def _fate(self, actor: Actor, label: str) -> str:
        key = actor.role, label
        self.counts[key] = self.counts.get(key, 0) + 1
        return self.fates.pop((*key, self.counts[key]), "")

    def _run(self, actor: Actor, call: Call, fate: str) -> None:
        if actor.running is not call or actor.silent:
            return
        if fate == "before":
            self.end(actor, "killed")
            return
        actor.fuse = int(fate.partition(" ")[2]) if fate.startswith("during") else None
        answer, error = self._result(actor, call, fate)
        actor.fuse = None
        if fate == "after":
            self.end(actor, "killed")
        if actor.cause is not None:
            return
        spent, self.slept = self.slept, 0.0
        self.after(spent, self._reply, actor, call, answer, error)

    def _result(self, actor: Actor, call: Call, fate: str) -> tuple[Any, Callable[[], RayError] | None]:
        with self.as_process(actor):
            try:
                args = [self.value(arg) if isinstance(arg, Ref) else pickle.loads(arg) for arg in call.args]
                if call.label == "take_belongings":
                    self._hold([f"rollout-{pickle.loads(args[1]).rank}"], actor)
                if fate == "raise":
                    raise ArithmeticError("the solver diverged")
                return getattr(actor.instance, call.method)(*args, **pickle.loads(call.named)), None
            except BaseException as error:
                if actor.cause is not None:
                    self.slept = 0.0
                    return None, None
                if not isinstance(error, Exception):
                    raise
                return None, partial(RayError.from_bytes, self._task_error(actor, call, error).to_bytes())

    def _task_error(self, actor: Actor, call: Call, error: Exception) -> RayTaskError:
        text = "".join(traceback.format_exception(*sys.exc_info()[:2], None)).replace(self.folder, "FOLDER")
        function = f"{actor.name}.{call.method}"
        if isinstance(error, RayTaskError):  # of an argument; Ray does not nest them
            error = error.cause
        text = f"Traceback (most recent call last):\n{text}"
        return RayTaskError(
            function, text, error, proctitle=f"ray::{function}", pid=actor.pid, ip="10.0.0.1", actor_repr=actor.name,
            actor_id=actor.id.hex(),
        )  # fmt: skip

    def _reply(self, actor: Actor, call: Call, answer: Any, error: Callable[[], RayError] | None) -> None:
        if actor.running is not call or actor.silent:
            return
        actor.running = None
        if error is not None:
            self.fail(call.refs, error)
        else:
            for ref, value in zip(call.refs, [answer] if len(call.refs) == 1 else answer, strict=True):
                self._store(ref, value, actor.node)
        self._pump(actor)

    def run_task(self, function: Callable[..., Any], node: Node, args: tuple[Any, ...]) -> Ref:
        """Runs a function on a node once."""
        self.pass_pause()
        ref = Ref(next(self.numbers))
        process = Process("task", self.next_pid(), node)

        def run() -> None:
            if not node.listed:
                error = ActorUnschedulableError(f"node {node.id} is gone")
                self.fail([ref], lambda: error)
            elif node.alive:
                with self.as_process(process):
                    self._store(ref, function(*args), node)

        self.notice(self._duration("task"), run)
        return ref

    # --- the driver

    def restart_driver(self) -> None:
        """Starts another driver on the head node, after the last one has ended; its actors end with it."""
        self.end(self.driver, "ended")
        for group in list(self.groups):
            self.remove_group(group)
        self.driver = self.current = self._new_driver()


def dumped(value: Any) -> bytes:
    """Returns an object as bytes, so that nothing is shared between processes."""
    try:
        return pickle.dumps(value)
    except (pickle.PicklingError, AttributeError, TypeError):
        return bytes(cloudpickle.dumps(value))
