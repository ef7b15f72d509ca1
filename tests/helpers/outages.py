"""Runs whose backends fail in every way there is, for the tests and for ``benchmarks/outages.py``.

``tests.helpers.outages:wandb`` is the real ``wandb`` backend with the fault that the variable ``OUTAGE`` gives it.
"""

from __future__ import annotations

import errno
import importlib
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from omegaconf import OmegaConf

from rlpipe.backends.base import Backend
from rlpipe.envs.base import Step
from rlpipe.envs.scripted import Scripted
from rlpipe.plugins import resolve
from rlpipe.run.directory import RunDirectory, read_jsonl
from rlpipe.run.follower import Follower

FAULTS = ("raises at start", "raises later", "sleeps 60 s", "killed", "disk full", "back after 20")
STEPS = 16
"""Steps of an iteration."""
BEGINS, BACK = 10, 30
"""Iterations after which the fault begins, and after which it ends, where it does."""
ITERATIONS = 45


class UnreachableError(OSError):
    """The service does not answer."""

    def __init__(self) -> None:
        super().__init__(errno.EHOSTUNREACH, "no route to the tracker")


def __getattr__(name: str) -> type[Backend]:
    """The backend of that name, faulty."""
    if name.startswith("__"):
        raise AttributeError(name)
    real: type[Backend] = resolve("backends", name, "outages")

    class Faulty(real):  # type: ignore[misc, valid-type]
        def __init__(self, run: Any) -> None:
            self.fault, self.folder = json.loads(os.environ.get("OUTAGE", "{}")).get(name, ""), run.directory
            if self.fault == "raises at start":
                raise UnreachableError
            super().__init__(run)

        def write(self, row: Any) -> None:
            if row.iteration >= BEGINS:
                self.fail(row.iteration)
            super().write(row)

        def fail(self, iteration: int) -> None:
            if self.fault == "raises later":
                raise UnreachableError
            if self.fault == "sleeps 60 s":
                time.sleep(60)
            if self.fault == "killed" and iteration % 10 == 0 and not (once := self.folder / f".{iteration}").exists():
                once.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            if self.fault == "back after 20" and lines(self.folder / "metrics.jsonl") < BACK:
                raise UnreachableError

    return Faulty


@dataclass(frozen=True)
class Outcome:
    """Outcome of one run.

    Attributes:
        step: median seconds of an iteration.  code: exit code of the command.
        missing: rows that the backend's store lacks, or holds with other numbers, when the run has ended.
        after_sync: the same after ``rlpipe sync``.
        told: kinds of the events about it, until one says that it is over.
    """

    step: float
    code: int
    missing: int
    after_sync: int
    told: list[str]


class Patient(Scripted):
    """The scripted simulator, which is slow in the middle of the run until every fault has been told.

    Starting a process may take longer than the whole run, and who is not there yet cannot fail.
    """

    def step(self, actions: NDArray[Any]) -> Step:
        self.taken = getattr(self, "taken", 0) + 1
        if self.taken > STEPS * (BEGINS + 1) and not self.all_told():
            time.sleep(0.1)
        return super().step(actions)

    def all_told(self) -> bool:
        files = Path(os.environ["OUTAGE_FOLDER"]).glob("scripted/*/events.jsonl")
        found = [e["data"]["backend"] for file in files for e in read_jsonl(file) if e["kind"] == "backend"]
        return {name.partition(":")[2] for name in found} >= json.loads(os.environ["OUTAGE"]).keys()


