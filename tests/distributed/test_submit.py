"""``rlpipe submit``: what is sent, and what its exit code means, against a real head with its job server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from typer.testing import CliRunner

from rlpipe.cli import app
from rlpipe.cli.submit import _show
from rlpipe.config.loading import load_config
from rlpipe.errors import ConfigError, UserInterrupt
from tests.helpers import REPOSITORY, kuberay

pytest.importorskip("aiohttp", reason="jobs need ray[default]")

from rlpipe.distributed import cluster, job_server
from rlpipe.distributed.cluster import Cluster, token_refused
from rlpipe.distributed.packages import EXCLUDES, SECRETS, Package, package
from rlpipe.distributed.process_template import WORKER_ENVIRONMENT, ProcessTemplate
from rlpipe.distributed.submission import prepare
from tests.helpers.cluster import LEAN, PATIENT, TOKEN, forking_from
from tests.helpers.commands import Answer, command
from tests.helpers.faulty import processes

SMALL = {
    "env": {"train": {"name": "scripted", "total_num_envs": 2, "match_actions": True, "step_seconds": 0.005}},
    "policy": {"name": "mlp", "hidden_sizes": [8]},
    "algorithm": {"name": "ppo", "update_epochs": 1, "num_minibatches": 1},
    "learner": {"num_threads": 1},
    "rollout": {"horizon": 32, "num_workers": 1},
    "evaluation": {"episodes": 2},
    "runner": {
        "report": False,
        "logger": {"experiment_name": "small", "logger_backends": ["console"], "console_style": "line"},
    },
}
"""A run that goes on until it is stopped, at six iterations a second or less."""


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A working directory with a configuration in it."""
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(SMALL))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def fill(folder: Path, *names: str, size: int = 1) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"." * size)


# --- what is sent


def test_histories_environments_caches_results_and_secrets_are_not_sent(tmp_path):
    fill(tmp_path, "configs/a.yaml", "my_lab/reach.py", "my_lab/runs/notes.py")
    fill(
        tmp_path, ".git/x", ".venv/x", "my_lab/__pycache__/x", ".mypy_cache/x", "runs/a/x", "wandb/x", ".env", ".netrc",
        ".aws/credentials", ".ssh/config", "my_lab/server.key",
    )  # fmt: skip
    assert list(package(tmp_path).files) == ["configs/a.yaml", "my_lab/reach.py", "my_lab/runs/notes.py"]


def test_a_link_that_leads_out_of_the_folder_is_not_followed(tmp_path):
    fill(tmp_path, "elsewhere/key", "here/a.txt")
    (tmp_path / "here/b.txt").symlink_to("a.txt")
    (tmp_path / "here/c.txt").symlink_to(tmp_path / "elsewhere/key")
    sent = package(tmp_path / "here")
    assert (list(sent.files), sent.left_out) == (["a.txt", "b.txt"], {"c.txt": None})


def test_ignore_files_hold_for_their_folders_and_below(tmp_path):
    fill(tmp_path, "a.bin", "deep/b.bin", "deep/c.txt", "deep/er/d.txt")
    (tmp_path / ".gitignore").write_text("*.bin\n")
    (tmp_path / "deep/.rayignore").write_text("/c.txt\n")
    assert list(package(tmp_path).files) == [".gitignore", "deep/.rayignore", "deep/er/d.txt"]


def test_what_is_ignored_by_default_can_be_asked_for(tmp_path):
    fill(tmp_path, "demos.h5", "demos.json", "more.h5", "more.json")
    (tmp_path / ".rayignore").write_text("!demos.h5\n")
    assert list(package(tmp_path).files) == [".rayignore", "demos.h5", "demos.json"]


def test_only_demonstrations_that_the_configuration_names_are_sent(tmp_path):
    fill(tmp_path, "demos/a.h5", "demos/a.json", "demos/b.h5", "demos/b.json", "demos/readme.txt")
    sent = package(tmp_path, named=["demos/a.h5", "demos/a.json"])
    assert list(sent.files) == ["demos/a.h5", "demos/a.json", "demos/readme.txt"]
    assert list(sent.left_out) == ["demos/b.h5", "demos/b.json"]


