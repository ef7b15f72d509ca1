"""Learns from a replay buffer: fragments are stored, and gradient steps are taken on stored transitions.

The counterpart of ``learning.on_policy`` for the algorithms of ``algorithms.shared.off_policy``.
"""

from __future__ import annotations

import copy
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlpipe.algorithms.shared.off_policy import OffPolicyAlgorithm, OffPolicyConfig
from rlpipe.config.schema import Stage
from rlpipe.learning.augmentation import RandomShift
from rlpipe.learning.base import Arrays, LearnerBase
from rlpipe.learning.hindsight import HindsightBuffer
from rlpipe.learning.marks import Marks
from rlpipe.learning.replay import Drawn, ReplayBuffer
from rlpipe.learning.stepper import STEPS
from rlpipe.metrics import MetricWindow
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.declaration import Metric
from rlpipe.metrics.on_device import DeviceObservations
from rlpipe.metrics.spans import spans
from rlpipe.policies.base import Snapshot, Weights
from rlpipe.trajectory import SpaceSpec, Tree
from rlpipe.trajectory.batch import TrajectoryBatch
from rlpipe.trajectory.tree import tensors

LEAST_STEPS = 1
"""Gradient steps of an iteration that leaves no time for more."""


class StepInputs(NamedTuple):
    """Everything that is drawn for a gradient step.

    Attributes:
        experience: own transitions.
        demonstrated: demonstrated ones, the last of the batch; None for none.
        shifts: [B, 2] of the images before and after; None where nothing moves.
        drawn: from ``OffPolicyAlgorithm.draw``.
        version: [] float32 of the learner's weights.
    """

    experience: Drawn
    demonstrated: Drawn | None
    shifts: tuple[Tensor | None, Tensor | None]
    drawn: Any
    version: Tensor


