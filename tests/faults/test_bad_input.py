"""Bad input: whatever a user types and whatever a file holds, the answer is a message and exit code 2, and nothing is
left behind.

``RLPIPE_FUZZ=20`` tries twenty times as many examples.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
import yaml
from hypothesis import given
from hypothesis import strategies as st

import rlpipe
from rlpipe import files
from rlpipe.config.tree import to_yaml
from rlpipe.metrics.row import Row
from rlpipe.run import shapes
from tests.helpers.commands import Answer, command
from tests.helpers.fuzz import fuzz
from tests.helpers.runs import scripted

pytestmark = pytest.mark.usefixtures("outside_ray")

NOBODY = "nobody:here"
"""An address that is none, so that a run with a good configuration ends there and trains nothing."""


def contents(folder: Path) -> dict[str, bytes | None]:
    """Files below a folder, and folders that hold nothing."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
        if not (path.is_dir() and any(path.iterdir()))
    }


def is_refusal(answer: Answer) -> bool:
    """True if it is one message that a person can read, with exit code 2."""
    text = answer.err
    usage = "─ Error ─" in text
    one = text.count("error:") == 1 and len(text.strip().splitlines()) <= 6 and len(text) < 2500
    return answer.code == 2 and "Traceback" not in text and (usage or one)


@pytest.fixture(scope="module", autouse=True)
def parser_made_once() -> Iterator[None]:
    """Typer makes the parser of all commands again at each call, which takes as long as most of the commands here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", functools.cache(typer.main.get_command))
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A folder with a finished run of four iterations, evaluated once, and configurations: that of the run with every
    key, and shorter ones, which are read several times as fast."""
    folder = tmp_path_factory.mktemp("finished")
    config = scripted(
        folder,
        "runner.val_check_interval=2",
        "rollout.horizon=4",
        "runner.total_timesteps=64",
        env={"train": {"name": "scripted", "total_num_envs": 4, "script": [[{"length": 3, "success_at": [2]}]]}},
    )
    run = rlpipe.train(config, local=True).directory
    rlpipe.evaluate(run, episodes=4, local=True)
    run.rename(folder / "run")
    text = to_yaml(config)
    assert f"log_path: {folder}\n" in text
    (folder / "whole.yaml").write_text(text.replace(f"log_path: {folder}\n", "log_path: runs\n"))
    (folder / "task.yaml").write_text(TASK)
    (folder / "tree.yaml").write_text(TREE)
    shutil.rmtree(folder / "scripted")
    return folder


@pytest.fixture
def place(finished, tmp_path, monkeypatch) -> Path:
    """A copy of it, to damage; commands run there."""
    folder = tmp_path / "place"
    shutil.copytree(finished, folder)
    monkeypatch.chdir(folder)
    return folder


# --- The records themselves


def test_a_row_of_a_run_that_takes_no_steps_is_read_as_it_was_written():
    row = Row(iteration=1, total_timesteps=0, time=0.0, metrics={})
    line = json.dumps(row.as_json()).encode()
    assert Row.from_json(files.parsed(line, shapes.SHAPES["metrics.jsonl"], "here")) == row


def test_keys_of_a_later_version_are_passed_over():
    line = b'{"kind": "a", "message": "b", "iteration": 0, "time": 1, "data": {}, "new": 1}'
    assert "new" not in files.parsed(line, shapes.SHAPES["events.jsonl"], "here")


