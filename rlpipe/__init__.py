"""Reinforcement learning for manipulation on Ray, with metrics that can be trusted.

config = rlpipe.load_config("configs/ppo_push_cube.yaml", ["rollout.num_workers=8"])
result = rlpipe.train(config)                   # on Ray; rlpipe.train(config, local=True) in this process
report = rlpipe.evaluate(result.checkpoint, episodes=400)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlpipe.analysis.evaluation_report import EvaluationReport
    from rlpipe.config.schema import Config
    from rlpipe.training.engine import Engine
    from rlpipe.training.loop import Interruption
    from rlpipe.training.recovery import TrainResult

__all__ = ["evaluate", "load_config", "train"]


def load_config(source: str | Path | dict[str, Any], overrides: Sequence[str] = ()) -> Config:
    """Reads, completes and checks a configuration: a YAML file or a mapping, and ``key=value`` overrides.

    Raises:
        rlpipe.plugins.ConfigError: anything is wrong with it; nothing has been started or written.
    """
    from rlpipe.config.loading import load_config

    return load_config(source, overrides)


def train(
    config: Config,
    *,
    local: bool = False,
    ray_address: str | None = None,
    resume: str | Path | None = None,
    interruption: Interruption | None = None,
) -> TrainResult:
    """Trains, on Ray or in this process.

    Args:
        config: from ``load_config``; to resume, the one in the run's directory.
        local: run everything in this process.
        ray_address: cluster to join; else ``RAY_ADDRESS``, else a cluster of this run's own.
        resume: run directory to go on with, from its newest whole checkpoint; None begins a new run, or goes on with
            the one that ``runner.auto_resume`` finds.
        interruption: asked after every iteration whether to end.
    Raises:
        rlpipe.plugins.ConfigError: the machine cannot do what is configured, or the run to go on with goes on already.
    """
    from rlpipe.demonstrations.checks import check_demonstrations
    from rlpipe.run.directory import RunDirectory
    from rlpipe.run.resume import claimed
    from rlpipe.training import recovery
    from rlpipe.training.checks import check_spaces

    check_demonstrations(config)
    if not local:  # where the first worker would tell only after it has started
        check_spaces(config)
    with claimed(config, None if resume is None else Path(resume)) as run:
        if run is not None:
            RunDirectory.existing(run).check()
        return recovery.train(config, _engine(config, local, ray_address), resume=run, interruption=interruption)


def evaluate(
    checkpoint: str | Path,
    *,
    best: bool = False,
    episodes: int | None = None,
    overrides: Sequence[str] = (),
    local: bool = False,
    ray_address: str | None = None,
) -> EvaluationReport:
    """Evaluates a checkpoint, or the newest one of a run, on held-out seeds.

    Leaves a record in the run directory the checkpoint lies in (``evaluations/<n>.json``), and changes nothing else.

    Args:
        checkpoint: file or run directory.
        best: of a run directory, the checkpoint whose evaluation was best instead of the newest.
        episodes: how many; None takes the configuration's.
        overrides: ``key=value`` on the configuration it was trained with.
        local, ray_address: as for ``train``.
    Raises:
        rlpipe.plugins.ConfigError: there is no such checkpoint, or an override is wrong.
    """
    from rlpipe import files
    from rlpipe.config.loading import load_config
    from rlpipe.config.selection import without_learner
    from rlpipe.config.tree import from_yaml
    from rlpipe.run.directory import find_checkpoint
    from rlpipe.training import evaluation

    files.kind_of(Path(checkpoint))
    state, trained_with = find_checkpoint(Path(checkpoint), best)
    changes = [*overrides, *([] if episodes is None else [f"evaluation.episodes={episodes}"])]
    config = load_config(from_yaml(trained_with), changes)
    return evaluation.evaluate(config, state, _engine(without_learner(config), local, ray_address)).recorded()


def _engine(config: Config, local: bool, ray_address: str | None) -> Engine:
    if local:
        from rlpipe.training.local import LocalEngine

        return LocalEngine(config)
    from rlpipe.distributed.engine import RayEngine

    return RayEngine(config, ray_address)
