"""Rollout workers of a run as a pool: who is asked, who is waited for, and who replaces whom. No Ray, no processes,
no real time."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlpipe.collection.host import WorkerHost, host_name
from rlpipe.distributed.answers import CallError
from rlpipe.distributed.hosting import runs
from rlpipe.distributed.worker_pool import WorkerPool, WorkerTask
from rlpipe.errors import ActorLostError, ConfigError, Fault, RunError
from rlpipe.metrics import catalogue as m

GIB = 2**30
LIMIT, START = 10.0, 100.0
"""Seconds for a task, and for a worker to start."""


# --- stand-ins for Ray: references that are answered at a time of a clock that only waiting moves


@dataclass(eq=False)
class Ref:
    """Reference of an answer.

    Attributes:
        answer: the object, or the exception that getting it raises.
        at: time from which it is there.
    """

    answer: Any
    at: float = 0.0


class FakeAnswers:
    """Implements ``Answers``."""

    def __init__(self) -> None:
        self.clock = 0.0

    def now(self) -> float:
        return self.clock

    def wait(self, refs, timeout):
        first = min(ref.at for ref in refs)
        if first > self.clock:
            self.clock = min(first, self.clock + timeout)
        return [ref for ref in refs if ref.at <= self.clock]

    def take(self, refs):
        return [ref.answer for ref in refs]

    def get(self, refs, timeout=None):
        if isinstance(refs, list):
            return [self.get(ref, timeout) for ref in refs]
        if timeout is not None and refs.at > self.clock + timeout:
            self.clock += timeout
            raise TimeoutError
        self.clock = max(self.clock, refs.at)
        if isinstance(refs.answer, Exception):
            raise refs.answer
        return refs.answer


@dataclass(eq=False)
class FakeActor:
    """Handle of a worker.

    Attributes:
        pid: tells it from all others.
        answers: what it answers to its tasks in turn; ``"done"`` when there is nothing more.
        ready_at: time at which its simulator is made.
        node: where it is.
        held: bytes in memory.
        ended: True once it was ended.
        calls: what it was asked to do beside its tasks.
    """

    name: str
    pid: int
    answers: list[Any] = field(default_factory=list)
    ready_at: float = 0.0
    ready: Any = "spec"
    node: str = "node-a"
    held: int = 0
    ended: bool = False
    calls: list[Any] = field(default_factory=list)
    location_ref: Ref = field(default_factory=lambda: Ref(None))

    def call(self, method, *args):
        if method is WorkerHost.ready:
            return Ref(self.ready, self.ready_at)
        self.calls.append((method.__name__, *args))
        return Ref((method.__name__, *args))

    def do(self) -> Ref:
        """A task; an answer is a number of seconds that it takes, an exception, or an object."""
        answer = self.answers.pop(0) if self.answers else "done"
        return Ref(f"late {self.pid}", answer) if isinstance(answer, float) else Ref(answer)

    def location(self, timeout=0.0):
        return SimpleNamespace(node=self.node, pid=self.pid, actor=f"actor-{self.pid}", host="host")

    def memory(self):
        return Ref(self.held)

    def end(self, *, hangs=False):
        self.ended = True

    def planned_fault(self, what):
        return Fault(self.name, what, pid=self.pid, planned=True)

    def fault(self, error, doing, *, key="", seconds=0.0):
        what = f"gave no answer within {seconds:g} s ({key})" if error is None else str(error)
        return Fault(self.name, what, doing, pid=self.pid)


class FakeFactory:
    """Implements ``WorkerFactory``: a process answers as listed under its first rank and that worker's life."""

    wave = 100

    def __init__(self, plans: dict[tuple[int, int], dict[str, Any]]) -> None:
        self.plans = plans
        self.pids = itertools.count(1)
        self.started: list[tuple[int, int]] = []
        self.spares: list[FakeActor] = []
        self.assigned: list[tuple[int, int, int]] = []
        self.lost: set[str] = set()

    def start_host(self, place, lives):
        first, *_ = lives.items()
        self.started.append(first)
        return FakeActor(host_name([*lives]), next(self.pids), **self.plans.get(first, {}))

    def begin_workers(self, host, lives):
        host.calls.append(("begin", dict(lives)))

    def is_lost(self, node):
        return node in self.lost

    def start_spare(self, node):
        self.spares.append(FakeActor("rollout-spare", next(self.pids), node=node, **self.plans.get(node, {})))
        return self.spares[-1]

    def assign(self, spare, lives):
        ((rank, life),) = lives.items()
        self.assigned.append((spare.pid, rank, life))


