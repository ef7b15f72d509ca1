"""Job server of a Ray cluster: sends a job, stops it, and follows it to its end.

The log comes over a socket that may close at any time and says nothing about the job. So the outcome is polled, and a
job whose outcome nobody could tell is neither a success nor a failure: contact was lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ray.exceptions import AuthenticationError, RayError
from ray.job_submission import JobSubmissionClient

from rlpipe.distributed.cluster import token, token_refused
from rlpipe.distributed.job_failures import advice_on
from rlpipe.distributed.submission import Submission
from rlpipe.errors import ConfigError
from rlpipe.secrets import redacted

POLL_SECONDS = 2.0
RECONNECT_SECONDS = 1.0
ANSWER_SECONDS = 60.0
"""Time in which the server must answer a request."""
POLL_ANSWER_SECONDS = 10.0
"""The same while a job is followed, where another request comes next."""
UPLOAD_SECONDS = 1800.0
"""Time in which a package must arrive."""
SILENCE_SECONDS = 60.0
"""Time without a line after which the log is requested again, because a connection may die without notice; as long
again for each million characters, since all of them are sent again."""
_KEPT_CHARACTERS = 4000
"""End of the log in which the cause of a failure is looked for."""

Write = Callable[[str], None]
_TROUBLE = (OSError, RuntimeError, ValueError, RayError)
"""Exceptions of Ray's client when there is no answer, or not the one it expected."""


class JobEnd(StrEnum):
    """How the following of a job ended."""

    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    STOPPED = "STOPPED"
    LOST = "LOST"
    """Contact was lost; the job may continue."""
    DETACHED = "DETACHED"
    """The job is no longer followed; it continues."""


@dataclass(frozen=True)
class JobOutcome:
    """Outcome of a job, as far as it is known.

    Attributes:
        end: how the following ended.
        message: what else is known.
        seconds: how long the job ran.
        exit_code: of its command, if that failed.
        advice: what to do about a failure whose cause is known.
    """

    end: JobEnd
    message: str = ""
    seconds: float | None = None
    exit_code: int | None = None
    advice: str = ""


class LostContactError(OSError):
    """Nobody can tell the state of a job."""

    def __init__(self, why: str) -> None:
        super().__init__(redacted(why, os.environ))


class _Client(JobSubmissionClient):  # type: ignore[misc]
    """Ray's client, with the time limits that it lacks.

    Attributes:
        patience: seconds in which the server must answer.
        requested: True once the request for a job is under way.
    """

    patience = ANSWER_SECONDS
    requested = False

    def _do_request(self, method: str, endpoint: str, **options: Any) -> Any:
        self.requested |= (method, endpoint) == ("POST", "/api/jobs/")
        limit = self.patience if options.get("data") is None else UPLOAD_SECONDS
        return super()._do_request(method, endpoint, **{"timeout": limit, **options})


def connect(address: str) -> Server:
    """Connects to the job server at an address, ``http://HOST:8265`` or ``https``.

    Raises:
        ConfigError: it is not such an address, nothing answers there, or the token is missing or wrong.
    """
    url = redacted(address, {})
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https"):
        host = address.rpartition("://")[2].rpartition(":")[0] or address
        raise ConfigError(
            f"the address is {url!r}, but jobs are sent to the port of the dashboard, over HTTP: http://{host}:8265"
        )
    for name in ("ray.dashboard.modules.dashboard_sdk", "ray.dashboard.modules.job.sdk", "ray._private.runtime_env"):
        logging.getLogger(name).setLevel(logging.WARNING)
    secret, _ = token(os.environ)
    sends_token = bool(secret) and os.environ.get("RAY_AUTH_MODE", "token").lower() != "disabled"
    headers = {"Authorization": f"Bearer {secret}"} if sends_token else {}
    try:
        with _only_this_address(address):
            return Server(_Client(address, headers=headers), url)
    except AuthenticationError as error:
        raise ConfigError(token_refused(url, sent=sends_token)) from error
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"no Ray job server answers at {url}: {redacted(str(error), os.environ)} Is it the address of the "
            "dashboard (port 8265), and can this machine reach it? If not, open a tunnel: "
            "ssh -L 8265:localhost:8265 HEAD"
        ) from error


@contextlib.contextmanager
def _only_this_address(address: str) -> Iterator[None]:
    """Hides the address in the environment, which Ray prefers to the one it is given."""
    name = "RAY_API_SERVER_ADDRESS"
    before = os.environ.get(name)
    os.environ[name] = address
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


