"""Evaluation: a fixed quota of whole episodes on held-out seeds.

Each slot's episodes are fixed in advance. Stopping after the first n episodes to finish would favour short ones, and
where success ends an episode those are the successful ones.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from rlpipe.collection.actions import ActionSource, RunningEpisode
from rlpipe.collection.commitments import EpisodeCommitments
from rlpipe.collection.decisions import Chunks, Outcome, reset, single_action, take
from rlpipe.collection.episodes import EpisodeTracker
from rlpipe.collection.recorder import Recorder, WholeRecorder
from rlpipe.collection.seeds import EpisodeKey, episode_keys, seeds_of_slots, task_of_slot
from rlpipe.config.schema import Config
from rlpipe.config.variations import Variations
from rlpipe.envs.base import Step
from rlpipe.envs.shared.make import make_simulator
from rlpipe.envs.shared.seeding import global_generators
from rlpipe.envs.shared.tasks import evaluation_allotment
from rlpipe.errors import ConfigError, ignored
from rlpipe.metrics import MetricWindow
from rlpipe.metrics import catalogue as m
from rlpipe.trajectory import Episode, Observations, SpaceSpec

Watch: TypeAlias = Callable[[int], bool]
"""Is called after each step with the number of episodes that have ended; True ends the evaluation."""


@dataclass(frozen=True)
class Request:
    """Part of an evaluation that may differ from one to the next, in the same simulators.

    Attributes:
        only: episodes to run in place of those that the configuration asks for; None for these.
        whole: record all steps of all episodes.
        variations: variations of the episodes, where the simulator varies any; None for those of the last evaluation,
            at first those of the configuration.
        replays: number of first episodes and of failures whose replays are kept; None for that of the configuration.
    """

    only: Collection[EpisodeKey] | None = None
    whole: bool = False
    variations: Variations | None = None
    replays: int | None = None


AS_CONFIGURED = Request()


def share_of_slots(slots: int, rank: int, num_workers: int) -> range:
    """Returns the slots of one worker; shares differ by at most one slot."""
    bounds = [index * slots // num_workers for index in (rank, rank + 1)]
    return range(*bounds)


def check_same_spaces(key: str, spec: SpaceSpec, policy_spec: SpaceSpec) -> None:
    """Raises ConfigError if a simulator has other spaces than the policy was made for."""
    if not spec.same_as(policy_spec):
        differ = [
            f"{name} is {getattr(spec, name)} instead of {getattr(policy_spec, name)}"
            for name in ("observation_dim", "leaves", "action_dim", "num_actions")
            if getattr(spec, name) != getattr(policy_spec, name)
        ]
        raise ConfigError(f"{key} has other observations or actions than the policy was made for: {', '.join(differ)}.")


class Evaluator:
    """Evaluates on one worker. Its simulator is made once and reset for each evaluation."""

    def __init__(self, config: Config, rank: int, num_workers: int, spec: SpaceSpec) -> None:
        """Makes the simulator, if this worker has any slot; ``spec`` are the spaces that the policy was made for.

        Raises:
            ConfigError: the simulator cannot be made, or has other spaces.
        """
        self._config = config
        self._protocol = quota = config.evaluation
        self._rank = rank
        self._chunks = Chunks.of(config)
        slots = min(config.env.eval.total_num_envs, quota.episodes)
        share = share_of_slots(slots, rank, num_workers)
        self._first_slot = share.start
        self._slots, self._share = slots, share
        self._tasks = tasks = max(1, len(config.env.eval.tasks))
        self._seeds = list[list[int]]()  # of each slot, in the present evaluation
        self._noise_seed = config.runner.seed
        self._queues: list[deque[int]] = []
        self._running: dict[int, RunningEpisode] = {}  # by slot
        self._simulator: Any = None
        self._recorder: Recorder | WholeRecorder | None = None
        if len(share):
            of_slots = [task_of_slot(slot, tasks) for slot in share]
            allotment = evaluation_allotment(config.env.eval, config.env.train, of_slots)
            self._simulator = make_simulator(
                config.env.eval, len(share), self._next_seed, key="env.eval", allotment=allotment
            )
            check_same_spaces("env.eval", self._simulator.spec, spec)

    def close(self) -> None:
        """Closes the simulator, which may be broken."""
        with ignored():
            if self._simulator is not None:
                self._simulator.close()

    def _next_seed(self, n: int) -> int | None:
        if self._recorder is not None:
            self._recorder.note_end(n)  # the reset that follows moves every body
        if not self._queues[n]:
            self._running.pop(n, None)
            return None
        seed = self._queues[n].popleft()
        generator = np.random.default_rng([self._noise_seed, seed])
        self._running[n] = RunningEpisode(seed - self._protocol.first_seed, seed, generator, slot=n)
        return seed

    def _actions(self, source: ActionSource, observations: Observations) -> NDArray[Any]:
        """Returns actions for all slots; zeros for those that have no episode to run."""
        spec = self._simulator.spec.chunked(self._chunks.size)
        actions: NDArray[Any] = spec.actions(len(observations))
        slots, episodes = list(self._running), list(self._running.values())
        actions[slots] = source.actions(observations[slots], episodes)
        for episode in episodes:
            episode.decisions += 1
        return actions

    def _seeds_of(self, only: Collection[EpisodeKey] | None) -> list[list[int]]:
        """Returns the seeds of each slot of this worker, in some episodes or in all of them."""
        first, episodes = self._protocol.first_seed, self._protocol.episodes
        keys = episode_keys(episodes, first, self._tasks) if only is None else only
        return seeds_of_slots(keys, self._slots, self._tasks)[self._share.start : self._share.stop]

    @global_generators(None)  # else a simulator for training that draws from them would draw the same after each
    @torch.inference_mode()
    def evaluate(
        self,
        source: ActionSource,
        policy_version: int,
        watch: Watch | None = None,
        deadline: float = math.inf,
        *,
        config: Config | None = None,
        request: Request = AS_CONFIGURED,
    ) -> MetricWindow:
        """Runs this worker's episodes to their end, or until ``time.monotonic`` reaches the deadline.

        Args:
            source: policy or baseline that acts
            policy_version: version of its weights
            watch: is told of the progress, and can end the evaluation
            deadline: value of ``time.monotonic`` at which it ends in any case
            config: configuration of the policy, where it is not that of the run: its chunks and the seed of its noise
            request: what to run, where that is not all that the configuration asks for
        Returns:
            A window with the ``eval/`` metrics and the episodes; if the evaluation was cut short, without them, because
            the episodes that had ended would favour short ones.
        Raises:
            SimulatorError: the simulator raised; the episodes so far do not count.
        """
        window = MetricWindow()
        config = config or self._config
        self._chunks, self._noise_seed = Chunks.of(config), config.runner.seed
        self._seeds = self._seeds_of(request.only)
        if episodes := sum(map(len, self._seeds)):
            simulator = self._simulator
            source.enter(simulator)
            if request.variations is not None:
                simulator.vary(request.variations)
            self._queues = [deque(seeds) for seeds in self._seeds]
            self._running = {}
            tracker = EpisodeTracker(self._rank, self._first_slot, simulator.num_envs)
            self._recorder = recorder = self._make_recorder(request)
            commitments = EpisodeCommitments()
            observations, beginnings = reset(simulator, [self._noise_seed, *next(filter(None, self._seeds))[:1]])
            tracker.begin(beginnings)
            commitments.begin(beginnings, observations, simulator.spec.actions(simulator.num_envs))
            recorder.begin(beginnings, observations)
            while len(window.eval_episodes) < episodes:
                actions, steps = self._actions(source, observations), list[Step]()
                recorder.note_labels(source.labels)
                for step in take(simulator, actions, self._chunks):
                    action = single_action(simulator.spec, actions, self._chunks, len(steps))
                    ended = self._committed(tracker.step(step, policy_version), step, action, commitments)
                    window.eval_episodes += ended.values()
                    recorder.step(step, action, ended)
                    steps.append(step)
                    if watch is not None and watch(len(window.eval_episodes)):
                        return MetricWindow(cut_short="it was interrupted")
                    if time.monotonic() > deadline:
                        return MetricWindow(cut_short=self._why_late(window, episodes, tracker))
                outcome = Outcome.of(steps, self._chunks)
                for n, running in self._running.items():
                    if outcome.begins[n]:  # also after a step that only resets, whose action was no action of it
                        running.memory, running.decisions = None, 0
                observations = outcome.observations
            window.notes, window.tells_success = tracker.notes, tracker.tells_success
            recorder.add_to(window, f"rollout-{self._rank}")
        m.EVAL.observe(window, window.eval_episodes)
        return window

    def _make_recorder(self, request: Request) -> Recorder | WholeRecorder:
        if request.whole:
            return WholeRecorder(self._simulator, states=self._config.eval_facts.states)
        return Recorder(self._simulator, self._protocol.replays if request.replays is None else request.replays)

    def _committed(
        self, ended: Sequence[Episode], step: Step, action: NDArray[Any], commitments: EpisodeCommitments
    ) -> dict[int, Episode]:
        """Commits to a step, and returns the episodes that it ended by their slots here, with what they commit to.

        Args:
            ended: these episodes
            step: answer of the simulator
            action: [N, A], or [N] of discrete ones, as the simulator took them
            commitments: of the running episodes
        """
        commitments.step(step, action)
        by_slot = {}
        for episode in ended:
            n = episode.slot - self._first_slot
            start, commitment = commitments.of(n)
            by_slot[n] = replace(episode, start=start, commitment=commitment)
        commitments.begin(step.beginnings, step.observations, action)
        return by_slot

    def _why_late(self, window: MetricWindow, episodes: int, tracker: EpisodeTracker) -> str:
        """Says what had not ended when the time was over."""
        longest, left = int(tracker.lengths.argmax()), episodes - len(window.eval_episodes)
        return (
            f"{left} of {episodes} episodes of rollout-{self._rank} had not ended after {self._protocol.timeout:g} s "
            f"(evaluation.timeout); that of slot {self._first_slot + longest} has gone on for "
            f"{tracker.lengths[longest]:,} steps. If episodes do not end by themselves, give env.eval a time limit; "
            "else raise evaluation.timeout"
        )
