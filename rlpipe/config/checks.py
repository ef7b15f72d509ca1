"""Checks of a whole configuration: the legal values of each key, and keys that must fit each other."""

from __future__ import annotations

from typing import Any

from rlpipe.config.fields import check_fields
from rlpipe.config.schema import AUTO, BOUNDED_POLICY, FIRST_TRAINING_SEED, Config, PipelineKind
from rlpipe.config.sections import options_of
from rlpipe.config.selection import declared_metrics, pipeline_kind
from rlpipe.config.variations import Variations
from rlpipe.errors import ConfigError
from rlpipe.plugins import nearest


def check(config: Config) -> None:
    """Checks everything that types alone do not say.

    Raises:
        ConfigError: the first mistake that is found.
    """
    check_fields(config)
    _check_evaluation_seeds(config)
    _check_least_workers(config)
    _check_processes(config)
    _check_device(config)
    _check_computation(config)
    _check_split(config)
    _check_backends(config)
    _check_algorithm(config)
    if config.policy.memory_width:
        config.algorithm.check_memory(config)
    if config.policy.chunk_size > 1:
        config.algorithm.check_chunks(config)
    _check_pipeline(config)
    train, evaluated = config.train_facts, config.eval_facts
    if not evaluated.seeds:
        raise ConfigError(evaluated.remedy("seeds"))
    for key, section, facts in (("env.train", config.env.train, train), ("env.eval", config.env.eval, evaluated)):
        _check_chunks(config.policy.chunk_size, facts, section, key)
    _check_tasks(config)
    _check_observed_variations(config)
    _check_steps_after_success(config, train)
    _check_curriculum(config, train)
    _check_best_metric(config)
    _check_videos(config)


def _check_videos(config: Config) -> None:
    if config.evaluation.videos and not config.evaluation.replays:
        raise ConfigError(
            f"evaluation.videos is {config.evaluation.videos}, but evaluation.replays is 0, and videos are made from "
            "replays: set evaluation.replays=4, or evaluation.videos=0."
        )


def _check_observed_variations(config: Config) -> None:
    """Checks that an evaluation observes the levels of the same axes as the training."""
    train, evaluated = config.env.train.observe_variations, config.env.eval.observe_variations
    if train != evaluated:
        raise ConfigError(
            f"env.eval.observe_variations is {evaluated}, but the policy is made for {train}, as "
            "env.train.observe_variations says: leave it out under env.eval."
        )


def _check_steps_after_success(config: Config, facts: Any) -> None:
    train, steps = config.env.train, config.rollout.steps_after_success
    if steps is None:
        return
    key = f"rollout.steps_after_success is {steps}, but"
    if remedy := train.goes_on_with:
        raise ConfigError(f"{key} a success ends episodes: set env.train.{remedy}, or leave it out.")
    if not facts.stops_after_success:
        where = "several tasks" if train.tasks else "a Python of its own" if train.python else train.name
        raise ConfigError(f"{key} {where} (env.train) cannot end episodes so: leave it out.")


def _check_evaluation_seeds(config: Config) -> None:
    seeds = config.evaluation.seeds
    if seeds.stop > FIRST_TRAINING_SEED:
        raise ConfigError(
            f"evaluation uses seeds {seeds.start} to {seeds[-1]}; they must lie between 0 and "
            f"{FIRST_TRAINING_SEED - 1}, above which the training seeds begin."
        )


def _check_least_workers(config: Config) -> None:
    """Checks that an iteration can continue with ``rollout.min_workers``."""
    least, workers, learners = config.rollout.min_workers, config.rollout.num_workers, config.learner.num_learners
    if isinstance(least, str):
        return
    if isinstance(workers, int) and least > workers:
        raise ConfigError(
            f"rollout.min_workers is {least}, but there are {workers} rollout workers (rollout.num_workers)."
        )
    if isinstance(learners, int) and least < learners:
        raise ConfigError(
            f"rollout.min_workers is {least}, but there are {learners} learners (learner.num_learners), of which some "
            f"would get no data: give at least {learners}."
        )


