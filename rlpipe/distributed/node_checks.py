"""The checks of ``rlpipe.doctor`` on every node of a cluster: a task on each looks, and another tries the simulator.

A task is a process of its own: what crashes it is a finding and not the end, and one that hangs is given up.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rlpipe.config.schema import Config
from rlpipe.distributed.cluster import Cluster
from rlpipe.distributed.placement import WORKER, Node, named, parts, room, shortage, table
from rlpipe.doctor import checks
from rlpipe.doctor.checks import Finding, Report, Share, Trial
from rlpipe.errors import ConfigError

PATIENCE_SECONDS = 45.0
"""Within which every node must have answered."""
_SHORT_PATIENCE_SECONDS = 20.0
_NODE, _SILENT = "node", "no answer in time."
"""Name of the findings about nodes that could not be looked at, and what is found of those that say nothing."""
_LOGS = "look at /tmp/ray/session_latest/logs there."


@dataclass(frozen=True)
class _Site:
    """A node that is examined, and what a run may use of it."""

    name: str
    node_id: str
    share: Share


def examine(config: Config | None = None, address: str | None = None, patience: float = PATIENCE_SECONDS) -> Report:
    """Checks this machine, the cluster and its nodes; with a configuration also what that needs, on those it may use.

    Args:
        config: of a run.  address: cluster to join; else ``RAY_ADDRESS``, else one is started on this machine.
        patience: seconds within which the nodes must have answered.
    """
    began = time.perf_counter()
    address = address or os.environ.get("RAY_ADDRESS")
    joined = address is not None or ray.is_initialized()
    trackers = checks.check_trackers(config) if config else list
    here = checks.check_here(config, address)
    here.append(checks.check_ray_default(_missing(), joined=joined, config=config))
    trouble = None if ray.is_initialized() or address is None else checks.check_address(address)
    if trouble is None:
        try:
            cluster = Cluster(address)
        except ConfigError as error:
            trouble = Finding("Ray", "fail", str(error))
        except Exception as error:  # Ray has no type of its own for a start that failed
            remedy = f"see below whether this machine lacks something; else {_LOGS}"
            trouble = Finding("Ray", "fail", str(error).strip(), remedy)
    if trouble is not None:
        facts = checks.look(_needed_packages())  # what is so here may be why
        versions = checks.check_versions(facts, {"": facts}, checks.requirements())
        machine = checks.check_machine(facts, Share(facts.cpus, len(facts.gpus)))
        return Report([trouble, *here, *trackers(), *versions, *machine], [], time.perf_counter() - began)
    try:
        sites, placed = _sites(config)
        where = (
            f" at {address}" if address else "" if joined else ", started for this, as a run does without an address"
        )
        placed[0] = replace(placed[0], found=placed[0].found + where)
        found = _examine(sites, config, patience)
    finally:
        cluster.close()
    return Report([*placed, *here, *trackers(), *found], [site.name for site in sites], time.perf_counter() - began)


def preflight(config: Config, workers: Mapping[str, int]) -> list[Finding]:
    """The short form, for the start of a run that has connected to Ray: what can be seen on each node of the run within
    a second or two, without loading torch or a simulator.

    Args:
        config: of the run.  workers: how many rollout workers have their place on each node, by its id.
    Returns:
        What works, but not as it might.
    Raises:
        ConfigError: something must be fixed; the message names all of it, with the remedies. A node that does not
            answer is not among it: it may only be slow, and whether workers start in time is asked anyway.
    """
    sites, _ = _sites(config)  # whether there is a place for everything, the placement itself says
    sites = [replace(site, share=replace(site.share, workers=workers.get(site.node_id, 0))) for site in sites]
    findings = [_lenient(found) for found in _examine(sites, config, _SHORT_PATIENCE_SECONDS, short=True)]
    if broken := [found.sentence for found in findings if found.status == "fail"]:
        lines = "\n  ".join(broken)
        raise ConfigError(f"the cluster cannot carry this run:\n  {lines}")
    return [found for found in findings if found.status == "warn"]


def _lenient(found: Finding) -> Finding:
    """A node that is slow may start its workers in time; one whose answer is an error will not."""
    return replace(found, status="warn") if (found.name, found.found) == (_NODE, _SILENT) else found


def _missing() -> str:
    """Package of Ray's extra ``default`` that is not there."""
    try:
        import ray.dashboard.optional_deps  # noqa: F401 - what Ray itself tries before it starts its servers
    except ImportError as error:
        return error.name or str(error)
    return ""


def _needed_packages() -> list[str]:
    return [one.name for one in checks.requirements()]


