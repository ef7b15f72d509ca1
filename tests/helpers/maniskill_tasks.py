"""ManiSkill tasks that test what may be stepped as one."""

from __future__ import annotations

from typing import Any

import torch
from mani_skill.envs.tasks.tabletop.push_cube import PushCubeEnv
from mani_skill.utils.registration import register_env


@register_env("RlpipeStatistical-v1", max_episode_steps=20)
class StatisticalTask(PushCubeEnv):
    """PushCube-v1 whose reward is the mean position of all cubes."""

    def compute_normalized_dense_reward(self, obs: Any, action: torch.Tensor, info: dict) -> torch.Tensor:
        return self.obj.pose.p[:, 0].mean().repeat(self.num_envs)


@register_env("RlpipeRemembering-v1", max_episode_steps=20)
class RememberingTask(PushCubeEnv):
    """PushCube-v1 whose reward counts evaluations across episodes."""

    def evaluate(self) -> dict:
        if not hasattr(self, "evaluations"):
            self.evaluations = torch.zeros(self.num_envs)
        self.evaluations = self.evaluations + 1
        return super().evaluate()

    def compute_normalized_dense_reward(self, obs: Any, action: torch.Tensor, info: dict) -> torch.Tensor:
        return self.evaluations.clone()


@register_env("RlpipeOdd-v1", max_episode_steps=20)
class OddTask(PushCubeEnv):
    """PushCube-v1 that tells whatever success it is given."""

    success: Any = None

    def evaluate(self) -> dict:
        return super().evaluate() | {"success": torch.full((self.num_envs,), self.success)}
