"""Base of all learners: policy, device, stages, demonstrations, curriculum, learning rates, checkpoints."""

from __future__ import annotations

import importlib
import os
import platform
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlpipe.config.schema import AUTO, Config, PipelineKind, Stage
from rlpipe.config.selection import declared_metrics, pipeline_kind
from rlpipe.demonstrations.dataset import Demonstrations, load
from rlpipe.errors import ConfigError
from rlpipe.functional.commitments import sha256_of_arrays
from rlpipe.learning.curriculum import chosen_episodes, make_curriculum
from rlpipe.learning.device_choice import choose_device, devices, on_device, release_memory, trial_of
from rlpipe.learning.precision import precision_notes, set_precision
from rlpipe.learning.shares import Share
from rlpipe.learning.stepper import Stepper
from rlpipe.learning.threads import LearnerThreads
from rlpipe.metrics import MetricWindow
from rlpipe.metrics import catalogue as m
from rlpipe.policies.base import Snapshot, Weights, build_policy
from rlpipe.run.checkpoint import subtree
from rlpipe.trajectory import SpaceSpec
from rlpipe.trajectory.batch import TrajectoryBatch
from rlpipe.trajectory.fingerprint import FIRST_ITERATIONS, UpdateFingerprint

Arrays = dict[str, NDArray[Any]]


