"""Choice of a learner's device for ``learner.device=auto``: the one whose gradient steps take less time, measured."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from rlpipe.algorithms.base import OnPolicyConfig
from rlpipe.algorithms.shared.off_policy import OffPolicyConfig
from rlpipe.config.schema import Config, Stage
from rlpipe.trajectory import SpaceSpec
from rlpipe.trajectory.batch import TrajectoryBatch
from rlpipe.trajectory.synthetic import synthetic_batch

if TYPE_CHECKING:
    from rlpipe.learning.base import LearnerBase

LARGE = 3_000_000
"""Parameters of a policy from which a GPU is taken without a trial."""
STEPS = 16
"""Gradient steps of an update of a trial."""
WARM_UPS, UPDATES = 2, 3
"""Updates before the measured ones, in which steps are recorded, and measured ones, of which the median counts."""


def devices() -> list[str]:
    """Returns the devices that ``auto`` chooses from; the first one is taken where there is nothing to choose."""
    return ["cuda", "cpu"] if torch.cuda.is_available() else ["cpu"]


def on_device(stages: Sequence[Stage], device: str, **algorithm: Any) -> list[Stage]:
    """Returns stages with another device, and other options of their algorithm."""
    return [replace(stage, config=_changed(stage.config, device, algorithm)) for stage in stages]


def _changed(config: Config, device: str, algorithm: dict[str, Any]) -> Config:
    learner = replace(config.learner, device=device)
    return replace(config, learner=learner, algorithm=replace(config.algorithm, **algorithm))


def trial_of(config: Config, spec: SpaceSpec) -> tuple[dict[str, Any], TrajectoryBatch] | None:
    """Returns options of the algorithm and a fragment with which an update takes some ``STEPS`` usual gradient steps.

    None for an algorithm whose updates are not known here.
    """
    environments, algorithm = config.env.train.total_num_envs, config.algorithm
    if isinstance(algorithm, OffPolicyConfig):
        steps = max(1, -(-algorithm.batch_size // environments))
        options = {
            "learning_starts": 1,
            "update_to_data": STEPS / (steps * environments * config.policy.chunk_size),
            "replay_capacity": min(algorithm.replay_capacity, 4 * (steps + 1) * environments),
        }
    elif isinstance(algorithm, OnPolicyConfig):
        minibatches = min(algorithm.num_minibatches, STEPS)
        steps = max(1, config.rollout.horizon * minibatches // algorithm.num_minibatches)
        options = {"num_minibatches": minibatches, "update_epochs": max(1, STEPS // minibatches)}
    else:
        return None
    batch = synthetic_batch(
        spec, steps, environments, chunk_size=config.policy.chunk_size, memory_width=config.policy.memory_width,
        group_size=algorithm.group_size, keep_rewards=algorithm.reward_level == "action",
    )  # fmt: skip
    return options, batch


def seconds_of_update(make: Callable[[Sequence[Stage]], LearnerBase], stages: Sequence[Stage], trial: Any) -> float:
    """Returns the median time of an update of a learner that is made for this alone.

    Args:
        make: makes a learner for stages.
        stages: stages with the device to measure.
        trial: fragment to learn from.
    """
    learner, seconds = make(stages), []
    for number in range(1, WARM_UPS + UPDATES + 1):
        began = time.perf_counter()
        learner.update(0, number, trial)  # which waits for the device
        seconds.append(time.perf_counter() - began)
    del learner
    release_memory()
    return statistics.median(seconds[WARM_UPS:])


def release_memory() -> None:
    """Gives back the memory of learners that nobody uses any more, and that hold each other."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def choose_device(
    make: Callable[[Sequence[Stage]], LearnerBase], stages: Sequence[Stage], spec: SpaceSpec, parameters: int
) -> tuple[str, str]:
    """Chooses the device of a learner.

    Args:
        make: makes a learner for stages.
        stages: stages of the run.
        spec: spaces of the simulator.
        parameters: number of parameters of the policy.
    Returns:
        The device, and a sentence about why; empty where there was nothing to choose.
    """
    candidates = devices()
    if stages[0].config.learner.graphs is True:
        candidates = candidates[:1]  # no others have graphs
    if len(candidates) == 1 or parameters >= LARGE or (trial := trial_of(stages[0].config, spec)) is None:
        return candidates[0], ""
    options, batch = trial
    seconds = {
        device: seconds_of_update(make, on_device(stages[:1], device, **options), batch) for device in candidates
    }
    device = min(candidates, key=lambda name: seconds[name])
    times = ", ".join(f"{1000 * duration:.3g} ms on {name}" for name, duration in seconds.items())
    reserved = " On Ray, it keeps the GPU that it has reserved; learner.device=cpu reserves none." * (device == "cpu")
    return device, f"The learner takes {device} (learner.device=auto): {STEPS} gradient steps took {times}.{reserved}"
