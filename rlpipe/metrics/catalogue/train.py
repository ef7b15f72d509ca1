"""``train/``: what the learner did. Every minibatch and epoch of an iteration is pooled over valid decisions."""

from __future__ import annotations

from rlpipe.metrics.catalogue.rollout import RETURNS
from rlpipe.metrics.declaration import Name, Sign, derived, observed, reading
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

LOSS = observed(
    "train/loss",
    Mean,
    tier="core",
    unit="loss",
    meaning="Value of the whole objective that the optimiser minimises.",
    formula=(
        "policy_loss + value_coef * value_loss - entropy_coef * entropy_loss + kl_beta * kl_ref; the terms that the "
        "algorithm has, without cloning. With loss_aggregation=trajectory each weighs by trajectory here, and by "
        "decision where it stands alone"
    ),
    algorithms=("ppo", "grpo"),
    rules=(
        Rule("finite", "critical", Finite(), quiet=20, sign=1),
        Rule("spike", "warn", Spike(8.0, 20), sustained=3, quiet=10),
        Rule("falling", "ok", Expect("down", 50)),
    ),
    signs=(
        Sign(
            "sudden spike",
            "one component blew up: value targets, ratio or KL penalty",
            ("look at policy_loss, value_loss and kl_ref of the same row; lower the learning rate or the clip range"),
        ),
        Sign(
            "NaN or infinity",
            "overflow in the ratio or in the value targets",
            (
                "go back to the last checkpoint, lower the learning rate, and look for the first number that is "
                "not finite"
            ),
        ),
    ),
    names=(
        Name(
            "rlinf",
            "train/actor/total_loss",
            "transform",
            "the name in its code; it has been divided by the number of micro-batches already",
        ),
        Name("rlinf", "train/loss", "exact", "the name in its documentation; its code does not write it"),
        Name("sb3", "train/loss", "differs", "of the last minibatch of the last epoch alone"),
        Name("trl_legacy", "ppo/loss/total"),
    ),
)
LOSS_LAST_MINIBATCH = observed(
    "train/loss_last_minibatch",
    Mean,
    tier="extension",
    over="last minibatch",
    of=LOSS,
    unit="loss",
    meaning=(
        "The whole objective on the last minibatch of the last epoch alone, which is what Stable-"
        "Baselines3 logs as its loss."
    ),
    formula="as train/loss, over one minibatch",
    algorithms=("ppo", "grpo"),
    names=(Name("sb3", "train/loss", secondary=True),),
)
ENTROPY = observed(
    "train/entropy_loss",
    Mean,
    tier="core",
    unit="nats per decision",
    meaning="Mean entropy of the policy, with a positive sign: more random is larger.",
    formula="mean_i H(pi(. | s_i)); a Gaussian's may be negative",
    algorithms=("ppo", "grpo"),
    rules=(
        Rule("slow_decline", "ok", Expect("down", 50)),
        Rule("early_collapse", "warn", KeepsShare(0.1, 0.3), when="tag:discrete_policy", sustained=2, quiet=10),
        Rule("early_collapse_gauss", "warn", KeepsPerDimension(2.0, 0.3), when="tag:gaussian_policy"),
        Rule("never_falls", "info", Avoid("flat", 200), when="progress > 0.5", sign=1),
    ),
    signs=(
        Sign(
            "falls to its floor early",
            "premature convergence: entropy bonus too small, or advantages dominated by a few samples",
            "raise algorithm.entropy_coef, lower the learning rate, check the scale of the advantages",
        ),
        Sign(
            "never falls",
            "no learning signal, or too large an entropy bonus",
            "check rollout/score_mean and rollout/advantages_std, lower algorithm.entropy_coef",
        ),
        Sign(
            "always at most 0 in a discrete log from elsewhere",
            "it was written with Stable-Baselines3's sign, minus the entropy",
            "read it as dialect sb3, which turns the sign",
        ),
    ),
    names=(
        Name("cleanrl", "losses/entropy", "differs", "of the last minibatch of the last epoch alone"),
        Name(
            "rlinf",
            "train/actor/entropy_loss",
            "exact",
            (
                "the name in its code; it logs 0 where the entropy bonus is off, because it then does not compute"
                " the entropy"
            ),
        ),
        Name("rlinf", "train/entropy_loss", "exact", "the name in its documentation; its code does not write it"),
        Name("sb3", "train/entropy_loss", "transform", convert="negate"),
        Name("trl", "entropy", "exact", "of GRPO: a mean over tokens"),
        Name("trl", "policy/entropy_avg", "differs", "of PPO: padding is averaged in"),
        Name(
            "trl_legacy",
            "ppo/policy/entropy",
            "exact",
            "a plain mean over minibatches, which agrees where these have equal size",
        ),
    ),
)
ENTROPY_LAST_MINIBATCH = observed(
    "train/entropy_loss_last_minibatch",
    Mean,
    tier="extension",
    over="last minibatch",
    of=ENTROPY,
    unit="nats per decision",
    meaning="Mean entropy on the last minibatch of the last epoch alone, which is what CleanRL logs.",
    formula="as train/entropy_loss, over one minibatch",
    algorithms=("ppo", "grpo"),
    names=(Name("cleanrl", "losses/entropy", secondary=True),),
)
NUM_UPDATES = observed(
    "train/n_updates",
    Sum,
    tier="core",
    lifetime=True,
    unit="optimiser steps",
    meaning="Optimiser steps taken since the run began.",
    formula="count of steps that were not skipped",
    rules=(
        Rule("stalled", "critical", Increasing(3)),
        Rule(
            "count",
            "warn",
            Holds("delta({train/n_updates}) + {train/nonfinite_steps} == {train/epochs_run} * minibatches_per_epoch"),
            sign=None,
        ),
    ),
    signs=(
        Sign(
            "stops increasing",
            "training has stalled, or every step is skipped because it is not finite",
            "check train/nonfinite_steps and time/generate_rollouts",
        ),
    ),
    names=(
        Name(
            "sb3",
            "train/n_updates",
            "transform",
            (
                "counts passes over the batch, although its documentation speaks of gradient steps: see "
                "train/n_update_epochs"
            ),
            secondary=True,
        ),
    ),
)
NUM_UPDATE_EPOCHS = observed(
    "train/n_update_epochs",
    Sum,
    lifetime=True,
    unit="epochs",
    meaning="Passes over a batch since the run began.",
    formula="count of epochs",
    algorithms=("ppo", "grpo"),
    names=(Name("sb3", "train/n_updates", "exact", "what its train/n_updates counts, whatever the name says"),),
)
EPOCHS_RUN = observed(
    "train/epochs_run",
    Last,
    unit="epochs",
    meaning="Passes over the batch in this iteration; fewer than configured after a target-KL stop.",
    formula="count",
    algorithms=("ppo", "grpo"),
    rules=(Rule("early_stop", "info", Holds("{train/epochs_run} == n_epochs"), sustained=5),),
    signs=(
        Sign(
            "always stops after the first pass",
            "the target KL is too small, or a step too large",
            "lower the learning rate, or raise algorithm.target_kl",
        ),
    ),
)
NUM_SAMPLES = observed(
    "train/num_samples",
    Sum,
    unit="decisions",
    meaning="Valid decisions used in this iteration's update, counting every epoch.",
    formula="sum over minibatches of their valid decisions",
    algorithms=("ppo", "grpo"),
)
NONFINITE_STEPS = observed(
    "train/nonfinite_steps",
    Sum,
    unit="optimiser steps",
    meaning="Updates skipped because the loss or a gradient was not finite.",
    formula="count",
    rules=(Rule("any", "critical", Band(high=0.0), quiet=20),),
    signs=(
        Sign(
            "above 0",
            "a NaN in an observation, a reward or a value target, or an overflow",
            (
                "look in the row's field `nonfinite` for the metric that names it first; check the simulator's "
                "rewards and observations"
            ),
        ),
    ),
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
    tier="core",
    unit="nats per decision",
    meaning="How far the update moved the policy away from the one that collected the data.",
    formula="mean_i (r_i - 1) - ln r_i",
    algorithms=("ppo", "grpo"),
    rules=(
        Rule("band", "ok", Band(0.001, 0.02)),
        Rule("high", "warn", Band(high=0.03), sustained=3, quiet=10),
        Rule("very_high", "critical", Band(high=0.05), sustained=3, quiet=10),
        Rule("negative", "critical", Band(-1e-06), sign=None),
        Rule("no_move", "info", Band(1e-06), sustained=20, sign=2),
    ),
    signs=(
        Sign(
            "above 0.03",
            "too large a step: learning rate, number of epochs, or scale of the advantages",
            "lower the learning rate, take fewer epochs, or set algorithm.target_kl",
        ),
        Sign(
            "rises together with clip_fraction and ratio",
            "too many epochs on the same data, or data of an old policy",
            "take fewer epochs; see rollout/policy_lag_max",
        ),
        Sign(
            "about 0 for many iterations",
            "the learning rate is 0, no gradient reaches the policy, or all advantages are 0",
            "check train/actor/lr, train/actor/grad_norm and rollout/advantages_std",
        ),
    ),
    names=(
        Name("cleanrl", "losses/approx_kl", "differs", "of the last minibatch of the last epoch alone"),
        Name(
            "rlinf",
            "train/actor/approx_kl",
            "differs",
            "the signed estimator: see train/actor/approx_kl_k1",
            secondary=True,
        ),
        Name(
            "sb3",
            "train/approx_kl",
            "approx",
            "the same estimator over the last epoch alone: see train/actor/approx_kl_last_epoch",
            secondary=True,
        ),
        Name(
            "trl",
            "policy/approxkl_avg",
            "differs",
            "the quadratic estimator, padding averaged in: see train/actor/approx_kl_k2",
            secondary=True,
        ),
        Name(
            "trl_legacy",
            "ppo/policy/approxkl",
            "differs",
            "the quadratic estimator: see train/actor/approx_kl_k2",
            secondary=True,
        ),
    ),
)
APPROX_KL_K1 = observed(
    "train/actor/approx_kl_k1",
    Mean,
    unit="nats per decision",
    meaning=("The plain estimator of how far the policy moved (k1): unbiased, but noisy, and it can be negative."),
    formula="mean_i -ln r_i",
    algorithms=("ppo", "grpo"),
    names=(
        Name("cleanrl", "losses/old_approx_kl", "differs", "of the last minibatch of the last epoch alone"),
        Name(
            "rlinf",
            "train/actor/approx_kl",
            "exact",
            (
                "with one log-probability per action; with one per token and a mask it is too large by the number"
                " of action dimensions"
            ),
        ),
        Name("trl_legacy", "ppo/policy/policykl"),
    ),
)
APPROX_KL_K1_LAST_MINIBATCH = observed(
    "train/actor/approx_kl_k1_last_minibatch",
    Mean,
    tier="extension",
    over="last minibatch",
    of=APPROX_KL_K1,
    unit="nats per decision",
    meaning=("The plain estimator (k1) on the last minibatch of the last epoch alone, which is what CleanRL logs."),
    formula="as train/actor/approx_kl_k1, over one minibatch",
    algorithms=("ppo", "grpo"),
    names=(Name("cleanrl", "losses/old_approx_kl", secondary=True),),
)
APPROX_KL_K2 = observed(
    "train/actor/approx_kl_k2",
    Mean,
    unit="nats per decision",
    meaning="The quadratic estimator of how far the policy moved (k2): never negative, but biased.",
    formula="mean_i 0.5 (ln r_i)^2",
    algorithms=("ppo", "grpo"),
    rules=(Rule("high", "warn", Band(high=0.05), sustained=3),),
    names=(
        Name("trl", "policy/approxkl_avg", "exact", "where nothing is padded, which it averages in"),
        Name("trl_legacy", "ppo/policy/approxkl"),
    ),
    signs=APPROX_KL.signs,
)
APPROX_KL_MAX = observed(
    "train/actor/approx_kl_max",
    Distribution,
    reads="max",
    over="minibatch",
    of=APPROX_KL,
    unit="nats per decision",
    meaning="Largest approx_kl of any minibatch of the iteration.",
    formula="max over minibatches of mean_i (r_i - 1) - ln r_i",
    algorithms=("ppo", "grpo"),
    rules=(Rule("high", "warn", Band(high=0.1), sustained=3),),
    signs=APPROX_KL.signs,
)
APPROX_KL_LAST_EPOCH = observed(
    "train/actor/approx_kl_last_epoch",
    Mean,
    over="last epoch",
    of=APPROX_KL,
    unit="nats per decision",
    meaning=(
        "How far the update moved the policy, over the last epoch that was run alone, on which a target-KL stop acts."
    ),
    formula="as train/actor/approx_kl, over the last epoch",
    algorithms=("ppo", "grpo"),
    rules=(Rule("high", "warn", Band(high=0.03), sustained=3),),
    names=(
        Name(
            "sb3",
            "train/approx_kl",
            "exact",
            "where minibatches have equal size, because it takes a plain mean over them",
        ),
    ),
    signs=APPROX_KL.signs,
)
APPROX_KL_LAST_MINIBATCH = observed(
    "train/actor/approx_kl_last_minibatch",
    Mean,
    tier="extension",
    over="last minibatch",
    of=APPROX_KL,
    unit="nats per decision",
    meaning=(
        "How far the update moved the policy, over the last minibatch of the last epoch alone, as CleanRL logs it."
    ),
    formula="as train/actor/approx_kl, over one minibatch",
    algorithms=("ppo", "grpo"),
    names=(Name("cleanrl", "losses/approx_kl", secondary=True),),
)
CLIP_FRACTION = observed(
    "train/actor/clip_fraction",
    Mean,
    tier="core",
    unit="fraction",
    meaning="Share of decisions whose gradient the clip cuts.",
    formula="mean_i [-A_i clip(r_i) > -A_i r_i]",
    algorithms=("ppo", "grpo"),
    rules=(
        Rule("band", "ok", Band(0.0, 0.2)),
        Rule("sustained_high", "warn", Band(high=0.3), sustained=5),
        Rule("above_ideal", "info", Band(high=0.2), sustained=10),
        Rule("never_clips", "info", Band(0.0001), when="{train/actor/lr} > 0", sustained=20, sign=1),
        Rule("impossible", "critical", Band(0.0, 1.0), sign=None),
    ),
    signs=(
        Sign(
            "above 0.3 for several iterations",
            "the policy changes too fast, or the clip range is too tight",
            ("lower the learning rate, take fewer epochs, check the advantages for outliers, widen the clip range"),
        ),
        Sign(
            "0 for many iterations",
            "clip range too wide, learning rate too small, or all advantages alike",
            "compare train/actor/approx_kl; narrow the clip range or raise the learning rate",
        ),
        Sign("a single spike to 0.15 or 0.2", "it happens in healthy runs", "nothing"),
    ),
    names=(
        Name(
            "cleanrl",
            "losses/clipfrac",
            "differs",
            "counts every ratio outside the range: see train/actor/ratio_outside_fraction",
            secondary=True,
        ),
        Name(
            "rlinf",
            "train/actor/clip_fraction",
            "exact",
            (
                "except with one log-probability per token and a mask, where it is too large by the number of "
                "action dimensions and can exceed 1"
            ),
        ),
        Name(
            "sb3",
            "train/clip_fraction",
            "differs",
            (
                "counts every ratio outside the range, whatever the sign of the advantage: see "
                "train/actor/ratio_outside_fraction"
            ),
            secondary=True,
        ),
        Name("trl", "clip_ratio", "approx", "of GRPO with the Liger kernel: a plain mean over processes"),
        Name("trl", "clip_ratio/region_mean", "exact", "of GRPO"),
        Name("trl", "policy/clipfrac_avg", "exact", "of PPO"),
        Name("trl_legacy", "ppo/policy/clipfrac"),
    ),
)
RATIO_OUTSIDE_FRACTION = observed(
    "train/actor/ratio_outside_fraction",
    Mean,
    unit="fraction",
    meaning=("Share of decisions whose ratio is outside the clip range, whatever the sign of the advantage."),
    formula="mean_i [r_i < 1 - clip_low or r_i > 1 + clip_high]",
    algorithms=("ppo", "grpo"),
    rules=(
        Rule("typical", "ok", Band(0.05, 0.15)),
        Rule("band", "ok", Band(0.0, 0.2)),
        Rule("sustained_high", "warn", Band(high=0.3), sustained=5),
        Rule("never_clips", "info", Band(0.0001), sustained=20, sign=1),
    ),
    signs=(
        Sign(
            "above 0.3 for several iterations",
            "the policy changes too fast, or the clip range is too tight",
            ("lower the learning rate, take fewer epochs, check the advantages for outliers, widen the clip range"),
        ),
        Sign(
            "0 for many iterations",
            "clip range too wide, learning rate too small, or all advantages alike",
            "compare train/actor/approx_kl; narrow the clip range or raise the learning rate",
        ),
        Sign("a single spike to 0.15 or 0.2", "it happens in healthy runs", "nothing"),
    ),
    names=(
        Name("cleanrl", "losses/clipfrac"),
        Name("sb3", "train/clip_fraction"),
    ),
)
CLIP_FRACTION_LOW = observed(
    "train/actor/clip_fraction_low",
    Mean,
    unit="fraction",
    meaning=(
        "Share of decisions whose gradient the lower bound cuts; with clip_fraction_high it adds up to clip_fraction."
    ),
    formula="mean_i [r_i < 1 - clip_low and A_i < 0]",
    algorithms=("ppo", "grpo"),
    rules=(Rule("very_high", "warn", Band(high=0.3), sustained=5),),
    signs=(
        Sign(
            "very high",
            "large advantages, too high a learning rate, or too tight a clip range",
            "check the advantages and the learning rate; widen the range on that side",
        ),
    ),
    names=(
        Name(
            "trl",
            "clip_ratio/low_mean",
            "exact",
            "since it weighs by tokens; earlier versions averaged the means of processes",
        ),
    ),
)
CLIP_FRACTION_LOW_MIN = observed(
    "train/actor/clip_fraction_low_min",
    Distribution,
    reads="min",
    over="trajectory",
    of=CLIP_FRACTION_LOW,
    unit="fraction",
    meaning="Smallest clip_fraction_low of any trajectory.",
    formula="min_j mean_{i in j} [r_i < 1 - clip_low and A_i < 0]",
    algorithms=("ppo", "grpo"),
    names=(
        Name(
            "trl",
            "clip_ratio/low_min",
            "differs",
            "it averages this extreme over the iterations between two logs, so what it logs is no extreme",
        ),
    ),
)
CLIP_FRACTION_LOW_MAX = reading(
    "train/actor/clip_fraction_low_max",
    CLIP_FRACTION_LOW_MIN,
    "max",
    tier="extension",
    unit="fraction",
    meaning="Largest clip_fraction_low of any trajectory.",
    formula="max_j mean_{i in j} [r_i < 1 - clip_low and A_i < 0]",
    algorithms=("ppo", "grpo"),
)
CLIP_FRACTION_HIGH = observed(
    "train/actor/clip_fraction_high",
    Mean,
    unit="fraction",
    meaning=(
        "Share of decisions whose gradient the upper bound cuts; with clip_fraction_low it adds up to clip_fraction."
    ),
    formula="mean_i [r_i > 1 + clip_high and A_i > 0]",
    algorithms=("ppo", "grpo"),
    rules=(Rule("very_high", "warn", Band(high=0.3), sustained=5),),
    signs=(
        Sign(
            "very high",
            "large advantages, too high a learning rate, or too tight a clip range",
            "check the advantages and the learning rate; widen the range on that side",
        ),
    ),
    names=(
        Name(
            "trl",
            "clip_ratio/high_mean",
            "exact",
            "since it weighs by tokens; earlier versions averaged the means of processes",
        ),
    ),
)
CLIP_FRACTION_HIGH_MIN = observed(
    "train/actor/clip_fraction_high_min",
    Distribution,
    reads="min",
    tier="extension",
    over="trajectory",
    of=CLIP_FRACTION_HIGH,
    unit="fraction",
    meaning="Smallest clip_fraction_high of any trajectory.",
    formula="min_j mean_{i in j} [r_i > 1 + clip_high and A_i > 0]",
    algorithms=("ppo", "grpo"),
)
CLIP_FRACTION_HIGH_MAX = reading(
    "train/actor/clip_fraction_high_max",
    CLIP_FRACTION_HIGH_MIN,
    "max",
    unit="fraction",
    meaning="Largest clip_fraction_high of any trajectory.",
    formula="max_j mean_{i in j} [r_i > 1 + clip_high and A_i > 0]",
    algorithms=("ppo", "grpo"),
    names=(
        Name(
            "trl",
            "clip_ratio/high_max",
            "differs",
            "it averages this extreme over the iterations between two logs, so what it logs is no extreme",
        ),
    ),
)
CLIP_FRACTION_MIN = observed(
    "train/actor/clip_fraction_min",
    Distribution,
    reads="min",
    tier="extension",
    over="trajectory",
    of=CLIP_FRACTION,
    unit="fraction",
    meaning="Smallest clip_fraction of any trajectory.",
    formula="min_j mean_{i in j} [-A_i clip(r_i) > -A_i r_i]",
    algorithms=("ppo", "grpo"),
)
CLIP_FRACTION_MAX = reading(
    "train/actor/clip_fraction_max",
    CLIP_FRACTION_MIN,
    "max",
    tier="extension",
    unit="fraction",
    meaning="Largest clip_fraction of any trajectory.",
    formula="max_j mean_{i in j} [-A_i clip(r_i) > -A_i r_i]",
    algorithms=("ppo", "grpo"),
)
CLIPPED_RATIO = observed(
    "train/actor/clipped_ratio",
    Mean,
    tier="core",
    unit="ratio",
    meaning="Mean of the probability ratios after clamping; a ratio near 1, not a share.",
    formula="mean_i clamp(r_i, 1 - clip_low, 1 + clip_high)",
    algorithms=("ppo", "grpo"),
    rules=(
        Rule("near_one", "ok", Near(1.0, 0.1)),
        Rule("impossible", "critical", Holds("1 - eps_lo - 1e-6 <= {train/actor/clipped_ratio} <= 1 + eps_hi + 1e-6")),
    ),
    signs=(
        Sign(
            "pinned near 1 - clip_low or 1 + clip_high",
            "most ratios are clipped",
            "see train/actor/clip_fraction and train/actor/approx_kl",
        ),
    ),
    names=(Name("rlinf", "train/actor/clipped_ratio"),),
)
RATIO = observed(
    "train/actor/ratio",
    Distribution,
    unit="ratio",
    meaning=("Mean probability ratio between the policy being trained and the one that collected the data."),
    formula="mean_i r_i",
    algorithms=("ppo", "grpo"),
    rules=(
        Rule("near_one", "ok", Near(1.0, 0.1)),
        Rule("drift", "warn", Band(0.8, 1.25), sustained=3),
        Rule("drastic", "critical", Band(0.1, 2.0)),
        Rule("extreme", "critical", Band(high=200.0)),
    ),
    signs=(
        Sign(
            "2 and more, or 0.1 and less",
            "the policy changes too drastically from one update to the next",
            "lower the learning rate, take fewer epochs; see train/actor/rollout_train_kl",
        ),
        Sign(
            "not 1 on the first minibatch",
            (
                "rollout workers and learner disagree on log-probabilities: number type, temperature, or clipping"
                " of actions"
            ),
            "see train/actor/rollout_train_kl",
        ),
    ),
    names=(
        Name("rlinf", "train/actor/ratio"),
        Name("trl", "val/ratio", "differs", "padding counts as 1"),
    ),
)
RATIO_VAR = reading(
    "train/actor/ratio_var",
    RATIO,
    "var",
    unit="ratio^2",
    meaning="Variance of the probability ratios over decisions.",
    formula="mean_i (r_i - mean_k r_k)^2",
    algorithms=("ppo", "grpo"),
    rules=(Rule("high", "warn", Band(high=0.25), sustained=3),),
    signs=(
        Sign(
            "rising", "a few decisions dominate the update", "look at train/actor/ratio_max and train/actor/ratio_dist"
        ),
    ),
    names=(
        Name(
            "trl",
            "val/ratio_var",
            "differs",
            "a variance of minibatch means: see train/actor/ratio_minibatch_var",
            secondary=True,
        ),
    ),
)
RATIO_MINIBATCH_VAR = observed(
    "train/actor/ratio_minibatch_var",
    Distribution,
    reads="sample_var",
    tier="extension",
    over="minibatch",
    of=RATIO,
    unit="ratio^2",
    meaning=(
        "How much the mean ratio moves during an update: variance of the means of its minibatches, dividing by n - 1."
    ),
    formula="variance over minibatches of mean_i r_i, by n - 1",
    algorithms=("ppo", "grpo"),
    names=(Name("trl", "val/ratio_var", "approx", "padding is averaged in"),),
)
RATIO_ABS_DEV = observed(
    "train/actor/ratio_abs_dev",
    Mean,
    tier="extension",
    unit="ratio",
    meaning="Mean absolute distance of the ratio from one.",
    formula="mean_i |r_i - 1|",
    algorithms=("ppo", "grpo"),
    names=(Name("rlinf", "train/actor/ratio_abs", "exact", "written by its code; not in its documentation"),),
)
RATIO_MIN = reading(
    "train/actor/ratio_min",
    RATIO,
    "min",
    tier="extension",
    unit="ratio",
    meaning="Smallest probability ratio in the update.",
    formula="min_i r_i",
    algorithms=("ppo", "grpo"),
    rules=(Rule("low", "warn", Band(0.01)),),
    signs=RATIO.signs,
)
RATIO_MAX = reading(
    "train/actor/ratio_max",
    RATIO,
    "max",
    unit="ratio",
    meaning="Largest probability ratio in the update.",
    formula="max_i r_i",
    algorithms=("ppo", "grpo"),
    rules=(
        Rule("high", "warn", Band(high=20.0)),
        Rule("extreme", "critical", Band(high=200.0)),
    ),
    signs=RATIO.signs,
)
RATIO_DIST = observed(
    "train/actor/ratio_dist",
    Histogram,
    of=RATIO,
    unit="count",
    meaning="Distribution of the probability ratios.",
    formula="histogram of r_i",
    algorithms=("ppo", "grpo"),
    rules=(
        Rule("median", "ok", Percentile(50, 0.95, 1.05)),
        Rule("extreme", "critical", Percentile(100, high=200.0)),
    ),
    signs=(
        Sign("a tail above 200", "over-optimisation on a few actions", "lower the learning rate, take fewer epochs"),
    ),
    names=(Name("trl_legacy", "ppo/policy/ratio", "approx", "the raw array over tokens, padding included"),),
)
DUAL_CLIP_FRACTION = observed(
    "train/actor/dual_clip_fraction",
    Mean,
    tier="extension",
    unit="fraction",
    meaning="Share of decisions on which the dual clip bounds the loss; absent without a dual clip.",
    formula="mean_i [A_i < 0 and loss_i > -dual_clip A_i]",
    algorithms=("ppo", "grpo"),
    rules=(Rule("high", "warn", Band(high=0.01), sustained=5),),
    names=(Name("rlinf", "train/actor/dual_clip_fraction", "exact", "of its decoupled PPO"),),
)
DUAL_CLIPPED_RATIO = observed(
    "train/actor/dual_clipped_ratio",
    Mean,
    tier="extension",
    unit="ratio",
    meaning="Mean over all decisions of the ratio where the dual clip bounds the loss, and of 0 elsewhere.",
    formula="mean_i r_i [A_i < 0 and loss_i > -dual_clip A_i]",
    algorithms=("ppo", "grpo"),
    names=(Name("rlinf", "train/actor/dual_cliped_ratio", "exact", "with its spelling"),),
)
POLICY_LOSS = observed(
    "train/actor/policy_loss",
    Mean,
    tier="core",
    unit="loss",
    meaning="Clipped surrogate loss, without entropy and divergence, weighted as it is minimised.",
    formula="mean_i w_i max(-A_i r_i, -A_i clip(r_i)); w_i = 1, unless loss_aggregation weighs trajectories alike",
    algorithms=("ppo", "grpo"),
    rules=(
        Rule("typical", "ok", Band(-0.02, -0.01)),
        Rule("extreme", "warn", Spike(8.0, 20), sustained=3, quiet=10),
        Rule("finite", "critical", Finite(), quiet=20),
    ),
    signs=(
        Sign(
            "sudden large value of either sign",
            "an outlier among ratios or advantages",
            "see train/actor/ratio_max and rollout/advantages_max",
        ),
        Sign(
            "exactly 0 for many iterations",
            "all advantages are 0",
            ("see rollout/advantages_std, and rollout/frac_reward_zero_std where advantages are relative to a group"),
        ),
    ),
    names=(
        Name("cleanrl", "losses/policy_loss", "differs", "of the last minibatch of the last epoch alone"),
        Name(
            "rlinf",
            "train/actor/policy_loss",
            "differs",
            "with a step limit and a mask, every trajectory weighs alike, whatever its length",
        ),
        Name(
            "sb3",
            "train/policy_gradient_loss",
            "exact",
            "a plain mean over minibatches, which agrees where these have equal size",
        ),
        Name("trl", "loss/policy_avg", "exact", "of PPO"),
        Name(
            "trl",
            "policy_loss",
            "differs",
            "of GRPO: contains the KL penalty, and is logged only with an entropy bonus",
        ),
        Name("trl_legacy", "ppo/loss/policy"),
    ),
)
POLICY_LOSS_LAST_MINIBATCH = observed(
    "train/actor/policy_loss_last_minibatch",
    Mean,
    tier="extension",
    over="last minibatch",
    of=POLICY_LOSS,
    unit="loss",
    meaning=("Clipped surrogate loss on the last minibatch of the last epoch alone, which is what CleanRL logs."),
    formula="as train/actor/policy_loss, over one minibatch",
    algorithms=("ppo", "grpo"),
    names=(Name("cleanrl", "losses/policy_loss", secondary=True),),
)
POLICY_LOSS_ABS = observed(
    "train/actor/policy_loss_abs",
    Mean,
    tier="extension",
    unit="loss",
    meaning="Mean magnitude of the policy loss of a decision, without regard to sign.",
    formula="mean_i w_i |max(-A_i r_i, -A_i clip(r_i))|, w_i as for policy_loss",
    algorithms=("ppo", "grpo"),
    names=(Name("rlinf", "train/actor/policy_loss_abs"),),
)
ACTOR_GRAD_NORM = observed(
    "train/actor/grad_norm",
    Distribution,
    tier="core",
    unit="gradient norm",
    meaning="L2 norm of the actor's gradient before clipping, mean over optimiser steps.",
    formula="sqrt(sum_p ||g_p||^2)",
    rules=(
        Rule("finite", "critical", Finite(), quiet=20),
        Rule("spike", "warn", Spike(10.0, 50), sustained=3, quiet=10),
        Rule("vanished", "warn", Band(1e-08), when="{train/actor/lr} > 0", sustained=5, sign=1),
    ),
    signs=(
        Sign(
            "spike",
            "an outlier among the data, or value targets that exploded",
            "lower learner.max_grad_norm or the learning rate; inspect rollout/advantages_max",
        ),
        Sign(
            "0",
            "parameters are frozen, all advantages are 0, or the loss does not reach the parameters",
            "check rollout/advantages_std and the policy's parameters",
        ),
    ),
    names=(
        Name(
            "rlinf",
            "train/actor/grad_norm",
            "exact",
            "a mean over optimiser steps",
        ),
    ),
)
ACTOR_GRAD_NORM_MAX = reading(
    "train/actor/grad_norm_max",
    ACTOR_GRAD_NORM,
    "max",
    unit="gradient norm",
    meaning="Largest gradient norm of the actor among the optimiser steps.",
    formula="max over optimiser steps",
)
ACTOR_GRAD_CLIP_FRACTION = observed(
    "train/actor/grad_clip_fraction",
    Mean,
    tier="extension",
    unit="fraction",
    meaning="Share of optimiser steps whose gradient norm exceeded the clipping threshold.",
    formula="mean over optimiser steps of [grad_norm > max_grad_norm]",
    algorithms=("ppo", "grpo"),
    rules=(Rule("always", "info", Band(high=0.9), sustained=10),),
)
ACTOR_LR = observed(
    "train/actor/lr",
    Last,
    tier="core",
    unit="1",
    meaning="Learning rate of the actor in the last optimiser step.",
    formula="schedule(progress)",
    rules=(
        Rule("too_large", "critical", Band(high=0.01)),
        Rule("too_small", "info", Band(1e-06), when="progress < 0.9", sign=1),
    ),
    signs=(
        Sign(
            "too large",
            "steps overshoot, and the policy can collapse",
            "lower learner.lr to about 3e-4 for a small network",
        ),
        Sign("too small", "learning takes very long", "raise learner.lr or change learner.lr_schedule"),
    ),
    names=(
        Name("cleanrl", "charts/learning_rate"),
        Name("rlinf", "train/actor/lr", "approx", "a mean over steps, with zeros while its critic warms up"),
        Name("sb3", "train/learning_rate"),
        Name("trl", "lr"),
        Name("trl_legacy", "ppo/learning_rate", "exact", "in its code, not in its documentation"),
    ),
)
CLIP_RANGE = observed(
    "train/actor/clip_range",
    Last,
    unit="1",
    meaning="How far the ratio may leave 1 before the gradient is cut; absent where the two sides differ.",
    formula="clip_low, where clip_low = clip_high",
    algorithms=("ppo", "grpo"),
    rules=(Rule("constant", "ok", Unchanged(10), when="tag:no_clip_schedule"),),
    signs=(
        Sign(
            "read alone", "it says nothing without the share that it cuts", "plot train/actor/clip_fraction beside it"
        ),
    ),
    names=(Name("sb3", "train/clip_range"),),
)
CLIP_RANGE_LOW = observed(
    "train/actor/clip_range_low",
    Last,
    tier="extension",
    unit="1",
    meaning="How far the ratio may fall below 1 before the gradient is cut.",
    formula="clip_low",
    algorithms=("ppo", "grpo"),
)
CLIP_RANGE_HIGH = observed(
    "train/actor/clip_range_high",
    Last,
    tier="extension",
    unit="1",
    meaning="How far the ratio may rise above 1 before the gradient is cut.",
    formula="clip_high",
    algorithms=("ppo", "grpo"),
)
ACTION_STD = observed(
    "train/actor/action_std",
    Mean,
    unit="action units",
    meaning=("Standard deviation of a Gaussian policy, mean over action dimensions; absent when discrete."),
    formula="mean_d sigma_d",
    algorithms=("ppo", "grpo"),
    rules=(
        Rule("collapse", "warn", KeepsShare(0.05, 0.3)),
        Rule("growth", "warn", Band(high=3.0), sustained=10, sign=1),
    ),
    signs=(
        Sign("shrinks to 0 early", "premature convergence", "raise algorithm.entropy_coef, or policy.initial_log_std"),
        Sign(
            "grows without bound",
            "actions saturate at the limits of the action space, so that a larger deviation costs nothing",
            "lower algorithm.entropy_coef",
        ),
    ),
    names=(Name("sb3", "train/std"),),
)
ENTROPY_COEF = observed(
    "train/actor/entropy_coef",
    Last,
    tier="extension",
    unit="1",
    meaning="Weight of the entropy bonus in force.",
    formula="entropy_coef",
    algorithms=("ppo", "grpo"),
    names=(Name("trl", "entropy_coef"),),
)
KL_REF = observed(
    "train/actor/kl_ref",
    Mean,
    unit="nats per decision",
    meaning="How far the policy being trained is from a frozen reference policy, per decision.",
    formula="mean_i exp(x_i) - x_i - 1, with x_i = ln pi_ref(a_i) - ln pi_new(a_i)",
    algorithms=("ppo", "grpo"),
    needs="a frozen reference policy",
    rules=(
        Rule("band", "ok", Band(0.01, 0.1)),
        Rule("high", "warn", Band(high=0.1), sustained=5),
        Rule("negative", "warn", Band(0.0)),
        Rule("too_low", "info", Band(0.001), sustained=50),
    ),
    signs=(
        Sign(
            "rises steadily",
            "over-optimisation: the policy leaves the reference",
            "raise the KL coefficient, lower the learning rate",
        ),
        Sign("falls to about 0", "too little training, or too strong a penalty", "lower the KL coefficient"),
    ),
    language=(
        "The KL to the reference model, per action token; the sum over the tokens of a decision is that "
        "of the decision."
    ),
    names=(
        Name(
            "rlinf",
            "actor/training/actor/kl_loss",
            "differs",
            "of its language runners; the direction of the divergence depends on the training backend",
        ),
        Name("trl", "kl", "exact", "of GRPO with a KL penalty; multiplied by the ratio with use_bias_correction_kl"),
    ),
)
KL_COEF = observed(
    "train/actor/kl_coef",
    Last,
    unit="1",
    meaning="Weight of the reference-KL penalty in force.",
    formula="beta: kl_coef of PPO, kl_beta of GRPO",
    algorithms=("ppo", "grpo"),
    needs="a frozen reference policy",
    rules=(
        Rule(
            "follows_kl",
            "ok",
            Holds(  # it follows the report before
                "sign(delta({train/actor/kl_coef})) == "
                "sign({rollout/kl_ref_episode} - delta({rollout/kl_ref_episode}) - kl_target)"
            ),
            when="tag:adaptive_kl",
        ),
    ),
    signs=(
        Sign(
            "keeps growing",
            "the divergence does not answer to the penalty",
            "lower the learning rate, check the log-probabilities of the reference",
        ),
    ),
    names=(Name("trl_legacy", "objective/kl_coef"),),
)
CLONING_WEIGHT = observed(
    "train/actor/cloning_weight",
    Last,
    unit="1",
    meaning="Weight of the cloning loss in force.",
    formula="cloning_coef * cloning_decay^(iteration - 1)",
    algorithms=("ppo", "grpo"),
    needs="demonstrations to clone (demos, algorithm.cloning_coef)",
)
ADVANTAGES_NORM = observed(
    "train/actor/advantages_norm_mean",
    Distribution,
    unit="standard deviations",
    meaning="Mean advantage as the loss sees it, after normalisation: 0 but for rounding.",
    formula="mean_i A_i, with A = (A_raw - mean) / (std + 1e-8) over the whole batch, std by n - 1",
    algorithms=("ppo", "grpo"),
    rules=(Rule("centred", "warn", Near(0.0, 0.001), when="tag:whitening"),),
    names=(
        Name("rlinf", "rollout/advantages_mean", "approx", "normalised with each rank's own mean and deviation"),
        Name("trl_legacy", "ppo/policy/advantages_mean"),
    ),
)
ADVANTAGES_NORM_STD = reading(
    "train/actor/advantages_norm_std",
    ADVANTAGES_NORM,
    "std",
    unit="standard deviations",
    meaning=("Standard deviation of the advantages as the loss sees them, after normalisation: 1 but for rounding."),
    formula="sqrt(mean_i (A_i - mean)^2)",
    algorithms=("ppo", "grpo"),
)
ADVANTAGES_NORM_MAX = reading(
    "train/actor/advantages_norm_max",
    ADVANTAGES_NORM,
    "max",
    unit="standard deviations",
    meaning="Largest advantage as the loss sees it, after normalisation.",
    formula="max_i A_i",
    algorithms=("ppo", "grpo"),
    rules=(Rule("outlier", "warn", Band(high=10.0), when="tag:whitening", sustained=5),),
    names=(Name("rlinf", "rollout/advantages_max", "approx", "normalised with each rank's own mean and deviation"),),
)
ADVANTAGES_NORM_MIN = reading(
    "train/actor/advantages_norm_min",
    ADVANTAGES_NORM,
    "min",
    unit="standard deviations",
    meaning="Smallest advantage as the loss sees it, after normalisation.",
    formula="min_i A_i",
    algorithms=("ppo", "grpo"),
    names=(Name("rlinf", "rollout/advantages_min", "approx", "normalised with each rank's own mean and deviation"),),
)
PROXIMAL_RATIO = observed(
    "train/actor/proximal_ratio",
    Mean,
    tier="extension",
    unit="ratio",
    meaning="Mean ratio of the policy being trained to the proximal one.",
    formula="mean_i pi_new(a_i) / pi_prox(a_i)",
    algorithms=("ppo",),
    needs="decoupled PPO, with a proximal policy",
    names=(Name("rlinf", "train/actor/proximal_ratio"),),
)
CLIPPED_PROXIMAL_RATIO = observed(
    "train/actor/clipped_proximal_ratio",
    Mean,
    tier="extension",
    unit="ratio",
    meaning="Mean ratio of the policy being trained to the proximal one, after clamping.",
    formula="mean_i clip(pi_new(a_i) / pi_prox(a_i))",
    algorithms=("ppo",),
    needs="decoupled PPO, with a proximal policy",
    names=(Name("rlinf", "train/actor/clipped_proximal_ratio"),),
)
PROXIMAL_APPROX_KL = observed(
    "train/actor/proximal_approx_kl",
    Mean,
    tier="extension",
    unit="nats per decision",
    meaning=("How far the policy moved from the proximal one, by the plain estimator (k1), which can be negative."),
    formula="mean_i ln pi_prox(a_i) - ln pi_new(a_i)",
    algorithms=("ppo",),
    needs="decoupled PPO, with a proximal policy",
    names=(Name("rlinf", "train/actor/proximal_approx_kl"),),
)
BEHAV_APPROX_KL = observed(
    "train/actor/behav_approx_kl",
    Mean,
    tier="extension",
    unit="nats per decision",
    meaning=(
        "How far the proximal policy is from the one that collected the data, by the plain estimator "
        "(k1): how stale the data is."
    ),
    formula="mean over kept decisions of ln pi_old(a_i) - ln pi_prox(a_i)",
    algorithms=("ppo",),
    needs="decoupled PPO, with a proximal policy",
    rules=(Rule("stale", "warn", Band(high=0.05), sustained=5),),
    names=(Name("rlinf", "train/actor/behav_approx_kl"),),
)
BEHAV_CLIP_FRACTION = observed(
    "train/actor/behav_clip_fraction",
    Mean,
    tier="extension",
    unit="fraction",
    meaning="Share of decisions that are left out because their weight exceeds the threshold.",
    formula="1 - kept / valid decisions",
    algorithms=("ppo",),
    needs="decoupled PPO, with a proximal policy",
    rules=(Rule("high", "warn", Band(high=0.2), sustained=5),),
    names=(Name("rlinf", "train/actor/behav_clip_fraction"),),
)
ROLLOUT_TRAIN_KL = observed(
    "train/actor/rollout_train_kl",
    Mean,
    unit="nats per decision",
    meaning=(
        "How far the learner's log-probabilities are from those the rollout workers stored, for the same "
        "weights: 0 but for rounding."
    ),
    formula=("mean_i (q_i - 1) - ln q_i, with q_i = pi_learner(a_i) / pi_worker(a_i), before the first optimiser step"),
    algorithms=("ppo", "grpo"),
    rules=(
        Rule("mismatch", "warn", Band(high=0.001)),
        Rule("broken", "critical", Band(high=0.05)),
    ),
    signs=(
        Sign(
            "above 1e-3",
            (
                "number type, temperature, clipping of actions, or the weights themselves differ between workers "
                "and learner"
            ),
            "compare one batch on both sides; check rollout/policy_lag_max",
        ),
    ),
    names=(Name("rlinf", "actor/training/actor/rollout_train_kl", "approx", "of its language runners"),),
)
LOGP_DIFF = observed(
    "train/actor/logp_diff_mean",
    Distribution,
    tier="extension",
    unit="nats",
    meaning="Mean absolute difference between the learner's and the rollout workers' log-probabilities.",
    formula="mean_i |ln q_i|, q_i as for rollout_train_kl",
    algorithms=("ppo", "grpo"),
    names=(
        Name(
            "trl",
            "sampling/sampling_logp_difference/mean",
            "exact",
            "its mean is a plain mean over processes; its maximum is exact",
        ),
    ),
)
LOGP_DIFF_MAX = reading(
    "train/actor/logp_diff_max",
    LOGP_DIFF,
    "max",
    tier="extension",
    unit="nats",
    meaning="Largest absolute difference between the learner's and the rollout workers' log-probabilities.",
    formula="max_i |ln q_i|, q_i as for rollout_train_kl",
    algorithms=("ppo", "grpo"),
    names=(
        Name(
            "trl",
            "sampling/sampling_logp_difference/max",
            "exact",
            "its mean is a plain mean over processes; its maximum is exact",
        ),
    ),
)
IS_RATIO = observed(
    "train/actor/is_ratio_mean",
    Distribution,
    tier="extension",
    unit="ratio",
    meaning="Mean weight that corrects from the rollout workers' to the learner's policy.",
    formula="mean_i q_i, q_i as for rollout_train_kl",
    algorithms=("ppo", "grpo"),
    names=(
        Name(
            "trl",
            "sampling/importance_sampling_ratio/mean",
            "approx",
            "after truncation, where that is on; a plain mean over processes",
        ),
    ),
)
IS_RATIO_MIN = reading(
    "train/actor/is_ratio_min",
    IS_RATIO,
    "min",
    tier="extension",
    unit="ratio",
    meaning="Smallest weight that corrects from the rollout workers' to the learner's policy.",
    formula="min_i q_i, q_i as for rollout_train_kl",
    algorithms=("ppo", "grpo"),
    names=(
        Name(
            "trl",
            "sampling/importance_sampling_ratio/min",
            "approx",
            "after truncation, where that is on; a plain mean over processes",
        ),
    ),
)
IS_RATIO_MAX = reading(
    "train/actor/is_ratio_max",
    IS_RATIO,
    "max",
    tier="extension",
    unit="ratio",
    meaning="Largest weight that corrects from the rollout workers' to the learner's policy.",
    formula="max_i q_i, q_i as for rollout_train_kl",
    algorithms=("ppo", "grpo"),
    names=(
        Name(
            "trl",
            "sampling/importance_sampling_ratio/max",
            "approx",
            "after truncation, where that is on; a plain mean over processes",
        ),
    ),
)
VERSION = observed(
    "train/actor/version",
    Last,
    tier="extension",
    unit="versions",
    meaning="Version of the weights that the learner holds after the update.",
    formula="count of published versions",
    names=(Name("rlinf", "train/actor/current_version", "exact", "of its decoupled PPO"),),
)
POLICY_VERSION = observed(
    "train/actor/average_version",
    Mean,
    tier="extension",
    unit="versions",
    meaning="Version of the weights that collected the data, mean over decisions.",
    formula="mean_i version_i",
    names=(Name("rlinf", "train/actor/average_version", "exact", "of its decoupled PPO"),),
)
VALUE_LOSS = observed(
    "train/critic/value_loss",
    Mean,
    tier="core",
    unit="reward^2",
    meaning="Value loss as it enters the total, before its coefficient.",
    formula="mean_i 0.5 max((V - R)^2, (V_clip - R)^2)",
    algorithms=("ppo",),
    rules=(
        Rule("finite", "critical", Finite(), quiet=20, sign=1),
        Rule("declining", "ok", Expect("down", 50)),
        Rule("spike", "warn", Spike(8.0, 20), sustained=3, quiet=10, sign=1),
        Rule("growing", "warn", Avoid("up", 50), unless="{train/critic/explained_variance} >= 0.2"),
    ),
    signs=(
        Sign(
            "does not fall or grows for long",
            "the critic cannot follow the policy, or its targets are badly scaled",
            "raise learner.critic_lr or the network's size, scale the rewards, check rollout/returns_var",
        ),
        Sign(
            "spike or NaN",
            "bad targets, or an outlier among the rewards",
            "bound the rewards, check rollout/returns_max",
        ),
        Sign(
            "falls while the return stays flat",
            "the critic fits; the policy need not improve",
            "judge by env/success_once and env/return",
        ),
    ),
    names=(
        Name("cleanrl", "losses/value_loss", "differs", "of the last minibatch of the last epoch alone"),
        Name("rlinf", "train/critic/value_loss", "differs", "a Huber loss; with a mask, every trajectory weighs alike"),
        Name(
            "sb3",
            "train/value_loss",
            "transform",
            "no factor 0.5; with a value clip, the error of the clipped prediction alone",
            convert="double",
            secondary=True,
        ),
        Name("trl", "loss/value_avg"),
        Name("trl_legacy", "ppo/loss/value"),
    ),
)
VALUE_LOSS_LAST_MINIBATCH = observed(
    "train/critic/value_loss_last_minibatch",
    Mean,
    tier="extension",
    over="last minibatch",
    of=VALUE_LOSS,
    unit="reward^2",
    meaning="Value loss on the last minibatch of the last epoch alone, which is what CleanRL logs.",
    formula="as train/critic/value_loss, over one minibatch",
    algorithms=("ppo",),
    names=(Name("cleanrl", "losses/value_loss", secondary=True),),
)
VALUE_ERROR = observed(
    "train/critic/value_error",
    Mean,
    unit="reward^2",
    meaning=("Plain mean squared error of the values, which can be compared between variants of the value loss."),
    formula="mean_i (V_i - R_i)^2",
    algorithms=("ppo",),
    rules=(
        Rule("declining", "ok", Expect("down", 50)),
        Rule("finite", "critical", Finite(), quiet=20),
    ),
    names=(
        Name("sb3", "train/value_loss", "exact", "without a value clip"),
        Name("trl_legacy", "ppo/val/error"),
    ),
)
VALUE_CLIP_RATIO = observed(
    "train/critic/value_clip_ratio",
    Mean,
    tier="core",
    unit="fraction",
    meaning=("Share of decisions whose value moved further than the value clip allows; absent without a value clip."),
    formula="mean_i [|V - V_old| > value_clip]",
    algorithms=("ppo",),
    rules=(
        Rule("low", "ok", Band(high=0.2)),
        Rule("high", "warn", Band(high=0.3), sustained=5),
    ),
    signs=(
        Sign(
            "high",
            (
                "the critic moves too fast: it over-fits one batch, or the value clip is too small for the scale "
                "of the returns"
            ),
            "take fewer epochs, raise algorithm.value_clip, scale the rewards",
        ),
    ),
    names=(
        Name(
            "rlinf",
            "train/critic/value_clip_ratio",
            "invalid",
            "tests the difference after clamping, so it measures rounding",
        ),
        Name(
            "trl",
            "val/clipfrac_avg",
            "differs",
            "counts where the clip cuts the gradient: see train/critic/value_clip_active_fraction",
            secondary=True,
        ),
        Name(
            "trl_legacy",
            "ppo/val/clipfrac",
            "differs",
            "counts where the clip cuts the gradient: see train/critic/value_clip_active_fraction",
            secondary=True,
        ),
    ),
)
VALUE_CLIP_ACTIVE_FRACTION = observed(
    "train/critic/value_clip_active_fraction",
    Mean,
    unit="fraction",
    meaning=(
        "Share of decisions for which the clipped value error is the larger one, so that the value gradient is cut."
    ),
    formula="mean_i [(V_clip_i - R_i)^2 > (V_i - R_i)^2]",
    algorithms=("ppo",),
    rules=(Rule("high", "warn", Band(high=0.3), sustained=5),),
    names=(
        Name("trl", "val/clipfrac_avg"),
        Name("trl_legacy", "ppo/val/clipfrac"),
    ),
)
VALUE_RESIDUALS = observed(
    "train/critic/value_residual",
    Distribution,
    hidden=True,
    unit="reward",
    meaning="Ingredient of explained variance.",
    formula="R_i - V_old_i",
    algorithms=("ppo",),
)
EXPLAINED_VARIANCE = derived(
    "train/critic/explained_variance",
    (
        RETURNS,
        VALUE_RESIDUALS,
    ),
    explained_variance,
    tier="core",
    unit="1",
    meaning=("How much of the variation of the value targets the critic foresaw; blind to a constant offset."),
    formula="1 - Var(R - V_old) / Var(R); absent where R does not vary",
    algorithms=("ppo",),
    rules=(
        Rule("good", "ok", Band(0.8)),
        Rule("late", "ok", Band(0.9), when="tag:rapid_improvement"),
        Rule(
            "useless",
            "warn",
            Band(0.0, open=True),
            unless="{rollout/returns_var} <= 1e-6*max(1, {rollout/returns_mean}*{rollout/returns_mean})",
            sustained=10,
        ),
        Rule("impossible", "critical", Band(high=1.0), sign=None),
    ),
    signs=(
        Sign(
            "0 or below for long",
            "the critic is no better than a constant: wrong targets, learning rate or features",
            ("check train/critic/value_error, learner.critic_lr, the scale of the returns, and what the critic sees"),
        ),
        Sign(
            "drops after the task is solved",
            "the returns hardly vary any more, so nothing is left to explain",
            "nothing, while train/critic/value_error is small; no alert is raised then",
        ),
        Sign(
            "1 with a large value_error",
            "a constant offset, to which explained variance is blind",
            "look at train/critic/r2 and train/critic/value_error",
        ),
    ),
    names=(
        Name("cleanrl", "losses/explained_variance"),
        Name(
            "rlinf",
            "train/critic/explained_variance",
            "differs",
            ("with the values during the update, from sums in float32: see train/critic/explained_variance_post"),
            secondary=True,
        ),
        Name("sb3", "train/explained_variance"),
        Name(
            "trl_legacy",
            "ppo/val/var_explained",
            "differs",
            "the coefficient of determination, averaged over ranks: see train/critic/r2",
            secondary=True,
        ),
    ),
)
RETURNS_TRAINED = observed(
    "train/critic/returns_trained",
    Distribution,
    hidden=True,
    unit="reward",
    meaning="Ingredient of explained_variance_post.",
    formula="R_i, of every minibatch and epoch",
    algorithms=("ppo",),
)
VALUE_RESIDUALS_TRAINED = observed(
    "train/critic/value_residual_trained",
    Distribution,
    hidden=True,
    unit="reward",
    meaning="Ingredient of explained_variance_post.",
    formula="R_i - V_i, of every minibatch and epoch",
    algorithms=("ppo",),
)
EXPLAINED_VARIANCE_POST = derived(
    "train/critic/explained_variance_post",
    (
        RETURNS_TRAINED,
        VALUE_RESIDUALS_TRAINED,
    ),
    explained_variance,
    tier="extension",
    unit="1",
    meaning=("Explained variance with the values during the update, which have seen the data that they explain."),
    formula="1 - Var(R - V) / Var(R), over all minibatches and epochs",
    algorithms=("ppo",),
    names=(Name("rlinf", "train/critic/explained_variance", "exact", "but for cancellation in float32"),),
)
R2 = derived(
    "train/critic/r2",
    (
        RETURNS,
        VALUE_RESIDUALS,
    ),
    r_squared,
    unit="1",
    meaning=(
        "Coefficient of determination of the values; unlike explained variance, it also punishes a constant offset."
    ),
    formula="1 - mean_i (R_i - V_old_i)^2 / Var(R)",
    algorithms=("ppo",),
    rules=(Rule("good", "ok", Band(0.8)),),
    names=(
        Name(
            "trl_legacy",
            "ppo/val/var_explained",
            "approx",
            "variance by n - 1, values during the update, a plain mean over ranks and minibatches",
        ),
    ),
)
VALUE_PRED = observed(
    "train/critic/value_pred_mean",
    Mean,
    tier="extension",
    unit="reward",
    meaning="Mean value during the update.",
    formula="mean_i V_i",
    algorithms=("ppo",),
    names=(Name("trl_legacy", "ppo/val/vpred"),),
)
CLIP_RANGE_VF = observed(
    "train/critic/clip_range_vf",
    Last,
    tier="extension",
    unit="reward",
    meaning="How far a value may move in one update before its loss is clipped; absent without a value clip.",
    formula="value_clip",
    algorithms=("ppo",),
    names=(Name("sb3", "train/clip_range_vf"),),
)
CRITIC_LR = observed(
    "train/critic/lr",
    Last,
    tier="extension",
    unit="1",
    meaning="Learning rate of the critic in the last optimiser step.",
    formula="schedule(progress)",
    algorithms=("ppo", "sac", "rlpd"),
    names=(Name("rlinf", "train/critic/lr"),),
    rules=(Rule("zero", "critical", Band(0.0, open=True), sustained=3),),
    signs=(
        Sign(
            "0",
            "the critic does not learn, because its learning rate is 0",
            "set learner.critic_lr, or leave it out to take the actor's",
        ),
    ),
)
CRITIC_GRAD_NORM = observed(
    "train/critic/grad_norm",
    Distribution,
    tier="extension",
    unit="gradient norm",
    meaning="L2 norm of the critic's gradient before clipping, mean over optimiser steps.",
    formula="sqrt(sum_p ||g_p||^2)",
    algorithms=("ppo", "sac", "rlpd"),
    rules=(Rule("finite", "critical", Finite(), quiet=20),),
    names=(Name("rlinf", "train/critic/grad_norm", "exact", "of its SAC"),),
)
CRITIC_GRAD_NORM_MAX = reading(
    "train/critic/grad_norm_max",
    CRITIC_GRAD_NORM,
    "max",
    unit="gradient norm",
    meaning="Largest gradient norm of the critic among the optimiser steps.",
    formula="max over optimiser steps",
)
