"""Metrics: what is measured, how observations merge, and what a plot shows. Independent of Ray, torch and backends."""

from rlpipe.metrics.catalogue import CATALOGUE
from rlpipe.metrics.window import MetricWindow

__all__ = ["CATALOGUE", "MetricWindow"]
