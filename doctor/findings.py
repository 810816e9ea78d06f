"""What a check found, and how checks are kept from one another."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["Check", "Finding", "Status", "describe_exception", "run_isolated", "worst_status"]


class Status(str, Enum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding of one check.

    Attributes
    ----------
    check
        What was looked at, such as ``"host memory"``.
    status
        `Status.PROBLEM` only where something that is there does not work. What is merely absent,
        a GPU for instance, is at most a warning.
    finding
        What was found, with numbers.
    advice
        What to do; empty where nothing is.
    """

    check: str
    status: Status
    finding: str
    advice: str = ""

    def to_dict(self) -> dict[str, str]:
        """Give the finding as plain data."""
        return {
            "check": self.check,
            "status": self.status.value,
            "finding": self.finding,
            "advice": self.advice,
        }


@dataclass(frozen=True, slots=True)
class Check:
    """A named check, run when asked for."""

    name: str
    run: Callable[[], Iterable[Finding]]


def run_isolated(check: Check) -> list[Finding]:
    """Run one check; what it raises becomes a problem after what it had found until then."""
    findings: list[Finding] = []
    try:
        findings.extend(check.run())
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the finding
        native_missing = isinstance(error, ImportError) and "_native" in str(error)
        findings.append(
            Finding(
                check.name,
                Status.PROBLEM,
                f"the check failed: {describe_exception(error)}",
                "Solve the problem of the native core first."
                if native_missing
                else "Please report this with the output of `pinferry doctor --json`.",
            )
        )
    return findings


def describe_exception(error: BaseException) -> str:
    """Name an exception and what it says."""
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def worst_status(findings: Iterable[Finding]) -> Status:
    """Give the worst status among `findings`, `Status.OK` where there are none."""
    order = list(Status)
    return max((finding.status for finding in findings), key=order.index, default=Status.OK)
