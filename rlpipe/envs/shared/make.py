"""Makes the simulators of a run: the one place where workers, evaluations, demonstrations and checks get theirs."""

from __future__ import annotations

from typing import Any

from rlpipe.config.simulators import simulator_class, simulator_name
from rlpipe.envs.base import KEY, Allotment, Simulator
from rlpipe.envs.shared.slots import NextSeed, NextStart
from rlpipe.envs.shared.varied import SlotSeeds, VariedSimulator
from rlpipe.errors import ConfigError, ContractError, SimulatorError
from rlpipe.foreign import foreign_code
from rlpipe.plugins import resolve


def make_simulator(
    config: Any,
    num_envs: int,
    next_seed: NextSeed,
    next_start: NextStart | None = None,
    key: str = "env.train",
    allotment: Allotment | None = None,
) -> Simulator:
    """Makes the simulator that a section of the configuration describes.

    Args:
        config: a ``SimulatorConfig``.
        num_envs: N.
        next_seed: called before each reset of a slot.
        next_start: asked before each reset of a slot that has an episode left; None if nothing chooses starts.
        key: key of the section, for errors.
        allotment: tasks of the slots, where the section has several; None for the first slots of all workers.
    Raises:
        ConfigError: the simulator cannot be made as configured.
        SimulatorError: it raised anything else.
    """
    tasks = {} if allotment is None else {"allotment": allotment}
    varies = (config.variations or config.observe_variations) and not config.tasks  # of several, each by itself
    seeds = SlotSeeds(next_seed) if varies else next_seed
    try:
        with foreign_code(simulator_name(config)):
            simulator: Simulator = simulator_class(config, key).make(config, num_envs, seeds, **tasks)
        if isinstance(seeds, SlotSeeds):
            axes = resolve("envs", config.name, f"{key}.name").axes
            simulator = VariedSimulator(simulator, config, axes, seeds, key)
    except ConfigError as error:
        raise ConfigError(str(error).replace(KEY, key)) from error
    except ContractError as error:
        raise ConfigError(f"{key} names a simulator that rlpipe cannot use: {error.problem}.") from error
    except SimulatorError:  # of one of several tasks
        raise
    except BaseException as error:
        raise SimulatorError.of(error, "being made") from error
    simulator.next_start = next_start
    return simulator