def test_a_last_line_that_was_torn_is_passed_over(place):
    with (place / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"iteration": 5, "met')
    assert command("compare", "run").code == 0
    assert command("diagnose", "run").code in (0, 3)
    assert command("export", "run", "--format", "csv").code == 0


# --- A corpus of mistakes: what is typed or done to a file, and what the message names


def no_change(place: Path) -> None:
    """The mistake is in what is typed."""


def edit(name: str, change: Callable[[str], str]) -> Callable[[Path], None]:
    return lambda place: (place / name).write_text(change((place / name).read_text()))


def replaced(name: str, old: str, new: str) -> Callable[[Path], None]:
    """The first occurrence, which there must be, of one text by another."""

    def change(text: str) -> str:
        assert old in text
        return text.replace(old, new, 1)

    return edit(name, change)


def holding(name: str, contents: str | bytes) -> Callable[[Path], None]:
    data = contents if isinstance(contents, bytes) else contents.encode()
    return lambda place: (place / name).write_bytes(data) and None


def without(name: str) -> Callable[[Path], None]:
    return lambda place: (place / name).unlink()


def cut(name: str, share: float) -> Callable[[Path], None]:
    def change(place: Path) -> None:
        data = (place / name).read_bytes()
        (place / name).write_bytes(data[: int(share * len(data))])

    return change


def line(name: str, number: int, **values: Any) -> Callable[[Path], None]:
    """Other values in a line, counted from 1; ``...`` takes a key away."""

    def change(text: str) -> str:
        lines = text.splitlines()
        row = json.loads(lines[number - 1]) | values
        lines[number - 1] = json.dumps({key: value for key, value in row.items() if value is not ...})
        return "\n".join(lines) + "\n"

    return edit(f"run/{name}", change)


def in_run(**values: Any) -> Callable[[Path], None]:
    """Other values in ``run.json``."""

    def change(text: str) -> str:
        said = json.loads(text) | values
        return json.dumps({key: value for key, value in said.items() if value is not ...})

    return edit("run/run.json", change)


def swapped(text: str) -> str:
    lines = text.splitlines(keepends=True)
    return "".join([lines[1], lines[0], *lines[2:]])


def torn_in_the_middle(text: str) -> str:
    lines = text.splitlines(keepends=True)
    return "".join([lines[0][: len(lines[0]) // 2] + "\n", *lines[1:]])


def a_folder(name: str) -> Callable[[Path], None]:
    def change(place: Path) -> None:
        if (place / name).exists():
            (place / name).unlink()
        (place / name).mkdir(parents=True)

    return change


TRAIN = f"train task.yaml --ray-address {NOBODY}"
WHOLE = f"train whole.yaml --ray-address {NOBODY}"
TASK = """
env: {train: {name: scripted, total_num_envs: 4, script: [[{length: 3, success_at: [2]}]]}}
policy: {name: mlp, hidden_sizes: [8]}
rollout: {horizon: 4}
runner: {seed: 0, total_timesteps: 64, logger: {log_path: runs, logger_backends: []}}
"""
TREE = """
env: {train: {name: gymnasium, id: "tests.helpers.gym_trees:Signs-v0", total_num_envs: 4}}
rollout: {horizon: 16}
runner: {total_timesteps: 128, logger: {experiment_name: tree, log_path: runs, logger_backends: []}}
"""
ON_TREE = f"train tree.yaml --ray-address {NOBODY}"
PPO, SAC = "algorithm.name=ppo policy.name=mlp", "algorithm.name=sac policy.name=squashed_gaussian"
PLAIN = f"{PPO} policy.name=tests.helpers.policies:Plain"
LONG = "x" * 300
TYPED = [
    # keys of the configuration
    (f"{TRAIN} runner.totl_timesteps=1", ["runner.totl_timesteps", "'total_timesteps'"]),
    (f"{TRAIN} algoritm.discount=0.9", ["algoritm", "'algorithm'"]),
    (f"{TRAIN} env.trian.total_num_envs=4", ["env.trian", "env.train"]),
    (f"{TRAIN} env.train.num_envs=4", ["env.train.num_envs", "total_num_envs"]),
    (f"{TRAIN} learning_rate=0.1", ["learning_rate"]),
    (f"{TRAIN} learner.learning_rate=0.1", ["learner.learning_rate", "lr"]),
    (f"{TRAIN} runner.logger.backends=[csv]", ["runner.logger.backends", "logger_backends"]),
    (f"{TRAIN} rollout.workers=2", ["rollout.workers", "num_workers"]),
    (f"{TRAIN} policy.hidden=[8]", ["policy.hidden", "hidden_sizes"]),
    # values of a wrong kind
    (f"{TRAIN} learner.lr=3,0e-4", ["learner.lr", "3,0e-4"]),
    (f"{TRAIN} learner.lr=fast", ["learner.lr", "fast"]),
    (f"{TRAIN} learner.lr=.nan", ["learner.lr", "nan"]),
    (f"{TRAIN} learner.lr=.inf", ["learner.lr is inf", "finite"]),
    (f"{TRAIN} learner.lr=-1", ["learner.lr is -1", "at least 0"]),
    (f"{TRAIN} runner.seed=1.5", ["runner.seed", "1.5"]),
    (f"{TRAIN} runner.seed=1{'0' * 30}", ["runner.seed", "below 2^53"]),
    (f"{TRAIN} runner.seed=[0,1,2]", ["runner.seed"]),
    (f"{TRAIN} runner.seed=null", ["runner.seed"]),
    (f"{TRAIN} runner.total_timesteps=1_000_000k", ["runner.total_timesteps", "1_000_000k"]),
    (f"{TRAIN} runner.total_timesteps=0", ["runner.total_timesteps is 0", "at least 1"]),
    (f"{TRAIN} rollout.horizon=-5", ["rollout.horizon is -5", "at least 1"]),
    (f"{TRAIN} rollout.horizon=9999999999", ["rollout.horizon", "at most 1e6"]),
    (f"{TRAIN} env.train.total_num_envs=many", ["env.train.total_num_envs", "many"]),
    (f"{TRAIN} env=scripted", ["env is 'scripted'", "keys and values"]),
    (f"{TRAIN} env.train=scripted", ["env.train is 'scripted'", "keys and values"]),
    (f"{TRAIN} policy=mlp", ["policy is 'mlp'", "keys and values"]),
    (f"{TRAIN} algorithm=ppo", ["algorithm is 'ppo'", "keys and values"]),
    (f"{TRAIN} runner=fast", ["runner is 'fast'", "keys and values"]),
    (f"{TRAIN} runner.logger=none", ["runner.logger"]),
    (f"{TRAIN} runner.health.tags=[[]]", ["runner.health.tags[0] is []", "single value"]),
    (f"{TRAIN} 'runner.logger.logger_backends=[csv,{{name: a}}]'", ["logger_backends[1] is {'name': 'a'}"]),
    (f"{TRAIN} runner.logger.logger_backends=csv", ["runner.logger.logger_backends"]),
    (f"{TRAIN} runner.logger.options=fast", ["runner.logger.options"]),
    (f"{TRAIN} runner.logger.logger_backends=[csv] runner.logger.options.csv=fast", ["options.csv", "fast"]),
    (f"{TRAIN} 'runner.logger.experiment_name=\"\"'", ["runner.logger.experiment_name is empty"]),
    (f"{TRAIN} runner.logger.log_path={LONG}", ["too long"]),
    (f"{TRAIN} stages=first", ["stages is 'first'", "list"]),
    (f"{TRAIN} stages=[first]", ["stages[0] is 'first'"]),
    (f"{TRAIN} 'stages=[{{name: a, timesteps: -4}}]'", ["stages[0]", "timesteps is -4"]),
    (f"{TRAIN} 'stages=[{{timesteps: 4}}]'", ["stages[0]", "name"]),
    (f"{TRAIN} demos=5", ["demos is", "/5", "does not learn from demonstrations"]),
    (f"{TRAIN} demos=~nobody-here/a.h5", ["demos", "nobody-here"]),
    (f"{TRAIN} policy.hidden_sizes=[0]", ["policy.hidden_sizes[0] is 0", "at least 1"]),
    (f"{TRAIN} policy.hidden_sizes=[]", ["policy.hidden_sizes is empty"]),
    (f"{TRAIN} policy.warm_start={LONG}", ["too long"]),
    (f"{TRAIN} learner.device=gpu", ["learner.device is 'gpu'", "cuda"]),
    (f"{TRAIN} learner.device=cuda:first", ["learner.device is 'cuda:first'"]),
    (f"{TRAIN} learner.num_threads=9999999", ["learner.num_threads"]),
    (f"{TRAIN} algorithm.name=PPO", ["'PPO'", "'ppo'"]),
    (f"{TRAIN} algorithm.name=7", ["algorithm.name is 7"]),
    (f"{TRAIN} algorithm.name=os:path", ["os:path", "rlpipe/algorithms/"]),
    (f"{TRAIN} algorithm.name=:x", ["':x'", "importing it failed"]),
    (f"{TRAIN} policy.name=rlpipe.envs.scripted:Scripted", ["rlpipe/policies/"]),
    (
        f"{TRAIN} env.train.name={'9' * 3000}",
        ["env.train.name", "dm_control, envpool, gymnasium, libero, maniskill, metaworld, robosuite, scripted"],
    ),
    (f"{TRAIN} env.train.name=..", ["env.train.name is '..'"]),
    (f"{TRAIN} runner.logger.logger_backends=[tensorbord]", ["'tensorbord'", "'tensorboard'"]),
    (f"{TRAIN} runner.seed=${{runner.sed}}", ["runner.sed"]),
    (f"{TRAIN} runner.seed=${{oc.env:NOT_SET_ANYWHERE}}", ["NOT_SET_ANYWHERE"]),
    (f"{TRAIN} runner.seed", ["'runner.seed'", "key=value"]),
    (f"{TRAIN} =5", ["'=5'", "key=value"]),
    (f"{TRAIN} runner.seed=[1", ["'runner.seed=[1'"]),
    (f"{TRAIN} runner..seed=1", ["runner..seed"]),
    (f"{TRAIN} runner[seed=1", ["runner[seed=1"]),
    (TRAIN, [NOBODY, "HOST:PORT"]),
    # impossible combinations
    (f"{ON_TREE} {PPO}", [NOBODY, "HOST:PORT"]),
    (f"{ON_TREE} {PPO} policy.actor_observations=[sgn]", ["policy.actor_observations", "'sgn'", "'sign'"]),
    (f"{ON_TREE} {PPO} policy.critic_observations=[camera]", ["policy.critic_observations", "'camera'", "camera/rgb"]),
    (f"{ON_TREE} {SAC} policy.critic_observations=[sgn]", ["policy.critic_observations", "'sgn'"]),
    (f"{ON_TREE} {PPO} policy.encoders.sgn.name=vector", ["policy.encoders.sgn", "'sign'"]),
    (f"{ON_TREE} {PPO} policy.encoders.sign.name=vector", ["policy.encoders.sign is vector", "numbers", "one_hot"]),
    (f"{ON_TREE} {PPO} policy.encoders.noise.name=one_hot", ["policy.encoders.noise is one_hot", "Discrete", "vector"]),
    (f"{ON_TREE} {PPO} policy.encoders.noise.name=drq_cnn", ["policy.encoders.noise", "17 x 17", "float32 [2]"]),
    (f"{ON_TREE} {PPO} 'policy.encoders={{noise: {{widht: 3}}}}'", ["policy.encoders.noise.widht"]),
    (
        f"{ON_TREE} {PPO} env.train.id=CartPole-v1 policy.actor_observations=[a]",
        ["policy.actor_observations", "vector"],
    ),
    (f"{ON_TREE} {PPO} env.train.id=tests.helpers.gym_trees:Words-v0", ["mission/words", "ignore_observations"]),
    (f"{ON_TREE} {PPO} env.train.ignore_observations=[nose]", ["'nose'", "did you mean 'noise'"]),
    (f"{ON_TREE} {PPO} env.eval.id=Pendulum-v1", ["env.eval has other", "action", "instead of"]),
    (
        f"{ON_TREE} {PPO} env.train.id=no_such_lab:Task-v0",
        ["env.train.id", "no_such_lab cannot be", "beside the configuration"],
    ),
    (f"{ON_TREE} {PPO} env.train.id=CartPole-v1 policy.chunk_size=501", ["policy.chunk_size is 501", "500 steps"]),
    (f"{ON_TREE} {PPO} policy.chunk_size=9 env.train.max_episode_steps=8", ["policy.chunk_size is 9", "8 steps"]),
    (f"{ON_TREE} {PPO} policy.chunk_size=2 policy.execute=3", ["policy.execute is 3", "2 actions"]),
    (
        f"{ON_TREE} {PPO} env.train.id=CartPole-v1 env.train.vectorized=true env.eval.vectorized=false "
        "policy.chunk_size=2",
        ["policy.chunk_size is 2", "env.train.vectorized=false"],
    ),
    (f"{ON_TREE} algorithm.name=sac policy.name=tokens", ["sac", "policy.name is tokens", "squashed_gaussian"]),
    (f"{ON_TREE} algorithm.name=rlpd policy.name=tokens", ["rlpd", "policy.name is tokens"]),
    (f"{ON_TREE} {PPO} policy.name=tokens env.train.id=CartPole-v1", ["policy.name is tokens", "discrete (2)", "mlp"]),
    (f"{ON_TREE} {SAC} env.train.id=CartPole-v1", ["policy.name is squashed_gaussian", "discrete (2)", "mlp"]),
    (
        f"{ON_TREE} {SAC} env.train.id=tests.helpers.gym_trees:Endless-v0",
        ["number 1", "-inf and inf", "TransformAction"],
    ),
    (f"{ON_TREE} {PPO} algorithm.logprob_level=word", ["algorithm.logprob_level is 'word'", "token"]),
    (f"{ON_TREE} {PLAIN} algorithm.logprob_level=token", ["algorithm.logprob_level is token", "evaluate_parts"]),
    (f"{ON_TREE} {PLAIN} algorithm.entropy_level=action", ["algorithm.entropy_level is action", "evaluate_parts"]),
    (f"{ON_TREE} {PLAIN} policy.chunk_size=2", ["policy.chunk_size is 2", "takes_chunks"]),
    (f"{TRAIN} runner.auto_resume=true", [NOBODY, "HOST:PORT"]),
    (f"train --resume run runner.total_timesteps=128 --ray-address {NOBODY}", [NOBODY, "HOST:PORT"]),
    # files and commands
    ("train", ["configuration", "--resume"]),
    ("train tsk.yaml", ["tsk.yaml", "'task.yaml'"]),
    ("train .", [". is a directory", "task.yaml"]),
    ("train run", ["run is a directory"]),
    (f"train {LONG}.yaml", ["too long"]),
    ("train task.yaml --sedes 0,1", ["--sedes"]),
    ("train task.yaml --seeds 0;1", ["'0;1'", "0,1,2"]),
    ("train task.yaml --seeds 1,1", ["twice"]),
    ("train task.yaml --seeds 0,1 runner.seed=3", ["runner.seed"]),
    ("train --resume run --seeds 0,1", ["--seeds begins new runs"]),
    ("train --resume run runner.seed=4 --local", ["runner.seed is 4", "has the seed", "begin a new run"]),
    ("train --resume nothing", ["no run directory nothing"]),
    ("train --resume task.yaml", ["task.yaml is a file"]),
    ("train task.yaml --ray-address localhost:99999", ["localhost:99999"]),
    ("train task.yaml --ray-address http://[::1", ["address"]),
    ("trian task.yaml", ["trian"]),
    ("evaluate", ["Missing argument"]),
    ("evaluate nothing", ["nothing"]),
    ("evaluate task.yaml", ["task.yaml is a configuration", "--policy random"]),
    ("evaluate run --episodes ten", ["--episodes", "integer"]),
    ("evaluate run --episodes 0 --local", ["evaluation.episodes is 0"]),
    ("evaluate run evaluation.first_sed=1 --local", ["evaluation.first_sed", "first_seed"]),
    (f"evaluate {LONG}", ["too long"]),
    ("compare", ["Missing argument"]),
    ("compare nothing", ["no run directory nothing"]),
    ("compare run/metrics.jsonl", ["is a file"]),
    ("compare run --metric success", ["'success'", "eval/success_once"]),
    ("compare run --level high", ["--level", "number"]),
    ("compare run --level nan", ["--level is nan"]),
    ("diagnose nothing", ["there is no nothing"]),
    ("diagnose task.yaml", ["task.yaml"]),
    ("diagnose run --dialect sb4", ["'sb4'", "sb3"]),
    (f"diagnose {LONG}", ["too long"]),
    ("export nothing", ["no run directory nothing"]),
    ("export run --format json", ["'json'", "csv"]),
    ("export run --format csv --out task.yaml", ["--out", "task.yaml"]),
    ("sync run", ["--to"]),
    ("sync nothing --to csv", ["no run directory nothing"]),
    ("sync run --to exel", ["'exel'"]),
    ("sync run --to csv path", ["'path'", "key=value"]),
    ("sync run --to csv colour=red", ["colour"]),
    ("sync run --to os:path", ["os:path", "rlpipe/backends/"]),
    ("timeline nothing", ["no run directory nothing"]),
    ("timeline run --iteration 99", ["--iteration is 99", "1 to 4"]),
    ("timeline run --iteration first", ["--iteration", "integer"]),
    ("timeline run --out nothing/here.json", ["--out", "nothing"]),
    ("metrics explain env/retrun", ["env/retrun", "env/return"]),
    ("metrics list --tier gold", ["--tier is 'gold'", "core"]),
    ("metrics list --dialect sb4", ["'sb4'"]),
    ("submit task.yaml --address http://127.0.0.1:99999", ["--address", "Port out of range"]),
    ("submit --follow a --stop b --address http://127.0.0.1:1", ["--follow and --stop"]),
    ("doctor nothing.yaml", ["nothing.yaml"]),
    ("doctor task.yaml --timeout 0", ["--timeout"]),
    ("pretrain task.yaml", ["demos=FILE.h5"]),
]
"""Commands, and the words that the message must name. Nothing is wrong with the files."""

DAMAGED = [
    # the configuration
    ("task.yaml", holding("task.yaml", ""), TRAIN, ["env.train.name is missing"]),
    ("task.yaml", holding("task.yaml", "- a\n- b\n"), TRAIN, ["task.yaml", "list"]),
    ("task.yaml", holding("task.yaml", "runner:\n\tseed: 1\n"), TRAIN, ["task.yaml", "line 2", "tabs"]),
    ("task.yaml", holding("task.yaml", "runner: {seed:1}\n"), TRAIN, ["runner.seed has its value", "space"]),
    ("task.yaml", holding("task.yaml", "runner: {seed: 1\n"), TRAIN, ["task.yaml", "line 2"]),
    ("task.yaml", holding("task.yaml", "runner:\n  seed: 1\n  seed: 2\n"), TRAIN, ["line 3", "duplicate key seed"]),
    ("task.yaml", holding("task.yaml", "runner: seed: 1\n"), TRAIN, ["task.yaml", "line 1"]),
    ("task.yaml", holding("task.yaml", "runner seed 1\n"), TRAIN, ["unknown key runner seed 1"]),
    ("task.yaml", holding("task.yaml", b"\xff\xfe\x00r"), TRAIN, ["task.yaml", "UTF-8"]),
    ("task.yaml", holding("task.yaml", b"\x89HDF\r\n\x1a\n\0\0"), TRAIN, ["task.yaml", "UTF-8"]),
    ("task.yaml", holding("task.yaml", "a: " + "[" * 5000), TRAIN, ["task.yaml"]),
    (
        "task.yaml",
        holding("task.yaml", "env: {train: {name: scripted, script: [[{length: 3}]]}, eval: {script: {a: 1}}}"),
        TRAIN,
        ["env.eval.script is {'a': 1}", "a list, as env.train.script"],
    ),
    (
        "task.yaml",
        holding(
            "task.yaml", "env: {train: {name: gymnasium, id: A-v0, kwargs: {a: {b: 1}}}, eval: {kwargs: {a: [1]}}}"
        ),
        TRAIN,
        ["env.eval.kwargs.a is [1]", "keys and values, as env.train.kwargs.a"],
    ),
    ("task.yaml", replaced("task.yaml", "seed: 0", "seed: zero"), TRAIN, ["runner.seed", "zero"]),
    ("task.yaml", replaced("task.yaml", "runner:", "runer:"), TRAIN, ["runer", "'runner'"]),
    ("task.yaml", a_folder("task.yaml"), TRAIN, ["task.yaml is a directory"]),
    # run.json
    ("run.json", without("run/run.json"), "compare run", ["not a run directory", "run.json missing"]),
    ("run.json", cut("run/run.json", 0.5), "compare run", ["run.json is not JSON"]),
    ("run.json", cut("run/run.json", 0.5), "sync run --to csv", ["run.json is not JSON"]),
    ("run.json", cut("run/run.json", 0.5), "timeline run", ["run.json is not JSON"]),
    ("run.json", cut("run/run.json", 0.5), "train --resume run --local", ["run.json is not JSON"]),
    ("run.json", holding("run/run.json", ""), "diagnose run", ["run.json is not JSON"]),
    ("run.json", holding("run/run.json", "[]"), "compare run", ["run.json is []", "object"]),
    ("run.json", in_run(status=...), "compare run", ["run.json: status is missing"]),
    ("run.json", in_run(incarnation="0"), "train --resume run --local", ["run.json: incarnation is '0'"]),
    ("run.json", in_run(incarnation=-1), "sync run --to csv", ["incarnation is -1"]),
    ("run.json", in_run(protocol={}), "compare run", ["protocol.eval_env is missing"]),
    (
        "run.json",
        in_run(protocol={"eval_env": {"name": "scripted", "total_num_envs": 4, "tasks": None}}),
        "compare run",
        ["protocol.eval_env.tasks", "None"],
    ),
    ("run.json", in_run(versions=5), "compare run", ["versions is 5"]),
    ("run.json", in_run(cluster={"nodes": []}), "timeline run", ["cluster.nodes is []"]),
    ("run.json", in_run(health=[{"tags": []}]), "diagnose run", ["health[0].variables is missing"]),
    ("run.json", in_run(view={"total_iterations": 0}), "diagnose run", ["view.total_iterations is 0"]),
    ("run.json", in_run(view={}), "sync run --to csv", ["view.total_iterations is missing"]),
    ("run.json", in_run(view=...), "sync run --to csv", ["has not begun to write"]),
    ("run.json", in_run(status="running"), "compare run", ["status is running", "--resume"]),
    ("run.json", a_folder("run/run.json"), "compare run", ["run.json missing"]),
    # config.yaml of a run
    ("config.yaml", without("run/config.yaml"), "compare run", ["config.yaml missing"]),
    ("config.yaml", holding("run/config.yaml", ""), "compare run", ["config.yaml: runner is missing"]),
    ("config.yaml", holding("run/config.yaml", "a: [1"), "compare run", ["config.yaml", "YAML"]),
    ("config.yaml", holding("run/config.yaml", "a: [1"), "sync run --to csv", ["config.yaml", "YAML"]),
    ("config.yaml", holding("run/config.yaml", "a: [1"), "train --resume run --local", ["config.yaml", "YAML"]),
    ("config.yaml", replaced("run/config.yaml", "  seed: 0", "  seed: x"), "compare run", ["runner.seed is 'x'"]),
    (
        "config.yaml",
        replaced("run/config.yaml", "warm_start: null", "warm_start: yes"),
        "compare run",
        ["policy.warm_start is True"],
    ),
    # metrics.jsonl
    ("metrics.jsonl", edit("run/metrics.jsonl", torn_in_the_middle), "compare run", ["line 1 is not JSON"]),
    ("metrics.jsonl", edit("run/metrics.jsonl", torn_in_the_middle), "diagnose run", ["line 1 is not JSON"]),
    ("metrics.jsonl", edit("run/metrics.jsonl", torn_in_the_middle), "export run --format csv", ["line 1"]),
    ("metrics.jsonl", edit("run/metrics.jsonl", torn_in_the_middle), "sync run --to csv", ["line 1 is not JSON"]),
    ("metrics.jsonl", edit("run/metrics.jsonl", torn_in_the_middle), "train --resume run --local", ["line 1"]),
    ("metrics.jsonl", edit("run/metrics.jsonl", swapped), "diagnose run", ["line 2 belongs to iteration 1", "after"]),
    ("metrics.jsonl", edit("run/metrics.jsonl", swapped), "compare run", ["line 2 belongs to iteration 1"]),
    ("metrics.jsonl", edit("run/metrics.jsonl", lambda text: text + text), "export run --format csv", ["line 5"]),
    ("metrics.jsonl", line("metrics.jsonl", 2, iteration=-2), "compare run", ["line 2: iteration is -2"]),
    ("metrics.jsonl", line("metrics.jsonl", 2, iteration="2"), "sync run --to csv", ["line 2: iteration is '2'"]),
    ("metrics.jsonl", line("metrics.jsonl", 2, iteration=2.5), "diagnose run", ["line 2: iteration is 2.5"]),
    ("metrics.jsonl", line("metrics.jsonl", 3, metrics=...), "compare run", ["line 3: metrics is missing"]),
    ("metrics.jsonl", line("metrics.jsonl", 3, metrics=...), "diagnose run", ["line 3: metrics is missing"]),
    ("metrics.jsonl", line("metrics.jsonl", 3, metrics=[]), "export run --format csv", ["line 3: metrics is []"]),
    (
        "metrics.jsonl",
        line("metrics.jsonl", 1, metrics={"env/return": "high"}),
        "diagnose run",
        ["line 1: metrics.env/return is 'high'", "number"],
    ),
    (
        "metrics.jsonl",
        line("metrics.jsonl", 1, metrics={"env/return": float("nan")}),
        "compare run",
        ["line 1: metrics.env/return is nan", "finite"],
    ),
    ("metrics.jsonl", line("metrics.jsonl", 4, time="noon"), "sync run --to csv", ["line 4: time is 'noon'"]),
    ("metrics.jsonl", line("metrics.jsonl", 4, time=1e300), "sync run --to csv", ["line 4: time is 1e+300"]),
    ("metrics.jsonl", holding("run/metrics.jsonl", ""), "diagnose run", ["holds no report"]),
    ("metrics.jsonl", holding("run/metrics.jsonl", "[" * 9999 + "\n"), "diagnose run", ["line 1", "not JSON"]),
    ("metrics.jsonl", holding("run/metrics.jsonl", b"\x00" * 99 + b"\n"), "compare run", ["line 1 is not JSON"]),
    ("metrics.jsonl", without("run/metrics.jsonl"), "compare run", ["metrics.jsonl cannot be read"]),
    # the ledgers, events, timeline, records of evaluations
    ("episodes.jsonl", line("episodes.jsonl", 1, length="3"), "export run --format csv", ["line 1: length is '3'"]),
    ("episodes.jsonl", line("episodes.jsonl", 1, length=...), "train --resume run --local", ["length is missing"]),
    ("episodes.jsonl", line("episodes.jsonl", 1, iteration=9), "export run --format csv", ["line 2", "iteration 9"]),
    ("eval_episodes.jsonl", line("eval_episodes.jsonl", 1, seed=1.5), "export run", ["line 1: seed is 1.5"]),
    ("events.jsonl", line("events.jsonl", 1, kind=5), "sync run --to csv", ["events.jsonl, line 1: kind is 5"]),
    ("events.jsonl", line("events.jsonl", 1, data={"a": [float("inf")]}), "export run", ["data.a is [inf]"]),
    ("timeline.jsonl", line("timeline.jsonl", 4, spans=[]), "timeline run", ["'iteration' is missing"]),
    ("timeline.jsonl", line("timeline.jsonl", 4, spans=5), "timeline run", ["line 4: spans is 5"]),
    ("timeline.jsonl", line("timeline.jsonl", 4, spans=[{}]), "timeline run", ["spans[0].part is missing"]),
    ("timeline.jsonl", without("run/timeline.jsonl"), "timeline run", ["has no timeline"]),
    ("1.json", cut("run/evaluations/1.json", 0.9), "compare run", ["1.json is not JSON"]),
    ("1.json", holding("run/evaluations/1.json", "{}"), "compare run", ["1.json: iteration is missing"]),
    # other people's logs
    ("log.csv", holding("log.csv", ""), "diagnose log.csv", ["log.csv", "no number"]),
    ("log.csv", holding("log.csv", "a;b\n1;2\n"), "diagnose log.csv", ["log.csv"]),
    ("log.csv", holding("log.csv", f"a,b\n{'1' * 200_000},2\n"), "diagnose log.csv", ["log.csv", "CSV"]),
    ("log.json", holding("log.json", '{"log_history": [1]}'), "diagnose log.json", ["one JSON object per line"]),
    ("log.json", holding("log.json", '{"a": 1}\nnonsense\n{"a": 1}\n'), "diagnose log.json", ["line 2 is not JSON"]),
    ("tfevents", holding("events.out.tfevents.1", b"\x01" * 50), "diagnose events.out.tfevents.1", ["tfevents"]),
    # checkpoints
    ("checkpoint", holding("a.npz", b""), "evaluate a.npz --local", ["a.npz is not a whole checkpoint"]),
    ("checkpoint", holding("a.npz", b"PK\x03\x04 cut"), "evaluate a.npz --local", ["a.npz is not a whole checkpoint"]),
    (
        "checkpoint",
        cut("run/checkpoints/iteration-000004.npz", 0.9),
        "evaluate run/checkpoints/iteration-000004.npz --local",
        ["iteration-000004.npz is not a whole checkpoint"],
    ),
    (
        "checkpoint",
        lambda place: shutil.rmtree(place / "run" / "checkpoints"),
        "evaluate run --local",
        ["it has no checkpoint"],
    ),
    (
        "checkpoint",
        lambda place: shutil.rmtree(place / "run" / "checkpoints"),
        "train --resume run --local",
        ["it has no checkpoint"],
    ),
]
"""A file, what has happened to it, who reads it, and what the message names."""


def refused(place: Path, typed: str, words: list[str]) -> None:
    """Checks that a command is refused with a message that names these, and leaves nothing behind."""
    before = contents(place)
    answer = command(*shlex.split(typed))
    assert is_refusal(answer), answer
    for word in words:
        assert word in re.sub(r"\s*│\n│\s*", " ", answer.err), answer.err
    assert contents(place) == before


@pytest.mark.parametrize(("typed", "words"), TYPED, ids=[typed[:70] for typed, _ in TYPED])
def test_a_mistake_on_the_command_line_is_named(place, typed, words):
    refused(place, typed, words)


@pytest.mark.parametrize(
    ("change", "typed", "words"),
    [row[1:] for row in DAMAGED],
    ids=[f"{row[0]}: {row[3][-1]}: {row[2].split()[0]}" for row in DAMAGED],
)
def test_a_damaged_file_is_named_with_the_place_and_what_was_found(place, change, typed, words):
    change(place)
    refused(place, typed, words)


# --- Demonstrations


PRETRAIN = "pretrain cloning.yaml --local demos=demos.h5"


def teaching(place: Path, change: Callable[[Any], None] = no_change) -> None:
    """Demonstrations of the scripted simulator, changed while they are open, and a configuration for them."""
    h5py = pytest.importorskip("h5py")
    config = {
        "env": {"train": {"name": "scripted", "total_num_envs": 4}},
        "policy": {"name": "squashed_gaussian", "hidden_sizes": [8]},
        "learner": {"num_threads": 1},
        "runner": {"logger": {"logger_backends": []}},
    }
    (place / "cloning.yaml").write_text(yaml.safe_dump(config))
    with h5py.File(place / "demos.h5", "w") as out:
        for index in range(3):
            group = out.create_group(f"traj_{index}")
            group["obs"] = np.zeros((5, 4), np.float32)
            group["actions"] = np.zeros((4, 1), np.float32)
            group["success"] = np.array([False, False, False, True])
        change(out)
    made = {"env_info": {"env_id": "Any-v1", "env_kwargs": {"control_mode": "pd", "reward_mode": "sparse"}}}
    (place / "demos.json").write_text(json.dumps(made))


def put(name: str, values: Any) -> Callable[[Any], None]:
    """Another array in the place of one in a file of demonstrations; ``...`` takes it away."""

    def change(out: Any) -> None:
        del out[name]
        if values is not ...:
            out[name] = values

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (put("traj_1/obs", ...), ["traj_1", "has no observations"]),
        (put("traj_1/obs", np.zeros((5, 7), np.float32)), ["traj_1", "float32 [4]", "state float32 [7]"]),
        (put("traj_1/obs", np.full((5, 4), np.nan, np.float32)), ["traj_1", "not finite"]),
        (put("traj_1/actions", np.zeros((4, 2), np.float32)), ["traj_1", "actions of shape (4, 2)"]),
        (put("traj_1/actions", np.full((4, 1), 9.0, np.float32)), ["traj_1", "8 outside"]),
        (put("traj_1/actions", ...), ["demos.h5", "traj_1 holds no actions"]),
        (put("traj_1/success", np.ones(9, bool)), ["traj_1 has 4 actions, but 9 rows of success"]),
        (put("traj_1/success", ...), ["demos.h5", "traj_1 holds no success"]),
        (put("traj_1", 5), ["demos.h5", "traj_1 holds no actions"]),
        (put("traj_1", ...), None),
    ],
)
def test_damaged_demonstrations_are_named(place, change, words):
    teaching(place, change)
    if words is None:  # a trajectory less is no damage
        assert command(*shlex.split(f"{PRETRAIN} algorithm.epochs=1 algorithm.held_out=0.5")).code == 0
    else:
        refused(place, PRETRAIN, words)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without("demos.h5"), ["demos.h5", "no such file"]),
        (a_folder("demos.h5"), ["demos.h5", "directory"]),
        (holding("demos.h5", b""), ["demos.h5", "damaged"]),
        (cut("demos.h5", 0.5), ["demos.h5", "damaged"]),
        (without("demos.json"), ["demos.json", "not beside it"]),
        (holding("demos.json", "[]"), ["demos.json is []"]),
        (cut("demos.json", 0.5), ["demos.json is not JSON"]),
        (replaced("demos.json", '"env_id"', '"id"'), ["env_info.env_id is missing"]),
        (replaced("demos.json", '"pd"', "5"), ["control_mode is 5"]),
        (replaced("demos.json", '{"env_info"', '{"episodes": [3], "env_info"'), ["episodes[0] is 3"]),
    ],
)
def test_demonstrations_that_are_not_whole_are_named(place, change, words):
    teaching(place)
    change(place)
    refused(place, PRETRAIN, words)


