"""A real ManiSkill task whose course is scripted: ManiSkill's own step, reset and reward code around known outcomes."""

from __future__ import annotations

import torch
from mani_skill.envs.tasks.empty_env import EmptyEnv
from mani_skill.utils.registration import register_env

from rlpipe.envs.scripted import ScriptedEpisode


@register_env("RlpipeScripted-v1", max_episode_steps=100)
class ScriptedTask(EmptyEnv):
    """Plays the episodes of ``course`` in turn; observations are those of ``rlpipe.envs.scripted``."""

    SUPPORTED_REWARD_MODES = ("dense", "none", "sparse")

    def __init__(self, *args, slot: int = 0, course: tuple = (), **kwargs):
        self.slot, self.course, self.count = slot, [ScriptedEpisode(**episode) for episode in course], -2
        super().__init__(*args, **kwargs)  # resets once by itself, before the first episode

    def _initialize_episode(self, env_idx, options):
        super()._initialize_episode(env_idx, options)
        self.count += 1

    @property
    def episode(self) -> ScriptedEpisode:
        return self.course[self.count % len(self.course)]

    @property
    def played(self) -> int:
        return int(self.elapsed_steps[0])

    def get_obs(self, info=None, unflattened=False):
        return torch.tensor([[self.slot, self.count, self.played, 0.0]])

    def _flatten_raw_obs(self, obs):
        return obs

    def evaluate(self):
        told = {"success": torch.tensor([self.played in self.episode.success_at])}
        if self.episode.reward_terms:
            told["reward_terms"] = {name: torch.tensor(value) for name, value in self.episode.reward_terms.items()}
        if self.episode.metrics:
            told["metrics"] = {
                name: torch.tensor(float("nan") if (value := of[(self.played - 1) % len(of)]) is None else value)
                for name, of in self.episode.metrics.items()
            }
        return told

    def step(self, action):
        observation, reward, _, truncated, info = super().step(action)
        ended = self.played >= self.episode.length and self.episode.end in ("terminated", "both")
        return observation, reward, torch.tensor([ended]), truncated, info

    def compute_dense_reward(self, obs, action, info):
        return torch.tensor([self.episode.reward if self.played >= self.episode.length else 0.0])

    def compute_sparse_reward(self, obs, action, info):
        return self.compute_dense_reward(obs, action, info)
