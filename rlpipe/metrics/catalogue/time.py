"""``time/``: seconds, counts and rates. The driver's first block is disjoint and adds up to ``time/step``."""

from __future__ import annotations

from functools import partial

from rlpipe.metrics.catalogue.conditions import (
    NEEDS_ASYNC,
    NEEDS_BACKEND_PROCESS,
    NEEDS_RESTARTS,
    NEEDS_REWARD_MODEL,
    NEEDS_SERVERS,
)
from rlpipe.metrics.catalogue.declare import derived, observed, reading
from rlpipe.metrics.catalogue.rollout import INFERENCE_BATCH_SIZE
from rlpipe.metrics.catalogue.train import NUM_SAMPLES
from rlpipe.metrics.derivations import actor_training, per_slowest, rate, straggler_ratio, time_left, utilization
from rlpipe.metrics.reductions import Distribution, Last, Sum
from rlpipe.metrics.rules import Avoid, Band, Drop, Holds, Increasing, Rule, Spike

# Each metric is one entry: what it is, its meaning, its formula, its rules. The formatter would scatter the first line.
# fmt: off

slowest_worker = partial(observed, reduction=Distribution, unit="s", reads="max",
                         formula="seconds between entry and exit, summed per worker; of the slowest worker")
slowest_learner = partial(observed, reduction=Distribution, unit="s", reads="max",
                          formula="seconds between entry and exit; of the slowest learner")
by_driver = partial(observed, reduction=Last, unit="s", formula="driver's clock")

