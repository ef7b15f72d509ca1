"""Corrections: a policy acts, and an expert says what it would have done in each state that the policy visits.

DAgger: Ross, Gordon and Bagnell 2011, "A Reduction of Imitation Learning and Structured Prediction to No-Regret Online
Learning", arXiv:1011.0686, section 3. A policy that is cloned from what was labelled so far visits the states that the
next round labels, so that it learns to find back from its own mistakes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rlpipe.collection.actions import ActionSource, CheckpointPolicy, Label, RunningEpisode
from rlpipe.envs.base import Simulator
from rlpipe.policies.base import Snapshot
from rlpipe.trajectory import Observations, SpaceSpec

COIN, NOISE = 1, 2
"""Last part of the seeds of who acts in each step, and of the expert's own noise."""


@dataclass(frozen=True)
class Corrected:
    """Policy whose steps an expert labels, as it is sent to the workers.

    Attributes:
        policy: policy that visits the states, with one action a decision
        expert: expert that labels them
        beta: probability with which the expert acts in a step, rather than the policy
        seed: decides in which steps
        spec: spaces of the simulator
    """

    policy: Snapshot | ActionSource
    expert: ActionSource | CheckpointPolicy
    beta: float
    seed: int
    spec: SpaceSpec


Behaviour: TypeAlias = Snapshot | ActionSource | CheckpointPolicy | Corrected
"""Policy that acts in the episodes of an evaluation."""


@dataclass
class _Watched:
    """Running episode, as the expert sees it: with a memory and noise of its own."""

    episode: RunningEpisode
    by_expert: RunningEpisode
    coin: np.random.Generator


class CorrectedActions(ActionSource):
    """Actions of the mixture beta * expert + (1 - beta) * policy, drawn anew in each step, and the expert's labels.

    The expert answers in every state, whoever acts there. Of one that plans a chunk, the first action counts: in the
    next state it is asked again.
    """

    def __init__(self, policy: ActionSource, expert: ActionSource, corrected: Corrected) -> None:
        """Takes the two sources of actions, and how they take turns."""
        self._policy, self._expert, self._corrected = policy, expert, corrected
        self._watched: dict[int, _Watched] = {}  # by slot

    def enter(self, simulator: Simulator) -> None:
        for source in (self._policy, self._expert):
            source.enter(simulator)

    def actions(self, observations: Observations, episodes: Sequence[RunningEpisode]) -> NDArray[Any]:
        watched = [self._watch(episode) for episode in episodes]
        by_policy = self._policy.actions(observations, episodes)
        planned = self._expert.actions(observations, [each.by_expert for each in watched])
        spec = self._corrected.spec
        by_expert = planned.reshape(len(episodes), -1, *spec.action_shape)[:, 0].astype(spec.actions().dtype)
        if spec.num_actions is None:
            by_expert = spec.clip(by_expert)
        intervened = np.array([each.coin.random() < self._corrected.beta for each in watched])
        for each in watched:
            each.by_expert.decisions += 1
        self.labels = {
            episode.slot: Label(action, bool(acts))
            for episode, action, acts in zip(episodes, by_expert, intervened, strict=True)
        }
        by_expert = by_expert.reshape(by_policy.shape)
        return np.where(intervened.reshape(-1, *(1,) * (by_policy.ndim - 1)), by_expert, by_policy)

    def _watch(self, episode: RunningEpisode) -> _Watched:
        """Returns how the expert sees an episode; anew where it begins."""
        watched = self._watched.get(episode.slot)
        if watched is None or watched.episode is not episode or not episode.decisions:
            seed = [self._corrected.seed, episode.seed]
            coin, noise = (np.random.default_rng([*seed, part]) for part in (COIN, NOISE))
            watched = self._watched[episode.slot] = _Watched(
                episode, replace(episode, generator=noise, decisions=0, memory=None), coin
            )
        return watched

    def close(self) -> None:
        for source in (self._policy, self._expert):
            source.close()
        self._watched = {}
