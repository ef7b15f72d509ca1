"""The configuration: a tree of frozen dataclasses, and the one function that makes it.

YAML holds only what differs from the defaults; ``key=value`` overrides it. Each plug-in brings its own part of the tree
(its ``Config``), so ``env.train``, ``policy`` and ``algorithm`` have the fields of whatever they name. Everything is
checked here, before anything starts.
"""

from __future__ import annotations

import dataclasses
import math
import os
import platform
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException, ValidationError

from rlpipe import demonstrations, records
from rlpipe.metrics import CATALOGUE
from rlpipe.metrics.declaration import Metric
from rlpipe.metrics.dialects import DIALECTS
from rlpipe.metrics.health import TAGS
from rlpipe.plugins import ConfigError, available, nearest, resolve
from rlpipe.secrets import check_no_secrets

AUTO = "auto"
FIRST_TRAINING_SEED = 2**30
"""Training resets with seeds from here up to 2^31, evaluation with seeds below: they cannot meet."""


@dataclass(frozen=True)
class ClusterConfig:
    """Where Ray runs the parts."""

    cpus_per_worker: float = 1.0
    """CPUs that Ray reserves for each rollout worker; its torch runs on one thread."""
    worker_nodes: dict[str, str] = field(default_factory=dict)
    """Labels of the nodes that rollout workers go to, such as ``{role: sim}``, as Ray's label selectors have them:
    ``sim``, ``!sim``, ``in(sim, spare)``. Empty: any node."""
    cpus_per_learner: float = 0.0
    """CPUs that Ray reserves for the learner. 0 lets a learner without a GPU use those of the workers, which wait
    meanwhile, on the machine that starts the run."""
    gpus_per_learner: int | float | str = AUTO
    """GPUs of the learner; ``auto``: 1 where a node has one, unless ``learner.device`` is ``cpu``."""
    learner_nodes: dict[str, str] = field(default_factory=dict)
    """Labels of the nodes that the learner goes to. Empty: any node."""
    cpus_per_inference_server: float = 1.0
    """CPUs that Ray reserves for each inference server; its torch runs on as many threads, and on one at least."""
    gpus_per_inference_server: int | float | str = AUTO
    """GPUs of each inference server; ``auto``: 1 where there is one for each beside the learner's, else none."""
    inference_nodes: dict[str, str] = field(default_factory=dict)
    """Labels of the nodes that inference servers go to. Empty: any node."""
    strategy: str = "spread"
    """How parts are laid on nodes: ``spread`` evenly, ``pack`` on few, or ``strict_spread``, no two on one."""
    placement_timeout: float = 30.0
    """Seconds to wait for nodes that are busy, or still to come, as with an autoscaler."""
    start_timeout: float = 180.0
    """Seconds within which all rollout workers must have their simulators ready."""


@dataclass(frozen=True)
class LoggerConfig:
    """Where metrics go. ``metrics.jsonl`` and the episode ledgers are always written."""

    log_path: str = "runs"
    """Folder of all runs."""
    project_name: str = "rlpipe"
    """Project, for backends that group runs."""
    experiment_name: str = "experiment"
    """Folder of this experiment's runs inside ``log_path``."""
    logger_backends: list[str] = field(default_factory=lambda: ["console", "tensorboard"])
    """Views of the metrics: files in ``rlpipe/backends/``, or ``package.module:Class``."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of each backend, under its name. Secrets never stand here: services read them from the environment."""
    deadline: float = 30.0
    """Seconds a backend may stand still while rows wait, before it is ended and opened again."""
    finish_timeout: float = 60.0
    """Seconds the end of the run waits for backends to catch up; ``rlpipe sync`` does it later."""
    per_worker: bool = False
    """Also write what each rollout worker saw by itself, in the same run, as ``workers/<rank>/<metric>``."""
    dialects: list[str] = field(default_factory=list)
    """Systems whose own keys are written as well: ``sb3``, ``trl``, ``trl_legacy``, ``cleanrl``."""
    console_style: str = "table"
    """How the terminal shows an iteration: ``table``, ``sb3`` (a boxed table), or ``line`` (one short line)."""