class Story:
    """A pool on stand-ins.

    Args:
        workers: number of workers.
        plans: what the n-th worker of a rank does, by rank and n.
        hosts: number of processes; None for one each.
        rollout: settings under ``rollout``.
    """

    def __init__(
        self,
        workers: int,
        plans: dict[Any, Any] | None = None,
        others=lambda error: None,
        hosts: int | None = None,
        **rollout: Any,
    ) -> None:
        settings = {
            "max_restarts": 100, "min_workers": "all", "spares": "never", "max_memory": None, "timeout": LIMIT,
            "is_elastic": False,
        }  # fmt: skip
        config = SimpleNamespace(
            rollout=SimpleNamespace(**{**settings, **rollout}),
            cluster=SimpleNamespace(start_timeout=START),
            env=SimpleNamespace(train=SimpleNamespace(total_num_envs=8)),
        )
        self.config = config
        self.answers, self.factory = FakeAnswers(), FakeFactory(plans or {})
        self.pool = WorkerPool(config, runs(workers, hosts or workers), self.factory, self.answers, others)

    def task(self, **options: Any) -> WorkerTask:
        return WorkerTask(
            lambda actor, _: [f"batch {actor.pid}", actor.do()], "collect", LIMIT, "rollout.timeout", **options
        )

    def collect(self, **options: Any) -> list[Any]:
        """One task to its end; returns the batches."""
        requests, _ = self.pool.gather(self.pool.send(self.task(**options)))
        return [request.refs[0] for request in requests]

    def losses(self) -> dict[str, float]:
        windows = self.pool.take_losses()
        return windows[0].read([m.WORKER_RESTARTS, m.DISCARDED_TRAJECTORIES]) if windows else {}


def dies(pid: int | None = None) -> CallError:
    """Death of the worker with this pid."""
    return CallError(RuntimeError("died"), is_loss=True, actor=f"actor-{pid}")


def raises(message: str = "raised ArithmeticError") -> CallError:
    return CallError(RuntimeError(message))


# --- starting


def test_the_answer_of_the_first_worker_describes_the_simulator():
    story = Story(2, {(0, 0): {"ready": "spec of 0", "ready_at": 7.0}})
    assert story.pool.wait_until_ready() == "spec of 0"


def test_a_simulator_that_cannot_be_made_is_the_users_error():
    refusal = CallError(RuntimeError(), refusal=ConfigError("no such task"))
    with pytest.raises(ConfigError, match="no such task"):
        Story(2, {(1, 0): {"ready": refusal}}).pool.wait_until_ready()


def test_a_worker_that_dies_while_it_starts_is_replaced_and_loses_no_episodes():
    story = Story(2, {(1, 0): {"ready": dies()}})
    assert story.pool.wait_until_ready() == "spec"
    assert story.losses() == {"time/worker_restarts": 1}
    story.collect()
    (fault,) = story.pool.repaired_faults()
    assert fault.sentence == "rollout-1 died while it was to make its simulator"


def test_workers_that_die_again_and_again_while_they_start_are_named():
    with pytest.raises(RunError, match="rollout-1 died while it was to make its simulator"):
        Story(2, {(1, 0): {"ready": dies()}}, max_restarts=0).pool.wait_until_ready()


def test_a_worker_whose_simulator_raises_while_it_is_made_is_not_replaced():
    with pytest.raises(RunError, match="rollout-1 raised ArithmeticError while it was to make its simulator"):
        Story(2, {(1, 0): {"ready": raises()}}).pool.wait_until_ready()


