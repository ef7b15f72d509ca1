"""Checks of every node of a cluster: one task on each node collects facts, another tries the simulator.

A task is a process of its own, so a crash becomes a finding, and a task that hangs is given up.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.exceptions import RayError

from rlpipe.config.plan import Plan
from rlpipe.distributed.cluster import Cluster
from rlpipe.distributed.nodes import alive_nodes, missing_from_ray, own_node_id, pinned_to
from rlpipe.distributed.placement import Node, needed_at_start, node_table, room, run_bundles, shortage
from rlpipe.distributed.roles import Role
from rlpipe.doctor import driver, facts, libraries, limits, machine, memory, servers, simulators, versions
from rlpipe.doctor.machine import NodeLoad
from rlpipe.doctor.results import CheckReport, CheckResult, CheckStatus, fail, ok
from rlpipe.errors import ConfigError
from rlpipe.trajectory import SpaceSpec

PATIENCE_SECONDS = 45.0
"""Time in which every node must answer."""
_SHORT_PATIENCE_SECONDS = 20.0
_NODE, _SILENT = "node", "no answer in time."
"""Name of the results for nodes that could not be checked, and what they say of a node that did not answer."""
_LOGS = "look at /tmp/ray/session_latest/logs there, or below its RAY_TMPDIR or TMPDIR."


@dataclass(frozen=True)
class NodeToCheck:
    """Node to check, by its unique name and Ray's id of it, with the load that the run may put on it."""

    name: str
    node_id: str
    load: NodeLoad


def examine(config: Plan | None = None, address: str | None = None, patience: float = PATIENCE_SECONDS) -> CheckReport:
    """Checks this machine, the cluster and its nodes.

    Args:
        config: configuration of a planned run; then also what it needs is checked, on the nodes it may use.
        address: cluster to join; else ``RAY_ADDRESS``, else one is started on this machine.
        patience: seconds in which the nodes must answer.
    """
    began = time.perf_counter()
    address = address or os.environ.get("RAY_ADDRESS")
    joined = address is not None or ray.is_initialized()
    backend_results = servers.check_backends(config) if config else list
    driver_results = driver.check_driver(config, address)
    driver_results.append(driver.check_ray_default(missing_from_ray(), joined=joined, config=config))
    connected = _connect(address)
    if isinstance(connected, CheckResult):
        results = [connected, *driver_results, *backend_results(), *_own_machine()]
        return CheckReport(results, [], time.perf_counter() - began)
    try:
        nodes, placement = nodes_to_check(config)
        own_ray = "" if joined else ", started for this, as a run does without an address"
        where = f" at {address}" if address else own_ray
        placement[0] = replace(placement[0], message=placement[0].message + where)
        node_results = _examine(nodes, config, patience)
    finally:
        connected.close()
    results = [*placement, *driver_results, *backend_results(), *node_results]
    return CheckReport(results, [node.name for node in nodes], time.perf_counter() - began)


def _connect(address: str | None) -> Cluster | CheckResult:
    """Connects to Ray; returns what is wrong if that fails."""
    if not ray.is_initialized() and address is not None and (problem := driver.check_address(address)) is not None:
        return problem
    try:
        return Cluster(address)
    except ConfigError as error:
        return fail("Ray", str(error))


def _own_machine() -> list[CheckResult]:
    """Checks this machine alone, which may show why Ray does not start."""
    local_facts = facts.look(_required_packages())
    load = NodeLoad(local_facts.cpus, len(local_facts.gpus))
    return [
        *versions.check_versions(local_facts, {"": local_facts}, versions.requirements()),
        *machine.check_machine(local_facts, load),
        *libraries.check_libraries(local_facts),
    ]


def preflight(config: Plan, workers: Mapping[str, int]) -> list[CheckResult]:
    """Checks the nodes of a run that has connected to Ray, within a second or two: torch and simulators are not loaded.

    Args:
        workers: number of rollout workers placed on each node, by its id.
    Returns:
        Warnings.
    Raises:
        ConfigError: something must be fixed; the message names all of it, with the remedies. A node that does not
            answer is not among it: it may only be slow, and the workers have a time limit of their own.
    """
    nodes, _ = nodes_to_check(config)  # the placement has checked whether everything fits
    nodes = [replace(node, load=replace(node.load, workers=workers.get(node.node_id, 0))) for node in nodes]
    results = [tolerated(result) for result in _examine(nodes, config, _SHORT_PATIENCE_SECONDS, short=True)]
    if failed := [result.sentence for result in results if result.status == CheckStatus.FAIL]:
        lines = "\n  ".join(failed)
        raise ConfigError(f"the cluster cannot carry this run:\n  {lines}")
    return [result for result in results if result.status == CheckStatus.WARN]


def tolerated(result: CheckResult) -> CheckResult:
    """Turns the failure of a slow node into a warning: it may still start its workers in time."""
    slow = (result.name, result.message) == (_NODE, _SILENT)
    return replace(result, status=CheckStatus.WARN) if slow else result


