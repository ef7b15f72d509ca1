"""The configuration as a tree of frozen dataclasses. ``rlpipe.config.fields`` says how a key is declared."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import cached_property
from typing import Any

from rlpipe.config.fields import Affects, check_folder_name, check_not_empty, check_path, check_texts, option
from rlpipe.config.simulators import simulator_class, task_facts
from rlpipe.errors import ConfigError
from rlpipe.metrics.dialects import DIALECTS
from rlpipe.metrics.health import TAGS
from rlpipe.plugins import resolve

AUTO = "auto"


class PipelineKind(StrEnum):
    """When fragments are collected, relative to the updates that learn from them."""

    SYNC = "sync"
    AHEAD = "ahead"
    STREAM = "stream"


FIRST_TRAINING_SEED = 2**30
"""Training resets with seeds from here up to 2^31, evaluation with seeds below: they cannot meet."""
_SECONDS = 1e9
"""Upper limit of a time: no clock waits longer."""
_COURSE = Affects.EVALUATION | Affects.COMPARISON
"""How a run is watched and what is kept of it."""
_METHOD = Affects.RESULTS | Affects.COMPARISON
"""How a policy is learnt. The evaluation of a checkpoint does not depend on it."""


@dataclass(frozen=True)
class ClusterConfig:
    """Where Ray places the actors of a run. The address of the cluster is no key: ``--ray-address``, else the
    environment variable ``RAY_ADDRESS``, else a Ray of the run's own on this machine."""

    cpus_per_worker: float = option(1.0, above=0, unit="CPUs", affects=Affects.COMPARISON)
    """CPUs that Ray reserves for each rollout worker; its torch runs on one thread."""
    worker_nodes: dict[str, str] = option({}, unit="labels", affects=Affects.COMPARISON)
    """Labels of the nodes that may run rollout workers, such as ``{role: sim}``, in the form of Ray's label selectors:
    ``sim``, ``!sim``, ``in(sim, spare)``, ``!in(sim, spare)``. Empty: any node."""
    cpus_per_learner: float = option(0.0, least=0, unit="CPUs", affects=Affects.COMPARISON)
    """CPUs that Ray reserves for the learner. With 0, a learner without a GPU runs on the machine that starts the run
    and uses the CPUs of the workers, which wait meanwhile."""
    gpus_per_learner: int | float | str = option(
        AUTO, least=0, choices=(AUTO,), unit="GPUs", affects=Affects.COMPARISON
    )
    """GPUs of the learner, also a fraction of one; ``auto``: 1 with ``learner.device=cuda``, none with ``cpu``, else 1
    where a node has one."""
    learner_nodes: dict[str, str] = option({}, unit="labels", affects=Affects.COMPARISON)
    """Labels of the nodes that may run the learner. Empty: any node."""
    cpus_per_inference_server: float = option(1.0, above=0, unit="CPUs", affects=Affects.COMPARISON)
    """CPUs that Ray reserves for each inference server; its torch runs on as many threads, but at least on one."""
    gpus_per_inference_server: int | float | str = option(
        AUTO, least=0, choices=(AUTO,), unit="GPUs", affects=Affects.COMPARISON
    )
    """GPUs of each inference server; ``auto``: 1 where there is one for each server besides a learner's, else none."""
    inference_nodes: dict[str, str] = option({}, unit="labels", affects=Affects.COMPARISON)
    """Labels of the nodes that may run inference servers. Empty: any node."""
    strategy: str = option("spread", choices=("spread", "pack", "strict_spread"), affects=Affects.COMPARISON)
    """How actors are distributed over nodes: ``spread`` evenly, ``pack`` on few nodes, or ``strict_spread``, never two
    on one node."""
    placement_timeout: float = option(30.0, above=0, below=_SECONDS, unit="s", affects=Affects.COMPARISON)
    """Longest wait for nodes that are busy or still to come, as with an autoscaler. A run that started its own Ray does
    not wait."""
    start_timeout: float = option(180.0, above=0, below=_SECONDS, unit="s", affects=Affects.COMPARISON)
    """Time within which all rollout workers must have their simulators ready."""


