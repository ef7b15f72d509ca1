"""Properties that every run has, on each kind of observation, action and decision."""

from __future__ import annotations

import shutil

import pytest

import rlpipe
from rlpipe.config.loading import load_config
from rlpipe.metrics import catalogue as m
from rlpipe.report.run_content import PHASES
from tests.helpers.kinds import KINDS
from tests.helpers.runs import from_ledger, lines, without_timings

SECOND_WITNESSES = ("tree, chunks, grpo", "tree, chunks, sac", "tree, gru, chunks, reward of each action, ppo")
"""Kinds whose parts are all in kinds that ``make test`` runs."""


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=[pytest.mark.soak] * (name in SECOND_WITNESSES)) for name in KINDS],
)
def kind(request):
    return KINDS[request.param]


@pytest.fixture(scope="module")
def run(kind, tmp_path_factory):
    """A finished run of one worker, with a checkpoint of each iteration."""
    config = kind.config(tmp_path_factory.mktemp("one"), "runner.save_interval=1", "evaluation.episodes=2")
    return rlpipe.train(config, local=True).directory


def of_episodes(run):
    """The metrics of each iteration that are about its episodes."""
    rows = without_timings(run)
    return [{name: value for name, value in row.items() if name.startswith("env/")} for row in rows]


def of_ledger(run):
    rows = lines(run, "metrics.jsonl")
    return [from_ledger(run, "episodes.jsonl", m.ENV, row["iteration"]) for row in rows]


def experience(run):
    """Transitions in the replay buffer after each iteration; None for an algorithm that has none."""
    return [row.get("train/replay_buffer/total_samples") for row in without_timings(run)]


def test_its_metrics_are_those_of_its_ledger(run):
    assert of_episodes(run) == of_ledger(run)


def test_its_phases_add_up_to_its_time(run):
    for row in lines(run, "metrics.jsonl"):
        assert sum(row["metrics"].get(phase.name, 0.0) for phase in PHASES) == pytest.approx(
            row["metrics"]["time/step"]
        )


def test_two_workers_have_its_numbers(kind, run, tmp_path):
    options = ["rollout.num_workers=2", "evaluation.episodes=2"]
    if kind.alike:
        compared = lines(run, "metrics.jsonl")[kind.alike - 1]
        options.append(f"runner.total_timesteps={compared['total_timesteps']}")
    two = rlpipe.train(kind.config(tmp_path, *options), local=True).directory
    assert of_episodes(two)[: kind.alike] == of_episodes(run)[: kind.alike]


def test_resumed_it_loses_and_repeats_nothing(run, tmp_path):
    cut = shutil.copytree(run, tmp_path / "cut")
    for file in sorted((cut / "checkpoints").glob("iteration-*.npz"))[2:]:
        file.unlink()
    rlpipe.train(load_config(cut / "config.yaml"), resume=cut, local=True)
    assert [row["iteration"] for row in lines(cut, "metrics.jsonl")] == [*range(1, len(without_timings(run)) + 1)]
    assert without_timings(cut)[:2] == without_timings(run)[:2]
    assert experience(cut) == experience(run)
    assert of_episodes(cut) == of_ledger(cut)
    assert rlpipe.evaluate(cut, episodes=4, local=True).metrics["eval/num_trajectories"] == 4
