"""Whether a machine can carry a run, judged one thing at a time before the run finds out (``rlpipe doctor``).

``look`` and ``try_simulators`` say what is so where they run; every check is a function of that, and makes a
``Finding`` with its remedy. Knows nothing of Ray: ``distributed/doctor.py`` does the looking on each node.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import numpy as np
from packaging.requirements import Requirement
from packaging.version import Version

from rlpipe.config.schema import FIRST_TRAINING_SEED, Config, LoggerConfig
from rlpipe.config.sections import options_of
from rlpipe.config.stages import stages
from rlpipe.errors import ConfigError
from rlpipe.plugins import resolve
from rlpipe.secrets import redacted

LEVELS = ("ok", "warn", "fail")
"""Of findings, from the best: in order; works, but not as it might; must be fixed."""
DECIDES_NUMBERS = ("numpy", "torch", "gymnasium", "mani_skill", "sapien", "ray", "rlpipe")
"""Packages that must be the same everywhere, lest a number depend on the node it was computed on."""
STEPS = 10
CONNECT_SECONDS, REACH_SECONDS = 3.0, 10.0
"""How long a server may take to accept a connection, and also to be found by its name, at whichever address."""
WORKER_BYTES = 300e6
"""Of memory that a rollout worker takes with torch and a small simulator; measured."""
WORKER_FILES, RAY_FILES = 4, 128
"""Open files of Ray's busiest process: for each worker, and besides; measured 3 and 60."""
WORKER_THREADS, RAY_THREADS = 30, 300
"""Threads of a worker, and of Ray besides; measured 24 and 200."""
ENOUGH_FILES = 4096
"""Open files below which Ray itself warns."""
FULL_DISK = 0.95
"""Share of a disk from which on Ray moves no more objects there."""
TIGHT_BYTES, ROOMY_BYTES = 0.2e9, 2e9
"""Free space of the run's disk: too little for a run, and enough for most."""


@dataclass(frozen=True)
class Finding:
    """What a check found.

    Attributes:
        name: of the check.  status: ok, warn or fail.  found: what is so.  remedy: what to do; where ``found`` says
            it already, empty.  node: where; empty: of the machine that asks, or of all together.
    """

    name: str
    status: str
    found: str
    remedy: str = ""
    node: str = ""

    @property
    def sentence(self) -> str:
        """All of it, for a line of a log."""
        where = f" on {self.node}" if self.node else ""
        return f"{self.name}{where}: {self.found}" + (f" Remedy: {self.remedy}" if self.remedy else "")


@dataclass(frozen=True)
class Report:
    """All findings.  nodes: that were examined.  seconds: it took."""

    findings: list[Finding]
    nodes: list[str]
    seconds: float

    @property
    def status(self) -> str:
        """The worst."""
        return max((found.status for found in self.findings), key=LEVELS.index, default="ok")

    def count(self, status: str) -> int:
        """Different things of that status, however many nodes have them."""
        return len({(found.name, found.found) for found in self.findings if found.status == status})

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {"status": self.status, **asdict(self)}


@dataclass(frozen=True)
class Facts:
    """What a machine says of itself; None where it does not say or was not asked.

    Attributes:
        python: version.  packages: versions of those that were asked for and are there.  source: digest of rlpipe's
            own files, which a version alone does not tell apart.
        cpus: this process may use.  memory, available: bytes.  shared_memory: bytes of /dev/shm.
        open_files, processes: limits, of a process and of the user or the container.
        gpus: that the driver shows, each with name, driver version and MiB.  gpu_trouble: what the driver says instead.
        cuda: version that torch was built for, empty for none.  devices: that torch can use.
        rendering: whether SAPIEN finds a Vulkan device; None without SAPIEN.
        scratch: folder of temporary files.  full: share of its disk in use.
    """

    python: str
    packages: Mapping[str, str]
    source: str
    cpus: float
    memory: int | None
    available: int | None
    shared_memory: int | None
    open_files: int | None
    processes: int | None
    gpus: tuple[str, ...]
    gpu_trouble: str
    scratch: str
    full: float
    cuda: str | None = None
    devices: int | None = None
    rendering: bool | None = None


