"""Rows of ``benchmarks/gpu.py`` in plain data: nothing here needs torch or rlpipe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

EPOCHS, MINIBATCHES = 4, 8
UNITS = {"ppo": "samples", "grpo": "episodes", "rlpd": "steps", "sac": "steps"}
"""Unit of the size of an update."""


class Skipped(Exception):  # noqa: N818 - no error
    """The reason why something cannot be measured here."""


@dataclass(frozen=True)
class Update:
    """An update of a learner.

    Attributes:
        title: algorithm and, where it has several, policy.
        algorithm: ``ppo``, ``grpo``, ``rlpd``, ``sac`` or ``behaviour_cloning``.
        count: samples of an update of PPO, episodes of one of GRPO, gradient steps of one of RLPD or SAC; 0 for an
            epoch of cloning.
        policy: section of a configuration, for PPO and GRPO.
        pixels: height and width of the camera that is all the policy observes; 0 for a policy of state.
        precision: ``learner.precision``.
        overrides: further ``key=value`` of the configuration.
        repeats: timed updates, after two that warm up.
        epochs: passes of PPO and GRPO over their samples.
        minibatches: gradient steps of a pass.
        on_cpu: True to measure it on the CPU beside the GPU as well.
        threads: number of torch's threads on the CPU, or ``auto``.
        goals: least ``per_second``, ``gain`` (graphs over eager) or ``kernel_share`` with graphs.
    """

    title: str
    algorithm: str
    count: int = 0
    policy: Mapping[str, Any] = field(default_factory=dict)
    pixels: int = 0
    precision: str = "float32"
    overrides: tuple[str, ...] = ()
    repeats: int = 5
    epochs: int = EPOCHS
    minibatches: int = MINIBATCHES
    on_cpu: bool = False
    threads: int | str = "auto"
    goals: Mapping[str, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Title and size, such as ``PPO, 0.3 M, 3,200 samples``."""
        size = f"{self.count:,} {UNITS[self.algorithm]}" if self.count else "one epoch"
        return f"{self.title}, {size}"

    def at(self, *precisions: str) -> Iterator[Update]:
        """The same update in each of these precisions."""
        return (replace(self, precision=precision, goals={}, on_cpu=False) for precision in precisions)


@dataclass(frozen=True)
class Plan:
    """Everything that is measured, the most decisive first.

    Attributes:
        decisive: updates of each algorithm, eager and as CUDA graphs.
        reads: updates whose reads of the device are counted.
        others: updates of other sizes, policies and precisions.
        acting: updates whose policies act, once each.
        rows: observations that are acted on at once.
        compiled: updates with ``learner.compile``; last, because a compiler takes longest.
        iterations: of the run.
        calls: calls of each operation for the floor.
    """

    decisive: Sequence[Update]
    reads: Sequence[Update]
    others: Sequence[Update]
    acting: Sequence[Update]
    rows: int
    compiled: Sequence[Update]
    iterations: int
    calls: int


def perceptron(*hidden: int) -> dict[str, Any]:
    """Section of a policy of state, with so many units in each hidden layer of actor and of critic."""
    return {"name": "mlp", "hidden_sizes": list(hidden)}


def of_camera(**encoder: Any) -> dict[str, Any]:
    """Section of a policy that sees one camera, and nothing else."""
    return {"name": "mlp", "hidden_sizes": [256], "encoders": {"camera": encoder}}


def of_tokens(chunk_size: int, *hidden: int, **decoder: Any) -> dict[str, Any]:
    """Section of a policy of state whose decisions are tokens, eight for each action of a chunk."""
    decoding = {"decoding": "autoregressive", **decoder}
    return {"name": "tokens", "chunk_size": chunk_size, "hidden_sizes": list(hidden), **decoding}


SMALL_POLICY = perceptron(256, 256, 256)
PRECISIONS = ("float32", "tf32", "bfloat16")


def full() -> Plan:
    """The plan for a GPU."""
    few = Update("PPO, 0.3 M", "ppo", 3_200, SMALL_POLICY, on_cpu=True, goals={"gain": 4.0, "kernel_share": 0.6})
    many = replace(few, count=65_536, on_cpu=False, goals={"gain": 2.5})
    rlpd = Update("RLPD", "rlpd", 128, on_cpu=True, goals={"per_second": 1000.0})
    cloning = Update("cloning", "behaviour_cloning", on_cpu=True)
    grpo = Update("GRPO, 0.3 M", "grpo", 128, SMALL_POLICY, on_cpu=True)
    sac = Update("SAC", "sac", 128, on_cpu=True)
    ten, hundred = (
        Update(title, "ppo", 65_536, perceptron(width, width, width), repeats=repeats)
        for title, width, repeats in (("PPO, 10 M", 1536, 4), ("PPO, 100 M", 4992, 2))
    )
    camera = Update("PPO, camera", "ppo", 4_096, of_camera(name="impala_cnn"), pixels=128)
    tokens = Update("PPO, tokens", "ppo", 4_096, of_tokens(8, 1024, 1024, slot_width=256, decoder_layers=4))
    return Plan(
        decisive=[rlpd, few, many, grpo, sac, cloning],
        reads=[few, rlpd, cloning],
        others=[
            *many.at(*PRECISIONS[1:]),
            *few.at(*PRECISIONS[1:]),
            *ten.at(*PRECISIONS),
            *camera.at("float32", "bfloat16"),
            *tokens.at("float32", "bfloat16"),
            *hundred.at(*PRECISIONS),
            *replace(ten, count=3_200).at(*PRECISIONS),
            *replace(hundred, count=3_200).at(*PRECISIONS),
        ],
        acting=[few, ten, hundred, camera, tokens],
        rows=256,
        compiled=[replace(many, title="PPO, 0.3 M, compiled", overrides=("learner.compile=true",), goals={})],
        iterations=20,
        calls=1000,
    )  # fmt: skip


def small() -> Plan:
    """The plan for a rehearsal on the CPU."""
    quick: dict[str, Any] = {"threads": 1, "repeats": 2, "epochs": 1, "minibatches": 2}
    few = Update("PPO, 0.3 M", "ppo", 256, SMALL_POLICY, goals={"gain": 4.0, "kernel_share": 0.6}, **quick)
    rlpd = Update("RLPD", "rlpd", 8, goals={"per_second": 1000.0}, **quick)
    cloning = Update(
        "cloning", "behaviour_cloning", overrides=("policy.hidden_sizes=[32]", "num_demos=10"), **quick
    )  # fmt: skip
    camera = Update("PPO, camera", "ppo", 64, of_camera(name="impala_cnn", channels=[4]), pixels=24, **quick)
    tokens = Update("PPO, tokens", "ppo", 64, of_tokens(2, 16, bins=8), **quick)
    return Plan(
        decisive=[
            rlpd,
            few,
            Update("GRPO, 0.3 M", "grpo", 8, SMALL_POLICY, **quick),
            Update("SAC", "sac", 8, **quick),
            cloning,
        ],
        reads=[few, rlpd, cloning],
        others=[*few.at("tf32", "bfloat16"), camera, tokens],
        acting=[few, camera, tokens],
        rows=4,
        compiled=[],
        iterations=4,
        calls=20,
    )
