"""Ray actors of a run: the code inside the process, and the handle that the driver holds."""

from __future__ import annotations

import faulthandler
import importlib
import os
import pickle
import platform
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psutil
import ray
from ray.exceptions import ObjectLostError, RayActorError, RayError

from rlpipe.distributed.nodes import ANSWER_SECONDS, run_on_node
from rlpipe.distributed.post_mortem import describe_end, log_lines
from rlpipe.distributed.roles import Role
from rlpipe.errors import Fault, ForeignError
from rlpipe.plugins import find_modules_in, searched_folders
from rlpipe.secrets import redacted


@dataclass(frozen=True)
class Location:
    """Place of a process, and its clock when it was asked.

    Attributes:
        host: name of the machine.
        node: Ray's id of the node.
        pid: process id there.
        actor: Ray's id of the actor.
        log: path of its log on that machine; empty if unknown.
        clock: seconds since 1970.
    """

    host: str
    node: str
    pid: int
    actor: str
    log: str
    clock: float


class ActorProcess:
    """Process of one actor: makes the object that does the work and calls its methods."""

    def __init__(self, path: str, environment: dict[str, str], folders: list[str]) -> None:
        _set_up_process(environment, folders)
        self._path = path
        self._failure: Exception | None = None

    def where(self) -> Location:
        context, log = ray.get_runtime_context(), _log_path()
        return Location(
            platform.node(), context.get_node_id(), os.getpid(), context.get_actor_id() or "", log, time.time()
        )

    def load(self, *modules: str) -> None:
        """Imports modules that will be needed, which takes seconds."""
        for module in modules:
            importlib.import_module(module)

    def make(self, *args: Any) -> None:
        module, _, name = self._path.partition(":")
        try:
            self._object = getattr(importlib.import_module(module), name)(*args)
        except BaseException as error:
            self._failure = _sendable(error)  # nobody waits for `make`, so the first call raises it

    def call(self, method: str, *args: Any, **named: Any) -> Any:
        if self._failure is not None:
            raise self._failure
        try:
            return getattr(self._object, method)(*args, **named)
        except BaseException as error:
            sendable = _sendable(error)
            raise sendable from sendable.__cause__

    def call_within(self, seconds: float, method: str, *args: Any) -> Any:
        """As ``call``. A call that is about to exceed the limit first writes what each thread is doing to the log."""
        faulthandler.dump_traceback_later(0.95 * seconds, exit=False)
        try:
            return self.call(method, *args)
        finally:
            faulthandler.cancel_dump_traceback_later()

    def deliver_within(self, seconds: float, method: str, *args: Any) -> tuple[Any, ...]:
        """As ``call_within``, for a method that returns several objects; returns them and None."""
        return (*self.call_within(seconds, method, *args), None)

    def memory(self) -> int:
        """Returns the resident bytes of this process, and of a simulator that has a process of its own."""
        total, actor_process = 0, psutil.Process()
        for process in (actor_process, *actor_process.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                total += process.memory_info().rss
        return total


def _set_up_process(environment: Mapping[str, str], folders: Sequence[str]) -> None:
    """Prepares the process of an actor: its environment, and the folders of the driver's modules."""
    # Ray has put the driver's folder before the standard library.
    sys.path[:] = [folder for folder in sys.path if folder not in folders]
    find_modules_in(*folders)
    faulthandler.enable()  # a crash in a native library leaves its traceback in the log
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C is for the driver
    os.environ.update(environment)


def _log_path() -> str:
    """Returns the path of this process's log; empty if unknown."""
    try:
        return os.readlink("/proc/self/fd/2")
    except OSError:
        return ""


def _sendable(error: BaseException) -> Exception:
    """Returns an exception as it is, or one that says the same.

    A SystemExit would end the process without a word, and the driver must be able to make the exception again.
    """
    with suppress(Exception):  # whatever its own way of being sent may raise
        if isinstance(error, Exception) and (
            isinstance(error, RayError)  # of another actor, which this one had called
            or isinstance(pickle.loads(pickle.dumps(error)), type(error))
        ):
            return error
    return ForeignError.because_of(error)


class Actor:
    """Driver's handle of one Ray actor.

    Attributes:
        role: its role in the run.
        name: its name in messages and files, such as ``rollout-3``.
        handle: Ray's own handle.
        location_ref: reference of its location, which is answered before the object inside is made.
    """

    def __init__(self, role: Role, name: str, path: str, environment: Mapping[str, str], **options: Any) -> None:
        """Starts the process.

        Args:
            path: ``module:Class`` of the object that ``make`` makes in the process.
            options: Ray's options of the actor.
        """
        self.role = role
        self.name = name
        unique = f"{name}-{ray.get_runtime_context().get_job_id()}-{os.getpid()}-{time.time_ns() // 1000 % 10**9}"
        titled = type(name, (ActorProcess,), {})  # the process is called after its class: ray::rollout-3
        self.handle = (
            ray.remote(titled).options(name=unique, **options).remote(path, dict(environment), searched_folders())
        )
        self._methods: dict[tuple[str, int], Any] = {}
        self.location_ref = self.handle.where.remote()
        self._location: Location | None = None

    def load(self, *modules: str) -> Any:
        """Has the process import modules; returns a reference."""
        return self.handle.load.remote(*modules)

    def make(self, *args: Any) -> Any:
        """Has the process make its object from these arguments; returns a reference."""
        return self.handle.make.remote(*args)

    def call(self, method: Callable[..., Any], *args: Any, num_returns: int = 1, **named: Any) -> Any:
        """Calls a method of the object in the process.

        Args:
            method: function of its class, of which the name is sent.
            num_returns: number of references to return; with several, the method returns as many objects.
        """
        return self._method("call", num_returns).remote(method.__name__, *args, **named)

    def call_within(self, seconds: float, method: Callable[..., Any], *args: Any) -> Any:
        """As ``call``; a call of more than this many seconds leaves what its threads were doing in the log."""
        return self._method("call_within", 1).remote(seconds, method.__name__, *args)

    def deliver_within(self, seconds: float, method: Callable[..., Any], *args: Any, num_objects: int) -> list[Any]:
        """As ``call_within``, for a method that returns several objects.

        Returns:
            The references of the objects, and one of None: whoever waits for the call can read it at no cost.
        """
        refs: list[Any] = self._method("deliver_within", num_objects + 1).remote(seconds, method.__name__, *args)
        return refs

    def _method(self, name: str, num_returns: int) -> Any:
        """Returns a method of the handle, which is kept: making one takes longer than calling it."""
        key = name, num_returns
        if key not in self._methods:
            self._methods[key] = getattr(self.handle, name).options(num_returns=num_returns)
        return self._methods[key]

    def location(self, timeout: float = ANSWER_SECONDS) -> Location | None:
        """Returns where the process runs or ran, or None if it has not answered, or died before it had."""
        if self._location is None:
            try:
                self._location = ray.get(self.location_ref, timeout=timeout)
            except RayError as error:
                if isinstance(error, ObjectLostError):  # the answer, not the actor: the next call may have another
                    self.location_ref = self.handle.where.remote()
        return self._location

    def clock_offset(self) -> float | None:
        """Returns the seconds by which the clock of the actor's node is ahead of the driver's; None without an answer.

        Uses the quickest of three answers, and takes each as given half way between question and answer (Cristian
        1989, "Probabilistic clock synchronization").
        """
        answers: list[tuple[float, float]] = []
        for _ in range(3):
            asked_at = time.time()
            try:
                clock = ray.get(self.handle.where.remote(), timeout=ANSWER_SECONDS).clock
            except RayError:
                return None
            answered_at = time.time()
            answers.append((answered_at - asked_at, clock - (asked_at + answered_at) / 2))
        return round(min(answers)[1], 6)

    def memory(self) -> Any:
        """Returns the reference of the resident bytes of the process."""
        return self.handle.memory.remote()

    def probe(self) -> Any:
        """Returns a reference that is answered once the process has time, or is gone."""
        return self.handle.where.remote()

    @staticmethod
    def death(probe: Any) -> RayActorError | None:
        """Returns why the actor of an answered probe is dead, or None if it is alive."""
        try:
            ray.get(probe)
        except RayActorError as error:
            return error
        except RayError:
            return None
        return None

    def end(self, *, hangs: bool = False) -> None:
        """Ends the process; one that hangs, stopped or in a system call, is also killed from outside."""
        with suppress(RayError):
            ray.kill(self.handle)
        if hangs and (where := self.location(0.0)) is not None:
            run_on_node(where.node, _kill, where.pid)

    def planned_fault(self, what: str) -> Fault:
        """Returns the fault record for a planned end."""
        where = self.location(0.0)
        if where is None:
            return Fault(self.name, what, planned=True)
        return Fault(self.name, what, "", where.host, where.node, where.pid, planned=True)

    def fault(self, error: BaseException | None, doing: str, *, key: str = "", seconds: float = 0.0) -> Fault:
        """Returns the fault record for an unplanned end.

        Args:
            error: raised to whoever waited for the actor; None if it did not answer within ``seconds``.
            doing: task it was given.
            key: configuration key of the time limit.
            seconds: time limit.
        """
        where = self.location()
        log = [] if where is None else run_on_node(where.node, log_lines, where.log) or []
        end = describe_end(error, where, log, key, seconds)
        lines = tuple(redacted(line, os.environ) for line in end.log)
        host, node, pid = ("", "", None) if where is None else (where.host, where.node, where.pid)
        return Fault(self.name, redacted(end.what, os.environ), doing, host, node, pid, lines, end.advice)


def _kill(pid: int) -> None:
    with suppress(psutil.Error, OSError):
        process = psutil.Process(pid)
        if process.name().startswith("ray::"):  # by now the pid may belong to another process
            os.kill(pid, signal.SIGKILL)
