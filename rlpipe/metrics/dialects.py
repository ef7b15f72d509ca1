"""Translates between our metrics and the keys and scales of other systems.

``Metric.names`` holds the keys of each metric in other systems, and how far their numbers agree with ours.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from rlpipe.metrics.catalogue import CATALOGUE
from rlpipe.metrics.declaration import RELATIONS, Metric, Name
from rlpipe.metrics.reductions import Distribution, Reduction

DIALECTS = ("sb3", "trl", "trl_legacy", "cleanrl")
"""Systems whose keys can be written next to ours. RLinf is missing because its keys are ours."""
BY_TIMESTEPS = ("sb3", "cleanrl")
"""Systems that plot over environment steps; the others plot over updates, which are our iterations."""
SYSTEMS = (*DIALECTS, "rlinf", "maniskill", "rsl_rl", "rllib")
"""Systems whose keys can be looked up."""
_PREFIXES = {"trl": "train/", "rllib": "ray/tune/"}
"""Prefixes that a system's callbacks for TensorBoard and W&B add to its keys."""
_OTHERS = {
    "sb3": "rollout/exploration_rate time/episodes train/policy_loss train/kl_divergence_loss train/policy_objective",
    "trl": "loss epoch global_step total_flos train_loss train_runtime train_*_per_second mean_token_accuracy "
    "completions/* rewards/* sampling/* tools/* logps/* logits/* profiling/* eval_* eval/* num_input_tokens_seen",
    "trl_legacy": "ppo/* tokens/* time/ppo/*",
    "cleanrl": "charts/* losses/td_loss losses/q_values losses/qf1_loss losses/qf2_loss losses/qf2_values "
    "losses/actor_loss losses/alpha_loss",
    "rsl_rl": "Loss/* Policy/mean_* Perf/* Train/mean_* Episode/* Episode_Reward/* Episode_Termination/* Curriculum/* "
    "Metrics/* Rnd/*",
    "rllib": "env_runners/* learners/* evaluation/* timers/* fault_tolerance/* env_runner_group/* perf/* config/* "
    "info/* counters/* sampler_results/* sampler_perf/* hist_stats/* custom_metrics/* connector_metrics/* "
    "episode_*_m?? episode_*_mean num_*_lifetime num_*_steps_* num_*_workers* num_training_step_calls_per_iteration "
    "agent_timesteps_total episodes_t* time_*_s time_since_restore iterations_since_restore timestamp pid done",
}
"""Patterns of further keys that a system writes; no metric of ours is the same."""
_COMMON = frozenset(
    {"loss", "reward", "kl", "entropy", "lr", "learning_rate", "grad_norm", "num_tokens", "episode", "eps"}
    | {"policy_loss", "clip_ratio", "step_time", "entropy_coef"}
)
"""Keys that show nothing about who wrote them, because many programs choose the same words."""


def _sample_std(value: float, state: Reduction | None) -> float | None:
    """Converts a standard deviation from dividing by n to dividing by n - 1."""
    if not isinstance(state, Distribution) or state.count < 2:
        return None
    return value * math.sqrt(state.count / (state.count - 1))


CONVERSIONS: dict[str, Callable[[float, Reduction | None], float | None]] = {
    "": lambda value, _: value,
    "negate": lambda value, _: -value,
    "floor": lambda value, _: float(math.floor(value)),
    "double": lambda value, _: 2.0 * value,
    "sample_std": _sample_std,
}
"""Functions from our number and the state behind it to their number."""
_FACTORS = {"negate": -1.0, "double": 2.0}


@dataclass(frozen=True)
class Use:
    """A metric and one of its names in another system."""

    metric: Metric
    name: Name

    @property
    def can_be_written(self) -> bool:
        """True if their number follows from ours. A distribution is not a number."""
        follows = self.name.relation == "exact" or (self.name.relation == "transform" and bool(self.name.convert))
        return follows and not self.metric.is_histogram


def uses(system: str) -> list[Use]:
    """Returns all keys of a system that belong to a metric of ours, in the order of the catalogue."""
    return [Use(metric, name) for metric in CATALOGUE.values() for name in metric.names if name.system == system]


def written(system: str) -> dict[str, Use]:
    """Returns the metric from which each key of a system is written: the closest one that allows it."""
    closest: dict[str, Use] = {}
    for use in uses(system):
        held = closest.get(use.name.key)
        closer = held is None or RELATIONS.index(use.name.relation) < RELATIONS.index(held.name.relation)
        if use.can_be_written and closer:
            closest[use.name.key] = use
    return closest


