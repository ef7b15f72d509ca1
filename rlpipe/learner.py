"""Learning: trajectory batches in, new weights and a ``MetricWindow`` out (stop 4 on the data's way).

Knows nothing of Ray or of backends. The batch crosses to the device once; what is observed stays there until the update
is over and comes back in one copy.
"""

from __future__ import annotations

import copy
import importlib
import itertools
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rlpipe import demonstrations
from rlpipe.algorithms.base import (
    OnPolicyAlgorithm,
    Samples,
    Terms,
    Trajectories,
    load_optimizer_state,
    optimizer_state,
)
from rlpipe.checkpoint import under
from rlpipe.config import AUTO, Config, Stage, declared_metrics
from rlpipe.functional.losses import cloning_weight
from rlpipe.functional.soft_actor_critic import cloning_loss
from rlpipe.metrics import MetricWindow
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.declaration import Metric
from rlpipe.observations import Observations
from rlpipe.plugins import resolve
from rlpipe.policies.base import Policy, Weights
from rlpipe.rollout import Snapshot, build_policy
from rlpipe.trajectory import SpaceSpec, TrajectoryBatch

Arrays = dict[str, NDArray[Any]]


def join(batches: Sequence[TrajectoryBatch], device: torch.device) -> Trajectories:
    """Fragments of several workers as one, side by side along N, on the device."""
    envs = [batch.rewards.shape[1] for batch in batches]
    total, offset = sum(envs), 0
    final_index = []
    for batch, count in zip(batches, envs, strict=True):
        steps, slots = np.divmod(batch.final_index, count)
        final_index.append(steps * total + offset + slots)
        offset += count

    def joined(name: str, axis: int) -> Tensor:
        parts = [getattr(batch, name) for batch in batches]
        return torch.from_numpy(np.concatenate(parts, axis=axis)).to(device)

    by_env = {f.name: joined(f.name, 1) for f in fields(Trajectories) if not f.name.startswith("final_")}
    return Trajectories(
        **by_env,
        final_observations=joined("final_observations", 0),
        final_index=torch.from_numpy(np.concatenate(final_index)).to(device),
    )


