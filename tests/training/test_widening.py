"""Runs whose variations widen: their episodes, what they say of them, and what a resume continues."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

import rlpipe
from rlpipe.config.loading import load_config
from rlpipe.config.variations import Variations
from rlpipe.errors import ConfigError
from rlpipe.metrics import catalogue as m
from tests.helpers.curricula import WIDEST, windy
from tests.helpers.runs import from_ledger, lines, scripted, without_timings
from tests.helpers.simulated_ray.trials import on_a_simulated_cluster

WHOLE = Variations.read(WIDEST, "variations")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return rlpipe.train(windy(tmp_path_factory.mktemp("one")), local=True).directory


def of_episodes(run):
    return [{name: value for name, value in row.items() if name.startswith("env/")} for row in without_timings(run)]


def edges(row) -> dict[str, float]:
    pattern = m.CURRICULUM_EDGE_LEVEL.pattern
    return {match[1]: value for name, value in row.items() if (match := pattern.fullmatch(name))}


def test_edges_come_as_far_as_episodes_succeed(run):
    reached = edges(of_episodes(run)[-1])
    assert reached["action_latency_high"] == 2
    assert reached["wind_high"] in (0.5, 0.75)  # at which all episodes fail, so that it moves back
    assert reached["wind_low"] in (-0.5, -0.75)


def test_episodes_vary_within_the_ranges_and_those_that_count_over_the_widest(run):
    reached = [{"wind_low": 0, "wind_high": 0, "action_latency_high": 0}, *map(edges, of_episodes(run))]
    ledger = lines(run, "episodes.jsonl")
    for episode in ledger:
        levels, edge, seed = episode["variations"], episode.get("edge"), episode["seed"]
        if not episode["chosen"]:
            assert edge is None
            assert levels == WHOLE.draw(seed)
            continue
        begun = episode["step"] - episode["length"]  # in the fragment of 16 steps that took this one
        ends = reached[max(0, -(-begun // 16) - 1)]
        assert ends["wind_low"] <= levels["wind"] <= ends["wind_high"]
        assert 0 <= levels["action_latency"] <= ends["action_latency_high"]
        assert edge is None or levels[edge.rpartition("_")[0]] == ends[edge]
    assert {one["chosen"] for one in ledger} == {True, False}


def test_success_at_each_edge_is_recomputed_from_the_ledger(run):
    found = set()
    for number, row in enumerate(of_episodes(run), 1):
        again = from_ledger(run, "episodes.jsonl", m.CURRICULUM, number)
        members = {name: value for name, value in row.items() if m.CURRICULUM_EDGE_SUCCESS.pattern.fullmatch(name)}
        assert members.items() <= again.items()
        assert {name: row[name] for name in again} == again
        found |= set(members.items())
    assert ("env/curriculum/edges/action_latency_high/success_once", 1.0) in found
    assert any(value < 1 for name, value in found if "wind_high" in name)


def test_evaluations_vary_over_the_widest_ranges(run):
    rows = lines(run, "eval_episodes.jsonl")
    assert rows
    assert [row["variations"] for row in rows] == [WHOLE.draw(row["seed"]) for row in rows]
    assert not any("edge" in row or row["chosen"] for row in rows)


def test_two_workers_have_the_numbers_of_one(run, tmp_path):
    two = rlpipe.train(windy(tmp_path, "rollout.num_workers=2"), local=True).directory
    assert of_episodes(two) == of_episodes(run)


def test_local_equals_ray(run, tmp_path):
    with on_a_simulated_cluster(tmp_path, stubs=False):
        ray = rlpipe.train(windy(tmp_path, "rollout.num_workers=2")).directory
    assert of_episodes(ray) == of_episodes(run)


def test_a_resume_goes_on_with_the_ranges_of_the_checkpoint(run, tmp_path):
    cut = shutil.copytree(run, tmp_path / "cut")
    first, *later = sorted((cut / "checkpoints").glob("iteration-*.npz"))
    for file in later:
        file.unlink()
    stored = {
        name.removeprefix("curriculum/").removesuffix("/level"): float(level)
        for name, level in np.load(first).items()
        if name.endswith("/level")
    }
    assert stored == edges(of_episodes(run)[5])
    rlpipe.train(load_config(cut / "config.yaml"), resume=cut, local=True)
    resumed = [row for row in lines(cut, "episodes.jsonl") if row["iteration"] == 7]
    at_edges = [row for row in resumed if "edge" in row]
    assert {row["edge"] for row in at_edges} == set(stored)
    assert all(row["variations"][row["edge"].rpartition("_")[0]] == stored[row["edge"]] for row in at_edges)
    assert len(of_episodes(cut)) == 12


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["env.train.variations={}"], "as far as env.train.variations says, but that is empty: name a range, such as"),
        (["env.train.variations={wind: 0.5, action_latency: 1}"], "but that gives each axis one level: name a range"),
        (["curriculum.narrow_at=0.9"], "narrow_at is 0.9, but curriculum.widen_at is 0.8: .* needs narrow_at below"),
        (["curriculum.edge_share=0"], "edge_share is 0.0; it must be greater than 0 and at most 1"),
        (
            ["stages=[{name: a, timesteps: 64}, {name: b, overrides: {env.train.variations.wind.uniform: [0, 1]}}]"],
            r"stages\[1\] \(b\).overrides changes env.train.variations, whose ranges curriculum.name=widening widens",
        ),
    ],
)
def test_what_cannot_widen_is_refused_before_the_start(tmp_path, overrides, says):
    with pytest.raises(ConfigError, match=says):
        windy(tmp_path, *overrides)


def test_a_simulator_that_draws_its_own_episodes_is_refused(tmp_path):
    train = {"name": "gymnasium", "id": "CartPole-v1", "vectorized": True, "success_key": "solved"}
    varied = train | {"variations": {"action_latency": {"choice": [0, 1]}}}
    with pytest.raises(ConfigError, match=r"chooses how episodes begin, but env.train .gymnasium. chooses that itself"):
        scripted(tmp_path, env={"train": varied}, curriculum={"name": "widening"})
