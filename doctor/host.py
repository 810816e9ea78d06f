"""Checks of the host: platform, processors, memory, page size."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pinferry.doctor.findings import Finding, Status

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["check_host_memory", "check_huge_pages", "check_platform", "check_processors"]

_SYSTEM_ROOT = Path("/")
_HUGE_PAGES = "sys/kernel/mm/transparent_hugepage/enabled"
# Below this an arena of useful size does not fit, and the host is near its limit as it is.
_SCARCE_BYTES = 2 * 2**30


def check_platform() -> Iterator[Finding]:
    """Report Python and the platform, and check that pinferry supports it."""
    finding = (
        f"{platform.python_implementation()} {platform.python_version()} on {platform.system()} "
        f"{platform.release()}, {platform.machine()}"
    )
    if sys.platform != "linux":
        yield Finding("platform", Status.PROBLEM, finding, "pinferry runs on Linux only.")
    else:
        yield Finding("platform", Status.OK, finding)


def check_processors(*, root: Path = _SYSTEM_ROOT) -> Iterator[Finding]:
    """Count the processors that this process may use; they touch the arena's pages."""
    from pinferry.pool.host_memory import cgroup_directories

    usable, present = len(os.sched_getaffinity(0)), os.cpu_count() or 0
    quotas = [
        quota
        for controller in ("", "cpu")
        for _, directory in cgroup_directories(controller, root=root)
        if (quota := _processor_quota(directory)) is not None
    ]
    finding = f"{usable} of {present} processors usable"
    if quotas:
        finding += f", cgroup quota of {min(quotas):g} processors"
    if min([float(usable), *quotas]) < 2:
        yield Finding(
            "processors",
            Status.WARNING,
            finding,
            "Creating an arena touches its pages by many threads; give the process more "
            "processors, or expect arenas to be slow to create.",
        )
    else:
        yield Finding("processors", Status.OK, finding)


def check_host_memory(*, root: Path = _SYSTEM_ROOT) -> Iterator[Finding]:
    """Report how much memory an arena can take, and what limits it."""
    from pinferry.pool.host_memory import available_host_bytes

    headroom = available_host_bytes(root=root)
    finding = (
        f"{headroom.available_bytes / 2**30:.1f} GiB available of "
        f"{headroom.total_bytes / 2**30:.1f} GiB, limited by {headroom.limited_by}"
    )
    if headroom.available_bytes < _SCARCE_BYTES:
        yield Finding(
            "host memory",
            Status.WARNING,
            finding,
            "Free host memory or raise that limit: an arena larger than this is refused.",
        )
    else:
        yield Finding("host memory", Status.OK, finding)


def check_huge_pages(*, root: Path = _SYSTEM_ROOT) -> Iterator[Finding]:
    """Check that arenas can have transparent huge pages."""
    path = root / _HUGE_PAGES
    try:
        choices = path.read_text(encoding="ascii").split()
    except OSError:
        yield Finding(
            "huge pages",
            Status.WARNING,
            "this kernel offers no transparent huge pages",
            "Arenas work with ordinary pages; creating them takes about twice as long.",
        )
        return
    chosen = next((choice.strip("[]") for choice in choices if choice.startswith("[")), "unknown")
    if chosen in ("always", "madvise"):
        yield Finding("huge pages", Status.OK, f"transparent huge pages: {chosen}")
    else:
        yield Finding(
            "huge pages",
            Status.WARNING,
            f"transparent huge pages: {chosen}",
            "Creating an arena takes about twice as long without them. As root: "
            f"echo madvise > /{_HUGE_PAGES}",
        )


def _processor_quota(directory: Path) -> float | None:
    """Read the processor time a control group allows, in processors; None where unlimited."""
    try:
        if (unified := directory / "cpu.max").exists():
            quota, period = unified.read_text(encoding="ascii").split()
        else:
            quota = (directory / "cpu.cfs_quota_us").read_text(encoding="ascii").strip()
            period = (directory / "cpu.cfs_period_us").read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(quota) / int(period) if quota.isdecimal() else None
