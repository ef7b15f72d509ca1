"""Trains through a real Slurm with ``launch/slurm.sh``: jobs that meet their time limit, a signal or a requeue.

Unpacks Debian's Slurm and Munge into a temporary folder, starts a controller and two nodes on hosts of this machine
(``tests/helpers/hosts.py``), and submits a run that is longer than one job. Afterwards checks that every iteration is
there once and that every number follows from the episode files. Prints the jobs; exits with 1 if a check fails. Needs
root, Debian 12 with its package sources, ``ip`` and ``unshare``; installs nothing. Takes ten minutes.

    python benchmarks/slurm.py [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))
from rlpipe.config.loading import load_config
from rlpipe.config.tree import to_yaml
from rlpipe.run.directory import RunDirectory, read_jsonl
from tests.helpers import REPOSITORY
from tests.helpers.faulty import assert_whole
from tests.helpers.hosts import Host, hosts, obstacle

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins", "munge")
LIBRARIES = Path("usr/lib/x86_64-linux-gnu")
ITERATIONS, HORIZON, ENVS, STEP_SECONDS = 150, 32, 4, 0.02
"""Size of the run, which takes about two minutes."""
MINUTES, NOTICE = 3, 60
"""Time limit of a job, and seconds before it at which Slurm sends the signal, or up to a minute earlier."""
PATIENCE = 900.0
"""Seconds in which a job must begin or end."""
WITHOUT_RAY = """
for name in $(env | sed -n 's/^\\(RAY_[A-Za-z_]*\\)=.*/\\1/p'); do unset "$name"; done
exec "$@" >"$0" 2>&1
"""
"""Runs a command without settings of Ray, which the hosts of tests have, so that a job has those that are shipped."""
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"}


@dataclass(frozen=True)
class Slurm:
    """Slurm on hosts of this machine; the first host holds the controller, and jobs are submitted from there."""

    hosts: list[Host]
    folder: Path

    def call(self, *command: str) -> str:
        """Returns the output of a command of Slurm.

        Raises:
            RuntimeError: it did not end with 0.
        """
        output = self.folder / "answer"
        process = self.hosts[0].start("sh", "-c", WITHOUT_RAY, str(output), *command)
        if code := process.wait(timeout=PATIENCE):
            raise RuntimeError(f"{' '.join(command)}: exit code {code}: {output.read_text()}")
        return output.read_text()

    def submit(self, *options: str, run: tuple[str, ...]) -> str:
        """Submits ``launch/slurm.sh``; prints the command and returns the number of the job."""
        size = ["--cpus-per-task=1", *options]
        print("$ sbatch", *size, "launch/slurm.sh", *run, flush=True)
        script = str(REPOSITORY / "launch/slurm.sh")
        return self.call("sbatch", "--parsable", f"--chdir={self.folder}", *size, script, *run).strip()

    def job(self, number: str) -> dict[str, str]:
        """Returns the fields of ``scontrol show job``."""
        return dict(re.findall(r"(\S+?)=(\S*)", self.call("scontrol", "show", "job", number)))

    def wait_for(self, number: str, *states: str) -> dict[str, str]:
        """Waits until a job has one of these states; returns its fields."""
        ends = time.monotonic() + PATIENCE
        while (job := self.job(number))["JobState"] not in states:
            if time.monotonic() > ends:
                raise TimeoutError(f"job {number} is {job['JobState']}, not {' or '.join(states)}.")
            time.sleep(1)
        return job

    def output(self, number: str) -> str:
        """Returns what a job has printed."""
        file = self.folder / f"slurm-{number}.out"
        return file.read_text(errors="replace") if file.is_file() else ""


def unpack(folder: Path) -> None:
    """Unpacks Debian's packages, with the libraries that are missing here, into a folder, and finds them there."""
    simulated = ["apt-get", "install", "--simulate", "--no-install-recommends", *PACKAGES]
    plan = subprocess.run(simulated, check=True, capture_output=True, text=True).stdout
    missing = [line.split()[1] for line in plan.splitlines() if line.startswith("Inst ")]
    if not missing:
        raise RuntimeError("Slurm is installed here; this starts one of its own, where it is not.")
    print("$ apt-get download", *missing, flush=True)
    subprocess.run(["apt-get", "download", *missing], check=True, cwd=folder, capture_output=True)
    for package in sorted(folder.glob("*.deb")):
        print(" ", package.name)
        subprocess.run(["dpkg", "-x", str(package), str(folder / "root")], check=True)
    root = folder / "root"
    paths = [root / "usr/bin", root / "usr/sbin", Path(sys.executable).parent, os.environ["PATH"]]
    os.environ["PATH"] = ":".join(map(str, paths))
    os.environ["LD_LIBRARY_PATH"] = f"{root / LIBRARIES}:{root / LIBRARIES / 'slurm-wlm'}"
    os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
    os.environ["GRPC_DNS_RESOLVER"] = "native"  # gRPC's own asks a name server, and waits minutes where there is none


