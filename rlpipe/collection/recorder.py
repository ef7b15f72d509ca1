"""Records evaluation episodes: those that are worth a look, or all of them with everything that was observed.

It draws no random number and changes no other. Which episodes are worth a look is known only at their end, so each
running one is recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlpipe.envs.base import Beginning, Simulator, Step
from rlpipe.errors import SimulatorError, how_it_failed
from rlpipe.metrics import MetricWindow
from rlpipe.trajectory import Episode, Float32, Observations, Recording, Replay, Scene, State
from rlpipe.trajectory.replay import worth_keeping
from rlpipe.trajectory.tree import named_leaves

MOST_NUMBERS = 1024
"""Numbers of a leaf of the observation, above which it is left out. Images are left out in any case."""
MOST_STEPS = 10_000
"""Steps of an episode above which it has no replay: one that never ends would fill the memory."""


@dataclass
class _Running:
    """Episode that a slot is running: an entry for each step, and in observations one for the start."""

    observations: dict[str, list[NDArray[Any]]]
    actions: list[NDArray[Any]] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    success: list[bool] = field(default_factory=list)

    def add(self, step: Step, actions: NDArray[Any], n: int) -> None:
        """Adds what a step of slot ``n`` did, but for its observations."""
        self.actions.append(np.array(actions[n]))  # a view would hold the whole array
        self.rewards.append(float(step.rewards[n]))
        if step.success is not None:
            self.success.append(bool(step.success[n]))

    def steps(self, episode: Episode) -> dict[str, Any]:
        """Returns the fields of ``RecordedSteps``, now that the episode has ended."""
        return {
            "episode": episode,
            "rewards": np.array(self.rewards, dtype=np.float64),
            "success": np.array(self.success, dtype=bool) if self.success else None,
            "actions": np.stack(self.actions),
            "observations": {name: np.stack(rows) for name, rows in self.observations.items()},
        }


@dataclass
class _Shown(_Running):
    """Episode of which a replay shows the bodies, too; an entry of poses for each step and the start."""

    scene: Scene | None = None
    poses: list[Float32] = field(default_factory=list)


class Recorder:
    """Records one evaluation on one worker."""

    def __init__(self, simulator: Simulator, most: int) -> None:
        """Has recorded nothing.

        Args:
            simulator: whose episodes are recorded
            most: number of first episodes and of failures that are kept; 0 records nothing
        """
        self._simulator = simulator
        self._most = most
        self._running: dict[int, _Shown] = {}  # by slot
        self._last_poses: dict[int, Float32] = {}  # of episodes that have just ended, by slot
        self._kept: list[Replay] = []
        self._scenes: dict[str, Scene] = {}
        self._problem = ""

    def begin(self, beginnings: Mapping[int, Beginning], observations: Observations) -> None:
        """Begins to record episodes, by slot, given the observations [N, ...] after their resets."""
        if not self._most:
            return
        for n in beginnings:
            scene = self._guarded(self._simulator.scene, n)
            leaves = {name: [_row(leaf, n)] for name, leaf in _vectors(observations)}
            running = self._running[n] = _Shown(leaves, scene=scene)
            if scene is not None:
                self._add_poses(running, self._guarded(self._simulator.poses, n))

    def note_end(self, n: int) -> None:
        """Records where the bodies of a slot are, before it is reset. Does nothing if no episode is running there."""
        running = self._running.get(n)
        if running is not None and running.scene is not None:
            poses = self._guarded(self._simulator.poses, n)
            if poses is not None:
                self._last_poses[n] = poses

    def step(self, step: Step, actions: NDArray[Any], ended: Mapping[int, Episode]) -> None:
        """Records a step of every running episode.

        Args:
            step: answer of the simulator
            actions: [N, A], or [N] of discrete ones, as the simulator took them
            ended: episodes that ended with it, by slot
        """
        if not self._most:
            return
        vectors = _vectors(step.successors)
        for n in np.flatnonzero(step.valid).tolist():
            running = self._running.get(n)
            if running is None:
                continue
            if len(running.actions) == MOST_STEPS:
                del self._running[n]
                continue
            running.add(step, actions, n)
            for name, leaf in vectors:
                running.observations[name].append(_row(leaf, n))
            if running.scene is not None:
                last = self._last_poses.pop(n, None) if n in ended else None
                self._add_poses(running, self._guarded(self._simulator.poses, n) if last is None else last)
            if n in ended:
                self._keep(self._running.pop(n), ended[n])
        self.begin(step.beginnings, step.observations)

    def _add_poses(self, running: _Shown, poses: Float32 | None) -> None:
        if poses is None or running.scene is None or len(poses) != len(running.scene.bodies):
            running.scene = None  # from now on, this episode has numbers alone
        else:
            running.poses.append(poses)

    def _guarded(self, ask: Any, n: int) -> Any:
        """Asks the simulator about its bodies. If it raises, which must not end a run, replays go on without them."""
        if self._problem:
            return None
        try:
            return ask(n)
        except BaseException as error:
            self._problem = how_it_failed(error)
            return None

    def _keep(self, running: _Shown, episode: Episode) -> None:
        scene = running.scene
        bodies = {} if scene is None else {"poses": np.stack(running.poses), "scene": scene.key}
        replay = Replay(**running.steps(episode), **bodies)
        self._kept = worth_keeping([*self._kept, replay], self._most)
        if scene is not None and any(other is replay for other in self._kept):
            self._scenes[scene.key] = scene

    def add_to(self, window: MetricWindow, name: str) -> None:
        """Adds the replays that are worth keeping to a window, in the name of a worker."""
        window.eval_replays += self._kept
        used = {replay.scene for replay in self._kept}
        window.scenes.update({key: scene for key, scene in self._scenes.items() if key in used})
        if self._problem:
            window.faults.append(f"{name}: replays show no bodies, because the simulator {self._problem}.")


@dataclass
class _Whole(_Running):
    """Episode that is recorded with the simulator's states; an entry of these for each step and the start."""

    states: list[State] = field(default_factory=list)


