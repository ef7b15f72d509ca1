"""Exempts long-lived objects of a simulator from garbage collection."""

from __future__ import annotations

import gc


def exempt_from_collection() -> None:
    """Exempts all present objects from garbage collection.

    ManiSkill collects whenever it builds or closes a scene. With a few hundred thousand objects alive, that takes most
    of the time of making an environment, or of resetting one that builds its scene anew, as PegInsertionSide does.
    """
    gc.collect()
    gc.freeze()


def collect_exempted() -> None:
    """Collects what has become garbage among the exempted objects too; for closed simulators."""
    gc.unfreeze()
    exempt_from_collection()
