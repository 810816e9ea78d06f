"""Devices that copy many small ranges each in its own way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pinferry import _native
from pinferry._native import Direction

if TYPE_CHECKING:
    from tests.fake_driver import FakeDriver

TIERS = [
    "host",
    "fake-kernel",
    "fake-batch",
    "fake-plain",
    *(pytest.param(f"cuda-{tier}", marks=pytest.mark.gpu) for tier in ("kernel", "batch", "plain")),
]

#: Below it, ranges are small; so that a test has both without moving much.
THRESHOLD = 48 * 1024


def make_tiered(sort: str, tier: str, fake: FakeDriver | None) -> _native.Device:
    """Make a device that copies ranges below `THRESHOLD` by `tier`."""
    if sort == "host":
        return _native.HostDevice()
    if fake is not None and tier == "plain":
        fake.hide("cuMemcpyBatchAsync")
        _native._use_driver_library(fake.path)
    device = _native.CudaDevice(0)
    if tier == "kernel":
        load_kernel(device, real=fake is None)
    # No range is small on a real driver that has the batch call and must not use it.
    threshold = 0 if fake is None and tier == "plain" else THRESHOLD
    for direction in (Direction.TO_HOST, Direction.TO_DEVICE):
        device.tune_copies(direction, threshold_nbytes=threshold, blocks=8)
    if sort == "fake" or tier == "kernel":
        assert device.copy_tier == tier
    return device


def load_kernel(device: _native.Device, *, real: bool = False) -> None:
    """Give a GPU its kernel; the fake driver takes any handle for it."""
    assert isinstance(device, _native.CudaDevice)
    if real:
        from pinferry.transfer.kernels import copies_status, prepare_kernels

        prepare_kernels(device)
        assert device.copy_tier == "kernel", copies_status("cuda:0")
    else:
        device.use_kernel(1, blocks=8, threads=64)
