"""Weights & Biases: online, or offline into files in the run directory that can be uploaded later."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import struct
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from rlpipe.backends.base import Backend, RunInfo, escaped
from rlpipe.errors import ConfigError
from rlpipe.metrics.row import Event, Row, Status
from rlpipe.plugins import nearest, require

if TYPE_CHECKING:
    import wandb

__all__ = ["WandB"]

NAMES = "A-Za-z0-9_/ -"
"""What a metric's name may hold: W&B takes a full stop for a level of nesting."""
FLUSH_SECONDS, PATIENCE_SECONDS = 1.0, 10.0
"""Between writes to the disk, offline; and how long none may come although there are rows."""
CONNECT_SECONDS, UPLOAD_SECONDS = 15.0, 600.0
"""How long the server may take to answer at the start, and to take everything at the end."""
ALERT_SECONDS = 3600.0
"""Age from which an alert is history, and nobody is called."""
_MODES = ("online", "offline")
_EXIT_CODES = {Status.COMPLETED: 0, Status.FAILED: 1}
_KILLED = 255


@dataclass(frozen=True)
class Options:
    """Of the W&B backend. The API key is none: W&B reads ``WANDB_API_KEY``, or what ``wandb login`` has kept."""

    mode: str = field(default_factory=lambda: os.environ.get("WANDB_MODE") or "online")
    """online, or offline: into ``RUN/wandb``. Default: the environment's WANDB_MODE, else online."""
    entity: str | None = None
    """User or team; default: that of W&B."""
    group: str | None = None
    """Of runs; default: the experiment."""
    tags: list[str] = field(default_factory=list)
    """Of the run."""

    def __post_init__(self) -> None:
        if self.mode not in _MODES:
            raise ConfigError(
                f"runner.logger.options.wandb.mode (or WANDB_MODE) is {self.mode!r}{nearest(self.mode, _MODES)} Legal "
                f"are {', '.join(_MODES)}."
            )


class WandB(Backend):
    """One W&B run for the run, however often it is resumed; W&B's step is the iteration.

    W&B takes nothing back, so it is given only what a checkpoint covers, and is asked what it holds: online the server,
    offline its files, where a row stands some time after W&B took it.
    """

    Config = Options
    forgets = False

    @classmethod
    def check(cls) -> None:
        require("wandb", "wandb", "runner.logger.logger_backends=[wandb]")

    @classmethod
    def server(cls, options: Options) -> str:
        online = options.mode == "online"
        return os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai") if online else ""

    @classmethod
    def reached(cls, run: RunInfo) -> int:
        if run.options.mode == "online":
            return max(int(_opened(run).starting_step) - 1, 0)
        with _alone(run):
            return max(map(_repaired, _logs(run)), default=0)

    def __init__(self, run: RunInfo) -> None:
        """Opens the run, or goes on with it."""
        self._info, self._run = run, _opened(run)
        self._run.define_metric("*", step_metric="iteration")
        self._last, self._size, self._grown = run.first_iteration - 1, 0, time.monotonic()

    def write(self, row: Row) -> None:
        import wandb

        pictures = {
            f"histograms/{escaped(name, NAMES)}": wandb.Histogram(np_histogram=(view.counts, view.edges))
            for name, view in row.histograms.items()
        }
        numbers = {escaped(name, NAMES): value for name, value in row.series.items()}
        axes = {"iteration": row.iteration, "total_timesteps": row.total_timesteps, "_timestamp": row.time}
        self._run.log({**numbers, **pictures, **axes}, step=row.iteration, commit=True)
        self._last = row.iteration
        if self._info.options.mode == "offline":
            self._watch()

    def _watch(self) -> None:
        """Notices that W&B cannot write, which it does not say."""
        size = sum(log.stat().st_size for log in _logs(self._info))
        if size != self._size:
            self._size, self._grown = size, time.monotonic()
        elif time.monotonic() - self._grown > PATIENCE_SECONDS:
            raise OSError(f"W&B took rows, but {_folder(self._info)} does not grow: is the disk full?")

    def event(self, event: Event) -> None:
        moment = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(event.time))
        self._run.write_logs(f"{moment} UTC, iteration {event.iteration}, {event.kind}: {event.message}")
        grave = event.data.get("level") == "critical" and not event.data.get("cleared")
        if grave and time.time() - event.time < ALERT_SECONDS:
            title = f"{self._info.run_id}: {event.data.get('metric', event.kind)}"
            self._run.alert(title[:63], event.message, level="ERROR")

    def close(self, status: Status) -> None:
        import wandb

        self._run.finish(exit_code=_EXIT_CODES.get(status, _KILLED))
        wandb.teardown()  # ends its process
        if self._info.options.mode == "offline" and (held := self.reached(self._info)) < self._last:
            raise OSError(f"W&B took rows up to iteration {self._last}, but {_folder(self._info)} ends with {held}.")


