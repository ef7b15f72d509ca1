"""Equal seed, equal run: to the last bit, however busy the machine, in the mode that docs/configuration.md states."""

from __future__ import annotations

from pathlib import Path

import pytest

import rlpipe
from rlpipe.config.loading import load_config
from tests.helpers.curricula import reach
from tests.helpers.runs import lines, load, scripted, without_timings

RECIPES = {"ppo": scripted, "rlpd in a curriculum": reach}


def check_equal(one: Path, other: Path) -> None:
    rows = without_timings(one)
    assert len(rows) > 1
    assert rows == without_timings(other)
    for ledger in ("episodes.jsonl", "eval_episodes.jsonl"):
        assert lines(one, ledger)
        assert lines(one, ledger) == lines(other, ledger)


@pytest.mark.parametrize("recipe", RECIPES)
def test_equal_seeds_give_equal_runs_in_one_process_and_another_seed_another(tmp_path, recipe):
    short = "runner.total_timesteps=256"
    first, second, other = (
        rlpipe.train(RECIPES[recipe](tmp_path, short, f"runner.seed={seed}"), local=True).directory
        for seed in (0, 0, 1)
    )
    check_equal(first, second)
    assert without_timings(first) != without_timings(other)


@pytest.mark.soak
@pytest.mark.usefixtures("ray_cluster")
def test_equal_seeds_give_equal_runs_on_ray_and_in_one_process_with_as_many_workers(tmp_path):
    config = reach(tmp_path, "rollout.num_workers=2", "runner.total_timesteps=256")
    here = rlpipe.train(config, local=True).directory
    with load():
        on_ray = rlpipe.train(config).directory
    check_equal(here, on_ray)


@pytest.mark.maniskill
@pytest.mark.soak
def test_equal_seeds_give_equal_runs_of_maniskill_from_demonstrations_with_a_curriculum(tmp_path):
    small = [
        "algorithm.learning_starts=16", "algorithm.batch_size=16", "evaluation.episodes=2", "num_demos=2",
        "curriculum.name=reverse_forward", "rollout.horizon=16", "runner.total_timesteps=256", "learner.num_threads=1",
        "env.eval.total_num_envs=2", "env.eval.max_episode_steps=30", "runner.report=false",
        "runner.logger.logger_backends=[]", f"runner.logger.log_path={tmp_path}",
    ]  # fmt: skip
    config = load_config("configs/sparse_pick_cube.yaml", small)
    first, second = (rlpipe.train(config, local=True).directory for _ in range(2))
    check_equal(first, second)
    assert lines(first, "metrics.jsonl")[-1]["metrics"]["train/sac/critic_loss"] != 0
    assert any(row["chosen"] for row in lines(first, "episodes.jsonl"))
