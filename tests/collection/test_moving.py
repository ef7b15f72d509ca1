"""Workers that move to another process, and several workers in one: their numbers are those of workers that stay."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlpipe.collection.host import WorkerHost, host_name, worker_names
from rlpipe.collection.moving import NotRepeatableError, RunningActions, repeat
from rlpipe.collection.worker import RolloutWorker
from rlpipe.config.loading import load_config
from rlpipe.curricula.widening import WideningCurriculum
from rlpipe.envs.base import Step
from rlpipe.errors import ConfigError
from rlpipe.metrics import catalogue as m
from rlpipe.policies.base import NoWeights, Snapshot
from rlpipe.trajectory.tree import named_leaves
from tests.helpers.runs import gru, scripted

ELASTIC = ("rollout.num_workers=2", "rollout.min_processes=1")
SNAPSHOT = Snapshot(0, NoWeights.FROM_SEED)


SEEDED = {"name": "tests.helpers.simulators:Seeded", "total_num_envs": 4, "match_actions": True}


def seeded(tmp_path, *overrides, **tree):
    return scripted(tmp_path, *overrides, **{"env": {"train": SEEDED}, **tree})


def memory(tmp_path, *overrides):
    return gru(tmp_path, *overrides, env={"train": SEEDED})


def cartpole(tmp_path, *overrides):
    tree = {"env": {"train": {"name": "gymnasium", "id": "CartPole-v1", "total_num_envs": 4, "success_key": "solved"}}}
    return scripted(tmp_path, *overrides, **tree)


def chunks(tmp_path, *overrides):
    policy = {"name": "mlp", "hidden_sizes": [8], "chunk_size": 3, "execute": 2}
    return seeded(tmp_path, *overrides, policy=policy)


def varied(tmp_path, *overrides):
    levels = {"action_latency": {"choice": [0, 1, 2]}, "action_hold": {"choice": [1, 3]}, "action_noise": 0.3}
    levels |= {"observation_noise": {"uniform": [0.1, 0.2]}, "observation_latency": 1, "observation_dropout": 0.3}
    return scripted(tmp_path, *overrides, env={"train": SEEDED | {"variations": levels, "observe_variations": True}})


def groups(tmp_path, *overrides):
    return seeded(tmp_path, *overrides, algorithm={"name": "grpo", "group_size": 2})


def step(ended: list[bool], valid: list[bool] | None = None) -> Step:
    """Step of which only the ends matter."""
    count = len(ended)
    nothing, no = np.zeros((count, 1)), np.zeros(count, dtype=bool)
    took = np.ones(count, dtype=bool) if valid is None else np.array(valid)
    return Step(nothing, nothing, np.zeros(count), np.array(ended), no, None, took, {})


def numbers(collected) -> list:
    """Everything of a fragment and its window that is not a time."""
    batch, window = collected
    leaves = {name: leaf.tolist() for name, leaf in named_leaves(batch.observations).items()}
    arrays = [getattr(batch, name).tolist() for name in ("actions", "log_probs", "rewards", "terminated", "truncated")]
    states = {name: state.read() for name, state in window.states.items() if not name.startswith("time/")}
    return [leaves, arrays, window.episodes, states, window.faults]


def moved(worker: RolloutWorker, config) -> RolloutWorker:
    """The worker of the same rank in another process, as far as that can be told in one."""
    belongings = pickle.dumps(worker.give_belongings())
    worker.close()
    successor = RolloutWorker(config.schedule, 1, 2)
    np.random.rand()
    successor.take_belongings(pickle.loads(belongings))
    return successor


# --- actions of running episodes


def test_the_actions_of_an_episode_are_those_since_its_beginning():
    running = RunningActions(2)
    for number, ended in enumerate([[False, False], [True, False], [False, False]]):
        running.add(np.array([10 * number, 10 * number + 1]), step(ended))
    assert [[int(action) for action in running.of(n)] for n in (0, 1)] == [[20], [1, 11, 21]]


def test_a_step_that_a_slot_did_not_take_is_none_of_its_actions():
    running = RunningActions(2)
    running.add(np.array([1, 2]), step([False, False], valid=[False, True]))
    assert [len(running.of(n)) for n in (0, 1)] == [0, 1]


def test_steps_that_no_running_episode_needs_are_forgotten():
    running = RunningActions(2)
    for _ in range(100):
        running.add(np.array([0, 0]), step([True, True]))
    assert len(running._steps) == 0


# --- workers that move


@pytest.mark.parametrize("make", [seeded, cartpole, memory, chunks, groups, varied])
def test_a_worker_that_has_moved_collects_what_it_would_have_collected(tmp_path, make):
    config = make(tmp_path, *ELASTIC, "rollout.horizon=9")
    staying, moving = (RolloutWorker(config.schedule, 1, 2) for _ in range(2))
    steps = config.steps_per_collection
    for fragment in range(4):
        if fragment in (1, 3):
            moving = moved(moving, config)
        expected, got = (worker.collect(SNAPSHOT, 0, fragment * steps) for worker in (staying, moving))
        assert numbers(got) == numbers(expected)


def test_a_moved_worker_makes_an_episode_again_within_the_ranges_that_it_began_in(tmp_path):
    wide = {"action_noise": {"uniform": [0.0, 1.0]}, "observation_noise": {"uniform": [0.0, 1.0]}}
    train = SEEDED | {"script": [[{"length": 25}]], "variations": wide, "observe_variations": True}
    config = scripted(
        tmp_path,
        *ELASTIC,
        "rollout.horizon=9",
        env={"train": train},
        curriculum={"name": "widening", "own_starts": 0.1},
    )
    curriculum = WideningCurriculum.make(config, ())
    staying, moving = (RolloutWorker(config.schedule, 1, 2) for _ in range(2))
    for fragment in range(7):
        snapshot = replace(SNAPSHOT, starts=curriculum.starts())
        if fragment:
            moving = moved(moving, config)
        expected, got = (worker.collect(snapshot, 0, 9 * fragment) for worker in (staying, moving))
        assert numbers(got) == numbers(expected)
        assert not got[1].faults
        for edge in curriculum.edges:  # while episodes are running
            edge.place += 1


@settings(max_examples=10)
@given(st.lists(st.booleans(), min_size=4, max_size=4))
def test_a_worker_may_move_before_any_fragment(tmp_path_factory, moves):
    config = seeded(tmp_path_factory.mktemp("moves"), *ELASTIC, "rollout.horizon=7")
    staying, moving = (RolloutWorker(config.schedule, 1, 2) for _ in range(2))
    for fragment, moves_now in enumerate(moves):
        if moves_now:
            moving = moved(moving, config)
        assert numbers(moving.collect(SNAPSHOT, 0, 7 * fragment)) == numbers(staying.collect(SNAPSHOT, 0, 7 * fragment))


def test_a_simulator_that_draws_from_the_generators_of_the_process_goes_on_with_them(tmp_path):
    tree = {"env": {"train": {**SEEDED, "name": "tests.helpers.simulators:Rolling"}}}
    config = scripted(tmp_path, *ELASTIC, **tree)
    staying = RolloutWorker(config.schedule, 1, 2)
    expected = [numbers(staying.collect(SNAPSHOT, 0, 16 * fragment)) for fragment in range(2)]
    moving = RolloutWorker(config.schedule, 1, 2)
    assert numbers(moving.collect(SNAPSHOT, 0, 0)) == expected[0]
    assert numbers(moved(moving, config).collect(SNAPSHOT, 0, 16)) == expected[1]


def test_episodes_that_cannot_be_repeated_are_dropped_counted_and_told(tmp_path):
    config = scripted(tmp_path, *ELASTIC, "rollout.horizon=13")  # its observations count the episodes of a slot
    worker = RolloutWorker(config.schedule, 1, 2)
    worker.collect(SNAPSHOT, 0, 0)
    batch, window = moved(worker, config).collect(SNAPSHOT, 0, 13)
    assert window.states[m.DISCARDED_TRAJECTORIES.name].read() == {"sum": 2.0}
    (fault,) = window.faults
    assert fault == (
        "rollout-1: its episodes could not go on in another process, because its observations (observation) differ "
        "from those before. They are dropped."
    )
    assert batch.valid.all()


def test_a_simulator_that_raises_while_it_repeats_says_what():
    class Raising:
        num_envs = 1
        spec = load_spec()

        def reset(self):
            raise ArithmeticError("the solver diverged")

    with pytest.raises(NotRepeatableError, match="raised ArithmeticError: the solver diverged while repeating"):
        repeat(Raising(), RunningActions(1), None)


def load_spec():
    return RolloutWorker(scripted("/nowhere").schedule, 0, 1).ready().spec


# --- several workers in one process


def test_workers_of_one_process_collect_what_those_of_two_collect(tmp_path):
    config = scripted(tmp_path, "rollout.num_workers=2")
    alone = [RolloutWorker(config.schedule, rank, 2) for rank in (0, 1)]
    host = WorkerHost(config.schedule, {0: 0, 1: 0}, 2)
    for fragment in range(3):
        first_step = 16 * fragment
        expected = [worker.collect(SNAPSHOT, 0, first_step) for worker in alone]
        *batches, window = host.collect([0, 1], SNAPSHOT, 0, [first_step, first_step])
        merged_window = expected[0][1]
        merged_window.merge(expected[1][1])
        for batch, (own_batch, _) in zip(batches, expected, strict=True):
            assert numbers((batch, window)) == numbers((own_batch, merged_window))


def test_the_windows_of_single_workers_stay_where_somebody_asks_for_them(tmp_path):
    config = scripted(tmp_path, "rollout.num_workers=2", "runner.logger.per_worker=true")
    *_, window = WorkerHost(config.schedule, {0: 0, 1: 0}, 2).collect([0, 1], SNAPSHOT, 0, [0, 0])
    assert [single.worker for single in window.of_workers] == [0, 1]
    quiet = scripted(tmp_path, "rollout.num_workers=2")
    *_, window = WorkerHost(quiet.schedule, {0: 0, 1: 0}, 2).collect([0, 1], SNAPSHOT, 0, [0, 0])
    assert window.of_workers == []


@pytest.mark.parametrize("waiting", [1, 2])
def test_a_spare_process_takes_over_all_workers_of_another(tmp_path, waiting):
    config = scripted(tmp_path, "rollout.num_workers=4")
    spare = WorkerHost(config.schedule, dict.fromkeys(range(waiting), 0), 4)
    spare.take_over({2: 1, 3: 1}, 0)
    replaced = WorkerHost(config.schedule, {2: 1, 3: 1}, 4)
    for ours, theirs in zip(
        spare.collect([2, 3], SNAPSHOT, 0, [0, 0])[:2], replaced.collect([2, 3], SNAPSHOT, 0, [0, 0])[:2], strict=True
    ):
        assert np.array_equal(ours.observations, theirs.observations)


@pytest.mark.parametrize(("ranks", "name"), [([3], "rollout-3"), ([4, 5, 6], "rollout-4..6")])
def test_a_process_is_called_after_its_workers(ranks, name):
    assert host_name(ranks) == name
    assert worker_names(name) == [f"rollout-{rank}" for rank in ranks]


# --- what is refused


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["rollout.min_processes=3"], "rollout.num_workers is 2: give a number of workers, at least 3"),
        (["rollout.min_processes=1", "rollout.workers_per_actor=2"], "leave one of them out"),
        (["rollout.min_processes=1", "runner.pipeline=stream"], "set runner.pipeline=ahead or sync"),
        (["rollout.min_processes=1", "rollout.inference=server"], "workers cannot move"),
        (["rollout.workers_per_actor=2", "rollout.inference=server"], "cannot ask before it"),
        (["rollout.num_workers={min: 2}"], "it must have min and max"),
    ],
)
def test_processes_that_cannot_be_shared_are_refused(tmp_path, overrides, message):
    with pytest.raises(ConfigError, match=message):
        scripted(tmp_path, "rollout.num_workers=2", *overrides)


def test_a_simulator_whose_episodes_cannot_go_on_elsewhere_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"gymnasium \(env.train\) steps all its environments at once"):
        load_config("ppo_cartpole", ["env.train.vectorized=true", "rollout.num_workers={min: 1, max: 2}"])


def test_a_range_of_workers_is_the_most_workers_in_the_least_processes(tmp_path):
    rollout = scripted(tmp_path, "rollout.num_workers={min: 2, max: 4}").rollout
    assert (rollout.num_workers, rollout.min_processes) == (4, 2)


@pytest.mark.soak
def test_maniskill_can_move_where_each_episode_has_a_new_scene():
    overrides = ["rollout.num_workers={min: 1, max: 2}", "demos=null"]
    with pytest.raises(ConfigError, match=r"set env\.train\.kwargs\.reconfiguration_freq=1, which builds the scene"):
        load_config("ppo_push_cube", overrides)
    config = load_config("ppo_push_cube", [
        *overrides, "env.train.kwargs.reconfiguration_freq=1", "env.train.total_num_envs=4", "rollout.horizon=30",
    ])  # fmt: skip
    staying, moving = (RolloutWorker(config.schedule, 1, 2) for _ in range(2))
    for fragment in range(2):  # of episodes of 50 steps
        moving = moved(moving, config)
        assert numbers(moving.collect(SNAPSHOT, 0, 30 * fragment)) == numbers(
            staying.collect(SNAPSHOT, 0, 30 * fragment)
        )