def _required_packages() -> list[str]:
    return [*(requirement.name for requirement in versions.requirements()), *libraries.packages()]


def nodes_to_check(config: Plan | None) -> tuple[list[NodeToCheck], list[CheckResult]]:
    """Returns the nodes that a run may use, or all without a configuration, and the results about the cluster."""
    nodes = alive_nodes()
    workers = {node.name: int(node.resources.get("CPU", 0.0)) for node in nodes}
    used, problems = {node.name for node in nodes}, []
    if config is not None:
        bundles = run_bundles(config, nodes)
        if lacking := shortage([bundles[index] for index in needed_at_start(config, bundles)], nodes):
            message = f"{lacking}. There is:\n{node_table(nodes)}"
            problems.append(fail("placement", message, "ask for less, or add nodes."))
        worker, others = bundles[0], [bundle for bundle in bundles if bundle.role != Role.ROLLOUT_WORKER]
        placed = [bundle for bundle in others if bundle.resources or bundle.labels]
        driver_node, most = own_node_id(), len(bundles) - len(others)
        workers = {node.name: min(most, room(worker, [node])) for node in nodes}
        used = {
            node.name for node in nodes
            if workers[node.name] or any(bundle.fits(node) for bundle in placed) or node.node_id == driver_node
        }  # fmt: skip
    selected = [NodeToCheck(node.name, node.node_id, _load(node, workers[node.name])) for node in nodes]
    return [node for node in selected if node.name in used], [_summary(nodes, len(used)), *problems]


def _load(node: Node, workers: int) -> NodeLoad:
    cpus, gpus, store = (node.resources.get(name, 0.0) for name in ("CPU", "GPU", "object_store_memory"))
    return NodeLoad(cpus, gpus, store, workers)


def _summary(nodes: Sequence[Node], used: int) -> CheckResult:
    cpus, gpus = (sum(node.resources.get(name, 0.0) for node in nodes) for name in ("CPU", "GPU"))
    size = f"{len(nodes)} node{'s' * (len(nodes) != 1)} with {cpus:g} CPUs and {gpus:g} GPUs"
    return ok("Ray", size + (f"; the run may use {used} of them" if used < len(nodes) else ""))


def _examine(
    nodes: Sequence[NodeToCheck], config: Plan | None, patience: float, *, short: bool = False
) -> list[CheckResult]:
    """Collects facts and trials from all nodes at once, and judges them."""
    ends = time.monotonic() + patience
    needed, device = _required_packages(), "auto" if config is None else config.learner.device
    driver_facts = facts.look(needed, deep=False)
    near = own_node_id() if short else ""  # a task would take longer than everything else
    looking = {
        node.name: run_task(node, facts.look, needed, deep=not short, sees_gpus=not short)
        for node in nodes if node.node_id != near
    }  # fmt: skip
    trying, cameras, used = {}, False, []
    if config is not None:
        configured = simulators.simulators(config)
        used = [(options.name, name) for options in configured.values() for name in libraries.ids(options)]
    if config is not None and not short:
        cameras = any(getattr(options, "needs_vulkan", False) for options in configured.values())
        trying = {node.name: run_task(node, _try_simulators, configured) for node in nodes if node.load.workers}
    facts_by_node, results = _answers(_NODE, looking, ends)
    facts_by_node |= {node.name: driver_facts for node in nodes if node.node_id == near}
    trials, silent = _answers("simulator", trying, ends)
    results += versions.check_versions(driver_facts, facts_by_node, versions.requirements()) if facts_by_node else []
    for node in nodes:
        tried: list[simulators.Trial] = trials.get(node.name, [])
        judged = [simulators.check_trial(trial) for trial in tried]
        if node.name in facts_by_node:
            peak = max([machine.WORKER_BYTES, *(trial.peak for trial in tried)])
            judged = machine.check_machine(facts_by_node[node.name], node.load, device, peak, cameras=cameras) + judged
            library_results = libraries.check_libraries(facts_by_node[node.name], used)
            judged += [result for result in library_results if not short or result.status == CheckStatus.FAIL]
        results += [replace(result, node=node.name) for result in judged]
    if config is not None and not short:
        silent += _check_learner(config, nodes, facts_by_node, trials, patience)
        silent += _check_limits(config, nodes, facts_by_node, trials)
    return results + silent


def _check_limits(
    config: Plan,
    nodes: Sequence[NodeToCheck],
    facts_by_node: Mapping[str, facts.Facts],
    trials: Mapping[str, Sequence[simulators.Trial]],
) -> list[CheckResult]:
    """Reports the limit that the run will meet first, if one is within reach."""
    workers = sum(bundle.role == Role.ROLLOUT_WORKER for bundle in run_bundles(config, alive_nodes()))
    shares: list[limits.Limit] = []
    for node in nodes:
        if node.name in facts_by_node:
            peak = max([machine.WORKER_BYTES, *(trial.peak for trial in trials.get(node.name, []))])
            connected = workers if node.node_id == own_node_id() else node.load.workers
            shares += limits.node_limits(facts_by_node[node.name], node.load, peak, connected, node.name)
    if speeds := [trial.speed for tried in trials.values() for trial in tried if trial.speed]:
        environments = math.ceil(config.env.train.total_num_envs / workers)
        steps = config.rollout.horizon * config.policy.steps_per_decision * environments
        shares.append(limits.driver_limit(workers, steps / min(speeds)))
    nearest = limits.first_limit(shares)
    return [] if nearest is None else [nearest]


