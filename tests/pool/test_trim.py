"""Chunks that nobody uses go back to the system."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

from pinferry import PinnedArena
from pinferry.errors import ArenaClosed, InvalidSize

MIB = 2**20


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def test_trimming_lowers_resident_and_locked_memory(torch_device: str) -> None:
    with PinnedArena("128MiB", device=torch_device, chunk="32MiB") as arena:
        locked = arena.stats().locked_bytes
        before = resident_bytes()
        assert arena.trim() == 128 * MIB
        assert before - resident_bytes() > 120 * MIB
        assert arena.stats().locked_bytes == 0
        assert locked == (0 if torch_device == "cpu" else 128 * MIB)


def test_a_chunk_with_a_used_byte_stays_and_so_do_its_bytes(torch_device: str) -> None:
    with PinnedArena("8MiB", device=torch_device, chunk="2MiB") as arena:
        blocks = [arena.alloc("2MiB") for _ in range(4)]
        for value, block in enumerate(blocks):
            block.numpy()[:] = value
        del block
        kept = blocks.pop(1)
        blocks.clear()
        assert arena.trim() == 6 * MIB
        assert arena.capacity_bytes == 2 * MIB
        assert (kept.numpy() == 1).all()
        kept.free()


def test_what_was_trimmed_is_made_again_when_it_is_needed(torch_device: str) -> None:
    with PinnedArena("8MiB", device=torch_device, chunk="2MiB") as arena:
        for _ in range(3):
            arena.trim()
            assert arena.capacity_bytes == 0
            extents = arena.alloc_extents("8MiB")
            for extent in extents:
                assert not extent.numpy().any()  # new pages, not those of before
                extent.numpy()[:] = 255
            del extents, extent
            assert arena.stats().free_bytes == 8 * MIB


@pytest.mark.parametrize(
    ("keep", "remains"), [(0, 0), (1, 2), (2 * MIB, 2), ("3MiB", 4), ("8MiB", 8), ("1GiB", 8)]
)
def test_so_much_is_kept_as_was_asked_for(torch_device: str, keep: int | str, remains: int) -> None:
    with PinnedArena("8MiB", device=torch_device, chunk="2MiB") as arena:
        assert arena.trim(keep) == (8 - remains) * MIB
        assert arena.capacity_bytes == remains * MIB


@pytest.mark.parametrize("keep", [-1, "much", 2**63, None, 1.5])
def test_keeping_what_is_no_size_is_refused_and_nothing_goes(keep: object) -> None:
    with PinnedArena("4MiB", device="cpu", chunk="2MiB") as arena:
        with pytest.raises(InvalidSize):
            arena.trim(keep)  # type: ignore[arg-type]
        assert arena.capacity_bytes == 4 * MIB


def test_a_closed_arena_has_nothing_to_trim(torch_device: str) -> None:
    arena = PinnedArena("2MiB", device=torch_device)
    arena.close()
    with pytest.raises(ArenaClosed):
        arena.trim()


def test_closing_gives_the_memory_back_at_once(torch_device: str) -> None:
    arena = PinnedArena("128MiB", device=torch_device)
    before = resident_bytes()
    arena.close()
    assert before - resident_bytes() > 120 * MIB
    assert arena.stats().capacity_bytes == 0


def test_after_a_close_by_force_the_last_block_gives_the_memory_back(torch_device: str) -> None:
    arena = PinnedArena("128MiB", device=torch_device)
    blocks = [arena.alloc("1MiB"), arena.alloc("1MiB")]
    view = blocks[1].numpy()
    view[:] = 9
    arena.close(force=True)
    before = resident_bytes()
    blocks.clear()
    assert (view == 9).all()
    assert before - resident_bytes() < 8 * MIB
    del view
    gc.collect()
    assert before - resident_bytes() > 120 * MIB


def test_two_hundred_arenas_leave_memory_flat(torch_device: str) -> None:
    def open_and_close(times: int) -> None:
        for _ in range(times):
            with PinnedArena("16MiB", device=torch_device, chunk="4MiB") as arena:
                assert len(arena.alloc_extents("16MiB")) == 4

    open_and_close(20)
    before = resident_bytes()
    open_and_close(200)
    assert resident_bytes() - before < 4 * MIB
