"""``train/sac/``, ``train/replay_buffer/``, ``train/demo_buffer/``: learning from remembered and demonstrated steps."""

from __future__ import annotations

from rlpipe.metrics.declaration import Name, Sign, derived, observed, reading
from rlpipe.metrics.reductions import Distribution, Last, Mean, Sum
from rlpipe.metrics.rules import Band, Finite, Holds, Rule, Spike

_SAC = ("sac", "rlpd")
_NEEDS = "soft actor-critic (algorithm.name=sac or rlpd)"
_NEEDS_DEMOS = "demonstrations (demos)"

SAC_CRITIC_LOSS = observed(
    "train/sac/critic_loss",
    Mean,
    unit="reward squared",
    meaning="Mean squared error of the Q networks to their targets.",
    formula="mean_{e, i} (Q_e(s_i, a_i) - y_i)^2",
    algorithms=_SAC,
    needs=_NEEDS,
    rules=(
        Rule("finite", "critical", Finite(), quiet=20),
        Rule("spike", "warn", Spike(8.0, 20), sustained=3, quiet=10),
    ),
    signs=(
        Sign(
            "sudden spike or infinity",
            "the targets run away: too large a learning rate or target_rate, or too few critics in the minimum",
            "look at train/critic/q_data; lower learner.critic_lr or algorithm.target_rate",
        ),
    ),
    names=(
        Name("rlinf", "train/sac/critic_loss"),
        Name("sb3", "train/critic_loss", "differs", "of SAC: half the sum over the critics"),
        Name("cleanrl", "losses/qf_loss", "differs", "the sum over the critics, of one batch alone"),
    ),
)
SAC_ACTOR_LOSS = observed(
    "train/sac/actor_loss",
    Mean,
    unit="reward",
    meaning="Objective of the policy: temperature times log-probability, less the mean Q value; without cloning.",
    formula="mean_i alpha ln pi(a_i | s_i) - mean_e Q_e(s_i, a_i)",
    algorithms=_SAC,
    needs=_NEEDS,
    rules=(Rule("finite", "critical", Finite(), quiet=20),),
    names=(Name("rlinf", "train/sac/actor_loss"), Name("sb3", "train/actor_loss", "differs", "of SAC: least critic")),
)
SAC_ALPHA_LOSS = observed(
    "train/sac/alpha_loss",
    Mean,
    unit="nats",
    meaning="Objective of the temperature, which rises while the entropy is under its target.",
    formula="mean_i -ln alpha (ln pi(a_i | s_i) + target entropy)",
    algorithms=_SAC,
    needs=_NEEDS,
    rules=(Rule("finite", "critical", Finite(), quiet=20),),
    names=(Name("rlinf", "train/sac/alpha_loss"), Name("sb3", "train/ent_coef_loss")),
)
SAC_ALPHA = observed(
    "train/sac/alpha",
    Mean,
    unit="reward per nat",
    meaning="Temperature: what a nat of entropy is worth.",
    formula="exp(ln alpha), mean over the policy's steps",
    algorithms=_SAC,
    needs=_NEEDS,
    rules=(
        Rule("gone", "warn", Band(1e-6), sustained=5),
        Rule("outweighs", "warn", Band(high=1.0), sustained=20),
    ),
    signs=(
        Sign(
            "below 1e-6",
            "the policy is more random than its target and nothing holds it any more",
            "raise algorithm.target_entropy, or check that the Q values say anything",
        ),
        Sign(
            "above 1",
            "entropy outweighs a sparse reward of 1: the policy cannot become as random as its target",
            "lower algorithm.target_entropy",
        ),
    ),
    names=(Name("rlinf", "train/sac/alpha"), Name("sb3", "train/ent_coef"), Name("cleanrl", "losses/alpha")),
)
Q_DATA = observed(
    "train/critic/q_data",
    Distribution,
    unit="reward",
    meaning="Mean Q value of the steps that were learnt from, over all networks.",
    formula="mean_{e, i} Q_e(s_i, a_i)",
    algorithms=_SAC,
    needs=_NEEDS,
    rules=(
        Rule("finite", "critical", Finite(), quiet=20),
        Rule("runaway", "critical", Holds("{train/critic/q_data} <= 2 * largest_return"), sustained=5, quiet=5),
        Rule("optimistic", "warn", Holds("{train/critic/q_data} <= 1.2 * largest_return"), sustained=10, quiet=5),
    ),
    signs=(
        Sign(
            "above the largest return that the task can pay",
            "Q values run away: their own overestimation comes back through the targets",
            (
                "raise algorithm.num_critics, lower algorithm.target_rate or learner.critic_lr, or take fewer gradient "
                "steps for each environment step (algorithm.update_to_data)"
            ),
        ),
    ),
    names=(Name("rlinf", "train/critic/q_data"), Name("cleanrl", "losses/qf1_values", "differs", "one network")),
)
Q_DATA_MAX = reading(
    "train/critic/q_data_max", Q_DATA, "max", meaning="Largest Q value of any network and step.", formula="max_{e, i}",
    algorithms=_SAC, needs=_NEEDS,
)  # fmt: skip
Q_PI = observed(
    "train/actor/q_pi",
    Mean,
    unit="reward",
    meaning="Mean Q value of what the policy would do in the same states, over all networks.",
    formula="mean_{e, i} Q_e(s_i, a'_i), a'_i ~ pi",
    algorithms=_SAC,
    needs=_NEEDS,
    rules=(Rule("finite", "critical", Finite(), quiet=20),),
    names=(Name("rlinf", "train/actor/q_pi"),),
)
Q_TARGET = observed(
    "train/critic/q_target",
    Mean,
    unit="reward",
    meaning="Mean target of the Q networks.",
    formula="mean_i y_i, y = R + gamma^k (1 - terminated) (min_e Q_e(s', a') - alpha ln pi(a' | s'))",
    algorithms=_SAC,
    needs=_NEEDS,
)
Q_SPREAD = observed(
    "train/critic/q_spread",
    Mean,
    unit="reward",
    meaning="How far the Q networks disagree: the deviation over them, mean over steps.",
    formula="mean_i std_e Q_e(s_i, a_i)",
    algorithms=_SAC,
    needs=_NEEDS,
)
ENTROPY_ESTIMATE = observed(
    "train/actor/entropy",
    Mean,
    unit="nats",
    meaning="Entropy of the policy, estimated from the actions it draws.",
    formula="mean_i -ln pi(a'_i | s_i)",
    algorithms=_SAC,
    needs=_NEEDS,
    rules=(Rule("collapsed", "warn", Holds("{train/actor/entropy} >= -4 * action_dims"), sustained=20),),
    signs=(
        Sign(
            "far under its target",
            "the policy has become deterministic and no longer explores",
            "raise algorithm.target_entropy or algorithm.initial_temperature, lower algorithm.cloning_coef",
        ),
    ),
    names=(Name("rlinf", "train/actor/entropy"),),
)
CLONING_LOSS = observed(
    "train/actor/cloning_loss",
    Mean,
    unit="action squared",
    meaning="Mean squared distance of the policy's most likely actions to the demonstrated ones.",
    formula="mean over demonstrated steps and parts of the action (a_pi - a_demo)^2",
    needs=_NEEDS_DEMOS,
    rules=(Rule("finite", "critical", Finite(), quiet=20),),
)
GRADIENT_STEPS = observed(
    "train/sac/gradient_steps",
    Sum,
    unit="steps",
    meaning="Gradient steps of this iteration.",
    formula="count",
    algorithms=_SAC,
    needs=_NEEDS,
)
LEARNT_FROM = observed(
    "train/sac/environment_steps",
    Sum,
    unit="steps",
    meaning="Environment steps of this iteration that came to the learner.",
    formula="count",
    algorithms=_SAC,
    needs=_NEEDS,
    hidden=True,
)
UPDATE_TO_DATA = derived(
    "train/sac/update_to_data",
    (GRADIENT_STEPS, LEARNT_FROM),
    lambda steps, data: steps.read()["sum"] / data.read()["sum"] if data.read()["sum"] else None,
    unit="steps per step",
    meaning="Gradient steps for each environment step, as they really were.",
    formula="gradient steps / environment steps, of this iteration",
    algorithms=_SAC,
    needs=_NEEDS,
    rules=(Rule("starved", "info", Band(0.01), sustained=50),),
    signs=(
        Sign(
            "near 0",
            "learning is much slower than collecting",
            "smaller networks or batches, fewer workers, a number for algorithm.update_to_data, or a GPU",
        ),
    ),
)
STALENESS = observed(
    "train/replay_buffer/staleness",
    Mean,
    unit="updates",
    meaning="How many weight updates ago the experience that was learnt from was made, mean over sampled steps.",
    formula="mean_i (version now - version that acted in step i)",
    algorithms=_SAC,
    needs=_NEEDS,
)
REPLAY_SAMPLES = observed(
    "train/replay_buffer/total_samples", Last, unit="steps", meaning="Steps that the replay buffer holds.",
    formula="count", algorithms=_SAC, needs=_NEEDS, names=(Name("rlinf", "train/replay_buffer/total_samples"),),
)  # fmt: skip
REPLAY_ADDED = observed(
    "train/replay_buffer/added", Last, unit="steps", meaning="Steps that ever came into the replay buffer.",
    formula="count", algorithms=_SAC, needs=_NEEDS,
)  # fmt: skip
REPLAY_FULL = observed(
    "train/replay_buffer/utilization", Last, unit="1", meaning="Share of the replay buffer that is in use.",
    formula="total_samples / capacity", algorithms=_SAC, needs=_NEEDS,
)  # fmt: skip
REPLAY_REWARD = observed(
    "train/replay_buffer/reward",
    Mean,
    unit="reward",
    meaning="Mean reward of the experience that was learnt from, demonstrations left out; with `algorithm.n_step`, of "
    "the sum over so many steps.",
    formula="mean_i R_i over sampled experience, R_i = sum_{j<k} gamma^j r_{i+j}",
    algorithms=_SAC,
    needs=_NEEDS,
)
DEMO_SAMPLES = observed(
    "train/demo_buffer/total_samples", Last, unit="steps", meaning="Demonstrated steps there are.", formula="count",
    needs=_NEEDS_DEMOS, names=(Name("rlinf", "train/demo_buffer/total_samples"),),
)  # fmt: skip
DEMO_TRAJECTORIES = observed(
    "train/demo_buffer/num_trajectories", Last, unit="trajectories", meaning="Demonstrations there are.",
    formula="count", needs=_NEEDS_DEMOS, names=(Name("rlinf", "train/demo_buffer/num_trajectories"),),
)  # fmt: skip
CLONING_LOSS_HELD_OUT = observed(
    "train/actor/cloning_loss_held_out",
    Mean,
    unit="action squared",
    meaning="The same distance on demonstrations that are not learnt from.",
    formula="as train/actor/cloning_loss, over held-out demonstrations, after the pass",
    needs="behaviour cloning (rlpipe pretrain)",
)
CLONING_BEST_EPOCH = observed(
    "train/actor/cloning_best_epoch",
    Last,
    unit="passes",
    meaning="Pass over the demonstrations with the smallest held-out loss so far, whose weights are kept.",
    formula="argmin over passes of train/actor/cloning_loss_held_out",
    needs="behaviour cloning (rlpipe pretrain)",
)
CLONING_FINISHED = observed(
    "train/actor/cloning_finished",
    Last,
    unit="1",
    meaning="Whether the held-out loss has not fallen for a while, so that cloning ends: 1 or 0.",
    formula="1 if this pass - best pass >= patience, else 0",
    needs="behaviour cloning (rlpipe pretrain)",
)