def run(
    folder: Path, faults: Mapping[str, str], *, iterations: int = ITERATIONS, patient: bool = False
) -> dict[str, Outcome]:
    """Trains with backends that fail, on the scripted simulator, and reads their stores.

    Args:
        folder: for the run.  faults: of each backend, by its name: one of ``FAULTS``, or nothing.
        iterations: length of the run, of 16 steps of 4 ms each.  patient: True to wait until every fault was told.
    """
    from rlpipe.config.tree import from_yaml, to_yaml
    from tests.helpers.runs import scripted

    stores = {backend: importlib.import_module(f"tests.helpers.stores.{backend}") for backend in faults}
    names = {backend: f"{__name__}:{backend}" for backend in faults}
    overrides = (
        f"runner.logger.logger_backends=[{','.join(faults)}]",
        *(option for store in stores.values() for option in store.OPTIONS),
        *(f"runner.total_timesteps={64 * iterations}", "env.train.step_seconds=0.004", "runner.save_interval=5"),
    )
    tree = from_yaml(to_yaml(scripted(folder, *overrides)))
    logger = tree["runner"]["logger"]
    options = {names[backend]: logger["options"].get(backend, {}) for backend in faults}
    logger |= {"logger_backends": list(names.values()), "options": options}
    recover = not {"raises at start", "raises later", "sleeps 60 s"}.intersection(faults.values())
    logger |= {
        "deadline": 2.0 if "sleeps 60 s" in faults.values() else 200.0,
        "finish_timeout": 200.0 if recover else 0.1 if patient else 3.0,  # the patient one looks only after a sync
    }
    environment = {**os.environ, "OUTAGE": json.dumps({**faults}), "OUTAGE_FOLDER": str(folder)}
    if patient:
        tree["env"]["train"]["name"] = f"{__name__}:Patient"
    file = folder / "config.yaml"
    file.write_text(OmegaConf.to_yaml(OmegaConf.create(tree)), encoding="utf-8")
    command = [sys.executable, "-m", "rlpipe", "train", str(file), "--local"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    if "disk full" in faults.values():
        threading.Thread(target=_fill_for_a_while, args=(folder, process), daemon=True).start()
    output, _ = process.communicate(timeout=600)
    try:
        directory = RunDirectory(next(folder.glob("scripted/*/metrics.jsonl")).parent)
    except StopIteration:
        raise RuntimeError(f"the run wrote nothing: {output}") from None
    step = statistics.median(
        row["metrics"]["time/step"] for row in list(read_jsonl(directory.path / "metrics.jsonl"))[1:]
    )
    outcomes = {}
    for backend, name in names.items():
        missing = wrong_rows(directory, stores[backend])
        follower = Follower(directory, name, patience=600.0)  # its process may have to notice that the run has ended
        follower.catch_up()  # as ``rlpipe sync`` does
        follower.close()
        after_sync = wrong_rows(directory, stores[backend])
        outcomes[backend] = Outcome(step, process.returncode, missing, after_sync, told(directory, name))
    return outcomes


def told(directory: RunDirectory, name: str) -> list[str]:
    """Kinds of the events about a backend or the disk. Once a fault is over, another one is told anew, and not here."""
    events = [
        event
        for event in read_jsonl(directory.path / "events.jsonl")
        if event["kind"] == "disk" or (event["kind"] == "backend" and event["data"]["backend"] == name)
    ]
    levels = [event["data"]["level"] for event in events]
    return [
        event["kind"]
        for event, level, before in zip(events, levels, ["", *levels], strict=False)
        if level != "cleared" and before != "cleared"
    ]


def wrong_rows(directory: RunDirectory, store: Any) -> int:
    """Counts the rows of ``metrics.jsonl`` that the store does not hold exactly."""
    try:
        held = store.numbers(directory)
    except AssertionError:
        raise  # it holds something twice
    except Exception:
        held = {}  # nothing was ever shown, so there is no store
    rows = list(read_jsonl(directory.path / "metrics.jsonl"))
    return sum(not _same(row["metrics"], held.get(row["iteration"], {}), store.TOLERANCE) for row in rows)


def _same(row: dict[str, float], held: dict[str, float], tolerance: float) -> bool:
    return row.keys() == held.keys() and all(abs(held[n] - row[n]) <= tolerance * abs(row[n]) for n in row)


def _fill_for_a_while(folder: Path, process: subprocess.Popen[str]) -> None:
    """Fills the disk after some iterations, and frees it after the time that 20 iterations take."""
    while process.poll() is None:
        rows = [file for file in folder.glob("scripted/*/metrics.jsonl") if lines(file) >= BEGINS]
        if rows:
            break
        time.sleep(0.02)
    ballast = fill(folder)
    time.sleep(2.5)
    ballast.unlink()


def fill(disk: Path) -> Path:
    """Fills the disk, and returns the file to delete to free it again."""
    ballast = disk / "ballast"
    with ballast.open("ab", buffering=0) as file:
        for size in (2**16, 2**10, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
    return ballast


def lines(file: Path) -> int:
    """Counts complete lines."""
    return file.read_bytes().count(b"\n")
