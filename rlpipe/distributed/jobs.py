"""Sending a run to a cluster as a Ray job, and following it to its end.

The log comes over a socket that may close at any time and says nothing about the job. So the outcome is asked for, over
and over, and a job whose outcome nobody could tell is neither a success nor a failure: contact was lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import shlex
import signal
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from omegaconf import OmegaConf
from pathspec import GitIgnoreSpec
from ray.exceptions import AuthenticationError, RayError
from ray.job_submission import JobSubmissionClient
from rich.filesize import decimal

from rlpipe.config.loading import load_config
from rlpipe.config.schema import Config
from rlpipe.demonstrations.checks import check_demonstrations
from rlpipe.distributed.cluster import token, token_refused
from rlpipe.errors import ConfigError
from rlpipe.secrets import check_no_secrets, redacted

SECRETS = (
    ".env", ".env.*", ".envrc", ".netrc", ".pypirc", ".git-credentials", ".ssh", ".aws", ".kube", ".ray", ".config",
    "*.pem", "*.key", "id_rsa*", "id_ecdsa*", "id_ed25519*",
)  # fmt: skip
"""Where keys lie."""
EXCLUDES = (
    ".git", ".hg", ".venv", "venv", "node_modules", "__pycache__", ".*_cache", ".cache", ".hypothesis", ".tox", ".nox",
    "*.pyc", "*.egg-info", ".ipynb_checkpoints", ".idea", ".vscode", ".DS_Store",
    "/runs", "wandb", "swanlog", "mlruns", "*.h5", *SECRETS,
)  # fmt: skip
"""Left out of a package, as in a ``.gitignore``: histories, environments, caches, results, demonstrations, secrets."""
IGNORE_FILES = (".gitignore", ".rayignore")
FORWARDED = (
    "MLFLOW_TRACKING_URI", "SWANLAB_API_HOST", "SWANLAB_WEB_HOST", "WANDB_BASE_URL", "WANDB_ENTITY", "WANDB_MODE",
)  # fmt: skip
"""Environment variables a job gets without being asked: where trackers are. None of them holds a credential."""
POLL_SECONDS = 2.0
RECONNECT_SECONDS = 1.0
ANSWER_SECONDS = 60.0
"""How long one answer of the server may take."""
POLL_ANSWER_SECONDS = 10.0
"""The same while a job is followed, where another question comes next."""
UPLOAD_SECONDS = 1800.0
"""How long a package may take to get there."""
SILENCE_SECONDS = 60.0
"""After that long without a line the log is asked for anew, because a connection may die and nobody tell; so long again
for each million characters, since all of them come anew."""

Say = Callable[[str], None]
_TROUBLE = (OSError, RuntimeError, ValueError, RayError)
"""What Ray's client raises when there is no answer, or not the one it expected."""


# --- the package


@dataclass(frozen=True)
class Package:
    """Files of the working directory that a job gets.

    Attributes:
        folder: the working directory.  files: size in bytes of each, by its path in the folder.
        left_out: files and folders that are not sent.
    """

    folder: Path
    files: Mapping[str, int]
    left_out: tuple[str, ...]

    @property
    def size(self) -> int:
        """Bytes, before compression."""
        return sum(self.files.values())

    def parts(self, depth: int = 2) -> list[tuple[str, int]]:
        """Files and folders down to a depth with their bytes, the largest first."""
        sizes: dict[str, int] = {}
        for name, size in self.files.items():
            part = "/".join(name.split("/")[:depth])
            sizes[part] = sizes.get(part, 0) + size
        return sorted(sizes.items(), key=lambda item: -item[1])

    def write(self, archive: Path) -> None:
        """Makes the zip file of it."""
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as opened:
            for name in self.files:
                with _packing(name):
                    opened.write(self.folder / name, name)


