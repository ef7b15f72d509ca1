"""Checks of one machine: its facts beside what a run will put on it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from rlpipe.doctor.facts import Facts
from rlpipe.doctor.results import CheckResult, fail, ok, warn
from rlpipe.envs.shared.rendering import INSTALL_VULKAN

WORKER_BYTES = 300e6
"""Memory of a rollout worker with torch and a small simulator; measured."""
WORKER_FILES, RAY_FILES = 4, 128
"""Open files of Ray's busiest process, per worker and besides; measured 3 and 60."""
WORKER_THREADS, RAY_THREADS = 30, 300
"""Threads of a worker, and of Ray besides; measured 24 and 200."""
ENOUGH_FILES = 4096
"""Open files below which Ray itself warns."""
FULL_DISK = 0.95
"""Share of a disk in use above which Ray moves no more objects there."""


@dataclass(frozen=True)
class NodeLoad:
    """Load that a run may put on a node.

    Attributes:
        cpus: CPUs that Ray counts.
        gpus: GPUs that Ray counts.
        object_store: bytes of Ray's object store.
        workers: largest number of rollout workers.
    """

    cpus: float
    gpus: float = 0.0
    object_store: float = 0.0
    workers: int = 1


def check_machine(
    facts: Facts, load: NodeLoad, device: str = "auto", per_worker: float = WORKER_BYTES, *, cameras: bool = False
) -> list[CheckResult]:
    """Checks everything about one node except its versions and simulators.

    Args:
        device: ``learner.device``.
        per_worker: bytes of memory of a rollout worker.
        cameras: True if the simulators of the run render.
    """
    results = [
        _check_cpus(facts, load),
        _check_memory(facts, load, per_worker),
        _check_shared_memory(facts, load),
        _check_open_files(facts, load),
        _check_processes(facts, load),
        _check_scratch(facts),
        _check_gpus(facts, load, device),
        _check_vulkan(facts, load, cameras=cameras),
    ]
    return [result for result in results if result is not None]


def _check_cpus(facts: Facts, load: NodeLoad) -> CheckResult:
    if load.cpus > facts.cpus:
        message = f"Ray counts {load.cpus:g}, but its processes may use {facts.cpus:g}, so workers share them."
        return warn("CPUs", message, f"start Ray there with --num-cpus {int(facts.cpus)}.")
    return ok("CPUs", f"{load.cpus:g}" + (" (no rollout worker goes here)" if load.cpus == 0 else ""))


def _check_memory(facts: Facts, load: NodeLoad, per_worker: float) -> CheckResult:
    message, needed = f"{_gb(facts.available)} of {_gb(facts.memory)} free", load.workers * per_worker
    if needed > facts.available:
        each = f"{load.workers} rollout workers would take {_gb(needed)} ({_gb(per_worker)} each)"
        remedy = "lower rollout.num_workers or raise cluster.cpus_per_worker; Ray kills workers at 95 %."
        return warn("memory", f"{message}; {each}.", remedy)
    return ok("memory", message)


def _check_shared_memory(facts: Facts, load: NodeLoad) -> CheckResult | None:
    if facts.shared_memory is None:
        return None
    message = f"/dev/shm has {_gb(facts.shared_memory)}"
    message += f", Ray's object store {_gb(load.object_store)}" if load.object_store else ""
    if facts.shared_memory < load.object_store:
        remedy = (
            f"docker run --shm-size={load.object_store / 0.95e9:.1f}gb; on Kubernetes mount an emptyDir with medium "
            "Memory at /dev/shm; or start Ray with a smaller --object-store-memory."
        )
        return warn("shared memory", f"{message}, which then lies on the disk and is slow.", remedy)
    return ok("shared memory", message)


