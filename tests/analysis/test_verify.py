"""`rlpipe verify`: a true record is verified, and what is not true about another one is named."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlpipe
from rlpipe.analysis.evaluation_report import protocol_digest, root_of
from rlpipe.analysis.verification import Verdict, Verification
from rlpipe.cli.exit_codes import ExitCode
from rlpipe.errors import ConfigError
from tests.helpers.commands import command
from tests.helpers.runs import scripted

REACH = {"train": {"name": "tests.helpers.reach:Reach", "total_num_envs": 6}}
EPISODES = 40


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run of two short iterations, with a record of sampled actions: some episodes reach their goal."""
    folder = tmp_path_factory.mktemp("runs")
    config = scripted(folder, "runner.total_timesteps=128", "runner.keep_checkpoints=9", "runner.save_interval=1",
                      "evaluation.deterministic=false", env=REACH)  # fmt: skip
    result = rlpipe.train(config, local=True)
    assert result.checkpoint is not None
    rlpipe.evaluate(result.checkpoint, episodes=EPISODES, local=True)
    return result.checkpoint.parent.parent


@pytest.fixture
def record(run, tmp_path) -> Path:
    """A copy of the run, of which a test may change the record and the checkpoints."""
    copy = tmp_path / run.name
    shutil.copytree(run, copy)
    file = copy / "evaluations" / "1.json"
    contents = json.loads(file.read_text())
    contents["checkpoint"] = contents["checkpoint"].replace(str(run), str(copy))
    file.write_text(json.dumps(contents))
    return file


def changed(record: Path, change: Callable[[dict[str, Any]], None], *, consistent: bool = True) -> Path:
    """Changes a record, as a forger would who makes all digests anew, or as one who does not."""
    contents = json.loads(record.read_text())
    change(contents)
    if consistent:
        contents["episodes_root"] = root_of(contents["episodes"])
        contents["protocol_sha256"] = protocol_digest(contents["protocol"])
        contents.pop("estimates")
    record.write_text(json.dumps(contents))
    return record


def verified(record: Path, episodes: int = EPISODES) -> Verification:
    return rlpipe.verify(record, episodes=episodes, seed=0, local=True)


def rejections(result: Verification) -> list[str]:
    return [finding.part for finding in result.findings if finding.rejects]


def flip(row: dict[str, Any]) -> None:
    for name in ("success_once", "success_at_end"):
        row[name] = not row[name]


def elsewhere(contents: dict[str, Any]) -> None:
    """Says that the record was made on another processor."""
    contents["machines"][0]["cpu_capability"] = "AVX2048"


# --- A true record


def test_a_true_record_is_verified_to_the_bit(record):
    result = verified(record, episodes=10)
    assert (result.verdict, result.drawn, result.identical) == (Verdict.VERIFIED, 10, 10)


def test_it_is_verified_with_another_number_of_slots_and_workers(record):
    def said(contents: dict[str, Any]) -> None:
        contents["protocol"]["eval_env"]["total_num_envs"] = 99

    assert verified(changed(record, said)).verdict is Verdict.VERIFIED


def test_a_record_that_moved_finds_its_checkpoint_beside_it(record, tmp_path):
    moved = tmp_path / "published"
    moved.mkdir()
    for file in (record, *(record.parent.parent / "checkpoints").glob("*.npz")):
        shutil.copy(file, moved)
    shutil.rmtree(record.parent.parent)
    result = verified(moved / "1.json")
    assert result.verdict is Verdict.VERIFIED
    assert result.checkpoint is not None
    assert Path(result.checkpoint).parent == moved


def test_an_episode_of_one_of_several_tasks_is_simulated_while_the_others_have_none(tmp_path):
    """CartPole in a vector of environments, and one by one, of which each draw leaves one idle from the beginning."""
    simulator = {"name": "gymnasium", "id": "CartPole-v1", "total_num_envs": 4, "vectorized": True}
    tasks = [{"label": "vector"}, {"label": "single", "vectorized": False}]
    config = scripted(tmp_path, "runner.total_timesteps=1", env={"train": {**simulator, "tasks": tasks}})
    checkpoint = rlpipe.train(config, local=True).checkpoint
    record = rlpipe.evaluate(checkpoint, episodes=8, local=True).record
    for seed in range(3):
        result = rlpipe.verify(record, episodes=1, seed=seed, local=True)
        assert (result.verdict, result.identical, result.drawn) == (Verdict.VERIFIED, 1, 1)


def test_records_that_ended_once_it_was_decided_are_verified(record):
    run = record.parent.parent
    decision = rlpipe.evaluate_until_decided(run, run, episodes=20, local=True)
    for report in decision.reports:
        result = verified(Path(report.record))
        assert (result.verdict, result.identical, result.findings) == (Verdict.VERIFIED, 20, [])
    words = ["evaluate", report.checkpoint, "--against", report.checkpoint, "--until-decided"]
    assert shlex.split(report.command)[-7:] == [*words, "evaluation.episodes=20", "--local"]


