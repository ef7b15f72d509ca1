"""Checkpoints: what is whole is told from what is not, no code runs, the newest and the best stay, a run goes on."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

import rlpipe
from rlpipe.config.loading import load_config
from rlpipe.config.tree import to_yaml
from rlpipe.errors import ConfigError
from rlpipe.metrics import CATALOGUE, MetricWindow
from rlpipe.metrics import catalogue as m
from rlpipe.run import checkpoint, resume
from rlpipe.run.checkpoint import DamagedError, NoCheckpointError
from rlpipe.run.directory import RunDirectory
from rlpipe.run.metric_logger import MetricLogger, run_info
from rlpipe.run.retention import Retention
from rlpipe.trajectory import SpaceSpec
from tests.helpers.commands import command
from tests.helpers.runs import lines, scripted, to_mapping, write_config

ARRAYS = {"version": np.array(7), "policy/weight": np.arange(6, dtype=np.float32).reshape(2, 3)}
STATE = ["Sum", {"parts": [128.0], "count": 2, "nonfinite": 0}]
META = {"iteration": 4, "run_id": "a", "config": "{}", "metrics": {"time/total_timesteps": STATE}}
RETURN, SUCCESS = CATALOGUE["eval/return"], CATALOGUE["eval/success_once"]


def write(path: Path, arrays: dict[str, Any] = ARRAYS, meta: Any = META, **more: Any) -> Path:
    """A file as ``checkpoint.save`` would write it, with whatever contents, and the digest of these."""
    if isinstance(meta, dict):
        meta = {"format": checkpoint.FORMAT, **meta}
    text = meta if isinstance(meta, bytes) else json.dumps(meta).encode()
    contents = {"meta.json": np.frombuffer(text, dtype=np.uint8), **arrays}
    np.savez(path, **{**contents, "digest": checkpoint.digest(contents), **more})
    return path


def members(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as archive:
        return {name: archive[name] for name in archive.files}


class TestWhole:
    @given(
        st.dictionaries(
            st.text("abc/._", min_size=1, max_size=4).map("policy/{}".format),
            arrays_of.arrays(
                st.sampled_from([np.float32, np.float64, np.int64, np.uint8, np.bool_]),
                arrays_of.array_shapes(min_dims=0, min_side=0),
            ),
            min_size=1,
        )
    )
    def test_what_is_read_is_what_was_written_to_the_last_bit(self, tmp_path_factory, arrays):
        arrays["version"] = np.array(3)
        read = checkpoint.load(checkpoint.save(tmp_path_factory.mktemp("whole"), arrays, META)).arrays
        assert {name: (a.dtype, a.shape, a.tobytes()) for name, a in read.items()} == {
            name: (a.dtype, a.shape, a.tobytes()) for name, a in arrays.items()
        }

    def test_a_file_of_format_1_which_has_no_digest_is_read(self, tmp_path):
        text = np.frombuffer(json.dumps({"format": 1, **META}).encode(), dtype=np.uint8)
        np.savez(tmp_path / "old.npz", **{"meta.json": text, **ARRAYS})
        assert checkpoint.load(tmp_path / "old.npz").meta["iteration"] == 4

    def test_one_of_a_newer_version_is_refused_and_never_passed_over(self, tmp_path):
        folder = tmp_path / "checkpoints"
        checkpoint.save(folder, ARRAYS, {**META, "iteration": 2})
        write(folder / "iteration-000004.npz", meta={**META, "format": 3})
        with pytest.raises(ConfigError, match=r"has checkpoint format 3; this version reads up to 2"):
            checkpoint.newest(tmp_path)

    def test_something_else_than_numbers_is_not_written(self, tmp_path):
        with pytest.raises(ValueError, match="names has the type <U3"):
            checkpoint.save(tmp_path, {**ARRAYS, "names": np.array(["arm"])}, META)
        assert list(tmp_path.iterdir()) == []

    def test_what_a_killed_write_left_is_removed_by_the_next(self, tmp_path):
        (tmp_path / ".iteration-000003.npz.partial").write_bytes(b"half")
        checkpoint.save(tmp_path, ARRAYS, META)
        assert [file.name for file in tmp_path.iterdir()] == ["iteration-000004.npz"]


class TestDamaged:
    """Whatever happens to a file, it is read as it was written, or refused."""

    @pytest.fixture(scope="class")
    def file(self, tmp_path_factory):
        return checkpoint.save(tmp_path_factory.mktemp("damaged"), ARRAYS, META)

    @pytest.fixture(scope="class")
    def whole(self, file):
        return file.read_bytes()

    def refused_or_equal(self, path: Path) -> None:
        try:
            found = checkpoint.load(path)
        except DamagedError:
            return
        assert found.meta == {"format": 2, **META}
        assert {name: array.tobytes() for name, array in found.arrays.items()} == {
            name: array.tobytes() for name, array in ARRAYS.items()
        }

    @settings(suppress_health_check=[HealthCheck.differing_executors])
    @given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
    def test_a_flipped_bit(self, file, whole, place, bit):
        damaged = bytearray(whole)
        damaged[int(place * len(whole))] ^= 1 << bit
        file.write_bytes(damaged)
        self.refused_or_equal(file)

    @settings(suppress_health_check=[HealthCheck.differing_executors])
    @given(share=st.floats(0, 1, exclude_max=True))
    def test_a_file_cut_short_is_refused(self, file, whole, share):
        file.write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(DamagedError, match="not a whole checkpoint"):
            checkpoint.load(file)

    @settings(suppress_health_check=[HealthCheck.differing_executors])
    @given(start=st.sampled_from([b"", b"PK\x03\x04", b"\x93NUMPY\x01\x00"]), contents=st.binary(max_size=200))
    def test_any_other_file_is_refused(self, file, start, contents):
        file.write_bytes(start + contents)
        with pytest.raises(DamagedError):
            checkpoint.load(file)

    @pytest.mark.parametrize(
        "change",
        [
            {"policy/weight": ARRAYS["policy/weight"] + 1},
            {"policy/weight": ARRAYS["policy/weight"].reshape(3, 2)},
            {"policy/weight": ARRAYS["policy/weight"].view(np.int32)},
            {"policy/bias": ARRAYS["policy/weight"]},
            {"meta.json": np.frombuffer(json.dumps({"format": 2, **META, "iteration": 9}).encode(), dtype=np.uint8)},
        ],
        ids=["value", "shape", "type", "name", "meta"],
    )
    def test_contents_that_a_sound_archive_holds_but_nobody_wrote_are_told_by_the_digest(self, tmp_path, change):
        path = write(tmp_path / "a.npz")
        np.savez(path, **{**members(path), **change})
        with pytest.raises(DamagedError, match="not those that were written"):
            checkpoint.load(path)

    def test_a_digest_that_is_gone_is_told(self, tmp_path):
        path = write(tmp_path / "a.npz")
        np.savez(path, **{name: array for name, array in members(path).items() if name != "digest"})
        with pytest.raises(DamagedError, match="not those that were written"):
            checkpoint.load(path)

    @pytest.mark.parametrize(
        ("meta", "told"),
        [
            (b"{", "cut short or damaged"),
            (b"\xff", "cut short or damaged"),
            ([1], "not a JSON object"),
            ({"format": "2"}, "format in meta.json is '2'"),
            ({"format": True}, "format in meta.json is True"),
            ({"iteration": 4.0}, "iteration in meta.json is 4.0"),
            ({"iteration": True}, "iteration in meta.json is True"),
            ({"iteration": -1}, "iteration in meta.json is -1"),
            ({"iteration": None}, "iteration in meta.json is None"),
            ({"config": {}}, "config in meta.json is {}"),
            ({"run_id": 5}, "run_id in meta.json is 5"),
            ({"metrics": [1]}, "metrics in meta.json"),
            ({"metrics": {"time/total_timesteps": 5}}, "state of time/total_timesteps"),
            ({"metrics": {"time/total_timesteps": ["Sam", {}]}}, "state of time/total_timesteps .* KeyError: 'Sam'"),
            ({"metrics": {"time/total_timesteps": ["Sum", {"part": []}]}}, "state of time/total_timesteps"),
            ({"metrics": {"time/total_timesteps": ["Sum", {"count": "2"}]}}, "something other than numbers"),
            ({"metrics": {"time/total_timesteps": ["Sum", {"parts": 1}]}}, "state of time/total_timesteps"),
        ],
    )
    def test_wrong_meta_is_told_with_the_file_and_the_field(self, tmp_path, meta, told):
        path = write(tmp_path / "a.npz", meta={**META, **meta} if isinstance(meta, dict) else meta)
        with pytest.raises(DamagedError, match=rf"a\.npz is not a whole checkpoint: .*{told}"):
            checkpoint.load(path)

    @pytest.mark.parametrize("missing", ["iteration", "run_id", "config", "metrics"])
    def test_meta_that_lacks_a_field_is_told(self, tmp_path, missing):
        meta = {name: value for name, value in META.items() if name != missing}
        with pytest.raises(DamagedError, match=missing):
            checkpoint.load(write(tmp_path / "a.npz", meta=meta))

    @pytest.mark.parametrize(
        ("arrays", "told"),
        [
            ({}, "version is not a whole number"),
            ({"version": np.array([1, 2])}, "version is not a whole number"),
            ({"version": np.array(1.5)}, "version is not a whole number"),
            ({"version": np.array(1)}, "holds no policy"),
            ({**ARRAYS, "names": np.array(["arm"])}, "names is not an array of numbers"),
        ],
    )
    def test_wrong_arrays_are_told(self, tmp_path, arrays, told):
        with pytest.raises(DamagedError, match=told):
            checkpoint.load(write(tmp_path / "a.npz", arrays))

    def test_a_file_that_cannot_be_read_is_not_called_damaged(self, tmp_path):
        with pytest.raises(ConfigError, match=r"cannot be read: .*No such file") as told:
            checkpoint.load(tmp_path / "a.npz")
        assert not isinstance(told.value, DamagedError)


def test_a_configuration_in_it_that_is_no_yaml_is_told_with_the_file(tmp_path):
    path = write(tmp_path / "a.npz", meta={**META, "config": "{a: "})
    with pytest.raises(ConfigError, match=r"a\.npz: the configuration in it is not readable as YAML"):
        rlpipe.evaluate(path, local=True)


class Creates:
    """Unpickling one creates a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self):
        return Path.touch, (self.file,)


