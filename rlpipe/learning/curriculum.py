"""The curriculum of a run, as its learner makes it and tells it how episodes went."""

from __future__ import annotations

from collections.abc import Sequence

from rlpipe.config.schema import Config
from rlpipe.curricula.base import Curriculum, DemonstratedEpisode
from rlpipe.demonstrations.dataset import Demonstrations
from rlpipe.demonstrations.recording import MATCHED
from rlpipe.demonstrations.replay import states_of
from rlpipe.errors import ConfigError
from rlpipe.trajectory import Episode
from rlpipe.trajectory.batch import TrajectoryBatch


def make_curriculum(config: Config, demonstrations: Demonstrations | None) -> Curriculum:
    """Makes the configured curriculum.

    Raises:
        ConfigError: it begins episodes in states, and a demonstration lacks them.
    """
    kind = config.curriculum_class
    courses = _courses(config, demonstrations) if kind.needs_states and demonstrations is not None else []
    curriculum: Curriculum = kind.make(config, courses)
    return curriculum


def _courses(config: Config, demonstrations: Demonstrations) -> list[DemonstratedEpisode]:
    """Returns the states of demonstrations; those that the file does not hold are found by running them again."""
    states, seeds = list(demonstrations.states), [seed for seed in demonstrations.seeds if seed is not None]
    if unknown := len(states) - len(seeds):
        raise ConfigError(
            f"curriculum.name is {config.curriculum.name}, but {unknown} of {len(states)} demonstrations in "
            f"{config.demos} have no seed: {MATCHED} in the JSON beside it. Give each its own, or leave those without "
            "out: rlpipe demos CONFIG --replay FILE.h5 demos=NEW.h5."
        )
    missing = [number for number, state in enumerate(states) if state is None]
    if missing:
        again = states_of(str(config.demos), config.env.train, [demonstrations.names[number] for number in missing])
        for number, state in zip(missing, again, strict=True):
            states[number] = state
    whole = [state for state in states if state is not None]
    if len(whole) < len(states):
        raise ConfigError(
            f"curriculum.name is {config.curriculum.name}, but {len(states) - len(whole)} of {len(states)} "
            f"demonstrations in {config.demos} have no states of the simulator and do not succeed when they are run "
            "again. Keep those that do: rlpipe demos CONFIG --replay FILE.h5 demos=NEW.h5."
        )
    return [DemonstratedEpisode(seed, state) for seed, state in zip(seeds, whole, strict=True)]


def chosen_episodes(batches: Sequence[TrajectoryBatch]) -> list[Episode]:
    """Episodes of an iteration that a curriculum may follow, in the order in which they ended."""
    episodes = [episode for batch in batches for episode in batch.chosen_episodes]
    return sorted(episodes, key=lambda episode: (episode.step, episode.slot))
