"""Hooks that were renamed: a plug-in that still uses an old name works, and is told the present one."""

from __future__ import annotations

import warnings

import pytest

from rlpipe.algorithms.base import OnPolicyAlgorithm
from rlpipe.algorithms.ppo import PPO
from rlpipe.backends.base import Backend
from rlpipe.metrics import catalogue as m
from rlpipe.plugins import resolve
from rlpipe.policies.base import Policy
from rlpipe.policies.mlp import MLPPolicy

RENAMED = [
    (OnPolicyAlgorithm, "observe", "measure"),
    (OnPolicyAlgorithm, "shown", "console_metrics"),
    (Policy, "observe", "update_normalizer"),
    (Backend, "how_to_look", "view_command"),
]


@pytest.mark.parametrize(("base", "old", "name"), RENAMED)
def test_an_old_name_still_works_and_warns_with_the_present_one(base, old, name):
    with pytest.warns(FutureWarning, match=rf"Mine defines {old}, which is now called {name}: rename it"):
        mine = type("Mine", (base,), {old: "as before"})
    assert getattr(mine, name) == "as before"


@pytest.mark.parametrize(("base", "old", "name"), RENAMED)
def test_the_present_name_wins_where_a_plug_in_defines_both(base, old, name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mine = type("Mine", (base,), {old: "for an older version", name: "for this version"})
    assert getattr(mine, name) == "for this version"


def test_an_old_name_also_replaces_what_a_shipped_class_defines():
    with pytest.warns(FutureWarning, match="console_metrics"):

        class Quiet(PPO):
            shown = (m.ENTROPY,)

    assert Quiet.console_metrics == (m.ENTROPY,)
    assert PPO.console_metrics != Quiet.console_metrics


@pytest.mark.parametrize("subclass", [OnPolicyAlgorithm, PPO, MLPPolicy])
def test_a_class_with_present_names_does_not_warn(subclass):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        type("Mine", (subclass,), {})


def test_a_backend_with_the_old_name_is_still_found(tmp_path, monkeypatch):
    (tmp_path / "old_backend.py").write_text(
        "from rlpipe.backends.base import Backend\n"
        "class Old(Backend):\n"
        "    @classmethod\n"
        "    def how_to_look(cls, options, run, project):\n"
        "        return f'show {project}'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.warns(FutureWarning, match=r"old_backend\.Old defines how_to_look"):
        backend = resolve("backends", "old_backend:Old", "runner.logger.logger_backends")
    assert backend.view_command(None, tmp_path, "mine") == "show mine"


def test_an_algorithm_that_collected_ahead_still_does():
    with pytest.warns(FutureWarning, match="defines ahead, which is now called pipeline"):
        mine = type("Mine", (OnPolicyAlgorithm,), {"ahead": True})
    assert mine.pipeline == "ahead"