class TestNoCodeRuns:
    """A checkpoint of somebody else is read without doing what it says."""

    def poisoned(self, tmp_path: Path, how: str) -> Path:
        path, evil = tmp_path / "evil.npz", Creates(tmp_path / "ran")
        if how == "object array":
            np.savez(path, **{**members(write(path)), "policy/weight": np.array([evil], dtype=object)})
        elif how == "object field":
            record = np.array([(evil,)], dtype=[("field", object)])
            np.savez(path, **{**members(write(path)), "policy/weight": record})
        elif how == "meta":
            np.savez(path, **{**members(write(path)), "meta.json": np.array(evil, dtype=object)})
        elif how == "member":
            write(path)
            with zipfile.ZipFile(path, "a") as archive:
                archive.writestr("policy/bias.npy", pickle.dumps(evil))
        else:
            path.write_bytes(pickle.dumps(evil))
        return path

    @pytest.mark.parametrize("how", ["object array", "object field", "meta", "member", "file"])
    def test_a_pickle_in_it_is_not_loaded(self, tmp_path, how):
        path = self.poisoned(tmp_path, how)
        with pytest.raises(DamagedError):
            checkpoint.load(path)
        assert not (tmp_path / "ran").exists()

    def test_the_poison_of_these_tests_works(self, tmp_path):
        with np.load(self.poisoned(tmp_path, "object array"), allow_pickle=True) as archive:
            archive["policy/weight"]
        assert (tmp_path / "ran").exists()

    def test_nothing_is_written_that_would_have_to_be_unpickled(self, tmp_path):
        with pytest.raises(ValueError, match="a checkpoint holds only numbers"):
            checkpoint.save(tmp_path, {**ARRAYS, "more": np.array([Creates(tmp_path / "ran")])}, META)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run of four iterations, each evaluated, with checkpoints after the second and the fourth."""
    return rlpipe.train(scripted(tmp_path_factory.mktemp("finished"), "runner.keep_best=false"), local=True).directory


@pytest.fixture
def run(finished, tmp_path):
    """A copy of it."""
    return Path(shutil.copytree(finished, tmp_path / "runs" / "scripted" / finished.name))


def goes_on(run: Path, *overrides: str) -> None:
    rlpipe.train(load_config(run / "config.yaml", overrides), local=True, resume=run)


def damage(run: Path, iteration: int) -> Path:
    file = run / "checkpoints" / f"iteration-{iteration:06d}.npz"
    file.write_bytes(file.read_bytes()[:-200])
    return file


class TestForeign:
    @pytest.mark.parametrize(
        ("name", "members", "told"),
        [
            ("model.zip", ["data", "policy.pth", "_stable_baselines3_version"], "a model of Stable-Baselines3"),
            ("model.pt", ["model/data.pkl", "model/version"], "a file of torch"),
            ("logs.zip", ["progress.csv"], "a zip of other files"),
            ("latch.py", b"import gymnasium\n", "a Python file"),
            ("latch.yaml", b"env: {}\n", "a configuration"),
            ("old.pth", b"\x80\x02\x8a\nl\xfc", "a pickle"),
            ("array.npy", b"\x93NUMPY\x01\x00", "no archive of arrays"),
        ],
    )
    def test_a_file_of_others_is_named_as_what_it_is(self, tmp_path, name, members, told):
        path = tmp_path / name
        if isinstance(members, bytes):
            path.write_bytes(members)
        else:
            with zipfile.ZipFile(path, "w") as file:
                for member in members:
                    file.writestr(member, "1")
        with pytest.raises(DamagedError, match=rf"{name} is not a checkpoint of rlpipe: it is {told}") as refused:
            checkpoint.load(path)
        assert "Error" not in str(refused.value)
        assert "pickle=" not in str(refused.value)


class TestNewest:
    def test_a_reader_passes_a_damaged_one_over_says_so_and_leaves_it(self, run, caplog):
        file = damage(run, 4)
        assert checkpoint.newest(run).meta["iteration"] == 2
        assert "iteration-000004.npz is not a whole checkpoint" in caplog.text
        assert file.exists()

    def test_a_run_that_resumes_sets_it_aside_and_says_so_in_its_events(self, run):
        kept = damage(run, 4).read_bytes()
        goes_on(run)
        assert (run / "checkpoints" / "iteration-000004.npz.damaged").read_bytes() == kept
        (told,) = [event for event in lines(run, "events.jsonl") if event["kind"] == "damaged"]
        assert told["data"] == {"file": "iteration-000004.npz"}
        assert "iteration-000004.npz was damaged" in told["message"]
        assert checkpoint.newest(run).meta["iteration"] == 4
        assert [row["iteration"] for row in lines(run, "metrics.jsonl")] == [1, 2, 3, 4]

    def test_without_a_whole_one_the_run_is_as_it_was(self, run):
        damage(run, 2), damage(run, 4)
        before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
        with pytest.raises(NoCheckpointError, match="none of its 2 checkpoints is whole"):
            goes_on(run)
        assert {file: file.read_bytes() for file in run.rglob("*") if file.is_file()} == before

    def test_one_under_the_name_of_another_is_passed_over(self, run):
        shutil.copy(run / "checkpoints" / "iteration-000002.npz", run / "checkpoints" / "iteration-000009.npz")
        assert checkpoint.newest(run).meta["iteration"] == 4

    def test_a_million_iterations_come_after_999999(self, tmp_path):
        for iteration in (999_999, 1_000_000):
            checkpoint.save(tmp_path / "checkpoints", ARRAYS, {**META, "iteration": iteration})
        assert checkpoint.newest(tmp_path).meta["iteration"] == 1_000_000

    @pytest.mark.parametrize(
        ("change", "told"),
        [
            ({"optimizer/0/exp_avg": np.zeros((2, 2), np.float32)}, r"exp_avg of shape \(2, 2\) does not fit"),
            ({"optimizer/99/exp_avg": np.zeros(3, np.float32)}, "parameter 99"),
            ({"optimizer/first/exp_avg": np.zeros(3, np.float32)}, "first"),
            ({"policy/actor.0.weight": np.zeros((2, 2), np.float32)}, "do not fit the policy"),
            ({"generator": np.zeros(3, np.uint8)}, "does not fit this run"),
            ({"stage": np.array(5)}, "does not fit this run"),
        ],
        ids=["optimizer", "parameter", "name", "policy", "generator", "stage"],
    )
    def test_arrays_that_do_not_fit_are_told_before_anything_is_written(self, run, change, told):
        file = run / "checkpoints" / "iteration-000004.npz"
        kept = checkpoint.load(file)
        write(file, {**kept.arrays, **change}, kept.meta)
        before = (run / "run.json").read_text(), (run / "metrics.jsonl").read_text()
        with pytest.raises(ConfigError, match=rf"iteration-000004\.npz.*{told}"):
            goes_on(run, "runner.total_timesteps=320")
        assert ((run / "run.json").read_text(), (run / "metrics.jsonl").read_text()) == before


def evaluations(run: Path, numbers: list[float], keep: int = 1, metrics: tuple = (RETURN,)) -> Retention:
    """Checkpoints 1, 2, ... of evaluations with these numbers of the first metric."""
    retention = Retention(run, keep, metrics)
    for iteration, number in enumerate(numbers, start=1):
        retention.rank(iteration, {metrics[0].name: number})
        retention.save(ARRAYS, {**META, "iteration": iteration})
    return retention


def named(run: Path) -> dict[str, Any]:
    return json.loads((run / "checkpoints" / "best.json").read_text())


class TestBest:
    def test_it_stays_beside_the_newest(self, tmp_path):
        evaluations(tmp_path, [1.0, 5.0, 2.0, 3.0, 4.0], keep=2)
        assert list(checkpoint.files(tmp_path)) == [2, 4, 5]
        assert named(tmp_path) == {"iteration": 2, "metric": "eval/return", "value": 5.0}
        assert checkpoint.best(tmp_path).meta["iteration"] == 2
        assert checkpoint.newest(tmp_path).meta["iteration"] == 5

    def test_one_that_was_beaten_goes(self, tmp_path):
        evaluations(tmp_path, [5.0, 1.0, 6.0, 2.0])
        assert list(checkpoint.files(tmp_path)) == [3, 4]

    def test_as_good_is_not_better(self, tmp_path):
        evaluations(tmp_path, [5.0, 5.0])
        assert named(tmp_path)["iteration"] == 1

    def test_of_failures_fewer_are_better(self, tmp_path):
        evaluations(tmp_path, [0.5, 0.25, 0.75], metrics=(CATALOGUE["eval/fail_once"],))
        assert named(tmp_path)["iteration"] == 2

    def test_success_decides_and_the_return_only_where_there_is_none(self, tmp_path):
        retention = Retention(tmp_path, 1, (SUCCESS, RETURN))
        rows = [{"eval/return": 9.0}, {"eval/return": 1.0, "eval/success_once": 0.5}, {"eval/return": 10.0}]
        for iteration, metrics in enumerate(rows, start=1):
            retention.rank(iteration, metrics)
            retention.save(ARRAYS, {**META, "iteration": iteration})
        assert named(tmp_path) == {"iteration": 2, "metric": "eval/success_once", "value": 0.5}

    @pytest.mark.parametrize("metrics", [(), (CATALOGUE["eval/fail_once"],)], ids=["none kept", "metric not there"])
    def test_without_a_number_that_decides_there_is_none(self, tmp_path, metrics):
        retention = Retention(tmp_path, 1, metrics)
        for iteration in (1, 2):
            retention.rank(iteration, {"eval/return": 1.0 / iteration})
            retention.save(ARRAYS, {**META, "iteration": iteration})
        assert list(checkpoint.files(tmp_path)) == [2]
        with pytest.raises(ConfigError, match=r"names no best checkpoint: .* \(runner\.best_metric\)"):
            checkpoint.best(tmp_path)

    def recalled(self, run: Path, numbers: list[float], metrics: tuple = (RETURN,)) -> Retention:
        retention = Retention(run, 1, metrics)
        for iteration, number in enumerate(numbers, start=1):
            retention.recall(iteration, {RETURN.name: number})
        retention.restore_best()
        return retention

    def test_it_stays_the_best_of_a_run_that_goes_on_until_a_later_one_beats_it(self, tmp_path):
        evaluations(tmp_path, [5.0, 1.0])
        retention = self.recalled(tmp_path, [5.0, 1.0])
        for iteration, number, best in ((3, 4.0, 1), (4, 6.0, 4)):
            retention.rank(iteration, {"eval/return": number})
            retention.save(ARRAYS, {**META, "iteration": iteration})
            assert named(tmp_path)["iteration"] == best

    def test_a_kill_between_checkpoint_and_name_forgets_nothing(self, tmp_path):
        evaluations(tmp_path, [1.0])
        checkpoint.save(tmp_path / "checkpoints", ARRAYS, {**META, "iteration": 2})
        self.recalled(tmp_path, [1.0, 5.0])
        assert named(tmp_path)["iteration"] == 2

    def test_what_a_resume_cut_off_is_not_the_best(self, tmp_path):
        evaluations(tmp_path, [1.0, 0.5, 9.0], keep=3)
        assert named(tmp_path)["iteration"] == 3
        checkpoint.set_aside(tmp_path, 2)
        self.recalled(tmp_path, [1.0, 0.5])
        assert named(tmp_path)["iteration"] == 1

    def test_an_evaluation_without_a_checkpoint_does_not_count(self, tmp_path):
        evaluations(tmp_path, [1.0])
        self.recalled(tmp_path, [1.0, 9.0])
        assert named(tmp_path)["iteration"] == 1

    def test_another_metric_ranks_anew_and_none_forgets_the_name(self, tmp_path):
        evaluations(tmp_path, [1.0, 2.0])
        self.recalled(tmp_path, [1.0, 2.0], metrics=())
        assert not (tmp_path / "checkpoints" / "best.json").exists()

    @pytest.mark.parametrize(
        "contents",
        [b"", b"[1]", b'{"iteration": "../../x", "metric": "a", "value": 1}', b'{"iteration": 1}', b"\xff"],
    )
    def test_a_name_that_makes_no_sense_is_told_and_named_anew_by_a_run_that_goes_on(self, tmp_path, contents):
        evaluations(tmp_path, [1.0])
        (tmp_path / "checkpoints" / "best.json").write_bytes(contents)
        with pytest.raises(ConfigError, match=r"best\.json does not name the best checkpoint"):
            checkpoint.best(tmp_path)
        self.recalled(tmp_path, [1.0])
        assert checkpoint.best(tmp_path).meta["iteration"] == 1

    def test_one_whose_file_is_gone_is_told(self, tmp_path):
        evaluations(tmp_path, [1.0])
        (tmp_path / "checkpoints" / "iteration-000001.npz").unlink()
        with pytest.raises(ConfigError, match=r"iteration-000001\.npz cannot be read"):
            checkpoint.best(tmp_path)


class TestBestOfARun:
    def logger(self, directory: RunDirectory, config, first: int) -> MetricLogger:
        return MetricLogger(directory, run_info(directory, config, first, SpaceSpec(4, 1)), config, {})

    def evaluated(self, logger: MetricLogger, iteration: int, returned: float) -> str:
        """Path of the checkpoint that is written where none is due."""
        window = MetricWindow()
        window.observe(m.TOTAL_TIMESTEPS, 64)
        window.observe(m.EVAL_EPISODE_RETURN, [returned])
        logger.write(iteration, window)
        return Path(logger.save(iteration, ARRAYS, if_best=True)).name

    def test_where_none_is_due_one_is_written_for_the_best_evaluation_alone(self, tmp_path):
        config = scripted(tmp_path)
        directory = RunDirectory.create(config, {})
        logger = self.logger(directory, config, 1)
        written = [self.evaluated(logger, *given) for given in ((1, 5.0), (2, 3.0), (3, 7.0))]
        assert written == ["iteration-000001.npz", "", "iteration-000003.npz"]
        logger.close("interrupted")
        logger = self.logger(directory, config, 4)
        assert [self.evaluated(logger, *given) for given in ((4, 6.0), (5, 8.0))] == ["", "iteration-000005.npz"]
        logger.close("interrupted")

    def test_evaluate_takes_the_one_whose_evaluation_was_best(self, tmp_path):
        options = ("runner.val_check_interval=1", "runner.save_interval=100", "runner.keep_checkpoints=1")
        run = rlpipe.train(scripted(tmp_path, *options, "runner.best_metric=eval/return"), local=True).directory
        rows = {row["iteration"]: row["metrics"] for row in lines(run, "metrics.jsonl")}
        best = max(rows, key=lambda iteration: (rows[iteration]["eval/return"], -iteration))
        report = rlpipe.evaluate(run, best=True, local=True)
        assert (named(run)["iteration"], report.iteration) == (best, best)
        assert report.metrics == {name: value for name, value in rows[best].items() if name.startswith("eval/")}
        assert set(checkpoint.files(run)) == {best, 4}

    def test_it_can_be_switched_off(self, tmp_path):
        options = ("runner.val_check_interval=1", "runner.save_interval=100", "runner.keep_best=false")
        run = rlpipe.train(scripted(tmp_path, *options), local=True).directory
        assert [file.name for file in (run / "checkpoints").iterdir()] == ["iteration-000004.npz"]
        with pytest.raises(ConfigError, match="names no best checkpoint"):
            rlpipe.evaluate(run, best=True, local=True)

    def test_a_file_has_no_best(self, run):
        with pytest.raises(ConfigError, match="needs a run directory"):
            rlpipe.evaluate(run / "checkpoints" / "iteration-000004.npz", best=True, local=True)

    @pytest.mark.parametrize(
        ("overrides", "told"),
        [
            (["runner.best_metric=eval/succes_once"], "did you mean 'eval/success_once'"),
            (["runner.best_metric=eval/episode_len"], "which cannot rank evaluations"),
            (["runner.best_metric=eval/return", "runner.keep_best=false"], "leave one out"),
        ],
    )
    def test_a_metric_that_ranks_nothing_is_refused(self, tmp_path, overrides, told):
        with pytest.raises(ConfigError, match=told):
            scripted(tmp_path, *overrides)


WRITERS = """
import os, random, sys
from pathlib import Path
import numpy as np
from rlpipe.run import checkpoint, retention
from rlpipe.metrics import CATALOGUE