@dataclass(frozen=True)
class Share:
    """What a run may use of a node.  cpus, gpus: Ray counts.  object_store: bytes.  workers: most it can get."""

    cpus: float
    gpus: float = 0.0
    object_store: float = 0.0
    workers: int = 1


@dataclass(frozen=True)
class Trial:
    """How a simulator did in a process of its own.

    Attributes:
        task: its name, and what it is for.  failure: what went wrong; empty if nothing did.
        start, reset: seconds.  speed: steps per second of one environment, by the median: the first is slow.
        peak: bytes of the process.
    """

    task: str
    failure: str = ""
    start: float = 0.0
    reset: float = 0.0
    speed: float = 0.0
    peak: float = 0.0


# --- what is so


def requirements() -> list[Requirement]:
    """What this rlpipe says it needs, without its extras; empty where it was not installed as a package."""
    try:
        lines = metadata.requires("rlpipe") or []
    except metadata.PackageNotFoundError:
        return []
    needed = [Requirement(line) for line in lines]
    return [one for one in needed if one.marker is None or one.marker.evaluate({"extra": ""})]


def look(packages: Iterable[str], *, deep: bool = True) -> Facts:
    """The facts of the machine this runs on.

    Args:
        packages: whose versions to tell.
        deep: also load torch, and SAPIEN in a process of its own, which takes seconds.
    """
    gpus, trouble = _driver()
    cuda, devices = _torch() if deep else (None, None)
    scratch = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
    disk = shutil.disk_usage(scratch)
    memory, available = _memory()
    return Facts(
        python=platform.python_version(),
        packages={name: found for name in {*packages, *DECIDES_NUMBERS} if (found := _version(name))},
        source=_source(),
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
        rendering=_rendering() if deep else None,
    )


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _source() -> str:
    digest = hashlib.sha256()
    folder = Path(__file__).parent.parent
    for file in sorted(folder.rglob("*.py")):
        digest.update(str(file.relative_to(folder)).encode() + file.read_bytes())
    return digest.hexdigest()[:8]


def _cpus() -> float:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = Path("/sys/fs/cgroup/cpu.max")
    allowed, _, period = quota.read_text().partition(" ") if quota.is_file() else ("max", "", "")
    return float(usable) if allowed == "max" else min(usable, int(allowed) / int(period))


def _memory() -> tuple[int | None, int | None]:
    """Of the container, where there is one, and what of it is free."""
    free: dict[str, int] = {}
    if (file := Path("/proc/meminfo")).is_file():
        free = {line.split(":")[0]: 1024 * int(line.split()[1]) for line in file.read_text().splitlines()}
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    allowed, used = _number("/sys/fs/cgroup/memory.max"), _number("/sys/fs/cgroup/memory.current")
    left = None if allowed is None or used is None else allowed - used
    return _least(total, allowed), _least(free.get("MemAvailable"), left)


def _number(path: str) -> int | None:
    """What a file of the kernel holds; None for no file or no limit."""
    text = Path(path).read_text().strip() if Path(path).is_file() else ""
    return int(text) if text.isdigit() else None


def _limit(name: str) -> int | None:
    import resource

    soft, _ = resource.getrlimit(getattr(resource, name))
    return None if soft == resource.RLIM_INFINITY else soft


def _least(*numbers: int | None) -> int | None:
    return min((number for number in numbers if number is not None), default=None)


