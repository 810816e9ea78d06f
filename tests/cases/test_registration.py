"""Pinning by the driver, when it refuses or restricts. On a stand-in for the driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pinferry import PinnedArena, _native
from pinferry._native import Direction, Piece
from pinferry.errors import PinferryError, RegistrationFailed
from pinferry.pool.options import ArenaOptions
from pinferry.pool.sizes import parse_size
from tests.workbench import content, random_bytes, write

if TYPE_CHECKING:
    from tests.fake_driver import FakeDriver

MIB = 2**20
NOT_SUPPORTED = 801


def make_arena(capacity: int = 5 * MIB, *, device: _native.Device | None = None) -> PinnedArena:
    return PinnedArena(capacity, device=device or _native.CudaDevice(0), chunk="2MiB", threads=1)


def test_no_call_pins_512_gib_unless_asked_to() -> None:
    """vllm#51081: one registration of 512 GiB or more fails."""
    for most, eager in ((None, True), ("2TiB", True), (None, False)):
        chosen = ArenaOptions.parse(
            "1TiB",
            max_capacity=most,
            eager=eager,
            chunk=None,
            huge_pages=True,
            numa_node=None,
            threads=None,
            reserve_host=0,
            backend="auto",
        )
        assert chosen.chunk_bytes < parse_size("512GiB")


def test_an_arena_is_pinned_chunk_by_chunk(fake_gpu: FakeDriver) -> None:
    """vllm#51081: one registration of 512 GiB or more fails."""
    arena = make_arena()
    assert fake_gpu.alive("registration") == 3
    arena.close()
    del arena
    assert fake_gpu.alive("registration") == 0


def test_a_registration_that_fails_leaves_nothing_and_the_next_is_clean(
    fake_gpu: FakeDriver,
) -> None:
    """vllm#51081: the error leaked into the next call."""
    device = _native.CudaDevice(0)
    start = fake_gpu.calls()
    arena = make_arena(device=device)
    calls = fake_gpu.calls() - start
    refused = 0
    for nth in range(1, calls + 1):
        arena.close()
        del arena
        fake_gpu.fail_nth(nth, 1)
        with pytest.raises(PinferryError, match=r"failed: FAKE_ERROR \(1\)") as caught:
            make_arena(device=device)
        refused += isinstance(caught.value, RegistrationFailed)
        del caught
        assert fake_gpu.alive("registration") == 0
        arena = make_arena(device=device)
        assert fake_gpu.alive("registration") == 3
        assert arena.backend == "registered"
    assert refused == 3


def test_no_block_lies_across_two_registrations(fake_gpu: FakeDriver) -> None:
    """sglang#36798: a copy across two registrations is refused."""
    arena = make_arena(8 * MIB)
    assert arena.try_alloc(2 * MIB + 1) is None
    blocks = arena.alloc_extents(7 * MIB)
    assert sum(block.nbytes for block in blocks) == 7 * MIB
    for block in blocks:
        first, last = block.offset, block.offset + block.nbytes - 1
        assert first // (2 * MIB) == last // (2 * MIB)


def test_a_state_larger_than_a_chunk_goes_and_comes(fake_gpu: FakeDriver) -> None:
    """sglang#36798: a copy across two registrations is refused. The stand-in refuses it too."""
    device = _native.CudaDevice(0)
    arena = make_arena(8 * MIB, device=device)
    data = random_bytes(5 * MIB + 3)
    memory = device.allocate(len(data))
    blocks = [block.native for block in arena.alloc_extents(len(data))]
    for direction in (Direction.TO_DEVICE, Direction.TO_HOST):
        address, pieces, start = memory.address, [], 0
        for block in blocks:
            to_device = direction is Direction.TO_DEVICE
            write(block, data[start : start + block.nbytes] if to_device else b"\0" * block.nbytes)
            pieces.append(Piece(block, address))
            address += block.nbytes
            start += block.nbytes
        ticket = _native.submit(device=device, direction=direction, pieces=pieces, streams=[0])
        assert ticket.synchronize(10.0)
    assert content(blocks) == data


def test_where_pinning_pages_is_forbidden_the_driver_allocates(fake_gpu: FakeDriver) -> None:
    """vllm#55428: registration is forbidden (801) under confidential computing."""
    fake_gpu.fail_call("cuMemHostRegister", NOT_SUPPORTED)
    arena = make_arena()
    assert arena.backend == "driver"
    assert "801" in arena.backend_reason
    assert fake_gpu.alive("host") == 3
    assert fake_gpu.alive("registration") == 0
    with arena.alloc(MIB) as block:
        block.numpy()[:] = 7
    arena.close()


def test_failing_frees_end_nothing(fake_gpu: FakeDriver) -> None:
    """pytorch#178154: a sticky error thrown in a destructor ended the process."""
    device = _native.CudaDevice(0)
    arena = make_arena(device=device)
    memory = device.allocate(4096)
    block = arena.alloc(4096)
    ticket = _native.submit(
        device=device,
        direction=Direction.TO_HOST,
        pieces=[Piece(block.native, memory.address)],
        streams=[0],
    )
    assert ticket.synchronize(10.0)
    for call in (
        "cuMemHostUnregister",
        "cuMemFree",
        "cuStreamDestroy",
        "cuEventDestroy",
        "cuEventQuery",
        "cuStreamSynchronize",
        "cuCtxPushCurrent",
        "cuDevicePrimaryCtxRelease",
    ):
        fake_gpu.fail_call(call, 700)
    block.free()
    arena.close()
    del ticket, memory, block, arena, device
    fake_gpu.reset()
    fake_gpu.tolerate_leaks()
    make_arena().close()