@dataclass(frozen=True)
class HealthConfig:
    """Watching over the metrics."""

    on_critical: str = "continue"
    """What a critical alert does: ``continue``, ``checkpoint``, or ``stop``, which checkpoints and exits with 3."""
    target: float | None = None
    """Mean return at which the task counts as solved, so that a plateau above it is no alarm; None for none."""
    tags: list[str] = field(default_factory=list)
    """What only the user knows of the task: ``reward_per_step`` (each step pays), ``rapid_improvement``."""


@dataclass(frozen=True)
class RunnerConfig:
    """Course of the run."""

    seed: int = 0
    """Origin of every random number: weights, noise, minibatches, resets."""
    total_timesteps: int = 1_000_000
    """Environment steps after which the run ends, rounded up to a whole iteration."""
    val_check_interval: int = 0
    """Iterations between evaluations; 0 evaluates only at the end."""
    save_interval: int = 10
    """Iterations between checkpoints; one is also written at the end and on Ctrl-C."""
    keep_checkpoints: int = 3
    """Newest checkpoints that are kept."""
    max_recoveries: int = 20
    """How often a run goes back to its last checkpoint because its learner, its metric logger or an inference server
    died, before it gives up."""
    keep_best: bool = True
    """Also keep the checkpoint whose evaluation was best; one is written for it where none is due."""
    best_metric: str | None = None
    """Metric of the evaluation that decides which is best; None: ``eval/success_once``, or else ``eval/return``."""
    auto_resume: bool = False
    """Go on with the newest run of the same settings that did not complete; begin a new one where there is none."""
    health: HealthConfig = field(default_factory=HealthConfig)
    logger: LoggerConfig = field(default_factory=LoggerConfig)


@dataclass(frozen=True)
class EvaluationConfig:
    """Protocol of an evaluation."""

    episodes: int = 100
    """Whole episodes; each slot gets its share beforehand, so quick ones are not counted more often."""
    first_seed: int = 1_000_000
    """Seed of the first episode; the others follow by one. Below 2^30, where training seeds begin."""
    deterministic: bool = True
    """Take the most likely action instead of sampling."""
    timeout: float = 3600.0
    """Seconds a worker has for its share, before it is replaced."""

    @property
    def seeds(self) -> range:
        """Of its episodes."""
        return range(self.first_seed, self.first_seed + self.episodes)


@dataclass(frozen=True)
class RolloutConfig:
    """Collection."""

    num_workers: int | str = AUTO
    """Rollout workers, which must divide env.train.total_num_envs; ``auto`` takes as many as there are CPUs for."""
    horizon: int = 200
    """Steps each environment advances per iteration (T)."""
    inference: str = "local"
    """Where actions are chosen: ``local``, by a copy of the policy in each worker, or ``server``, by one for many."""
    num_inference_servers: int = 1
    """Servers among which the workers are shared by rank."""
    inference_wait: float | None = 10.0
    """Milliseconds a server waits, from the first request on, for those of its other workers; None waits for all."""
    max_inference_batch: int = 4096
    """Rows with which a server waits no longer, and the most of one forward pass; what one worker asks for at once
    stays together."""
    timeout: float = 600.0
    """Seconds a worker has for a collection, before it is replaced."""
    min_workers: int | str = "all"
    """Fragments with which an iteration goes on while workers that failed are replaced; ``all`` waits for them, so that
    every iteration has as many steps."""
    max_restarts: int = 100
    """Workers that are replaced in a run before it gives up."""
    spares: str = "after_loss"
    """When a node gets a worker more, which takes the place of one that is lost at once: ``after_loss``, when it has
    lost one; ``always``, with its first fragment; or ``never``. It takes as much memory as a worker, and no CPU."""
    simulator_retries: int = 3
    """How often a worker makes a simulator that raised again, in one collection, before it gives up itself."""
    max_memory: float | None = None
    """GiB of memory with which a worker is replaced after its collection, against simulators that leak; None: never."""