def test_a_file_that_cannot_be_read_is_named_with_what_to_do(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere cannot be packed: No such file or directory\. .* --exclude"):
        package(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"gone\.txt cannot be packed"):
        Package(tmp_path, {"gone.txt": 1}, {}).write(tmp_path / "package.zip")


def test_the_largest_parts_come_first():
    sent = Package(Path(), {"a/b/c": 1, "a/b/d": 2, "a/e": 10, "f": 5}, {})
    assert (sent.size, sent.largest()) == (18, [("a/e", 10), ("f", 5), ("a/b", 3)])


def test_a_package_that_is_too_big_is_refused_with_its_largest_part(folder):
    fill(folder, "data/points.bin", size=2_000_000)
    with pytest.raises(ConfigError, match=r"2\.0 MB in 2 files, .* 1 MB\. Largest are data/points\.bin \(2\.0 MB\)"):
        prepare("small.yaml", [], folder=folder, max_megabytes=1)


def test_a_job_trains_in_the_home_folder_because_its_working_directory_is_deleted(folder):
    sent = prepare("small.yaml", ["runner.seed=1"], folder=folder)
    assert sent.command == 'python -m rlpipe train small.yaml runner.seed=1 runner.logger.log_path="$HOME"/runs'


def test_a_shipped_configuration_is_named_and_not_sent(folder):
    sent = prepare("ppo_cartpole", ["runner.seed=1"], folder=folder)
    assert " train ppo_cartpole runner.seed=1 " in sent.command
    assert sent.about["config"] == "ppo_cartpole"


def test_an_absolute_folder_of_runs_is_that_of_the_cluster(folder):
    sent = prepare("small.yaml", ["runner.logger.log_path=/data/my runs"], folder=folder)
    assert sent.command == "python -m rlpipe train small.yaml runner.logger.log_path='/data/my runs'"


@pytest.fixture
def lab(folder, monkeypatch) -> str:
    """Name of a new package in the folder, which registers a task in ``task_gen`` and imports ``tools`` for it."""
    name = f"lab_{folder.name}"  # of its own, because a module is imported once in a process
    fill(folder, f"{name}/__init__.py", f"{name}/tools.py", size=0)
    (folder / name / "task_gen.py").write_text(
        f"import gymnasium\nfrom {name} import tools\n"
        f"gymnasium.register('{name}-v0', 'gymnasium.envs.classic_control:CartPoleEnv')\n"
    )
    train = {"name": "gymnasium", "id": f"{name}.task_gen:{name}-v0", "total_num_envs": 2, "max_episode_steps": 9}
    (folder / "small.yaml").write_text(yaml.safe_dump(SMALL | {"env": {"train": train}}))
    monkeypatch.syspath_prepend(folder)
    return name


@pytest.mark.parametrize(
    ("ignored", "where", "what", "rule", "line", "file"),
    [
        ("LAB/*_gen.py", ".gitignore", "LAB.task_gen, which env.train.id names", ".gitignore (LAB/*_gen.py)",
         "!/LAB/task_gen.py", ".rayignore"),
        ("tool*", ".rayignore", "LAB.tools, which was imported for env.train.id", ".rayignore (tool*)",
         "!/LAB/tools.py", ".rayignore"),
        ("*_gen.py", "LAB/.gitignore", "LAB.task_gen, which env.train.id names", "LAB/.gitignore (*_gen.py)",
         "!/task_gen.py", "LAB/.rayignore"),
        ("# ours\n\nlab_*/", ".gitignore", "LAB.task_gen, which env.train.id names", ".gitignore (lab_*/)", "!/LAB/",
         ".rayignore"),
    ],
)  # fmt: skip
def test_a_module_that_the_checks_imported_is_sent_or_the_rule_that_leaves_it_out_is_named_and_can_be_undone(
    folder, lab, ignored, where, what, rule, line, file
):
    what, ignored, where, rule, line, file = (
        text.replace("LAB", lab) for text in (what, ignored, where, rule, line, file)
    )
    (folder / where).write_text(f"{ignored}\n")
    with pytest.raises(ConfigError) as raised:
        prepare("small.yaml", [], folder=folder)
    assert f"{what}, is left out by {rule}: add the line {line} to {file}." in str(raised.value)
    with (folder / file).open("a") as out:
        out.write(f"{line}\n")
    assert {f"{lab}/__init__.py", f"{lab}/task_gen.py", f"{lab}/tools.py"} <= prepare(
        "small.yaml", [], folder=folder
    ).package.files.keys()


def test_what_is_no_module_of_the_folder_is_not_missed(folder, lab, monkeypatch):
    """A notebook's cells, what an environment in the folder brings, and the script that runs."""
    fill(folder, ".venv/lib/site-packages/numbers.py", "script.py")
    for name, file in {
        "cell": "<stdin>", "numbers_": str(folder / ".venv/lib/site-packages/numbers.py"),
        "__mp_main__": str(folder / "script.py"), "odd": None,
    }.items():  # fmt: skip
        module = types.ModuleType(name)
        module.__file__ = file
        monkeypatch.setitem(sys.modules, name, module)
    (folder / ".gitignore").write_text("script.py\n")
    prepare("small.yaml", [], folder=folder)


def test_the_module_in_which_gymnasium_makes_the_task_is_needed_although_no_check_imports_it(folder, lab):
    (folder / lab / "cart.py").write_text("from gymnasium.envs.classic_control import CartPoleEnv as Cart\n")
    register = folder / lab / "task_gen.py"
    register.write_text(register.read_text().replace("gymnasium.envs.classic_control:CartPoleEnv", f"{lab}.cart:Cart"))
    (folder / ".gitignore").write_text("cart.py\n")
    with pytest.raises(ConfigError, match=r"cart, which env\.train\.id names, is left out by \.gitignore \(cart\.py\)"):
        prepare("small.yaml", [], folder=folder)


def test_a_module_that_an_option_leaves_out_names_the_option(folder, lab):
    with pytest.raises(ConfigError, match=r"task_gen, .* by --exclude \(\*_gen\.py\): leave that option out"):
        prepare("small.yaml", [], folder=folder, excludes=["*_gen.py"])


def test_a_module_behind_a_link_out_of_the_folder_is_refused(folder, lab, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "tools.py"
    (folder / lab / "tools.py").rename(elsewhere)
    (folder / lab / "tools.py").symlink_to(elsewhere)
    with pytest.raises(
        ConfigError, match=r"tools, .* because .*tools\.py is a link .*: put the files themselves there"
    ):
        prepare("small.yaml", [], folder=folder)


@pytest.mark.parametrize("where", ["src", "../elsewhere"])
def test_a_module_that_only_pythonpath_leads_to_is_refused_because_workers_do_not_find_it_there(
    folder, lab, monkeypatch, where
):
    place = (folder / where).resolve()
    place.mkdir()
    (folder / lab).rename(place / lab)
    monkeypatch.syspath_prepend(place)
    monkeypatch.setenv("PYTHONPATH", str(place))
    with pytest.raises(ConfigError, match=rf"task_gen, .* PYTHONPATH in {place}, .*: move {lab} to {folder}, or"):
        prepare("small.yaml", [], folder=folder, env=["PYTHONPATH=src"])
    prepare("small.yaml", [], folder=folder, env=["PYTHONPATH=/of/the/cluster"])


def test_files_that_are_left_out_are_shown_with_their_folders_and_the_usual_ones_once(folder, capsys):
    fill(folder, "a/b/notes.log", "a/__pycache__/x", "c/__pycache__/x")
    (folder / ".gitignore").write_text("*.log\n")
    _show(prepare("small.yaml", [], folder=folder))
    assert "left out __pycache__, a/b/notes.log" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("run", ["runs/small/1", "~/runs/small/1"])
def test_a_run_of_the_cluster_is_resumed_there(folder, run):
    sent = prepare(None, ["runner.total_timesteps=900"], folder=folder, resume=run)
    assert sent.command == 'python -m rlpipe train --resume "$HOME"/runs/small/1 runner.total_timesteps=900'


def test_a_configuration_outside_the_folder_is_refused(folder):
    (folder / "inner").mkdir()
    with pytest.raises(ConfigError, match="a job only gets the folder"):
        prepare("small.yaml", [], folder=folder / "inner")


def test_only_variables_on_the_list_are_forwarded(folder, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_API_KEY", "not-for-everyone")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://me:password1@server")
    monkeypatch.setenv("MINE", "1")
    sent = prepare("small.yaml", [], folder=folder, env=["MINE", "OTHER=2"], stop_wait=60)
    assert sent.variables == {"WANDB_MODE": "offline", "MINE": "1", "OTHER": "2", "RAY_JOB_STOP_WAIT_TIME_S": "60"}
    assert set(sent.about) == {"rlpipe", "config", "job_name"}
    assert sent.held_back == ("MLFLOW_TRACKING_URI",)


def test_passwords_that_are_sent_or_held_back_are_told(folder, monkeypatch, capsys):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://me:password1@server")
    _show(prepare("small.yaml", [], folder=folder))
    assert "MLFLOW_TRACKING_URI stays here" in capsys.readouterr().err
    _show(prepare("small.yaml", [], folder=folder, env=["MLFLOW_TRACKING_URI"]))
    said = capsys.readouterr().err
    assert "MLFLOW_TRACKING_URI: whoever may use the cluster can read it" in said
    assert "password1" not in said


def test_a_variable_that_is_not_set_is_refused(folder):
    with pytest.raises(ConfigError, match="--env NOBODY_HAS_THIS"):
        prepare("small.yaml", [], folder=folder, env=["NOBODY_HAS_THIS"])


@pytest.mark.parametrize(
    ("environ", "why"),
    [
        ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}, "does not accept the token from RAY_AUTH_TOKEN"),
        ({"RAY_AUTH_TOKEN": TOKEN}, "the one in RAY_AUTH_TOKEN was not sent, because RAY_AUTH_MODE is not set"),
        ({}, "there is none here: set RAY_AUTH_MODE=token and put it into RAY_AUTH_TOKEN"),
        ({"RAY_AUTH_MODE": "token"}, "there is none here: put it into RAY_AUTH_TOKEN"),
    ],
)
def test_who_is_not_let_in_is_told_what_is_wrong_with_the_token(tmp_path, monkeypatch, environ, why):
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": str(tmp_path), **environ}.items():
        monkeypatch.setenv(name, value)
    assert why in token_refused("head:6379")


