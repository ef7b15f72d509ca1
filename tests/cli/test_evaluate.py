"""Lines that describe the protocol of an evaluation, as `rlpipe evaluate` and `rlpipe compare` print them."""

from __future__ import annotations

import json

import pytest

import rlpipe
from rlpipe.cli.evaluate import protocol_lines
from rlpipe.config.loading import load_config
from rlpipe.config.protocol import protocol
from rlpipe.errors import ConfigError
from tests.helpers.commands import command


def lines(config, *overrides):
    return protocol_lines(protocol(load_config(config, overrides)))


def test_a_protocol_is_the_task_the_options_that_differ_from_their_defaults_and_the_episodes():
    assert lines("sparse_pick_cube_few") == [
        "maniskill PickCube-v1",
        "control_mode=pd_ee_delta_pos, max_episode_steps=100",
        "400 whole episodes, seeds 1000000 to 1000399, sampled actions",
    ]


def test_an_option_that_was_switched_off_is_told_as_well():
    _, options, _ = lines("ppo_metaworld_mt10", "env.train.observe_task=false")
    assert "observe_task=False" in options


def test_without_options_there_is_no_line_of_them():
    assert lines("ppo_cartpole") == [
        "gymnasium CartPole-v1", "20 whole episodes, seeds 1000000 to 1000019, most likely actions",
    ]  # fmt: skip


def test_a_configuration_is_named_as_such_with_what_to_do(tmp_path):
    (tmp_path / "task.yaml").write_text("env: {train: {name: scripted}}\n")
    for name in (str(tmp_path / "task.yaml"), "ppo_cartpole"):
        with pytest.raises(ConfigError, match=r" is a configuration, .* name a run .*--policy random"):
            rlpipe.evaluate(name, local=True)


def test_numbers_of_the_task_stand_below_the_other_results(tmp_path):
    script = [[{"length": 2, "metrics": {"distance": [3.0, 1.0], "force": [2.0, None]}}]]
    (tmp_path / "task.yaml").write_text(
        f"env: {{train: {{name: scripted, total_num_envs: 2, script: {json.dumps(script)}}}}}"
    )
    answer = command("evaluate", str(tmp_path / "task.yaml"), "--policy", "zero", "--episodes", "4", "--local",
                     f"runner.logger.log_path={tmp_path}")  # fmt: skip
    rows = [line.split() for line in answer.out.splitlines()]
    assert ["metrics", "mean", "least", "most", "last"] in rows
    assert ["distance", "2.000", "1.000", "3.000", "1.000"] in rows
