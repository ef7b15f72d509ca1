"""``env/`` and ``eval/``: finished episodes, of training and of evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlpipe.metrics.declaration import Metric, Name, Sign, derived, observed, reading
from rlpipe.metrics.derivations import wilson_high, wilson_low
from rlpipe.metrics.reductions import Distribution, GroupedMean, Histogram, Mean, Recent, Sum
from rlpipe.metrics.rules import Avoid, Band, Drop, Exceeds, Expect, Finite, Holds, MovesWith, Rule, Spike, Steady
from rlpipe.metrics.window import MetricWindow
from rlpipe.trajectory import Episode


def bounds_of(share: Metric) -> tuple[Metric, Metric]:
    """Lower and upper 95 % bound of a share of episodes."""
    low, high = (
        derived(
            f"{share.name}_ci_{end}",
            (share,),
            compute,
            tier="extension",
            unit="fraction",
            meaning=f"{word} 95 % bound of {share.name}.",
            formula="Wilson interval of successes and episodes",
        )
        for end, word, compute in (("low", "Lower", wilson_low), ("high", "Upper", wilson_high))
    )
    return low, high


ENV_SUCCESS_ONCE = observed(
    "env/success_once",
    Mean,
    tier="core",
    unit="fraction",
    meaning="Share of finished episodes in which success held at least once.",
    formula="mean_e [any_{1 <= t <= T_e} success_et]",
    rules=(
        Rule("rising", "ok", Expect("up", 100)),
        Rule("crash", "critical", Drop(0.5, 20), when="{env/num_trajectories} >= 5", sustained=5),
        Rule("stuck_zero", "warn", Exceeds(0.0, 100), sign=1),
    ),
    signs=(
        Sign(
            "crash",
            "the policy collapsed: learning rate or KL too large",
            "go back to the best checkpoint, lower the learning rate",
        ),
        Sign(
            "0 throughout",
            "the sparse reward was never reached",
            "begin with an easier stage, demonstrations, or a denser reward",
        ),
        Sign(
            "rises while eval/success_once does not",
            "short episodes are favoured, or the noise helps",
            "compare env/success_once_balanced",
        ),
    ),
    names=(
        Name("maniskill", 'final_info["episode"]["success_once"]', "exact", "without action chunks"),
        Name(
            "rlinf",
            "env/success_once",
            "approx",
            "an action chunk goes on after the first end; 0 where no episode ended",
        ),
        Name(
            "sb3",
            "rollout/success_rate",
            "differs",
            "success at the end, over the last 100 episodes: see env/success_at_end_ma100",
            secondary=True,
        ),
    ),
)
ENV_SUCCESS_ONCE_BALANCED = observed(
    "env/success_once_balanced",
    GroupedMean,
    unit="fraction",
    meaning=(
        "Share of successful episodes with every environment weighing alike, so that short episodes are not favoured."
    ),
    formula="mean over environments with a finished episode of their own share",
    rules=(Rule("bias", "info", Holds("abs({env/success_once} - {env/success_once_balanced}) < 0.1"), sustained=5),),
)
ENV_SUCCESS_AT_END = observed(
    "env/success_at_end",
    Mean,
    unit="fraction",
    meaning="Share of finished episodes in which success held after the last step.",
    formula="mean_e success_{e T_e}",
    rules=(Rule("unstable_success", "info", Holds("{env/success_once} - {env/success_at_end} < 0.2"), sustained=10),),
    signs=(
        Sign(
            "much lower than success_once",
            "the policy reaches the goal but does not hold it",
            "reward holding the goal, or end the episode at success",
        ),
    ),
    names=(
        Name("maniskill", 'final_info["episode"]["success_at_end"]', "exact", "written only with ignore_terminations"),
        Name("rlinf", "env/success_at_end", "exact", "written only with ignore_terminations"),
        Name(
            "sb3",
            "rollout/success_rate",
            "approx",
            "over the last 100 episodes: see env/success_at_end_ma100",
            secondary=True,
        ),
    ),
)
ENV_SUCCESS_AT_RESET = observed(
    "env/success_at_reset",
    Mean,
    unit="fraction",
    meaning="Share of finished episodes that were solved before the first step.",
    formula="mean_e success_e0",
)
ENV_FAIL_ONCE = observed(
    "env/fail_once",
    Mean,
    unit="fraction",
    meaning="Share of finished episodes that failed at least once.",
    formula="mean_e [any_{t <= T_e} fail_et]",
    needs="a simulator that reports failure",
    rules=(Rule("rising", "warn", Avoid("up", 50)),),
    names=(
        Name("maniskill", 'final_info["episode"]["fail_once"]'),
        Name("rlinf", "env/fail_once"),
    ),
)
ENV_FAIL_AT_END = observed(
    "env/fail_at_end",
    Mean,
    tier="extension",
    unit="fraction",
    meaning="Share of finished episodes that end in a failure state.",
    formula="mean_e fail_{e T_e}",
    needs="a simulator that reports failure",
    names=(
        Name("maniskill", 'final_info["episode"]["fail_at_end"]'),
        Name("rlinf", "env/fail_at_end", "exact", "written only with ignore_terminations"),
    ),
)
ENV_EPISODE_RETURN = observed(
    "env/return",
    Distribution,
    tier="core",
    unit="reward",
    meaning="Mean undiscounted return of finished episodes.",
    formula="mean_e G_e",
    rules=(
        Rule("finite", "critical", Finite(), quiet=20, sign=5),
        Rule("rising_then_flat", "ok", Expect("up", 100)),
        Rule("crash", "critical", Drop(0.8, 20), when="{env/num_trajectories} >= 5", sustained=5),
        Rule("never_moves", "critical", Avoid("flat", 200), when="progress > 0.3 and {env/return} < target", sign=1),
        Rule("oscillation", "warn", Steady(0.5, 50), sign=2),
        Rule("low_plateau", "warn", Avoid("flat", 200), when="{env/return} < target", sign=3),
    ),
    signs=(
        Sign(
            "sudden crash",
            "the policy collapsed: learning rate too large",
            "go back to the best checkpoint, lower the learning rate",
        ),
        Sign(
            "never moves",
            "nothing is learnt: hyper-parameters or reward",
            "check train/actor/grad_norm, rollout/advantages_std and the reward",
        ),
        Sign(
            "strong oscillation",
            "training is unstable, or the reward sparse",
            "lower the learning rate, take a larger batch",
        ),
        Sign(
            "settles far below the target",
            "a local optimum: too little exploration",
            "raise algorithm.entropy_coef, or begin with an easier stage",
        ),
        Sign(
            "about 0 under a sparse reward",
            "no episode has succeeded yet, which is to be expected at first",
            "judge by env/success_once",
        ),
        Sign(
            "not finite",
            "the simulator paid a reward that is NaN or infinite",
            "find the step in the simulator, and mend its reward",
        ),
    ),
    names=(
        Name("cleanrl", "charts/episodic_return", "differs", "one point for each finished episode"),
        Name("maniskill", 'final_info["episode"]["return"]'),
        Name(
            "rlinf",
            "env/return",
            "approx",
            (
                "goes on adding rewards after the first end, to the end of an action chunk, or of the rollout "
                "where nothing is reset"
            ),
        ),
        Name(
            "sb3",
            "rollout/ep_rew_mean",
            "differs",
            "over the last 100 episodes: see env/return_ma100",
            secondary=True,
        ),
        Name("trl_legacy", "env/reward_mean", "approx", "of scores, which are the returns here", secondary=True),
    ),
)
ENV_RETURN_STD = reading(
    "env/return_std",
    ENV_EPISODE_RETURN,
    "std",
    unit="reward",
    meaning="Standard deviation of episode returns.",
    formula="sqrt(mean_e (G_e - mean)^2)",
    rules=(
        Rule(
            "exploding", "warn", Spike(8.0, 20), when="{env/return_std} > 0.5*abs({env/return})", sustained=3, quiet=10
        ),
    ),
    names=(Name("trl_legacy", "env/reward_std", "approx", "divides by n - 1: see rollout/score_std", secondary=True),),
)
ENV_RETURN_MIN = reading(
    "env/return_min", ENV_EPISODE_RETURN, "min", unit="reward", meaning="Smallest episode return.", formula="min_e G_e"
)
ENV_RETURN_MAX = reading(
    "env/return_max", ENV_EPISODE_RETURN, "max", unit="reward", meaning="Largest episode return.", formula="max_e G_e"
)
ENV_RETURN_DIST = observed(
    "env/return_dist",
    Histogram,
    unit="count",
    meaning="Distribution of episode returns.",
    formula="histogram of G_e",
    rules=(Rule("tail", "info", Holds("(p99 - p50) <= 10*(p75 - p25) + 1e-9"), sustained=10),),
    names=(Name("trl_legacy", "env/reward_dist", "approx", "of scores, which are the returns here", secondary=True),),
)
ENV_RETURN_MA100 = observed(
    "env/return_ma100",
    Recent,
    lifetime=True,
    unit="reward",
    meaning="Mean return of the last 100 episodes that finished, in this iteration or before.",
    formula="mean of G_e over the last 100 episodes, ordered by step, then environment",
    rules=(Rule("crash", "critical", Drop(0.8, 50), sustained=2),),
    names=(
        Name(
            "sb3",
            "rollout/ep_rew_mean",
            "exact",
            "with stats_window_size 100, the default",
        ),
    ),
    signs=ENV_EPISODE_RETURN.signs,
)
ENV_EPISODE_LEN_MA100 = observed(
    "env/episode_len_ma100",
    Recent,
    lifetime=True,
    unit="environment steps",
    meaning="Mean length of the last 100 episodes that finished, in this iteration or before.",
    formula="mean of T_e over the last 100 episodes, ordered by step, then environment",
    names=(
        Name(
            "sb3",
            "rollout/ep_len_mean",
            "exact",
            "with stats_window_size 100, the default",
        ),
    ),
)
ENV_SUCCESS_AT_END_MA100 = observed(
    "env/success_at_end_ma100",
    Recent,
    lifetime=True,
    unit="fraction",
    meaning=("Share of the last 100 episodes that finished, in this iteration or before, which ended in success."),
    formula="mean of success_{e T_e} over the last 100 episodes, ordered by step, then environment",
    names=(
        Name(
            "sb3",
            "rollout/success_rate",
            "exact",
            "with stats_window_size 100, the default",
        ),
    ),
)
ENV_REWARD = observed(
    "env/reward",
    Mean,
    tier="core",
    unit="reward per environment step",
    meaning=("Reward per step of an episode, mean over episodes (short episodes weigh as much as long ones)."),
    formula="mean_e G_e / T_e",
    signs=(
        Sign(
            "read as performance",
            "it is divided by the length: shorter successful episodes raise it, longer ones dilute it",
            "judge by env/success_once and env/return",
        ),
    ),
    names=(
        Name("maniskill", 'final_info["episode"]["reward"]'),
        Name("rlinf", "env/reward", "approx", "goes on after the first end, as its env/return"),
    ),
)
REWARD_TERM = observed(
    "env/reward_terms/{name}/mean",
    Distribution,
    unit="reward",
    meaning=("What one named reward term adds to the return of an episode, mean over the episodes that have it."),
    formula="mean_e sum_{t <= T_e} r_name,et",
    needs="a simulator that reports reward terms",
    rules=(Rule("watch", "info", Avoid("flat", 200)),),
    signs=(Sign("one term rises while success falls", "that term is being exploited", "give that term less weight"),),
    language=(
        "A reward function: a named part of the simulator's reward, such as reach, grasp or place. The "
        "same for a policy that acts in tokens."
    ),
    names=(Name("trl", "rewards/{reward_func_name}/mean", "exact", "where NaN says that a term does not apply"),),
)
REWARD_TERM_STD = reading(
    "env/reward_terms/{name}/std",
    REWARD_TERM,
    "std",
    unit="reward",
    meaning="Standard deviation over episodes of one named reward term.",
    formula="sqrt(mean_e (sum_t r_name,et - mean)^2)",
    needs="a simulator that reports reward terms",
    names=(Name("trl", "rewards/{reward_func_name}/std", "transform", convert="sample_std"),),
)
REWARD_MODEL_OUTPUT = observed(
    "env/reward_model_output",
    Distribution,
    tier="extension",
    unit="reward",
    meaning="Mean output of a learnt reward model during collection.",
    formula="mean over queries",
    needs="a reward model",
    names=(Name("rlinf", "env/reward_model_output"),),
)
ENV_EPISODE_LEN = observed(
    "env/episode_len",
    Distribution,
    tier="core",
    unit="environment steps",
    meaning="Mean length of finished episodes.",
    formula="mean_e T_e",
    rules=(Rule("diverges", "info", MovesWith("env/return", 0.0, 30), when="tag:reward_per_step"),),
    signs=(
        Sign(
            "its course differs from that of the return",
            "the reward does not depend on staying alive; long episodes may even be bad",
            "judge by env/success_once",
        ),
        Sign(
            "drifts",
            "episodes end in another way than before",
            "compare env/episode_len_std and env/truncated_fraction",
        ),
    ),
    language=(
        "The length of a completion, in environment steps, cut ones included. In tokens: "
        "rollout/action_tokens_per_episode_mean."
    ),
    names=(
        Name("cleanrl", "charts/episodic_length"),
        Name("maniskill", 'final_info["episode"]["episode_len"]'),
        Name(
            "rlinf",
            "env/episode_len",
            "approx",
            "up to an action chunk too long; always the step limit where nothing is reset",
        ),
        Name(
            "sb3",
            "rollout/ep_len_mean",
            "differs",
            "over the last 100 episodes: see env/episode_len_ma100",
            secondary=True,
        ),
        Name("trl", "completions/mean_length", "approx", "in tokens; all completions, cut ones included"),
        Name("trl_legacy", "tokens/responses_len_mean", "approx", "in tokens"),
    ),
)
ENV_EPISODE_LEN_MIN = reading(
    "env/episode_len_min",
    ENV_EPISODE_LEN,
    "min",
    unit="environment steps",
    meaning="Shortest episode.",
    formula="min_e T_e",
    language=(
        "The length of a completion, in environment steps; in tokens: times tokens per decision, over the"
        " length of an action chunk."
    ),
    names=(
        Name(
            "trl",
            "completions/min_length",
            "differs",
            "in tokens; it averages this extreme over the iterations between two logs",
        ),
    ),
)
ENV_EPISODE_LEN_MAX = reading(
    "env/episode_len_max",
    ENV_EPISODE_LEN,
    "max",
    unit="environment steps",
    meaning="Longest episode.",
    formula="max_e T_e",
    language=(
        "The length of a completion, in environment steps; in tokens: times tokens per decision, over the"
        " length of an action chunk."
    ),
    names=(
        Name(
            "trl",
            "completions/max_length",
            "differs",
            "in tokens; it averages this extreme over the iterations between two logs",
        ),
    ),
)
ENV_EPISODE_LEN_STD = reading(
    "env/episode_len_std",
    ENV_EPISODE_LEN,
    "std",
    unit="environment steps",
    meaning="Standard deviation of episode lengths.",
    formula="sqrt(mean_e (T_e - mean)^2)",
    rules=(
        Rule(
            "exploding",
            "warn",
            Spike(8.0, 20),
            when="{env/episode_len_std} > 0.5*{env/episode_len}",
            sustained=3,
            quiet=10,
        ),
    ),
    language=(
        "The length of a completion, in environment steps; in tokens: times tokens per decision, over the"
        " length of an action chunk."
    ),
    names=(Name("trl_legacy", "tokens/responses_len_std", "approx", "in tokens, dividing by n - 1"),),
)
ENV_EPISODE_LEN_DIST = observed(
    "env/episode_len_dist",
    Histogram,
    tier="extension",
    unit="count",
    meaning="Distribution of episode lengths.",
    formula="histogram of T_e",
    names=(Name("trl_legacy", "tokens/responses_dist", "approx"),),
)
ENV_EPISODE_LEN_TERMINATED = observed(
    "env/episode_len_terminated",
    Distribution,
    unit="environment steps",
    meaning=("Mean length of the episodes that ended by themselves, in success or failure, and not by a time limit."),
    formula="mean of T_e over e with terminated_e",
    language=(
        "The length of completions that ended with an end-of-sequence token. With ignore_terminations no "
        "episode ends by itself: see env/episode_len_success."
    ),
    names=(
        Name(
            "trl",
            "completions/mean_terminated_length",
            "approx",
            "in tokens; 0 where nothing ended by itself, which is absent here",
        ),
    ),
)
ENV_EPISODE_LEN_TERMINATED_MIN = reading(
    "env/episode_len_terminated_min",
    ENV_EPISODE_LEN_TERMINATED,
    "min",
    unit="environment steps",
    meaning="Shortest of the episodes that ended by themselves.",
    formula="min of T_e over e with terminated_e",
    language=(
        "The length of completions that ended with an end-of-sequence token. With ignore_terminations no "
        "episode ends by itself: see env/episode_len_success."
    ),
    names=(
        Name(
            "trl",
            "completions/min_terminated_length",
            "approx",
            (
                "in tokens; 0 where nothing ended by itself, which is absent here; averaged over the iterations "
                "between two logs"
            ),
        ),
    ),
)
ENV_EPISODE_LEN_TERMINATED_MAX = reading(
    "env/episode_len_terminated_max",
    ENV_EPISODE_LEN_TERMINATED,
    "max",
    unit="environment steps",
    meaning="Longest of the episodes that ended by themselves.",
    formula="max of T_e over e with terminated_e",
    language=(
        "The length of completions that ended with an end-of-sequence token. With ignore_terminations no "
        "episode ends by itself: see env/episode_len_success."
    ),
    names=(
        Name(
            "trl",
            "completions/max_terminated_length",
            "approx",
            (
                "in tokens; 0 where nothing ended by itself, which is absent here; averaged over the iterations "
                "between two logs"
            ),
        ),
    ),
)
ENV_EPISODE_LEN_SUCCESS = observed(
    "env/episode_len_success",
    Distribution,
    unit="environment steps",
    meaning="Mean number of steps until success, over successful episodes.",
    formula="mean over e with success of the first t with success_et",
    rules=(Rule("falling", "ok", Expect("down", 100)),),
)
ENV_TRUNCATED_FRACTION = observed(
    "env/truncated_fraction",
    Mean,
    tier="core",
    unit="fraction",
    meaning="Share of finished episodes that only a time limit ended.",
    formula="mean_e [truncated and not terminated]",
    rules=(
        Rule(
            "high",
            "warn",
            Band(high=0.9),
            when="progress > 0.3 and not ignore_terminations and {env/success_once} < 0.5",
            sustained=10,
        ),
    ),
    signs=(
        Sign(
            "high",
            "the policy never finishes, or the time limit is too short",
            "raise env.train.max_episode_steps, or shape the reward",
        ),
        Sign(
            "high together with env/success_once", "with ignore_terminations every episode runs to the limit", "nothing"
        ),
    ),
    language="The share of completions cut at their maximal length. The same for a policy that acts in tokens.",
    names=(
        Name("trl", "completions/clipped_ratio", "approx", "the share of completions without an end-of-sequence token"),
    ),
)
ENV_TERMINATED_EPISODES = observed(
    "env/terminated_episodes",
    Sum,
    unit="episodes",
    meaning="Episodes of this iteration that ended by themselves, in success or failure.",
    formula="sum_e terminated_e",
    language="The number of complete responses, each counted once, of all workers.",
    names=(Name("trl", "val/num_eos_tokens", "approx", "every end-of-sequence token, of one process"),),
)
ENV_NUM_TRAJECTORIES = observed(
    "env/num_trajectories",
    Sum,
    tier="core",
    unit="episodes",
    meaning="Finished episodes: the denominator of every mean of this namespace.",
    formula="count_e",
    rules=(Rule("none", "warn", Band(1.0), sustained=50),),
    signs=(
        Sign(
            "0",
            "episodes are longer than an iteration, or simulators are stuck",
            "raise rollout.horizon; until an episode ends, the other env/ metrics are absent",
        ),
    ),
    names=(Name("rlinf", "env/num_trajectories", "exact", "as many as its first metric has values"),),
)
EVAL_SUCCESS_ONCE = observed(
    "eval/success_once",
    Mean,
    tier="core",
    unit="fraction",
    meaning="Share of finished episodes in which success held at least once.",
    formula="mean_e [any_{1 <= t <= T_e} success_et]",
    rules=(
        Rule("rising", "ok", Expect("up", 20)),
        Rule("crash", "critical", Drop(0.5, 3), sustained=2, sign=1),
    ),
    signs=(
        Sign(
            "below env/success_once",
            "it is over-fitted to the training episodes, or needs its noise",
            "evaluate with evaluation.deterministic=false too",
        ),
        Sign(
            "crash",
            "the policy collapsed: learning rate or KL too large",
            "go back to the best checkpoint, and lower the learning rate",
        ),
    ),
    names=(
        Name("rlinf", "eval/success_once", "approx", "of the episodes that ended within the evaluation"),
        Name("sb3", "eval/success_rate", "differs", "success at the end: see eval/success_at_end", secondary=True),
    ),
    better="higher",
)
EVAL_CI_LOW, EVAL_CI_HIGH = bounds_of(EVAL_SUCCESS_ONCE)
EVAL_SUCCESS_AT_END = observed(
    "eval/success_at_end",
    Mean,
    unit="fraction",
    meaning="Share of finished episodes in which success held after the last step.",
    formula="mean_e success_{e T_e}",
    names=(
        Name("rlinf", "eval/success_at_end", "exact", "with ignore_terminations"),
        Name("sb3", "eval/success_rate", "exact", "of its EvalCallback"),
    ),
    better="higher",
)
EVAL_SUCCESS_AT_END_CI_LOW, EVAL_SUCCESS_AT_END_CI_HIGH = bounds_of(EVAL_SUCCESS_AT_END)
EVAL_SUCCESS_AT_RESET = observed(
    "eval/success_at_reset",
    Mean,
    unit="fraction",
    meaning="Share of finished episodes that were solved before the first step.",
    formula="mean_e success_e0",
)
EVAL_SUCCESS_AT_RESET_CI_LOW, EVAL_SUCCESS_AT_RESET_CI_HIGH = bounds_of(EVAL_SUCCESS_AT_RESET)
EVAL_FAIL_ONCE = observed(
    "eval/fail_once",
    Mean,
    tier="extension",
    unit="fraction",
    meaning="Share of finished episodes that failed at least once.",
    formula="mean_e [any_{t <= T_e} fail_et]",
    needs="a simulator that reports failure",
    names=(Name("rlinf", "eval/fail_once"),),
    better="lower",
)
EVAL_EPISODE_RETURN = observed(
    "eval/return",
    Distribution,
    tier="core",
    unit="reward",
    meaning="Mean undiscounted return of finished episodes.",
    formula="mean_e G_e",
    rules=(
        Rule("rising", "ok", Expect("up", 20)),
        Rule("crash", "critical", Drop(0.5, 3), sustained=2, sign=2),
    ),
    signs=(
        Sign("clearly above env/return", "noise costs return in training", "nothing"),
        Sign(
            "clearly below env/return",
            "the most likely action behaves differently from a sampled one",
            "evaluate with evaluation.deterministic=false too",
        ),
        Sign(
            "crash",
            "the policy collapsed: learning rate or KL too large",
            "go back to the best checkpoint, and lower the learning rate",
        ),
    ),
    names=(
        Name("cleanrl", "eval/episodic_return", "differs", "one point for each episode"),
        Name("rlinf", "eval/return", "approx"),
        Name("sb3", "eval/mean_reward"),
    ),
    better="higher",
)
EVAL_RETURN_STD = reading(
    "eval/return_std",
    EVAL_EPISODE_RETURN,
    "std",
    tier="core",
    unit="reward",
    meaning="Standard deviation of episode returns.",
    formula="sqrt(mean_e (G_e - mean)^2)",
    rules=(Rule("unstable", "info", Holds("{eval/return_std} <= 0.5*abs({eval/return})"), sustained=5),),
    names=(Name("sb3", "eval/std_reward", "exact", "divides by n, too"),),
)
EVAL_RETURN_MIN = reading(
    "eval/return_min",
    EVAL_EPISODE_RETURN,
    "min",
    unit="reward",
    meaning="Smallest episode return.",
    formula="min_e G_e",
    better="higher",
)
EVAL_RETURN_MAX = reading(
    "eval/return_max", EVAL_EPISODE_RETURN, "max", unit="reward", meaning="Largest episode return.", formula="max_e G_e"
)
EVAL_EPISODE_LEN = observed(
    "eval/episode_len",
    Distribution,
    unit="environment steps",
    meaning="Mean length of finished episodes.",
    formula="mean_e T_e",
    names=(
        Name("rlinf", "eval/episode_len", "approx"),
        Name("sb3", "eval/mean_ep_length"),
    ),
)
EVAL_EPISODE_LEN_MIN = reading(
    "eval/episode_len_min",
    EVAL_EPISODE_LEN,
    "min",
    unit="environment steps",
    meaning="Shortest episode.",
    formula="min_e T_e",
)
EVAL_EPISODE_LEN_MAX = reading(
    "eval/episode_len_max",
    EVAL_EPISODE_LEN,
    "max",
    unit="environment steps",
    meaning="Longest episode.",
    formula="max_e T_e",
)
EVAL_REWARD = observed(
    "eval/reward",
    Mean,
    unit="reward per environment step",
    meaning=("Reward per step of an episode, mean over episodes (short episodes weigh as much as long ones)."),
    formula="mean_e G_e / T_e",
    names=(Name("rlinf", "eval/reward", "approx"),),
)
EVAL_NUM_TRAJECTORIES = observed(
    "eval/num_trajectories",
    Sum,
    unit="episodes",
    meaning="Finished episodes: the denominator of every mean of this namespace.",
    formula="count_e",
    rules=(Rule("quota", "warn", Holds("{eval/num_trajectories} == n_eval_episodes")),),
    names=(Name("rlinf", "eval/num_trajectories"),),
)
EVAL_TRUNCATED_FRACTION = observed(
    "eval/truncated_fraction",
    Mean,
    unit="fraction",
    meaning="Share of finished episodes that only a time limit ended.",
    formula="mean_e [truncated and not terminated]",
)


@dataclass(frozen=True)
class EpisodeMetrics:
    """The metrics of finished episodes under one namespace. ``observe`` is the only way they come about, from the same
    rows that stand in the ledger, so that each can be recomputed from it to the last digit. What is None is not shown
    under that namespace."""

    success_once: Metric
    success_at_end: Metric
    success_at_reset: Metric
    fail_once: Metric
    episode_return: Metric
    return_std: Metric
    reward: Metric
    episode_len: Metric
    truncated_fraction: Metric
    num_trajectories: Metric
    success_once_balanced: Metric | None = None
    fail_at_end: Metric | None = None
    return_dist: Metric | None = None
    return_ma100: Metric | None = None
    episode_len_ma100: Metric | None = None
    success_at_end_ma100: Metric | None = None
    episode_len_dist: Metric | None = None
    episode_len_terminated: Metric | None = None
    episode_len_success: Metric | None = None
    terminated_episodes: Metric | None = None
    reward_term: Metric | None = None

    def observe(self, window: MetricWindow, episodes: Sequence[Episode], incarnation: int = 0) -> None:
        """Observes finished episodes. With none, only their number is observed: 0.

        Args:
            window: to observe in.  episodes: rows of the ledger.
            incarnation: how often the run was resumed when they ended; orders them in time.
        """
        window.observe(self.num_trajectories, len(episodes))
        if self.terminated_episodes:
            window.observe(self.terminated_episodes, sum(e.terminated for e in episodes))
        if not episodes:
            return
        places = [(incarnation, e.step, e.slot) for e in episodes]

        def observe(metric: Metric | None, values: Sequence[float | bool | None], **how: Any) -> None:
            """Observes the values that are known."""
            known = [n for n, value in enumerate(values) if value is not None]
            if metric is not None and known:
                chosen = {key: [of_all[n] for n in known] for key, of_all in how.items()}
                window.observe(metric, [value for value in values if value is not None], **chosen)

        returns, lengths = [e.episode_return for e in episodes], [e.length for e in episodes]
        at_end = [e.success_at_end for e in episodes]
        observe(self.episode_return, returns)
        observe(self.return_dist, returns)
        observe(self.return_ma100, returns, places=places)
        observe(self.reward, [e.episode_return / e.length for e in episodes])
        observe(self.episode_len, lengths)
        observe(self.episode_len_dist, lengths)
        observe(self.episode_len_ma100, lengths, places=places)
        observe(self.episode_len_terminated, [e.length if e.terminated else None for e in episodes])
        observe(self.truncated_fraction, [e.truncated and not e.terminated for e in episodes])
        observe(self.success_once, [e.success_once for e in episodes])
        slots = [e.slot for e in episodes]
        observe(self.success_once_balanced, [e.success_once for e in episodes], groups=slots)
        observe(self.success_at_end, at_end)
        observe(self.success_at_end_ma100, at_end, places=places)
        observe(self.success_at_reset, [e.success_at_reset for e in episodes])
        observe(self.episode_len_success, [e.first_success for e in episodes])
        observe(self.fail_once, [e.fail_once for e in episodes])
        observe(self.fail_at_end, [e.fail_at_end for e in episodes])
        if self.reward_term is not None:
            for name in sorted({name for e in episodes for name in e.reward_terms}):
                observe(self.reward_term.member(name), [e.reward_terms.get(name) for e in episodes])


ENV = EpisodeMetrics(
    success_once=ENV_SUCCESS_ONCE,
    success_at_end=ENV_SUCCESS_AT_END,
    success_at_reset=ENV_SUCCESS_AT_RESET,
    fail_once=ENV_FAIL_ONCE,
    episode_return=ENV_EPISODE_RETURN,
    return_std=ENV_RETURN_STD,
    reward=ENV_REWARD,
    episode_len=ENV_EPISODE_LEN,
    truncated_fraction=ENV_TRUNCATED_FRACTION,
    num_trajectories=ENV_NUM_TRAJECTORIES,
    success_once_balanced=ENV_SUCCESS_ONCE_BALANCED,
    fail_at_end=ENV_FAIL_AT_END,
    return_dist=ENV_RETURN_DIST,
    return_ma100=ENV_RETURN_MA100,
    episode_len_ma100=ENV_EPISODE_LEN_MA100,
    success_at_end_ma100=ENV_SUCCESS_AT_END_MA100,
    episode_len_dist=ENV_EPISODE_LEN_DIST,
    episode_len_terminated=ENV_EPISODE_LEN_TERMINATED,
    episode_len_success=ENV_EPISODE_LEN_SUCCESS,
    terminated_episodes=ENV_TERMINATED_EPISODES,
    reward_term=REWARD_TERM,
)
EVAL = EpisodeMetrics(
    success_once=EVAL_SUCCESS_ONCE,
    success_at_end=EVAL_SUCCESS_AT_END,
    success_at_reset=EVAL_SUCCESS_AT_RESET,
    fail_once=EVAL_FAIL_ONCE,
    episode_return=EVAL_EPISODE_RETURN,
    return_std=EVAL_RETURN_STD,
    reward=EVAL_REWARD,
    episode_len=EVAL_EPISODE_LEN,
    truncated_fraction=EVAL_TRUNCATED_FRACTION,
    num_trajectories=EVAL_NUM_TRAJECTORIES,
)
