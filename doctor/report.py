"""The survey of this machine, as a table for people or as plain data."""

from __future__ import annotations

import sys
from json import dumps
from typing import TYPE_CHECKING, TypedDict

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pinferry.doctor.findings import Check, Finding, Status, run_isolated, worst_status
from pinferry.doctor.gpu import check_devices, check_driver, check_numa, check_nvml
from pinferry.doctor.host import (
    check_host_memory,
    check_huge_pages,
    check_platform,
    check_processors,
)
from pinferry.doctor.native import check_arenas, check_bridge, check_copies, check_native
from pinferry.doctor.python_stack import check_cupy, check_torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["CHECKS", "Report", "exit_code", "main", "render", "run_checks", "to_dict"]

CHECKS: tuple[Check, ...] = (
    Check("platform", check_platform),
    Check("processors", check_processors),
    Check("host memory", check_host_memory),
    Check("huge pages", check_huge_pages),
    Check("native core", check_native),
    Check("CUDA driver", check_driver),
    Check("NVML", check_nvml),
    Check("GPU", check_devices),
    Check("NUMA", check_numa),
    Check("PyTorch", check_torch),
    Check("PyTorch bridge", check_bridge),
    Check("CuPy", check_cupy),
    Check("arena", check_arenas),
    Check("small copies", check_copies),
)

_COLOURS = {Status.OK: "green", Status.WARNING: "yellow", Status.PROBLEM: "red"}


class Report(TypedDict):
    """The findings as plain data."""

    status: str
    findings: list[dict[str, str]]


def run_checks(checks: Iterable[Check] = CHECKS) -> list[Finding]:
    """Run every check, whatever the others do.

    Parameters
    ----------
    checks
        The checks to run, in order.

    Returns
    -------
    list[Finding]
        At least one finding for each check that has something to look at. A check that raises
        gives a problem that names the exception.

    Notes
    -----
    Makes an arena of 4 MiB on each device, hence a CUDA context, and can block the host for it.
    """
    return [finding for check in checks for finding in run_isolated(check)]


def to_dict(findings: Sequence[Finding]) -> Report:
    """Give the findings, and the worst status among them, as plain data."""
    return {
        "status": worst_status(findings).value,
        "findings": [finding.to_dict() for finding in findings],
    }


def render(findings: Sequence[Finding], console: Console) -> None:
    """Write the findings to `console` as a table, and one line of summary below it."""
    table = Table(box=None, pad_edge=False)
    for heading in ("check", "status", "finding", "what to do"):
        table.add_column(heading, overflow="fold")
    for finding in findings:
        # As Text: a finding such as "[madvise]" is not markup.
        table.add_row(
            Text(finding.check),
            Text(finding.status.value, style=_COLOURS[finding.status]),
            Text(finding.finding),
            Text(finding.advice),
        )
    console.print(table)
    console.print(Text(_summary(findings), style="bold"))


def exit_code(findings: Iterable[Finding]) -> int:
    """Give 1 if anything is a problem, else 0."""
    return int(worst_status(findings) is Status.PROBLEM)


def main(json: bool = False) -> int:
    """Survey this machine and write the findings to standard output.

    Parameters
    ----------
    json
        Write plain data in place of the table.

    Returns
    -------
    int
        The exit code: 1 if anything is a problem, else 0.
    """
    findings = run_checks()
    if json:
        sys.stdout.write(dumps(to_dict(findings), indent=2) + "\n")
    else:
        render(findings, Console())
    return exit_code(findings)


def _summary(findings: Sequence[Finding]) -> str:
    def count(status: Status) -> int:
        return sum(finding.status is status for finding in findings)

    return (
        f"{count(Status.OK)} ok, {count(Status.WARNING)} with a warning, "
        f"{count(Status.PROBLEM)} with a problem"
    )
