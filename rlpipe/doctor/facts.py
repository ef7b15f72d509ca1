"""Facts about a machine: processor, memory, limits, disk, GPUs, packages."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from rlpipe.envs.shared.rendering import can_render
from rlpipe.foreign import LONGEST_SOCKET, SHORT_FOLDERS
from rlpipe.run.provenance import DECIDES_NUMBERS, code_digest, installed_version

_DRIVER_SECONDS = 15
_LONGEST_IN_RAY = "/ray/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store"


@dataclass(frozen=True)
class ScratchFolder:
    """Folder of Ray's temporary files.

    Attributes:
        path: of the folder.
        problem: why it is not the folder that the environment names, without a full stop; empty if it is.
        usable: False if there is no folder that Ray could use; the path is then the root's, for its disk.
    """

    path: str
    problem: str = ""
    usable: bool = True


@dataclass(frozen=True)
class Facts:
    """Facts about one machine; None where it does not tell or was not asked.

    Attributes:
        python: version of Python.
        packages: version of each package that was asked for and is installed.
        source: digest of rlpipe's own files, which a version alone does not distinguish.
        cpus: CPUs that this process may use.
        memory: bytes, of the container if there is one.
        available: bytes of it that are free.
        shared_memory: bytes of /dev/shm.
        open_files: limit of a process.
        processes: limit of threads of the user or the container.
        gpus: name, driver version and MiB of each GPU that the driver shows.
        gpu_trouble: message of the driver if it cannot show them.
        scratch: folder of temporary files.
        full: share of its disk in use.
        cuda: version that torch was built for; empty for none.
        devices: number of GPUs that torch can use.
        device_memory: free bytes of the one of them with the most.
        rendering: True if SAPIEN finds a Vulkan device; None without SAPIEN.
        threads: limit of threads of the machine's kernel.
    """

    python: str
    packages: Mapping[str, str]
    source: str
    cpus: float
    memory: int
    available: int
    shared_memory: int | None
    open_files: int | None
    processes: int | None
    gpus: tuple[str, ...]
    gpu_trouble: str
    scratch: str
    full: float
    cuda: str | None = None
    devices: int | None = None
    device_memory: int | None = None
    rendering: bool | None = None
    threads: int | None = None


def look(packages: Iterable[str], *, deep: bool = True) -> Facts:
    """Returns the facts about the machine this runs on.

    Args:
        deep: also load torch here, and SAPIEN in a process of its own, which takes seconds.
    """
    gpus, trouble = _gpus()
    cuda, devices, device_memory = _torch() if deep else (None, None, None)
    scratch = scratch_folder().path
    disk = shutil.disk_usage(scratch)
    memory, available = _memory()
    return Facts(
        python=platform.python_version(),
        packages={name: version for name in {*packages, *DECIDES_NUMBERS} if (version := installed_version(name))},
        source=code_digest()[:8],
        cpus=_cpus(),
        memory=memory,
        available=available,
        shared_memory=shutil.disk_usage("/dev/shm").total if Path("/dev/shm").is_dir() else None,
        open_files=_limit("RLIMIT_NOFILE"),
        processes=_least(_limit("RLIMIT_NPROC") if os.geteuid() else None, _number("/sys/fs/cgroup/pids.max")),
        gpus=gpus,
        gpu_trouble=trouble,
        scratch=scratch,
        full=1 - disk.free / disk.total,
        cuda=cuda,
        devices=devices,
        device_memory=device_memory,
        rendering=can_render() if deep else None,
        threads=_least(_number("/proc/sys/kernel/pid_max"), _number("/proc/sys/kernel/threads-max")),
    )


def scratch_folder() -> ScratchFolder:
    """Chooses the folder in which Ray keeps its temporary files: that of the environment, or another if it is unfit.

    Paths of Ray's sockets begin with it, and Linux limits such a path to 107 bytes. What ``RAY_TMPDIR`` asks for by
    Ray's own name is never replaced.
    """
    variable = next((name for name in ("RAY_TMPDIR", "TMPDIR") if os.environ.get(name)), "")
    named = os.environ.get(variable, SHORT_FOLDERS[0])
    path = os.path.abspath(named)
    if not (unfit := _unfit(path)):
        return ScratchFolder(path)
    problem = f"{variable or 'the folder of temporary files'} is {named}, {unfit}"
    others = [] if variable == "RAY_TMPDIR" else [folder for folder in SHORT_FOLDERS if not _unfit(folder)]
    return ScratchFolder(others[0], problem) if others else ScratchFolder("/", problem, usable=False)


def _unfit(folder: str) -> str:
    """Returns why Ray cannot keep its temporary files in a folder, as the rest of a sentence; empty if it can."""
    ray_folder = Path(folder, "ray")  # another user may have made it
    size, most = len(os.fsencode(folder)), LONGEST_SOCKET - len(_LONGEST_IN_RAY)
    if size > most:
        return f"which has {size} bytes, while Ray's sockets leave room for {most}"
    try:
        folder.encode("ascii")
        with tempfile.TemporaryFile(dir=ray_folder if ray_folder.exists() else folder) as file:
            file.write(b"0" * 4096)
            file.flush()
    except UnicodeEncodeError:
        return "which Ray cannot use, because it is not ASCII"
    except OSError as error:
        return f"which cannot be written: {(error.strerror or type(error).__name__).lower()}"
    return ""


def _cpus() -> float:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = Path("/sys/fs/cgroup/cpu.max")
    allowed, _, period = quota.read_text().partition(" ") if quota.is_file() else ("max", "", "")
    return float(usable) if allowed == "max" else min(usable, int(allowed) / int(period))


def _memory() -> tuple[int, int]:
    """Returns the bytes of memory, of the container if there is one, and how many are free."""
    machine = psutil.virtual_memory()
    allowed, used = _number("/sys/fs/cgroup/memory.max"), _number("/sys/fs/cgroup/memory.current")
    if allowed is None or used is None:
        return machine.total, machine.available
    return min(machine.total, allowed), min(machine.available, allowed - used)


def _number(path: str) -> int | None:
    """Returns the number in a file of the kernel; None if there is no file or no limit."""
    text = Path(path).read_text().strip() if Path(path).is_file() else ""
    return int(text) if text.isdigit() else None


def _limit(name: str) -> int | None:
    import resource

    soft, _ = resource.getrlimit(getattr(resource, name))
    return None if soft == resource.RLIM_INFINITY else soft


def _least(*numbers: int | None) -> int | None:
    return min((number for number in numbers if number is not None), default=None)


def _gpus() -> tuple[tuple[str, ...], str]:
    """Returns the GPUs that nvidia-smi shows, and its message if it cannot."""
    if shutil.which("nvidia-smi") is None:
        return (), ""
    command = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_DRIVER_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return (), str(error)
    lines = [line.strip() for line in (answer.stdout + answer.stderr).splitlines() if line.strip()]
    if answer.returncode == 0:
        return tuple(lines), ""
    return (), lines[0] if lines else f"exit code {answer.returncode}"


def _torch() -> tuple[str | None, int | None, int | None]:
    """Returns the CUDA version that torch was built for, and the number of GPUs it can use, with their free bytes."""
    try:
        import torch
    except Exception:  # the check of the packages reports it
        return None, None, None
    devices = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    try:
        free = max((torch.cuda.mem_get_info(device)[0] for device in devices), default=None)
    except RuntimeError:  # of a GPU that is full, or used by one process alone
        free = 0
    return torch.version.cuda or "", len(devices), free
