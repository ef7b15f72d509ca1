"""Every metric, declared once.

Namespaces are RLinf's: ``train/actor train/critic rollout env eval time``. Where systems disagree on what a name means,
the formula here decides, and the names beside it say how others differ.

Letters: i a valid decision (m_i = 1), r_i the ratio pi_new / pi_old, A_i the advantage as used in the loss, V the value
now, V_old the value at collection, R = A_raw + V_old the return target; e a finished episode, T_e its length up to and
including the first end, G_e the undiscounted sum of its rewards; j a trajectory, g a group of them.
"""

from rlpipe.metrics.catalogue import env, off_policy, rollout, time, train
from rlpipe.metrics.catalogue.env import *
from rlpipe.metrics.catalogue.off_policy import *
from rlpipe.metrics.catalogue.rollout import *
from rlpipe.metrics.catalogue.time import *
from rlpipe.metrics.catalogue.train import *
from rlpipe.metrics.declaration import Metric

CATALOGUE: dict[str, Metric] = {
    metric.name: metric
    for module, namespaces in (
        (train, "train/"),
        (off_policy, "train/"),
        (rollout, "rollout/"),
        (env, ("env/", "eval/")),
        (time, "time/"),
    )
    for metric in vars(module).values()
    if isinstance(metric, Metric) and metric.name.startswith(namespaces)
}
"""Every metric by name, in the order of declaration, which is the order of a row."""
