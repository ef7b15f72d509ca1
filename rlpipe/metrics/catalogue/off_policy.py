"""``train/sac/``, ``train/replay_buffer/``, ``train/demo_buffer/``: learning from stored and demonstrated steps."""

from __future__ import annotations

from rlpipe.metrics.catalogue.conditions import (
    NEEDS_CLONING,
    NEEDS_CORRECTIONS,
    NEEDS_DEMOS,
    NEEDS_HINDSIGHT,
    NEEDS_SAC,
    SOFT_ACTOR_CRITIC,
)
from rlpipe.metrics.catalogue.declare import derived, observed, reading
from rlpipe.metrics.derivations import rate
from rlpipe.metrics.reductions import Distribution, Last, Mean, Sum
from rlpipe.metrics.rules import Band, Finite, Holds, Rule, Spike

# Each metric is one entry: what it is, its meaning, its formula, its rules. The formatter would scatter the first line.
# fmt: off

SAC_CRITIC_LOSS = observed(
    "train/sac/critic_loss", Mean, "reward squared", algorithms=SOFT_ACTOR_CRITIC, needs=NEEDS_SAC,
    meaning="Mean squared error of the Q networks against their targets.",
    formula="mean_{e, i} (Q_e(s_i, a_i) - y_i)^2",
    rules=(
        Rule("finite", "critical", Finite(), quiet=20, sign="spike"),
        Rule("spike", "warn", Spike(8.0, 20), sustained=3, quiet=10),
    ),
)
SAC_ACTOR_LOSS = observed(
    "train/sac/actor_loss", Mean, "reward", algorithms=SOFT_ACTOR_CRITIC, needs=NEEDS_SAC,
    meaning="Loss of the policy: temperature times log-probability minus the mean Q value, without the cloning loss.",
    formula="mean_i alpha ln pi(a_i | s_i) - mean_e Q_e(s_i, a_i)",
    rules=(Rule("finite", "critical", Finite(), quiet=20),),
)
SAC_ALPHA_LOSS = observed(
    "train/sac/alpha_loss", Mean, "nats", algorithms=SOFT_ACTOR_CRITIC, needs=NEEDS_SAC,
    meaning="Loss of the temperature, which rises while the entropy is below its target.",
    formula="mean_i -ln alpha (ln pi(a_i | s_i) + target entropy)",
    rules=(Rule("finite", "critical", Finite(), quiet=20),),
)
SAC_ALPHA = observed(
    "train/sac/alpha", Mean, "reward per nat", algorithms=SOFT_ACTOR_CRITIC, needs=NEEDS_SAC,
    meaning="Temperature: the reward that one nat of entropy is worth.",
    formula="exp(ln alpha), mean over the policy's steps",
    rules=(
        Rule("gone", "warn", Band(1e-06), sustained=5),
        Rule("outweighs", "warn", Band(high=1.0), sustained=20),
    ),
)
Q_DATA = observed(
    "train/critic/q_data", Distribution, "reward", algorithms=SOFT_ACTOR_CRITIC, needs=NEEDS_SAC,
    meaning="Mean Q value of the sampled steps, over all networks.",
    formula="mean_{e, i} Q_e(s_i, a_i)",
    rules=(
        Rule("finite", "critical", Finite(), quiet=20, sign="runaway"),
        Rule("runaway", "critical", Holds("{train/critic/q_data} <= 2 * largest_return"), sustained=5, quiet=5),
        Rule("optimistic", "warn", Holds("{train/critic/q_data} <= 1.2 * largest_return"), sustained=10, quiet=5,
             sign="runaway"),
    ),
)
Q_DATA_MAX = reading(
    "train/critic/q_data_max", Q_DATA, "max",
    meaning="Largest Q value of any network and step.",
    formula="max_{e, i}",
)
Q_PI = observed(
    "train/actor/q_pi", Mean, "reward", algorithms=SOFT_ACTOR_CRITIC, needs=NEEDS_SAC,
    meaning="Mean Q value of the actions that the policy would take in the same states, over all networks.",
    formula="mean_{e, i} Q_e(s_i, a'_i), a'_i ~ pi",
    rules=(Rule("finite", "critical", Finite(), quiet=20),),
)
Q_TARGET = observed(
    "train/critic/q_target", Mean, "reward", algorithms=SOFT_ACTOR_CRITIC, needs=NEEDS_SAC,
    meaning="Mean target of the Q networks.",
    formula="mean_i y_i, y = R + gamma^k (1 - terminated) (min_e Q_e(s', a') - alpha ln pi(a' | s'))",
)
Q_SPREAD = observed(
    "train/critic/q_spread", Mean, "reward", algorithms=SOFT_ACTOR_CRITIC, needs=NEEDS_SAC,
    meaning="Disagreement of the Q networks: their standard deviation, mean over steps.",
    formula="mean_i std_e Q_e(s_i, a_i)",
)
ENTROPY_ESTIMATE = observed(
    "train/actor/entropy", Mean, "nats", algorithms=SOFT_ACTOR_CRITIC, needs=NEEDS_SAC,
    meaning="Entropy of the policy, estimated from sampled actions.",
    formula="mean_i -ln pi(a'_i | s_i)",
    rules=(Rule("collapsed", "warn", Holds("{train/actor/entropy} >= -4 * action_dims"), sustained=20),),
)
CLONING_LOSS = observed(
    "train/actor/cloning_loss", Mean, "action squared", needs=NEEDS_DEMOS,
    meaning="Mean squared distance between the policy's most likely actions and the demonstrated ones; with "
            "algorithm.loss or a policy of tokens, the distance or negative log-probability that is minimised instead.",
    formula="mean over demonstrated steps and action components of (a_pi - a_demo)^2",
    rules=(Rule("finite", "critical", Finite(), quiet=20),),
)
GRADIENT_STEPS = observed(
    "train/sac/gradient_steps", Sum, "steps", algorithms=SOFT_ACTOR_CRITIC, needs=NEEDS_SAC,
    meaning="Gradient steps of this iteration.",
    formula="count",
)
LEARNT_FROM = observed(
    "train/sac/environment_steps", Sum, "steps", algorithms=SOFT_ACTOR_CRITIC, hidden=True, needs=NEEDS_SAC,
    meaning="Environment steps of this iteration that reached the learner.",
    formula="count",
)
UPDATE_TO_DATA = derived(
    "train/sac/update_to_data", (GRADIENT_STEPS, LEARNT_FROM), rate, "steps per step", algorithms=SOFT_ACTOR_CRITIC,
    needs=NEEDS_SAC,
    meaning="Gradient steps actually taken per environment step.",
    formula="gradient steps / environment steps, of this iteration",
    rules=(Rule("starved", "info", Band(0.01), sustained=50),),
)
STALENESS = observed(
    "train/replay_buffer/staleness", Mean, "updates", algorithms=SOFT_ACTOR_CRITIC, needs=NEEDS_SAC,
    meaning="Age of the sampled experience in weight updates, mean over sampled steps.",
    formula="mean_i (version now - version that acted in step i)",
)
REPLAY_SAMPLES = observed(
    "train/replay_buffer/total_samples", Last, "steps", algorithms=SOFT_ACTOR_CRITIC, needs=NEEDS_SAC,
    meaning="Steps in the replay buffer.",
    formula="count",
)
REPLAY_ADDED = observed(
    "train/replay_buffer/added", Last, "steps", algorithms=SOFT_ACTOR_CRITIC, needs=NEEDS_SAC,
    meaning="Steps ever added to the replay buffer.",
    formula="count",
)
REPLAY_FULL = observed(
    "train/replay_buffer/utilization", Last, "1", algorithms=SOFT_ACTOR_CRITIC, needs=NEEDS_SAC,
    meaning="Share of the replay buffer that is in use.",
    formula="total_samples / capacity",
)
REPLAY_REWARD = observed(
    "train/replay_buffer/reward", Mean, "reward", algorithms=SOFT_ACTOR_CRITIC, needs=NEEDS_SAC,
    meaning="Mean reward of the sampled experience, without demonstrations; with `algorithm.n_step`, the sum over "
            "that many steps; with `algorithm.hindsight`, for the goals that it is learnt with.",
    formula="mean_i R_i over sampled experience, R_i = sum_{j<k} gamma^j r_{i+j}",
)
RELABELLED = observed(
    "train/replay_buffer/relabelled", Mean, "fraction", algorithms=SOFT_ACTOR_CRITIC, needs=NEEDS_HINDSIGHT,
    meaning="Share of the sampled experience whose goal was replaced by one that its episode achieved later. It is "
            "below `algorithm.hindsight` as long as the buffer holds steps of episodes that have not ended.",
    formula="mean_i [step i has another goal than it was collected for]",
)
RELABELLED_REWARD = observed(
    "train/replay_buffer/relabelled_reward", Mean, "reward", algorithms=SOFT_ACTOR_CRITIC, needs=NEEDS_HINDSIGHT,
    meaning="Mean reward of the relabelled steps for their new goals. At the largest reward of the task, every new "
            "goal was achieved at once, so that nothing is learnt from it.",
    formula="mean_i r(achieved after step i, new goal), over relabelled steps",
)
RELABELLED_REWARD_BEFORE = observed(
    "train/replay_buffer/relabelled_reward_before", Mean, "reward", algorithms=SOFT_ACTOR_CRITIC,
    needs=NEEDS_HINDSIGHT,
    meaning="Mean reward of the same steps for the goals that they were collected for.",
    formula="mean_i r_i, over relabelled steps",
)
RELABELLED_AHEAD = observed(
    "train/replay_buffer/relabelled_ahead", Mean, "steps", algorithms=SOFT_ACTOR_CRITIC, needs=NEEDS_HINDSIGHT,
    meaning="Steps from a relabelled step to the one that achieved its new goal. For episodes of T steps about T / 4.",
    formula="mean_i (t'_i - t_i), over relabelled steps",
)
GOALS_AHEAD = observed(
    "train/replay_buffer/goals_ahead", Mean, "fraction", algorithms=SOFT_ACTOR_CRITIC, needs=NEEDS_HINDSIGHT,
    meaning="Share of the drawn new goals that had not been achieved before their step, so that there is something to "
            "learn from them. Near 0 while the robot moves nothing: `algorithm.hindsight_candidates` makes up for it.",
    formula="mean_k [r(achieved before step k, new goal) < r(new goal, new goal)], over all candidates",
)
DEMO_SAMPLES = observed(
    "train/demo_buffer/total_samples", Last, "steps", needs=NEEDS_DEMOS,
    meaning="Number of demonstrated steps.",
    formula="count",
)
DEMO_TRAJECTORIES = observed(
    "train/demo_buffer/num_trajectories", Last, "trajectories", needs=NEEDS_DEMOS,
    meaning="Number of demonstrations.",
    formula="count",
)
INTERVENTIONS = observed(
    "train/interventions", Last, "fraction", needs=NEEDS_CORRECTIONS,
    meaning="Share of the demonstrated steps in which the expert acted itself. In the others a policy acted, and the "
            "expert only said what it would have done.",
    formula="mean of intervene_flag",
)
CLONING_LOSS_HELD_OUT = observed(
    "train/actor/cloning_loss_held_out", Mean, "action squared", needs=NEEDS_CLONING,
    meaning="Cloning loss on demonstrations that are held out of training.",
    formula="as train/actor/cloning_loss, over held-out demonstrations, after the epoch",
)
CLONING_BEST_EPOCH = observed(
    "train/actor/cloning_best_epoch", Last, "passes", needs=NEEDS_CLONING,
    meaning="Epoch whose weights are kept: that with the smallest held-out loss so far, or the last one if no "
            "demonstrations are held out.",
    formula="argmin over epochs of train/actor/cloning_loss_held_out",
)
CLONING_FINISHED = observed(
    "train/actor/cloning_finished", Last, "1", needs=NEEDS_CLONING,
    meaning="Set to 1 once the held-out loss has stopped falling, or all epochs are over: cloning ends; 0 before.",
    formula="1 if this epoch - best epoch >= patience, or it is the last, else 0",
)
