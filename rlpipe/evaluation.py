"""Evaluation: a fixed quota of whole episodes on held-out seeds.

Which episode runs where is settled beforehand. Stopping at the first n episodes to finish would favour quick ones,
which under a task that ends at success are the successful ones.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rlpipe.config import Config
from rlpipe.episodes import EpisodeTracker
from rlpipe.metrics import CATALOGUE, MetricWindow
from rlpipe.metrics import catalogue as m
from rlpipe.plugins import ConfigError, resolve
from rlpipe.policies.base import Policy
from rlpipe.trajectory import SpaceSpec


def episode_seeds(episodes: int, first_seed: int, slots: int) -> list[list[int]]:
    """Seeds of the episodes that each slot runs in turn: episode i has seed ``first_seed + i`` and runs on slot
    ``i % slots``."""
    return [list(range(first_seed + slot, first_seed + episodes, slots)) for slot in range(slots)]


def share_of_slots(slots: int, rank: int, num_workers: int) -> range:
    """Slots of one worker; shares differ by at most one."""
    bounds = [index * slots // num_workers for index in (rank, rank + 1)]
    return range(*bounds)


def check_same_spaces(key: str, found: SpaceSpec, wanted: SpaceSpec) -> None:
    """Checks that a simulator fits the policy.

    Raises:
        ConfigError: it does not.
    """
    if not found.same_as(wanted):
        raise ConfigError(f"{key} has other observations or actions, {found}, than the policy was made for, {wanted}.")


class Evaluator:
    """One worker's evaluation simulator, made once and reset for each evaluation."""

    def __init__(self, config: Config, rank: int, num_workers: int, spec: SpaceSpec) -> None:
        """Makes the simulator, if any slot falls to this worker.

        Args:
            config: of the run.  rank, num_workers: which share of the slots.  spec: what the policy was made for.
        Raises:
            ConfigError: the simulator cannot be made, or has other spaces.
        """
        protocol = config.evaluation
        self._protocol = protocol
        self._rank = rank
        slots = min(config.env.eval.total_num_envs, protocol.episodes)
        share = share_of_slots(slots, rank, num_workers)
        self._first_slot = share.start
        self._seeds = episode_seeds(protocol.episodes, protocol.first_seed, slots)[share.start : share.stop]
        self._noise_seed = config.runner.seed
        self._queues: list[deque[int]] = []
        self._simulator: Any = None
        if len(share):
            self._simulator = resolve("envs", config.env.eval.name, "env.eval.name").make(
                config.env.eval, len(share), self._next_seed
            )
            check_same_spaces("env.eval", self._simulator.spec, spec)

    def _next_seed(self, n: int) -> int | None:
        return self._queues[n].popleft() if self._queues[n] else None

    @torch.inference_mode()
    def evaluate(self, policy: Policy, policy_version: int) -> MetricWindow:
        """Runs this worker's episodes to their end.

        Returns:
            A window with the ``eval/`` metrics and the episodes.
        """
        window = MetricWindow()
        if self._simulator is not None:
            simulator = self._simulator
            self._queues = [deque(seeds) for seeds in self._seeds]
            tracker = EpisodeTracker(self._rank, self._first_slot, simulator.num_envs, simulator.has_success)
            spec = simulator.spec
            generators = [  # one a slot, so that sampled actions do not depend on the number of workers
                np.random.default_rng([self._noise_seed, self._first_slot + n]) for n in range(simulator.num_envs)
            ]
            remaining = sum(map(len, self._seeds))
            observations, beginnings = simulator.reset()
            tracker.begin(beginnings)
            while remaining:
                noise = None
                if not self._protocol.deterministic:
                    noise = torch.from_numpy(np.concatenate([policy.noise(g, 1) for g in generators]))
                actions = policy.act(torch.from_numpy(observations), noise)[0].numpy()
                if not spec.num_actions:
                    actions = spec.clip(actions)
                step = simulator.step(actions)
                ended = tracker.step(step, policy_version)
                window.eval_episodes += ended
                remaining -= len(ended)
                observations = step.observations
        m.EVAL.observe(window, window.eval_episodes)
        return window


@dataclass(frozen=True)
class EvaluationReport:
    """Result of an evaluation.

    Attributes:
        metrics: the ``eval/`` metrics.
        checkpoint: that was evaluated.
        protocol: what makes two success rates comparable.
    """

    metrics: dict[str, float]
    checkpoint: str
    protocol: dict[str, Any]


def evaluation_metrics(window: MetricWindow) -> dict[str, float]:
    """The ``eval/`` metrics of a merged window."""
    return window.read([metric for name, metric in CATALOGUE.items() if name.startswith("eval/")])