def _driver() -> tuple[tuple[str, ...], str]:
    """What nvidia-smi shows, and what it says if it cannot."""
    if shutil.which("nvidia-smi") is None:
        return (), ""
    asked = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        answer = subprocess.run(asked, capture_output=True, text=True, timeout=15, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return (), str(error)
    said = [line.strip() for line in (answer.stdout + answer.stderr).splitlines() if line.strip()]
    return (tuple(said), "") if answer.returncode == 0 else ((), said[0] if said else f"exit code {answer.returncode}")


def _torch() -> tuple[str | None, int | None]:
    try:
        import torch
    except Exception:  # the packages' check tells of it
        return None, None
    return torch.version.cuda or "", torch.cuda.device_count() if torch.cuda.is_available() else 0


def _rendering() -> bool | None:
    """As ``envs/maniskill.py`` finds it out, in a process of its own, because a bad driver may crash it."""
    if importlib.util.find_spec("sapien") is None:
        return None
    code = "import sapien.render; sapien.render.RenderMaterial()"
    try:
        answer = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, timeout=30)
    except subprocess.TimeoutExpired:
        return False
    return answer.returncode == 0


def simulators(config: Config) -> dict[str, Any]:
    """Options of each simulator of a run, each once, by what it is for: a stage, or evaluation."""
    wanted = {stage.name: stage.config.env.train for stage in stages(config)} | {"evaluation": config.env.eval}
    found: dict[str, Any] = {}
    for name, options in wanted.items():
        alone = replace(options, total_num_envs=1)
        if alone not in found.values():
            found[name] = alone
    return found


def try_simulators(configured: Mapping[str, Any]) -> list[Trial]:
    """Makes each, resets it and takes ten steps, in this process."""
    return [_try(f"{getattr(options, 'id', options.name)} ({name})", options) for name, options in configured.items()]


def _try(task: str, options: Any) -> Trial:
    import resource

    began = time.perf_counter()
    try:
        simulator = resolve("envs", options.name, "env.train.name").make(options, 1, lambda _: FIRST_TRAINING_SEED)
        made = time.perf_counter()
        observations, _ = simulator.reset()
        reset = time.perf_counter()
        spec, noise, seconds = simulator.spec, np.random.default_rng(0), []
        finite = bool(np.isfinite(observations).all())
        for _ in range(STEPS):
            if spec.num_actions is not None:
                actions = noise.integers(spec.num_actions, size=1)
            else:
                actions = spec.clip(noise.standard_normal((1, spec.action_dim), dtype=np.float32))
            asked = time.perf_counter()
            step = simulator.step(actions)
            seconds.append(time.perf_counter() - asked)
            finite &= bool(np.isfinite(step.successors).all() and np.isfinite(step.rewards).all())
        simulator.close()
    except ConfigError as error:
        return Trial(task, str(error))
    except Exception as error:
        return Trial(task, f"{type(error).__name__}: {error}")
    if not finite:
        return Trial(task, f"an observation or a reward within its first {STEPS} steps is not finite")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return Trial(task, "", made - began, reset - made, 1 / statistics.median(seconds), peak)


# --- what it means


def check_versions(own: Facts, nodes: Mapping[str, Facts], needed: Sequence[Requirement]) -> list[Finding]:
    """Whether all nodes run what this machine runs, and that is what rlpipe needs."""
    found: list[Finding] = []
    for node, facts in nodes.items():
        for what, ours, theirs in _differences(own, facts):
            told = f"{what} is {theirs}, but {ours} on the machine that asks."
            remedy = f"install {what} {ours} on it, or use one image everywhere."
            found.append(Finding("versions", "fail", told, remedy, node))
        if facts.source != own.source:  # perhaps only because somebody is editing it
            told = f"the source of rlpipe is another ({facts.source}) than on the machine that asks ({own.source})."
            found.append(Finding("versions", "warn", told, "install the same there, or let them share it.", node))
        lacking = [one for one in needed if _outside(one, facts.packages.get(one.name))]
        if lacking:
            there = ", ".join(f"{one.name} {facts.packages.get(one.name, 'is missing')}" for one in lacking)
            command = f"pip install {' '.join(map(repr, map(str, lacking)))}"
            found.append(Finding("versions", "fail", f"{there}; rlpipe needs others.", command, node))
    if found:
        return found
    names = ("ray", "torch", "gymnasium", "mani_skill")
    versions = [f"Python {own.python}", *(f"{name} {own.packages[name]}" for name in names if name in own.packages)]
    same = f", the same on {len(nodes)} nodes" if len(nodes) > 1 else ""
    told = f"{', '.join(versions)}, rlpipe {_version('rlpipe') or 'from source'} ({own.source}){same}"
    return [Finding("versions", "ok", told)]


