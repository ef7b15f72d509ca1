"""The same run on Ray: equal numbers, real ManiSkill, readable failures."""

from __future__ import annotations

import json
import platform

import pytest
import ray

import rlpipe
from rlpipe.config.loading import load_config
from rlpipe.doctor import machine
from rlpipe.errors import ConfigError
from rlpipe.metrics import catalogue as m
from tests.helpers.runs import (
    from_ledger,
    lines,
    scripted,
    without_timings,
)

pytestmark = pytest.mark.usefixtures("ray_cluster")
SCRIPT = [[{"length": 3, "reward": 0.1, "end": "terminated", "success_at": [3]}], [{"length": 7, "reward": 1e-9}]]
JOB = {
    "metadata": {
        "job_submission_id": "mine-7",
        "job_name": "push",
        "tracker_api_key": "abc",
        "note": "say open-sesame",
    },
    "runtime_env": {"env_vars": {"WANDB_API_KEY": "open-sesame"}},
}  # fmt: skip
"""Description of a submitted job, as Ray passes it to the job's program."""


@pytest.fixture(scope="module")
def both(ray_cluster, tmp_path_factory):
    """The same run with two workers that collect ahead, in one process and on Ray, as a submitted job on a machine with
    few open files."""
    env = {"train": {"name": "scripted", "total_num_envs": 4, "script": SCRIPT, "match_actions": True}}
    options = ("rollout.num_workers=2", "runner.val_check_interval=2", "runner.pipeline=ahead")
    config = scripted(tmp_path_factory.mktemp("both"), *options, env=env)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOOR_PASSWORD", "open-sesame")
        patch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps(JOB))
        patch.setattr(machine, "ENOUGH_FILES", 10**9)
        return tuple(rlpipe.train(config, local=local).directory for local in (True, False))


class TestARunOnRay:
    def test_it_gives_the_same_numbers_as_in_one_process_to_the_last_bit(self, both):
        here, on_ray = both
        assert without_timings(here) == without_timings(on_ray)
        for ledger in ("episodes.jsonl", "eval_episodes.jsonl"):
            assert lines(here, ledger) == lines(on_ray, ledger)

    def test_every_env_metric_equals_the_ledgers_to_the_last_digit(self, both):
        _, run = both
        for row in lines(run, "metrics.jsonl"):
            expected = from_ledger(run, "episodes.jsonl", m.ENV, row["iteration"])
            assert {name: value for name, value in row["metrics"].items() if name.startswith("env/")} == expected
            assert row["metrics"]["time/workers_reporting"] == 2

    def test_run_json_says_where_each_actor_runs_and_as_which_job(self, both):
        cluster = json.loads((both[1] / "run.json").read_text())["cluster"]
        here = {"host": platform.node(), "node": ray.get_runtime_context().get_node_id(), "clock": 0.0}
        actors = cluster["parts"]
        processes = [actor.pop("pid") for actor in actors.values() if "pid" in actor]
        assert len({*processes}) == 3  # of the workers and the learner
        assert actors == dict.fromkeys(("driver", "rollout-0", "rollout-1", "learner", "metric-logger"), here)
        assert [node["node"] for node in cluster["nodes"]] == [here["node"]]
        assert cluster["job"]["id"] == ray.get_runtime_context().get_job_id()
        assert cluster["job"]["namespace"] == "rlpipe"

    def test_run_json_names_a_submitted_job_and_none_of_its_secrets(self, both):
        text = (both[1] / "run.json").read_text()
        job = json.loads(text)["cluster"]["job"]
        assert job["submission_id"] == "mine-7"
        assert job["metadata"] == {"job_name": "push", "tracker_api_key": "***", "note": "say ***"}
        assert "sesame" not in text

    def test_its_first_events_hold_the_warnings_about_the_cluster(self, both):
        messages = [event["message"] for event in lines(both[1], "events.jsonl")]
        assert any(
            message.startswith("open files on ") and "Remedy: ulimit -n 65536" in message for message in messages
        )


def test_more_workers_than_the_cluster_has_cpus_for_is_an_error_before_anything_is_written(tmp_path):
    with pytest.raises(ConfigError, match=r"4 rollout workers with 1 CPU each are wanted .* there is room for 2"):
        rlpipe.train(scripted(tmp_path, "rollout.num_workers=4", "cluster.placement_timeout=1"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.soak
def test_a_simulator_that_cannot_be_made_is_the_users_error_and_leaves_nothing(tmp_path):
    env = {"train": {"name": "gymnasium", "id": "CartPole-v1", "total_num_envs": 4, "kwargs": {"wheels": 5}}}
    with pytest.raises(ConfigError, match="wheels"):
        rlpipe.train(scripted(tmp_path, env=env))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.soak
def test_an_evaluation_depends_neither_on_the_number_of_workers_nor_on_a_place_for_a_learner(tmp_path):
    env = {"train": {"name": "gymnasium", "id": "CartPole-v1", "total_num_envs": 4}}
    result = rlpipe.train(scripted(tmp_path, env=env), local=True)
    elsewhere = ["cluster.learner_nodes={role: learn}", "learner.device=cuda", "cluster.placement_timeout=1"]
    here = rlpipe.evaluate(result.checkpoint, episodes=10, local=True)
    on_ray = rlpipe.evaluate(result.checkpoint, episodes=10, overrides=["rollout.num_workers=2", *elsewhere])
    assert here.metrics == on_ray.metrics


@pytest.mark.maniskill
@pytest.mark.soak
def test_maniskill_trains_through_ray_under_both_stages(tmp_path):
    config = load_config(
        "configs/ppo_push_cube.yaml",
        [
            "env.train.max_episode_steps=10",
            "rollout.horizon=12",
            "env.train.total_num_envs=2",
            "rollout.num_workers=1",
            "runner.total_timesteps=48",
            "evaluation.episodes=2",
            "env.eval.total_num_envs=2",
            "algorithm.num_minibatches=2",
            "stages.0.timesteps=24",
            f"runner.logger.log_path={tmp_path}",
            "runner.logger.logger_backends=[csv]",
            "runner.report=false",
        ],
    )
    result = rlpipe.train(config)
    rows = [row["metrics"] for row in lines(result.directory, "metrics.jsonl")]
    assert [row["train/stage"] for row in rows] == [0, 1]
    assert rows[0]["rollout/rewards"] > 0  # dense
    assert rows[0]["env/num_trajectories"] >= 2
    assert rows[-1]["eval/num_trajectories"] == 2
    reported = {name for row in rows for name in row}
    assert reported >= {
        *(f"train/actor/{name}" for name in ("approx_kl", "clip_fraction", "clipped_ratio", "grad_norm", "lr")),
        *("train/actor/policy_loss", "train/critic/value_loss", "train/critic/value_clip_ratio"),
        *("train/critic/explained_variance", "train/entropy_loss", "train/loss", "rollout/advantages_max"),
        *("rollout/advantages_mean", "rollout/advantages_min", "rollout/rewards", "env/success_once"),
        *("env/episode_len", "env/return", "env/reward"),
    }
