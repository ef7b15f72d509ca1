"""A simulated cluster whose nodes can be killed and drained, and runs on it. A node is a raylet of its own, with its
processes, on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ray._private import services
from ray._private.ray_constants import PROCESS_TYPE_DASHBOARD_AGENT, PROCESS_TYPE_RUNTIME_ENV_AGENT

from rlpipe.config.schema import Config
from rlpipe.config.tree import to_yaml
from rlpipe.distributed import worker_entry
from rlpipe.distributed.cluster import OWN_TOKEN as TOKEN  # runs of a test process may start a Ray before this one
from rlpipe.distributed.own_ray import lean_node, start_ray, worker_program
from rlpipe.distributed.process_template import WORKER_ENVIRONMENT, ProcessTemplate
from rlpipe.run.directory import read_jsonl
from tests.helpers import REPOSITORY

RECOMMENDED = {  # docs/cluster.md
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "3000",
    "RAY_health_check_failure_threshold": "3",
}
PATIENT = {  # a busy machine is no reason for a node to give up
    "RAY_gcs_server_port_wait_time_s": "600",
    "RAY_raylet_start_wait_time_s": "600",
    "RAY_agent_register_timeout_ms": "600000",
    "RAY_worker_niceness": "0",  # Ray's 15 would let workers starve beside the other test process
    "RAY_AUTH_TOKEN": TOKEN,  # without one, a head ends at once, and whoever starts it waits for it in vain
}
LEAN = {"RAY_prestart_worker_first_driver": "false", "RAY_enable_worker_prestart": "false"}
"""Without an idle worker process on every node."""


_templates: list[ProcessTemplate] = []
"""Template of the Ray that tests of this process share."""


def forking_from(template: ProcessTemplate) -> dict[str, str]:
    """Returns the environment in which Ray starts nodes whose actors are forked from the template."""
    return {worker_entry.SOCKET: template.socket, worker_entry.PROGRAM: worker_program()}


def start_shared_ray() -> None:
    """Starts a Ray with two CPUs in this process, unless there is one.

    Its actors are forked from a process that has loaded torch, as those of a run that starts Ray for itself are: every
    run starts in a fraction of the time.
    """
    import ray

    if ray.is_initialized():
        return
    end_shared_ray()
    for name, value in PATIENT.items():
        os.environ.setdefault(name, value)
    _templates.append(template := ProcessTemplate(WORKER_ENVIRONMENT))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in forking_from(template).items():
            patch.setenv(name, value)
        options = {"num_cpus": 2, "object_store_memory": 150_000_000, "log_to_driver": False, "namespace": "rlpipe"}
        start_ray(options, with_entry=True)


def end_shared_ray() -> None:
    """Ends the Ray of this process and the process its actors were forked from."""
    import ray

    ray.shutdown()
    while _templates:
        _templates.pop().end()


_BUILD = "_build_python_executable_command_memory_profileable"
"""Ray's function for the beginning of an agent's command."""


def _without_agents(build: Callable[..., list[str]]) -> Callable[..., list[str]]:
    """Returns that function with a process that sleeps for each of a node's two agents: the node ends with them."""

    def command(component: str, *args: Any, **options: Any) -> list[str]:
        built = build(component, *args, **options)
        if component not in (PROCESS_TYPE_DASHBOARD_AGENT, PROCESS_TYPE_RUNTIME_ENV_AGENT):
            return built
        return [*built[: built.index(worker_entry.AGENT) + 1], "-S", "-c", "import signal; signal.pause()"]

    return command


@contextlib.contextmanager
def lean_nodes() -> Iterator[None]:
    """Nodes that start meanwhile have what a run needs, and fork their actors from a process that has loaded torch.

    It is the way of the Ray that a run starts for itself. On the nodes of a real cluster every actor loads torch anew.
    No agent reports what a node does, which only dashboards read, or makes environments, which no actor of these runs
    asks for: a process that sleeps takes its place.
    """
    template = ProcessTemplate(WORKER_ENVIRONMENT)
    try:
        with pytest.MonkeyPatch.context() as patch, lean_node(with_entry=True):
            patch.setattr(services, _BUILD, _without_agents(getattr(services, _BUILD)))
            for name, value in forking_from(template).items():
                patch.setenv(name, value)
            yield
    finally:
        template.end()