def test_the_seed_of_the_draw_tells_which_episodes(record):
    first, second = (rlpipe.verify(record, episodes=5, seed=seed, local=True).seed for seed in (1, None))
    assert first == 1
    assert second is not None


def test_a_record_of_an_earlier_version_is_compared_by_its_rows(record):
    def of_earlier_version(contents: dict[str, Any]) -> None:
        for key in ("machines", "code_sha256", "weights_sha256", "checkpoint_sha256", "command"):
            del contents[key]
        for row in contents["episodes"]:
            del row["start"], row["commitment"]

    assert verified(changed(record, of_earlier_version)).verdict is Verdict.VERIFIED


@pytest.mark.parametrize("way", [lambda run: run, lambda run: max((run / "checkpoints").glob("*.npz"))])
def test_a_checkpoint_that_went_elsewhere_is_named_by_its_run_or_its_file(record, tmp_path, way):
    run = record.parent.parent.rename(tmp_path / "elsewhere")
    alone = (run / "evaluations" / "1.json").rename(tmp_path / "alone.json")
    assert verified(alone).hint is not None
    result = rlpipe.verify(alone, policy=way(run), local=True)
    assert (result.verdict, result.hint) == (Verdict.VERIFIED, None)
    with pytest.raises(ConfigError, match="name its file or its run"):
        rlpipe.verify(alone, policy="random", local=True)


# --- What is not true, by name


def test_a_flipped_outcome_is_found_by_the_record_alone(record):
    changed(record, lambda contents: flip(contents["episodes"][7]), consistent=False)
    result = verified(record)
    assert result.verdict is Verdict.REJECTED
    assert {"record", "outcome"} == set(rejections(result))


def test_a_flipped_outcome_with_digests_made_anew_is_found_if_it_is_drawn(record):
    changed(record, lambda contents: flip(contents["episodes"][7]))
    result = verified(record)
    (finding,) = (finding for finding in result.findings if finding.rejects)
    assert finding.part == "outcome"
    assert "seed 1000007, success_once" in finding.message


@pytest.mark.parametrize(("seed", "words"), [(2_000_000, "no seed of its protocol"), (1_000_008, "more than once")])
def test_a_changed_seed_is_named(record, seed, words):
    changed(record, lambda contents: contents["episodes"][7].update(seed=seed))
    result = verified(record)
    assert rejections(result) == ["seed"]
    assert words in result.findings[0].message
    assert "1000007 is missing" in result.findings[0].message


def test_two_seeds_that_were_swapped_are_found_by_where_their_episodes_start(record):
    def swap(contents: dict[str, Any]) -> None:
        first, second = contents["episodes"][3:5]
        first["seed"], second["seed"] = second["seed"], first["seed"]

    assert rejections(verified(changed(record, swap))) == ["seed"]


def test_swapped_weights_are_named(record):
    first, last = sorted((record.parent.parent / "checkpoints").glob("*.npz"))
    first.replace(last)
    assert rejections(verified(record)) == ["weights"]


def test_rows_of_other_weights_are_named_even_if_their_digest_is_right(record):
    first = min((record.parent.parent / "checkpoints").glob("*.npz"))
    report = rlpipe.evaluate(first, episodes=EPISODES, local=True)
    other = json.loads(Path(str(report.record)).read_text())["episodes"]
    changed(record, lambda contents: contents.update(episodes=other))
    assert rejections(verified(record)) == ["weights"]


def test_a_changed_protocol_is_named(record):
    def harder(contents: dict[str, Any]) -> None:
        contents["protocol"]["eval_env"]["ignore_terminations"] = True

    assert "protocol" in rejections(verified(changed(record, harder, consistent=False)))


def test_other_weights_than_those_of_its_iteration_are_named(record):
    changed(record, lambda contents: contents.update(iteration=1))
    assert rejections(verified(record)) == ["weights"]


def test_a_record_that_lost_rows_is_not_verified(record):
    changed(record, lambda contents: contents["episodes"].pop())
    assert "record" in rejections(verified(record))


def test_a_record_of_more_episodes_than_there_are_rows_is_not_simulated(record):
    changed(record, lambda contents: contents["protocol"].update(evaluation_episodes=2**50))
    assert (verified(record).drawn, rejections(verified(record))) == (0, ["record"])


@pytest.mark.parametrize(
    "changes",
    [
        {"policy.name": "planted"},
        {"policy": {"name": "planted"}},
        {"policy.name=planted:Policy": 1},
        {"env.eval.id": "planted:Task-v0"},
        {"env.eval.tasks": [{"python": "/planted/python"}]},
    ],
)
def test_a_record_does_not_choose_what_is_run(record, changes):
    def planted(contents: dict[str, Any]) -> None:
        contents["changes"] = changes

    with pytest.raises(ConfigError, match="a record does not choose what is run"):
        verified(changed(record, planted))