def _check_open_files(facts: Facts, load: NodeLoad) -> CheckResult:
    if facts.open_files is None:
        return ok("open files", "no limit")
    needed = RAY_FILES + WORKER_FILES * load.workers
    remedy = "ulimit -n 65536 before Ray is started there (docker run --ulimit nofile=65536:65536)."
    if facts.open_files < needed:
        message = (
            f"a process may open {facts.open_files:,}, but Ray needs about {needed:,} with {load.workers} workers."
        )
        return fail("open files", message, remedy)
    if facts.open_files < ENOUGH_FILES:
        message = f"a process may open {facts.open_files:,}; a large cluster needs more."
        return warn("open files", message, remedy)
    return ok("open files", f"{facts.open_files:,} a process")


def _check_processes(facts: Facts, load: NodeLoad) -> CheckResult:
    if facts.processes is None:
        return ok("processes", "no limit")
    needed = RAY_THREADS + WORKER_THREADS * load.workers
    if facts.processes < needed:
        message = f"at most {facts.processes:,} threads, but Ray and {load.workers} workers have about {needed:,}."
        return fail("processes", message, "ulimit -u 65536 (docker run --pids-limit=-1) where Ray is started.")
    return ok("processes", f"{facts.processes:,} threads")


def _check_scratch(facts: Facts) -> CheckResult:
    message = f"{1 - facts.full:.0%} of the disk of {facts.scratch} is free"
    if facts.full > FULL_DISK:
        remedy = "make room, or start Ray with RAY_TMPDIR on another disk: on this one it moves no objects."
        return warn("Ray's disk", f"{message}.", remedy)
    return ok("Ray's disk", message)


def _check_gpus(facts: Facts, load: NodeLoad, device: str) -> CheckResult:
    problem = fail if device.startswith("cuda") and load.gpus > 0 else warn
    if facts.gpu_trouble:
        remedy = "reboot after an update of the driver; in a container, start it with the NVIDIA runtime (--gpus all)."
        return problem("GPU", f"nvidia-smi says: {facts.gpu_trouble}", remedy)
    names = ", ".join(f"{many} x {name}" for name, many in Counter(facts.gpus).items())
    if facts.devices is not None and facts.devices < load.gpus and device != "cpu":
        return problem("GPU", *_unusable_gpus(facts, load, names))
    if not facts.gpus:
        return ok("GPU", "none; a learner here runs on the CPU")
    if facts.devices is not None and facts.devices > load.gpus and device != "cpu":
        message = f"{names}, of which torch can use {facts.devices}, but Ray counts {load.gpus:g}."
        return warn("GPU", message, f"start Ray there with --num-gpus {facts.devices}.")
    return ok("GPU", names + (f", CUDA {facts.cuda}" if facts.cuda else ""))


def _unusable_gpus(facts: Facts, load: NodeLoad, names: str) -> tuple[str, str]:
    """Returns why torch can use fewer GPUs than Ray counts, and what to do."""
    if not facts.gpus:
        message = f"Ray counts {load.gpus:g}, but there is no driver (nvidia-smi), and torch can use none."
        return message, "start Ray there without --num-gpus, or install the driver."
    if not facts.cuda:
        return f"{names}, but torch was built for CPUs.", "install a build for CUDA: https://pytorch.org"
    message = f"{names}, of which torch, built for CUDA {facts.cuda}, can use {facts.devices}."
    return message, "update the driver, or install torch for an older CUDA; look at CUDA_VISIBLE_DEVICES."


def _check_vulkan(facts: Facts, load: NodeLoad, *, cameras: bool) -> CheckResult | None:
    if facts.rendering is None:
        return None
    if facts.rendering:
        return ok("Vulkan", "a device was found; ManiSkill can render")
    if cameras and load.workers:
        return fail(
            "Vulkan", "no device, but env.train.obs_mode or env.eval.obs_mode asks for cameras.", INSTALL_VULKAN
        )
    message = "no device: state observations need none, cameras (env.train.obs_mode) do"
    return ok("Vulkan", f"{message} (Mesa's lavapipe 24.3 or newer is enough)")


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f} GB"