def left_out(system: str) -> dict[str, Use]:
    """Returns the keys that are not written, because no metric of ours is that number, with the nearest metric."""
    keys = written(system).keys()
    nearest: dict[str, Use] = {}
    for use in sorted(uses(system), key=_distance):
        nearest.setdefault(use.name.key, use)
    return {use.name.key: nearest[use.name.key] for use in uses(system) if use.name.key not in keys}


def _distance(use: Use) -> tuple[bool, int]:
    """Sort key that puts the closest meaning of a name first."""
    return use.name.secondary, RELATIONS.index(use.name.relation)


class Dialect:
    """Writes rows with the keys of one system."""

    def __init__(self, system: str) -> None:
        """Looks up the keys of the system once."""
        self._written = written(system)

    def write(self, metrics: Mapping[str, float], states: Mapping[str, Reduction]) -> dict[str, float]:
        """Returns the numbers of a row under their keys, with their signs and scales.

        Args:
            metrics: row by our names.
            states: states that the row was read from.
        """
        row: dict[str, float] = {}
        for key, use in self._written.items():
            for member in use.metric.members(states):
                value = metrics.get(member.name)
                state = states.get((member.inputs[0] if member.inputs else member).name)
                theirs = None if value is None else CONVERSIONS[use.name.convert](value, state)
                if theirs is not None:
                    row[_named(key, use.metric, member)] = theirs
        return row


def _named(key: str, family: Metric, member: Metric) -> str:
    """Returns the key of a member of a family: the braces in a key stand for the name of the member."""
    if not family.is_family:
        return key
    before, _, after = family.name.partition("{name}")
    name = member.name.removeprefix(before).removesuffix(after)
    return key[: key.index("{")] + name + key[key.index("}") + 1 :] if "{" in key else key


def bare(system: str, key: str) -> str:
    """Returns a key without what the system's callbacks put before it."""
    return key.removeprefix(_PREFIXES.get(system, ""))


def knows(system: str, key: str) -> bool:
    """True if a system, which may be ``rlpipe``, writes a key."""
    others = _OTHERS.get(system, "").split()
    return _translates(system, key) or any(fnmatchcase(bare(system, key), pattern) for pattern in others)


def is_mark(system: str, key: str, systems: Iterable[str]) -> bool:
    """True if a key shows that a system wrote it: it means a metric there, and none of the others writes it."""
    if bare(system, key) in _COMMON or not _translates(system, key):
        return False
    return not any(knows(other, key) for other in systems if other != system)


def _translates(system: str, key: str) -> bool:
    return key in CATALOGUE if system == "rlpipe" else any(_as_asked(use, bare(system, key)) for use in uses(system))


def find(name: str) -> list[Use]:
    """Returns everything a name may mean, in any dialect: our own metric of that name first, then other systems'.

    The name of a member of a family, such as ``env/reward_terms/reach/mean``, is found as that member.
    """
    ours = [use for metric in CATALOGUE.values() if (use := _as_asked(Use(metric, Name("rlpipe", metric.name)), name))]
    theirs = [member for system in SYSTEMS for use in uses(system) if (member := _as_asked(use, name))]
    return [*ours, *sorted(theirs, key=_distance)]


def _as_asked(use: Use, name: str) -> Use | None:
    """Returns the use if its key is this name, or its family has a member of this name; otherwise None."""
    if use.name.key == name:
        return use
    if not use.metric.is_family:
        return None
    before, brace, rest = use.name.key.partition("{")
    match = re.fullmatch(rf"{re.escape(before)}([\w.-]+){re.escape(rest.partition('}')[2])}", name) if brace else None
    return Use(use.metric.member(match[1]), replace(use.name, key=name)) if match else None


def translate(system: str, key: str, value: float) -> list[tuple[Use, float]]:
    """Translates a number of another system to the metric that it is, and to those that are nearly the same.

    Returns:
        Each use with our value; empty for a key that is unknown or unusable. A number that ``differs`` goes to the
        metric that the key belongs to first, so that rules can still judge its course.
    """
    return [
        (member, value / _FACTORS.get(use.name.convert, 1.0))
        for use in uses(system)
        if use.name.relation != "invalid" and not (use.name.relation == "differs" and use.name.secondary)
        if (member := _as_asked(use, key))
    ]