@dataclass(frozen=True)
class LoggerConfig:
    """Where metrics go. ``metrics.jsonl`` and the episode ledgers are always written."""

    log_path: str = option("runs", checks=(check_path, check_not_empty), unit="folder", affects=Affects.NOTHING)
    """Folder of all runs; relative to the working directory. ``~`` is the home folder."""
    project_name: str = option("rlpipe", checks=(check_not_empty,), affects=Affects.NOTHING)
    """Project name, for backends that group runs."""
    experiment_name: str = option(
        "experiment", checks=(check_not_empty, check_folder_name), unit="folder", affects=Affects.NOTHING
    )
    """Folder of this experiment's runs inside ``log_path``."""
    logger_backends: list[str] = option(["console", "tensorboard"], affects=Affects.NOTHING)
    """Backends that show the metrics (docs/backends.md): ``console``, ``csv``, ``jsonl``, ``memory``, ``mlflow``,
    ``prometheus``, ``swanlab``, ``tensorboard``, ``trackio``, ``wandb``, or ``package.module:Class``. ``metrics.jsonl``
    is always written."""
    options: dict[str, Any] = option({}, affects=Affects.NOTHING)
    """Options of each backend under its name: ``{wandb: {mode: offline}}``. A credential here is refused: services read
    theirs from the environment."""
    deadline: float = option(30.0, above=0, below=_SECONDS, unit="s", affects=Affects.NOTHING)
    """Longest time that a backend may make no progress while rows are pending, before it is restarted."""
    finish_timeout: float = option(60.0, least=0, below=_SECONDS, unit="s", affects=Affects.NOTHING)
    """Longest wait, at the end of the run, for backends to catch up; ``rlpipe sync`` does it later."""
    per_worker: bool = option(False, affects=Affects.NOTHING)
    """Also write the metrics of each rollout worker by itself, as ``workers/<rank>/<metric>`` in the same run."""
    dialects: list[str] = option([], choices=tuple(DIALECTS), affects=Affects.NOTHING)
    """Other systems whose own metric names are written as well (docs/dialects.md)."""
    console_style: str = option("table", choices=("table", "sb3", "line"), affects=Affects.NOTHING)
    """How the terminal shows an iteration: ``table``, ``sb3`` (a boxed table), or ``line`` (one short line)."""


@dataclass(frozen=True)
class HealthConfig:
    """How the metrics are judged, and the reaction to a critical alert."""

    on_critical: str = option(AUTO, choices=(AUTO, "continue", "checkpoint", "stop"), affects=_COURSE)
    """Reaction to a critical alert: ``auto`` and ``checkpoint``, which writes one, train on, until three iterations in
    a row were in vain (every optimiser step was skipped, or the simulators of all workers were replaced): then the run
    has failed. ``continue`` trains on even then; ``stop`` writes a checkpoint at the first alert and exits with code
    3."""
    target: float | None = option(None, unit="reward", affects=_COURSE)
    """Mean return at which the task counts as solved, so that a plateau above it raises no alert; None for none."""
    tags: list[str] = option([], choices=tuple(TAGS), affects=_COURSE)
    """Facts about the task that only the user knows and that some rules depend on: ``reward_per_step`` (each step pays,
    as in CartPole), ``rapid_improvement``."""