def _opened(run: RunInfo) -> wandb.Run:
    """The run; the one that this process has open already, if it has."""
    os.environ["WANDB_ERROR_REPORTING"] = "false"  # W&B reads it when it is imported
    import wandb

    if wandb.run is not None:
        return wandb.run
    os.environ.pop("WANDB_SERVICE", None)  # of whoever started us: its wandb-core would outlive us
    options = run.options
    name = _id(run)
    with _alone(run):
        for copy in _folder(run).glob(f"run-*-{name}"):  # of what was sent to the server, and is here anyway
            shutil.rmtree(copy)
        return wandb.init(
            id=name,
            resume="allow",
            mode=options.mode,
            dir=str(run.directory),
            project=re.sub(r"[/\\#?%:]", "-", run.project),
            entity=options.entity,
            group=options.group or run.experiment,
            name=run.run_id,
            tags=options.tags or None,
            config=run.config,
            allow_val_change=True,
            settings=wandb.Settings(
                console="off",
                disable_code=True,
                disable_git=True,
                finish_timeout=UPLOAD_SECONDS,
                finish_timeout_raises=True,
                init_timeout=CONNECT_SECONDS,
                silent=True,
                symlink=False,
                use_dot_wandb=False,
                x_disable_machine_info=True,
                x_disable_meta=True,
                x_disable_stats=True,
                x_save_requirements=False,
                x_transaction_log_flush_interval=FLUSH_SECONDS,
            ),
        )


def _id(run: RunInfo) -> str:
    """Of W&B's run: the same at each resume, on any machine; another for each run, whatever names they share."""
    digest = hashlib.sha256(f"{run.experiment}/{run.run_id} {run.created}".encode()).hexdigest()
    return f"{re.sub('[^A-Za-z0-9_-]', '-', run.run_id)[:64]}-{digest[:8]}"


def _folder(run: RunInfo) -> Path:
    return run.directory / "wandb"


def _logs(run: RunInfo) -> list[Path]:
    """What W&B wrote offline: a file for each time the run was opened."""
    return list(_folder(run).glob(f"offline-run-*/run-{_id(run)}.wandb"))


@contextmanager
def _alone(run: RunInfo) -> Iterator[None]:
    """Waits until nobody else writes here. Processes started inside keep others out for as long as they live.

    W&B writes and uploads in a process of its own, wandb-core, which lives for a moment after this one was killed. It
    inherits its standard input, so that is a locked file. As it is no terminal, nothing can ask for an API key there.
    """
    _folder(run).mkdir(exist_ok=True)
    with (_folder(run) / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stdin = os.dup(0)
        os.dup2(lock.fileno(), 0)
        try:
            yield
        finally:
            os.dup2(stdin, 0)
            os.close(stdin)


# The file format of W&B's logs is that of LevelDB: https://github.com/google/leveldb/blob/main/doc/log_format.md
_HEADER = b":W&B" + struct.pack("<HB", 0xBEE1, 0)
_BLOCK = 1 << 15
_CHUNK = struct.Struct("<IHB")  # checksum of what follows the length, length, kind
_WHOLE, _LAST = 1, 4


def _repaired(file: Path) -> int:
    """Last iteration of a log. What a killed process left torn is cut off: `wandb sync` would stop there for ever."""
    from wandb.proto.wandb_internal_pb2 import Record

    last = whole = 0
    named = False
    with file.open("r+b") as log:
        header = log.read(len(_HEADER))
        if not _HEADER.startswith(header):
            raise OSError(f"{file} is in a format of W&B that is not known here.")
        for end, data in _records(log):
            record, whole = Record.FromString(data), end
            named |= record.HasField("run")
            if record.HasField("history"):
                last = record.history.step.num
        log.truncate(whole)
    if not named:  # `wandb sync` refuses to begin
        shutil.rmtree(file.parent)
    return last


def _records(log: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Whole records, and where each ends."""
    log.seek(0)
    start, at, parts = 0, len(_HEADER), []
    while block := log.read(_BLOCK):
        while at + _CHUNK.size <= len(block):
            checksum, length, kind = _CHUNK.unpack_from(block, at)
            chunk = block[at + _CHUNK.size - 1 : at + _CHUNK.size + length]
            if len(chunk) <= length or zlib.crc32(chunk) != checksum:
                return
            parts.append(chunk[1:])
            at += _CHUNK.size + length
            if kind in (_WHOLE, _LAST):
                yield start + at, b"".join(parts)
                parts = []
        start, at = start + len(block), 0
