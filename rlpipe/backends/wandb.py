"""Weights & Biases: online, or offline in files of the run directory that can be uploaded later."""

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

from rlpipe.backends.base import Backend, NameRules, RunInfo
from rlpipe.backends.shared.video import TAG, video_of
from rlpipe.errors import ConfigError
from rlpipe.metrics.row import Event, Row, Status
from rlpipe.plugins import nearest, require

if TYPE_CHECKING:
    import wandb

__all__ = ["WandB"]

_LABELS = NameRules(longest=128)
"""Names of projects and groups."""
_TAG_LENGTH = 64
FLUSH_SECONDS = 1.0
"""Offline, time between writes to the disk."""
PATIENCE_SECONDS = 10.0
"""Offline, time without a write after which the backend fails although it was given rows."""
CONNECT_SECONDS = 15.0
"""Time the server may take to answer at the start."""
UPLOAD_SECONDS = 600.0
"""Time the server may take to receive everything at the end."""
ALERT_SECONDS = 3600.0
"""Age from which an alert is not sent to anyone."""
_MODES = ("online", "offline")
_EXIT_CODES = {Status.COMPLETED: 0, Status.FAILED: 1}
_KILLED = 255


@dataclass(frozen=True)
class WandbOptions:
    """Options of the W&B backend. W&B itself reads the API key: ``WANDB_API_KEY``, or what ``wandb login`` stored."""

    mode: str = field(default_factory=lambda: os.environ.get("WANDB_MODE") or "online")
    """online, or offline: into ``RUN/wandb``. Default: the environment's WANDB_MODE, else online."""
    entity: str | None = None
    """User or team; default: that of W&B."""
    group: str | None = None
    """Group of runs; default: the experiment."""
    tags: list[str] = field(default_factory=list)
    """Tags of the run."""

    def __post_init__(self) -> None:
        if self.mode not in _MODES:
            raise ConfigError(
                f"runner.logger.options.wandb.mode (or WANDB_MODE) is {self.mode!r}{nearest(self.mode, _MODES)} Legal "
                f"are {', '.join(_MODES)}."
            )
        if unfit := [tag for tag in self.tags if not 1 <= len(tag) <= _TAG_LENGTH]:
            raise ConfigError(
                f"runner.logger.options.wandb.tags has {unfit[0]!r}; W&B accepts tags of 1 to {_TAG_LENGTH} characters."
            )


class WandB(Backend):
    """One W&B run for the run, however often it is resumed; W&B's step is the iteration.

    W&B cannot delete rows, so it receives only rows that a checkpoint covers, and is asked what it holds. Online, the
    server answers; offline, its files do, in which a row appears some time after W&B accepted it.
    """

    Config = WandbOptions
    forgets = False
    # W&B would read a full stop as a level of nesting
    names = NameRules("A-Za-z0-9_/ -", reserved=("iteration", "total_timesteps", "_timestamp", "_step", "_runtime"))

    @classmethod
    def check(cls) -> None:
        require("wandb", "wandb", "runner.logger.logger_backends=[wandb]")

    @classmethod
    def server(cls, options: WandbOptions) -> str:
        online = options.mode == "online"
        return os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai") if online else ""

    @classmethod
    def reached(cls, run: RunInfo) -> int:
        if run.options.mode == "online":
            return max(int(_opened(run).starting_step) - 1, 0)
        with _alone(run):
            return max(map(_repaired, _logs(run)), default=0)

    def __init__(self, run: RunInfo) -> None:
        """Begins the W&B run, or continues it."""
        self._info, self._run = run, _opened(run)
        self._run.define_metric("*", step_metric="iteration")
        self._video: Path | None = None
        self._last, self._size, self._grown = run.first_iteration - 1, 0, time.monotonic()

    def write(self, row: Row) -> None:
        import wandb

        histograms = {
            f"histograms/{self.fitted(name)}": wandb.Histogram(np_histogram=(histogram.counts, histogram.edges))
            for name, histogram in row.histograms.items()
        }
        numbers = {self.fitted(name): value for name, value in row.series.items()}
        axes = {"iteration": row.iteration, "total_timesteps": row.total_timesteps, "_timestamp": row.time}
        self._run.log({**numbers, **histograms, **self._newest_video(), **axes}, step=row.iteration, commit=True)
        self._last = row.iteration
        if self._info.options.mode == "offline":
            self._watch()

    def _newest_video(self) -> dict[str, wandb.Video]:
        """Returns a video that no row holds yet. It comes with the next row, because a row cannot be added to."""
        import wandb

        file, self._video = self._video, None
        return {} if file is None else {TAG: wandb.Video(str(file), caption=file.stem, format="mp4")}

    def _watch(self) -> None:
        """Raises an error if its files stop growing, because W&B itself does not report that it cannot write."""
        size = sum(log.stat().st_size for log in _logs(self._info))
        if size != self._size:
            self._size, self._grown = size, time.monotonic()
        elif time.monotonic() - self._grown > PATIENCE_SECONDS:
            raise OSError(f"W&B accepted rows, but {_folder(self._info)} does not grow: is the disk full?")

    def event(self, event: Event) -> None:
        self._video = video_of(event, self._info.directory) or self._video
        moment = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(event.time))
        self._run.write_logs(f"{moment} UTC, iteration {event.iteration}, {event.kind}: {event.message}")
        grave = event.data.get("level") == "critical" and not event.data.get("cleared")
        if grave and time.time() - event.time < ALERT_SECONDS:
            title = f"{self._info.run_id}: {event.data.get('metric', event.kind)}"
            self._run.alert(title[:63], event.message, level="ERROR")

    def close(self, status: Status) -> None:
        import wandb

        self._run.summary.update(self._newest_video())
        self._run.finish(exit_code=_EXIT_CODES.get(status, _KILLED))
        wandb.teardown()  # ends its process
        if self._info.options.mode == "offline" and (held := self.reached(self._info)) < self._last:
            raise OSError(
                f"W&B accepted rows up to iteration {self._last}, but {_folder(self._info)} ends with iteration {held}."
            )


