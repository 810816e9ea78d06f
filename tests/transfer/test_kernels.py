"""How a GPU gets its copy kernel, and what is said where it does not."""

from __future__ import annotations

import math
import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from pinferry import PinnedArena, TransferEngine, _native
from pinferry.transfer import kernels
from pinferry.transfer.calibration import KERNEL_SOURCE
from pinferry.transfer.kernels import copies_status, prepare_kernels

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fake_driver import FakeDriver


class FakeDevice:
    """What `cupy.cuda.Device` is here: a context that does nothing."""

    def __init__(self, index: int) -> None:
        assert index == 0

    def __enter__(self) -> None: ...

    def __exit__(self, *details: object) -> None: ...


def fake_cupy(compiled: Callable[..., object]) -> ModuleType:
    module = ModuleType("cupy")
    vars(module).update(cuda=SimpleNamespace(Device=FakeDevice), RawModule=compiled)
    return module


class Compiled:
    """A compiled module, and how many there are."""

    made = 0

    def __init__(self, *, code: str, options: tuple[str, ...], backend: str) -> None:
        type(self).made += 1
        assert code == KERNEL_SOURCE.read_text()
        assert backend == "nvrtc"

    def get_function(self, name: str) -> SimpleNamespace:
        assert f"    {name}(" in KERNEL_SOURCE.read_text()
        return SimpleNamespace(kernel=SimpleNamespace(ptr=4711))


@pytest.fixture
def device(
    fake_gpu: FakeDriver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> _native.CudaDevice:
    """Return a GPU of the fake driver, for which nothing is compiled or measured."""
    monkeypatch.setattr(kernels, "_functions", {})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return _native.CudaDevice(0)


def test_an_engine_gives_its_gpu_a_kernel_once(
    device: _native.CudaDevice, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("pinferry.transfer.calibration._SAME", math.inf)
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy(Compiled))
    monkeypatch.setattr(Compiled, "made", 0)
    with PinnedArena("1MiB", device=device) as arena:
        for _ in range(2):
            TransferEngine(arena)
            assert device.copy_tier == "kernel"
    assert Compiled.made == 1
    assert len(list(tmp_path.glob("pinferry/copies-*.json"))) == 1
    status, finding = copies_status(device)
    assert status == "ok"
    assert finding.startswith("kernel: out ")


def test_another_device_of_a_gpu_uses_the_kernel_that_is_loaded(
    device: _native.CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy(Compiled))
    monkeypatch.setattr(Compiled, "made", 0)
    other = _native.CudaDevice(0)
    for each in (device, other):
        prepare_kernels(each)
        assert each.copy_tier == "kernel"
    assert Compiled.made == 1


def test_without_cupy_the_device_works_and_says_why(
    device: _native.CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    prepare_kernels(device)
    assert device.copy_tier == "batch"
    assert copies_status(device) == ("warning", "batch: CuPy is not installed")


def test_a_kernel_that_does_not_compile_is_remembered_with_its_reason(
    device: _native.CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = []

    def fail(**_: object) -> object:
        attempts.append(1)
        raise RuntimeError("libnvrtc.so.13 not found")

    monkeypatch.setitem(sys.modules, "cupy", fake_cupy(fail))
    for _ in range(2):
        status = copies_status(device)
        assert status == ("warning", "batch: compilation failed: libnvrtc.so.13 not found")
    assert len(attempts) == 1


def test_a_kernel_that_the_driver_refuses_is_remembered_with_its_reason(
    device: _native.CudaDevice, monkeypatch: pytest.MonkeyPatch, fake_gpu: FakeDriver
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy(Compiled))
    fake_gpu.fail_call("cuLaunchKernel", 98)
    status, finding = copies_status(device)
    assert status == "warning"
    assert finding.startswith("batch: cuLaunchKernel failed")


def test_the_cpu_needs_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    device = _native.HostDevice()
    prepare_kernels(device)
    assert device.copy_tier == "plain"
    assert device not in kernels._reasons
