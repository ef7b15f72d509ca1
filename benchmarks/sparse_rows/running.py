"""Runs what is missing of a row: each command in a process of its own, which continues where an earlier one stopped.

A run lies in ``RUNS/ROW-SETTINGS/``, so that a row whose settings have changed begins anew. Beside it, a journal says
when each command began and ended, on which processor, and with how many processor seconds.
"""

from __future__ import annotations

import json
import os
import resource
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.machine import ROOT
from benchmarks.sparse_rows import measured
from benchmarks.sparse_rows.rows import PREVIOUS, Command, Row
from rlpipe import files
from rlpipe.analysis.evaluation_report import BASELINES, records_in
from rlpipe.config.loading import load_config
from rlpipe.config.protocol import comparable, protocol
from rlpipe.errors import ConfigError
from rlpipe.metrics.row import Status
from rlpipe.run import shapes
from rlpipe.run.directory import RunDirectory, read_jsonl
from rlpipe.run.locks import TemporaryLock

RUNS = ROOT / "runs" / "sparse"


class CommandError(Exception):
    """A command of rlpipe failed."""


@dataclass
class Runner:
    """Runs commands of rlpipe.

    Attributes:
        runs: folder of the run directories
        local: True for one process with one thread
        stopped: True once a signal has asked for the end
    """

    runs: Path = RUNS
    local: bool = False
    stopped: bool = field(default=False, init=False)

    def folder(self, row: Row, index: int = -1) -> Path:
        """Folder of the runs of one command of a row, the last one by default."""
        number = index % len(row.commands) + 1
        return self.runs / f"{row.name}-{row.settings}{f'-{number}' if number < len(row.commands) else ''}"

    def unfinished(self, row: Row, part: str) -> str:
        """Says how far a part has come that has no result yet; empty if it has not begun."""
        row = row.learnt_by
        for index in reversed(range(len(row.commands))) if not row.policies else ():
            if (run := self._newest(self.folder(row, index), part)) is not None:
                lines = read_jsonl(run / "metrics.jsonl") if (run / "metrics.jsonl").is_file() else ()
                done = max((line["total_timesteps"] for line in lines), default=0)
                total = RunDirectory(run).read_config()["runner"]["total_timesteps"]
                command = f"command {index + 1} of {len(row.commands)}, " if len(row.commands) > 1 else ""
                return f"{command}{done:,} of {total:,} steps"
        return ""

    @contextmanager
    def claimed(self, row: Row, part: str) -> Iterator[None]:
        """Keeps other commands from the same part.

        Raises:
            ConfigError: another one has it.
        """
        file = self.folder(row.learnt_by) / f".{part}.lock"
        with TemporaryLock(file, 0.0, "another command is at it."):
            yield

    def make(self, row: Row, part: str) -> dict[str, Any]:
        """Runs what is missing of one seed or baseline, and returns its result.

        Raises:
            CommandError: a command failed.
            ConfigError: what it left is not what the row declares.
            KeyboardInterrupt: a signal asked for the end; what was begun can be continued.
        """
        journal = Journal(self.folder(row) / f"{part}.jsonl")
        if row.policies:
            source = self._baseline(row, part, journal)
            return measured.baseline(row, source, journal.facts(row))
        trained, runs = row.learnt_by, list[Path]()
        training = Journal(self.folder(trained) / f"{part}.jsonl")
        for index, command in enumerate(trained.sequence):
            runs.append(self._run(trained, part, index, command, runs, training))
        facts = training.facts(trained)
        if row.trained:
            if not journal.file.is_file() or not measured.is_evaluated(row, runs[-1]):
                self._call(["evaluate", _shown(runs[-1]), *row.sequence[-1].overrides], journal)
            facts = combined(facts, journal.facts(row))
        return measured.learnt(row, runs, facts)

    def _run(self, row: Row, seed: str, index: int, command: Command, before: Sequence[Path], journal: Journal) -> Path:
        """Returns the directory of a finished run; begins or continues it if there is none."""
        folder = self.folder(row, index)
        run = self._newest(folder, seed)
        if run is None or RunDirectory(run).read_json()["status"] != Status.COMPLETED:
            overrides = [one.replace(PREVIOUS, _shown(before[-1]) if before else "") for one in command.overrides]
            self._call(
                [
                    command.verb, command.config, *overrides, f"runner.seed={seed}", "runner.auto_resume=true",
                    f"runner.logger.log_path={_shown(self.runs)}", f"runner.logger.experiment_name={folder.name}",
                    "runner.logger.logger_backends=[]", *(["learner.num_threads=1"] if self.local else []),
                ],
                journal,
            )  # fmt: skip
            run = self._newest(folder, seed)
        if run is None:
            raise CommandError(f"{journal.log} ends without a run in {folder}.")
        return run

    def _baseline(self, row: Row, policy: str, journal: Journal) -> Path:
        """Returns the record of a baseline; measures it if that was not yet done here."""
        command = row.sequence[0]
        if not journal.file.is_file() or self._record(command, policy) is None:
            place = f"runner.logger.log_path={_shown(self.runs)}"
            self._call(["evaluate", command.config, *command.overrides, "--policy", policy, place], journal, local=True)
        if (source := self._record(command, policy)) is None:
            raise CommandError(f"{journal.log} ends without a record in {self.runs / BASELINES}.")
        return source

    def _record(self, command: Command, policy: str) -> Path | None:
        """Returns the newest record of a baseline in the episodes of a configuration."""
        config = load_config(command.config, command.overrides)
        wanted = json.loads(json.dumps(protocol(config)))
        keys = ("demonstrations", "num_demos") if policy == "replay" else ()
        for source in records_in(self.runs / BASELINES):
            record = files.read(source, shapes.EvaluationRecord)
            found: Mapping[str, Any] = record["protocol"]
            same = comparable(found) == comparable(wanted) and all(found[key] == wanted[key] for key in keys)
            if record.get("policy") == policy and same:
                return source
        return None

    @staticmethod
    def _newest(folder: Path, seed: str) -> Path | None:
        """Returns the newest run directory of a seed, if there is one."""
        names = (f"*-seed{seed}", f"*-seed{seed}-*")  # the second of a start in the same second
        runs = [file.parent for name in names for file in folder.glob(f"{name}/run.json")]
        return max(runs, key=lambda run: str(RunDirectory(run).read_json()["created"]), default=None)

    def _call(self, arguments: Sequence[str], journal: Journal, *, local: bool = False) -> None:
        """Runs one command of rlpipe. Signals are passed on to it, so that a run saves before it ends."""
        local = local or self.local
        command = ["rlpipe", *arguments, *(["--local"] if local else [])]
        environment = os.environ | ({"OMP_NUM_THREADS": "1"} if local else {})
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        journal.began(command)
        before = _processor_seconds()
        with journal.log.open("a") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", *command], cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, start_new_session=True,  # so that Ctrl-C reaches this process alone, which passes it on
            )  # fmt: skip

            def pass_on(number: int, _: object) -> None:
                self.stopped = True
                process.send_signal(number)

            handlers = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
            try:
                code = process.wait()
            finally:
                for number, handler in handlers.items():
                    signal.signal(number, handler)
        journal.ended(code, _processor_seconds() - before if local else None)
        if self.stopped:
            raise KeyboardInterrupt
        if code != 0:
            raise CommandError(f"exit code {code}; {_shown(journal.log)} ends with: {journal.last_words()}")


