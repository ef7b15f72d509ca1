"""Formulas of derived metrics, computed once from merged states. They return None where a number is undefined."""

from __future__ import annotations

import math

from rlpipe.functional.intervals import wilson_interval
from rlpipe.metrics.reductions import LARGEST, Distribution, Last, Mean, Sum


def explained_variance(returns: Distribution, residuals: Distribution) -> float | None:
    """Computes ``1 - Var(R - V) / Var(R)``."""
    if returns.count < 2 or not (variance := returns.variance()):
        return None
    explained = 1 - residuals.variance() / variance
    return float(explained) if explained > -LARGEST else None  # returns that hardly vary explain nothing


def r_squared(returns: Distribution, residuals: Distribution) -> float | None:
    """Computes ``1 - mean((R - V)^2) / Var(R)``: explained variance that also penalises an offset."""
    if returns.count < 2 or not (variance := returns.variance()):
        return None
    explained = 1 - residuals.mean_square() / variance
    return float(explained) if explained > -LARGEST else None


def wilson_low(success: Mean) -> float | None:
    """Computes the lower 95 % bound of a share of episodes."""
    return _wilson(0, success)


def wilson_high(success: Mean) -> float | None:
    """Computes the upper 95 % bound of a share of episodes."""
    return _wilson(1, success)


def _wilson(bound: int, success: Mean) -> float | None:
    successes, episodes = math.fsum(success.parts), math.fsum(success.weight)
    return wilson_interval(round(successes), round(episodes))[bound] if episodes else None


def mean_of_means(shares: tuple[Mean, ...]) -> float | None:
    """Computes the mean of several shares, each of which counts alike."""
    means = _means(shares)
    return math.fsum(means) / len(means) if means else None


def least_of_means(shares: tuple[Mean, ...]) -> float | None:
    """Computes the least of several shares."""
    return min(_means(shares), default=None)


def _means(shares: tuple[Mean, ...]) -> list[float]:
    return [readings["mean"] for share in shares if (readings := share.read())]


def actor_training(update: Last, advantages: Last | None, sync: Last | None) -> float | None:
    """Computes what remains of the time waited for the learner; not every learner has the two parts."""
    if update.value is None:
        return None
    return update.value - sum(part.value for part in (advantages, sync) if part is not None and part.value is not None)


def utilization(busy: Distribution, step: Last) -> float | None:
    """Computes ``sum over workers of busy seconds / (workers * seconds of the iteration)``."""
    if not busy.count or not step.value:
        return None
    return busy.read()["sum"] / (busy.count * step.value)


def straggler_ratio(busy: Distribution) -> float | None:
    """Computes ``slowest worker / mean of the workers``."""
    seconds = busy.read()
    return seconds["max"] / seconds["mean"] if seconds.get("mean") else None


def rate(amount: Sum, per: Sum) -> float | None:
    """Computes ``amount / per``, such as steps per second."""
    whole = per.read().get("sum", 0.0)
    return amount.read().get("sum", 0.0) / whole if whole > 0 else None


def per_slowest(amount: Sum | Distribution, seconds: Distribution) -> float | None:
    """Computes ``amount of all workers / seconds of the slowest worker``."""
    slowest = seconds.read().get("max", 0.0)
    return amount.read().get("sum", 0.0) / slowest if slowest > 0 else None


def time_left(left: Last, done: Sum, seconds: Sum) -> float | None:
    """Computes ``remaining steps / steps per second of this iteration``."""
    pace = rate(done, seconds)
    return left.value / pace if left.value is not None and pace else None