@dataclass(frozen=True)
class LearnerConfig:
    """Optimisation, and the hardware it runs on."""

    device: str = AUTO
    """``cpu``, ``cuda``, or ``auto``: cuda where there is one."""
    num_learners: int | str = AUTO
    """Learners that share each batch; ``auto``: one for each GPU that the nodes have for them, else one."""
    num_threads: int | str = AUTO
    """Torch threads while learning; ``auto`` takes all CPUs, since workers wait meanwhile, and half of them where these
    collect while it learns; several learners divide them."""
    lr: float = 3e-4
    """Learning rate of the actor (Adam)."""
    critic_lr: float | None = None
    """Learning rate of the critic; None takes the actor's."""
    lr_schedule: str = "constant"
    """``constant``, or ``linear``: down to 0 at total_timesteps."""
    adam_eps: float = 1e-5
    """Adam's epsilon."""
    max_grad_norm: float | None = 0.5
    """L2 norm to which the gradients of actor and of critic are cut, each; None never cuts."""
    precision: str = "float32"
    """Of matrix products while learning: ``float32``, or ``bfloat16``, whose weights stay float32."""
    compile: bool = False
    """Compile the loss with ``torch.compile``."""


@dataclass(frozen=True)
class StageConfig:
    """A part of the run with settings of its own."""

    name: str
    """What the console and the events call it."""
    timesteps: int | None = None
    """Environment steps it lasts, rounded up to a whole iteration; None, for the last: to the end."""
    overrides: dict[str, Any] = field(default_factory=dict)
    """Full keys under env.train, algorithm or learner, and their values during the stage."""


@dataclass(frozen=True)
class EnvConfig:
    """The simulator to train in, and the one to evaluate in, which repeats the first where it says nothing."""

    train: Any
    eval: Any


