"""What is said of huge pages, memory and processors."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from pinferry.doctor import Status
from pinferry.doctor.host import (
    check_host_memory,
    check_huge_pages,
    check_processors,
)
from tests.doctor.fakes import only, write

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("[always] madvise never", Status.OK),
        ("always [madvise] never", Status.OK),
        ("always madvise [never]", Status.WARNING),
        (None, Status.WARNING),
    ],
)
def test_huge_pages_are_a_warning_where_arenas_cannot_have_them(
    tmp_path: Path, text: str | None, status: Status
) -> None:
    if text is not None:
        write(tmp_path / "sys/kernel/mm/transparent_hugepage/enabled", f"{text}\n")
    assert only(check_huge_pages(root=tmp_path)).status is status


@pytest.mark.parametrize(("available_gib", "status"), [(20, Status.OK), (1, Status.WARNING)])
def test_scarce_host_memory_is_a_warning_with_its_limit(
    tmp_path: Path, available_gib: int, status: Status
) -> None:
    write(
        tmp_path / "proc/meminfo",
        f"MemTotal: {64 * 2**20} kB\nMemAvailable: {available_gib * 2**20} kB\n",
    )
    finding = only(check_host_memory(root=tmp_path))
    assert finding.status is status
    assert f"{available_gib}.0 GiB available of 64.0 GiB" in finding.finding
    assert "MemAvailable" in finding.finding


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("quota", "status"), [(150_000, Status.WARNING), (400_000, Status.OK), (None, Status.OK)]
)
def test_a_processor_quota_of_either_version_counts(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    version: int,
    quota: int | None,
    status: Status,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    group = tmp_path / "sys/fs/cgroup/job"
    if version == 2:
        write(tmp_path / "proc/self/cgroup", "0::/job\n")
        kind = "cgroup2 cgroup2 rw"
        write(group / "cpu.max", f"{'max' if quota is None else quota} 100000\n")
    else:
        write(tmp_path / "proc/self/cgroup", "3:cpu,cpuacct:/job\n")
        kind = "cgroup cgroup rw,cpu,cpuacct"
        write(group / "cpu.cfs_quota_us", f"{-1 if quota is None else quota}\n")
        write(group / "cpu.cfs_period_us", "100000\n")
    write(tmp_path / "proc/self/mountinfo", f"30 23 0:26 / /sys/fs/cgroup rw - {kind}\n")
    finding = only(check_processors(root=tmp_path))
    assert finding.status is status
    assert finding.finding.startswith("8 of ")
    if quota is None:
        assert "quota" not in finding.finding
    else:
        assert f"quota of {quota / 100_000:g} processors" in finding.finding