def _check_learner(
    config: Plan,
    nodes: Sequence[NodeToCheck],
    facts_by_node: Mapping[str, facts.Facts],
    trials: Mapping[str, Sequence[simulators.Trial]],
    patience: float,
) -> list[CheckResult]:
    """Estimates the memory of the learner and compares it with what is free where the learner will run.

    Returns:
        Nothing if that is unknown: no node has answered, or no simulator could tell its spaces.
    """
    specs = [tried[0].spec for tried in trials.values() if tried and tried[0].spec is not None]
    judged_nodes = [node for node in nodes if node.name in facts_by_node]
    if not specs or not judged_nodes:
        return []
    node, on_gpu = _node_of_learner(config, judged_nodes, facts_by_node)
    driver_node = next((node for node in nodes if node.node_id == own_node_id()), nodes[0])
    ref = run_task(driver_node, _estimate_memory, config, specs[0], sees_gpus=False)
    answers, problems = _answers(memory.NAME, {driver_node.name: ref}, time.monotonic() + patience)
    if problems:
        return [memory.no_estimate(problems[0].message)]
    facts_there = facts_by_node[node.name]
    if on_gpu:
        result = memory.check_learner_memory(answers[driver_node.name], facts_there.device_memory or 0, on_gpu=True)
    else:
        peak = max([machine.WORKER_BYTES, *(trial.peak for trial in trials.get(node.name, []))])
        beside = node.load.workers * peak
        parts = answers[driver_node.name]
        result = memory.check_learner_memory(parts, facts_there.available, on_gpu=False, beside=beside)
    return [replace(result, node=node.name)]


def _node_of_learner(
    config: Plan, nodes: Sequence[NodeToCheck], facts_by_node: Mapping[str, facts.Facts]
) -> tuple[NodeToCheck, bool]:
    """Returns the node where a learner will find the most memory, and True if that is the memory of a GPU."""
    with_gpu = [node for node in nodes if node.load.gpus and facts_by_node[node.name].devices]
    if with_gpu and config.learner.device != "cpu" and config.cluster.gpus_per_learner != 0:
        return max(with_gpu, key=lambda node: facts_by_node[node.name].device_memory or 0), True
    if config.cluster.cpus_per_learner:
        return max(nodes, key=lambda node: facts_by_node[node.name].available), False
    return next((node for node in nodes if node.node_id == own_node_id()), nodes[0]), False


def _estimate_memory(config: Plan, spec: SpaceSpec) -> dict[str, int]:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    from rlpipe.learning.memory import estimated_memory  # torch, which whoever starts a run need not load

    return estimated_memory(config, spec)


def _try_simulators(configured: Mapping[str, Any]) -> list[simulators.Trial]:
    os.environ.update({"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"})  # as in a rollout worker
    return simulators.try_simulators(configured)


def run_task(
    node: NodeToCheck, function: Callable[..., Any], *args: Any, sees_gpus: bool = True, **options: Any
) -> Any:
    """Runs a function on a node, busy or not, in a process that ends with it; returns the reference of its result.

    Ray may hide GPUs that are not reserved from the libraries of the process, unless it gets an environment of its own,
    which a node takes a second to make.
    """
    environment = {"env_vars": {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}} if sees_gpus else None
    task = ray.remote(max_calls=1, max_retries=0, num_cpus=0, runtime_env=environment)(function)
    options_of_task = {"name": "rlpipe doctor", "scheduling_strategy": pinned_to(node.node_id)}
    return task.options(**options_of_task).remote(*args, **options)


def _answers(name: str, refs: Mapping[str, Any], ends: float) -> tuple[dict[str, Any], list[CheckResult]]:
    """Returns the answers by node, and a result for each node without one."""
    pending = list(refs.values())
    done: set[Any] = set()
    if pending:
        done.update(ray.wait(pending, num_returns=len(pending), timeout=max(0.1, ends - time.monotonic()))[0])
    answers: dict[str, Any] = {}
    problems: list[CheckResult] = []
    for node, ref in refs.items():
        if ref not in done:
            ray.cancel(ref, force=True)
            remedy = f"rlpipe doctor --timeout SECONDS waits longer; {_LOGS}"
            problems.append(replace(fail(name, _SILENT, remedy), node=node))
            continue
        try:
            answers[node] = ray.get(ref)
        except RayError as error:
            problems.append(replace(fail(name, _last_line(error), _LOGS), node=node))
    return answers, problems


def _last_line(error: RayError) -> str:
    """Returns the last line of Ray's message, which is the exception if a task raised one."""
    return [line.strip() for line in str(error).splitlines() if line.strip()][-1]
