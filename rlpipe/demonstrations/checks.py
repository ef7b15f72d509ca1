"""Checks that demonstrations fit a configuration."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rlpipe.config.plan import Plan
from rlpipe.config.simulators import asking_simulator
from rlpipe.demonstrations import dataset
from rlpipe.demonstrations.corrections import check_no_corrections
from rlpipe.demonstrations.formats.episode import Dataset
from rlpipe.demonstrations.formats.lerobot import LeRobotFolder
from rlpipe.demonstrations.formats.registry import open_dataset
from rlpipe.envs.base import TaskFacts
from rlpipe.errors import ConfigError
from rlpipe.trajectory import SpaceSpec


def check_demonstrations(config: Plan) -> Dataset | None:
    """Checks that demonstrations are given if and only if the run learns from them, that they fit the task, that
    there are enough, and that none has a seed of the evaluation. A trained policy is evaluated without them.

    Returns:
        The demonstrations; None for a run without.

    Raises:
        ConfigError: one of these checks fails.
    """
    algorithm = config.algorithm_class
    cloned = max(stage.config.algorithm.cloning_coef or 0.0 for stage in config.schedule)
    if config.demos is None:
        if algorithm.needs_demonstrations or cloned:
            by_name = f"algorithm.name is {config.algorithm.name}"
            reason = by_name if algorithm.needs_demonstrations else f"algorithm.cloning_coef is {cloned}"
            raise ConfigError(f"{reason}, which needs demonstrations: demos=FILE.h5")
        return None
    curriculum = config.curriculum_class
    if not (algorithm.needs_demonstrations or cloned or curriculum.needs_states):
        can_clone = config.algorithm.cloning_coef is not None
        raise ConfigError(
            f"demos is {config.demos}, but algorithm.name={config.algorithm.name} does not learn from demonstrations: "
            + ("leave it out, or set algorithm.cloning_coef." if can_clone else "leave it out.")
        )
    if (algorithm.needs_demonstrations or cloned) and (observed := config.env.train.observe_variations):
        raise ConfigError(
            f"env.train.observe_variations is {observed}, but demonstrations (demos) say nothing of variations: leave "
            "either out."
        )
    held = dataset.check(config.demos, config.env.train)
    if algorithm.needs_demonstrations and algorithm.collects:
        check_no_corrections(held, f"algorithm.name={config.algorithm.name} replays what was demonstrated")
    if curriculum.needs_states:
        check_no_corrections(held, f"curriculum.name={config.curriculum.name} begins in what was demonstrated")
    if curriculum.needs_states:
        dataset.check_seeds(held, config.curriculum.name)
    _check_drawn(config, held)
    return held


def check_steps(config: Plan, held: Dataset, spec: SpaceSpec | None) -> None:
    """Checks what can be known of the steps of demonstrations before a simulator starts: that all actions lie within
    the bounds, and that videos, where they are learnt from, are long enough.

    Args:
        config: of the run.
        held: demonstrations that have passed ``check_demonstrations``.
        spec: of the simulator to train in; None if only that knows it.
    Raises:
        ConfigError: one of these checks fails; the message names the file, and the episode and its row.
    """
    assert config.demos is not None  # they were given
    _check_bounds(held, config.demos, spec, config.train_facts)
    leaves = () if spec is None else (spec.leaves or {}).values()
    if isinstance(held, LeRobotFolder) and (
        any(leaf.is_image for leaf in leaves) or (spec is None and getattr(config.env.train, "has_cameras", False))
    ):
        held.check_videos()


def _check_bounds(held: Dataset, path: str, spec: SpaceSpec | None, facts: TaskFacts) -> None:
    """Checks that all actions lie within the bounds, where these are known."""
    if spec is None and facts.action_bounds is not None:
        width = held.features.action.size
        low, high = (np.full(width, bound, np.float32) for bound in facts.action_bounds)
        spec = SpaceSpec(0, width, None, low, high)
    if spec is not None:
        dataset.check_bounds(held, path, spec)


def check_replay(config: Plan) -> None:
    """Checks that there are demonstrations whose actions an evaluation can repeat, and none with a seed of it.

    Raises:
        ConfigError: one of these checks fails.
    """
    if config.demos is None:
        raise ConfigError("--policy is replay, which repeats demonstrations, but demos is not set: add demos=FILE.h5.")
    task, facts = config.env.eval, config.eval_facts
    held = dataset.check_actions(config.demos, task, section="env.eval")
    check_no_corrections(held, "--policy replay repeats demonstrations")
    _check_drawn(config, held)
    with asking_simulator(task, "env.eval"):
        _check_bounds(held, config.demos, facts.find_spaces(), facts)


def demonstration_notes(config: Plan) -> tuple[str, ...]:
    """Returns what a user should know of the files of demonstrations that a run reads, in sentences."""
    return () if config.demos is None else dataset.notes(open_dataset(Path(config.demos), "demos"))


def _check_drawn(config: Plan, held: Dataset) -> None:
    """Checks that there are enough demonstrations, and that none has a seed of the evaluation."""
    if config.num_demos is not None:
        dataset.check_count(held, config.num_demos)
    seeds = config.evaluation.seeds
    if demonstrated := sorted(seed for seed in dataset.seeds(held) if seed in seeds):
        raise ConfigError(
            f"evaluation uses seeds {seeds.start} to {seeds[-1]}, but {config.demos} demonstrates {len(demonstrated)} "
            f"of them, such as {demonstrated[0]}: choose another evaluation.first_seed."
        )
