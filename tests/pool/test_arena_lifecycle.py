"""An arena's arguments, its counters and its end."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING

import pytest
import torch

from pinferry import PinnedArena, _native
from pinferry.errors import (
    ArenaClosed,
    ArenaExhausted,
    ArenaInUse,
    HostMemoryLimit,
    InvalidArgument,
    InvalidSize,
    UnknownDevice,
)
from pinferry.pool import arena as arena_module

if TYPE_CHECKING:
    from pinferry.pool.host_memory import HostHeadroom


@pytest.mark.parametrize("capacity", [0, 1, 511, -1, "0", "-5GiB", "lots", 1.5, True, None, 2**60])
def test_a_capacity_that_makes_no_sense_is_refused(capacity: object) -> None:
    with pytest.raises(InvalidSize):
        PinnedArena(capacity, device="cpu")  # type: ignore[arg-type]


@pytest.mark.parametrize("chunk", [0, 1, 512, "1MiB", "3MiB", "2MB", 2**21 + 1, -(2**21), "x"])
def test_a_chunk_is_a_multiple_of_a_huge_page(chunk: int | str) -> None:
    with pytest.raises(InvalidSize):
        PinnedArena("4MiB", device="cpu", chunk=chunk)


@pytest.mark.parametrize("threads", [0, -1])
def test_an_arena_needs_a_thread_to_touch_its_pages(threads: int) -> None:
    with pytest.raises(InvalidArgument):
        PinnedArena("1MiB", device="cpu", threads=threads)


@pytest.mark.parametrize("reserve", [-1, "x", 1.5])
def test_a_reserve_that_makes_no_sense_is_refused(reserve: object) -> None:
    with pytest.raises(InvalidSize):
        PinnedArena("1MiB", device="cpu", reserve_host=reserve)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "device", ["gpu", "cuda:", "cuda:-1", "cuda:x", "", None, 0, "CPU", "meta"]
)
def test_a_device_that_does_not_exist_is_refused_by_name(device: object) -> None:
    with pytest.raises(UnknownDevice, match=re.escape(repr(str(device)))):
        PinnedArena("1MiB", device=device)


@pytest.mark.parametrize("backend", ["pinned", "", "AUTO", "registered", "driver"])
def test_the_cpu_device_has_no_such_backend(backend: str) -> None:
    with pytest.raises(InvalidArgument):
        PinnedArena("1MiB", device="cpu", backend=backend)


def test_capacity_is_rounded_down_to_512_bytes(torch_device: str) -> None:
    with PinnedArena(5000, device=torch.device(torch_device)) as arena:
        assert arena.capacity_bytes == arena.stats().capacity_bytes == 4608
        assert arena.alloc(4608).nbytes == 4608


def test_an_arena_says_what_it_is(arena: PinnedArena, torch_device: str) -> None:
    with arena.alloc(600):
        text = repr(arena)
    kind = "cuda:0" if torch_device == "cuda:0" else "cpu:0"
    assert kind in text
    assert "1.00 MiB" in text
    assert "1.00 KiB used" in text
    assert arena.backend in {"registered", "driver"} or torch_device == "cpu"
    assert arena.backend_reason
    assert (arena.stats().locked_bytes > 0) == (torch_device != "cpu")


def test_more_than_the_host_has_is_refused_with_numbers() -> None:
    with pytest.raises(HostMemoryLimit) as caught:
        PinnedArena("100TiB", device="cpu")
    assert caught.value.requested == 100 * 2**40
    available, limit = int(caught.value.available or 0), int(caught.value.limit or 0)
    assert 0 < available <= limit < 100 * 2**40


def test_the_host_is_asked_before_a_page_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []

    def refuse(requested: int, *, reserve: int) -> HostHeadroom:
        asked.append((requested, reserve))
        raise HostMemoryLimit("none left", requested=requested, available=0, limit=0)

    def touch(**_: object) -> None:
        pytest.fail("memory was made although the host has none")

    monkeypatch.setattr(arena_module, "require_host_bytes", refuse)
    monkeypatch.setattr(_native, "Arena", touch)
    with pytest.raises(HostMemoryLimit, match="none left"):
        PinnedArena("3MiB", device="cpu", reserve_host="1GB")
    assert asked == [(3 * 2**20, 10**9)]


def test_an_arena_with_live_blocks_does_not_close(arena: PinnedArena) -> None:
    blocks = [arena.alloc(1024), arena.alloc(512)]
    with pytest.raises(ArenaInUse, match=r"2 blocks with 1\.50 KiB") as caught:
        arena.close()
    assert caught.value.blocks == 2
    assert caught.value.used == 1536
    assert not arena.closed
    assert arena.alloc(512).nbytes == 512
    del blocks
    arena.close()
    assert arena.closed


def test_a_forced_close_leaves_blocks_and_views_valid(arena: PinnedArena) -> None:
    block = arena.alloc(2048)
    tensor = block.tensor(torch.int64)
    arena.close(force=True)
    tensor.fill_(-7)
    assert block.numpy("i8").tolist() == [-7] * 256
    block.free()
    assert tensor.tolist() == [-7] * 256


def test_closing_twice_is_harmless(arena: PinnedArena) -> None:
    arena.close()
    arena.close()
    arena.close(force=True)


@pytest.mark.parametrize("call", ["alloc", "try_alloc", "alloc_extents"])
def test_a_closed_arena_deals_out_nothing(arena: PinnedArena, call: str) -> None:
    arena.close()
    with pytest.raises(ArenaClosed):
        getattr(arena, call)(512)
    with pytest.raises(ArenaClosed), arena:
        pass
    assert arena.stats().blocks == 0
    assert "closed" in repr(arena)


def test_leaving_with_live_blocks_says_so(torch_device: str) -> None:
    with pytest.raises(ArenaInUse), PinnedArena("1MiB", device=torch_device) as arena:
        block = arena.alloc(512)
    assert not arena.closed
    del block


def test_leaving_by_an_error_does_not_hide_it(torch_device: str) -> None:
    arena = PinnedArena("1MiB", device=torch_device)
    block = arena.alloc(512)
    with pytest.raises(KeyError, match="body"), arena:
        raise KeyError("body")
    assert arena.closed
    assert block.tensor().fill_(1).sum() == 512


@pytest.mark.parametrize("call", ["alloc", "try_alloc", "alloc_extents"])
@pytest.mark.parametrize("nbytes", [-1, "x", 1.5, True])
def test_a_block_size_that_makes_no_sense_is_refused(
    arena: PinnedArena, call: str, nbytes: object
) -> None:
    with pytest.raises(InvalidSize):
        getattr(arena, call)(nbytes)


def test_stats_become_a_dictionary_of_numbers(arena: PinnedArena) -> None:
    with arena.alloc(512):
        numbers = arena.stats().to_dict()
    assert numbers["used_bytes"] == 512
    assert numbers["fragmentation"] == 0.0
    assert all(isinstance(value, (int, float)) for value in numbers.values())


@pytest.mark.parametrize("alignment", [1, 512, 1024, 4096])
def test_a_block_lies_where_its_alignment_asks(arena: PinnedArena, alignment: int) -> None:
    held = []
    for nbytes in (1, 512, 5000, 700, 4096, 0, 12345):
        held.append(arena.alloc(nbytes, alignment=alignment))
        assert held[-1].address % max(alignment, 512) == 0
        held.append(arena.alloc(512))
    ranges = sorted((block.offset, block.offset + block.nbytes) for block in held if block.nbytes)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ranges))
    used = arena.stats().used_bytes
    assert used == sum(-(-block.nbytes // 512) * 512 for block in held)  # nothing lies idle between


def test_an_aligned_block_may_take_the_last_byte(arena: PinnedArena) -> None:
    first = arena.alloc(512)
    rest = arena.alloc(2**20 - 4096, alignment=4096)
    assert (rest.offset, arena.stats().free_bytes) == (4096, 4096 - 512)
    with pytest.raises(ArenaExhausted):
        arena.alloc(512, alignment=4096)
    assert arena.alloc(512).offset == first.nbytes


def test_an_aligned_request_is_refused_with_its_alignment_and_advice_that_helps(
    arena: PinnedArena,
) -> None:
    held = [arena.alloc(nbytes) for nbytes in (512, 4096, 2**20 - 4608)]
    held[1].free()
    with pytest.raises(ArenaExhausted, match="at a multiple of 4096: ") as caught:
        arena.alloc(4096, alignment=4096)
    assert "alloc_extents" not in str(caught.value)  # it knows no alignment
    assert "Free blocks first, or make the arena larger" in str(caught.value)
    assert arena.alloc(4096).offset == 512


@pytest.mark.parametrize("alignment", [0, -1, 3, 513, 8192, 2**63, 512.0, "512", None, True])
def test_an_alignment_that_makes_no_sense_is_refused(arena: PinnedArena, alignment: int) -> None:
    with pytest.raises(InvalidArgument, match="alignment"):
        arena.alloc(512, alignment=alignment)
    assert arena.stats().blocks == 0
