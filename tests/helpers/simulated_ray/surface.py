"""The simulated cluster in the place of Ray, clock, files and process ids, as far as rlpipe touches them."""

from __future__ import annotations

import builtins
import datetime
import errno
import io
import os
import platform
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray._private.state import state
from ray.exceptions import GetTimeoutError

from rlpipe.distributed import actors, engine, placement_group
from rlpipe.metrics import spans
from rlpipe.run import directory
from tests.helpers.simulated_ray.world import EPOCH, Actor, Ref, World

SMALL_PROCESS = 200 * 2**20
"""Resident bytes of a process that does not leak."""


class _Method:
    """Method of an actor, as its handle has it."""

    def __init__(self, world: World, actor: Actor, name: str, num_returns: int = 1) -> None:
        self._world, self._actor, self._name, self._num_returns = world, actor, name, num_returns

    def options(self, *, num_returns: int) -> _Method:
        return _Method(self._world, self._actor, self._name, num_returns)

    def remote(self, *args: Any, **named: Any) -> Any:
        return self._world.submit(self._actor, self._name, args, named, self._num_returns)


class Handle:
    """Handle of an actor."""

    def __init__(self, world: World, actor: Actor) -> None:
        self._world, self.actor = world, actor

    def __getattr__(self, name: str) -> _Method:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Method(self._world, self.actor, name)

    def __reduce__(self) -> Any:
        raise TypeError("a handle in another actor is not simulated")


class _Remote:
    """Class of actors, or function, with its options."""

    def __init__(self, world: World, subject: Any, options: dict[str, Any]) -> None:
        self._world, self._subject, self._options = world, subject, options

    def options(self, **options: Any) -> _Remote:
        return _Remote(self._world, self._subject, {**self._options, **options})

    def remote(self, *args: Any) -> Any:
        if isinstance(self._subject, type):
            return Handle(self._world, self._world.start(self._subject, self._options, args))
        strategy = self._options.get("scheduling_strategy")
        node = self._world.head if strategy is None else self._world.nodes[strategy.node_id]
        return self._world.run_task(self._subject, node, args)


class Surface:
    """Functions of Ray."""

    def __init__(self, world: World) -> None:
        self._world = world

    def remote(self, *subject: Any, **options: Any) -> Any:
        if subject:
            return _Remote(self._world, subject[0], {})
        return lambda later: _Remote(self._world, later, options)

    def put(self, value: Any) -> Ref:
        self._world.touch()
        return self._world.put(value)

    def get(self, refs: Any, timeout: float | None = None) -> Any:
        world, several = self._world, list(refs) if isinstance(refs, list) else [refs]

        def arrived() -> bool:
            failed = any(ref.error is not None for ref in several)
            return failed or all(ref.done and world.is_there(ref) for ref in several)

        if not world.wait_until(arrived, timeout):
            raise GetTimeoutError("Get timed out: some object(s) not ready.")
        for ref in several:
            if ref.error is not None:
                world.value(ref)
        values = [world.value(ref) for ref in several]
        return values if isinstance(refs, list) else values[0]

    def wait(
        self, refs: Sequence[Ref], *, num_returns: int = 1, timeout: float | None = None, fetch_local: bool = True
    ) -> tuple[list[Ref], list[Ref]]:
        if len({*refs}) < len(refs) or not 0 < num_returns <= len(refs):
            raise ValueError("wait needs several references, each once, and at most as many answers")
        self._world.wait_until(lambda: sum(ref.done for ref in refs) >= num_returns, timeout)
        ready = [ref for ref in refs if ref.done]
        done = {*(self._world.rng.sample(ready, num_returns) if len(ready) > num_returns else ready)}  # Ray picks any
        return [ref for ref in refs if ref in done], [ref for ref in refs if ref not in done]

    def kill(self, handle: Handle) -> None:
        self._world.pass_pause()
        actor = handle.actor
        stopped = any(entry.what == "stopped" and entry.pid == actor.pid for entry in self._world.log)
        if not stopped:
            self._world.end(actor, "ray.kill")

    def nodes(self) -> list[dict[str, Any]]:
        self._world.pass_pause()
        return [
            {
                "NodeID": node.id, "Alive": node.listed, "NodeManagerHostname": node.name,
                "NodeManagerAddress": node.name, "Labels": {},
                "Resources": {"CPU": node.cpus, "object_store_memory": 1e9},
            }
            for node in self._world.nodes.values()
        ]  # fmt: skip

    def draining(self) -> dict[str, int]:
        self._world.pass_pause()
        return {
            node.id: int(1000 * (EPOCH + node.leaves_at))
            for node in self._world.nodes.values()
            if node.leaves_at is not None and node.listed
        }

    def context(self) -> Any:
        process = self._world.current
        actor = process.id.hex() if isinstance(process, Actor) else None
        return SimpleNamespace(
            get_node_id=lambda: process.node.id, get_job_id=lambda: "01000000", get_actor_id=lambda: actor,
            namespace="rlpipe",
        )  # fmt: skip


