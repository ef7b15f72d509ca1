"""Checks of a whole configuration."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rlpipe import files
from rlpipe.config.schema import AUTO, FIRST_TRAINING_SEED, Config
from rlpipe.config.selection import algorithm_class, declared_metrics, value_at
from rlpipe.config.tree import options_of
from rlpipe.errors import ConfigError
from rlpipe.metrics.dialects import DIALECTS
from rlpipe.metrics.health import TAGS
from rlpipe.plugins import nearest, resolve

_LIMITS: tuple[tuple[tuple[str, ...], Callable[[float], bool], str], ...] = (
    (
        (
            "runner.total_timesteps", "runner.save_interval", "runner.keep_checkpoints", "rollout.horizon",
            "env.train.total_num_envs", "env.eval.total_num_envs", "evaluation.episodes",
            "algorithm.update_epochs", "algorithm.num_minibatches", "rollout.num_inference_servers",
            "rollout.max_inference_batch",
        ),
        lambda value: value >= 1,
        "must be at least 1",
    ),
    (
        (
            "runner.val_check_interval", "runner.seed", "runner.logger.finish_timeout", "learner.lr",
            "learner.critic_lr", "cluster.cpus_per_learner", "rollout.inference_wait", "rollout.max_restarts",
            "rollout.simulator_retries", "runner.max_recoveries",
        ),
        lambda value: value >= 0,
        "may not be negative",
    ),
    (
        (
            "cluster.cpus_per_worker", "cluster.placement_timeout", "runner.logger.deadline", "learner.max_grad_norm",
            "learner.adam_eps", "algorithm.target_kl", "cluster.cpus_per_inference_server", "cluster.start_timeout",
            "rollout.timeout", "rollout.max_memory", "evaluation.timeout",
        ),
        lambda value: value > 0,
        "must be greater than 0",
    ),
    (
        (
            "runner.total_timesteps", "runner.save_interval", "runner.keep_checkpoints", "runner.val_check_interval",
            "runner.seed",
        ),
        lambda value: value < 2**53,
        "must be below 2^53",
    ),
    (
        (
            "rollout.horizon", "env.train.total_num_envs", "env.eval.total_num_envs", "rollout.max_inference_batch",
            "algorithm.replay_capacity", "algorithm.batch_size",
        ),
        lambda value: value < 2**31,
        "must be below 2^31: no memory holds as much",
    ),
    (
        (
            "runner.logger.deadline", "runner.logger.finish_timeout", "cluster.placement_timeout",
            "cluster.start_timeout",
        ),
        lambda value: value < 1e9,
        "must be below 1e9 seconds",
    ),
)  # fmt: skip
"""Numbers and what they must be, where they are given at all."""
_CHOICES = {
    "cluster.strategy": ("spread", "pack", "strict_spread"),
    "learner.lr_schedule": ("constant", "linear"),
    "learner.precision": ("float32", "bfloat16"),
    "rollout.inference": ("local", "server"),
    "rollout.spares": ("after_loss", "always", "never"),
    "runner.logger.console_style": ("table", "sb3", "line"),
    "runner.health.on_critical": ("continue", "checkpoint", "stop"),
}


def check(config: Config) -> None:
    """Everything that types alone do not say.

    Raises:
        ConfigError: the first thing that is wrong.
    """
    _check_values(config)
    _check_split(config)
    _check_plugins(config)


def _check_leaf(key: str, value: Any) -> None:
    """What holds for a value wherever it stands. Lists are their owner's: a script of rewards may hold anything."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{key} is {value}; it must be a finite number.")
    if isinstance(value, str) and "\0" in value:
        raise ConfigError(f"{key} is {value!r}, which holds a character that no text may hold.")
    if isinstance(value, Mapping):
        for name, inner in value.items():
            _check_leaf(f"{key}.{name}", inner)


