"""Processes of the rollout workers of a run. A task that one cannot finish is given to its replacement.

A process is the host of one worker or of several. One worker collects a fragment from its first step to its last, so an
episode, or a group of episodes, never mixes what two workers saw.

Starting a process takes seconds, in which libraries load. So a node that has lost one, or every node from the
beginning, keeps a spare that is ready to replace the next one. Where their number may change, workers move between
processes instead, and those of a lost one begin anew in another.

Nothing here knows Ray: ``WorkerFactory`` starts the actors and ``Answers`` waits for them.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

from rlpipe.collection.host import WorkerHost, host_name
from rlpipe.collection.worker import Ready
from rlpipe.config.schema import Config
from rlpipe.distributed.answers import Answers, CallError
from rlpipe.distributed.hosting import deal
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
"""Failures at one place without a finished task in between that end the run."""
_LOST_TOGETHER_SECONDS = 30.0
"""Time within which Ray notices that the nodes of one rack are gone."""


class WorkerFactory(Protocol):
    """Starts the processes of rollout workers.

    Attributes:
        wave: number of processes that may be starting at the same time.
    """

    wave: int

    def start_host(self, place: int, lives: Mapping[int, int]) -> Actor:
        """Starts a process at one of the places of a run.

        Args:
            lives: ranks of its workers, in order, with the number of workers that had each before.
        """

    def start_spare(self, node: str) -> Actor:
        """Starts a process whose workers have no ranks yet on a node."""

    def assign(self, spare: Actor, lives: Mapping[int, int]) -> None:
        """Gives the workers of a spare ranks and lives."""

    def begin_workers(self, host: Actor, lives: Mapping[int, int]) -> None:
        """Has a process begin workers anew."""

    def is_lost(self, node: str) -> bool:
        """True if a node is gone."""


@dataclass(eq=False)
class _Member:
    """Process of some workers.

    Attributes:
        actor: its handle.
        place: its place among those of the run.
        lives: ranks of its workers, with the number of workers that had each before.
        ready: reference that is answered once its simulators are made.
        absent: ranks of the workers that have not finished a task, and so have no episodes.
        failures: of the processes at this place since one of them last finished a task.
        since: when its predecessor was replaced.
        faults: why it has taken the place of others, until that has been reported.
        gone: True once others have its workers.
    """

    actor: Actor
    place: int
    lives: dict[int, int]
    ready: Any
    absent: set[int] = field(default_factory=set)
    failures: int = 0
    since: float = 0.0
    faults: list[Fault] = field(default_factory=list)
    gone: bool = False

    @property
    def ranks(self) -> list[int]:
        """Ranks of its workers, in order."""
        return sorted(self.lives)

    def next_lives(self) -> dict[int, int]:
        """Returns the lives of the workers that come after its own."""
        return {rank: life + 1 for rank, life in sorted(self.lives.items())}


@dataclass(frozen=True)
class _Request:
    """Request to a process for its workers of some ranks, and the references of its answers."""

    member: _Member
    ranks: list[int]
    refs: list[Any]


@dataclass(eq=False)
class WorkerTask:
    """Task for the workers, or for those of some processes. Requests are numbered by the first of their ranks.

    Attributes:
        send: sends it to a process for its workers of some ranks; returns the references of its answers, the last of
            them small.
        doing: what it is, as the end of "while it was to".
        seconds: time limit of each process.
        key: configuration key of the time limit.
        waits_for_all: True if all must answer, whatever ``rollout.min_workers`` says.
        slack: seconds beyond the limit for the answer of a worker that keeps the limit by itself.
        hosts: numbers of the processes to send it to, whether present or not; None for all that are needed.
        requests: requests, by number.
        answers: object of the last reference of each request that was answered, by number.
        pending: number of each request that was not answered, by the last of its references.
        deadlines: time by which each must be answered; counted from when it is first waited for.
    """

    send: Callable[[Actor, Sequence[int]], list[Any]]
    doing: str
    seconds: float
    key: str
    waits_for_all: bool = False
    slack: float = 0.0
    hosts: Sequence[int] | None = None
    requests: dict[int, _Request] = field(default_factory=dict)
    answers: dict[int, Any] = field(default_factory=dict)
    pending: dict[Any, int] = field(default_factory=dict)
    deadlines: dict[int, float] = field(default_factory=dict)
    _due: list[tuple[float, int]] = field(default_factory=list)  # heap of deadlines with their numbers, some outdated
    _without_deadline: list[int] = field(default_factory=list)

    @property
    def lacks_deadlines(self) -> bool:
        """True if ``begin_deadlines`` has something to do."""
        return bool(self._without_deadline)

    @property
    def is_complete(self) -> bool:
        """True if all requests have been answered."""
        return not self.pending

    @property
    def num_answered(self) -> int:
        """Number of workers whose answer is there."""
        return sum(len(self.requests[number].ranks) for number in self.answers)

    def expect(self, request: _Request) -> Any:
        """Notes what was sent; returns the reference to wait for."""
        number = request.ranks[0]
        if number not in self.deadlines:
            self._without_deadline.append(number)
        self.requests[number] = request
        self.pending[request.refs[-1]] = number
        return request.refs[-1]

    def set_deadline(self, number: int, deadline: float) -> None:
        """Sets the time by which a request must be answered."""
        self.deadlines[number] = deadline
        heapq.heappush(self._due, (deadline, number))

    def begin_deadlines(self, deadline: Callable[[], float]) -> None:
        """Gives a deadline to the requests that have none yet."""
        if self._without_deadline:
            common = deadline()
            for number in self._without_deadline:
                self.set_deadline(number, common)
            self._without_deadline.clear()

    def first_deadline(self) -> float:
        """Returns the first deadline of a request that was not answered; infinite if all were."""
        while self._due and not self._is_waited_for(*self._due[0]):
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else math.inf

    def overdue(self, now: float) -> list[int]:
        """Returns the numbers of the requests whose deadline has passed, in order."""
        numbers = set()
        while self.first_deadline() <= now:
            numbers.add(heapq.heappop(self._due)[1])
        return sorted(numbers)

    def _is_waited_for(self, deadline: float, number: int) -> bool:
        return self.deadlines[number] == deadline and number in self.requests and number not in self.answers


class WorkerPool:
    """Processes of the rollout workers, with their replacements and spares."""

    def __init__(
        self,
        config: Config,
        runs: Sequence[Sequence[int]],
        factory: WorkerFactory,
        answers: Answers,
        failure_elsewhere: Callable[[CallError], RunError | None],
    ) -> None:
        """Starts the processes in waves; ``wait_until_ready`` waits for them.

        Args:
            runs: ranks of the workers of each process, whose place is its index.
            failure_elsewhere: returns what another actor, which the workers depend on, has to do with a failed call;
                None if nothing.
        """
        self._config = config
        self._factory = factory
        self._answers = answers
        self._failure_elsewhere = failure_elsewhere
        self._num_workers = sum(map(len, runs))
        least = config.rollout.min_workers
        self._required = least if isinstance(least, int) else self._num_workers  # answers that let an iteration go on
        self._tasks: dict[Any, WorkerTask] = {}  # by each reference that is waited for
        self._unplanned_restarts = 0
        self._nodes_lost_at = -math.inf
        self._spares: dict[str, tuple[Actor, Any]] = {}  # by node, with the reference that is answered once it is ready
        self._drained: set[str] = set()
        self._unreported_faults: list[Fault] = []
        self._unreported_losses = MetricWindow()
        self._joining: list[_Member] = []  # processes that start, to take over workers of others
        self._members: list[_Member] = []
        for first in range(0, len(runs), factory.wave):
            self._wait_for_starts()
            self._members += [
                self._new_member(place, dict.fromkeys(ranks, 0))
                for place, ranks in enumerate(runs[first : first + factory.wave], first)
            ]

    # --- starting

    def _wait_for_starts(self) -> None:
        """Waits until the last processes have started, or never will, which ``wait_until_ready`` finds."""
        last = [member.actor.location_ref for member in self._members[-self._factory.wave :]]
        ends = self._answers.now() + self._config.cluster.start_timeout
        while last and (left := ends - self._answers.now()) > 0:
            last = [ref for ref in last if ref not in {*self._answers.wait(last, timeout=left)}]

    def _new_member(self, place: int, lives: dict[int, int], node: str = "") -> _Member:
        if (actor := self._take_spare(node)) is not None:
            actor.name = host_name([*lives])
            self._factory.assign(actor, lives)
        else:
            actor = self._factory.start_host(place, lives)
        return _Member(actor, place, lives, actor.call(WorkerHost.ready))

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
        """Present processes, in the order of their workers."""
        return [member.actor for member in self._members]

    @property
    def hosting(self) -> list[list[int]]:
        """Ranks of the workers of each present process."""
        return [member.ranks for member in self._members]

    def ranks_of(self, number: int) -> list[int]:
        """Returns the ranks of the workers of a process."""
        return self._members[number].ranks

    def wait_until_ready(self) -> Ready:
        """Waits until all processes, or their replacements, have made their simulators; returns the first answer.

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
                    f"not all {self._num_workers} rollout workers were ready within {seconds:g} s "
                    "(cluster.start_timeout). Check whether the cluster is busy or the "
                    "simulator is slow to load, or raise the limit."
                ) from error

    def _replace_unready(self) -> None:
        for member in [*self._members]:
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
                member.absent |= {*member.lives}
                self._replace(member).faults.append(fault)

    # --- tasks

    def send(self, task: WorkerTask) -> WorkerTask:
        """Sends a task to its processes; without any to all, or only to those that are present if they are enough."""
        members = self._members_for(task) if task.hosts is None else [self._members[number] for number in task.hosts]
        for member in members:
            self._send_to(member, member.ranks, task)
        return task

    def _members_for(self, task: WorkerTask) -> list[_Member]:
        missing = {
            member
            for member in self._members
            if len(member.absent) == len(member.lives) and not self._answers.wait([member.ready], timeout=0)
        }
        if task.waits_for_all or self._num_workers - sum(len(member.lives) for member in missing) < self._required:
            return self._members
        return [member for member in self._members if member not in missing]

    def _send_to(self, member: _Member, ranks: Sequence[int], task: WorkerTask) -> None:
        self._tasks[task.expect(_Request(member, [*ranks], task.send(member.actor, ranks)))] = task

    def gather(self, task: WorkerTask) -> tuple[list[_Request], list[Any]]:
        """Waits for the answers, and replaces processes that fail; raises as ``poll``.

        Returns:
            In the order of the workers' ranks, the requests and the objects of their last references.
        """
        while not task.is_complete:
            if self._may_leave_out(task):
                self._leave_out(task)
            else:
                self.poll([task])
        ordered = sorted(task.requests)
        return [task.requests[number] for number in ordered], [task.answers[number] for number in ordered]

    def poll(self, tasks: Sequence[WorkerTask], others: Sequence[Any] = ()) -> list[Any]:
        """Waits until a process or one of the other references answers, at most a second; replaces those that fail.

        Returns:
            The other references that have been answered.
        Raises:
            RunError: the budget for restarts is spent, or an actor that the workers depend on raised.
            ActorLostError: an actor that the workers depend on is gone.
        """
        for task in tasks:
            if task.lacks_deadlines:
                starting = any(member.absent for member in self._members)
                task.begin_deadlines(partial(self._deadline, task, starting=starting))
        left = min((task.first_deadline() for task in tasks), default=math.inf) - self._answers.now()
        refs = [*chain.from_iterable(task.pending for task in tasks), *others]
        done = self._answers.wait(refs, timeout=min(_LONGEST_WAIT, max(0.0, left)))
        answered = [ref for ref in done if ref in self._tasks]
        others_answered = [ref for ref in done if ref not in self._tasks]
        for ref, answer in zip(answered, self._answers.take(answered) if answered else (), strict=True):
            task = self._tasks.pop(ref)
            self._take_answer(task.pending.pop(ref), task, answer)
        for task in tasks:  # also while others answer, as in a stream of many workers some do at every moment
            for number in task.overdue(self._answers.now()):
                self._forget(task, number)
                self._recover(number, task, None)
        return others_answered

    def _take_answer(self, number: int, task: WorkerTask, answer: Any) -> None:
        if isinstance(answer, CallError):
            self._recover(number, task, answer)
            return
        task.answers[number] = answer
        if not (member := task.requests[number].member).gone:
            self._note_success(member)
            self._replace_if_leaking(member)

    def _forget(self, task: WorkerTask, number: int) -> None:
        """Waits no longer for what a process was sent."""
        ref = task.requests[number].refs[-1]
        del self._tasks[ref], task.pending[ref]

    def _deadline(self, task: WorkerTask, *, starting: bool) -> float:
        return self._answers.now() + task.seconds + task.slack + self._config.cluster.start_timeout * starting

    def _may_leave_out(self, task: WorkerTask) -> bool:
        """True if enough workers have answered and all others have failed and not recovered."""
        enough = not task.waits_for_all and task.num_answered >= self._required
        return enough and all(self._holder(number).failures > 0 for number in task.pending.values())

    def _holder(self, rank: int) -> _Member:
        """Returns the process of a worker."""
        return next(member for member in self._members if rank in member.lives)

    def _leave_out(self, task: WorkerTask) -> None:
        """Ends a task without the workers that have not answered."""
        for number in [*task.pending.values()]:
            self._forget(task, number)
            del task.requests[number]

    def _note_success(self, member: _Member) -> None:
        member.failures = 0
        member.absent.clear()
        faults, member.faults = member.faults, []
        if faults:
            where, seconds = member.actor.location(), round(self._answers.now() - member.since, 3)
            successor = where.pid if where else None
            self._unreported_faults += [replace(fault, seconds=seconds, successor=successor) for fault in faults]
        spares = "never" if self._config.rollout.is_elastic else self._config.rollout.spares
        if spares == "always" or (spares == "after_loss" and faults):
            self._keep_spare(member.actor.location())

    def _keep_spare(self, where: Location | None) -> None:
        """Starts a spare on a node, once a worker there works: earlier it would compete for the processor."""
        if where is not None and where.node not in self._spares and where.node not in self._drained:
            spare = self._factory.start_spare(where.node)
            self._spares[where.node] = spare, spare.call(WorkerHost.ready)

    # --- replacing

    def _recover(self, number: int, task: WorkerTask, error: CallError | None) -> None:
        """Gives what was asked of a process that failed to its replacement."""
        request = task.requests[number]
        member = request.member
        task.set_deadline(number, self._deadline(task, starting=True))
        if member.gone:  # it was already replaced because of another task
            self._send_to(self._holder(number), request.ranks, task)
            return
        if error is not None and error.refusal is not None:
            raise error.refusal from None
        elsewhere = None if error is None else self._cause_elsewhere(member, error)
        if elsewhere is not None:
            raise elsewhere
        refusal = self._charge(member)
        if not refusal:
            successor = self._replace(member, hangs=error is None)
            # before the fault is described: reading a log on another node takes time
            self._send_to(successor, request.ranks, task)
        cause = None if error is None else error.error
        fault = member.actor.fault(cause, task.doing, key=task.key, seconds=task.seconds)
        if refusal:
            raise RunError(fault, refusal)
        successor.faults.append(fault)

    def _charge(self, member: _Member) -> str:
        """Charges one restart to ``rollout.max_restarts``; returns why none is allowed, or an empty text.

        Nodes that are lost together, such as those of a rack, cost one.
        """
        limit, now = self._config.rollout.max_restarts, self._answers.now()
        if member.failures + 1 >= _FAILURES_IN_A_ROW:
            return f"It was restarted {member.failures} times in a row and finished nothing in between."
        where = member.actor.location(0.0)
        if where is not None and self._factory.is_lost(where.node):
            together = now - self._nodes_lost_at < _LOST_TOGETHER_SECONDS
            self._nodes_lost_at = now
            if together:
                return ""
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

    def _replace(self, before: _Member, planned: Fault | None = None, *, hangs: bool = False) -> _Member:
        """Replaces a process; the episodes of its workers are lost, one in each environment. Returns who replaces it.

        Where the number of processes may change, that is another one that is there.
        """
        where = before.actor.location(0.0)
        before.actor.end(hangs=hangs)
        before.gone = True
        self._unreported_faults += before.faults  # it never finished a task
        self._unreported_losses.observe(m.WORKER_RESTARTS, 1)
        self._count_lost_episodes(len(before.lives) - len(before.absent))
        others = [member for member in self._members if member is not before]
        if self._config.rollout.is_elastic and planned is None and others:
            successor = min(others, key=lambda member: (len(member.lives), member.place))
            self._factory.begin_workers(successor.actor, before.next_lives())
            successor.lives |= before.next_lives()
            successor.absent |= {*before.lives}
            successor.since = self._answers.now()
            self._members.remove(before)
            return successor
        node = "" if where is None or where.node in self._drained else where.node
        member = self._new_member(before.place, before.next_lives(), node)
        member.failures = before.failures + (planned is None)
        member.since, member.absent = self._answers.now(), {*member.lives}
        member.faults += [] if planned is None else [planned]
        self._members[self._members.index(before)] = member
        return member

    def _count_lost_episodes(self, workers: int) -> None:
        if workers:
            environments = self._config.env.train.total_num_envs // self._num_workers * workers
            self._unreported_losses.observe(m.DISCARDED_TRAJECTORIES, environments)

    def _replace_if_leaking(self, member: _Member) -> None:
        """Replaces a process, which is idle, if it holds more memory than ``rollout.max_memory``."""
        limit, actor = self._config.rollout.max_memory, member.actor
        if limit is None:
            return
        try:
            held = self._answers.get(actor.memory(), timeout=_MEMORY_SECONDS)
        except (CallError, TimeoutError):
            return  # the next task will show what is wrong
        if held > limit * _GIB:
            self._replace(
                member, actor.planned_fault(f"held {held / _GIB:.2f} GiB, more than rollout.max_memory={limit:g}")
            )

    def evacuate(self, nodes: Collection[str], move: Callable[[Sequence[int]], None]) -> None:
        """Replaces the processes on draining nodes; ``move`` reserves new places for those of some places."""
        self._drained |= set(nodes)
        for node in self._drained & set(self._spares):
            self._spares.pop(node)[0].end()
        leaving = [member for member in self._members if (at := member.actor.location()) and at.node in nodes]
        if leaving:
            move([member.place for member in leaving])
        for member in leaving:
            self._replace(member, member.actor.planned_fault("had to leave its node, which is draining"))

    def start_over(self, send: Callable[[Actor, Sequence[int]], Any]) -> None:
        """Has every worker drop its episodes and start new ones; a process that cannot is replaced."""
        self._tasks.clear()  # of before: nobody waits for them any more
        task = WorkerTask(
            lambda host, ranks: [send(host, ranks)], "start over", self._config.rollout.timeout, "rollout.timeout",
            waits_for_all=True,
        )  # fmt: skip
        self.gather(self.send(task))

    # --- moving workers between processes

    def can_leave(self, nodes: Collection[str]) -> bool:
        """True if a process is not on these nodes."""
        return any((at := member.actor.location()) is None or at.node not in nodes for member in self._members)

    @property
    def places(self) -> list[int]:
        """Places in use, also by processes that are starting."""
        return [member.place for member in (*self._members, *self._joining)]

    def join(self, place: int) -> None:
        """Starts a process that takes over workers of others once it is ready (``deal_again``)."""
        held = [member.ranks for member in (*self._members, *self._joining)]
        lives = {rank: life for member in self._members for rank, life in member.lives.items()}
        ranks = deal(self._num_workers, [*held, []])[-1]
        self._joining.append(self._new_member(place, {rank: lives[rank] for rank in ranks}))

    def deal_again(self, most: int, leaving: Collection[str]) -> tuple[list[int], bool]:
        """Deals the workers to the processes that are there and ready, and ends those that have to leave.

        Only between two collections. A worker that moves goes on with its episodes.

        Args:
            most: number of processes; more are ended.
            leaving: nodes that have to be left, as far as another process remains.
        Returns:
            Places that have become free, and whether workers have moved.
        Raises:
            ConfigError: a simulator cannot be made.
            RunError: the budget for restarts is spent.
        """
        free = [member.place for member in self._end_joining(most - len(self._members))]
        ready = [member for member in self._joining if self._answers.wait([member.ready], timeout=0)]
        self._joining = [member for member in self._joining if member not in ready]
        for member in [*ready]:
            if not self._has_arrived(member):
                ready.remove(member)
                free.append(member.place)
        candidates = [*self._members, *ready]
        staying = [member for member in candidates if (at := member.actor.location()) is None or at.node not in leaving]
        staying = sorted(staying or candidates, key=lambda member: member.place)[:most]
        staying = [member for member in candidates if member in staying]
        held = [member.ranks if member in self._members else [] for member in staying]
        dealt = deal(self._num_workers, held)
        if staying == candidates and dealt == held:
            return free, False
        self._move(staying, dealt)
        for member in candidates:
            if member not in staying:
                member.gone = True
                member.actor.end()
                free.append(member.place)
        self._members = sorted(staying, key=lambda member: member.ranks)
        for member in self._members:
            member.actor.name = host_name(member.ranks)
        return free, True

    def _end_joining(self, most: int) -> list[_Member]:
        """Ends the processes that start, but so many; returns them."""
        most = max(0, most)
        ended, self._joining = self._joining[most:], self._joining[:most]
        for member in ended:
            member.actor.end()
        return ended

    def _has_arrived(self, member: _Member) -> bool:
        """True if a process that was to take over workers has made their simulators; else it is ended."""
        try:
            self._answers.get(member.ready)
        except CallError as error:
            fault = member.actor.fault(error.error, "make its simulator")
            if refusal := self._charge(member):
                raise RunError(fault, refusal) from None
            self._unreported_faults.append(fault)
            member.actor.end()
            return False
        return True

    def _move(self, hosts: Sequence[_Member], dealt: Sequence[Sequence[int]]) -> None:
        """Moves workers to where they are dealt. One that cannot be moved begins anew, and its episodes are lost."""
        holders = {rank: member for member in self._members for rank in member.lives}
        moves = [
            (rank, holders[rank], taker)
            for taker, ranks in zip(hosts, dealt, strict=True)
            for rank in ranks
            if holders[rank] is not taker
        ]
        lives = {rank: giver.lives[rank] for rank, giver, _ in moves}
        absent = {rank for rank, giver, _ in moves if rank in giver.absent}
        for member in hosts:
            if member not in self._members:  # its workers were made, but are nobody yet
                member.lives = {}
        belongings = {rank: giver.actor.call(WorkerHost.give_belongings, rank) for rank, giver, _ in moves}
        arrivals = []
        for rank, giver, taker in moves:
            arrivals.append((rank, giver, taker, taker.actor.call(WorkerHost.take_belongings, belongings[rank])))
            del giver.lives[rank]
            giver.absent.discard(rank)
            taker.lives[rank] = lives[rank]
            taker.absent |= {rank} & absent
        ends = self._answers.now() + self._config.cluster.start_timeout
        for rank, giver, taker, arrival in arrivals:
            try:
                self._answers.get(arrival, timeout=max(0.0, ends - self._answers.now()))
            except CallError as error:
                if error.refusal is not None:
                    raise error.refusal from None
                if giver not in hosts and not giver.gone:
                    self._note_loss(giver, belongings[rank])  # that of one that stays will show in the next task
                self._begin_again(rank, taker)
            except TimeoutError:
                self._begin_again(rank, taker)

    def _note_loss(self, leaving: _Member, belongings: Any) -> None:
        """Charges and notes the loss of a process that had to leave, which nobody will ask again, if it was lost."""
        try:
            self._answers.get(belongings, timeout=0)
        except TimeoutError:
            return
        except CallError as error:
            leaving.gone = True
            refusal = self._charge(leaving)
            fault = leaving.actor.fault(error.error, "hand on its workers")
            if refusal:
                raise RunError(fault, refusal) from None
            self._unreported_faults.append(fault)
            self._unreported_losses.observe(m.WORKER_RESTARTS, 1)

    def _begin_again(self, rank: int, host: _Member) -> None:
        """Has a worker begin anew whose belongings did not arrive."""
        host.lives[rank] += 1
        self._factory.begin_workers(host.actor, {rank: host.lives[rank]})
        self._count_lost_episodes(rank not in host.absent)
        host.absent.add(rank)

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
            faults += member.faults
            member.faults = []
        return faults

    def end(self) -> None:
        """Ends all processes."""
        spares = (spare for spare, _ in self._spares.values())
        for actor in [*self.actors, *(member.actor for member in self._joining), *spares]:
            actor.end()
