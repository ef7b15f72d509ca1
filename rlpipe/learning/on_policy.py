"""Learns from fresh trajectories: batches become new weights and a ``MetricWindow`` (stop 4 of the data path).

A learner knows nothing of Ray or of backends. The batch is copied to the device once; observed values stay there until
the update is over and come back in one copy.
"""

from __future__ import annotations

import copy
import itertools
import math
import platform
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlpipe.algorithms.base import OnPolicyAlgorithm, Samples, SamplesT, Terms
from rlpipe.algorithms.behaviour_cloning import LIKELIHOOD
from rlpipe.algorithms.shared.optimizer import FlatAdam, clip_norm
from rlpipe.config.schema import Stage
from rlpipe.errors import ConfigError
from rlpipe.functional.losses import cloning_weight
from rlpipe.learner_group import SINGLE_LEARNER
from rlpipe.learning.base import Arrays, LearnerBase
from rlpipe.learning.demonstrated import Demonstrated, chunked_decisions
from rlpipe.learning.marks import Marks
from rlpipe.learning.pieces import InPieces, Summand, cut, gradients_in_pieces
from rlpipe.learning.process_group import ProcessGroup, Rendezvous
from rlpipe.learning.shares import Minibatches, Share, share_of_learner
from rlpipe.metrics import MetricWindow
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.declaration import Metric
from rlpipe.metrics.on_device import DeviceObservations, MinibatchSizes
from rlpipe.metrics.spans import spans
from rlpipe.policies.base import NoWeights, Policy, Snapshot, Weights
from rlpipe.run.checkpoint import subtree
from rlpipe.trajectory import SpaceSpec
from rlpipe.trajectory.batch import TrajectoryBatch


def join(
    batches: Sequence[TrajectoryBatch], device: torch.device, version: int, share: Share | None = None
) -> TrajectoryBatch:
    """Joins fragments, in the order of the workers' ranks, along N, and copies them or a share of them to the device.

    ``version`` is that of the learner's weights.
    """
    total = sum(batch.rewards.shape[1] for batch in batches)
    share = share or Share(range(len(batches)), range(total), 0, total)
    return TrajectoryBatch.joined(batches, version, share.columns, share.first, share.environments).to(device)


SIZES = 16
"""Sizes of minibatches that are told apart, from none to all of the decisions valid."""


class Minibatch(NamedTuple):
    """Everything that one gradient step learns from.

    Attributes:
        samples: [B] this learner's decisions.
        total: [] float32, number of decisions of all learners.
        present: [B] bool, False where a decision only fills the minibatch up to a usual size; None if all count.
        demonstrated: [D] int64, demonstrated decisions to clone; None for none.
        cloning: [] float32 weight of their loss.
    """

    samples: Samples
    total: Tensor
    present: Tensor | None = None
    demonstrated: Tensor | None = None
    cloning: Tensor | None = None


class Gradients(NamedTuple):
    """Summands of one learner, or their sums over all.

    Attributes:
        loss: [] loss of a minibatch.
        flat: [P] gradients.
    """

    loss: Tensor
    flat: Tensor


class Learnt(NamedTuple):
    """Observations of a gradient step.

    Attributes:
        terms: from the algorithm's loss.
        distances: [D] cloning loss of each demonstrated decision; None for none.
    """

    terms: Terms
    distances: Tensor | None


def usual_size(length: int, most: int) -> int:
    """Returns the size that a minibatch is filled up to: one of few, so that few are recorded.

    Args:
        length: number of its decisions.
        most: usual number, if all decisions are valid, which needs no filling.
    """
    return most - (most - length) // (step := math.ceil(most / SIZES)) * step


def filled(samples: SamplesT, size: int) -> tuple[SamplesT, Tensor | None]:
    """Fills decisions up to a size, with copies of the first one.

    Returns:
        The decisions, and bool [size] that is False for the copies; None if there are none.
    """
    length = len(samples)
    if length in (0, size):
        return samples, None
    numbers = torch.arange(size, device=samples.actions.device)
    present = numbers < length
    return samples.select(numbers.where(present, 0)), present


