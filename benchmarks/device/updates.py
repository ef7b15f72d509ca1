"""Updates of rlpipe's own learners, on random batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rlpipe.config.loading import load_config
from rlpipe.config.schema import Config
from rlpipe.learning.off_policy import OffPolicyLearner
from rlpipe.learning.on_policy import Learner, join
from rlpipe.policies.base import Policy, build_policy
from rlpipe.trajectory import LeafSpec, SpaceSpec
from rlpipe.trajectory.batch import TrajectoryBatch
from rlpipe.trajectory.synthetic import synthetic_batch, synthetic_observations
from rlpipe.trajectory.tree import tensors

STEPS, OBSERVED, ACTIONS = 64, 42, 8
ARM_ACTIONS = 4  # of PickCube-v1 with pd_ee_delta_pos
EPOCHS, MINIBATCHES = 4, 8
BOUNDS = np.ones(ACTIONS, dtype=np.float32)
SPEC = SpaceSpec(OBSERVED, ACTIONS, None, -BOUNDS, BOUNDS)


@dataclass(frozen=True)
class Subject:
    """A policy to measure, and what it observes.

    Attributes:
        policy: section of a configuration.
        spec: spaces.
    """

    policy: Mapping[str, Any]
    spec: SpaceSpec = SPEC

    @property
    def chunk_size(self) -> int:
        """Actions of a decision."""
        return int(self.policy.get("chunk_size", 1))

    def build(self, config: Config) -> Policy:
        """Makes the policy, with random weights, on the CPU."""
        return build_policy(config, self.spec)


def perceptron(*hidden: int) -> Subject:
    """A policy of state, with so many units in each hidden layer of actor and of critic."""
    return Subject({"name": "mlp", "hidden_sizes": list(hidden)})


def of_camera(pixels: int, encoder: Mapping[str, Any]) -> Subject:
    """A policy that sees one camera, and nothing else."""
    policy = {"name": "mlp", "hidden_sizes": [256], "encoders": {"camera": dict(encoder)}}
    image = LeafSpec((pixels, pixels, 3), "uint8")
    return Subject(policy, SpaceSpec.of_tree({"camera": image}, ACTIONS, None, -BOUNDS, BOUNDS))


def of_tokens(chunk_size: int, hidden: Sequence[int], **decoder: Any) -> Subject:
    """A policy of state whose decisions are tokens, eight for each action of a chunk."""
    return Subject({"name": "tokens", "chunk_size": chunk_size, "hidden_sizes": list(hidden), **decoder})


def random_batch(envs: int, subject: Subject) -> TrajectoryBatch:
    """Fragment of random numbers in which one decision in a hundred ends an episode."""
    return synthetic_batch(subject.spec, STEPS, envs, chunk_size=subject.chunk_size)


def configuration(
    subject: Subject, samples: int, device: str, precision: str, compiled: bool, num_threads: int | str = "auto"
) -> Config:
    """Configuration of PPO whose learning rate is 0, so that all updates are alike."""
    return load_config(
        {
            "env": {"train": {"name": "scripted", "total_num_envs": samples // STEPS}},
            "policy": dict(subject.policy),
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


def make_learner(config: Config, subject: Subject) -> Learner:
    """The learner of a run with this configuration."""
    return Learner(config.schedule, subject.spec)


def make_rlpd(steps: int, *overrides: str) -> tuple[OffPolicyLearner, TrajectoryBatch]:
    """The learner of configs/sparse_pick_cube.yaml with its demonstrations, and a fragment of 256 random steps.

    An update takes so many gradient steps.
    """
    arm = np.ones(ARM_ACTIONS, dtype=np.float32)
    batch = random_batch(4, subject := Subject({}, SpaceSpec(OBSERVED, ARM_ACTIONS, None, -arm, arm)))
    ratio = f"algorithm.update_to_data={steps / batch.rewards.size}"
    config = load_config("sparse_pick_cube", [ratio, "algorithm.learning_starts=1", *overrides])
    return OffPolicyLearner(config.schedule, subject.spec), batch


def count_parameters(policy: Policy) -> int:
    """Number of parameters of a policy, actor and critic together."""
    return sum(parameter.numel() for parameter in policy.parameters())


def acting(subject: Subject, rows: int, device: str) -> tuple[Callable[[], Any], Policy]:
    """Actions for observations that come from the host and return to it, as on an inference server; and the policy."""
    config = configuration(subject, STEPS, device, "float32", compiled=False)
    policy = subject.build(config).to(device)
    draw = np.random.default_rng(0)
    observations = tensors(synthetic_observations(subject.spec, draw, rows))
    noise = torch.from_numpy(policy.noise(draw, rows))

    def act() -> Any:
        with torch.inference_mode():
            return policy.act(observations.to(device), noise.to(device))[0].cpu()

    return act, policy


def minibatch_step(config: Config, subject: Subject, device: str, *, capturable: bool) -> tuple[Callable[[], Any], int]:
    """One optimiser step on one minibatch that stays on the device: loss, gradients, their norm, Adam.

    Args:
        config: from ``configuration``
        subject: what it was made for
        device: of the policy and the minibatch
        capturable: True if a CUDA graph shall record the step
    Returns:
        The step, and the number of samples in its minibatch.
    """
    policy = subject.build(config).to(device)
    algorithm: Any = config.algorithm_class(config.algorithm)
    algorithm.begin(None)
    batch = random_batch(config.env.train.total_num_envs, subject)
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
