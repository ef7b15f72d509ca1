"""Where the actors of a run are: it describes the run, so an answer that is missing must not end it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import ray
from ray.exceptions import ObjectLostError

from rlpipe.distributed.actors import Actor
from rlpipe.distributed.engine import RayEngine
from rlpipe.distributed.roles import Role
from rlpipe.errors import ConfigError

pytestmark = pytest.mark.usefixtures("ray_cluster")


def start(name: str, **options: float) -> Actor:
    return Actor(Role.ROLLOUT_WORKER, name, "", {}, **{"num_cpus": 0, **options})


def places(*actors: Actor, seconds: float = 600.0) -> dict[str, dict[str, object]]:
    engine = object.__new__(RayEngine)
    engine._worker_pool = SimpleNamespace(actors=actors)
    engine._launcher, engine._learners = SimpleNamespace(servers=[]), []
    engine._config = SimpleNamespace(cluster=SimpleNamespace(start_timeout=seconds))
    return engine._locations()


def test_an_actor_that_died_before_it_answered_is_left_out():
    alive, dead = start("rollout-0"), start("rollout-1")
    dead.end()
    assert list(places(alive, dead)) == ["driver", "rollout-0", "metric-logger"]
    alive.end()


def test_an_actor_whose_answer_was_lost_is_asked_again(monkeypatch):
    actor = start("rollout-0")
    lost, get = actor.location_ref, ray.get

    def get_unless_lost(ref, timeout=None):
        if ref is lost:
            raise ObjectLostError(ref.hex(), None, "")
        return get(ref, timeout=timeout)

    monkeypatch.setattr("rlpipe.distributed.actors.ray.get", get_unless_lost)
    assert list(places(actor)) == ["driver", "metric-logger"]
    assert list(places(actor)) == ["driver", "rollout-0", "metric-logger"]
    actor.end()


def test_an_actor_that_finds_no_place_is_the_users_error():
    homeless = start("rollout-0", num_cpus=99)
    with pytest.raises(ConfigError, match=r"had not started after 0\.1 s \(cluster\.start_timeout\)"):
        places(homeless, seconds=0.1)
    homeless.end()
