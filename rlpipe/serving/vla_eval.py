"""Lets vla-eval run the tasks of rlpipe: ``benchmark: rlpipe.serving.vla_eval:RlpipeBenchmark`` in its configuration.

vla-eval and rlpipe must be in one Python; nothing else of rlpipe imports this file.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from vla_eval.benchmarks.base import StepBenchmark, StepResult
from vla_eval.protocol.numpy_codec import set_image_format

from rlpipe.collection.decisions import SINGLE_ACTIONS, reset, take
from rlpipe.collection.episodes import EpisodeTracker
from rlpipe.config.loading import load_config
from rlpipe.config.simulators import simulator_class
from rlpipe.envs.shared.make import make_simulator
from rlpipe.envs.shared.tasks import evaluation_allotment, tasks_of
from rlpipe.trajectory import Episode, Observations, Tree

KEY = "env.eval"
NO_LIMIT = 1_000_000
"""Steps that vla-eval may take where only the task knows when an episode ends; without a number it stops after 300."""


class RlpipeBenchmark(StepBenchmark):  # type: ignore[misc]
    """Evaluation tasks of a configuration. The episode ``i`` of each has the seed ``first_seed + i``.

    A model server is sent ``state``, or the leaves of the observation by their names, pictures below ``images``; with
    ``rlpipe serve --protocol vla-eval``, episodes are those of ``rlpipe evaluate``.
    """

    render_backends = frozenset({"cpu", "gpu"})

    def __init__(self, config: str, first_seed: int | None = None, overrides: Sequence[str] = ()) -> None:
        """Makes the simulator of the first task.

        Args:
            config: run directory, YAML file or name of a shipped configuration.
            first_seed: seed of the first episode; None for ``evaluation.first_seed``.
            overrides: ``key=value`` each.
        Raises:
            ConfigError: it cannot be made.
        """
        super().__init__()
        folder = Path(config)
        plan = load_config(folder / "config.yaml" if folder.is_dir() else config, overrides)
        self._env, self._noise_seed = plan.env, plan.runner.seed
        options = plan.env.eval
        self._tasks = {task.label: task.config for task in tasks_of(options, KEY)} or {options.task_name: options}
        self._first_seed = plan.evaluation.first_seed if first_seed is None else first_seed
        self._seeds: deque[int] = deque()
        self._seed = 0
        self._tracker: EpisodeTracker | None = None
        self._episode: Episode | None = None
        self._open(next(iter(self._tasks)))

    def _open(self, task: str) -> None:
        """Makes the simulator of a task."""
        allotment = evaluation_allotment(self._env.eval, self._env.train, [list(self._tasks).index(task)])
        self._simulated_task = task
        self._simulator = make_simulator(self._env.eval, 1, self._next_seed, key=KEY, allotment=allotment)
        if any(leaf.shape[2:] == (1,) for leaf in (self._simulator.spec.leaves or {}).values()):
            set_image_format("raw")  # Pillow, which vla-eval compresses pictures with, takes no single channel

    def _next_seed(self, _: int) -> int | None:
        return self._seeds.popleft() if self._seeds else None

    @classmethod
    def configure_render(cls, mode: str) -> dict[str, str]:  # noqa: ARG003 - the configuration says how it renders
        """Leaves the renderer to the configuration."""
        return {}

    def get_tasks(self) -> list[dict[str, Any]]:
        """Returns the tasks: one, or those of ``env.eval.tasks`` by their labels."""
        return [{"name": name, "suite": "rlpipe"} for name in self._tasks]

    def get_metadata(self) -> dict[str, Any]:
        """Returns the time limit of an episode, the longest one of all tasks."""
        facts = [simulator_class(options, KEY).describe(options, KEY) for options in self._tasks.values()]
        return {"max_steps": max(each.time_limit or NO_LIMIT for each in facts)}

    def get_metric_keys(self) -> dict[str, str]:
        """Returns what of ``get_step_result`` is averaged."""
        return dict.fromkeys(("success", "success_at_end", "episode_return", "length"), "mean")

    def reset(self, task: dict[str, Any]) -> Observations:
        """Begins an episode, and leaves its seed in the task, with which the server of the model is told of it."""
        if task["name"] != self._simulated_task:
            self._simulator.close()
            self._open(task["name"])
        self._seed = task["seed"] = self._first_seed + task["episode_idx"]
        self._seeds, self._episode = deque([self._seed]), None
        observations, beginnings = reset(self._simulator, [self._noise_seed, self._seed])
        self._tracker = EpisodeTracker(0, 0, 1)
        self._tracker.begin(beginnings)
        return observations

    def step(self, action: Mapping[str, Any]) -> StepResult:
        """Takes one action.

        Raises:
            ValueError: it is a chunk of several, or no action of this task.
        """
        spec = self._simulator.spec
        actions = np.asarray(action["actions"])
        if actions.size != spec.action_dim:
            raise ValueError(f"actions have the shape {actions.shape}; the task takes one action of {spec.action_dim}.")
        actions = actions.reshape(1, *spec.action_shape).astype(np.int64 if spec.num_actions else np.float32)
        (step,) = take(self._simulator, actions, SINGLE_ACTIONS)
        assert self._tracker is not None  # vla-eval resets before it steps
        self._episode = next(iter(self._tracker.step(step, 0)), None)
        return StepResult(step.observations, float(step.rewards[0]), self._episode is not None, {})

    def make_obs(self, raw_obs: Observations, task: Mapping[str, Any]) -> dict[str, Any]:
        """Returns an observation as vla-eval's model servers expect it."""
        observation: dict[str, Any] = {"task_description": task["name"]}
        if not isinstance(raw_obs, Tree):
            return observation | {"state": raw_obs[0]}
        for name, leaf in raw_obs.leaves.items():
            is_picture = leaf.dtype == np.uint8 and leaf.ndim == 4
            place = observation.setdefault("images", {}) if is_picture else observation
            place[name] = leaf[0]
        return observation

    def get_step_result(self, step_result: StepResult) -> dict[str, Any]:  # noqa: ARG002 - the tracker knows more
        """Returns how the episode ended; no success where the task has none.

        Raises:
            ValueError: it has not ended, because vla-eval takes fewer steps than the task: it counts as an error.
        """
        episode = self._episode
        if episode is None:
            raise ValueError("max_steps of the benchmark is below the time limit of the task: leave it out.")
        success = {"success": episode.success_once, "success_at_end": episode.success_at_end}
        result = {"episode_return": episode.episode_return, "length": episode.length, "seed": self._seed}
        return {name: value for name, value in (success | result).items() if value is not None}

    def cleanup(self) -> None:
        """Closes the simulator."""
        self._simulator.close()
