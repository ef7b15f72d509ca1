"""Describes relations and reductions of metrics in words, for the command line and the documentation."""

from __future__ import annotations

from collections.abc import Iterable

from rlpipe.metrics.declaration import Metric, Name
from rlpipe.metrics.reductions import Reduction

SYSTEM_TITLES = {
    "rlpipe": "rlpipe",
    "sb3": "Stable-Baselines3",
    "trl": "TRL",
    "trl_legacy": "TRL's legacy PPO",
    "cleanrl": "CleanRL",
    "rlinf": "RLinf",
    "maniskill": "ManiSkill",
    "rsl_rl": "rsl_rl",
    "rllib": "RLlib",
}
"""Names of the systems as their makers write them."""

_CONVERSIONS = {
    "negate": "ours with the opposite sign",
    "floor": "ours, rounded down",
    "double": "twice ours",
    "sample_std": "ours, but divided by n - 1 instead of n",
    "": "another form of ours",
}
_RELATIONS = {
    "exact": "the same number",
    "approx": "nearly the same",
    "differs": "another number",
    "invalid": "not usable",
}
_STATISTICS = {
    "mean": "mean",
    "std": "standard deviation (dividing by n)",
    "var": "variance (dividing by n)",
    "sample_var": "variance (dividing by n - 1)",
    "min": "smallest",
    "max": "largest",
    "skew": "skewness",
}


def describe_relation(name: Name, metric: Metric) -> str:
    """Describes how another system's number relates to a metric of ours."""
    if metric.is_histogram and name.relation == "exact":
        return "the same distribution, shown under our name"
    return _CONVERSIONS[name.convert] if name.relation == "transform" else _RELATIONS[name.relation]


def observed_metric(metric: Metric) -> Metric:
    """Returns the metric whose observations a metric shows: the metric itself unless it is a reading."""
    return metric.inputs[0] if metric.inputs and metric.compute is None else metric


def describe_reduction(metric: Metric) -> str:
    """Describes how the observations of minibatches, workers and learners become one number."""
    if metric.compute is not None:
        inputs = _joined(of.name for of in metric.inputs)
        return f"Computed once, after {inputs} {'have' if len(metric.inputs) > 1 else 'has'} been merged."
    observed = observed_metric(metric)
    sentence = _describe_merge(observed.reduction, metric.reads)
    shared = f" From the observations of {observed.name}." if observed is not metric else ""
    lasting = " Accumulates over the whole run; a resume continues it." if observed.lifetime else ""
    return sentence + shared + lasting


def _describe_merge(kind: type[Reduction] | None, reads: str) -> str:
    everywhere = "over all minibatches, workers and learners"
    match kind.__name__ if kind else "":
        case "Sum":
            return f"Added up {everywhere}."
        case "Mean":
            return f"Sum and count are added up {everywhere}, and divided once."
        case "Last":
            return "Set once per iteration, to the same value by every writer; never averaged."
        case "Histogram":
            return f"Counts in fixed bins are added up {everywhere}; percentiles are right to 0.5 % from 1e-9 to 1e9."
        case "GroupedMean":
            return "One mean per environment, over all workers; then the mean of these."
        case "Recent":
            return "Mean of the 100 newest observations of all workers, ordered in time."
        case _:
            statistic = _STATISTICS.get(reads, reads)
            return f"The {statistic} of all observations, pooled {everywhere}; never a mean of means."


def _joined(parts: Iterable[str]) -> str:
    *most, last = parts
    return f"{', '.join(most)} and {last}" if most else last
