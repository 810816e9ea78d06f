"""Drivers that are missing, too old, or have no such device."""

from __future__ import annotations

from ctypes.util import find_library
from typing import TYPE_CHECKING

import pytest

from pinferry import _native
from pinferry.errors import DeviceNotFound, DriverCallFailed, DriverUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fake_driver import FakeDriver


@pytest.fixture(autouse=True)
def _restore_driver() -> Iterator[None]:
    yield
    _native._use_driver_library("")


def test_a_library_that_is_not_there_is_named() -> None:
    _native._use_driver_library("/nonexistent")
    with pytest.raises(DriverUnavailable, match="/nonexistent") as caught:
        _native.CudaDevice(0)
    assert _native.driver_status() == str(caught.value)
    assert _native.device_count() == 0
    assert _native.driver_version() is None


def test_a_library_without_the_entry_points_is_named_with_the_first_that_is_missing() -> None:
    library = find_library("m")
    assert library is not None
    _native._use_driver_library(library)
    with pytest.raises(DriverUnavailable, match=rf"{library} has no entry point cuInit"):
        _native.CudaDevice(0)
    assert _native.device_count() == 0


@pytest.mark.parametrize("index", [7, 1, -1, 2**31 - 1])
def test_an_index_without_a_device_is_refused_with_the_number_there_are(
    fake_gpu: FakeDriver, index: int
) -> None:
    with pytest.raises(DeviceNotFound, match=f"cuda:{index}") as caught:
        _native.CudaDevice(index)
    assert (caught.value.index, caught.value.count) == (index, 1)


def test_a_driver_that_does_not_start_is_unavailable_with_its_code(fake_gpu: FakeDriver) -> None:
    fake_gpu.fail_call("cuInit", 100)
    _native._use_driver_library(fake_gpu.path)
    with pytest.raises(DriverUnavailable, match=r"cuInit failed: FAKE_ERROR \(100\)"):
        _native.CudaDevice(0)
    assert _native.device_count() == 0
    fake_gpu.reset()
    assert _native.driver_status() == "ok"
    assert _native.device_count() == 1


def test_a_count_that_the_driver_refuses_is_an_error(fake_gpu: FakeDriver) -> None:
    fake_gpu.fail_call("cuDeviceGetCount", 999)
    with pytest.raises(DriverCallFailed, match="cuDeviceGetCount") as caught:
        _native.device_count()
    assert caught.value.code == 999


def test_objects_made_before_keep_the_driver_they_were_made_with(fake_gpu: FakeDriver) -> None:
    device = _native.CudaDevice(0)
    _native._use_driver_library("/nonexistent")
    before = fake_gpu.live()["device"]
    memory = device.allocate(100)
    assert fake_gpu.live()["device"] == before + 1
    assert memory.nbytes == 100


def test_a_device_tells_what_it_is(fake_gpu: FakeDriver) -> None:
    device = _native.CudaDevice(0)
    assert (device.kind, device.index, device.name) == ("cuda", 0, "fake GPU")
    assert device.uuid == "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert device.pci_bus_id.lower() == "0000:fa:00.0"
    assert _native.driver_version() == 13000
