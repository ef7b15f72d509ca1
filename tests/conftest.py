"""What tests share: one Ray cluster per process, and small configurations."""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import settings

from tests.helpers.cluster import TOKEN

torch.set_num_threads(1)
settings.register_profile("unhurried", deadline=None)  # how long an example takes says more of the machine than of us
settings.load_profile("unhurried")


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
