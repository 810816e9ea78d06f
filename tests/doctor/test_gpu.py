"""What is said of drivers, GPUs, links and NUMA nodes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinferry.doctor import Finding, Status
from pinferry.doctor.gpu import (
    check_devices,
    check_driver,
    check_numa,
    check_nvml,
    parse_processor_list,
)
from pinferry.states import nvml
from pinferry.states.nvml import PcieLink
from tests.doctor.fakes import BUS_ID, FakeGpu, FakeNative, only, write

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import ModuleType


def test_the_driver_is_reported_with_its_version_and_devices(
    install: Callable[[ModuleType], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    install(FakeNative(devices=2, version=12080))
    assert only(check_driver()) == Finding("CUDA driver", Status.OK, "CUDA 12.8 driver, 2 devices")


@pytest.mark.parametrize(
    ("present", "hidden", "status"),
    [
        (False, None, Status.WARNING),
        (True, None, Status.PROBLEM),
        (True, "", Status.WARNING),
    ],
)
def test_a_driver_that_fails_is_a_problem_only_where_a_gpu_is_there_and_not_hidden(
    *,
    install: Callable[[ModuleType], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    present: bool,
    hidden: str | None,
    status: Status,
) -> None:
    install(FakeNative(status="cuInit: error 999"))
    write(tmp_path / "dev/nvidiactl", "")
    if present:
        write(tmp_path / "dev/nvidia0", "")
    if hidden is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    finding = only(check_driver(root=tmp_path))
    assert finding.status is status
    assert "cuInit: error 999" in finding.finding
    assert ("CUDA_VISIBLE_DEVICES" in finding.finding) is (hidden is not None)


@pytest.mark.parametrize(("devices", "status"), [(0, Status.OK), (1, Status.WARNING)])
def test_missing_nvml_matters_only_where_there_is_a_gpu(
    install: Callable[[ModuleType], None],
    monkeypatch: pytest.MonkeyPatch,
    devices: int,
    status: Status,
) -> None:
    install(FakeNative(devices))
    monkeypatch.setattr(nvml, "nvml_status", lambda: "no library")
    finding = only(check_nvml())
    assert finding.status is status
    assert "no library" in finding.finding


def devices_found(
    monkeypatch: pytest.MonkeyPatch, *gpus: FakeGpu
) -> tuple[list[Finding], list[Finding]]:
    monkeypatch.setattr(nvml, "nvml_devices", lambda: list(gpus))
    findings = list(check_devices())
    return findings[::2], findings[1::2]


def test_each_gpu_is_reported_with_its_name_uuid_and_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpus, links = devices_found(monkeypatch, FakeGpu(), FakeGpu(mig=True))
    assert len(gpus) == len(links) == 2
    for part in ("Fake H200", "GPU-1234", "100.0 GiB free of 140.0 GiB"):
        assert part in gpus[0].finding
    assert "MIG mode" in gpus[1].finding
    assert "MIG mode" not in gpus[0].finding


@pytest.mark.parametrize(
    ("link", "status", "says"),
    [
        (PcieLink(5, 16, 5, 16), Status.OK, "generation 5 of 5, x16 of x16"),
        (PcieLink(1, 16, 5, 16), Status.OK, "an idle link lowers"),
        (PcieLink(5, 8, 5, 16), Status.WARNING, "x8 of x16"),
        (PcieLink(1, 8, 5, 16), Status.WARNING, "x8 of x16"),
        (PcieLink(), Status.OK, "generation ? of ?, x? of x?"),
    ],
)
def test_a_link_with_fewer_lanes_is_a_warning_and_an_idle_one_is_not(
    monkeypatch: pytest.MonkeyPatch, link: PcieLink, status: Status, says: str
) -> None:
    _, (finding,) = devices_found(monkeypatch, FakeGpu(link=link))
    assert finding.status is status
    assert says in finding.finding


@pytest.mark.parametrize(
    ("node", "listed", "status", "says"),
    [
        ("1", "0-3,9", Status.OK, "2 of 2 usable processors"),
        ("1", "3-7", Status.OK, "1 of 2 usable processors"),
        ("1", "4-7", Status.WARNING, "0 of 2 usable processors"),
        ("-1", "0-3", Status.OK, "names no NUMA node"),
        (None, "0-3", Status.OK, "names no NUMA node"),
        ("1", None, Status.OK, "on node 1"),
    ],
)
def test_a_gpu_with_no_usable_processor_on_its_node_is_a_warning(
    *,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    node: str | None,
    listed: str | None,
    status: Status,
    says: str,
) -> None:
    monkeypatch.setattr(nvml, "nvml_devices", lambda: [FakeGpu()])
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2, 3})
    if node is not None:
        write(tmp_path / f"sys/bus/pci/devices/{BUS_ID}/numa_node", f"{node}\n")
    if listed is not None:
        write(tmp_path / "sys/devices/system/node/node1/cpulist", f"{listed}\n")
    finding = only(check_numa(root=tmp_path))
    assert finding.status is status
    assert says in finding.finding
    assert ("--cpunodebind=1" in finding.advice) is (status is Status.WARNING)


@given(st.sets(st.integers(0, 300)))
def test_processor_lists_are_read_as_the_kernel_writes_them(processors: set[int]) -> None:
    ranges: list[list[int]] = []
    for processor in sorted(processors):
        if ranges and ranges[-1][-1] == processor - 1:
            ranges[-1].append(processor)
        else:
            ranges.append([processor])
    text = ",".join(str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in ranges)
    assert parse_processor_list(f"{text}\n") == processors
