"""Urgent copies have streams of their own, under the same edges as all others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pinferry import _native
from pinferry._native import Direction
from tests.workbench import LATE, MIB, SOON, content, random_bytes, write

if TYPE_CHECKING:
    from tests.fake_driver import FakeDriver
    from tests.workbench import Workbench

N = 4096
OLD, NEW, OTHER = b"\x01" * N, b"\x07" * N, random_bytes(N, 1)
both_ways = pytest.mark.parametrize(
    "direction", [Direction.TO_HOST, Direction.TO_DEVICE], ids=["out", "in"]
)


@both_ways
@pytest.mark.parametrize("urgent_first", [True, False], ids=["urgent-held", "bulk-held"])
def test_neither_lane_waits_for_the_other(
    workbench: Workbench, direction: Direction, urgent_first: bool
) -> None:
    arena, gate = workbench.arena(), workbench.stream()
    blocks = [arena.allocate(N, 0.0), arena.allocate(N, 0.0)]
    for block in blocks:
        write(block, OTHER)
    memories = [workbench.memory(OLD), workbench.memory(OLD)]
    gate.hold()
    held = workbench.submit(direction, blocks[0], memories[0].address, [gate], urgent=urgent_first)
    other = workbench.submit(direction, blocks[1], memories[1].address, urgent=not urgent_first)
    assert other.synchronize(LATE)
    assert not held.done()
    if direction == Direction.TO_HOST:
        assert content(blocks[1]) == OLD
    else:
        assert workbench.read(memories[1]) == OTHER
    gate.release()
    assert held.synchronize(LATE)


@both_ways
def test_copies_of_one_lane_run_in_order(workbench: Workbench, direction: Direction) -> None:
    arena, gate = workbench.arena(), workbench.stream()
    blocks = [arena.allocate(N, 0.0), arena.allocate(N, 0.0)]
    memories = [workbench.memory(OLD), workbench.memory(OLD)]
    gate.hold()
    workbench.submit(direction, blocks[0], memories[0].address, [gate], urgent=True)
    second = workbench.submit(direction, blocks[1], memories[1].address, urgent=True)
    assert not second.synchronize(SOON)
    gate.release()
    assert second.synchronize(LATE)


@pytest.mark.parametrize("urgent", [True, False])
def test_copies_of_one_block_wait_for_each_other_across_lanes(
    workbench: Workbench, urgent: bool
) -> None:
    memory, target, producer = workbench.memory(OLD), workbench.memory(OTHER), workbench.stream()
    block = workbench.arena().allocate(N, 0.0)
    producer.hold()
    producer.fill(memory.address, 7, N)
    workbench.offload(block, memory, producer, urgent=urgent)
    back = workbench.reload(block, target, urgent=not urgent)
    again = workbench.reload(block, target, urgent=urgent)
    assert not back.synchronize(SOON)
    assert not again.done()
    producer.release()
    assert back.synchronize(LATE)
    assert again.synchronize(LATE)
    assert workbench.read(target) == NEW


def test_an_urgent_offload_waits_for_its_producer(workbench: Workbench) -> None:
    memory, producer = workbench.memory(OLD), workbench.stream()
    block = workbench.arena().allocate(N, 0.0)
    producer.hold()
    producer.fill(memory.address, 7, N)
    ticket = workbench.offload(block, memory, producer, urgent=True)
    assert not ticket.synchronize(SOON)
    producer.release()
    assert ticket.synchronize(LATE)
    assert content(block) == NEW


def test_memory_freed_amid_an_urgent_copy_goes_back_after_it(workbench: Workbench) -> None:
    source, gate = workbench.device.allocate(N), workbench.stream()
    arena = workbench.arena()
    block = arena.allocate(N, 0.0)
    gate.hold()
    gate.fill(source.address, 7, N)
    ticket = workbench.offload(block, source, gate, urgent=True)
    del source
    gate.release()
    assert ticket.synchronize(LATE)
    assert content(block) == NEW


def test_a_block_dropped_amid_an_urgent_copy_is_dealt_out_behind_it(workbench: Workbench) -> None:
    arena, gate = workbench.arena(2 * MIB), workbench.stream()
    memory = workbench.memory(bytes(2 * MIB))
    gate.hold()
    ticket = workbench.offload(arena.allocate(2 * MIB, 0.0), memory, gate, urgent=True)
    assert arena.try_allocate(N) is None
    gate.release()
    assert ticket.synchronize(LATE)
    assert arena.allocate(2 * MIB, LATE) is not None


def test_urgent_streams_of_a_gpu_have_its_highest_priority(fake_gpu: FakeDriver) -> None:
    device = _native.CudaDevice(0)
    streams = {
        (direction, urgent): device.copy_stream(direction, urgent=urgent)
        for direction in (Direction.TO_HOST, Direction.TO_DEVICE)
        for urgent in (False, True)
    }
    assert len(set(streams.values())) == 4
    assert {urgent: fake_gpu.priority(stream) for (_, urgent), stream in streams.items()} == {
        False: 0,
        True: -5,
    }


@both_ways
@pytest.mark.parametrize("nbytes", [1, N - 1, N, N + 1, 3 * N, 3 * N + 5])
def test_a_gpu_copies_large_ranges_in_pieces(
    fake_gpu: FakeDriver, direction: Direction, nbytes: int
) -> None:
    from tests.workbench import Workbench

    bench = Workbench(_native.CudaDevice(0), _native.CudaDevice(0))
    assert isinstance(bench.device, _native.CudaDevice)
    data, other = random_bytes(nbytes, 1), random_bytes(nbytes, 2)
    memory, block = bench.memory(data), bench.arena().allocate(nbytes, 0.0)
    write(block, other)
    bench.device.tune_copies(direction, threshold_nbytes=0, blocks=1, piece_nbytes=N)
    fake_gpu.reset()
    assert bench.submit(direction, block, memory.address).synchronize(LATE)
    copy = "cuMemcpyDtoHAsync" if direction == Direction.TO_HOST else "cuMemcpyHtoDAsync"
    assert fake_gpu.calls(copy) == -(-nbytes // N)
    copied = data if direction == Direction.TO_HOST else other
    assert content(block) == bench.read(memory) == copied
    bench.close()