def package(folder: Path, *, named: Sequence[str] = (), excludes: Sequence[str] = ()) -> Package:
    """What of a folder a job gets: all but ``EXCLUDES``, links that lead out of it, and what its ``.gitignore`` and
    ``.rayignore`` leave out.

    Args:
        folder: the working directory.
        named: files and folders that are sent in any case, relative to it.
        excludes: more patterns, as in a ``.gitignore``.
    Raises:
        ConfigError: a file cannot be read.
    """
    files: dict[str, int] = {}
    left_out: list[str] = []

    def walk(inside: Path, rules: list[tuple[Path, GitIgnoreSpec]]) -> None:
        lines = [line for name in IGNORE_FILES if (inside / name).is_file() for line in _lines(inside / name)]
        if inside == folder:
            lines = [*EXCLUDES, *lines, *excludes]
        if lines:
            rules = [*rules, (inside, GitIgnoreSpec.from_lines(lines))]

        def ignored(found: Path) -> bool:
            folderish = "/" if found.is_dir() else ""
            return any(spec.match_file(found.relative_to(base).as_posix() + folderish) for base, spec in rules)

        for found in sorted(inside.iterdir()):
            name = found.relative_to(folder).as_posix()
            demonstrations = found.with_suffix(".h5")
            if ignored(found) or (found.suffix == ".json" and demonstrations.exists() and ignored(demonstrations)):
                left_out.append(name)
            elif found.is_dir() and not found.is_symlink():
                walk(found, rules)
            elif found.is_file() and (not found.is_symlink() or found.resolve().is_relative_to(folder.resolve())):
                files[name] = found.stat().st_size
            else:
                left_out.append(name)  # a link to a folder, to nothing, or out of what the user sees here

    with _packing(str(folder)):
        walk(folder, [])
        for name in named:
            for found in [folder / name, *(folder / name).rglob("*")]:
                if found.is_file():
                    files[found.relative_to(folder).as_posix()] = found.stat().st_size
    return Package(folder, dict(sorted(files.items())), tuple(name for name in left_out if name not in files))


