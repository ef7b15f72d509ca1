"""Tries policies behind sockets with the official packages of openpi and vla-eval.

    python benchmarks/interop.py                    # about two minutes, and 200 MB in a temporary folder
    python benchmarks/interop.py --envs ~/interop   # keeps the environments there, for the next time

Each package gets a virtual environment of its own: openpi-client without its dependencies, because it asks for NumPy
below 2, and vla-eval. A short run of Pendulum-v1 is trained, on the moon and on the earth, whose policy has a memory
and chunks and samples its actions, so that state that leaks from one client into another shows. Printed is what passed:

- openpi's client asks ``rlpipe serve``;
- vla-eval evaluates our policy on a trivial benchmark of its own;
- vla-eval evaluates our policy on our tasks, and every episode equals that of ``rlpipe evaluate``;
- the trivial model server of vla-eval answers our client.

The exit code is 1 if anything fails.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import traceback
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

REPOSITORY = Path(__file__).resolve().parent.parent
PROGRAMS = REPOSITORY / "benchmarks" / "interop_programs"
CONSTRAINTS = REPOSITORY / "constraints.txt"
OPENPI_CLIENT, VLA_EVAL = "openpi-client==0.1.2", "vla-eval==0.8.0"
TIME_LIMIT = 30
"""Steps of an episode of Pendulum-v1."""
LIMIT_SECONDS = 300


def main() -> int:
    """Tries all, and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", type=Path, help="folder of the environments; by default a temporary one")
    options = parser.parse_args()
    failures = 0
    with tempfile.TemporaryDirectory(prefix="rlpipe-interop-") as folder:
        work = Path(folder)
        envs = (options.envs or work).expanduser()
        run, episodes = trained(work)
        checks: list[Callable[[], str]] = [
            lambda: openpi_asks_us(openpi_env(envs), run),
            lambda: vla_eval_tries_us(vla_eval_env(envs), run, work),
            lambda: vla_eval_runs_our_tasks(vla_eval_env(envs), run, episodes, work),
            lambda: vla_eval_answers_us(vla_eval_env(envs)),
        ]
        for check in checks:
            try:
                print(f"passed: {check()}", flush=True)
            except Exception:
                failures += 1
                traceback.print_exc()
    print(f"{len(checks) - failures} of {len(checks)} passed")
    return int(failures > 0)


# --- what is tried


Outcomes: TypeAlias = dict[tuple[str | None, int | None], tuple[float, int]]
"""Return and length of episodes, by task and seed."""


def trained(folder: Path) -> tuple[Path, Outcomes]:
    """Trains for a moment. Returns the run, and its evaluated episodes."""
    import rlpipe

    config = {
        "env": {"train": {"name": "gymnasium", "total_num_envs": 2, "max_episode_steps": TIME_LIMIT,
                          "observe_task": False,
                          "tasks": [{"id": "Pendulum-v1", "label": "moon", "kwargs": {"g": 1.6}},
                                    {"id": "Pendulum-v1", "label": "earth", "kwargs": {"g": 9.8}}]}},
        "policy": {"name": "gru", "hidden_sizes": [16], "memory_size": 6, "chunk_size": 3, "execute": 2},
        "algorithm": {"name": "ppo", "update_epochs": 1, "num_minibatches": 1},
        "learner": {"num_threads": 1},
        "rollout": {"horizon": 8},
        "evaluation": {"episodes": 6, "deterministic": False},
        "runner": {"total_timesteps": 64, "report": False,
                   "logger": {"log_path": str(folder), "experiment_name": "interop", "logger_backends": []}},
    }  # fmt: skip
    result = rlpipe.train(rlpipe.load_config(config), local=True)
    report = rlpipe.evaluate(result.directory, local=True)
    return result.directory, {
        (episode.task, episode.seed): (episode.episode_return, episode.length) for episode in report.episodes
    }


def openpi_asks_us(python: Path, run: Path) -> str:
    """Has openpi's client ask our server."""
    with served(run, "openpi") as url:
        seen = program(python, "ask_openpi.py", url, "observation/state", "3")
    assert seen["rlpipe"]
    assert (seen["actions"], seen["dtype"], seen["estimates"]) == ([3, 1], "<f4", 2), seen
    assert seen["the same seed repeats"], seen
    assert seen["steps of the broker"] == [[1]] * 5, seen
    assert "the request lacks observation/state" in seen["error"], seen
    assert str(REPOSITORY) not in seen["error"], seen
    return f"{OPENPI_CLIENT} asks rlpipe serve: actions {seen['actions']}, {seen['infer_ms']:.2f} ms each"


