"""``env/curriculum/``: episodes whose start a curriculum chose, and how far the curriculum has come."""

from __future__ import annotations

from rlpipe.metrics.catalogue.conditions import NEEDS_CURRICULUM, NEEDS_TASKS, NEEDS_WIDENING
from rlpipe.metrics.catalogue.declare import observed, reading
from rlpipe.metrics.episode_metrics import EpisodeMetrics
from rlpipe.metrics.reductions import Distribution, Mean, Sum
from rlpipe.metrics.rules import Exceeds, Finite, Rule

# Each metric is one entry: what it is, its meaning, its formula, its rules. The formatter would scatter the first line.
# fmt: off

CURRICULUM_SUCCESS_ONCE = observed(
    "env/curriculum/success_once", Mean, "fraction", needs=NEEDS_CURRICULUM,
    meaning="Share of the curriculum's episodes in which success held at least once.",
    formula="mean_e [any_{1 <= t <= T_e} success_et] over e whose start was chosen",
    rules=(Rule("stuck_zero", "warn", Exceeds(0.0, 100)),),
)
CURRICULUM_RETURN = observed(
    "env/curriculum/return", Distribution, "reward", needs=NEEDS_CURRICULUM,
    meaning="Mean undiscounted return of the curriculum's episodes.",
    formula="mean_e G_e over e whose start was chosen",
    rules=(Rule("finite", "critical", Finite(), quiet=20),),
)
CURRICULUM_RETURN_STD = reading(
    "env/curriculum/return_std", CURRICULUM_RETURN, "std",
    meaning="Standard deviation of the returns of the curriculum's episodes.",
    formula="sqrt(mean_e (G_e - mean)^2)",
)
CURRICULUM_EPISODE_LEN = observed(
    "env/curriculum/episode_len", Distribution, "environment steps", needs=NEEDS_CURRICULUM,
    meaning="Mean length of the curriculum's episodes.",
    formula="mean_e T_e over e whose start was chosen",
)
CURRICULUM_NUM_TRAJECTORIES = observed(
    "env/curriculum/num_trajectories", Sum, "episodes", needs=NEEDS_CURRICULUM,
    meaning="Number of finished episodes of the curriculum.",
    formula="count_e over e whose start was chosen",
)
CURRICULUM_START = observed(
    "env/curriculum/start", Distribution, "fraction", needs=NEEDS_CURRICULUM,
    meaning="Where in the demonstrations episodes begin, mean over demonstrations: 1 at the end, 0 at the beginning.",
    formula="mean_d t_d / T_d",
)
CURRICULUM_START_MIN = reading(
    "env/curriculum/start_min", CURRICULUM_START, "min",
    meaning="Start of the demonstration whose start has moved furthest back.",
    formula="min_d t_d / T_d",
)
CURRICULUM_START_MAX = reading(
    "env/curriculum/start_max", CURRICULUM_START, "max",
    meaning="Start of the demonstration whose start has moved back least.",
    formula="max_d t_d / T_d",
)
TASK_WEIGHT = observed(
    "env/curriculum/tasks/{name}/weight", Mean, "factor", needs=NEEDS_TASKS,
    meaning="Factor by which a task gets more environments than its share in env.train.tasks, or fewer.",
    formula="K * (u / K + (1 - u) * p_k / sum_k p_k), with p the absolute change of success and u the uniform share",
)
CURRICULUM_SOLVED = observed(
    "env/curriculum/solved", Mean, "fraction", needs=NEEDS_CURRICULUM,
    meaning="Share of the demonstrations that succeed again and again from their beginning.",
    formula="mean_d [solved_d]",
)
CURRICULUM_SEEDS_MASTERED = observed(
    "env/curriculum/seeds_mastered", Mean, "fraction", needs=NEEDS_CURRICULUM,
    meaning="Share of the forward curriculum's seeds whose last episodes mostly succeeded.",
    formula="mean_k [share of success over the last episodes of seed k >= 3/4]",
)
CURRICULUM_SEEDS_UNSOLVED = observed(
    "env/curriculum/seeds_unsolved", Mean, "fraction", needs=NEEDS_CURRICULUM,
    meaning="Share of the forward curriculum's seeds without any success in their last episodes.",
    formula="mean_k [no success over the last episodes of seed k]",
)
CURRICULUM_BLEND_DEMONSTRATIONS = observed(
    "env/curriculum/blend_demonstrations", Mean, "fraction", needs=NEEDS_CURRICULUM,
    meaning="How far starts have been spread among the demonstrations: 0 at each one's beginning, 1 at the others'.",
    formula="level / levels",
)
CURRICULUM_BLEND = observed(
    "env/curriculum/blend", Mean, "fraction", needs=NEEDS_CURRICULUM,
    meaning="How far starts have been spread: 0 at the demonstrations' beginnings, 1 at the task's own starts.",
    formula="level / levels",
)
CURRICULUM_WIDTH = observed(
    "env/curriculum/width", Mean, "fraction", needs=NEEDS_WIDENING,
    meaning="How far the ranges of variations have widened, mean over axes: 0 at one level, 1 at the widest range.",
    formula="mean_i n_i / N_i, with n_i the steps from the low to the high edge of axis i, N_i those of its widest "
            "range",
)
CURRICULUM_RANGE_ENTROPY = observed(
    "env/curriculum/range_entropy", Mean, "nats per axis", needs=NEEDS_WIDENING,
    meaning="Volume of the ranges of variations: the entropy of levels one step apart, each as likely.",
    formula="mean_i log(1 + n_i), with n_i the steps from the low to the high edge of axis i",
)
CURRICULUM_EDGE_LEVEL = observed(
    "env/curriculum/edges/{name}/level", Mean, "units of the axis", needs=NEEDS_WIDENING,
    meaning="Level of the low or high edge of an axis, within which its levels are drawn.",
    formula="level after the episodes of the iteration",
)
CURRICULUM_EDGE_SUCCESS = observed(
    "env/curriculum/edges/{name}/success_once", Mean, "fraction", needs=NEEDS_WIDENING,
    meaning="Share of the episodes with an axis at this edge in which success held at least once.",
    formula="mean_e [any_{1 <= t <= T_e} success_et] over e whose level was put at the edge",
)
CURRICULUM = EpisodeMetrics(
    success_once=CURRICULUM_SUCCESS_ONCE,
    episode_return=CURRICULUM_RETURN,
    return_std=CURRICULUM_RETURN_STD,
    episode_len=CURRICULUM_EPISODE_LEN,
    num_trajectories=CURRICULUM_NUM_TRAJECTORIES,
    of_chosen_starts=True,
    edge_success=CURRICULUM_EDGE_SUCCESS,
)
