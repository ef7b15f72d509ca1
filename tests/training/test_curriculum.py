"""Runs with a curriculum: their numbers, and what a resume continues."""

from __future__ import annotations

import shutil
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlpipe
from rlpipe.config.loading import load_config
from rlpipe.errors import ConfigError
from rlpipe.metrics import MetricWindow
from rlpipe.metrics import catalogue as m
from rlpipe.trajectory import Episode
from tests.helpers.curricula import reach
from tests.helpers.runs import from_ledger, lines, without_timings
from tests.helpers.simulated_ray.trials import on_a_simulated_cluster

PENDULUM = {"name": "gymnasium", "id": "Pendulum-v1"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return rlpipe.train(reach(tmp_path_factory.mktemp("one")), local=True).directory


def of_episodes(run):
    return [{name: value for name, value in row.items() if name.startswith("env/")} for row in without_timings(run)]


def test_the_ledger_tells_chosen_starts_from_the_tasks_own(run):
    rows = lines(run, "episodes.jsonl")
    chosen = [row for row in rows if row["chosen"]]
    own = [row for row in rows if not row["chosen"]]
    assert len(chosen) > len(own) > 0
    assert {row["demonstration"] for row in chosen} <= {0, 1, 2}
    assert all(0 < row["demonstration_step"] < row["demonstration_length"] and row["seed"] < 1000 for row in chosen)
    assert all(row["demonstration"] is row["demonstration_length"] is None and row["seed"] >= 2**30 for row in own)


def test_no_evaluation_begins_in_a_chosen_start(run):
    rows = lines(run, "eval_episodes.jsonl")
    assert rows
    assert not any(row["chosen"] for row in rows)
    assert [row["seed"] for row in rows] == [*range(1_000_000, 1_000_000 + len(rows))]


def test_each_namespace_is_recomputed_from_its_own_episodes_of_the_ledger(run):
    for row in lines(run, "metrics.jsonl"):
        names = {name: value for name, value in row["metrics"].items() if name.startswith("env/")}
        curriculum = {name: names.pop(name) for name in list(names) if name.startswith("env/curriculum/")}
        assert names == from_ledger(run, "episodes.jsonl", m.ENV, row["iteration"])
        again = from_ledger(run, "episodes.jsonl", m.CURRICULUM, row["iteration"])
        assert again
        assert {name: curriculum[name] for name in again} == again


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(1, 9)), max_size=12))
def test_episodes_of_a_curriculum_never_enter_env(drawn):
    def episode(success, chosen, length):
        return Episode(0, 0, 1, 0, float(success), length, success, success, False, success, not success, chosen=chosen)

    def read(metrics, episodes):
        window = MetricWindow()
        metrics.observe(window, episodes)
        return window.read([m.ENV_SUCCESS_ONCE, m.ENV_EPISODE_LEN, m.ENV_NUM_TRAJECTORIES, m.ENV_EPISODE_RETURN])

    episodes = [episode(*one) for one in drawn]
    assert read(m.ENV, episodes) == read(m.ENV, [one for one in episodes if not one.chosen])
    assert read(m.CURRICULUM, episodes) == {}


@pytest.mark.parametrize("name", ["forward", "reverse_spread"])
def test_two_workers_have_the_numbers_of_one(tmp_path, name):
    short = "runner.total_timesteps=128"  # later iterations follow updates whose sums are in another order
    one, two = (
        rlpipe.train(
            reach(tmp_path / str(count), f"rollout.num_workers={count}", short, name=name), local=True
        ).directory
        for count in (1, 2)
    )
    assert of_episodes(one) == of_episodes(two)
    assert len(of_episodes(one)) == 2


def test_resumed_it_continues_the_curriculum(run, tmp_path):
    cut = shutil.copytree(run, tmp_path / "cut")
    for file in sorted((cut / "checkpoints").glob("iteration-*.npz"))[:-1]:
        file.unlink()
    (last,) = (cut / "checkpoints").glob("iteration-*.npz")
    whole = dict(np.load(last))
    longer = load_config(cut / "config.yaml", ["runner.total_timesteps=448"])
    rlpipe.train(longer, resume=cut, local=True)
    rows = without_timings(cut)
    assert len(rows) == 7
    assert whole["curriculum/at"].shape == (3,)
    # a start only ever moves back, so the mean begins where it was
    assert rows[-1]["env/curriculum/start"] <= rows[-2]["env/curriculum/start"]


def test_local_equals_ray(tmp_path, run):
    with on_a_simulated_cluster(tmp_path, stubs=False):
        ray = rlpipe.train(reach(tmp_path, "rollout.num_workers=1", "learner.device=cpu")).directory
    assert of_episodes(ray) == of_episodes(run)


def test_starts_move_back_as_it_learns(tmp_path):
    longer = reach(
        tmp_path, "runner.total_timesteps=1152", "runner.save_interval=100", "policy.hidden_sizes=[32]",
        "learner.lr=0.003", "curriculum.successes=2",
    )  # fmt: skip
    run = rlpipe.train(longer, local=True).directory
    starts = [row["env/curriculum/start"] for row in without_timings(run)]
    assert starts[0] > 0.5
    assert starts[-1] < 0.3


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"env": {"train": {"name": "scripted"}}}, "cannot begin an episode in a stored state, as maniskill can"),
        ({"env": {"train": PENDULUM}}, "does not tell it: name the entry of info that does in success_key"),
        (
            {"env": {"train": PENDULUM | {"success_key": "upright"}}},
            r"env.train \(Pendulum-v1\) cannot begin an episode in a stored state",
        ),
        ({"demos": None, "algorithm": {"name": "sac"}}, "begin in the course of demonstrations: demos=FILE.h5"),
        ({"algorithm": {"name": "behaviour_cloning"}}, "collects no episodes: leave the curriculum out"),
        (
            {"algorithm": {"name": "ppo"}, "policy": {"name": "mlp"}, "learner": {"num_learners": 2}},
            "one learner follows, but learner.num_learners is 2",
        ),
        ({"curriculum": {"name": "revers"}}, "did you mean 'reverse'"),
    ],
)
def test_a_curriculum_that_cannot_work_is_refused_before_the_start(tmp_path, changes, says):
    with pytest.raises(ConfigError, match=says):
        reach(tmp_path, **changes)


def test_a_task_whose_libraries_are_missing_says_so(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("gymnasium.envs.mujoco")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mujoco", None)
    task = {"name": "gymnasium", "id": "Pusher-v5", "success_key": "is_success"}
    with pytest.raises(
        ConfigError, match=r"env.train \(Pusher-v5\) cannot be loaded .*pip install 'rlpipe\[robotics\]'"
    ):
        reach(tmp_path, env={"train": task})