def _outside(requirement: Requirement, version: str | None) -> bool:
    return version is None or not requirement.specifier.contains(version, prereleases=True)


def _differences(own: Facts, other: Facts) -> list[tuple[str, str, str]]:
    """What, here, there. A build of torch for CUDA is the same torch; patches of Python are the same Python."""

    def minor(python: str) -> str:
        return ".".join(python.split(".")[:2])

    both = [name for name in DECIDES_NUMBERS if name in own.packages and name in other.packages]  # missing: told above
    pairs = [
        ("Python", minor(own.python), minor(other.python)),
        *((name, Version(own.packages[name]).public, Version(other.packages[name]).public) for name in both),
    ]
    return [(what, ours, theirs) for what, ours, theirs in pairs if ours != theirs]


def check_machine(facts: Facts, share: Share, device: str = "auto", per_worker: float = WORKER_BYTES) -> list[Finding]:
    """Everything about one node but its versions and its simulators.

    Args:
        facts, share: of the node.  device: ``learner.device``.  per_worker: bytes of memory a rollout worker takes.
    """
    found = [
        _check_cpus(facts, share),
        _check_memory(facts, share, per_worker),
        _check_shared_memory(facts, share),
        _check_open_files(facts, share),
        _check_processes(facts, share),
        _check_scratch(facts),
        _check_gpus(facts, share, device),
        _check_vulkan(facts),
    ]
    return [one for one in found if one is not None]


def _check_cpus(facts: Facts, share: Share) -> Finding:
    if share.cpus > facts.cpus:
        told = f"Ray counts {share.cpus:g}, but its processes may use {facts.cpus:g}, so that workers share them."
        return Finding("CPUs", "warn", told, f"start Ray there with --num-cpus {int(facts.cpus)}.")
    return Finding("CPUs", "ok", f"{share.cpus:g}" + (" (no rollout worker goes here)" if share.cpus == 0 else ""))


def _check_memory(facts: Facts, share: Share, per_worker: float) -> Finding | None:
    if facts.memory is None or facts.available is None:
        return None
    told, needed = f"{_gb(facts.available)} of {_gb(facts.memory)} free", share.workers * per_worker
    if needed > facts.available:
        each = f"{share.workers} rollout workers would take {_gb(needed)} ({_gb(per_worker)} each)"
        remedy = "lower rollout.num_workers or raise cluster.cpus_per_worker; Ray kills workers at 95 %."
        return Finding("memory", "warn", f"{told}; {each}.", remedy)
    return Finding("memory", "ok", told)


def _check_shared_memory(facts: Facts, share: Share) -> Finding | None:
    if facts.shared_memory is None:
        return None
    told = f"/dev/shm has {_gb(facts.shared_memory)}"
    told += f", Ray's object store {_gb(share.object_store)}" if share.object_store else ""
    if facts.shared_memory < share.object_store:
        remedy = (
            f"docker run --shm-size={share.object_store / 0.95e9:.1f}gb; on Kubernetes mount an emptyDir with medium "
            "Memory at /dev/shm; or start Ray with a smaller --object-store-memory."
        )
        return Finding("shared memory", "warn", f"{told}, which then lies on the disk and is slow.", remedy)
    return Finding("shared memory", "ok", told)