@contextmanager
def in_the_place_of_ray(world: World) -> Iterator[Surface]:
    """Has this thread use the world instead of Ray, the clock, and a disk of its own."""
    surface = Surface(world)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("remote", "put", "get", "wait", "kill", "nodes"):
            patch.setattr(ray, name, getattr(surface, name))
        patch.setattr(ray, "cancel", lambda ref, force=False: None)
        patch.setattr(ray, "ObjectRef", Ref)
        patch.setattr(ray, "is_initialized", lambda: True)
        patch.setattr(ray, "get_runtime_context", surface.context)
        patch.setattr(state, "get_draining_nodes", surface.draining, raising=False)
        patch.setattr(placement_group, "placement_group", _new_group(world))
        patch.setattr(placement_group, "placement_group_table", _table)
        patch.setattr(placement_group, "remove_placement_group", world.remove_group)
        _replace_clock(patch, world)
        _replace_files(patch, world)
        _replace_process(patch, world)
        yield surface


def _new_group(world: World) -> Callable[..., Any]:
    def placement_group(bundles: Any, strategy: str, bundle_label_selector: Any = None) -> Any:
        assert bundle_label_selector is None, "labels are not simulated"
        return world.new_group(bundles, strategy)

    return placement_group


def _table(group: Any) -> dict[str, Any]:
    complete = len(group.nodes) == len(group.bundles)
    return {
        "bundles_to_node_id": {index: node.id for index, node in group.nodes.items()},
        "state": "CREATED" if complete else "PENDING",
        "stats": {"scheduling_state": "FINISHED" if complete else "QUEUED"},
    }


def _replace_clock(patch: pytest.MonkeyPatch, world: World) -> None:
    thread = threading.get_ident()

    def read(real: Callable[[], Any], virtual: Callable[[], Any]) -> Callable[[], Any]:
        def clock() -> Any:
            if threading.get_ident() != thread:
                return real()
            world.touch()
            return virtual()

        return clock

    def sleep(seconds: float, real: Callable[[float], None] = time.sleep) -> None:
        (world.sleep if threading.get_ident() == thread else real)(seconds)

    for name in ("monotonic", "perf_counter"):
        patch.setattr(time, name, read(getattr(time, name), world.now))
    patch.setattr(time, "time", read(time.time, lambda: EPOCH + world.now()))
    patch.setattr(time, "time_ns", read(time.time_ns, lambda: int((EPOCH + world.now()) * 1e9)))
    patch.setattr(time, "sleep", sleep)
    patch.setattr(spans, "_SINCE_1970", EPOCH)

    class VirtualDate(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:
            return datetime.datetime.fromtimestamp(time.time(), tz)

    patch.setattr(directory, "datetime", VirtualDate)


def _replace_files(patch: pytest.MonkeyPatch, world: World) -> None:
    """Has the world see each file operation below its folder, before it happens."""

    def concerns(path: Any) -> bool:
        return isinstance(path, str | os.PathLike) and os.fspath(path).startswith(world.folder)

    def opening(real: Callable[..., Any]) -> Callable[..., Any]:
        def open_file(file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
            if not concerns(file):
                return real(file, mode, *args, **options)
            world.touch()
            full = world.disk_is_full or (world.checkpoints_full and "checkpoints" in os.fspath(file))
            if full and {*mode} & {*"wax+"} and not str(file).endswith(".lock"):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fspath(file))
            opened = real(file, mode, *args, **options)
            world.current.files.add(opened)
            return opened

        return open_file

    def touching(real: Callable[..., Any]) -> Callable[..., Any]:
        def operation(path: Any, *args: Any, **options: Any) -> Any:
            if concerns(path):
                world.touch()
            return real(path, *args, **options)

        return operation

    for owner in (builtins, io):
        patch.setattr(owner, "open", opening(owner.open))
    for name in ("replace", "rename", "unlink", "mkdir", "rmdir"):
        patch.setattr(os, name, touching(getattr(os, name)))
    patch.setattr(os, "fsync", lambda file: None)  # nobody cuts the power


def _replace_process(patch: pytest.MonkeyPatch, world: World) -> None:
    patch.setattr(os, "getpid", lambda: world.current.pid)
    patch.setattr(platform, "node", lambda: world.current.node.name)
    patch.setattr(actors, "_set_up_process", lambda *_: None)
    patch.setattr(actors, "_log_path", lambda: "")
    patch.setattr(actors, "_kill", world.kill_pid)
    idle = SimpleNamespace(dump_traceback_later=lambda *_, **__: None, cancel_dump_traceback_later=lambda: None)
    patch.setattr(actors, "faulthandler", idle)
    patch.setattr(actors.ActorProcess, "memory", lambda _: world.memory.get(world.current.pid, SMALL_PROCESS))
    patch.setattr(engine, "preflight", lambda *_: [])  # it looks at real machines
