"""Evaluates a checkpoint, or a floor, with an engine."""

from __future__ import annotations

from collections.abc import Callable

from rlpipe.analysis.evaluation_report import EvaluationReport
from rlpipe.collection.floors import Replay, acting_config
from rlpipe.collection.worker import Ready
from rlpipe.config.schema import Config
from rlpipe.config.stages import stages
from rlpipe.demonstrations.dataset import load_actions
from rlpipe.metrics import MetricWindow
from rlpipe.metrics.window import merged
from rlpipe.policies.base import NoWeights, Snapshot
from rlpipe.run.checkpoint import Checkpoint, subtree
from rlpipe.training.engine import Engine


def evaluate(config: Config, state: Checkpoint, engine: Engine) -> EvaluationReport:
    """Evaluates a checkpoint under a configuration's protocol.

    Args:
        config: the checkpoint's, perhaps with another ``evaluation`` section
        state: the checkpoint
        engine: place where the workers live; closed before this function returns
    """
    snapshot = Snapshot(int(state.arrays["version"]), subtree("policy/", state.arrays))
    return EvaluationReport.of(_evaluated(config, lambda _: snapshot, engine), config, state)


def evaluate_floor(config: Config, policy: str, make_engine: Callable[[Config], Engine]) -> EvaluationReport:
    """Evaluates a floor under a configuration's protocol.

    Args:
        config: configuration of a run or a task
        policy: name of the floor
        make_engine: makes an engine for the configuration under which workers act; closed before this function returns
    """
    acting = acting_config(config, policy)

    def snapshot(ready: Ready) -> Snapshot:
        if policy != "replay":
            return Snapshot(0, NoWeights.FROM_SEED)
        assert config.demos is not None  # or the check before would have refused it
        shown = load_actions(config.demos, ready.spec, config.num_demos, config.runner.seed)
        return Snapshot(0, Replay.weights_of(shown))

    return EvaluationReport.of(_evaluated(acting, snapshot, make_engine(acting)), config, policy=policy)


def _evaluated(config: Config, snapshot: Callable[[Ready], Snapshot], engine: Engine) -> MetricWindow:
    """Evaluates on all workers of an engine, closes it, and returns the merged window."""
    plan = stages(config)
    try:
        ready = engine.start_workers(plan, 0)
        windows = engine.evaluate(snapshot(ready))
        return merged([engine.get(ref) for ref in windows])
    finally:
        engine.close()
