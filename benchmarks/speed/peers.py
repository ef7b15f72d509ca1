"""Other libraries as contenders; each runs in its own environment (``benchmarks/peers/install.py``)."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from typing import Any

from benchmarks.machine import ROOT
from benchmarks.peers.install import PEERS, interpreter, is_installed

NAMES = {
    "sb3": "Stable-Baselines3 PPO",
    "torchrl": "TorchRL PPO",
    "rllib": "RLlib PPO",
    "sample_factory": "Sample Factory APPO",
}
CHOICES = {"all": tuple(PEERS), "sb3": ("sb3",), "none": ()}


def python_of(peer: str) -> str | None:
    """Interpreter that can run a peer; None if it is not installed."""
    if is_installed(peer):
        return str(interpreter(peer))
    if peer == "sb3" and importlib.util.find_spec("stable_baselines3"):  # one of the developers' requirements
        return sys.executable
    return None


def run(peer: str, task: str, iterations: int, success: float | None = None, seed: int = 0) -> dict[str, Any]:
    """Runs a peer's adapter in a process of its own. Returns the JSON that it prints.

    Raises:
        RuntimeError: the peer failed; the message ends with the last lines of its output.
    """
    python = python_of(peer)
    assert python is not None
    given = [task, "--iterations", str(iterations), "--seed", str(seed)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ended = subprocess.run(
        [python, "-m", f"benchmarks.peers.{peer}", *given, *([] if success is None else ["--success", str(success)])],
        cwd=ROOT,
        env={**environment, "BENCHMARK_BEGAN": str(time.time())},
        capture_output=True,
        text=True,
        check=False,
    )
    answers = [line for line in ended.stdout.splitlines() if line.startswith('{"version"')]
    if ended.returncode != 0 or not answers:
        output = (ended.stdout + ended.stderr).strip()
        raise RuntimeError(f"{peer} failed with exit code {ended.returncode}: {output[-800:]}")
    return json.loads(answers[-1])
