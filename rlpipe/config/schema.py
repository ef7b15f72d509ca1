"""The configuration as a tree of frozen dataclasses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

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
    """Demonstrations: ManiSkill's trajectory file (HDF5, with its JSON beside it).

    A path below ``configs/`` that is missing in the working directory is looked up among the shipped files."""

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


PLUGIN_KINDS = {"env.train": "envs", "env.eval": "envs", "policy": "policies", "algorithm": "algorithms"}