@dataclass(frozen=True)
class RunnerConfig:
    """Course of the run."""

    seed: int = option(0, least=0, below=2**53, affects=Affects.RESULTS | Affects.EVALUATION)
    """Seed of every random number: weights, action noise, minibatches, resets."""
    total_timesteps: int = option(1_000_000, least=1, below=2**53, unit="environment steps")
    """Length of the run, rounded up to a whole iteration."""
    pipeline: str = option(AUTO, choices=(AUTO, *PipelineKind), affects=_METHOD)
    """When fragments are collected, relative to learning: ``sync``, one after the other; ``ahead``, the next
    iteration's while this one's are learnt, with weights that are one update older; ``stream``, without a barrier, so
    that a slow worker costs its own share only, but no two runs are equal (docs/architecture.md#pipelines).
    ``auto`` takes the algorithm's own: ``sync`` for PPO and GRPO, ``ahead`` for SAC and RLPD."""
    max_lag: int = option(4, least=1, below=2**16, unit="versions", affects=_METHOD)
    """With ``pipeline=stream``, most updates between the weights that act and the update that learns from their
    fragment. Workers that would exceed it wait."""
    val_check_interval: int = option(0, least=0, below=2**53, unit="iterations")
    """Iterations between evaluations; 0 evaluates only at the end, where every run is evaluated."""
    save_interval: int = option(10, least=1, below=2**53, unit="iterations", affects=_COURSE)
    """Iterations between checkpoints; one is also written at the end and on Ctrl-C."""
    keep_checkpoints: int = option(3, least=1, below=2**53, unit="files", affects=_COURSE)
    """Number of newest checkpoints that are kept."""
    max_recoveries: int = option(20, least=0, unit="times", affects=_COURSE)
    """How often a run returns to its last checkpoint because its learner, its metric logger or an inference server died
    (docs/reliability.md#failures-of-actors), before it gives up."""
    keep_best: bool = option(True, affects=_COURSE)
    """Also keep the checkpoint with the best evaluation. If no checkpoint is due after the best evaluation so far, one
    is written for it. ``rlpipe evaluate RUN --best`` uses it."""
    best_metric: str | None = option(None, affects=_COURSE)
    """Metric that decides which evaluation is best: ``eval/success_once``, ``eval/success_at_end``, ``eval/return``,
    ``eval/return_min``, or ``eval/fail_once``, where less is better. None: ``eval/success_once``, or ``eval/return``
    where there is no success. Of equally good evaluations the earlier one counts. Where no evaluation has the metric,
    there is no best."""
    auto_resume: bool = option(False, affects=_COURSE)
    """Continue the newest run of the same settings that did not complete; begin a new one where there is none."""
    report: bool = option(True, affects=Affects.NOTHING)
    """Write ``report.html`` into the run directory when the run ends, however it ends (docs/report.md)."""
    health: HealthConfig = field(default_factory=HealthConfig)
    logger: LoggerConfig = field(default_factory=LoggerConfig)


@dataclass(frozen=True)
class ExternalConfig:
    """How a policy from elsewhere sees the task and is asked (``rlpipe evaluate --policy``; docs/deploy.md)."""

    inputs: dict[str, str] = option({}, checks=(check_texts,), affects=Affects.NOTHING)
    """For each name under which the policy reads something, the leaf of the observation that it gets (``observation``
    is the whole vector), or a text behind ``=``: ``{observation/image: camera/rgb, prompt: "=push the cube"}``. Without
    any, it gets the observation as it is."""
    image_layout: str = option("hwc", choices=("hwc", "chw"), affects=Affects.NOTHING)
    """Order of the axes of pictures: height, width, channels, or channels first."""
    image_size: int | None = option(None, least=1, most=4096, unit="pixels", affects=Affects.NOTHING)
    """Side of the square into which pictures are scaled, with black beside them where they are no square; None leaves
    them as they are."""
    execute: int | None = option(None, least=1, unit="environment steps", affects=Affects.NOTHING)
    """Actions of an answer that are taken before the policy is asked again; None takes all of them."""
    protocol: str = option("openpi", choices=("openpi", "vla-eval"), affects=Affects.NOTHING)
    """Protocol of a policy at ``ws://HOST:PORT``."""
    normalizer: str | None = option(None, checks=(check_path,), unit="file", affects=Affects.NOTHING)
    """File of a saved ``VecNormalize``, which normalises what a Stable-Baselines3 policy reads. None takes the one
    beside the policy, if there is one: ``vecnormalize.pkl``, ``vec_normalize.pkl``, ``NAME_vecnormalize.pkl`` for
    ``NAME.zip``, or ``NAME_vecnormalize_N_steps.pkl`` for ``NAME_N_steps.zip``."""
    timeout: float = option(60.0, above=0, unit="s", affects=Affects.NOTHING)
    """Time that such a policy has for an answer."""
    connect_timeout: float = option(10.0, above=0, unit="s", affects=Affects.NOTHING)
    """Time that it has to start listening."""


