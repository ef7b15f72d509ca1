"""Costs of the host: microseconds of each operation it launches, and the moments at which it waits for the device."""

from __future__ import annotations

import platform
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks import machine
from benchmarks.device.plan import Skipped, Update

NODES = (100, 1_000)
"""Sizes of the graphs whose replay is timed."""
READS = {
    "_local_scalar_dense", "_unique2", "bincount", "equal", "is_nonzero", "masked_select", "nonzero",
    "unique_consecutive", "unique_dim",
}  # fmt: skip
"""Operations of which the host of a GPU waits for the result."""
MASKED = {"index", "index_put", "index_put_"}
"""Operations that wait if an index is a mask."""
SYNCHRONISES = "called a synchronizing CUDA operation"
"""Words of torch's warning; it warns of its own warnings too."""
WAITS = ((torch.cuda, "synchronize"), (torch.cuda.Event, "synchronize"), (torch.cuda.Stream, "synchronize"))
"""Calls that wait without torch's warning."""


def describe_device() -> dict[str, Any]:
    """Name of the GPU, None without one, and the versions below torch."""
    if not torch.cuda.is_available():
        return {"gpu": None, "versions": {"kernel": platform.release()}}
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        driver = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError):
        driver = "unknown"
    versions = {"cuda": torch.version.cuda, "driver": driver, "kernel": platform.release()}
    return {"gpu": torch.cuda.get_device_name(), "versions": versions}


def _microseconds(call: Callable[[], Any], calls: int) -> float:
    """Microseconds of a call, over calls in a row; the device has finished them all."""
    for _ in range(min(calls, 10)):
        call()
    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    wait()
    began = time.perf_counter()
    for _ in range(calls):
        call()
    wait()
    return 1e6 * (time.perf_counter() - began) / calls


def measure_floor(device: str, calls: int) -> dict[str, float]:
    """Microseconds of the smallest operations: an addition, a read, copies of 4 kB to the device, a mask."""
    here, host = torch.ones(1000, device=device), torch.ones(1000)
    result, scalar, mask = torch.empty_like(here), torch.ones((), device=device), here > 0
    measured = {
        "add": _microseconds(lambda: torch.add(here, here, out=result), calls),
        "item": _microseconds(scalar.item, calls),
        "pageable copy": _microseconds(lambda: here.copy_(host), calls),
        "mask": _microseconds(lambda: here[mask], calls),
    }
    if device == "cuda":
        pinned = host.pin_memory()
        measured["pinned copy"] = _microseconds(lambda: here.copy_(pinned, non_blocking=True), calls)
    return measured


def measure_graph_floor(device: str, calls: int) -> dict[str, float]:
    """Microseconds of replaying a graph of additions, each after the other: of the launch, and of each node."""
    if device == "cpu":
        raise Skipped("CUDA graphs need a GPU")
    values, replays = torch.zeros(1000, device=device), []
    for nodes in NODES:
        graph = torch.cuda.CUDAGraph()
        values.add_(1.0)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            for _ in range(nodes):
                values.add_(1.0)
        replays.append(_microseconds(graph.replay, max(10, calls // 10)))
    node = (replays[1] - replays[0]) / (NODES[1] - NODES[0])
    of_sizes = {f"graph of {nodes:,}": spent for nodes, spent in zip(NODES, replays, strict=True)}
    return {**of_sizes, "graph": replays[0] - NODES[0] * node, "node": node}


def _place() -> str:
    """File and line of rlpipe that runs at present."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(str(machine.ROOT / "rlpipe")):
            return f"{Path(name).relative_to(machine.ROOT / 'rlpipe')}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return "elsewhere"


class _ReadsOnCPU(TorchDispatchMode):
    """Counts operations that would wait for a GPU."""

    def __init__(self, places: Counter[str]) -> None:
        super().__init__()
        self._places = places

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        masked = name in MASKED and any(index is not None and index.dtype == torch.bool for index in args[1])
        if name in READS or masked:
            self._places[_place()] += 1
        return function(*args, **(kwargs or {}))


@contextmanager
def counted_reads(device: str) -> Iterator[Counter[str]]:
    """Counts, by place in rlpipe, how often the host waits for the device.

    On a CPU, copies between host and device do not exist, and reads of what would stay on the host count, too.
    """
    places: Counter[str] = Counter()
    if device == "cpu":
        with _ReadsOnCPU(places):
            yield places
        return

    def warned(message: Any, *_args: Any, **_options: Any) -> None:
        if SYNCHRONISES in str(message):
            places[_place()] += 1

    def waiting(wait: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **options: Any) -> Any:
            places[_place()] += 1
            return wait(*args, **options)

        return counted

    with ExitStack() as stack:
        for owner, name in WAITS:
            stack.enter_context(patch.object(owner, name, waiting(getattr(owner, name))))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("always")
        warnings.showwarning = warned
        torch.cuda.set_sync_debug_mode("warn")
        stack.callback(torch.cuda.set_sync_debug_mode, "default")
        yield places


def count_reads(update: Update, device: str, mode: str) -> dict[str, Any]:
    """Counts the waits of an update.

    Returns:
        ``gradient_steps``, ``reads``, ``places`` (number by file and line), and ``reads_per_step``, without the places
        that wait less often than there are gradient steps.
    """
    from benchmarks.device.updates import Work

    work = Work(update, device, mode)
    for _ in range(2):
        work()
    with counted_reads(device) as places:
        work()
    inside = sum(number for number in places.values() if number >= work.gradient_steps)
    return {
        "gradient_steps": work.gradient_steps,
        "reads": places.total(),
        "reads_per_step": inside / work.gradient_steps,
        "places": dict(places.most_common()),
    }
