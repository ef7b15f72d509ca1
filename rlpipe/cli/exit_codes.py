"""Exit codes of all commands."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit code of a command; the shell's own codes, such as 137 after SIGKILL, are not listed."""

    DONE = 0
    """The command did what it was asked to do. ``rlpipe submit``: the job succeeded."""
    FAILED = 1
    """The command failed after it had started. ``rlpipe doctor``: something must be fixed. ``rlpipe submit``: the job
    failed."""
    REFUSED = 2
    """The request cannot be carried out as it is, and nothing was started. ``rlpipe submit``: nothing was sent."""
    CRITICAL = 3
    """``rlpipe train`` and ``rlpipe diagnose``: a critical alert ended the run, or stands at its end."""
    UNKNOWN = 3
    """``rlpipe submit``: how the job ends is not known, because contact was lost or Ctrl-C ended the following.

    It shares the number of ``CRITICAL``, but no command uses both: a job that a critical alert ended has failed.
    """
    UNDECIDED = 4
    """``rlpipe evaluate --until-decided``: after all episodes it cannot be told which policy is better.
    ``rlpipe stress --require``: likewise whether success is as high as required."""
    NOT_VERIFIED = 3
    """``rlpipe verify``: a record is not true. It shares the number of ``CRITICAL``, which is another command's."""
    NOT_SURVIVED = 3
    """``rlpipe stress --require``: success with all axes together is lower. It shares the number likewise."""
    VERIFIED_STATISTICALLY = 4
    """``rlpipe verify``: bits differ from the record, made elsewhere, and outcomes no more than that explains.

    It shares the number of ``UNDECIDED``, which is another command's.
    """
    INTERRUPTED = 130
    """Ctrl-C or SIGTERM ended the command; ``rlpipe train`` has saved. ``rlpipe submit``: the job was stopped."""
