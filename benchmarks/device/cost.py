"""Measures a step: seconds, copies to the device, time inside kernels, memory."""

from __future__ import annotations

import json
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile


def _seconds(step: Callable[[], Any], cuda: bool) -> float:
    """Seconds of one step, with the device idle before and after it."""
    if cuda:
        torch.cuda.synchronize()
    began = time.perf_counter()
    step()
    if cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - began


def _gpu_trace(step: Callable[[], Any], seconds: float) -> tuple[float, int, int]:
    """Share of the seconds that are inside kernels, number of copies from host to device, and their bytes."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        _seconds(step, cuda=True)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profiled.export_chrome_trace(str(file))
        events = json.loads(file.read_text())["traceEvents"]
    kernels = [event["dur"] for event in events if event.get("cat") == "kernel"]
    copies = [e["args"]["bytes"] for e in events if e.get("cat") == "gpu_memcpy" and "HtoD" in e["name"]]
    return sum(kernels) * 1e-6 / seconds, len(copies), sum(copies)


def _cpu_trace(step: Callable[[], Any]) -> tuple[float, int, int]:
    """Share of a step that is inside torch's own operators; nothing is copied."""
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        seconds = _seconds(step, cuda=False)
    inside = sum(event.self_cpu_time_total for event in profiled.key_averages() if event.key.startswith("aten::"))
    return inside * 1e-6 / seconds, 0, 0


def measure(step: Callable[[], Any], device: str, samples: int, repeats: int) -> dict[str, float]:
    """Measures a step, after two that warm up caches and compilers, and profiles one more.

    Args:
        step: may leave work queued on the device
        device: ``cpu`` or ``cuda``
        samples: that one step handles
        repeats: number of timed steps
    Returns:
        ``seconds`` (median), ``samples_per_second``, ``copies_to_device`` and ``bytes_to_device`` of a step,
        ``kernel_share`` (seconds inside kernels over ``seconds``; on a CPU inside torch's own operators), and
        ``peak_memory_mib`` (allocated on the GPU; on a CPU of the whole process so far).
    """
    cuda = device.startswith("cuda")
    for _ in range(2):
        _seconds(step, cuda)
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    seconds = statistics.median(_seconds(step, cuda) for _ in range(repeats))
    peak = torch.cuda.max_memory_allocated() / 2**20 if cuda else _process_peak()
    share, copies, moved = _gpu_trace(step, seconds) if cuda else _cpu_trace(step)
    return {
        "seconds": seconds,
        "samples_per_second": samples / seconds,
        "copies_to_device": copies,
        "bytes_to_device": moved,
        "kernel_share": share,
        "peak_memory_mib": peak,
    }


def _process_peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # KiB on Linux
