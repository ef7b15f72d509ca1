"""``rlpipe tasks``: what can be trained here, with the real simulators."""

from __future__ import annotations

import json
import sys

import pytest
from typer.testing import CliRunner

from rlpipe.cli import app, tasks
from rlpipe.envs.gymnasium import Gymnasium
from rlpipe.errors import ConfigError


def found(search=None, simulator=None):
    return {task.id: task for task in tasks.find(search, simulator, None)[0]}


def printed(*arguments):
    result = CliRunner().invoke(app, ["tasks", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_a_word_finds_tasks_in_any_case_and_a_few_are_made_to_see_what_they_are_like():
    cart = found("cartpole-V1", "gymnasium")["CartPole-v1"]
    assert (cart.observation, cart.action, cart.time_limit, cart.success) == ("4 numbers", "one of 2", 500, False)


def test_leaves_of_a_tree_and_discrete_parts_are_named():
    blackjack = found("Blackjack", "gymnasium")["Blackjack-v1"]
    assert blackjack.observation == "0 one, 1 one, 2 one"
    assert blackjack.action == "one of 2"


def test_many_tasks_are_listed_without_being_made(monkeypatch):
    monkeypatch.setattr(Gymnasium, "make", lambda *_: pytest.fail("made"))
    listed = found(simulator="gymnasium")
    assert len(listed) > 20
    assert listed["CartPole-v1"].time_limit == 500
    assert not any(task.tried for task in listed.values())


def test_maniskill_tasks_say_success_and_shipped_demonstrations():
    pytest.importorskip("mani_skill", reason="needs rlpipe[maniskill]: ManiSkill is not installed")
    pick = found("PickCube-v1", "maniskill")["PickCube-v1"]
    assert (pick.success, pick.demonstrations) == (True, "configs/demonstrations/PickCube-v1.h5")
    assert pick.observation == "42 numbers"


def test_what_a_task_lacks_is_said():
    pytest.importorskip("mani_skill", reason="needs rlpipe[maniskill]: ManiSkill is not installed")
    assert "python -m mani_skill.utils.download_asset" in found("PickSingleYCB", "maniskill")["PickSingleYCB-v1"].needs


def test_a_setting_that_a_task_wants_is_said():
    pytest.importorskip("gymnasium_robotics", reason="needs rlpipe[robotics]: it is not installed")
    reach = found("FetchReach-v4", "gymnasium")["gymnasium_robotics:FetchReach-v4"]
    assert (reach.settings, reach.success) == ("success_key=is_success", True)
    assert reach.observation == "achieved_goal 3, desired_goal 3, observation 10"


def test_a_misspelt_word_suggests_the_nearest_task():
    with pytest.raises(ConfigError, match="no task has 'CartPool-v1' in its id; did you mean 'CartPole-v1'"):
        tasks.find("CartPool-v1", "gymnasium", None)


def test_a_misspelt_simulator_suggests_the_nearest_one():
    with pytest.raises(ConfigError, match="did you mean 'gymnasium'"):
        tasks.find(None, "gymnasum", None)


@pytest.mark.soak
def test_the_tasks_of_another_python_are_listed_and_looked_at_there():
    found = {task.id: task for task in tasks.find("CartPole-v1", "gymnasium", sys.executable)[0]}
    assert found["CartPole-v1"].tried
    assert found["CartPole-v1"].observation == "4 numbers"
    with pytest.raises(ConfigError, match="name it with --simulator"):
        tasks.find("CartPole-v1", None, sys.executable)


def test_a_simulator_that_is_not_installed_is_named_with_its_remedy(monkeypatch):
    def missing():
        raise ConfigError("gymnasium needs the package gymnasium: pip install it")

    monkeypatch.setattr(Gymnasium, "tasks", missing)
    assert "gymnasium: gymnasium needs the package gymnasium: pip install it" in printed()
    with pytest.raises(ConfigError, match="pip install it"):  # what was asked for cannot be answered
        tasks.find(None, "gymnasium", None)


def test_a_python_that_cannot_be_run_is_named_as_the_option_is():
    with pytest.raises(ConfigError, match=r"^--python: it is '/no/python', which cannot be run"):
        tasks.find(None, "gymnasium", "/no/python")


def test_the_table_is_one_line_for_each_task():
    lines = printed("--simulator", "gymnasium", "--search", "MountainCar").splitlines()
    *table, axes = [line for line in lines if line]
    assert [line.split()[0] for line in table] == ["gymnasium:", "MountainCar-v0", "MountainCarContinuous-v0"]
    assert axes.startswith("env.train.variations: action_noise, action_latency, ")


def test_json_holds_every_field():
    listed = json.loads(printed("--simulator", "gymnasium", "--search", "MountainCar", "--json"))
    assert {"MountainCar-v0", "MountainCarContinuous-v0"} == {task["id"] for task in listed}
    assert listed[0].keys() >= {"simulator", "time_limit", "observation", "action", "success", "needs", "settings"}
    assert "observation_noise" in listed[0]["variations"]
