"""Hosts on one machine, joined into a Ray cluster: each has its own network, address and name. Needs root and ``ip``.

    python -m tests.helpers.hosts configs/ppo_push_cube.yaml --hosts 3 stages=[] runner.total_timesteps=4096 ...

trains across them, a rollout worker on each, and prints which actor ran where.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from rlpipe.run.directory import RunDirectory
from tests.helpers import REPOSITORY

PATIENCE = 600.0
"""Seconds that Ray has to start on one of them."""


def obstacle() -> str | None:
    """Returns why hosts cannot be made here, with the machine's message; None if they can."""
    for tool in ("ip", "unshare"):
        if shutil.which(tool) is None:
            return f"there is no `{tool}` (Debian: apt-get install iproute2 util-linux)"
    name = f"rlpipe-{secrets.token_hex(3)}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"`ip netns add {name}`: {made.stderr.strip()}"
    tried = [["ip", "-n", name, "link", "add", "cable", "type", "veth"], ["unshare", "--uts", "true"]]
    said = [(command, subprocess.run(command, capture_output=True, text=True, check=False)) for command in tried]
    subprocess.run(["ip", "netns", "delete", name], check=True)
    return next((f"`{' '.join(command)}`: {one.stderr.strip()}" for command, one in said if one.returncode), None)