def test_workers_that_are_not_ready_in_time_are_the_users_error():
    with pytest.raises(
        ConfigError, match=r"not all 2 rollout workers were ready within 100 s \(cluster\.start_timeout"
    ):
        Story(2, {(1, 0): {"ready_at": 101.0}}).pool.wait_until_ready()


# --- the order of the fragments


def test_fragments_are_in_the_order_of_the_ranks_whoever_answers_first():
    story = Story(3, {(0, 0): {"answers": [3.0]}, (1, 0): {"answers": [1.0]}, (2, 0): {"answers": [2.0]}})
    assert story.collect() == ["batch 1", "batch 2", "batch 3"]


def test_the_fragment_of_a_replacement_has_the_place_of_its_rank():
    story = Story(2, {(0, 0): {"answers": [dies(1)]}})
    assert story.collect() == ["batch 3", "batch 2"]
    assert story.factory.started == [(0, 0), (1, 0), (0, 1)]


def test_a_second_task_that_was_sent_before_the_loss_goes_to_the_replacement_without_another_restart():
    story = Story(1, {(0, 0): {"answers": [dies(1), dies(1)]}})
    first, second = story.pool.send(story.task()), story.pool.send(story.task())
    assert [story.pool.gather(task)[0][0].refs[0] for task in (first, second)] == ["batch 2", "batch 2"]
    assert story.losses()["time/worker_restarts"] == 1


# --- failures


def test_a_worker_without_an_answer_in_time_is_replaced():
    story = Story(1, {(0, 0): {"answers": [LIMIT + 0.5]}})
    assert story.collect() == ["batch 2"]
    (fault,) = story.pool.repaired_faults()
    assert fault.what == "gave no answer within 10 s (rollout.timeout)"


def test_a_worker_that_fell_silent_is_replaced_although_others_answer_all_the_time():
    story = Story(2, {(0, 0): {"answers": [1e9]}})
    silent, quick = (story.pool.send(story.task(hosts=[rank])) for rank in (0, 1))
    story.pool.poll([silent])  # a second without an answer
    story.answers.clock = LIMIT
    story.pool.poll([silent, quick])
    assert quick.is_complete
    assert story.factory.started[2:] == [(0, 1)]


def test_a_replacement_may_also_take_the_time_to_start():
    assert Story(1, {(0, 0): {"answers": [dies(1)]}, (0, 1): {"answers": [LIMIT + START - 1]}}).collect() == ["batch 2"]


def test_a_repaired_fault_says_when_its_replacement_had_worked_and_is_reported_once():
    story = Story(1, {(0, 0): {"answers": [dies(1)]}, (0, 1): {"answers": [4.0]}})
    story.collect()
    (fault,) = story.pool.repaired_faults()
    assert (fault.actor, fault.pid, fault.doing, fault.seconds, fault.successor) == ("rollout-0", 1, "collect", 4.0, 2)
    assert story.pool.repaired_faults() == []


def test_a_loss_costs_the_episode_of_each_environment_of_the_worker_and_is_reported_once():
    story = Story(2, {(0, 0): {"answers": [dies(1)]}})
    story.collect()
    assert story.losses() == {
        "time/worker_restarts": 1,
        "rollout/discarded_trajectories": 4,
    }  # 8 environments, 2 workers
    assert story.losses() == {}


def test_a_replacement_that_fails_before_it_has_worked_loses_no_episodes():
    story = Story(1, {(0, 0): {"answers": [dies(1)]}, (0, 1): {"answers": [dies(2)]}})
    story.collect()
    assert story.losses() == {"time/worker_restarts": 2, "rollout/discarded_trajectories": 8}
    assert [fault.successor for fault in story.pool.repaired_faults()] == [None, 3]


def test_the_budget_ends_the_run_with_the_last_fault():
    story = Story(2, {(rank, 0): {"answers": [raises()]} for rank in (0, 1)}, max_restarts=1)
    with pytest.raises(RunError, match=r"rollout-1 raised ArithmeticError while it was to collect") as ended:
        story.collect()
    assert ended.value.after == ("1 workers were restarted before it (rollout.max_restarts).",)


