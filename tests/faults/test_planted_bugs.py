"""Schedules find bugs: each of three, planted where a reader may miss it, within 200 seeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rlpipe.distributed.engine import RayEngine
from rlpipe.distributed.launcher import Launcher
from tests.helpers.simulated_ray.schedules import Schedule
from tests.helpers.simulated_ray.trials import fails

SEEDS = 200


def reply_counted_twice(patch: pytest.MonkeyPatch) -> None:
    """A replacement's window is merged once for itself, and once for the worker that it replaced."""
    gather = RayEngine.gather

    def planted(engine: RayEngine, collection: Any) -> tuple[list[Any], list[Any]]:
        batches, windows = gather(engine, collection)
        requests = collection.task.requests
        replaced = [place for place, rank in enumerate(sorted(requests)) if requests[rank].life]
        return batches, [*windows, *(windows[place] for place in replaced)]

    patch.setattr(RayEngine, "gather", planted)


def seed_reused(patch: pytest.MonkeyPatch) -> None:
    """A replacement begins with the seeds of the worker that it replaced."""
    start = Launcher.start_host
    patch.setattr(
        Launcher, "start_host", lambda launcher, place, lives: start(launcher, place, dict.fromkeys(lives, 0))
    )


def event_dropped(patch: pytest.MonkeyPatch) -> None:
    """Of several losses in one iteration, only the first is reported."""
    faults = RayEngine.repaired_faults
    patch.setattr(RayEngine, "repaired_faults", lambda engine, **options: faults(engine, **options)[:1])


@pytest.mark.soak
@pytest.mark.parametrize("plant", [reply_counted_twice, seed_reused, event_dropped])
def test_a_planted_bug_is_found(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch, record_property):
    plant(monkeypatch)
    seed = next((seed for seed in range(SEEDS) if fails(Schedule.draw(seed))), None)
    record_property("seed", seed)
    print(f"{plant.__name__}: seed {seed}")
    assert seed is not None