def _check_values(config: Config) -> None:
    """Each key for itself."""
    for group, values in dataclasses.asdict(config).items():
        _check_leaf(group, values)
    for key in ("runner.logger.log_path", "policy.warm_start", "demos"):
        if (named := value_at(config, key)) is not None:
            files.kind_of(Path(named))
    for key in ("runner.logger.log_path", "runner.logger.experiment_name", "runner.logger.project_name"):
        if not value_at(config, key).strip():
            raise ConfigError(f"{key} is empty; it must be a name.")
    for keys, legal, demand in _LIMITS:
        for key in keys:
            value = value_at(config, key)
            if value is not None and not legal(value):
                raise ConfigError(f"{key} is {value}; it {demand}.")
    for key, choices in _CHOICES.items():
        value = value_at(config, key)
        if value not in choices:
            raise ConfigError(f"{key} is {value!r}{nearest(value, choices)} Legal are {', '.join(choices)}.")
    for key, legal_names in (("runner.logger.dialects", DIALECTS), ("runner.health.tags", TAGS)):
        for index, name in enumerate(value_at(config, key)):
            if name not in legal_names:
                raise ConfigError(
                    f"{key}[{index}] is {name!r}{nearest(name, legal_names)} Legal are {', '.join(legal_names)}."
                )
    seeds = config.evaluation.seeds
    if seeds.start < 0 or seeds.stop > FIRST_TRAINING_SEED:
        raise ConfigError(
            f"evaluation uses seeds {seeds.start} to {seeds[-1]}; they must lie between 0 and "
            f"{FIRST_TRAINING_SEED - 1}, above which the training seeds begin."
        )
    for key in ("rollout.num_workers", "learner.num_learners", "learner.num_threads"):
        count = value_at(config, key)
        if count != AUTO and (isinstance(count, str) or not 1 <= count < 2**16):
            raise ConfigError(f"{key} is {count!r}; it must be a number from 1 to {2**16 - 1}, or auto.")
    _check_least_workers(config)
    for key in ("cluster.gpus_per_learner", "cluster.gpus_per_inference_server"):
        gpus = value_at(config, key)
        if gpus != AUTO and (isinstance(gpus, str) or gpus < 0):
            raise ConfigError(f"{key} is {gpus!r}; it must be a number of at least 0, or auto.")
    device = config.learner.device
    if not re.fullmatch(r"auto|cpu|cuda(:[0-9]{1,3})?", device):
        raise ConfigError(f"learner.device is {device!r}; legal are auto, cpu and cuda, or cuda:1 and so on.")
    if device.startswith("cuda") and config.cluster.gpus_per_learner == 0:
        raise ConfigError(f"learner.device is {device!r}, but cluster.gpus_per_learner is 0: leave one of them out.")


def _check_least_workers(config: Config) -> None:
    """Whether an iteration can go on with so few workers."""
    least, workers, learners = config.rollout.min_workers, config.rollout.num_workers, config.learner.num_learners
    if least == "all":
        return
    if isinstance(least, str) or least < 1:
        raise ConfigError(f"rollout.min_workers is {least!r}; it must be a number of at least 1, or all.")
    if isinstance(workers, int) and least > workers:
        raise ConfigError(
            f"rollout.min_workers is {least}, but there are {workers} rollout workers (rollout.num_workers)."
        )
    if isinstance(learners, int) and least < learners:
        raise ConfigError(
            f"rollout.min_workers is {least}, which leaves nothing for some of {learners} learners "
            "(learner.num_learners)."
        )