def test_five_failures_in_a_row_end_the_run_whatever_the_budget():
    story = Story(1, {(0, life): {"answers": [raises()]} for life in range(9)})
    with pytest.raises(RunError, match="restarted 4 times in a row"):
        story.collect()
    assert story.factory.started[-1] == (0, 4)


def test_a_finished_task_ends_the_row_of_failures():
    plans = {(0, life): {"answers": [raises()]} for life in range(4)}
    plans[0, 4] = {"answers": ["done", raises()]}
    story = Story(1, plans)
    assert [story.collect(), story.collect()] == [["batch 5"], ["batch 6"]]


def test_an_error_that_a_user_can_act_on_ends_the_run_as_it_is():
    refusal = CallError(RuntimeError(), refusal=ConfigError("no such file"))
    story = Story(1, {(0, 0): {"answers": [refusal]}})
    with pytest.raises(ConfigError, match="no such file"):
        story.collect()
    assert story.factory.started == [(0, 0)]


def test_a_loss_that_is_not_the_workers_own_is_that_of_the_actor_it_depends_on():
    story = Story(
        1, {(0, 0): {"answers": [dies(99)]}}, others=lambda error: ActorLostError(Fault("inference-0", "died"))
    )
    with pytest.raises(ActorLostError, match="inference-0 died"):
        story.collect()


def test_a_worker_that_died_itself_is_replaced_without_asking_about_others():
    story = Story(
        1, {(0, 0): {"answers": [dies(1)]}}, others=lambda error: ActorLostError(Fault("inference-0", "died"))
    )
    assert story.collect() == ["batch 2"]


def test_a_worker_whose_code_raised_is_replaced_without_asking_about_others():
    story = Story(
        1, {(0, 0): {"answers": [raises()]}}, others=lambda error: ActorLostError(Fault("inference-0", "died"))
    )
    assert story.collect() == ["batch 2"]


def test_an_exception_of_an_actor_that_the_worker_depends_on_ends_the_run_and_replaces_nothing():
    error = CallError(RuntimeError("raised ArithmeticError"), actor="actor-99")
    story = Story(1, {(0, 0): {"answers": [error]}}, others=lambda error: RunError(Fault("inference-0", str(error))))
    with pytest.raises(RunError, match="inference-0 raised ArithmeticError"):
        story.collect()
    assert story.factory.started == [(0, 0)]


# --- fewer workers


def test_with_fewer_workers_required_an_iteration_continues_without_those_that_failed():
    story = Story(3, {(1, 0): {"answers": [dies(2)]}, (1, 1): {"answers": [50.0]}}, min_workers=2)
    assert story.collect() == ["batch 1", "batch 3"]


def test_a_worker_that_is_only_slow_is_waited_for():
    story = Story(2, {(1, 0): {"answers": [LIMIT - 1]}}, min_workers=1)
    assert story.collect() == ["batch 1", "batch 2"]


def test_a_replacement_that_is_not_ready_is_not_asked_while_enough_others_are_present():
    story = Story(2, {(1, 0): {"answers": [dies(2)]}, (1, 1): {"ready_at": 30.0, "answers": [40.0]}}, min_workers=1)
    assert story.collect() == ["batch 1"]
    assert list(story.pool.send(story.task()).requests) == [0]
    story.answers.clock = 30.0
    assert list(story.pool.send(story.task()).requests) == [0, 1]


def test_a_task_for_all_waits_for_replacements_too():
    story = Story(2, {(1, 0): {"answers": [dies(2)]}, (1, 1): {"ready_at": 30.0, "answers": [50.0]}}, min_workers=1)
    assert story.collect(waits_for_all=True) == ["batch 1", "batch 3"]


# --- spares


def test_after_a_loss_its_node_keeps_a_spare_once_the_replacement_has_worked():
    story = Story(2, {(0, 0): {"answers": ["done", dies(1)]}}, spares="after_loss")
    story.collect()
    assert story.factory.spares == []
    story.collect()
    assert [spare.node for spare in story.factory.spares] == ["node-a"]


