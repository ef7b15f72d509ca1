"""What tests share: one Ray cluster per process, and small configurations."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import settings

from rlpipe.config.loading import load_config
from rlpipe.config.schema import Config

torch.set_num_threads(1)
settings.register_profile("unhurried", deadline=None)  # how long an example takes says more of the machine than of us
settings.load_profile("unhurried")
TOKEN = "f" * 64
"""Of whatever Ray a process of tests starts; one for all, because Ray reads a process's token once."""


@pytest.fixture(scope="session")
def ray_cluster():
    """A local Ray with two CPUs, shared by all tests of a process."""
    import ray

    os.environ.setdefault("RAY_AUTH_TOKEN", TOKEN)
    # Ray gives its workers niceness 15, so beside the other test process they would starve.
    os.environ.setdefault("RAY_worker_niceness", "0")
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=150_000_000,
        log_to_driver=False,
        namespace="rlpipe",
    )
    yield
    ray.shutdown()


def scripted(tmp_path, *overrides: str, **tree: Any) -> Config:
    """A run on the scripted simulator that takes a second: 4 environments, 16 steps an iteration each, 4 iterations."""
    base: dict[str, Any] = {
        "env": {"train": {"name": "scripted", "total_num_envs": 4, "match_actions": True}},
        "policy": {"name": "mlp", "hidden_sizes": [8]},
        "algorithm": {"name": "ppo", "update_epochs": 2, "num_minibatches": 4},
        "learner": {"num_threads": 1},
        "rollout": {"horizon": 16},
        "evaluation": {"episodes": 6},
        "runner": {
            "total_timesteps": 256,
            "save_interval": 2,
            "logger": {"log_path": str(tmp_path), "experiment_name": "scripted", "logger_backends": []},
        },
    }
    base.update(tree)
    return load_config(base, overrides)


@contextlib.contextmanager
def beside(attempt: Callable[[], bool]) -> Iterator[None]:
    """Makes attempts beside the block, one after the other, until one did what there is to do or the block ends."""
    ends = threading.Event()

    def work() -> None:
        while not ends.wait(0.02) and not attempt():
            pass

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()
