"""Modules of the user: found in the present folder and beside the configuration, and never before others."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rlpipe import plugins
from rlpipe.config.loading import load_config
from rlpipe.errors import command_line
from rlpipe.run.directory import runs_in
from tests.helpers.commands import command

MODULE = """
from rlpipe.envs.scripted import Scripted

class MyReach(Scripted):
    pass
"""
CONFIG = """
env: {train: {name: "my_reach:MyReach", total_num_envs: 2}}
rollout: {horizon: 16}
algorithm: {name: ppo, num_minibatches: 1, update_epochs: 1}
evaluation: {episodes: 2, replays: 0}
runner: {total_timesteps: 32, report: false, logger: {logger_backends: []}}
"""


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch):
    """Undoes what a test adds to the import path."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(plugins, "_searched", [])
    yield
    sys.modules.pop("my_reach", None)


@pytest.mark.parametrize("folder", ["", "my tasks"])
def test_a_task_beside_its_configuration_is_trained_and_what_is_printed_works_anywhere(tmp_path, monkeypatch, folder):
    (tmp_path / folder).mkdir(exist_ok=True)
    (tmp_path / folder / "my_reach.py").write_text(MODULE)
    (tmp_path / folder / "task.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    trained = command("train", f"{folder}/task.yaml".lstrip("/"), "--local")
    assert trained.code == 0, trained.err
    monkeypatch.setattr(sys, "path", [path for path in sys.path if not path.startswith(str(tmp_path))])
    del sys.modules["my_reach"]
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    (run,) = runs_in(tmp_path / "runs")
    evaluated = command("evaluate", str(run), "--local")
    assert evaluated.code == 0, evaluated.err


def test_a_module_of_the_present_folder_stands_in_for_no_other(tmp_path, monkeypatch):
    (tmp_path / "queue.py").write_text("raise SystemExit('not this one')")
    monkeypatch.chdir(tmp_path)
    plugins.find_modules_in(tmp_path)
    assert sys.path[-1] == str(tmp_path)
    for start in ([], ["-m", "rlpipe", "--help"]):
        arguments, environment = plugins.python_process(*start or ["-c", "import queue, rlpipe"])
        answer = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=False)
        assert answer.returncode == 0, answer.stderr


def test_a_module_that_is_missing_is_told_with_where_it_was_looked_for(tmp_path):
    file = tmp_path / "task.yaml"
    file.write_text(CONFIG)
    with pytest.raises(ValueError, match="in the present folder, and beside the configuration"):
        load_config(file)


def test_a_command_is_printed_as_a_shell_takes_it(monkeypatch):
    assert (
        command_line("evaluate", "runs/my lab/#1", "--episodes", 4) == "rlpipe evaluate 'runs/my lab/#1' --episodes 4"
    )
    monkeypatch.setattr(sys, "argv", [plugins.__file__.replace("plugins.py", "__main__.py"), "train"])
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "rlpipe", "train"])
    assert command_line("evaluate", "runs/x") == "python -m rlpipe evaluate runs/x"
