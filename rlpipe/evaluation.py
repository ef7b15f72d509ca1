"""Evaluation: a fixed quota of whole episodes on held-out seeds.

Which episode runs where is settled beforehand. Stopping at the first n episodes to finish would favour quick ones,
which under a task that ends at success are the successful ones.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rlpipe.checkpoint import Checkpoint
from rlpipe.comparison import Estimate, estimates, write_record
from rlpipe.config import Config, from_yaml, leaves, protocol, to_yaml
from rlpipe.episodes import EpisodeTracker
from rlpipe.faults import SimulatorError
from rlpipe.metrics import CATALOGUE, MetricWindow
from rlpipe.metrics import catalogue as m
from rlpipe.plugins import ConfigError, resolve
from rlpipe.policies.base import Acting
from rlpipe.run_directory import versions
from rlpipe.trajectory import Episode, Float32, SpaceSpec

log = logging.getLogger("rlpipe")

_PLAYS_NO_PART = ("evaluation.", "env.eval.", "runner.logger.", "rollout.", "cluster.", "learner.", "demos")
"""Keys that stand in the protocol, or on which no episode of an evaluation depends."""


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
        self._protocol = quota = config.evaluation
        self._rank = rank
        slots = min(config.env.eval.total_num_envs, quota.episodes)
        share = share_of_slots(slots, rank, num_workers)
        self._first_slot = share.start
        self._seeds = episode_seeds(quota.episodes, quota.first_seed, slots)[share.start : share.stop]
        self._noise_seed = config.runner.seed
        self._queues: list[deque[int]] = []
        self._generators: dict[int, np.random.Generator] = {}  # of the episodes being played, by slot
        self._simulator: Any = None
        if len(share):
            self._simulator = resolve("envs", config.env.eval.name, "env.eval.name").make(
                config.env.eval, len(share), self._next_seed
            )
            check_same_spaces("env.eval", self._simulator.spec, spec)

    def _next_seed(self, n: int) -> int | None:
        if not self._queues[n]:
            self._generators.pop(n, None)
            return None
        seed = self._queues[n].popleft()
        self._generators[n] = np.random.default_rng([self._noise_seed, seed])
        return seed

    def _actions(self, policy: Acting, observations: Float32) -> NDArray[Any]:
        """One action for each slot that has an episode to play.

        Each is computed by itself, from noise of its episode: what one episode does may not depend on how many others
        are played beside it.
        """
        spec = self._simulator.spec
        shape = () if spec.num_actions else (spec.action_dim,)
        actions = np.zeros((len(observations), *shape), dtype=np.int64 if spec.num_actions else np.float32)
        playing = list(self._generators)
        noise = None
        if not self._protocol.deterministic:
            drawn = [policy.noise(generator, 1) for generator in self._generators.values()]
            noise = torch.from_numpy(np.concatenate(drawn))
        actions[playing] = policy.act_each(torch.from_numpy(observations[playing]), noise)[0].numpy()
        return actions if spec.num_actions else spec.clip(actions)

    @torch.inference_mode()
    def evaluate(self, policy: Acting, policy_version: int) -> MetricWindow:
        """Runs this worker's episodes to their end.

        Returns:
            A window with the ``eval/`` metrics and the episodes.
        Raises:
            SimulatorError: the simulator raised; what was played says nothing.
        """
        window = MetricWindow()
        if self._simulator is not None:
            simulator = self._simulator
            self._queues = [deque(seeds) for seeds in self._seeds]
            self._generators = {}
            tracker = EpisodeTracker(self._rank, self._first_slot, simulator.num_envs, simulator.has_success)
            remaining = sum(map(len, self._seeds))
            try:
                observations, beginnings = simulator.reset()
            except Exception as error:
                raise SimulatorError.of(error, "resetting") from error
            tracker.begin(beginnings)
            while remaining:
                actions = self._actions(policy, observations)
                try:
                    step = simulator.step(actions)
                except Exception as error:
                    raise SimulatorError.of(error, "taking a step") from error
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
        estimates: success, return and length, each with its number of episodes and its 95 % interval.
        checkpoint: that was evaluated.  iteration: after which it was written.
        protocol: what makes two success rates comparable.
        versions: of the packages it was played with.
        changes: keys outside of the protocol in which the configuration is not the checkpoint's, with their values.
        episodes: all of them, in the order of their seeds.
        record: file in the run directory that holds all this, for ``rlpipe compare``; None for a checkpoint elsewhere.
    """

    metrics: dict[str, float]
    estimates: list[Estimate]
    checkpoint: str
    iteration: int
    protocol: dict[str, Any]
    versions: dict[str, str]
    changes: dict[str, Any]
    episodes: list[Episode]
    record: str | None = None

    @classmethod
    def of(cls, window: MetricWindow, config: Config, state: Checkpoint) -> EvaluationReport:
        """What the merged window of an evaluation says of a checkpoint."""
        episodes = sorted(window.eval_episodes, key=lambda e: (e.seed is None, e.seed or 0, e.step, e.slot))
        metrics = window.read([metric for name, metric in CATALOGUE.items() if name.startswith("eval/")])
        before, now = (dict(leaves(from_yaml(text))) for text in (state.meta["config"], to_yaml(config)))
        changes = {
            key: value
            for key, value in now.items()
            if not key.startswith(_PLAYS_NO_PART) and before.get(key, value) != value  # a new version may add keys
        }
        return cls(
            metrics, estimates(episodes), str(state.path), state.meta["iteration"], protocol(config), versions(),
            changes, episodes,
        )  # fmt: skip

    def as_json(self) -> dict[str, Any]:
        """All of it, as ``rlpipe evaluate --json`` prints it and as the record holds it."""
        fields = {name: value for name, value in vars(self).items() if name != "record"}
        return {
            **fields,
            "estimates": [asdict(one) for one in self.estimates],
            "episodes": [episode.as_row(self.iteration) for episode in self.episodes],
        }

    def recorded(self) -> EvaluationReport:
        """The same, written down in the run directory the checkpoint lies in; as it is where there is none."""
        run = Path(self.checkpoint).resolve().parent.parent
        if Path(self.checkpoint).resolve().parent.name != "checkpoints" or not (run / "run.json").is_file():
            return self
        try:
            return replace(self, record=str(write_record(run, self.as_json())))
        except OSError as error:
            log.warning("The evaluation could not be recorded in %s: %s", run, error)
            return self
