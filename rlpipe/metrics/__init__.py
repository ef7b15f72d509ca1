"""What is measured, how observations merge, and what a plot shows. Knows nothing of Ray, torch or backends."""

from rlpipe.metrics.catalogue import CATALOGUE
from rlpipe.metrics.window import MetricWindow

__all__ = ["CATALOGUE", "MetricWindow"]
