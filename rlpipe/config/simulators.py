"""Asks the simulator that a section of the configuration names, before anything starts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rlpipe.config.variations import LEAF, Variations, check_effects, check_variations
from rlpipe.errors import ConfigError, how_it_failed
from rlpipe.foreign import foreign_code
from rlpipe.plugins import resolve
from rlpipe.trajectory import LeafSpec


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
        return varied_facts(section, key)


def varied_facts(section: Any, key: str) -> Any:
    """Returns the ``TaskFacts`` of a section with what its variations change, which are checked.

    Raises:
        ConfigError: the simulator cannot be made, or cannot vary so.
    """
    facts = simulator_class(section, key).describe(section, key)
    if section.tasks:  # each is checked by itself
        return facts
    check_variations(section, key, facts.axes, facts.time_limit)

    def find_spaces() -> Any:
        spec = facts.find_spaces()
        if spec is None:
            return None
        check_effects(Variations.of(section, key), facts.axes, spec, key)
        return (
            spec.with_leaf(LEAF, LeafSpec((len(section.observe_variations),))) if section.observe_variations else spec
        )

    return dataclasses.replace(facts, find_spaces=find_spaces)