def test_demonstrations_of_vectors_are_refused_where_a_tree_is_observed(place):
    teaching(place)
    replaced("demos.json", "Any-v1", "tests.helpers.gym_trees:Signs-v0")(place)
    typed = "pretrain tree.yaml --local demos=demos.h5 policy.name=mlp"
    refused(place, typed, ["demos.h5", "the task observes camera/rgb", "It has state float32 [4]"])


@pytest.mark.parametrize("loss", ["squared", "absolute", "likelihood"])
def test_actions_at_their_bounds_can_be_cloned_by_a_squashed_gaussian(place, loss):
    teaching(place, put("traj_1/actions", np.ones((4, 1), np.float32)))
    typed = f"{PRETRAIN} algorithm.epochs=2 algorithm.held_out=0.5 algorithm.loss={loss}"
    assert command(*shlex.split(typed)).code == 0
    (log,) = (place / "runs").glob("*/*/metrics.jsonl")
    for row in map(json.loads, log.read_text().splitlines()):
        assert np.isfinite(row["metrics"]["train/actor/cloning_loss"])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and enter everything")
@pytest.mark.parametrize(
    ("locked", "typed"),
    [
        ("task.yaml", TRAIN),
        ("run/metrics.jsonl", "diagnose run"),
        ("run/run.json", "compare run"),
        ("run", "export run"),
        ("run", "sync run --to csv"),
    ],
)
def test_what_may_not_be_read_is_named(place, locked, typed):
    (place / locked).chmod(0)
    try:
        answer = command(*shlex.split(typed))
    finally:
        (place / locked).chmod(0o700)
    assert is_refusal(answer), answer
    assert locked in answer.err


