"""Updates of rlpipe's own learners, on random batches."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import yaml
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks import machine
from benchmarks.device.plan import Skipped, Update
from rlpipe.config.fields import options
from rlpipe.config.loading import load_config
from rlpipe.config.schema import LearnerConfig
from rlpipe.learning.base import learner_class
from rlpipe.metrics import MetricWindow
from rlpipe.metrics import catalogue as m
from rlpipe.policies.base import Policy, build_policy
from rlpipe.trajectory import LeafSpec, SpaceSpec
from rlpipe.trajectory.batch import TrajectoryBatch
from rlpipe.trajectory.fingerprint import FIRST_ITERATIONS
from rlpipe.trajectory.synthetic import synthetic_batch, synthetic_observations
from rlpipe.trajectory.tree import tensors

STEPS, OBSERVED, ACTIONS = 64, 42, 8
ARM_ACTIONS = 4  # of PickCube-v1 with pd_ee_delta_pos
ARM_ENVS = 4
RATE = 2.0**-12
"""Learning rate, whose float32 is exact: a graph reads it from a tensor, and shall take the same steps."""
FRESH = ("ppo", "grpo")
"""Algorithms that learn from each fragment once."""
CONFIGS = {"rlpd": "sparse_pick_cube", "sac": "sparse_pick_cube", "behaviour_cloning": "chunk_pick_cube"}
"""Configuration of rlpipe whose networks, batches and demonstrations an algorithm is measured with."""


def spec_of(update: Update) -> SpaceSpec:
    """Spaces of the simulator that an update has learnt from."""
    bounds = np.ones(ARM_ACTIONS if update.algorithm in CONFIGS else ACTIONS, dtype=np.float32)
    if update.pixels:
        image = LeafSpec((update.pixels, update.pixels, 3), "uint8")
        return SpaceSpec.of_tree({"camera": image}, len(bounds), None, -bounds, bounds)
    return SpaceSpec(OBSERVED, len(bounds), None, -bounds, bounds)


def environments(update: Update) -> int:
    """Number of environments whose fragments an update learns from."""
    counts = {"ppo": update.count // STEPS, "grpo": update.count}
    return counts.get(update.algorithm, ARM_ENVS)


def settings(update: Update, device: str, mode: str) -> list[str]:
    """Overrides that choose the hardware, the precision and the use of CUDA graphs.

    Raises:
        Skipped: this version of rlpipe, or the device, lacks what is asked for.
    """
    offered = options(LearnerConfig)
    if update.precision not in offered["precision"].choices:
        raise Skipped(f"this rlpipe has no learner.precision={update.precision}")
    if update.precision == "tf32" and device == "cpu":
        raise Skipped("TF32 needs a GPU")
    if mode == "graphs" and "graphs" not in offered:
        raise Skipped("this rlpipe has no learner.graphs")
    return [
        f"learner.device={device}",
        f"learner.precision={update.precision}",
        f"learner.lr={RATE}",
        f"learner.num_threads={update.threads if device == 'cpu' else 1}",
        *([f"learner.graphs={str(mode == 'graphs').lower()}"] if "graphs" in offered and device == "cuda" else []),
        *update.overrides,
    ]


def plan_of(update: Update, device: str, mode: str = "eager") -> Any:
    """Configuration of an update.

    Raises:
        Skipped: as for ``settings``.
    """
    overrides = settings(update, device, mode)
    if update.algorithm in ("rlpd", "sac"):
        ratio = update.count / (STEPS * ARM_ENVS)
        overrides += [f"algorithm.update_to_data={ratio}", "algorithm.learning_starts=1"]
        overrides += ["algorithm.name=sac", "demos=null"] * (update.algorithm == "sac")
    if update.algorithm in CONFIGS:
        tree = yaml.safe_load((machine.ROOT / f"configs/{CONFIGS[update.algorithm]}.yaml").read_text())
        tree["env"] = {
            "train": {"name": "scripted", "total_num_envs": environments(update)}
        }  # its own needs a simulator
        tree["demos"] = str(machine.ROOT / tree["demos"])
        return load_config(tree, overrides)
    algorithm = {"update_epochs": update.epochs, "num_minibatches": update.minibatches}
    tree = {
        "env": {"train": {"name": "scripted", "total_num_envs": environments(update)}},
        "policy": dict(update.policy),
        "algorithm": {"name": update.algorithm, **algorithm},
        "rollout": {"horizon": STEPS},
    }
    return load_config(tree, overrides)


def _normal(weight: Tensor, gain: float = 1.0) -> Tensor:
    return nn.init.normal_(weight, std=gain / max(weight.shape) ** 0.5)


def quick_weights() -> AbstractContextManager[Any]:
    """Draws first weights of the size of orthogonal ones, which take minutes for a hundred million parameters."""
    return patch.object(nn.init, "orthogonal_", _normal)


class Work:
    """A learner that updates from the same batch each time it is called.

    Attributes:
        gradient_steps: of the latest update.
    """

    def __init__(self, update: Update, device: str, mode: str) -> None:
        """Makes the learner of a run with this configuration.

        Raises:
            Skipped: this version of rlpipe lacks what is asked for.
        """
        config, spec = plan_of(update, device, mode), spec_of(update)
        with quick_weights():
            self._learner = learner_class(config)(config.schedule, spec)
        self._batches: list[TrajectoryBatch] = []
        if update.algorithm != "behaviour_cloning":
            grouped = {"group_size": config.algorithm.group_size} if update.algorithm == "grpo" else {}
            chunk_size = config.policy.chunk_size
            self._batches = [synthetic_batch(spec, STEPS, environments(update), chunk_size=chunk_size, **grouped)]
        self._iteration = FIRST_ITERATIONS  # earlier ones hash the weights as well
        self._samples = sum(int(batch.valid.sum()) for batch in self._batches) if update.algorithm in FRESH else 0
        self.gradient_steps = 0

    @property
    def count(self) -> int:
        """Samples of the latest update of an on-policy algorithm, gradient steps of another."""
        return self._samples or self.gradient_steps

    @property
    def parameters(self) -> int:
        """Number of parameters of the policy, actor and critic together."""
        return count_parameters(self._learner._policy)

    def __call__(self) -> None:
        """Takes one update, from batches on the host to new weights on the host."""
        self._iteration += 1
        _, window = self._learner.update(0, self._iteration, *self._batches)
        self.gradient_steps = steps_of(window)

    def state(self) -> dict[str, NDArray[Any]]:
        """Everything that a later process continues from, but for the replay buffer: weights, targets, moments."""
        return {name: array for name, array in self._learner.state().items() if not name.startswith("replay/")}


def steps_of(window: MetricWindow) -> int:
    """Number of gradient steps of an update, those included that were skipped."""
    counted = window.read([m.NUM_UPDATES, m.NONFINITE_STEPS])
    return round(sum(counted.values()))


def count_parameters(policy: Policy) -> int:
    """Number of parameters of a policy, actor and critic together."""
    return sum(parameter.numel() for parameter in policy.parameters())


def acting(update: Update, rows: int, device: str) -> tuple[Callable[[], Any], Policy]:
    """Actions for observations that come from the host and return to it, as on an inference server; and the policy."""
    spec = spec_of(update)
    with quick_weights():
        policy = build_policy(plan_of(update, device), spec).to(device)
    draw = np.random.default_rng(0)
    observations = tensors(synthetic_observations(spec, draw, rows))
    noise = torch.from_numpy(policy.noise(draw, rows))

    def act() -> Any:
        with torch.inference_mode():
            return policy.act(observations.to(device), noise.to(device))[0].cpu()

    return act, policy