def _check_split(config: Config) -> None:
    """Environments over workers, decisions over minibatches."""
    rollout, workers = config.rollout, config.rollout.num_workers
    if isinstance(workers, int) and config.env.train.total_num_envs % workers:
        raise ConfigError(
            f"{config.env.train.total_num_envs} environments (env.train.total_num_envs) cannot be shared evenly by "
            f"{workers} workers (rollout.num_workers)."
        )
    group_size = getattr(config.algorithm, "group_size", None)
    if group_size is not None:
        share = config.env.train.total_num_envs // (workers if isinstance(workers, int) else 1)
        if share % group_size:
            raise ConfigError(
                f"{share} environments of a worker (env.train.total_num_envs over rollout.num_workers) cannot be cut "
                f"into groups of {group_size} (algorithm.group_size)."
            )
        return  # how many decisions there will be is not known beforehand
    minibatches = getattr(config.algorithm, "num_minibatches", None)
    if minibatches is None:
        return
    if config.steps_per_iteration % minibatches:
        raise ConfigError(
            f"an iteration has {config.steps_per_iteration} decisions (rollout.horizon {rollout.horizon} x "
            f"env.train.total_num_envs {config.env.train.total_num_envs}), which cannot be cut into "
            f"{minibatches} equal minibatches (algorithm.num_minibatches)."
        )
    if config.steps_per_iteration // minibatches < 2:
        raise ConfigError("algorithm.num_minibatches leaves fewer than 2 decisions for a minibatch.")


def _check_plugins(config: Config) -> None:
    """Whether every plug-in can do what is asked of it, and all their metrics have names of their own."""
    logger = config.runner.logger
    for index, name in enumerate(logger.logger_backends):
        backend = resolve("backends", name, f"runner.logger.logger_backends[{index}]")
        options_of(name, backend.Config, logger.options.get(name))
        backend.check()
    for name in logger.options:
        if name not in logger.logger_backends:
            raise ConfigError(
                f"runner.logger.options.{name} is given, but {name} is not among runner.logger.logger_backends"
                f"{nearest(name, logger.logger_backends)}"
            )
    algorithm = algorithm_class(config)
    _check_learners(config, algorithm)
    policy = resolve("policies", config.policy.name, "policy.name")
    if algorithm.needs_bounds and not policy.bounded:
        raise ConfigError(
            f"algorithm.name is {config.algorithm.name}, which needs a policy whose actions keep to their bounds, such "
            "as policy.name=squashed_gaussian."
        )
    if policy.bounded and getattr(config.algorithm, "entropy_coef", 0.0):
        raise ConfigError(
            f"algorithm.entropy_coef is {config.algorithm.entropy_coef}, but the entropy of policy.name="
            f"{config.policy.name} has no closed form, so that such a bonus would only be noise: "
            "algorithm.entropy_coef=0.0"
        )
    for key in ("env.train", "env.eval"):
        section = config.env.train if key == "env.train" else config.env.eval
        resolve("envs", section.name, f"{key}.name").check(section, key)
    declared = declared_metrics(config)
    ranked = [name for name, metric in declared.items() if metric.better]
    wanted = config.runner.best_metric
    if wanted is not None and wanted not in ranked:
        raise ConfigError(
            f"runner.best_metric is {wanted!r}{nearest(wanted, ranked)} Evaluations can be ranked by "
            f"{', '.join(ranked)}."
        )
    if wanted is not None and not config.runner.keep_best:
        raise ConfigError(
            f"runner.best_metric is {wanted!r}, but runner.keep_best is false, so nothing is ranked: leave one out."
        )


def _check_learners(config: Config, algorithm: Any) -> None:
    """Whether so many learners can share the work."""
    count, gpus = config.learner.num_learners, config.cluster.gpus_per_learner
    if isinstance(count, str) or count == 1:
        return
    if not algorithm.shared:
        raise ConfigError(
            f"learner.num_learners is {count}, but {config.algorithm.name} learns with one learner: "
            "learner.num_learners=1"
        )
    group_size = getattr(config.algorithm, "group_size", 1)
    shares = config.env.train.total_num_envs // group_size
    if count > shares:
        of = "environments" if group_size == 1 else f"groups of {group_size} environments"
        raise ConfigError(
            f"{count} learners (learner.num_learners) cannot share {shares} {of} (env.train.total_num_envs): each "
            "needs at least one."
        )
    if isinstance(gpus, float | int) and gpus % 1:
        raise ConfigError(f"cluster.gpus_per_learner is {gpus} with {count} learners; each needs a whole GPU, or none.")
