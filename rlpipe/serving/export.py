"""Writes a trained policy as an ONNX graph that needs neither torch nor rlpipe.

Everything is in the graph but the noise, which comes from outside: observations go in as the environment gives them.
"""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
import warnings
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rlpipe.config.loading import load_config
from rlpipe.config.sections import acting_sections
from rlpipe.config.tree import from_yaml
from rlpipe.envs.shared.make import make_simulator
from rlpipe.errors import ConfigError, SimulatorError
from rlpipe.plugins import require
from rlpipe.policies.base import Policy
from rlpipe.run.checkpoint import Checkpoint
from rlpipe.serving import runner
from rlpipe.serving.card import card_text, record_card
from rlpipe.serving.loading import CARD, card_of, decisions_of, policy_of
from rlpipe.serving.runner import ActingPolicy
from rlpipe.trajectory import SpaceSpec, Tree
from rlpipe.trajectory.synthetic import synthetic_observations

OPSET = 18
GRAPH = "policy.onnx"
TOLERANCE = 1e-5
"""Largest difference of an action from that of the policy in torch, in units of the action or of half its range."""
RANDOM_OBSERVATIONS = 256
VISITED_DECISIONS = 64


@dataclass(frozen=True)
class Check:
    """Result of comparing an export with the policy that it was made of.

    Attributes:
        random: number of random observations
        visited: number of observations that the policy met in its simulator; 0 where that is not installed
        difference: largest difference of an action, in units of half its range, or its own where that is unbounded
        other: number of discrete actions or tokens that differ
    """

    random: int
    visited: int
    difference: float
    other: int


class _Graph(nn.Module):
    """A policy as a function of arrays."""

    def __init__(self, policy: Policy, names: list[str]) -> None:
        super().__init__()
        self.policy, self._names = policy, names

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        arrays = dict(zip(self._names, inputs, strict=True))
        noise, memory = arrays.pop("noise", None), arrays.pop("memory", None)
        tree = arrays["obs"] if "obs" in arrays else Tree({name.removeprefix("obs."): x for name, x in arrays.items()})
        decided = self.policy.decide(tree, noise, memory)
        return (decided.actions,) if decided.memories is None else (decided.actions, decided.memories)


