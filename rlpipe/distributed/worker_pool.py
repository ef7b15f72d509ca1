"""The rollout workers of a run: what one of them cannot finish, another does in its place.

Every fragment is one worker's from its first step to its last, so that episodes, and groups of them, never mix what two
workers saw.

To start a worker takes seconds, in which libraries load. So once a node has lost one, or from the beginning, a spare is
kept there that is made already and takes the place of the next.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from rlpipe.collection.worker import Ready
from rlpipe.config.schema import Config
from rlpipe.distributed.actors import Location, Part, lost, user_error
from rlpipe.errors import ActorLostError, ConfigError, Fault, RunError
from rlpipe.metrics import MetricWindow
from rlpipe.metrics import catalogue as m

_IN_A_ROW = 5
"""Times that a worker may fail without a fragment in between."""
_GIB = 2**30


@dataclass
class _Member:
    """The worker of one rank.

    Attributes:
        part: it.  life: how many there were before.  ready: its answer once it is made.
        absent: whether it has yet to show that it works.  failures: since its last fragment.
        since: when the one before it failed.  fault: why, until that is told.
    """

    part: Part
    life: int
    ready: Any
    absent: bool = False
    failures: int = 0
    since: float = 0.0
    fault: Fault | None = None


@dataclass
class Task:
    """Something that was asked of workers.

    Attributes:
        asks: sends it to the worker of a rank; returns the references of what it answers, the last of them small.
        doing: what it is, as the end of "while it was to".
        seconds: that each has for it.  key: of the configuration that says so.
        waits: whether all must answer, whatever ``rollout.min_workers`` says.
        asked: by rank, the life of the worker that was asked and the references.
    """

    asks: Callable[[Part, int], list[Any]]
    doing: str
    seconds: float
    key: str
    waits: bool = False
    asked: dict[int, tuple[int, list[Any]]] = field(default_factory=dict)


class WorkerPool:
    """The rollout workers, by rank."""

    def __init__(
        self,
        config: Config,
        count: int,
        start: Callable[[int, int], Part],
        spare: Callable[[str], Part],
        take_over: Callable[[Part, int, int], Any],
        others: Callable[[], Fault | None],
    ) -> None:
        """Starts them; ``ready`` waits for them.

        Args:
            config: of the run.  count: of the workers.
            start: starts and makes the worker of a rank in its n-th life.
            spare: starts and makes a worker on a node, for whatever rank.
            take_over: tells such a worker which rank and life are its own from now on.
            others: what happened to a part that the workers depend on; None if nothing did.
        """
        self._config = config
        self._start = start
        self._start_spare = spare
        self._take_over = take_over
        self._others = others
        self._spares: dict[str, tuple[Part, Any]] = {}  # by node, with the answer that it is made
        self._left: set[str] = set()
        self._restarts = 0
        self._news: list[Fault] = []
        self._unsaid = MetricWindow()
        self._members = [self._member(rank, 0) for rank in range(count)]

    def _member(self, rank: int, life: int, node: str = "") -> _Member:
        if (part := self._ready_spare(node)) is not None:
            part.name = f"rollout-{rank}"
            self._take_over(part, rank, life)
        else:
            part = self._start(rank, life)
        return _Member(part, life, part.call("ready"))

    def _ready_spare(self, node: str) -> Part | None:
        """The spare of a node, if it is made; it is none from now on."""
        part, made = self._spares.get(node, (None, None))
        if part is None or not ray.wait([made], timeout=0)[0]:
            return None
        del self._spares[node]
        try:
            ray.get(made)
        except RayError:
            part.end()
            return None
        return part

    @property
    def parts(self) -> list[Part]:
        """All of them as they are now."""
        return [member.part for member in self._members]

    def ready(self) -> Ready:
        """What the first says of its simulator, once all have one.

        Raises:
            ConfigError: one cannot make it, or they are not ready in time.
            RunError: one died of it.
        """
        seconds, answers = self._config.cluster.start_timeout, [member.ready for member in self._members]
        try:
            found: list[Ready] = ray.get(answers, timeout=seconds)
        except RayTaskError as error:
            raise user_error(error) or RunError(self._blame(answers, "make its simulator")) from None
        except ray.exceptions.GetTimeoutError as error:
            raise ConfigError(
                f"not all {len(self._members)} rollout workers were ready within {seconds:g} s "
                "(cluster.start_timeout); is the cluster busy, or the simulator slow to load?"
            ) from error
        except RayError:
            raise RunError(self._blame(answers, "make its simulator")) from None
        return found[0]

    def _blame(self, answers: Sequence[Any], doing: str) -> Fault:
        for member, answer in zip(self._members, answers, strict=True):
            try:
                ray.get(answer, timeout=0)
            except ray.exceptions.GetTimeoutError:
                continue
            except RayError as error:
                return member.part.fault(error, doing)
        raise AssertionError("one of them raised")

    def ask(self, task: Task) -> Task:
        """Asks all of something, or those that are there if fewer will do."""
        for rank in self._available(task):
            self._send(task, rank)
        return task

    def _available(self, task: Task) -> list[int]:
        """LearnerGroup to ask: those that are not there yet may be left out while enough others are."""
        ranks = range(len(self._members))
        there = [rank for rank in ranks if self._is_there(self._members[rank])]
        return there if not task.waits and len(there) >= self._needed else list(ranks)

    @staticmethod
    def _is_there(member: _Member) -> bool:
        if not member.absent:
            return True
        done, _ = ray.wait([member.ready], timeout=0)
        return bool(done)

    @property
    def _needed(self) -> int:
        least = self._config.rollout.min_workers
        return min(least, len(self._members)) if isinstance(least, int) else len(self._members)

    def _send(self, task: Task, rank: int) -> None:
        member = self._members[rank]
        task.asked[rank] = member.life, task.asks(member.part, rank)

    def gather(self, task: Task) -> tuple[list[list[Any]], list[Any]]:
        """Waits for the answers, and replaces workers that fail.

        Returns:
            By rank the references of those that answered; and what the last of these hold.
        Raises:
            RunError: the budget for replacements is spent.
            ActorLostError: what the workers depend on is gone.
        """
        windows: dict[int, Any] = {}
        seconds = task.seconds + self._config.cluster.start_timeout * any(member.absent for member in self._members)
        ends = dict.fromkeys(task.asked, time.monotonic() + seconds)
        while waiting := [rank for rank in task.asked if rank not in windows]:
            if not task.waits and len(windows) >= self._needed and all(map(self._fails, waiting)):
                for rank in waiting:
                    del task.asked[rank]
                break
            ranks = {task.asked[rank][1][-1]: rank for rank in waiting}
            left = min(ends[rank] for rank in waiting) - time.monotonic()
            done, _ = ray.wait(list(ranks), timeout=min(1.0, max(0.0, left)), fetch_local=False)
            for ref in done:
                rank = ranks[ref]
                try:
                    windows[rank] = ray.get(ref)
                    self._works(rank)
                except RayError as error:
                    self._again(task, rank, error)
                    ends[rank] = time.monotonic() + task.seconds + self._config.cluster.start_timeout
            for rank in [] if done else [rank for rank in waiting if ends[rank] <= time.monotonic()]:
                self._again(task, rank, None)
                ends[rank] = time.monotonic() + task.seconds + self._config.cluster.start_timeout
        self._recycle()
        ordered = sorted(task.asked)
        return [task.asked[rank][1] for rank in ordered], [windows[rank] for rank in ordered]

    def losses(self) -> list[MetricWindow]:
        """What replacements cost since the last time; empty if there were none."""
        unsaid, self._unsaid = self._unsaid, MetricWindow()
        return [unsaid] if unsaid.states else []

    def _fails(self, rank: int) -> bool:
        """Whether the worker of a rank has failed and not worked since."""
        return self._members[rank].failures > 0

    def _works(self, rank: int) -> None:
        member = self._members[rank]
        member.absent, member.failures = False, 0
        fault, member.fault = member.fault, None
        if fault is not None:
            where, taken = member.part.location(), round(time.monotonic() - member.since, 3)
            self._news.append(replace(fault, taken=taken, successor=where.pid if where else None))
        spares = self._config.rollout.spares
        if spares == "always" or (spares == "after_loss" and fault is not None):
            self._keep_spare(member.part.location())

    def _keep_spare(self, where: Location | None) -> None:
        """Has a node a spare. It is not started before a worker there works: it would take the processor from that."""
        if where is not None and where.node not in self._spares and where.node not in self._left:
            part = self._start_spare(where.node)
            self._spares[where.node] = part, part.call("ready")

    def _again(self, task: Task, rank: int, error: RayError | None) -> None:
        """Has another worker do what this one did not."""
        member = self._members[rank]
        if task.asked[rank][0] == member.life:  # else it was replaced already, for something else that it was asked
            if isinstance(error, RayTaskError) and (raised := user_error(error)) is not None:
                raise raised from None
            if self._is_others(member, error) and (other := self._others()) is not None:
                raise ActorLostError(other)
            spent = self._spent(member)
            if not spent:
                self._replace(rank, hangs=error is None)
                self._send(task, rank)  # first of all: to read the log of another node takes time
            fault = member.part.fault(error, task.doing, key=task.key, seconds=task.seconds)
            if spent:
                raise RunError(fault, spent)
            self._members[rank].fault = fault
            return
        self._send(task, rank)

    @staticmethod
    def _is_others(member: _Member, error: RayError | None) -> bool:
        """Whether it may be another part that is gone."""
        if error is None or not lost(error):
            return False
        where = member.part.location()
        return not isinstance(error, RayActorError) or where is None or error.actor_id != where.actor

    def _spent(self, member: _Member) -> str:
        """Why no other may take the place of a worker; empty while one may, which is counted."""
        budget = self._config.rollout.max_restarts
        if member.failures + 1 >= _IN_A_ROW:
            return f"It was replaced {member.failures} times in a row, and nothing came of it."
        if self._restarts >= budget:
            return f"{budget} workers were replaced before it (rollout.max_restarts)."
        self._restarts += 1
        return ""

    def _replace(self, rank: int, planned: Fault | None = None, *, hangs: bool = False) -> None:
        """Puts a new worker in the place of one; its episodes are lost, one in each of its environments.

        Args:
            rank: of both.  planned: why, where it is on purpose.  hangs: whether the one does not answer.
        """
        before = self._members[rank]
        where = before.part.location(0.0)
        before.part.end(hangs=hangs)
        if before.fault is not None:
            self._news.append(before.fault)  # it never got to work
        member = self._member(rank, before.life + 1, "" if where is None or where.node in self._left else where.node)
        member.absent, member.failures = True, before.failures + (planned is None)
        member.since, member.fault = time.monotonic(), planned
        self._members[rank] = member
        self._unsaid.observe(m.WORKER_RESTARTS, 1)
        if not before.absent:
            environments = self._config.env.train.total_num_envs // len(self._members)
            self._unsaid.observe(m.DISCARDED_TRAJECTORIES, environments)

    def _recycle(self) -> None:
        """Replaces workers that hold too much memory."""
        limit = self._config.rollout.max_memory
        if limit is None:
            return
        asked = {rank: member.part.memory() for rank, member in enumerate(self._members) if not member.absent}
        for rank, answer in asked.items():
            try:
                held = ray.get(answer, timeout=5.0)
            except RayError:
                continue  # the next collection will find out
            if held > limit * _GIB:
                what = f"held {held / _GIB:.2f} GiB, more than rollout.max_memory={limit:g}"
                self._replace(rank, self._members[rank].part.moved(what))

    def leave(self, nodes: Collection[str], move: Callable[[Sequence[int]], None]) -> None:
        """Replaces the workers on these nodes.

        Args:
            nodes: ids.  move: finds the workers of some ranks places elsewhere.
        """
        self._left |= set(nodes)
        for node in self._left & set(self._spares):
            self._spares.pop(node)[0].end()
        found = {}
        for rank, member in enumerate(self._members):
            where = member.part.location()
            if where is not None and where.node in nodes:
                found[rank] = member.part.moved("had to leave its node, which is about to go")
        if found:
            move(list(found))
        for rank, fault in found.items():
            self._replace(rank, fault)

    def begin_anew(self, tell: Callable[[Part, int], Any]) -> None:
        """Has every worker drop its episodes and begin others; one that cannot is replaced.

        Args:
            tell: asks it of the worker of a rank.
        """
        task = Task(lambda part, rank: [tell(part, rank)], "begin anew", self._config.rollout.timeout,
                    "rollout.timeout", waits=True)  # fmt: skip
        self.gather(self.ask(task))

    def repaired_faults(self) -> list[Fault]:
        """What happened since the last time."""
        found, self._news = self._news, []
        return found

    def end(self) -> None:
        """Ends them all."""
        for part in [*self.parts, *(part for part, _ in self._spares.values())]:
            part.end()
