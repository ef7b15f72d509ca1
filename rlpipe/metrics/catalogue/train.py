"""``train/``: the update. Every minibatch and epoch of an iteration is pooled over valid decisions."""

from __future__ import annotations

from rlpipe.metrics.catalogue.conditions import (
    CLIPPED,
    NEEDS_PROXIMAL,
    NEEDS_REFERENCE,
    NEEDS_TOKEN_LEVEL,
    VALUE_BASED,
    WITH_CRITIC,
)
from rlpipe.metrics.catalogue.declare import derived, observed, reading
from rlpipe.metrics.catalogue.rollout import RETURNS
from rlpipe.metrics.declaration import Metric, Tier
from rlpipe.metrics.derivations import explained_variance, r_squared
from rlpipe.metrics.reductions import Distribution, Histogram, Last, Mean, Sum
from rlpipe.metrics.rules import (
    Avoid,
    Band,
    Expect,
    Finite,
    Holds,
    Increasing,
    KeepsPerDimension,
    KeepsShare,
    Near,
    Percentile,
    Rule,
    Spike,
    Unchanged,
)


def last_minibatch(metric: Metric, meaning: str) -> Metric:
    """Declares a mean over the last minibatch of the last epoch alone, as other systems log it."""
    return observed(
        f"{metric.name}_last_minibatch", Mean, metric.unit, tier="extension", algorithms=metric.algorithms, of=metric,
        over="last minibatch", meaning=meaning, formula=f"as {metric.name}, over one minibatch",
    )  # fmt: skip


def over_trajectories(metric: Metric, tier_of_min: Tier, tier_of_max: Tier) -> tuple[Metric, Metric]:
    """Declares the smallest and the largest mean of a trajectory."""
    word, mean = metric.name.rpartition("/")[2], metric.formula.replace("mean_i", "mean_{i in j}")
    smallest = observed(
        f"{metric.name}_min", Distribution, metric.unit, reads="min", tier=tier_of_min, algorithms=metric.algorithms,
        of=metric, over="trajectory", meaning=f"Smallest {word} of any trajectory.", formula=f"min_j {mean}",
    )  # fmt: skip
    largest = reading(
        f"{metric.name}_max", smallest, "max", tier=tier_of_max, meaning=f"Largest {word} of any trajectory.",
        formula=f"max_j {mean}",
    )  # fmt: skip
    return smallest, largest


# Each metric is one entry: what it is, its meaning, its formula, its rules. The formatter would scatter the first line.
# fmt: off