def _check_processes(config: Config) -> None:
    """Checks that several workers can be in one process, and that they can move to another one."""
    rollout, train = config.rollout, config.env.train
    if rollout.workers_per_actor > 1 and rollout.inference == "server":
        raise ConfigError(
            f"rollout.workers_per_actor is {rollout.workers_per_actor}, but with rollout.inference=server a worker "
            "would wait for the others of its process, which cannot ask before it: leave one of them out."
        )
    least, most = rollout.min_processes, rollout.num_workers
    if least is None:
        return
    key = f"rollout.min_processes is {least}, but"
    if isinstance(most, str) or least > most:
        raise ConfigError(f"{key} rollout.num_workers is {most}: give a number of workers, at least {least}.")
    if rollout.workers_per_actor > 1:
        raise ConfigError(f"{key} rollout.workers_per_actor is {rollout.workers_per_actor}: leave one of them out.")
    if rollout.inference == "server":
        raise ConfigError(f"{key} with rollout.inference=server workers cannot move: leave one of them out.")
    if pipeline_kind(config) == PipelineKind.STREAM:
        raise ConfigError(
            f"{key} in a stream (runner.pipeline) workers are never between two collections, where they could move: "
            "set runner.pipeline=ahead or sync, or leave it out."
        )
    facts = config.train_facts
    for fact, reason in (
        ("waits", "steps all its environments at once"),
        ("seeds", "draws its own seeds"),
        ("independent", "keeps something of one episode in the next"),
    ):
        if not getattr(facts, fact):
            remedy = f"set {option}, or " if fact != "seeds" and (option := facts.remedy(fact)) else ""
            raise ConfigError(
                f"{key} {train.name} (env.train) {reason}, so its episodes could not go on in another process with "
                f"the same numbers: {remedy}leave it out."
            )


def _check_device(config: Config) -> None:
    device = config.learner.device
    if device.startswith("cuda") and config.cluster.gpus_per_learner == 0:
        raise ConfigError(f"learner.device is {device!r}, but cluster.gpus_per_learner is 0: leave one of them out.")
    if config.learner.graphs is True and device == "cpu":
        raise ConfigError(
            "learner.graphs is true, but learner.device is cpu, where there are no CUDA graphs: set "
            "learner.graphs=auto, or learner.device=cuda."
        )


def _check_computation(config: Config) -> None:
    """Checks that the device and the algorithm can compute as ``learner.precision`` and ``micro_batch`` say."""
    precision, algorithm = config.learner.precision, config.algorithm.name
    if precision == "tf32" and config.learner.device == "cpu":
        raise ConfigError(
            "learner.precision is tf32, which only GPUs have, but learner.device is cpu: leave one of them out."
        )
    if precision == "bfloat16" and not config.algorithm_class.in_bfloat16:
        raise ConfigError(
            f"learner.precision is bfloat16, but algorithm.name={algorithm} learns in float32: set "
            "learner.precision=tf32, or leave it out."
        )
    if config.learner.micro_batch is not None and not config.algorithm_class.in_micro_batches:
        raise ConfigError(
            f"learner.micro_batch is {config.learner.micro_batch}, but algorithm.name={algorithm} takes its batches "
            "whole: lower algorithm.batch_size instead, and leave learner.micro_batch out."
        )


def _check_split(config: Config) -> None:
    """Checks that workers can share the environments, and that the algorithm can divide what they collect."""
    workers = config.rollout.num_workers
    if isinstance(workers, int) and config.env.train.total_num_envs % workers:
        raise ConfigError(
            f"{config.env.train.total_num_envs} environments (env.train.total_num_envs) cannot be shared evenly by "
            f"{workers} workers (rollout.num_workers)."
        )
    config.algorithm.check_split(config)


def _check_chunks(size: int, facts: Any, section: Any, key: str) -> None:
    """Checks that a simulator can take chunks of actions, and that they are no longer than its episodes."""
    if size > 1 and not facts.waits:
        remedy = f"{option}, or " if (option := facts.remedy("waits")) else ""
        raise ConfigError(
            f"policy.chunk_size is {size}, but {key} ({section.name}) steps all its environments at once: an episode "
            f"that ends within a chunk could not wait for the next decision. Set {remedy}policy.chunk_size=1."
        )
    if facts.time_limit is not None and size > facts.time_limit:
        raise ConfigError(
            f"policy.chunk_size is {size}, but an episode ends after {facts.time_limit} steps, the time limit of "
            f"{key}: its last actions would never be taken. Lower the chunk size."
        )


def _check_pipeline(config: Config) -> None:
    """Checks that workers can act with weights of their own where they do not keep in step."""
    if pipeline_kind(config) == PipelineKind.STREAM and config.rollout.inference == "server":
        raise ConfigError(
            "runner.pipeline is stream, where each worker acts with the newest weights when it begins a fragment, but "
            "rollout.inference is server, which holds one version for all its workers: set rollout.inference=local, or "
            "runner.pipeline=ahead."
        )