def _sites(config: Config | None) -> tuple[list[_Site], list[Finding]]:
    """The nodes a run may use, all without a configuration; and whether there is a place for each of its parts."""
    alive = named([node for node in ray.nodes() if node["Alive"]])
    found = {name: Node(name, node["Resources"], node.get("Labels") or {}) for name, node in alive.items()}
    used, workers = set(alive), dict.fromkeys(alive, 0)
    findings: list[Finding] = []
    if config is None:
        workers = {name: int(node.resources.get("CPU", 0.0)) for name, node in found.items()}
    else:
        nodes = list(found.values())
        bundles = parts(config, nodes)
        worker, others = bundles[0], [bundle for bundle in bundles if bundle.part != WORKER]
        if lacking := shortage(bundles, nodes):
            told = f"{lacking}. There is:\n{table(nodes)}"
            findings.append(Finding("placement", "fail", told, "ask for less, or add nodes."))
        here = ray.get_runtime_context().get_node_id()
        asking = [bundle for bundle in others if bundle.resources or bundle.labels]
        most = len(bundles) - len(others)
        workers = {name: min(most, room(worker, [node])) for name, node in found.items()}
        used = {
            name
            for name, node in found.items()
            if workers[name] or any(one.fits(node) for one in asking) or alive[name]["NodeID"] == here
        }
    totals = {what: sum(node.resources.get(what, 0.0) for node in found.values()) for what in ("CPU", "GPU")}
    told = f"{len(found)} node{'s' * (len(found) != 1)} with {totals['CPU']:g} CPUs and {totals['GPU']:g} GPUs"
    told += f"; the run may use {len(used)} of them" if len(used) < len(found) else ""
    findings.insert(0, Finding("Ray", "ok", told))
    return [_site(name, alive[name], workers[name]) for name in alive if name in used], findings


def _site(name: str, node: Mapping[str, Any], workers: int) -> _Site:
    cpus, gpus, store = (node["Resources"].get(what, 0.0) for what in ("CPU", "GPU", "object_store_memory"))
    return _Site(name, node["NodeID"], Share(cpus, gpus, store, workers))


def _examine(sites: Sequence[_Site], config: Config | None, patience: float, *, short: bool = False) -> list[Finding]:
    ends = time.monotonic() + patience
    needed, device = _needed_packages(), "auto" if config is None else config.learner.device
    own = checks.look(needed, deep=False)
    near = ray.get_runtime_context().get_node_id() if short else ""  # a task would take longer than all the rest
    looking = {site.name: _on(site, checks.look, needed, deep=not short) for site in sites if site.node_id != near}
    trying = {}
    if config is not None and not short:
        configured = checks.simulators(config)
        trying = {site.name: _on(site, _try, configured) for site in sites if site.share.workers}
    facts, findings = _answers(_NODE, looking, ends)
    facts |= {site.name: own for site in sites if site.node_id == near}
    trials, silent = _answers("simulator", trying, ends)
    findings += checks.check_versions(own, facts, checks.requirements()) if facts else []
    for site in sites:
        tried: list[Trial] = trials.get(site.name, [])
        judged = [checks.check_trial(trial) for trial in tried]
        if site.name in facts:
            peak = max([checks.WORKER_BYTES, *(trial.peak for trial in tried)])
            judged = checks.check_machine(facts[site.name], site.share, device, peak) + judged
        findings += [replace(found, node=site.name) for found in judged]
    return findings + silent


def _try(configured: Mapping[str, Any]) -> list[Trial]:
    os.environ.update({"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"})  # as a rollout worker has them
    return checks.try_simulators(configured)


def _on(site: _Site, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Reference of what the function returns on that node, busy or not, in a process that ends with it."""
    seeing = {"env_vars": {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}}  # else Ray may hide GPUs that are not reserved
    task = ray.remote(max_calls=1, max_retries=0, num_cpus=0, runtime_env=seeing)(function)
    where = NodeAffinitySchedulingStrategy(site.node_id, soft=False)
    return task.options(name="rlpipe doctor", scheduling_strategy=where).remote(*args, **options)


def _answers(what: str, asked: Mapping[str, Any], ends: float) -> tuple[dict[str, Any], list[Finding]]:
    """What came back of the nodes, by name, and of those from which nothing did, why."""
    refs = list(asked.values())
    done: set[Any] = set()
    if refs:
        done.update(ray.wait(refs, num_returns=len(refs), timeout=max(0.1, ends - time.monotonic()))[0])
    answers: dict[str, Any] = {}
    findings: list[Finding] = []
    for name, ref in asked.items():
        if ref not in done:
            ray.cancel(ref, force=True)
            remedy = f"rlpipe doctor --timeout SECONDS waits longer; {_LOGS}"
            findings.append(Finding(what, "fail", _SILENT, remedy, name))
            continue
        try:
            answers[name] = ray.get(ref)
        except RayError as error:
            findings.append(Finding(what, "fail", _told(error), _LOGS, name))
    return answers, findings


def _told(error: RayError) -> str:
    """Its last line: of a task that raised, what it raised."""
    return [line.strip() for line in str(error).splitlines() if line.strip()][-1]