LOSS = observed(
    "train/loss", Mean, "loss", tier="core", algorithms=CLIPPED,
    meaning="The objective that the optimiser minimises.",
    formula="policy_loss + value_coef * value_loss - entropy_coef * entropy_loss + kl_beta * kl_ref, with the terms "
            "that the algorithm has; without the cloning loss. With loss_aggregation=trajectory every term is "
            "weighted by trajectory here; entropy_loss and kl_ref as metrics are weighted by decision",
    rules=(
        Rule("finite", "critical", Finite(), quiet=20),
        Rule("spike", "warn", Spike(8.0, 20), sustained=3, quiet=10),
        Rule("falling", "ok", Expect("down", 50)),
    ),
)
LOSS_LAST_MINIBATCH = last_minibatch(
    LOSS,
    meaning="Objective on the last minibatch of the last epoch alone, which Stable-Baselines3 logs as its loss.",
)
ENTROPY = observed(
    "train/entropy_loss", Mean, "nats per decision", tier="core", algorithms=CLIPPED,
    meaning="Mean entropy of the policy, with a positive sign: larger is more random.",
    formula="mean_i H(pi(. | s_i)); may be negative for a Gaussian",
    rules=(
        Rule("slow_decline", "ok", Expect("down", 50)),
        Rule("early_collapse", "warn", KeepsShare(0.1, 0.3), when="tag:discrete_policy", sustained=2, quiet=10),
        Rule("early_collapse_gauss", "warn", KeepsPerDimension(2.0, 0.3), when="tag:gaussian_policy",
             sign="early_collapse"),
        Rule("never_falls", "info", Avoid("flat", 200), when="progress > 0.5"),
    ),
)
ENTROPY_LAST_MINIBATCH = last_minibatch(
    ENTROPY,
    meaning="Mean entropy on the last minibatch of the last epoch alone, as CleanRL logs it.",
)
ENTROPY_DIMENSION = observed(
    "train/actor/entropy/{name}", Mean, "nats per token", tier="extension", algorithms=CLIPPED, needs=NEEDS_TOKEN_LEVEL,
    meaning="Mean entropy of one dimension of the actions; dim_0 is the first.",
    formula="mean over the actions taken of H of the token of this dimension, given those before it if tokens are "
            "decoded in order",
)
NUM_UPDATES = observed(
    "train/n_updates", Sum, "optimiser steps", tier="core", lifetime=True,
    meaning="Optimiser steps taken since the run began.",
    formula="count of steps that were not skipped",
    rules=(
        Rule("stalled", "critical", Increasing(3)),
        Rule("count", "warn",
             Holds("delta({train/n_updates}) + {train/nonfinite_steps} == {train/epochs_run} * minibatches_per_epoch")),
    ),
)
NUM_UPDATE_EPOCHS = observed(
    "train/n_update_epochs", Sum, "epochs", algorithms=CLIPPED, lifetime=True,
    meaning="Epochs (passes over a batch) since the run began.",
    formula="count of epochs",
)
EPOCHS_RUN = observed(
    "train/epochs_run", Last, "epochs", algorithms=CLIPPED,
    meaning="Epochs run in this iteration; fewer than configured after a target-KL stop.",
    formula="count",
    rules=(Rule("early_stop", "info", Holds("{train/epochs_run} == n_epochs"), sustained=5),),
)
NUM_SAMPLES = observed(
    "train/num_samples", Sum, "decisions", algorithms=CLIPPED,
    meaning="Valid decisions used in this iteration's update, counting every epoch.",
    formula="sum over minibatches of their valid decisions",
)
NONFINITE_STEPS = observed(
    "train/nonfinite_steps", Sum, "optimiser steps",
    meaning="Updates skipped because the loss or a gradient was not finite.",
    formula="count",
    rules=(Rule("any", "critical", Band(high=0.0), quiet=20),),
)
STAGE = observed(
    "train/stage", Last, "1",
    meaning="Index of the stage that collected this iteration's data, counted from 0.",
    formula="index in stages",
)
APPROX_KL = observed(
    "train/actor/approx_kl", Mean, "nats per decision", tier="core", algorithms=CLIPPED,
    meaning="How far the update moved the policy away from the one that collected the data.",
    formula="mean_i (r_i - 1) - ln r_i",
    rules=(
        Rule("band", "ok", Band(0.001, 0.02)),
        Rule("high", "warn", Band(high=0.03), sustained=3, quiet=10),
        Rule("very_high", "critical", Band(high=0.05), sustained=3, quiet=10, sign="high"),
        Rule("negative", "critical", Band(-1e-06)),
        Rule("no_move", "info", Band(1e-06), sustained=20),
    ),
)
APPROX_KL_K1 = observed(
    "train/actor/approx_kl_k1", Mean, "nats per decision", algorithms=CLIPPED,
    meaning="Plain estimator (k1) of how far the update moved the policy: unbiased, but noisy and possibly negative.",
    formula="mean_i -ln r_i",
)
APPROX_KL_K1_LAST_MINIBATCH = last_minibatch(
    APPROX_KL_K1,
    meaning="Plain estimator (k1) on the last minibatch of the last epoch alone, as CleanRL logs it.",
)
APPROX_KL_K2 = observed(
    "train/actor/approx_kl_k2", Mean, "nats per decision", algorithms=CLIPPED, signs=APPROX_KL.signs,
    meaning="Quadratic estimator (k2) of how far the update moved the policy: never negative, but biased.",
    formula="mean_i 0.5 (ln r_i)^2",
    rules=(Rule("high", "warn", Band(high=0.05), sustained=3),),
)
APPROX_KL_MAX = observed(
    "train/actor/approx_kl_max", Distribution, "nats per decision", reads="max", algorithms=CLIPPED, of=APPROX_KL,
    over="minibatch", signs=APPROX_KL.signs,
    meaning="Largest approx_kl of any minibatch of the iteration.",
    formula="max over minibatches of mean_i (r_i - 1) - ln r_i",
    rules=(Rule("high", "warn", Band(high=0.1), sustained=3),),
)
APPROX_KL_LAST_EPOCH = observed(
    "train/actor/approx_kl_last_epoch", Mean, "nats per decision", algorithms=CLIPPED, of=APPROX_KL, over="last epoch",
    signs=APPROX_KL.signs,
    meaning="How far the update moved the policy, over the last epoch alone; a target-KL stop acts on this number.",
    formula="as train/actor/approx_kl, over the last epoch",
    rules=(Rule("high", "warn", Band(high=0.03), sustained=3),),
)
APPROX_KL_LAST_MINIBATCH = last_minibatch(
    APPROX_KL,
    meaning="How far the update moved the policy, over the last minibatch of the last epoch alone, as CleanRL logs it.",
)
CLIP_FRACTION = observed(
    "train/actor/clip_fraction", Mean, "fraction", tier="core", algorithms=CLIPPED,
    meaning="Share of decisions whose gradient the clip cuts.",
    formula="mean_i [-A_i clip(r_i) > -A_i r_i]",
    rules=(
        Rule("band", "ok", Band(0.0, 0.2)),
        Rule("sustained_high", "warn", Band(high=0.3), sustained=5),
        Rule("above_ideal", "info", Band(high=0.2), sustained=10, sign="sustained_high"),
        Rule("never_clips", "info", Band(0.0001), when="{train/actor/lr} > 0", sustained=20),
        Rule("impossible", "critical", Band(0.0, 1.0)),
    ),
)
RATIO_OUTSIDE_FRACTION = observed(
    "train/actor/ratio_outside_fraction", Mean, "fraction", algorithms=CLIPPED, signs=CLIP_FRACTION.signs,
    meaning="Share of decisions whose ratio is outside the clip range, whatever the sign of the advantage.",
    formula="mean_i [r_i < 1 - clip_low or r_i > 1 + clip_high]",
    rules=(
        Rule("typical", "ok", Band(0.05, 0.15)),
        Rule("band", "ok", Band(0.0, 0.2)),
        Rule("sustained_high", "warn", Band(high=0.3), sustained=5),
        Rule("never_clips", "info", Band(0.0001), sustained=20),
    ),
)
CLIP_FRACTION_LOW = observed(
    "train/actor/clip_fraction_low", Mean, "fraction", algorithms=CLIPPED,
    meaning="Share of decisions whose gradient the lower bound cuts; clip_fraction_high makes up the rest of "
            "clip_fraction.",
    formula="mean_i [r_i < 1 - clip_low and A_i < 0]",
    rules=(Rule("very_high", "warn", Band(high=0.3), sustained=5),),
)
CLIP_FRACTION_LOW_MIN, CLIP_FRACTION_LOW_MAX = over_trajectories(CLIP_FRACTION_LOW, "standard", "extension")
CLIP_FRACTION_HIGH = observed(
    "train/actor/clip_fraction_high", Mean, "fraction", algorithms=CLIPPED, signs=CLIP_FRACTION_LOW.signs,
    meaning="Share of decisions whose gradient the upper bound cuts; clip_fraction_low makes up the rest of "
            "clip_fraction.",
    formula="mean_i [r_i > 1 + clip_high and A_i > 0]",
    rules=(Rule("very_high", "warn", Band(high=0.3), sustained=5),),
)
CLIP_FRACTION_HIGH_MIN, CLIP_FRACTION_HIGH_MAX = over_trajectories(CLIP_FRACTION_HIGH, "extension", "standard")
CLIP_FRACTION_MIN, CLIP_FRACTION_MAX = over_trajectories(CLIP_FRACTION, "extension", "extension")
CLIPPED_RATIO = observed(
    "train/actor/clipped_ratio", Mean, "ratio", tier="core", algorithms=CLIPPED,
    meaning="Mean of the probability ratios after clamping; a ratio near 1, not a share.",
    formula="mean_i clamp(r_i, 1 - clip_low, 1 + clip_high)",
    rules=(
        Rule("near_one", "ok", Near(1.0, 0.1)),
        Rule("impossible", "critical", Holds("1 - eps_lo - 1e-6 <= {train/actor/clipped_ratio} <= 1 + eps_hi + 1e-6")),
    ),
)
RATIO = observed(
    "train/actor/ratio", Distribution, "ratio", algorithms=CLIPPED,
    meaning="Mean probability ratio between the policy being trained and the one that collected the data.",
    formula="mean_i r_i",
    rules=(
        Rule("near_one", "ok", Near(1.0, 0.1)),
        Rule("drift", "warn", Band(0.8, 1.25), sustained=3, sign="drastic"),
        Rule("drastic", "critical", Band(0.1, 2.0)),
        Rule("extreme", "critical", Band(high=200.0), sign="drastic"),
    ),
)
RATIO_VAR = reading(
    "train/actor/ratio_var", RATIO, "var", unit="ratio^2",
    meaning="Variance of the probability ratios over decisions.",
    formula="mean_i (r_i - mean_k r_k)^2",
    rules=(Rule("high", "warn", Band(high=0.25), sustained=3),),
)
RATIO_MINIBATCH_VAR = observed(
    "train/actor/ratio_minibatch_var", Distribution, "ratio^2", reads="sample_var", tier="extension",
    algorithms=CLIPPED, of=RATIO, over="minibatch",
    meaning="How much the mean ratio moves during an update: variance of the minibatch means, dividing by n - 1.",
    formula="variance over minibatches of mean_i r_i, dividing by n - 1",
)
RATIO_ABS_DEV = observed(
    "train/actor/ratio_abs_dev", Mean, "ratio", tier="extension", algorithms=CLIPPED,
    meaning="Mean absolute distance of the ratio from one.",
    formula="mean_i |r_i - 1|",
)
RATIO_MIN = reading(
    "train/actor/ratio_min", RATIO, "min", tier="extension", signs=RATIO.signs,
    meaning="Smallest probability ratio in the update.",
    formula="min_i r_i",
    rules=(Rule("low", "warn", Band(0.01), sign="drastic"),),
)
RATIO_MAX = reading(
    "train/actor/ratio_max", RATIO, "max", signs=RATIO.signs,
    meaning="Largest probability ratio in the update.",
    formula="max_i r_i",
    rules=(
        Rule("high", "warn", Band(high=20.0), sign="drastic"),
        Rule("extreme", "critical", Band(high=200.0), sign="drastic"),
    ),
)
RATIO_DIST = observed(
    "train/actor/ratio_dist", Histogram, "count", algorithms=CLIPPED, of=RATIO,
    meaning="Distribution of the probability ratios.",
    formula="histogram of r_i",
    rules=(
        Rule("median", "ok", Percentile(50, 0.95, 1.05)),
        Rule("extreme", "critical", Percentile(100, high=200.0)),
    ),
)
DUAL_CLIP_FRACTION = observed(
    "train/actor/dual_clip_fraction", Mean, "fraction", tier="extension", algorithms=CLIPPED,
    meaning="Share of decisions whose loss is bounded by the dual clip; absent without a dual clip.",
    formula="mean_i [A_i < 0 and loss_i > -dual_clip A_i]",
    rules=(Rule("high", "warn", Band(high=0.01), sustained=5),),
)
DUAL_CLIPPED_RATIO = observed(
    "train/actor/dual_clipped_ratio", Mean, "ratio", tier="extension", algorithms=CLIPPED,
    meaning="Mean ratio over all decisions, counted as 0 where the dual clip does not bound the loss.",
    formula="mean_i r_i [A_i < 0 and loss_i > -dual_clip A_i]",
)
POLICY_LOSS = observed(
    "train/actor/policy_loss", Mean, "loss", tier="core", algorithms=CLIPPED,
    meaning="Clipped surrogate loss, without entropy bonus and KL penalty, weighted as in the objective.",
    formula="mean_i w_i max(-A_i r_i, -A_i clip(r_i)); w_i = 1, unless loss_aggregation gives every trajectory equal "
            "weight",
    rules=(
        Rule("typical", "ok", Band(-0.02, -0.01)),
        Rule("extreme", "warn", Spike(8.0, 20), sustained=3, quiet=10),
        Rule("finite", "critical", Finite(), quiet=20, sign="extreme"),
    ),
)
POLICY_LOSS_LAST_MINIBATCH = last_minibatch(
    POLICY_LOSS,
    meaning="Clipped surrogate loss on the last minibatch of the last epoch alone, as CleanRL logs it.",
)
POLICY_LOSS_ABS = observed(
    "train/actor/policy_loss_abs", Mean, "loss", tier="extension", algorithms=CLIPPED,
    meaning="Mean absolute policy loss of a decision.",
    formula="mean_i w_i |max(-A_i r_i, -A_i clip(r_i))|, w_i as for policy_loss",
)
ACTOR_GRAD_NORM = observed(
    "train/actor/grad_norm", Distribution, "gradient norm", tier="core",
    meaning="L2 norm of the actor's gradient before clipping, mean over optimiser steps.",
    formula="sqrt(sum_p ||g_p||^2)",
    rules=(
        Rule("finite", "critical", Finite(), quiet=20, sign="spike"),
        Rule("spike", "warn", Spike(10.0, 50), sustained=3, quiet=10),
        Rule("vanished", "warn", Band(1e-08), when="{train/actor/lr} > 0", sustained=5),
    ),
)
ACTOR_GRAD_NORM_MAX = reading(
    "train/actor/grad_norm_max", ACTOR_GRAD_NORM, "max",
    meaning="Largest gradient norm of the actor among the optimiser steps.",
    formula="max over optimiser steps",
)
ACTOR_GRAD_CLIP_FRACTION = observed(
    "train/actor/grad_clip_fraction", Mean, "fraction", tier="extension", algorithms=CLIPPED,
    meaning="Share of optimiser steps whose gradient norm exceeded the clipping threshold.",
    formula="mean over optimiser steps of [grad_norm > max_grad_norm]",
    rules=(Rule("always", "info", Band(high=0.9), sustained=10),),
)
ACTOR_LR = observed(
    "train/actor/lr", Last, "1", tier="core",
    meaning="Learning rate of the actor in the last optimiser step.",
    formula="schedule(progress)",
    rules=(
        Rule("too_large", "critical", Band(high=0.01)),
        Rule("too_small", "info", Band(1e-06), when="progress < 0.9"),
    ),
)
CLIP_RANGE = observed(
    "train/actor/clip_range", Last, "1", algorithms=CLIPPED,
    meaning="Distance from 1 at which the ratio is clipped; absent if the two sides differ.",
    formula="clip_low, if clip_low = clip_high",
    rules=(Rule("constant", "ok", Unchanged(10), when="tag:no_clip_schedule"),),
)
CLIP_RANGE_LOW = observed(
    "train/actor/clip_range_low", Last, "1", tier="extension", algorithms=CLIPPED,
    meaning="Distance below 1 at which the ratio is clipped.",
    formula="clip_low",
)
CLIP_RANGE_HIGH = observed(
    "train/actor/clip_range_high", Last, "1", tier="extension", algorithms=CLIPPED,
    meaning="Distance above 1 at which the ratio is clipped.",
    formula="clip_high",
)
ACTION_STD = observed(
    "train/actor/action_std", Mean, "action units", algorithms=CLIPPED,
    meaning="Standard deviation of a Gaussian policy, mean over action dimensions; absent for discrete actions.",
    formula="mean_d sigma_d",
    rules=(
        Rule("collapse", "warn", KeepsShare(0.05, 0.3)),
        Rule("growth", "warn", Band(high=3.0), sustained=10),
    ),
)
ENTROPY_COEF = observed(
    "train/actor/entropy_coef", Last, "1", tier="extension", algorithms=CLIPPED,
    meaning="Current weight of the entropy bonus.",
    formula="entropy_coef",
)
KL_REF = observed(
    "train/actor/kl_ref", Mean, "nats per decision", algorithms=CLIPPED, needs=NEEDS_REFERENCE,
    meaning="How far the policy being trained is from a frozen reference policy, per decision.",
    formula="mean_i exp(x_i) - x_i - 1, with x_i = ln pi_ref(a_i) - ln pi_new(a_i)",
    language="The KL divergence from the reference model, per action token with logprob_level=token.",
    rules=(
        Rule("band", "ok", Band(0.01, 0.1)),
        Rule("high", "warn", Band(high=0.1), sustained=5),
        Rule("negative", "warn", Band(0.0)),
        Rule("too_low", "info", Band(0.001), sustained=50),
    ),
)
KL_COEF = observed(
    "train/actor/kl_coef", Last, "1", algorithms=CLIPPED, needs=NEEDS_REFERENCE,
    meaning="Current weight of the penalty for leaving the reference policy.",
    formula="beta: kl_coef in PPO, kl_beta in GRPO",
    rules=(
        Rule("follows_kl", "ok",
             Holds("sign(delta({train/actor/kl_coef})) == "  # it follows the divergence of the report before
                   "sign({rollout/kl_ref_episode} - delta({rollout/kl_ref_episode}) - kl_target)"),
             when="tag:adaptive_kl"),
    ),
)
CLONING_WEIGHT = observed(
    "train/actor/cloning_weight", Last, "1", algorithms=CLIPPED,
    needs="demonstrations to clone (demos, algorithm.cloning_coef)",
    meaning="Current weight of the cloning loss.",
    formula="cloning_coef * cloning_decay^(iteration - 1)",
)
ADVANTAGES_NORM = observed(
    "train/actor/advantages_norm_mean", Distribution, "standard deviations", algorithms=CLIPPED,
    meaning="Mean advantage after normalisation, as the loss uses it: 0 up to rounding.",
    formula="mean_i A_i, with A = (A_raw - mean) / (std + 1e-8) over the whole batch, std dividing by n - 1",
    rules=(Rule("centred", "warn", Near(0.0, 0.001), when="tag:whitening"),),
)
ADVANTAGES_NORM_STD = reading(
    "train/actor/advantages_norm_std", ADVANTAGES_NORM, "std",
    meaning="Standard deviation of the advantages after normalisation, as the loss uses them: 1 up to rounding.",
    formula="sqrt(mean_i (A_i - mean)^2)",
)
ADVANTAGES_NORM_MAX = reading(
    "train/actor/advantages_norm_max", ADVANTAGES_NORM, "max",
    meaning="Largest advantage after normalisation, as the loss uses it.",
    formula="max_i A_i",
    rules=(Rule("outlier", "warn", Band(high=10.0), when="tag:whitening", sustained=5),),
)
ADVANTAGES_NORM_MIN = reading(
    "train/actor/advantages_norm_min", ADVANTAGES_NORM, "min",
    meaning="Smallest advantage after normalisation, as the loss uses it.",
    formula="min_i A_i",
)
PROXIMAL_RATIO = observed(
    "train/actor/proximal_ratio", Mean, "ratio", tier="extension", algorithms=CLIPPED, needs=NEEDS_PROXIMAL,
    meaning="Mean ratio of the policy being trained to the proximal policy.",
    formula="mean_i pi_new(a_i) / pi_prox(a_i)",
)
CLIPPED_PROXIMAL_RATIO = observed(
    "train/actor/clipped_proximal_ratio", Mean, "ratio", tier="extension", algorithms=CLIPPED, needs=NEEDS_PROXIMAL,
    meaning="Mean ratio of the policy being trained to the proximal policy, after clamping.",
    formula="mean_i clip(pi_new(a_i) / pi_prox(a_i))",
)
PROXIMAL_APPROX_KL = observed(
    "train/actor/proximal_approx_kl", Mean, "nats per decision", tier="extension", algorithms=CLIPPED,
    needs=NEEDS_PROXIMAL,
    meaning="How far the policy moved from the proximal policy, by the plain estimator (k1), which can be negative.",
    formula="mean_i ln pi_prox(a_i) - ln pi_new(a_i)",
)
BEHAV_APPROX_KL = observed(
    "train/actor/behav_approx_kl", Mean, "nats per decision", tier="extension", algorithms=CLIPPED,
    needs=NEEDS_PROXIMAL,
    meaning="How stale the data is: distance of the proximal policy from the one that collected it, by the plain "
            "estimator (k1).",
    formula="mean over kept decisions of ln pi_old(a_i) - ln pi_prox(a_i)",
    rules=(Rule("stale", "warn", Band(high=0.05), sustained=5),),
)
BEHAV_CLIP_FRACTION = observed(
    "train/actor/behav_clip_fraction", Mean, "fraction", tier="extension", algorithms=CLIPPED, needs=NEEDS_PROXIMAL,
    meaning="Share of decisions left out because their weight exceeds the threshold.",
    formula="1 - kept / valid decisions",
    rules=(Rule("high", "warn", Band(high=0.2), sustained=5),),
)
ROLLOUT_TRAIN_KL = observed(
    "train/actor/rollout_train_kl", Mean, "nats per decision", algorithms=CLIPPED,
    meaning="How far the learner's log-probabilities are from those stored by the rollout workers, for the same "
            "weights: 0 up to rounding.",
    formula="mean_i (q_i - 1) - ln q_i, with q_i = pi_learner(a_i) / pi_worker(a_i), before the first optimiser step",
    rules=(
        Rule("mismatch", "warn", Band(high=0.001)),
        Rule("broken", "critical", Band(high=0.05), sign="mismatch"),
    ),
)
LOGP_DIFF = observed(
    "train/actor/logp_diff_mean", Distribution, "nats", tier="extension", algorithms=CLIPPED,
    meaning="Mean absolute difference between the learner's and the rollout workers' log-probabilities.",
    formula="mean_i |ln q_i|, q_i as for rollout_train_kl",
)
LOGP_DIFF_MAX = reading(
    "train/actor/logp_diff_max", LOGP_DIFF, "max", tier="extension",
    meaning="Largest absolute difference between the learner's and the rollout workers' log-probabilities.",
    formula="max_i |ln q_i|, q_i as for rollout_train_kl",
)
IS_RATIO = observed(
    "train/actor/is_ratio_mean", Distribution, "ratio", tier="extension", algorithms=CLIPPED,
    meaning="Mean importance weight of the learner's policy relative to the rollout workers' policy.",
    formula="mean_i q_i, q_i as for rollout_train_kl",
)
IS_RATIO_MIN = reading(
    "train/actor/is_ratio_min", IS_RATIO, "min", tier="extension",
    meaning="Smallest importance weight of the learner's policy relative to the rollout workers' policy.",
    formula="min_i q_i, q_i as for rollout_train_kl",
)
IS_RATIO_MAX = reading(
    "train/actor/is_ratio_max", IS_RATIO, "max", tier="extension",
    meaning="Largest importance weight of the learner's policy relative to the rollout workers' policy.",
    formula="max_i q_i, q_i as for rollout_train_kl",
)
VERSION = observed(
    "train/actor/version", Last, "versions", tier="extension",
    meaning="Version of the weights that the learner holds after the update.",
    formula="count of published versions",
)
POLICY_VERSION = observed(
    "train/actor/average_version", Mean, "versions", tier="extension",
    meaning="Version of the weights that collected the data, mean over decisions.",
    formula="mean_i version_i",
)
VALUE_LOSS = observed(
    "train/critic/value_loss", Mean, "reward^2", tier="core", algorithms=VALUE_BASED,
    meaning="Value loss as it enters the objective, before its coefficient.",
    formula="mean_i 0.5 max((V - R)^2, (V_clip - R)^2)",
    rules=(
        Rule("finite", "critical", Finite(), quiet=20, sign="spike"),
        Rule("declining", "ok", Expect("down", 50)),
        Rule("spike", "warn", Spike(8.0, 20), sustained=3, quiet=10),
        Rule("growing", "warn", Avoid("up", 50), unless="{train/critic/explained_variance} >= 0.2"),
    ),
)
VALUE_LOSS_LAST_MINIBATCH = last_minibatch(
    VALUE_LOSS,
    meaning="Value loss on the last minibatch of the last epoch alone, as CleanRL logs it.",
)
VALUE_ERROR = observed(
    "train/critic/value_error", Mean, "reward^2", algorithms=VALUE_BASED,
    meaning="Mean squared error of the values; comparable between variants of the value loss.",
    formula="mean_i (V_i - R_i)^2",
    rules=(
        Rule("declining", "ok", Expect("down", 50)),
        Rule("finite", "critical", Finite(), quiet=20),
    ),
)
VALUE_CLIP_RATIO = observed(
    "train/critic/value_clip_ratio", Mean, "fraction", tier="core", algorithms=VALUE_BASED,
    meaning="Share of decisions whose value moved further than the value clip allows; absent without a value clip.",
    formula="mean_i [|V - V_old| > value_clip]",
    rules=(
        Rule("low", "ok", Band(high=0.2)),
        Rule("high", "warn", Band(high=0.3), sustained=5),
    ),
)
VALUE_CLIP_ACTIVE_FRACTION = observed(
    "train/critic/value_clip_active_fraction", Mean, "fraction", algorithms=VALUE_BASED,
    meaning="Share of decisions whose clipped value error is the larger one, so that the gradient of the value is cut.",
    formula="mean_i [(V_clip_i - R_i)^2 > (V_i - R_i)^2]",
    rules=(Rule("high", "warn", Band(high=0.3), sustained=5),),
)
VALUE_RESIDUALS = observed(
    "train/critic/value_residual", Distribution, "reward", algorithms=VALUE_BASED, hidden=True,
    meaning="Ingredient of explained variance.",
    formula="R_i - V_old_i",
)
EXPLAINED_VARIANCE = derived(
    "train/critic/explained_variance", (RETURNS, VALUE_RESIDUALS), explained_variance, "1", tier="core",
    algorithms=VALUE_BASED,
    meaning="Share of the variance of the value targets that the critic predicted; blind to a constant offset.",
    formula="1 - Var(R - V_old) / Var(R); absent if R does not vary",
    rules=(
        Rule("good", "ok", Band(0.8)),
        Rule("late", "ok", Band(0.9), when="tag:rapid_improvement"),
        Rule("useless", "warn", Band(0.0, open=True),
             unless="{rollout/returns_var} <= 1e-6*max(1, {rollout/returns_mean}*{rollout/returns_mean})",
             sustained=10),
        Rule("impossible", "critical", Band(high=1.0)),
    ),
)
RETURNS_TRAINED = observed(
    "train/critic/returns_trained", Distribution, "reward", algorithms=VALUE_BASED, hidden=True,
    meaning="Ingredient of explained_variance_post.",
    formula="R_i, of every minibatch and epoch",
)
VALUE_RESIDUALS_TRAINED = observed(
    "train/critic/value_residual_trained", Distribution, "reward", algorithms=VALUE_BASED, hidden=True,
    meaning="Ingredient of explained_variance_post.",
    formula="R_i - V_i, of every minibatch and epoch",
)
EXPLAINED_VARIANCE_POST = derived(
    "train/critic/explained_variance_post", (RETURNS_TRAINED, VALUE_RESIDUALS_TRAINED), explained_variance, "1",
    tier="extension", algorithms=VALUE_BASED,
    meaning="Explained variance with the values during the update, when the critic has already seen the data.",
    formula="1 - Var(R - V) / Var(R), over all minibatches and epochs",
)
R2 = derived(
    "train/critic/r2", (RETURNS, VALUE_RESIDUALS), r_squared, "1", algorithms=VALUE_BASED,
    meaning="Coefficient of determination of the values; unlike explained variance, it also penalises a constant "
            "offset.",
    formula="1 - mean_i (R_i - V_old_i)^2 / Var(R)",
    rules=(Rule("good", "ok", Band(0.8)),),
)
VALUE_PRED = observed(
    "train/critic/value_pred_mean", Mean, "reward", tier="extension", algorithms=VALUE_BASED,
    meaning="Mean value during the update.",
    formula="mean_i V_i",
)
CLIP_RANGE_VF = observed(
    "train/critic/clip_range_vf", Last, "reward", tier="extension", algorithms=VALUE_BASED,
    meaning="How far a value may move in one update before its loss is clipped; absent without a value clip.",
    formula="value_clip",
)
CRITIC_LR = observed(
    "train/critic/lr", Last, "1", tier="extension", algorithms=WITH_CRITIC,
    meaning="Learning rate of the critic in the last optimiser step.",
    formula="schedule(progress)",
    rules=(Rule("zero", "critical", Band(0.0, open=True), sustained=3),),
)
CRITIC_GRAD_NORM = observed(
    "train/critic/grad_norm", Distribution, "gradient norm", tier="extension", algorithms=WITH_CRITIC,
    meaning="L2 norm of the critic's gradient before clipping, mean over optimiser steps.",
    formula="sqrt(sum_p ||g_p||^2)",
    rules=(Rule("finite", "critical", Finite(), quiet=20),),
)
CRITIC_GRAD_NORM_MAX = reading(
    "train/critic/grad_norm_max", CRITIC_GRAD_NORM, "max",
    meaning="Largest gradient norm of the critic among the optimiser steps.",
    formula="max over optimiser steps",
)
