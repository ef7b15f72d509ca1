"""The contract of all backends, tested with each real library and without a network (``tests/helpers/stores``)."""

from __future__ import annotations

import json
import shutil

import pytest

import rlpipe
from rlpipe.config.loading import load_config
from rlpipe.run.directory import RunDirectory, read_jsonl
from rlpipe.run.follower import mark_file, read_mark
from tests.helpers.backends import STORES, assert_shows_everything, assert_shows_the_end, catch_up
from tests.helpers.runs import scripted

SLOW = ("mlflow", "wandb")
NAMES = [pytest.param(name, marks=[pytest.mark.soak] * (name in SLOW)) for name in STORES]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> RunDirectory:
    """A finished run that no backend has seen yet."""
    config = scripted(tmp_path_factory.mktemp("runs"), "runner.logger.per_worker=true")
    return RunDirectory(rlpipe.train(config, local=True).directory)


@pytest.mark.parametrize("name", NAMES)
def test_it_holds_every_number_of_a_run_and_how_the_run_ended(run, name):
    assert catch_up(run, name)
    assert_shows_everything(run, name)
    assert_shows_the_end(run, name)


def as_written_before(run: RunDirectory) -> None:
    """Gives TensorBoard's event files earlier seconds: it reads them in that order, and the next ones are new."""
    for file in (run.path / "tensorboard").rglob("events.out.tfevents.*"):
        seconds, _, rest = file.name.removeprefix("events.out.tfevents.").partition(".")
        file.rename(file.with_name(f"events.out.tfevents.{int(seconds) - 5:0{len(seconds)}}.{rest}"))


@pytest.mark.soak
def test_a_sync_with_or_without_its_mark_and_a_longer_run_repeat_nothing(run):
    for name in STORES:
        assert catch_up(run, name)
        assert catch_up(run, name)  # by its mark it has everything
    as_written_before(run)
    for name in STORES:
        mark_file(run.path, name).unlink()
        assert catch_up(run, name)
        assert_shows_everything(run, name)
    as_written_before(run)
    longer = load_config(run.path / "config.yaml", ["runner.total_timesteps=384"])
    rlpipe.train(longer, local=True, resume=run.path)
    assert len(list(read_jsonl(run.path / "metrics.jsonl"))) == 6
    for name in STORES:
        assert catch_up(run, name)
        assert_shows_everything(run, name)
        assert_shows_the_end(run, name)


@pytest.mark.soak
def test_a_run_that_was_killed_and_is_resumed_stands_there_once(tmp_path):
    """It died two rows after its last checkpoint; a backend may only hold what the resumed run says too.

    W&B, whose own process would go on here and hold the lock of the view, is killed in ``test_wandb``.
    """
    names = STORES.keys() - {"wandb"}
    run = RunDirectory(rlpipe.train(scripted(tmp_path), local=True).directory)
    (run.path / "checkpoints" / "iteration-000004.npz").unlink()
    run.write_json({**run.read_json(), "status": "running"})
    for name in sorted(names):
        assert not catch_up(run, name)
    as_written_before(run)
    rlpipe.train(load_config(run.path / "config.yaml"), local=True, resume=run.path)
    for name in sorted(names):
        assert catch_up(run, name)
        assert_shows_everything(run, name)
        assert_shows_the_end(run, name)


ODD = (
    f"env/{300 * 'x'}/mean", f"env/{300 * 'x'}/std", f"env/{300 * 'é'}/mean",
    "env/a\nb", "env/a\u2028b", "env/a@50", "env/A@50", "/a", "a/", "iteration", "time",
)  # fmt: skip
LONGEST = {"mlflow": 250, "swanlab": 255}


@pytest.mark.parametrize("name", NAMES)
def test_every_metric_is_held_whatever_its_name_and_shortened_names_are_told(run, name, tmp_path):
    copy = tmp_path / "runs" / "scripted" / "odd"
    shutil.copytree(run.path, copy, ignore=shutil.ignore_patterns("backends", "tensorboard", "wandb", "metrics.csv"))
    row = next(iter(read_jsonl(copy / "metrics.jsonl")))
    row |= {"metrics": {odd: float(place) for place, odd in enumerate(ODD)}, "workers": {}}
    (copy / "metrics.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    odd = RunDirectory(copy)
    assert catch_up(odd, name)
    held = STORES[name].numbers(odd)[1]
    assert sorted(held.values()) == list(range(len(ODD)))
    shortened = sum(len(one) > LONGEST.get(name, 1000) for one in ODD)
    told = read_mark(mark_file(copy, name)).remarks
    assert [remark.split("...")[0] for remark in told] == [one[:60] for one in ODD[:shortened]]