def test_a_spare_that_is_ready_takes_the_rank_and_name_of_the_next_loss():
    story = Story(2, {(1, 0): {"answers": ["done", dies(2)]}}, spares="always")
    story.collect()
    (spare,) = story.factory.spares  # one for a node, however many workers it has
    assert story.collect() == ["batch 1", f"batch {spare.pid}"]
    assert (story.factory.assigned, spare.name) == ([(spare.pid, 1, 1)], "rollout-1")
    assert len(story.factory.spares) == 2  # and the node has another


def test_a_spare_that_is_not_ready_is_not_waited_for():
    story = Story(1, {(0, 0): {"answers": ["done", dies(1)]}, "node-a": {"ready_at": 60.0}}, spares="always")
    story.collect()
    story.collect()
    assert story.factory.started == [(0, 0), (0, 1)]


def test_a_spare_whose_simulator_failed_is_ended():
    story = Story(1, {(0, 0): {"answers": ["done", dies(1)]}, "node-a": {"ready": dies()}}, spares="always")
    story.collect()
    story.collect()
    assert story.factory.spares[0].ended
    assert story.factory.assigned == []


def test_without_spares_none_is_started():
    story = Story(1, {(0, 0): {"answers": [dies(1)]}}, spares="never")
    story.collect()
    assert story.factory.spares == []


def test_spares_end_with_the_pool():
    story = Story(1, spares="always")
    story.collect()
    story.pool.end()
    assert [actor.ended for actor in [*story.pool.actors, *story.factory.spares]] == [True, True]


# --- planned replacements


def test_a_worker_that_holds_too_much_memory_is_replaced_and_no_budget_is_charged():
    story = Story(2, {(1, 0): {"held": 3 * GIB}}, max_memory=2.0, max_restarts=0)
    assert story.collect() == ["batch 1", "batch 2"]  # after its fragment
    assert story.collect() == ["batch 1", "batch 3"]
    (fault,) = story.pool.repaired_faults()
    assert (fault.planned, fault.what) == (True, "held 3.00 GiB, more than rollout.max_memory=2")


def test_planned_replacements_are_no_failures_in_a_row():
    plans = {(0, life): {"node": f"node-{life}"} for life in range(6)}
    story = Story(1, {**plans, (0, 6): {"node": "node-6", "answers": [raises()]}}, max_restarts=1)
    for life in range(6):
        story.pool.evacuate({f"node-{life}"}, lambda ranks: None)
    assert story.collect() == ["batch 8"]


def test_workers_and_spares_leave_a_draining_node_and_nothing_new_starts_there():
    story = Story(2, {(1, 0): {"node": "node-b"}, (1, 1): {"node": "node-c"}}, spares="always", max_restarts=0)
    story.collect()
    moved = []
    story.pool.evacuate({"node-b"}, moved.extend)
    assert moved == [1]
    assert story.collect() == ["batch 1", f"batch {story.pool.actors[1].pid}"]
    assert [(spare.node, spare.ended) for spare in story.factory.spares] == [
        ("node-a", False), ("node-b", True), ("node-c", False),
    ]  # fmt: skip
    assert [fault.what for fault in story.pool.repaired_faults()] == ["had to leave its node, which is draining"]


def test_a_draining_node_gets_no_spare_even_if_a_worker_lands_there():
    story = Story(1, {(0, 0): {"node": "node-b"}, (0, 1): {"node": "node-b"}}, spares="always")
    story.pool.evacuate({"node-b"}, lambda ranks: None)
    story.collect()
    assert story.factory.spares == []


def test_after_a_recovery_all_workers_start_over_and_one_that_cannot_is_replaced():
    story = Story(2, {(0, 0): {"answers": [dies(1)]}, (0, 1): {"answers": [5.0]}}, min_workers=1)
    asked = []
    story.pool.start_over(lambda actor, ranks: asked.append((*ranks, actor.pid)) or actor.do())
    assert asked == [(0, 1), (1, 2), (0, 3)]
    assert story.answers.clock == 5.0  # all have to, whatever rollout.min_workers is


