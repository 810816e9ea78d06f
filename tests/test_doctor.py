"""The survey of a machine, of made-up machines mostly."""

from __future__ import annotations

import importlib.machinery
import io
import json
import os
import subprocess
import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from pinferry import doctor
from pinferry.doctor import Check, Finding, Status, exit_code, render, run_checks, to_dict
from pinferry.doctor.findings import worst_status
from pinferry.doctor.gpu import (
    check_devices,
    check_driver,
    check_numa,
    check_nvml,
    parse_processor_list,
)
from pinferry.doctor.host import (
    check_host_memory,
    check_huge_pages,
    check_platform,
    check_processors,
)
from pinferry.doctor.native import check_arenas, check_bridge
from pinferry.doctor.python_stack import check_cupy, check_torch
from pinferry.doctor.report import CHECKS
from pinferry.states import nvml
from pinferry.states.nvml import DeviceMemoryReading, PcieLink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from typing_extensions import Self

GIB = 2**30
BUS_ID = "0000:17:00.0"


class FakeNative(ModuleType):
    """The native core on a machine with so many devices."""

    def __init__(self, devices: int = 0, status: str = "ok", version: int | None = 13000) -> None:
        super().__init__("pinferry._native")
        self.__version__ = "0.1.0"
        self.devices, self.status, self.version = devices, status, version

    def driver_status(self) -> str:
        return self.status

    def driver_version(self) -> int | None:
        return self.version

    def device_count(self) -> int:
        return self.devices


class FakeGpu:
    """A GPU as NVML describes it."""

    def __init__(self, *, link: PcieLink | None = None, mig: bool = False) -> None:
        self._link, self._mig = link or PcieLink(5, 16, 5, 16), mig

    def name(self) -> str:
        return "Fake H200"

    def uuid(self) -> str:
        return "GPU-1234"

    def pci_bus_id(self) -> str:
        return BUS_ID

    def in_mig_mode(self) -> bool:
        return self._mig

    def memory(self) -> DeviceMemoryReading:
        return DeviceMemoryReading(total_bytes=140 * GIB, free_bytes=100 * GIB)

    def link(self) -> PcieLink:
        return self._link


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[[ModuleType], None]:
    """Give a function that puts a module where imports find it."""

    def put(module: ModuleType) -> None:
        module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, loader=None)
        monkeypatch.setitem(sys.modules, module.__name__, module)

    return put


def module(name: str, **attributes: object) -> ModuleType:
    made = ModuleType(name)
    vars(made).update(attributes)
    return made


def only(findings: Iterable[Finding]) -> Finding:
    (finding,) = findings
    return finding


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="ascii")


def fails() -> Iterator[Finding]:
    yield Finding("broken", Status.OK, "found before it broke")
    raise ZeroDivisionError("seven by zero")


def fine() -> list[Finding]:
    return [Finding("fine", Status.OK, "all well")]


def test_a_check_that_fails_is_a_problem_and_stops_no_other() -> None:
    before, failure, after = run_checks([Check("broken", fails), Check("fine", fine)])
    assert before.finding == "found before it broke"
    assert (failure.check, failure.status) == ("broken", Status.PROBLEM)
    assert "ZeroDivisionError: seven by zero" in failure.finding
    assert after == fine()[0]


WITHOUT_NATIVE = """
import sys
sys.modules["pinferry._native"] = None
from pinferry.doctor import main
sys.exit(main(json=True))
"""


def test_without_the_native_core_the_survey_is_made_and_points_to_it() -> None:
    survey = subprocess.run(
        [sys.executable, "-c", WITHOUT_NATIVE], capture_output=True, text=True, check=False
    )
    assert survey.returncode == 1, survey.stderr
    findings = {found["check"]: found for found in json.loads(survey.stdout)["findings"]}
    assert "pinferry._native cannot be imported" in findings["native core"]["finding"]
    assert findings["huge pages"]["status"] != "problem"
    for check in ("host memory", "CUDA driver", "arena"):
        assert findings[check]["status"] == "problem"
        assert findings[check]["advice"] == "Solve the problem of the native core first."


@pytest.mark.parametrize("native_missing", [False, True])
def test_the_whole_survey_runs_on_this_machine_and_every_finding_says_something(
    monkeypatch: pytest.MonkeyPatch, native_missing: bool
) -> None:
    if native_missing:
        monkeypatch.setitem(sys.modules, "pinferry._native", None)
    findings = run_checks()
    assert {"platform", "processors", "host memory", "huge pages"} <= {
        finding.check for finding in findings
    }
    assert all(finding.finding for finding in findings)
    assert all(finding.advice for finding in findings if finding.status is not Status.OK)
    assert exit_code(findings) == 1 or not native_missing


