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

from rlpipe.collection.worker import RolloutWorker
from rlpipe.distributed.answers import CallError
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
    """

    name: str
    pid: int
    answers: list[Any] = field(default_factory=list)
    ready_at: float = 0.0
    ready: Any = "spec"
    node: str = "node-a"
    held: int = 0
    ended: bool = False

    def call(self, method, *args):
        assert method is RolloutWorker.ready
        return Ref(self.ready, self.ready_at)

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
    """Implements ``WorkerFactory``: the n-th worker of a rank answers as listed under (rank, n)."""

    def __init__(self, plans: dict[tuple[int, int], dict[str, Any]]) -> None:
        self.plans = plans
        self.pids = itertools.count(1)
        self.started: list[tuple[int, int]] = []
        self.spares: list[FakeActor] = []
        self.assigned: list[tuple[int, int, int]] = []

    def start_worker(self, rank, life):
        self.started.append((rank, life))
        return FakeActor(f"rollout-{rank}", next(self.pids), **self.plans.get((rank, life), {}))

    def start_spare(self, node):
        self.spares.append(FakeActor("rollout-spare", next(self.pids), node=node, **self.plans.get(node, {})))
        return self.spares[-1]

    def assign(self, spare, rank, life):
        self.assigned.append((spare.pid, rank, life))


class Story:
    """A pool on stand-ins.

    Args:
        workers: number of workers.
        plans: what the n-th worker of a rank does, by rank and n.
        rollout: settings under ``rollout``.
    """

    def __init__(
        self, workers: int, plans: dict[Any, Any] | None = None, others=lambda error: None, **rollout: Any
    ) -> None:
        settings = {"max_restarts": 100, "min_workers": "all", "spares": "never", "max_memory": None, "timeout": LIMIT}
        config = SimpleNamespace(
            rollout=SimpleNamespace(**{**settings, **rollout}),
            cluster=SimpleNamespace(start_timeout=START),
            env=SimpleNamespace(train=SimpleNamespace(total_num_envs=8)),
        )
        self.answers, self.factory = FakeAnswers(), FakeFactory(plans or {})
        self.pool = WorkerPool(config, workers, self.factory, self.answers, others)

    def task(self, **options: Any) -> WorkerTask:
        return WorkerTask(
            lambda actor, _: [f"batch {actor.pid}", actor.do()], "collect", LIMIT, "rollout.timeout", **options
        )

    def collect(self, **options: Any) -> list[Any]:
        """One task to its end; returns the batches."""
        batches, _ = self.pool.gather(self.pool.send(self.task(**options)))
        return [batch for batch, _ in batches]

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
    assert [story.pool.gather(task)[0][0][0] for task in (first, second)] == ["batch 2", "batch 2"]
    assert story.losses()["time/worker_restarts"] == 1


# --- failures


def test_a_worker_without_an_answer_in_time_is_replaced():
    story = Story(1, {(0, 0): {"answers": [LIMIT + 0.5]}})
    assert story.collect() == ["batch 2"]
    (fault,) = story.pool.repaired_faults()
    assert fault.what == "gave no answer within 10 s (rollout.timeout)"


def test_a_worker_that_fell_silent_is_replaced_although_others_answer_all_the_time():
    story = Story(2, {(0, 0): {"answers": [1e9]}})
    silent, quick = (story.pool.send(story.task(ranks=[rank])) for rank in (0, 1))
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
    story.pool.start_over(lambda actor, rank: asked.append((rank, actor.pid)) or actor.do())
    assert asked == [(0, 1), (1, 2), (0, 3)]
    assert story.answers.clock == 5.0  # all have to, whatever rollout.min_workers is


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
                task.set_deadline(rank, self._deadline(task, starting=bool(self._absent)))
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
                tasks = [story.pool.send(story.task(ranks=[rank])) for rank in range(WORKERS)]
                while pending := [task for task in tasks if not task.is_complete]:
                    story.pool.poll(pending)
                    trace.append([task.is_complete for task in tasks])
                trace.append([story.pool.gather(task)[0][0][0] for task in tasks])
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
    assert Counter(looks) == dict.fromkeys(range(100), 2)  # whether it had failed, and how much memory it holds