# --- Fuzz: any damage to any file, and any value under any key


FILES = {
    "metrics.jsonl": ("compare run", "diagnose run", "export run --format csv", "sync run --to csv"),
    "episodes.jsonl": ("export run --format csv",),
    "eval_episodes.jsonl": ("compare run", "export run --format csv"),
    "events.jsonl": ("sync run --to csv", "export run --format csv"),
    "timeline.jsonl": ("timeline run",),
    "fingerprints.jsonl": ("compare run",),
    "run.json": ("compare run", "diagnose run", "sync run --to csv", "timeline run"),
    "config.yaml": ("compare run", "sync run --to csv", "diagnose run"),
    "evaluations/1.json": ("compare run", "verify run --local"),
    "backends/csv.json": ("sync run --to csv",),
}
"""Files of a run, and who reads them. Whoever goes on with a run reads them too."""
RESUME = "train --resume run --local"
ODD = (
    None, True, -1, 0, 2**63, 10**30, -0.5, 1e308, float("nan"), float("inf"), "", "7", "yes",
    "é\u202e\U0001f916", "\0",
    "${nowhere}", "../..", [], [[]], {}, {"a": {"a": 1}}, [None],
)  # fmt: skip
"""Values of every kind; wherever one is put, it is most likely wrong."""
TOKENS = (
    b"",
    b"NaN",
    b"-1",
    b'"',
    b"null",
    b"1e999",
    b"9" * 5000,
    b"\0",
    b"\xff",
    "é".encode(),
    b"\n",
    b"[" * 5000,
    b"{",
)


