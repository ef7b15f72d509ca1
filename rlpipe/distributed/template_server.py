"""Program of the process template: loads libraries once and forks worker processes, which share them.

Requests of ``worker_entry`` come over a Unix socket, names of modules to load over stdin, one a line. The end of stdin,
which is that of the driver, ends the template and all that it has forked.
"""

from __future__ import annotations

import gc
import importlib
import json
import operator
import os
import runpy
import selectors
import signal
import socket
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from rlpipe.distributed.worker_entry import end_with

_REQUEST_SECONDS = 10.0
"""Limit for the transfer of a request."""


class TemplateServer:
    """Answers requests until stdin ends."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._unread = b""
        self._loaded = True  # until something could not be loaded

    def serve(self) -> Callable[[], None] | None:
        """Serves until stdin ends.

        Returns:
            In a forked process: what it has to do. In the template: None.
        """
        with selectors.DefaultSelector() as selector:
            selector.register(0, selectors.EVENT_READ)
            selector.register(self._listener, selectors.EVENT_READ)
            while True:
                ready = {key.fd for key, _ in selector.select()}
                if 0 in ready:  # first, because workers need what is to be loaded
                    if not self._read_names():
                        return None
                elif (task := self._answer()) is not None:
                    return task

    def _read_names(self) -> bool:
        """Loads what stdin names; returns False at its end."""
        received = os.read(0, 65536)
        *lines, self._unread = (self._unread + received).split(b"\n")
        for line in lines:
            try:
                _load(line.decode())
            except (Exception, SystemExit):  # a worker that loads for itself reports what is wrong
                self._loaded = False
        gc.freeze()  # else each child would copy all objects when it first collects garbage
        return bool(received)

    def _answer(self) -> Callable[[], None] | None:
        """Forks a process for one request; returns what it has to do, and None in the template."""
        with suppress(OSError, ValueError):
            connection, _ = self._listener.accept()
            with connection:
                if _user_of(connection) != os.getuid():
                    return None
                connection.settimeout(_REQUEST_SECONDS)
                request, files = _received(connection)
                forkable = self._loaded and _threads() == 1
                template = os.getpid()
                if not forkable or os.fork():
                    connection.sendall(b"1" if forkable else b"0")
                    for file in files:
                        os.close(file)
                    return None
            end_with(template)
            return lambda: _become_worker(request, files)
        return None


def _user_of(connection: socket.socket) -> int:
    """Returns the id of the user whose process is at the other end."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])


def _received(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Returns a request, and the descriptors of stdin, stdout and stderr that came with it."""
    size, files, _, _ = socket.recv_fds(connection, 8, 3)
    text = b""
    while len(text) < int.from_bytes(size, "big") and (more := connection.recv(65536)):
        text += more
    return json.loads(text), files


def _load(name: str) -> None:
    """Imports ``module``, or imports it and calls a function of it for ``module:name.of.function``."""
    module_name, _, path = name.partition(":")
    module = importlib.import_module(module_name)
    if path:
        operator.attrgetter(path)(module)()


def _threads() -> int:
    """Returns the number of threads; a process with several cannot be forked safely."""
    return len(os.listdir("/proc/self/task"))


def _become_worker(request: dict[str, Any], files: list[int]) -> None:
    """Takes over files, folder and environment of the process that asked, and runs its command."""
    os.setpgid(0, 0)  # Ray ends whole groups of processes
    for target, file in enumerate(files):
        os.dup2(file, target)
        os.close(file)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # else all processes would draw the same numbers
    sys.argv = request["command"]
    sys.path.insert(0, str(Path(sys.argv[0]).parent))
    runpy.run_path(sys.argv[0], run_name="__main__")


def main() -> None:
    """Serves; a forked process leaves the loop first, so that it holds none of its sockets."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel removes ended processes; nobody waits for them
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the driver
    with socket.socket(fileno=int(sys.argv[1])) as listener:
        task = TemplateServer(listener).serve()
    if task is not None:
        task()


if __name__ == "__main__":
    main()
