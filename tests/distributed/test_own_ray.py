"""The Ray that a run starts for itself."""

from __future__ import annotations

import json
import socket

import pytest

from rlpipe.distributed import own_ray
from tests.helpers.cluster import program_outside_ray

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]

LOOK = """
import json, os, psutil, ray
from ray.exceptions import RayError
from rlpipe.distributed.cluster import Cluster
cluster = Cluster()
processes = psutil.Process().children(recursive=True)
commands = [" ".join(process.cmdline()) for process in processes]
head = processes[next(n for n, command in enumerate(commands) if "gcs_server" in command)]
task = ray.remote(num_cpus=0, runtime_env={"env_vars": {"SIGN": "green"}})(lambda: os.environ["SIGN"])
remembers = head.environ()["RAY_task_events_max_num_task_in_gcs"]
token = os.environ["RAY_AUTH_TOKEN"]
print(json.dumps({"commands": commands, "task": ray.get(task.remote()), "token": token, "remembers": remembers}))
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
    assert found["remembers"] == "1000"  # tasks of a long run, and no more


def test_ports_of_agents_are_none_that_outgoing_connections_take(monkeypatch):
    monkeypatch.setattr(own_ray, "_first_outgoing_port", lambda: 20_003)
    with socket.socket() as taken:
        taken.bind(("", 20_001))
        assert sorted(own_ray.free_ports(2)) == [20_000, 20_002]
        *below, other = own_ray.free_ports(3)
        assert sorted(below) == [20_000, 20_002]
        assert other not in (0, 20_001)  # there are no more, so the kernel chose it


def test_where_the_range_of_outgoing_connections_is_unknown_the_kernel_chooses(monkeypatch):
    monkeypatch.setattr(own_ray, "_first_outgoing_port", lambda: 0)
    assert len({*own_ray.free_ports(4)}) == 4