def places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths to everything in nested dictionaries and lists."""
    inside = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [found for name, part in inside for found in [(*path, name), *places(part, (*path, name))]]


def with_one_changed(data: st.DataObject, tree: Any) -> Any:
    """The tree with one thing taken away, or something odd in its place."""
    *way, last = data.draw(st.sampled_from(places(tree)), label="place")
    value = data.draw(st.sampled_from([..., *ODD]), label="value")
    at = tree
    for name in way:
        at = at[name]
    if value is ...:
        del at[last]
    else:
        at[last] = value
    return tree


def damaged_bytes(data: st.DataObject, contents: bytes) -> bytes:
    """Something dropped, doubled, put in, turned over or cut off."""
    begin = data.draw(st.integers(0, len(contents)), label="begin")
    end = min(len(contents), begin + data.draw(st.integers(0, 60), label="length"))
    middle = contents[begin:end]
    how = data.draw(st.sampled_from(["drop", "double", "put in", "turn over", "cut off"]), label="how")
    if how == "cut off":
        return contents[:begin]
    instead = {
        "drop": b"",
        "double": middle + middle,
        "put in": data.draw(st.sampled_from(TOKENS)),
        "turn over": bytes(byte ^ 1 << index % 8 for index, byte in enumerate(middle)),
    }[how]
    return contents[:begin] + instead + contents[end:]


def damaged_record(data: st.DataObject, name: str, contents: bytes) -> bytes:
    """One thing in a record changed, so that it is JSON or YAML still."""
    if name.endswith(".yaml"):
        return yaml.safe_dump(with_one_changed(data, yaml.safe_load(contents)), allow_unicode=True).encode()
    if name.endswith(".json"):
        return json.dumps(with_one_changed(data, json.loads(contents))).encode()
    lines = contents.splitlines(keepends=True)
    number = data.draw(st.integers(0, len(lines) - 1), label="line")
    lines[number] = json.dumps(with_one_changed(data, json.loads(lines[number]))).encode() + b"\n"
    return b"".join(lines)


@contextlib.contextmanager
def copy_of(folder: Path, part: str) -> Iterator[Path]:
    """A copy that the process is in, for one example."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as made:
        copy = shutil.copytree if (folder / part).is_dir() else shutil.copy
        copy(folder / part, Path(made) / part)
        os.chdir(made)
        try:
            yield Path(made)
        finally:
            os.chdir(before)