class WholeRecorder:
    """Records all episodes of one evaluation on one worker, with all leaves and states."""

    def __init__(self, simulator: Simulator, *, states: bool) -> None:
        """Has recorded nothing.

        Args:
            simulator: whose episodes are recorded
            states: True if it can begin an episode in a state, so that states are recorded
        """
        self._simulator = simulator
        self._has_states = states
        self._running: dict[int, _Whole] = {}  # by slot
        self._ended: list[Recording] = []

    def begin(self, beginnings: Mapping[int, Beginning], observations: Observations) -> None:
        """See ``Recorder.begin``."""
        leaves = named_leaves(observations)
        for n in beginnings:
            self._running[n] = _Whole({name: [np.array(leaf[n])] for name, leaf in leaves.items()})
            self._add_state(n)

    def note_end(self, n: int) -> None:
        """Records the state of a slot after its last step, before it is reset."""
        if n in self._running:
            self._add_state(n)

    def step(self, step: Step, actions: NDArray[Any], ended: Mapping[int, Episode]) -> None:
        """See ``Recorder.step``."""
        leaves = named_leaves(step.successors)
        for n in np.flatnonzero(step.valid).tolist():
            running = self._running[n]
            running.add(step, actions, n)
            for name, leaf in leaves.items():
                running.observations[name].append(np.array(leaf[n]))
            if n in ended:
                self._ended.append(_recording(self._running.pop(n), ended[n]))
            else:
                self._add_state(n)
        self.begin(step.beginnings, step.observations)

    def _add_state(self, n: int) -> None:
        if self._has_states:
            try:
                self._running[n].states.append(self._simulator.state(n))
            except BaseException as error:
                raise SimulatorError.of(error, "telling its state") from error

    def add_to(self, window: MetricWindow, name: str) -> None:  # noqa: ARG002 - as of every recorder
        """Adds the episodes to a window."""
        window.recordings += self._ended


def _recording(running: _Whole, episode: Episode) -> Recording:
    """Stacks the steps of an episode that has ended."""
    states = running.states
    stacked = {name: np.stack([state[name] for state in states]) for name in states[0]} if states else None
    return Recording(**running.steps(episode), states=stacked)


def _vectors(observations: Observations) -> list[tuple[str, NDArray[Any]]]:
    """Leaves [N, D] or [N] that are short vectors, by name."""
    leaves = named_leaves(observations).items()
    return [(name, leaf) for name, leaf in leaves if leaf.ndim <= 2 and leaf[0].size <= MOST_NUMBERS]


def _row(leaf: NDArray[Any], n: int) -> Float32:
    """Copies a row [D], so that the whole array need not stay."""
    return np.array(leaf[n], dtype=np.float32).reshape(-1)
