"""Each way to copy many small ranges, while the driver fails or lacks what it needs."""

from __future__ import annotations

import contextlib
import gc
from typing import TYPE_CHECKING

import pytest

from pinferry import _native
from pinferry._native import Direction
from pinferry.errors import DriverCallFailed, InvalidArgument, PinferryError
from tests.faults.every_call import codes, fail_every_call
from tests.tiers import THRESHOLD, load_kernel, make_tiered
from tests.workbench import LATE, MIB, content, random_bytes, write

if TYPE_CHECKING:
    from tests.fake_driver import FakeDriver

tiers = pytest.mark.parametrize("tier", ["kernel", "batch", "plain"])
directions = pytest.mark.parametrize("direction", [Direction.TO_HOST, Direction.TO_DEVICE])

SIZES = [*([700] * 8), THRESHOLD + 1, 3000, THRESHOLD, *([100] * 3)]
GAP = 32


class Rig:
    """A batch of small and large pieces, none of them neighbours."""

    def __init__(self, device: _native.Device) -> None:
        self.device = device
        self.arena = _native.Arena(
            device=device,
            nbytes=2 * MIB,
            chunk_nbytes=2 * MIB,
            numa_node=None,
            huge_pages=False,
            threads=1,
        )
        self.blocks = [block for [block] in self.arena.allocate_extents(SIZES, 0.0)]
        self.memory = device.allocate(sum(SIZES) + GAP * len(SIZES))
        self.data = [random_bytes(size, i) for i, size in enumerate(SIZES)]

    def submit(self, direction: Direction) -> _native.Ticket:
        pieces, address = [], self.memory.address
        for block in self.blocks:
            pieces.append(_native.Piece(block, address))
            address += block.nbytes + GAP
        return _native.submit(device=self.device, direction=direction, pieces=pieces, streams=[])

    def load(self) -> None:
        """Bring the data to the device."""
        for block, part in zip(self.blocks, self.data, strict=True):
            write(block, part)
        assert self.submit(Direction.TO_DEVICE).synchronize(LATE)

    def check(self) -> None:
        """Take the data off the host and see that it comes from the device."""
        for block in self.blocks:
            write(block, bytes(block.nbytes))
        assert self.submit(Direction.TO_HOST).synchronize(LATE)
        assert [content(block) for block in self.blocks] == self.data


@codes
@tiers
@directions
def test_a_failed_batch_leaves_every_byte_and_block_intact(
    fake_gpu: FakeDriver, tier: str, direction: Direction, code: int
) -> None:
    rig = Rig(make_tiered("fake", tier, fake_gpu))
    rig.load()
    kept = [rig.submit(direction) for _ in range(3)]  # makes the events that are pooled
    assert all(ticket.synchronize(LATE) for ticket in kept)
    del kept
    raised = fail_every_call(
        fake_gpu, code, lambda: rig.submit(direction).synchronize(None), polls=True
    )
    assert len(raised) > 5
    assert rig.device.copy_tier == tier
    rig.check()


@codes
def test_a_kernel_is_taken_whole_or_not_at_all(fake_gpu: FakeDriver, code: int) -> None:
    device = _native.CudaDevice(0)
    live = fake_gpu.live()
    for n in range(1, 20):
        fake_gpu.reset()
        fake_gpu.fail_nth(n, code)
        with contextlib.suppress(PinferryError):
            load_kernel(device)
        reached = fake_gpu.calls() >= n
        fake_gpu.reset()
        if not reached:
            break
        assert device.copy_tier == "batch", f"the failure of call {n} went unnoticed"
        assert fake_gpu.live() == live, f"something is left after call {n} failed"
    assert device.copy_tier == "kernel"
    rig = Rig(device)
    rig.load()
    rig.check()


def test_a_kernel_that_the_driver_refuses_leaves_the_one_before_it(fake_gpu: FakeDriver) -> None:
    device = make_tiered("fake", "kernel", fake_gpu)
    live = fake_gpu.live()
    fake_gpu.fail_call("cuLaunchKernel")
    with pytest.raises(DriverCallFailed, match="cuLaunchKernel failed"):
        load_kernel(device)
    fake_gpu.reset()
    assert fake_gpu.live() == live
    rig = Rig(device)
    rig.load()
    rig.check()


@pytest.mark.parametrize(
    ("handle", "blocks", "threads"),
    [(0, 8, 64), (1, 0, 64), (1, 8, 0), (1, 8, 33), (1, 8, 1024)],
)
def test_a_kernel_that_cannot_be_is_refused(
    fake_gpu: FakeDriver, handle: int, blocks: int, threads: int
) -> None:
    device = _native.CudaDevice(0)
    with pytest.raises(InvalidArgument):
        device.use_kernel(handle, blocks=blocks, threads=threads)
    assert device.copy_tier == "batch"


def test_a_grid_of_no_blocks_is_refused(fake_gpu: FakeDriver) -> None:
    device = _native.CudaDevice(0)
    before = device.copy_tuning(Direction.TO_HOST)
    with pytest.raises(InvalidArgument):
        device.tune_copies(Direction.TO_HOST, threshold_nbytes=1, blocks=0)
    with pytest.raises(InvalidArgument, match="a piece has one byte or more"):
        device.tune_copies(Direction.TO_HOST, threshold_nbytes=1, blocks=1, piece_nbytes=0)
    assert device.copy_tuning(Direction.TO_HOST) == before


def test_a_batch_call_that_is_not_supported_is_not_tried_again(fake_gpu: FakeDriver) -> None:
    rig = Rig(make_tiered("fake", "batch", fake_gpu))
    fake_gpu.fail_call("cuMemcpyBatchAsync", 801)
    rig.load()
    assert rig.device.copy_tier == "plain"
    fake_gpu.fail_call("cuMemcpyBatchAsync", 999)
    rig.check()
    assert rig.device.copy_tier == "plain"


def test_a_driver_without_a_batch_call_is_no_error(fake_gpu: FakeDriver) -> None:
    fake_gpu.hide("cuMemcpyBatchAsync")
    _native._use_driver_library(fake_gpu.path)
    assert _native.driver_status() == "ok"
    assert _native.CudaDevice(0).copy_tier == "plain"


@pytest.mark.slow
def test_a_device_may_die_while_its_kernel_waits(fake_gpu: FakeDriver) -> None:
    """What a kernel may still read is never freed, and nobody waits for it for long."""
    device = make_tiered("fake", "kernel", fake_gpu)
    rig = Rig(device)
    rig.load()
    gate = device.create_stream()
    gate.hold()
    pieces = [
        _native.Piece(block, rig.memory.address + i * 1024)
        for i, block in enumerate(rig.blocks[:8])
    ]
    ticket = _native.submit(
        device=device, direction=Direction.TO_HOST, pieces=pieces, streams=[gate.handle]
    )
    assert not ticket.done()
    del rig, ticket, pieces, device
    gc.collect()
    assert fake_gpu.alive("blocked") == 0
    gate.release()
    gate.synchronize()
    del gate
    fake_gpu.tolerate_leaks()
