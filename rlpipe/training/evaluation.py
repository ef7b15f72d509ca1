"""Evaluates a checkpoint, or a baseline, with an engine."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias

from rlpipe.analysis.evaluation_report import EvaluationReport
from rlpipe.collection.actions import ActionSource
from rlpipe.collection.baselines import Baseline, DemonstratedActions, Random, Zero, acting_config
from rlpipe.collection.evaluator import Request, Watch
from rlpipe.collection.seeds import EpisodeKey
from rlpipe.collection.worker import Ready
from rlpipe.config.plan import Plan
from rlpipe.demonstrations.dataset import load_actions
from rlpipe.errors import Fault, RunError
from rlpipe.foreign import begin_notes, take_notes
from rlpipe.metrics import MetricWindow
from rlpipe.metrics.window import merged
from rlpipe.policies.base import Snapshot
from rlpipe.run.checkpoint import Checkpoint
from rlpipe.training.engine import Engine, Ref
from rlpipe.training.interruption import Interruption
from rlpipe.trajectory import SpaceSpec

Progress: TypeAlias = Callable[[int, int, float], None]
"""Is called about once a second with the number of episodes that have ended, of all, and the seconds so far."""
log = logging.getLogger("rlpipe")


def watch_of(config: Plan, progress: Progress, interruption: Interruption) -> Watch:
    """Returns what an evaluation calls after each step: shows the progress, and asks whether to end."""
    began = time.monotonic()
    shown_at = -math.inf

    def watch(ended: int) -> bool:
        nonlocal shown_at
        if (now := time.monotonic()) - shown_at >= 1.0:
            shown_at = now
            progress(ended, config.evaluation.episodes, now - began)
        return interruption.reason is not None

    return watch


class BlockWatch:
    """Shows about once a second how many episodes have ended, in the blocks before and in the present one.

    Attributes:
        before: episodes of the blocks before.
    """

    def __init__(self, progress: Progress, most: int) -> None:
        """Has shown nothing; ``most`` is the number of all episodes."""
        self._progress, self._most = progress, most
        self._began, self._shown_at = time.monotonic(), -math.inf
        self.before = 0

    def __call__(self, ended: int) -> bool:
        if (now := time.monotonic()) - self._shown_at >= 1.0:
            self._shown_at = now
            self._progress(self.before + ended, self._most, now - self._began)
        return False  # a signal ends an evaluation by an exception


def run_block(engine: Engine, acting: Ref, watch: BlockWatch, request: Request) -> MetricWindow:
    """Runs some episodes on all workers of an engine, and returns the merged window.

    Args:
        engine: with workers
        acting: what acts; a reference of the engine
        watch: is told of the progress
        request: what to run
    Raises:
        RunError: the time for it was over before all of them had ended.
    """
    window = _run(engine, acting, watch, request)
    watch.before += len(window.eval_episodes)
    return window


def tell_notes(ready: Ready, faults: Sequence[str]) -> None:
    """Tells the user, each once, what workers noted while they started and worked."""
    for note in dict.fromkeys((*take_notes(), *ready.notes, *faults)):
        log.warning("%s", note)


def _run(engine: Engine, acting: Ref, watch: Watch, request: Request) -> MetricWindow:
    windows = engine.evaluate(acting, watch, request)
    for window in windows:
        if window.cut_short:
            raise RunError(Fault("the evaluation", f"has no result: {window.cut_short}"))
    return merged(windows)


def evaluate(
    config: Plan,
    state: Checkpoint,
    engine: Engine,
    progress: Progress,
    only: Collection[EpisodeKey] | None = None,
) -> EvaluationReport:
    """Evaluates a checkpoint under a configuration's protocol.

    Args:
        config: the checkpoint's, perhaps with another ``evaluation`` section
        engine: closed before this function returns
        only: episodes to run of those that the configuration asks for; None for all
    Raises:
        RunError: the time for it was over before all episodes had ended.
    """
    return EvaluationReport.of(_evaluated(config, lambda _: state.policy, engine, progress, only), config, state)


def evaluate_source(
    config: Plan,
    name: str,
    make_source: Callable[[SpaceSpec], ActionSource],
    make_engine: Callable[[Plan], Engine],
    progress: Progress,
    only: Collection[EpisodeKey] | None = None,
) -> EvaluationReport:
    """Evaluates a baseline, or a policy from elsewhere, under a configuration's protocol.

    Args:
        config: configuration of a run or a task
        name: what ``--policy`` says
        make_source: makes the source of the actions for the spaces of the simulator; it is sent to every worker
        make_engine: makes an engine for the configuration under which workers act; closed before this function returns
        progress: is told how far the evaluation is
        only: episodes to run of those that the configuration asks for; None for all
    Raises:
        RunError: the time for it was over before all episodes had ended, or the policy failed.
    """
    acting = acting_config(config)
    window = _evaluated(acting, lambda ready: make_source(ready.spec), make_engine(acting), progress, only)
    return EvaluationReport.of(window, config, policy=name)


def baseline_source(config: Plan, name: str, option: str = "--policy") -> Callable[[SpaceSpec], ActionSource]:
    """Returns what makes a baseline, which an option names, for the spaces of a simulator."""

    def make(spec: SpaceSpec) -> Baseline:
        if name != "replay":
            return Random(spec, option) if name == "random" else Zero(spec)
        assert config.demos is not None  # or the check before would have refused it
        return DemonstratedActions(spec, load_actions(config.demos, spec, config.num_demos, config.runner.seed))

    return make


def _evaluated(
    config: Plan,
    make_acting: Callable[[Ready], Snapshot | ActionSource],
    engine: Engine,
    progress: Progress,
    only: Collection[EpisodeKey] | None = None,
) -> MetricWindow:
    """Evaluates on all workers of an engine, closes it, and returns the merged window."""
    plan = config.schedule
    begin_notes()
    try:
        ready = engine.start_workers(plan, 0)
        window = _run(engine, make_acting(ready), watch_of(config, progress, Interruption()), Request(only))
        tell_notes(ready, window.faults)
        return window
    finally:
        engine.close()