def survives(place: Path, typed: str) -> None:
    """Checks that a command either does its work or is refused and leaves nothing behind."""
    before = contents(place)
    answer = command(*shlex.split(typed))
    if answer.code in (0, 3):
        assert "Traceback" not in answer.err
    else:
        assert is_refusal(answer), answer
        assert contents(place) == before


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damaged", [pytest.param(damaged_bytes, marks=pytest.mark.soak), damaged_record])
def test_any_damage_to_a_file_of_a_run_is_survived_or_refused(finished, name, damaged):
    if name == "backends/csv.json":
        with copy_of(finished, "run") as place:
            assert command("sync", "run", "--to", "csv").code == 0
            mark = (place / "run" / name).read_bytes()
    else:
        mark = b""

    @fuzz(4)
    @given(st.data())
    def any_damage(data: st.DataObject) -> None:
        with copy_of(finished, "run") as place:
            file = place / "run" / name
            file.parent.mkdir(exist_ok=True)
            whole = mark or file.read_bytes()
            change = damaged(data, whole) if damaged is damaged_bytes else damaged(data, name, whole)
            file.write_bytes(change)
            readers = [*FILES[name], *([] if name.startswith(("evaluations", "backends")) else [RESUME])]
            survives(place, data.draw(st.sampled_from(readers), label="reader"))

    any_damage()