@dataclass(frozen=True)
class EvaluationConfig:
    """Protocol of an evaluation."""

    episodes: int = option(100, least=1, unit="episodes", affects=Affects.RESULTS)
    """Number of whole episodes. Each slot gets its quota beforehand, so that quick episodes do not count more often."""
    first_seed: int = option(1_000_000, least=0, affects=Affects.RESULTS)
    """Seed of the first episode; the others follow by one. All lie below 2^30, where training seeds begin."""
    deterministic: bool = option(True, affects=Affects.RESULTS)
    """Take the most likely action instead of sampling."""
    replays: int = option(4, least=0, most=1000, unit="episodes", affects=Affects.NOTHING)
    """Keep replays of the newest evaluation, and of the best checkpoint's, to watch with ``rlpipe replay RUN``
    (docs/report.md#replays): of so many first episodes, of so many failures, and of the best and the worst by return. 0
    keeps none. No result depends on it."""
    videos: int = option(0, least=0, most=8, unit="rows", affects=Affects.NOTHING)
    """Make a video of each evaluation from its replays, of so many successes, each beside a failure
    (docs/report.md#videos). A process of its own draws it while training goes on."""
    timeout: float = option(3600.0, above=0, unit="s", affects=Affects.NOTHING)
    """Time that a worker has for its share. After it, the evaluation ends without a result, and a worker that does not
    answer is replaced."""
    external: ExternalConfig = field(default_factory=ExternalConfig)

    @property
    def seeds(self) -> range:
        """Seeds of the episodes."""
        return range(self.first_seed, self.first_seed + self.episodes)


