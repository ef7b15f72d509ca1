"""Statistics of an episode as the library ``lerobot`` computes them (0.4.4, ``datasets/compute_stats.py``).

Quantiles are those of a histogram. A second algorithm would be nearer to the truth, but normalisers of policies that
were trained on datasets of the library would not meet the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from rlpipe.demonstrations.formats.episode import Array

BINS = 5000
QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
Statistics = dict[str, Array]


def of_rows(rows: Array) -> Statistics:
    """Returns the statistics of numbers [T, ...] over the first axis and all others but the last, [D]; the count is
    T."""
    values = rows.reshape(-1, 1) if rows.ndim == 1 else rows.reshape(-1, rows.shape[-1])
    mean, low, high = np.mean(values, axis=0), np.min(values, axis=0), np.max(values, axis=0)
    count = np.array([len(rows)])
    if len(values) < 2:
        return {
            "min": low, "max": high, "mean": mean, "std": np.std(values, axis=0), "count": count,
            **dict.fromkeys(QUANTILES, mean),
        }  # fmt: skip
    deviation = np.sqrt(np.maximum(0, np.mean(values**2, axis=0) - mean**2))
    statistics = {"min": low, "max": high, "mean": mean, "std": deviation, "count": count}
    edges = [np.linspace(least - 1e-10, most + 1e-10, BINS + 1) for least, most in zip(low, high, strict=True)]
    numbers = values.astype(np.uint8) if values.dtype == bool else values
    below = [
        np.cumsum(np.histogram(column, bins=bins)[0].astype(float))
        for column, bins in zip(numbers.T, edges, strict=True)
    ]
    for name, quantile in QUANTILES.items():
        statistics[name] = np.array(
            [_quantile(total, bins, quantile * len(values)) for total, bins in zip(below, edges, strict=True)]
        )
    return statistics


def _quantile(below: Array, edges: Array, target: float) -> Any:
    """Returns the value under which ``target`` of the numbers lie, given how many lie below the end of each bin."""
    bin_ = int(np.searchsorted(below, target))
    if bin_ in (0, len(below)):
        return edges[0 if bin_ == 0 else -1]
    inside = below[bin_] - below[bin_ - 1]
    share = (target - below[bin_ - 1]) / inside if inside else 0.0
    return edges[bin_] + share * (edges[bin_ + 1] - edges[bin_])


def sampled(count: int) -> list[int]:
    """Returns which of an episode's pictures are looked at."""
    number = max(min(100, count), min(int(count**0.75), 10_000))
    indices: list[int] = np.round(np.linspace(0, count - 1, number)).astype(int).tolist()
    return indices


def reduced(picture: Array) -> Array:
    """Leaves out rows and columns of a large picture, [height, width, channels]."""
    height, width, _ = picture.shape
    if max(height, width) < 300:
        return picture
    step = int((width if width > height else height) / 150)
    return picture[::step, ::step]


def of_pictures(pictures: Iterable[Array]) -> Statistics:
    """Returns the statistics of pictures [height, width, channels] uint8 by channel, from 0 to 1, [channels, 1, 1]."""
    stacked = np.stack([*pictures])
    statistics = of_rows(stacked)
    count = statistics.pop("count")
    return {name: (values / 255.0).reshape(-1, 1, 1) for name, values in statistics.items()} | {"count": count}


def combined(first: Mapping[str, Statistics], second: Mapping[str, Statistics]) -> dict[str, Statistics]:
    """Returns the statistics of two parts of a dataset, by feature, as if they were one."""
    return {name: _combined(first[name], second[name]) for name in first}


def _combined(first: Statistics, second: Statistics) -> Statistics:
    counts = np.stack([first["count"], second["count"]])
    total = counts.sum(axis=0)
    weights = counts.reshape(2, *[1] * first["mean"].ndim)

    def weighted(values: Array) -> Array:
        return np.asarray((values * weights).sum(axis=0) / total)

    means = np.stack([first["mean"], second["mean"]])
    mean = weighted(means)
    variances = np.stack([first["std"] ** 2, second["std"] ** 2])
    return {
        "min": np.minimum(first["min"], second["min"]),
        "max": np.maximum(first["max"], second["max"]),
        "mean": mean,
        "std": np.sqrt(weighted(variances + (means - mean) ** 2)),
        "count": total,
        **{name: weighted(np.stack([first[name], second[name]])) for name in QUANTILES},
    }