STEP = observed(
    "time/step", Last, "s", tier="core",
    meaning="Wall-clock time of the iteration, from row to row.",
    formula="sum of its disjoint components: see time/other",
    rules=(Rule("slow", "warn", Spike(8.0, 50), sustained=5),),
)
SYNC_WEIGHTS = observed(
    "time/sync_weights", Last, "s", tier="core",
    meaning="Time to publish the new weights.",
    formula="learner's clock",
    rules=(Rule("share", "info", Holds("{time/sync_weights} <= 0.2*{time/step}"), sustained=10),),
)
GENERATE_ROLLOUTS = by_driver(
    "time/generate_rollouts", tier="core",
    meaning="Time the driver waited for the rollout workers.",
)
CONSTRUCT_ROLLOUT_BATCH = observed(
    "time/construct_rollout_batch", Last, "s", tier="extension", needs=NEEDS_ASYNC,
    meaning="Time spent waiting for a batch and assembling it, if collection does not wait for learning.",
    formula="seconds between entry and exit, summed per worker; of the slowest worker",
)
UPDATE = by_driver(
    "time/update", hidden=True,
    meaning="Time the driver waited for the learner; shown as time/actor_training, time/cal_adv_and_returns and "
            "time/sync_weights.",
)
CAL_ADVANTAGES = observed(
    "time/cal_adv_and_returns", Last, "s",
    meaning="Time to join the workers' data and to compute values, advantages and value targets.",
    formula="learner's clock",
)
ACTOR_TRAINING = derived(
    "time/actor_training", (UPDATE, CAL_ADVANTAGES, SYNC_WEIGHTS), actor_training, "s", tier="core",
    optional=(CAL_ADVANTAGES, SYNC_WEIGHTS),
    meaning="Time of the gradient steps, including the call to the learner.",
    formula="time waited for the learner - cal_adv_and_returns - sync_weights, as far as the learner has these",
)
EVAL_TIME = by_driver(
    "time/eval",
    meaning="Time of the evaluation.",
)
CHECKPOINT_TIME = by_driver(
    "time/checkpoint", tier="extension",
    meaning="Time to gather a checkpoint, which falls between two rows and counts in the later one.",
)
LOG_TIME = by_driver(
    "time/log",
    meaning="Time to hand over metrics, including waiting for a logger that is behind.",
    rules=(Rule("share", "info", Holds("{time/log} <= 0.2*{time/step}"), sustained=10),),
)
OTHER_TIME = by_driver(
    "time/other",
    meaning="Remainder of time/step: step - generate_rollouts - cal_adv_and_returns - actor_training - sync_weights - "
            "eval - checkpoint - log.",
)
INTERACT_TIME = slowest_worker(
    "time/env/interact",
    meaning="Time the slowest rollout worker took for its whole fragment, including waits.",
)
ENV_STEP_TIME = observed(
    "time/env/env_interact_step", Distribution, "s", reads="max", tier="core",
    meaning="Time the slowest rollout worker spent inside the simulator.",
    formula="max over workers of the sum over steps",
)
BOOTSTRAP_STEP_TIME = slowest_worker(
    "time/env/bootstrap_step",
    meaning="Time the slowest rollout worker spent on resets and first observations.",
)
ENV_RECV_WAIT = slowest_worker(
    "time/env/recv_wait", tier="core", needs=NEEDS_SERVERS,
    meaning="Time the slowest simulator waited for actions.",
    rules=(Rule("starved", "info", Holds("{time/env/recv_wait} <= 0.5*{time/env/interact}"), sustained=10),),
)
SEND_TRAJECTORIES_TIME = slowest_worker(
    "time/env/send_rollout_trajectories", needs=NEEDS_ASYNC,
    meaning="Time the slowest rollout worker took to hand over its data.",
)
BOOTSTRAP_REWARDS_TIME = slowest_worker(
    "time/env/compute_bootstrap_rewards", tier="extension", needs=NEEDS_ASYNC,
    meaning="Time the slowest rollout worker took to add the values at time limits.",
)
REWARD_MODEL_WAIT = slowest_worker(
    "time/env/get_reward_model_output", tier="extension", needs=NEEDS_REWARD_MODEL,
    meaning="Time the slowest rollout worker waited for a reward model.",
)
INTERACT_DELAY = observed(
    "time/env/interact_delay", Distribution, "s", tier="extension",
    needs="a robot, or a simulator of one, with a delayed control loop",
    meaning="Mean latency of a robot's control loop.",
    formula="mean over samples",
)
GENERATE_TIME = slowest_worker(
    "time/rollout/generate",
    meaning="Time the slowest rollout worker took to produce its decisions, including waits.",
)
GENERATE_ONE_EPOCH_TIME = slowest_worker(
    "time/rollout/generate_one_epoch", tier="extension",
    meaning="Time the slowest rollout worker took for one pass over the horizon.",
)
PREDICT_TIME = observed(
    "time/rollout/predict", Distribution, "s", reads="max", tier="core",
    meaning="Time the slowest rollout worker or inference server spent in the policy.",
    formula="max over workers of the sum over steps; with servers, max over servers of the sum over passes",
)
ROLLOUT_RECV_WAIT = observed(
    "time/rollout/recv_wait", Distribution, "s", reads="max", tier="core", needs=NEEDS_SERVERS,
    meaning="Longest time that an inference server was idle between its first request and its last answer.",
    formula="max over servers of last answer - first request - seconds in passes",
)
LOAD_WEIGHTS_TIME = slowest_worker(
    "time/rollout/sync_model_from_actor",
    meaning="Time the slowest rollout worker or inference server took to load new weights.",
)
INFERENCE_WAIT = observed(
    "time/inference_wait", Distribution, "s", needs=NEEDS_SERVERS,
    meaning="Mean time from the arrival of a worker's request at a server to the start of its forward pass.",
    formula="mean over requests of start of pass - arrival",
)
INFERENCE_WAIT_MAX = reading(
    "time/inference_wait_max", INFERENCE_WAIT, "max",
    meaning="Longest time from the arrival of a worker's request at a server to the start of its forward pass.",
    formula="max over requests of start of pass - arrival",
)
POLL_WEIGHTS_TIME = slowest_worker(
    "time/rollout/poll_weight_sync", tier="extension", needs=NEEDS_ASYNC,
    meaning="Time the slowest rollout worker spent asking for new weights.",
)
RECV_TRAJ_TIME = slowest_learner(
    "time/actor/recv_traj", tier="core",
    meaning="Time the learner took to join the fragments of all workers and move them to its device.",
)
COMPUTE_ADV_TIME = slowest_learner(
    "time/actor/compute_adv",
    meaning="Time the learner took to compute values, advantages and value targets.",
)
RUN_TRAINING_TIME = slowest_learner(
    "time/actor/run_training", tier="core",
    meaning="Time the learner took for all epochs of the update.",
)
FORWARD_BACKWARD_TIME = slowest_learner(
    "time/actor/forward_backward", tier="extension",
    meaning="Time the learner spent in forward and backward passes.",
)
SYNC_GRADIENTS_TIME = slowest_learner(
    "time/actor/sync_gradients", tier="extension",
    needs="learner.num_learners of at least 2, on the CPU",
    meaning="Time the learner spent summing gradients with other learners, including waiting for them.",
)
OPTIMIZER_STEP_TIME = slowest_learner(
    "time/actor/optimizer_step", tier="extension",
    meaning="Time the learner spent clipping gradients and in the optimiser.",
)
PUBLISH_WEIGHTS_TIME = slowest_learner(
    "time/actor/sync_model_to_rollout",
    meaning="Time the learner took to send new weights.",
)
COMPUTE_REWARDS_TIME = slowest_worker(
    "time/reward/compute_rewards", tier="extension", needs=NEEDS_REWARD_MODEL,
    meaning="Time the slowest worker of the reward model took to score.",
)
QUEUE_WAIT = observed(
    "time/queue_wait", Distribution, "s", tier="core", needs=NEEDS_ASYNC,
    meaning="Mean time between the end of a trajectory and its use by the learner.",
    formula="mean_j time of use - time of end",
    rules=(Rule("backlog", "warn", Avoid("up", 20)),),
)
LOGGER_LAG = observed(
    "time/logger_lag", Distribution, "s", reads="max", tier="core", needs=NEEDS_BACKEND_PROCESS,
    meaning="How long the oldest row that a backend has not written yet has been waiting for it. A backend that still "
            "loads its library makes no row wait.",
    formula="max over backends of now - time at which its oldest pending row was made, or at which it began to write",
    rules=(
        Rule("behind", "warn", Band(high=10.0), sustained=3),
        Rule("far_behind", "critical", Band(high=120.0), sign="behind"),
    ),
)
LOGGER_QUEUE_DEPTH = observed(
    "time/logger_queue_depth", Sum, "rows", needs=NEEDS_BACKEND_PROCESS,
    meaning="Rows waiting to be written.",
    formula="length of the queue",
)
LOGGER_DROPPED = observed(
    "time/logger_dropped", Sum, "rows", tier="core", lifetime=True, needs=NEEDS_BACKEND_PROCESS,
    meaning="Rows that a backend never received, because its queue was full or it failed.",
    formula="count",
    rules=(Rule("any", "critical", Band(high=0.0)),),
)
TIMESTEPS = observed(
    "time/timesteps", Sum, "environment steps", hidden=True,
    meaning="Environment steps of this iteration.",
    formula="count of valid steps",
)
TRAINING_SECONDS = observed(
    "time/training_seconds", Sum, "s", lifetime=True, hidden=True,
    meaning="Elapsed time without evaluation and checkpoints.",
    formula="sum of step - eval - checkpoint",
)
INTERVAL_SECONDS = observed(
    "time/interval_seconds", Sum, "s", hidden=True,
    meaning="Time of this iteration without evaluation and checkpoints.",
    formula="step - eval - checkpoint",
)
TIMESTEPS_LEFT = observed(
    "time/timesteps_left", Last, "environment steps", hidden=True,
    meaning="Environment steps until the end of the run.",
    formula="iterations left x total_timesteps / iterations",
)
ITERATIONS = observed(
    "time/iterations", Sum, "iterations", tier="core", lifetime=True,
    meaning="Iterations since the run began.",
    formula="count",
    rules=(Rule("monotone", "critical", Increasing(2)),),
)
TOTAL_TIMESTEPS = observed(
    "time/total_timesteps", Sum, "environment steps", tier="core", lifetime=True,
    meaning="Environment steps since the run began, over all workers, including those before a resume.",
    formula="count of valid steps",
    rules=(Rule("monotone", "critical", Increasing(2), when="{time/total_timesteps} > 0"),),  # pretraining takes none
)
TOTAL_EPISODES = observed(
    "time/total_episodes", Sum, "episodes", tier="core", lifetime=True,
    meaning="Finished training episodes since the run began.",
    formula="count_e",
    language="The number of completions. The same for a policy that acts in tokens.",
)
TIME_ELAPSED = observed(
    "time/time_elapsed", Sum, "s", tier="core", lifetime=True,
    meaning="Sum of time/step since the run began, including the time before a resume.",
    formula="sum of step",
)
WORKERS_EXPECTED = observed(
    "time/workers_expected", Last, "workers",
    meaning="Rollout workers that should take part in this iteration.",
    formula="count",
)
WORKERS_REPORTING = observed(
    "time/workers_reporting", Sum, "workers", tier="core",
    meaning="Rollout workers whose fragments are in this iteration; with runner.pipeline=stream, a worker counts once "
            "for each of its fragments.",
    formula="count",
    rules=(Rule("missing", "critical", Holds("{time/workers_reporting} == {time/workers_expected}")),),
)
FPS = derived(
    "time/fps", (TOTAL_TIMESTEPS, TRAINING_SECONDS), rate, "environment steps/s", tier="core",
    meaning="Training throughput since the run began, without evaluation and checkpoints.",
    formula="total_timesteps / (time_elapsed - eval - checkpoint)",
    rules=(Rule("slowdown", "warn", Drop(0.5, 50), sustained=10),),
)
FPS_INTERVAL = derived(
    "time/fps_interval", (TIMESTEPS, INTERVAL_SECONDS), rate, "environment steps/s", tier="core",
    meaning="Training throughput of this iteration, without evaluation and checkpoints.",
    formula="steps of all workers / (step - eval - checkpoint)",
)
ENV_FPS = derived(
    "time/env_fps", (TIMESTEPS, ENV_STEP_TIME), per_slowest, "environment steps/s",
    meaning="Environment steps per second of simulation, by the time of the slowest worker.",
    formula="steps of all workers / time/env/env_interact_step",
)
INFERENCE_FPS = derived(
    "time/inference_fps", (TIMESTEPS, PREDICT_TIME), per_slowest, "decisions/s",
    meaning="Decisions per second of inference, by the time of the slowest worker.",
    formula="decisions of all workers / time/rollout/predict",
)
INFERENCE_THROUGHPUT = derived(
    "time/inference_throughput", (INFERENCE_BATCH_SIZE, GENERATE_TIME), per_slowest, "decisions/s", needs=NEEDS_SERVERS,
    meaning="Decisions that all inference servers answered per second of collection, including waits.",
    formula="sum over passes of their rows / time/rollout/generate",
)
TRAIN_SPS = derived(
    "time/train_sps", (NUM_SAMPLES, RUN_TRAINING_TIME), per_slowest, "decisions/s",
    meaning="Decisions per second that the learner processes, counting every epoch.",
    formula="train/num_samples / time/actor/run_training",
)
EPS = derived(
    "time/eps", (TOTAL_EPISODES, TRAINING_SECONDS), rate, "episodes/s",
    meaning="Episodes finished per second since the run began, without evaluation and checkpoints.",
    formula="total_episodes / (time_elapsed - eval - checkpoint)",
    language="Completions per second. The same for a policy that acts in tokens.",
)
ETA = derived(
    "time/eta", (TIMESTEPS_LEFT, TIMESTEPS, INTERVAL_SECONDS), time_left, "s",
    meaning="Time until the configured end, at the pace of this iteration.",
    formula="timesteps_left / fps_interval, timesteps_left = iterations left x total_timesteps / iterations",
)
ENV_UTILIZATION = derived(
    "time/utilization/env", (ENV_STEP_TIME, STEP), utilization, "fraction", tier="core",
    meaning="Share of the iteration that the workers spent inside the simulator.",
    formula="sum over workers of env_interact_step / (workers * step)",
    rules=(Rule("busy", "ok", Band(0.3)),),
)
ENV_STRAGGLER_RATIO = derived(
    "time/straggler_ratio/env", (ENV_STEP_TIME,), straggler_ratio, "ratio",
    meaning="Time of the slowest rollout worker in the simulator, relative to the mean of the workers.",
    formula="max over workers / mean over workers",
    rules=(Rule("straggler", "warn", Band(high=1.5), sustained=5),),
)
ROLLOUT_UTILIZATION = derived(
    "time/utilization/rollout", (PREDICT_TIME, STEP), utilization, "fraction", tier="core", signs=ENV_UTILIZATION.signs,
    meaning="Share of the iteration that the workers spent in the policy.",
    formula="sum over workers of predict / (workers * step)",
    rules=(Rule("busy", "ok", Band(0.3)),),
)
ROLLOUT_STRAGGLER_RATIO = derived(
    "time/straggler_ratio/rollout", (PREDICT_TIME,), straggler_ratio, "ratio",
    meaning="Time of the slowest rollout worker in the policy, relative to the mean of the workers.",
    formula="max over workers / mean over workers",
    rules=(Rule("straggler", "warn", Band(high=1.5), sustained=5),),
)
ACTOR_UTILIZATION = derived(
    "time/utilization/actor", (RUN_TRAINING_TIME, STEP), utilization, "fraction", tier="core",
    signs=ENV_UTILIZATION.signs,
    meaning="Share of the iteration that the learner spent learning.",
    formula="sum over learners of run_training / (learners * step)",
    rules=(Rule("busy", "ok", Band(0.3)),),
)
ACTOR_STRAGGLER_RATIO = derived(
    "time/straggler_ratio/actor", (RUN_TRAINING_TIME,), straggler_ratio, "ratio",
    meaning="Time of the slowest learner in its update, relative to the mean of the learners.",
    formula="max over learners / mean over learners",
    rules=(Rule("straggler", "warn", Band(high=1.5), sustained=5),),
)
WORKER_RESTARTS = observed(
    "time/worker_restarts", Sum, "restarts", lifetime=True, needs=NEEDS_RESTARTS,
    meaning="Worker restarts since the run began.",
    formula="count",
    rules=(Rule("any", "warn", Band(high=0.0)),),
)
HEARTBEAT_AGE_MAX = observed(
    "time/heartbeat_age_max", Distribution, "s", reads="max", needs=NEEDS_RESTARTS,
    meaning="Longest time since a worker last reported.",
    formula="max over workers of now - last report",
    rules=(Rule("lost", "critical", Band(high=60.0)),),
)