def export_policy(state: Checkpoint, folder: Path, *, deterministic: bool | None = None) -> tuple[Path, Check]:
    """Writes ``policy.onnx``, ``card.json``, ``README.md`` and ``runner.py`` into a new folder, which appears only when
    the graph decides as the policy does.

    Args:
        state: checkpoint of the policy
        folder: folder to make
        deterministic: take the most likely actions; None does what the evaluations of its run did
    Returns:
        The folder, and how the graph was checked.
    Raises:
        ConfigError: the folder exists, a library is missing, or the policy cannot be written as a graph.
    """
    for module in ("onnx", "onnxruntime", "onnxscript"):
        require(module, "onnx", "rlpipe export --format onnx")
    if folder.exists():
        raise ConfigError(f"--out is {folder}, which exists already: name a folder that does not.")
    class_, options, _ = acting_sections(from_yaml(state.meta["config"]))
    if class_.outside_torch:
        raise ConfigError(
            f"policy.name={options.name} cannot be written as an ONNX graph. {class_.outside_torch} Use it with "
            "rlpipe.load_policy."
        )
    policy = policy_of(state)
    card = card_of(state, policy, deterministic)
    if not card["deterministic"] and not policy.noise_kinds:
        raise ConfigError(
            f"policy.name={card['policy']} draws noise of its own (it overrides noise, and its noise_kinds are empty): "
            "export its most likely actions with --deterministic."
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        write_graph(policy, card, partial / GRAPH)
        check = _checked(state, policy, card, partial / GRAPH)
        whole = card | record_card(state) | {"check": vars(check), "format": 1}
        (partial / CARD).write_text(json.dumps(whole, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        (partial / "README.md").write_text(card_text(whole), encoding="utf-8")
        shutil.copyfile(Path(runner.__file__), partial / "runner.py")
        partial.chmod(0o755)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder, check


def _inputs(policy: Policy, card: Mapping[str, Any], rows: int) -> dict[str, NDArray[Any]]:
    """Returns inputs of zeros, [rows, ...] each, by the names they have in the graph."""
    observations = SpaceSpec.from_json(card["spaces"]).observations(rows)
    noise = None if card["deterministic"] else policy.noise(np.random.default_rng(0), rows)
    memories = np.zeros((rows, card["memory_width"]), np.float32) if card["memory_width"] else None
    return runner.graph_inputs(getattr(observations, "leaves", observations), noise, memories)


def write_graph(policy: Policy, card: Mapping[str, Any], file: Path) -> None:
    """Writes the graph, whose number of rows is free.

    Raises:
        ConfigError: the policy does what no graph can.
    """
    import onnx

    inputs = _inputs(policy, card, 3)
    batch = torch.export.Dim("batch")
    names = list(inputs)
    outputs = ["actions", "memory_out"][: 1 + bool(card["memory_width"])]
    try:
        with _quiet(), torch.no_grad():
            torch.onnx.export(
                _Graph(policy, names).eval(),
                tuple(map(torch.from_numpy, inputs.values())),
                str(file),
                input_names=names,
                output_names=outputs,
                dynamic_shapes=(tuple({0: batch} for _ in names),),
                opset_version=OPSET,
                dynamo=True,
                external_data=False,
                verbose=False,
            )
    except Exception as error:  # the exporter wraps whatever its steps raise
        cause = error.__cause__ or error
        reason = next((text for text in str(cause).splitlines() if text.strip()), type(cause).__name__)
        raise ConfigError(
            f"policy.name={card['policy']} cannot be written as an ONNX graph: {reason} Its policy can still be used "
            "with rlpipe.load_policy."
        ) from error
    graph = onnx.load(file)
    fixed = [entry.name for entry in graph.graph.input if not entry.type.tensor_type.shape.dim[0].dim_param]
    if fixed:
        raise ConfigError(
            f"policy.name={card['policy']} fixes the number of rows of {', '.join(fixed)}, as len(x) does in a graph: "
            "use x.shape[0] in its act or decide."
        )
    onnx.helper.set_model_props(graph, {name: json.dumps(value) for name, value in card.items()})
    onnx.checker.check_model(graph)
    onnx.save(graph, file)


@contextmanager
def _quiet() -> Any:
    """Silences what the exporter says about itself."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _checked(state: Checkpoint, policy: Policy, card: Mapping[str, Any], file: Path) -> Check:
    """Compares the graph with the policy, on random observations and on those that the policy meets.

    Raises:
        ConfigError: they do not decide alike.
    """
    spaces = SpaceSpec.from_json(card["spaces"])
    ours, theirs = decisions_of(policy), runner.onnx_decisions(runner.open_graph(file))
    generator = np.random.default_rng(0)
    visited = _visited(state, policy, card)
    batches = [random_observations(spaces, RANDOM_OBSERVATIONS, generator), *([visited] if visited is not None else [])]
    difference, other, total = 0.0, 0, 0
    for observations in batches:
        count = len(next(iter(observations.values())) if isinstance(observations, dict) else observations)
        noise = None if card["deterministic"] else policy.noise(generator, count)
        memory = generator.normal(size=(count, card["memory_width"])).astype(np.float32)
        answers = [decide(observations, noise, memory if card["memory_width"] else None) for decide in (ours, theirs)]
        (expected, remembered), (actions, memory_out) = answers
        apart = differences(expected, actions, spaces.chunked(card["chunk_size"]))
        if spaces.num_actions is not None or policy.in_tokens:  # one near a tie may fall on the other side of it
            other, total = other + int((apart > TOLERANCE).sum()), total + apart.size
            apart = apart[apart <= TOLERANCE]
        difference = max(difference, float(apart.max(initial=0.0)))
        if remembered is not None:
            difference = max(difference, float(np.abs(remembered - memory_out).max()))
    if difference > TOLERANCE or other > total // 1000:
        raise ConfigError(
            f"the graph of policy.name={card['policy']} does not decide as the policy does: actions differ by up to "
            f"{difference:.2g} of half their range, and {other} of {total} discrete ones differ. Nothing was written; "
            "this is a fault of rlpipe or of the policy's plug-in."
        )
    return Check(RANDOM_OBSERVATIONS, 0 if visited is None else VISITED_DECISIONS, difference, other)


def differences(expected: NDArray[Any], actions: NDArray[Any], spaces: SpaceSpec) -> NDArray[Any]:
    """Returns how far actions are from those expected: in units of half their range, where they have a finite one."""
    low, high = spaces.action_low, spaces.action_high
    if low is None or high is None:
        other: NDArray[Any] = np.abs(expected - actions)
        return other
    with np.errstate(over="ignore", invalid="ignore"):
        half = (high - low) / 2
    apart: NDArray[Any] = np.abs(expected - actions) / np.where(np.isfinite(half) & (half > 0), half, 1.0)
    return apart


def random_observations(spaces: SpaceSpec, count: int, generator: np.random.Generator) -> Any:
    """Returns random observations, [count, ...]; of a tree, by the names of its leaves."""
    observations = synthetic_observations(spaces, generator, count)
    return observations.leaves if isinstance(observations, Tree) else observations


def _visited(state: Checkpoint, policy: Policy, card: Mapping[str, Any]) -> Any:
    """Returns the observations that the policy meets in its evaluation's simulator, [VISITED_DECISIONS, ...]; None
    where that cannot be made here."""
    try:
        config = load_config(from_yaml(state.meta["config"]))
        seeds = iter(range(config.evaluation.first_seed, config.evaluation.first_seed + VISITED_DECISIONS + 1))
        simulator = make_simulator(config.env.eval, 1, lambda _: next(seeds), key="env.eval")
    except (ConfigError, ImportError, SimulatorError) as error:
        logging.getLogger("rlpipe").warning(
            "The simulator could not be made here, so the graph is checked on random observations alone: %s", error
        )
        return None
    observed: list[Any] = []

    def deciding(observations: Any, noise: Any, memories: Any) -> Any:
        observed.append(observations)
        return decide(observations, noise, memories)

    decide = decisions_of(policy)
    acting = ActingPolicy(deciding, card, noise=lambda generator: policy.noise(generator, 1))
    try:
        observations, _ = simulator.reset()
        while len(observed) < VISITED_DECISIONS:
            leaves = observations.leaves if isinstance(observations, Tree) else observations
            step = simulator.step(acting.act(leaves))
            if step.terminated[0] or step.truncated[0]:
                acting.reset()
            observations = step.observations
    finally:
        simulator.close()
    if isinstance(observed[0], dict):
        return {name: np.concatenate([each[name] for each in observed]) for name in observed[0]}
    return np.concatenate(observed)
