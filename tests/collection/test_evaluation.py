"""Evaluation: each episode depends on its seed and the weights alone, and none is favoured for being quick."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import rlpipe
from rlpipe.analysis.evaluation_report import EvaluationReport, estimate, estimates
from rlpipe.cli import app
from rlpipe.collection.evaluator import share_of_slots
from rlpipe.collection.seeds import episode_keys, seeds_of_slots
from rlpipe.functional.intervals import bootstrap_interval, newcombe_interval, wilson_interval
from rlpipe.metrics import catalogue as m
from rlpipe.trajectory import Episode
from tests.helpers.runs import scripted
from tests.helpers.simulators import RACE

CARTPOLE = {"train": {"name": "gymnasium", "id": "CartPole-v1", "total_num_envs": 6}}
PUSH_CUBE = {"train": {"name": "maniskill", "id": "PushCube-v1", "total_num_envs": 1, "max_episode_steps": 20}}


def checkpoint_of(folder: Path, env: dict, *overrides: str) -> Path:
    """The checkpoint of a run of one iteration."""
    config = scripted(folder, "runner.total_timesteps=1", "evaluation.episodes=1", *overrides, env=env)
    found = rlpipe.train(config, local=True).checkpoint
    assert found is not None
    return found


@pytest.fixture(scope="module")
def race(tmp_path_factory):
    return checkpoint_of(tmp_path_factory.mktemp("race"), RACE)


@pytest.fixture
def own_race(race, tmp_path):
    """The same in a copy of its run, to which a test may add."""
    run = shutil.copytree(race.parent.parent, tmp_path / "run", ignore=shutil.ignore_patterns("evaluations"))
    return run / "checkpoints" / race.name


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory):
    return checkpoint_of(tmp_path_factory.mktemp("cartpole"), CARTPOLE)


def played(report: EvaluationReport) -> list[Episode]:
    """The episodes without where they were played."""
    return [dataclasses.replace(episode, worker=0, slot=0, step=0) for episode in report.episodes]


# --- Whom it favours: nobody


@pytest.mark.parametrize("slots", [1, 3, 16])
def test_quick_successes_count_no_more_than_slow_failures(race, slots):
    report = rlpipe.evaluate(race, episodes=16, overrides=[f"env.eval.total_num_envs={slots}"], local=True)
    assert report.metrics["eval/success_once"] == 8 / 16


def test_the_first_episodes_to_end_would_have_said_something_else(race):
    report = rlpipe.evaluate(race, episodes=32, overrides=["env.eval.total_num_envs=8"], local=True)
    first_to_end = sorted(report.episodes, key=lambda episode: episode.step)[:16]
    assert sum(bool(episode.success_once) for episode in first_to_end) == 16
    assert report.metrics["eval/success_once"] == 0.5


@given(episodes=st.integers(1, 60), slots=st.integers(1, 20), workers=st.integers(1, 9))
def test_every_seed_is_played_once_on_a_slot_of_one_worker(episodes, slots, workers):
    queues = seeds_of_slots(episode_keys(episodes, 1000, 1), slots, 1)
    shares = [share_of_slots(slots, rank, workers) for rank in range(workers)]
    assert sorted(seed for share in shares for slot in share for seed in queues[slot]) == [
        *range(1000, 1000 + episodes)
    ]


def test_some_episodes_are_dealt_to_the_slots_of_their_task_in_the_order_of_their_seeds():
    """Five slots of two tasks: 0, 2 and 4 run the first one, 1 and 3 the second."""
    of_first, of_second = [(0, seed) for seed in (1009, 1002, 1004, 1007)], [(1, 1005)]
    assert seeds_of_slots([*of_first, *of_second], 5, 2) == [[1002, 1009], [1005], [1004], [], [1007]]


# --- What it does not depend on


@pytest.mark.parametrize(
    ("deterministic", "hosts"),
    [
        (True, ("rollout.num_workers=3", "env.eval.total_num_envs=1")),
        (False, ("rollout.num_workers=2", "rollout.num_workers=3", "env.eval.total_num_envs=1",
                 "env.eval.total_num_envs=7")),
    ],
    ids=["deterministic", "sampled"],
)  # fmt: skip
def test_no_episode_depends_on_the_workers_or_on_how_many_are_played_beside_it(cartpole, deterministic, hosts):
    """7 episodes on 6 slots: neither 2 nor 3 workers get equally many."""
    how = f"evaluation.deterministic={deterministic}"
    alone = rlpipe.evaluate(cartpole, episodes=7, overrides=[how], local=True)
    for host in hosts:
        shared = rlpipe.evaluate(cartpole, episodes=7, overrides=[how, host], local=True)
        assert played(alone) == played(shared), host
        assert (alone.metrics, alone.estimates) == (shared.metrics, shared.estimates), host


@pytest.mark.soak
@pytest.mark.usefixtures("ray_cluster")
def test_no_episode_depends_on_where_the_workers_run(cartpole):
    how = ["evaluation.deterministic=false"]
    here = rlpipe.evaluate(cartpole, episodes=7, overrides=how, local=True)
    on_ray = rlpipe.evaluate(cartpole, episodes=7, overrides=[*how, "rollout.num_workers=2"])
    assert played(here) == played(on_ray)
    assert here.metrics == on_ray.metrics


def test_more_episodes_only_add_episodes(cartpole):
    few, many = (
        rlpipe.evaluate(cartpole, episodes=count, overrides=["evaluation.deterministic=false"], local=True)
        for count in (5, 9)
    )
    assert played(many)[:5] == played(few)


def test_sampled_actions_differ_from_one_episode_to_the_next(cartpole):
    report = rlpipe.evaluate(cartpole, episodes=8, overrides=["evaluation.deterministic=false"], local=True)
    assert len({episode.length for episode in report.episodes}) > 2


@pytest.mark.maniskill
@pytest.mark.soak
def test_no_episode_of_maniskill_depends_on_what_its_slot_played_before(tmp_path):
    checkpoint = checkpoint_of(tmp_path, PUSH_CUBE, "rollout.horizon=8")
    how = ["evaluation.deterministic=false", "env.eval.reward_mode=normalized_dense"]
    reports = [
        rlpipe.evaluate(checkpoint, episodes=4, overrides=[*how, f"env.eval.total_num_envs={slots}"], local=True)
        for slots in (1, 4)
    ]
    assert played(reports[0]) == played(reports[1])


# --- What it says


def test_the_report_holds_each_estimate_with_its_episodes_and_interval(race):
    report = rlpipe.evaluate(race, episodes=10, local=True)
    found = {one.metric: one for one in report.estimates}
    assert [*found] == [
        "eval/success_once", "eval/success_at_end", "eval/success_at_reset", "eval/return", "eval/episode_len",
    ]  # fmt: skip
    success = found["eval/success_once"]
    assert (success.value, success.low, success.high, success.episodes) == (0.5, *wilson_interval(5, 10), 10)
    length = found["eval/episode_len"]
    assert (length.value, length.low, length.high) == (11.0, *bootstrap_interval([2] * 5 + [20] * 5))


def test_the_interval_of_a_share_is_the_one_in_the_catalogue(race):
    report = rlpipe.evaluate(race, episodes=10, local=True)
    for found in report.estimates[:3]:
        assert found.metric.startswith("eval/success")
        bounds = (report.metrics[f"{found.metric}_ci_low"], report.metrics[f"{found.metric}_ci_high"])
        assert (found.low, found.high) == bounds


def test_without_a_notion_of_success_only_return_and_length_are_estimated(cartpole):
    report = rlpipe.evaluate(cartpole, episodes=3, local=True)
    assert [one.metric for one in report.estimates] == ["eval/return", "eval/episode_len"]


def episodes_of(*returns: float) -> list[Episode]:
    return [Episode(0, 0, seed, 1, each, 5, None, None, None, False, True) for seed, each in enumerate(returns)]


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30), st.randoms())
def test_an_estimate_does_not_depend_on_the_order_of_episodes(returns, random):
    episodes = episodes_of(*returns)
    shuffled = random.sample(episodes, len(episodes))
    assert estimates(shuffled) == estimates(episodes)


def test_one_episode_has_a_return_and_no_interval():
    found = estimate(m.EVAL_EPISODE_RETURN, episodes_of(3.0))
    assert found is not None
    assert (found.value, found.low, found.high, found.episodes) == (3.0, None, None, 1)


def test_a_return_that_is_not_finite_is_left_out_and_not_counted():
    found = estimate(m.EVAL_EPISODE_RETURN, episodes_of(1.0, float("nan"), 3.0))
    assert found is not None
    assert (found.value, found.episodes) == (2.0, 2)


# --- The intervals themselves


def test_the_bootstrap_of_equal_values_has_no_width():
    assert bootstrap_interval([7.0] * 5) == (7.0, 7.0)


def test_the_bootstrap_leans_towards_the_long_tail():
    """1 value of 10 is large. A symmetric interval would reach as far below the mean as above it."""
    low, high = bootstrap_interval([0.0] * 9 + [10.0])
    assert 1 - low < high - 1


@given(st.lists(st.integers(-1000, 1000), min_size=2, max_size=20), st.integers(-1000, 1000))
def test_the_bootstrap_moves_with_its_values(values, shift):
    moved = bootstrap_interval([value + shift for value in values])
    assert moved == pytest.approx([bound + shift for bound in bootstrap_interval(values)], abs=1e-6)


def test_the_bootstrap_needs_two_values():
    with pytest.raises(ValueError, match="at least 2"):
        bootstrap_interval([1.0])


def test_newcombe_by_his_own_example():
    """Newcombe 1998, table II, (a): 56 of 70 against 48 of 80."""
    assert newcombe_interval((56, 70), (48, 80)) == pytest.approx((0.0524, 0.3339), abs=5e-5)


def test_newcombe_is_not_certain_of_successes_without_a_failure():
    low, high = newcombe_interval((100, 100), (100, 100))
    assert low == -high < 0


# --- What it leaves behind


def contents(run: Path) -> dict[str, bytes]:
    return {str(file.relative_to(run)): file.read_bytes() for file in run.rglob("*") if file.is_file()}


def test_an_evaluation_adds_one_record_to_the_run_and_changes_nothing_else(own_race):
    run = own_race.parent.parent
    before = contents(run)
    first, second = (rlpipe.evaluate(run, episodes=count, local=True) for count in (4, 6))
    after = contents(run)
    assert {name: after[name] for name in before} == before
    assert sorted(after.keys() - before.keys()) == ["evaluations/1.json", "evaluations/2.json"]
    for report, name in ((first, "1.json"), (second, "2.json")):
        assert report.record == str(run / "evaluations" / name)
        assert json.loads((run / "evaluations" / name).read_text()) == json.loads(json.dumps(report.as_json()))


def test_the_record_holds_protocol_checkpoint_and_every_episode(own_race):
    report = rlpipe.evaluate(own_race, episodes=5, local=True)
    assert report.record is not None
    record = json.loads(Path(report.record).read_text())
    assert (record["checkpoint"], record["iteration"]) == (str(own_race), 1)
    assert record["protocol"]["evaluation_episodes"] == 5
    assert [row["seed"] for row in record["episodes"]] == [*range(1_000_000, 1_000_005)]
    assert [Episode.from_row(row) for row in record["episodes"]] == report.episodes


def test_the_record_says_with_what_it_was_played_and_what_was_changed(own_race):
    asked = ["evaluation.deterministic=false", "env.eval.total_num_envs=2", "rollout.num_workers=1", "learner.lr=1"]
    as_trained = rlpipe.evaluate(own_race, episodes=2, overrides=asked, local=True)
    changed = rlpipe.evaluate(own_race, episodes=2, overrides=["runner.seed=7"], local=True)
    assert (as_trained.changes, changed.changes) == ({}, {"runner.seed": 7})
    assert as_trained.versions["torch"] == torch.__version__


def test_the_command_shows_each_share_with_its_interval_and_episodes(race):
    """Of 10 episodes 5 succeed; none has at its reset."""
    shown = CliRunner().invoke(app, ["evaluate", str(race), "--episodes", "10", "--local"]).stdout
    rows = [re.sub(r"\s{2,}", " | ", line.strip()) for line in shown.splitlines()]
    assert "success_once | 0.500 | [0.237, 0.763] | 10" in rows
    assert "success_at_reset | 0.000 | [0.000, 0.278] | 10" in rows


def test_a_checkpoint_outside_of_a_run_leaves_no_record(race, tmp_path):
    alone = tmp_path / "policy.npz"
    alone.write_bytes(race.read_bytes())
    assert rlpipe.evaluate(alone, episodes=2, local=True).record is None
    assert [*tmp_path.iterdir()] == [alone]
