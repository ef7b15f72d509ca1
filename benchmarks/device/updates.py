"""Updates of rlpipe's own learner and algorithm, on random batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from rlpipe.config.loading import load_config
from rlpipe.config.schema import Config
from rlpipe.config.selection import algorithm_class
from rlpipe.config.stages import stages
from rlpipe.learning.on_policy import Learner, join
from rlpipe.policies.base import build_policy
from rlpipe.trajectory import SpaceSpec, TrajectoryBatch

STEPS, OBSERVED, ACTIONS = 64, 42, 8
EPOCHS, MINIBATCHES = 4, 8
BOUNDS = np.ones(ACTIONS, dtype=np.float32)
SPEC = SpaceSpec(OBSERVED, ACTIONS, None, -BOUNDS, BOUNDS)


def random_batch(envs: int, actions: int = ACTIONS) -> TrajectoryBatch:
    """Fragment of random numbers in which one step in a hundred ends an episode."""
    draw = np.random.default_rng(0)
    terminated = draw.random((STEPS, envs)) < 0.01
    ended = np.flatnonzero(terminated)
    return TrajectoryBatch(
        draw.standard_normal((STEPS + 1, envs, OBSERVED), dtype=np.float32),
        draw.standard_normal((STEPS, envs, actions), dtype=np.float32),
        draw.standard_normal((STEPS, envs), dtype=np.float32) - 10.0,
        draw.standard_normal((STEPS, envs), dtype=np.float32),
        terminated,
        np.zeros_like(terminated),
        np.ones_like(terminated),
        draw.standard_normal((len(ended), OBSERVED), dtype=np.float32),
        ended,
        0,
    )


def configuration(
    hidden: Sequence[int], samples: int, device: str, precision: str, compiled: bool, num_threads: int | str = "auto"
) -> Config:
    """Configuration of PPO whose learning rate is 0, so that all updates are alike."""
    return load_config(
        {
            "env": {"train": {"name": "scripted", "total_num_envs": samples // STEPS}},
            "policy": {"name": "mlp", "hidden_sizes": list(hidden)},
            "algorithm": {"name": "ppo", "update_epochs": EPOCHS, "num_minibatches": MINIBATCHES},
            "learner": {
                "device": device,
                "lr": 0.0,
                "precision": precision,
                "compile": compiled,
                "num_threads": num_threads,
            },
            "rollout": {"horizon": STEPS},
        }
    )


def make_learner(config: Config) -> Learner:
    """The learner of a run with this configuration."""
    return Learner(stages(config), SPEC)


def count_parameters(config: Config) -> int:
    """Number of parameters of the policy, actor and critic together."""
    return sum(parameter.numel() for parameter in build_policy(config, SPEC).parameters())


def minibatch_step(config: Config, device: str, *, capturable: bool) -> tuple[Callable[[], Any], int]:
    """One optimiser step on one minibatch that stays on the device: loss, gradients, their norm, Adam.

    Args:
        config: from ``configuration``
        device: of the policy and the minibatch
        capturable: True if a CUDA graph shall record the step
    Returns:
        The step, and the number of samples in its minibatch.
    """
    policy = build_policy(config, SPEC).to(device)
    algorithm: Any = algorithm_class(config)(config.algorithm)
    algorithm.begin(None)
    batch = random_batch(config.env.train.total_num_envs)
    with torch.no_grad():
        samples, _ = algorithm.prepare(join([batch], torch.device(device), 0), policy)
    minibatch = samples.select(slice(0, len(samples) // MINIBATCHES))
    loss = torch.compile(algorithm.loss) if config.learner.compile else algorithm.loss
    parameters = list(policy.parameters())
    optimizer = torch.optim.Adam(parameters, lr=0.0, fused=True, capturable=capturable)
    enabled = config.learner.precision == "bfloat16"

    def step() -> None:
        with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=enabled):
            total = loss(policy, minibatch).each.mean()
        optimizer.zero_grad(set_to_none=True)
        total.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 0.5)
        optimizer.step()

    return step, len(minibatch)


def as_graph(step: Callable[[], Any]) -> Callable[[], Any]:
    """Records a step as a CUDA graph. Returns its replay, which launches all of its kernels at once."""
    warm_up = torch.cuda.Stream()
    warm_up.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warm_up):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(warm_up)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay
