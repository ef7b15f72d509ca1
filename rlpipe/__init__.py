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
    from rlpipe.training.interruption import Interruption
    from rlpipe.training.recovery import TrainResult

__all__ = ["evaluate", "load_config", "train"]


def load_config(source: str | Path | dict[str, Any], overrides: Sequence[str] = ()) -> Config:
    """Reads, completes and checks a configuration.

    Args:
        source: YAML file, name of a shipped configuration, or the same as a mapping
        overrides: ``key=value`` with full dotted keys
    Raises:
        rlpipe.errors.ConfigError: it is wrong; nothing has been started or written.
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
        config: result of ``load_config``; to resume, the configuration in the run directory
        local: run everything in this process
        ray_address: cluster to join; by default ``RAY_ADDRESS``, else a cluster that this run starts for itself
        resume: run directory to continue from its newest intact checkpoint; None starts a new run, or resumes the one
            that ``runner.auto_resume`` finds
        interruption: request to end, checked after every iteration
    Raises:
        rlpipe.errors.ConfigError: the machine cannot do what is configured, or the run to resume is still running.
        rlpipe.errors.RunError: an actor was lost and cannot be replaced.
    """
    from rlpipe.demonstrations.checks import check_demonstrations
    from rlpipe.run.directory import RunDirectory
    from rlpipe.run.resume import locked_run
    from rlpipe.training import recovery
    from rlpipe.training.checks import check_spaces

    check_demonstrations(config)
    _check_machine(config, local, ray_address)
    if not local:  # with Ray, the first worker would report it only after it has started
        check_spaces(config)
    with locked_run(config, None if resume is None else Path(resume)) as run:
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

    Writes a record into the checkpoint's run directory (``evaluations/<n>.json``), and changes nothing else.

    Args:
        checkpoint: checkpoint file or run directory
        best: in a run directory, take the checkpoint with the best evaluation instead of the newest
        episodes: number of episodes; None takes the configuration's
        overrides: ``key=value`` on the configuration it was trained with
        local: as for ``train``
        ray_address: as for ``train``
    Raises:
        rlpipe.errors.ConfigError: there is no such checkpoint, or an override is wrong.
    """
    from rlpipe import files
    from rlpipe.config.loading import load_config
    from rlpipe.config.selection import without_learner
    from rlpipe.config.tree import from_yaml
    from rlpipe.run.checkpoint import find_checkpoint
    from rlpipe.training import evaluation

    files.kind_of(Path(checkpoint))
    state, trained_with = find_checkpoint(Path(checkpoint), best)
    changes = [*overrides, *([] if episodes is None else [f"evaluation.episodes={episodes}"])]
    config = load_config(from_yaml(trained_with), changes)
    _check_machine(config, local, ray_address)
    return evaluation.evaluate(config, state, _engine(without_learner(config), local, ray_address)).recorded()


def _check_machine(config: Config, local: bool, ray_address: str | None) -> None:
    """Checks this machine, unless the run joins a cluster: its workers go where there may be other devices."""
    from rlpipe.distributed.process_template import joins_cluster
    from rlpipe.training.checks import check_machine

    if local or not joins_cluster(ray_address):
        check_machine(config)


def _engine(config: Config, local: bool, ray_address: str | None) -> Engine:
    if local:
        from rlpipe.training.local import LocalEngine

        return LocalEngine(config)
    from rlpipe.distributed.engine import RayEngine

    return RayEngine(config, ray_address)
