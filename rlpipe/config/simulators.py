"""Asks the simulator that a section of the configuration names, before anything starts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rlpipe.errors import ConfigError, how_it_failed
from rlpipe.foreign import foreign_code
from rlpipe.plugins import resolve


def simulator_class(section: Any, key: str) -> Any:
    """Returns the simulator class of a section: the plug-in, or its wrapper for several tasks or another Python."""
    named = resolve("envs", section.name, f"{key}.name")
    if section.tasks:
        return resolve("envs", "rlpipe.envs.shared.tasks:SeveralTasks", key)
    if section.python is not None:
        return resolve("envs", "rlpipe.envs.shared.child_process.simulator:ProcessSimulator", key)
    return named


def simulator_name(section: Any) -> str:
    """Returns what to call a simulator in a sentence, such as ``the simulator CartPole-v1``."""
    return f"the simulator {section.task_name}"


@contextmanager
def asking_simulator(section: Any, key: str) -> Iterator[None]:
    """Calls class methods of a simulator before anything starts. What they raise is an error of the configuration."""
    try:
        with foreign_code(simulator_name(section)):
            yield
    except ConfigError:
        raise
    except BaseException as error:
        raise ConfigError(
            f"{key} cannot be checked before the start: {simulator_name(section)} {how_it_failed(error)}."
        ) from error


def task_facts(section: Any, key: str) -> Any:
    """Returns the ``TaskFacts`` of a section, without starting anything; an error if its simulator cannot be made."""
    with asking_simulator(section, key):
        return simulator_class(section, key).describe(section, key)
