"""Results of checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class CheckStatus(StrEnum):
    """Outcome of a check, from the best to the worst."""

    OK = "ok"
    """Nothing to do."""
    WARN = "warn"
    """It works, but could work better."""
    FAIL = "fail"
    """It must be fixed."""


@dataclass(frozen=True)
class CheckResult:
    """Result of one check.

    Attributes:
        name: name of the check.
        status: how it ended.
        message: what was found; ``found`` in the JSON.
        remedy: what to do; empty if the message already says it.
        node: node that was checked; empty for the driver's machine, or for all nodes together.
        parts: bytes by what they are for, where the message is about their sum.
    """

    name: str
    status: CheckStatus
    message: str
    remedy: str = ""
    node: str = ""
    parts: Mapping[str, int] = field(default_factory=dict)

    @property
    def sentence(self) -> str:
        """The whole result as one line of a log."""
        where = f" on {self.node}" if self.node else ""
        return f"{self.name}{where}: {self.message}" + (f" Remedy: {self.remedy}" if self.remedy else "")


@dataclass(frozen=True)
class CheckReport:
    """Results of all checks, names of the nodes that were checked, and the duration."""

    findings: list[CheckResult]
    nodes: list[str]
    seconds: float

    @property
    def status(self) -> CheckStatus:
        """Worst status of all results."""
        return max((result.status for result in self.findings), key=list(CheckStatus).index, default=CheckStatus.OK)

    def count(self, status: CheckStatus) -> int:
        """Returns the number of different findings of a status; the same one on several nodes counts once."""
        return len({(result.name, result.message) for result in self.findings if result.status == status})

    def as_json(self) -> dict[str, Any]:
        """Returns the report for programs."""
        findings = [
            {
                "found" if key == "message" else key: value
                for key, value in vars(result).items()
                if key != "parts" or value
            }
            for result in self.findings
        ]
        return {"status": self.status, **vars(self), "findings": findings}


def ok(name: str, message: str) -> CheckResult:
    """Returns the result of a check that found nothing to do."""
    return CheckResult(name, CheckStatus.OK, message)


def warn(name: str, message: str, remedy: str) -> CheckResult:
    """Returns the result of a check that found something to improve."""
    return CheckResult(name, CheckStatus.WARN, message, remedy)


def fail(name: str, message: str, remedy: str = "") -> CheckResult:
    """Returns the result of a check that found something to fix."""
    return CheckResult(name, CheckStatus.FAIL, message, remedy)
