"""Evaluates a policy in the arms of a stress test: the same episodes, varied differently, in the same simulators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from rlpipe.analysis.stress import (
    Arm,
    Kind,
    StressReport,
    arm_results,
    arms_of,
    axis_results,
    map_of,
    telling_flip,
)
from rlpipe.collection.evaluator import Request
from rlpipe.collection.seeds import EpisodeKey
from rlpipe.config.plan import Plan
from rlpipe.config.protocol import protocol
from rlpipe.config.stress import StressAxis, stress_axes
from rlpipe.envs.shared.tasks import label_of
from rlpipe.errors import ConfigError
from rlpipe.foreign import begin_notes
from rlpipe.metrics import MetricWindow
from rlpipe.run.provenance import versions
from rlpipe.run.replays import ReplaySet
from rlpipe.training.engine import Engine
from rlpipe.training.evaluation import BlockWatch, Progress, run_block, tell_notes
from rlpipe.training.until_decided import Side, outcomes_of, shared_workers
from rlpipe.trajectory import Scene

MOST_TRIES = 3
"""Episodes that are run again for replays, of which some may not repeat where they depend on others."""


def on_axes(side: Side, text: str | None, levels: int) -> tuple[Side, list[StressAxis]]:
    """Returns a policy with a configuration that varies on all axes that are named, and these axes.

    Args:
        side: the policy, with the configuration of its evaluation
        text: as of ``--axes``; None for all axes of the task
        levels: number of levels of each axis alone
    Raises:
        ConfigError: the task tells no success, or cannot vary so.
    """
    config, facts = side.config, side.config.eval_facts
    if not facts.success:
        raise _no_success(config)
    section = config.env.eval
    spec = (side.state and side.state.spaces) or facts.find_spaces()
    axes = stress_axes(text, levels, facts.axes, spec, facts.time_limit, f"{section.task_name} ({section.name})")
    config = _varied(config, axes)
    config.eval_facts  # noqa: B018 - checks the variations
    return replace(side, config=config), axes


def _varied(config: Plan, axes: Sequence[StressAxis]) -> Plan:
    """Returns a configuration whose evaluation varies on all axes together."""
    levels = {}
    for stressed in axes:
        drawn = stressed.drawn
        levels[stressed.axis.name] = {drawn.kind: list(drawn.values)}
    env = replace(config.env, eval=replace(config.env.eval, variations=levels))
    return replace(config, env=env)


def _no_success(config: Plan) -> ConfigError:
    remedy = config.eval_facts.remedy("success")
    return ConfigError(
        f"{config.env.eval.task_name} tells no success, so nothing says what a policy survives"
        f"{f': {remedy}' if remedy else ''}."
    )


def stress(
    side: Side, axes: Sequence[StressAxis], engine: Engine, progress: Progress, *, bound: float | None = None
) -> tuple[StressReport, ReplaySet | None, dict[str, Scene]]:
    """Evaluates a policy in every arm.

    Args:
        side: the policy, with a configuration that varies on all axes, as of ``on_axes``
        axes: to vary
        engine: made for ``shared_workers`` of the configuration; closed before this function returns
        progress: is told of the episodes of all arms
        bound: success rate below which a level is too much; None for half of that in the clean arm
    Returns:
        The report, replays of an episode that a variation breaks, clean and varied, if there is one, and their scenes.
    Raises:
        ConfigError: the simulator tells no success, its episodes do not follow from seeds, or the policy does not fit.
        RunError: the time for an arm was over before all its episodes had ended.
    """
    config = side.config
    arms = arms_of(axes, independent=config.eval_facts.independent)
    begin_notes()
    try:
        ready = engine.start_workers(shared_workers(config).schedule, 0)
        if not ready.has_success:
            raise _no_success(config)
        acting = engine.put(side.acting(ready))
        watch = BlockWatch(progress, len(arms) * config.evaluation.episodes)

        def run(arm: Arm, only: set[EpisodeKey] | None = None, replays: int = 0) -> MetricWindow:
            return run_block(engine, acting, watch, Request(only, variations=arm.variations, replays=replays))

        outcomes, faults = [], list[str]()
        for arm in arms:
            window = run(arm)
            success = outcomes_of(window)
            outcomes.append({(task, seed): success[seed, task] for seed, task in sorted(success)})
            faults += window.faults
        rate = sum(outcomes[0].values()) / len(outcomes[0])
        limit = rate / 2 if bound is None else bound
        compared = [place for place, arm in enumerate(arms) if arm.kind is not Kind.REDRAWN]
        results = arm_results([arms[place] for place in compared], [outcomes[place] for place in compared])
        summaries = axis_results(axes, arms, outcomes, limit)
        replays, scenes = list[MetricWindow](), dict[str, Scene]()
        if (flip := telling_flip(results, summaries)) is not None:
            broken = next(arm for arm in arms if arm.label == flip[0].label)
            replays = _replayed(config, lambda arm, only: run(arm, only, 1), arms[0], broken, flip[1])
        tell_notes(ready, faults)
    finally:
        engine.close()
    iteration = 0 if side.state is None else side.state.meta["iteration"]
    notes = []
    if not config.eval_facts.independent:
        notes.append("episodes of this simulator may depend on those before them: 'clean again' shows how much")
    report = StressReport(
        bound=limit,
        arms=results,
        axes=summaries,
        map=map_of(axes, [summary.name for summary in summaries], arms, outcomes),
        protocol=protocol(replace(config, env=replace(config.env, eval=replace(config.env.eval, variations={})))),
        policy=None if side.state else side.label,
        checkpoint=None if side.state is None else str(side.state.path),
        iteration=iteration,
        versions=versions(),
        notes=notes,
    )
    if not replays:
        return report, None, scenes
    for window in replays:
        scenes |= window.scenes
    recordings = [replay for window in replays for replay in window.eval_replays]
    return report, ReplaySet(iteration, "stress", config.env.eval.task_name, recordings), scenes


def _replayed(
    config: Plan,
    run: Callable[[Arm, set[EpisodeKey]], MetricWindow],
    clean: Arm,
    broken: Arm,
    episodes: Sequence[tuple[str, int]],
) -> list[MetricWindow]:
    """Runs one of some episodes again, clean and varied; returns both, or nothing if they do not repeat."""
    labels = [label_of(entry) for entry in config.env.eval.tasks]
    for task, seed in episodes[:MOST_TRIES]:
        only = {(labels.index(task) if task else 0, seed)}
        windows = [run(arm, only) for arm in (clean, broken)]
        if [next(iter(outcomes_of(window).values())) for window in windows] == [True, False]:
            return windows
    return []