def test_a_machine_without_a_gpu_has_no_problem(
    monkeypatch: pytest.MonkeyPatch, install: Callable[[ModuleType], None], tmp_path: Path
) -> None:
    install(FakeNative(devices=0, status="libcuda.so.1 not found", version=None))
    install(module("pinferry.pool", PinnedArena=arena_class({"cpu": ("unpinned", "")})))
    install(module("pinferry.transfer", __path__=[]))
    install(module("pinferry.transfer.bridge", bridge_status=lambda: ("ok", "built")))
    install(fake_torch(build=None))
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setattr(nvml, "nvml_status", lambda: "no library")
    monkeypatch.setattr(nvml, "nvml_devices", list)
    needs_root = {"host memory", "processors", "huge pages", "CUDA driver"}
    findings = run_checks(check for check in CHECKS if check.name not in needs_root)
    findings += check_driver(root=tmp_path)
    assert [finding for finding in findings if finding.status is Status.PROBLEM] == []
    assert exit_code(findings) == 0


def test_the_platform_is_named() -> None:
    finding = only(check_platform())
    assert finding.status is Status.OK
    assert "Linux" in finding.finding


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


def fake_torch(build: str | None, sees: int = 0) -> ModuleType:
    return module(
        "torch",
        __version__="2.13.0",
        version=SimpleNamespace(cuda=build),
        cuda=SimpleNamespace(is_available=lambda: sees > 0, device_count=lambda: sees),
    )


@pytest.mark.parametrize(
    ("devices", "build", "sees", "status"),
    [
        (0, None, 0, Status.OK),
        (0, "13.0", 0, Status.OK),
        (1, None, 0, Status.WARNING),
        (1, "13.0", 0, Status.PROBLEM),
        (1, "13.0", 1, Status.OK),
    ],
)
def test_pytorch_that_cannot_see_the_gpu_that_is_there_is_not_ok(
    install: Callable[[ModuleType], None],
    devices: int,
    build: str | None,
    sees: int,
    status: Status,
) -> None:
    install(FakeNative(devices))
    install(fake_torch(build, sees))
    finding = only(check_torch())
    assert finding.status is status
    assert "torch 2.13.0" in finding.finding


def test_pytorch_that_is_missing_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert only(check_torch()).status is Status.WARNING