@fuzz(20)
@given(st.data())
def test_any_value_under_any_key_of_a_configuration_is_legal_or_refused(finished, data):
    with copy_of(finished, "whole.yaml") as place:
        config = with_one_changed(data, yaml.safe_load((place / "whole.yaml").read_text()))
        (place / "whole.yaml").write_text(yaml.safe_dump(config))
        before = contents(place)
        answer = command(*shlex.split(WHOLE))
        assert is_refusal(answer), answer
        assert contents(place) == before


@fuzz(20)
@given(st.data())
def test_any_damage_to_a_configuration_file_is_survived_or_refused(finished, data):
    with copy_of(finished, "whole.yaml") as place:
        (place / "whole.yaml").write_bytes(damaged_bytes(data, (place / "whole.yaml").read_bytes()))
        answer = command(*shlex.split(WHOLE))
        assert is_refusal(answer), answer
        assert contents(place).keys() == {"whole.yaml"}


@fuzz(20)
@given(st.data())
def test_any_words_on_the_command_line_are_survived_or_refused(finished, data):
    words = st.sampled_from(
        ["run", "task.yaml", "runner.seed=1", "nothing", "", "=", "--", "-", "--json", "--out", "\0"]
    )
    odd = words | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
    with copy_of(finished, "run") as place:
        name = data.draw(st.sampled_from(["compare", "diagnose", "timeline", "metrics list", "export", "sync"]))
        answer = command(*name.split(), *data.draw(st.lists(odd, min_size=1, max_size=4)))
        assert answer.code in (0, 3) or is_refusal(answer), answer
        assert set(contents(place)) >= {"run/run.json"}
