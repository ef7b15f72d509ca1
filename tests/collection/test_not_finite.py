"""Observations that are not finite: their leaf is named where they begin, and what follows from them is not counted."""

from __future__ import annotations

import numpy as np
import pytest

from rlpipe.collection.collector import Collector
from rlpipe.envs import scripted
from rlpipe.metrics import CATALOGUE
from rlpipe.policies.mlp import MLPConfig, MLPPolicy

NAME = "env/nonfinite_observations/observation"


def counts(monkeypatch, value: float, broken: tuple[int, ...], *horizons: int) -> list[float | None]:
    """Count of each fragment of one environment, whose episodes of 4 steps are broken after some of them."""
    own = scripted.ScriptedEnv._observation

    def observation(self):
        return np.where(self._step in broken, np.float32(value), own(self)).astype(np.float32)

    monkeypatch.setattr(scripted.ScriptedEnv, "_observation", observation)
    config = scripted.ScriptedConfig("scripted", script=[[{"length": 4}]])
    simulator = scripted.Scripted.make(config, 1, lambda _: 7)
    policy = MLPPolicy(MLPConfig("mlp", hidden_sizes=[4]), simulator.spec)
    collector = Collector(simulator, policy, max(horizons), 0, 0, [1])
    found = []
    for horizon in horizons:
        collector._horizon = horizon
        _, window = collector.collect(0)
        found.append(window.read(list(CATALOGUE.values())).get(NAME))
    return found


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_only_the_observation_with_which_it_began_counts(monkeypatch, value):
    assert counts(monkeypatch, value, (2, 3), 8) == [2]


@pytest.mark.parametrize(("broken", "horizon"), [(4, 8), (0, 7)])
def test_the_last_observation_of_an_episode_and_the_first_of_each_count(monkeypatch, broken, horizon):
    assert counts(monkeypatch, np.nan, (broken,), horizon) == [2]


def test_an_observation_between_two_fragments_counts_once_and_a_fragment_without_any_says_0(monkeypatch):
    assert counts(monkeypatch, np.nan, (2,), 2, 3, 1) == [1, 0, 1]


@pytest.mark.filterwarnings("error")
def test_finite_observations_are_not_told_of_however_large_they_are(monkeypatch):
    assert counts(monkeypatch, 3e38, (1, 2, 3), 8) == [None]
