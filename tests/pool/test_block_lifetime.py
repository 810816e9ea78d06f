"""Who keeps a block's memory, and until when."""

from __future__ import annotations

import threading
import weakref

import numpy as np
import pytest
import torch

from pinferry import PinnedArena
from pinferry.errors import ArenaExhausted


def test_a_view_keeps_the_memory_when_block_and_arena_are_gone(torch_device: str) -> None:
    arena = PinnedArena("1MiB", device=torch_device)
    block = arena.alloc(256 * 1024)
    tensor = block.tensor(torch.int32)
    array = block.numpy(np.int32)
    tensor.copy_(torch.arange(tensor.numel(), dtype=torch.int32))
    gone = weakref.ref(arena)
    del arena, block
    assert gone() is None
    part = tensor[1000:2000]
    del tensor
    # Nothing made afterwards may take the memory that the views still show.
    with PinnedArena("1MiB", device=torch_device) as other:
        other.alloc(512 * 1024).tensor().fill_(0xEE)
    assert part.tolist() == list(range(1000, 2000))
    assert array.tolist() == list(range(64 * 1024))


@pytest.mark.parametrize("kind", ["tensor", "numpy", "slice"])
def test_a_range_stays_in_use_until_its_last_view_dies(arena: PinnedArena, kind: str) -> None:
    block = arena.alloc("1MiB")
    view: object = block.numpy() if kind == "numpy" else block.tensor()
    if kind == "slice":
        view = block.tensor()[5:6]
    block.free()
    assert arena.stats().used_bytes == 2**20
    with pytest.raises(ArenaExhausted):
        arena.alloc(1)
    del view
    assert arena.stats().used_bytes == 0
    assert arena.alloc("1MiB").nbytes == 2**20


def test_a_dropped_block_gives_its_range_back(arena: PinnedArena) -> None:
    block = arena.alloc("1MiB")
    del block
    assert arena.stats().free_bytes == 2**20


def test_extents_of_a_scattered_arena_hold_what_one_block_cannot(arena: PinnedArena) -> None:
    blocks = [arena.alloc("128KiB") for _ in range(8)]
    del blocks[::2]
    assert arena.stats().fragmentation == pytest.approx(0.75)
    with pytest.raises(ArenaExhausted, match="alloc_extents") as caught:
        arena.alloc("256KiB")
    error = caught.value
    assert error.requested == 256 * 1024
    assert error.free == 512 * 1024
    assert error.largest_free == 128 * 1024
    assert error.in_flight == 0
    assert [extent.nbytes for extent in arena.alloc_extents("300KiB")] == [
        128 * 1024,
        128 * 1024,
        44 * 1024,
    ]


def test_an_extent_request_that_fails_takes_nothing(arena: PinnedArena) -> None:
    blocks = [arena.alloc("128KiB") for _ in range(8)]
    del blocks[::2]
    before = arena.stats()
    with pytest.raises(ArenaExhausted):
        arena.alloc_extents("513KiB")
    after = arena.stats()
    assert (after.free_bytes, after.largest_free_bytes) == (
        before.free_bytes,
        before.largest_free_bytes,
    )
    assert after.failures == before.failures + 1


def test_threads_never_share_a_byte(arena: PinnedArena) -> None:
    clashes: list[int] = []

    def play(mark: int) -> None:
        for _ in range(200):
            with arena.alloc(3000) as block:
                view = block.numpy()
                view[:] = mark
                if not (view == mark).all():
                    clashes.append(mark)
                del view

    threads = [threading.Thread(target=play, args=(mark,)) for mark in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clashes == []
    assert arena.stats().used_bytes == 0
    assert arena.stats().allocations == 800
