"""Rollout workers of a run. A task that one worker cannot finish is given to its replacement.

One worker collects a fragment from its first step to its last, so an episode, or a group of episodes, never mixes what
two workers saw.

Starting a worker takes seconds, in which libraries load. So a node that has lost a worker, or every node from the
beginning, keeps a spare that is ready to replace the next one.

Nothing here knows Ray: ``WorkerFactory`` starts the actors and ``Answers`` waits for them.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

from rlpipe.collection.worker import Ready, RolloutWorker
from rlpipe.config.schema import Config
from rlpipe.distributed.answers import Answers, CallError
from rlpipe.distributed.roles import Role
from rlpipe.errors import ConfigError, Fault, RunError
from rlpipe.metrics import MetricWindow
from rlpipe.metrics import catalogue as m

if TYPE_CHECKING:
    from rlpipe.distributed.actors import Actor, Location

_GIB = 2**30
_LONGEST_WAIT = 1.0
"""Seconds between two looks at the deadlines."""
_MEMORY_SECONDS = 5.0
"""Time in which a worker must answer how much memory it holds."""
_FAILURES_IN_A_ROW = 5
"""Failures of one rank without a finished task in between that end the run."""


class WorkerFactory(Protocol):
    """Starts the actors of rollout workers."""

    def start_worker(self, rank: int, life: int) -> Actor:
        """Starts the worker of a rank; ``life`` counts the workers of this rank before it."""

    def start_spare(self, node: str) -> Actor:
        """Starts a worker without a rank on a node."""

    def assign(self, spare: Actor, rank: int, life: int) -> None:
        """Gives a spare a rank and a life."""


@dataclass
class _Member:
    """Worker of one rank.

    Attributes:
        actor: its handle.
        life: number of workers of this rank before it.
        ready: reference that is answered once its simulator is made.
        failures: of this rank since it last finished a task.
        since: when its predecessor was replaced.
        fault: why, until that has been reported.
    """

    actor: Actor
    life: int
    ready: Any
    failures: int = 0
    since: float = 0.0
    fault: Fault | None = None


@dataclass(frozen=True)
class _Request:
    """Request to the worker that had this life, and the references of its answers."""

    life: int
    refs: list[Any]


@dataclass(eq=False)
class WorkerTask:
    """Task for the workers, or for those of some ranks.

    Attributes:
        send: sends it to the worker of a rank; returns the references of its answers, the last of them small.
        doing: what it is, as the end of "while it was to".
        seconds: time limit of each worker.
        key: configuration key of the time limit.
        waits_for_all: True if all must answer, whatever ``rollout.min_workers`` says.
        slack: seconds beyond the limit for the answer of a worker that keeps the limit by itself.
        ranks: workers to send it to, whether present or not; None for all that are needed.
        requests: request to each worker that received it, by rank.
        answers: object of the last reference of each worker that has answered, by rank.
        pending: rank of each worker that has not answered, by the last reference of its answers.
        deadlines: time by which a worker must have answered, by rank; counted from when it is first waited for.
    """

    send: Callable[[Actor, int], list[Any]]
    doing: str
    seconds: float
    key: str
    waits_for_all: bool = False
    slack: float = 0.0
    ranks: Sequence[int] | None = None
    requests: dict[int, _Request] = field(default_factory=dict)
    answers: dict[int, Any] = field(default_factory=dict)
    pending: dict[Any, int] = field(default_factory=dict)
    deadlines: dict[int, float] = field(default_factory=dict)
    _due: list[tuple[float, int]] = field(default_factory=list)  # heap of deadlines with their ranks, some outdated
    _without_deadline: list[int] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """True if all workers have answered."""
        return not self.pending

    def expect(self, rank: int, request: _Request) -> Any:
        """Notes what was sent to a worker; returns the reference to wait for."""
        if rank not in self.deadlines:
            self._without_deadline.append(rank)
        self.requests[rank] = request
        self.pending[request.refs[-1]] = rank
        return request.refs[-1]

    def set_deadline(self, rank: int, deadline: float) -> None:
        """Sets the time by which a worker must answer."""
        self.deadlines[rank] = deadline
        heapq.heappush(self._due, (deadline, rank))

    def begin_deadlines(self, deadline: Callable[[], float]) -> None:
        """Gives a deadline to the workers that have none yet."""
        if self._without_deadline:
            common = deadline()
            for rank in self._without_deadline:
                self.set_deadline(rank, common)
            self._without_deadline.clear()

    def first_deadline(self) -> float:
        """Returns the first deadline of a worker that has not answered; infinite if all have."""
        while self._due and not self._is_waited_for(*self._due[0]):
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else math.inf

    def overdue(self, now: float) -> list[int]:
        """Returns the ranks whose deadline has passed, in order."""
        ranks = set()
        while self.first_deadline() <= now:
            ranks.add(heapq.heappop(self._due)[1])
        return sorted(ranks)

    def _is_waited_for(self, deadline: float, rank: int) -> bool:
        return self.deadlines[rank] == deadline and rank in self.requests and rank not in self.answers


class WorkerPool:
    """Rollout workers by rank, with their replacements and spares."""

    def __init__(
        self,
        config: Config,
        count: int,
        factory: WorkerFactory,
        answers: Answers,
        failure_elsewhere: Callable[[CallError], RunError | None],
    ) -> None:
        """Starts the workers; ``wait_until_ready`` waits for them.

        Args:
            failure_elsewhere: returns what another actor, which the workers depend on, has to do with a failed call;
                None if nothing.
        """
        self._config = config
        self._factory = factory
        self._answers = answers
        self._failure_elsewhere = failure_elsewhere
        least = config.rollout.min_workers
        self._required = least if isinstance(least, int) else count  # answers before an iteration may continue
        self._absent: set[int] = set()  # ranks whose replacement has not finished a task yet
        self._tasks: dict[Any, WorkerTask] = {}  # by each reference that is waited for
        self._unplanned_restarts = 0
        self._spares: dict[str, tuple[Actor, Any]] = {}  # by node, with the reference that is answered once it is ready
        self._drained: set[str] = set()
        self._unreported_faults: list[Fault] = []
        self._unreported_losses = MetricWindow()
        self._members = [self._new_member(rank, 0) for rank in range(count)]

    # --- starting

    def _new_member(self, rank: int, life: int, node: str = "") -> _Member:
        if (actor := self._take_spare(node)) is not None:
            actor.name = Role.ROLLOUT_WORKER.actor_name(rank)
            self._factory.assign(actor, rank, life)
        else:
            actor = self._factory.start_worker(rank, life)
        return _Member(actor, life, actor.call(RolloutWorker.ready))

    def _take_spare(self, node: str) -> Actor | None:
        """Takes the spare of a node if it is ready."""
        actor, ready = self._spares.get(node, (None, None))
        if actor is None or not self._answers.wait([ready], timeout=0):
            return None
        del self._spares[node]
        try:
            self._answers.get(ready)
        except CallError:
            actor.end()
            return None
        return actor

    @property
    def actors(self) -> list[Actor]:
        """Present workers by rank."""
        return [member.actor for member in self._members]

    def wait_until_ready(self) -> Ready:
        """Waits until all workers, or their replacements, have made their simulator; returns the answer of the first.

        Raises:
            ConfigError: a simulator cannot be made, or not all are ready in time.
            RunError: a simulator raised, or the budget for restarts is spent.
        """
        seconds = self._config.cluster.start_timeout
        while True:
            try:
                ready: list[Ready] = self._answers.get([member.ready for member in self._members], timeout=seconds)
                return ready[0]
            except CallError as error:
                if error.refusal is not None:
                    raise error.refusal from None
                self._replace_unready()
            except TimeoutError as error:
                raise ConfigError(
                    f"not all {len(self._members)} rollout workers were ready within {seconds:g} s "
                    "(cluster.start_timeout). Check whether the cluster is busy or the "
                    "simulator is slow to load, or raise the limit."
                ) from error

    def _replace_unready(self) -> None:
        for rank, member in enumerate(self._members):
            try:
                self._answers.get(member.ready, timeout=0)
            except TimeoutError:
                continue
            except CallError as error:
                fault = member.actor.fault(error.error, "make its simulator")
                if not error.is_loss:  # the next one would raise the same
                    raise RunError(fault) from None
                if refusal := self._charge(member):
                    raise RunError(fault, refusal) from None
                self._absent.add(rank)  # so it has no episodes to lose
                self._replace(rank)
                self._members[rank].fault = fault

    # --- tasks

    def send(self, task: WorkerTask) -> WorkerTask:
        """Sends a task to its workers; without ranks to all, or only to those that are present if they are enough."""
        for rank in self._ranks_for(task) if task.ranks is None else task.ranks:
            self._send_to(rank, task)
        return task

    def _ranks_for(self, task: WorkerTask) -> list[int]:
        missing = {rank for rank in self._absent if not self._answers.wait([self._members[rank].ready], timeout=0)}
        enough = not task.waits_for_all and len(self._members) - len(missing) >= self._required
        return [rank for rank in range(len(self._members)) if not enough or rank not in missing]

    def _send_to(self, rank: int, task: WorkerTask) -> None:
        member = self._members[rank]
        self._tasks[task.expect(rank, _Request(member.life, task.send(member.actor, rank)))] = task

    def gather(self, task: WorkerTask) -> tuple[list[list[Any]], list[Any]]:
        """Waits for the answers, and replaces workers that fail; raises as ``poll``.

        Returns:
            By rank, the references of the answers and the object of the last reference.
        """
        while not task.is_complete:
            if self._may_leave_out(task):
                self._leave_out(task)
            else:
                self.poll([task])
        ordered = sorted(task.requests)
        return [task.requests[rank].refs for rank in ordered], [task.answers[rank] for rank in ordered]

    def poll(self, tasks: Sequence[WorkerTask], others: Sequence[Any] = ()) -> list[Any]:
        """Waits until a worker or one of the other references answers, at most a second; replaces workers that fail.

        Returns:
            The other references that have been answered.
        Raises:
            RunError: the budget for restarts is spent, or an actor that the workers depend on raised.
            ActorLostError: an actor that the workers depend on is gone.
        """
        for task in tasks:
            task.begin_deadlines(partial(self._deadline, task, starting=bool(self._absent)))
        left = min((task.first_deadline() for task in tasks), default=math.inf) - self._answers.now()
        refs = [*chain.from_iterable(task.pending for task in tasks), *others]
        done = self._answers.wait(refs, timeout=min(_LONGEST_WAIT, max(0.0, left)))
        answered = [ref for ref in done if ref in self._tasks]
        others_answered = [ref for ref in done if ref not in self._tasks]
        for ref, answer in zip(answered, self._answers.take(answered) if answered else (), strict=True):
            task = self._tasks.pop(ref)
            self._take_answer(task.pending.pop(ref), task, answer)
        for task in tasks:  # also while others answer, as in a stream of many workers some do at every moment
            for rank in task.overdue(self._answers.now()):
                self._forget(task, rank)
                self._recover(rank, task, None)
        return others_answered

    def _take_answer(self, rank: int, task: WorkerTask, answer: Any) -> None:
        if isinstance(answer, CallError):
            self._recover(rank, task, answer)
            return
        task.answers[rank] = answer
        self._note_success(rank)
        self._replace_if_leaking(rank)

    def _forget(self, task: WorkerTask, rank: int) -> None:
        """Waits no longer for what a worker was sent."""
        ref = task.requests[rank].refs[-1]
        del self._tasks[ref], task.pending[ref]

    def _deadline(self, task: WorkerTask, *, starting: bool) -> float:
        return self._answers.now() + task.seconds + task.slack + self._config.cluster.start_timeout * starting

    def _may_leave_out(self, task: WorkerTask) -> bool:
        """True if enough workers have answered and all others have failed and not recovered."""
        enough = not task.waits_for_all and len(task.answers) >= self._required
        return enough and all(self._members[rank].failures > 0 for rank in task.pending.values())

    def _leave_out(self, task: WorkerTask) -> None:
        """Ends a task without the workers that have not answered."""
        for rank in [*task.pending.values()]:
            self._forget(task, rank)
            del task.requests[rank]

    def _note_success(self, rank: int) -> None:
        member = self._members[rank]
        member.failures = 0
        self._absent.discard(rank)
        fault, member.fault = member.fault, None
        if fault is not None:
            where, seconds = member.actor.location(), round(self._answers.now() - member.since, 3)
            self._unreported_faults.append(replace(fault, seconds=seconds, successor=where.pid if where else None))
        spares = self._config.rollout.spares
        if spares == "always" or (spares == "after_loss" and fault is not None):
            self._keep_spare(member.actor.location())

    def _keep_spare(self, where: Location | None) -> None:
        """Starts a spare on a node, once a worker there works: earlier it would compete for the processor."""
        if where is not None and where.node not in self._spares and where.node not in self._drained:
            spare = self._factory.start_spare(where.node)
            self._spares[where.node] = spare, spare.call(RolloutWorker.ready)

    # --- replacing

    def _recover(self, rank: int, task: WorkerTask, error: CallError | None) -> None:
        """Gives the task of a worker that failed to its replacement."""
        member = self._members[rank]
        task.set_deadline(rank, self._deadline(task, starting=True))
        if task.requests[rank].life != member.life:  # it was already replaced because of another task
            self._send_to(rank, task)
            return
        if error is not None and error.refusal is not None:
            raise error.refusal from None
        elsewhere = None if error is None else self._cause_elsewhere(member, error)
        if elsewhere is not None:
            raise elsewhere
        refusal = self._charge(member)
        if not refusal:
            self._replace(rank, hangs=error is None)
            self._send_to(rank, task)  # before the fault is described: reading a log on another node takes time
        cause = None if error is None else error.error
        fault = member.actor.fault(cause, task.doing, key=task.key, seconds=task.seconds)
        if refusal:
            raise RunError(fault, refusal)
        self._members[rank].fault = fault

    def _charge(self, member: _Member) -> str:
        """Charges one restart to ``rollout.max_restarts``; returns why none is allowed, or an empty text."""
        limit = self._config.rollout.max_restarts
        if member.failures + 1 >= _FAILURES_IN_A_ROW:
            return f"It was restarted {member.failures} times in a row and finished nothing in between."
        if self._unplanned_restarts >= limit:
            return f"{limit} workers were restarted before it (rollout.max_restarts)."
        self._unplanned_restarts += 1
        return ""

    def _cause_elsewhere(self, member: _Member, error: CallError) -> RunError | None:
        """Returns why the run, or its course, ends because of another actor; None if the worker itself failed."""
        if error.actor is None and not error.is_loss:
            return None
        where = member.actor.location()
        is_own = where is not None and where.actor == error.actor
        return None if is_own else self._failure_elsewhere(error)

    def _replace(self, rank: int, planned: Fault | None = None, *, hangs: bool = False) -> None:
        """Replaces a worker; its episodes are lost, one in each of its environments."""
        before = self._members[rank]
        where = before.actor.location(0.0)
        before.actor.end(hangs=hangs)
        if before.fault is not None:
            self._unreported_faults.append(before.fault)  # it never finished a task
        node = "" if where is None or where.node in self._drained else where.node
        member = self._new_member(rank, before.life + 1, node)
        member.failures = before.failures + (planned is None)
        member.since, member.fault = self._answers.now(), planned
        self._members[rank] = member
        self._unreported_losses.observe(m.WORKER_RESTARTS, 1)
        if rank not in self._absent:
            environments = self._config.env.train.total_num_envs // len(self._members)
            self._unreported_losses.observe(m.DISCARDED_TRAJECTORIES, environments)
        self._absent.add(rank)

    def _replace_if_leaking(self, rank: int) -> None:
        """Replaces a worker, which is idle, if it holds more memory than ``rollout.max_memory``."""
        limit, actor = self._config.rollout.max_memory, self._members[rank].actor
        if limit is None:
            return
        try:
            held = self._answers.get(actor.memory(), timeout=_MEMORY_SECONDS)
        except (CallError, TimeoutError):
            return  # the next task will show what is wrong
        if held > limit * _GIB:
            self._replace(
                rank, actor.planned_fault(f"held {held / _GIB:.2f} GiB, more than rollout.max_memory={limit:g}")
            )

    def evacuate(self, nodes: Collection[str], move: Callable[[Sequence[int]], None]) -> None:
        """Replaces the workers on draining nodes; ``move`` reserves places elsewhere for those of some ranks."""
        self._drained |= set(nodes)
        for node in self._drained & set(self._spares):
            self._spares.pop(node)[0].end()
        faults = {}
        for rank, member in enumerate(self._members):
            where = member.actor.location()
            if where is not None and where.node in nodes:
                faults[rank] = member.actor.planned_fault("had to leave its node, which is draining")
        if faults:
            move(list(faults))
        for rank, fault in faults.items():
            self._replace(rank, fault)

    def start_over(self, send: Callable[[Actor, int], Any]) -> None:
        """Has every worker drop its episodes and start new ones; a worker that cannot is replaced."""
        self._tasks.clear()  # of before: nobody waits for them any more
        task = WorkerTask(
            lambda worker, rank: [send(worker, rank)], "start over", self._config.rollout.timeout, "rollout.timeout",
            waits_for_all=True,
        )  # fmt: skip
        self.gather(self.send(task))

    # --- reporting

    def take_losses(self) -> list[MetricWindow]:
        """Returns what replacements cost since the last call; empty if there were none."""
        losses, self._unreported_losses = self._unreported_losses, MetricWindow()
        return [losses] if losses.states else []

    def repaired_faults(self, *, unfinished: bool = False) -> list[Fault]:
        """Returns the faults since the last call whose replacement has finished a task, or failed itself.

        Args:
            unfinished: also those of replacements that are still at their first task, as at the end of a run.
        """
        faults, self._unreported_faults = self._unreported_faults, []
        for member in self._members if unfinished else ():
            if member.fault is not None:
                faults.append(member.fault)
                member.fault = None
        return faults

    def end(self) -> None:
        """Ends all workers and spares."""
        for actor in [*self.actors, *(spare for spare, _ in self._spares.values())]:
            actor.end()
