"""Scripted simulators with a twist."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from rlpipe.envs.base import SingleEnv
from rlpipe.envs.gymnasium import Gymnasium
from rlpipe.envs.scripted import Scripted, ScriptedConfig, ScriptedEnv, ScriptedEpisode
from rlpipe.envs.shared.slots import NextSeed
from rlpipe.trajectory import LeafSpec, SpaceSpec, Tree


class Unnumbered(Scripted):
    """The scripted simulator, whose slots cannot be told apart by what they observe."""

    taken = 0
    slot = ScriptedEnv

    @classmethod
    def make(cls, config, num_envs, next_seed):
        script = [[ScriptedEpisode(**episode) for episode in slot] for slot in config.script]
        envs = [
            cls.slot(0, script[n % len(script)], match_actions=config.match_actions, discrete=config.discrete)
            for n in range(num_envs)
        ]
        return cls(envs, next_seed, ignore_terminations=config.ignore_terminations)

    def step(self, actions, active=None):
        self.taken += 1
        return super().step(actions, active)


class SeededEnv(ScriptedEnv):
    """An episode follows from its seed and its actions, as in most tasks."""

    def reset(self, seed):
        assert seed is not None
        self._count = seed % 1000 - 1  # which reset counts up
        return super().reset(seed)


class Seeded(Unnumbered):
    """The scripted simulator, of which an episode's seed says which of the script it is."""

    slot = SeededEnv


class Rolling(Seeded):
    """Its steps draw rewards from the generators of the process."""

    def step(self, actions, active=None):
        step = super().step(actions, active)
        return replace(step, rewards=step.rewards + np.random.rand(len(step.rewards)))


class Unjudged(Gymnasium):
    """Gymnasium's tasks, of which it does not say how they judge goals."""

    @classmethod
    def goal_task(cls, config):
        return None


class RaceEnv(ScriptedEnv):
    """Its seed alone decides what happens: an even one is solved in 2 steps, an odd one fails after 20."""

    def reset(self, seed):
        assert seed is not None
        self._episodes = [
            ScriptedEpisode(20, "truncated") if seed % 2 else ScriptedEpisode(2, "terminated", (2,), reward=1.0)
        ]
        return super().reset(seed)


class Race(Scripted):
    """Half of its episodes are quick and successful, half are slow and fail."""

    @classmethod
    def make(cls, config, num_envs, next_seed):
        envs: list[SingleEnv] = [RaceEnv(n, []) for n in range(num_envs)]
        return cls(envs, next_seed, ignore_terminations=False)


class SeededRaceEnv(RaceEnv):
    """Likewise, and the seed also decides what is observed: itself, and the step."""

    def reset(self, seed):
        self._seed = seed
        return super().reset(seed)

    def _observation(self):
        return np.array([self._seed, 0, self._step, 0], dtype=np.float32)


class SeededRace(Race):
    """A race whose episodes do not depend on their slots."""

    @classmethod
    def make(cls, config, num_envs, next_seed):
        envs: list[SingleEnv] = [SeededRaceEnv(n, []) for n in range(num_envs)]
        return cls(envs, next_seed, ignore_terminations=False)


RACE = {"train": {"name": "tests.helpers.simulators:Race", "total_num_envs": 6}}


@dataclass(frozen=True)
class PaintedConfig(ScriptedConfig):
    """Options of a task that is seen."""

    @property
    def has_cameras(self):
        return True


class PaintedEnv(ScriptedEnv):
    """Observes a picture of 4 x 4, grey but for its last column, which is white."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        actions = (1, None, self.spec.action_low, self.spec.action_high)
        self.spec = SpaceSpec.of_tree({"camera": LeafSpec((4, 4, 1), "uint8")}, *actions)

    def _observation(self):
        picture = np.full((4, 4, 1), 100, dtype=np.uint8)
        picture[:, -1] = 255
        return Tree({"camera": picture})


class Painted(Unnumbered):
    """The scripted simulator, seen by a camera."""

    Config = PaintedConfig
    slot = PaintedEnv


class EchoEnv(ScriptedEnv):
    """Step t of an episode, from 1, pays t times the action."""

    def step(self, action):
        return super().step(action)._replace(reward=self._step * float(action[0]))


class Echo(Scripted):
    """The scripted simulator, whose returns tell the actions apart."""

    lowest = -1.0

    @classmethod
    def make(cls, config, num_envs, next_seed):
        length = config.script[0][0]["length"]
        envs: list[SingleEnv] = [EchoEnv(n, [ScriptedEpisode(length)]) for n in range(num_envs)]
        for env in envs:
            env.spec = replace(env.spec, action_low=np.full(1, cls.lowest, np.float32))
        return cls(envs, next_seed, ignore_terminations=False)


class EchoAboveHalf(Echo):
    """Likewise, with actions from 0.5 on."""

    lowest = 0.5


ECHO = {"train": {"name": "tests.helpers.simulators:Echo", "total_num_envs": 6, "script": [[{"length": 4}]]}}


@dataclass(frozen=True)
class UnevenConfig(ScriptedConfig):
    """Options of simulators of which one is slow."""

    folder: str = ""
    """Where the first simulator leaves a note, so that all others know that they are not the slow one."""
    slow_seconds: float = 0.0
    """Time that each step of the slow simulator takes."""


class Uneven(Scripted):
    """The scripted simulator; the first one that is made in a run is slow."""

    Config = UnevenConfig

    @classmethod
    def make(cls, config: UnevenConfig, num_envs: int, next_seed: NextSeed) -> Scripted:
        with contextlib.suppress(FileExistsError):
            Path(config.folder, "slow").touch(exist_ok=False)
            config = replace(config, step_seconds=config.slow_seconds)
        return super().make(config, num_envs, next_seed)