def _check_tasks(config: Config) -> None:
    """Checks that an evaluation knows the tasks of the training, and gives each as many episodes."""
    train, evaluated = config.env.train, config.env.eval
    if not train.tasks and not evaluated.tasks:
        for key, section in (("env.train", train), ("env.eval", evaluated)):
            if section.pad_observations is not None or not section.observe_task:
                name = "observe_task" if section.pad_observations is None else "pad_observations"
                raise ConfigError(f"{key}.{name} is for several tasks, but {key}.tasks is empty: leave it out.")
        return
    if not train.tasks or not evaluated.tasks:
        key, other = ("env.train", "env.eval") if not train.tasks else ("env.eval", "env.train")
        raise ConfigError(
            f"{other}.tasks names {len((evaluated if other == 'env.eval' else train).tasks)} tasks, but {key}.tasks is "
            f"empty: name at least one of them in {key}.tasks."
        )
    several = config.simulator_class
    labels = several.labels(train, "env.train")
    several.check_slots(train, "env.train", config.algorithm.group_size or 1)
    evaluated_labels = several.labels(evaluated, "env.eval")
    for label in evaluated_labels:
        if label not in labels:
            raise ConfigError(
                f"env.eval.tasks names {label}, which is none of env.train.tasks{nearest(label, labels)} There are "
                f"{', '.join(labels)}."
            )
    if evaluated.observe_task != train.observe_task:
        raise ConfigError("env.eval.observe_task differs from env.train.observe_task: leave it out.")
    count, episodes, slots = len(evaluated_labels), config.evaluation.episodes, evaluated.total_num_envs
    if slots < count:
        raise ConfigError(
            f"env.eval.total_num_envs is {slots}, but env.eval.tasks names {count} tasks, each of which needs at least "
            f"one environment: give {count} or more."
        )
    if episodes % count:
        more = -(-episodes // count) * count
        raise ConfigError(
            f"evaluation.episodes is {episodes}, which {count} tasks (env.eval.tasks) cannot share evenly: give {more}."
        )
    if config.demos is not None:
        raise ConfigError(
            f"env.train.tasks names {len(labels)} tasks, but demonstrations (demos) are of one: leave out either."
        )


def _check_curriculum(config: Config, facts: Any) -> None:
    """Checks that the simulator can begin episodes as the curriculum chooses, and that one learner follows it."""
    curriculum, name = config.curriculum_class, config.curriculum.name
    if config.demo_leaves and config.demos is None:
        raise ConfigError("demo_leaves names observations of demonstrations, but there are none: demos=PATH")
    if config.num_demos is not None and config.demos is None:
        raise ConfigError(f"num_demos is {config.num_demos}, but there are no demonstrations: demos=FILE.h5")
    if not curriculum.chooses:
        return
    if not config.algorithm_class.collects:
        raise ConfigError(
            f"curriculum.name is {name}, but algorithm.name={config.algorithm.name} collects no episodes: leave the "
            "curriculum out."
        )
    if config.learner.num_learners not in (1, AUTO):
        raise ConfigError(
            f"curriculum.name is {name}, which one learner follows, but learner.num_learners is "
            f"{config.learner.num_learners}: set learner.num_learners=1."
        )
    train = config.env.train
    if curriculum.chooses_tasks != bool(train.tasks):
        tasks = f"names {len(train.tasks)} tasks" if train.tasks else "is empty"
        raise ConfigError(
            f"curriculum.name is {name}, which is for {'several tasks' if curriculum.chooses_tasks else 'one task'}, "
            f"but env.train.tasks {tasks}: leave the curriculum out, or set "
            f"curriculum.name={'reverse_spread' if curriculum.chooses_tasks else 'task_progress'}."
        )
    if not facts.success:
        raise ConfigError(
            f"curriculum.name is {name}, which follows the success of episodes, but env.train ({train.name}) does not "
            f"tell it: {facts.remedy('success')}."
        )
    if curriculum.chooses_tasks:
        return
    if curriculum.chooses_levels:
        _check_widest(config)
    if not facts.starts:
        remedy = f": set {option}" if (option := facts.remedy("starts")) else ""
        raise ConfigError(
            f"curriculum.name is {name}, which chooses how episodes begin, but env.train ({train.name}) chooses that "
            f"itself{remedy}."
        )
    if curriculum.needs_states and not facts.states:
        raise ConfigError(
            f"curriculum.name is {name}, whose episodes begin in the course of demonstrations, but env.train "
            f"({train.task_name}) {facts.remedy('states')}"
        )
    if curriculum.blends and not facts.blends:
        raise ConfigError(
            f"curriculum.name is {name}, whose episodes begin between a demonstration's beginning and the task's own "
            f"starts, but env.train ({train.name}) cannot mix states, as maniskill can: set "
            "curriculum.name=reverse_forward, which does without."
        )
    if curriculum.needs_states and config.demos is None:
        raise ConfigError(
            f"curriculum.name is {name}, whose episodes begin in the course of demonstrations: demos=FILE.h5"
        )


def _check_widest(config: Config) -> None:
    """Checks that an axis varies, so that there is a range to widen."""
    varied = Variations.of(config.env.train).levels
    if not any(levels.varies for levels in varied.values()):
        nothing = "gives each axis one level" if varied else "is empty"
        raise ConfigError(
            f"curriculum.name is {config.curriculum.name}, which widens the ranges of axes as far as "
            f"env.train.variations says, but that {nothing}: name a range, such as "
            "env.train.variations.action_noise.uniform=[0.0,0.2], or leave the curriculum out."
        )


def _check_backends(config: Config) -> None:
    """Checks that every backend can be opened with its options."""
    logger = config.runner.logger
    for name, backend in config.backend_classes.items():
        check_fields(options_of(name, backend.Config, logger.options.get(name)), f"runner.logger.options.{name}")
        backend.check()
    for name in logger.options:
        if name not in logger.logger_backends:
            raise ConfigError(
                f"runner.logger.options.{name} is given, but {name} is not among runner.logger.logger_backends"
                f"{nearest(name, logger.logger_backends)}"
            )


def _check_algorithm(config: Config) -> None:
    """Checks that the algorithm can use the learners and the policy."""
    algorithm = config.algorithm_class
    _check_learners(config, algorithm)
    policy = config.policy_class
    policy.check(config)
    if algorithm.needs_bounds and not policy.bounded:
        raise ConfigError(
            f"algorithm.name is {config.algorithm.name}, which needs a policy whose actions are bounded and carry "
            f"gradients, but policy.name is {config.policy.name}: set policy.name={BOUNDED_POLICY}, or "
            "algorithm.name=ppo."
        )
    if policy.in_tokens and config.algorithm.clones_by_distance:
        raise ConfigError(
            f"policy.name is {config.policy.name}, whose most likely tokens have no gradient, but algorithm.loss is "
            "a distance from the most likely action: set algorithm.loss=likelihood."
        )
    if policy.bounded and config.algorithm.entropy_coef:
        raise ConfigError(
            f"algorithm.entropy_coef is {config.algorithm.entropy_coef}, but the entropy of policy.name="
            f"{config.policy.name} has no closed form, so an entropy bonus would only add noise: set "
            "algorithm.entropy_coef=0.0."
        )


def _check_learners(config: Config, algorithm: Any) -> None:
    """Checks that each learner gets environments and, where it uses one, a whole GPU."""
    count, gpus = config.learner.num_learners, config.cluster.gpus_per_learner
    if isinstance(count, str) or count == 1:
        return
    if not algorithm.shared:
        raise ConfigError(
            f"learner.num_learners is {count}, but {config.algorithm.name} supports only one learner: "
            "set learner.num_learners=1."
        )
    group_size = config.algorithm.group_size
    shares = config.env.train.total_num_envs // (group_size or 1)
    if count > shares:
        of = "environments" if group_size is None else f"groups of {group_size} environments"
        raise ConfigError(
            f"{count} learners (learner.num_learners) cannot share {shares} {of} (env.train.total_num_envs): each "
            "needs at least one."
        )
    if not isinstance(gpus, str) and gpus % 1:
        raise ConfigError(f"cluster.gpus_per_learner is {gpus} with {count} learners; each needs a whole GPU, or none.")


def _check_best_metric(config: Config) -> None:
    """Checks that the metrics of all plug-ins have names of their own, and that one of them can rank evaluations."""
    ranked = [name for name, metric in declared_metrics(config).items() if metric.better]
    best = config.runner.best_metric
    if best is None:
        return
    if best not in ranked:
        raise ConfigError(
            f"runner.best_metric is {best!r}, which cannot rank evaluations{nearest(best, ranked)} Allowed values: "
            f"{', '.join(ranked)}."
        )
    if not config.runner.keep_best:
        raise ConfigError(
            f"runner.best_metric is {best!r}, but runner.keep_best is false, so nothing is ranked: leave one out."
        )
