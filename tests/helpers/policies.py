"""A policy that knows neither chunks nor the parts of an action, as one written for neither does."""

from __future__ import annotations

from rlpipe.policies.base import Policy


class Plain(Policy):
    """Has no weights; it is refused before it is made."""

    def noise(self, generator, steps):
        raise NotImplementedError

    def act(self, observations, noise):
        raise NotImplementedError

    def evaluate_actions(self, observations, actions):
        raise NotImplementedError

    def value(self, observations):
        raise NotImplementedError

    def actor_parameters(self):
        raise NotImplementedError

    def critic_parameters(self):
        raise NotImplementedError
