"""Plug-ins of installed packages: found by the names of their entry points, and never in the way of others."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rlpipe.envs.scripted import Scripted
from rlpipe.errors import ConfigError
from rlpipe.plugins import available, provider, resolve, shipped
from rlpipe.run.directory import RunDirectory, runs_in
from tests.helpers.commands import command

MODULE = """
from rlpipe.envs.scripted import Scripted

class Reach(Scripted):
    pass

class Nothing:
    pass
"""
CONFIG = """
env: {train: {name: reach, total_num_envs: 2}}
rollout: {horizon: 16}
algorithm: {name: ppo, num_minibatches: 1, update_epochs: 1}
evaluation: {episodes: 2, replays: 0}
runner: {total_timesteps: 32, report: false, logger: {logger_backends: []}}
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Installs a distribution, with entry points of the group of simulators, in a folder that is searched for
    imports."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "reach_lab.py").write_text(MODULE)
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])

    def distribution(name: str, *lines: str, version: str = "1.2") -> Path:
        info = folder / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text("\n".join(["[rlpipe.envs]", *lines, ""]))
        monkeypatch.setattr(sys, "path", [*sys.path, str(folder / name)])  # such a path is read anew
        return info

    yield distribution
    sys.modules.pop("reach_lab", None)


def listed() -> dict[tuple[str, str], dict]:
    """What ``rlpipe plugins --json`` prints, by distribution and name."""
    answer = command("plugins", "--json")
    assert answer.code == 0, answer.err
    return {(row["distribution"], row["name"]): row for row in json.loads(answer.out)}


def test_a_simulator_of_an_installed_package_is_trained_and_evaluated_by_its_name(install, tmp_path, monkeypatch):
    install("reach-lab", "reach = reach_lab:Reach")
    (tmp_path / "task.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    trained = command("train", "task.yaml", "--local")
    assert trained.code == 0, trained.err
    (run,) = map(RunDirectory, runs_in(tmp_path / "runs"))
    assert run.read_config()["env"]["train"]["name"] == "reach"
    assert run.read_json()["versions"]["reach-lab"] == "1.2"
    evaluated = command("evaluate", str(run.path), "--local")
    assert evaluated.code == 0, evaluated.err


def test_installed_plug_ins_are_listed_with_version_and_origin(install):
    install("reach-lab", "reach = reach_lab:Reach")
    assert listed()["reach-lab", "reach"] == {
        "kind": "envs", "name": "reach", "version": "1.2", "distribution": "reach-lab", "folder": None,
        "target": "reach_lab:Reach", "problem": None,
    }  # fmt: skip
    assert listed()["rlpipe", "maniskill"]["target"] is None
    lines = [line.split() for line in command("plugins").out.splitlines()]
    assert ["envs", "reach", "1.2", "reach-lab"] in lines
    assert any(line[:2] == ["policies.encoders", "drq_cnn"] and line[-2:] == ["this", "package"] for line in lines)


def test_a_package_installed_in_place_is_listed_with_its_folder(install):
    info = install("reach-lab", "reach = reach_lab:Reach")
    (info / "direct_url.json").write_text('{"url": "file:///home/me/my%20lab", "dir_info": {"editable": true}}')
    assert listed()["reach-lab", "reach"]["folder"] == "/home/me/my lab"


def test_a_wrong_name_is_refused_with_those_of_installed_packages(install):
    install("reach-lab", "reach = reach_lab:Reach")
    assert "reach" in available("envs")
    assert "reach" not in shipped("envs")
    with pytest.raises(ConfigError, match=r"installed packages provide reach; did you mean 'reach'\?"):
        resolve("envs", "reech", "env.train.name")


def test_a_name_of_two_packages_is_refused_with_both_and_either_can_be_written_in_full(install):
    install("reach-lab", "reach = reach_lab:Reach")
    install("other-lab", "reach = reach_lab:Nothing", version="0.3")
    with pytest.raises(ConfigError, match=r"reach-lab 1.2 provides as reach_lab:Reach and other-lab 0.3 provides"):
        resolve("envs", "reach", "env.train.name")
    assert resolve("envs", "reach_lab:Reach", "env.train.name").__name__ == "Reach"
    assert listed()["reach-lab", "reach"]["problem"].startswith("other-lab 0.3 provides it, too")


def test_a_shipped_name_means_the_shipped_plug_in_whatever_is_installed(install):
    install("reach-lab", "scripted = reach_lab:Reach")
    assert resolve("envs", "scripted", "env.train.name") is Scripted
    assert provider("envs", "scripted") is None
    assert listed()["reach-lab", "scripted"]["problem"] == (
        "scripted means rlpipe's own; write reach_lab:Reach for that of reach-lab 1.2."
    )


BROKEN = {
    "a module that is missing": ("reach = no_lab:Reach", "importing no_lab:Reach failed: it raised ModuleNotFound"),
    "a class that is missing": ("reach = reach_lab:Reech", "importing reach_lab:Reech failed: it raised Attribute"),
    "another class": ("reach = reach_lab:Nothing", "not a class with the interface of rlpipe/envs/base.py"),
    "a module alone": ("reach = reach_lab", "its entry point is 'reach_lab'; it must be package.module:Class"),
}


@pytest.mark.parametrize(("line", "reason"), BROKEN.values(), ids=BROKEN)
def test_a_broken_plug_in_says_what_failed_where_it_is_named_and_nowhere_else(install, line, reason):
    install("reach-lab", line)
    with pytest.raises(ConfigError, match=f"env.train.name is 'reach' of reach-lab 1.2: .*{reason}"):
        resolve("envs", "reach", "env.train.name")
    assert reason in listed()["reach-lab", "reach"]["problem"]
    assert reason in command("plugins").out
    tasks = command("tasks", "--search", "cartpole-v1", "--json")
    assert (tasks.code, "CartPole-v1" in tasks.out) == (0, True), tasks.err


def test_a_package_whose_entry_points_cannot_be_read_is_named_where_one_is_looked_for(install):
    install("reach-lab", "reach: reach_lab:Reach")
    install("other-lab", "push = reach_lab:Reach")
    assert resolve("envs", "push", "env.train.name").__name__ == "Reach"
    with pytest.raises(ConfigError, match=r"Of reach-lab 1.2, its entry_points.txt cannot be read"):
        resolve("envs", "reach", "env.train.name")
    assert "cannot be read" in listed()["reach-lab", ""]["problem"]


def test_only_a_name_that_is_not_shipped_makes_one_look_at_what_is_installed():
    code = (
        "import sys; from rlpipe.plugins import resolve; resolve('envs', 'scripted', 'env.train.name');"
        "print('importlib.metadata' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