def test_a_sigterm_while_ray_connects_ends_the_run_as_one_before_it_does(monkeypatch):
    def connect(address: str, options: dict[str, Any]) -> None:
        sys.exit(signal.SIGTERM)  # as the handler does that ray.init installs

    monkeypatch.setattr(cluster, "_join", connect)
    monkeypatch.setattr(cluster.ray, "is_initialized", lambda: False)
    with pytest.raises(UserInterrupt):
        Cluster("head:6379")


@pytest.mark.parametrize("package", ["aiohttp", "pathspec"])
def test_without_the_extra_a_line_says_what_to_install(folder, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    asked = CliRunner().invoke(app, ["submit", "small.yaml", "--address", "http://127.0.0.1:1"])
    assert str(asked.exception) == (
        f"rlpipe submit needs the package {package}, which is not installed: pip install 'rlpipe[cluster]'"
    )


# --- launchers

AFTER_DASHES = 'while [ "$1" != -- ]; do shift; done; shift; exec "$@"'
STARTED, NOT_STARTED = AFTER_DASHES, "echo Failed to start Ray >&2; exit 0"


def slurm(folder: Path, *, ray: str, python: str) -> subprocess.Popen[bytes]:
    """``launch/slurm.sh`` on one node, with stand-ins for Slurm, for Ray and for the run."""
    commands = {"scontrol": "echo node1", "srun": 'while [ "${1#--}" != "$1" ]; do shift; done; exec "$@"'}
    commands |= {"mkdir": "exit 0", "ray": ray, "python": python}
    for name, script in commands.items():
        (folder / name).write_text(f"#!/bin/bash\n{script}\n")
        (folder / name).chmod(0o755)
    job = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_JOB_NODELIST": "node1", "SLURM_JOB_NUM_NODES": "1"}
    environment = {**os.environ, **job, "SLURM_CPUS_PER_TASK": "2", "PATH": f"{folder}:{os.environ['PATH']}"}
    command = ["bash", str(REPOSITORY / "launch/slurm.sh"), "small.yaml", "runner.seed=1"]
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


@pytest.mark.parametrize("code", [0, 3])
def test_a_slurm_job_ends_with_the_exit_code_of_the_run(folder, code):
    job = slurm(folder, ray=STARTED, python=f'echo "$@"; exit {code}')
    told = job.communicate(timeout=600)[0].decode()
    assert job.returncode == code
    assert "-m rlpipe train small.yaml runner.seed=1 --ray-address node1:" in told


def test_a_slurm_job_whose_ray_does_not_start_fails_though_ray_says_0(folder):
    job = slurm(folder, ray=NOT_STARTED, python="exit 0")
    assert "Ray did not start" in job.communicate(timeout=600)[0].decode()
    assert job.returncode == 1


def test_the_nodes_of_a_slurm_job_wait_for_each_other_equally_long(folder):
    waits = "SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT", "py_gcs_connect_timeout_s", "gcs_rpc_server_connect_timeout_s"
    job = slurm(folder, ray="echo " + " ".join(f"$RAY_{name}" for name in waits), python="exit 0")
    assert b"300 300 300" in job.communicate(timeout=600)[0]


def test_a_slurm_job_near_its_time_limit_lets_the_run_save(folder):
    job = slurm(
        folder, ray=STARTED, python="trap 'echo saved; exit 130' TERM; touch ready; while :; do sleep 0.1; done"
    )
    wait_until(lambda: (folder / "ready").exists() and list(folder.glob("*.pid")), "the run")
    job.send_signal(signal.SIGUSR1)
    assert b"saved" in job.communicate(timeout=600)[0]
    assert job.returncode == 130


def test_a_slurm_job_that_is_to_end_before_the_run_has_begun_ends_it_as_it_begins(folder):
    late = f"touch starting; while [ ! -e *.ending ]; do sleep 0.1; done; {STARTED}"
    job = slurm(folder, ray=late, python="exec sleep 3600")
    wait_until(lambda: (folder / "starting").exists(), "Ray")
    job.send_signal(signal.SIGUSR1)
    job.communicate(timeout=600)
    assert job.returncode == 128 + signal.SIGTERM


def test_what_ray_job_submit_sends_fits_what_rlpipe_submit_sends():
    written = yaml.safe_load((REPOSITORY / "launch/runtime_env.yaml").read_text())
    assert set(SECRETS) < set(written["excludes"]) <= set(EXCLUDES)
    assert set(written["env_vars"]) == {"RAY_JOB_STOP_WAIT_TIME_S"}


def test_the_manifest_for_kubernetes_names_the_nodes_that_it_makes():
    job = yaml.safe_load((REPOSITORY / "launch/kuberay_rayjob.yaml").read_text())["spec"]
    *command, workers, learner = shlex.split(job["entrypoint"])
    assert command[:4] == ["python", "-m", "rlpipe", "train"]
    config = load_config(SMALL, [workers, learner]).cluster
    labels = [group["labels"] for group in job["rayClusterSpec"]["workerGroupSpecs"]]
    assert [config.worker_nodes, config.learner_nodes] == labels


def manifest() -> dict[str, Any]:
    return yaml.safe_load(kuberay.MANIFEST.read_text())


def test_the_manifest_for_kubernetes_is_valid_by_kuberays_own_schema():
    assert kuberay.problems(manifest(), json.loads(kuberay.PART.read_text())) == []


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("backOffLimit", 0, "spec: Additional properties are not allowed ('backOffLimit' was unexpected)"),
        ("backoffLimit", "0", "spec.backoffLimit: '0' is not of type 'integer'"),
    ],
)
def test_a_field_that_kuberay_does_not_know_or_of_another_type_is_noticed(field, value, problem):
    job = manifest()
    job["spec"][field] = value
    assert kuberay.problems(job, json.loads(kuberay.PART.read_text())) == [problem]