def _check_open_files(facts: Facts, share: Share) -> Finding:
    if facts.open_files is None:
        return Finding("open files", "ok", "no limit")
    needed = RAY_FILES + WORKER_FILES * share.workers
    remedy = "ulimit -n 65536 before Ray is started there (docker run --ulimit nofile=65536:65536)."
    if facts.open_files < needed:
        told = f"a process may open {facts.open_files:,}, but Ray needs some {needed:,} with {share.workers} workers."
        return Finding("open files", "fail", told, remedy)
    if facts.open_files < ENOUGH_FILES:
        told = f"a process may open {facts.open_files:,}; a large cluster needs more."
        return Finding("open files", "warn", told, remedy)
    return Finding("open files", "ok", f"{facts.open_files:,} a process")


def _check_processes(facts: Facts, share: Share) -> Finding:
    if facts.processes is None:
        return Finding("processes", "ok", "no limit")
    needed = RAY_THREADS + WORKER_THREADS * share.workers
    if facts.processes < needed:
        told = f"at most {facts.processes:,} threads, but Ray and {share.workers} workers have some {needed:,}."
        return Finding("processes", "fail", told, "ulimit -u 65536 (docker run --pids-limit=-1) where Ray is started.")
    return Finding("processes", "ok", f"{facts.processes:,} threads")


def _check_scratch(facts: Facts) -> Finding:
    told = f"{1 - facts.full:.0%} of the disk of {facts.scratch} is free"
    if facts.full > FULL_DISK:
        remedy = "make room, or start Ray with RAY_TMPDIR on another disk: on this one it moves no objects."
        return Finding("Ray's disk", "warn", f"{told}.", remedy)
    return Finding("Ray's disk", "ok", told)


def _check_gpus(facts: Facts, share: Share, device: str) -> Finding:
    wanted = device.startswith("cuda") and share.gpus > 0
    if facts.gpu_trouble:
        remedy = "reboot after an update of the driver; in a container, start it with the NVIDIA runtime (--gpus all)."
        return Finding("GPU", "fail" if wanted else "warn", f"nvidia-smi says: {facts.gpu_trouble}", remedy)
    shown = ", ".join(f"{many} x {name}" for name, many in Counter(facts.gpus).items())
    if facts.devices is not None and facts.devices < share.gpus and device != "cpu":
        if not facts.gpus:
            told = f"Ray counts {share.gpus:g}, but there is no driver (nvidia-smi), and torch can use none."
            remedy = "start Ray there without --num-gpus, or install the driver."
        elif not facts.cuda:
            told, remedy = f"{shown}, but torch was built for CPUs.", "install a build for CUDA: https://pytorch.org"
        else:
            told = f"{shown}, of which torch, built for CUDA {facts.cuda}, can use {facts.devices}."
            remedy = "update the driver, or install torch for an older CUDA; look at CUDA_VISIBLE_DEVICES."
        return Finding("GPU", "fail" if wanted else "warn", told, remedy)
    if not facts.gpus:
        return Finding("GPU", "ok", "none; a learner here runs on the CPU")
    if facts.devices is not None and facts.devices > share.gpus and device != "cpu":
        told = f"{shown}, of which torch can use {facts.devices}, but Ray counts {share.gpus:g}."
        return Finding("GPU", "warn", told, f"start Ray there with --num-gpus {facts.devices}.")
    return Finding("GPU", "ok", shown + (f", CUDA {facts.cuda}" if facts.cuda else ""))


def _check_vulkan(facts: Facts) -> Finding | None:
    if facts.rendering is None:
        return None
    if facts.rendering:
        return Finding("Vulkan", "ok", "a device was found; ManiSkill can draw")
    told = "no device: state observations need none, videos do (Mesa's lavapipe 24.3 or newer is enough)"
    return Finding("Vulkan", "ok", told)


