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
from typing import TYPE_CHECKING, Annotated, TypeAlias
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

EXIT_CODES = {
    "SUCCEEDED": ExitCode.DONE,
    "FAILED": ExitCode.FAILED,
    "STOPPED": ExitCode.INTERRUPTED,
    "LOST": ExitCode.UNKNOWN,
    "DETACHED": ExitCode.UNKNOWN,
}
"""Exit code of each ``rlpipe.distributed.job_server.JobEnd``."""
_HEADINGS = {
    "SUCCEEDED": "[bold green]succeeded[/]",
    "FAILED": "[bold red]failed[/]",
    "STOPPED": "[bold yellow]stopped[/]",
    "LOST": "[bold red]lost contact[/], the job may continue",
    "DETACHED": "[bold]no longer following[/], the job continues",
}
_MEANINGS: dict[int, str] = {
    ExitCode.REFUSED: "it could not use the configuration",
    ExitCode.CRITICAL: "a critical alert ended the run",
    ExitCode.INTERRUPTED: "it was interrupted",
}
"""Meanings of the exit codes of ``rlpipe train``, which a job runs."""
_NOTHING_SENT = "interrupted; nothing was sent."


Configuration: TypeAlias = Annotated[
    str | None,
    typer.Argument(
        help="YAML file in the current folder, which is sent with the job as a whole, or the name of a shipped "
        "configuration."
    ),
]
Overrides: TypeAlias = Annotated[
    list[str] | None, typer.Argument(help="Changes, such as runner.seed=1.", metavar="[key=value]...")
]
Address: TypeAlias = Annotated[
    str | None,
    typer.Option(help="Job server of the cluster, http://HOST:8265.", envvar=["RAY_API_SERVER_ADDRESS", "RAY_ADDRESS"]),
]
Detach: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--detach",
        help="Return at once; print the job id and the commands to follow the job, stop it and fetch its results.",
    ),
]
Follow: TypeAlias = Annotated[str | None, typer.Option(metavar="JOB", help="Follow a job that was sent before.")]
Stop: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="JOB", help="Stop a job: ask it to save a checkpoint and exit, and wait until it has."),
]
Resume: TypeAlias = Annotated[
    str | None, typer.Option(metavar="RUN", help="Run directory on the cluster to continue, instead of CONFIG.")
]
Variables: TypeAlias = Annotated[
    list[str] | None, typer.Option(metavar="NAME", help="Environment variable to forward; or NAME=value.")
]
Excludes: TypeAlias = Annotated[
    list[str] | None, typer.Option(metavar="PATTERN", help="Files to leave out of the package (.gitignore syntax).")
]
MaxPackage: TypeAlias = Annotated[float, typer.Option(metavar="MB", help="Refuse a bigger package.")]
StopWait: TypeAlias = Annotated[
    int, typer.Option(metavar="SECONDS", help="Time a stopped job has to finish its iteration and save.")
]
LostAfter: TypeAlias = Annotated[
    float, typer.Option(metavar="SECONDS", help="Time without an answer after which contact counts as lost.")
]


def add_to(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(name="submit")(submit)


def submit(
    config: Configuration = None,
    overrides: Overrides = None,
    address: Address = None,
    detach: Detach = False,
    follow: Follow = None,
    stop: Stop = None,
    resume: Resume = None,
    env: Variables = None,
    exclude: Excludes = None,
    max_package: MaxPackage = 100.0,
    stop_wait: StopWait = 300,
    lost_after: LostAfter = 300.0,
) -> None:
    """Train on a cluster as a Ray job: check, pack, send, and follow it to its end.

    Exit codes: 0 succeeded, 1 failed, 130 stopped, 3 lost contact, 2 not sent. rlpipe submit --stop JOB ends the job.

    Ctrl-C stops following; the job continues (exit code 3). Before sending has begun, Ctrl-C cancels the submission
    (exit code 2).
    """
    known = _known_job(follow, stop, config, resume)
    address = _checked(address)
    for package in ("aiohttp", "pathspec"):
        require(package, "cluster", "rlpipe submit")
    changes = [*([config] if resume is not None and config is not None else []), *(overrides or [])]
    with _sigterm_like_ctrl_c():
        job, submission = known or "", None
        try:
            import rlpipe.distributed.job_server  # noqa: F401 - slow, so Ctrl-C meanwhile must count as before sending
            from rlpipe.distributed.submission import job_id, prepare

            if known is None:
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
    """Returns the job to follow or to stop; None if one is to be sent.

    Raises:
        ConfigError: the arguments ask for both, or for neither.
    """
    known = follow or stop
    if known is not None and (config is not None or resume is not None or (follow and stop)):
        raise ConfigError("--follow and --stop need a job that exists: give only one of them, and no configuration.")
    if known is None and config is None and resume is None:
        raise ConfigError("name a configuration, such as configs/ppo_push_cube.yaml, or a job to --follow or --stop.")
    return known


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
    """Sends a job, or finds one that was sent before, and follows it.

    Returns:
        The outcome; None with ``detach``.
    """
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
    """Shows how the job ended, or how to go on with it, and exits with the code of the outcome.

    Raises:
        typer.Exit: the job did not succeed, as far as is known.
    """
    code = ExitCode.UNKNOWN if outcome is None else EXIT_CODES[outcome.end]
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
    """Prints what will be sent."""
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
    """Prints how the job ended."""
    spent = "" if outcome.seconds is None else f" after {timedelta(seconds=round(outcome.seconds))}"
    why = outcome.message if outcome.exit_code is None else f"exit code {outcome.exit_code}"
    if outcome.exit_code in _MEANINGS:
        why += f": {_MEANINGS[outcome.exit_code]}"
    _console().print(f"{_HEADINGS[outcome.end]}{spent}{f' ({escape(why)})' if why else ''}")
    if outcome.advice:
        _console().print(escape(outcome.advice))
