"""Program that a Ray of this run's own starts for each of its worker processes, in the place of Ray's.

It has the process template fork the worker, which then finds its libraries loaded. A process that must choose its
environment before libraries load, or that finds no template, becomes Ray's worker program itself. Only the standard
library is imported: this runs before every worker.
"""

from __future__ import annotations

import json
import os
import socket
import sys

SOCKET, PROGRAM, FRESH = "RLPIPE_TEMPLATE_SOCKET", "RLPIPE_WORKER_PROGRAM", "RLPIPE_FRESH_PROCESS"
"""Environment variables: socket of the template, Ray's worker program, and whether a process must load for itself."""

_PATIENCE_SECONDS = 40.0
"""Limit for the template's answer, which comes once it has loaded everything; Ray itself waits for 60 s."""


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


def main() -> None:
    """Forks the worker or becomes it."""
    command, name = [os.environ[PROGRAM], *sys.argv[1:]], os.environ.get(SOCKET, "")
    if not name or os.environ.get(FRESH) or not forked(name, command):
        os.execv(sys.executable, [sys.executable, *command])


if __name__ == "__main__":
    main()
