"""A policy that acts for many rollout workers: their requests are gathered, and one forward pass answers them all.

The counterpart of ``collection.served_policy.ServedPolicy``. It knows nothing of Ray or of simulators. Its
methods may be called from many threads; the policy runs on a thread of its own.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rlpipe.config.schema import Config
from rlpipe.errors import ForeignError
from rlpipe.metrics import MetricWindow
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.spans import spans
from rlpipe.policies.base import NoWeights, Snapshot, build_policy
from rlpipe.trajectory import Float32, Observations, SpaceSpec
from rlpipe.trajectory.tree import joined, tensors

Answer = tuple[NDArray[Any], Float32, Float32 | None]
"""Actions, log-probabilities, and memories if the policy has one: a row of each for each row of the request."""


@dataclass(frozen=True)
class _Request:
    """Request of one worker, and the future that will hold its answer."""

    rank: int
    version: int
    observations: Observations
    noise: Float32 | None
    each: bool
    memories: Float32 | None
    arrived: float = field(default_factory=time.perf_counter)
    answer: Future[Answer] = field(default_factory=Future)


@dataclass
class _Passes:
    """Statistics of the forward passes of one collection."""

    load_began: float = 0.0
    loaded: float = 0.0
    began: float = math.inf
    ended: float = -math.inf
    busy: float = 0.0
    sizes: list[int] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)

    def add(self, requests: list[_Request], began: float, ended: float) -> None:
        self.began, self.ended = min(self.began, *(r.arrived for r in requests)), ended
        self.busy += ended - began
        self.sizes.append(sum(len(r.observations) for r in requests))
        self.waits += [began - r.arrived for r in requests]

    def window(self, actor: str) -> MetricWindow:
        window = MetricWindow(spans=spans(actor, [self.load_began, self.loaded], ["load weights"]))
        window.observe(m.LOAD_WEIGHTS_TIME, self.loaded - self.load_began)
        if self.sizes:
            window.spans += spans(actor, [self.began, self.ended], ["answer"])
            window.observe(m.INFERENCE_BATCH_SIZE, self.sizes)
            window.observe(m.INFERENCE_WAIT, self.waits)
            window.observe(m.PREDICT_TIME, self.busy)
            window.observe(m.ROLLOUT_RECV_WAIT, self.ended - self.began - self.busy)
        return window


class InferenceServer:
    """Answers the requests of many workers with one policy; implements ``PolicyServer``.

    A forward pass starts as soon as every collecting worker has sent a request, ``rollout.max_inference_batch`` rows
    are pending, or ``rollout.inference_wait`` milliseconds have passed since the first request. Its rows are in the
    order of the workers' ranks, so passes that wait for all workers are the same in every run.
    """

    def __init__(self, config: Config, spec: SpaceSpec, index: int, ranks: Iterable[int]) -> None:
        """Makes the policy with its first weights, on a GPU if there is one, for the workers of some ranks."""
        rollout, threads = config.rollout, max(1, int(config.cluster.cpus_per_inference_server))
        torch.set_num_threads(threads)
        self._patience = math.inf if rollout.inference_wait is None else rollout.inference_wait / 1000
        self._most = rollout.max_inference_batch
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._policy = build_policy(config, spec).to(self._device)
        self._version = -1
        self._name = f"inference-{index}"
        self._ranks = frozenset(ranks)
        self._acting = threading.Lock()  # guards the weights
        self._changed = threading.Condition()  # guards everything below
        self._waiting: list[_Request] = []
        self._collecting: set[int] = set()
        self._passes = _Passes()
        threading.Thread(target=self._serve, args=(threads,), daemon=True).start()

    def load(self, snapshot: Snapshot) -> Snapshot:
        """Takes new weights and expects requests from all its workers.

        Returns:
            The snapshot without its weights, which the workers do not need.
        """
        began = time.perf_counter()
        with self._acting:
            snapshot.load_into(self._policy)
            self._version = snapshot.version
        with self._changed:
            self._collecting = set(self._ranks)
            self._passes = _Passes(began, time.perf_counter())
        return replace(snapshot, weights=NoWeights.ON_SERVER)

    def act(
        self,
        rank: int,
        version: int,
        observations: Observations,
        noise: Float32 | None,
        each: bool,
        memories: Float32 | None = None,
    ) -> Answer:
        """Returns actions, log-probabilities and memories for the rows of one worker.

        Args:
            rank: rank of the worker
            version: version of the weights that must answer
            observations: [N, ...] raw observations
            noise: [N, noise width] random numbers; None for deterministic actions
            each: compute every row by itself, without waiting for other workers
            memories: [N, H] of each slot; None for a policy without a memory
        Raises:
            RuntimeError: the server holds other weights.
        """
        request = _Request(rank, version, observations, noise, each, memories)
        with self._changed:
            self._waiting.append(request)
            self._changed.notify_all()
        return request.answer.result()

    def release(self, rank: int) -> None:
        """Announces that a worker sends no more requests in this collection."""
        with self._changed:
            self._collecting.discard(rank)
            self._changed.notify_all()

    def window(self, _: Snapshot) -> MetricWindow:
        """Returns sizes and times of the passes of a collection, once all workers are done with it.

        It takes what ``load`` returned, so it cannot be called before the collection has begun.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._collecting)
            return self._passes.window(self._name)

    def _serve(self, threads: int) -> None:
        torch.set_num_threads(threads)  # the setting is per thread
        while True:
            requests = self._gather()
            try:
                answers = self._answers(requests)
            except BaseException as error:  # which would end this thread unnoticed
                failure = ForeignError.of(error)
                for request in requests:
                    request.answer.set_exception(failure)  # the caller waits for it
                continue
            for request, answer in zip(requests, answers, strict=True):
                request.answer.set_result(answer)

    def _gather(self) -> list[_Request]:
        """Waits until the next pass may start; returns its requests."""
        with self._changed:
            while (left := self._time_left()) > 0:
                self._changed.wait(None if math.isinf(left) else left)
            rows, count = 0, 0
            for request in self._waiting:
                rows += len(request.observations)
                if count and (rows > self._most or request.each or self._waiting[0].each):
                    break
                count += 1
            requests, self._waiting = self._waiting[:count], self._waiting[count:]
        return sorted(requests, key=lambda request: request.rank)

    def _time_left(self) -> float:
        """Returns the seconds that the next pass may still wait for more requests."""
        if not self._waiting:
            return math.inf
        ranks = {request.rank for request in self._waiting}
        rows = sum(len(request.observations) for request in self._waiting)
        if self._waiting[0].each or rows >= self._most or ranks >= self._collecting:
            return 0.0
        return self._waiting[0].arrived + self._patience - time.perf_counter()

    def _answers(self, requests: list[_Request]) -> list[Answer]:
        """Runs one forward pass; returns the answer to each request."""
        began = time.perf_counter()
        each = requests[0].each
        observations = self._joined([request.observations for request in requests])
        noise, memories = (self._joined([getattr(r, name) for r in requests]) for name in ("noise", "memories"))
        with self._acting, torch.inference_mode():
            for request in requests:
                if request.version != self._version:
                    raise RuntimeError(
                        f"rollout worker {request.rank} acts with version {request.version} of the policy, but the "
                        f"inference server holds version {self._version}."
                    )
            decide = self._policy.decide_each if each else self._policy.decide
            decided = decide(observations, noise, memories)
            actions, log_probs = decided.actions.cpu().numpy(), decided.log_probs.cpu().numpy()
            after = None if decided.memories is None else decided.memories.cpu().numpy()
        if not each:
            with self._changed:
                self._passes.add(requests, began, time.perf_counter())
        bounds = np.cumsum([len(request.observations) for request in requests])[:-1]
        memories_of = [None] * len(requests) if after is None else np.split(after, bounds)
        return list(zip(np.split(actions, bounds), np.split(log_probs, bounds), memories_of, strict=True))

    def _joined(self, parts: Sequence[Any]) -> Any:
        """Joins what some or all requests brought, on the device of the policy; None if none brought any."""
        brought = [part for part in parts if part is not None]
        return tensors(joined(brought)).to(self._device) if brought else None
