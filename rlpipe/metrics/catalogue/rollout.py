"""``rollout/``: the batch that was learnt from, each decision once."""

from __future__ import annotations

from rlpipe.metrics.catalogue.conditions import (
    CLIPPED,
    GROUP_RELATIVE,
    NEEDS_ASYNC,
    NEEDS_CHUNKS,
    NEEDS_GROUPS,
    NEEDS_KL_PENALTY,
    NEEDS_REFERENCE,
    NEEDS_SERVERS,
    NEEDS_STREAM,
    NEEDS_TOKENS,
    VALUE_BASED,
)
from rlpipe.metrics.catalogue.declare import observed, reading
from rlpipe.metrics.catalogue.env import ENV_EPISODE_RETURN, ENV_RETURN_DIST
from rlpipe.metrics.reductions import Distribution, Histogram, Mean, Skewed, Sum
from rlpipe.metrics.rules import Avoid, Band, Expect, Finite, Holds, Rule, Spike

# Each metric is one entry: what it is, its meaning, its formula, its rules. The formatter would scatter the first line.
# fmt: off

ADVANTAGES = observed(
    "rollout/advantages_mean", Skewed, "reward", tier="core", algorithms=CLIPPED,
    meaning="Mean raw advantage, before normalisation.",
    formula="mean_i A_raw_i",
    rules=(
        Rule("centred", "info", Holds("abs({rollout/advantages_mean}) <= 0.5*{rollout/advantages_std}"), sustained=10),
    ),
)
ADVANTAGES_MAX = reading(
    "rollout/advantages_max", ADVANTAGES, "max", tier="core",
    meaning="Largest raw advantage.",
    formula="max_i A_raw_i",
)
ADVANTAGES_MIN = reading(
    "rollout/advantages_min", ADVANTAGES, "min", tier="core", signs=ADVANTAGES_MAX.signs,
    meaning="Smallest raw advantage.",
    formula="min_i A_raw_i",
)
ADVANTAGES_STD = reading(
    "rollout/advantages_std", ADVANTAGES, "std",
    meaning="Standard deviation of raw advantages.",
    formula="sqrt(mean_i (A_raw_i - mean)^2)",
    rules=(Rule("zero", "warn", Band(1e-08), sustained=3),),
)
ADVANTAGES_SKEW = reading(
    "rollout/advantages_skew", ADVANTAGES, "skew", unit="1", tier="extension",
    meaning="Skewness of the raw advantages.",
    formula="mean_i (A_raw_i - mean)^3 / std^3",
    rules=(Rule("balanced", "info", Band(-3.0, 3.0), sustained=10),),
)
ADVANTAGES_DIST = observed(
    "rollout/advantages_dist", Histogram, "count", algorithms=CLIPPED, of=ADVANTAGES,
    meaning="Distribution of the raw advantages.",
    formula="histogram of A_raw_i",
    rules=(Rule("balanced", "ok", Holds("abs({rollout/advantages_skew}) < 3")),),
)
RETURNS = observed(
    "rollout/returns_mean", Distribution, "reward", algorithms=VALUE_BASED,
    meaning="Mean value target: a lambda-return per step, unlike env/return, the return of an episode.",
    formula="mean_i R_i",
    rules=(
        Rule("scale", "info",
             Holds("abs({rollout/returns_mean} - {rollout/values_mean}) <= 2*sqrt({rollout/returns_var}) + 1e-6"),
             sustained=10),
    ),
)
RETURNS_MAX = reading(
    "rollout/returns_max", RETURNS, "max",
    meaning="Largest value target.",
    formula="max_i R_i",
)
RETURNS_MIN = reading(
    "rollout/returns_min", RETURNS, "min",
    meaning="Smallest value target.",
    formula="min_i R_i",
)
RETURNS_VAR = reading(
    "rollout/returns_var", RETURNS, "var", unit="reward^2",
    meaning="Variance of the value targets.",
    formula="mean_i (R_i - mean)^2",
    rules=(
        Rule("jump", "info", Spike(8.0, 20),
             when="{rollout/returns_var} > 1e-3*max(1, {rollout/returns_mean}*{rollout/returns_mean})", sustained=3,
             quiet=10),
    ),
)
VALUES = observed(
    "rollout/values_mean", Distribution, "reward", algorithms=VALUE_BASED,
    meaning="Mean predicted value at collection.",
    formula="mean_i V_old_i",
    rules=(Rule("unstable", "info", Spike(8.0, 20), sustained=3, quiet=10),),
)
VALUES_VAR = reading(
    "rollout/values_var", VALUES, "var", unit="reward^2", signs=VALUES.signs,
    meaning="Variance of the predicted values at collection.",
    formula="mean_i (V_old_i - mean)^2",
    rules=(
        Rule("unstable", "info", Spike(8.0, 20),
             when="{rollout/values_var} > 1e-3*max(1, {rollout/values_mean}*{rollout/values_mean})", sustained=3,
             quiet=10),
    ),
)
REWARDS = observed(
    "rollout/rewards", Mean, "reward per environment step", tier="core", algorithms=CLIPPED,
    meaning="Mean raw reward per environment step, without bootstrap terms.",
    formula="sum_i reward_i / count_i",
    rules=(
        Rule("finite", "critical", Finite(), quiet=20),
        Rule("rising", "ok", Expect("up", 100)),
    ),
)
SCORE = reading(
    "rollout/score_mean", ENV_EPISODE_RETURN, "mean", tier="core",
    meaning="Mean score of an episode, before any normalisation: what the algorithm maximises.",
    formula="mean_e G_e",
    language="The score of a completion: the sum of the environment's rewards over one episode. The same for a policy "
             "that acts in tokens.",
    rules=(
        Rule("rising", "ok", Expect("up", 100)),
        Rule("plateau", "info", Avoid("flat", 200), when="{rollout/score_mean} < target"),
    ),
)
SCORE_STD = reading(
    "rollout/score_std", ENV_EPISODE_RETURN, "std",
    meaning="Standard deviation of the episodes' scores.",
    formula="sqrt(mean_e (G_e - mean)^2)",
    rules=(
        Rule("exploding", "warn", Spike(8.0, 20), when="{rollout/score_std} > 0.5*abs({rollout/score_mean})",
             sustained=3, quiet=10),
    ),
)
SCORE_DIST = reading(
    "rollout/score_dist", ENV_RETURN_DIST, "", algorithms=CLIPPED,
    meaning="Distribution of the episodes' scores.",
    formula="histogram of G_e",
    rules=(Rule("tail", "info", Holds("(p99 - p50) <= 10*(p75 - p25) + 1e-9"), sustained=10),),
)
GROUP_SCORE_STD = observed(
    "rollout/group_score_std_mean", Mean, "reward", algorithms=GROUP_RELATIVE, needs=NEEDS_GROUPS,
    meaning="Spread of the scores within a group, mean over groups: how much there is to learn from.",
    formula="mean_g std of G_e over e in g, dividing by n - 1",
    rules=(Rule("no_signal", "warn", Band(1e-06), sustained=3),),
)
FRAC_REWARD_ZERO_STD = observed(
    "rollout/frac_reward_zero_std", Mean, "fraction", tier="core", algorithms=GROUP_RELATIVE, needs=NEEDS_GROUPS,
    meaning="Share of groups whose episodes all had the same score, and which therefore teach nothing.",
    formula="mean_g [max G - min G <= 1e-6 max(1, max |G|)]",
    rules=(
        Rule("most", "warn", Band(high=0.8), sustained=5),
        Rule("all", "critical", Band(high=0.999), sustained=3, sign="most"),
    ),
)
GROUP_FILTERED_FRACTION = observed(
    "rollout/group_filtered_fraction", Mean, "fraction", tier="extension", algorithms=GROUP_RELATIVE,
    needs=NEEDS_GROUPS,
    meaning="Share of groups left out of the loss because all episodes had the same score; absent without the filter.",
    formula="mean_g [max G - min G <= 1e-6 max(1, max |G|)], if filter_groups is set",
    rules=(Rule("most", "warn", Band(high=0.8), sustained=5),),
)
NON_SCORE_REWARD = observed(
    "rollout/non_score_reward", Distribution, "reward", algorithms=VALUE_BASED, needs=NEEDS_KL_PENALTY,
    meaning="Amount that the KL penalty adds to the score of a trajectory; negative when the policy leaves the "
            "reference.",
    formula="mean_j sum_{i in j} -beta kl_i",
    language="The KL penalty of a completion: per action token, summed over the episode.",
    rules=(
        Rule("dominates", "warn", Holds("abs({rollout/non_score_reward}) <= abs({rollout/score_mean})"), sustained=5),
    ),
)
NON_SCORE_REWARD_STEP = observed(
    "rollout/non_score_reward_step", Mean, "reward per decision", algorithms=VALUE_BASED, needs=NEEDS_KL_PENALTY,
    meaning="Amount that the KL penalty adds to the reward of a decision; negative when the policy leaves the "
            "reference.",
    formula="mean_i -beta kl_i",
    rules=(
        Rule("dominates", "warn", Holds("abs({rollout/non_score_reward}) <= abs({rollout/score_mean})"), sustained=5),
    ),
)
SHAPED_RETURN = observed(
    "rollout/shaped_return_mean", Distribution, "reward", algorithms=VALUE_BASED, needs=NEEDS_KL_PENALTY,
    meaning="Mean score of a trajectory with the KL penalty added: what is maximised if there is a reference policy.",
    formula="mean_j sum_{i in j} reward_i - beta kl_i; score_mean + non_score_reward if trajectories are episodes",
    rules=(Rule("rising", "ok", Expect("up", 100)),),
)
KL_REF_EPISODE = observed(
    "rollout/kl_ref_episode", Distribution, "nats per episode", algorithms=CLIPPED, needs=NEEDS_REFERENCE,
    meaning="How far the collecting policy is from the frozen reference policy, summed over a trajectory.",
    formula="mean_j sum_{i in j} ln pi_old(a_i) - ln pi_ref(a_i)",
    rules=(
        Rule("negative", "warn", Band(0.0), sustained=3),
        Rule("strongly_negative", "critical", Band(-1.0), sign="negative"),
        Rule("rising", "warn", Avoid("up", 50)),
    ),
)
KL_REF_DIST = observed(
    "rollout/kl_ref_dist", Histogram, "count", tier="extension", algorithms=CLIPPED, of=KL_REF_EPISODE,
    needs=NEEDS_REFERENCE,
    meaning="Distribution of the divergence from the reference policy, one value per trajectory.",
    formula="histogram of sum_{i in j} ln pi_old(a_i) - ln pi_ref(a_i)",
)
ENTROPY_EPISODE = observed(
    "rollout/entropy_episode", Distribution, "nats per episode",
    meaning="Entropy of whole trajectories under the policy that collected them, estimated from the actions taken.",
    formula="mean_j sum_{i in j} -ln pi_old(a_i)",
    rules=(Rule("falling", "ok", Expect("down", 100)),),
)
LOG_PROBS = observed(
    "rollout/logprobs_mean", Distribution, "nats per decision", algorithms=CLIPPED,
    meaning="Mean log-probability of the actions taken, under the policy that collected them.",
    formula="mean_i ln pi_old(a_i)",
    rules=(Rule("shift", "info", Spike(8.0, 20)),),
)
LOG_PROBS_DIST = observed(
    "rollout/logprobs_dist", Histogram, "count", algorithms=CLIPPED, of=LOG_PROBS,
    meaning="Distribution of the log-probabilities of the actions taken.",
    formula="histogram of ln pi_old(a_i)",
)
REF_LOG_PROBS = observed(
    "rollout/ref_logprobs_mean", Distribution, "nats per decision", algorithms=CLIPPED, needs=NEEDS_REFERENCE,
    signs=LOG_PROBS.signs,
    meaning="Mean log-probability of the actions taken, under the reference policy.",
    formula="mean_i ln pi_ref(a_i)",
    rules=(Rule("shift", "info", Spike(8.0, 20)),),
)
REF_LOG_PROBS_DIST = observed(
    "rollout/ref_logprobs_dist", Histogram, "count", algorithms=CLIPPED, of=REF_LOG_PROBS, needs=NEEDS_REFERENCE,
    meaning="Distribution of the log-probabilities of the actions taken, under the reference policy.",
    formula="histogram of ln pi_ref(a_i)",
)
ACTION_TOKENS_TOTAL = observed(
    "rollout/action_tokens_total", Sum, "action tokens", lifetime=True,
    meaning="Action tokens produced since the run began; a policy that does not act in tokens counts one per decision.",
    formula="sum over decisions of tokens per decision; 1 per decision for a policy that does not act in tokens",
    language="Action tokens generated. Prompt tokens are in rollout/prompt_len_mean; the amount of data consumed is "
             "time/total_timesteps.",
)
ACTION_TOKENS_PER_EPISODE = observed(
    "rollout/action_tokens_per_episode_mean", Distribution, "action tokens", tier="language_only", algorithms=CLIPPED,
    needs=NEEDS_TOKENS,
    meaning="Mean number of action tokens generated in an episode.",
    formula="mean_e decisions_e * tokens per decision",
    language="The length of a completion in tokens: episode_len divided by the length of an action chunk, rounded up, "
             "times tokens per decision.",
)
TERMINATE_TOKENS = observed(
    "rollout/terminate_tokens", Sum, "count", tier="language_only", algorithms=CLIPPED, needs=NEEDS_TOKENS,
    meaning="Number of explicit stop actions the policy emitted.",
    formula="count of decisions whose action is to stop",
    language="The number of end-of-sequence tokens, for a policy that has a stop action.",
)
PROMPT_LEN = observed(
    "rollout/prompt_len_mean", Distribution, "tokens", tier="language_only", algorithms=CLIPPED, needs=NEEDS_TOKENS,
    meaning="Mean number of tokens given to the policy for a decision.",
    formula="mean_i instruction + image + state tokens",
    language="The length of a query.",
    rules=(Rule("drift", "info", Spike(8.0, 50)),),
)
PROMPT_LEN_STD = reading(
    "rollout/prompt_len_std", PROMPT_LEN, "std", tier="language_only", signs=PROMPT_LEN.signs,
    meaning="Standard deviation of the number of tokens given to the policy for a decision.",
    formula="sqrt(mean_i (tokens_i - mean)^2)",
    language="The length of a query.",
    rules=(Rule("drift", "info", Spike(8.0, 50)),),
)
PROMPT_LEN_DIST = observed(
    "rollout/prompt_len_dist", Histogram, "count", tier="language_only", algorithms=CLIPPED, needs=NEEDS_TOKENS,
    meaning="Distribution of the number of tokens given to the policy for a decision.",
    formula="histogram of tokens_i",
    language="The length of a query.",
)
NUM_DECISIONS = observed(
    "rollout/num_decisions", Sum, "decisions",
    meaning="Valid policy decisions collected in this iteration.",
    formula="count_i",
)
CHUNK_LEN = observed(
    "rollout/chunk_len_mean", Distribution, "environment steps", tier="extension", needs=NEEDS_CHUNKS,
    meaning="Mean number of environment steps that followed a decision; less than policy.execute where episodes end "
            "within a chunk.",
    formula="mean_i num_steps_i",
)
VALID_FRACTION = observed(
    "rollout/valid_fraction", Mean, "fraction", tier="extension",
    meaning="Share of the collected steps that are decisions rather than resets or padding.",
    formula="count_i / (T N)",
    rules=(Rule("waste", "info", Band(0.3), sustained=10),),
)
INFERENCE_BATCH_SIZE = observed(
    "rollout/inference_batch_size", Distribution, "decisions", needs=NEEDS_SERVERS,
    meaning="Mean number of decisions that an inference server makes in one forward pass.",
    formula="mean over passes of their rows",
)
INFERENCE_BATCH_SIZE_MAX = reading(
    "rollout/inference_batch_size_max", INFERENCE_BATCH_SIZE, "max",
    meaning="Largest number of decisions that an inference server made in one forward pass.",
    formula="max over passes of their rows",
)
POLICY_LAG = observed(
    "rollout/policy_lag_mean", Mean, "versions",
    meaning="Number of versions by which the weights that collected the data lag behind the learner, mean over "
            "decisions.",
    formula="mean_i learner's version - version_i",
    rules=(Rule("stale", "warn", Band(high=1.0), sustained=3),),
)
POLICY_LAG_MAX = observed(
    "rollout/policy_lag_max", Distribution, "versions", reads="max", signs=POLICY_LAG.signs,
    meaning="Number of versions by which the oldest weights that collected the data lag behind the learner.",
    formula="max_i learner's version - version_i",
    rules=(Rule("stale", "warn", Band(high=4.0), sustained=3),),
)
DATA_STALENESS = observed(
    "rollout/data_staleness/{name}", Mean, "fraction", tier="extension", needs=NEEDS_ASYNC,
    meaning="Share of trajectories in the batch whose weights are as many versions old as the name says; an episode "
            "that spans fragments is a trajectory in each.",
    formula="mean_j [learner's version - version_j = name]",
)
DISCARDED_TRAJECTORIES = observed(
    "rollout/discarded_trajectories", Sum, "episodes", tier="extension", algorithms=VALUE_BASED,
    meaning="Episodes dropped: unfinished when a stage changed the simulator, or lost with a simulator or worker.",
    formula="count",
    rules=(Rule("many", "warn", Holds("{rollout/discarded_trajectories} <= 0.2*{env/num_trajectories}"), sustained=5),),
)
QUEUE_DEPTH = observed(
    "rollout/queue_depth", Sum, "fragments", needs=NEEDS_STREAM,
    meaning="Complete fragments waiting between rollout workers and learner after those of an iteration were taken.",
    formula="length of the queue after the batch was taken",
    rules=(Rule("growing", "warn", Avoid("up", 20)),),
)