@dataclass(frozen=True)
class Journal:
    """Record of the commands of one seed or baseline, kept beside its runs: a file of lines, and the output of each.

    Attributes:
        file: with a line when a command begins, and one when it ends
    """

    file: Path

    @property
    def log(self) -> Path:
        """Output of the commands."""
        return self.file.with_suffix(".log")

    def began(self, command: Sequence[str]) -> None:
        """Notes that a command begins, and where."""
        facts = {"processor": machine.processor(), "commit": machine.commit()}
        self._append({"began": _now(), "command": shlex.join(command), **facts})

    def ended(self, code: int, processor_seconds: float | None) -> None:
        """Notes that the command has ended."""
        self._append({"ended": _now(), "code": code, "processor_seconds": processor_seconds})

    def facts(self, row: Row) -> dict[str, Any]:
        """Returns what the runs do not say: commands, processor, commit, and the processor seconds.

        Processor seconds are those of all attempts; None if one is not known, because it ran on Ray or was killed.
        """
        lines = list(read_jsonl(self.file))
        began, ended = [one for one in lines if "began" in one], [one for one in lines if "ended" in one]
        spent = [one["processor_seconds"] for one in ended]
        known = len(began) == len(ended) and None not in spent
        return {
            "commands": list(dict.fromkeys(one["command"] for one in began))[-len(row.commands) :],
            "processor": began[-1]["processor"],
            "commit": began[-1]["commit"],
            "processor_seconds": round(sum(spent), 1) if known else None,
        }

    def last_words(self) -> str:
        """Returns the end of the output."""
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return " ".join(lines[-3:])[-600:]

    def _append(self, line: Mapping[str, Any]) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("a", encoding="utf-8") as out:
            out.write(json.dumps(line) + "\n")


def combined(training: Mapping[str, Any], evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the facts of policies that were trained by some commands and evaluated by another one."""
    spent = [facts["processor_seconds"] for facts in (training, evaluation)]
    return {
        **training,
        "commands": training["commands"] + evaluation["commands"],
        "processor_seconds": None if None in spent else round(sum(spent), 1),
    }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _processor_seconds() -> float:
    """Processor seconds of all processes that this one has started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _shown(path: Path) -> str:
    """Path as in the checkout, if it lies there: results then name no folder of this machine."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def check(rows: Sequence[Row]) -> None:
    """Checks that the configurations of rows can be read.

    Raises:
        ConfigError: the first that cannot, with the name of its row.
    """
    for row in rows:
        try:
            _ = row.settings, row.policies or row.protocol
        except ConfigError as error:
            raise ConfigError(f"row {row.name}: {error}") from error
