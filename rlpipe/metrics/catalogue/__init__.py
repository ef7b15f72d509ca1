"""Metrics of the package, each declared once, in one file per namespace.

``aliases.csv`` holds their names in other systems, one per line, and ``signs.toml`` their warning signs; both are in
the order of the catalogue. ``rlpipe metrics explain NAME`` shows a metric with everything that belongs to it.

Namespaces are RLinf's: ``train/actor train/critic rollout env eval time``. Where systems disagree on the meaning of a
name, the formula here decides, and the aliases say how others differ.

Letters of the formulas: i a valid decision; r_i the ratio pi_new / pi_old; A_i the advantage as used in the loss; V the
current value; V_old the value at collection; R = A_raw + V_old the value target; e a finished episode; T_e its length
up to and including the first end; G_e the undiscounted sum of its rewards; j a trajectory; g a group of trajectories.
"""

from collections.abc import Iterator
from types import ModuleType

from rlpipe.metrics.catalogue import curriculum, env, off_policy, rollout, time, train
from rlpipe.metrics.catalogue.curriculum import *
from rlpipe.metrics.catalogue.env import *
from rlpipe.metrics.catalogue.off_policy import *
from rlpipe.metrics.catalogue.rollout import *
from rlpipe.metrics.catalogue.time import *
from rlpipe.metrics.catalogue.train import *
from rlpipe.metrics.declaration import Metric


def metrics_of(module: ModuleType) -> Iterator[Metric]:
    """Yields the metrics of a file in the order of declaration, single ones and those declared together."""
    for value in vars(module).values():
        together = value if isinstance(value, tuple) else value.values() if isinstance(value, dict) else (value,)
        yield from (metric for metric in together if isinstance(metric, Metric))


CATALOGUE: dict[str, Metric] = {
    metric.name: metric
    for module, namespaces in (
        (train, "train/"),
        (off_policy, "train/"),
        (rollout, "rollout/"),
        (env, ("env/", "eval/")),
        (curriculum, "env/curriculum/"),
        (time, "time/"),
    )
    for metric in metrics_of(module)
    if metric.name.startswith(namespaces)
}
"""All metrics by name, in the order of declaration, which is the order of a row."""