@dataclass(frozen=True)
class Config:
    """Everything a run is made from. ``env.*``, ``policy`` and ``algorithm`` are the plug-ins' own ``Config``."""

    env: EnvConfig
    policy: Any
    algorithm: Any
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    runner: RunnerConfig = field(default_factory=RunnerConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    stages: tuple[StageConfig, ...] = ()
    demos: str | None = None
    """Demonstrations: ManiSkill's trajectory file (HDF5, with its JSON beside it)."""

    @property
    def steps_per_iteration(self) -> int:
        """Environment steps of one iteration: horizon times environments."""
        return int(self.rollout.horizon * self.env.train.total_num_envs)


@dataclass(frozen=True)
class Stage:
    """A stage with its whole configuration.

    Attributes:
        name: of the stage.  until: iteration after which it ends.  config: the run's, with the overrides applied.
    """

    name: str
    until: int
    config: Config


_PLUGINS = {"env.train": "envs", "env.eval": "envs", "policy": "policies", "algorithm": "algorithms"}
_GROUPS: dict[str, type[Any]] = {
    "cluster": ClusterConfig,
    "runner": RunnerConfig,
    "evaluation": EvaluationConfig,
    "rollout": RolloutConfig,
    "learner": LearnerConfig,
}
_STAGE_KEYS = ("env.train.", "algorithm.", "learner.")


def load_config(source: str | Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> Config:
    """Reads, completes and checks a configuration.

    Args:
        source: YAML file, or the same as a mapping.
        overrides: ``key=value`` with full dotted keys; values are read as YAML.
    Raises:
        ConfigError: anything at all is wrong with it. Nothing has been started or written.
    """
    tree = _read(source, overrides)
    config = _build(tree)
    _check(config)
    stages(config)
    return config


def load_pretraining(source: str | Path, overrides: Sequence[str] = ()) -> Config:
    """The configuration of ``rlpipe pretrain``: the task and the policy of a training run, learnt by cloning.

    Options of the run's own algorithm are left out; ``algorithm.*`` overrides are those of behaviour cloning.

    Raises:
        ConfigError: it is unusable.
    """
    tree = _read(source, [])
    tree.algorithm = {"name": "behaviour_cloning"}
    tree.pop("stages", None)
    name = OmegaConf.select(tree, "runner.logger.experiment_name") or "experiment"
    OmegaConf.update(tree, "runner.logger.experiment_name", f"{name}_cloning", force_add=True)
    return load_config(from_yaml(OmegaConf.to_yaml(tree)), overrides)


def to_yaml(config: Config) -> str:
    """The whole configuration, defaults included; ``load_config`` reads it back."""
    return OmegaConf.to_yaml(OmegaConf.create(dataclasses.asdict(config)))


def from_yaml(text: str, where: str = "the configuration") -> dict[str, Any]:
    """What ``to_yaml`` gave, as the mapping that ``load_config`` takes.

    Args:
        text: YAML.  where: it stands, for the error.
    Raises:
        ConfigError: it is not YAML, or no mapping.
    """
    return {str(key): value for key, value in _container(_parsed(text, where)).items()}


def _parsed(text: str, where: str) -> DictConfig:
    try:
        tree = OmegaConf.create(text)
    except Exception as error:  # YAML's own errors have no common base that OmegaConf promises
        lines, mark = text.splitlines(), getattr(error, "problem_mark", None)
        tab = mark is not None and mark.line < len(lines) and "\t" in lines[mark.line]
        hint = " Indent with spaces: YAML takes no tabs." if tab else ""
        raise ConfigError(f"{where} is not readable as YAML: {_reason(error)}{hint}") from error
    if not isinstance(tree, DictConfig):
        raise ConfigError(f"{where} must hold keys and values at its top level, but holds a list.")
    return tree


def _container(tree: DictConfig, *, resolve: bool = False) -> dict[Any, Any]:
    """Plain dictionaries, lists and values."""
    try:
        found = OmegaConf.to_container(tree, resolve=resolve)
    except (OmegaConfBaseException, RecursionError) as error:
        raise ConfigError(_reason(error)) from error
    assert isinstance(found, dict)
    return found


def _reason(error: Exception) -> str:
    """What YAML or OmegaConf has to say, in a line."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply."
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}."
    return lines[0] if lines else type(error).__name__


def without_learner(config: Config) -> Config:
    """The same for an engine that only evaluates: it needs no place for a learner."""
    cluster = dataclasses.replace(config.cluster, cpus_per_learner=0.0, gpus_per_learner=0.0, learner_nodes={})
    return dataclasses.replace(config, cluster=cluster)


def algorithm_class(config: Config) -> Any:
    """The class that the algorithm's name stands for."""
    return resolve("algorithms", config.algorithm.name, "algorithm.name")


def leaves(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves of nested mappings under dotted keys; an empty mapping is one."""
    if isinstance(tree, Mapping) and tree:
        for name, value in tree.items():
            yield from leaves(value, f"{prefix}.{name}" if prefix else str(name))
    else:
        yield prefix, tree


def check_demonstrations(config: Config) -> None:
    """Checks that demonstrations are given where they are learnt from and only there, fit the task, and do not show
    what evaluation asks. A policy that has been trained is evaluated without them.

    Raises:
        ConfigError: one of these is not so.
    """
    algorithm = algorithm_class(config)
    cloned = max(getattr(stage.config.algorithm, "cloning_coef", 0.0) for stage in stages(config))
    if config.demos is None:
        if algorithm.needs_demonstrations or cloned:
            why = "algorithm.name is" if algorithm.needs_demonstrations else "algorithm.cloning_coef is"
            what = config.algorithm.name if algorithm.needs_demonstrations else cloned
            raise ConfigError(f"{why} {what}, which needs demonstrations: demos=FILE.h5")
        return
    if not (algorithm.needs_demonstrations or cloned):
        raise ConfigError(
            f"demos is {config.demos}, but algorithm.name={config.algorithm.name} learns nothing from it: leave it out"
            + (", or give algorithm.cloning_coef." if hasattr(config.algorithm, "cloning_coef") else ".")
        )
    demonstrations.check(config.demos, config.env.train)
    seeds = config.evaluation.seeds
    if shown := sorted(seed for seed in demonstrations.seeds(config.demos) if seed in seeds):
        raise ConfigError(
            f"evaluation uses seeds {seeds.start} to {seeds[-1]}, of which {config.demos} shows {len(shown)}, such as "
            f"{shown[0]}: choose another evaluation.first_seed."
        )


def stages(config: Config) -> list[Stage]:
    """The stages of a run in turn, each checked; a run without stages is one stage called ``training``.

    Raises:
        ConfigError: a stage is impossible.
    """
    algorithm = algorithm_class(config)
    total = -(-config.runner.total_timesteps // config.steps_per_iteration)
    if not algorithm.collects:
        total = config.algorithm.epochs
    if not config.stages:
        return [Stage("training", total, config)]
    found: list[Stage] = []
    begin = 0
    base = dataclasses.asdict(config)
    for index, stage in enumerate(config.stages):
        key = f"stages[{index}] ({stage.name})"
        if stage.timesteps is None and index < len(config.stages) - 1:
            raise ConfigError(f"{key}.timesteps is missing; only the last stage may leave it out.")
        if stage.timesteps is not None and stage.timesteps < 1:
            raise ConfigError(f"{key}.timesteps is {stage.timesteps}; it must be at least 1.")
        until = total if stage.timesteps is None else begin - (-stage.timesteps // config.steps_per_iteration)
        tree = OmegaConf.create(base)
        for name, value in _flat(stage.overrides):
            if not name.startswith(_STAGE_KEYS) or name.endswith((".name", ".total_num_envs", ".id")):
                raise ConfigError(
                    f"{key}.overrides holds {name}; a stage may change keys under env.train, algorithm and learner, "
                    "but not the task, the plug-ins or the number of environments."
                )
            if name.startswith("algorithm.") and not algorithm.staged:
                raise ConfigError(
                    f"{key}.overrides holds {name}, but the options of algorithm.name={config.algorithm.name} stay the "
                    "same for a run."
                )
            try:
                OmegaConf.update(tree, name, value, force_add=True)
            except Exception as error:  # OmegaConf promises no base of what a key can be wrong in
                raise ConfigError(f"{key}.overrides holds {name}, which is no key: {_reason(error)}") from error
        staged = _build(tree)
        _check(staged)
        for name in ("device", "num_learners", "num_threads", "adam_eps", "precision", "compile"):
            if getattr(staged.learner, name) != getattr(config.learner, name):
                raise ConfigError(f"{key}.overrides changes learner.{name}, which stays the same for a run.")
        found.append(Stage(stage.name, until, staged))
        begin = until
    if begin < total:
        raise ConfigError(
            f"the stages last {begin * config.steps_per_iteration} environment steps, but runner.total_timesteps is "
            f"{config.runner.total_timesteps}: leave timesteps out of the last stage, or lengthen one."
        )
    if len(found) > 1 and found[-2].until >= total:
        raise ConfigError(
            f"runner.total_timesteps is {config.runner.total_timesteps}, which ends before stage {found[-1].name} "
            f"begins, at {found[-2].until * config.steps_per_iteration} environment steps."
        )
    return [dataclasses.replace(stage, until=min(stage.until, total)) for stage in found]


def protocol(config: Config) -> dict[str, Any]:
    """What makes two success rates comparable: the simulators with all their options, seeds, episodes, actions."""
    return {
        "train_env": dataclasses.asdict(config.env.train),
        "eval_env": dataclasses.asdict(config.env.eval),
        "auto_reset": "same step, true successor kept",
        "horizon": config.rollout.horizon,
        "seed": config.runner.seed,
        "training_seeds": "from 2^30",
        "evaluation_first_seed": config.evaluation.first_seed,
        "evaluation_episodes": config.evaluation.episodes,
        "deterministic_actions": config.evaluation.deterministic,
        "stages": [dataclasses.asdict(stage) for stage in config.stages],
        "demonstrations": config.demos,
    }


def comparable(protocol: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a protocol that must be equal for two success rates to be compared, by configuration key.

    How a policy was trained may differ: that is what one compares. So may the number of slots and of workers, on which
    no episode of an evaluation depends.
    """
    played = {f"env.eval.{key}": value for key, value in protocol["eval_env"].items() if key != "total_num_envs"}
    return played | {
        "evaluation.episodes": protocol["evaluation_episodes"],
        "evaluation.first_seed": protocol["evaluation_first_seed"],
        "evaluation.deterministic": protocol["deterministic_actions"],
    }


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves of a nested mapping under dotted keys; keys may be dotted themselves."""
    for name, value in tree.items():
        if isinstance(value, Mapping) and value and not f"{prefix}{name}".endswith("kwargs"):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _read(source: str | Path | Mapping[str, Any], overrides: Sequence[str]) -> DictConfig:
    if isinstance(source, Mapping):
        tree = OmegaConf.create(dict(source))
    else:
        path = Path(source)
        if (kind := records.kind_of(path)) != "file":
            folder = path if kind else path.parent if path.parent.is_dir() else Path("configs")
            names = sorted(file.name for file in folder.glob("*.yaml"))
            if kind:
                raise ConfigError(
                    f"{source} is a directory; name a configuration file"
                    + (f", such as {path / names[0]}." if names else ", or, of a run, --resume.")
                )
            raise ConfigError(f"there is no configuration file {source}{nearest(path.name, names)}")
        tree = _parsed(records.text(path), str(source))
    return overridden(tree, overrides)


_KEY = re.compile(r"[^\s.\[\]]+(\.[^\s.\[\]]+|\[[^\s.\[\]]+\])*")
"""``runner.seed``, ``stages[0].timesteps``."""


def overridden(tree: DictConfig, overrides: Sequence[str]) -> DictConfig:
    """The tree with ``key=value`` applied, in turn; values are read as YAML.

    Raises:
        ConfigError: one is no such thing.
    """
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals or not _KEY.fullmatch(key):
            raise ConfigError(f"{override!r} is no override; write key=value, such as runner.seed=1.")
        try:
            given = OmegaConf.create(f"value: {value}").value if value else None
            OmegaConf.update(tree, key, given, force_add=True, merge=given != {})  # {} takes away what was there
        except Exception as error:
            raise ConfigError(f"the override {override!r} cannot be applied: {_reason(error)}") from error
    return tree


def _resolved(tree: DictConfig) -> dict[str, Any]:
    """The tree without references to other keys or to the environment, and without credentials. The first of all
    checks, because an error about a value shows the value.

    Raises:
        ConfigError: a reference leads nowhere, or there is a credential.
    """
    found = {str(key): value for key, value in _container(tree, resolve=True).items()}
    check_no_secrets(found, os.environ)
    return found


def _mapping(tree: Mapping[str, Any], key: str) -> dict[str, Any]:
    """What the last part of a key holds in a mapping; nothing where it is absent.

    Raises:
        ConfigError: it holds something else than keys and values.
    """
    found = tree.get(key.rpartition(".")[2])
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ConfigError(f"{key} is {found!r}; it must hold keys and values, such as {key}.name=...")
    return found


def _build(tree: DictConfig) -> Config:
    found = _resolved(tree)
    known = [*(f.name for f in dataclasses.fields(Config))]
    for name in found:
        if name not in known:
            raise ConfigError(f"unknown key {name!s}{nearest(str(name), known)} Legal are {', '.join(known)}.")
    env = _mapping(found, "env")
    for name in env:
        if name not in ("train", "eval"):
            raise ConfigError(f"unknown key env.{name!s}; legal are env.train and env.eval.")
    train = _mapping(env, "env.train")
    groups: dict[str, Any] = {
        name: _typed(schema, found[name], name) for name, schema in _GROUPS.items() if name in found
    }
    demos, stages = found.get("demos"), found.get("stages") or []
    if not isinstance(demos, str | None):
        raise ConfigError(f"demos is {demos!r}; it must name a file.")
    if not isinstance(stages, list | tuple):
        raise ConfigError(f"stages is {stages!r}; it must be a list, such as [{{name: first, timesteps: 1000}}, ...].")
    return Config(
        env=EnvConfig(_plugin("env.train", train), _plugin("env.eval", _merged(train, _mapping(env, "env.eval")))),
        policy=_plugin("policy", _mapping(found, "policy") or {"name": "mlp"}),
        algorithm=_plugin("algorithm", _mapping(found, "algorithm") or {"name": "ppo"}),
        demos=None if demos is None else _absolute(demos, "demos"),
        stages=tuple(_typed(StageConfig, stage, f"stages[{index}]") for index, stage in enumerate(stages)),
        **groups,
    )


def _absolute(path: str, key: str) -> str:
    try:
        return str(Path(path).expanduser().resolve())
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(f"{key} is {path!r}, which names no file: {error}.") from error


def _merged(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """The first with what the second says."""
    _check_mergeable(first, second, "")
    return _container(OmegaConf.merge(first, second))  # type: ignore[arg-type] # two mappings make a mapping


def _check_mergeable(train: Mapping[str, Any], evaluated: Mapping[str, Any], below: str) -> None:
    """Whether ``env.eval`` holds keys where ``env.train`` does, and a list where that holds one."""
    for name, value in evaluated.items():
        before = train.get(name)
        if isinstance(before, dict) and isinstance(value, dict):
            _check_mergeable(before, value, f"{below}.{name}")
        elif isinstance(before, list | dict) and isinstance(value, list | dict) and type(before) is not type(value):
            what = "a list" if isinstance(before, list) else "keys and values"
            raise ConfigError(f"env.eval{below}.{name} is {value!r}; it must hold {what}, as env.train{below}.{name}.")


def _plugin(key: str, tree: Mapping[str, Any]) -> Any:
    kind = _PLUGINS[key]
    name = tree.get("name")
    if not isinstance(name, str):
        found = "missing" if name is None else repr(name)
        raise ConfigError(f"{key}.name is {found}; rlpipe/{kind}/ has {', '.join(available(kind))}.")
    return _typed(resolve(kind, name, f"{key}.name").Config, tree, key)


def _typed(schema: type[Any], tree: Any, key: str) -> Any:
    """An instance of a dataclass from a part of the tree."""
    _check_groups(schema, tree, key)
    try:
        merged = OmegaConf.merge(OmegaConf.structured(schema), tree if tree is not None else {})
        return OmegaConf.to_object(merged)
    except ConfigError:
        raise
    except ConfigKeyError as error:
        unknown = str(error.full_key or error.key)
        owner, _, last = unknown.rpartition(".")
        known = _fields(schema, owner)
        raise ConfigError(
            f"unknown key {key}.{unknown}{nearest(last, known)} Legal under {'.'.join(filter(None, (key, owner)))} are "
            f"{', '.join(known)}."
        ) from error
    except ValidationError as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{key}.{error.full_key} has the wrong type: {reason}") from error
    except (OmegaConfBaseException, OverflowError, RecursionError, TypeError) as error:  # what OmegaConf raises
        raise ConfigError(f"{key}: {_reason(error)}") from error


def _check_groups(schema: type[Any], tree: Any, key: str) -> None:
    """Whether there are keys and values wherever a dataclass has fields."""
    if not isinstance(tree, dict | None):
        raise ConfigError(f"{key} is {tree!r}; it must hold keys and values: {', '.join(_fields(schema, ''))}.")
    for name, hint in get_type_hints(schema).items():
        if not tree or name not in tree:
            continue
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            _check_groups(hint, tree[name], f"{key}.{name}")
        container = get_origin(hint)
        if container in (list, dict) and not isinstance(tree[name], container):
            what = "a list" if container is list else "keys and values"
            raise ConfigError(f"{key}.{name} is {tree[name]!r}; it must hold {what}.")
        if container is list and get_args(hint)[0] in (str, int, float):  # OmegaConf lets lists in lists through
            for index, value in enumerate(tree[name]):
                if isinstance(value, list | dict):
                    raise ConfigError(f"{key}.{name}[{index}] is {value!r}; it must be a single value.")


def options_of(name: str, schema: type[Any], given: Mapping[str, Any] | None) -> Any:
    """A backend's options, complete and typed.

    Raises:
        ConfigError: one is unknown, has the wrong type, or is a secret.
    """
    check_no_secrets({"runner": {"logger": {"options": {name: given}}}}, os.environ)
    return _typed(schema, given, f"runner.logger.options.{name}")


def _fields(schema: type[Any], owner: str) -> list[str]:
    node: Any = OmegaConf.structured(schema)
    for name in filter(None, owner.split(".")):
        node = node[name]
    return sorted(str(name) for name in node)


def declared_metrics(config: Config) -> dict[str, Metric]:
    """Every metric a run may write, by name: the catalogue, and what the plug-ins of the configuration declare.

    Raises:
        ConfigError: two declarations share a name.
    """
    declared = dict(CATALOGUE)
    classes = {resolve(kind, _part(config, key).name, f"{key}.name") for key, kind in _PLUGINS.items()}
    for plugin in sorted(classes, key=lambda found: str(found.__qualname__)):
        for metric in getattr(plugin, "metrics", ()):  # simulators and algorithms may have some
            if declared.setdefault(metric.name, metric) is not metric or any(
                family.pattern.fullmatch(metric.name) for family in CATALOGUE.values() if family.is_family
            ):
                raise ConfigError(
                    f"{plugin.__module__}.{plugin.__qualname__} declares the metric {metric.name}, which exists "
                    "already: give it another name."
                )
    return declared


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


def _part(config: Config, key: str) -> Any:
    """What a key holds; None where a plug-in has no such option."""
    found: Any = config
    for name in key.split("."):
        found = getattr(found, name, None)
    return found


def _check(config: Config) -> None:
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
        if (named := _part(config, key)) is not None:
            records.kind_of(Path(named))
    for key in ("runner.logger.log_path", "runner.logger.experiment_name", "runner.logger.project_name"):
        if not _part(config, key).strip():
            raise ConfigError(f"{key} is empty; it must be a name.")
    for keys, legal, demand in _LIMITS:
        for key in keys:
            value = _part(config, key)
            if value is not None and not legal(value):
                raise ConfigError(f"{key} is {value}; it {demand}.")
    for key, choices in _CHOICES.items():
        value = _part(config, key)
        if value not in choices:
            raise ConfigError(f"{key} is {value!r}{nearest(value, choices)} Legal are {', '.join(choices)}.")
    for key, legal_names in (("runner.logger.dialects", DIALECTS), ("runner.health.tags", TAGS)):
        for index, name in enumerate(_part(config, key)):
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
        count = _part(config, key)
        if count != AUTO and (isinstance(count, str) or not 1 <= count < 2**16):
            raise ConfigError(f"{key} is {count!r}; it must be a number from 1 to {2**16 - 1}, or auto.")
    _check_least_workers(config)
    for key in ("cluster.gpus_per_learner", "cluster.gpus_per_inference_server"):
        gpus = _part(config, key)
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


def best_metrics(config: Config) -> list[Metric]:
    """Metrics by which evaluations are ranked; the first that an evaluation has decides. None of them where the best
    checkpoint is not kept."""
    if not config.runner.keep_best:
        return []
    wanted = config.runner.best_metric
    names = ("eval/success_once", "eval/return") if wanted is None else (wanted,)
    return [declared_metrics(config)[name] for name in names]


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


def check_device(device: str) -> None:
    """Checks that the device is there, in the process that is to learn on it: that may be on another node.

    Raises:
        ConfigError: torch does not find it.
    """
    if device.startswith("cuda"):
        import torch

        found = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if found <= int(device.partition(":")[2] or 0):
            devices = f"{found} CUDA device{'s' * (found != 1)}" if found else "no CUDA device"
            raise ConfigError(
                f"learner.device is {device!r}, but torch {torch.__version__} finds {devices} on {platform.node()}."
            )