def test_the_cluster_file_of_ray_up_is_one():
    from ray.autoscaler._private.util import prepare_config, validate_config

    written = yaml.safe_load((REPOSITORY / "launch/ray_up.yaml").read_text())
    validate_config(prepare_config(written))


# --- on a cluster


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@dataclass
class Head:
    """A Ray head in processes of its own, with token authentication."""

    address: str
    gcs: str
    home: Path
    environment: dict[str, str]

    def submit(self, *arguments: str, folder: Path, **changes: str) -> Answer:
        """``rlpipe submit`` to its end, in this process."""
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            for name in {*os.environ} - {*self.environment}:
                patch.delenv(name)
            for name, value in {**self.environment, "RAY_API_SERVER_ADDRESS": self.address, **changes}.items():
                patch.setenv(name, value)
            patch.setattr(job_server, "POLL_SECONDS", 0.2)
            patch.setattr(job_server, "RECONNECT_SECONDS", 0.2)
            return command("submit", *arguments)

    def ask(self, path: str) -> dict:
        request = urllib.request.Request(f"{self.address}{path}", headers={"Authorization": f"Bearer {TOKEN}"})
        with urllib.request.urlopen(request, timeout=600) as answer:
            return json.load(answer)


@contextlib.contextmanager
def once(true: Callable[[], object], act: Callable[[], object]) -> Iterator[None]:
    """Does something beside a command in this process as soon as something is true, unless the command ends before."""
    ended = threading.Event()

    def wait() -> None:
        while not true():
            if ended.wait(0.05):
                return
        act()

    beside = threading.Thread(target=wait)
    beside.start()
    try:
        yield
    finally:
        ended.set()
        beside.join()


