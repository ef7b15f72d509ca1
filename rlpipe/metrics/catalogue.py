"""Every metric, declared once.

Namespaces are RLinf's: ``train/actor train/critic rollout env eval time``. Where systems disagree on what a name means,
the formula here decides, and ``docs/metrics.md`` says how others differ.

Letters: i a valid decision, r_i the ratio pi_new / pi_old, A_i the advantage as used in the loss, V the value now,
V_old the value at collection, R = A_raw + V_old the return target; e a finished episode, T_e its length up to and
including the first end, G_e the undiscounted sum of its rewards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlpipe.functional.intervals import wilson_interval
from rlpipe.metrics.declaration import Metric, derived, observed, reading
from rlpipe.metrics.reductions import LARGEST, Distribution, Last, Mean, Sum
from rlpipe.metrics.window import MetricWindow
from rlpipe.trajectory import Episode

# --- train/: what the learner did; every minibatch and epoch of the iteration, pooled over valid decisions

LOSS = observed(
    "train/loss",
    Mean,
    unit="loss",
    meaning="Value of the whole objective that the optimiser minimises.",
    formula="policy_loss + value_coef * value_loss - entropy_coef * entropy_loss",
    aliases={"sb3": "train/loss", "rlinf": "train/loss"},
)
ENTROPY = observed(
    "train/entropy_loss",
    Mean,
    unit="nats per decision",
    meaning="Mean entropy of the policy, with a positive sign: more random is larger.",
    formula="mean_i H(pi(. | s_i)); a Gaussian's may be negative",
    aliases={"rlinf": "train/entropy_loss"},
)
NUM_UPDATES = observed(
    "train/n_updates",
    Sum,
    lifetime=True,
    unit="optimiser steps",
    meaning="Optimiser steps taken since the run began.",
    formula="count of steps that were not skipped",
)
EPOCHS_RUN = observed(
    "train/epochs_run",
    Last,
    unit="epochs",
    meaning="Passes over the batch in this iteration; fewer than configured after a target-KL stop.",
    formula="count",
)
NONFINITE_STEPS = observed(
    "train/nonfinite_steps",
    Sum,
    unit="optimiser steps",
    meaning="Updates skipped because the loss or a gradient was not finite.",
    formula="count",
    healthy=(0.0, 0.0),
)
STAGE = observed(
    "train/stage",
    Last,
    unit="1",
    meaning="Which stage of the run collected this iteration's data, counted from 0.",
    formula="index in stages",
)
APPROX_KL = observed(
    "train/actor/approx_kl",
    Mean,
    unit="nats per decision",
    meaning="How far the update moved the policy away from the one that collected the data.",
    formula="mean_i (r_i - 1) - ln r_i",
    healthy=(0.001, 0.02),
    aliases={"rlinf": "train/actor/approx_kl"},
)
CLIP_FRACTION = observed(
    "train/actor/clip_fraction",
    Mean,
    unit="fraction",
    meaning="Share of decisions whose gradient the clip cuts.",
    formula="mean_i [-A_i clip(r_i) > -A_i r_i]",
    healthy=(0.0, 0.2),
    aliases={"rlinf": "train/actor/clip_fraction"},
)
RATIO_OUTSIDE_FRACTION = observed(
    "train/actor/ratio_outside_fraction",
    Mean,
    unit="fraction",
    meaning="Share of decisions whose ratio is outside the clip range, whatever the sign of the advantage.",
    formula="mean_i [r_i < 1 - clip_low or r_i > 1 + clip_high]",
    healthy=(0.0, 0.2),
    aliases={"sb3": "train/clip_fraction"},
)
CLIPPED_RATIO = observed(
    "train/actor/clipped_ratio",
    Mean,
    unit="ratio",
    meaning="Mean of the clamped probability ratios; not a share.",
    formula="mean_i clamp(r_i, 1 - clip_low, 1 + clip_high)",
    healthy=(0.9, 1.1),
    aliases={"rlinf": "train/actor/clipped_ratio"},
)
RATIO = observed(
    "train/actor/ratio",
    Mean,
    unit="ratio",
    meaning="Mean probability ratio between the policy being trained and the one that collected the data.",
    formula="mean_i r_i",
    healthy=(0.9, 1.1),
)
DUAL_CLIP_FRACTION = observed(
    "train/actor/dual_clip_fraction",
    Mean,
    unit="fraction",
    meaning="Share of decisions on which the dual clip bounds the loss; absent without a dual clip.",
    formula="mean_i [A_i < 0 and loss_i > -dual_clip A_i]",
)
POLICY_LOSS = observed(
    "train/actor/policy_loss",
    Mean,
    unit="loss",
    meaning="Clipped surrogate loss, without entropy.",
    formula="mean_i max(-A_i r_i, -A_i clip(r_i))",
    aliases={"sb3": "train/policy_gradient_loss", "rlinf": "train/actor/policy_loss"},
)
ACTOR_GRAD_NORM = observed(
    "train/actor/grad_norm",
    Mean,
    unit="gradient norm",
    meaning="L2 norm of the actor's gradient before clipping, mean over optimiser steps.",
    formula="sqrt(sum_p ||g_p||^2)",
    aliases={"rlinf": "train/actor/grad_norm"},
)
ACTOR_LR = observed(
    "train/actor/lr",
    Last,
    unit="1",
    meaning="Learning rate of the actor in the last optimiser step.",
    formula="schedule(progress)",
    aliases={"sb3": "train/learning_rate", "rlinf": "train/actor/lr"},
)
ACTION_STD = observed(
    "train/actor/action_std",
    Mean,
    unit="action units",
    meaning="Standard deviation of a Gaussian policy, mean over action dimensions; absent when discrete.",
    formula="mean_d sigma_d",
    aliases={"sb3": "train/std"},
)
POLICY_VERSION = observed(
    "train/actor/average_version",
    Mean,
    unit="versions",
    meaning="Version of the weights that collected the data, mean over decisions.",
    formula="mean_i version_i",
)
VALUE_LOSS = observed(
    "train/critic/value_loss",
    Mean,
    unit="value^2",
    meaning="Value loss as it enters the total, before its coefficient.",
    formula="mean_i 0.5 max((V - R)^2, (V_clip - R)^2)",
    aliases={"rlinf": "train/critic/value_loss"},
)
VALUE_CLIP_RATIO = observed(
    "train/critic/value_clip_ratio",
    Mean,
    unit="fraction",
    meaning="Share of decisions whose value moved further than the value clip allows; absent without a value clip.",
    formula="mean_i [|V - V_old| > value_clip]",
    healthy=(0.0, 0.2),
    aliases={"rlinf": "train/critic/value_clip_ratio"},
)
CRITIC_GRAD_NORM = observed(
    "train/critic/grad_norm",
    Mean,
    unit="gradient norm",
    meaning="L2 norm of the critic's gradient before clipping, mean over optimiser steps.",
    formula="sqrt(sum_p ||g_p||^2)",
)
CRITIC_LR = observed(
    "train/critic/lr",
    Last,
    unit="1",
    meaning="Learning rate of the critic in the last optimiser step.",
    formula="schedule(progress)",
)

# --- rollout/: the batch that was learnt from, each decision once

ADVANTAGES = observed(
    "rollout/advantages_mean",
    Distribution,
    unit="reward",
    meaning="Mean raw advantage, before normalisation.",
    formula="mean_i A_raw_i",
    aliases={"rlinf": "rollout/advantages_mean"},
)
ADVANTAGES_MAX = reading(
    "rollout/advantages_max",
    ADVANTAGES,
    "max",
    meaning="Largest raw advantage.",
    formula="max_i A_raw_i",
    aliases={"rlinf": "rollout/advantages_max"},
)
ADVANTAGES_MIN = reading(
    "rollout/advantages_min",
    ADVANTAGES,
    "min",
    meaning="Smallest raw advantage.",
    formula="min_i A_raw_i",
    aliases={"rlinf": "rollout/advantages_min"},
)
ADVANTAGES_STD = reading(
    "rollout/advantages_std",
    ADVANTAGES,
    "std",
    meaning="Standard deviation of raw advantages.",
    formula="sqrt(mean_i (A_raw_i - mean)^2)",
)
RETURNS = observed(
    "rollout/returns_mean",
    Distribution,
    unit="reward",
    meaning="Mean value target (a lambda-return per step; the return of episodes is env/return).",
    formula="mean_i R_i",
)
RETURNS_VAR = reading(
    "rollout/returns_var",
    RETURNS,
    "var",
    unit="reward^2",
    meaning="Variance of the value targets.",
    formula="mean_i (R_i - mean)^2",
)
VALUES = observed(
    "rollout/values_mean",
    Distribution,
    unit="reward",
    meaning="Mean predicted value at collection.",
    formula="mean_i V_old_i",
)
VALUE_RESIDUALS = observed(
    "train/critic/value_residual",
    Distribution,
    hidden=True,
    unit="reward",
    meaning="Ingredient of explained variance.",
    formula="R_i - V_old_i",
)
REWARDS = observed(
    "rollout/rewards",
    Mean,
    unit="reward per environment step",
    meaning="Mean raw reward per environment step, without bootstrap terms.",
    formula="sum_t r_t / count_t",
    aliases={"rlinf": "rollout/rewards"},
)
DISCARDED_TRAJECTORIES = observed(
    "rollout/discarded_trajectories",
    Sum,
    unit="episodes",
    meaning="Unfinished episodes dropped, because a stage changed the simulator.",
    formula="count",
)


def _explained_variance(returns: Distribution, residuals: Distribution) -> float | None:
    if returns.count < 2 or not (variance := returns.variance()):
        return None
    explained = 1 - residuals.variance() / variance
    return float(explained) if explained > -LARGEST else None  # returns that hardly vary explain nothing


EXPLAINED_VARIANCE = derived(
    "train/critic/explained_variance",
    (RETURNS, VALUE_RESIDUALS),
    _explained_variance,
    unit="1",
    meaning="How much of the variation of the value targets the critic foresaw; blind to a constant offset.",
    formula="1 - Var(R - V_old) / Var(R); absent where R does not vary",
    healthy=(0.8, 1.0),
    aliases={"sb3": "train/explained_variance", "rlinf": "train/critic/explained_variance"},
)

# --- env/ and eval/: finished episodes


class EpisodeMetrics:
    """The metrics of finished episodes under one namespace. ``observe`` is the only way they come about, from the same
    rows that stand in the ledger, so that each can be recomputed from it to the last digit."""

    def __init__(self, namespace: str) -> None:
        """Declares them under ``env`` or ``eval``."""
        self.success_once = observed(
            f"{namespace}/success_once",
            Mean,
            unit="fraction",
            meaning="Share of finished episodes in which success held at least once.",
            formula="sum_e [any_{t <= T_e} success_et] / count_e",
            aliases={"rlinf": f"{namespace}/success_once"},
        )
        self.success_at_end = observed(
            f"{namespace}/success_at_end",
            Mean,
            unit="fraction",
            meaning="Share of finished episodes in which success held after the last step.",
            formula="mean_e success_{e T_e}",
        )
        self.success_at_reset = observed(
            f"{namespace}/success_at_reset",
            Mean,
            unit="fraction",
            meaning="Share of finished episodes that were solved before the first step.",
            formula="mean_e success_e0",
            healthy=(0.0, 0.0),
        )
        self.episode_return = observed(
            f"{namespace}/return",
            Distribution,
            unit="reward",
            meaning="Mean undiscounted return of finished episodes.",
            formula="mean_e G_e",
            aliases={"rlinf": f"{namespace}/return"},
        )
        self.return_std = reading(
            f"{namespace}/return_std",
            self.episode_return,
            "std",
            meaning="Standard deviation of episode returns.",
            formula="sqrt(mean_e (G_e - mean)^2)",
        )
        self.return_min = reading(
            f"{namespace}/return_min",
            self.episode_return,
            "min",
            meaning="Smallest episode return.",
            formula="min_e G_e",
        )
        self.return_max = reading(
            f"{namespace}/return_max",
            self.episode_return,
            "max",
            meaning="Largest episode return.",
            formula="max_e G_e",
        )
        self.reward = observed(
            f"{namespace}/reward",
            Mean,
            unit="reward per environment step",
            meaning="Reward per step of an episode, mean over episodes (short episodes weigh as much as long ones).",
            formula="mean_e G_e / T_e",
            aliases={"rlinf": f"{namespace}/reward"},
        )
        self.episode_len = observed(
            f"{namespace}/episode_len",
            Distribution,
            unit="environment steps",
            meaning="Mean length of finished episodes.",
            formula="mean_e T_e",
            aliases={"rlinf": f"{namespace}/episode_len"},
        )
        self.episode_len_min = reading(
            f"{namespace}/episode_len_min",
            self.episode_len,
            "min",
            meaning="Shortest episode.",
            formula="min_e T_e",
        )
        self.episode_len_max = reading(
            f"{namespace}/episode_len_max",
            self.episode_len,
            "max",
            meaning="Longest episode.",
            formula="max_e T_e",
        )
        self.truncated_fraction = observed(
            f"{namespace}/truncated_fraction",
            Mean,
            unit="fraction",
            meaning="Share of finished episodes that only a time limit ended.",
            formula="mean_e [truncated and not terminated]",
        )
        self.num_trajectories = observed(
            f"{namespace}/num_trajectories",
            Sum,
            unit="episodes",
            meaning="Finished episodes: the denominator of every mean of this namespace.",
            formula="count_e",
            aliases={"rlinf": f"{namespace}/num_trajectories"},
        )

    def declared(self) -> list[Metric]:
        """All of them, in the order of declaration."""
        return [metric for metric in vars(self).values() if isinstance(metric, Metric)]

    def observe(self, window: MetricWindow, episodes: Sequence[Episode]) -> None:
        """Observes finished episodes. With none, only their number is observed: 0."""
        window.observe(self.num_trajectories, len(episodes))
        if not episodes:
            return
        window.observe(self.episode_return, [e.episode_return for e in episodes])
        window.observe(self.reward, [e.episode_return / e.length for e in episodes])
        window.observe(self.episode_len, [e.length for e in episodes])
        window.observe(self.truncated_fraction, [e.truncated and not e.terminated for e in episodes])
        for metric, outcomes in (
            (self.success_once, [e.success_once for e in episodes]),
            (self.success_at_end, [e.success_at_end for e in episodes]),
            (self.success_at_reset, [e.success_at_reset for e in episodes]),
        ):
            known = [outcome for outcome in outcomes if outcome is not None]
            if known:
                window.observe(metric, known)


ENV = EpisodeMetrics("env")
EVAL = EpisodeMetrics("eval")


def _wilson(bound: int, success: Mean) -> float | None:
    successes, episodes = math.fsum(success.parts), math.fsum(success.weight)
    return wilson_interval(round(successes), round(episodes))[bound] if episodes else None


EVAL_CI_LOW = derived(
    "eval/success_once_ci_low",
    (EVAL.success_once,),
    lambda success: _wilson(0, success),
    unit="fraction",
    meaning="Lower 95 % bound of eval/success_once.",
    formula="Wilson interval of successes and episodes",
)
EVAL_CI_HIGH = derived(
    "eval/success_once_ci_high",
    (EVAL.success_once,),
    lambda success: _wilson(1, success),
    unit="fraction",
    meaning="Upper 95 % bound of eval/success_once.",
    formula="Wilson interval of successes and episodes",
)

# --- time/: seconds. The first block is disjoint and adds up to time/step

GENERATE_ROLLOUTS = observed(
    "time/generate_rollouts",
    Last,
    unit="s",
    meaning="Waiting for the rollout workers.",
    formula="driver's clock",
    aliases={"rlinf": "time/generate_rollouts"},
)
UPDATE = observed(
    "time/update",
    Last,
    hidden=True,
    unit="s",
    meaning="Waiting for the learner; shown as its three parts below.",
    formula="driver's clock",
)
CAL_ADVANTAGES = observed(
    "time/cal_adv_and_returns",
    Last,
    unit="s",
    meaning="Joining the fragments, values, advantages and value targets.",
    formula="learner's clock",
    aliases={"rlinf": "time/cal_adv_and_returns"},
)
SYNC_WEIGHTS = observed(
    "time/sync_weights",
    Last,
    unit="s",
    meaning="Publishing the new weights.",
    formula="learner's clock",
    aliases={"rlinf": "time/sync_weights"},
)


def _actor_training(update: Last, advantages: Last, sync: Last) -> float | None:
    if update.value is None or advantages.value is None or sync.value is None:
        return None
    return update.value - advantages.value - sync.value


ACTOR_TRAINING = derived(
    "time/actor_training",
    (UPDATE, CAL_ADVANTAGES, SYNC_WEIGHTS),
    _actor_training,
    unit="s",
    meaning="Gradient steps, with the call to the learner.",
    formula="time waiting for the learner - cal_adv_and_returns - sync_weights",
    aliases={"rlinf": "time/actor_training"},
)
EVAL_TIME = observed("time/eval", Last, unit="s", meaning="Evaluation on held-out seeds.", formula="driver's clock")
CHECKPOINT_TIME = observed(
    "time/checkpoint",
    Last,
    unit="s",
    meaning="Gathering the state for a checkpoint; it falls between two rows and counts in the later one.",
    formula="driver's clock",
)
LOG_TIME = observed(
    "time/log",
    Last,
    unit="s",
    meaning="Handing metrics over, and waiting where the logger is behind.",
    formula="driver's clock",
)
OTHER_TIME = observed(
    "time/other", Last, unit="s", meaning="What no other part of time/step accounts for.", formula="driver's clock"
)
STEP = observed(
    "time/step",
    Last,
    unit="s",
    meaning="Wall clock of the iteration, from row to row.",
    formula="sum of the parts above",
    aliases={"rlinf": "time/step"},
)
ENV_STEP_TIME = observed(
    "time/env/env_interact_step",
    Distribution,
    reads="max",
    unit="s",
    meaning="Time the slowest rollout worker spent inside the simulator.",
    formula="max over workers of the sum over steps",
)
PREDICT_TIME = observed(
    "time/rollout/predict",
    Distribution,
    reads="max",
    unit="s",
    meaning="Time the slowest rollout worker spent in the policy.",
    formula="max over workers of the sum over steps",
)
WORKERS_REPORTING = observed(
    "time/workers_reporting",
    Sum,
    unit="workers",
    meaning="Rollout workers whose fragments are in this iteration.",
    formula="count",
)


def _utilization(busy: Distribution, step: Last) -> float | None:
    if not busy.count or not step.value:
        return None
    return busy.read()["sum"] / (busy.count * step.value)


ENV_UTILIZATION = derived(
    "time/utilization/env",
    (ENV_STEP_TIME, STEP),
    _utilization,
    unit="fraction",
    meaning="Share of the iteration that the workers spent inside the simulator.",
    formula="sum over workers of env_interact_step / (workers * step)",
)
TIMESTEPS = observed(
    "time/timesteps",
    Sum,
    hidden=True,
    unit="environment steps",
    meaning="Environment steps of this iteration.",
    formula="count of valid steps",
)
TOTAL_TIMESTEPS = observed(
    "time/total_timesteps",
    Sum,
    lifetime=True,
    unit="environment steps",
    meaning="Environment steps since the run began, of all workers, resumed parts included.",
    formula="count of valid steps",
    aliases={"sb3": "time/total_timesteps"},
)
TOTAL_EPISODES = observed(
    "time/total_episodes",
    Sum,
    lifetime=True,
    unit="episodes",
    meaning="Finished training episodes since the run began.",
    formula="count_e",
)
ITERATIONS = observed(
    "time/iterations",
    Sum,
    lifetime=True,
    unit="iterations",
    meaning="Iterations since the run began.",
    formula="count",
    aliases={"sb3": "time/iterations"},
)
TIME_ELAPSED = observed(
    "time/time_elapsed",
    Sum,
    lifetime=True,
    unit="s",
    meaning="Sum of time/step since the run began, resumed parts included.",
    formula="sum of step",
    aliases={"sb3": "time/time_elapsed"},
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


def _rate(amount: Sum, seconds: Sum) -> float | None:
    elapsed = seconds.read().get("sum", 0.0)
    return amount.read().get("sum", 0.0) / elapsed if elapsed > 0 else None


FPS = derived(
    "time/fps",
    (TOTAL_TIMESTEPS, TRAINING_SECONDS),
    _rate,
    unit="environment steps/s",
    meaning="Training throughput since the run began; evaluation and checkpoints do not count.",
    formula="total_timesteps / (time_elapsed - eval - checkpoint)",
    aliases={"sb3": "time/fps"},
)
FPS_INTERVAL = derived(
    "time/fps_interval",
    (TIMESTEPS, INTERVAL_SECONDS),
    _rate,
    unit="environment steps/s",
    meaning="Training throughput of this iteration; evaluation and checkpoints do not count.",
    formula="steps of all workers / (step - eval - checkpoint)",
)

CATALOGUE: dict[str, Metric] = {
    metric.name: metric
    for value in list(globals().values())
    for metric in (value.declared() if isinstance(value, EpisodeMetrics) else [value])
    if isinstance(metric, Metric)
}
"""Every metric by name, in the order of declaration, which is the order of a row."""