# --- several workers in a process


def test_a_process_is_asked_once_for_all_of_its_workers():
    story = Story(4, hosts=2)
    asked = []
    story.pool.gather(story.pool.send(WorkerTask(
        lambda actor, ranks: [asked.append(ranks), actor.do()], "collect", LIMIT, "rollout.timeout"
    )))  # fmt: skip
    assert asked == [[0, 1], [2, 3]]


def test_the_loss_of_a_process_is_one_restart_and_the_episodes_of_all_of_its_workers():
    story = Story(4, {(2, 0): {"answers": [dies(2)]}}, hosts=2, max_restarts=1)
    assert story.collect() == ["batch 1", "batch 3"]
    assert story.losses() == {"time/worker_restarts": 1, "rollout/discarded_trajectories": 4}
    assert story.factory.started[2:] == [(2, 1)]
    assert [fault.actor for fault in story.pool.repaired_faults()] == ["rollout-2..3"]


def test_the_fewest_workers_that_let_an_iteration_go_on_are_counted_one_by_one():
    story = Story(4, {(2, 0): {"answers": [dies(2)]}, (2, 1): {"answers": [50.0]}}, hosts=2, min_workers=2)
    assert story.collect() == ["batch 1"]
    story = Story(4, {(2, 0): {"answers": [dies(2)]}, (2, 1): {"answers": [50.0]}}, hosts=2, min_workers=3)
    assert story.collect() == ["batch 1", "batch 3"]


def test_nodes_that_are_lost_together_are_charged_once():
    plans = {(rank, 0): {"node": f"rack-{rank}", "answers": [dies(rank + 1)]} for rank in range(3)}
    story = Story(3, plans, max_restarts=1)
    story.factory.lost |= {"rack-0", "rack-1", "rack-2"}
    assert story.collect() == ["batch 4", "batch 5", "batch 6"]


def test_processes_start_in_waves():
    class Wave(FakeFactory):
        wave = 2
        moments: tuple[float, ...] = ()

        def start_host(self, place, lives):
            actor = super().start_host(place, lives)
            actor.location_ref = Ref(None, answers.clock + 5.0)
            self.moments += (answers.clock,)
            return actor

    answers, config = FakeAnswers(), Story(1).config
    factory = Wave({})
    WorkerPool(config, runs(5, 5), factory, answers, lambda error: None)
    assert factory.moments == (0.0, 0.0, 5.0, 5.0, 10.0)


# --- processes that come and go


def test_a_process_that_has_joined_takes_workers_over_once_it_is_ready():
    story = Story(4, {(2, 0): {"ready_at": 7.0}}, hosts=1, is_elastic=True)
    story.pool.join(1)
    assert story.pool.deal_again(2, ()) == ([], False)
    story.answers.clock = 7.0
    assert story.pool.deal_again(2, ()) == ([], True)
    assert story.pool.hosting == [[0, 1], [2, 3]]
    giver, taker = story.pool.actors
    assert giver.calls == [("give_belongings", 2), ("give_belongings", 3)]
    assert [name for name, _ in taker.calls] == ["take_belongings"] * 2
    assert (giver.name, taker.name) == ("rollout-0..1", "rollout-2..3")
    assert story.losses() == {}


def test_what_is_dealt_well_stays():
    story = Story(4, hosts=2, is_elastic=True)
    assert story.pool.deal_again(2, ()) == ([], False)
    assert [actor.calls for actor in story.pool.actors] == [[], []]


def test_a_process_that_has_to_leave_gives_its_workers_away_and_its_place_back():
    story = Story(4, {(2, 0): {"node": "node-b"}}, hosts=2, is_elastic=True)
    leaving = story.pool.actors[1]
    assert story.pool.deal_again(2, {"node-b"}) == ([1], True)
    assert (story.pool.hosting, leaving.ended) == ([[0, 1, 2, 3]], True)
    assert story.losses() == {}


def test_the_last_process_stays_whatever_is_draining():
    story = Story(2, hosts=1, is_elastic=True)
    assert not story.pool.can_leave({"node-a"})
    assert story.pool.deal_again(2, {"node-a"}) == ([], False)


