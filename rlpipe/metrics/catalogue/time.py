"""``time/``: seconds, counts and rates. The driver's first block is disjoint and adds up to ``time/step``."""

from __future__ import annotations

from rlpipe.metrics.catalogue.rollout import INFERENCE_BATCH_SIZE
from rlpipe.metrics.catalogue.train import NUM_SAMPLES
from rlpipe.metrics.declaration import Name, Sign, derived, observed, reading
from rlpipe.metrics.derivations import actor_training, per_slowest, rate, straggler_ratio, time_left, utilization
from rlpipe.metrics.reductions import Distribution, Last, Sum
from rlpipe.metrics.rules import Avoid, Band, Drop, Holds, Increasing, Rule, Spike

STEP = observed(
    "time/step",
    Last,
    tier="core",
    unit="s",
    meaning="Wall clock of the iteration, from row to row.",
    formula="sum of the parts: see time/other",
    rules=(Rule("slow", "warn", Spike(8.0, 50), sustained=5),),
    signs=(
        Sign(
            "grows",
            "one slow worker, too little memory, or growing queues",
            "look at the other times, and time/straggler_ratio/env",
        ),
    ),
    names=(
        Name("rlinf", "time/step", "exact", "evaluation and checkpoints included, as here"),
        Name("trl", "step_time", "approx", "of GRPO: generation and update"),
        Name("trl_legacy", "time/ppo/total", "approx", "the section that comes nearest"),
    ),
)
SYNC_WEIGHTS = observed(
    "time/sync_weights",
    Last,
    tier="core",
    unit="s",
    meaning="Time to publish the new weights.",
    formula="learner's clock",
    rules=(Rule("share", "info", Holds("{time/sync_weights} <= 0.2*{time/step}"), sustained=10),),
    names=(Name("rlinf", "time/sync_weights", "exact", "its asynchronous runner writes time/update_rollout_weights"),),
)
GENERATE_ROLLOUTS = observed(
    "time/generate_rollouts",
    Last,
    tier="core",
    unit="s",
    meaning="Time the run waited for the rollout workers.",
    formula="driver's clock",
    names=(Name("rlinf", "time/generate_rollouts"),),
)
CONSTRUCT_ROLLOUT_BATCH = observed(
    "time/construct_rollout_batch",
    Last,
    tier="extension",
    unit="s",
    meaning="Waiting for a batch, and putting it together, where collection does not wait for learning.",
    formula="seconds between entry and exit, summed per worker; of the slowest worker",
    needs="an asynchronous pipeline",
    names=(Name("rlinf", "time/construct_rollout_batch"),),
)
UPDATE = observed(
    "time/update",
    Last,
    hidden=True,
    unit="s",
    meaning=(
        "Time the run waited for the learner; shown as time/actor_training, time/cal_adv_and_returns and "
        "time/sync_weights."
    ),
    formula="driver's clock",
)
CAL_ADVANTAGES = observed(
    "time/cal_adv_and_returns",
    Last,
    unit="s",
    meaning="Time to join the workers' data, and to compute values, advantages and value targets.",
    formula="learner's clock",
    names=(
        Name("rlinf", "time/cal_adv_and_returns"),
        Name("trl_legacy", "time/ppo/compute_advantages", "approx", "the section that comes nearest"),
    ),
)
ACTOR_TRAINING = derived(
    "time/actor_training",
    (
        UPDATE,
        CAL_ADVANTAGES,
        SYNC_WEIGHTS,
    ),
    actor_training,
    tier="core",
    unit="s",
    meaning="Time of the gradient steps, with the call to the learner.",
    formula="time waiting for the learner - cal_adv_and_returns - sync_weights",
    names=(
        Name("rlinf", "time/actor_training"),
        Name("trl_legacy", "time/ppo/optimize_step", "approx", "the section that comes nearest"),
    ),
)
EVAL_TIME = observed(
    "time/eval",
    Last,
    unit="s",
    meaning="Time of the evaluation.",
    formula="driver's clock",
    names=(Name("rlinf", "time/eval", "exact", "with one more publication of the weights"),),
)
CHECKPOINT_TIME = observed(
    "time/checkpoint",
    Last,
    tier="extension",
    unit="s",
    meaning="Time to gather a checkpoint, which falls between two rows and counts in the later one.",
    formula="driver's clock",
)
LOG_TIME = observed(
    "time/log",
    Last,
    unit="s",
    meaning="Time to hand over metrics, and to wait where the logger is behind.",
    formula="driver's clock",
    rules=(Rule("overhead", "warn", Holds("{time/log} <= max(0.01*{time/step}, 0.05)"), sustained=10),),
    names=(Name("trl_legacy", "time/ppo/calc_stats", "approx", "the section that comes nearest"),),
)
OTHER_TIME = observed(
    "time/other",
    Last,
    unit="s",
    meaning=(
        "What is left of time/step: step - generate_rollouts - cal_adv_and_returns - actor_training - "
        "sync_weights - eval - checkpoint - log."
    ),
    formula="driver's clock",
)
INTERACT_TIME = observed(
    "time/env/interact",
    Distribution,
    reads="max",
    unit="s",
    meaning="Time the slowest rollout worker took for its whole fragment, waits included.",
    formula="seconds between entry and exit, summed per worker; of the slowest worker",
    names=(Name("rlinf", "time/env/interact", "exact", "its code also writes time/env/run_interact_once"),),
)
ENV_STEP_TIME = observed(
    "time/env/env_interact_step",
    Distribution,
    reads="max",
    tier="core",
    unit="s",
    meaning="Time the slowest rollout worker spent inside the simulator.",
    formula="max over workers of the sum over steps",
    names=(Name("rlinf", "time/env/env_interact_step"),),
)
BOOTSTRAP_STEP_TIME = observed(
    "time/env/bootstrap_step",
    Distribution,
    reads="max",
    unit="s",
    meaning="Time the slowest rollout worker spent on resets and first observations.",
    formula="seconds between entry and exit, summed per worker; of the slowest worker",
    names=(Name("rlinf", "time/env/env/bootstrap_step", "exact", "its code doubles a part of the name"),),
)
ENV_RECV_WAIT = observed(
    "time/env/recv_wait",
    Distribution,
    reads="max",
    tier="core",
    unit="s",
    meaning="Time the slowest simulator waited for actions.",
    formula="seconds between entry and exit, summed per worker; of the slowest worker",
    needs="inference on a server",
    rules=(Rule("starved", "info", Holds("{time/env/recv_wait} <= 0.5*{time/env/interact}"), sustained=10),),
    signs=(Sign("large", "the policy is the bottleneck", "more devices for the policy, or larger batches"),),
)
SEND_TRAJECTORIES_TIME = observed(
    "time/env/send_rollout_trajectories",
    Distribution,
    reads="max",
    unit="s",
    meaning="Time the slowest rollout worker took to hand its data over.",
    formula="seconds between entry and exit, summed per worker; of the slowest worker",
    needs="an asynchronous pipeline",
    names=(Name("rlinf", "time/env/env/send_rollout_trajectories"),),
)
BOOTSTRAP_REWARDS_TIME = observed(
    "time/env/compute_bootstrap_rewards",
    Distribution,
    reads="max",
    tier="extension",
    unit="s",
    meaning="Time the slowest rollout worker took to add the values at time limits.",
    formula="seconds between entry and exit, summed per worker; of the slowest worker",
    needs="an asynchronous pipeline",
    names=(Name("rlinf", "time/env/compute_bootstrap_rewards"),),
)
REWARD_MODEL_WAIT = observed(
    "time/env/get_reward_model_output",
    Distribution,
    reads="max",
    tier="extension",
    unit="s",
    meaning="Time the slowest rollout worker waited for a reward model.",
    formula="seconds between entry and exit, summed per worker; of the slowest worker",
    needs="a reward model",
    names=(Name("rlinf", "time/env/get_reward_model_output"),),
)
INTERACT_DELAY = observed(
    "time/env/interact_delay",
    Distribution,
    tier="extension",
    unit="s",
    meaning="Mean latency of the control loop of a robot.",
    formula="mean over samples",
    needs="a robot, or a simulator of one, with a delayed control loop",
    names=(Name("rlinf", "env/time/average_delay", "exact", "beside its median, max and min"),),
)
GENERATE_TIME = observed(
    "time/rollout/generate",
    Distribution,
    reads="max",
    unit="s",
    meaning="Time the slowest rollout worker took to produce its decisions, waits included.",
    formula="seconds between entry and exit, summed per worker; of the slowest worker",
    names=(Name("rlinf", "time/rollout/rollout/generate"),),
)
GENERATE_ONE_EPOCH_TIME = observed(
    "time/rollout/generate_one_epoch",
    Distribution,
    reads="max",
    tier="extension",
    unit="s",
    meaning="Time the slowest rollout worker took for one pass over the horizon.",
    formula="seconds between entry and exit, summed per worker; of the slowest worker",
    names=(Name("rlinf", "time/rollout/generate_one_epoch"),),
)
PREDICT_TIME = observed(
    "time/rollout/predict",
    Distribution,
    reads="max",
    tier="core",
    unit="s",
    meaning="Time the slowest rollout worker, or inference server, spent in the policy.",
    formula="max over workers of the sum over steps; with servers, max over servers of the sum over passes",
    names=(
        Name("rlinf", "time/rollout/predict"),
        Name("trl_legacy", "time/ppo/forward_pass", "approx", "the pass that scores"),
    ),
)
ROLLOUT_RECV_WAIT = observed(
    "time/rollout/recv_wait",
    Distribution,
    reads="max",
    tier="core",
    unit="s",
    meaning="Time the inference server that waited longest had no pass to do, from its first request to its last.",
    formula="max over servers of last answer - first request - seconds in passes",
    needs="inference on a server",
    signs=(Sign("large", "the simulator is the bottleneck", "raise rollout.num_workers"),),
)
LOAD_WEIGHTS_TIME = observed(
    "time/rollout/sync_model_from_actor",
    Distribution,
    reads="max",
    unit="s",
    meaning="Time the slowest rollout worker, or inference server, took to load new weights.",
    formula="seconds between entry and exit, summed per worker; of the slowest worker",
    names=(Name("rlinf", "time/rollout/sync_model_from_actor"),),
)
INFERENCE_WAIT = observed(
    "time/inference_wait",
    Distribution,
    unit="s",
    meaning="Mean time from the arrival of a worker's request at a server to the start of its forward pass.",
    formula="mean over requests of start of pass - arrival",
    needs="inference on a server",
    signs=(
        Sign(
            "near rollout.inference_wait",
            "some workers are slower than others, and the rest wait for them",
            "lower rollout.inference_wait, or spread environments that are slow",
        ),
        Sign(
            "above rollout.inference_wait",
            "passes queue up behind one another",
            "more servers (rollout.num_inference_servers), or a GPU for them",
        ),
    ),
)
INFERENCE_WAIT_MAX = reading(
    "time/inference_wait_max",
    INFERENCE_WAIT,
    "max",
    meaning="Longest time from the arrival of a worker's request at a server to the start of its forward pass.",
    formula="max over requests of start of pass - arrival",
    needs="inference on a server",
)
POLL_WEIGHTS_TIME = observed(
    "time/rollout/poll_weight_sync",
    Distribution,
    reads="max",
    tier="extension",
    unit="s",
    meaning="Time the slowest rollout worker spent asking for new weights.",
    formula="seconds between entry and exit, summed per worker; of the slowest worker",
    needs="an asynchronous pipeline",
    names=(Name("rlinf", "time/rollout/rollout/poll_weight_sync"),),
)
RECV_TRAJ_TIME = observed(
    "time/actor/recv_traj",
    Distribution,
    reads="max",
    tier="core",
    unit="s",
    meaning="Time the learner took to join the fragments of all workers and bring them to its device.",
    formula="seconds between entry and exit; of the slowest learner",
    names=(Name("rlinf", "time/actor/actor/recv_traj", "exact", "its code doubles a part of the name"),),
)
COMPUTE_ADV_TIME = observed(
    "time/actor/compute_adv",
    Distribution,
    reads="max",
    unit="s",
    meaning="Time the learner took for values, advantages and value targets.",
    formula="seconds between entry and exit; of the slowest learner",
    names=(Name("rlinf", "time/actor/actor/compute_adv"),),
)
RUN_TRAINING_TIME = observed(
    "time/actor/run_training",
    Distribution,
    reads="max",
    tier="core",
    unit="s",
    meaning="Time the learner took for all epochs of the update.",
    formula="seconds between entry and exit; of the slowest learner",
    names=(
        Name("rlinf", "time/actor/run_training"),
        Name("trl_legacy", "time/ppo/optimize_step", "approx", "the section that comes nearest", secondary=True),
    ),
)
FORWARD_BACKWARD_TIME = observed(
    "time/actor/forward_backward",
    Distribution,
    reads="max",
    tier="extension",
    unit="s",
    meaning="Time the learner spent in forward and backward passes.",
    formula="seconds between entry and exit; of the slowest learner",
)
SYNC_GRADIENTS_TIME = observed(
    "time/actor/sync_gradients",
    Distribution,
    reads="max",
    tier="extension",
    unit="s",
    meaning="Time the learner spent in summing gradients with other learners, waiting for them included.",
    formula="seconds between entry and exit; of the slowest learner",
    needs="learner.num_learners of at least 2, on the CPU",
)
OPTIMIZER_STEP_TIME = observed(
    "time/actor/optimizer_step",
    Distribution,
    reads="max",
    tier="extension",
    unit="s",
    meaning="Time the learner spent cutting gradients and in the optimiser.",
    formula="seconds between entry and exit; of the slowest learner",
    names=(Name("trl_legacy", "time/ppo/optimizer_step", "approx", "the section that comes nearest"),),
)
PUBLISH_WEIGHTS_TIME = observed(
    "time/actor/sync_model_to_rollout",
    Distribution,
    reads="max",
    unit="s",
    meaning="Time the learner took to send new weights.",
    formula="seconds between entry and exit; of the slowest learner",
    names=(Name("rlinf", "time/actor/actor/sync_model_to_rollout"),),
)
COMPUTE_REWARDS_TIME = observed(
    "time/reward/compute_rewards",
    Distribution,
    reads="max",
    tier="extension",
    unit="s",
    meaning="Time the slowest worker of the reward model took to score.",
    formula="seconds between entry and exit, summed per worker; of the slowest worker",
    needs="a reward model",
    names=(
        Name("rlinf", "time/reward/compute_rewards"),
        Name("trl_legacy", "time/ppo/compute_rewards", "approx", "the section that comes nearest"),
    ),
)
QUEUE_WAIT = observed(
    "time/queue_wait",
    Distribution,
    tier="core",
    unit="s",
    meaning="Mean time between the end of a trajectory and its use by the learner.",
    formula="mean_j time of use - time of end",
    needs="an asynchronous pipeline",
    rules=(Rule("backlog", "warn", Avoid("up", 20)),),
)
LOGGER_LAG = observed(
    "time/logger_lag",
    Distribution,
    reads="max",
    tier="core",
    unit="s",
    meaning="How old the oldest row is that no backend has written yet.",
    formula="max over backends of time written - time made",
    needs="a backend that lives apart",
    rules=(
        Rule("behind", "warn", Band(high=10.0), sustained=3),
        Rule("far_behind", "critical", Band(high=120.0)),
    ),
    signs=(Sign("grows", "a backend is slower than the run", "leave out a backend, or its histograms"),),
)
LOGGER_QUEUE_DEPTH = observed(
    "time/logger_queue_depth",
    Sum,
    unit="rows",
    meaning="Rows that wait to be written.",
    formula="length of the queue",
    needs="a backend that lives apart",
)
LOGGER_DROPPED = observed(
    "time/logger_dropped",
    Sum,
    tier="core",
    lifetime=True,
    unit="rows",
    meaning="Rows that a backend never got, because its queue was full or it failed.",
    formula="count",
    needs="a backend that lives apart",
    rules=(Rule("any", "critical", Band(high=0.0)),),
    signs=(Sign("above 0", "that backend is incomplete", "rebuild it from metrics.jsonl"),),
)
TIMESTEPS = observed(
    "time/timesteps",
    Sum,
    hidden=True,
    unit="environment steps",
    meaning="Environment steps of this iteration.",
    formula="count of valid steps",
)
TRAINING_SECONDS = observed(
    "time/training_seconds",
    Sum,
    lifetime=True,
    hidden=True,
    unit="s",
    meaning="Elapsed time without evaluation and checkpoints.",
    formula="sum of step - eval - checkpoint",
)
INTERVAL_SECONDS = observed(
    "time/interval_seconds",
    Sum,
    hidden=True,
    unit="s",
    meaning="Time of this iteration without evaluation and checkpoints.",
    formula="step - eval - checkpoint",
)
TIMESTEPS_LEFT = observed(
    "time/timesteps_left",
    Last,
    hidden=True,
    unit="environment steps",
    meaning="Environment steps that remain to the end of the run.",
    formula="iterations left x total_timesteps / iterations",
)
ITERATIONS = observed(
    "time/iterations",
    Sum,
    tier="core",
    lifetime=True,
    unit="iterations",
    meaning="Iterations since the run began.",
    formula="count",
    rules=(Rule("monotone", "critical", Increasing(2)),),
    names=(Name("sb3", "time/iterations"),),
)
TOTAL_TIMESTEPS = observed(
    "time/total_timesteps",
    Sum,
    tier="core",
    lifetime=True,
    unit="environment steps",
    meaning="Environment steps since the run began, of all workers, resumed parts included.",
    formula="count of valid steps",
    rules=(Rule("monotone", "critical", Increasing(2)),),
    names=(Name("sb3", "time/total_timesteps"),),
)
TOTAL_EPISODES = observed(
    "time/total_episodes",
    Sum,
    tier="core",
    lifetime=True,
    unit="episodes",
    meaning="Finished training episodes since the run began.",
    formula="count_e",
    language="The number of completions. The same for a policy that acts in tokens.",
    names=(Name("trl", "episode", "exact", "grows by the whole batch at each update"),),
)
TIME_ELAPSED = observed(
    "time/time_elapsed",
    Sum,
    tier="core",
    lifetime=True,
    unit="s",
    meaning="Sum of time/step since the run began, resumed parts included.",
    formula="sum of step",
    names=(Name("sb3", "time/time_elapsed", "transform", convert="floor"),),
)
WORKERS_EXPECTED = observed(
    "time/workers_expected",
    Last,
    unit="workers",
    meaning="Rollout workers that should take part in this iteration.",
    formula="count",
)
WORKERS_REPORTING = observed(
    "time/workers_reporting",
    Sum,
    tier="core",
    unit="workers",
    meaning="Rollout workers whose fragments are in this iteration.",
    formula="count",
    rules=(Rule("missing", "critical", Holds("{time/workers_reporting} == {time/workers_expected}")),),
    signs=(
        Sign(
            "fewer than expected",
            "a worker is dead or late",
            ("look for the worker's last event in events.jsonl; the row describes the data of those that reported"),
        ),
    ),
)
FPS = derived(
    "time/fps",
    (
        TOTAL_TIMESTEPS,
        TRAINING_SECONDS,
    ),
    rate,
    tier="core",
    unit="environment steps/s",
    meaning="Training throughput since the run began; evaluation and checkpoints do not count.",
    formula="total_timesteps / (time_elapsed - eval - checkpoint)",
    rules=(Rule("slowdown", "warn", Drop(0.5, 50), sustained=10),),
    names=(
        Name("cleanrl", "charts/SPS", "transform", convert="floor"),
        Name("sb3", "time/fps", "transform", convert="floor"),
    ),
)
FPS_INTERVAL = derived(
    "time/fps_interval",
    (
        TIMESTEPS,
        INTERVAL_SECONDS,
    ),
    rate,
    tier="core",
    unit="environment steps/s",
    meaning="Training throughput of this iteration; evaluation and checkpoints do not count.",
    formula="steps of all workers / (step - eval - checkpoint)",
)
ENV_FPS = derived(
    "time/env_fps",
    (
        TIMESTEPS,
        ENV_STEP_TIME,
    ),
    per_slowest,
    unit="environment steps/s",
    meaning="Environment steps per second that the simulator takes, by the time of the slowest worker.",
    formula="steps of all workers / time/env/env_interact_step",
)
INFERENCE_FPS = derived(
    "time/inference_fps",
    (
        TIMESTEPS,
        PREDICT_TIME,
    ),
    per_slowest,
    unit="decisions/s",
    meaning="Decisions per second that the policy takes, by the time of the slowest worker.",
    formula="decisions of all workers / time/rollout/predict",
)
INFERENCE_THROUGHPUT = derived(
    "time/inference_throughput",
    (
        INFERENCE_BATCH_SIZE,
        GENERATE_TIME,
    ),
    per_slowest,
    unit="decisions/s",
    meaning="Decisions that all inference servers answered per second of collection, waits included.",
    formula="sum over passes of their rows / time/rollout/generate",
    needs="inference on a server",
)
TRAIN_SPS = derived(
    "time/train_sps",
    (
        NUM_SAMPLES,
        RUN_TRAINING_TIME,
    ),
    per_slowest,
    unit="decisions/s",
    meaning="Decisions per second that the learner takes in, counting every epoch.",
    formula="train/num_samples / time/actor/run_training",
)
EPS = derived(
    "time/eps",
    (
        TOTAL_EPISODES,
        TRAINING_SECONDS,
    ),
    rate,
    unit="episodes/s",
    meaning="Episodes finished per second since the run began; evaluation and checkpoints do not count.",
    formula="total_episodes / (time_elapsed - eval - checkpoint)",
    language="Completions per second. The same for a policy that acts in tokens.",
    names=(Name("trl", "eps", "transform", "so it reads 0 below one episode per second", convert="floor"),),
)
ETA = derived(
    "time/eta",
    (
        TIMESTEPS_LEFT,
        TIMESTEPS,
        INTERVAL_SECONDS,
    ),
    time_left,
    unit="s",
    meaning="Time to the configured end, at the pace of this iteration.",
    formula="timesteps_left / fps_interval, timesteps_left = iterations left x total_timesteps / iterations",
)
ENV_UTILIZATION = derived(
    "time/utilization/env",
    (
        ENV_STEP_TIME,
        STEP,
    ),
    utilization,
    tier="core",
    unit="fraction",
    meaning="Share of the iteration that the workers spent inside the simulator.",
    formula="sum over workers of env_interact_step / (workers * step)",
    rules=(Rule("busy", "ok", Band(0.3)),),
    signs=(
        Sign(
            "low",
            "something else is the bottleneck",
            "compare time/utilization/env, rollout and actor, and change rollout.num_workers",
        ),
    ),
)
ENV_STRAGGLER_RATIO = derived(
    "time/straggler_ratio/env",
    (ENV_STEP_TIME,),
    straggler_ratio,
    unit="ratio",
    meaning="Time of the slowest rollout worker in the simulator, relative to the mean of the workers.",
    formula="max over workers / mean over workers",
    rules=(Rule("straggler", "warn", Band(high=1.5), sustained=5),),
)
ROLLOUT_UTILIZATION = derived(
    "time/utilization/rollout",
    (
        PREDICT_TIME,
        STEP,
    ),
    utilization,
    tier="core",
    unit="fraction",
    meaning="Share of the iteration that the workers spent in the policy.",
    formula="sum over workers of predict / (workers * step)",
    rules=(Rule("busy", "ok", Band(0.3)),),
    signs=(
        Sign(
            "low",
            "something else is the bottleneck",
            "compare time/utilization/env, rollout and actor, and change rollout.num_workers",
        ),
    ),
)
ROLLOUT_STRAGGLER_RATIO = derived(
    "time/straggler_ratio/rollout",
    (PREDICT_TIME,),
    straggler_ratio,
    unit="ratio",
    meaning="Time of the slowest rollout worker in the policy, relative to the mean of the workers.",
    formula="max over workers / mean over workers",
    rules=(Rule("straggler", "warn", Band(high=1.5), sustained=5),),
)
ACTOR_UTILIZATION = derived(
    "time/utilization/actor",
    (
        RUN_TRAINING_TIME,
        STEP,
    ),
    utilization,
    tier="core",
    unit="fraction",
    meaning="Share of the iteration that the learner spent learning.",
    formula="sum over ranks of run_training / (ranks * step)",
    rules=(Rule("busy", "ok", Band(0.3)),),
    signs=(
        Sign(
            "low",
            "something else is the bottleneck",
            "compare time/utilization/env, rollout and actor, and change rollout.num_workers",
        ),
    ),
)
ACTOR_STRAGGLER_RATIO = derived(
    "time/straggler_ratio/actor",
    (RUN_TRAINING_TIME,),
    straggler_ratio,
    unit="ratio",
    meaning="Time of the slowest rank of the learner in its update, relative to the mean of the ranks.",
    formula="max over workers / mean over workers",
    rules=(Rule("straggler", "warn", Band(high=1.5), sustained=5),),
)
WORKER_RESTARTS = observed(
    "time/worker_restarts",
    Sum,
    lifetime=True,
    unit="restarts",
    meaning="How often workers were started again since the run began.",
    formula="count",
    needs="workers that are restarted",
    rules=(Rule("any", "warn", Band(high=0.0)),),
)
HEARTBEAT_AGE_MAX = observed(
    "time/heartbeat_age_max",
    Distribution,
    reads="max",
    unit="s",
    meaning="Longest time since any worker was last heard of.",
    formula="max over workers of now - last heard of",
    needs="workers that are restarted",
    rules=(Rule("lost", "critical", Band(high=60.0)),),
)
