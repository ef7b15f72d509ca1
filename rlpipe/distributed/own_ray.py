"""Ray that a run starts for itself: only the processes that a run needs, and nothing waits for those it does not need.

``ray.init`` also starts what serves other programs: the server of the dashboard, the autoscaler's monitor, and a
monitor that prints logs at the driver. Then the node waits until its two agents, which report metrics and set up
runtime environments, have loaded and chosen their ports. Together they take longer than the simulators to load. There
is no public way to leave them out, so methods of Ray's ``Node`` are replaced while it starts. With a Ray that has no
such methods, everything starts as usual. The agents start through ``worker_entry``.
"""

from __future__ import annotations

import importlib
import itertools
import random
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import ray
from ray._private import services
from ray._private.node import Node

from rlpipe.distributed import worker_entry

_UNUSED = ("start_monitor", "start_log_monitor")
_PORTS = {
    "dashboard_agent_listen_port": "DASHBOARD_AGENT_LISTEN_PORT_NAME",
    "metrics_agent_port": "METRICS_AGENT_PORT_NAME",
    "metrics_export_port": "METRICS_EXPORT_PORT_NAME",
    "runtime_env_agent_port": "RUNTIME_ENV_AGENT_PORT_NAME",
}
"""Ports of the agents: name in Ray's parameters, and constant with the name of the file where the node looks."""
_WORKER_PORTS_END = 20_000
"""Ray's default for the ports of workers is 10,002 to 19,999."""


def start_ray(options: dict[str, Any], *, with_entry: bool) -> Path:
    """Starts Ray on this machine and connects to it.

    Args:
        options: of ``ray.init``.
        with_entry: True to start worker processes with ``worker_entry``; its variables are in the environment.
    Returns:
        Folder of the session.
    """
    with lean_node(with_entry=with_entry):
        context: Any = ray.init(address="local", include_dashboard=False, **options)
    return Path(context.address_info["session_dir"])


def worker_program() -> str:
    """Returns the path of Ray's program for worker processes, without importing it."""
    return str(next(iter(ray.__path__))) + "/_private/workers/default_worker.py"


@contextmanager
def lean_node(*, with_entry: bool) -> Iterator[None]:
    """Replaces methods of Ray's ``Node`` for as long as it lasts; ``with_entry`` as for ``start_ray``."""
    with ExitStack() as stack:
        for name in _UNUSED:
            _replace(stack, name, lambda _: lambda *_args, **_options: None)
        _replace(stack, "start_api_server", lambda _: _without_server)
        _replace(stack, "start_raylet", lambda start: _starting_at_once(start, with_entry))
        _replace(stack, "_build_python_executable_command_memory_profileable", _through_entry, services)
        yield


def _replace(stack: ExitStack, name: str, wrap: Callable[[Any], Any], owner: Any = Node) -> None:
    original = getattr(owner, name, None)
    if original is not None:
        setattr(owner, name, wrap(original))
        stack.callback(setattr, owner, name, original)


def _without_server(node: Any, **_: Any) -> None:
    node._webui_url = ""


def _starting_at_once(start: Callable[..., None], with_entry: bool) -> Callable[..., None]:
    """Returns ``Node.start_raylet`` with ports of the agents that are known before these run."""

    def start_raylet(node: Any, *args: Any, **options: Any) -> None:
        if with_entry:
            node._ray_params.worker_path = worker_entry.__file__
        with suppress(ImportError, AttributeError):
            _choose_ports(node)
        start(node, *args, **options)

    return start_raylet


def _through_entry(build: Callable[..., list[str]]) -> Callable[..., list[str]]:
    """Returns Ray's function for the beginning of an agent's command, with ``worker_entry`` before it."""

    def command(*args: Any, **options: Any) -> list[str]:
        python, *arguments = build(*args, **options)
        return [python, worker_entry.__file__, worker_entry.AGENT, *arguments]

    return command


def _choose_ports(node: Any) -> None:
    raylet: Any = importlib.import_module("ray._raylet")
    for (parameter, constant), port in zip(_PORTS.items(), free_ports(len(_PORTS)), strict=True):
        setattr(node._ray_params, parameter, port)
        raylet.persist_port(node._session_dir, node._node_id, getattr(raylet, constant), port)


def free_ports(count: int) -> list[int]:
    """Draws different ports that are free, and that no connection of another process takes before they are used.

    An agent opens its port a second later, and its node ends where that fails. So they lie below those which the kernel
    gives to outgoing connections, and above those of Ray's workers, where there are any between.
    """
    candidates = list(range(_WORKER_PORTS_END, _first_outgoing_port()))
    random.SystemRandom().shuffle(candidates)  # a seeded generator would draw the same in runs that start together
    ports: list[int] = []
    with ExitStack() as stack:
        for port in itertools.chain(candidates, itertools.repeat(0)):  # the kernel chooses for 0
            if len(ports) == count:
                break
            held = stack.enter_context(socket.socket())  # all are held until the last is chosen, so they differ
            with suppress(OSError):
                held.bind(("", port))
                ports.append(held.getsockname()[1])
    return ports


def _first_outgoing_port() -> int:
    """First port that the kernel gives to outgoing connections; 0 if that is unknown."""
    with suppress(OSError, ValueError):
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    return 0