class OffPolicyLearner(LearnerBase):
    """Learns from stored transitions and demonstrations."""

    def __init__(self, stages: Sequence[Stage], spec: SpaceSpec) -> None:
        """Makes the policy with its first weights, and reads the demonstrations. All stages have the same algorithm.

        Raises:
            ConfigError: the algorithm cannot learn this policy, or the demonstrations do not fit.
        """
        super().__init__(stages, spec)
        config = self._config
        self._algorithm: OffPolicyAlgorithm = self._make_algorithm()
        self._options: OffPolicyConfig = config.algorithm
        decided = spec.chunked(config.policy.chunk_size)
        self._algorithm.begin(self._policy, decided, self._device, self._generator)
        horizon = (self._options.discount, self._options.n_step)
        self._replay = self._make_replay(decided)
        self._demo_buffer: ReplayBuffer | None = None
        self._demonstrations = 0
        # not yet seen by the policy's normaliser: first weights must follow from the seed alone
        self._unseen: Tensor | Tree | None = None
        loaded, self._raw_demonstrations = self._raw_demonstrations, None
        if loaded is not None and self._algorithm.demo_share:
            capacity = len(loaded) + loaded.num_trajectories  # observations: those of the steps, and the last ones
            self._demo_buffer = ReplayBuffer(capacity, decided, self._device, *horizon)
            self._demo_buffer.add_demonstrations(loaded, config.policy.chunk_size)
            self._demonstrations = loaded.num_trajectories
            self._unseen = tensors(loaded.observations).to(self._device)
        self._shift = RandomShift(self._options.random_shift, spec, self._generator)
        # Without the buffers: their tensors stay where they are, and only the host reads how far they are filled.
        self._stepper = self._make_stepper(lambda: {"algorithm": self._algorithm, "policy": self._policy})
        self._skipped = 0
        self._debt = 0.0
        self._pace: float | None = None

    def _make_replay(self, spec: SpaceSpec) -> ReplayBuffer:
        options = self._options
        where = (options.replay_capacity, spec, self._device, options.discount)
        if not options.hindsight:
            return ReplayBuffer(*where, options.n_step)
        self._goal_tasks = [options.goal_task(stage.config.env.train) for stage in self._stages]
        return HindsightBuffer(*where, options.hindsight, options.hindsight_candidates, self._goal_tasks[0])

    def begin_with(self, weights: Weights) -> Snapshot:
        state = self._tensors("algorithm/", weights)
        snapshot = super().begin_with({name: weights[name] for name in weights if not name.startswith("algorithm/")})
        self._algorithm.policy_replaced()
        if state:
            self._algorithm.continue_with(state)
        return snapshot

    def _update(
        self,
        stage: int,
        iteration: int,
        *batches: TrajectoryBatch,
        fragments: int | None = None,  # noqa: ARG002
    ) -> tuple[Snapshot, MetricWindow]:
        """Stores the fragments of one iteration and takes gradient steps, as ``LearnerBase.update``."""
        self._threads.apply()
        if self._enter(stage) and isinstance(self._replay, HindsightBuffer):
            self._replay.task = self._goal_tasks[stage]
        marks, start = Marks(self._device), time.perf_counter()
        window, measured = MetricWindow(), DeviceObservations(self._metrics)
        if self._unseen is not None:
            self._policy.update_normalizer(self._unseen)
            self._unseen = None
        for batch in batches:
            self._replay.add(batch)
            self._policy.update_normalizer(tensors(batch.observations[:-1][batch.valid]).to(self._device))
        collected = sum(
            int(np.count_nonzero(batch.valid) if batch.num_steps is None else batch.num_steps.sum())
            for batch in batches
        )
        self._policy.count_steps(collected)
        marks.add()
        rates = self._learning_rates(iteration, window)
        learner = self._config.learner
        self._algorithm.set_optimisation(*rates, learner.adam_eps, learner.max_grad_norm)
        if self._replay.added >= self._options.learning_starts:
            self._threads.measure_if_due(self._rehearsal(), self._pace)
        stepping = time.perf_counter()
        steps = self._take_steps(collected, max(batch.seconds for batch in batches), start, measured)
        self._pace = (time.perf_counter() - stepping) / steps if steps else self._pace
        with torch.no_grad():
            measured.reduce(window)
        marks.add()
        self._version += 1
        self._follow_curriculum(batches, window)
        snapshot = self.snapshot()
        marks.add()
        began, received, trained, published = moments = marks.moments()
        window.spans = spans("learner", moments, ["receive batches", "train", "publish weights"])
        all_skipped = self._algorithm.skipped
        skipped, self._skipped = all_skipped - self._skipped, all_skipped
        window.observe(m.GRADIENT_STEPS, steps)
        window.observe(m.LEARNT_FROM, collected)
        if steps:
            window.observe(m.NUM_UPDATES, steps - skipped)
            window.observe(m.NONFINITE_STEPS, skipped)
        self._observe_buffers(window)
        window.observe(m.STAGE, stage)
        window.observe(m.VERSION, self._version)
        self._observe_versions(window, batches)
        window.observe(m.RECV_TRAJ_TIME, received - began)
        window.observe(m.RUN_TRAINING_TIME, trained - received)
        window.observe(m.SYNC_WEIGHTS, published - trained)
        window.observe(m.PUBLISH_WEIGHTS_TIME, published - trained)
        return snapshot, window

    def _observe_buffers(self, window: MetricWindow) -> None:
        """Observes how full the buffers are."""
        window.observe(m.REPLAY_SAMPLES, len(self._replay))
        window.observe(m.REPLAY_ADDED, self._replay.added)
        window.observe(m.REPLAY_FULL, len(self._replay) / self._replay.capacity)
        if self._demo_buffer is not None:
            window.observe(m.DEMO_SAMPLES, len(self._demo_buffer))
            window.observe(m.DEMO_TRAJECTORIES, self._demonstrations)

    def _take_steps(self, collected: int, seconds: float, began: float, measured: DeviceObservations) -> int:
        """Takes the gradient steps that are due, or, without a ratio, as many as fit into the time of a collection."""
        options = self._options
        if self._replay.added < options.learning_starts:
            return 0
        if options.update_to_data is not None:
            self._debt += options.update_to_data * collected
            due = int(self._debt)
            self._debt -= due
            for begin in range(0, due, STEPS):
                self._step(min(STEPS, due - begin), measured)
            return due
        steps, together = 0, STEPS if self._stepper.records else LEAST_STEPS
        while steps < LEAST_STEPS or self._now() - began < seconds:  # on a GPU, queued steps have taken no time yet
            self._step(together, measured)
            steps += together
        return steps

    def _rehearsal(self) -> Callable[[], object]:
        """Returns gradient steps of a copy, on any stored transitions, to measure how long they take."""
        count = self._options.batch_size

        @functools.cache
        def trial() -> tuple[OffPolicyAlgorithm, Drawn]:
            return copy.deepcopy(self._algorithm), self._replay.draw(count, torch.Generator().manual_seed(0))[0]

        def steps() -> None:
            copied, drawn = trial()
            for _ in range(2):  # with one of the policy, which is due every other time by default
                copied.step(self._replay.transitions(self._replay.read(drawn))._replace(drawn=copied.draw(count)))

        return steps

    def _step(self, count: int, measured: DeviceObservations) -> None:
        """Takes so many gradient steps, at most ``STEPS``; all that is random in them is drawn first."""
        inputs = [self._draw(measured) for _ in range(count)]
        for observed in self._stepper.run(self._learn, inputs):
            measured.add(observed)

    def _draw(self, measured: DeviceObservations) -> StepInputs:
        """Draws, on the host, all that is random in a gradient step, in the order that makes runs repeatable."""
        count, demonstrated = self._options.batch_size, None
        share = round(count * self._algorithm.demo_share) if self._demo_buffer is not None else 0
        experience, observed = self._replay.draw(count - share, self._generator)
        measured.add(observed)
        if self._demo_buffer is not None and share:
            demonstrated, _ = self._demo_buffer.draw(share, self._generator)
        shifts = (self._shift.draw(count), self._shift.draw(count))
        version = torch.tensor(self._version, dtype=torch.float32)
        return StepInputs(experience, demonstrated, shifts, self._algorithm.draw(count), version)

    def _learn(self, inputs: StepInputs) -> dict[Metric, Tensor | float]:
        """Takes one gradient step with what was drawn for it."""
        rows = self._replay.read(inputs.experience)
        batch = experience = self._replay.transitions(rows)
        observed = {m.STALENESS: inputs.version - self._replay.versions(rows), m.REPLAY_REWARD: experience.rewards}
        if self._demo_buffer is not None and inputs.demonstrated is not None:
            demonstrated = self._demo_buffer.read(inputs.demonstrated)
            batch = self._replay.transitions(rows + demonstrated, len(demonstrated.numbers))
        before, after = inputs.shifts
        batch = batch._replace(
            observations=self._shift(batch.observations, before),
            next_observations=self._shift(batch.next_observations, after),
            drawn=inputs.drawn,
        )
        return observed | dict(self._algorithm.step(batch))

    def state(self) -> Arrays:
        arrays = self._common_state()
        arrays |= self._arrays("algorithm/", self._algorithm.state())
        arrays |= self._arrays("replay/", self._replay.state())
        arrays["debt"] = np.array(self._debt)
        return arrays

    def load_state(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._load_common_state(arrays)
        self._algorithm.load_state(self._tensors("algorithm/", arrays))
        self._replay.load_state(self._tensors("replay/", arrays))
        self._debt = float(arrays["debt"])
        if self._version:  # the normaliser has seen the demonstrations by then
            self._unseen = None
