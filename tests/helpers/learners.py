"""Learners of every kind, and fragments for them."""

from __future__ import annotations

from rlpipe.collection.worker import RolloutWorker
from rlpipe.learning.base import learner_class
from rlpipe.policies.base import NoWeights, Snapshot
from tests.helpers.demonstrations import demonstrator
from tests.helpers.kinds import KINDS
from tests.helpers.runs import sac, scripted

STEP = 3e-4
"""Learning rate. Adam moves a weight by about as much in a step, whichever sign rounding gives a vanishing gradient."""


def rlpd(folder, *overrides):
    return sac(
        folder, "algorithm.name=rlpd", "policy.normalize_observations=true", *overrides, demos=demonstrator(folder)
    )


def cloning(folder, *overrides):
    algorithm = {"name": "behaviour_cloning", "epochs": 3, "batch_size": 16}
    policy = {"name": "mlp", "hidden_sizes": [8]}
    return scripted(folder, *overrides, demos=demonstrator(folder), algorithm=algorithm, policy=policy)


MAKE = {name: kind.config for name, kind in KINDS.items()} | {"rlpd": rlpd, "cloning": cloning}


def learner_of(config, spec):
    return learner_class(config)(config.schedule, spec)


def collected(config, count=2):
    """The spaces, and so many fragments under the first weights, or none for what learns from demonstrations alone."""
    worker = RolloutWorker(config.schedule, 0, 1)
    fragments = [(worker.collect(Snapshot(0, NoWeights.FROM_SEED), 0)[0],) for _ in range(count)]
    return worker.ready().spec, fragments if config.algorithm_class.collects else [()] * count
