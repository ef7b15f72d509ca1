"""A Python function, or an object of a class, as a policy: ``--policy package.module:name``."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlpipe.collection.actions import RunningEpisode
from rlpipe.config.schema import ExternalConfig
from rlpipe.errors import ConfigError, PolicyError, how_it_failed
from rlpipe.foreign import foreign_code
from rlpipe.plugins import imported
from rlpipe.serving.external.base import ExternalPolicy, digests_of_files
from rlpipe.trajectory import SpaceSpec


class FunctionPolicy(ExternalPolicy):
    """Calls ``function(observation)``, or ``act(observation)`` of an object of its own for each running episode.

    Such an object is made without arguments and used again for later episodes: where it has ``reset``, that is called
    when one begins, with ``seed=`` if it takes one.
    """

    def __init__(self, name: str, spec: SpaceSpec, config: ExternalConfig, option: str = "--policy") -> None:
        """Imports it once, so that what is wrong with it is known before anything starts.

        Raises:
            ConfigError: there is no such function or class, or the class has no ``act``.
        """
        super().__init__(name, spec, config, option)
        target = imported(name, option)
        if isinstance(target, type) and not callable(getattr(target, "act", None)):
            raise ConfigError(f"{self.argument} is a class without act(observation): give it one, or name a function.")
        if not callable(target):
            raise ConfigError(f"{self.argument} is {type(target).__name__}; it must be a function or a class.")
        self._idle: list[Any] = []

    @classmethod
    def digests(cls, name: str, config: ExternalConfig) -> dict[str, str]:  # noqa: ARG003 - it is as it stands
        """Covers the file in which the function or the class is written, and nothing that it imports or reads."""
        target = inspect.unwrap(imported(name, "--policy"))
        try:
            file = inspect.getfile(target if inspect.isroutine(target) or isinstance(target, type) else type(target))
        except (OSError, TypeError):  # made by a program, or built into Python
            return {}
        return digests_of_files({"source": Path(file)})

    def begin(self, episode: RunningEpisode) -> Any:
        target = imported(self.name, self.option)
        if not isinstance(target, type):
            return target
        with self._calling("begin an episode"):
            session = self._idle.pop() if self._idle else target()
            if callable(reset := getattr(session, "reset", None)):
                takes_seed = "seed" in inspect.signature(reset).parameters
                reset(**({"seed": episode.seed} if takes_seed else {}))
        return session

    def ask(self, session: Any, observation: Any) -> Any:
        with self._calling("act"):
            return session.act(observation) if hasattr(session, "act") else session(observation)

    def end(self, session: Any) -> None:
        if hasattr(session, "act"):
            self._idle.append(session)

    @contextmanager
    def _calling(self, doing: str) -> Iterator[None]:
        """Turns whatever the user's code raises into a ``PolicyError``."""
        try:
            with foreign_code(f"the policy {self.name}"):
                yield
        except BaseException as error:
            raise PolicyError(self.name, f"{how_it_failed(error)} while it was to {doing}") from error