def interrupt(number: signal.Signals) -> None:
    """Sends a signal to the thread of the commands."""
    signal.pthread_kill(threading.main_thread().ident, number)


def wait_until(true: Callable[[], object], what: str, seconds: float = 600) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, f"waited {seconds:g} s for {what}"
        time.sleep(0.05)


def answers(address: str) -> bool:
    request = urllib.request.Request(f"{address}/api/version", headers={"Authorization": f"Bearer {TOKEN}"})
    try:
        with urllib.request.urlopen(request, timeout=60):
            return True
    except OSError:
        return False


def listens(port: int) -> bool:
    with socket.socket() as asking:
        return asking.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    port, dashboard, agent = (free_port() for _ in range(3))
    template = ProcessTemplate(WORKER_ENVIRONMENT)
    with tempfile.TemporaryDirectory(prefix="rlpipe-", dir="/tmp", ignore_cleanup_errors=True) as short:
        home = Path(short, "home")
        home.mkdir()
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "WANDB_"))}
        environment |= {
            "HOME": str(home),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(REPOSITORY),
            "RAY_AUTH_TOKEN": TOKEN,
        }
        of_ray = {
            **PATIENT,
            **LEAN,
            "RAY_AUTH_MODE": "token",  # not in the environment of clients: what they send turns on an address
            "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "1",
            "RAY_TMPDIR": short,
            "RAY_gcs_rpc_server_reconnect_timeout_s": "600",
            "RAY_health_check_failure_threshold": "60",
            **forking_from(template),
        }
        options = {
            "node-ip-address": "127.0.0.1",
            "port": port,
            "dashboard-port": dashboard,
            "dashboard-agent-listen-port": agent,
            "min-worker-port": 0,
            "max-worker-port": 0,
            "num-cpus": 2,
            "object-store-memory": 150_000_000,
        }
        ray = [sys.executable, "-m", "tests.helpers.lean_head", "start", "--head", "--block", "--disable-usage-stats"]
        start = [*ray, *(f"--{name}={value}" for name, value in options.items())]
        with Path(short, "head.log").open("w") as log:
            process = subprocess.Popen(
                start, cwd=REPOSITORY, env=environment | of_ray, stdout=log, stderr=log, start_new_session=True
            )
        found = Head(f"http://127.0.0.1:{dashboard}", f"127.0.0.1:{port}", home, environment)
        try:
            wait_until(
                lambda: process.poll() is not None or (answers(found.address) and listens(agent)), "the job server"
            )
            assert process.poll() is None, Path(short, "head.log").read_text()
            wait_until(lambda: listens(agent), "the agent that starts jobs")
            wait_until(lambda: found.ask("/nodes?view=hostNameList")["data"]["hostNameList"], "the head's node")
            yield found
        finally:
            ours = psutil.Process(process.pid).children(recursive=True)
            process.terminate()
            try:
                process.wait(timeout=600)
            finally:
                for one in [*ours, process]:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        one.kill()
                template.end()