class LearnerBase(ABC):
    """Common part of all learners: policy, version of its weights, device, and settings of the stage."""

    _learns_critic = True
    _stepper: Stepper  # which a subclass makes, with ``_make_stepper``

    def __init__(self, stages: Sequence[Stage], spec: SpaceSpec, num_learners: int = 1) -> None:
        """Makes the policy with first weights that follow from the seed; all learners may share a machine.

        Raises:
            ConfigError: the algorithm's options do not suit the spaces.
        """
        config = stages[0].config
        config.algorithm.check_spaces(spec)
        self._stages, self._spec = stages, spec
        self._metrics = tuple(declared_metrics(config).values())
        self._total = stages[-1].until
        device = config.learner.device
        check_device(device)
        self._chooses_device = device == AUTO and num_learners == 1  # and has not chosen yet
        self._device = torch.device(devices()[0] if device == AUTO else device)
        self._notes: list[str] = []  # for the user, of the next update
        threads = config.learner.num_threads
        if threads == AUTO and self._device.type == "cuda":
            threads = 1  # more would have nothing to do
        self._threads = LearnerThreads(threads, _most_threads(config, num_learners))
        self._threads.apply()
        self._policy = build_policy(config, spec).to(self._device)
        parameters = sum(parameter.numel() for parameter in self._policy.parameters())
        self._notes += precision_notes(config, self._device, spec, parameters)
        self._generator = torch.Generator().manual_seed(config.runner.seed)
        self._version = 0
        self._stage = 0
        self._config = config
        self._raw_demonstrations: Demonstrations | None = None  # released once converted
        if config.demos is not None:
            self._raw_demonstrations = load(
                config.demos, config.env.train, spec, config.num_demos, config.runner.seed, config.demo_leaves
            )
        self._curriculum = make_curriculum(config, self._raw_demonstrations)

    def _enter(self, stage: int) -> bool:
        """Switches to the settings of a stage; returns True if the stage has changed."""
        changed, self._stage = stage != self._stage, stage
        self._config = self._stages[stage].config
        return changed

    def _make_stepper(self, state: Callable[[], Mapping[str, object]]) -> Stepper:
        """Makes what runs the gradient steps, given the objects that they read and write."""
        settings = lambda: {"learner": self._config.learner, **state()}  # noqa: E731
        return Stepper(self._device, self._config.learner.graphs, settings, self._notes)

    def _make_algorithm(self) -> Any:
        return self._config.algorithm_class(self._config.algorithm)

    def snapshot(self) -> Snapshot:
        """Returns the present weights, as far as acting needs them."""
        return Snapshot(self._version, self._policy.acting_weights(), self._curriculum.starts())

    def _follow_curriculum(self, batches: Sequence[TrajectoryBatch], window: MetricWindow) -> None:
        """Lets the curriculum learn from the episodes of an iteration, before the snapshot that holds its starts."""
        if self._curriculum.chooses:
            self._curriculum.observe(chosen_episodes(batches))
            self._curriculum.describe(window)

    def update(
        self, stage: int, iteration: int, *batches: TrajectoryBatch, fragments: int | None = None
    ) -> tuple[Snapshot, MetricWindow]:
        """Learns from the fragments of one iteration, and leaves a fingerprint if it is one of the first.

        Args:
            stage: index of the stage whose settings apply
            iteration: number of the iteration, counted from 1; the learning rate may depend on it
            batches: fragments of all workers, in the order of their ranks
            fragments: number of fragments that several learners share; None means one from each worker
        Returns:
            New weights, and the ``train/`` and ``rollout/`` metrics.
        """
        if self._chooses_device:
            self._choose_device()
        set_precision(self._config.learner.precision, self._device)  # which learners of a trial have set for themselves
        self._stepper.begin_update()
        first = iteration <= FIRST_ITERATIONS
        before = sha256_of_arrays(self._policy.weights()) if first else ""
        snapshot, window = self._update(stage, iteration, *batches, fragments=fragments)
        if first:
            window.fingerprints.append(UpdateFingerprint(before, sha256_of_arrays(self._policy.weights())))
        window.notes += self._notes
        self._notes.clear()
        return snapshot, window

    def rehearse(self) -> None:
        """Takes a few gradient steps in another learner, on random numbers, where each must be recorded.

        Raises:
            ConfigError: ``learner.graphs`` is true, and steps cannot be recorded.
        """
        config = self._config
        if config.learner.graphs is True and (trial := trial_of(config, self._spec)) is not None:
            options, batch = trial
            type(self)(on_device(self._stages[:1], self._device.type, **options), self._spec).update(0, 1, batch)
            release_memory()

    def _choose_device(self) -> None:
        """Moves to the device whose gradient steps take less time, and leaves a note."""
        parameters = sum(parameter.numel() for parameter in self._policy.parameters())
        device, reason = choose_device(
            lambda stages: type(self)(stages, self._spec), self._stages, self._spec, parameters
        )
        self._move(device)
        self._notes += [reason] if reason else []

    def _move(self, device: str) -> None:
        """Continues on a device that was chosen: a learner that is made anew there takes over everything."""
        self._chooses_device = False
        if device == self._device.type:
            return
        successor = type(self)(on_device(self._stages, device), self._spec)
        successor.load_state(self.state())
        self.__dict__ = successor.__dict__
        release_memory()

    @abstractmethod
    def _update(
        self, stage: int, iteration: int, *batches: TrajectoryBatch, fragments: int | None = None
    ) -> tuple[Snapshot, MetricWindow]:
        """Learns, as ``update`` says."""

    def is_finished(self) -> bool:
        """True if another update would teach it nothing; only asked of algorithms that do not collect."""
        return False

    def begin_with(self, weights: Weights) -> Snapshot:
        """Takes the weights of another policy, and what else is continued, and returns the policy as a snapshot.

        Raises:
            ConfigError: they belong to a policy of another shape.
        """
        self._policy.load_weights(weights)
        return self.snapshot()

    @abstractmethod
    def state(self) -> Arrays:
        """Returns everything that a later process needs to continue exactly, as arrays by name."""

    @abstractmethod
    def load_state(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restores what ``state`` returned, also on another device."""

    def resume(self, arrays: Mapping[str, NDArray[Any]], path: Path) -> None:
        """Continues from the arrays of a checkpoint file.

        Raises:
            ConfigError: they do not fit this policy, algorithm or optimiser.
        """
        if (
            self._chooses_device
            and "on_gpu" in arrays
            and (device := "cuda" if arrays["on_gpu"] else "cpu") in devices()
        ):
            self._move(device)
        try:
            self.load_state(arrays)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error
        except (LookupError, TypeError, ValueError, RuntimeError) as error:
            raise ConfigError(
                f"{path} does not fit this run: {type(error).__name__}: {error}. It may come from another algorithm."
            ) from error

    def _common_state(self) -> Arrays:
        arrays: Arrays = {f"policy/{name}": array for name, array in self._policy.weights().items()}
        arrays["generator"] = self._generator.get_state().numpy().copy()
        arrays["version"] = np.array(self._version)
        if not self._chooses_device:
            arrays["on_gpu"] = np.array(int(self._device.type == "cuda"))
        return arrays | {f"curriculum/{name}": values for name, values in self._curriculum.state().items()}

    def _load_common_state(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._policy.load_weights(subtree("policy/", arrays))
        self._generator.set_state(torch.tensor(arrays["generator"]))
        self._version = int(arrays["version"])
        self._curriculum.load_state(subtree("curriculum/", arrays))

    @staticmethod
    def _arrays(prefix: str, state: Mapping[str, Tensor]) -> Arrays:
        """Copies tensors to the host, with a prefix before each name."""
        return {f"{prefix}{name}": tensor.detach().cpu().numpy().copy() for name, tensor in state.items()}

    @staticmethod
    def _tensors(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> dict[str, Tensor]:
        """Copies the arrays whose names have a prefix, without it; on the host."""
        return {name: torch.tensor(array) for name, array in subtree(prefix, arrays).items()}

    def _learning_rates(self, iteration: int, window: MetricWindow) -> tuple[float, float]:
        """Returns and observes the learning rates of actor and critic in an iteration."""
        learner = self._config.learner
        scale = 1.0 - (iteration - 1) / self._total if learner.lr_schedule == "linear" else 1.0
        actor, critic = learner.lr, learner.lr if learner.critic_lr is None else learner.critic_lr
        window.observe(m.ACTOR_LR, actor * scale)
        if self._learns_critic:
            window.observe(m.CRITIC_LR, critic * scale)
        return actor * scale, critic * scale

    def _observe_versions(
        self, window: MetricWindow, batches: Sequence[TrajectoryBatch], share: Share | None = None
    ) -> None:
        """Observes the policy versions that acted, in the learner's own environments or in all."""
        columns = slice(None) if share is None else slice(share.columns.start, share.columns.stop)
        decisions = np.concatenate([batch.valid.sum(0) for batch in batches])[columns]
        envs = [batch.valid.shape[1] for batch in batches]
        versions = np.repeat([batch.policy_version for batch in batches], envs)[columns]
        window.observe(m.POLICY_VERSION, versions, weights=decisions)
        lags = self._version - 1 - versions
        window.observe(m.POLICY_LAG, lags, weights=decisions)
        window.observe(m.POLICY_LAG_MAX, lags)
        kind = pipeline_kind(self._config)
        if kind != PipelineKind.SYNC:
            trajectories = np.concatenate([batch.trajectories() for batch in batches])[columns]
            largest = 1 if kind == PipelineKind.AHEAD else self._config.runner.max_lag
            for lag in range(largest + 1):
                window.observe(m.DATA_STALENESS.member(str(lag)), lags == lag, weights=trajectories)

    def _now(self) -> float:
        """Returns a time in seconds, after the device has finished its work; ``Marks`` do not wait."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()


def check_device(device: str) -> None:
    """Raises ConfigError if torch does not find the device; called where the learner runs, maybe on another node."""
    if device.startswith("cuda"):
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if count <= int(device.partition(":")[2] or 0):
            devices = f"{count} CUDA device{'s' * (count != 1)}" if count else "no CUDA device"
            raise ConfigError(
                f"learner.device is {device!r}, but torch {torch.__version__} finds {devices} on {platform.node()}."
            )


def _most_threads(config: Config, num_learners: int) -> int:
    """Returns the largest number of threads for each learner on this machine, at least 1.

    Workers that collect while it learns keep a CPU each; ``auto`` workers are taken for half of the CPUs.
    """
    cpus, workers = len(os.sched_getaffinity(0)), config.rollout.num_workers
    if pipeline_kind(config) != PipelineKind.SYNC:
        cpus -= workers if isinstance(workers, int) else cpus - cpus // 2
    return max(1, cpus // num_learners)


def learner_class(config: Config) -> type[LearnerBase]:
    """Where the configured algorithm learns."""
    algorithm = config.algorithm_class
    module, _, name = algorithm.learner.partition(":")
    class_: type[LearnerBase] = getattr(importlib.import_module(module), name)
    return class_
