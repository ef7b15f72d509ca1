"""A trivial benchmark and a trivial model server of vla-eval."""

from typing import Any

import numpy as np
from vla_eval.benchmarks.base import StepBenchmark, StepResult
from vla_eval.model_servers.predict import PredictModelServer


class ToyBenchmark(StepBenchmark):
    """State of some numbers that every action moves; an episode succeeds after five steps whose actions are legal."""

    render_backends = frozenset({"cpu", "gpu"})

    def __init__(self, size: int, low: float, high: float) -> None:
        super().__init__()
        self._size, self._low, self._high = size, low, high

    @classmethod
    def configure_render(cls, mode: str) -> dict[str, str]:  # noqa: ARG003 - nothing is rendered
        return {}

    def get_tasks(self) -> list[dict[str, Any]]:
        return [{"name": "move", "suite": "toy"}, {"name": "stay", "suite": "toy"}]

    def get_metadata(self) -> dict[str, Any]:
        return {"max_steps": 10}

    def reset(self, task: dict[str, Any]) -> np.ndarray:
        self._steps = 0
        self._state = np.random.default_rng(task["episode_idx"]).normal(size=self._size).astype(np.float32)
        return self._state

    def step(self, action: dict[str, Any]) -> StepResult:
        actions = np.asarray(action["actions"])
        assert actions.ndim == 1
        self._steps += bool(((actions >= self._low) & (actions <= self._high)).all())
        self._state = self._state + np.float32(0.01) * actions.astype(np.float32)[0]
        return StepResult(self._state, 0.0, self._steps == 5, {})

    def make_obs(self, raw_obs: np.ndarray, task: dict[str, Any]) -> dict[str, Any]:
        picture = np.zeros((8, 8, 3), np.uint8)  # goes as a PNG
        return {"images": {"cam": picture}, "state": raw_obs, "task_description": task["name"]}

    def get_step_result(self, step_result: StepResult) -> dict[str, Any]:
        return {"success": bool(step_result.done)}


class ToyServer(PredictModelServer):
    """Answers the sum of the state and the number of the step, in chunks of three that it plans itself."""

    def __init__(self) -> None:
        super().__init__(chunk_size=3)

    def predict(self, obs: dict[str, Any], ctx: Any) -> dict[str, Any]:
        total = float(np.sum(obs["state"])) + float(obs["images"]["cam"].mean())
        return {"actions": np.full((3, 2), total + ctx.step, np.float32)}