class Proxy:
    """Passes requests on to a head, and cuts what it is told to.

    Attributes:
        cuts: how the first sockets of a log end after their first line: ``politely`` or ``abruptly``.
        deaf: whether nothing is answered any more.
        silent: method and pattern of the path of requests that get no answer until it is cleared.
        unanswered: number of such requests.
        broken: True if their connection breaks at once.
        lines: number of pieces of a log that were passed on.  sockets: number of sockets for it.
    """

    def __init__(self, upstream: str, *cuts: str) -> None:
        self.upstream, self.cuts, self.deaf, self.sockets, self.lines = upstream, cuts, False, 0, 0
        self.silent, self.unanswered, self.broken = ("", ""), 0, False
        self.address = f"http://127.0.0.1:{free_port()}"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        from aiohttp import web

        async def start() -> None:
            app = web.Application(client_max_size=2**30)
            app.router.add_route("*", "/{path:.*}", self._pass_on)
            runner = web.AppRunner(app)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", int(self.address.rpartition(":")[2])).start()

        self._loop.run_until_complete(start())
        self._loop.run_forever()

    async def _pass_on(self, request):
        import aiohttp
        from aiohttp import web

        if self.deaf:
            request.transport.abort()
        if request.method == self.silent[0] and re.fullmatch(self.silent[1], request.path):
            self.unanswered += 1
            while self.silent[0] and not self.broken:
                await asyncio.sleep(0.1)
            request.transport.abort()
        url, headers = self.upstream + request.path, {"Authorization": request.headers.get("Authorization", "")}
        async with aiohttp.ClientSession(headers=headers) as session:
            if not request.path.endswith("/tail"):
                async with session.request(request.method, url, data=await request.read()) as answer:
                    return web.Response(
                        status=answer.status, body=await answer.read(), content_type=answer.content_type
                    )
            self.sockets += 1
            cut = dict(enumerate(self.cuts, start=1)).get(self.sockets)
            passed = web.WebSocketResponse()
            await passed.prepare(request)
            async with session.ws_connect(url) as lines:
                async for line in lines:
                    await passed.send_str(line.data)
                    self.lines += 1
                    if cut == "politely":
                        await passed.close(code=1000)
                    elif cut == "abruptly":
                        request.transport.abort()
                    if cut or self.deaf:
                        break
            return passed

    def close(self) -> None:
        async def end() -> None:
            open_requests = asyncio.all_tasks() - {asyncio.current_task()}
            for one in open_requests:
                one.cancel()
            await asyncio.gather(*open_requests, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(600)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=600)


@pytest.fixture(scope="module")
def proxy(head) -> Iterator:
    made = []

    def make(*cuts: str) -> Proxy:
        made.append(Proxy(head.address, *cuts))
        wait_until(lambda: answers(made[-1].address), "the proxy")
        return made[-1]

    yield make
    for one in made:
        one.close()


on_a_cluster = [pytest.mark.soak, pytest.mark.ray, pytest.mark.timeout(1800)]


@pytest.mark.parametrize(
    ("change", "why"),
    [("runner.totl_timesteps=9", "did you mean 'total_timesteps'?"), ("--max-package=0", "the package would have")],
)
def test_what_is_wrong_or_too_big_is_refused_before_anybody_is_asked(folder, change, why):
    refused = command("submit", "small.yaml", change, "--address", "http://127.0.0.1:1")  # nobody is there
    assert refused.code == 2
    assert why in " ".join(refused.err.split())


