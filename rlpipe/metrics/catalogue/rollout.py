"""``rollout/``: the batch that was learnt from, each decision once."""

from __future__ import annotations

from rlpipe.metrics.catalogue.env import ENV_EPISODE_RETURN, ENV_RETURN_DIST
from rlpipe.metrics.declaration import Name, Sign, observed, reading
from rlpipe.metrics.reductions import Distribution, Histogram, Mean, Skewed, Sum
from rlpipe.metrics.rules import Avoid, Band, Expect, Finite, Holds, Rule, Spike

ADVANTAGES = observed(
    "rollout/advantages_mean",
    Skewed,
    tier="core",
    unit="reward",
    meaning="Mean raw advantage, before normalisation.",
    formula="mean_i A_raw_i",
    algorithms=("ppo", "grpo"),
    rules=(
        Rule("centred", "info", Holds("abs({rollout/advantages_mean}) <= 0.5*{rollout/advantages_std}"), sustained=10),
    ),
    signs=(Sign("far from 0 for long", "the critic is biased", "check train/critic/value_error and train/critic/r2"),),
    names=(
        Name(
            "rlinf",
            "rollout/advantages_mean",
            "differs",
            (
                "after normalisation, with each rank's own mean and deviation: see "
                "train/actor/advantages_norm_mean, _max, _min; exact for GRPO"
            ),
            secondary=True,
        ),
        Name("trl_legacy", "ppo/policy/advantages_mean", "differs", "after normalisation", secondary=True),
    ),
)
ADVANTAGES_MAX = reading(
    "rollout/advantages_max",
    ADVANTAGES,
    "max",
    tier="core",
    unit="reward",
    meaning="Largest raw advantage.",
    formula="max_i A_raw_i",
    algorithms=("ppo", "grpo"),
    signs=(
        Sign(
            "one huge value",
            "an outlier among the rewards, or a wrong value at a reset",
            "inspect that episode in episodes.jsonl; check terminated and truncated",
        ),
    ),
    names=(
        Name(
            "rlinf",
            "rollout/advantages_max",
            "differs",
            (
                "after normalisation, with each rank's own mean and deviation: see "
                "train/actor/advantages_norm_mean, _max, _min; exact for GRPO"
            ),
            secondary=True,
        ),
    ),
)
ADVANTAGES_MIN = reading(
    "rollout/advantages_min",
    ADVANTAGES,
    "min",
    tier="core",
    unit="reward",
    meaning="Smallest raw advantage.",
    formula="min_i A_raw_i",
    algorithms=("ppo", "grpo"),
    signs=(
        Sign(
            "one huge value",
            "an outlier among the rewards, or a wrong value at a reset",
            "inspect that episode in episodes.jsonl; check terminated and truncated",
        ),
    ),
    names=(
        Name(
            "rlinf",
            "rollout/advantages_min",
            "differs",
            (
                "after normalisation, with each rank's own mean and deviation: see "
                "train/actor/advantages_norm_mean, _max, _min; exact for GRPO"
            ),
            secondary=True,
        ),
    ),
)
ADVANTAGES_STD = reading(
    "rollout/advantages_std",
    ADVANTAGES,
    "std",
    unit="reward",
    meaning="Standard deviation of raw advantages.",
    formula="sqrt(mean_i (A_raw_i - mean)^2)",
    algorithms=("ppo", "grpo"),
    rules=(Rule("zero", "warn", Band(1e-08), sustained=3),),
    signs=(
        Sign(
            "0",
            "there is nothing to learn from: all rewards alike",
            ("see rollout/advantages_std, and rollout/frac_reward_zero_std where advantages are relative to a group"),
        ),
    ),
)
ADVANTAGES_SKEW = reading(
    "rollout/advantages_skew",
    ADVANTAGES,
    "skew",
    tier="extension",
    unit="1",
    meaning="Asymmetry of the raw advantages.",
    formula="mean_i (A_raw_i - mean)^3 / std^3",
    algorithms=("ppo", "grpo"),
    rules=(Rule("balanced", "info", Band(-3.0, 3.0), sustained=10),),
    signs=(
        Sign(
            "strongly skewed",
            "a few rare successes or failures dominate",
            "nothing while success is rare and its reward sparse; otherwise bound the rewards",
        ),
    ),
)
ADVANTAGES_DIST = observed(
    "rollout/advantages_dist",
    Histogram,
    of=ADVANTAGES,
    unit="count",
    meaning="Distribution of the raw advantages.",
    formula="histogram of A_raw_i",
    algorithms=("ppo", "grpo"),
    rules=(Rule("balanced", "ok", Holds("abs({rollout/advantages_skew}) < 3")),),
    names=(Name("trl_legacy", "ppo/policy/advantages", "differs", "after normalisation, padding included as zeros"),),
)
RETURNS = observed(
    "rollout/returns_mean",
    Distribution,
    unit="reward",
    meaning="Mean value target (a lambda-return per step; the return of episodes is env/return).",
    formula="mean_i R_i",
    algorithms=("ppo",),
    rules=(
        Rule(
            "scale",
            "info",
            Holds("abs({rollout/returns_mean} - {rollout/values_mean}) <= 2*sqrt({rollout/returns_var}) + 1e-6"),
            sustained=10,
        ),
    ),
    names=(
        Name("rlinf", "rollout/returns_mean"),
        Name("trl_legacy", "ppo/returns/mean"),
    ),
)
RETURNS_MAX = reading(
    "rollout/returns_max",
    RETURNS,
    "max",
    unit="reward",
    meaning="Largest value target.",
    formula="max_i R_i",
    algorithms=("ppo",),
    names=(Name("rlinf", "rollout/returns_max"),),
)
RETURNS_MIN = reading(
    "rollout/returns_min",
    RETURNS,
    "min",
    unit="reward",
    meaning="Smallest value target.",
    formula="min_i R_i",
    algorithms=("ppo",),
    names=(Name("rlinf", "rollout/returns_min"),),
)
RETURNS_VAR = reading(
    "rollout/returns_var",
    RETURNS,
    "var",
    unit="reward^2",
    meaning="Variance of the value targets.",
    formula="mean_i (R_i - mean)^2",
    algorithms=("ppo",),
    rules=(
        Rule(
            "jump",
            "info",
            Spike(8.0, 20),
            when="{rollout/returns_var} > 1e-3*max(1, {rollout/returns_mean}*{rollout/returns_mean})",
            sustained=3,
            quiet=10,
        ),
    ),
    names=(Name("trl_legacy", "ppo/returns/var", "approx", "variance by n - 1"),),
)
VALUES = observed(
    "rollout/values_mean",
    Distribution,
    unit="reward",
    meaning="Mean predicted value at collection.",
    formula="mean_i V_old_i",
    algorithms=("ppo",),
    rules=(Rule("unstable", "info", Spike(8.0, 20), sustained=3, quiet=10),),
    signs=(
        Sign(
            "its variance collapses while rollout/returns_var does not",
            "the critic predicts a constant",
            "see train/critic/explained_variance",
        ),
    ),
    names=(Name("trl_legacy", "ppo/val/mean"),),
)
VALUES_VAR = reading(
    "rollout/values_var",
    VALUES,
    "var",
    unit="reward^2",
    meaning="Variance of the predicted values at collection.",
    formula="mean_i (V_old_i - mean)^2",
    algorithms=("ppo",),
    rules=(
        Rule(
            "unstable",
            "info",
            Spike(8.0, 20),
            when="{rollout/values_var} > 1e-3*max(1, {rollout/values_mean}*{rollout/values_mean})",
            sustained=3,
            quiet=10,
            sign=None,
        ),
    ),
    signs=(
        Sign(
            "its variance collapses while rollout/returns_var does not",
            "the critic predicts a constant",
            "see train/critic/explained_variance",
        ),
    ),
    names=(Name("trl_legacy", "ppo/val/var", "approx", "divides by n - 1"),),
)
REWARDS = observed(
    "rollout/rewards",
    Mean,
    tier="core",
    unit="reward per environment step",
    meaning="Mean raw reward per environment step, without bootstrap terms.",
    formula="sum_i reward_i / count_i",
    algorithms=("ppo", "grpo"),
    rules=(
        Rule("finite", "critical", Finite(), quiet=20, sign=1),
        Rule("rising", "ok", Expect("up", 100)),
    ),
    signs=(
        Sign(
            "differs from the sum of returns over the sum of lengths",
            "steps of resets, or predicted values, were counted in",
            "recompute it from episodes.jsonl",
        ),
        Sign(
            "not finite",
            "the simulator paid a reward that is NaN or infinite",
            "find the step in the simulator, and mend its reward",
        ),
    ),
    names=(
        Name(
            "rlinf",
            "rollout/rewards",
            "differs",
            "with automatic resets, the predicted value at a time limit is added in",
        ),
    ),
)
SCORE = reading(
    "rollout/score_mean",
    ENV_EPISODE_RETURN,
    "mean",
    tier="core",
    unit="reward",
    meaning="Mean score of an episode, which the algorithm makes larger, before any normalisation.",
    formula="mean_e G_e",
    rules=(
        Rule("rising", "ok", Expect("up", 100)),
        Rule("plateau", "info", Avoid("flat", 200), when="{rollout/score_mean} < target"),
    ),
    signs=(
        Sign(
            "plateau",
            "stagnation: too little exploration, all scores alike, or learning rate too small",
            "see train/entropy_loss and rollout/advantages_std",
        ),
        Sign(
            "rises while env/success_once does not",
            "a shaped part of the reward is being exploited",
            "inspect env/reward_terms/{name}/mean",
        ),
    ),
    language=(
        "The score of a completion: the sum of the environment's rewards over one episode. The same for a"
        " policy that acts in tokens."
    ),
    names=(
        Name("trl", "objective/scores", "exact", "of PPO"),
        Name(
            "trl",
            "reward",
            "exact",
            "of GRPO: before normalisation, whatever its documentation says",
        ),
        Name(
            "trl_legacy",
            "env/reward_mean",
            "exact",
            "one score for each trajectory; not the reward per step of env/reward",
        ),
        Name("trl_legacy", "ppo/mean_scores"),
    ),
)
SCORE_STD = reading(
    "rollout/score_std",
    ENV_EPISODE_RETURN,
    "std",
    unit="reward",
    meaning="Standard deviation of the episodes' scores.",
    formula="sqrt(mean_e (G_e - mean)^2)",
    rules=(
        Rule(
            "exploding",
            "warn",
            Spike(8.0, 20),
            when="{rollout/score_std} > 0.5*abs({rollout/score_mean})",
            sustained=3,
            quiet=10,
        ),
    ),
    signs=(
        Sign("explodes", "outliers among the rewards, or a broken worker", "compare the workers in episodes.jsonl"),
        Sign(
            "0",
            "all episodes score alike",
            ("see rollout/advantages_std, and rollout/frac_reward_zero_std where advantages are relative to a group"),
        ),
    ),
    names=(
        Name(
            "trl",
            "reward_std",
            "transform",
            "older versions logged the mean over groups",
            convert="sample_std",
        ),
        Name(
            "trl_legacy",
            "env/reward_std",
            "transform",
            "with several ranks it averages over them first and is too small",
            convert="sample_std",
        ),
        Name("trl_legacy", "ppo/std_scores", "transform", convert="sample_std"),
    ),
)
SCORE_DIST = reading(
    "rollout/score_dist",
    ENV_RETURN_DIST,
    "",
    unit="count",
    meaning="Distribution of the episodes' scores.",
    formula="histogram of G_e",
    algorithms=("ppo", "grpo"),
    rules=(Rule("tail", "info", Holds("(p99 - p50) <= 10*(p75 - p25) + 1e-9"), sustained=10),),
    signs=(Sign("a long tail", "outliers among the rewards", "bound or rescale the rewards"),),
    names=(Name("trl_legacy", "env/reward_dist", "exact", "the raw array"),),
)
GROUP_SCORE_STD = observed(
    "rollout/group_score_std_mean",
    Mean,
    unit="reward",
    meaning="Spread of the scores within a group, mean over groups: how much there is to learn from.",
    formula="mean_g std of G_e over e in g, by n - 1",
    algorithms=("grpo",),
    needs="a group-relative algorithm",
    rules=(Rule("no_signal", "warn", Band(1e-06), sustained=3),),
)
FRAC_REWARD_ZERO_STD = observed(
    "rollout/frac_reward_zero_std",
    Mean,
    tier="core",
    unit="fraction",
    meaning="Share of groups whose members all scored alike, and which therefore teach nothing.",
    formula="mean_g [max G - min G <= 1e-6 max(1, max |G|)]",
    algorithms=("grpo",),
    needs="a group-relative algorithm",
    rules=(
        Rule("most", "warn", Band(high=0.8), sustained=5),
        Rule("all", "critical", Band(high=0.999), sustained=3),
    ),
    signs=(
        Sign(
            "near 1",
            "the task is too easy or too hard for the size of the groups",
            "change the curriculum, take larger groups, explore more, or leave such groups out",
        ),
    ),
    names=(
        Name(
            "trl",
            "frac_reward_zero_std",
            "exact",
            "for groups of equal size, with scale_rewards group or none",
        ),
    ),
)
GROUP_FILTERED_FRACTION = observed(
    "rollout/group_filtered_fraction",
    Mean,
    tier="extension",
    unit="fraction",
    meaning="Share of groups left out of the loss, because all of a group scored alike; absent without the filter.",
    formula="mean_g [max G - min G <= 1e-6 max(1, max |G|)], where filter_groups is set",
    algorithms=("grpo",),
    needs="a group-relative algorithm",
    rules=(Rule("most", "warn", Band(high=0.8), sustained=5),),
)
NON_SCORE_REWARD = observed(
    "rollout/non_score_reward",
    Distribution,
    unit="reward",
    meaning="What the penalty for leaving the reference policy adds to the score of a trajectory; negative.",
    formula="mean_j sum_{i in j} -beta kl_i",
    algorithms=("ppo",),
    needs="a penalty in the reward (algorithm.kl_control)",
    rules=(
        Rule("dominates", "warn", Holds("abs({rollout/non_score_reward}) <= abs({rollout/score_mean})"), sustained=5),
    ),
    signs=(
        Sign(
            "larger than the score",
            "the penalty is too strong, or the policy far from the reference",
            "lower the KL coefficient or the learning rate",
        ),
    ),
    language="The KL penalty of a completion: per action token, summed over the episode.",
    names=(Name("trl", "objective/non_score_reward"),),
)
NON_SCORE_REWARD_STEP = observed(
    "rollout/non_score_reward_step",
    Mean,
    unit="reward per decision",
    meaning="What the penalty for leaving the reference policy adds to the reward of a decision; negative.",
    formula="mean_i -beta kl_i",
    algorithms=("ppo",),
    needs="a penalty in the reward (algorithm.kl_control)",
    rules=(
        Rule("dominates", "warn", Holds("abs({rollout/non_score_reward}) <= abs({rollout/score_mean})"), sustained=5),
    ),
    names=(
        Name(
            "trl_legacy",
            "ppo/mean_non_score_reward",
            "exact",
            "per token; TRL's newer objective/non_score_reward is per sequence",
        ),
    ),
)
SHAPED_RETURN = observed(
    "rollout/shaped_return_mean",
    Distribution,
    unit="reward",
    meaning=(
        "Mean score of a trajectory with the KL penalty added: what is really made larger where there is "
        "a reference policy."
    ),
    formula="mean_j sum_{i in j} reward_i - beta kl_i; score_mean + non_score_reward where trajectories are episodes",
    algorithms=("ppo",),
    needs="a penalty in the reward (algorithm.kl_control)",
    rules=(Rule("rising", "ok", Expect("up", 100)),),
    signs=(
        Sign(
            "falls while the score rises",
            "the penalty outweighs the gain",
            "lower the KL coefficient or the learning rate",
        ),
    ),
    names=(
        Name(
            "trl", "objective/rlhf_reward", "exact", "by its code; its documentation has the sign of the penalty turned"
        ),
    ),
)
KL_REF_EPISODE = observed(
    "rollout/kl_ref_episode",
    Distribution,
    unit="nats per episode",
    meaning="How far the collecting policy is from the frozen reference policy, summed over a trajectory.",
    formula="mean_j sum_{i in j} ln pi_old(a_i) - ln pi_ref(a_i)",
    algorithms=("ppo", "grpo"),
    needs="a frozen reference policy",
    rules=(
        Rule("negative", "warn", Band(0.0), sustained=3),
        Rule("strongly_negative", "critical", Band(-1.0)),
        Rule("rising", "warn", Avoid("up", 50)),
    ),
    signs=(
        Sign(
            "negative",
            "actions are sampled in another way than they are scored, or it is the wrong reference",
            "check how actions are sampled; see train/actor/rollout_train_kl",
        ),
        Sign("large", "over-optimisation: the policy leaves the reference", "raise the KL coefficient"),
    ),
    names=(
        Name("trl", "objective/kl", "exact", "with kl_estimator k1, the default"),
        Name("trl_legacy", "objective/kl", "exact", "with kl_penalty kl, the default"),
    ),
)
KL_REF_DIST = observed(
    "rollout/kl_ref_dist",
    Histogram,
    tier="extension",
    unit="count",
    meaning="Distribution of the divergence from the reference policy, one value for each trajectory.",
    formula="histogram of sum_{i in j} ln pi_old(a_i) - ln pi_ref(a_i)",
    of=KL_REF_EPISODE,
    algorithms=("ppo", "grpo"),
    needs="a frozen reference policy",
    names=(Name("trl_legacy", "objective/kl_dist"),),
)
ENTROPY_EPISODE = observed(
    "rollout/entropy_episode",
    Distribution,
    unit="nats per episode",
    meaning=("Entropy of whole trajectories under the policy that collected them, estimated from the actions taken."),
    formula="mean_j sum_{i in j} -ln pi_old(a_i)",
    rules=(Rule("falling", "ok", Expect("down", 100)),),
    signs=(
        Sign(
            "falls only because episodes get shorter",
            "it is a sum over steps",
            "compare train/entropy_loss, which is per decision",
        ),
    ),
    names=(
        Name("trl", "objective/entropy", "differs", "every position of padding takes 1 away"),
        Name("trl_legacy", "objective/entropy"),
    ),
)
LOG_PROBS = observed(
    "rollout/logprobs_mean",
    Distribution,
    unit="nats per decision",
    meaning="Mean log-probability of the actions taken, under the policy that collected them.",
    formula="mean_i ln pi_old(a_i)",
    algorithms=("ppo", "grpo"),
    rules=(Rule("shift", "info", Spike(8.0, 20)),),
    signs=(
        Sign(
            "sudden shift", "sampling or the action space has changed", "inspect the distribution of log-probabilities"
        ),
    ),
    names=(
        Name(
            "trl_legacy",
            "objective/logprobs",
            "transform",
            "an array, of which this is the mean without padding",
            secondary=True,
        ),
    ),
)
LOG_PROBS_DIST = observed(
    "rollout/logprobs_dist",
    Histogram,
    of=LOG_PROBS,
    unit="count",
    meaning="Distribution of the log-probabilities of the actions taken.",
    formula="histogram of ln pi_old(a_i)",
    algorithms=("ppo", "grpo"),
    names=(
        Name(
            "trl_legacy",
            "objective/logprobs",
            "approx",
            "the raw array, with query and padding; with several ranks it averages unrelated samples",
        ),
    ),
)
REF_LOG_PROBS = observed(
    "rollout/ref_logprobs_mean",
    Distribution,
    unit="nats per decision",
    meaning="Mean log-probability of the actions taken, under the reference policy.",
    formula="mean_i ln pi_ref(a_i)",
    algorithms=("ppo", "grpo"),
    needs="a frozen reference policy",
    rules=(Rule("shift", "info", Spike(8.0, 20)),),
    signs=(
        Sign(
            "sudden shift", "sampling or the action space has changed", "inspect the distribution of log-probabilities"
        ),
    ),
    names=(
        Name(
            "trl_legacy",
            "objective/ref_logprobs",
            "transform",
            "an array, of which this is the mean without padding",
            secondary=True,
        ),
    ),
)
REF_LOG_PROBS_DIST = observed(
    "rollout/ref_logprobs_dist",
    Histogram,
    of=REF_LOG_PROBS,
    unit="count",
    meaning="Distribution of the log-probabilities of the actions taken.",
    formula="histogram of ln pi_ref(a_i)",
    algorithms=("ppo", "grpo"),
    needs="a frozen reference policy",
    names=(
        Name(
            "trl_legacy",
            "objective/ref_logprobs",
            "approx",
            "the raw array, with query and padding; with several ranks it averages unrelated samples",
        ),
    ),
)
ACTION_TOKENS_TOTAL = observed(
    "rollout/action_tokens_total",
    Sum,
    lifetime=True,
    unit="action tokens",
    meaning=("Action tokens produced since the run began; other policies count one for each decision."),
    formula=("sum over decisions of tokens per decision; 1 per decision for a policy that does not act in tokens"),
    language=(
        "Action tokens generated. Prompt tokens are in rollout/prompt_len_mean; how much data was "
        "consumed is time/total_timesteps."
    ),
    names=(
        Name(
            "trl",
            "num_tokens",
            "differs",
            "prompt and completion together, although its documentation speaks of input tokens",
        ),
    ),
)
ACTION_TOKENS_PER_EPISODE = observed(
    "rollout/action_tokens_per_episode_mean",
    Distribution,
    tier="language_only",
    unit="action tokens",
    meaning="Mean number of action tokens generated in an episode.",
    formula="mean_e decisions_e * tokens per decision",
    algorithms=("ppo", "grpo"),
    needs="a policy that acts in tokens",
    language=(
        "The length of a completion in tokens: episode_len over the length of an action chunk, rounded "
        "up, times tokens per decision."
    ),
    names=(
        Name(
            "trl",
            "completions/mean_length",
            "approx",
            "in tokens; env/episode_len is in environment steps",
            secondary=True,
        ),
        Name("trl_legacy", "tokens/responses_len_mean", "approx", secondary=True),
    ),
)
TERMINATE_TOKENS = observed(
    "rollout/terminate_tokens",
    Sum,
    tier="language_only",
    unit="count",
    meaning="Number of explicit stop actions the policy emitted.",
    formula="count of decisions whose action is to stop",
    algorithms=("ppo", "grpo"),
    needs="a policy that acts in tokens",
    language="The number of end-of-sequence tokens, for a policy that has a stop action.",
    names=(
        Name(
            "trl",
            "val/num_eos_tokens",
            "approx",
            "of one process only, and all those of a response",
            secondary=True,
        ),
    ),
)
PROMPT_LEN = observed(
    "rollout/prompt_len_mean",
    Distribution,
    tier="language_only",
    unit="tokens",
    meaning="Mean number of tokens that the policy is given for a decision.",
    formula="mean_i instruction + image + state tokens",
    algorithms=("ppo", "grpo"),
    needs="a policy that acts in tokens",
    rules=(Rule("drift", "info", Spike(8.0, 50)),),
    signs=(
        Sign(
            "drift",
            "the prompt's template, the number of cameras or the length of the history has changed",
            "compare the configurations",
        ),
    ),
    language="The length of a query.",
    names=(Name("trl_legacy", "tokens/queries_len_mean", "approx", "per query of a batch"),),
)
PROMPT_LEN_STD = reading(
    "rollout/prompt_len_std",
    PROMPT_LEN,
    "std",
    tier="language_only",
    unit="tokens",
    meaning="Standard deviation of the number of tokens that the policy is given for a decision.",
    formula="sqrt(mean_i (tokens_i - mean)^2)",
    algorithms=("ppo", "grpo"),
    needs="a policy that acts in tokens",
    rules=(Rule("drift", "info", Spike(8.0, 50)),),
    signs=(
        Sign(
            "drift",
            "the prompt's template, the number of cameras or the length of the history has changed",
            "compare the configurations",
        ),
    ),
    language="The length of a query.",
    names=(Name("trl_legacy", "tokens/queries_len_std", "approx", "per query of a batch"),),
)
PROMPT_LEN_DIST = observed(
    "rollout/prompt_len_dist",
    Histogram,
    tier="language_only",
    unit="count",
    meaning="Distribution of the number of tokens that the policy is given for a decision.",
    formula="histogram of tokens_i",
    algorithms=("ppo", "grpo"),
    needs="a policy that acts in tokens",
    language="The length of a query.",
    names=(Name("trl_legacy", "tokens/queries_dist"),),
)
NUM_DECISIONS = observed(
    "rollout/num_decisions",
    Sum,
    unit="decisions",
    meaning="Valid policy decisions collected in this iteration.",
    formula="count_i",
)
VALID_FRACTION = observed(
    "rollout/valid_fraction",
    Mean,
    tier="extension",
    unit="fraction",
    meaning="Share of the collected steps that are decisions, and not resets or padding.",
    formula="count_i / (T N)",
    rules=(Rule("waste", "info", Band(0.3), sustained=10),),
    signs=(
        Sign(
            "low",
            "episodes end early, and what follows is not used",
            "shorten rollout.horizon, or reset environments at once",
        ),
    ),
)
INFERENCE_BATCH_SIZE = observed(
    "rollout/inference_batch_size",
    Distribution,
    unit="decisions",
    meaning="Mean number of decisions that a server takes in one forward pass.",
    formula="mean over passes of their rows",
    needs="inference on a server",
    signs=(
        Sign(
            "far below env.train.total_num_envs / rollout.num_inference_servers",
            "workers ask further apart than rollout.inference_wait",
            "raise rollout.inference_wait, unless time/env/recv_wait is small beside time/env/interact",
        ),
    ),
)
INFERENCE_BATCH_SIZE_MAX = reading(
    "rollout/inference_batch_size_max",
    INFERENCE_BATCH_SIZE,
    "max",
    meaning="Largest number of decisions that a server took in one forward pass.",
    formula="max over passes of their rows",
    needs="inference on a server",
)
POLICY_LAG = observed(
    "rollout/policy_lag_mean",
    Mean,
    unit="versions",
    meaning=("How many versions older than the learner the weights were that collected the data, mean over decisions."),
    formula="mean_i learner's version - version_i",
    rules=(Rule("stale", "warn", Band(high=1.0), sustained=3),),
    signs=(
        Sign(
            "grows",
            "rollout workers miss new weights, or batches queue up",
            "see time/sync_weights and rollout/queue_depth",
        ),
    ),
)
POLICY_LAG_MAX = observed(
    "rollout/policy_lag_max",
    Distribution,
    reads="max",
    unit="versions",
    meaning="How many versions older than the learner the oldest weights were that collected the data.",
    formula="max_i learner's version - version_i",
    rules=(Rule("stale", "warn", Band(high=4.0), sustained=3),),
    signs=(
        Sign(
            "grows",
            "rollout workers miss new weights, or batches queue up",
            "see time/sync_weights and rollout/queue_depth",
        ),
    ),
)
DATA_STALENESS = observed(
    "rollout/data_staleness/{name}",
    Mean,
    tier="extension",
    unit="fraction",
    meaning="Share of trajectories in the batch that are as many versions old as the name says.",
    formula="mean_j [learner's version - version_j = name]",
    needs="an asynchronous pipeline",
    names=(Name("rlinf", "rollout/data_staleness_{lag}/ratio", "exact", "of its asynchronous PPO"),),
)
DISCARDED_TRAJECTORIES = observed(
    "rollout/discarded_trajectories",
    Sum,
    tier="extension",
    unit="episodes",
    meaning="Episodes dropped: unfinished when a stage changed the simulator, or lost with it or its worker.",
    formula="count",
    algorithms=("ppo",),
    rules=(Rule("many", "warn", Holds("{rollout/discarded_trajectories} <= 0.2*{env/num_trajectories}"), sustained=5),),
    names=(Name("rlinf", "rollout/discarded_unused_trajs", "approx"),),
)
QUEUE_DEPTH = observed(
    "rollout/queue_depth",
    Sum,
    unit="trajectories",
    meaning="Trajectories that wait between rollout workers and learner after a batch was taken.",
    formula="length of the queue after the batch was taken",
    needs="an asynchronous pipeline",
    rules=(Rule("growing", "warn", Avoid("up", 20)),),
    signs=(
        Sign(
            "keeps growing",
            "the learner is slower than the rollout workers",
            "give the learner more, or the rollout workers less",
        ),
        Sign(
            "always 0 while time/actor/recv_traj is high",
            "the rollout workers are slower than the learner",
            "raise rollout.num_workers",
        ),
    ),
    names=(Name("rlinf", "train/replay_channel_qsize", "exact", "of its asynchronous runner"),),
)
