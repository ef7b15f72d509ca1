"""``ray start`` without what a cluster serves beside runs and jobs.

    python -m tests.helpers.lean_head start --head --block ...

The dashboard loads what jobs need, two of its dozen modules, each of which is a process. With
``--include-dashboard=false``, for which Ray starts a part of it, there is none. Actors start through ``worker_entry``
if its variables are in the environment.

With ``--for-actors`` the node serves nothing but actors: it has no agents, and a template of its own from which actors
are forked. One that joins waits for its head, so that both load at once.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from typing import Any

from ray._private import services
from ray._private.node import Node
from ray.scripts.scripts import main

from rlpipe.distributed import worker_entry

_start_process, _start_raylet = services.start_ray_process, Node.start_raylet


def _with_jobs_alone(command: list[str], process_type: str, *args: Any, **options: Any) -> Any:
    if process_type == "dashboard":
        command = [*command, "--modules-to-load=JobHead,NodeHead"]
    return _start_process(command, process_type, *args, **options)


def _with_entry(node: Node, *args: Any, **options: Any) -> None:
    node._ray_params.worker_path = worker_entry.__file__
    _start_raylet(node, *args, **options)


def _without_dashboard(node: Node, **_: Any) -> None:
    node._webui_url = ""


def _wait_for_head() -> None:
    """Waits until somebody listens where ``--address`` says."""
    address = next((option.partition("=")[2] for option in sys.argv if option.startswith("--address=")), None)
    while address is not None:
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)


if __name__ == "__main__":
    for unused in ("start_monitor", "start_log_monitor", "start_ray_client_server"):
        setattr(Node, unused, lambda *_, **__: None)
    if worker_entry.PROGRAM in os.environ:
        Node.start_raylet = _with_entry
    if "--include-dashboard=false" in sys.argv:
        Node.start_api_server = _without_dashboard
    services.start_ray_process = _with_jobs_alone
    with contextlib.ExitStack() as left:
        if "--for-actors" in sys.argv:
            from tests.helpers.cluster import lean_nodes  # which loads much that a head of jobs does without

            sys.argv.remove("--for-actors")
            left.enter_context(lean_nodes())
            _wait_for_head()
        main()
