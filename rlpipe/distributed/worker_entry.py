"""Program that a Ray of this run's own starts for each of its worker processes and agents, in the place of Ray's.

It has the process template fork the worker, which then finds its libraries loaded. A process that must choose its
environment before libraries load, or that finds no template, becomes Ray's worker program itself. Only the standard
library is imported: this runs before every worker.

Ray's processes notice that their node is gone by a connection that closes. One that has no connection yet would look
for the node for up to a minute, so the kernel ends each of them together with the process that started it.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys

SOCKET, PROGRAM, FRESH = "RLPIPE_TEMPLATE_SOCKET", "RLPIPE_WORKER_PROGRAM", "RLPIPE_FRESH_PROCESS"
"""Environment variables: socket of the template, Ray's worker program, and whether a process must load for itself."""
_NODE = "RAY_RAYLET_PID"
"""Environment variable of Ray: process of the node, which started this one and may have ended since."""
AGENT = "agent"
"""First argument before the command of an agent."""

_PATIENCE_SECONDS = 40.0
"""Limit for the template's answer, which comes once it has loaded everything; Ray itself waits for 60 s."""
_AGENT_NICENESS = 10
"""Agents load behind the simulators; no part of a run's start waits for them."""
_SIGNAL_AT_END_OF_PARENT = 1
"""Linux's ``PR_SET_PDEATHSIG``, which the program that a process becomes inherits."""


def forked(name: str, command: list[str]) -> bool:
    """Has the template fork a process with the files, folder and environment of this one; True if it has."""
    request = json.dumps({"command": command, "folder": os.getcwd(), "environment": dict(os.environ)}).encode()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_PATIENCE_SECONDS)
            connection.connect(f"\0{name}")
            socket.send_fds(connection, [len(request).to_bytes(8, "big")], [0, 1, 2])
            connection.sendall(request)
            return connection.recv(1) == b"1"
    except OSError:
        return False


def end_with(parent: int) -> None:
    """Has the kernel end this process together with its parent, whose id is given in case it has just ended.

    Only Linux can; elsewhere this does nothing.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SIGNAL_AT_END_OF_PARENT, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def main() -> None:
    """Forks the worker or becomes it, or becomes the agent."""
    node = int(os.environ.get(_NODE) or os.getppid())
    if sys.argv[1:2] == [AGENT]:
        command = sys.argv[2:]
        os.nice(_AGENT_NICENESS)
    else:
        command, name = [os.environ[PROGRAM], *sys.argv[1:]], os.environ.get(SOCKET, "")
        if name and not os.environ.get(FRESH) and forked(name, command):
            return
    end_with(node)
    os.execv(sys.executable, [sys.executable, *command])


if __name__ == "__main__":
    main()