def check_trial(trial: Trial) -> Finding:
    """How a simulator did."""
    if trial.failure:
        remedy = "try it alone: rlpipe train CONFIG --local"
        return Finding("simulator", "fail", f"{trial.task}: {trial.failure}", remedy)
    told = f"{trial.task}: {trial.speed:,.0f} steps/s, reset {1000 * trial.reset:,.0f} ms"
    return Finding("simulator", "ok", f"{told}; loaded in {trial.start:.1f} s, {_gb(trial.peak)} of memory")


def check_log_path(config: Config | None) -> Finding:
    """Whether the folder of runs can be written, on the machine that asks, where run directories lie."""
    path = Path((config.runner.logger if config else LoggerConfig()).log_path)
    there = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    remedy = "runner.logger.log_path=FOLDER on another disk, or make room."
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"0" * 4096)
    except OSError as error:
        return Finding("run folder", "fail", f"cannot write to {there}: {error.strerror}.", remedy)
    free = shutil.disk_usage(there).free
    status = "fail" if free < TIGHT_BYTES else "warn" if free < ROOMY_BYTES else "ok"
    told = f"{path} can be written, {_gb(free)} free"
    return Finding("run folder", status, told, "" if status == "ok" else remedy)


def check_trackers(config: Config) -> Callable[[], list[Finding]]:
    """Whether the configured backends can work here and their servers answer. Asks all at once; what it returns waits
    for the answers."""
    logger = config.runner.logger
    found: list[Finding] = []
    asked: list[Future[Finding]] = []
    for index, name in enumerate(logger.logger_backends):
        backend = resolve("backends", name, f"runner.logger.logger_backends[{index}]")
        options = options_of(name, backend.Config, logger.options.get(name, {}))
        try:
            backend.check()
        except ConfigError as error:
            found.append(Finding(f"tracker {name}", "fail", str(error)))
            continue
        if server := backend.server(options):
            asked.append(_aside(check_server, name, server))
    return lambda: [*found, *(asking.result() for asking in asked)]


def _aside(function: Callable[..., Any], *args: Any) -> Future[Any]:
    """Its result, from a thread for which nothing waits, not even the end of the process."""
    future: Future[Any] = Future()

    def work() -> None:
        try:
            future.set_result(function(*args))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return future


def check_server(name: str, url: str) -> Finding:
    """Whether something accepts a connection where a tracker's server should be, or at the proxy on the way."""
    parts = urlsplit(url)
    host, way = parts.hostname or "", ""
    proxy = None if proxy_bypass(host) else getproxies().get(parts.scheme)
    if proxy:
        parts = urlsplit(proxy)
        way = f" by the proxy {parts.hostname}"
    trouble = unreachable(parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80))
    if trouble:
        remedy = f"the run goes on without it, and `rlpipe sync RUN --to {name}` catches up; or leave {name} out."
        return Finding(f"tracker {name}", "warn", f"{host} does not answer{way}: {trouble}.", remedy)
    return Finding(f"tracker {name}", "ok", f"{host} answers{way}")


def unreachable(host: str, port: int) -> str:
    """Why no connection comes about; empty if one does."""
    connecting = _aside(socket.create_connection, (host, port), CONNECT_SECONDS)  # no limit holds for finding a name
    try:
        connecting.result(timeout=REACH_SECONDS).close()
    except OSError as error:  # a TimeoutError is one
        return error.strerror or str(error) or f"no answer within {REACH_SECONDS:g} s"
    except (OverflowError, UnicodeError) as error:  # a port that is none, a name that is none
        return str(error)
    return ""


