"""Results of checks."""

from __future__ import annotations

from dataclasses import asdict, dataclass
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
        found: what was found.
        remedy: what to do; empty if ``found`` already says it.
        node: node that was checked; empty for the driver's machine, or for all nodes together.
    """

    name: str
    status: CheckStatus
    found: str
    remedy: str = ""
    node: str = ""

    @property
    def sentence(self) -> str:
        """The whole result as one line of a log."""
        where = f" on {self.node}" if self.node else ""
        return f"{self.name}{where}: {self.found}" + (f" Remedy: {self.remedy}" if self.remedy else "")


@dataclass(frozen=True)
class CheckReport:
    """Results of all checks.

    Attributes:
        findings: the results.
        nodes: names of the nodes that were checked.
        seconds: duration of the checks.
    """

    findings: list[CheckResult]
    nodes: list[str]
    seconds: float

    @property
    def status(self) -> CheckStatus:
        """Worst status of all results."""
        return max((result.status for result in self.findings), key=list(CheckStatus).index, default=CheckStatus.OK)

    def count(self, status: CheckStatus) -> int:
        """Returns the number of different findings of a status; the same one on several nodes counts once."""
        return len({(result.name, result.found) for result in self.findings if result.status == status})

    def as_json(self) -> dict[str, Any]:
        """Returns the report for programs."""
        return {"status": self.status, **asdict(self)}


def ok(name: str, found: str) -> CheckResult:
    """Returns the result of a check that found nothing to do."""
    return CheckResult(name, CheckStatus.OK, found)


def warn(name: str, found: str, remedy: str) -> CheckResult:
    """Returns the result of a check that found something to improve."""
    return CheckResult(name, CheckStatus.WARN, found, remedy)


def fail(name: str, found: str, remedy: str = "") -> CheckResult:
    """Returns the result of a check that found something to fix."""
    return CheckResult(name, CheckStatus.FAIL, found, remedy)