@dataclass(frozen=True)
class RolloutConfig:
    """Collection."""

    num_workers: int | str = option(
        AUTO, least=1, below=2**16, choices=(AUTO,), unit="workers", affects=Affects.COMPARISON
    )
    """Number of rollout workers, which must divide ``env.train.total_num_envs``; ``auto`` takes as many as there are
    CPUs for; ``--local`` counts as one CPU. ``{min: 2, max: 8}`` is eight workers, with ``min_processes=2``."""
    workers_per_actor: int = option(1, least=1, below=2**16, unit="workers", affects=Affects.COMPARISON)
    """Number of workers in one process, which collect in turn and answer together, so that a driver has less to do. It
    changes no result."""
    min_processes: int | None = option(None, least=1, below=2**16, unit="processes", affects=Affects.COMPARISON)
    """Let the processes of the workers come and go: the run starts with so many, and has as many as the cluster has
    room for, up to one for each worker, from one iteration to the next, with the same rows
    (docs/scale.md#workers-that-come-and-go). None: their number does not change."""
    horizon: int = option(200, least=1, most=1_000_000, unit="decisions", affects=_METHOD)
    """Decisions for each environment in an iteration (T); each is one environment step, or a chunk of them
    (``policy.chunk_size``)."""
    steps_after_success: int | None = option(None, least=0, below=2**31, unit="environment steps", affects=_METHOD)
    """With ``env.train.ignore_terminations``, steps for which a training episode goes on after its first success, where
    the time limit leaves them; then it is truncated, so its value counts what would follow. Teaches to hold a goal in
    fewer steps than to the time limit. None: to the time limit. Evaluations always go on to it."""
    inference: str = option("local", choices=("local", "server"), affects=Affects.COMPARISON)
    """Where actions are chosen: ``local``, by a copy of the policy in each worker, or ``server``, by one copy for many
    workers, on Ray alone (docs/cluster.md#inference-on-a-server)."""
    num_inference_servers: int = option(1, least=1, unit="processes", affects=Affects.COMPARISON)
    """Number of inference servers, each for a share of the workers; no more than workers."""
    inference_wait: float | None = option(10.0, least=0, unit="ms", affects=Affects.COMPARISON)
    """Time that a server waits, after the first request, for those of its other workers; None waits for all."""
    max_inference_batch: int = option(4096, least=1, below=2**31, unit="rows", affects=Affects.COMPARISON)
    """Number of rows at which a server stops waiting, and the most rows of one forward pass. The rows of one worker
    stay together."""
    timeout: float = option(600.0, above=0, unit="s", affects=Affects.COMPARISON)
    """Time that a worker has for a collection before it is replaced."""
    min_workers: int | str = option("all", least=1, choices=("all",), unit="fragments", affects=_METHOD)
    """Number of fragments with which an iteration continues while failed workers are replaced; ``all`` waits for them,
    so that every iteration has the same number of steps."""
    max_restarts: int = option(100, least=0, unit="workers", affects=Affects.COMPARISON)
    """Number of workers that are replaced in a run before it gives up."""
    spares: str = option("after_loss", choices=("after_loss", "always", "never"), affects=Affects.COMPARISON)
    """When a node gets a spare worker, which replaces a lost one at once: ``after_loss``, when the node has lost one;
    ``always``, with its first fragment; ``never``. A spare takes as much memory as a worker, and no CPU."""
    simulator_retries: int = option(3, least=0, unit="times", affects=Affects.COMPARISON)
    """How often a worker restarts a simulator that raised, in one collection, before the worker itself fails."""
    max_memory: float | None = option(None, above=0, unit="GiB", affects=Affects.COMPARISON)
    """Memory at which a worker is replaced after its collection, against simulators that leak; None: never."""

    @property
    def is_elastic(self) -> bool:
        """True if the number of processes may change."""
        return self.min_processes is not None


def _check_device(key: str, value: str) -> None:
    if not re.fullmatch(r"auto|cpu|cuda(:[0-9]{1,3})?", value):
        raise ConfigError(f"{key} is {value!r}; legal are auto, cpu and cuda, or cuda:1 and so on.")