@contextlib.contextmanager
def _packing(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = f"{error.filename or what} cannot be packed: {error.strerror or error}"
        raise ConfigError(f"{why}. Leave out what the job does not need, with --exclude.") from error


def _lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8", errors="replace").splitlines()


# --- what is sent


@dataclass(frozen=True)
class Submission:
    """All that a job is made from.

    Attributes:
        command: shell command.  package: its working directory.  variables: its environment.
        about: what the dashboard shows of it; ``job_name`` becomes the beginning of its id.
        results: folder of its runs on the cluster, absolute or in the home folder of the user that runs Ray.
        held_back: variables that say where trackers are, and hold a password.
    """

    command: str
    package: Package
    variables: Mapping[str, str]
    about: Mapping[str, str]
    results: str
    held_back: tuple[str, ...] = ()


def prepare(
    source: str | None,
    overrides: Sequence[str],
    *,
    folder: Path,
    resume: str | None = None,
    env: Sequence[str] = (),
    excludes: Sequence[str] = (),
    max_megabytes: float = 100.0,
    stop_wait: int = 300,
) -> Submission:
    """Checks a configuration, and puts together what a job needs to run it. Nothing is sent.

    Args:
        source: YAML file in the folder; None to resume.  overrides: ``key=value``.
        folder: the working directory, absolute, which the job gets.
        resume: run directory on the cluster to go on with.
        env: more environment variables, ``NAME`` or ``NAME=value``.
        excludes: more to leave out of the package.  max_megabytes: above which it is refused.
        stop_wait: seconds that a stopped job has before it is killed; Ray's default of 3 saves nothing.
    Raises:
        ConfigError: the configuration cannot be run, or the package is too big.
    """
    variables = {**_environment(env, os.environ), "RAY_JOB_STOP_WAIT_TIME_S": str(stop_wait)}
    command = ["python", "-m", "rlpipe", "train"]
    named: list[str] = []
    about = {"rlpipe": metadata.version("rlpipe")}
    if resume is not None:
        resume = resume.removeprefix("~/")
        check_no_secrets({"overrides": dict(OmegaConf.from_dotlist(list(overrides)))}, os.environ)
        results, name = resume, Path(resume).parent.name
        text = f"{shlex.join(command)} --resume {_cluster_path(resume)} {shlex.join(overrides)}".strip()
    else:
        assert source is not None
        config = load_config(source, overrides)
        if config.demos is None or not Path(config.demos).is_absolute() or Path(config.demos).exists():
            check_demonstrations(config)
        named = _files(config, source, folder)
        logger = config.runner.logger
        log_path, name = logger.log_path.removeprefix("~/"), logger.experiment_name
        results = f"{log_path}/{name}"
        about["config"] = named[0]
        # the working directory of a job is deleted with it
        text = f"{shlex.join([*command, named[0], *overrides])} runner.logger.log_path={_cluster_path(log_path)}"
    sent = package(folder, named=named, excludes=excludes)
    if sent.size > max_megabytes * 1e6:
        largest = ", ".join(f"{part} ({decimal(size)})" for part, size in sent.parts()[:5])
        raise ConfigError(
            f"the package would have {decimal(sent.size)} in {len(sent.files):,} files, and --max-package is "
            f"{max_megabytes:g} MB. Largest are {largest}. Leave out what the job does not need, with --exclude or a "
            "line in .rayignore; data belongs on the cluster, with its absolute path in the configuration."
        )
    held_back = tuple(name for name in FORWARDED if name in os.environ and name not in variables)
    return Submission(text, sent, variables, {**about, "job_name": name}, results, held_back)


def job_id(submission: Submission) -> str:
    """A new one, which begins with the job's name."""
    name = "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in submission.about["job_name"])
    return f"{name}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def _cluster_path(path: str) -> str:
    """A path as a word of a shell on the cluster; a relative one is in the home folder there."""
    return shlex.quote(path) if Path(path).is_absolute() else f'"$HOME"/{shlex.quote(path)}'


def _files(config: Config, source: str, folder: Path) -> list[str]:
    """What a configuration needs of the folder, itself first; absolute paths in it are those of the cluster.

    Raises:
        ConfigError: something lies elsewhere.
    """
    needed = [("CONFIG", str(Path(source).absolute()))]
    for key, path in (("demos", config.demos), ("policy.warm_start", config.policy.warm_start)):
        if path is not None and not Path(path).is_absolute():
            needed.append((key, path))
            if key == "demos" and Path(path).with_suffix(".json").exists():
                needed.append((key, str(Path(path).with_suffix(".json"))))
    found = []
    for key, path in needed:
        whole = Path(os.path.abspath(folder / path))  # a link in the folder is in the folder
        if not whole.exists() or not whole.is_relative_to(folder):
            raise ConfigError(
                f"{key} is {path}, but a job only gets the folder it is sent from, {folder}, and that "
                f"{'does not hold it' if whole.exists() else 'holds no such file'}. Go to a folder that holds all it "
                "needs, or give an absolute path that exists on the cluster."
            )
        found.append(whole.relative_to(folder).as_posix())
    return found


def _environment(names: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of ``FORWARDED`` that are set, and those asked for.

    Raises:
        ConfigError: one that was asked for is not set.
    """
    found = {
        name: environ[name] for name in FORWARDED if name in environ and redacted(environ[name], {}) == environ[name]
    }
    for entry in names:
        name, given, value = entry.partition("=")
        if not given and name not in environ:
            raise ConfigError(f"--env {name}: this variable is not set here. Set it, or write --env {name}=value.")
        found[name] = value if given else environ[name]
    return found


# --- the server


class _Client(JobSubmissionClient):  # type: ignore[misc]
    """Ray's client, which would wait for ever for an answer that got lost."""

    patience = ANSWER_SECONDS
    asked = False
    """Whether it has begun to ask for a job."""

    def _do_request(self, method: str, endpoint: str, **options: Any) -> Any:
        self.asked |= (method, endpoint) == ("POST", "/api/jobs/")
        limit = self.patience if options.get("data") is None else UPLOAD_SECONDS
        return super()._do_request(method, endpoint, **{"timeout": limit, **options})


def connect(address: str) -> Server:
    """The job server at an address.

    Args:
        address: ``http://HOST:8265``, or ``https``.
    Raises:
        ConfigError: it is no such address, nothing answers there, or the token is missing or wrong.
    """
    shown = redacted(address, {})
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https"):
        host = address.rpartition("://")[2].rpartition(":")[0] or address
        raise ConfigError(
            f"the address is {shown!r}, but jobs are taken by the dashboard's own port, over HTTP: http://{host}:8265"
        )
    for name in ("ray.dashboard.modules.dashboard_sdk", "ray.dashboard.modules.job.sdk", "ray._private.runtime_env"):
        logging.getLogger(name).setLevel(logging.WARNING)
    secret, _ = token(os.environ)
    wanted = bool(secret) and os.environ.get("RAY_AUTH_MODE", "token").lower() != "disabled"
    headers = {"Authorization": f"Bearer {secret}"} if wanted else {}
    try:
        with _only_this_address(address):
            return Server(_Client(address, headers=headers), shown)
    except AuthenticationError as error:
        raise ConfigError(token_refused(shown, sent=wanted)) from error
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"no Ray job server answers at {shown}: {redacted(str(error), os.environ)} Is it the address of the "
            "dashboard (port 8265), and can this machine reach it? Elsewhere: ssh -L 8265:localhost:8265 HEAD"
        ) from error


@contextlib.contextmanager
def _only_this_address(address: str) -> Iterator[None]:
    """Ray prefers the addresses of the environment to the one it is given."""
    name = "RAY_API_SERVER_ADDRESS"
    before = os.environ.get(name)
    os.environ[name] = address
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


@dataclass(frozen=True)
class Outcome:
    """How a job ended, as far as is known.

    Attributes:
        status: ``SUCCEEDED``, ``FAILED``, ``STOPPED``; or, of a job that may go on: ``LOST`` contact, ``DETACHED``.
        message: what else is known of it.  seconds: that it ran.  exit_code: of its command, where that failed.
    """

    status: str
    message: str = ""
    seconds: float | None = None
    exit_code: int | None = None


class Server:
    """A cluster's job server."""

    def __init__(self, client: _Client, address: str) -> None:
        """See ``connect``."""
        self._client = client
        self.address = address
        """Without a password."""

    @property
    def asked(self) -> bool:
        """Whether a job may have begun: the request for it is under way, or answered."""
        return self._client.asked

    def submit(self, submission: Submission, job: str) -> None:
        """Sends a job, and starts it under this id.

        Raises:
            ConfigError: the server has not taken it.
            LostContactError: nobody says whether it has.
        """
        with tempfile.TemporaryDirectory() as folder:
            archive = Path(folder) / "package.zip"
            submission.package.write(archive)
            try:
                self._client.submit_job(
                    entrypoint=submission.command,
                    submission_id=job,
                    runtime_env={"working_dir": str(archive), "env_vars": dict(submission.variables)},
                    metadata=dict(submission.about),
                )
            except _TROUBLE as error:
                why = redacted(str(error), os.environ)
                if not self.asked:
                    raise ConfigError(f"{self.address} has not taken the package, and nothing runs: {why}") from error
                if not self._has(job):
                    if isinstance(error, OSError):  # no answer: the job may still begin
                        raise LostContactError(why) from error
                    raise ConfigError(f"{self.address} has not taken the job: {why}") from error

    def stop(self, job: str) -> bool:
        """Asks a job to save and end, which may take a while; False for one that has ended.

        Raises:
            LostContactError: no answer came.
        """
        try:
            return bool(self._client.stop_job(job))
        except _TROUBLE as error:
            raise LostContactError(f"{self.address} does not answer: {error}") from error

    def check_exists(self, job: str) -> None:
        """Raises a ConfigError if there is no job of that id, a LostContactError if no answer comes."""
        if not self._has(job):
            try:
                jobs = self._client.list_jobs()
            except _TROUBLE as error:
                raise LostContactError(f"{self.address} does not answer: {error}") from error
            known = [found.submission_id for found in jobs if found.submission_id]
            latest = f"; the latest are {', '.join(known[-5:])}." if known else "; it has had none yet."
            raise ConfigError(f"{self.address} has no job {job}{latest}")

    def _has(self, job: str) -> bool:
        try:
            self._client.get_job_info(job)
        except _TROUBLE as error:
            if _unknown(error):
                return False
            raise LostContactError(f"{self.address} does not answer: {error}") from error
        return True

    def follow(self, job: str, *, write: Say | None, say: Say, lost_after: float) -> Outcome:
        """Waits for the end of a job. Ctrl-C and SIGTERM end the waiting and leave the job alone.

        Args:
            job: its id.  write: takes the job's log as it grows; None leaves it alone.
            say: takes news of the connection.
            lost_after: seconds without any answer after which contact counts as lost.
        """
        self._client.patience = POLL_ANSWER_SECONDS
        return asyncio.run(self._follow(job, write, say, lost_after))

    async def _follow(self, job: str, write: Say | None, say: Say, lost_after: float) -> Outcome:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, task.cancel)
        try:
            if write is None:
                return await self._outcome(job, say, lost_after)
            return await self._outcome_and_log(job, _Log(self._client, job, write), say, lost_after)
        except asyncio.CancelledError:
            return Outcome("DETACHED")

    async def _outcome_and_log(self, job: str, log: _Log, say: Say, lost_after: float) -> Outcome:
        tail, outcome = asyncio.create_task(log.tail()), Outcome("DETACHED")
        with contextlib.suppress(asyncio.CancelledError):  # once it is known, Ctrl-C only cuts the log short
            try:
                outcome = await self._outcome(job, say, lost_after)
            finally:
                tail.cancel()
                await asyncio.wait([tail], timeout=RECONNECT_SECONDS)
            if outcome.status != "LOST":
                try:
                    await log.rest()
                except _TROUBLE as error:
                    say(f"the end of the log could not be had: {redacted(str(error), os.environ)}")
        return outcome

    async def _outcome(self, job: str, say: Say, lost_after: float) -> Outcome:
        silent_since: float | None = None
        told = ""
        while True:
            try:
                info = await asyncio.to_thread(self._client.get_job_info, job)
            except _TROUBLE as error:
                if _unknown(error):
                    return Outcome("LOST", f"{self.address} no longer knows this job: its cluster was started anew")
                now = time.monotonic()
                if silent_since is None:
                    silent_since = now
                    say(f"no answer from {self.address}; trying for {lost_after:g} s")
                if now - silent_since >= lost_after:
                    why = redacted(str(error).splitlines()[0], os.environ)
                    return Outcome("LOST", f"no answer for {now - silent_since:.0f} s ({why})")
            else:
                if silent_since is not None:
                    say(f"{self.address} answers again")
                    silent_since = None
                if info.status.is_terminal():
                    return _ended(info)
                if info.status == "PENDING" and info.message and info.message != told:
                    told = info.message
                    say(f"waiting: {told}")
            await asyncio.sleep(POLL_SECONDS)


