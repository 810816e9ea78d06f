"""What this machine offers to pinferry, and what to do where it falls short."""

from __future__ import annotations

from pinferry.doctor.findings import Check, Finding, Status
from pinferry.doctor.report import exit_code, main, render, run_checks, to_dict

__all__ = ["Check", "Finding", "Status", "exit_code", "main", "render", "run_checks", "to_dict"]