class SimulatedCluster:
    """A head without CPUs, and nodes that come and go."""

    def __init__(self, nodes: int, cpus: float) -> None:
        """Starts it; its settings are in the environment already."""
        from ray.cluster_utils import Cluster

        self._cpus = cpus
        self._cluster = Cluster()
        self._add(num_cpus=0, include_dashboard=False)  # the first is the head
        self.address = self._cluster.address
        for _ in range(nodes):
            self.add()
        self._cluster.wait_for_nodes(600)

    def add(self) -> None:
        """Adds a node, without waiting until it has joined."""
        self._add(num_cpus=self._cpus)

    def _add(self, **options: Any) -> None:
        self._cluster.add_node(wait=False, object_store_memory=100_000_000, **options)

    def has(self, node: str) -> bool:
        return any(one.node_id == node for one in self._cluster.worker_nodes)

    def kill(self, node: str) -> None:
        """Kills a node, as when a machine is lost."""
        (one,) = (one for one in self._cluster.worker_nodes if one.node_id == node)
        self._cluster.remove_node(one, allow_graceful=False)

    def drain(self, node: str, seconds: int) -> None:
        """Announces that a node will be taken away after so many seconds, as a cloud does."""
        from ray._raylet import GcsClient
        from ray.core.generated import autoscaler_pb2

        taken = autoscaler_pb2.DRAIN_NODE_REASON_PREEMPTION
        deadline = int(1000 * (time.time() + seconds))
        accepted, why = GcsClient(address=self.address).drain_node(node, taken, "taken back", deadline)
        assert accepted, why

    def close(self) -> None:
        self._cluster.shutdown()


@contextlib.contextmanager
def simulated(nodes: int, cpus: float, *, lean: bool = False, **variables: str) -> Iterator[SimulatedCluster]:
    """A cluster with the health settings that the docs recommend, and its environment; or one of ``lean_nodes``."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**RECOMMENDED, **PATIENT, **LEAN, **variables}.items():
            patch.setenv(name, value)
        with lean_nodes() if lean else contextlib.nullcontext():
            cluster = SimulatedCluster(nodes, cpus)
            try:
                yield cluster
            finally:
                cluster.close()


class Run:
    """A run in a process of its own, which can be killed and started again."""

    def __init__(self, config: Config, folder: Path, address: str, *options: str) -> None:
        self._config = folder / "config.yaml"
        self._config.write_text(to_yaml(config))
        self._folder = Path(config.runner.logger.log_path)
        self._command = [sys.executable, "-m", "rlpipe", "train", str(self._config), "--ray-address", address, *options]
        self.output = folder / "output.txt"
        self.start()

    def start(self) -> None:
        with self.output.open("ab") as out:
            self.process = subprocess.Popen(
                self._command, stdout=out, stderr=out, cwd=REPOSITORY,
                env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            )  # fmt: skip

    @property
    def directory(self) -> Path | None:
        found = sorted(self._folder.glob("*/*/run.json"))
        return found[-1].parent if found else None

    def rows(self, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
        run = self.directory
        return list(read_jsonl(run / name)) if run is not None and (run / name).is_file() else []

    def events(self, *kinds: str) -> list[dict[str, Any]]:
        return [event for event in self.rows("events.jsonl") if event["kind"] in kinds]

    def parts(self) -> dict[str, str]:
        """Returns the node of each actor by ``run.json``; workers may have moved since."""
        assert self.directory is not None
        found = json.loads((self.directory / "run.json").read_text())["cluster"]["parts"]
        return {name: part["node"] for name, part in found.items()}

    def until(self, what: Callable[[], Any], seconds: float = 600.0) -> Any:
        """Waits until the function returns something true, and returns it; the run must continue until then."""
        ends = time.monotonic() + seconds
        while not (found := what()):
            assert self.process.poll() is None, self.output.read_text()[-3000:]
            assert time.monotonic() < ends, self.output.read_text()[-3000:]
            time.sleep(0.05)
        return found


def program_outside_ray(source: str) -> subprocess.CompletedProcess[str]:
    """Runs a Python program in a process of its own that joins no Ray and may start one."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    with tempfile.TemporaryDirectory(prefix="rp-") as short:
        return subprocess.run(
            [sys.executable, "-c", source], capture_output=True, text=True, timeout=600, check=False,
            env={**own, "RAY_TMPDIR": short, "PYTHONPATH": str(REPOSITORY)},
        )  # fmt: skip