class LearnerBase(ABC):
    """What every learner has: the policy, its weights' version, the device, and the settings of the stage."""

    _learns_critic = True

    def __init__(self, stages: Sequence[Stage], spec: SpaceSpec) -> None:
        """Makes the policy with its first weights, which follow from the seed or from ``policy.warm_start``.

        Args:
            stages: of the run.  spec: of the simulator.
        """
        config = stages[0].config
        self._stages = stages
        self._metrics = tuple(declared_metrics(config).values())
        self._total = stages[-1].until
        threads = config.learner.num_threads
        if isinstance(threads, str):
            threads = len(os.sched_getaffinity(0))
            if resolve("algorithms", config.algorithm.name, "algorithm.name").ahead:
                threads = max(1, threads // 2)  # workers collect meanwhile
        self._threads = threads
        torch.set_num_threads(self._threads)
        device = config.learner.device
        self._device = torch.device(device if device != AUTO else "cuda" if torch.cuda.is_available() else "cpu")
        self._policy = build_policy(config, spec).to(self._device)
        self._generator = torch.Generator().manual_seed(config.runner.seed)
        self._version = 0
        self._stage = 0
        self._config = config

    def _enter(self, stage: int) -> bool:
        """Takes over the settings of a stage; returns whether it is another than before."""
        changed, self._stage = stage != self._stage, stage
        self._config = self._stages[stage].config
        return changed

    def _make_algorithm(self) -> Any:
        algorithm = self._config.algorithm
        return resolve("algorithms", algorithm.name, "algorithm.name")(algorithm)

    def snapshot(self) -> Snapshot:
        """The weights that act, as they are now."""
        return Snapshot(self._version, self._policy.acting_weights())

    @abstractmethod
    def update(self, stage: int, iteration: int, *batches: TrajectoryBatch) -> tuple[Snapshot, MetricWindow]:
        """Learns from the fragments of one iteration.

        Args:
            stage: whose settings apply.  iteration: from 1; the learning rate may depend on it.
            batches: of all workers, in the order of their ranks.
        Returns:
            New weights, and the ``train/`` and ``rollout/`` metrics.
        """

    def begin_with(self, weights: Weights) -> Snapshot:
        """Takes over the weights of another policy, and returns what acts now.

        Raises:
            ConfigError: they belong to a policy of another shape.
        """
        self._policy.load_weights(weights)
        return self.snapshot()

    @abstractmethod
    def state(self) -> Arrays:
        """Everything a later process needs to go on as if nothing had happened, as arrays by name."""

    @abstractmethod
    def load_state(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Takes over what ``state`` gave, also on another device."""

    def _common_state(self) -> Arrays:
        arrays: Arrays = {f"policy/{name}": array for name, array in self._policy.weights().items()}
        arrays["generator"] = self._generator.get_state().numpy().copy()
        arrays["version"] = np.array(self._version)
        return arrays

    def _load_common_state(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._policy.load_weights(under("policy/", arrays))
        self._generator.set_state(torch.tensor(arrays["generator"]))
        self._version = int(arrays["version"])

    @staticmethod
    def _arrays(prefix: str, state: Mapping[str, Tensor]) -> Arrays:
        """Copies on the host."""
        return {f"{prefix}{name}": tensor.detach().cpu().numpy().copy() for name, tensor in state.items()}

    @staticmethod
    def _tensors(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> dict[str, Tensor]:
        """Copies of those whose names begin so, without that; on the host."""
        return {name: torch.tensor(array) for name, array in under(prefix, arrays).items()}

    def _learning_rates(self, iteration: int, window: MetricWindow) -> tuple[float, float]:
        """Of actor and critic in this iteration."""
        learner = self._config.learner
        scale = 1.0 - (iteration - 1) / self._total if learner.lr_schedule == "linear" else 1.0
        actor, critic = learner.lr, learner.lr if learner.critic_lr is None else learner.critic_lr
        window.observe(m.ACTOR_LR, actor * scale)
        if self._learns_critic:
            window.observe(m.CRITIC_LR, critic * scale)
        return actor * scale, critic * scale

    def _observe_versions(self, window: MetricWindow, stage: int, batches: Sequence[TrajectoryBatch]) -> None:
        """Whose actions were learnt from."""
        window.observe(m.STAGE, stage)
        window.observe(m.VERSION, self._version)
        versions = [batch.policy_version for batch in batches]
        decisions = [np.count_nonzero(batch.valid) for batch in batches]
        window.observe(m.POLICY_VERSION, versions, weights=decisions)
        lags = [self._version - 1 - version for version in versions]
        window.observe(m.POLICY_LAG, lags, weights=decisions)
        window.observe(m.POLICY_LAG_MAX, lags)

    def _now(self) -> float:
        """Seconds, once the device has done what it was given."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()


class Learner(LearnerBase):
    """Policy, optimiser and algorithm; one update an iteration."""

    def __init__(self, stages: Sequence[Stage], spec: SpaceSpec) -> None:
        """Makes the policy with its first weights, and reads the demonstrations if a stage clones them.

        Args:
            stages: of the run.  spec: of the simulator.
        Raises:
            ConfigError: the demonstrations are missing, or do not fit.
        """
        super().__init__(stages, spec)
        self._algorithm: OnPolicyAlgorithm[Any] = self._make_algorithm()
        self._learns_critic = self._algorithm.learns_critic
        self._actor = list(self._policy.actor_parameters())
        self._critic = list(self._policy.critic_parameters()) if self._learns_critic else []
        groups = [{"params": parameters} for parameters in (self._actor, self._critic) if parameters]
        self._optimizer = torch.optim.Adam(groups, lr=0.0, eps=self._config.learner.adam_eps, fused=True)
        self._shown = self._demonstrated(spec)
        self._begin()

    def _begin(self) -> None:
        """Freezes the policy as it is now as the reference, if a stage compares with it."""
        options = [stage.config.algorithm for stage in self._stages]
        self._reference: Policy | None = None
        if any(resolve("algorithms", each.name, "algorithm.name")(each).keeps_reference for each in options):
            self._reference = copy.deepcopy(self._policy).requires_grad_(False)
        self._algorithm.begin(self._reference)

    def begin_with(self, weights: Weights) -> Snapshot:
        snapshot = super().begin_with(weights)
        self._begin()
        return snapshot

    def _enter(self, stage: int) -> bool:
        changed = super()._enter(stage)
        if changed:
            before, self._algorithm = self._algorithm, self._make_algorithm()
            self._algorithm.begin(self._reference)
            self._algorithm.load_state(before.state())
        return changed

    def _demonstrated(self, spec: SpaceSpec) -> tuple[Tensor, Tensor] | None:
        """Observations and actions to clone; None if no stage does."""
        config = self._config
        if config.demos is None:
            return None
        shown = demonstrations.load(config.demos, config.env.train, spec)
        return torch.from_numpy(shown.observations).to(self._device), torch.from_numpy(shown.actions).to(self._device)

    def update(self, stage: int, iteration: int, *batches: TrajectoryBatch) -> tuple[Snapshot, MetricWindow]:
        torch.set_num_threads(self._threads)
        self._enter(stage)
        window, observations = MetricWindow(), Observations(self._metrics)
        marks = [self._now()]
        with torch.no_grad():
            trajectories = join(batches, self._device)
            marks.append(self._now())
            samples, observed = self._algorithm.prepare(trajectories, self._policy)
            observations.add(observed)
        marks.append(self._now())
        rates = self._learning_rates(iteration, window)
        for group, rate in zip(self._optimizer.param_groups, rates, strict=self._learns_critic):
            group["lr"] = rate
        self._run_epochs(samples, iteration, observations, window)
        with torch.no_grad():
            self._policy.observe(samples.observations)
            if (deviation := self._policy.action_std()) is not None:
                observations.add({m.ACTION_STD: deviation})
            observations.reduce(window)
        marks.append(self._now())
        self._version += 1
        snapshot = self.snapshot()
        marks.append(self._now())
        self._observe_versions(window, stage, batches)
        received, prepared, trained, published = np.diff(marks).tolist()
        window.observe(m.RECV_TRAJ_TIME, received)
        window.observe(m.COMPUTE_ADV_TIME, prepared)
        window.observe(m.CAL_ADVANTAGES, received + prepared)
        window.observe(m.RUN_TRAINING_TIME, trained)
        window.observe(m.SYNC_WEIGHTS, published)
        window.observe(m.PUBLISH_WEIGHTS_TIME, published)
        return snapshot, window

    def _run_epochs(self, samples: Samples, iteration: int, observations: Observations, window: MetricWindow) -> None:
        config = self._config.algorithm
        cloning = cloning_weight(config.cloning_coef, config.cloning_decay, iteration)
        minibatches = min(config.num_minibatches, len(samples))  # an algorithm may leave out decisions, or all
        terms: list[Terms] = []
        orders: list[Tensor] = []
        sizes: list[int] = []
        skipped = 0
        learning = stepping = 0.0
        for _ in range(config.update_epochs if minibatches else 0):
            orders.append(torch.randperm(len(samples), generator=self._generator).to(self._device))
            shuffled = samples.select(orders[-1])
            bounds = np.linspace(0, len(samples), minibatches + 1).astype(int)
            for begin, end in itertools.pairwise(bounds.tolist()):
                began = time.perf_counter()
                loss = self._algorithm.loss(self._policy, shuffled.select(slice(begin, end)))
                total = loss.total
                if config.cloning_coef:
                    distance = self._cloning_loss(config.cloning_batch_size)
                    total = total + cloning * distance.mean()
                    observations.add({m.CLONING_LOSS: distance.detach()})
                self._optimizer.zero_grad(set_to_none=True)
                total.backward()  # type: ignore[no-untyped-call]
                learnt = time.perf_counter()
                norms = self._clip_gradients()
                observations.add(norms)
                finite = bool(torch.isfinite(torch.stack([total.detach(), *norms.values()])).all())
                if finite:
                    self._optimizer.step()
                skipped += not finite
                terms.append(loss.terms)
                sizes.append(end - begin)
                learning, stepping = learning + learnt - began, stepping + time.perf_counter() - learnt
            if config.target_kl is not None:
                moved = [self._algorithm.divergence(part) for part in terms[-minibatches:]]
                if float(torch.cat(moved).double().mean()) > config.target_kl:
                    break
        if terms:
            taken = torch.cat(orders)
            with torch.no_grad():
                joined = {name: torch.cat([part[name] for part in terms]) for name in terms[0]}
                observed = self._algorithm.observe(samples, taken, joined)
                observations.add_update(observed, samples.trajectory[taken], sizes, minibatches)
        if config.cloning_coef:
            window.observe(m.CLONING_WEIGHT, cloning)
        epochs = len(orders)
        window.observe(m.EPOCHS_RUN, epochs)
        window.observe(m.NUM_UPDATE_EPOCHS, epochs)
        window.observe(m.NUM_SAMPLES, sum(sizes))
        window.observe(m.NUM_UPDATES, len(sizes) - skipped)
        window.observe(m.NONFINITE_STEPS, skipped)
        if self._device.type == "cpu":  # elsewhere a clock on the host only sees work being queued
            window.observe(m.FORWARD_BACKWARD_TIME, learning)
            window.observe(m.OPTIMIZER_STEP_TIME, stepping)

    def _cloning_loss(self, count: int) -> Tensor:
        """[count] of demonstrated steps, drawn anew."""
        assert self._shown is not None
        observations, actions = self._shown
        drawn = torch.randint(len(actions), (count,), generator=self._generator).to(self._device)
        return cloning_loss(self._policy.act(observations[drawn], None)[0], actions[drawn])

    def _clip_gradients(self) -> dict[Metric, Tensor]:
        """Cuts the gradients to the largest norm; returns the norms before, and whether they were cut."""
        limit = self._config.learner.max_grad_norm
        limit = float("inf") if limit is None else limit
        actor = nn.utils.clip_grad_norm_(self._actor, limit)
        norms = {m.ACTOR_GRAD_NORM: actor, m.ACTOR_GRAD_CLIP_FRACTION: actor > limit}
        if self._learns_critic:
            norms[m.CRITIC_GRAD_NORM] = nn.utils.clip_grad_norm_(self._critic, limit)
        return norms

    def state(self) -> Arrays:
        arrays = self._common_state()
        arrays |= self._arrays("optimizer/", optimizer_state(self._optimizer))
        if self._reference is not None:
            arrays |= {f"reference/{name}": array for name, array in self._reference.acting_weights().items()}
        arrays |= {f"algorithm/{name}": np.array(value) for name, value in self._algorithm.state().items()}
        arrays["stage"] = np.array(self._stage)
        return arrays

    def load_state(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._load_common_state(arrays)
        if self._reference is not None:  # a run that kept none until now begins to with the policy it goes on from
            self._reference.load_weights(under("reference/", arrays) or self._policy.weights())
        self._enter(int(arrays.get("stage", 0)))
        self._algorithm.load_state({name: float(value) for name, value in under("algorithm/", arrays).items()})
        load_optimizer_state(self._optimizer, self._tensors("optimizer/", arrays))


def learner_class(config: Config) -> type[LearnerBase]:
    """Where the configured algorithm learns."""
    algorithm = resolve("algorithms", config.algorithm.name, "algorithm.name")
    module, _, name = algorithm.learner.partition(":")
    found: type[LearnerBase] = getattr(importlib.import_module(module), name)
    return found
