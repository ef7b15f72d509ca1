"""Words for what the catalogue declares, for the command line and the documentation."""

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
}
"""What the systems are called by their makers."""

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


def relation(name: Name, metric: Metric) -> str:
    """How another system's number relates to a metric of ours."""
    if metric.is_histogram and name.relation == "exact":
        return "the same distribution, given under our name"
    return _CONVERSIONS[name.convert] if name.relation == "transform" else _RELATIONS[name.relation]


def source(metric: Metric) -> Metric:
    """The metric whose observations a metric shows; itself unless it is a reading."""
    return metric.inputs[0] if metric.inputs and metric.compute is None else metric


def reduction(metric: Metric) -> str:
    """How the observations of minibatches, workers and ranks become one number, as a sentence."""
    if metric.compute is not None:
        inputs = _joined(f"{one.name}" for one in metric.inputs)
        return f"Computed once, after {inputs} {'have' if len(metric.inputs) > 1 else 'has'} been merged."
    sentence = _merging(source(metric).reduction, metric.reads)
    shared = f" From the observations of {source(metric).name}." if source(metric) is not metric else ""
    lasting = " Goes on over the whole run, and a resume continues it." if source(metric).lifetime else ""
    return sentence + shared + lasting


def _merging(kind: type[Reduction] | None, reads: str) -> str:
    everywhere = "over all minibatches, workers and ranks"
    match kind.__name__ if kind else "":
        case "Sum":
            return f"Added up {everywhere}."
        case "Mean":
            return f"Sum and count are added up {everywhere}, and divided once."
        case "Last":
            return "Set once an iteration, by one writer or alike by all; never averaged."
        case "Histogram":
            return f"Counts in fixed bins are added up {everywhere}; percentiles are right to 0.5 % from 1e-9 to 1e9."
        case "GroupedMean":
            return "One mean for each environment, over all workers; then the mean of these."
        case "Recent":
            return "Mean of the 100 newest observations of all workers, in the order of their time."
        case _:
            statistic = _STATISTICS.get(reads, reads)
            return f"The {statistic} of all observations, pooled {everywhere}; never a mean of means."


def _joined(parts: Iterable[str]) -> str:
    *most, last = parts
    return f"{', '.join(most)} and {last}" if most else last
