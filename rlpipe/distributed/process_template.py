"""Process template: loads what rollout workers need while Ray starts; they are forked from it.

It exists only beside a Ray that the run starts for itself, and all three end together. Loading torch and a simulator
takes seconds of processor time, so doing it once, early, shortens the start of a run and the replacement of workers,
and saves memory.
"""

from __future__ import annotations

import atexit
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from rlpipe.config.schema import Config
from rlpipe.config.simulators import simulator_class
from rlpipe.envs.base import Simulator
from rlpipe.learning.threads import passive_waiting
from rlpipe.plugins import python_process

WORKER_ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
"""Environment of rollout workers: simulators on the CPU must not see a GPU."""
_WORKER_MODULE = "rlpipe.collection.worker"
"""Without Ray: it reads its environment variables when it is imported, and those of a worker come from its node."""

_WAITING_REQUESTS = 64


class ProcessTemplate:
    """Handle of the template's process.

    Attributes:
        socket: name of the socket at which ``worker_entry`` asks for processes. It is in Linux's abstract namespace,
            so it leaves no file; the template answers only processes of its own user.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Starts the process, which begins to load what every rollout worker needs under these variables."""
        self.socket = f"rlpipe-{secrets.token_hex(16)}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(f"\0{self.socket}")
            listener.listen(_WAITING_REQUESTS)  # here, so that requests can wait from now on
            command, inherited = python_process("-m", "rlpipe.distributed.template_server", str(listener.fileno()))
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**inherited, **passive_waiting(), **environment},  # learners are forked from it too
                pass_fds=[listener.fileno()],
                start_new_session=True,  # a signal to the terminal's processes is for the driver
            )
        atexit.register(self.end)
        self.load(_WORKER_MODULE)

    def load(self, *names: str) -> None:
        """Has it import ``module``, or call ``module:name.of.function``; workers that are asked for later have it."""
        assert self._process.stdin is not None
        with suppress(OSError):  # without a template workers load for themselves
            self._process.stdin.write("".join(f"{name}\n" for name in names).encode())
            self._process.stdin.flush()

    def end(self) -> None:
        """Ends it and the processes it has forked. The second call does nothing."""
        atexit.unregister(self.end)
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        self._process.kill()
        self._process.wait()


_early: list[ProcessTemplate] = []
"""Template that was started before the configuration was read, until a run takes it."""


def start_early(address: str | None) -> None:
    """Starts a template for the next run of this process, unless that will join a cluster."""
    if not joins_cluster(address) and not _early:
        _early.append(ProcessTemplate(WORKER_ENVIRONMENT))


def template_for(config: Config, address: str | None) -> ProcessTemplate | None:
    """Returns a template for a run; None if the run joins a cluster.

    It loads the simulator only if that says how: another one may do anything when it is imported.
    """
    if joins_cluster(address):
        return None
    template = _early.pop() if _early else ProcessTemplate(WORKER_ENVIRONMENT)
    simulator = simulator_class(replace(config.env.train, tasks=[]), "env.train")  # which the tasks share
    derived = simulator.__mro__[: simulator.__mro__.index(Simulator)]
    if any("load" in vars(cls) for cls in derived):
        template.load(f"{simulator.__module__}:{simulator.__qualname__}.load")
    return template


def joins_cluster(address: str | None) -> bool:
    """True if a run joins a cluster, whose nodes may differ from this machine, instead of starting its own."""
    ray = sys.modules.get("ray")
    return bool(address or os.environ.get("RAY_ADDRESS")) or (ray is not None and ray.is_initialized())