class LostContactError(OSError):
    """Nobody tells how a job is."""

    def __init__(self, why: str) -> None:
        super().__init__(redacted(why, os.environ))


class _Log:
    """A job's log, each character once: every new connection begins at the beginning, and what is known is skipped."""

    def __init__(self, client: _Client, job: str, write: Say) -> None:
        self._client, self._job, self._write = client, job, write
        self._seen = 0

    async def tail(self) -> None:
        """Hands on what comes, for ever."""
        import aiohttp

        while True:
            at = 0
            lines = self._client.tail_job_logs(self._job)
            # Also a log that is closed in good order is opened again: the job may run nevertheless.
            with contextlib.suppress(StopAsyncIteration, aiohttp.ClientError, OSError, RuntimeError, TimeoutError):
                while True:
                    text = await asyncio.wait_for(anext(lines), SILENCE_SECONDS * (1 + self._seen / 1e6))
                    self._take(at, text)
                    at += len(text)
            await asyncio.sleep(RECONNECT_SECONDS)

    async def rest(self) -> None:
        """Hands on what no connection has brought."""
        self._client.patience = ANSWER_SECONDS  # it may be long
        self._take(0, await asyncio.to_thread(self._client.get_job_logs, self._job))

    def _take(self, at: int, text: str) -> None:
        if new := text[max(0, self._seen - at) :]:
            self._write(new)
            self._seen = at + len(text)


def _unknown(error: Exception) -> bool:
    """Whether the server itself says that it has no such job; a proxy's 404 does not count."""
    return "404" in str(error) and "does not exist" in str(error)


def _ended(info: Any) -> Outcome:
    seconds = (info.end_time - info.start_time) / 1000 if info.start_time and info.end_time else None
    if info.status != "FAILED":
        return Outcome(str(info.status), seconds=seconds)
    # where the command itself failed, the message repeats the log
    message = str(info.message or "") if info.driver_exit_code is None else ""
    return Outcome("FAILED", message, seconds, info.driver_exit_code)