@dataclass(frozen=True)
class Host:
    """One of them.

    Attributes:
        name: as ``hostname`` says there.  address: its own.  network: name of its network namespace.
        folder: for what its processes write.
    """

    name: str
    address: str
    network: str
    folder: Path

    def start(self, *command: str, **options: object) -> subprocess.Popen[bytes]:
        """Starts a command on it; the process is the command's own. Its output goes to ``<folder>/output``."""
        script = 'hostname "$0" && mount --bind "$1" /etc/hosts && shift && exec "$@"'
        naming = ["unshare", "--uts", "sh", "-c", script]
        known = str(self.folder.parent / "hosts")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "WANDB_"))}
        environment |= {
            "HOME": str(self.folder),
            "PYTHONPATH": str(REPOSITORY),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": "a" * 64,
            "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "1",
            "RAY_worker_niceness": "0",
            "RAY_prestart_worker_first_driver": "false",
            "RAY_enable_worker_prestart": "false",
            "RAY_raylet_start_wait_time_s": "600",  # a busy machine is no reason for a host to give up
            "RAY_agent_register_timeout_ms": "600000",
            "RAY_gcs_rpc_server_reconnect_timeout_s": "600",
            "RAY_health_check_failure_threshold": "60",
        }
        with (self.folder / "output").open("ab") as output:
            return subprocess.Popen(
                ["ip", "netns", "exec", self.network, *naming, self.name, known, *command],
                cwd=REPOSITORY, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def processes(self) -> list[psutil.Process]:
        """Returns all processes that run on it."""
        found = subprocess.run(["ip", "netns", "pids", self.network], capture_output=True, text=True, check=False)
        running = []
        for number in found.stdout.split():
            with contextlib.suppress(psutil.NoSuchProcess):
                running.append(psutil.Process(int(number)))
        return running


@contextlib.contextmanager
def hosts(count: int) -> Iterator[list[Host]]:
    """Makes hosts that are connected with each other and with nothing else, and removes them afterwards."""
    token = secrets.token_hex(3)
    with tempfile.TemporaryDirectory(prefix=f"{token}-", dir="/tmp") as folder, contextlib.ExitStack() as left:
        switch = f"rlpipe-{token}-switch"
        _network(left, switch)
        _ip("-n", switch, "link", "add", "switch", "type", "bridge")
        _ip("-n", switch, "link", "set", "switch", "up")
        made = []
        for number in range(1, count + 1):
            host = Host(f"host-{number}", f"10.231.0.{number}", f"rlpipe-{token}-{number}", Path(folder, str(number)))
            host.folder.mkdir()
            _network(left, host.network)
            left.callback(_end, host)
            _ip("-n", host.network, "link", "add", "eth0", "type", "veth", "peer", f"port{number}", "netns", switch)
            _ip("-n", switch, "link", "set", f"port{number}", "master", "switch", "up")
            _ip("-n", host.network, "address", "add", f"{host.address}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _ip("-n", host.network, "link", "set", device, "up")
            _ip("-n", host.network, "route", "add", "default", "dev", "eth0")  # by which a program finds its address
            made.append(host)
        known = "".join(f"{host.address} {host.name}\n" for host in made)
        Path(folder, "hosts").write_text(f"127.0.0.1 localhost\n{known}")
        yield made


def _network(left: contextlib.ExitStack, name: str) -> None:
    _ip("netns", "add", name)
    left.callback(_ip, "netns", "delete", name)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def _end(host: Host) -> None:
    """Ends the processes of a host, as when it is switched off, and those that they had started meanwhile."""
    for _ in range(2):
        running = host.processes()
        for process in running:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(running, timeout=30)


@contextlib.contextmanager
def ray_across(count: int) -> Iterator[tuple[list[Host], str]]:
    """Hosts with one CPU each that are one Ray cluster, and its address."""
    with hosts(count) as made:
        head = made[0]
        address = f"{head.address}:6379"
        started = []
        for host in made:
            first = ["--head", "--port=6379", "--include-dashboard=false"] if host is head else [f"--address={address}"]
            where = [f"--node-ip-address={host.address}", f"--temp-dir={host.folder}/ray"]
            size = ["--num-cpus=1", "--num-gpus=0", "--object-store-memory=100000000"]
            ray = [sys.executable, "-m", "tests.helpers.lean_head", "start", "--block", "--disable-usage-stats"]
            started.append(host.start(*ray, "--for-actors", *first, *where, *size))
        for host, process in zip(made, started, strict=True):
            _wait_for_ray(host, process)
        yield made, address


def _wait_for_ray(host: Host, process: subprocess.Popen[bytes]) -> None:
    ends = time.monotonic() + PATIENCE
    while "Ray runtime started" not in (said := (host.folder / "output").read_text()):
        if process.poll() is not None or time.monotonic() > ends:
            logs = [file.read_text()[-3000:] for file in host.folder.glob("ray/session_2*/logs/raylet.*")]
            raise RuntimeError("\n".join([f"Ray does not start on {host.name}:", said[-3000:], *logs]))
        time.sleep(0.05)


def train(config: str, overrides: list[str], runs: Path, count: int = 2) -> RunDirectory:
    """``rlpipe train`` on the first of so many hosts, with one rollout worker on each.

    Raises:
        RuntimeError: it does not end with 0.
    """
    own = [f"rollout.num_workers={count}", f"runner.logger.log_path={runs}", "runner.logger.logger_backends=[]"]
    patient = ["cluster.placement_timeout=300", "cluster.start_timeout=900"]
    with ray_across(count) as (made, address):
        command = [sys.executable, "-m", "rlpipe", "train", config, *own, *patient, *overrides]
        process = made[0].start(*command, "--ray-address", address)
        if code := process.wait(timeout=2 * PATIENCE):
            raise RuntimeError(f"exit code {code}:\n{(made[0].folder / 'output').read_text()[-6000:]}")
    (run,) = runs.glob("*/*/run.json")
    return RunDirectory.existing(run.parent)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("config", nargs="?", default="configs/ppo_cartpole.yaml")
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--runs", type=Path, default=Path("runs/hosts"), help="new folder for the run directory")
    arguments, overrides = parser.parse_known_args()
    if why := obstacle():
        sys.exit(f"hosts cannot be made here: {why}")
    run = train(arguments.config, overrides, arguments.runs.resolve(), arguments.hosts)
    for part, place in run.read_json()["cluster"]["parts"].items():
        print(f"{part:<15} {place['host']}")
    row = json.loads((run.path / "metrics.jsonl").read_text().splitlines()[-1])
    print(run.path, "after iteration", row["iteration"])


if __name__ == "__main__":
    main()