def check_address(address: str) -> Finding | None:
    """Whether something answers where a Ray cluster should be; Ray itself may take minutes to say that nothing does."""
    if "://" in address:
        try:
            parts = urlsplit(address)
        except ValueError as error:
            return Finding("Ray", "fail", f"the address {address} is none: {error}.", "--ray-address HOST:6379")
        whose = "Ray Client's" if parts.scheme == "ray" else "that of the job server, for `rlpipe submit`"
        told = f"the address {redacted(address, {})} is {whose}, and not that of a cluster to join."
        return Finding("Ray", "fail", told, f"--ray-address {parts.hostname}:6379, or unset RAY_ADDRESS.")
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        remedy = "--ray-address HOST:6379, or unset RAY_ADDRESS; `auto` may wait for minutes on what a dead Ray left."
        return Finding("Ray", "fail", f"the address {address} is none of the form HOST:PORT.", remedy)
    if trouble := unreachable(host.strip("[]"), int(port)):
        remedy = "give the address that `ray start --head` printed; without one, a run starts a Ray of its own."
        return Finding("Ray", "fail", f"nothing answers at {address}: {trouble}.", remedy)
    return None


def check_address_file(path: Path) -> Finding | None:
    """Whether a Ray that is dead left its address behind, where other tools look for it."""
    address = path.read_text().strip() if path.is_file() else ""
    host, _, port = address.rpartition(":")
    if not port.isdigit() or not (trouble := unreachable(host, int(port))):
        return None
    told = f"{path} names {address}, where nothing answers ({trouble})."
    remedy = f"rm {path}: rlpipe never reads it, but `ray status` and others hang on it."
    return Finding("stale address", "warn", told, remedy)


def check_authentication(environ: Mapping[str, str], home: Path, address: str | None) -> Finding:
    """Whether Ray will find the token it asks for."""
    mode, kept = environ.get("RAY_AUTH_MODE", ""), home / ".ray" / "auth_token"
    path = Path(environ.get("RAY_AUTH_TOKEN_PATH") or kept)
    has_token = bool(environ.get("RAY_AUTH_TOKEN")) or path.is_file()
    get_one = "copy the token of the cluster's head node (~/.ray/auth_token) and set RAY_AUTH_TOKEN_PATH to the file."
    if "RAY_AUTH_TOKEN_PATH" in environ and not path.is_file():
        return Finding("Ray's token", "fail", f"RAY_AUTH_TOKEN_PATH is {path}, which is no file.", get_one)
    if mode == "token":
        if address and not has_token:
            return Finding("Ray's token", "fail", "RAY_AUTH_MODE=token, but there is no token.", get_one)
        return Finding("Ray's token", "ok", "RAY_AUTH_MODE=token, and there is one")
    if mode:
        return Finding("Ray's token", "ok", f"RAY_AUTH_MODE={mode}")
    if kept.is_file():
        told = f"{kept} exists, so every `ray start` here asks for it, but joining by an address does not send it."
        return Finding("Ray's token", "warn", told, "export RAY_AUTH_MODE=token, or remove the file if none is wanted.")
    if address:
        return Finding("Ray's token", "ok", "not sent: RAY_AUTH_MODE is not set")
    return Finding("Ray's token", "ok", "a run's own Ray gets one of its own")


def check_ray_default(missing: str, *, joined: bool, config: Config | None) -> Finding:
    """Whether Ray can do what needs its extra ``default``.

    Args:
        missing: package of it that is not there; empty for none.  joined: a cluster that others started.
    """
    if not missing:
        return Finding("ray[default]", "ok", "installed")
    told, remedy = f"{missing} is missing", f"pip install 'ray[default]=={_version('ray')}'"
    if config is not None and "prometheus" in config.runner.logger.logger_backends:
        return Finding("ray[default]", "fail", f"{told}, so Prometheus would see nothing.", remedy)
    if joined:
        return Finding("ray[default]", "warn", f"{told}: no job can be submitted here, and no dashboard shown.", remedy)
    return Finding("ray[default]", "ok", f"{told}; only `rlpipe submit`, Prometheus and Ray's dashboard need it")


def check_here(config: Config | None, address: str | None) -> list[Finding]:
    """What concerns only the machine that asks."""
    addresses = Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir(), "ray", "ray_current_cluster")
    found = [
        check_log_path(config),
        check_authentication(os.environ, Path.home(), address),
        check_address_file(addresses),
    ]
    return [one for one in found if one is not None]


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f} GB"
