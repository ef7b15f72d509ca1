"""``env/`` and ``eval/``: finished episodes, of training and of evaluation."""

from __future__ import annotations

from typing import Any

from rlpipe.metrics.catalogue.conditions import (
    NEEDS_FAILURE,
    NEEDS_NONFINITE,
    NEEDS_OBSERVED,
    NEEDS_REWARD_MODEL,
    NEEDS_REWARD_TERMS,
    NEEDS_SILENCE,
    NEEDS_TASKS,
)
from rlpipe.metrics.catalogue.declare import derived, observed, reading
from rlpipe.metrics.declaration import Metric
from rlpipe.metrics.derivations import least_of_means, mean_of_means, wilson_high, wilson_low
from rlpipe.metrics.episode_metrics import EpisodeMetrics, TaskMetrics
from rlpipe.metrics.reductions import Distribution, GroupedMean, Histogram, Mean, Recent, Sum
from rlpipe.metrics.rules import Avoid, Band, Drop, Exceeds, Expect, Finite, Holds, MovesWith, Rule, Spike, Steady

FEW_OWN = "tag:chosen_starts"
"""With a curriculum, few episodes begin as the task does, and none of them succeeds for long: that is its plan."""
NOISY_MEAN = (
    "{env/num_trajectories} < 5",
    "{env/return_std} >= 0.25*abs({env/return})*sqrt({env/num_trajectories})",
)
"""Iterations whose mean return may scatter by half of itself because of the episodes that were drawn."""


def bounds_of(share: Metric) -> tuple[Metric, Metric]:
    """Declares the lower and upper 95 % bound of a share of episodes."""
    low, high = (
        derived(
            f"{share.name}_ci_{end}",
            (share,),
            compute,
            "fraction",
            tier="extension",
            meaning=f"{word} 95 % bound of {share.name}.",
            formula="Wilson interval of successes and episodes",
        )
        for end, word, compute in (("low", "Lower", wilson_low), ("high", "Upper", wilson_high))
    )
    return low, high


def evaluated(metric: Metric, of: Metric | None = None, **description: Any) -> Metric:
    """Declares the metric of ``eval/`` that says the same as one of ``env/``, but for its tier, rules and ranking.

    ``of`` is the metric of ``eval/`` whose observations a reading shows."""
    name = metric.name.replace("env/", "eval/", 1)
    words = {"meaning": metric.meaning, "formula": metric.formula, "needs": metric.needs, **description}
    if of is not None:
        return reading(name, of, metric.reads, **words)
    assert metric.reduction is not None
    return observed(name, metric.reduction, metric.unit, **words)


def tasks_of(namespace: str, of_all: Metric) -> TaskMetrics:
    """Declares the metrics of several tasks in ``env`` or ``eval``, beside the share of successes over all tasks."""
    success = observed(
        f"{namespace}/tasks/{{name}}/success_once", Mean, "fraction", needs=NEEDS_TASKS,
        meaning="Share of the finished episodes of one task in which success held at least once.",
        formula="mean over e of the task of [any_{1 <= t <= T_e} success_et]",
    )  # fmt: skip
    returns = observed(
        f"{namespace}/tasks/{{name}}/return", Distribution, "reward", needs=NEEDS_TASKS,
        meaning="Mean undiscounted return of the finished episodes of one task.",
        formula="mean_e G_e over e of the task",
    )  # fmt: skip
    count = observed(
        f"{namespace}/tasks/{{name}}/num_trajectories", Sum, "episodes", needs=NEEDS_TASKS,
        meaning="Number of finished episodes of one task.",
        formula="count_e over e of the task",
    )  # fmt: skip
    mean = derived(
        f"{namespace}/tasks/success_once_mean", (success,), mean_of_means, "fraction", needs=NEEDS_TASKS,
        meaning=f"Mean over tasks of their shares of successful episodes, each of which counts alike; {of_all.name} "
                "counts each episode alike.",
        formula="mean over tasks with a finished episode of each one's share",
    )  # fmt: skip
    worst = derived(
        f"{namespace}/tasks/success_once_worst", (success,), least_of_means, "fraction", needs=NEEDS_TASKS,
        meaning="Share of successful episodes of the task that has the least.",
        formula="min over tasks with a finished episode of each one's share",
    )  # fmt: skip
    return TaskMetrics(success, returns, count, mean, worst)