def test_pytorch_that_does_not_import_is_a_problem_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write(tmp_path / "torch.py", "raise OSError('libcudart.so.13: cannot open')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    finding = only(check_torch())
    assert finding.status is Status.PROBLEM
    assert "libcudart.so.13" in finding.finding


def fake_cupy(built: int, compiler: Callable[[], object] = lambda: (13, 0)) -> ModuleType:
    runtime = SimpleNamespace(runtimeGetVersion=lambda: built)
    return module(
        "cupy",
        __version__="14.0.0",
        cuda=SimpleNamespace(runtime=runtime, nvrtc=SimpleNamespace(getVersion=compiler)),
    )


@pytest.mark.parametrize(
    ("devices", "built", "status"),
    [
        (1, 12090, Status.OK),
        (1, 13010, Status.OK),
        (1, 14000, Status.WARNING),
        (0, 14000, Status.OK),
    ],
)
def test_cupy_for_a_newer_cuda_than_the_drivers_is_a_warning(
    install: Callable[[ModuleType], None], devices: int, built: int, status: Status
) -> None:
    install(FakeNative(devices, version=13000))
    install(fake_cupy(built))
    finding = only(check_cupy())
    assert finding.status is status
    assert ("cupy-cuda13x" in finding.advice) is (status is Status.WARNING)


@pytest.mark.parametrize(("devices", "status"), [(0, Status.OK), (1, Status.WARNING)])
def test_cupy_matters_only_where_there_is_a_gpu(
    install: Callable[[ModuleType], None],
    monkeypatch: pytest.MonkeyPatch,
    devices: int,
    status: Status,
) -> None:
    install(FakeNative(devices, version=12080))
    monkeypatch.setitem(sys.modules, "cupy", None)
    finding = only(check_cupy())
    assert finding.status is status
    assert ("cupy-cuda12x" in finding.advice) is (devices > 0)


def test_cupy_without_its_compiler_is_a_warning_that_says_so(
    install: Callable[[ModuleType], None],
) -> None:
    def missing() -> object:
        raise RuntimeError("libnvrtc.so.13 not found")

    install(FakeNative(1))
    install(fake_cupy(13000, missing))
    finding = only(check_cupy())
    assert finding.status is Status.WARNING
    assert "libnvrtc.so.13 not found" in finding.finding


@pytest.mark.parametrize("status", list(Status))
def test_the_bridge_is_reported_as_it_reports_itself(
    install: Callable[[ModuleType], None], status: Status
) -> None:
    install(module("pinferry.transfer", __path__=[]))
    install(module("pinferry.transfer.bridge", bridge_status=lambda: (status.value, "built")))
    finding = only(check_bridge())
    assert (finding.status, finding.finding) == (status, "built")
    assert bool(finding.advice) is (status is not Status.OK)


def arena_class(backends: dict[str, tuple[str, str]]) -> type:
    """Make an arena class that knows the backend of each device, and fails on all others."""

    class PinnedArena:
        open_arenas = 0

        def __init__(self, capacity: int, *, device: str) -> None:
            if device not in backends:
                raise MemoryError(f"no memory for {device}")
            self.backend, self.backend_reason = backends[device]

        def __enter__(self) -> Self:
            type(self).open_arenas += 1
            return self

        def __exit__(self, *details: object) -> None:
            type(self).open_arenas -= 1

    return PinnedArena


@pytest.mark.parametrize(
    ("device", "backend", "status"),
    [
        ("cpu", "unpinned", Status.OK),
        ("cuda:0", "registered", Status.OK),
        ("cuda:0", "driver", Status.WARNING),
        ("cuda:0", "unpinned", Status.WARNING),
    ],
)
def test_an_arena_is_reported_with_its_backend_and_the_reason_for_it(
    install: Callable[[ModuleType], None], device: str, backend: str, status: Status
) -> None:
    install(FakeNative(0 if device == "cpu" else 1))
    install(module("pinferry.pool", PinnedArena=arena_class({device: (backend, "error 801")})))
    finding = only(check_arenas())
    assert finding.status is status
    assert finding.check == f"arena on {device}"
    assert finding.finding == f"{backend}: error 801"


def test_a_device_on_which_no_arena_can_be_made_does_not_hide_the_others(
    install: Callable[[ModuleType], None],
) -> None:
    arena = arena_class({"cuda:0": ("registered", ""), "cuda:2": ("registered", "")})
    install(FakeNative(3))
    install(module("pinferry.pool", PinnedArena=arena))
    first, second, third = check_arenas()
    assert (first.status, third.status) == (Status.OK, Status.OK)
    assert second.status is Status.PROBLEM
    assert "MemoryError: no memory for cuda:1" in second.finding
    assert vars(arena)["open_arenas"] == 0


@given(st.lists(st.sampled_from(list(Status))))
def test_the_exit_code_is_1_exactly_if_anything_is_a_problem(statuses: list[Status]) -> None:
    findings = [Finding("any", status, "text") for status in statuses]
    assert exit_code(findings) == (1 if Status.PROBLEM in statuses else 0)
    expected = Status.WARNING if Status.WARNING in statuses else Status.OK
    assert worst_status(findings) is (Status.PROBLEM if Status.PROBLEM in statuses else expected)
    assert to_dict(findings)["status"] == worst_status(findings).value


def test_the_table_shows_text_in_brackets_as_it_is() -> None:
    findings = [
        Finding("huge pages", Status.WARNING, "always [madvise] [/red]", "see [link]"),
        Finding("platform", Status.OK, "fine"),
    ]
    output = io.StringIO()
    render(findings, Console(file=output, width=120))
    for part in ("always [madvise] [/red]", "see [link]", "1 ok, 1 with a warning, 0 with a"):
        assert part in output.getvalue()


@pytest.mark.parametrize(("status", "code"), [(Status.WARNING, 0), (Status.PROBLEM, 1)])
@pytest.mark.parametrize("as_json", [False, True])
def test_the_command_writes_its_findings_and_returns_the_exit_code(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    status: Status,
    code: int,
    as_json: bool,
) -> None:
    found = Finding("huge pages", status, "always madvise [never]", "echo")
    monkeypatch.setattr("pinferry.doctor.report.run_checks", lambda: [found])
    assert doctor.main(json=as_json) == code
    output = capsys.readouterr().out
    if as_json:
        assert json.loads(output) == {"status": status.value, "findings": [found.to_dict()]}
    else:
        assert "always madvise [never]" in output
