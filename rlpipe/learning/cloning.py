"""Learns from demonstrations alone: one epoch per iteration, until the loss on held-out ones stops falling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlpipe.algorithms.behaviour_cloning import BehaviourCloningConfig
from rlpipe.algorithms.shared.optimizer import FlatAdam, clip_norm
from rlpipe.config.schema import Stage
from rlpipe.errors import ConfigError
from rlpipe.learner_group import SINGLE_LEARNER
from rlpipe.learning.augmentation import RandomShift
from rlpipe.learning.base import Arrays, LearnerBase
from rlpipe.learning.demonstrated import chunked_decisions
from rlpipe.learning.marks import Marks
from rlpipe.learning.pieces import Summand, cut, gradients_in_pieces
from rlpipe.learning.shares import Minibatches
from rlpipe.metrics import MetricWindow
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.declaration import Metric
from rlpipe.metrics.on_device import DeviceObservations
from rlpipe.metrics.spans import spans
from rlpipe.policies.base import Snapshot
from rlpipe.run.checkpoint import subtree
from rlpipe.trajectory import SpaceSpec
from rlpipe.trajectory.batch import TrajectoryBatch
from rlpipe.trajectory.tree import tensors

LOSS = "loss"
"""Name of the loss of each step among the terms of a minibatch."""


class Clone(NamedTuple):
    """Draws of a gradient step.

    Attributes:
        steps: [B] int64 demonstrated steps.
        shifts: [B, 2] of their images; None where nothing moves.
    """

    steps: Tensor
    shifts: Tensor | None


class CloningLearner(LearnerBase):
    """Fits the policy's most likely action to the demonstrated action."""

    def __init__(self, stages: Sequence[Stage], spec: SpaceSpec) -> None:
        """Reads the demonstrations, and holds some of them out unless ``algorithm.held_out`` is 0. The run has only one
        stage.

        Raises:
            ConfigError: they do not fit, or are too few to hold any out.
        """
        super().__init__(stages, spec)
        config = self._config
        self._options: BehaviourCloningConfig = config.algorithm
        loaded, self._raw_demonstrations = self._raw_demonstrations, None
        assert loaded is not None
        count = loaded.num_trajectories
        count_held_out = round(self._options.held_out * count)
        if self._options.held_out and not 0 < count_held_out < count:
            raise ConfigError(
                f"algorithm.held_out is {self._options.held_out}, but there are {count} demonstrations: none "
                "would be left to learn from, or to hold out. With algorithm.held_out=0, none is held out."
            )
        numbers = torch.randperm(count, generator=self._generator)[:count_held_out].numpy()
        held_out = torch.from_numpy(np.isin(loaded.trajectory, numbers)).to(self._device)
        width = config.policy.memory_width
        decisions = chunked_decisions(loaded, config.policy.chunk_size, self._device, width)
        self._train, self._held_out = decisions[~held_out], decisions[held_out]
        self._whole: Minibatches | None = None  # of whole demonstrations
        if width:
            steps, together = torch.arange(len(self._train)), torch.from_numpy(loaded.trajectory).to(self._device)
            per_epoch = -(-len(steps) // self._options.batch_size)
            self._whole = Minibatches(
                steps.to(self._device), per_epoch, SINGLE_LEARNER, self._generator, together[~held_out]
            )
        self._demonstrations = count
        self._interventions = None if loaded.interventions is None else float(loaded.interventions.mean())
        self._shift = RandomShift(self._options.random_shift, spec, self._generator)
        self._optimizer = FlatAdam(self._policy.actor_parameters(), eps=config.learner.adam_eps)
        self._policy.update_normalizer(tensors(loaded.observations).to(self._device)[~held_out])
        self._policy.fit_actions(torch.from_numpy(loaded.actions).to(self._device))
        self._stepper = self._make_stepper(lambda: {"policy": self._policy, "optimizer": self._optimizer})
        self._best = (float("inf"), 0)
        self._best_weights = self._policy.weights()
        self._finished = False

    def is_finished(self) -> bool:
        return self._finished

    def _update(
        self,
        stage: int,
        iteration: int,
        *_batches: TrajectoryBatch,
        fragments: int | None = None,  # noqa: ARG002
    ) -> tuple[Snapshot, MetricWindow]:
        self._threads.apply()
        kind, usual = self._options.loss, self._options.batch_size
        sample = self._train[: min(usual, self._config.learner.micro_batch or usual)]
        self._threads.measure_if_due(lambda: self._optimizer.gradients(sample.loss(self._policy, kind).mean()))
        marks = Marks(self._device)
        window, measured = MetricWindow(), DeviceObservations(self._metrics)
        self._optimizer.set_options(self._learning_rates(iteration, window)[:1])
        steps = self._draw()
        for observed in self._stepper.run(self._learn, steps):
            measured.add(observed)
        left = -float(iteration)  # without held-out demonstrations, each pass is better than those before
        if len(self._held_out):
            with torch.no_grad():
                pieces = self._held_out.pieces(usual)
                losses = torch.cat([piece.loss(self._policy, kind) for piece in pieces])
            measured.add({m.CLONING_LOSS_HELD_OUT: losses})
            left = float(losses.mean())
        measured.reduce(window)
        self._version += 1
        if left < self._best[0]:
            self._best, self._best_weights = (left, iteration), self._policy.weights()
        self._finished = iteration - self._best[1] >= self._options.patience or iteration == self._total
        if self._finished:
            self._policy.load_weights(self._best_weights)
        window.observe(m.CLONING_FINISHED, float(self._finished))
        window.observe(m.CLONING_BEST_EPOCH, self._best[1])
        window.observe(m.NUM_UPDATES, len(steps))
        window.observe(m.TOTAL_TIMESTEPS, 0)
        window.observe(m.STAGE, stage)
        window.observe(m.VERSION, self._version)
        window.observe(m.DEMO_SAMPLES, len(self._train) + len(self._held_out))
        window.observe(m.DEMO_TRAJECTORIES, self._demonstrations)
        if self._interventions is not None:
            window.observe(m.INTERVENTIONS, self._interventions)
        marks.add()
        began, trained = marks.moments()
        window.observe(m.RUN_TRAINING_TIME, trained - began)
        window.spans = spans("learner", [began, trained], ["train"])
        return self.snapshot(), window

    def _draw(self) -> list[Clone]:
        """Draws the steps of each minibatch of an epoch; whole demonstrations, in order, for a policy with a memory."""
        if self._whole is not None:
            order, sizes, _ = self._whole.draw()
            minibatches = torch.split(order, sizes)
        else:
            order = torch.randperm(len(self._train), generator=self._generator)
            minibatches = torch.split(order, self._options.batch_size)
        return [Clone(index, self._shift.draw(len(index))) for index in minibatches]

    def _learn(self, drawn: Clone) -> dict[Metric, Tensor]:
        """Takes one gradient step."""
        sample = self._train[drawn.steps]
        sample = replace(sample, observations=self._shift(sample.observations, drawn.shifts))
        together = sample.observations.sequence if self._whole is not None else None
        pieces = cut(len(sample), self._config.learner.micro_batch, together)

        def summand(piece: slice) -> Summand:
            loss = sample[piece].loss(self._policy, self._options.loss)
            return loss.mean() if len(pieces) == 1 else loss.sum() / len(sample), {LOSS: loss.detach()}

        _, gradient, terms = gradients_in_pieces(self._optimizer, summand, pieces)
        norm = clip_norm(gradient, self._config.learner.max_grad_norm)
        self._optimizer.step(gradient)
        return {m.CLONING_LOSS: terms[LOSS], m.ACTOR_GRAD_NORM: norm}

    def state(self) -> Arrays:
        arrays = self._common_state()
        arrays |= {f"current/{name}": array for name, array in self._policy.weights().items()}
        # the weights that a later run begins with
        arrays |= {f"policy/{name}": array for name, array in self._best_weights.items()}
        arrays |= self._arrays("optimizer/", self._optimizer.state())
        arrays["best"] = np.array(self._best)
        return arrays

    def load_state(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._load_common_state(arrays)
        self._best_weights = self._policy.weights()
        self._best = (float(arrays["best"][0]), int(arrays["best"][1]))
        self._policy.load_weights(subtree("current/", arrays))
        self._optimizer.load_state(self._tensors("optimizer/", arrays))