@dataclass(frozen=True)
class LearnerConfig:
    """Optimisation, and the hardware it runs on."""

    device: str = option(AUTO, checks=(_check_device,), affects=Affects.COMPARISON, fixed=True)
    """``cpu``, ``cuda`` (also ``cuda:1`` and so on), or ``auto``: where there is a GPU, it or the CPU, whichever takes
    less time for a few gradient steps before the first update; without a trial the GPU, for a policy of three million
    parameters or more, for several learners, and for cloning. A note tells the choice, and a resumed run keeps it. On
    Ray, the learner asks for one GPU unless this is ``cpu`` or the cluster has none, and keeps it when it takes the
    CPU; ``cuda`` insists on one. Whether torch finds it is checked where the learner runs."""
    num_learners: int | str = option(
        AUTO, least=1, below=2**16, choices=(AUTO,), unit="processes", affects=Affects.COMPARISON, fixed=True
    )
    """Number of learners that share each batch (PPO, GRPO). Each takes its environments, draws the same minibatches and
    adds its gradients to those of the others, so that the result is that of one learner. ``auto``: one for each GPU
    that the nodes have for learners besides those of the inference servers, else one."""
    num_threads: int | str = option(
        AUTO, least=1, below=2**16, choices=(AUTO,), unit="threads", affects=Affects.COMPARISON, fixed=True
    )
    """Number of torch threads while learning. ``auto`` measures which of 1, 2, 4 and so on learns fastest, at the first
    update and now and then again, up to the CPUs of the machine; where workers collect while it learns (SAC, RLPD),
    they keep a CPU each. Several learners divide the CPUs. A learner on a GPU takes one. Another number may round
    differently: give one for runs that are equal to the last bit."""
    lr: float = option(3e-4, least=0, affects=_METHOD)
    """Learning rate of the actor (Adam)."""
    critic_lr: float | None = option(None, least=0, affects=_METHOD)
    """Learning rate of the critic; None takes the actor's."""
    lr_schedule: str = option("constant", choices=("constant", "linear"), affects=_METHOD)
    """``constant``, or ``linear``: iteration k of K has ``lr * (1 - (k - 1) / K)``, over the whole run, whatever the
    stages."""
    adam_eps: float = option(1e-5, above=0, affects=_METHOD, fixed=True)
    """Adam's epsilon."""
    max_grad_norm: float | None = option(0.5, above=0, unit="L2 norm", affects=_METHOD)
    """Largest norm of the gradients of actor and of critic, each, beyond which they are scaled down; None never scales
    them."""
    precision: str = option("float32", choices=("float32", "tf32", "bfloat16"), affects=_METHOD, fixed=True)
    """Precision of matrix products while learning: ``float32``; ``tf32``, on a GPU, which rounds their inputs to 10
    bits and costs nothing else; or ``bfloat16`` (PPO, GRPO), where weights, optimiser, the last layers of actor and
    critic, log-probabilities and losses stay in float32. bfloat16 casts some 30 tensors in each step, so it is slower
    below about 3 million parameters or 4,096 rows of a minibatch ([cluster.md](cluster.md#learners)).
    ``train/actor/rollout_train_kl`` and ``is_ratio_mean`` show what it costs. Gradients of the other layers are rounded
    before those of several learners are summed."""
    micro_batch: int | None = option(
        None, least=1, below=2**31, unit="decisions", affects=Affects.COMPARISON, fixed=True
    )
    """Decisions of which activations exist at a time (PPO, GRPO, behaviour cloning), where memory does not suffice for
    a whole minibatch, or for the values of a whole batch before the update; gradients are summed and equal up to
    rounding. With a memory, trajectories stay whole. None: all of them
    ([cluster.md](cluster.md#memory-of-a-learner))."""
    compile: bool = option(False, affects=Affects.COMPARISON, fixed=True)
    """Compile the loss with ``torch.compile`` (PPO, GRPO). Needs a C++ compiler, and minutes at the start."""
    graphs: bool | str = option(AUTO, choices=(AUTO, "true", "false"), affects=Affects.COMPARISON, fixed=True)
    """Record each gradient step once as a CUDA graph and replay it, which spares a GPU the wait for the host
    ([cluster.md](cluster.md#gpus)). ``auto``: where there is a GPU and the step can be recorded; a note says why not.
    ``true`` makes that an error; ``false`` never records. With ``learner.compile``, nothing is recorded."""


@dataclass(frozen=True)
class StageConfig:
    """A part of the run with settings of its own."""

    name: str
    """Name of the stage on the console and in events."""
    timesteps: int | None = option(None, least=1, unit="environment steps")
    """Length of the stage, rounded up to a whole iteration; None, for the last stage: to the end."""
    overrides: dict[str, Any] = option({})
    """Full keys under ``env.train``, ``algorithm`` or ``learner``, and their values during the stage."""


@dataclass(frozen=True)
class EnvConfig:
    """Simulators of a run. Their fields are those of the plug-ins, and affect what is declared here.

    Attributes:
        train: simulator to train in.
        eval: simulator to evaluate in, which repeats ``train`` where it says nothing. The protocol records it.
    """

    train: Any = option()
    eval: Any = option(affects=Affects.RESULTS)


