"""A policy behind a socket: ``--policy ws://HOST:PORT``, as openpi's and vla-eval's servers offer them, and ours."""

from __future__ import annotations

from typing import Any

from rlpipe.collection.actions import RunningEpisode
from rlpipe.config.schema import ExternalConfig
from rlpipe.errors import ConfigError, PolicyError
from rlpipe.serving.client import PolicyClient
from rlpipe.serving.external.base import ExternalPolicy
from rlpipe.trajectory import SpaceSpec


class SocketPolicy(ExternalPolicy):
    """Asks a server, over a connection of its own for each running episode: there, one episode is one connection."""

    def __init__(self, name: str, spec: SpaceSpec, config: ExternalConfig, option: str = "--policy") -> None:
        """Connects once, so that a wrong address is known before anything starts.

        Raises:
            ConfigError: there is no such server, or it speaks another protocol.
        """
        super().__init__(name, spec, config, option)
        try:
            self._connected().close()
        except PolicyError as error:
            raise ConfigError(f"{self.argument} {error.problem}.") from error

    def _connected(self) -> PolicyClient:
        config = self.config
        return PolicyClient(self.name, config.protocol, timeout=config.timeout, connect_timeout=config.connect_timeout)

    def begin(self, episode: RunningEpisode) -> PolicyClient:
        client = self._connected()
        client.begin(seed=episode.seed)
        return client

    def ask(self, session: PolicyClient, observation: Any) -> Any:
        actions = session.ask(observation)
        execute = session.metadata.get("execute")  # a server of ours says how many of a chunk its policy takes
        return actions[: execute if isinstance(execute, int) and execute > 0 else None]

    def end(self, session: PolicyClient) -> None:
        session.close()
