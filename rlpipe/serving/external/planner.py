"""The simulator's own expert as a policy: ``--policy planner``, and ``--expert planner``."""

from __future__ import annotations

from typing import Any

from rlpipe.collection.actions import RunningEpisode
from rlpipe.envs.base import Simulator
from rlpipe.serving.external.base import ExternalPolicy

NAME = "planner"


class PlannerPolicy(ExternalPolicy):
    """Asks the simulator what to do in its present state, whatever is observed of it."""

    _simulator: Simulator | None = None

    def enter(self, simulator: Simulator) -> None:
        self._simulator = simulator

    def begin(self, episode: RunningEpisode) -> int:
        return episode.slot

    def ask(self, session: Any, observation: Any) -> Any:  # noqa: ARG002 - the simulator knows more
        assert self._simulator is not None  # it has been entered
        return self._simulator.expert_action(session)