def write(run):
    arrays = {"version": np.array(1), "policy/weight": np.arange(50_000.0)}
    value = lambda iteration: {"eval/return": random.Random(iteration).random()}
    done = checkpoint.newest_iteration(run)
    kept = retention.Retention(run, 2, [CATALOGUE["eval/return"]])
    for iteration in range(1, done + 1):
        kept.recall(iteration, value(iteration))
    kept.restore_best()
    while True:
        done += 1
        kept.rank(done, value(done))
        kept.save(arrays, {"run_id": "a", "config": "{}", "metrics": {}, "iteration": done})
        os.write(1, b"%d\\n" % done)  # in one piece, wherever the kill comes

for _ in sys.stdin:
    writer = os.fork()
    if not writer:
        print(os.getpid(), flush=True)
        write(Path(sys.argv[1]))
    os.waitpid(writer, 0)
    print("killed", flush=True)
"""
"""Writes checkpoints for each line that it reads, until the process that does so is killed."""


@pytest.mark.soak
def test_a_write_that_is_killed_at_any_moment_leaves_what_was_there_whole(tmp_path):
    moments = random.Random(0)
    writers = subprocess.Popen(
        [sys.executable, "-c", WRITERS, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    for _ in range(20):
        print(file=writers.stdin, flush=True)
        writer, first = int(writers.stdout.readline()), int(writers.stdout.readline())
        time.sleep(moments.uniform(0, 0.05))  # the kill comes within one of the next writes
        os.kill(writer, signal.SIGKILL)
        told = [first, *map(int, itertools.takewhile("killed\n".__ne__, writers.stdout))]
        there = checkpoint.files(tmp_path)
        assert [checkpoint.load(file).meta["iteration"] for file in there.values()] == list(there)
        assert checkpoint.newest(tmp_path).meta["iteration"] >= max(told)
        assert checkpoint.best(tmp_path).meta["iteration"] in there
    writers.communicate()
    written = range(1, checkpoint.newest_iteration(tmp_path) + 1)
    retention = Retention(tmp_path, 2, [RETURN])
    numbers = {iteration: random.Random(iteration).random() for iteration in written}
    for iteration, number in numbers.items():
        retention.recall(iteration, {"eval/return": number})
    retention.restore_best()
    assert named(tmp_path)["iteration"] == max(numbers, key=numbers.__getitem__)


class TestElsewhere:
    """A checkpoint is of no place: another number of workers or learners goes on from it."""

    def test_another_number_of_workers_trains_on_the_same_episodes(self, tmp_path):
        env = {"train": {"name": "gymnasium", "id": "CartPole-v1", "total_num_envs": 4}}
        run = rlpipe.train(scripted(tmp_path, "runner.total_timesteps=128", env=env), local=True).directory
        other = Path(shutil.copytree(run, tmp_path / "other"))
        for path, workers in ((run, 1), (other, 2)):
            goes_on(path, f"rollout.num_workers={workers}", "learner.lr=0", "runner.total_timesteps=256")
        one, two = (
            sorted(
                (row["iteration"], row["slot"], row["step"], row["seed"], row["length"], row["return"])
                for row in lines(path, "episodes.jsonl")
                if row["iteration"] > 2
            )
            for path in (run, other)
        )
        assert one == two != []
        metrics = [lines(path, "metrics.jsonl")[-1]["metrics"] for path in (run, other)]
        for name in ("time/total_timesteps", "time/total_episodes", "train/n_updates", "env/return", "eval/return"):
            assert metrics[0][name] == metrics[1][name], name

    def test_its_arrays_are_numbers_without_a_device(self, run):
        arrays = checkpoint.load(run / "checkpoints" / "iteration-000004.npz").arrays
        assert {type(array) for array in arrays.values()} == {np.ndarray}
        assert {array.dtype.kind for array in arrays.values()} <= {"f", "i", "u"}

    @pytest.mark.soak
    def test_another_number_of_learners_goes_on(self, tmp_path, ray_cluster):
        config = scripted(tmp_path, "rollout.num_workers=2", "learner.device=cpu", "runner.total_timesteps=128")
        run = rlpipe.train(config, local=True).directory
        for iterations, learners in ((4, 2), (6, 1)):
            kept = checkpoint.newest(run).arrays
            more = [f"learner.num_learners={learners}", f"runner.total_timesteps={64 * iterations}"]
            rlpipe.train(load_config(run / "config.yaml", more), resume=run, local=learners == 1)
            moved = checkpoint.newest(run).arrays
            assert int(moved["version"]) == int(kept["version"]) + 2
            steps = [array for name, array in moved.items() if name.endswith("/step")]
            assert {float(step) for step in steps} == {8.0 * iterations}  # Adam continued and did not start again
        updates = [(row["iteration"], row["metrics"]["train/n_updates"]) for row in lines(run, "metrics.jsonl")]
        assert updates == [(n, 8 * n) for n in range(1, 7)]


def auto(tmp_path: Path, *overrides: str):
    return scripted(tmp_path / "runs", "runner.keep_best=false", "runner.auto_resume=true", *overrides)


def died(run: Path) -> Path:
    """The run as if it had been killed after its third iteration."""
    (run / "checkpoints" / "iteration-000004.npz").unlink()
    contents = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**contents, "status": "running"}))
    return run


def found(config) -> Path | None:
    with resume.locked_run(config, None, patience=0) as path:
        return path


class TestAutoResume:
    def test_a_run_that_died_goes_on(self, run, tmp_path, caplog):
        caplog.set_level("INFO")
        result = rlpipe.train(auto(tmp_path), local=True)
        assert result.directory != run.resolve()  # it had completed
        second = died(result.directory)
        result = rlpipe.train(auto(tmp_path), local=True)
        assert (result.directory, result.status) == (second, "completed")
        assert [row["iteration"] for row in lines(second, "metrics.jsonl")] == [1, 2, 3, 4]
        assert f"Resuming {second} after iteration 2 (runner.auto_resume)." in caplog.text

    @pytest.mark.parametrize("status", ["running", "interrupted", "failed", "stopped"])
    def test_whatever_ended_it_before_its_end(self, run, tmp_path, status):
        contents = json.loads((run / "run.json").read_text())
        (run / "run.json").write_text(json.dumps({**contents, "status": status}))
        assert found(auto(tmp_path)) == run.resolve()

    def test_without_a_run_a_new_one_begins(self, tmp_path, caplog):
        caplog.set_level("INFO")
        assert found(auto(tmp_path)) is None
        assert "There is no run to resume" in caplog.text

    def test_without_the_key_nothing_is_looked_for(self, run, tmp_path):
        died(run)
        assert found(scripted(tmp_path / "runs", "runner.keep_best=false")) is None

    def test_a_completed_run_is_not_taken_up_nor_one_before_it(self, run, tmp_path, caplog):
        caplog.set_level("INFO")
        before = run.with_name("20200101-000000-seed0")
        died(Path(shutil.copytree(run, before)))
        assert found(auto(tmp_path)) is None  # not that one either
        assert f"{run.resolve()} has completed; a new run begins" in caplog.text

    def test_the_newest_of_several_is_taken_also_of_one_second(self, run, tmp_path):
        died(run)
        others = [run.with_name(f"{run.name}-{number}") for number in (2, 9, 10)]
        for other in others:
            shutil.copytree(run, other)
        assert found(auto(tmp_path)) == others[-1].resolve()

    def test_that_of_another_seed_is_not_taken(self, run, tmp_path):
        died(run)
        assert found(auto(tmp_path, "runner.seed=10")) is None

    def test_one_with_other_settings_is_left_and_the_key_is_told(self, run, tmp_path, caplog):
        died(run)
        assert found(auto(tmp_path, "learner.lr=0.5")) is None
        assert "has other settings, so a new run begins (runner.auto_resume): learner.lr was 0.0003 and is now 0.5" in (
            caplog.text
        )

    def test_behind_one_with_other_settings_its_own_is_found(self, run, tmp_path):
        died(run)
        other = shutil.copytree(run, run.with_name("20990101-000000-seed0"))
        (other / "config.yaml").write_text(to_yaml(auto(tmp_path, "learner.lr=0.5")))
        assert found(auto(tmp_path)) == run.resolve()

    @pytest.mark.parametrize(
        "override",
        [
            "rollout.num_workers=2", "cluster.start_timeout=5", "runner.logger.logger_backends=[csv]",
            "learner.num_threads=2", "runner.save_interval=7", "runner.health.on_critical=stop",
        ],
    )  # fmt: skip
    def test_settings_that_do_not_say_what_is_learnt_may_differ(self, run, tmp_path, override):
        died(run)
        assert found(auto(tmp_path, override)) == run.resolve()

    def test_a_key_that_the_run_does_not_know_yet_may_differ(self, run, tmp_path):
        died(run)
        text = (run / "config.yaml").read_text()
        assert "  max_grad_norm: 0.5\n" in text
        (run / "config.yaml").write_text(text.replace("  max_grad_norm: 0.5\n", ""))
        assert found(auto(tmp_path)) == run.resolve()

    def test_one_without_a_whole_checkpoint_is_left(self, run, tmp_path, caplog):
        caplog.set_level("INFO")
        damage(died(run), 2)
        assert found(auto(tmp_path)) is None
        assert "its only checkpoint is not whole" in caplog.text

    @pytest.mark.parametrize("name", ["run.json", "config.yaml"])
    @pytest.mark.parametrize("contents", ["", "[", "[]", "{a: "])
    def test_a_directory_that_cannot_be_read_does_no_harm(self, run, tmp_path, name, contents):
        (died(run) / name).write_text(contents)
        found(auto(tmp_path))

    def test_two_starts_never_take_the_same_run(self, run, tmp_path):
        died(run)
        with resume.locked_run(auto(tmp_path), None, patience=0) as taken:
            assert taken == run.resolve()
            with pytest.raises(ConfigError, match=r"with these settings and runner\.seed=0 is in progress already"):
                found(auto(tmp_path))
            with (
                pytest.raises(ConfigError, match="was resumed and is in progress"),
                resume.locked_run(scripted(tmp_path), run, patience=0),
            ):
                pass
        assert found(auto(tmp_path)) == run.resolve()

    def test_two_starts_never_begin_the_same_run(self, tmp_path):
        with (
            resume.locked_run(auto(tmp_path), None, patience=0),
            pytest.raises(ConfigError, match="is in progress already"),
        ):
            found(auto(tmp_path))

    def test_starts_with_other_settings_or_seeds_do_not_wait_for_each_other(self, tmp_path):
        with resume.locked_run(auto(tmp_path), None, patience=0):
            assert found(auto(tmp_path, "runner.seed=1")) is None
            assert found(auto(tmp_path, "learner.lr=0.5")) is None

    def test_a_run_that_is_being_written_is_not_taken(self, run, tmp_path):
        died(run)
        with RunDirectory(run).lock_for_writing(), pytest.raises(ConfigError, match="the run is in progress"):
            found(auto(tmp_path))

    def test_with_several_seeds_each_goes_on_by_itself_and_what_is_complete_stays(self, tmp_path):
        arguments = ["train", write_config(tmp_path), "--local", "--seeds", "0,1", "runner.auto_resume=true"]
        first = command(*arguments)
        assert first.code == 0, first.err
        runs = {path.parent for path in tmp_path.glob("runs/scripted/*/run.json")}
        (second,) = [run for run in runs if run.name.endswith("-seed1")]
        died(second)
        again = command(*arguments)
        assert again.code == 0, again.err
        assert {path.parent for path in tmp_path.glob("runs/scripted/*/run.json")} == runs
        incarnations = {run.name[-1]: json.loads((run / "run.json").read_text())["incarnation"] for run in runs}
        assert incarnations == {"0": 0, "1": 1}


def test_a_new_run_begins_with_the_newest_policy_of_a_run_directory(run, tmp_path):
    damage(run, 4)
    config = load_config(
        to_mapping(scripted(tmp_path / "warm")), [f"policy.warm_start={run}", "learner.lr=0", "runner.save_interval=1"]
    )
    warm = checkpoint.newest(rlpipe.train(config, local=True).directory).arrays
    kept = checkpoint.load(run / "checkpoints" / "iteration-000002.npz").arrays
    for name in (name for name in kept if name.startswith("policy/")):
        np.testing.assert_array_equal(warm[name], kept[name])


def test_a_new_run_begins_with_another_deviation_only_where_its_configuration_says_so(run, tmp_path):
    fixed = (f"policy.warm_start={run}", "learner.lr=0", "policy.initial_log_std=-1.5")
    warm = checkpoint.newest(rlpipe.train(scripted(tmp_path, *fixed), local=True).directory).arrays
    continued = checkpoint.newest(run).arrays
    np.testing.assert_array_equal(warm["policy/log_std"], np.full_like(continued["policy/log_std"], -1.5))
    for name in (name for name in continued if name.startswith("policy/actor.")):
        np.testing.assert_array_equal(warm[name], continued[name])
