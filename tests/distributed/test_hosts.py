"""A run across hosts: each a network of its own with its own address and name, joined into one Ray cluster."""

from __future__ import annotations

import json
import subprocess

import pytest

from rlpipe.run.directory import read_jsonl
from tests.helpers.hosts import hosts, obstacle, train

pytestmark = [pytest.mark.soak, pytest.mark.ray, pytest.mark.timeout(3600), pytest.mark.usefixtures("rights")]
SHORT = [
    "env.train.total_num_envs=4", "rollout.horizon=64", "runner.total_timesteps=768", "evaluation.episodes=4",
    "runner.report=false",
]  # fmt: skip


@pytest.fixture(scope="session")
def rights() -> None:
    """Skips the tests, with the reason, where hosts cannot be made."""
    if why := obstacle():
        pytest.skip(f"hosts cannot be made here: {why}")


def networks() -> str:
    return subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout


def test_hosts_reach_each_other_and_are_gone_afterwards_whatever_happens():
    with pytest.raises(KeyError), hosts(2) as (one, other):  # noqa: PT012
        listening = one.start("python3", "-c", LISTEN, one.address)
        asking = other.start("python3", "-c", ASK, one.address)
        assert (asking.wait(timeout=300), (other.folder / "output").read_text()) == (0, "host-1 says hello to host-2\n")
        assert {process.pid for process in one.processes()} == {listening.pid}
        raise KeyError
    assert listening.poll() is not None
    assert not one.folder.exists()
    assert one.network not in networks()


LISTEN = """
import socket, sys, time
server = socket.create_server((sys.argv[1], 5000))
server.accept()[0].sendall(socket.gethostname().encode())
time.sleep(3600)
"""
ASK = """
import socket, sys, time
for _ in range(600):
    try:
        told = socket.create_connection((sys.argv[1], 5000)).recv(99).decode()
        break
    except OSError:
        time.sleep(0.5)
print(told, "says hello to", socket.gethostname())
"""


def test_workers_on_two_hosts_train_together(tmp_path):
    run = train("configs/ppo_cartpole.yaml", SHORT, tmp_path)
    contents = run.read_json()
    parts = contents["cluster"]["parts"]
    assert contents["status"] == "completed"
    assert {parts["rollout-0"]["host"], parts["rollout-1"]["host"]} == {"host-1", "host-2"}
    assert {node["host"] for node in contents["cluster"]["nodes"]} == {"host-1", "host-2"}
    assert parts["driver"]["host"] == parts["metric-logger"]["host"] == "host-1"
    rows = list(read_jsonl(run.path / "metrics.jsonl"))
    assert [(row["iteration"], row["total_timesteps"]) for row in rows] == [(1, 256), (2, 512), (3, 768)]
    assert [row["metrics"]["time/workers_reporting"] for row in rows] == [2, 2, 2]
    ledger = [json.loads(line)["worker"] for line in (run.path / "episodes.jsonl").read_text().splitlines()]
    assert sum(row["metrics"]["env/num_trajectories"] for row in rows) == len(ledger)
    assert set(ledger) == {0, 1}
    assert rows[-1]["metrics"]["eval/num_trajectories"] == 4
