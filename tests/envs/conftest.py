"""Cheaper closing of ManiSkill simulators, for all tests of simulators."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import pytest

from rlpipe.envs import base_garbage


@pytest.fixture(scope="module", autouse=True)
def _closing_looks_at_young_objects_alone():
    """Closing a ManiSkill simulator looks at every object of the process, which are millions after many tests; so it
    takes seconds, each time. Here it looks at those that are not exempted, and the end of the module at all."""
    exempted = gc.get_freeze_count()
    with pytest.MonkeyPatch.context() as patch:
        young = SimpleNamespace(collect=gc.collect, freeze=gc.freeze, unfreeze=lambda: None)
        patch.setattr(base_garbage, "gc", young)
        yield
    if gc.get_freeze_count() != exempted:
        base_garbage.collect_exempted()