def configure(folder: Path, nodes: list[Host]) -> None:
    """Writes Slurm's configuration and Munge's key."""
    settings = {
        "ClusterName": "one-machine",
        "SlurmctldHost": f"{nodes[0].name}({nodes[0].address})",
        "SlurmUser": "root",
        "AuthInfo": f"socket={folder}/munge.socket",
        "PluginDir": str(folder / "root" / LIBRARIES / "slurm-wlm"),
        "StateSaveLocation": f"{folder}/state",
        "SlurmdSpoolDir": f"{folder}/spool-%n",
        "SlurmctldPidFile": f"{folder}/slurmctld.pid",
        "SlurmdPidFile": f"{folder}/slurmd-%n.pid",
        "SlurmctldLogFile": f"{folder}/slurmctld.log",
        "SlurmdLogFile": f"{folder}/slurmd-%n.log",
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "MpiDefault": "none",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_CPU",
        "SlurmdParameters": "config_overrides",  # each node has one of the CPUs
        "MinJobAge": "86400",
        "FirstJobId": str(1000 + os.getpid()),  # a job names folders of /tmp by its number
        "Epilog": f"{folder}/epilog",
    }
    lines = [f"{name}={value}" for name, value in settings.items()]
    lines += [f"NodeName={node.name} NodeAddr={node.address} CPUs=1 State=UNKNOWN" for node in nodes]
    lines.append("PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP")
    (folder / "slurm.conf").write_text("\n".join(lines) + "\n")
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")  # else slurmd looks for one, and uses none
    # As proctrack/cgroup would: ends what a job left behind. Each node sees its own processes alone.
    (folder / "epilog").write_text(f"#!/bin/sh\n{Path(sys.executable).parent}/ray stop --force\n")
    (folder / "epilog").chmod(0o755)
    (folder / "state").mkdir()
    subprocess.run(["mungekey", "--create", f"--keyfile={folder}/munge.key"], check=True)


@contextlib.contextmanager
def slurm(folder: Path) -> Iterator[Slurm]:
    """Slurm with two nodes that have one CPU each. It ends with its hosts.

    Each node has process numbers of its own, because ``ray symmetric-run`` ends every Ray that it can see.
    """
    unpack(folder)
    with hosts(2) as nodes:
        configure(folder, nodes)
        names = {"socket": "munge.socket", "key-file": "munge.key", "pid-file": "munge.pid", "log-file": "munge.log",
                 "seed-file": "munge.seed"}  # fmt: skip
        munge = [f"--{option}={folder}/{name}" for option, name in names.items()]
        nodes[0].start("munged", "--foreground", "--force", *munge)
        nodes[0].start("slurmctld-wlm", "-D")
        stepd = str(folder / "root/usr/sbin/slurmstepd-wlm")
        for node in nodes:
            daemon = ["slurmd-wlm", "-D", "-N", node.name, "-d", stepd]
            node.start("unshare", "--pid", "--fork", "--mount-proc", "sh", "-c", '"$@" & wait', "sh", *daemon)
        service = Slurm(nodes, folder)
        ends = time.monotonic() + PATIENCE
        while (folder / "munge.socket").exists() is False or "idle" not in service.call("sinfo", "--noheader"):
            if time.monotonic() > ends:
                raise TimeoutError("Slurm does not start.")
            time.sleep(1)
        print("$ sinfo", service.call("sinfo"), sep="\n", flush=True)
        yield service


def configuration(folder: Path, name: str) -> Path:
    """Writes the run's configuration: PPO on the scripted simulator, two rollout workers on one node or two."""
    file = folder / f"{name}.yaml"
    simulator = {"name": "scripted", "total_num_envs": ENVS, "match_actions": True, "step_seconds": STEP_SECONDS}
    file.write_text(to_yaml(load_config({
        "env": {"train": simulator, "eval": {"step_seconds": 0.0}},
        "policy": {"name": "mlp", "hidden_sizes": [8]},
        "algorithm": {"name": "ppo", "update_epochs": 2, "num_minibatches": 4},
        "learner": {"device": "cpu", "num_threads": 1},
        "rollout": {"num_workers": 2, "horizon": HORIZON},
        "cluster": {"cpus_per_worker": 0.5},
        "evaluation": {"episodes": 8},
        "runner": {
            "total_timesteps": ITERATIONS * HORIZON * ENVS,
            "save_interval": 30,
            "auto_resume": True,
            "logger": {"log_path": str(folder / "runs"), "experiment_name": name, "logger_backends": []},
        },
    })))  # fmt: skip
    return file