def observed_numbers(namespace: str) -> dict[str, Metric]:
    """Declares what ``env`` or ``eval`` say of a simulator's own number, over the steps in which it applies."""
    words = {"mean": ("Mean", "mean"), "least": ("Smallest value", "min"), "most": ("Largest value", "max"),
             "last": ("Last value", "last")}  # fmt: skip
    return {
        key: observed(
            f"{namespace}/metrics/{{name}}/{key}", Mean, "the simulator's", needs=NEEDS_OBSERVED,
            meaning=f"{word} of one of the simulator's own numbers in an episode, mean over the episodes that have it.",
            formula=f"mean_e {function}_{{t <= T_e}} x_name,et",
        )
        for key, (word, function) in words.items()
    }  # fmt: skip


# Each metric is one entry: what it is, its meaning, its formula, its rules. The formatter would scatter the first line.
# fmt: off

ENV_SUCCESS_ONCE = observed(
    "env/success_once", Mean, "fraction", tier="core",
    meaning="Share of finished episodes in which success held at least once. Episodes whose start a curriculum chose "
            "are in env/curriculum/ instead, here and in all of env/.",
    formula="mean_e [any_{1 <= t <= T_e} success_et]",
    rules=(
        Rule("rising", "ok", Expect("up", 100)),
        Rule("crash", "critical", Drop(0.5, 20), when="{env/num_trajectories} >= 5", unless=FEW_OWN, sustained=5),
        Rule("stuck_zero", "warn", Exceeds(0.0, 100), unless=(FEW_OWN, "progress < 0.2")),
    ),
)
ENV_SUCCESS_ONCE_BALANCED = observed(
    "env/success_once_balanced", GroupedMean, "fraction",
    meaning="Mean over environments of their shares of successful episodes, so that short episodes are not favoured.",
    formula="mean over environments with a finished episode of each one's share",
    rules=(Rule("bias", "info", Holds("abs({env/success_once} - {env/success_once_balanced}) < 0.1"), sustained=5),),
)
ENV_SUCCESS_AT_END = observed(
    "env/success_at_end", Mean, "fraction",
    meaning="Share of finished episodes in which success held after the last step.",
    formula="mean_e success_{e T_e}",
    rules=(Rule("unstable_success", "info", Holds("{env/success_once} - {env/success_at_end} < 0.2"), sustained=10),),
)
ENV_SUCCESS_AT_RESET = observed(
    "env/success_at_reset", Mean, "fraction",
    meaning="Share of finished episodes that were solved before the first step.",
    formula="mean_e success_e0",
)
ENV_FAIL_ONCE = observed(
    "env/fail_once", Mean, "fraction", needs=NEEDS_FAILURE,
    meaning="Share of finished episodes that failed at least once.",
    formula="mean_e [any_{t <= T_e} fail_et]",
    rules=(Rule("rising", "warn", Avoid("up", 50)),),
)
ENV_FAIL_AT_END = observed(
    "env/fail_at_end", Mean, "fraction", tier="extension", needs=NEEDS_FAILURE,
    meaning="Share of finished episodes that end in a failure state.",
    formula="mean_e fail_{e T_e}",
)
NONFINITE_OBSERVATIONS = observed(
    "env/nonfinite_observations/{name}", Sum, "observations", needs=NEEDS_NONFINITE,
    meaning="Number of observations of which one part was NaN or infinite, where the one before was finite. The part "
            "is a leaf of the observation space; an observation of one array has only the part observation.",
    formula="count of e, t with x_et not finite in that part and x_e,t-1 finite in all parts",
    rules=(Rule("any", "critical", Band(high=0.0), quiet=20),),
)
ENV_EPISODE_RETURN = observed(
    "env/return", Distribution, "reward", tier="core",
    meaning="Mean undiscounted return of finished episodes.",
    formula="mean_e G_e",
    rules=(
        Rule("finite", "critical", Finite(), quiet=20),
        Rule("rising_then_flat", "ok", Expect("up", 100)),
        Rule("crash", "critical", Drop(0.8, 20), when="{env/num_trajectories} >= 5", unless=FEW_OWN, sustained=5),
        Rule("never_moves", "critical", Avoid("flat", 200), when="progress > 0.3 and {env/return} < target",
             unless=FEW_OWN),
        Rule("oscillation", "warn", Steady(0.5, 50), unless=(FEW_OWN, *NOISY_MEAN), quiet=3),
        Rule("low_plateau", "warn", Avoid("flat", 200), when="{env/return} < target", unless=FEW_OWN),
    ),
)
ENV_RETURN_STD = reading(
    "env/return_std", ENV_EPISODE_RETURN, "std",
    meaning="Standard deviation of episode returns.",
    formula="sqrt(mean_e (G_e - mean)^2)",
    rules=(
        Rule("exploding", "warn", Spike(8.0, 20), when="{env/return_std} > 0.5*abs({env/return})", sustained=3,
             quiet=10),
    ),
)
ENV_RETURN_MIN = reading(
    "env/return_min", ENV_EPISODE_RETURN, "min",
    meaning="Smallest episode return.",
    formula="min_e G_e",
)
ENV_RETURN_MAX = reading(
    "env/return_max", ENV_EPISODE_RETURN, "max",
    meaning="Largest episode return.",
    formula="max_e G_e",
)
ENV_RETURN_DIST = observed(
    "env/return_dist", Histogram, "count",
    meaning="Distribution of episode returns.",
    formula="histogram of G_e",
    rules=(Rule("tail", "info", Holds("(p99 - p50) <= 10*(p75 - p25) + 1e-9"), sustained=10),),
)
ENV_RETURN_MA100 = observed(
    "env/return_ma100", Recent, "reward", lifetime=True, signs=ENV_EPISODE_RETURN.signs,
    meaning="Mean return of the last 100 finished episodes, from this or earlier iterations.",
    formula="mean of G_e over the last 100 episodes, ordered by step, then environment",
    rules=(Rule("crash", "critical", Drop(0.8, 50), unless=FEW_OWN, sustained=2),),
)
ENV_EPISODE_LEN_MA100 = observed(
    "env/episode_len_ma100", Recent, "environment steps", lifetime=True,
    meaning="Mean length of the last 100 finished episodes, from this or earlier iterations.",
    formula="mean of T_e over the last 100 episodes, ordered by step, then environment",
)
ENV_SUCCESS_AT_END_MA100 = observed(
    "env/success_at_end_ma100", Recent, "fraction", lifetime=True,
    meaning="Share of the last 100 finished episodes, from this or earlier iterations, that ended in success.",
    formula="mean of success_{e T_e} over the last 100 episodes, ordered by step, then environment",
)
ENV_SUCCESS_UNTOLD = observed(
    "env/success_untold", Sum, "episodes", needs=NEEDS_SILENCE,
    meaning="Number of finished episodes whose success is unknown, because the simulator has not told that of any "
            "episode of the run so far. Such a run has no other metric of success.",
    formula="count_e while no info of the run has held the success",
    rules=(Rule("never_told", "warn", Band(high=0)),),
)
ENV_REWARD = observed(
    "env/reward", Mean, "reward per environment step", tier="core",
    meaning="Reward per step of an episode, mean over episodes (short and long episodes weigh the same).",
    formula="mean_e G_e / T_e",
)
REWARD_TERM = observed(
    "env/reward_terms/{name}/mean", Distribution, "reward", needs=NEEDS_REWARD_TERMS,
    meaning="Amount that one named reward term adds to the return of an episode, mean over the episodes that have it.",
    formula="mean_e sum_{t <= T_e} r_name,et",
    language="A reward function: a named term of the simulator's reward, such as reach, grasp or place. The same for "
             "a policy that acts in tokens.",
    rules=(Rule("watch", "info", Avoid("flat", 200)),),
)
REWARD_TERM_STD = reading(
    "env/reward_terms/{name}/std", REWARD_TERM, "std",
    meaning="Standard deviation over episodes of one named reward term.",
    formula="sqrt(mean_e (sum_t r_name,et - mean)^2)",
)
REWARD_MODEL_OUTPUT = observed(
    "env/reward_model_output", Distribution, "reward", tier="extension", needs=NEEDS_REWARD_MODEL,
    meaning="Mean output of a learnt reward model during collection.",
    formula="mean over queries",
)
ENV_EPISODE_LEN = observed(
    "env/episode_len", Distribution, "environment steps", tier="core",
    meaning="Mean length of finished episodes.",
    formula="mean_e T_e",
    language="The length of a completion, in environment steps, truncated completions included. In tokens: "
             "rollout/action_tokens_per_episode_mean.",
    rules=(Rule("diverges", "info", MovesWith("env/return", 0.0, 30), when="tag:reward_per_step"),),
)
ENV_EPISODE_LEN_MIN = reading(
    "env/episode_len_min", ENV_EPISODE_LEN, "min",
    meaning="Shortest episode.",
    formula="min_e T_e",
    language="The length of a completion, in environment steps. In tokens: multiply by the tokens per decision, and "
             "divide by the length of an action chunk.",
)
ENV_EPISODE_LEN_MAX = reading(
    "env/episode_len_max", ENV_EPISODE_LEN, "max",
    meaning="Longest episode.",
    formula="max_e T_e",
    language=ENV_EPISODE_LEN_MIN.language,
)
ENV_EPISODE_LEN_STD = reading(
    "env/episode_len_std", ENV_EPISODE_LEN, "std",
    meaning="Standard deviation of episode lengths.",
    formula="sqrt(mean_e (T_e - mean)^2)",
    language=ENV_EPISODE_LEN_MIN.language,
    rules=(
        Rule("exploding", "warn", Spike(8.0, 20), when="{env/episode_len_std} > 0.5*{env/episode_len}", sustained=3,
             quiet=10),
    ),
)
ENV_EPISODE_LEN_DIST = observed(
    "env/episode_len_dist", Histogram, "count", tier="extension",
    meaning="Distribution of episode lengths.",
    formula="histogram of T_e",
)
ENV_EPISODE_LEN_TERMINATED = observed(
    "env/episode_len_terminated", Distribution, "environment steps",
    meaning="Mean length of the episodes that ended by themselves, in success or failure, rather than by a time limit.",
    formula="mean of T_e over e with terminated_e",
    language="The length of completions that ended with an end-of-sequence token. With ignore_terminations no episode "
             "ends by itself: see env/episode_len_success.",
)
ENV_EPISODE_LEN_TERMINATED_MIN = reading(
    "env/episode_len_terminated_min", ENV_EPISODE_LEN_TERMINATED, "min",
    meaning="Shortest of the episodes that ended by themselves.",
    formula="min of T_e over e with terminated_e",
    language=ENV_EPISODE_LEN_TERMINATED.language,
)
ENV_EPISODE_LEN_TERMINATED_MAX = reading(
    "env/episode_len_terminated_max", ENV_EPISODE_LEN_TERMINATED, "max",
    meaning="Longest of the episodes that ended by themselves.",
    formula="max of T_e over e with terminated_e",
    language=ENV_EPISODE_LEN_TERMINATED.language,
)
ENV_EPISODE_LEN_SUCCESS = observed(
    "env/episode_len_success", Distribution, "environment steps",
    meaning="Mean number of steps until success, over successful episodes.",
    formula="mean over e with success of the first t with success_et",
    rules=(Rule("falling", "ok", Expect("down", 100)),),
)
ENV_TRUNCATED_FRACTION = observed(
    "env/truncated_fraction", Mean, "fraction", tier="core",
    meaning="Share of finished episodes that only the time limit ended.",
    formula="mean_e [truncated and not terminated]",
    language="The share of completions truncated at their maximal length. The same for a policy that acts in tokens.",
    rules=(
        Rule("high", "warn", Band(high=0.9),
             when="progress > 0.3 and not ignore_terminations and {env/success_once} < 0.5", unless=FEW_OWN,
             sustained=10),
    ),
)
ENV_TERMINATED_EPISODES = observed(
    "env/terminated_episodes", Sum, "episodes",
    meaning="Episodes of this iteration that ended by themselves, in success or failure.",
    formula="sum_e terminated_e",
    language="The number of complete responses, each counted once, over all workers.",
)
ENV_NUM_TRAJECTORIES = observed(
    "env/num_trajectories", Sum, "episodes", tier="core",
    meaning="Number of finished episodes: the denominator of every mean in this namespace.",
    formula="count_e",
    rules=(Rule("none", "warn", Band(1.0), unless=FEW_OWN, sustained=20),),
)
EVAL_SUCCESS_ONCE = observed(
    "eval/success_once", Mean, "fraction", tier="core", better="higher",
    meaning="Share of finished episodes in which success held at least once.",
    formula="mean_e [any_{1 <= t <= T_e} success_et]",
    rules=(
        Rule("rising", "ok", Expect("up", 20)),
        Rule("crash", "critical", Drop(0.5, 3), sustained=2),
        # the interval is the evaluation's noise; a training share of eight successes is more than its own
        Rule("below_training", "warn", Holds("{eval/success_once_ci_high} >= 0.5*{env/success_once}"), unless=FEW_OWN,
             when="deterministic_evaluation and {env/success_once}*{env/num_trajectories} >= 8"),
    ),
)
EVAL_CI_LOW, EVAL_CI_HIGH = bounds_of(EVAL_SUCCESS_ONCE)
EVAL_SUCCESS_AT_END = evaluated(ENV_SUCCESS_AT_END, better="higher")
EVAL_SUCCESS_AT_END_CI_LOW, EVAL_SUCCESS_AT_END_CI_HIGH = bounds_of(EVAL_SUCCESS_AT_END)
EVAL_SUCCESS_AT_RESET = evaluated(ENV_SUCCESS_AT_RESET)
EVAL_SUCCESS_AT_RESET_CI_LOW, EVAL_SUCCESS_AT_RESET_CI_HIGH = bounds_of(EVAL_SUCCESS_AT_RESET)
EVAL_FAIL_ONCE = evaluated(ENV_FAIL_ONCE, tier="extension", better="lower")
EVAL_EPISODE_RETURN = evaluated(
    ENV_EPISODE_RETURN, tier="core", better="higher",
    rules=(
        Rule("rising", "ok", Expect("up", 20)),
        Rule("crash", "critical", Drop(0.5, 3), sustained=2),
    ),
)
EVAL_RETURN_STD = evaluated(
    ENV_RETURN_STD, EVAL_EPISODE_RETURN, tier="core",
    rules=(Rule("unstable", "info", Holds("{eval/return_std} <= 0.5*abs({eval/return})"), sustained=5),),
)
EVAL_RETURN_MIN = evaluated(ENV_RETURN_MIN, EVAL_EPISODE_RETURN, better="higher")
EVAL_RETURN_MAX = evaluated(ENV_RETURN_MAX, EVAL_EPISODE_RETURN)
EVAL_EPISODE_LEN = evaluated(ENV_EPISODE_LEN)
EVAL_EPISODE_LEN_MIN = evaluated(ENV_EPISODE_LEN_MIN, EVAL_EPISODE_LEN)
EVAL_EPISODE_LEN_MAX = evaluated(ENV_EPISODE_LEN_MAX, EVAL_EPISODE_LEN)
EVAL_REWARD = evaluated(ENV_REWARD)
EVAL_NUM_TRAJECTORIES = evaluated(
    ENV_NUM_TRAJECTORIES,
    rules=(Rule("quota", "warn", Holds("{eval/num_trajectories} == n_eval_episodes")),),
)
EVAL_TRUNCATED_FRACTION = evaluated(ENV_TRUNCATED_FRACTION)
# fmt: on

ENV_TASKS, EVAL_TASKS = tasks_of("env", ENV_SUCCESS_ONCE), tasks_of("eval", EVAL_SUCCESS_ONCE)
ENV_NUMBERS, EVAL_NUMBERS = observed_numbers("env"), observed_numbers("eval")

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
    metrics=ENV_NUMBERS,
    tasks=ENV_TASKS,
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
    metrics=EVAL_NUMBERS,
    tasks=EVAL_TASKS,
)
