"""Measures updates and policies: seconds, time inside kernels, launches, copies, memory, and what they end with.

rlpipe is imported where it is used: the floor can be measured without it.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.profiler import ProfilerActivity, profile

from benchmarks.device.plan import Update

LAUNCHES = ("cudaLaunch", "cuLaunch", "cudaGraphLaunch", "cuGraphLaunch")
"""Beginnings of the names of calls that launch a kernel or a graph."""
PROFILER = {"DISABLE_CUPTI_LAZY_REINIT": "1", "TEARDOWN_CUPTI": "0"}
"""Environment in which CUDA graphs survive several profiles; torch.profiler sets it for graphs of inductor alone."""
WARM_UP = 2
"""Updates that fill caches and let graphs be captured."""
State = Mapping[str, NDArray[Any]]


def seconds_of(step: Callable[[], Any]) -> float:
    """Seconds of one step, with the device idle before and after it."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    began = time.perf_counter()
    step()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began


def measure_update(update: Update, device: str, mode: str, weights: str) -> dict[str, Any]:
    """Measures an update, from batches on the host to new weights on the host.

    Args:
        update: what is measured
        device: ``cpu`` or ``cuda``
        mode: ``cpu``, ``eager`` or ``graphs``
        weights: file that ``eager`` leaves its last state in, and that ``graphs`` compares its own with
    Returns:
        ``seconds`` (median), ``count`` (samples, or gradient steps) and ``per_second`` of it, ``parameters``,
        ``gradient_steps``; ``peak_mib``, on a GPU the most memory reserved since the learner was made, pools of graphs
        included, with ``allocated_mib`` of it in use, on a CPU the most of the whole process so far; and for
        ``graphs`` what ``differences`` returns.
    """
    from benchmarks.device.updates import Work

    if device == "cuda":
        torch.cuda.init()  # a process without a device has no statistics to reset
        torch.cuda.reset_peak_memory_stats()
    work = Work(update, device, mode)
    spent = [seconds_of(work) for _ in range(WARM_UP + update.repeats)][WARM_UP:]
    seconds = statistics.median(spent)
    measured: dict[str, Any] = {
        "seconds": seconds,
        "count": work.count,
        "per_second": work.count / seconds,
        "parameters": work.parameters,
        "gradient_steps": work.gradient_steps,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,  # KiB on Linux
    }
    if device == "cuda":
        measured["peak_mib"] = torch.cuda.max_memory_reserved() / 2**20
        measured["allocated_mib"] = torch.cuda.max_memory_allocated() / 2**20
    if mode == "eager":
        np.savez(weights, **work.state())
    elif mode == "graphs" and Path(weights).exists():
        measured |= compare_with_eager(update, device, weights, work.state())
    return measured


def compare_with_eager(update: Update, device: str, weights: str, state: State) -> dict[str, Any]:
    """Compares a state with that of the eager learner, as ``differences``.

    Where they differ, ``eager_repeats_itself`` says whether another eager learner ends with the bits of the first.
    """
    from benchmarks.device.updates import Work

    with np.load(weights) as file:
        eager = dict(file)
    compared = differences(eager, state)
    if not compared["equal"]:
        again = Work(update, device, "eager")
        for _ in range(WARM_UP + update.repeats):
            again()
        compared["eager_repeats_itself"] = differences(eager, again.state())["equal"]
    return compared


def differences(first: State, second: State) -> dict[str, Any]:
    """Compares two states of a learner.

    Returns:
        ``equal``: True if every array has the same bits, and ``largest_difference`` of two weights of the policy.
    """
    if first.keys() == second.keys() and all(first[name].tobytes() == second[name].tobytes() for name in first):
        return {"equal": True, "largest_difference": 0.0}
    shared = [name for name in first if name.startswith("policy/") and name in second]
    gaps = (np.abs(first[name].astype(np.float64) - second[name].astype(np.float64)) for name in shared)
    largest = max((float(gap.max(initial=0.0)) for gap in gaps), default=0.0)
    return {"equal": False, "largest_difference": largest if np.isfinite(largest) else np.finfo(np.float32).max.item()}


def profile_update(update: Update, device: str, mode: str, seconds: float) -> dict[str, float]:
    """Profiles an update. A profiler slows later launches of its process down, which then should time nothing.

    Returns:
        ``kernel_share``: time inside kernels, over the ``seconds`` of an update that was not profiled; on a CPU the
        share of the profiled one inside torch's own operators. On a GPU also the numbers of ``kernels``, ``launches``
        and ``copies_to_device``, and ``bytes_to_device``.
    """
    from benchmarks.device.updates import Work

    work = Work(update, device, mode)
    for _ in range(WARM_UP if device == "cuda" else 0):
        work()
    if device == "cuda":
        return _gpu_trace(work, seconds)
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        seconds = seconds_of(work)
    inside = sum(event.self_cpu_time_total for event in profiled.key_averages() if event.key.startswith("aten::"))
    return {"kernel_share": inside * 1e-6 / seconds}


def _gpu_trace(step: Callable[[], Any], seconds: float) -> dict[str, float]:
    os.environ.update(PROFILER)
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        seconds_of(step)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profiled.export_chrome_trace(str(file))
        summed = summary(json.loads(file.read_text())["traceEvents"], seconds)
    if not summed["kernels"]:
        raise RuntimeError("the profiler saw no kernels; on some machines only an administrator may profile")
    return summed


def summary(events: Sequence[Mapping[str, Any]], seconds: float) -> dict[str, float]:
    """Sums up the events of a trace, as ``profile_update`` returns them."""
    kernels = [event["dur"] for event in events if event.get("cat") == "kernel"]
    copies = [e["args"]["bytes"] for e in events if e.get("cat") == "gpu_memcpy" and "HtoD" in e["name"]]
    return {
        "kernel_share": sum(kernels) * 1e-6 / seconds,
        "kernels": len(kernels),
        "launches": sum(str(event.get("name", "")).startswith(LAUNCHES) for event in events),
        "copies_to_device": len(copies),
        "bytes_to_device": sum(copies),
    }


def measure_act(update: Update, device: str, rows: int, repeats: int) -> dict[str, float]:
    """Measures how long a policy takes to act on so many observations."""
    from benchmarks.device.updates import acting, count_parameters

    act, policy = acting(update, rows, device)
    seconds = statistics.median([seconds_of(act) for _ in range(2 + repeats)][2:])
    return {"seconds": seconds, "count": rows, "per_second": rows / seconds, "parameters": count_parameters(policy)}