class TestOnACluster:
    pytestmark = on_a_cluster

    def test_a_job_that_succeeds_ends_with_0_and_leaves_the_ray_that_it_joined_running(self, head):
        short = (
            "runner.total_timesteps=32", "rollout.horizon=16", "env.train.total_num_envs=2", "evaluation.episodes=2",
            "policy.hidden_sizes=[8]", "rollout.num_workers=1", "algorithm.num_minibatches=2",
            "runner.logger.logger_backends=[console]", "runner.report=false",
        )  # fmt: skip
        ended = head.submit("configs/ppo_cartpole.yaml", *short, folder=REPOSITORY, ANOTHER_SECRET="open-sesame")
        assert ended.code == 0, ended.err
        assert "completed" in ended.out
        (run,) = (head.home / "runs/ppo_cartpole").iterdir()
        contents = json.loads((run / "run.json").read_text())
        assert contents["status"] == "completed"
        assert contents["cluster"]["job"]["metadata"]["job_name"] == "ppo_cartpole"
        told = json.dumps([job for job in head.ask("/api/jobs/") if job["type"] == "SUBMISSION"])
        assert '"job_name": "ppo_cartpole"' in told
        assert f'"{contents["cluster"]["job"]["submission_id"]}"' in told
        assert "open-sesame" not in told

    def test_a_job_in_a_python_without_rlpipe_ends_with_1_and_says_which_python_and_how_to_start_ray(
        self, head, folder
    ):
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "bare"], check=True)
        bare = folder / "bare/bin/python"
        fill(folder, "bin/python")
        (folder / "bin/python").write_text(f'#!/bin/sh\nexec {bare} -I "$@"\n')  # -I: nor where rlpipe lies
        (folder / "bin/python").chmod(0o755)
        ended = head.submit("small.yaml", "--env", f"PATH={folder}/bin:/usr/bin:/bin", folder=folder)
        assert ended.code == 1, ended.err
        assert f"{bare}: No module named rlpipe" in ended.out
        assert "failed after" in ended.err
        assert f"The cluster ran the job with {bare}, which has no package rlpipe." in ended.err
        assert "ray start --head" in ended.err

    def test_ray_job_submit_sends_this_repository_too(self, head):
        ended = subprocess.run(
            ["bash", "launch/ray_job_submit.sh", head.address, "configs/ppo_cartpole.yaml", "runner.totl_timesteps=9"],
            cwd=REPOSITORY, env=head.environment, capture_output=True, text=True, timeout=1500,
        )  # fmt: skip
        assert ended.returncode == 1
        assert "did you mean 'total_timesteps'?" in " ".join(ended.stdout.split())

    @pytest.mark.parametrize(
        ("silent", "code", "why"),
        [
            (("PUT", "/api/packages/.*"), 2, "interrupted; nothing was sent."),
            (("POST", "/api/jobs/"), 3, "rlpipe submit --stop small-"),
        ],
    )
    def test_an_interruption_while_it_is_sent_says_whether_a_job_may_have_begun(
        self, head, folder, proxy, silent, code, why
    ):
        between = proxy()
        between.silent = silent
        with once(lambda: between.unanswered, lambda: interrupt(signal.SIGTERM)):  # handled as Ctrl-C is
            ended = head.submit("small.yaml", "--address", between.address, folder=folder)
        assert (ended.code, why in ended.err) == (code, True), ended.err

    def test_a_package_that_does_not_arrive_was_not_sent(self, head, folder, proxy):
        between = proxy()
        between.silent, between.broken = ("PUT", "/api/packages/.*"), True
        fill(folder, "new.txt")  # the cluster has the other package already
        ended = head.submit("small.yaml", "--address", between.address, folder=folder)
        assert ended.code == 2, ended.err
        assert "did not accept the package, so nothing runs" in " ".join(ended.err.split())

    def test_the_token_of_another_cluster_is_refused(self, head, folder):
        ended = head.submit("small.yaml", folder=folder, RAY_AUTH_TOKEN="b" * 64)
        assert ended.code == 2
        assert "does not accept the token from RAY_AUTH_TOKEN" in ended.err

    def test_a_run_that_does_not_send_the_token_of_the_cluster_is_told_what_to_do(self, head, folder):
        ended = subprocess.run(  # its own process: Ray looks once in a process whether it is to send a token
            [sys.executable, "-m", "rlpipe", "train", "small.yaml", "--ray-address", head.gcs], cwd=folder,
            env={**head.environment, "RAY_NUM_REDIS_GET_RETRIES": "1"}, capture_output=True, text=True, timeout=1500,
        )  # fmt: skip
        assert ended.returncode == 2, ended.stderr
        why = "the one in RAY_AUTH_TOKEN was not sent, because RAY_AUTH_MODE is not set"
        assert why in " ".join(ended.stderr.split())

    def test_a_job_that_the_named_cluster_does_not_know_is_not_followed(self, head, folder):
        elsewhere = {"RAY_ADDRESS": "http://127.0.0.1:1", "RAY_API_SERVER_ADDRESS": "http://127.0.0.1:1"}
        ended = head.submit("--follow", "nobody", "--address", head.address, folder=folder, **elsewhere)
        assert ended.code == 2
        assert "has no job nobody" in ended.err