def vla_eval_tries_us(python: Path, run: Path, work: Path) -> str:
    """Has vla-eval evaluate our policy on its own benchmark."""
    params = {"size": 3, "low": -2.0, "high": 2.0}
    entry = {"benchmark": "vla_eval_toys:ToyBenchmark", "episodes_per_task": 3, "params": params}
    with served(run, "vla-eval") as url:
        seen = program(python, "run_vla_eval.py", url, json.dumps({"benchmarks": [entry]}), str(work))
    assert (seen["success"], seen["errors"], len(seen["episodes"])) == (1.0, 0, 6), seen
    return f"{VLA_EVAL} evaluates our policy on a benchmark of its own: {len(seen['episodes'])} episodes, no errors"


def vla_eval_runs_our_tasks(python: Path, run: Path, episodes: Outcomes, work: Path) -> str:
    """Has vla-eval evaluate our policy on our tasks, and compares every episode with our evaluation."""
    entry = {
        "benchmark": "rlpipe.serving.vla_eval:RlpipeBenchmark",
        "episodes_per_task": len(episodes) // 2,
        "params": {"config": str(run)},
    }
    packages = [str(REPOSITORY), *{sysconfig.get_path(name) for name in ("purelib", "platlib")}]
    with served(run, "vla-eval") as url:
        seen = program(python, "run_vla_eval.py", url, json.dumps({"benchmarks": [entry]}), str(work), *packages)
    assert seen["errors"] == 0, seen
    results = [(episode["task"], episode["metrics"]) for episode in seen["episodes"]]
    found = {(task, one["seed"]): (one["episode_return"], one["length"]) for task, one in results}
    assert found == episodes, (results, episodes)
    return f"{VLA_EVAL} runs our two tasks: {len(results)} episodes, each equal to that of rlpipe evaluate"


def vla_eval_answers_us(python: Path) -> str:
    """Has vla-eval's trivial model server answer our client."""
    from rlpipe.serving.client import PolicyClient

    words = [str(python), str(PROGRAMS / "serve_vla_eval.py")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            with PolicyClient(process.stdout.readline().strip(), "vla-eval") as client:
                for _ in range(2):
                    client.begin()
                    picture = np.full((4, 4, 3), 1, np.uint8)
                    asked = [{"state": np.float32([x, 2 * x]), "images": {"cam": picture}} for x in range(5)]
                    answers = [client.ask(observation)[0, 0] for observation in asked]
                    # 3 actions of the first observation, 0 + 1 + step 0; then of the fourth, 9 + 1 + step 3
                    assert answers == [1, 1, 1, 13, 13], answers
                server = client.metadata["model_server"]
        finally:
            process.stdin.close()
    return f"the {server} of {VLA_EVAL} answers our client, episode after episode"


# --- processes


@contextmanager
def served(run: Path, protocol: str) -> Iterator[str]:
    """Serves a run, and yields the address."""
    words = [sys.executable, "-m", "rlpipe", "serve", str(run), "--protocol", protocol, "--port", "0"]
    with subprocess.Popen(words, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield next(line.split()[2] for line in process.stdout if line.startswith("serving at "))
        finally:
            process.terminate()
    assert process.returncode == 130, process.returncode


def program(python: Path, name: str, *arguments: str) -> Any:
    """Runs a program of ``interop_programs`` in an environment, and returns the JSON in its last line."""
    words = [str(python), str(PROGRAMS / name), *arguments]
    answer = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_SECONDS)
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout.splitlines()[-1])


# --- environments


def openpi_env(folder: Path) -> Path:
    """Returns the Python of an environment with openpi's client."""
    return environment(
        folder / "openpi", ["dm-tree", "msgpack", "numpy", "typing_extensions", "websockets"], [OPENPI_CLIENT]
    )


def vla_eval_env(folder: Path) -> Path:
    """Returns the Python of an environment with vla-eval."""
    return environment(folder / "vla-eval", [VLA_EVAL], [])


def environment(folder: Path, packages: list[str], alone: list[str], constraints: Path | None = CONSTRAINTS) -> Path:
    """Makes a virtual environment, unless it is there.

    Args:
        folder: folder of the environment.
        packages: packages to install.
        alone: packages to install without what they depend on.
        constraints: file of versions to keep to; None for those that the packages ask for.
    """
    python = folder / "bin" / "python"
    kept_to = [] if constraints is None else ["--constraint", str(constraints)]

    def install() -> None:
        venv.create(folder, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *kept_to, *packages], check=True)
        if alone:
            subprocess.run([*pip, "--no-deps", *alone], check=True)

    install_once(folder, [packages, alone], install)
    return python


def install_once(folder: Path, packages: Any, install: Callable[[], None]) -> None:
    """Fills a folder, unless a file in it says that the same packages were installed completely."""
    done, stamp = folder / "installed.json", json.dumps(packages)
    if not done.is_file() or done.read_text() != stamp:
        shutil.rmtree(folder, ignore_errors=True)
        install()
        done.write_text(stamp)


if __name__ == "__main__":
    sys.exit(main())
