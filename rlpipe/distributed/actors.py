"""One part of a run in a process of its own, and what can be found out about it once it is gone."""

from __future__ import annotations

import faulthandler
import importlib
import os
import platform
import re
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.exceptions import GetTimeoutError, OutOfMemoryError, RayActorError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rlpipe.errors import ConfigError, Fault
from rlpipe.secrets import redacted

_SHOWN_LINES = 12
_ANSWERS = 3.0
"""Seconds that a question beside the work may take."""
_CRASH = re.compile(r"Fatal Python error: ([^\n]+)|\*\*\* (SIG\w+) received")
_DUMP = re.compile(r"Fatal Python error|Timeout \(")
_THREAD = re.compile(r"(Thread|Current thread) 0x")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_EXIT = re.compile(r"exit code (-?\d+)")
_MEMORY = (
    "If memory ran out: fewer environments for each worker, or fewer workers on the node (cluster.cpus_per_worker)."
)
_ADVICE = {
    "memory": _MEMORY,
    "killed": f"Somebody or the kernel ended it. {_MEMORY}",
    "crashed": "A native library crashed, most often the simulator's or a driver's: see the lines above.",
    "start": "The lines above are what Ray says of it.",
    "place": "Are there nodes that may hold it? Otherwise raise cluster.start_timeout, or go on later with --resume.",
    "node": "Machines that may be taken away cost least with a small runner.save_interval.",
    "hung": "The lines above show where it was. If it only needs longer, raise {key}.",
}


@dataclass(frozen=True)
class Location:
    """Where a process runs, and its clock when it was asked."""

    host: str
    node: str
    pid: int
    actor: str
    log: str
    clock: float


class Process:
    """The actor around one part: a rollout worker, an inference server, the learner or the metric logger."""

    def __init__(self, path: str, environment: dict[str, str]) -> None:
        faulthandler.enable()  # a crash in a native library leaves its traceback in the log
        os.environ.update(environment)
        self._path = path
        self._failure: Exception | None = None

    def where(self) -> Location:
        context = ray.get_runtime_context()
        try:
            log = os.readlink("/proc/self/fd/2")
        except OSError:
            log = ""
        return Location(
            platform.node(), context.get_node_id(), os.getpid(), context.get_actor_id() or "", log, time.time()
        )

    def load(self, *modules: str) -> None:
        """Imports what the part will need, which takes seconds."""
        for module in modules:
            importlib.import_module(module)

    def make(self, *args: Any) -> None:
        module, _, name = self._path.partition(":")
        try:
            self._part = getattr(importlib.import_module(module), name)(*args)
        except Exception as error:
            self._failure = error  # nobody waits for `make`; whoever calls the part first must hear of it

    def call(self, method: str, *args: Any, **named: Any) -> Any:
        if self._failure is not None:
            raise self._failure
        return getattr(self._part, method)(*args, **named)

    def call_within(self, seconds: float, method: str, *args: Any) -> Any:
        """The same; if it takes longer, what each thread is doing is written to the log just before."""
        faulthandler.dump_traceback_later(0.95 * seconds, exit=False)
        try:
            return self.call(method, *args)
        finally:
            faulthandler.cancel_dump_traceback_later()

    def memory(self) -> int:
        """Bytes of this process that are in memory."""
        return int(psutil.Process().memory_info().rss)


class Part:
    """A part as the driver sees it."""

    def __init__(self, name: str, path: str, environment: Mapping[str, str], **options: Any) -> None:
        """Starts its process.

        Args:
            name: for the user.  path: ``module:Class`` of what ``make`` makes there.
            environment: variables of the process.  options: of the actor, as Ray has them.
        """
        self.name = name
        unique = f"{name}-{ray.get_runtime_context().get_job_id()}-{os.getpid()}-{time.time_ns() // 1000 % 10**9}"
        titled = type(name, (Process,), {})  # the process is called after its class: ray::rollout-3
        self.actor = ray.remote(titled).options(name=unique, **options).remote(path, dict(environment))
        self.place = self.actor.where.remote()  # answered before the part is made, which may take long

    def load(self, *modules: str) -> Any:
        return self.actor.load.remote(*modules)

    def make(self, *args: Any) -> Any:
        return self.actor.make.remote(*args)

    def call(self, method: str, *args: Any, num_returns: int = 1, **named: Any) -> Any:
        return self.actor.call.options(num_returns=num_returns).remote(method, *args, **named)

    def call_within(self, seconds: float, method: str, *args: Any, num_returns: int = 1) -> Any:
        return self.actor.call_within.options(num_returns=num_returns).remote(seconds, method, *args)

    def location(self, timeout: float = _ANSWERS) -> Location | None:
        """Where it is or was; None if it has not come so far."""
        try:
            found: Location = ray.get(self.place, timeout=timeout)
        except RayError:
            return None
        return found

    def memory(self) -> Any:
        """Reference of the bytes of its process that are in memory."""
        return self.actor.memory.remote()

    def death(self) -> RayActorError | None:
        """Why it is dead; None if it lives, or is too busy to say."""
        try:
            ray.get(self.actor.where.remote(), timeout=_ANSWERS)
        except RayActorError as error:
            return error
        except RayError:
            return None
        return None

    def end(self, *, hangs: bool = False) -> None:
        """Ends its process; one that hangs, stopped or in a system call, from outside too."""
        with suppress(RayError):
            ray.kill(self.actor)
        if hangs and (where := self.location(0.0)) is not None:
            _on(where.node, _kill, where.pid)

    def moved(self, what: str) -> Fault:
        """That it was ended on purpose."""
        where = self.location(0.0)
        if where is None:
            return Fault(self.name, what, planned=True)
        return Fault(self.name, what, "", where.host, where.node, where.pid, planned=True)

    def fault(self, error: BaseException | None, doing: str, *, key: str = "", seconds: float = 0.0) -> Fault:
        """What became of it.

        Args:
            error: that somebody got who waited for it; None if it did not answer within ``seconds``.
            doing: what it was asked to do.  key: of the configuration that says how long it may take.
        """
        where = self.location()
        log = [] if where is None else _on(where.node, _tail, where.log) or []
        what, kind, lines = _ended(error, where, log, key, seconds)
        lines = [redacted(line, os.environ) for line in _telling(lines)]
        advice = _ADVICE.get(kind, "").format(key=key)
        host, node, pid = ("", "", None) if where is None else (where.host, where.node, where.pid)
        return Fault(self.name, redacted(what, os.environ), doing, host, node, pid, tuple(lines), advice)