def _opened(run: RunInfo) -> wandb.Run:
    """Opens the W&B run, unless this process has it open already."""
    os.environ["WANDB_ERROR_REPORTING"] = "false"  # read when W&B is imported
    import wandb

    if wandb.run is not None:
        return wandb.run
    os.environ.pop("WANDB_SERVICE", None)  # a parent process's wandb-core would outlive this one
    options = run.options
    name = _id(run)
    with _alone(run):
        for copy in _folder(run).glob(f"run-*-{name}"):  # local copies of what the server already has
            shutil.rmtree(copy)
        return wandb.init(
            id=name,
            resume="allow",
            mode=options.mode,
            dir=str(run.directory),
            project=_LABELS.fit(re.sub(r"[/\\#?%:]", "-", run.project)),
            entity=options.entity,
            group=_LABELS.fit(options.group or run.experiment),
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
    """Id of W&B's run: the same at each resume and on any machine; unique even among runs that share their names."""
    digest = hashlib.sha256(f"{run.experiment}/{run.run_id} {run.created}".encode()).hexdigest()
    return f"{re.sub('[^A-Za-z0-9_-]', '-', run.run_id)[:64]}-{digest[:8]}"


def _folder(run: RunInfo) -> Path:
    return run.directory / "wandb"


def _logs(run: RunInfo) -> list[Path]:
    """Files that W&B wrote offline: one for each time the run was opened."""
    return list(_folder(run).glob(f"offline-run-*/run-{_id(run)}.wandb"))


@contextmanager
def _alone(run: RunInfo) -> Iterator[None]:
    """Waits until no other process writes here. Processes started inside hold the lock for as long as they live.

    W&B writes and uploads in a process of its own, wandb-core, which lives on for a moment after this process is
    killed. It inherits standard input, so standard input is a locked file here. Because that is not a terminal, nothing
    can ask for an API key there either.
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
    """Last iteration of a log. Cuts off a record torn by a killed process, which `wandb sync` never gets past."""
    from wandb.proto.wandb_internal_pb2 import Record

    last = whole = 0
    named = False
    with file.open("r+b") as log:
        header = log.read(len(_HEADER))
        if not _HEADER.startswith(header):
            raise OSError(f"{file} does not begin as W&B's logs do: it may be of a newer version of W&B.")
        for end, data in _records(log):
            record, whole = Record.FromString(data), end
            named |= record.HasField("run")
            if record.HasField("history"):
                last = record.history.step.num
        log.truncate(whole)
    if not named:  # `wandb sync` refuses a log that does not name its run
        shutil.rmtree(file.parent)
    return last


def _records(log: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yields the whole records and the offset at which each ends."""
    log.seek(0)
    start, at, chunks = 0, len(_HEADER), []
    while block := log.read(_BLOCK):
        while at + _CHUNK.size <= len(block):
            checksum, length, kind = _CHUNK.unpack_from(block, at)
            chunk = block[at + _CHUNK.size - 1 : at + _CHUNK.size + length]
            if len(chunk) <= length or zlib.crc32(chunk) != checksum:
                return
            chunks.append(chunk[1:])
            at += _CHUNK.size + length
            if kind in (_WHOLE, _LAST):
                yield start + at, b"".join(chunks)
                chunks = []
        start, at = start + len(block), 0