def test_fewer_processes_that_were_asked_for_end_those_that_came_last():
    story = Story(3, is_elastic=True)
    assert story.pool.deal_again(1, ()) == ([1, 2], True)
    assert story.pool.hosting == [[0, 1, 2]]


def test_the_workers_of_a_lost_process_begin_anew_in_another():
    story = Story(4, {(2, 0): {"answers": [dies(2)]}}, hosts=2, is_elastic=True)
    assert story.collect() == ["batch 1", "batch 1"]
    assert story.pool.actors[0].calls == [("begin", {2: 1, 3: 1})]
    assert story.factory.started == [(0, 0), (2, 0)]
    assert story.losses() == {"time/worker_restarts": 1, "rollout/discarded_trajectories": 4}
    assert [(fault.actor, fault.successor) for fault in story.pool.repaired_faults()] == [("rollout-2..3", 1)]


def test_a_process_that_is_lost_with_workers_it_has_just_taken_on_loses_no_episodes_of_theirs():
    story = Story(4, {(0, 0): {"answers": [3.0, dies(1)]}, (2, 0): {"answers": [dies(2)]}}, hosts=2, is_elastic=True)
    assert story.collect() == ["batch 1", "batch 3"]
    assert story.losses() == {"time/worker_restarts": 2, "rollout/discarded_trajectories": 8}


def test_a_worker_whose_belongings_are_lost_begins_anew():
    class Losing(FakeActor):
        def call(self, method, *args):
            return Ref(dies(1)) if method is WorkerHost.take_belongings else super().call(method, *args)

    story = Story(2, hosts=1, is_elastic=True)
    start = story.factory.start_host
    story.factory.start_host = lambda place, lives: Losing(start(place, lives).name, 9)
    story.pool.join(1)
    assert story.pool.deal_again(2, ()) == ([], True)
    assert story.pool.actors[1].calls == [("begin", {1: 1})]
    assert story.losses() == {"rollout/discarded_trajectories": 4}


def test_the_loss_of_a_process_that_had_to_leave_is_charged_once_and_told():
    class Lost(FakeActor):
        def call(self, method, *args):
            return Ref(dies(9))

    class Taking(FakeActor):
        def call(self, method, *args):
            return args[0] if method is WorkerHost.take_belongings else super().call(method, *args)

    story = Story(4, hosts=2, is_elastic=True)
    for member, actor in zip(story.pool._members, (Taking("rollout-0..1", 8), Lost("rollout-2..3", 9)), strict=True):
        member.actor = actor
    story.pool.actors[1].node = "node-b"
    assert story.pool.deal_again(2, {"node-b"}) == ([1], True)
    assert story.losses() == {"time/worker_restarts": 1, "rollout/discarded_trajectories": 4}
    assert [fault.actor for fault in story.pool.repaired_faults()] == ["rollout-2..3"]


def test_a_process_that_cannot_join_is_charged_and_told():
    story = Story(2, {(1, 0): {"ready": dies()}}, hosts=1, is_elastic=True, max_restarts=1)
    story.pool.join(1)
    assert story.pool.deal_again(2, ()) == ([1], False)
    assert [fault.sentence for fault in story.pool.repaired_faults()] == [
        "rollout-1 died while it was to make its simulator"
    ]
    story.pool.join(1)
    with pytest.raises(RunError, match=r"1 workers were restarted before it \(rollout.max_restarts\)"):
        story.pool.deal_again(2, ())


# --- linear in the number of workers: only what changed is touched, and nothing is decided otherwise