def test_a_record_does_not_choose_a_simulator_that_would_be_imported(record, tmp_path, monkeypatch):
    (tmp_path / "planted.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    changed(record, lambda contents: contents["protocol"]["eval_env"].update(name="planted:Simulator"))
    with pytest.raises(ConfigError, match="a record does not choose what is run"):
        verified(record)


# --- Elsewhere


def test_equal_bits_are_verified_on_any_machine_and_the_other_one_is_told(record):
    result = verified(changed(record, elsewhere))
    assert result.verdict is Verdict.VERIFIED
    assert [(finding.part, finding.rejects) for finding in result.findings] == [("kernel", False)]


def forged_elsewhere(record: Path, flips: int, *, fair: bool) -> Verification:
    """Flips outcomes, either way or only for the better, of a record of another machine and simulator."""
    generator = np.random.default_rng(0)

    def forge(contents: dict[str, Any]) -> None:
        elsewhere(contents)
        contents["versions"]["gymnasium"] = "0.0.1"
        rows = contents["episodes"]
        for row in rows:
            row["commitment"] = "0" * 64  # no step is the same
        failed, solved = ([row for row in rows if row["success_once"] is way] for way in (False, True))
        assert min(len(failed), len(solved)) >= flips // 2
        each = [*failed[: flips // 2], *solved[: flips // 2]] if fair else failed[:flips]
        for row in generator.permutation(np.array(each, dtype=object)):
            flip(row)

    return verified(changed(record, forge))


def test_outcomes_that_flip_both_ways_are_verified_statistically(record):
    result = forged_elsewhere(record, 8, fair=True)
    assert (result.verdict, result.better, result.worse) == (Verdict.STATISTICALLY, 4, 4)
    assert {finding.part for finding in result.findings} == {"kernel", "simulator"}


def test_outcomes_that_flip_for_the_better_are_not(record):
    """8 to 0: p = 2 / 2^8 = 0.008."""
    result = forged_elsewhere(record, 8, fair=False)
    assert (result.verdict, result.p_value) == (Verdict.REJECTED, 2 / 2**8)


def test_the_same_steps_with_another_outcome_are_forged_on_any_machine(record):
    def forge(contents: dict[str, Any]) -> None:
        elsewhere(contents)
        flip(contents["episodes"][7])

    assert rejections(verified(changed(record, forge))) == ["outcome"]


# --- The command


def test_the_command_prints_a_screen_and_exits_with_the_verdict(record):
    answer = command("verify", str(record), "--episodes", "10", "--local")
    assert answer.code == ExitCode.DONE
    assert answer.out.splitlines()[-1].split() == ["verdict", "verified"]
    changed(record, lambda contents: flip(contents["episodes"][7]), consistent=False)
    assert command("verify", str(record), "--local").code == ExitCode.NOT_VERIFIED


def test_a_folder_has_a_line_for_each_record_and_says_which_were_not_simulated(record):
    for policy in ("random", "tests.helpers.outside:towards"):
        rlpipe.evaluate(record.parent.parent, policy=policy, episodes=4, local=True)
    answer = command("verify", str(record.parent.parent), "--local")
    lines = answer.out.splitlines()
    assert answer.code == ExitCode.DONE
    assert [line.split()[0] for line in lines[:3]] == ["verified", "verified", "not"]
    assert lines[3].endswith("/evaluations/3.json --policy tests.helpers.outside:towards")
    assert lines[-1] == "3 records: 2 verified, 1 not simulated"
    assert command("verify", str(record.parent.parent), "--policy", "random", "--local").code == ExitCode.REFUSED


def test_a_record_without_a_checkpoint_cannot_be_verified(record):
    shutil.rmtree(record.parent.parent / "checkpoints")
    changed(record, lambda contents: contents.update(checkpoint="/nowhere/iteration-000002.npz"))
    assert command("verify", str(record), "--local").code == ExitCode.REFUSED


def test_a_number_that_is_not_finite_is_refused(record):
    contents = json.loads(record.read_text())
    contents["protocol"]["horizon"] = float("inf")
    record.write_text(json.dumps(contents))
    with pytest.raises(ConfigError, match="not finite"):
        verified(record)


@pytest.mark.parametrize(
    ("text", "words"),
    [("{}", "iteration is missing"), ('{"episodes": [', "is not JSON"), ("[]", "")],
)
def test_what_is_no_record_is_refused_with_one_message(tmp_path, text, words):
    (tmp_path / "1.json").write_text(text)
    answer = command("verify", str(tmp_path / "1.json"), "--local")
    assert (answer.code, answer.out) == (ExitCode.REFUSED, "")
    assert words in answer.err
    assert command("verify", str(tmp_path), "--local").code == ExitCode.REFUSED


def test_episodes_that_depend_on_those_before_them_are_simulated_behind_them(tmp_path):
    env = {"train": {"name": "tests.helpers.reach:WornReach", "total_num_envs": 4}}
    result = rlpipe.train(scripted(tmp_path, "runner.total_timesteps=64", env=env), local=True)
    record = rlpipe.evaluate(result.checkpoint, episodes=20, local=True).record
    verification = verified(Path(record), episodes=5)
    assert (verification.verdict, verification.identical) == (Verdict.VERIFIED, 5)
    changed(Path(record), lambda contents: flip(contents["episodes"][0]))
    assert "outcome" in rejections(verified(Path(record), episodes=20))
