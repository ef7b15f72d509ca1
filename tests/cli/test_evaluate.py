"""Lines that describe the protocol of an evaluation, as `rlpipe evaluate` and `rlpipe compare` print them."""

from __future__ import annotations

import pytest

import rlpipe
from rlpipe.cli.evaluate import protocol_lines
from rlpipe.config.loading import load_config
from rlpipe.config.protocol import protocol
from rlpipe.errors import ConfigError


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
