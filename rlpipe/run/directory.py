"""What a run leaves behind, and the promise that what was reported stays (``docs/run_directory.md``).

``metrics.jsonl`` and the episode ledgers are the truth; every backend is a view of them. Each line is written whole and
handed to the operating system at once, so killing the program loses no line that was reported. Where the disk takes
nothing more, lines wait in memory, in their order, and what stands on the disk stays whole.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from rlpipe import files
from rlpipe.config.protocol import protocol
from rlpipe.config.schema import Config
from rlpipe.config.tree import from_yaml, to_yaml
from rlpipe.errors import ConfigError
from rlpipe.metrics.row import Event, Row, Status
from rlpipe.metrics.spans import Span
from rlpipe.plugins import nearest
from rlpipe.run import checkpoint, shapes
from rlpipe.run.checkpoint import Checkpoint
from rlpipe.run.locks import Lock, TemporaryLock
from rlpipe.trajectory import Episode

TIMELINE = "timeline.jsonl"
KEPT_ITERATIONS = 100
"""Of the timeline, at least; every so many iterations, those before are forgotten."""
_ROLLED_BACK = ("metrics.jsonl", "episodes.jsonl", "eval_episodes.jsonl", TIMELINE)
_LINES = (*_ROLLED_BACK, "events.jsonl")


@dataclass(frozen=True)
class Rollback:
    """What a resume took back.

    Attributes:
        iterations: that had been reported and will come again.
        torn: files whose last line a crash had left incomplete.
        damaged: checkpoints after the one it goes on from, none of which was whole; they are set aside.
    """

    iterations: int
    torn: tuple[str, ...]
    damaged: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Waiting:
    """Something still to be written: lines to add to a file, or a file to replace."""

    name: str
    contents: bytes
    replaces: bool = False


class RunDirectory:
    """The files of one run. One process writes them."""

    def __init__(self, path: Path) -> None:
        """Points at a directory; see ``create`` and ``existing``."""
        self.path = path
        self.checkpoints = path / "checkpoints"
        self._waiting: deque[_Waiting] = deque()
        self._whole: dict[str, int] = {}
        self.trouble: OSError | None = None
        """Why the disk takes nothing at the moment; None while it does."""

    @classmethod
    def create(cls, config: Config, cluster: Mapping[str, Any]) -> RunDirectory:
        """Makes the directory of a new run, with ``config.yaml`` and ``run.json``."""
        experiment = Path(config.runner.logger.log_path) / config.runner.logger.experiment_name
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        for suffix in ("", *(f"-{n}" for n in range(2, 1000))):
            path = experiment / f"{stamp}-seed{config.runner.seed}{suffix}"
            try:
                path.mkdir(parents=True)
                break
            except FileExistsError:
                continue
            except OSError as error:
                raise ConfigError(f"runner.logger.log_path: cannot make {path}: {error}.") from error
        run = cls(path.resolve())
        try:
            run.write_config(config)
        except OSError as error:
            shutil.rmtree(path)
            raise ConfigError(f"runner.logger.log_path: cannot write to {path}: {error}.") from error
        run.write_json(
            {
                "run_id": path.name,
                "experiment": config.runner.logger.experiment_name,
                "project": config.runner.logger.project_name,
                "status": Status.RUNNING,
                "created": datetime.now(UTC).isoformat(),
                "incarnation": 0,
                **_circumstances(config, cluster),
            }
        )
        if run.trouble:
            shutil.rmtree(path)
            raise ConfigError(f"runner.logger.log_path: cannot write to {path}: {run.trouble}.")
        return run

    def reopen(self, config: Config, cluster: Mapping[str, Any], incarnation: int, after: int) -> None:
        """Notes that the run goes on after an iteration, perhaps with another configuration or on another machine."""
        self.write_config(config)
        before = {key: value for key, value in self.read_json().items() if key != "cause"}
        changes = {"status": Status.RUNNING, "incarnation": incarnation, **_circumstances(config, cluster)}
        resumed = [*before.get("resumed_after", []), after]
        self.write_json({**before, **changes, "resumed_after": resumed})

    @classmethod
    def existing(cls, path: Path) -> RunDirectory:
        """A directory that a run has made.

        Raises:
            ConfigError: it is none.
        """
        if not (kind := files.kind_of(path)):
            beside = path.parent if path.parent.is_dir() else Path()
            near = nearest(path.name, [other.name for other in beside.iterdir() if other.is_dir()])
            raise ConfigError(f"there is no run directory {path}{near}")
        if kind == "file":
            raise ConfigError(f"{path} is a file; name the run directory, which holds run.json and config.yaml.")
        missing = [name for name in ("run.json", "config.yaml") if files.kind_of(path / name) != "file"]
        if missing:
            inside = [file.parent for file in sorted(path.glob("*/run.json")) or sorted(path.glob("*/*/run.json"))]
            hint = f" It holds run directories, such as {inside[-1]}." if inside else ""
            raise ConfigError(f"{path} is not a run directory: {' and '.join(missing)} missing.{hint}")
        return cls(path.resolve())

    @property
    def run_id(self) -> str:
        """Name of the run: its folder's."""
        return self.path.name

    def check(self) -> None:
        """Checks all that others read in it.

        Raises:
            ConfigError: something is damaged, or was not written by a run.
        """
        self.read_json()
        self.read_config()
        for name in _LINES:
            if files.kind_of(self.path / name):
                deque(read_jsonl(self.path / name), maxlen=0)

    def read_json(self) -> dict[str, Any]:
        """Contents of ``run.json``, as ``records.RunRecord`` has them.

        Raises:
            ConfigError: it is damaged.
        """
        waiting = [waiting.contents for waiting in self._waiting if waiting.name == "run.json"]
        file = self.path / "run.json"
        contents = waiting[-1] if waiting else files.content(file)
        return dict(files.parsed(contents, shapes.RunRecord, str(file)))

    def read_config(self) -> dict[str, Any]:
        """Contents of ``config.yaml``, as far as ``records.ConfigRecord`` has them known to be there.

        Raises:
            ConfigError: it is damaged.
        """
        file = self.path / "config.yaml"
        return dict(files.checked(from_yaml(files.text(file), str(file)), shapes.ConfigRecord, str(file)))

    def write_json(self, contents: Mapping[str, Any]) -> None:
        """Replaces ``run.json``, whole or not at all."""
        self._write(_Waiting("run.json", (json.dumps(contents, indent=2) + "\n").encode(), replaces=True))

    def logger_options(self, backend: str) -> dict[str, Any]:
        """Options of a backend in the configuration of the run."""
        options = self.read_config()["runner"]["logger"].get("options", {})
        return dict(options.get(backend) or {})

    def write_config(self, config: Config) -> None:
        """Writes ``config.yaml``: what the run, or the part that resumes it, is made from."""
        (self.path / "config.yaml").write_text(to_yaml(config), encoding="utf-8")

    def append(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Adds lines to a ``.jsonl`` file. Not-a-number cannot get in: ``json`` refuses it."""
        lines = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows)
        if lines:
            self._write(_Waiting(name, lines.encode()))

    def _write(self, new: _Waiting) -> None:
        """Writes what waits, in order: a line in ``metrics.jsonl`` stands for episodes that came before it."""
        self._waiting.append(new)
        self.settle()

    def settle(self, timeout: float = 0.0) -> int:
        """Writes what waits for room on the disk.

        Args:
            timeout: seconds to wait for room.
        Returns:
            Number of iterations that still wait.
        """
        ends = time.monotonic() + timeout
        while self._waiting:
            try:
                (self._replace if self._waiting[0].replaces else self._append)(self._waiting[0])
            except OSError as error:
                self.trouble = error
                if time.monotonic() >= ends:
                    break
                time.sleep(0.2)
            else:
                self._waiting.popleft()
                self.trouble = None
        return sum(waiting.name == "metrics.jsonl" for waiting in self._waiting)

    def _append(self, lines: _Waiting) -> None:
        with (self.path / lines.name).open("ab", buffering=0) as file:
            whole = self._whole.setdefault(lines.name, file.tell())
            if file.tell() > whole:  # part of a line that found no room
                file.truncate(whole)
            rest = memoryview(lines.contents)
            try:
                while rest:
                    rest = rest[file.write(rest) :]
            except OSError:
                file.truncate(whole)
                raise
            self._whole[lines.name] = whole + len(lines.contents)

    def _replace(self, new: _Waiting) -> None:
        partial = self.path / f".{new.name}.partial"
        try:
            partial.write_bytes(new.contents)
            partial.replace(self.path / new.name)
        except OSError:
            partial.unlink(missing_ok=True)
            raise
        self._whole.pop(new.name, None)

    def write_row(self, row: Row, episodes: Iterable[Episode], eval_episodes: Iterable[Episode]) -> None:
        """Writes one iteration. Its episodes go first: the line in ``metrics.jsonl`` says that all of it is there."""
        self.append("episodes.jsonl", (episode.as_row(row.iteration) for episode in episodes))
        self.append("eval_episodes.jsonl", (episode.as_row(row.iteration) for episode in eval_episodes))
        self.append("metrics.jsonl", [row.as_json()])

    def write_spans(self, iteration: int, spans: Iterable[Span]) -> None:
        """Adds an iteration to the timeline, which forgets the oldest."""
        self.append(TIMELINE, [{"iteration": iteration, "spans": [span.as_json() for span in spans]}])
        if iteration % KEPT_ITERATIONS == 0 and not self._waiting:
            lines = (self.path / TIMELINE).read_bytes().splitlines(keepends=True)
            self._write(_Waiting(TIMELINE, b"".join(lines[-KEPT_ITERATIONS:]), replaces=True))

    def write_event(self, event: Event) -> None:
        """Writes a line of ``events.jsonl``."""
        self.append("events.jsonl", [event.as_json()])

    def lock_for_writing(self, patience: float = 20.0) -> Lock:
        """Locks the directory for its one writer; the lock file stays.

        Args:
            patience: seconds to wait for the logger of a run that has just died
        Raises:
            ConfigError: another process writes here, or the directory cannot be written.
        """
        refusal = f"{self.path} is being written: the run is in progress. Stop it before resuming."
        try:
            return Lock(self.path / ".lock", patience, refusal)
        except OSError as error:
            raise ConfigError(f"{self.path / '.lock'} cannot be written: {error.strerror or error}.") from error

    def lock_for_resuming(self, patience: float = 20.0) -> Lock:
        """Locks the run for the one start that resumes it.

        The logger of that start, which writes the directory, may live in another process and takes its own lock.

        Args:
            patience: seconds to wait for a start, and for the logger of a run, that have just died
        Raises:
            ConfigError: another start resumes the run, the run is in progress, or its directory cannot be written.
        """
        refusal = f"{self.path} was resumed and is in progress: wait for its end, or stop it."
        try:
            lock = TemporaryLock(self.path / ".resume.lock", patience, refusal)
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be written, so its run cannot be resumed there: {error}.") from error
        with ExitStack() as on_refusal:
            on_refusal.enter_context(lock)
            if (self.path / ".lock").exists():
                self.lock_for_writing(patience).release()
            on_refusal.pop_all()
        return lock

    def roll_back(self, iteration: int) -> Rollback:
        """Forgets everything after an iteration; what is cut off is kept in ``discarded-<n>-<file>``.

        Events stay, for what happened has happened; only a last line that a crash left incomplete goes.
        """
        discarded, torn = 0, []
        number = len({file.name.split("-")[1] for file in self.path.glob("discarded-*")}) + 1
        for name in _LINES:
            file = self.path / name
            if not file.is_file():
                continue
            lines = file.read_bytes().splitlines(keepends=True)
            last = iteration if name in _ROLLED_BACK else sys.maxsize
            kept = [line for line in lines if _iteration_of(line) <= last]
            if len(kept) == len(lines):
                continue
            cut = [line for line in lines if _iteration_of(line) > last]
            if _iteration_of(cut[-1]) == float("inf"):
                torn.append(name)
            discarded += len(cut) if name == "metrics.jsonl" else 0
            (self.path / f"discarded-{number}-{name}").write_bytes(b"".join(cut))
            partial = self.path / f".{name}.partial"
            with partial.open("wb") as out:
                out.writelines(kept)
                out.flush()
                os.fsync(out.fileno())
            partial.replace(file)
        return Rollback(discarded, tuple(torn), checkpoint.set_aside(self.path, iteration))


def _iteration_of(line: bytes) -> float:
    """Iteration a line belongs to; infinite for a line that a crash left incomplete."""
    try:
        return float(json.loads(line)["iteration"]) if line.endswith(b"\n") else float("inf")
    except (ValueError, KeyError, TypeError):
        return float("inf")


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """Records of a ``.jsonl`` file in turn, but for a last line that is being written.

    Raises:
        ConfigError: a line is damaged.
    """
    return shapes.read_lines(path)


def now() -> float:
    """Wall clock in seconds since 1970, for rows and events."""
    return time.time()


def _circumstances(config: Config, cluster: Mapping[str, Any]) -> dict[str, Any]:
    """What ``run.json`` says of how the newest part of a run was made."""
    return {
        "versions": versions(),
        "git_commit": _git_commit(),
        "seeds": {"seed": config.runner.seed, "evaluation_first_seed": config.evaluation.first_seed},
        "cluster": dict(cluster),
        "protocol": protocol(config),
    }


def versions() -> dict[str, str]:
    """Of Python, and of the packages that numbers depend on, as far as they are installed."""
    found = {"python": platform.python_version()}
    for package in ("rlpipe", "ray", "torch", "numpy", "gymnasium", "mani_skill", "sapien"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _git_commit() -> str | None:
    """Commit of the checkout this package runs from; None for an installed package."""
    checkout = Path(__file__).resolve().parents[2]
    if not (checkout / ".git").exists():
        return None
    try:
        answer = subprocess.run(["git", "rev-parse", "HEAD"], cwd=checkout, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return answer.stdout.strip()


def find_checkpoint(path: Path, best: bool = False) -> tuple[Checkpoint, str]:
    """The checkpoint that a file or a run directory names, and the configuration (YAML) it was trained with.

    Args:
        path: of the file, or of the run directory, which stands for its newest whole checkpoint.
        best: take the one whose evaluation was best instead of the newest.
    Raises:
        ConfigError: there is none.
    """
    if path.is_dir():
        run = RunDirectory.existing(path).path
        state = checkpoint.best(run) if best else checkpoint.newest(run)
    elif best:
        raise ConfigError(f"{path} is no run directory, of whose checkpoints one could be the best.")
    elif path.is_file():
        state = checkpoint.load(path)
    else:
        raise ConfigError(f"{path} is neither a run directory nor a checkpoint file.")
    try:
        from_yaml(state.meta["config"])
    except Exception as error:  # YAML's own errors have no common base that OmegaConf promises
        raise ConfigError(f"{state.path}: the configuration in it is not readable as YAML: {error}") from error
    return state, state.meta["config"]