@dataclass(frozen=True)
class Config:
    """Everything that a run is made from, and the plug-ins that it names, each looked up once. ``env.*``, ``policy``,
    ``algorithm`` and ``curriculum`` are the ``Config`` of plug-ins."""

    env: EnvConfig
    policy: Any
    algorithm: Any
    curriculum: Any
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    runner: RunnerConfig = field(default_factory=RunnerConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    stages: tuple[StageConfig, ...] = ()
    demos: str | None = option(None, checks=(check_path,), unit="file", affects=_METHOD)
    """Demonstrations (docs/demonstrations.md): ManiSkill's trajectory file (HDF5, with its JSON beside it), a
    LeRobotDataset v3.0 or v2.1, or a dataset of robomimic or Minari. Only for an algorithm that learns from them, or a
    curriculum that begins episodes in their course. A path below ``configs/`` that does not exist in the working
    directory is looked up among the shipped files."""
    demo_leaves: dict[str, str] = option({}, affects=_METHOD)
    """Names of the demonstrations' observations by those of the task's, such as ``{rgb: front}``; ``a + b`` joins two
    to one vector. The others are guessed; ``rlpipe demos inspect PATH CONFIG`` shows them. ManiSkill's files have the
    names of the task."""
    num_demos: int | None = option(None, least=1, unit="demonstrations", affects=_METHOD)
    """Number of these demonstrations to use, drawn by ``runner.seed``; None for all."""

    @property
    def decisions_per_iteration(self) -> int:
        """Decisions of one iteration: horizon times environments."""
        return int(self.rollout.horizon * self.env.train.total_num_envs)

    @property
    def steps_per_collection(self) -> int:
        """Most steps that one environment takes in an iteration."""
        return int(self.rollout.horizon * self.policy.steps_per_decision)

    @property
    def steps_per_iteration(self) -> int:
        """Most environment steps of one iteration; chunks that an end of the episode cuts short take fewer."""
        return int(self.steps_per_collection * self.env.train.total_num_envs)

    @cached_property
    def policy_class(self) -> Any:
        """Class that ``policy.name`` stands for."""
        return resolve("policies", self.policy.name, "policy.name")

    @cached_property
    def algorithm_class(self) -> Any:
        """Class that ``algorithm.name`` stands for."""
        return resolve("algorithms", self.algorithm.name, "algorithm.name")

    @cached_property
    def curriculum_class(self) -> Any:
        """Class that ``curriculum.name`` stands for."""
        return resolve("curricula", self.curriculum.name, "curriculum.name")

    @cached_property
    def backend_classes(self) -> dict[str, Any]:
        """Classes of ``runner.logger.logger_backends``, by name."""
        names = self.runner.logger.logger_backends
        return {
            name: resolve("backends", name, f"runner.logger.logger_backends[{index}]")
            for index, name in enumerate(names)
        }

    @cached_property
    def simulator_class(self) -> Any:
        """Class that runs ``env.train``."""
        return simulator_class(self.env.train, "env.train")

    @cached_property
    def train_facts(self) -> Any:
        """``TaskFacts`` of ``env.train``."""
        return task_facts(self.env.train, "env.train")

    @cached_property
    def eval_facts(self) -> Any:
        """``TaskFacts`` of ``env.eval``."""
        return task_facts(self.env.eval, "env.eval")

    def __getstate__(self) -> dict[str, Any]:
        """Leaves the plug-ins out: another process imports those that it uses, and functions cannot be sent."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True)
class Stage:
    """A stage with the configuration of the run and the overrides of the stage, up to iteration ``until``."""

    name: str
    until: int
    config: Config


PLUGIN_KINDS = {
    "env.train": "envs",
    "env.eval": "envs",
    "policy": "policies",
    "algorithm": "algorithms",
    "curriculum": "curricula",
}
"""Folder of the plug-in that each section names."""
DEFAULT_NAMES = {"policy": "mlp", "algorithm": "ppo", "curriculum": "none"}
"""Plug-ins of sections that are left out."""
BOUNDED_POLICY = "squashed_gaussian"
"""Policy to name where an algorithm needs bounded actions that carry gradients."""