class PlainPool(WorkerPool):
    """A pool that looks at every worker each time it waits."""

    def poll(self, tasks, others=()):
        waiting = {
            task.requests[rank].refs[-1]: (task, rank)
            for task in tasks for rank in task.requests if rank not in task.answers
        }  # fmt: skip
        for task, rank in waiting.values():
            if rank not in task.deadlines:
                task.set_deadline(rank, self._deadline(task, starting=any(member.absent for member in self._members)))
        left = min((task.deadlines[rank] for task, rank in waiting.values()), default=math.inf) - self._answers.now()
        done = self._answers.wait([*waiting, *others], timeout=min(1.0, max(0.0, left)))
        for task, rank in [waiting[ref] for ref in done if ref in waiting]:
            ref = task.requests[rank].refs[-1]
            self._forget(task, rank)
            self._take_answer(rank, task, *self._answers.take([ref]))
        for task, rank in [] if done else waiting.values():
            if task.deadlines[rank] <= self._answers.now():
                self._forget(task, rank)
                self._recover(rank, task, None)
        return [ref for ref in done if ref not in waiting]


WORKERS = 4
OUTCOMES = st.sampled_from([dies(), raises(), "done"]) | st.floats(0.5, 1.5 * LIMIT)
LIVES = st.fixed_dictionaries(
    {"answers": st.lists(OUTCOMES, max_size=4), "ready_at": st.floats(0, 3 * LIMIT), "held": st.integers(0, 3 * GIB)}
)
ACTIONS = st.sampled_from(["collect", "wait for all", "stream", "start over", "drain"])


def decisions(
    pool_class: type[WorkerPool], plans: dict[Any, Any], actions: list[str], rollout: dict[str, Any]
) -> list[Any]:
    """Takes a pool through a schedule; returns everything that it decided, and when."""
    story = Story(WORKERS, {key: {**plan, "answers": [*plan["answers"]]} for key, plan in plans.items()}, **rollout)
    story.pool.__class__ = pool_class
    trace: list[Any] = []
    try:
        for action in actions:
            if action == "stream":
                tasks = [story.pool.send(story.task(hosts=[rank])) for rank in range(WORKERS)]
                while pending := [task for task in tasks if not task.is_complete]:
                    story.pool.poll(pending)
                    trace.append([task.is_complete for task in tasks])
                trace.append([story.pool.gather(task)[0][0].refs[0] for task in tasks])
            elif action == "start over":
                story.pool.start_over(lambda actor, rank: actor.do())
            elif action == "drain":
                story.pool.evacuate({"node-a"}, trace.append)
            else:
                trace.append(story.collect(waits_for_all=action == "wait for all"))
            trace.append((story.answers.clock, story.losses(), story.pool.repaired_faults()))
    except RunError as error:
        trace.append(str(error))
    spares = [(spare.node, spare.ended) for spare in story.factory.spares]
    return [*trace, story.answers.clock, story.factory.started, story.factory.assigned, spares]


@settings(max_examples=300)
@given(
    plans=st.dictionaries(st.tuples(st.integers(0, WORKERS - 1), st.integers(0, 3)), LIVES, max_size=12),
    actions=st.lists(ACTIONS, min_size=1, max_size=5),
    rollout=st.fixed_dictionaries(
        {
            "min_workers": st.sampled_from(["all", 1, 2]),
            "max_restarts": st.sampled_from([0, 2, 100]),
            "spares": st.sampled_from(["never", "always", "after_loss"]),
            "max_memory": st.sampled_from([None, 2.0]),
        }
    ),
)
def test_a_pool_decides_as_one_that_looks_at_every_worker_each_time(plans, actions, rollout):
    assert decisions(WorkerPool, plans, actions, rollout) == decisions(PlainPool, plans, actions, rollout)


def test_a_wait_looks_at_no_worker_that_has_neither_answered_nor_run_out_of_time():
    story = Story(100, {(rank, 0): {"answers": [1.0 + rank / 100]} for rank in range(100)})
    looks, members = [], story.pool._members

    class Watched(list):
        def __getitem__(self, rank):
            looks.append(rank)
            return super().__getitem__(rank)

        def __iter__(self):
            looks.extend(range(len(self)))
            return super().__iter__()

    task = story.pool.send(story.task())
    story.pool._members = Watched(members)
    while not task.is_complete:
        story.pool.poll([task])
    assert Counter(looks) == dict.fromkeys(range(100), 1)  # whether it had failed, when it was first waited for
