"""The kernel itself on a GPU, against bytes put together on the host."""

from __future__ import annotations

import math
import random
from dataclasses import astuple
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import pytest

from pinferry import _native
from pinferry._native import Direction
from pinferry.transfer.calibration import KERNEL_SOURCE, measure_copies, tune
from tests.tiers import load_kernel

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

cupy = pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu

GUARD = 0xA5
# Every size with a head, words and a tail of each width; whole rounds of a warp and parts of one.
SMALL = range(71)
LARGE = (255, 256, 257, 511, 513, 1024, 4095, 4096, 4097, 4111, 8191, 8192)
GRIDS = [(1, 32), (3, 96), (16, 256), (32, 512)]


def copy_all(
    units: Sequence[tuple[int, int, int]], nbytes: int, grid: tuple[int, int]
) -> tuple[bool, bool]:
    """Copy (source, target, bytes) between buffers; say whether bytes and guards are right."""
    source_host = np.random.default_rng(3).integers(0, 250, nbytes, dtype=np.uint8)
    expected = np.full(nbytes, GUARD, dtype=np.uint8)
    touched = np.zeros(nbytes, dtype=bool)
    for source, target, size in units:
        expected[target : target + size] = source_host[source : source + size]
        touched[target : target + size] = True
    source, target = cupy.asarray(source_host), cupy.full(nbytes, GUARD, dtype=cupy.uint8)
    assert source.data.ptr % 16 == target.data.ptr % 16 == 0
    table = np.array(units, dtype=np.uint64)
    table[:, 0] += source.data.ptr
    table[:, 1] += target.data.ptr
    on_device = cupy.asarray(table)
    code = KERNEL_SOURCE.read_text(encoding="utf-8")
    module = cupy.RawModule(code=code, options=("-std=c++17",), backend="nvrtc")
    blocks, threads = grid
    module.get_function("pinferry_gather")(
        (blocks,), (threads,), (on_device, np.uint64(len(units)))
    )
    result = cupy.asnumpy(target)
    return bool((result == expected)[touched].all()), bool((result[~touched] == GUARD).all())


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("sizes", [SMALL, LARGE], ids=["small", "large"])
def test_every_alignment_of_source_and_target(sizes: Sequence[int], grid: tuple[int, int]) -> None:
    slot = (max(sizes) + 64) // 16 * 16  # a unit, its offset, and guards
    units = [
        (i * slot + source, i * slot + target, size)
        for i, (source, target, size) in enumerate(product(range(16), range(16), sizes))
    ]
    assert copy_all(units, len(units) * slot, grid) == (True, True)


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("count", [1, 2, 1000])
def test_any_number_of_units(count: int, grid: tuple[int, int]) -> None:
    play = random.Random(count)
    units = [(i * 4096, i * 4096 + 16, play.randrange(4000)) for i in range(count)]
    assert copy_all(units, count * 4096 + 16, grid) == (True, True)


def test_a_calibration_sets_the_device_and_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("pinferry.transfer.calibration._SAME", math.inf)
    device = _native.CudaDevice(0)
    load_kernel(device, real=True)
    measured = measure_copies(device)
    for name, direction in (("to_host", Direction.TO_HOST), ("to_device", Direction.TO_DEVICE)):
        tuning = measured[name]
        assert device.copy_tuning(direction) == astuple(tuning)
    another = _native.CudaDevice(0)
    load_kernel(another, real=True)
    tune(another)
    assert another.copy_tuning(Direction.TO_HOST) == device.copy_tuning(Direction.TO_HOST)