class Learner(LearnerBase):
    """Learns from fresh trajectories: one update per iteration.

    Several learners can share a batch. Each holds the decisions of its own environments, draws the same minibatches,
    and sums its gradients with those of the others, so all have the same weights although none has seen every decision.
    """

    def __init__(
        self, stages: Sequence[Stage], spec: SpaceSpec, rank: int = 0, rendezvous: Rendezvous | None = None
    ) -> None:
        """Makes the policy with its first weights, and prepares the demonstrations if a stage clones them.

        Without a rendezvous, it is the only learner.

        Raises:
            ConfigError: the demonstrations are missing, or do not fit.
        """
        super().__init__(stages, spec, 1 if rendezvous is None else rendezvous.size)
        self._learners = SINGLE_LEARNER if rendezvous is None else ProcessGroup(rendezvous, rank, self._device)
        with torch.no_grad():  # the same seed can give other bits on another kind of machine
            for tensor in self._policy.trained_state().values():
                tensor.copy_(self._learners.from_first(tensor))
        self._compare_files()
        self._algorithm: OnPolicyAlgorithm[Any] = self._make_algorithm()
        self._learns_critic = self._algorithm.learns_critic
        trained = [self._policy.actor_parameters(), *([self._policy.critic_parameters()] * self._learns_critic)]
        self._optimizer = FlatAdam(*trained, eps=self._config.learner.adam_eps)
        self._demonstrations: Demonstrated | None = None
        loaded, self._raw_demonstrations = self._raw_demonstrations, None
        if loaded is not None and any(stage.config.algorithm.cloning_coef for stage in stages):
            self._demonstrations = chunked_decisions(loaded, self._config.policy.chunk_size, self._device)
        self._pace: float | None = None
        self._spent: defaultdict[Metric, float] = defaultdict(float)  # seconds of an update, by metric
        self._most = 0  # own decisions of a minibatch, if each of an iteration is valid
        self._begin()
        self._compile()
        self._stepper = self._make_stepper(self._step_state)
        if self._config.learner.compile:
            self._stepper.refuse("learner.compile is true, and a step that is checked for a recording is not compiled")

    def _step_state(self) -> dict[str, object]:
        """Returns the objects that gradient steps read and write."""
        outside = self._algorithm.outside_steps
        algorithm = {name: value for name, value in vars(self._algorithm).items() if name not in outside}
        return {"algorithm": algorithm, "policy": self._policy, "optimizer": self._optimizer}

    def _begin(self) -> None:
        """Freezes a copy of the present policy as the reference, if any stage compares with one."""
        configs = [stage.config for stage in self._stages]
        self._reference: Policy | None = None
        if any(config.algorithm_class(config.algorithm).keeps_reference for config in configs):
            self._reference = copy.deepcopy(self._policy).requires_grad_(False)
        self._algorithm.begin(self._in_pieces(self._reference), self._learners)

    def _in_pieces(self, policy: Any) -> Any:
        """Returns a policy as it evaluates a whole batch, without gradients; None for None."""
        size = self._config.learner.micro_batch
        return policy if policy is None or size is None else InPieces(policy, size)

    def begin_with(self, weights: Weights) -> Snapshot:
        snapshot = super().begin_with(weights)
        self._begin()
        return snapshot

    def _enter(self, stage: int) -> bool:
        changed = super()._enter(stage)
        if changed:
            before, self._algorithm = self._algorithm, self._make_algorithm()
            self._algorithm.begin(self._in_pieces(self._reference), self._learners)
            self._algorithm.load_state(before.state())
            self._compile()
        return changed

    def _compile(self) -> None:
        loss = self._algorithm.loss
        self._loss = torch.compile(loss, dynamic=True) if self._config.learner.compile else loss

    def _autocast(self) -> torch.autocast:
        """Uses bfloat16 for matrix products, if configured; weights and optimiser stay float32."""
        return torch.autocast(self._device.type, torch.bfloat16, enabled=self._config.learner.precision == "bfloat16")

    def _update(
        self, stage: int, iteration: int, *batches: TrajectoryBatch, fragments: int | None = None
    ) -> tuple[Snapshot, MetricWindow]:
        """Learns from the fragments of one iteration, as ``LearnerBase.update``.

        Args:
            fragments: number of fragments that all learners share; None means one from each worker
        """
        self._threads.apply()
        self._enter(stage)
        common, window = MetricWindow(), MetricWindow()  # the same on every learner, and this learner's own
        measured = DeviceObservations(self._metrics, self._learners)
        marks = Marks(self._device)
        with torch.no_grad():
            share = self._share(batches, fragments)
            trajectories = join(batches, self._device, self._version, share)
            marks.add()
            with self._autocast():  # as in the loss, so that differences come from the policy alone
                samples, observed = self._algorithm.prepare(trajectories, self._in_pieces(self._policy))
            measured.add(observed)
        marks.add()
        self._threads.measure_if_due(lambda: self._rehearse(samples), self._pace)
        rates = self._learning_rates(iteration, common)
        self._optimizer.set_options(rates if self._learns_critic else rates[:1])
        began = time.perf_counter()
        self._spent.clear()
        self._most = math.ceil(trajectories.rewards.numel() / self._config.algorithm.num_minibatches)
        self._run_epochs(samples, iteration, measured, common)
        self._pace = (time.perf_counter() - began) / max(1, len(samples))
        with torch.no_grad():
            self._policy.update_normalizer(samples.raw_observations, self._learners)
            if (deviation := self._policy.action_std()) is not None:
                measured.add_common({m.ACTION_STD: deviation})
            measured.reduce(window)
            self._compare_weights(iteration)
        marks.add()
        self._version += 1
        self._follow_curriculum(batches, common)
        absent = Snapshot(self._version, NoWeights.FROM_FIRST_LEARNER)
        snapshot = self.snapshot() if self._learners.first else absent
        marks.add()
        common.observe(m.STAGE, stage)
        common.observe(m.VERSION, self._version)
        self._observe_versions(window, batches, share)
        name = "learner" if self._learners.size == 1 else f"learner-{self._learners.rank}"
        moments = marks.moments()
        window.spans = spans(name, moments, ["receive batches", "advantages", "train", "publish weights"])
        received, prepared, trained, published = np.diff(moments).tolist()
        window.observe(m.RECV_TRAJ_TIME, received)
        window.observe(m.COMPUTE_ADV_TIME, prepared)
        window.observe(m.RUN_TRAINING_TIME, trained)
        window.observe(m.PUBLISH_WEIGHTS_TIME, published)
        for metric, seconds in self._spent.items() if self._device.type == "cpu" else ():
            window.observe(metric, seconds)  # on a GPU the host's clock only sees work being queued
        common.observe(m.CAL_ADVANTAGES, received + prepared)
        common.observe(m.SYNC_WEIGHTS, published)
        if self._learners.first:
            window.merge(common)
        return snapshot, window

    def _rehearse(self, samples: Samples) -> None:
        """Computes the gradients of one minibatch and drops them, to measure how long that takes."""
        if not len(samples):
            return
        size = max(1, len(samples) // self._config.algorithm.num_minibatches)
        size = min(size, self._config.learner.micro_batch or size)
        with torch.random.fork_rng(devices=[]), self._autocast():
            self._optimizer.gradients(self._loss(self._policy, samples.select(slice(size))).each.sum())

    def _share(self, batches: Sequence[TrajectoryBatch], fragments: int | None) -> Share | None:
        """Returns this learner's share of the fragments it was given; None for all."""
        if self._learners.size == 1:
            return None
        each = batches[0].rewards.shape[1]
        fragments = self._config.env.train.total_num_envs // each if fragments is None else fragments
        environments = fragments * each
        group_size = self._config.algorithm.group_size or 1
        return share_of_learner(self._learners.rank, self._learners.size, fragments, environments, group_size)

    def _run_epochs(self, samples: Samples, iteration: int, measured: DeviceObservations, common: MetricWindow) -> None:
        """Runs the epochs of an update."""
        config = self._config.algorithm
        cloning = cloning_weight(config.cloning_coef, config.cloning_decay, iteration)
        together = samples.trajectory if samples.has_memory else None
        minibatches = Minibatches(samples.position, config.num_minibatches, self._learners, self._generator, together)
        terms: list[Terms] = []
        orders: list[Tensor] = []
        own_sizes: list[int] = []
        sizes: list[int] = []
        for _ in range(config.update_epochs if minibatches.total else 0):
            order, lengths, counts = minibatches.draw()
            steps = self._minibatches(samples.select(order), lengths, counts, cloning)
            for length, (learnt, observed) in zip(lengths, self._take(steps), strict=True):
                measured.add_common(observed)
                if learnt.distances is not None:
                    measured.add({m.CLONING_LOSS: learnt.distances})
                terms.append({name: term[:length] for name, term in learnt.terms.items()})
            orders.append(order)
            own_sizes += lengths
            sizes += counts
            if config.target_kl is not None and self._divergence(terms[-len(lengths) :]) > config.target_kl:
                break
        if terms:
            index = torch.cat(orders)
            with torch.no_grad():
                joined = {name: torch.cat([minibatch[name] for minibatch in terms]) for name in terms[0]}
                values = self._algorithm.measure(samples, index, joined)
                split = MinibatchSizes(own_sizes, sizes, minibatches.per_epoch)
                numbered = samples.trajectories
                trajectory = samples.trajectory if numbered is None else numbered.index
                measured.add_update(values, trajectory[index], split, None if numbered is None else numbered.count)
        else:
            common.observe(m.NUM_UPDATES, 0)
            common.observe(m.NONFINITE_STEPS, 0)
        if config.cloning_coef:
            common.observe(m.CLONING_WEIGHT, cloning)
        common.observe(m.EPOCHS_RUN, len(orders))
        common.observe(m.NUM_UPDATE_EPOCHS, len(orders))
        common.observe(m.NUM_SAMPLES, sum(sizes))

    def _minibatches(
        self, shuffled: Samples, lengths: Sequence[int], counts: Sequence[int], cloning: float
    ) -> list[Minibatch]:
        """Cuts the decisions of an epoch into minibatches, and draws what each of them clones."""
        config, steps, begin = self._config.algorithm, [], 0
        weight = torch.tensor(cloning, dtype=torch.float32) if config.cloning_coef else None
        for length, count in zip(lengths, counts, strict=True):
            samples, present = shuffled.select(slice(begin, begin + length)), None
            if self._stepper.records and not samples.has_memory:
                samples, present = filled(samples, usual_size(length, self._most))
            demonstrated = self._draw_demonstrated(config.cloning_batch_size) if config.cloning_coef else None
            steps.append(Minibatch(samples, torch.tensor(float(count)), present, demonstrated, weight))
            begin += length
        return steps

    def _take(self, steps: Sequence[Minibatch]) -> list[tuple[Learnt, dict[Metric, Tensor]]]:
        """Takes a gradient step on each minibatch; returns what came out of it, and its metrics."""
        if self._learners.size == 1:
            return self._stepper.run(self._learn, steps)
        results = []
        for step in steps:
            ((gradients, learnt),) = self._stepper.run(self._differentiate, [step])
            began = time.perf_counter()
            summed = self._learners.sum(torch.cat([gradients.loss.reshape(1), gradients.flat]))
            self._spent[m.SYNC_GRADIENTS_TIME] += time.perf_counter() - began
            results.append((learnt, *self._stepper.run(self._descend, [Gradients(summed[0], summed[1:])])))
        return results

    def _learn(self, minibatch: Minibatch) -> tuple[Learnt, dict[Metric, Tensor]]:
        """Takes the gradient step of a single learner."""
        gradients, learnt = self._differentiate(minibatch)
        return learnt, self._descend(gradients)

    def _differentiate(self, minibatch: Minibatch) -> tuple[Gradients, Learnt]:
        """Computes this learner's summands of the loss and of its gradients."""
        began, samples, distances = time.perf_counter(), minibatch.samples, None
        together = samples.trajectory if samples.has_memory else None
        pieces = cut(len(samples), self._config.learner.micro_batch, together)

        def summand(piece: slice) -> Summand:
            nonlocal distances
            with self._autocast():
                total, terms = self._summand(minibatch, piece)
                if piece == pieces[-1] and minibatch.demonstrated is not None and minibatch.cloning is not None:
                    cloned = self._cloning_loss(minibatch.demonstrated)
                    total = total + minibatch.cloning * cloned.sum() / self._config.algorithm.cloning_batch_size
                    distances = cloned.detach()
            return total, terms

        total, gradients, terms = gradients_in_pieces(self._optimizer, summand, pieces)
        self._spent[m.FORWARD_BACKWARD_TIME] += time.perf_counter() - began
        return Gradients(total, gradients), Learnt(terms, distances)

    def _summand(self, minibatch: Minibatch, piece: slice) -> Summand:
        """Computes the loss of a piece of a minibatch."""
        samples, present = minibatch.samples, minibatch.present
        if piece != slice(0, len(samples)):
            samples, present = samples.select(piece), None if present is None else present[piece]
        loss = self._loss(self._policy, samples)
        each = loss.each if present is None else loss.each.where(present, 0.0)
        return each.sum() / minibatch.total, loss.terms

    def _descend(self, gradients: Gradients) -> dict[Metric, Tensor]:
        """Takes one optimiser step with the sums over all learners, unless the loss or a gradient is not finite."""
        began = time.perf_counter()
        observed = self._clip(gradients.flat)
        finite = torch.isfinite(torch.stack([gradients.loss, *observed.values()])).all()
        self._optimizer.step(gradients.flat, finite)
        self._spent[m.OPTIMIZER_STEP_TIME] += time.perf_counter() - began
        return {**observed, m.NUM_UPDATES: finite, m.NONFINITE_STEPS: ~finite}

    def _compare_files(self) -> None:
        """Raises ConfigError if this learner's policy was not made from the same files as that of the first one."""
        if self._policy.files_digest:
            digest = torch.tensor(list(self._policy.files_digest), device=self._device)
            if not torch.equal(digest, self._learners.from_first(digest)):
                raise ConfigError(
                    f"the files of the policy on {platform.node()}, where learner {self._learners.rank} runs, differ "
                    "from those of learner 0: copy the same folder (policy.model) to every machine."
                )

    def _compare_weights(self, iteration: int) -> None:
        """Raises RuntimeError if this learner's weights differ from those of the first one in any bit, NaN included."""
        if self._learners.size == 1:
            return
        state = self._policy.trained_state()
        sums = torch.stack([tensor.float().reshape(-1).view(torch.int32).sum() for tensor in state.values()])
        unlike = (sums != self._learners.from_first(sums)).tolist()
        if any(unlike):
            names = ", ".join(itertools.compress(state, unlike))
            raise RuntimeError(
                f"after iteration {iteration}, learner {self._learners.rank} of {self._learners.size} "
                f"(learner.num_learners) on {platform.node()} has other weights than learner 0: {names}. "
                "GPUs of different kinds round differently: keep learners to one kind (cluster.learner_nodes), or use "
                "one (learner.num_learners=1), and resume from the last checkpoint with --resume."
            )

    def _divergence(self, terms: Sequence[Terms]) -> float:
        """Returns how far the policy has moved on the decisions of these minibatches, over all learners, in nats."""
        joined = {name: torch.cat([minibatch[name] for minibatch in terms]) for name in terms[0]}
        moved = self._algorithm.divergence(joined).double()
        total, count = self._learners.sum(torch.stack([moved.sum(), moved.new_full((), len(moved))]))
        return float(total / count)

    def _draw_demonstrated(self, count: int) -> Tensor:
        """[D] int64, this learner's share of freshly drawn demonstrated decisions."""
        assert self._demonstrations is not None
        drawn = torch.randint(len(self._demonstrations), (count,), generator=self._generator)
        return drawn[self._learners.rank :: self._learners.size]

    def _cloning_loss(self, drawn: Tensor) -> Tensor:
        """[D] cloning loss of demonstrated decisions."""
        assert self._demonstrations is not None
        kind = LIKELIHOOD if self._policy.in_tokens else "squared"  # the most likely tokens have no gradient
        return self._demonstrations[drawn].loss(self._policy, kind)

    def _clip(self, gradients: Tensor) -> dict[Metric, Tensor]:
        """Clips the gradients; returns the norms before clipping, and 1 if the actor's were clipped."""
        limit = self._config.learner.max_grad_norm
        actor, *critic = (clip_norm(group, limit) for group in self._optimizer.split(gradients))
        clipped = torch.zeros_like(actor, dtype=torch.bool) if limit is None else actor > limit
        norms = {m.ACTOR_GRAD_NORM: actor, m.ACTOR_GRAD_CLIP_FRACTION: clipped}
        if critic:
            norms[m.CRITIC_GRAD_NORM] = critic[0]
        return norms

    def state(self) -> Arrays:
        arrays = self._common_state()
        arrays |= self._arrays("optimizer/", self._optimizer.state())
        if self._reference is not None:
            arrays |= {f"reference/{name}": array for name, array in self._reference.acting_weights().items()}
        arrays |= {f"algorithm/{name}": np.array(value) for name, value in self._algorithm.state().items()}
        arrays["stage"] = np.array(self._stage)
        return arrays

    def load_state(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._load_common_state(arrays)
        if self._reference is not None:  # a run without a reference so far takes the policy it resumes from
            self._reference.load_weights(subtree("reference/", arrays) or self._policy.weights())
        self._enter(int(arrays.get("stage", 0)))
        self._algorithm.load_state({name: float(value) for name, value in subtree("algorithm/", arrays).items()})
        self._optimizer.load_state(self._tensors("optimizer/", arrays))