def drivers() -> list[psutil.Process]:
    """Runs below this process."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if {"rlpipe", "train"} <= {Path(word).name for word in process.cmdline()}:
                found.append(process)
    return found


@dataclass
class Story:
    """Observations of a job that ran until it was stopped.

    Attributes:
        job: its id.
        sent: the command that sent it.
        interrupted: a follower that got Ctrl-C, and what the job server said then.
        lost: the same of a follower whose connection died.
        cut: exit code and log of a follower whose connections were cut on the way.  whole: the job's own log.
        stopped: the command that stopped it.
        left: processes of the job, once they had time to end.
        late: a follower that got Ctrl-C while it fetched the end of the log.
        again: the command that stops it once more.
    """

    job: str
    sent: Answer
    interrupted: tuple[Answer, str]
    lost: tuple[Answer, str]
    cut: tuple[int, str]
    whole: str
    stopped: Answer
    left: list[psutil.Process]
    late: Answer
    again: Answer


@pytest.fixture(scope="module")
def story(head, proxy, tmp_path_factory) -> Story:
    """A job that is followed by several, stopped, and asked about afterwards."""
    folder = tmp_path_factory.mktemp("small")
    (folder / "small.yaml").write_text(yaml.safe_dump(SMALL))
    sent = head.submit("small.yaml", "--detach", folder=folder)
    assert sent.code == 0, sent.err
    job = sent.out.strip()

    def follow(between: Proxy, *options: str) -> Answer:
        return head.submit("--follow", job, "--address", between.address, *options, folder=folder)

    def status() -> str:
        wait_until(drivers, "the run")
        return head.ask(f"/api/jobs/{job}")["status"]

    # a follower that goes on until the job ends, beside all that follows
    cutting = proxy("politely", "abruptly")
    log = folder / "cut.log"
    with log.open("w") as opened:
        cut = subprocess.Popen(
            [sys.executable, "-m", "rlpipe", "submit", "--follow", job, "--address", cutting.address],
            cwd=folder, env=head.environment, stdout=opened, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    between = proxy()
    with once(lambda: between.lines, lambda: interrupt(signal.SIGINT)):
        interrupted = follow(between), status()

    between = proxy()
    with once(lambda: between.lines, lambda: setattr(between, "deaf", True)):
        lost = follow(between, "--lost-after", "0.5"), status()

    wait_until(lambda: " 3/" in log.read_text(), "the third iteration")
    wait_until(lambda: cutting.sockets >= 3, "the third socket")
    stopped = head.submit("--stop", job, folder=folder)
    whole = head.ask(f"/api/jobs/{job}/logs")["logs"]
    code = cut.wait(600)
    wait_until(lambda: not (processes() or drivers()), "the end of its processes")
    left = [*processes(), *drivers()]

    between = proxy()
    between.silent = ("GET", ".*/logs")

    def interrupt_and_answer() -> None:
        interrupt(signal.SIGTERM)  # handled as Ctrl-C is
        time.sleep(0.5)
        between.silent = ("", "")

    with once(lambda: between.unanswered, interrupt_and_answer):
        late = follow(between)
    again = head.submit("--stop", job, folder=folder)
    return Story(job, sent, interrupted, lost, (code, log.read_text()), whole, stopped, left, late, again)


class TestAJobThatRuns:
    pytestmark = on_a_cluster

    def test_whoever_detaches_is_told_how_to_follow_and_to_stop_it(self, story):
        assert all(f"{hint} {story.job}" in story.sent.err for hint in ("--follow", "--stop"))

    def test_ctrl_c_ends_the_following_and_not_the_job(self, story):
        follower, status = story.interrupted
        assert (follower.code, status) == (3, "RUNNING")
        assert f"--stop {story.job}" in follower.err

    def test_lost_contact_is_neither_success_nor_failure(self, story):
        follower, status = story.lost
        assert (follower.code, status) == (3, "RUNNING")
        assert "lost contact" in follower.err

    def test_a_log_whose_connection_is_cut_is_whole(self, story):
        assert story.cut == (130, story.whole)

    def test_a_stopped_job_has_saved(self, head, story):
        assert story.stopped.code == 130
        (run,) = (head.home / "runs/small").iterdir()
        saved = int(max((run / "checkpoints").glob("*.npz")).stem.rpartition("-")[2])
        more = f"runner.total_timesteps={(saved + 1) * 64}"
        resumed = command("train", "--resume", str(run), "--local", more)
        assert resumed.code == 0, resumed.err
        rows = [json.loads(line)["iteration"] for line in (run / "metrics.jsonl").read_text().splitlines()]
        assert rows == list(range(1, saved + 2))

    def test_a_stopped_job_leaves_no_process(self, story):
        assert story.left == []

    def test_ctrl_c_while_the_end_of_the_log_is_fetched_leaves_the_outcome_known(self, story):
        assert story.late.code == 130

    def test_a_job_that_has_ended_is_not_asked_to_stop(self, story):
        assert (story.again.code, "it had already ended" in story.again.err) == (130, True)
