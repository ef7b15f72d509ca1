"""A simulator that fails in a chosen way, and checks of what a run wrote in spite of it."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from numpy.typing import NDArray

from rlpipe.config.schema import Config
from rlpipe.distributed.ray_answers import RayAnswers
from rlpipe.envs.base import Step
from rlpipe.envs.scripted import Scripted, ScriptedConfig
from rlpipe.envs.shared.slots import NextSeed
from rlpipe.metrics import CATALOGUE, MetricWindow
from rlpipe.metrics import catalogue as m
from rlpipe.run.directory import read_jsonl
from rlpipe.trajectory import Episode
from tests.helpers.processes import fail
from tests.helpers.runs import beside, scripted

TWO_WORKERS = ("rollout.num_workers=2", "cluster.cpus_per_worker=0.5")


@dataclass(frozen=True)
class FaultyConfig(ScriptedConfig):
    """Options of the faulty simulator."""

    fault: str = ""
    """``kill``, ``crash``, ``exit``, ``hang``, ``stop``, ``raise``, ``leak``, or ``none``, which only leaves its note.
    Several, separated by spaces, happen in turn. Empty for no fault."""
    folder: str = ""
    """Where each fault leaves a note, so that all processes know how many there were."""
    times: int = 1
    """How often each fault happens."""
    at: int = 40
    """Steps that a simulator takes before it fails, counted from its start and from the last fault anywhere."""


class Faulty(Scripted):
    """The scripted simulator, with a fault."""

    Config = FaultyConfig

    @classmethod
    def make(cls, config: FaultyConfig, num_envs: int, next_seed: NextSeed) -> Faulty:
        simulator = super().make(config, num_envs, next_seed)
        assert isinstance(simulator, Faulty)
        simulator._config = config
        simulator._taken = simulator._since = simulator._seen = 0
        simulator._kept = []
        for env in simulator._envs:
            env._slot = 0  # or environments of a group could be told apart
        return simulator

    def step(self, actions: NDArray[Any]) -> Step:
        self._taken += 1
        if self._config.fault == "leak":
            self._kept.append(os.urandom(2_000_000))
        else:
            self._fail_if_due(self._config.fault.split() * self._config.times)
        return super().step(actions)

    def _fail_if_due(self, faults: list[str]) -> None:
        """Fails unless a simulator somewhere has failed since this one looked last; then it counts its steps anew."""
        while self._seen < len(faults) and self._note.exists():
            self._seen, self._since = self._seen + 1, self._taken
        if self._seen < len(faults) and self._taken - self._since >= self._config.at:
            with contextlib.suppress(FileExistsError):
                self._note.touch(exist_ok=False)
                if faults[self._seen] != "none":
                    fail(faults[self._seen])

    @property
    def _note(self) -> Path:
        """File that says that the next fault has happened."""
        return Path(self._config.folder, f"fault-{self._seen}")


class Hurried(RayAnswers):
    """Answers of Ray, on a clock that stands still but for a leap over the deadline of a worker that was stopped.

    So no worker that is at work misses its deadline, however slow this machine is.
    """

    def __init__(self, folder: Path) -> None:
        """Takes the folder of the note of the fault."""
        self._note, self._leaps = folder / "fault-0", 0

    def wait(self, refs: Sequence[Any], timeout: float) -> Sequence[Any]:
        done = super().wait(refs, timeout)
        if timeout > 0 and not done and len(refs) == 1 and self._note.exists():  # all others have answered
            self._leaps = 1
        return done

    def now(self) -> float:
        return 1e6 * self._leaps


def faulty(tmp_path: Path, fault: str, *overrides: str, **tree: Any) -> Config:
    """A run of 12 iterations with two workers, 4 environments and 16 steps each, whose simulators fail."""
    train = {"name": "tests.helpers.faulty:Faulty", "total_num_envs": 4, "match_actions": True, "fault": fault}
    tree.setdefault("env", {"train": {**train, "folder": str(tmp_path)}, "eval": {"fault": ""}})
    return scripted(tmp_path, *TWO_WORKERS, "runner.total_timesteps=768", *overrides, **tree)


def rows(run: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return list(read_jsonl(run / name))


def events(run: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in rows(run, "events.jsonl") if event["kind"] == kind]


def assert_whole(run: Path, iterations: int) -> None:
    """Checks that no iteration or episode is missing or there twice, and that all numbers are those of the ledger."""
    written, ledger = rows(run), rows(run, "episodes.jsonl")
    assert [row["iteration"] for row in written] == list(range(1, iterations + 1))
    played: dict[int, list[Episode]] = {}
    for row in ledger:
        played.setdefault(row["iteration"], []).append(Episode.from_row(row))
    begun = json.loads((run / "run.json").read_text()).get("resumed_after", [])
    declared = [metric for name, metric in CATALOGUE.items() if name.startswith("env/")]
    whole = MetricWindow()
    for row in written:
        incarnation = max((n for n, after in enumerate(begun, start=1) if after < row["iteration"]), default=0)
        now = MetricWindow()
        for window in (now, whole):
            m.ENV.observe(window, played.get(row["iteration"], []), incarnation)
        expected = now.read([metric for metric in declared if not metric.lifetime])
        expected |= whole.read([metric for metric in declared if metric.lifetime])
        assert {name: value for name, value in row["metrics"].items() if name.startswith("env/")} == expected
    seeds = [(row["slot"], row["seed"]) for row in ledger]
    assert len({*seeds}) == len(seeds)


def pids(run: Path) -> dict[str, int]:
    """Returns the process of each rollout worker and learner that works now."""
    parts = json.loads((run / "run.json").read_text())["cluster"]["parts"]
    found = {name: part["pid"] for name, part in parts.items() if "pid" in part}
    told = rows(run, "events.jsonl") if (run / "events.jsonl").is_file() else []
    last = max((n for n, event in enumerate(told) if event["kind"] in ("recovered", "resumed")), default=0)
    since = [event["data"] for event in told[last:] if event["kind"] == "restarted"]
    return found | {fault["part"]: fault["successor"] for fault in since if "successor" in fault}


PARTS = ("rollout", "learner", "metric-logger", "inference")


def processes(*names: str) -> list[psutil.Process]:
    """Returns the processes of actors whose names start so, or of all actors, on any Ray below this process."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if " ".join(process.cmdline()).startswith(tuple(f"ray::{name}" for name in names or PARTS)):
                found.append(process)
    return found


def killed(names: Sequence[str], log_path: Path, after: int) -> contextlib.AbstractContextManager[None]:
    """Kills actors in turn with SIGKILL, each after so many more iterations than were written when the last was killed.

    Args:
        names: first letters of each actor's name.
        log_path: folder of the run, the only one in it.
        after: iterations.
    """
    pending, due = list(names), after

    def kill() -> bool:
        nonlocal due
        files = [*log_path.glob("*/*/metrics.jsonl")]
        written = files[0].read_bytes().count(b"\n") if files else 0
        if written >= due and (found := processes(pending[0])):
            with contextlib.suppress(psutil.Error):
                found[0].kill()
                found[0].wait(600)
            pending.pop(0)
            due = written + after
        return not pending

    return beside(kill)
