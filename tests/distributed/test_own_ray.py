"""The Ray that a run starts for itself."""

from __future__ import annotations

import json

import pytest

from tests.helpers.cluster import program_outside_ray

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]

LOOK = """
import json, os, psutil, ray
from ray.exceptions import RayError
from rlpipe.distributed.cluster import Cluster
cluster = Cluster()
commands = [" ".join(process.cmdline()) for process in psutil.Process().children(recursive=True)]
task = ray.remote(num_cpus=0, runtime_env={"env_vars": {"SIGN": "green"}})(lambda: os.environ["SIGN"])
print(json.dumps({"commands": commands, "task": ray.get(task.remote()), "token": os.environ["RAY_AUTH_TOKEN"]}))
cluster.close()
"""


@pytest.mark.soak
def test_it_has_the_processes_that_a_run_needs_and_can_run_tasks_with_an_environment_of_their_own():
    done = program_outside_ray(LOOK)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for needed in ("gcs_server", "raylet", "dashboard/agent.py", "agent/main.py"):
        assert any(needed in command for command in found["commands"]), needed
    for unused in ("dashboard/dashboard.py", "monitor.py", "log_monitor.py", "default_worker.py"):
        started = [command for command in found["commands"] if unused in command.split(" --")[0]]
        assert started == [], unused
    assert found["task"] == "green"
    assert found["token"]
