"""Evaluates a checkpoint with an engine."""

from __future__ import annotations

from rlpipe.analysis.evaluation_report import EvaluationReport
from rlpipe.config.schema import Config
from rlpipe.config.stages import stages
from rlpipe.metrics.window import merged
from rlpipe.policies.base import Snapshot
from rlpipe.run.checkpoint import Checkpoint, subtree
from rlpipe.training.engine import Engine


def evaluate(config: Config, state: Checkpoint, engine: Engine) -> EvaluationReport:
    """Evaluates a checkpoint under a configuration's protocol.

    Args:
        config: the checkpoint's, perhaps with another ``evaluation`` section
        state: the checkpoint
        engine: place where the workers live; closed before this function returns
    """
    plan = stages(config)
    try:
        engine.start_workers(plan, 0)
        windows = engine.evaluate(Snapshot(int(state.arrays["version"]), subtree("policy/", state.arrays)))
        window = merged([engine.get(ref) for ref in windows])
    finally:
        engine.close()
    return EvaluationReport.of(window, config, state)
