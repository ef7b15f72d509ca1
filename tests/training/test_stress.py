"""``rlpipe stress``: what a policy survives, in the same episodes, with each axis alone and all together."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import rlpipe
from rlpipe import files
from rlpipe.analysis.stress import Kind, arms_of, survived
from rlpipe.cli.exit_codes import ExitCode
from rlpipe.config.stress import stress_axes
from rlpipe.config.tree import to_yaml
from rlpipe.envs.scripted import Scripted, ScriptedEnv, ScriptedEpisode
from rlpipe.envs.shared.axes import EVERYWHERE, MASS
from rlpipe.report.run_content import collect
from rlpipe.report.view_stress import stress_section
from rlpipe.run import shapes
from tests.helpers.commands import command
from tests.helpers.runs import scripted

LENGTH = 8


class PunctualEnv(ScriptedEnv):
    """Succeeds with the command of the last step or of the one before it, but for every tenth seed."""

    def reset(self, seed):
        self._seed = seed
        return super().reset(seed)

    def step(self, action):
        answer = super().step(action)
        late = self._step - 1 - round(10 * float(action[0]))  # steps since the command was given
        return answer._replace(success=self._step == LENGTH and late <= 1 and self._seed % 10 != 0)


class Punctual(Scripted):
    """A simulator that a late command fails."""

    @classmethod
    def make(cls, config, num_envs, next_seed):
        envs = [PunctualEnv(n, [ScriptedEpisode(LENGTH)]) for n in range(num_envs)]
        return cls(envs, next_seed, ignore_terminations=False)


def tell_the_step(observation):
    """A tenth of the number of the step, which stands in the observation."""
    return np.array([observation[2] / 10], dtype=np.float32)


TASK = {"train": {"name": "tests.training.test_stress:Punctual", "total_num_envs": 4}}
POLICY = "tests.training.test_stress:tell_the_step"
AXES = "action_noise=0:0.01,action_latency"


def configured(folder: Path) -> Path:
    file = folder / "punctual.yaml"
    file.write_text(to_yaml(scripted(folder / "runs", env=TASK)))
    return file


@pytest.fixture(scope="module")
def tested(tmp_path_factory):
    """A stress test of 40 episodes an arm, its folder and its configuration."""
    folder = tmp_path_factory.mktemp("stress")
    file = configured(folder)
    return rlpipe.stress(file, policy=POLICY, axes=AXES, episodes=40, local=True), folder, file


def test_a_planted_weakness_is_the_first_axis_and_its_limit_is_found(tested):
    report, _, _ = tested
    latency, noise = report.axes
    assert latency.name == "action_latency"
    assert latency.values == [0.9, 0.9, 0, 0, 0]
    assert latency.survives == (0, 1.5)  # half of 0.9 lies half way between the levels 1 and 2
    assert noise.values == [0.9] * 5
    assert noise.survives == (0, 0.01)


def test_arms_are_compared_with_the_clean_one_in_the_same_episodes(tested):
    report, _, _ = tested
    by_label = {arm.label: arm for arm in report.arms}
    clean, late, noisy = (by_label[label] for label in ("clean", "action_latency 3", "action_noise 0.01"))
    assert (clean.value, clean.difference) == (0.9, None)
    assert [seed % 10 for _, seed in clean.failed] == [0] * 4
    assert len(late.failed) == 40
    assert (late.difference, len(late.broken), late.mended) == (-0.9, 36, [])
    assert all(seed % 10 for _, seed in late.broken)
    assert late.p_adjusted < 1e-9
    assert late.difference_high < 0
    assert (noisy.difference, noisy.broken, noisy.p_adjusted) == (0, [], 1)
    assert len(report.arms) == 1 + 2 * 4 + 1  # of five levels each the first is neutral


def test_all_together_fail_where_the_late_ones_do_and_that_axis_has_the_variance(tested):
    """Success is 0.9 where the latency is 0 or 1: of the variance 0.36 * 0.64 the latency has 0.9^2 * 0.4 * 0.6 by
    itself, and 0.9 * 0.4 * 0.6 in all."""
    report, _, _ = tested
    latency, noise = report.axes
    assert latency.first_order["low"] < 0.844 < latency.first_order["high"]
    assert latency.total["low"] < 0.9375 < latency.total["high"]
    assert noise.first_order["low"] == noise.total["value"] == 0
    assert report.map.axes[0] == "action_latency"
    assert report.map.edges[0] == [-0.5, 0.5, 1.5, 2.5, 3.5, 4.5]
    assert sum(map(sum, report.map.episodes)) == 120
    assert sum(map(sum, report.map.successes[2:])) == 0


def test_the_record_and_the_replays_lie_beside_each_other(tested):
    report, folder, file = tested
    record = Path(report.record)
    assert record == folder / "runs" / "stress" / "1.json"
    written = json.loads(record.read_text())
    assert written["axes"][0]["name"] == "action_latency"
    assert written["command"].endswith(f"{file} --policy {POLICY} --axes {AXES} --levels 5 --episodes 40 --local")
    assert report.replay_set == "stress-1"
    page = command("replay", str(record.parent), "--set", "stress-1", "--out", str(folder / "replay.html"))
    assert page.code == 0, page.err


def test_the_report_draws_success_against_each_axis_and_a_map_of_two(tested):
    """Of a chart 100 wide and high, success 0.9 lies at 10; half of it is the bound."""
    record = Path(tested[0].record)
    content = SimpleNamespace(stress=("stress/1.json", files.read(record, shapes.StressRecord)))
    html = stress_section(content).html
    assert 'points="0.0,10.0 25.0,10.0 50.0,100.0 75.0,100.0 100.0,100.0"' in html
    assert '<path class="bound" d="M0 55.0H100"/>' in html
    assert "action noise and action latency, with all axes together" in html
    assert html.count("<td") == 25
    assert "0.00<small>0 of " in html


def test_the_command_prints_what_breaks_the_policy_and_its_exit_code_what_is_required(tmp_path):
    common = [str(configured(tmp_path)), "--policy", POLICY, "--axes", "action_latency=0:3", "--levels", "2",
              "--episodes", "10", "--local"]  # fmt: skip
    answer = command("stress", *common, "--require", "0.9")
    assert answer.code == ExitCode.NOT_SURVIVED
    assert "action_latency 3" in answer.out
    assert "0 to 1.5 steps" in answer.out
    assert "is not 0.9 or more" in answer.out
    answer = command("stress", *common, "--require", "0.3", "--json")
    assert answer.code == ExitCode.UNDECIDED
    assert len(json.loads(answer.out)["arms"]) == 3
    assert command("stress", *common, "--require", "0.05", "--json").code == 0


def test_a_run_is_tested_with_its_checkpoint_and_trained_variations_do_not_count(tmp_path):
    train = {**TASK["train"], "variations": {"action_latency": 4}}
    run = rlpipe.train(scripted(tmp_path, "runner.total_timesteps=64", env={"train": train}), local=True).directory
    report = rlpipe.stress(run, axes="action_noise=0:0.1", levels=2, episodes=8, local=True)
    assert Path(report.record).parent == run / "stress"
    assert report.iteration == 1
    assert report.protocol["eval_env"]["variations"] == {}
    assert [arm.kind for arm in report.arms] == [Kind.CLEAN, Kind.ALONE, Kind.TOGETHER]
    assert stress_section(collect(run)) is not None


@pytest.mark.soak
def test_on_ray_two_workers_find_the_same(tested, tmp_path):
    here, _, _ = tested
    options = {"policy": POLICY, "axes": AXES, "episodes": 40}
    there = rlpipe.stress(configured(tmp_path), **options, overrides=["rollout.num_workers=2"])
    assert there.arms == here.arms
    assert there.axes == here.axes
    assert there.map == here.map


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--axes", "mas"], "cannot vary"),
        (["--axes", "mas"], "It has action_noise, action_latency"),
        (["--axes", "action_latency=3:1"], "no range"),
        (["--axes", "action_latency=soon"], "no range"),
        (["--axes", "action_noise=0:5"], "reaches 5; it must be from 0 to 2 half action ranges"),
        (["--axes", "action_latency=0:1.5"], "whole environment steps"),
        (["--axes", "brightness"], "cannot vary"),
        (["--axes", "action_noise,action_noise"], "twice"),
        (["--levels", "1"], "at least 2"),
        (["--bound", "2"], "--bound is 2"),
        (["--require", "0"], "--require is 0"),
        (["--episodes", "0"], "evaluation.episodes is 0"),
        (["env.eval.variations={action_latency: 1}"], "with --axes"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(tmp_path, options, message):
    answer = command("stress", str(configured(tmp_path)), "--policy", POLICY, "--local", *options)
    assert answer.code == ExitCode.REFUSED
    assert message in " ".join(answer.err.split())
    assert not (tmp_path / "runs").exists()


def test_a_task_that_tells_no_success_is_refused(tmp_path):
    file = tmp_path / "pendulum.yaml"
    train = {"name": "gymnasium", "id": "Pendulum-v1", "total_num_envs": 2}
    file.write_text(to_yaml(scripted(tmp_path / "runs", env={"train": train})))
    answer = command("stress", str(file), "--policy", "zero", "--local")
    assert answer.code == ExitCode.REFUSED
    assert "Pendulum-v1 tells no success" in " ".join(answer.err.split())


# --- axes and arms


def axes_of(asked: str | None = None, levels: int = 5, limit: int | None = None):
    return stress_axes(asked, levels, [*EVERYWHERE, MASS], None, limit, "a task")


def test_levels_are_evenly_spaced_on_the_scale_of_the_axis():
    assert axes_of("mass")[0].levels == (0.5, 0.707107, 1, 1.41421, 2)
    assert axes_of("action_noise", 3)[0].levels == (0, 0.2, 0.4)
    assert axes_of("action_latency=0:3", 6)[0].levels == (0, 1, 2, 3)


def test_every_axis_has_a_usual_range_within_what_is_legal_and_within_an_episode():
    for stressed in axes_of():
        assert stressed.axis.least <= stressed.low < stressed.high <= stressed.axis.most
        assert stressed.low <= stressed.axis.neutral <= stressed.high
    assert {stressed.axis.name: stressed.high for stressed in axes_of(limit=3)}["action_latency"] == 2


def test_the_clean_arm_stands_for_neutral_levels_and_runs_again_where_episodes_depend_on_others():
    axes = axes_of("mass,action_latency=0:1", 3)
    labels = [arm.label for arm in arms_of(axes, independent=True)]
    assert labels == ["clean", "mass 0.5", "mass 2", "action_latency 1", "all together", "redrawn mass",
                      "redrawn action_latency"]  # fmt: skip
    assert arms_of(axes, independent=False)[1].label == "clean again"


def test_levels_that_a_policy_survives_are_interpolated_on_both_sides():
    levels, values = [0.25, 0.5, 1.0, 2.0, 4.0], [0.0, 1.0, 1.0, 0.5, 0.5]
    assert survived(levels, values, 1.0, 0.75, log=True) == pytest.approx((0.5 * 0.5**0.25, 2**0.5))
    assert survived(levels, values, 1.0, 0.4, log=False) == pytest.approx((0.35, 4.0))
    assert survived([1.0, 2.0], [0.1, 0.9], 1.0, 0.5, log=False) is None
    assert survived([2.0, 3.0], [0.9, 0.1], 1.0, 0.5, log=False) == (2, 2.5)  # a range without the neutral level
