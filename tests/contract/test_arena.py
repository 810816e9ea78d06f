"""How an arena deals its memory out, over chunks that no block may cross."""

from __future__ import annotations

import random
from itertools import chain
from typing import TYPE_CHECKING

import pytest

from pinferry.errors import ArenaClosed, ArenaExhausted
from tests.workbench import MIB

if TYPE_CHECKING:
    from pinferry._native import Arena, Block
    from tests.workbench import Workbench

CAPACITY = 8 * MIB
CHUNK = 2 * MIB


def add_up(arena: Arena, blocks: list[Block]) -> None:
    """Check that the counters agree with each other and with the blocks that are held."""
    stats = arena.stats()
    rounded = sum((block.nbytes + 511) // 512 * 512 for block in blocks)
    assert stats.used_bytes == rounded
    assert stats.used_bytes + stats.free_bytes + stats.retired_bytes == stats.capacity_bytes
    assert stats.blocks == len(blocks)
    assert 0 <= stats.largest_free_bytes <= min(stats.free_bytes, CHUNK)
    assert stats.used_bytes <= stats.peak_bytes <= stats.capacity_bytes


def test_blocks_are_aligned_apart_and_within_one_chunk(workbench: Workbench) -> None:
    play = random.Random(1)
    arena = workbench.arena(CAPACITY, CHUNK)
    blocks: list[Block] = []
    for _ in range(200):
        sizes = [play.choice([1, 511, 512, 513, 100_000, MIB]) for _ in range(play.randrange(4))]
        try:
            blocks += chain.from_iterable(arena.allocate_extents(sizes, 0.0))
        except ArenaExhausted:
            blocks = play.sample(blocks, len(blocks) // 2)
        add_up(arena, blocks)
        assert all(block.address % 512 == 0 for block in blocks)
        end = 0
        for offset, nbytes in sorted((block.offset, block.nbytes) for block in blocks):
            assert offset % 512 == 0
            assert offset >= end
            end = offset + nbytes
            assert offset // CHUNK == (end - 1) // CHUNK
        assert end <= CAPACITY


def test_extents_succeed_whenever_the_free_bytes_suffice(workbench: Workbench) -> None:
    play = random.Random(2)
    arena = workbench.arena(CAPACITY, CHUNK)
    for _ in range(10):
        blocks: list[Block] = []
        blocks = [block for [block] in arena.allocate_extents([32 * 1024] * 256, 0.0)]
        assert arena.try_allocate(1) is None
        blocks = play.sample(blocks, 100)
        free = arena.stats().free_bytes
        assert free == CAPACITY - 100 * 32 * 1024
        with pytest.raises(ArenaExhausted):
            arena.allocate_extents([free + 1], 0.0)
        [extents] = arena.allocate_extents([free], 0.0)
        assert sum(extent.nbytes for extent in extents) == free
        assert arena.stats().free_bytes == 0
        add_up(arena, blocks + extents)
        del extents


def test_extents_are_few_where_a_free_range_is_large_enough(workbench: Workbench) -> None:
    arena = workbench.arena(CAPACITY, CHUNK)
    assert [len(extents) for extents in arena.allocate_extents([CHUNK, 1, 512], 0.0)] == [1, 1, 1]
    [extents] = workbench.arena(CAPACITY, CHUNK).allocate_extents([CAPACITY], 0.0)
    assert [extent.nbytes for extent in extents] == [CHUNK] * 4


def test_all_sizes_are_dealt_or_none(workbench: Workbench) -> None:
    arena = workbench.arena(CAPACITY, CHUNK)
    kept = arena.allocate(100, 0.0)
    before = arena.stats()
    with pytest.raises(ArenaExhausted) as caught:
        arena.allocate_extents([MIB, 0, 3 * MIB, 4 * MIB], 0.0)
    after = arena.stats()
    assert caught.value.requested == CAPACITY
    assert caught.value.free == before.free_bytes
    assert caught.value.in_flight == 0
    assert after.failures == before.failures + 1
    for counter in ("used_bytes", "free_bytes", "largest_free_bytes", "peak_bytes"):
        assert getattr(after, counter) == getattr(before, counter)
    assert (after.blocks, after.allocations) == (1, before.allocations)
    assert kept.nbytes == 100


def test_one_piece_is_refused_where_only_several_would_do(workbench: Workbench) -> None:
    arena = workbench.arena(CAPACITY, CHUNK)
    assert arena.try_allocate(CHUNK + 1) is None
    with pytest.raises(ArenaExhausted) as caught:
        arena.allocate(CHUNK + 1, 0.0)
    assert caught.value.largest_free == CHUNK
    assert caught.value.free == CAPACITY
    assert "alloc_extents" in str(caught.value)


def test_the_peak_is_the_most_that_was_ever_held(workbench: Workbench) -> None:
    arena = workbench.arena(CAPACITY, CHUNK)
    first, second = arena.allocate(MIB, 0.0), arena.allocate(MIB, 0.0)
    del first
    third = arena.allocate(512, 0.0)
    del second, third
    stats = arena.stats()
    assert stats.peak_bytes == 2 * MIB
    assert (stats.used_bytes, stats.free_bytes, stats.allocations) == (0, CAPACITY, 3)
    assert stats.largest_free_bytes == CHUNK


def test_blocks_of_no_bytes_take_no_room(workbench: Workbench) -> None:
    arena = workbench.arena(512, CHUNK)
    full = arena.allocate(512, 0.0)
    empty = [arena.allocate(0, 0.0) for _ in range(3)]
    assert [block.nbytes for block in empty] == [0, 0, 0]
    assert [len(extents) for extents in arena.allocate_extents([0, 0], 0.0)] == [1, 1]
    assert arena.allocate_extents([], 0.0) == []
    add_up(arena, [full, *empty])
    del empty
    add_up(arena, [full])


def test_a_capacity_that_is_no_multiple_of_anything_is_rounded_down(workbench: Workbench) -> None:
    arena = workbench.arena(CHUNK + 1023, CHUNK)
    assert arena.stats().capacity_bytes == CHUNK + 512
    [extents] = arena.allocate_extents([CHUNK + 512], 0.0)
    assert sorted(extent.nbytes for extent in extents) == [512, CHUNK]


def test_a_closed_arena_deals_nothing_out(workbench: Workbench) -> None:
    arena = workbench.arena()
    block = arena.allocate(512, 0.0)
    assert not arena.closed
    arena.close()
    arena.close()
    assert arena.closed
    with pytest.raises(ArenaClosed):
        arena.allocate(1, 0.0)
    with pytest.raises(ArenaClosed):
        arena.try_allocate(1)
    with pytest.raises(ArenaClosed):
        arena.allocate_extents([1], 0.0)
    memoryview(block)[0] = 1
    assert arena.stats().used_bytes == 512


def test_pinned_memory_is_locked_and_plain_memory_is_not(workbench: Workbench) -> None:
    arena = workbench.arena(CAPACITY, CHUNK)
    on_gpu = workbench.device.kind == "cuda"
    assert arena.backend in (("registered", "driver") if on_gpu else ("unpinned",))
    assert arena.stats().locked_bytes == (CAPACITY if on_gpu else 0)
    assert arena.device is workbench.device


@pytest.mark.parametrize("sizes", [[2**64 - 1], [2**63, 2**63], [2**63 + 512, 2**63]])
def test_sizes_beyond_any_memory_are_refused_with_the_true_number(
    workbench: Workbench, sizes: list[int]
) -> None:
    arena = workbench.arena(CAPACITY, CHUNK)
    with pytest.raises(ArenaExhausted) as caught:
        arena.allocate_extents(sizes, 0.0)
    assert isinstance(caught.value.requested, int)
    assert caught.value.requested >= 2**63 - 1
    assert arena.stats().free_bytes == CAPACITY
