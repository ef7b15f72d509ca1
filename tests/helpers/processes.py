"""Simulators for tests of the boundary between processes. This file imports nothing that a simulator does without."""

from __future__ import annotations

import faulthandler
import itertools
import os
import signal
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from rlpipe.envs.base import SingleEnv
from rlpipe.envs.scripted import Scripted, ScriptedConfig, ScriptedEnv, ScriptedEpisode
from rlpipe.metrics.declaration import Metric
from rlpipe.metrics.reductions import Mean


@dataclass(frozen=True)
class FragileConfig(ScriptedConfig):
    """Options of the fragile simulator."""

    fault: str = ""
    """Fault of every step, or of one step where ``folder`` is given. Several, separated by spaces, happen in turn."""
    folder: str = ""
    """Where the fault leaves a note, so that the simulator that replaces this one does not fail."""
    at: int = 0
    """Steps that are taken before."""


class Fragile(Scripted):
    """The scripted simulator, whose steps end, stop or disturb its process."""

    Config = FragileConfig

    @classmethod
    def make(cls, config, num_envs, next_seed):
        made = super().make(config, num_envs, next_seed)
        made.config, made.taken = config, 0
        return made

    def step(self, actions, active=None):
        note = Path(self.config.folder, "fault")
        self.taken += 1
        if self.config.fault and self.taken > self.config.at and not (self.config.folder and note.exists()):
            if self.config.folder:
                note.touch()
            faults = self.config.fault.split()
            fail(faults[(self.taken - self.config.at - 1) % len(faults)])
        return super().step(actions, active)


def fail(fault: str) -> None:
    if fault == "print":
        print("printed")
        os.write(1, b"written by C \xff\n")
        sys.stdout.flush()
        return
    print("a last word", file=sys.stderr)
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault == "abort":
        os.abort()
    elif fault == "crash":
        faulthandler._sigsegv()
    elif fault == "exit":
        os._exit(7)
    elif fault == "sys.exit":
        sys.exit(7)
    elif fault == "interrupt":
        raise KeyboardInterrupt
    elif fault == "hang":
        time.sleep(3600)
    elif fault == "busy":
        sum(itertools.repeat(0))  # never lets another thread run
    raise ArithmeticError("the solver diverged")


MEASURED = Metric("env/curious/place", "m", "Place of the curious simulator.", "mean", reduction=Mean)


@dataclass(frozen=True)
class CuriousConfig(ScriptedConfig):
    """Options of the simulator with states."""


class CuriousEnv(ScriptedEnv):
    """Has a state and an expert."""

    place = np.zeros((2, 600))

    def state(self):
        return {"place": self.place}

    def set_state(self, state):
        self.place = state["place"]
        return self._observation(), False

    def expert_action(self):
        return np.array([self.place.mean() + self._step], np.float32)


class Curious(Scripted):
    """The scripted simulator with states and a metric of its own."""

    Config = CuriousConfig
    metrics = (MEASURED,)

    @classmethod
    def make(cls, config, num_envs, next_seed):
        envs: list[SingleEnv] = [CuriousEnv(n, [ScriptedEpisode(10)]) for n in range(num_envs)]
        return cls(envs, next_seed, ignore_terminations=False)

    def step(self, actions, active=None):
        step = super().step(actions, active)
        return replace(step, observed={MEASURED: np.zeros(self.num_envs), MEASURED.name: np.ones(self.num_envs)})