def _ended(
    error: BaseException | None, where: Location | None, log: list[str], key: str, seconds: float
) -> tuple[str, str, list[str]]:
    """How a part ended, what kind of end that is, and the lines to show of it."""
    if error is None and where is None:
        return "found no place on the cluster in time", "place", log
    if error is None:
        return f"gave no answer within {seconds:g} s ({key})", "hung", log
    if isinstance(error, OutOfMemoryError):
        return "was ended by Ray, because the memory of its node ran out", "memory", log
    if isinstance(error, RayTaskError):
        cause = error.cause
        while isinstance(cause, RayTaskError):  # of something that this part had asked another
            cause = cause.cause
        told = [line for line in _COLOUR.sub("", str(error)).splitlines() if line.strip()]
        return f"raised {type(cause).__name__}: {cause}", "raised", told[:-1]  # the last is the exception itself
    if where is None:  # it never came up, and has no log
        said = [line.strip() for line in _COLOUR.sub("", str(error)).splitlines() if line.strip()]
        return "could not be started", "start", said
    if not _lives(where.node):
        return "was lost with its node", "node", log
    if crash := _CRASH.findall("\n".join(log)):
        return f"crashed ({next(filter(None, crash[-1]))})", "crashed", log
    if exited := _EXIT.search(str(error)):
        return f"ended with exit code {exited[1]}", "exited", log
    if isinstance(error, RayActorError):
        return "ended without a word, as by SIGKILL", "killed", log
    return f"was lost: {type(error).__name__}", "lost", log


def _telling(log: list[str]) -> list[str]:
    """The lines of a log that say most: its last, or where it holds what each thread did when the process crashed or
    hung, the first of the thread that worked."""
    marks = [index for index, line in enumerate(log) if _DUMP.match(line)]
    if not marks:
        return log[-_SHOWN_LINES:]
    first, *rest = log[marks[-1] :]
    begins = [index for index, line in enumerate(rest) if _THREAD.match(line)]
    threads = [rest[begin:end] for begin, end in zip(begins, [*begins[1:], len(rest)], strict=True)]
    working = [lines for lines in threads if lines[0].startswith("Current") or any(__file__ in line for line in lines)]
    return [first, *(working[-1] if working else rest)][:_SHOWN_LINES]


def user_error(error: RayTaskError) -> ConfigError | None:
    """The error in it that a user can act on as it is."""
    return error.cause if isinstance(error.cause, ConfigError) else None


def lost(error: BaseException) -> bool:
    """Whether it says that a process or an object is gone, and not that somebody's code raised."""
    if isinstance(error, RayTaskError):
        return isinstance(error.cause, RayError) and lost(error.cause)
    return isinstance(error, RayError) and not isinstance(error, GetTimeoutError)


def draining() -> dict[str, float]:
    """Nodes that are about to be taken away, by id, and when, in seconds since 1970.

    Ray's libraries ask in the same way; there is no public one.
    """
    try:
        from ray._private.state import state

        return {node: deadline / 1000 for node, deadline in state.get_draining_nodes().items()}
    except Exception:  # private, so it may be gone; then the nodes' end is noticed when it comes
        return {}


def _own_node() -> str:
    return str(ray.get_runtime_context().get_node_id())


def _lives(node: str) -> bool:
    return any(found["NodeID"] == node and found["Alive"] for found in ray.nodes())


def _on(node: str, function: Callable[..., Any], *args: Any) -> Any:
    """What a function says on a node; None where it cannot be asked in time."""
    if node == _own_node():
        return function(*args)
    there = NodeAffinitySchedulingStrategy(node, soft=False)
    try:
        asked = ray.remote(function).options(num_cpus=0, scheduling_strategy=there, max_retries=0).remote(*args)
        return ray.get(asked, timeout=_ANSWERS)
    except RayError:
        return None


def _tail(path: str) -> list[str]:
    """Last lines of a log, but for those that Ray writes for itself."""
    try:
        lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()[-200:]
    except OSError:
        return []
    return [line.rstrip() for line in lines if line.strip() and not line.startswith((":actor_name:", ":job_id:"))]


def _kill(pid: int) -> None:
    with suppress(psutil.Error, OSError):
        process = psutil.Process(pid)
        if process.name().startswith("ray::"):  # the number may be another's by now
            os.kill(pid, signal.SIGKILL)