@dataclass
class Scenario:
    """Course of a run: its jobs, and a message for each check that failed."""

    name: str
    jobs: list[dict[str, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def time_limit(service: Slurm, config: Path) -> list[dict[str, str]]:
    """Submits the same command until the run is complete; each job begins when the one before has ended."""
    jobs = []
    while not jobs or (jobs[-1]["ExitCode"] != "0:0" and len(jobs) < 5):
        options = ["--nodes=1", f"--time={MINUTES}", f"--signal=B:USR1@{NOTICE}", "--dependency=singleton"]
        number = service.submit(*options, run=(str(config),))
        jobs.append(service.wait_for(number, *ENDED))
    return jobs


def signal_and_resume(service: Slurm, config: Path) -> list[dict[str, str]]:
    """Signals the first job, which has both nodes, in its course, and resumes the run by name."""
    first = service.submit("--nodes=2", run=(str(config),))
    run = written_run(service, config, rows=10)
    print("$ scancel --batch --signal=USR1", first, flush=True)
    service.call("scancel", "--batch", "--signal=USR1", first)
    jobs = [service.wait_for(first, *ENDED)]
    second = service.submit("--nodes=2", run=("--resume", str(run)))
    return [*jobs, service.wait_for(second, *ENDED)]


def requeue(service: Slurm, config: Path) -> list[dict[str, str]]:
    """Requeues a job in its course; Slurm ends its processes and starts it again under the same number."""
    number = service.submit("--nodes=1", "--requeue", run=(str(config),))
    written_run(service, config, rows=40)  # a checkpoint is written after 30
    print("$ scontrol requeue", number, flush=True)
    service.call("scontrol", "requeue", number)
    service.wait_for(number, "PENDING", "CONFIGURING")
    service.call("scontrol", "update", f"jobid={number}", "starttime=now")  # Slurm waits two minutes otherwise
    return [service.wait_for(number, *ENDED)]


def written_run(service: Slurm, config: Path, rows: int) -> Path:
    """Waits until a run of this configuration has so many rows; returns its directory."""
    ends = time.monotonic() + PATIENCE
    while time.monotonic() < ends:
        for file in (service.folder / "runs" / config.stem).glob("*/metrics.jsonl"):
            if len(file.read_text().splitlines()) >= rows:
                return file.parent
        time.sleep(1)
    raise TimeoutError(f"the run of {config} does not begin.")


def check(service: Slurm, scenario: Scenario) -> None:
    """Checks that the scenario left one run directory, that is complete and whole."""
    runs = sorted((service.folder / "runs" / scenario.name).glob("*/run.json"))
    if len(runs) != 1:
        scenario.problems.append(f"{len(runs)} run directories instead of one")
        return
    path = runs[0].parent
    contents = RunDirectory.existing(path).read_json()
    if contents["status"] != "completed":
        scenario.problems.append(f"the run is {contents['status']}")
    try:
        assert_whole(path, ITERATIONS)
    except AssertionError as error:
        scenario.problems.append(str(error) or "a row is missing, there twice, or differs from the ledger")
    last = list(read_jsonl(path / "metrics.jsonl"))[-1]
    print(f"{path.name}: {contents['status']} after iteration {last['iteration']} ({last['total_timesteps']:,} steps), "
          f"resumed after iterations {contents.get('resumed_after', [])}\n", flush=True)  # fmt: skip


def show(scenarios: list[Scenario]) -> None:
    """Prints the jobs as a table."""
    table = Table("scenario", "job", "state", "exit code", "time", "restarts", "check")
    for scenario in scenarios:
        for job in scenario.jobs:
            outcome = "; ".join(scenario.problems) or "whole"
            table.add_row(scenario.name, job["JobId"], job["JobState"], job["ExitCode"], job["RunTime"],
                          job["Restarts"], outcome)  # fmt: skip
    Console(width=110).print(table)


def main() -> int:
    """Plays the scenarios; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--keep", type=Path, help="folder that receives the runs, the output of the jobs and all logs")
    parser.add_argument("--only", nargs="*", default=[], help="scenarios to play, such as time_limit")
    arguments = parser.parse_args()
    if why := obstacle():
        sys.exit(f"hosts cannot be made here: {why}")
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that the hosts are removed
    scenarios = []
    with tempfile.TemporaryDirectory(prefix="slurm-", dir="/tmp") as folder:
        try:
            with slurm(Path(folder)) as service:
                for play in (time_limit, signal_and_resume, requeue):
                    if arguments.only and play.__name__ not in arguments.only:
                        continue
                    scenario = Scenario(play.__name__)
                    scenarios.append(scenario)
                    scenario.jobs = play(service, configuration(Path(folder), scenario.name))
                    check(service, scenario)
        finally:
            if arguments.keep:
                ignored = shutil.ignore_patterns("*.deb", "root", "*.socket*", "munge.key", "spool-*")
                shutil.copytree(folder, arguments.keep, ignore=ignored, dirs_exist_ok=True)
    show(scenarios)
    return int(any(scenario.problems for scenario in scenarios))


if __name__ == "__main__":
    sys.exit(main())
