"""The n-th call of the driver fails, for every n: an error, no leak, and the next try works."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pinferry import _native
from pinferry._native import Direction
from pinferry.errors import (
    DeviceOutOfMemory,
    DriverCallFailed,
    DriverUnavailable,
    PinferryError,
    RegistrationFailed,
)
from tests.faults.every_call import OUT_OF_MEMORY, UNKNOWN, codes, fail_every_call
from tests.workbench import LATE, MIB, content, random_bytes, write

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fake_driver import FakeDriver


def make_arena(device: _native.Device, nbytes: int = 8 * MIB) -> _native.Arena:
    return _native.Arena(
        device=device,
        nbytes=nbytes,
        chunk_nbytes=2 * MIB,
        numa_node=None,
        huge_pages=False,
        threads=1,
    )


class Rig:
    """Two pieces of a batch, on both sides, and streams to go with them."""

    def __init__(self, seed: int) -> None:
        self.device = _native.CudaDevice(0)
        arena = make_arena(self.device)
        [self.blocks] = arena.allocate_extents([3 * MIB], 0.0)
        self.stream = self.device.create_stream()
        self.memory = self.device.allocate(3 * MIB)
        self.back = self.device.allocate(3 * MIB)
        self.data = random_bytes(3 * MIB, seed)

    def submit(self, direction: Direction, memory: _native.DeviceMemory) -> _native.Ticket:
        address = memory.address
        pieces = []
        for block in self.blocks:
            pieces.append(_native.Piece(block, address))
            address += block.nbytes
        streams = [self.stream.handle]
        return _native.submit(
            device=self.device, direction=direction, pieces=pieces, streams=streams
        )

    def fill(self, data: bytes) -> None:
        for block in self.blocks:
            write(block, data[: block.nbytes])
            data = data[block.nbytes :]

    def load(self) -> None:
        """Bring the data to the device and take it off the host."""
        self.fill(self.data)
        assert self.submit(Direction.TO_DEVICE, self.memory).synchronize(LATE)
        self.fill(bytes(len(self.data)))

    def check_round_trip(self) -> None:
        assert self.submit(Direction.TO_HOST, self.memory).synchronize(LATE)
        assert content(self.blocks) == self.data
        ticket = self.submit(Direction.TO_DEVICE, self.back)
        self.submit(Direction.TO_HOST, self.back)
        assert ticket.synchronize(LATE)
        again = self.submit(Direction.TO_HOST, self.back)
        assert again.synchronize(LATE)
        assert content(self.blocks) == self.data


@codes
def test_a_device_is_made_whole_or_not_at_all(fake_gpu: FakeDriver, code: int) -> None:
    def make() -> _native.Device:
        _native._use_driver_library(fake_gpu.path)
        return _native.CudaDevice(0)

    raised = fail_every_call(fake_gpu, code, make)
    assert raised[0] == DriverUnavailable.__name__
    later = DeviceOutOfMemory if code == OUT_OF_MEMORY else DriverCallFailed
    assert set(raised[1:]) == {later.__name__}
    assert _native.CudaDevice(0).name == "fake GPU"


@codes
def test_an_arena_is_registered_whole_or_not_at_all(fake_gpu: FakeDriver, code: int) -> None:
    device = _native.CudaDevice(0)
    before = fake_gpu.live()["registration"]
    raised = fail_every_call(fake_gpu, code, lambda: make_arena(device))
    assert raised[1:] == [RegistrationFailed.__name__] * 4
    arena = make_arena(device)
    assert (arena.backend, fake_gpu.live()["registration"] - before) == ("registered", 4)


@codes
def test_an_arena_of_driver_memory_is_made_whole_or_not_at_all(
    fake_gpu: FakeDriver, code: int
) -> None:
    device = _native.CudaDevice(0)

    def make() -> _native.Arena:
        fake_gpu.fail_call("cuMemHostRegister", 801)
        return make_arena(device)

    raised = fail_every_call(fake_gpu, code, make)
    assert raised[1:] == [RegistrationFailed.__name__] * 4


@codes
@pytest.mark.parametrize("direction", [Direction.TO_HOST, Direction.TO_DEVICE])
def test_a_failed_batch_leaves_every_byte_and_block_intact(
    fake_gpu: FakeDriver, direction: Direction, code: int
) -> None:
    rig = Rig(1)
    rig.load()
    target = rig.memory if direction == Direction.TO_HOST else rig.back
    # The events of the device's pool are made before, so that what is alive can be compared.
    kept = [rig.submit(direction, target) for _ in range(3)]
    assert all(ticket.synchronize(LATE) for ticket in kept)
    del kept
    raised = fail_every_call(
        fake_gpu, code, lambda: rig.submit(direction, target).nbytes, polls=True
    )
    assert len(raised) > 10
    rig.check_round_trip()


@codes
def test_a_first_batch_that_fails_leaves_nothing_of_its_device(
    fake_gpu: FakeDriver, code: int
) -> None:
    """Here every event has yet to be created."""

    def first_batch(n: int) -> bool:
        fake_gpu.reset()
        rig = Rig(2)
        rig.fill(rig.data)
        fake_gpu.fail_nth(n, code)
        try:
            ticket = rig.submit(Direction.TO_DEVICE, rig.memory)
        except PinferryError:
            return False
        finally:
            fake_gpu.reset()
        assert ticket.synchronize(LATE)
        return True

    n = 1
    while not first_batch(n):
        assert fake_gpu.leaks() == {}
        n += 1
    assert n > 10


@codes
@pytest.mark.parametrize("stage", ["wait", "synchronize", "poll", "elapsed"])
def test_a_ticket_reports_a_failing_driver_and_recovers(
    fake_gpu: FakeDriver, stage: str, code: int
) -> None:
    rig = Rig(3)
    rig.load()
    ticket = rig.submit(Direction.TO_HOST, rig.memory)
    if stage == "elapsed":
        assert ticket.synchronize(LATE)
        assert ticket.done()
    actions: dict[str, Callable[[], object]] = {
        "wait": lambda: ticket.wait(rig.stream.handle),
        "synchronize": lambda: ticket.synchronize(None),
        "poll": lambda: ticket.synchronize(LATE),
        "elapsed": lambda: ticket.elapsed_ms,
    }
    assert len(fail_every_call(fake_gpu, code, actions[stage])) == 2
    assert ticket.synchronize(LATE)
    assert content(rig.blocks) == rig.data
    rig.check_round_trip()


def test_asking_whether_a_ticket_is_done_never_raises(fake_gpu: FakeDriver) -> None:
    rig = Rig(4)
    rig.load()
    ticket = rig.submit(Direction.TO_HOST, rig.memory)
    assert ticket.synchronize(LATE)
    for call in ("cuEventQuery", "cuCtxPushCurrent"):
        fake_gpu.fail_call(call, UNKNOWN)
        assert not ticket.done()
        assert ticket.elapsed_ms is None
        fake_gpu.reset()
    assert ticket.done()


def test_a_range_is_not_reused_while_the_driver_cannot_tell_whether_its_copy_ended(
    fake_gpu: FakeDriver,
) -> None:
    rig = Rig(5)
    arena = make_arena(rig.device, 512)
    block = arena.allocate(512, 0.0)
    ticket = _native.submit(
        device=rig.device,
        direction=Direction.TO_HOST,
        pieces=[_native.Piece(block, rig.memory.address)],
        streams=[],
    )
    assert ticket.synchronize(LATE)
    del block
    fake_gpu.fail_call("cuEventQuery", UNKNOWN)
    assert arena.try_allocate(512) is None
    assert arena.stats().retired_bytes == 512
    fake_gpu.reset()
    assert arena.try_allocate(512) is not None


@codes
@pytest.mark.parametrize("what", ["stream", "memory"])
def test_streams_and_memory_are_made_whole_or_not_at_all(
    fake_gpu: FakeDriver, what: str, code: int
) -> None:
    device = _native.CudaDevice(0)
    make = device.create_stream if what == "stream" else lambda: device.allocate(100)
    assert len(fail_every_call(fake_gpu, code, make)) >= 2
