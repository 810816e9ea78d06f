"""Many ranges of all sizes in one batch, whichever way the device copies them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from pinferry import _native
from pinferry._native import Direction
from tests.tiers import THRESHOLD
from tests.workbench import LATE, MIB, SOON, content, random_bytes, write

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.workbench import Workbench

GUARD = b"\xa5"
FEW, MANY = 3, 40  # too few ranges to trouble a kernel with, and enough


@dataclass
class Scattered:
    """Blocks, and places in device memory for their bytes with a gap before each."""

    blocks: list[_native.Block]
    offsets: list[int]
    device_nbytes: int

    def pieces(self, memory: _native.DeviceMemory) -> list[_native.Piece]:
        return [
            _native.Piece(block, memory.address + offset)
            for block, offset in zip(self.blocks, self.offsets, strict=True)
        ]

    def laid_out(self, data: Sequence[bytes], around: bytes = GUARD) -> bytes:
        """Return what device memory is that holds `data`, and another byte all around it."""
        memory = bytearray(around * self.device_nbytes)
        for offset, part in zip(self.offsets, data, strict=True):
            memory[offset : offset + len(part)] = part
        return bytes(memory)


def scatter(arena: _native.Arena, sizes: Sequence[int], seed: int = 0) -> Scattered:
    """Deal a block out for each size, in an order of its own, with odd places on the device."""
    play = random.Random(seed)
    order = play.sample(range(len(sizes)), len(sizes))
    dealt = arena.allocate_extents([sizes[i] for i in order], 0.0)
    blocks = dict(zip(order, (block for [block] in dealt), strict=True))
    offsets, end = [], 0
    for size in sizes:
        end += play.randrange(1, 70)
        offsets.append(end)
        end += size
    return Scattered([blocks[i] for i in range(len(sizes))], offsets, end + 64)


def submit(
    bench: Workbench,
    direction: Direction,
    pieces: list[_native.Piece],
    *streams: _native.Stream,
) -> _native.Ticket:
    return _native.submit(
        device=bench.device,
        direction=direction,
        pieces=pieces,
        streams=[stream.handle for stream in streams],
    )


def parts(sizes: Sequence[int], seed: int) -> list[bytes]:
    return [random_bytes(size, seed + i) for i, size in enumerate(sizes)]


def draw_sizes(seed: int, count: int, at_most: int) -> list[int]:
    play = random.Random(seed)
    return [play.randrange(at_most + 1) for _ in range(count)]


BATCHES = {
    "every size up to 70": list(range(71)),
    "random up to 100 kB": draw_sizes(1, 60, 100_000),
    "small ones alone": draw_sizes(2, 200, 5000),
    "large ones alone": [THRESHOLD, THRESHOLD + 1, 2 * THRESHOLD] * 4,
    "around the threshold": [THRESHOLD + step for step in range(-3, 4)] * 2,
    "around a unit of the kernel": [8192 + step for step in (-17, -16, -1, 0, 1, 15, 16)] * 2,
    "few": [1000] * FEW,
    "one": [777],
    "empty ones among others": [0, 5, 0, 0, 4096, 0, 12, 1, 0],
    "nothing but empty ones": [0] * 9,
}


@pytest.mark.parametrize("batch", BATCHES)
def test_ranges_go_out_to_the_bit_and_touch_nothing_else(tiered: Workbench, batch: str) -> None:
    sizes = BATCHES[batch]
    arena = tiered.arena()
    scattered = scatter(arena, sizes)
    [rest] = arena.allocate_extents([arena.stats().free_bytes], 0.0)
    data = parts(sizes, 7)
    memory = tiered.memory(scattered.laid_out(data))
    for block in [*scattered.blocks, *rest]:
        write(block, GUARD * block.nbytes)
    ticket = submit(tiered, Direction.TO_HOST, scattered.pieces(memory))
    assert ticket.nbytes == sum(sizes)
    assert ticket.synchronize(LATE)
    assert [content(block) for block in scattered.blocks] == data
    assert all(content(block) == GUARD * block.nbytes for block in rest)


@pytest.mark.parametrize("batch", BATCHES)
def test_ranges_come_in_to_the_bit_and_touch_nothing_else(tiered: Workbench, batch: str) -> None:
    sizes = BATCHES[batch]
    scattered = scatter(tiered.arena(), sizes)
    data = parts(sizes, 9)
    memory = tiered.memory(GUARD * scattered.device_nbytes)
    for block, part in zip(scattered.blocks, data, strict=True):
        write(block, part)
    ticket = submit(tiered, Direction.TO_DEVICE, scattered.pieces(memory))
    assert ticket.synchronize(LATE)
    assert tiered.read(memory) == scattered.laid_out(data)


def test_neighbours_are_joined_within_their_chunk_and_not_across(tiered: Workbench) -> None:
    """A copy that crosses from one chunk into the next is refused by the driver."""
    arena = tiered.arena(4 * MIB, 2 * MIB)
    blocks = [block for [block] in arena.allocate_extents([65_536] * 64, 0.0)]
    blocks.sort(key=lambda block: block.offset)
    assert blocks[-1].offset == 4 * MIB - 65_536
    data = random_bytes(4 * MIB)
    memory = tiered.memory(data)
    assert tiered.offload(blocks, memory).synchronize(LATE)
    assert content(blocks) == data
    target = tiered.memory(bytes(4 * MIB))
    assert tiered.reload(blocks, target).synchronize(LATE)
    assert tiered.read(target) == data


def test_many_batches_in_flight_keep_their_own_bytes(tiered: Workbench) -> None:
    """Each batch needs its own table for as long as the kernel before it has not run."""
    gate, arena = tiered.stream(), tiered.arena()
    sizes = draw_sizes(3, MANY, 3000)
    rounds = []
    for seed in range(8):
        scattered = scatter(arena, sizes, seed)
        data = parts(sizes, 100 * seed)
        rounds.append((scattered, data, tiered.memory(scattered.laid_out(data))))
    gate.hold()
    tickets = [
        submit(tiered, Direction.TO_HOST, scattered.pieces(memory), gate)
        for scattered, _, memory in rounds
    ]
    assert not tickets[0].synchronize(SOON)
    gate.release()
    for ticket, (scattered, data, _) in zip(tickets, rounds, strict=True):
        assert ticket.synchronize(LATE)
        assert [content(block) for block in scattered.blocks] == data


@pytest.mark.parametrize("large", [0, 2], ids=["small", "mixed"])
class TestOrdering:
    """The edges of docs/ordering.md, for a batch in which the kernel has a share."""

    def sizes(self, large: int) -> list[int]:
        return [*([1000] * MANY), *([2 * THRESHOLD] * large)]

    def test_an_offload_waits_for_its_producer(self, tiered: Workbench, large: int) -> None:
        sizes = self.sizes(large)
        scattered = scatter(tiered.arena(), sizes)
        memory = tiered.memory(b"\x01" * scattered.device_nbytes)
        producer = tiered.stream()
        for block in scattered.blocks:
            write(block, GUARD * block.nbytes)
        producer.hold()
        producer.fill(memory.address, 7, scattered.device_nbytes)
        ticket = submit(tiered, Direction.TO_HOST, scattered.pieces(memory), producer)
        assert not ticket.synchronize(SOON)
        assert content(scattered.blocks) == GUARD * sum(sizes)
        producer.release()
        assert ticket.synchronize(LATE)
        # The end event covers every way that a part of the batch took.
        assert content(scattered.blocks) == b"\x07" * sum(sizes)

    def test_a_reload_waits_for_who_still_uses_the_memory(
        self, tiered: Workbench, large: int
    ) -> None:
        sizes = self.sizes(large)
        scattered = scatter(tiered.arena(), sizes)
        n = scattered.device_nbytes
        memory, seen = tiered.memory(b"\x01" * n), tiered.memory(b"\x02" * n)
        user = tiered.stream()
        data = parts(sizes, 5)
        for block, part in zip(scattered.blocks, data, strict=True):
            write(block, part)
        user.hold()
        user.copy(seen.address, memory.address, n)
        ticket = submit(tiered, Direction.TO_DEVICE, scattered.pieces(memory), user)
        assert not ticket.synchronize(SOON)
        assert tiered.read(memory) == b"\x01" * n
        user.release()
        assert ticket.synchronize(LATE)
        assert tiered.read(seen) == b"\x01" * n
        assert tiered.read(memory) == scattered.laid_out(data, around=b"\x01")

    def test_a_consumer_that_waits_for_the_ticket_sees_every_part(
        self, tiered: Workbench, large: int
    ) -> None:
        sizes = self.sizes(large)
        scattered = scatter(tiered.arena(), sizes)
        n = scattered.device_nbytes
        memory, seen = tiered.memory(GUARD * n), tiered.memory(bytes(n))
        gate, consumer = tiered.stream(), tiered.stream()
        data = parts(sizes, 6)
        for block, part in zip(scattered.blocks, data, strict=True):
            write(block, part)
        gate.hold()
        ticket = submit(tiered, Direction.TO_DEVICE, scattered.pieces(memory), gate)
        ticket.wait(consumer.handle)
        consumer.copy(seen.address, memory.address, n)
        result, read = tiered.queue_read(seen, [consumer])
        assert not read.synchronize(SOON)
        gate.release()
        assert read.synchronize(LATE)
        assert content(result) == scattered.laid_out(data)

    def test_a_reload_behind_the_offload_of_its_blocks_reads_the_final_bytes(
        self, tiered: Workbench, large: int
    ) -> None:
        sizes = self.sizes(large)
        scattered = scatter(tiered.arena(), sizes)
        n = scattered.device_nbytes
        memory, target = tiered.memory(b"\x01" * n), tiered.memory(GUARD * n)
        producer = tiered.stream()
        producer.hold()
        producer.fill(memory.address, 7, n)
        submit(tiered, Direction.TO_HOST, scattered.pieces(memory), producer)
        back = submit(tiered, Direction.TO_DEVICE, scattered.pieces(target))
        assert not back.synchronize(SOON)
        producer.release()
        assert back.synchronize(LATE)
        assert tiered.read(target) == scattered.laid_out([b"\x07" * size for size in sizes])

    def test_a_batch_ends_before_a_later_one_of_its_direction(
        self, tiered: Workbench, large: int
    ) -> None:
        sizes = self.sizes(large)
        arena = tiered.arena()
        first, second = scatter(arena, sizes), scatter(arena, sizes)
        memory = tiered.memory(bytes(first.device_nbytes))
        gate = tiered.stream()
        gate.hold()
        before = submit(tiered, Direction.TO_HOST, first.pieces(memory), gate)
        after = submit(tiered, Direction.TO_HOST, second.pieces(memory))
        assert not after.synchronize(SOON)
        gate.release()
        assert after.synchronize(LATE)
        assert before.done()

    def test_dropped_blocks_are_not_dealt_out_before_the_batch_has_ended(
        self, tiered: Workbench, large: int
    ) -> None:
        sizes = self.sizes(large)
        arena = tiered.arena(2 * MIB, 2 * MIB)
        scattered = scatter(arena, sizes)
        memory = tiered.memory(bytes(scattered.device_nbytes))
        gate = tiered.stream()
        gate.hold()
        ticket = submit(tiered, Direction.TO_HOST, scattered.pieces(memory), gate)
        held = arena.stats().used_bytes
        del scattered
        assert arena.stats().retired_bytes == held
        gate.release()
        assert ticket.synchronize(LATE)
        assert arena.stats().retired_bytes == 0
