"""``rlpipe submit CONFIG [key=value ...] --address http://HOST:8265``"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table

from rlpipe.cli.exit_codes import ExitCode
from rlpipe.errors import ConfigError
from rlpipe.plugins import require
from rlpipe.secrets import is_credential, redacted

if TYPE_CHECKING:
    from rlpipe.distributed.job_server import JobOutcome
    from rlpipe.distributed.submission import Submission

_ENDS = {
    "SUCCEEDED": (ExitCode.DONE, "[bold green]succeeded[/]"),
    "FAILED": (ExitCode.FAILED, "[bold red]failed[/]"),
    "STOPPED": (ExitCode.INTERRUPTED, "[bold yellow]stopped[/]"),
    "LOST": (ExitCode.UNKNOWN, "[bold red]lost contact[/], the job may continue"),
    "DETACHED": (ExitCode.UNKNOWN, "[bold]no longer following[/], the job continues"),
}
"""Exit code and heading of each ``rlpipe.distributed.job_server.JobEnd``, without its slow import."""
_MEANINGS: dict[int, str] = {
    ExitCode.REFUSED: "it could not use the configuration",
    ExitCode.CRITICAL: "a critical alert ended the run",
    ExitCode.INTERRUPTED: "it was interrupted",
}
"""Meanings of the exit codes of ``rlpipe train``, which a job runs."""
_NOTHING_SENT = "interrupted; nothing was sent."


def submit(
    config: Annotated[
        str | None,
        typer.Argument(
            help="YAML file in the current folder, which is sent with the job as a whole, or the name of a shipped "
            "configuration."
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Changes, such as runner.seed=1.", metavar="[key=value]...")
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            help="Job server of the cluster, http://HOST:8265.", envvar=["RAY_API_SERVER_ADDRESS", "RAY_ADDRESS"]
        ),
    ] = None,
    detach: Annotated[
        bool,
        typer.Option(
            "--detach",
            help="Return at once; print the job id and the commands to follow the job, stop it and fetch its results.",
        ),
    ] = False,
    follow: Annotated[str | None, typer.Option(metavar="JOB", help="Follow a job that was sent before.")] = None,
    stop: Annotated[
        str | None,
        typer.Option(metavar="JOB", help="Stop a job: ask it to save a checkpoint and exit, and wait until it has."),
    ] = None,
    resume: Annotated[
        str | None, typer.Option(metavar="RUN", help="Run directory on the cluster to continue, instead of CONFIG.")
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Environment variable to forward; or NAME=value.")
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="Files to leave out of the package (.gitignore syntax).")
    ] = None,
    max_package: Annotated[float, typer.Option(metavar="MB", help="Refuse a bigger package.")] = 100.0,
    stop_wait: Annotated[
        int, typer.Option(metavar="SECONDS", help="Time a stopped job has to finish its iteration and save.")
    ] = 300,
    lost_after: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time without an answer after which contact counts as lost.")
    ] = 300.0,
) -> None:
    """Train on a cluster as a Ray job: check, pack, send, and follow it to its end.

    Exit codes: 0 succeeded, 1 failed, 130 stopped, 3 lost contact, 2 not sent. rlpipe submit --stop JOB ends the job.

    Ctrl-C stops following; the job continues (exit code 3). Before sending has begun, Ctrl-C cancels the submission
    (exit code 2).
    """
    existing_job = _known_job(follow, stop, config, resume)
    address = _checked(address)
    for package in ("aiohttp", "pathspec"):
        require(package, "cluster", "rlpipe submit")
    changes = [*([config] if resume is not None and config is not None else []), *(overrides or [])]
    with _sigterm_like_ctrl_c():
        job, submission = existing_job or "", None
        try:
            import rlpipe.distributed.job_server  # noqa: F401 - slow, so Ctrl-C meanwhile must count as before sending
            from rlpipe.distributed.submission import job_id, prepare

            if existing_job is None:
                submission = prepare(
                    config if resume is None else None, changes, folder=Path.cwd(), resume=resume, env=env or [],
                    excludes=exclude or [], max_megabytes=max_package, stop_wait=stop_wait,
                )  # fmt: skip
                job = job_id(submission)
                _show(submission)
        except KeyboardInterrupt:
            raise ConfigError(_NOTHING_SENT) from None
        outcome = _carry_out(address, job, submission, stop=stop is not None, detach=detach, lost_after=lost_after)
    _finish(outcome, job, address, submission)


def _known_job(follow: str | None, stop: str | None, config: str | None, resume: str | None) -> str | None:
    """Returns the job to follow or to stop; None if one is to be sent. The arguments must ask for one of these."""
    existing_job = follow or stop
    if existing_job is not None and (config is not None or resume is not None or (follow and stop)):
        raise ConfigError("--follow and --stop need a job that exists: give only one of them, and no configuration.")
    if existing_job is None and config is None and resume is None:
        raise ConfigError("name a configuration, such as configs/ppo_push_cube.yaml, or a job to --follow or --stop.")
    return existing_job


def _checked(address: str | None) -> str:
    if address is None:
        raise ConfigError("name the cluster: --address http://HOST:8265, or RAY_API_SERVER_ADDRESS.")
    try:
        _ = urlsplit(address).port
    except ValueError as error:
        raise ConfigError(f"--address is {redacted(address, {})}: {error}. Write http://HOST:8265.") from error
    return address


def _carry_out(
    address: str, job: str, submission: Submission | None, *, stop: bool, detach: bool, lost_after: float
) -> JobOutcome | None:
    """Sends a job, or finds one that was sent before, and follows it; returns the outcome, None with ``detach``."""
    from rlpipe.distributed.job_server import JobEnd, JobOutcome, LostContactError, connect

    server = None
    try:
        server = connect(address)
        if submission is not None:
            server.submit(submission, job)
            _line("job", job)
        else:
            server.check_exists(job)
        if stop:
            running = server.stop(job)
            _say("asked it to stop; it finishes its iteration and saves" if running else "it had already ended")
        if detach:
            print(job)
            return None
        return server.follow(job, write=None if stop else _write, report=_say, lost_after=lost_after)
    except KeyboardInterrupt:
        if submission is not None and (server is None or not server.requested):
            raise ConfigError(_NOTHING_SENT) from None
        return JobOutcome(JobEnd.DETACHED, "" if submission is None else "if the cluster has taken it")
    except LostContactError as error:
        return JobOutcome(JobEnd.LOST, str(error))


def _finish(outcome: JobOutcome | None, job: str, address: str, submission: Submission | None) -> None:
    """Shows how the job ended, or how to follow it, and exits with the code of the outcome."""
    code = ExitCode.UNKNOWN if outcome is None else _ENDS[outcome.end][0]
    if outcome is not None:
        _report(outcome)
    if code == ExitCode.UNKNOWN:
        _hints(job, redacted(address, {}), submission)
    if outcome is not None and code:
        raise typer.Exit(code)


@contextlib.contextmanager
def _sigterm_like_ctrl_c() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _console() -> Console:
    return Console(stderr=True, highlight=False, soft_wrap=True)


def _line(label: str, text: str) -> None:
    _console().print(f"  [dim]{label:<11}[/]{escape(text)}")


def _say(text: str) -> None:
    _console().print(f"[dim]{escape(text)}[/]")


def _write(text: str) -> None:
    """Writes the job's log to stdout. A closed pipe must not end the following."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show(submission: Submission) -> None:
    from rlpipe.distributed.packages import DEFAULT

    sent = submission.package
    largest = ", ".join(f"{name} {decimal(size)}" for name, size in sent.largest()[:4])
    left_out = list(dict.fromkeys(
        name.rpartition("/")[2] if rule is not None and rule.source == DEFAULT else name
        for name, rule in sent.left_out.items()
    ))  # fmt: skip
    more = f" and {len(left_out) - 8} more" if len(left_out) > 8 else ""
    facts = Table.grid()
    facts.add_column(min_width=13, style="dim")
    facts.add_column(overflow="fold")
    facts.add_row("  package", f"[bold]{decimal(sent.size)}[/] in {len(sent.files):,} files")
    facts.add_row("", escape(f"largest: {largest}"))
    if left_out:
        facts.add_row("  left out", escape(f"{', '.join(left_out[:8])}{more}"))
    facts.add_row("  variables", escape(", ".join(submission.variables)))
    for name, value in submission.variables.items():
        if is_credential(name) or redacted(value, {}) != value:
            facts.add_row("", f"[yellow]{name}: whoever may use the cluster can read it; a login there is safer[/]")
    for name in submission.held_back:
        facts.add_row("", f"[yellow]{name} stays here, because it holds a password: --env {name} sends it[/]")
    facts.add_row("  command", escape(submission.command))
    console = Console(stderr=True, highlight=False, width=None if sys.stderr.isatty() else 100)
    console.print("[bold]Sending[/]", facts, sep="\n")


def _hints(job: str, address: str, submission: Submission | None) -> None:
    """Prints the commands that follow and stop the job, and fetch its results."""
    for what in ("follow", "stop"):
        _line(what, shlex.join(["rlpipe", "submit", f"--{what}", job, "--address", address]))
    if submission is not None:
        host = urlsplit(address).hostname or ""
        head = "HEAD" if host in ("localhost", "127.0.0.1", "::1") else host  # most likely the end of a tunnel
        _line("fetch", shlex.join(["rsync", "-a", f"{head}:{submission.results}/", f"{submission.results}/"]))


def _report(outcome: JobOutcome) -> None:
    spent = "" if outcome.seconds is None else f" after {timedelta(seconds=round(outcome.seconds))}"
    why = outcome.message if outcome.exit_code is None else f"exit code {outcome.exit_code}"
    if outcome.exit_code in _MEANINGS:
        why += f": {_MEANINGS[outcome.exit_code]}"
    _, heading = _ENDS[outcome.end]
    _console().print(f"{heading}{spent}{f' ({escape(why)})' if why else ''}")
    if outcome.advice:
        _console().print(escape(outcome.advice))
