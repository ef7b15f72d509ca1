"""Who did what when: what a run leaves behind of it, and the trace of one iteration."""

from __future__ import annotations

import itertools
import json
import re

import pytest
from typer.testing import CliRunner

import rlpipe
from rlpipe.analysis.timeline import chrome_trace, read
from rlpipe.cli import app
from rlpipe.errors import ConfigError
from rlpipe.metrics.spans import ITERATION, Span
from rlpipe.run.directory import KEPT_ITERATIONS, RunDirectory, read_jsonl
from tests.helpers.runs import sac, scripted


def kept(run) -> dict[int, list[Span]]:
    """Spans by iteration."""
    return {
        row["iteration"]: [Span.from_json(span) for span in row["spans"]]
        for row in read_jsonl(run.path / "timeline.jsonl")
    }


def of(spans, part, name) -> list[Span]:
    return [span for span in spans if (span.actor, span.name) == (part, name)]


def by_part(spans) -> dict[str, list[Span]]:
    """In the order of time, without the one that holds the driver's others."""
    flat = sorted((span for span in spans if span.name != ITERATION), key=lambda span: span.began)
    return {part: [span for span in flat if span.actor == part] for part in {span.actor for span in flat}}


def overlaps(spans) -> list[tuple[Span, Span]]:
    found = []
    for own in by_part(spans).values():
        found += [(one, next_one) for one, next_one in itertools.pairwise(own) if next_one.began < one.ended]
    return found


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run in one process."""
    config = scripted(tmp_path_factory.mktemp("finished"), "rollout.num_workers=2", "runner.val_check_interval=4")
    return RunDirectory(rlpipe.train(config, local=True).directory)


# --- what a run leaves behind


def test_each_part_says_what_it_did(finished):
    done = {(span.actor, span.name) for spans in kept(finished).values() for span in spans}
    assert done >= {
        *(("driver", f"wait for {what}") for what in ("collection", "learning", "evaluation")),
        ("driver", "wait for logging"),
        ("driver", "hand over checkpoint"),
        *((f"rollout-{rank}", what) for rank in (0, 1) for what in ("load weights", "collect", "evaluate")),
        *(("learner", what) for what in ("receive batches", "advantages", "train", "publish weights")),
        ("metric-logger", "write row"),
        ("metric-logger", "save checkpoint"),
    }


def test_iterations_follow_one_another_and_hold_what_was_collected_and_learnt_in_them(finished):
    found = kept(finished)
    wholes = [of(spans, "driver", ITERATION)[0] for spans in found.values()]
    assert [
        (one.ended, next_one.began) for one, next_one in itertools.pairwise(wholes) if one.ended != next_one.began
    ] == []
    for whole, spans in zip(wholes, found.values(), strict=True):
        for span in spans:
            if span.actor != "metric-logger":  # it writes what an iteration was when that is over
                assert whole.began <= span.began <= span.ended <= whole.ended


def test_a_part_does_one_thing_at_a_time(finished):
    assert overlaps(itertools.chain(*kept(finished).values())) == []


def test_the_timeline_forgets_the_oldest_iterations(finished, tmp_path):
    run = RunDirectory(tmp_path)
    for iteration in range(1, 2 * KEPT_ITERATIONS + 51):
        run.write_spans(iteration, [Span("driver", ITERATION, iteration, iteration + 1)])
        held = sum(1 for _ in read_jsonl(tmp_path / "timeline.jsonl"))
        assert min(iteration, KEPT_ITERATIONS) <= held <= 2 * KEPT_ITERATIONS
    assert list(kept(run)) == list(range(KEPT_ITERATIONS + 1, 2 * KEPT_ITERATIONS + 51))


def test_a_resumed_run_has_each_iteration_once(tmp_path):
    config = scripted(tmp_path)
    run = RunDirectory(rlpipe.train(config, local=True).directory)
    before = kept(run)
    (run.path / "checkpoints" / "iteration-000004.npz").unlink()
    rlpipe.train(config, local=True, resume=run.path)
    after = kept(run)
    assert list(after) == [1, 2, 3, 4]
    assert [after[n] == before[n] for n in after] == [True, True, False, False]


def test_a_clock_that_is_ahead_is_set_right():
    assert Span("rollout-0", "collect", 105.0, 107.0).by_clock(5.0) == Span("rollout-0", "collect", 100.0, 102.0)


# --- the timeline of an iteration


def written(path, *spans: list[Span]) -> RunDirectory:
    """A run directory with these spans, an iteration each."""
    run = RunDirectory(path)
    run.write_json({"cluster": {"nodes": [{"host": "laptop"}]}})
    for iteration, own in enumerate(spans, start=1):
        run.write_spans(iteration, own)
    return run


AHEAD = (
    [Span("driver", ITERATION, 10, 20), Span("rollout-0", "collect", 10, 16), Span("learner", "train", 16, 20)],
    [Span("driver", ITERATION, 20, 30), Span("rollout-0", "collect", 17, 25), Span("learner", "train", 25, 29)],
)
"""Two iterations; what is learnt from in the second is collected from the first on."""


def test_a_timeline_shows_what_reaches_into_it_from_other_iterations(tmp_path):
    found = read(written(tmp_path, *AHEAD), 1)
    assert (Span("rollout-0", "collect", 17, 25), 2) in found.spans
    assert found.shares("rollout-0") == {"collect": pytest.approx(0.9), "wait": pytest.approx(0.1)}


def test_a_timeline_shows_all_of_its_own_iteration_also_what_began_before_it(tmp_path):
    found = read(written(tmp_path, *AHEAD))
    assert (found.iteration, found.actors) == (2, ("driver", "rollout-0", "learner"))
    assert (Span("rollout-0", "collect", 17, 25), 2) in found.spans


def test_a_part_waits_where_it_does_nothing_else_but_the_driver_never_does(tmp_path):
    found = read(written(tmp_path, *AHEAD), 2)
    assert [span for span, _ in found.spans if span.name == "wait"] == [
        Span("rollout-0", "wait", 25, 30), Span("learner", "wait", 20, 25), Span("learner", "wait", 29, 30),
    ]  # fmt: skip


def test_parts_stand_along_the_way_of_the_data(tmp_path):
    names = ["metric-logger", "learner-1", "learner-0", "inference-0", "rollout-10", "rollout-9", "another"]
    run = written(tmp_path, [Span("driver", ITERATION, 0, 1), *(Span(name, "work", 0, 1) for name in names)])
    assert read(run).actors == (
        "driver", "rollout-9", "rollout-10", "inference-0", "learner-0", "learner-1", "metric-logger", "another",
    )  # fmt: skip


def test_an_iteration_that_is_not_kept_is_refused_with_those_that_are(tmp_path):
    with pytest.raises(ConfigError, match=r"--iteration is 7, but .* holds 1 to 2"):
        read(written(tmp_path, *AHEAD), 7)


def test_a_run_without_a_timeline_says_so(tmp_path):
    with pytest.raises(ConfigError, match="has no timeline"):
        read(written(tmp_path))


# --- the trace


def events(trace, **like) -> list[dict]:
    return [event for event in trace["traceEvents"] if event.items() >= like.items()]


def test_a_trace_has_a_thread_for_each_part_and_times_in_microseconds(tmp_path):
    run = written(tmp_path, *AHEAD)
    trace = chrome_trace(run, read(run, 1))
    assert [event["args"]["name"] for event in events(trace, name="thread_name")] == ["driver", "rollout-0", "learner"]
    assert events(trace, name="process_name")[0]["args"] == {"name": "host laptop"}
    assert events(trace, name="train") == [
        {"ph": "X", "name": "train", "pid": 1, "tid": 3, "ts": 6_000_000, "dur": 4_000_000}
    ]
    assert events(trace, name="collect 2")[0]["ts"] == 7_000_000


def test_parts_on_other_nodes_stand_under_their_hosts(tmp_path):
    run = written(tmp_path, *AHEAD)
    places = {"driver": ("head", "a"), "rollout-0": ("far", "b"), "learner": ("head", "a")}
    parts = {part: {"host": host, "node": node} for part, (host, node) in places.items()}
    run.write_json({"cluster": {"nodes": [{"host": "head"}], "parts": parts}})
    trace = chrome_trace(run, read(run, 1))
    hosts = [(event["args"]["name"], event["tid"]) for event in events(trace, name="process_name")]
    assert hosts == [("host head", 1), ("host far", 2), ("host head", 3)]
    assert len({event["pid"] for event in trace["traceEvents"]}) == 2


def test_the_command_writes_a_trace_and_says_where_the_time_went(tmp_path):
    out = tmp_path / "trace.json"
    run = written(tmp_path, *AHEAD)
    (run.path / "config.yaml").touch()  # as in every run directory
    told = CliRunner().invoke(
        app, ["timeline", str(run.path), "--iteration", "2", "--out", str(out)], catch_exceptions=False
    )
    assert told.exit_code == 0
    for line in (r"iteration 2 of \S+ took 10", "rollout-0 +collect 50%, wait 50%", "learner +wait 60%, train 40%"):
        assert re.search(line, told.output)
    assert events(json.loads(out.read_text()), name="iteration 2", ts=0)


def test_the_command_writes_into_the_run_directory_unless_told_otherwise(finished):
    assert CliRunner().invoke(app, ["timeline", str(finished.path)], catch_exceptions=False).exit_code == 0
    assert (finished.path / "timeline-000004.json").is_file()


# --- on Ray


CLOCKS = 0.1
"""Seconds by which two processes may disagree, if the wall clock is set right meanwhile; collecting takes 0.3."""


def on_ray(config) -> RunDirectory:
    return RunDirectory(rlpipe.train(config).directory)


@pytest.mark.soak
def test_on_policy_workers_wait_for_the_weights_of_the_iteration_before(tmp_path, ray_cluster):
    few = ("runner.total_timesteps=128", "evaluation.episodes=1")
    options = ("rollout.num_workers=2", "env.train.step_seconds=0.02", *few)
    run = on_ray(scripted(tmp_path, *options))
    found = kept(run)
    assert overlaps(itertools.chain(*found.values())) == []
    assert read(run).actors == ("driver", "rollout-0", "rollout-1", "learner", "metric-logger")
    json.dumps(chrome_trace(run, read(run)), allow_nan=False)
    for iteration, spans in found.items():
        (whole,) = of(spans, "driver", ITERATION)
        for part in ("rollout-0", "rollout-1", "learner"):
            assert whole.began - CLOCKS <= min(span.began for span in by_part(spans)[part])
            assert max(span.ended for span in by_part(spans)[part]) <= whole.ended + CLOCKS
        collected = [of(spans, f"rollout-{rank}", "collect")[0] for rank in (0, 1)]
        assert max(span.ended for span in collected) <= of(spans, "learner", "train")[0].began + CLOCKS
        if iteration > 1:
            (published,) = of(found[iteration - 1], "learner", "publish weights")
            assert published.ended <= min(span.began for span in collected) + CLOCKS


@pytest.mark.soak
def test_off_policy_workers_collect_for_the_next_iteration_while_the_learner_learns(tmp_path, ray_cluster):
    options = ("rollout.num_workers=2", "env.train.step_seconds=0.05", "algorithm.update_to_data=2")
    found = kept(on_ray(sac(tmp_path, *options, "evaluation.episodes=1")))
    assert overlaps(itertools.chain(*found.values())) == []
    pairs = [
        (of(found[iteration], "learner", "train")[0], of(found[iteration + 1], "rollout-0", "collect")[0])
        for iteration in (2, 3)
    ]
    assert any(
        collected.began < trained.ended and trained.began < collected.ended for trained, collected in pairs
    )  # in each, unless the machine is busy with something else
