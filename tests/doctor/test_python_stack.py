"""What is said of PyTorch, the bridge and CuPy."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from pinferry.doctor import Status
from pinferry.doctor.native import check_bridge, check_copies
from pinferry.doctor.python_stack import check_cupy, check_torch
from tests.doctor.fakes import FakeNative, fake_torch, module, only, write

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


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


@pytest.mark.parametrize("status", [Status.OK, Status.WARNING])
def test_the_copies_of_each_gpu_are_reported_with_the_reason(
    install: Callable[[ModuleType], None], status: Status
) -> None:
    install(FakeNative(2))
    install(module("pinferry.transfer", __path__=[]))
    install(
        module(
            "pinferry.transfer.kernels",
            copies_status=lambda name: (status.value, f"{name} by whatever there is"),
        )
    )
    first, second = check_copies()
    assert (first.status, second.status) == (status, status)
    assert first.finding == "cuda:0 by whatever there is"
    assert second.check == "small copies on cuda:1"
    assert bool(first.advice) is (status is not Status.OK)


def test_without_a_gpu_nothing_is_said_of_copies(install: Callable[[ModuleType], None]) -> None:
    install(FakeNative(0))
    assert list(check_copies()) == []