class Server:
    """Job server of a cluster.

    Attributes:
        address: its address without a password.
    """

    def __init__(self, client: _Client, address: str) -> None:
        self._client = client
        self.address = address

    @property
    def requested(self) -> bool:
        """True if a job may have started: the request for it is under way, or answered."""
        return self._client.requested

    def submit(self, submission: Submission, job: str) -> None:
        """Sends a job, and starts it under this id.

        Raises:
            ConfigError: the server has not accepted it.
            LostContactError: nobody can tell whether it has.
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
                if not self.requested:
                    raise ConfigError(f"{self.address} did not accept the package, so nothing runs: {why}") from error
                if not self._has(job):
                    if isinstance(error, OSError):  # no answer: the job may still start
                        raise LostContactError(why) from error
                    raise ConfigError(f"{self.address} did not accept the job: {why}") from error

    def stop(self, job: str) -> bool:
        """Asks a job to save and end, which may take a while.

        Returns:
            False if it had already ended.
        Raises:
            LostContactError: no answer came.
        """
        try:
            return bool(self._client.stop_job(job))
        except _TROUBLE as error:
            raise LostContactError(f"{self.address} does not answer: {error}") from error

    def check_exists(self, job: str) -> None:
        """Checks that there is a job of that id.

        Raises:
            ConfigError: there is none.
            LostContactError: no answer came.
        """
        if not self._has(job):
            try:
                jobs = self._client.list_jobs()
            except _TROUBLE as error:
                raise LostContactError(f"{self.address} does not answer: {error}") from error
            job_ids = [info.submission_id for info in jobs if info.submission_id]
            latest = f"; the latest are {', '.join(job_ids[-5:])}." if job_ids else "; it has had none yet."
            raise ConfigError(f"{self.address} has no job {job}{latest}")

    def _has(self, job: str) -> bool:
        try:
            self._client.get_job_info(job)
        except _TROUBLE as error:
            if _reports_unknown(error):
                return False
            raise LostContactError(f"{self.address} does not answer: {error}") from error
        return True

    def follow(self, job: str, *, write: Write | None, report: Write, lost_after: float) -> JobOutcome:
        """Waits for the end of a job. Ctrl-C and SIGTERM end the waiting and leave the job alone.

        Args:
            write: receives the job's log as it grows; None to leave the log alone.
            report: receives news of the connection.
            lost_after: seconds without any answer after which contact counts as lost.
        """
        self._client.patience = POLL_ANSWER_SECONDS
        return asyncio.run(self._follow(job, write, report, lost_after))

    async def _follow(self, job: str, write: Write | None, report: Write, lost_after: float) -> JobOutcome:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, task.cancel)
        try:
            if write is None:
                return await self._outcome(job, report, lost_after)
            return await self._outcome_and_log(job, _Log(self._client, job, write), report, lost_after)
        except asyncio.CancelledError:
            return JobOutcome(JobEnd.DETACHED)

    async def _outcome_and_log(self, job: str, log: _Log, report: Write, lost_after: float) -> JobOutcome:
        tail, outcome = asyncio.create_task(log.tail()), JobOutcome(JobEnd.DETACHED)
        with contextlib.suppress(asyncio.CancelledError):  # once it is known, Ctrl-C only cuts the log short
            try:
                outcome = await self._outcome(job, report, lost_after)
            finally:
                tail.cancel()
                await asyncio.wait([tail], timeout=RECONNECT_SECONDS)
            if outcome.end != JobEnd.LOST:
                try:
                    await log.rest()
                except _TROUBLE as error:
                    report(f"the end of the log could not be fetched: {redacted(str(error), os.environ)}")
        return replace(outcome, advice=advice_on(log.end)) if outcome.end == JobEnd.FAILED else outcome

    async def _outcome(self, job: str, report: Write, lost_after: float) -> JobOutcome:
        silent_since: float | None = None
        reported = ""
        while True:
            try:
                info = await asyncio.to_thread(self._client.get_job_info, job)
            except _TROUBLE as error:
                if _reports_unknown(error):
                    message = f"{self.address} no longer knows this job: its cluster was restarted"
                    return JobOutcome(JobEnd.LOST, message)
                now = time.monotonic()
                if silent_since is None:
                    silent_since = now
                    report(f"no answer from {self.address}; trying for {lost_after:g} s")
                if now - silent_since >= lost_after:
                    why = redacted(str(error).splitlines()[0], os.environ)
                    return JobOutcome(JobEnd.LOST, f"no answer for {now - silent_since:.0f} s ({why})")
            else:
                if silent_since is not None:
                    report(f"{self.address} answers again")
                    silent_since = None
                if info.status.is_terminal():
                    return _outcome_of(info)
                if info.status == "PENDING" and info.message and info.message != reported:
                    reported = info.message
                    report(f"waiting: {reported}")
            await asyncio.sleep(POLL_SECONDS)


class _Log:
    """Log of a job, written once: every new connection starts at the beginning, and what is known is skipped.

    Attributes:
        end: last characters of the log so far.
    """

    def __init__(self, client: _Client, job: str, write: Write) -> None:
        self._client, self._job, self._write = client, job, write
        self._written = 0
        self.end = ""

    async def tail(self) -> None:
        """Writes what comes, for ever."""
        import aiohttp

        while True:
            at = 0
            lines = self._client.tail_job_logs(self._job)
            # A connection that was closed in good order is opened again too: the job may still run.
            with contextlib.suppress(StopAsyncIteration, aiohttp.ClientError, OSError, RuntimeError, TimeoutError):
                while True:
                    text = await asyncio.wait_for(anext(lines), SILENCE_SECONDS * (1 + self._written / 1e6))
                    self._take(at, text)
                    at += len(text)
            await asyncio.sleep(RECONNECT_SECONDS)

    async def rest(self) -> None:
        """Writes what no connection has brought."""
        self._client.patience = ANSWER_SECONDS  # the log may be long
        self._take(0, await asyncio.to_thread(self._client.get_job_logs, self._job))

    def _take(self, at: int, text: str) -> None:
        if new := text[max(0, self._written - at) :]:
            self._write(new)
            self._written = at + len(text)
            self.end = (self.end + new)[-_KEPT_CHARACTERS:]


def _reports_unknown(error: Exception) -> bool:
    """True if the job server itself reports the job as unknown. A proxy's 404 does not count."""
    return "404" in str(error) and "does not exist" in str(error)


def _outcome_of(info: Any) -> JobOutcome:
    seconds = (info.end_time - info.start_time) / 1000 if info.start_time and info.end_time else None
    end = JobEnd(str(info.status))
    if end != JobEnd.FAILED:
        return JobOutcome(end, seconds=seconds)
    # If the command itself failed, the message only repeats the log.
    message = str(info.message or "") if info.driver_exit_code is None else ""
    return JobOutcome(end, message, seconds, info.driver_exit_code)
